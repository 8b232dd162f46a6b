"""Files without an end, very long lines, loops of links, flags with very large values."""

import os
import random
from collections.abc import Callable
from pathlib import Path

from tests.abuse.classes.case import Case, copy, in_words, write

_LARGE = (
    '1000000', '2147483647', '2147483648', '9223372036854775807', '9223372036854775808', '1e18',
    '1' * 400, '-9223372036854775808')


def _fifo(rng: random.Random, path: Path) -> None:
    os.mkfifo(path)


def _device(rng: random.Random, path: Path) -> None:
    path.symlink_to(rng.choice(('/dev/zero', '/dev/random', '/dev/full', '/dev/tty')))


def _own_memory(rng: random.Random, path: Path) -> None:
    path.symlink_to('/proc/self/mem')


def _socket(rng: random.Random, path: Path) -> None:
    path.symlink_to('/dev/log')


def _long_line(rng: random.Random, path: Path) -> None:
    write(path, b'text,label\n' + b'ab ' * (30 << 20))


def _long_lines(rng: random.Random, path: Path) -> None:
    write(path, (b'ab ' * (1 << 20) + b'\n') * 10)


def _many_lines(rng: random.Random, path: Path) -> None:
    write(path, b'a,b\n' * 2_000_000)


def _no_line_end(rng: random.Random, path: Path) -> None:
    write(path, b'x' * (70 << 20))


def _line_ends(rng: random.Random, path: Path) -> None:
    write(path, rng.choice((b'\n', b'\r', b'\r\n')) * 3_000_000)


def _deep(rng: random.Random, path: Path) -> None:
    write(path, rng.choice((b'[', b'{"a":', b'"', b'(', b'((((')) * 200_000)


def _sparse(rng: random.Random, path: Path) -> None:
    with path.open('wb') as file:
        file.truncate(3 << 30)


def _zeros(rng: random.Random, path: Path) -> None:
    write(path, bytes(1 << 20))


def _nothing(rng: random.Random, path: Path) -> None:
    write(path, b'')


# Each makes an odd file.
_FILES: tuple[Callable[[random.Random, Path], None], ...] = (
    _fifo, *[_device] * 4, _own_memory, _socket, _long_line, _long_lines, _many_lines,
    _no_line_end, _line_ends, _deep, _sparse, _zeros, _nothing)


def _make_tree(rng: random.Random, folder: Path) -> str:
    """A pattern of files below a folder that has links to itself."""
    top = folder / 'tree'
    top.mkdir()
    for number in range(rng.choice((1, 2))):
        (top / f'again{number}').symlink_to(rng.choice(('.', '../tree', '..')))
    return f'{top}/**/*.txt'


def _make_source(rng: random.Random, folder: Path) -> tuple[str, str]:
    """(What is odd, the name of a file or pattern)."""
    if rng.random() < 0.1:
        return 'links to itself', _make_tree(rng, folder)
    suffix = rng.choice(('.txt', '.csv', '.tsv', '.jsonl', '.json', '.txt.gz', '.parquet', ''))
    path = folder / f'source{suffix}'
    make = rng.choice(_FILES)
    make(rng, path)
    if rng.random() < 0.1 and make is not _nothing:
        (folder / 'source.py').symlink_to(path.name)
    return in_words(make), str(path)


