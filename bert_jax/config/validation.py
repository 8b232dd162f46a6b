"""Checks a config before anything is built."""

from __future__ import annotations

import math
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config import (
    complete,
    default_config,
    fields,
    get_field,
    is_complete,
    model_sizes,
)
from bert_jax.config.bert_config import Range
from bert_jax.config.fields import (
    DURATION,
    FIELDS,
    LABELLED,
    LOGGERS,
    OWN_FILES,
    PATH,
    PRETRAINING,
    TEXT,
    field_of,
    task_fields,
)
from bert_jax.config.phases import PHASE_FIELDS, check_phases, parse_duration, parse_trace, phases
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.files import check_scheme
from bert_jax.tasks.opening import check_task_name
from bert_jax.train.optimizers import OWN_OPTIMIZERS, optax_optimizers, optimizer_arguments
from bert_jax.train.sharding import VOCAB_MULTIPLE

_OF_A_PHASE = (
    'batch_size', 'packed_rows', 'max_seq_length', 'max_predictions_per_seq', 'learning_rate',
)


def check_used(config: ConfigDict) -> None:
    """Refuses settings that the task ignores.

    Raises:
      InputError: a field that the task does not read differs from its default.
    """
    check_task(config)
    task, start = task_fields(config.task), default_config(config.task)
    read = {
        '': True, PRETRAINING: task.phased, LABELLED: not task.phased, OWN_FILES: False}
    for path, field in FIELDS.items():
        read_by = LABELLED if path == 'model.bilstm' else field.read_by
        value = get_field(config, path)
        if not read[read_by] and path not in task.reads and value != get_field(start, path):
            raise InputError(
                f'config.{path}={value!r} means nothing to config.task={config.task!r}: it is '
                f'for {read_by}, leave it out'
            )


def validate(config: ConfigDict, num_devices: int | None = None) -> None:
    """Refuses invalid configs, naming the field, the value and the remedy.

    Args:
      config: the config after command-line overrides. The model is not checked while it depends on
        an `init_checkpoint` that has not been read.
      num_devices: devices of the mesh, if known.

    Raises:
      InputError: the first error.
    """
    check_task(config)
    if not config.init_checkpoint:
        config = complete(config)
    for path in fields(config):
        _check_field(config, path)
    parse_trace(config.train.profile, 'train.profile')
    _check_optimizer(config.optimizer)
    _check_skipped(config.train.skip_steps)
    for name in filter(None, config.train.loggers.split(',')):
        if name not in LOGGERS:
            raise InputError(f'config.train.loggers={config.train.loggers!r}: {name!r} is unknown: '
                             + nearest(name, LOGGERS))
    _check_phases(config)
    if config.data.mask_rate + config.data.random_rate > 1 + 1e-9:
        raise InputError(
            f'config.data.mask_rate={config.data.mask_rate} and '
            f'config.data.random_rate={config.data.random_rate} add up to more than 1'
        )
    if num_devices is not None:
        _check_mesh(config, num_devices)
    if is_complete(config):
        _check_model(config, num_devices)


def _check_field(config: ConfigDict, path: str) -> None:
    value, allowed = get_field(config, path), field_of(path).allowed
    if value is None:  # `init_checkpoint` determines it
        return
    if isinstance(allowed, Range):
        if fault := allowed.fault(value):
            raise InputError(f'config.{path}={value} must be {fault}')
    elif isinstance(allowed, tuple):
        if value not in allowed:
            raise InputError(f'config.{path}={value!r} is unknown: {nearest(value, allowed)}')
    elif allowed in (TEXT, PATH):
        if not isinstance(value, str) or '\0' in value:
            raise InputError(f'config.{path}={value!r} must be a text')
        if allowed == PATH:
            try:
                check_scheme(value)
            except InputError as error:
                raise InputError(f'config.{path}={error}') from None
    elif allowed == DURATION:
        _check_duration(value, path)


def _check_duration(value: Any, path: str) -> None:
    # Before the data is read, epochs are checked with an arbitrary number of examples.
    epochs = None if path.endswith('warmup') else 10**9
    total = None if path == 'train.steps' else 10**9
    parse_duration(value, path, batch_size=1, num_examples=epochs, total=total)


def _check_optimizer(optimizer: ConfigDict) -> None:
    names = [*OWN_OPTIMIZERS, *optax_optimizers()]
    if optimizer.name not in names:
        raise InputError(f'config.optimizer.name={optimizer.name!r} is unknown: '
                         + nearest(optimizer.name, names))
    optimizer_arguments(optimizer.name, optimizer.arguments)
    start = default_config().optimizer
    for key in ('b1', 'b2', 'eps'):
        if optimizer.name in optax_optimizers() and optimizer[key] != start[key]:
            raise InputError(
                f'config.optimizer.{key}={optimizer[key]} means nothing to '
                f'config.optimizer.name={optimizer.name!r}: set optimizer.arguments instead')


def _check_skipped(steps: Any) -> None:
    if not (isinstance(steps, (tuple, list)) and len({*map(str, steps)}) == len(steps)
            and all(type(step) is int and step > 0 for step in steps)):
        raise InputError(f'config.train.skip_steps={steps!r} must be a tuple of different steps, '
                         'counted from 1, such as (1234,)')


