"""Checks a config before anything is built: each field by its row, then what concerns several."""

from __future__ import annotations

import math
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config import (
    DECIDED,
    SIZES,
    complete,
    default_config,
    fields,
    get_field,
    model_sizes,
)
from bert_jax.config.bert_config import Range
from bert_jax.config.fields import (
    DURATION,
    FIELDS,
    LABELLED,
    LOGGERS,
    PATH,
    PRETRAINING,
    TEXT,
    section_of,
)
from bert_jax.config.phases import PHASE_FIELDS, check_phases, parse_duration, parse_trace, phases
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.files import check_scheme
from bert_jax.tasks.opening import OPENERS
from bert_jax.train.optimizers import OWN_OPTIMIZERS, optax_optimizers, optimizer_arguments
from bert_jax.train.sharding import VOCAB_MULTIPLE

_ANY_NUMBER = 10**9  # of examples and steps, before they are known


def check_used(config: ConfigDict) -> None:
    """Refuses settings that the task ignores.

    Raises:
      InputError: a field that the task does not read differs from its default.
    """
    _check_task(config)
    start = default_config(config.task)
    for path in fields(start):
        value, read_by = get_field(config, path), FIELDS[path].read_by
        reads = config.task not in PRETRAINING if read_by == LABELLED else config.task in read_by
        if read_by and not reads and value != get_field(start, path):
            raise InputError(f'config.{path}={value!r} means nothing to config.task='
                             f'{config.task!r}: it is for {", ".join(read_by)}, leave it out')


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
    for path in fields(config):
        if (value := get_field(config, path)) is not None:  # else `init_checkpoint` determines it
            _check_value(path, value, FIELDS[path].allowed)
    check_phases(config.phases)
    for i, phase in enumerate(config.phases):
        for field, value in phase.items():
            if value is not None or field == 'steps':
                _check_value(f'phases[{i}].{field}', value, FIELDS[PHASE_FIELDS[field]].allowed)
    train, data, optimizer, skipped = (
        config.train, config.data, config.optimizer, config.train.skip_steps)
    parse_trace(train.profile, 'train.profile')
    optimizers, loggers = [*OWN_OPTIMIZERS, *optax_optimizers()], [*LOGGERS, '']
    for path, value, known in (
            ('optimizer.name', optimizer.name, optimizers),
            *(('train.loggers', name, loggers) for name in train.loggers.split(','))):
        if value not in known:
            raise InputError(f'config.{path}={value!r} is unknown: {nearest(value, known)}')
    optimizer_arguments(optimizer.name, optimizer.arguments)
    start = default_config().optimizer
    for key in ('b1', 'b2', 'eps'):
        if optimizer.name not in OWN_OPTIMIZERS and optimizer[key] != start[key]:
            raise InputError(
                f'config.optimizer.{key}={optimizer[key]} means nothing to '
                f'config.optimizer.name={optimizer.name!r}: set optimizer.arguments instead')
    if not (isinstance(skipped, (tuple, list)) and len(set(map(str, skipped))) == len(skipped)
            and all(type(step) is int and step > 0 for step in skipped)):
        raise InputError(f'config.train.skip_steps={skipped!r} must be a tuple of different steps, '
                         'counted from 1, such as (1234,)')
    if data.mask_rate + data.random_rate > 1 + 1e-9:
        raise InputError(f'config.data.mask_rate={data.mask_rate} and config.data.random_rate='
                         f'{data.random_rate} add up to more than 1')
    given = SIZES if config.model.name else ()
    if all(config.model[o.name] is not None for o in DECIDED if o.name not in given):
        _check_model(config, num_devices)
        _check_phases(config, num_devices)


def _check_task(config: ConfigDict) -> None:
    if config.task not in OPENERS:
        raise InputError(
            f'config.task={config.task!r} is unknown: {nearest(config.task, list(OPENERS))}')
    section = section_of(config.task)
    if config.phases and config.task not in PRETRAINING:
        raise InputError(
            f'config.phases is for pre-training: config.task={config.task!r} has one phase')
    if section and section not in config:
        raise InputError(f'config.task={config.task!r} needs a config file that starts from '
                         f'default_config({config.task!r}), with its section config.{section}')


