"""Run directories of this project: `config.json`, the vocabulary, `checkpoints/` and `best/`."""

import json
import os
from typing import Any

import jax
import numpy as np

from bert_jax.config.bert_config import COMPUTATION, OPTIONS
from bert_jax.heads import HEADS
from bert_jax.heads.pretraining import SEQ_RELATIONSHIP
from bert_jax.runtime import checksum, files
from bert_jax.runtime.checksum import CHECKSUMS
from bert_jax.runtime.errors import InputError, first_line
from bert_jax.runtime.files import Path, absolute, as_path, children, in_bucket
from bert_jax.sharding import padded_vocab_size
from bert_jax.text import load_tokenizer, read_switches, write_switches
from bert_jax.weights import formats

# What the section "model" of a run's config.json may hold: the model, how it is computed, the name
# of its size, the features of a feature-based run, and `scan_layers`, which older runs have.
_KNOWN = (*(option.name for option in OPTIONS), *COMPUTATION, 'name', 'features', 'scan_layers')
_COMMITTED = 'commit_success.txt'


def read_description(workdir: Path) -> formats.Weights:
    """A run's model and vocabulary, without parameters, head or labels.

    Raises:
      InputError: it is no run directory, has unknown model fields, or another vocabulary than the
        run was trained with.
    """
    config = read_config(workdir)
    config_file = workdir / 'config.json'
    section, data = config.get('model'), config.get('data') or {}
    if not isinstance(section, dict):
        raise InputError(f'{config_file} has no section "model": it is of no run of this project')
    if not isinstance(data, dict):
        raise InputError(f'{config_file}: the section "data" is {data!r}, no JSON object')
    for name, value in section.items():
        if name not in _KNOWN:
            raise InputError(f'{config_file}: model.{name}={value!r} is unknown here: read it with '
                             'the version of bert_jax that wrote it')
    model = formats.read_model(section, 'bert_jax', config_file)
    lowercase = bool(data.get('lowercase', True))
    vocab_file = formats.find_vocabulary(workdir)
    if vocab_file is not None:
        recorded = config.get('vocabulary')
        if recorded is not None and recorded != checksum.digest(vocab_file.read_bytes()):
            raise InputError(f'{vocab_file} is not the vocabulary that the run was trained with '
                             '(config.json has the digest of another): put that one back')
        num_tokens = len(load_tokenizer(vocab_file, lowercase).vocab)
        if num_tokens > model['vocab_size']:  # fewer are allowed: model.vocab_size may be set
            raise InputError(f"{vocab_file} has {num_tokens} tokens, the embedding has "
                             f"{model['vocab_size']} rows: put the run's own vocabulary there")
    return formats.Weights({}, model, '', (), vocab_file, lowercase, (), f'run directory {workdir}')


def read_run(named: str | os.PathLike[str], *, any_head: bool = False) -> formats.Weights:
    """The model of a run's best evaluation if the run keeps it, else the one that it ended with.

    It is in `best/STEP/` or the newest `checkpoints/STEP/`. Optimizer moments are not read.

    Args:
      named: the run directory, or a `checkpoints/STEP` of it, which is then read.
      any_head: as for `load_weights`.

    Raises:
      InputError: it is no run directory, has no checkpoint, or its checkpoint cannot be read.
    """
    path = as_path(named)
    workdir = run_of(path)
    described = read_description(workdir)
    config, config_file = read_config(workdir), workdir / 'config.json'
    hint = formats.check_head(config.get('head', ''), config_file, any_head)
    step = step_to_read(path)
    if step is None:
        raise InputError(f'{workdir} has no checkpoint to read: ' + (
            'its sweep deleted them, as other runs are better: the best is WORKDIR/winner, and '
            '--keep=all keeps those of all' if (workdir / 'sweep_result.json').exists() else
            'checkpoints/ holds none'))
    params = formats.from_tree(_restore(step / 'default'), described.model['vocab_size'])
    trains_pairs = (config.get('data') or {}).get('next_sentence', True)
    params = {name: np.asarray(x) for name, x in params.items()
              # A head that the run had and did not train; without it, nobody takes it for one.
              if trains_pairs or not name.startswith(SEQ_RELATIONSHIP.prefix)}
    formats.check_finite(params, step)
    head, portable = hint, bool(HEADS[hint].classes)
    shapes = {name: x.shape for name, x in params.items()
              if portable or name.startswith('bert/')}  # `tensors` does not list other heads
    table, _ = formats.check_tensors('bert_jax', shapes, described.model, step, config_file)
    if extra := sorted(set(shapes) - {tensor.name for tensor in table}):
        raise InputError(f'{step} also has {extra[0]}: {config_file} is of another model')
    if portable:
        head = formats.find_head(params, hint, f'{config_file} says head {hint!r}')
    inference = config.get('inference') or {}
    lengths = [phase['max_seq_length'] for phase in config.get('phases') or ()
               if isinstance(phase, dict) and 'max_seq_length' in phase]
    if hint == 'pretraining' and lengths and not config.get('init_checkpoint'):
        # A model pre-trained from scratch has learned positions only up to its longest rows.
        inference = {'max_seq_length': max(lengths)} | inference
    return formats.Weights(
        params, described.model, head,
        formats.read_labels(config.get('labels'), head, params, config_file),
        described.vocab_file, described.lowercase, (),
        f'{described.source}, step {int(step.name):,}'
        + (' (its best evaluation)' if step.parent.name == 'best' else ''), inference, step)