def _large_flags(rng: random.Random, folder: Path) -> tuple[str, ...]:
    large = rng.choice(_LARGE)
    field = rng.choice((
        'train.steps', 'train.batch_size', 'train.eval_batch_size', 'train.accumulation_steps',
        'data.max_seq_length', 'data.max_predictions_per_seq', 'data.vocab_size',
        'data.shuffle_blocks', 'model.num_layers', 'model.hidden_size', 'model.num_heads',
        'model.vocab_size', 'model.max_position_embeddings', 'train.keep_checkpoints',
        'train.log_every', 'train.save_every', 'train.eval_every', 'train.max_eval_examples',
        'optimizer.warmup', 'optimizer.learning_rate', 'seed', 'mesh.data', 'mesh.tensor',
        'train.patience', 'train.save_minutes', 'data.held_out', 'data.max_malformed',
        'model.type_vocab_size', 'model.intermediate_size', 'train.verify_every'))
    predict = ('predict', 'fill-mask', '--model', f'{folder}/run', 'a [MASK]')
    return rng.choice((
        ('main', '@synthetic', f'--config.{field}={large}'),
        ('main', '@synthetic', f'--config.{field}={large}'),
        ('main', '@text', f'--config.{field}={large}',
         f'--config.data.vocab_file={folder}/run/vocab.txt'),
        ('main', '@synthetic', f'--config.phases=({{"steps": {large}}},)'),
        (*predict, f'--top-k={large}'),
        ('predict', 'features', '--model', f'{folder}/run', f'--layers={large}', 'a'),
        ('predict', 'features', '--model', f'{folder}/run', '--layers=' + ','.join(['-1'] * 3000),
         'a'),
        ('sweep', '@sweep', f'--restarts={large}'), ('sweep', '@sweep', f'--chips={large}'),
        ('sweep', '@sweep', f'--keep={large}', '--grid',
         'seed=' + ','.join(map(str, range(20_000)))),
        ('sweep', '@sweep', *(f'--grid={name}=1,2,3,4,5,6,7,8,9' for name in (
            'seed', 'train.steps', 'train.batch_size', 'train.log_every', 'train.save_every'))),
        ('bench', f'--steps={large}', '--size=nope'), ('bench', f'--seq={large}'),
        ('look', '@text', f'--vocab_sizes={large}'),
        ('preflight', '@synthetic', f'--topology=v5e:{large}x2'),
        ('preflight', '@synthetic', '--topology=v5e:2x2', f'--price={large}', f'--slices={large}'),
    ))


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A source that does not end as files do, or a flag with a very large value."""
    copy(things, folder, 'run', 'text.txt')
    if rng.random() < 0.4:
        line = _large_flags(rng, folder)
        return Case(done='a flag with a very large value', act=line, made=('new', 'cache'))
    kind, source = _make_source(rng, folder)
    words = f'--config.data.vocab_file={folder}/run/vocab.txt'
    commands: tuple[tuple[str, ...], ...] = (
        ('main', '@text', f'--config.data.source={source}', words),
        ('main', '@text', f'--config.data.source=jsonl:{source}', words),
        ('main', '@text', f'--config.data.source=csv:{source}', words),
        ('main', '@text', f'--config.data.source=tfrecord:{source}', words),
        ('main', '@text', f'--config.data.source=fasta:{source}', words),
        ('main', '@text', f'--config.data.vocab_file={source}'),
        ('main', '--config=configs/classification.py', f'--config.data.source={source}', words,
         '--config.model.name=tiny', '--config.init_checkpoint='),
        ('main', '--config=configs/tagging.py', f'--config.data.source={source}', words,
         '--config.model.name=tiny', '--config.init_checkpoint='),
        ('main', '--config=configs/squad.py', f'--config.data.source={source}', words,
         '--config.model.name=tiny', '--config.init_checkpoint='),
        ('predict', 'features', '--model', f'{folder}/run', '--pool=mean', '--input', source,
         '--output', f'{folder}/new.npz'),
        ('look', '@text', f'--config.data.source={source}', '--vocab_sizes=300'),
        ('convert', source, f'{folder}/new', '--to', 'huggingface'),
        ('convert', f'{folder}/run', f'{folder}/new', '--to', 'huggingface', f'--card={source}'),
        ('main', f'--config={source}'),
        ('main', f'--config={folder}/source.py'),
        ('sweep', f'--config={folder}/source.py', '--restarts=1'),
        ('report', source, f'--output={folder}/new'),
    )
    return Case(done=f'{kind} {source}', act=rng.choice(commands), made=('new', 'new.npz', 'cache'))
