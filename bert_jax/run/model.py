"""The model of a run folder, read and written as `Weights`: its parameters and what they are of."""

import dataclasses
import glob
import math
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.config.adapters import AdapterOptions
from bert_jax.config.bert_config import COMPUTATION, OPTIONS
from bert_jax.config.fields import pretraining_kind
from bert_jax.config.phases import model_options
from bert_jax.heads import HEADS, ONLY_TRAINED, part_of
from bert_jax.heads.pretraining import SEQ_RELATIONSHIP
from bert_jax.heads.tensors import POOLER, Tensor
from bert_jax.run.description import OWN_CODE, REMEDY, describe_run, read_config
from bert_jax.run.layout import (
    BEST,
    CHECKPOINTS,
    COMMITTED,
    DESCRIPTION,
    STATE,
    SWEEP_PRUNED,
    SWEEP_RESULT,
    check_path,
    is_described,
    is_run,
    run_of,
    step_to_read,
)
from bert_jax.runtime import checksum, files
from bert_jax.runtime.checksum import CHECKSUMS
from bert_jax.runtime.errors import InputError, first_line
from bert_jax.runtime.files import Path, absolute, as_path, in_bucket
from bert_jax.runtime.new_folder import new_folder
from bert_jax.sharding import padded_vocab_size
from bert_jax.text.kinds import find_vocabulary, load_tokenizer
from bert_jax.weights import parameters
from bert_jax.weights.adapters import AdapterWeights, adapted_kernels, is_of_adapter
from bert_jax.weights.inference_settings import framing_of, read_inference

# The fields that the section "model" of a run's config.json may have: the model, how it is
# computed, the name of its size, the features of a feature-based run, and `scan_layers`, which
# older runs have.
_MODEL_FIELDS = (
    *(option.name for option in OPTIONS), *COMPUTATION, 'name', 'features', 'scan_layers')
_MOST_COMPRESSED = 10_000  # bytes of arrays per byte of their files; zeros compress that well


def read_description(workdir: Path, step: Path | None = None) -> parameters.Weights:
    """A run's model and vocabulary, without parameters, head or labels.

    Args:
      workdir: the run directory.
      step: a checkpoint of it. The model then has the options that the phase of this step states.

    Raises:
      InputError: it is no run directory, has unknown model fields, or another vocabulary than the
        run was trained with.
    """
    config = read_config(workdir)
    config_file = workdir / DESCRIPTION
    section = config.get('model')
    if section is None:
        raise InputError(f'{config_file} has no section "model": it is of no run of this project')
    data = config.get('data') or {}
    for name, value in section.items():
        if name not in _MODEL_FIELDS:
            raise InputError(f'{config_file}: model.{name}={value!r} is unknown here: read it with '
                             'the version of bert_jax that wrote it')
    if step is not None:
        section = section | _options_at(int(step.name), config.get('phases'), config_file)
    model = parameters.read_model(section, parameters.IN_RUN, config_file)
    parameters.check_model(model, config_file)
    lowercase = bool(data.get('lowercase', True))
    vocab_file = find_vocabulary(workdir)
    if vocab_file is not None:
        _check_vocabulary(vocab_file, config.get('vocabulary'), lowercase, model['vocab_size'])
    return parameters.Weights(
        params={},
        model=model,
        head='',
        labels=(),
        vocab_file=vocab_file,
        lowercase=lowercase,
        unused=(),
        source=f'run directory {workdir}',
        inference=framing_of(_inference(config, config_file)))


def _options_at(step: int, phases: Any, config_file: Path) -> dict[str, Any]:
    """The options of its model that the phase states which a step, counted from 1, belongs to."""
    stated: dict[str, Any] = {}
    end = 0
    for phase in phases or ():
        if phase.get('steps') is None:
            raise InputError(f'{config_file}: phases holds {phase!r}, without its steps: {REMEDY}')
        stated = model_options(phase)
        end += phase['steps']
        if step <= end:
            break
    return stated