def _check_value(path: str, value: Any, allowed: Range | tuple[Any, ...] | str) -> None:
    """Checks a value by its field's row."""
    if isinstance(allowed, Range):
        if fault := allowed.fault(value):
            raise InputError(f'config.{path}={value!r} must be {fault}')
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
        parse_duration(value, path, batch_size=1,
                       num_examples=None if path.endswith('warmup') else _ANY_NUMBER,
                       total=None if path == 'train.steps' else _ANY_NUMBER)


def _check_model(config: ConfigDict, num_devices: int | None) -> None:
    """Checks the model's sizes, and the mesh that they are split over."""
    sizes, mesh = model_sizes(config), config.mesh
    hidden, heads = sizes['hidden_size'], sizes['num_heads']
    if hidden % heads:
        fitting = min((n for n in range(1, hidden + 1) if not hidden % n),
                      key=lambda n: abs(n - heads))
        raise InputError(f'config.model.num_heads={heads} does not divide config.model.hidden_size='
                         f'{hidden}: the nearest that does is {fitting}')
    if num_devices is None:
        return
    fixed = math.prod(size for size in (mesh.data, mesh.fsdp, mesh.tensor) if size != -1)
    rest = -1 in (mesh.data, mesh.fsdp)
    if not fixed or (num_devices % fixed if rest else num_devices != fixed):
        raise InputError(
            f'config.mesh data={mesh.data} x fsdp={mesh.fsdp} x tensor={mesh.tensor} does not fit '
            f'{num_devices} devices: their product must be the number of devices (-1 takes what is '
            'left)')
    for name in ('num_heads', 'intermediate_size'):
        if sizes[name] % mesh.tensor:
            raise InputError(f'config.mesh.tensor={mesh.tensor} does not divide '
                             f'config.model.{name}={sizes[name]}')
    check_vocabulary(config.model.vocab_size, mesh.tensor)


def _check_phases(config: ConfigDict, num_devices: int | None) -> None:
    """Checks lengths and batches of all phases, and of evaluation."""
    positions, parts = config.model.max_position_embeddings, config.train.accumulation_steps
    phased = config.task in PRETRAINING
    batches = []
    for i, phase in enumerate(phases(config, num_examples=_ANY_NUMBER)):
        data, train = (f'phases[{i}].',) * 2 if config.phases else ('data.', 'train.')
        length, predictions = phase['max_seq_length'], phase['max_predictions_per_seq']
        field = 'packed_rows' if phase['packed_rows'] else 'batch_size'
        rows, batch = phase[field], phase['batch_size']
        for wrong, message in (
            (length > positions, f'{data}max_seq_length={length} is longer than the position '
             f'table, config.model.max_position_embeddings={positions}'),
            (length < 8, f'{data}max_seq_length={length} is too short: at least 8'),
            (phased and not 0 < predictions <= length - 2,
             f'{data}max_predictions_per_seq={predictions} must be from 1 to max_seq_length - 2 = '
             f'{length - 2}'),
            (rows > batch, f'{train}packed_rows={rows} are more than the sequences of a step, '
             f'batch_size={batch}: set it to 0 for a row each'),
            (rows % parts, f'train.accumulation_steps={parts} does not divide '
             f'config.{train}{field}={rows}'),
        ):
            if wrong:
                raise InputError(f'config.{message}')
        batches.append((f'{train}{field}', rows, parts))
    if phased:
        batches.append(('train.eval_batch_size', config.train.eval_batch_size, 1))
    devices = (num_devices or 1) // config.mesh.tensor
    for path, rows, parts in batches if num_devices else ():
        if rows % (shards := devices * parts):
            raise InputError(
                f'config.{path}={rows} cannot be split over data x fsdp = {devices} devices'
                + (f' in {parts} parts' if parts > 1 else '')
                + f': the nearest above is {math.ceil(rows / shards) * shards}')


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
