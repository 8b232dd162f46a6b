"""Refuses configs that cannot work, before anything is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from bert_jax.config.bert_config import COMPUTATION, OPTIONS, Range, count
from bert_jax.config.phases import PHASE_FIELDS, check_phases, parse_duration, parse_steps, phases
from bert_jax.config.tasks import task_fields
from bert_jax.data.masking import MASKINGS
from bert_jax.heads.tagging import FEATURES
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.files import check_scheme
from bert_jax.tasks.opening import check_task_name
from bert_jax.tasks.texts import WINDOWS
from bert_jax.train.optimizers import OWN_OPTIMIZERS, optax_optimizers, optimizer_arguments
from bert_jax.train.sharding import VOCAB_MULTIPLE

_SHARE = Range(0, 1)
_SWITCH = (False, True)
_TEXT, _PATH, _DURATION = 'text', 'a path', 'a duration'
_OWN = 'checked where it is read'
# What each field may be: a range, the values that it may have, or how it is looked at. Fields of
# the model are in bert_config.py; that a task's section is here, tests/test_config.py holds.
FIELDS: Mapping[str, Range | tuple[Any, ...] | str] = {
    'task': _OWN, 'seed': count(2**31 - 1, least=0), 'init_checkpoint': _PATH,
    'model.name': _TEXT, 'model.vocab_size': count(2**24, least=0),
    **{f'model.{o.name}': o.kind for o in OPTIONS if o.name != 'vocab_size'},
    **{f'model.{name}': choices for name, choices in COMPUTATION.items()},
    'data.source': _OWN, 'data.eval_source': _PATH, 'data.held_out': Range(0, 1, open=')'),
    'data.vocab_file': _PATH, 'data.add_tokens': _PATH, 'data.vocab_size': count(2**24, least=16),
    'data.lowercase': _SWITCH, 'data.dir': _PATH, 'data.local_dir': _PATH, 'data.tfds_dir': _PATH,
    'data.max_seq_length': count(2**16), 'data.max_predictions_per_seq': count(2**16, least=0),
    'data.min_sentences': count(10**6), 'data.masked_lm_prob': _SHARE, 'data.mask_rate': _SHARE,
    'data.random_rate': _SHARE, 'data.num_maskings': count(10**6, least=0),
    'data.short_seq_prob': _SHARE, 'data.random_next_prob': _SHARE,
    'data.masking': MASKINGS, 'data.next_sentence': _SWITCH, 'data.text': _TEXT,
    'data.text_pair': _TEXT, 'data.choices': _TEXT, 'data.label': _TEXT, 'data.id': _TEXT,
    'data.packing': _SWITCH, 'data.max_malformed': _SHARE,
    'train.steps': _DURATION, 'train.batch_size': count(2**22),
    'train.packed_rows': count(2**22, least=0),
    'train.accumulation_steps': count(2**16), 'train.eval_every': _DURATION,
    'train.eval_batch_size': count(2**18), 'train.max_eval_examples': count(2**40, least=0),
    'train.save_every': _DURATION, 'train.keep_checkpoints': count(10**6),
    'train.log_every': _DURATION, 'train.profile': _OWN, 'train.skip_steps': _OWN,
    'train.reference': _PATH, 'train.probe': _PATH,
    'optimizer.name': (*OWN_OPTIMIZERS, *optax_optimizers()), 'optimizer.arguments': _TEXT,
    'optimizer.layer_decay': Range(0, 1, open='('),
    'optimizer.learning_rate': Range(0, 1000, open='('), 'optimizer.warmup': _DURATION,
    'optimizer.decay_from': ('start', 'peak'),
    'optimizer.decay_power': Range(0, 100), 'optimizer.weight_decay': Range(0, 1000),
    'optimizer.b1': Range(0, 1, open=')'), 'optimizer.b2': Range(0, 1, open=')'),
    'optimizer.eps': Range(0, 1), 'optimizer.clip_norm': Range(0, 1e9),
    'mesh.data': count(2**20, least=-1), 'mesh.fsdp': count(2**20, least=-1),
    'mesh.tensor': count(2**20),
    'phases': _OWN,
    'squad.doc_stride': count(2**16), 'squad.max_query_length': count(2**16),
    'classification.separator': _TEXT, 'classification.multi_label': _SWITCH,
    'classification.metrics': _OWN, 'regression.metrics': _OWN,
    'classification.windows': ('', *WINDOWS), 'regression.windows': ('', *WINDOWS),
    'conll.document_context': _SWITCH, 'tagging.document_context': _SWITCH,
    'conll.features': ('', *FEATURES), 'tagging.features': ('', *FEATURES),
}
_OF_A_PHASE = (
    'batch_size', 'packed_rows', 'max_seq_length', 'max_predictions_per_seq', 'learning_rate',
)


# Fields that not every task reads, and for what they are. A kind of task names those of its own
# files that it reads.
_OF_PRETRAINING = (
    'data.masked_lm_prob', 'data.mask_rate', 'data.random_rate', 'data.num_maskings',
    'data.short_seq_prob', 'data.random_next_prob', 'data.masking', 'data.next_sentence',
    'data.min_sentences', 'data.max_predictions_per_seq', 'data.vocab_size',
    'train.packed_rows', 'train.eval_batch_size', 'train.max_eval_examples',
    'train.skip_steps', 'train.reference', 'train.probe',
)
_OF_LABELLED_DATA = ('data.packing', 'data.max_malformed', 'model.bilstm')
_OF_OWN_FILES = (
    'data.text', 'data.text_pair', 'data.choices', 'data.label', 'data.id', 'data.held_out')


def check_used(config: ConfigDict) -> None:
    """Refuses what is set and means nothing to the task.

    Raises:
      InputError: a field that the task does not read is not its default.
    """
    check_task(config)
    own, start = task_fields(config.task), default_config(config.task)
    for paths, used, others in (
        (_OF_PRETRAINING, own.phased, 'pre-training'),
        (_OF_LABELLED_DATA, not own.phased, 'downstream tasks'),
        (_OF_OWN_FILES, False, 'tasks on files of your own that have it'),
    ):
        for path in paths:
            value = get_field(config, path)
            if not used and path not in own.reads and value != get_field(start, path):
                raise InputError(
                    f'config.{path}={value!r} means nothing to config.task={config.task!r}: it is '
                    f'for {others}, leave it out'
                )


def validate(config: ConfigDict, num_devices: int | None = None) -> None:
    """Refuses a config that cannot work, naming the field, the value and the remedy.

    Args:
      config: the config after command-line overrides; where `init_checkpoint` decides the model
        and has not been read yet, the model is not checked.
      num_devices: devices of the mesh, where already known.

    Raises:
      InputError: the first fault found.
    """
    check_task(config)
    if not config.init_checkpoint:
        config = complete(config)
    for path in fields(config):
        _check_field(config, path)
    parse_steps(config.train.profile, 'train.profile')
    _check_optimizer(config.optimizer)
    _check_skipped(config.train.skip_steps)
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
    value, allowed = get_field(config, path), FIELDS.get(path, _OWN)
    if value is None:  # left to `init_checkpoint`
        return
    if isinstance(allowed, Range):
        if fault := allowed.fault(value):
            raise InputError(f'config.{path}={value} must be {fault}')
    elif isinstance(allowed, tuple):
        if value not in allowed:
            raise InputError(f'config.{path}={value!r} is unknown: {nearest(value, allowed)}')
    elif allowed in (_TEXT, _PATH):
        if not isinstance(value, str) or '\0' in value:
            raise InputError(f'config.{path}={value!r} must be a text')
        if allowed == _PATH:
            try:
                check_scheme(value)
            except InputError as error:
                raise InputError(f'config.{path}={error}') from None
    elif allowed == _DURATION:
        _check_duration(value, path)


def _check_duration(value: Any, path: str) -> None:
    # Epochs can be counted only once the data is read; for the checks here any number does.
    epochs = None if path.endswith('warmup') else 10**9
    total = None if path == 'train.steps' else 10**9
    parse_duration(value, path, batch_size=1, num_examples=epochs, total=total)


def _check_optimizer(optimizer: ConfigDict) -> None:
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
                allowed = FIELDS[PHASE_FIELDS[field]]
                assert isinstance(allowed, Range)
                if fault := allowed.fault(value):
                    raise InputError(f'config.{path}={value!r} must be {fault}')
            elif field in ('steps', 'warmup') and (field == 'steps' or value is not None):
                _check_duration(value, path)


def check_task(config: ConfigDict) -> None:
    """Raises:
      InputError: there is no such task, or the config is of another one and lacks its section.
    """
    check_task_name(config.task)
    own = task_fields(config.task)
    if config.phases and not own.phased:
        raise InputError(
            f'config.phases is for pre-training: config.task={config.task!r} has one phase'
        )
    if own.section and own.section not in config:
        raise InputError(
            f'config.task={config.task!r} needs the section config.{own.section}, which this '
            f"config file does not have: it starts from default_config({config.task!r})"
        )


def _check_model(config: ConfigDict, num_devices: int | None) -> None:
    """The checks that need the model's sizes, which may come from a checkpoint."""
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
    """Refuses a tensor axis over which the padded vocabulary cannot be split.

    Raises:
      InputError: it cannot; powers of two up to 128 always can.
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