def _check_vocabulary(
    vocab_file: Path, recorded_digest: str | None, lowercase: bool, vocab_size: int
) -> None:
    """Raises InputError if a vocabulary is not the run's, or larger than its embedding."""
    found = checksum.digest(files.read_bytes(vocab_file))
    if recorded_digest not in (None, found):
        raise InputError(f'{vocab_file} is not the vocabulary that the run was trained with '
                         '(config.json has the digest of another): put that one back')
    num_tokens = len(load_tokenizer(vocab_file, lowercase).vocab)
    if num_tokens > vocab_size:  # fewer are allowed: model.vocab_size may be set
        raise InputError(f'{vocab_file} has {num_tokens} tokens, the embedding has '
                         f"{vocab_size} rows: put the run's own vocabulary there")


def read_run(
    named: str | os.PathLike[str], *, any_head: bool = False, own_head: bool = False
) -> parameters.Weights:
    """The model of a run's best evaluation if the run keeps it, else the one that it ended with.

    It is in `best/STEP/` or the newest `checkpoints/STEP/`. Optimizer moments are not read.

    Args:
      named: the run directory, or a `checkpoints/STEP` of it, which is then read.
      any_head, own_head: as for `load_weights`.

    Raises:
      InputError: it is no run directory, has no checkpoint, or its checkpoint cannot be read.
    """
    path = as_path(named)
    workdir = run_of(path)
    step = step_to_read(path)
    described = read_description(workdir, step)
    config = read_config(workdir)
    config_file = workdir / DESCRIPTION
    named_head = _named_head(config, config_file, any_head)
    head = named_head if named_head in HEADS else ''
    if step is None:
        raise InputError(f'{workdir} has no checkpoint to read: {_why_no_step(workdir)}')
    params = _read_params(step, config, described.model['vocab_size'])
    params, adapter = _split_off_adapter(params, config, described.model, step)
    own = {name for name in params if name in ONLY_TRAINED}
    if OWN_CODE in config:
        own |= _own_parameters(params, head, described.model)
    known = {name: x for name, x in params.items() if name not in own}
    _check_params(known, head, described.model, step, config_file)
    if not HEADS[head].stays_in_run:
        head = parameters.find_head(
            known, described.model, head, f'{config_file} says head {head!r}')
    read = dataclasses.replace(
        described,
        params=known,
        head=head,
        labels=parameters.read_labels(config.get('labels'), head, known, config_file),
        unused=tuple(sorted({f"{name.partition('/')[0]}/..." for name in own})),
        source=_source(described, step),
        inference=_inference(config, config_file),
        step_dir=step,
        adapter=adapter)
    if not own_head:
        return read
    if named_head not in HEADS:
        head = named_head
    return dataclasses.replace(read, params=params, head=head, unused=())


def _split_off_adapter(
    params: Mapping[str, np.ndarray], config: Mapping[str, Any], model: Mapping[str, Any],
    step: Path,
) -> tuple[dict[str, np.ndarray], AdapterWeights | None]:
    """(The parameters of a checkpoint without those of an adapter; `Weights.adapter`).

    Raises:
      InputError: config.json describes another adapter.
    """
    options = _adapter_options(config, step)
    found = {name: x for name, x in params.items() if is_of_adapter(name)}
    others = {name: x for name, x in params.items() if name not in found}
    sizes = parameters.sizes_of(model)
    wanted: dict[str, tuple[int, ...]] = {}
    for adapted in adapted_kernels(parameters.tensors(model), options):
        wanted |= adapted.shapes(options, sizes)
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found or found[name].shape != wanted.get(name):
            raise InputError(f'{step}: {name} is not as the section "adapter" of config.json '
                             f'says: {REMEDY}')
    if not options.is_on:
        return others, None
    return others, AdapterWeights(options, found, _base(config, options))


def _adapter_options(config: Mapping[str, Any], where: Path) -> AdapterOptions:
    """The options in the section "adapter" of config.json, which older runs lack."""
    section = config.get('adapter') or {}
    known = [field.name for field in dataclasses.fields(AdapterOptions)]
    for name, value in section.items():
        if name not in known:
            raise InputError(f'{where}: adapter.{name}={value!r} is unknown here: read it with the '
                             'version of bert_jax that wrote it')
    return AdapterOptions(**section)


