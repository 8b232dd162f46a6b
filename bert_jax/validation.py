"""Checks of a whole config, across its sections.

`validate` has each field checked by its row (`config.checking`), and by the code that reads it
(`READERS`), and checks the rules between sections; `check_used` refuses settings that the task
ignores. (`completion` fills in what the weights to start from determine.)
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.completion import complete
from bert_jax.config import (
    DECIDED,
    SIZES,
    default_config,
    model_fields,
    model_sizes,
    options_of,
)
from bert_jax.config.adapters import AdapterOptions
from bert_jax.config.bert_config import BertConfig
from bert_jax.config.checking import check_values
from bert_jax.config.durations import ANY_NUMBER
from bert_jax.config.fields import (
    FIELDS,
    LABELLED,
    PRETRAINING,
    Field,
    flat_fields,
    pretraining_kind,
    section_of,
)
from bert_jax.config.filtering import FilterOptions
from bert_jax.config.phases import phases
from bert_jax.rows.pairs import RowOptions
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.files import check_scheme
from bert_jax.sharding import check_mesh, check_vocabulary
from bert_jax.step.optimizers import OptimizerOptions
from bert_jax.tasks.opening import SHIPPED, TASKS
from bert_jax.watch.loggers import logger_names
from bert_jax.watch.reference import reference_of

_SHORTEST_LENGTH = 8  # of rows
# Who reads a section (see `config.options_of`), and refuses values that cannot be or do not go
# together.
READERS: Mapping[str, Sequence[Callable[..., Any]]] = {
    'adapter': (AdapterOptions,),
    'data': (RowOptions, FilterOptions),
    'optimizer': (OptimizerOptions,),
    'train': (logger_names, reference_of),
}


def check_used(config: ConfigDict) -> None:
    """Refuses settings of a valid config that its task ignores.

    Raises:
      InputError: a field that the task does not read differs from its default.
    """
    defaults = flat_fields(default_config(config.task))
    for path, value in flat_fields(config).items():
        field = FIELDS[path]
        if not _is_read(field, config.task) and value != defaults[path]:
            raise InputError(
                f'config.{path}={value!r} has no effect with config.task={config.task!r}: only '
                f'{", ".join(field.read_by)} use it; remove it')


def _is_read(field: Field, task: str) -> bool:
    """Whether a task reads a field.

    A task that a config file defines may read whatever some downstream task reads.
    """
    kind = pretraining_kind(task)
    if not field.read_by or (kind or task) in field.read_by:
        return True
    if field.read_by == LABELLED:
        return not kind
    return not kind and task not in SHIPPED and not set(field.read_by) <= set(PRETRAINING)


def validate(config: ConfigDict, num_devices: int | None = None) -> None:
    """Refuses invalid configs, naming the field, the value and the remedy.

    Args:
      config: the config after command-line overrides. The model is not checked while it depends on
        an `init_checkpoint` that has not been read.
      num_devices: devices of the mesh, if known.

    Raises:
      InputError: the first error.
    """
    _check_task(config)
    if not config.init_checkpoint:
        config = complete(config)
    check_values(config)
    if not pretraining_kind(config.task):  # held-out text may be a source with a prefix
        check_scheme(config.data.eval_source or '', 'config.data.eval_source=')
    for section, readers in READERS.items():
        for reader in readers:
            options_of(reader, config[section])
    adapter = options_of(AdapterOptions, config.adapter)
    may_adapt = not pretraining_kind(config.task)  # else it is refused with any init_checkpoint
    if adapter.is_on and may_adapt and not config.init_checkpoint:
        raise InputError(f'config.adapter.kind={adapter.kind!r} leaves the encoder as it is, and '
                         'there is none: name it with config.init_checkpoint')
    if adapter.is_on and config.data.add_tokens:
        raise InputError(f'config.data.add_tokens={config.data.add_tokens} adds words, whose '
                         f'embeddings config.adapter.kind={adapter.kind!r} does not train: leave '
                         'one of the two out')
    if _is_model_known(config):
        _check_sizes(config, num_devices)


def _check_task(config: ConfigDict) -> None:
    """Checks that there is such a task, and that the config is one for it."""
    task = config.task
    section = section_of(task)
    if task not in TASKS:
        raise InputError(
            f'config.task={task!r} is unknown: {nearest(task, TASKS)}; one of your own is known '
            'where --config names its file')
    if config.phases and not pretraining_kind(task):
        raise InputError(
            f'config.phases is for pre-training: config.task={task!r} has one phase')
    if section and section not in config:
        raise InputError(
            f'config.task={task!r} needs a config file that starts from default_config({task!r}), '
            f'with its section config.{section}')


def _is_model_known(config: ConfigDict) -> bool:
    """Whether no field of the model is left to a checkpoint that has not been read."""
    given_by_name = SIZES if config.model.name else ()
    return all(
        config.model[option.name] is not None
        for option in DECIDED if option.name not in given_by_name)


@dataclasses.dataclass(frozen=True)
class _Batch:
    """A batch, whose rows are split over devices.

    Attributes:
      path: of the field that says how many rows it has.
      rows: number of rows.
      parts: number of parts that it is computed in, one after the other.
    """

    path: str
    rows: int
    parts: int


def _check_sizes(config: ConfigDict, num_devices: int | None) -> None:
    """Checks the model, the batches of all phases and of evaluation, and the mesh."""
    sizes = model_sizes(config)
    filled = phases(config, num_examples=ANY_NUMBER)
    model = BertConfig(**model_fields(config, vocab_size=1))
    _check_model(config, model)
    batches = []
    for i, phase in enumerate(filled):
        data_section = 'data.'
        train_section = 'train.'
        if config.phases:
            data_section = train_section = f'phases[{i}].'
        _check_lengths(config, model, phase, data_section)
        _check_options(model, phase, train_section)
        batch = _batch_of(phase, train_section, config.train.accumulation_steps)
        _check_batch(batch, phase['batch_size'], train_section)
        batches.append(batch)
    if num_devices is None:
        return
    if pretraining_kind(config.task):
        batches.append(_Batch('train.eval_batch_size', config.train.eval_batch_size, 1))
    axes = config.mesh
    check_mesh(axes.data, axes.fsdp, axes.tensor, num_devices)
    _check_split_of_model(sizes | {'num_kv_heads': model.num_kv_heads}, axes.tensor)
    num_groups = max(1, num_devices // axes.tensor)
    for batch in batches:
        _check_splits(batch, num_groups)
    check_vocabulary(config.model.vocab_size, axes.tensor)


def _check_model(config: ConfigDict, model: BertConfig) -> None:
    """Checks the rules between the model's fields, and between the model and the data."""
    is_of_pairs = pretraining_kind(config.task) == 'pretrain' and config.data.next_sentence
    if is_of_pairs and model.type_vocab_size < 2:
        of_scratch = '' if config.init_checkpoint else ', or 2'
        raise InputError(
            f'config.model.type_vocab_size={model.type_vocab_size} has no segment type for the '
            f'second text of a pair: set config.data.next_sentence=False{of_scratch}')
    if is_of_pairs and model.pooling != 'cls':
        raise InputError(
            f'config.model.pooling={model.pooling!r} is for downstream tasks, and next sentences '
            "are predicted from [CLS]: set config.data.next_sentence=False, or 'cls'")
    why = model.contradiction()
    if why:
        raise InputError(f'config.model.{why}')