def _check_phases(config: ConfigDict) -> None:
    check_phases(config.phases)
    for i, given in enumerate(config.phases):
        for field, value in given.items():
            path = f'phases[{i}].{field}'
            if field in _OF_A_PHASE and value is not None:
                allowed = FIELDS[PHASE_FIELDS[field]].allowed
                assert isinstance(allowed, Range)
                if fault := allowed.fault(value):
                    raise InputError(f'config.{path}={value!r} must be {fault}')
            elif field in ('steps', 'warmup') and (field == 'steps' or value is not None):
                _check_duration(value, path)


def check_task(config: ConfigDict) -> None:
    """Raises:
      InputError: the task is unknown, or the config lacks its section.
    """
    check_task_name(config.task)
    task = task_fields(config.task)
    if config.phases and not task.phased:
        raise InputError(
            f'config.phases is for pre-training: config.task={config.task!r} has one phase'
        )
    if task.section and task.section not in config:
        raise InputError(
            f'config.task={config.task!r} needs the section config.{task.section}, which this '
            f"config file does not have: it starts from default_config({config.task!r})"
        )


def _check_model(config: ConfigDict, num_devices: int | None) -> None:
    """Checks that need the model's sizes, which may come from a checkpoint."""
    sizes = model_sizes(config)
    if sizes['hidden_size'] % sizes['num_heads']:
        divisors = [n for n in range(1, sizes['hidden_size'] + 1) if not sizes['hidden_size'] % n]
        fitting = min(divisors, key=lambda n: abs(n - sizes['num_heads']))
        raise InputError(
            f"config.model.num_heads={sizes['num_heads']} does not divide "
            f"config.model.hidden_size={sizes['hidden_size']}: the nearest that does is {fitting}"
        )
    pretraining = task_fields(config.task).phased
    for i, phase in enumerate(phases(config, num_examples=10**9)):
        where = f'phases[{i}].' if config.phases else ''
        length, batch = phase['max_seq_length'], phase['batch_size']
        data = where or 'data.'
        if length > config.model.max_position_embeddings:
            raise InputError(
                f'config.{data}max_seq_length={length} is longer than the position table, '
                f'config.model.max_position_embeddings={config.model.max_position_embeddings}'
            )
        if length < 8:
            raise InputError(f'config.{data}max_seq_length={length} is too short: at least 8')
        if pretraining and not 0 < phase['max_predictions_per_seq'] <= length - 2:
            raise InputError(
                f"config.{data}max_predictions_per_seq={phase['max_predictions_per_seq']} must be "
                f'from 1 to max_seq_length - 2 = {length - 2}'
            )
        rows, field = batch, 'batch_size'
        if phase['packed_rows']:
            rows, field = phase['packed_rows'], 'packed_rows'
            if rows > batch:
                raise InputError(
                    f"config.{where or 'train.'}packed_rows={rows} are more than the sequences of "
                    f'a step, batch_size={batch}: set it to 0 for a row each'
                )
        if rows % config.train.accumulation_steps:
            raise InputError(
                f'config.train.accumulation_steps={config.train.accumulation_steps} does not '
                f"divide config.{where or 'train.'}{field}={rows}"
            )
        if num_devices is not None:
            _check_batch(config, where or 'train.', field, rows, num_devices,
                         config.train.accumulation_steps)
    if num_devices is not None:
        if pretraining:
            _check_batch(config, 'train.', 'eval_batch_size', config.train.eval_batch_size,
                         num_devices, 1)
        tensor = config.mesh.tensor
        for name in ('num_heads', 'intermediate_size'):
            if sizes[name] % tensor:
                raise InputError(
                    f'config.mesh.tensor={tensor} does not divide config.model.{name}={sizes[name]}'
                )
        if config.model.vocab_size:
            check_vocabulary(config.model.vocab_size, tensor)


def check_vocabulary(vocab_size: int, tensor: int) -> None:
    """Checks that the tensor axis divides the padded vocabulary.

    Raises:
      InputError: it does not; powers of two up to 128 always do.
    """
    padded = -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    if padded % tensor:
        raise InputError(
            f'config.mesh.tensor={tensor} does not divide the {padded:,} rows of the padded '
            'vocabulary: take a power of two'
        )


def _check_batch(
    config: ConfigDict, where: str, field: str, batch: int, num_devices: int, parts: int
) -> None:
    devices = num_devices // config.mesh.tensor
    shards = devices * parts
    if batch % shards:
        up = -(-batch // shards) * shards
        raise InputError(
            f'config.{where}{field}={batch} cannot be split over data x fsdp = {devices} devices'
            + (f' in {parts} parts' if parts > 1 else '') + f': the nearest above is {up}'
        )


def _check_mesh(config: ConfigDict, num_devices: int) -> None:
    mesh = config.mesh
    fixed = math.prod(size for size in (mesh.data, mesh.fsdp, mesh.tensor) if size != -1)
    rest = -1 in (mesh.data, mesh.fsdp)
    if not fixed or (num_devices % fixed if rest else num_devices != fixed):
        raise InputError(
            f'config.mesh data={mesh.data} x fsdp={mesh.fsdp} x tensor={mesh.tensor} does not fit '
            f'{num_devices} devices: their product must be the number of devices (-1 takes what is '
            'left)'
        )