def _base(config: Mapping[str, Any], options: AdapterOptions) -> str:
    """The base model of an adapter: `init_checkpoint`, or, if that run trained it too, its base.

    A run's config.json names the base; without a name, as in older runs, it is searched for through
    the runs that the adapter was trained in before.

    Args:
      config: the run's config.json.
      options: of its adapter.
    """
    base = config.get('adapter_base') or config.get('init_checkpoint') or ''
    workdir = run_of(as_path(base))
    if not base or not is_run(workdir) or not is_described(workdir):
        return base
    before = read_config(workdir)
    if not options.has_parameters_of(_adapter_options(before, workdir)):
        return base
    return _base(before, options)


def _named_head(config: Mapping[str, Any], config_file: Path, any_head: bool) -> str:
    """The head that a run's config.json names, which may be known to a config file alone."""
    head = config.get('head', '')
    if OWN_CODE in config and isinstance(head, str) and head not in HEADS:
        return head
    return parameters.check_head(head, config_file, any_head)


def _own_parameters(
    params: Mapping[str, np.ndarray], head: str, model: Mapping[str, Any]
) -> set[str]:
    """Names of the parameters that neither the encoder nor this head of `HEADS` has."""
    if HEADS[head].stays_in_run:  # `parameters.tensors` does not list this head
        return set()
    parts = (None, POOLER, *HEADS[head].parts)
    known = {tensor.name for tensor in parameters.tensors(model) if part_of(tensor.name) in parts}
    return set(params) - known


def _source(described: parameters.Weights, step: Path) -> str:
    """`Weights.source` of parameters from a checkpoint."""
    source = f'{described.source}, step {int(step.name):,}'
    if step.parent.name == BEST:
        source += ' (its best evaluation)'
    return source


def _why_no_step(workdir: Path) -> str:
    if (workdir / SWEEP_RESULT).exists():
        return ('its sweep deleted them, as other runs are better: the best is WORKDIR/winner, and '
                '--keep=all keeps those of all')
    if (workdir / SWEEP_PRUNED).exists():
        return f'its sweep ended it early; see {SWEEP_PRUNED}'
    return 'checkpoints/ holds none'


def _read_params(
    step: Path, config: Mapping[str, Any], vocab_size: int
) -> dict[str, np.ndarray]:
    """`Weights.params` of a checkpoint.

    Raises:
      InputError: the checkpoint is damaged, or a number in it is not finite.
    """
    tree = _restore(step / STATE)
    params = {name: np.asarray(x) for name, x in parameters.from_tree(tree, vocab_size).items()}
    trains_pairs = (config.get('data') or {}).get('next_sentence', True)
    if not trains_pairs:
        # A head that the run had and did not train: left out, so that nobody takes it for a trained
        # one.
        prefix = SEQ_RELATIONSHIP.prefix
        params = {name: x for name, x in params.items() if not name.startswith(prefix)}
    parameters.check_finite(params, step)
    return params


def _check_params(
    params: Mapping[str, np.ndarray],
    head: str,
    model: Mapping[str, Any],
    step: Path,
    config_file: Path,
) -> None:
    """Raises InputError if a parameter contradicts the config, or the config has none of it."""
    checked = params
    if HEADS[head].stays_in_run:  # `parameters.tensors` does not list this head
        checked = {name: x for name, x in params.items() if name.startswith('bert/')}
    stored = parameters.StoredTensors(
        form_of=Tensor.in_run,
        shapes={name: x.shape for name, x in checked.items()},
        read=checked.__getitem__,
        where=step,
        config_file=config_file)
    held, _ = parameters.check_tensors(stored, model)
    extra = sorted(set(checked) - {tensor.name for tensor in held})
    if extra:
        raise InputError(f'{step} also has {extra[0]}: {config_file} is of another model')


def _inference(config: Mapping[str, Any], config_file: Path) -> dict[str, Any]:
    """`Weights.inference` of a run."""
    inference = read_inference(config.get('inference'), f'{config_file}: inference')
    if not pretraining_kind(config.get('task') or '') or config.get('init_checkpoint'):
        return inference
    phases = config.get('phases') or ()
    lengths = [phase['max_seq_length'] for phase in phases if phase.get('max_seq_length')]
    if not lengths:
        return inference
    # A model pre-trained from scratch has learned positions only up to its longest rows.
    return {'max_seq_length': max(lengths)} | inference


