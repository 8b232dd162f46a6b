"""Refuses configs that cannot work, before anything is built."""

from __future__ import annotations

from ml_collections import ConfigDict

from bert_jax.bert_config import COMPUTATION, OPTIONS
from bert_jax.config import complete, get_field, is_complete, model_sizes, nearest
from bert_jax.durations import parse_duration, parse_steps
from bert_jax.errors import InputError
from bert_jax.phases import phases
from bert_jax.sharding import VOCAB_MULTIPLE
from bert_jax.tasks import task_kind

_CHOICES = {
    **{f'model.{name}': choices for name, choices in COMPUTATION.items()},
    **{f'model.{o.name}': o.kind for o in OPTIONS if isinstance(o.kind, tuple)},
    'optimizer.name': ('bert_adamw', 'adamw', 'lamb'),
}
_POSITIVE = (
    'train.batch_size', 'train.eval_batch_size', 'train.accumulation_steps',
    'train.keep_checkpoints', 'optimizer.learning_rate', 'mesh.fsdp', 'mesh.tensor',
    'data.min_sentences',
)
_NOT_NEGATIVE = (
    'optimizer.clip_norm', 'optimizer.weight_decay', 'optimizer.eps', 'train.max_eval_examples',
    'data.num_maskings', 'model.vocab_size',
)
_DURATIONS = ('train.log_every', 'train.eval_every', 'train.save_every', 'optimizer.warmup')
_SHARES = (
    'data.held_out', 'data.masked_lm_prob', 'data.mask_rate', 'data.random_rate',
    'data.short_seq_prob', 'data.random_next_prob',
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
    for path, choices in _CHOICES.items():
        value = get_field(config, path)
        if value is not None and value not in choices:
            raise InputError(f'config.{path}={value!r} is unknown: {nearest(value, choices)}')
    for path in _POSITIVE:
        value = get_field(config, path)
        if value is not None and not value > 0:
            raise InputError(f'config.{path}={value} must be above 0')
    for path in _NOT_NEGATIVE:
        if get_field(config, path) < 0:
            raise InputError(f'config.{path}={get_field(config, path)} must be 0 or above')
    for path in ('optimizer.b1', 'optimizer.b2'):
        if not 0 <= get_field(config, path) < 1:
            raise InputError(f'config.{path}={get_field(config, path)} must be from 0 to below 1')
    if not 0 <= config.seed < 2**31:
        raise InputError(f'config.seed={config.seed} must be from 0 to 2147483647')
    for path in _DURATIONS:
        # Epochs can be counted only once the data is read; for the checks here any number does.
        epochs = None if path == 'optimizer.warmup' else 10**9
        parse_duration(
            get_field(config, path), path, batch_size=1, num_examples=epochs, total=10**9
        )
    parse_steps(config.train.profile, 'train.profile')
    for i, given in enumerate(config.phases):
        for field in ('batch_size', 'max_seq_length', 'max_predictions_per_seq'):
            value = given.get(field, 1)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(
                    f'config.phases[{i}].{field}={value!r} must be a whole number above 0'
                )
    for path in _SHARES:
        if not 0 <= get_field(config, path) <= 1:
            raise InputError(f'config.{path}={get_field(config, path)} must be from 0 to 1')
    for option in OPTIONS:
        value = config.model[option.name]
        if option.name == 'vocab_size' or value is None:  # 0 or empty: decided elsewhere
            continue
        if fault := option.fault(value):
            raise InputError(f'config.model.{option.name}={value} must be {fault}')
    if config.data.mask_rate + config.data.random_rate > 1 + 1e-9:
        raise InputError(
            f'config.data.mask_rate={config.data.mask_rate} and '
            f'config.data.random_rate={config.data.random_rate} add up to more than 1'
        )
    if is_complete(config):
        _check_model(config, num_devices)


def check_task(config: ConfigDict) -> None:
    """Raises:
      InputError: there is no such task, or the config is of another one and lacks its section.
    """
    kind = task_kind(config.task)
    if config.phases and not kind.phased:
        raise InputError(
            f'config.phases is for pre-training: config.task={config.task!r} has one phase'
        )
    if kind.section and kind.section not in config:
        raise InputError(
            f'config.task={config.task!r} needs the section config.{kind.section}, which this '
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
    pretraining = task_kind(config.task).phased
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
        if batch % config.train.accumulation_steps:
            raise InputError(
                f'config.train.accumulation_steps={config.train.accumulation_steps} does not '
                f"divide config.{where or 'train.'}batch_size={batch}"
            )
        if num_devices is not None:
            _check_batch(config, where or 'train.', 'batch_size', batch, num_devices,
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
        if sizes['hidden_size'] % config.mesh.fsdp:
            raise InputError(
                f'config.mesh.fsdp={config.mesh.fsdp} does not divide '
                f"config.model.hidden_size={sizes['hidden_size']}"
            )


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
    data = mesh_data(config, num_devices)
    shards = data * config.mesh.fsdp * parts
    if batch % shards:
        up = -(-batch // shards) * shards
        raise InputError(
            f'config.{where}{field}={batch} cannot be split over mesh data={data} x '
            f'fsdp={config.mesh.fsdp}' + (f' in {parts} parts' if parts > 1 else '')
            + f': the nearest above is {up}'
        )


def mesh_data(config: ConfigDict, num_devices: int) -> int:
    """Size of the mesh's data axis: `mesh.data`, or what `fsdp` and `tensor` leave of the devices.

    Raises:
      InputError: the mesh does not fit the devices.
    """
    fixed = config.mesh.fsdp * config.mesh.tensor
    data = num_devices // fixed if config.mesh.data == -1 else config.mesh.data
    if data < 1 or data * fixed != num_devices:
        raise InputError(
            f'config.mesh data={config.mesh.data} x fsdp={config.mesh.fsdp} x '
            f'tensor={config.mesh.tensor} does not fit {num_devices} devices: their product must '
            'be the number of devices (data=-1 takes what is left)'
        )
    return data
