"""Run directories of this project: `config.json`, the vocabulary, `checkpoints/` and `best/`."""

from __future__ import annotations

import json
import os
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from bert_jax.config.bert_config import COMPUTATION, OPTIONS
from bert_jax.heads import HEADS
from bert_jax.runtime.checksum import (
    CHECKSUMS,
    check_digest,
    checksum,
    digest,
    leaf_name,
    leaves,
    saved_tree,
    with_digest,
)
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, absolute, as_path, children, in_bucket, write_whole
from bert_jax.text import load_tokenizer, read_switches, write_switches
from bert_jax.train.sharding import VOCAB_MULTIPLE
from bert_jax.weights.formats import (
    Weights,
    check_finite,
    check_head,
    check_tensors,
    find_head,
    find_vocabulary,
    from_tree,
    new_folder,
    read_inference,
    read_json,
    read_labels,
    read_model,
    to_tree,
)

# What else the section "model" of a run's config.json may hold: how the model is computed, the name
# of its size, and of a feature-based run which features.
_BESIDES = (*COMPUTATION, 'name', 'features')
_COMMITTED = 'commit_success.txt'


def is_begun(workdir: Path) -> bool:
    """Whether a run has a checkpoint to go on from."""
    return bool(whole_steps(workdir / 'checkpoints'))


def read_description(workdir: Path) -> Weights:
    """A run's model and vocabulary, without parameters, head or labels.

    Raises:
      InputError: it is no run directory.
    """
    config_file = workdir / 'config.json'
    config = read_config(workdir)
    model = _model(config, config_file)
    vocab_file, lowercase = _vocabulary(workdir, config, model)
    return Weights({}, model, '', (), vocab_file, lowercase, (), f'run directory {workdir}')


def read_run(named: str | os.PathLike[str], *, any_head: bool = False) -> Weights:
    """The parameters that a run ended with, or those of its best evaluation where it keeps them.

    They are in `best/STEP/` or the newest of `checkpoints/STEP/`. Optimizer moments are not read.

    Args:
      named: the run directory, or a `checkpoints/STEP` of it.
      any_head: as of `load_weights`.

    Raises:
      InputError: it is no run directory, has no checkpoint, or one that cannot be read.
    """
    workdir, step = as_path(named), None
    if workdir.parent.name == 'checkpoints' and workdir.name.isdigit():
        workdir, step = workdir.parent.parent, workdir
    config_file = workdir / 'config.json'
    config = read_config(workdir)
    model = _model(config, config_file)
    hint = check_head(config.get('head', ''), config_file, any_head)
    if step is None:
        steps = whole_steps(workdir / 'best') or whole_steps(workdir / 'checkpoints')
        if not steps:
            raise InputError(f'{workdir} has no checkpoint to read: checkpoints/ holds none')
        step = max(steps, key=lambda path: int(path.name))
    params = from_tree(_restore(step / 'default'), model['vocab_size'])
    params = {name: np.asarray(x) for name, x in params.items()}
    for name, x in params.items():
        check_finite(name, x, step)
    portable = bool(HEADS[hint].classes)
    shapes = {name: x.shape for name, x in params.items()
              if portable or name.startswith('bert/')}  # other heads are in no table of names
    table, _ = check_tensors('bert_jax', shapes, model, step, config_file)
    if extra := sorted(set(shapes) - {tensor.name for tensor in table}):
        raise InputError(f'{step} also has {extra[0]}: {config_file} is of another model')
    head = find_head(params, hint, f'{config_file} says head {hint!r}') if portable else hint
    labels = read_labels(config.get('labels'), head, params, config_file)
    vocab_file, lowercase = _vocabulary(workdir, config, model)
    inference = read_inference(config, 'inference', config_file)
    lengths = [phase['max_seq_length'] for phase in config.get('phases') or ()
               if isinstance(phase, dict) and 'max_seq_length' in phase]
    if hint == 'pretraining' and lengths and not config.get('init_checkpoint'):
        # A model pre-trained from scratch knows positions up to the longest rows.
        inference = {'max_seq_length': max(lengths)} | inference
    return Weights(
        params, model, head, labels, vocab_file, lowercase, (),
        f'run directory {workdir}, step {int(step.name):,}'
        + (' (its best evaluation)' if step.parent.name == 'best' else ''), inference,
    )


def read_config(
    workdir: Path, hint: str = 'a run directory holds config.json and checkpoints/'
) -> dict[str, Any]:
    """The fields of `config.json`.

    Raises:
      InputError: there is none, it is no JSON object, or not the one that the run wrote.
    """
    path = workdir / 'config.json'
    return check_digest(read_json(path, hint), path)


def write_config(workdir: Path, fields: dict[str, Any]) -> None:
    """Writes `config.json`."""
    write_whole(workdir / 'config.json', json.dumps(with_digest(fields), indent=2) + '\n')