def _restore(path: Path) -> dict[str, Any]:
    """The tree of parameters as numpy arrays, whatever mesh they were saved on.

    They are compared with the checksums that were saved with them, if any.
    """
    import orbax.checkpoint as ocp  # here, since it takes a second and other formats do without

    handler = ocp.PyTreeCheckpointHandler()
    reader = ocp.Checkpointer(handler)
    try:
        saved = handler.metadata(absolute(path)).tree
        wanted = {key: _shapes(saved[key]) for key in ('params', CHECKSUMS) if key in saved}
        _check_bytes(path, wanted)
        restored = reader.restore(absolute(path), args=ocp.args.PyTreeRestore(
            item=wanted,
            partial_restore=True,  # without the moments, twice the parameters' size
            restore_args=jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)))
        if CHECKSUMS in restored:
            _check_checksums(restored, saved)
        return dict(restored['params'])
    except Exception as error:  # of many types; the files stay as they are
        raise InputError(f'{path.parent} cannot be read ({first_line(error)}): move it away, and '
                         'the checkpoint before it is taken') from error
    finally:
        reader.close()


def _check_bytes(path: Path, wanted: Any) -> None:
    """Raises ValueError if arrays that are to be allocated are far too large for their files."""
    folder = os.fspath(path)
    if not files.in_bucket(path):
        folder = glob.escape(folder)  # a run may be called `lr[1e-4]`
    num_stored = sum(file.size for file in files.find(f'{folder}/**'))
    if not num_stored:  # a bucket's own wildcards are not escaped
        return
    num_wanted = 0
    for array in jax.tree.leaves(wanted):
        num_wanted += math.prod(array.shape) * array.dtype.itemsize
    if num_wanted > _MOST_COMPRESSED * num_stored:
        raise ValueError(f'its arrays would take {num_wanted:,} bytes, its files {num_stored:,}')


def _shapes(saved: Any) -> Any:
    """Shapes and dtypes of a tree of orbax's metadata."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), saved, is_leaf=checksum.is_array)


def _check_checksums(restored: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raises ValueError if a parameter differs from what was saved.

    Args:
      restored: parameters, and the checksums of all that was saved, by name in sorted order.
      saved: metadata of all that was saved.
    """
    summed = {key: x for key, x in saved.items() if key != CHECKSUMS}
    leaves = jax.tree_util.tree_leaves_with_path(summed, is_leaf=checksum.is_array)
    names = sorted(checksum.leaf_name(path) for path, _ in leaves)
    checksums = dict(zip(names, np.asarray(restored[CHECKSUMS]).tolist(), strict=True))
    for name, x in checksum.leaves({'params': restored['params']}).items():
        if int(checksum.checksum(np.asarray(x))) != checksums[name]:
            raise ValueError(f'{name} is not what was saved')


def write_run(workdir: str | os.PathLike[str], weights: parameters.Weights) -> list[str]:
    """Writes a run directory with one checkpoint, of step 0, that holds only parameters.

    Returns:
      Notes for the user: none.

    Raises:
      InputError: it cannot be written, or holds something already.
    """
    import orbax.checkpoint as ocp

    check_path(as_path(workdir))
    fields: dict[str, Any] = {
        'vocabulary': None,
        'head': weights.head,
        'labels': list(weights.labels),
        'model': weights.model,
        'data': {'lowercase': weights.lowercase},
        'inference': dict(weights.inference),
    }
    params = weights.params
    if weights.adapter is not None:
        fields['adapter'] = vars(weights.adapter.options)
        fields['init_checkpoint'] = weights.adapter.base
        params = {**params, **weights.adapter.params}
    with new_folder(as_path(workdir)) as beside:
        describe_run(beside, fields, weights.vocab_file)
        tree = parameters.to_tree(params, padded_vocab_size(weights.model['vocab_size']))
        step = beside / CHECKPOINTS / '0'
        step.mkdir(parents=True)
        # Weights hardly compress, and trying takes time and memory.
        writer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False))
        saved = checksum.saved_tree({'params': tree})
        writer.save(absolute(step / STATE), args=ocp.args.PyTreeSave(saved))
        writer.close()
        if in_bucket(workdir):
            (step / COMMITTED).touch()
    return []