def step_to_read(named: Path) -> Path | None:
    """The checkpoint that `read_run` reads the parameters from; None if there is none."""
    if is_step(named):
        return named
    steps = saved_steps(named / 'best') or saved_steps(named / 'checkpoints')
    return max(steps, key=lambda path: int(path.name), default=None)


def is_step(path: Path) -> bool:
    """Whether a path has the form of a run's checkpoint, `RUN/checkpoints/STEP`."""
    return path.parent.name == 'checkpoints' and path.name.isdigit()


def run_of(path: Path) -> Path:
    """The run directory that a path names: itself, or that of a `RUN/checkpoints/STEP`."""
    return path.parent.parent if is_step(path) else path


def read_config(workdir: Path) -> dict[str, Any]:
    """The fields of `config.json`.

    Raises:
      InputError: it is missing, is no JSON object, was changed since the run wrote it, or is of a
        run whose parameters have another layout.
    """
    path = workdir / 'config.json'
    config = checksum.check_digest(files.read_json(
        path, 'put it back, or name a run directory: it holds config.json and checkpoints/'), path)
    model = config.get('model')
    if isinstance(model, dict) and model.get('scan_layers'):
        raise InputError(f'{path}: model.scan_layers=True is no longer read: convert the run to a '
                         'Hugging Face folder with the version of bert_jax that wrote it')
    return config


def describe_run(workdir: Path, fields: dict[str, Any], vocab_file: Path | None) -> None:
    """Writes the vocabulary, and `config.json` with its digest, into a run directory."""
    if vocab_file is not None:
        content = vocab_file.read_bytes()
        suffix = '.model' if vocab_file.suffix == '.model' else '.txt'
        files.write_whole(workdir / f'vocab{suffix}', content)
        write_switches(workdir, read_switches(vocab_file))
        fields = fields | {'vocabulary': checksum.digest(content)}
    text = json.dumps(checksum.with_digest(fields), indent=2) + '\n'
    files.write_whole(workdir / 'config.json', text)


def saved_steps(folder: Path) -> list[Path]:
    """The checkpoints `FOLDER/STEP` that were saved completely.

    On a disk, orbax renames a complete checkpoint; in a bucket, it writes one in place and the file
    `commit_success.txt` last.
    """
    mark = _COMMITTED if in_bucket(folder) else ''
    return [path for path in children(folder) if path.name.isdigit() and (path / mark).exists()]


def _restore(path: Path) -> dict[str, Any]:
    """The tree of parameters as numpy arrays, whatever mesh they were saved on.

    They are compared with the checksums that were saved with them, if any.
    """
    import orbax.checkpoint as ocp  # here, since it takes a second and other formats do without

    handler = ocp.PyTreeCheckpointHandler()
    reader = ocp.Checkpointer(handler)
    try:
        saved = handler.metadata(absolute(path)).tree
        is_leaf = lambda x: hasattr(x, 'shape')  # noqa: E731
        wanted = {key: jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), saved[key], is_leaf=is_leaf)
            for key in ('params', CHECKSUMS) if key in saved}
        restored = reader.restore(absolute(path), args=ocp.args.PyTreeRestore(
            item=wanted, partial_restore=True,  # without the moments, twice the parameters' size
            restore_args=jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)))
        if CHECKSUMS in restored:
            names = sorted(
                checksum.leaf_name(leaf) for leaf, _ in jax.tree_util.tree_leaves_with_path(
                    {key: x for key, x in saved.items() if key != CHECKSUMS}, is_leaf=is_leaf))
            written = dict(zip(names, np.asarray(restored[CHECKSUMS]).tolist(), strict=True))
            for name, x in checksum.leaves({'params': restored['params']}).items():
                if int(checksum.checksum(np.asarray(x))) != written[name]:
                    raise ValueError(f'{name} is not what was saved')
        return dict(restored['params'])
    except Exception as error:  # of many types; the files stay as they are
        raise InputError(f'{path.parent} cannot be read ({first_line(error)}): move it away, and '
                         'the checkpoint before it is taken') from error
    finally:
        reader.close()


def write_run(workdir: str | os.PathLike[str], weights: formats.Weights) -> list[str]:
    """Writes a run directory with one checkpoint, of step 0, that holds only parameters.

    Returns:
      Notes for the user: none.

    Raises:
      InputError: it cannot be written, or holds something already.
    """
    import orbax.checkpoint as ocp

    padded = padded_vocab_size(weights.model['vocab_size'])
    with formats.new_folder(as_path(workdir)) as beside:
        describe_run(beside, {
            'vocabulary': None, 'head': weights.head, 'labels': list(weights.labels),
            'model': weights.model, 'data': {'lowercase': weights.lowercase},
            'inference': dict(weights.inference)}, weights.vocab_file)
        tree = formats.to_tree(weights.params, padded)
        step = beside / 'checkpoints' / '0'
        step.mkdir(parents=True)
        # Weights hardly compress, and trying takes time and memory.
        writer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False))
        writer.save(absolute(step / 'default'),
                    args=ocp.args.PyTreeSave(checksum.saved_tree({'params': tree})))
        writer.close()
        if in_bucket(workdir):
            (step / _COMMITTED).touch()
    return []
