"""What only makes sense of several sections of a config together.

`complete` fills in what the weights to start from determine. `validate` checks each field by its
row, then the rules between fields; `check_used` refuses settings that the task ignores.
"""

import math
from collections.abc import Iterable
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config import DECIDED, SIZES, default_config, model_sizes
from bert_jax.config.bert_config import Allowed, why_not_allowed
from bert_jax.config.fields import FIELDS, LABELLED, LOGGERS, PRETRAINING, flat_fields, section_of
from bert_jax.config.phases import PHASE_FIELDS, parse_duration, parse_trace, phases
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.files import as_path, check_scheme
from bert_jax.sharding import check_vocabulary
from bert_jax.tasks.opening import OPENERS, SHIPPED
from bert_jax.text import find_lowercase, load_tokenizer
from bert_jax.train.optimizers import OWN_OPTIMIZERS, optax_optimizers, optimizer_arguments

_ANY_NUMBER = 10**9  # of examples and steps, before they are known
# They may differ from the checkpoint: the position table can be cut or repeated, and fine-tuning
# can add a BiLSTM.
_RESIZED = ('max_position_embeddings', 'bilstm')


def complete(config: ConfigDict, published: Any = None) -> ConfigDict:
    """A copy in which the fields that `init_checkpoint` determines are filled in.

    Args:
      config: a whole config.
      published: the weights of `init_checkpoint`, or None without one.

    Raises:
      InputError: the config contradicts the weights, or nothing determines the model's size.
    """
    c = ConfigDict(config.copy_and_resolve_references()).unlock()
    if published is None:
        if not c.model.name and None in (c.model[size] for size in SIZES):
            raise InputError(
                'config.model.name is empty, which means the size of config.init_checkpoint: set '
                "one of them, such as --config.init_checkpoint=DIR or --config.model.name='base'")
    elif c.model.name:
        c.model.update(model_sizes(c))
    for option in DECIDED:
        ours = c.model[option.name]
        theirs = option.default if published is None else published.model[option.name]
        if ours is None:
            c.model[option.name] = theirs
        elif published is not None and option.role == 'shape' and ours != theirs and (
                option.name not in _RESIZED):
            named = f' (of config.model.name={c.model.name!r})' * bool(c.model.name)
            left = 'config.model.name empty' if option.name in SIZES else 'it out'
            raise InputError(f'config.model.{option.name}={ours}{named}, but {published.source} '
                             f"has {theirs}: leave {left} to take the checkpoint's, or add "
                             '--config.init_checkpoint= to begin with random weights')
    if c.debug:  # `LabelledTask` shortens the evaluations of other tasks
        with c.ignore_type():
            c.train.update(steps=max(3, len(c.phases)), log_every=1, eval_every=0, save_every=0,
                           max_eval_examples=c.train.eval_batch_size, profile='')
    c.data.lowercase = _lowercase(c.data.vocab_file, c.data.lowercase, published)
    if published is not None and not c.data.vocab_file and published.vocab_file is not None:
        c.data.vocab_file = str(published.vocab_file)
        num_tokens = len(load_tokenizer(published.vocab_file, c.data.lowercase).vocab)
        if not (c.model.vocab_size or c.data.add_tokens) and (
                num_tokens < published.model['vocab_size']):
            c.model.vocab_size = published.model['vocab_size']  # an embedding that was padded
    return c.lock()


def _lowercase(vocab_file: str, stated: bool | None, published: Any) -> bool:
    """`data.lowercase`: as stated, else as the vocabulary or the weights have it; says which.

    Args:
      vocab_file, stated: fields of the config; either may be empty.
      published: as for `complete`.
    """
    of_weights = None if published is None else published.lowercase
    if vocab_file and as_path(vocab_file).exists():  # else it is refused where it is read
        found, why = find_lowercase(vocab_file, of_weights)
    else:
        found, why = of_weights is not False, ''
    if published is not None and not why:
        why = f'as in {published.source}'
    if stated is None:
        if vocab_file and why and not found:
            hosts.say(f'note: config.data.lowercase=False: {why}')
        return found
    if why and stated != found:
        hosts.say(f'warning: config.data.lowercase={stated}, but {why}: leave it empty to take '
                  f'{found}')
    return stated