def _model(config: dict[str, Any], config_file: Path) -> dict[str, Any]:
    """See `Weights.model`."""
    section = config.get('model')
    if not isinstance(section, dict):
        raise InputError(f'{config_file} has no section "model": it is of no run of this project')
    known = (*(option.name for option in OPTIONS), *_BESIDES)
    for name in section:
        if name not in known:
            raise InputError(
                f'{config_file}: model.{name}={section[name]!r} is unknown here, so the model '
                'would be read as another: read it with the version of bert_jax that wrote it'
            )
    return read_model(section, 'bert_jax', config_file)


def _vocabulary(
    workdir: Path, config: dict[str, Any], model: dict[str, Any]
) -> tuple[Path | None, bool]:
    """(file, whether text is lower-cased)."""
    data = config.get('data') or {}
    if not isinstance(data, dict):
        raise InputError(f'{workdir}/config.json: the section "data" is {data!r}, no JSON object')
    lowercase = bool(data.get('lowercase', True))
    vocab_file = find_vocabulary(workdir)
    if vocab_file is not None:
        recorded = config.get('vocabulary')
        if recorded is not None and recorded != digest(vocab_file.read_bytes()):
            raise InputError(
                f'{vocab_file} is not the vocabulary that the run was trained with (its content is '
                'another than config.json says): put that one back'
            )
        num_tokens = len(load_tokenizer(vocab_file, lowercase).vocab)
        if num_tokens > model['vocab_size']:  # fewer are allowed: model.vocab_size may be set
            raise InputError(
                f"{vocab_file} has {num_tokens} tokens, the embedding has {model['vocab_size']} "
                'rows: put the vocabulary there that the run was trained with'
            )
    return vocab_file, lowercase


def whole_steps(folder: Path) -> list[Path]:
    """The checkpoints `FOLDER/STEP` that were saved to their end.

    On a disk orbax renames; in a bucket it writes in place, and this file when it is done.
    """
    mark = _COMMITTED if in_bucket(folder) else ''
    return [path for path in children(folder) if path.name.isdigit() and (path / mark).exists()]


def _restore(path: Path) -> dict[str, Any]:
    """The tree of parameters as numpy arrays, whatever mesh they were saved on.

    They are compared with the checksums that were saved with them, where there are some.
    """
    handler = ocp.PyTreeCheckpointHandler()
    reader = ocp.Checkpointer(handler)
    try:
        saved = handler.metadata(absolute(path)).tree
        is_leaf = lambda x: hasattr(x, 'shape')  # noqa: E731
        wanted = {key: jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), saved[key], is_leaf=is_leaf,
        ) for key in ('params', CHECKSUMS) if key in saved}
        restored = reader.restore(absolute(path), args=ocp.args.PyTreeRestore(
            item=wanted, partial_restore=True,  # the moments are twice the parameters
            restore_args=jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted),
        ))
        if CHECKSUMS in restored:
            names = sorted(leaf_name(leaf) for leaf, _ in jax.tree_util.tree_leaves_with_path(
                saved, is_leaf=is_leaf))
            names.remove(CHECKSUMS)
            written = dict(zip(names, np.asarray(restored[CHECKSUMS]).tolist(), strict=True))
            for name, x in leaves({'params': restored['params']}).items():
                if int(checksum(np.asarray(x))) != written[name]:
                    raise ValueError(f'{name} is not what was saved')
        params: dict[str, Any] = restored['params']
        return params
    except Exception as error:  # of many types; what is there stays as it is
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f'{path.parent} cannot be read ({lines[0][:200]}): move it away, and the checkpoint '
            'before it is taken'
        ) from error
    finally:
        reader.close()


def write_run(workdir: str | os.PathLike[str], weights: Weights) -> list[str]:
    """A run directory with one checkpoint, of step 0, that holds parameters only.

    Raises:
      InputError: it cannot be written, or holds something already.
    """
    num_rows = weights.model['vocab_size']
    padded = -(-num_rows // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    with new_folder(as_path(workdir)) as beside:
        vocabulary = b'' if weights.vocab_file is None else weights.vocab_file.read_bytes()
        write_config(beside, {
            'vocabulary': digest(vocabulary) if vocabulary else None,
            'head': weights.head, 'labels': list(weights.labels),
            'model': weights.model | {'scan_layers': False},
            'data': {'lowercase': weights.lowercase},
            'inference': dict(weights.inference),
        })
        if weights.vocab_file is not None:
            suffix = '.model' if weights.vocab_file.suffix == '.model' else '.txt'
            (beside / f'vocab{suffix}').write_bytes(vocabulary)
            write_switches(beside, read_switches(weights.vocab_file))
        tree = to_tree(weights.params, padded_vocab_size=padded, scan_layers=False)
        (beside / 'checkpoints' / '0').mkdir(parents=True)
        # Random numbers do not get smaller, and compressing them takes time and memory.
        writer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False))
        writer.save(
            absolute(beside / 'checkpoints' / '0' / 'default'),
            args=ocp.args.PyTreeSave(saved_tree({'params': tree})),
        )
        writer.close()
        if in_bucket(workdir):
            (beside / 'checkpoints' / '0' / _COMMITTED).touch()
    return []