def _check_lengths(
    config: ConfigDict, model: BertConfig, phase: Mapping[str, Any], section: str
) -> None:
    """Checks the row length of a phase, and its slots for masked positions.

    Args:
      config: the config.
      model: its model.
      phase: filled in.
      section: what stands before the names of its fields in messages, such as 'data.'.
    """
    length = phase['max_seq_length']
    num_predictions = phase['max_predictions_per_seq']
    if length > model.max_length:
        before = ''
        if model.first_position:
            before = f' without the {model.first_position} rows before first_position'
        raise InputError(
            f'config.{section}max_seq_length={length} is longer than the position table, '
            f'config.model.max_position_embeddings={model.max_position_embeddings}{before}: set it '
            f'to {model.max_length} or less')
    if length < _SHORTEST_LENGTH:
        raise InputError(
            f'config.{section}max_seq_length={length} is too short: at least {_SHORTEST_LENGTH}')
    if pretraining_kind(config.task) and not 0 < num_predictions <= length - 2:
        raise InputError(
            f'config.{section}max_predictions_per_seq={num_predictions} must be from 1 to '
            f'max_seq_length - 2 = {length - 2}')


def _check_options(model: BertConfig, phase: Mapping[str, Any], section: str) -> None:
    """Refuses options of a phase's model that change nothing."""
    if 'rotary_base' in phase and model.positions != 'rotary':
        raise InputError(
            f"config.{section}rotary_base={phase['rotary_base']} has no effect with "
            f"config.model.positions={model.positions!r}: leave it out, or set 'rotary'")


def _batch_of(phase: Mapping[str, Any], section: str, parts: int) -> _Batch:
    """The batch of a phase: a row for each sequence, or packed rows."""
    field = 'packed_rows' if phase['packed_rows'] else 'batch_size'
    return _Batch(f'{section}{field}', phase[field], parts)


def _check_batch(batch: _Batch, num_sequences: int, section: str) -> None:
    """Checks that there are enough sequences for the rows, and equally many rows in all parts."""
    if batch.rows > num_sequences:
        raise InputError(
            f'config.{section}packed_rows={batch.rows} are more than the sequences of a step, '
            f'batch_size={num_sequences}: set it to 0 for a row each')
    if batch.rows % batch.parts:
        raise InputError(
            f'config.train.accumulation_steps={batch.parts} does not divide '
            f'config.{batch.path}={batch.rows}')


def _check_split_of_model(sizes: Mapping[str, int], tensor: int) -> None:
    """Checks that the tensor axis of the mesh splits the model evenly."""
    for name in ('num_heads', 'num_kv_heads', 'intermediate_size'):
        if sizes[name] % tensor:
            raise InputError(
                f'config.mesh.tensor={tensor} does not divide config.model.{name}={sizes[name]}')


def _check_splits(batch: _Batch, num_groups: int) -> None:
    """Checks that a batch can be split over `num_groups` = data x fsdp groups of devices."""
    unit = num_groups * batch.parts
    if batch.rows % unit == 0:
        return
    in_parts = f' in {batch.parts} parts' if batch.parts > 1 else ''
    raise InputError(
        f'config.{batch.path}={batch.rows} cannot be split over data x fsdp = {num_groups} '
        f'devices{in_parts}: the nearest above is {math.ceil(batch.rows / unit) * unit}')