def check_used(config: ConfigDict) -> None:
    """Refuses settings of a valid config that its task ignores.

    A task that a config file defines may read whatever some downstream task reads.

    Raises:
      InputError: a field that the task does not read differs from its default.
    """
    defaults = flat_fields(default_config(config.task))
    for path, value in flat_fields(config).items():
        read_by = FIELDS[path].read_by
        reads = config.task not in PRETRAINING if read_by == LABELLED else config.task in read_by
        reads |= config.task not in SHIPPED and not set(read_by) <= set(PRETRAINING)
        if read_by and not reads and value != defaults[path]:
            raise InputError(f'config.{path}={value!r} has no effect with config.task='
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
    task, section = config.task, section_of(config.task)
    _refuse((
        (task not in OPENERS, f'task={task!r} is unknown: {nearest(task, OPENERS)}; '
         'one of your own is known where --config names its file'),
        (config.phases and task not in PRETRAINING,
         f'phases is for pre-training: config.task={task!r} has one phase'),
        (section and section not in config, f'task={task!r} needs a config file that starts from '
         f'default_config({task!r}), with its section config.{section}'),
    ))
    if not config.init_checkpoint:
        config = complete(config)
    for path, value in flat_fields(config).items():
        if value is not None:  # else `init_checkpoint` determines it
            _check_value(path, value, FIELDS[path].allowed)
    for i, phase in enumerate(config.phases):
        for field, value in phase.items():
            if value is not None or field == 'steps':
                _check_value(f'phases[{i}].{field}', value, FIELDS[PHASE_FIELDS[field]].allowed)
    train, data, optimizer = config.train, config.data, config.optimizer
    skipped, name = train.skip_steps, optimizer.name
    parse_trace(train.profile, 'train.profile')
    for logger in train.loggers.split(','):
        _check_value('train.loggers', logger, (*LOGGERS, ''))
    _check_value('optimizer.name', name, (*OWN_OPTIMIZERS, *optax_optimizers()))
    optimizer_arguments(name, optimizer.arguments)
    if optimizer.decay_from not in ('start', 'peak'):
        _check_value('optimizer.decay_from', optimizer.decay_from, 'duration')
    _refuse((
        *((name not in OWN_OPTIMIZERS and optimizer[key] != FIELDS[f'optimizer.{key}'].default,
           f'optimizer.{key}={optimizer[key]} has no effect with config.optimizer.name={name!r}: '
           'set optimizer.arguments instead') for key in ('b1', 'b2', 'eps')),
        (not isinstance(skipped, (tuple, list)) or len(set(map(str, skipped))) < len(skipped)
         or not all(type(step) is int and step > 0 for step in skipped),
         f'train.skip_steps={skipped!r} must be a tuple of different steps, counted from 1, such '
         'as (1234,)'),
        (data.mask_rate + data.random_rate > 1 + 1e-9, f'data.mask_rate={data.mask_rate} and '
         f'config.data.random_rate={data.random_rate} add up to more than 1'),
    ))
    given = SIZES if config.model.name else ()
    if all(config.model[o.name] is not None for o in DECIDED if o.name not in given):
        _check_sizes(config, num_devices)


def _refuse(relations: Iterable[tuple[Any, str]]) -> None:
    """Raises InputError for the first (is it wrong?, message after 'config.') that is wrong."""
    for wrong, message in relations:
        if wrong:
            raise InputError(f'config.{message}')


def _check_value(path: str, value: Any, allowed: Allowed | str) -> None:
    """Checks a value against its field's `allowed`."""
    if not isinstance(allowed, str):
        wrong = why_not_allowed(value, allowed)
        _refuse([(wrong, f'{path}={value!r} {wrong}')])
    elif allowed == 'duration':
        parse_duration(value, path, batch_size=1,
                       num_examples=None if path.endswith('warmup') else _ANY_NUMBER,
                       total=None if path == 'train.steps' else _ANY_NUMBER)
    elif allowed != 'elsewhere':
        _refuse([(not isinstance(value, str) or '\0' in value, f'{path}={value!r} must be a text')])
        if allowed == 'path':
            check_scheme(value, f'config.{path}=')


def _check_sizes(config: ConfigDict, num_devices: int | None) -> None:
    """Checks the model, the batches of all phases and of evaluation, and the mesh."""
    sizes, mesh, parts = model_sizes(config), config.mesh, config.train.accumulation_steps
    hidden, heads = sizes['hidden_size'], sizes['num_heads']
    positions, phased = config.model.max_position_embeddings, config.task in PRETRAINING
    relations: list[tuple[Any, str]] = [
        (config.task == 'pretrain' and config.data.next_sentence
         and config.model.type_vocab_size < 2,
         'model.type_vocab_size=1 has no segment type for the second text of a pair: set '
         'config.data.next_sentence=False, or 2'),
        (hidden % heads, f'model.num_heads={heads} does not divide config.model.hidden_size='
         f'{hidden}: take a number that does')]
    batches = []
    for i, phase in enumerate(phases(config, num_examples=_ANY_NUMBER)):
        data, train = (f'phases[{i}].',) * 2 if config.phases else ('data.', 'train.')
        length, predictions = phase['max_seq_length'], phase['max_predictions_per_seq']
        field = 'packed_rows' if phase['packed_rows'] else 'batch_size'
        rows, batch = phase[field], phase['batch_size']
        relations += [
            (length > positions, f'{data}max_seq_length={length} is longer than the position '
             f'table, config.model.max_position_embeddings={positions}'),
            (length < 8, f'{data}max_seq_length={length} is too short: at least 8'),
            (phased and not 0 < predictions <= length - 2,
             f'{data}max_predictions_per_seq={predictions} must be from 1 to max_seq_length - 2 = '
             f'{length - 2}'),
            (rows > batch, f'{train}packed_rows={rows} are more than the sequences of a step, '
             f'batch_size={batch}: set it to 0 for a row each'),
            (rows % parts, f'train.accumulation_steps={parts} does not divide '
             f'config.{train}{field}={rows}')]
        batches.append((f'{train}{field}', rows, parts))
    _refuse(relations)
    if num_devices is None:
        return
    if phased:
        batches.append(('train.eval_batch_size', config.train.eval_batch_size, 1))
    fixed = math.prod(size for size in (mesh.data, mesh.fsdp, mesh.tensor) if size != -1)
    rest = -1 in (mesh.data, mesh.fsdp)
    devices = max(1, num_devices // mesh.tensor)
    _refuse((
        (not fixed or (num_devices % fixed if rest else num_devices != fixed),
         f'mesh data={mesh.data} x fsdp={mesh.fsdp} x tensor={mesh.tensor} does not fit '
         f'{num_devices} devices: their product must be the number of devices (-1 takes what is '
         'left)'),
        *((sizes[name] % mesh.tensor, f'mesh.tensor={mesh.tensor} does not divide '
           f'config.model.{name}={sizes[name]}') for name in ('num_heads', 'intermediate_size')),
        *((rows % (devices * parts), f'{path}={rows} cannot be split over data x fsdp = {devices} '
           f'devices' + f' in {parts} parts' * (parts > 1) + ': the nearest above is '
           f'{math.ceil(rows / (devices * parts)) * devices * parts}')
          for path, rows, parts in batches)))
    check_vocabulary(config.model.vocab_size, mesh.tensor)
