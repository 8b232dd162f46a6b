"""Caches of all kinds that somebody, or a disk, has changed: made again, refused, or the same."""

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.completion import complete
from bert_jax.config.command_line import parse_command
from bert_jax.foreign import load_weights
from bert_jax.runtime.files import as_path
from bert_jax.text.kinds import load_tokenizer
from tests.abuse.classes.case import Case, copy, in_words
from tests.abuse.commands import Answer, arguments
from tests.abuse.fuzz import cut, flip, overwrite
from tests.opening import open_task

_HUB = Path('home/hub/models--org--name')
# What prints a digest of what it reads in a folder, and what damages the cache and says how.
Use = tuple[Callable[[Path], None], Callable[[], str]]


def _swap(rng: random.Random, data: bytes) -> bytes:
    """Two neighbours that are not the same change places, as in an edited file."""
    places = [i for i in range(len(data) - 1) if data[i] != data[i + 1]]
    if not places:
        return data
    i = rng.choice(places)
    return data[:i] + data[i + 1 : i + 2] + data[i : i + 1] + data[i + 2 :]


def _zeros(rng: random.Random, data: bytes) -> bytes:
    return bytes(len(data))


def _longer(rng: random.Random, data: bytes) -> bytes:
    return data + rng.randbytes(20)


def _emptied(rng: random.Random, data: bytes) -> bytes:
    return b''


def _forbid(rng: random.Random, path: Path) -> None:
    path.chmod(0)


def _remove(rng: random.Random, path: Path) -> None:
    path.unlink()


def _make_folder(rng: random.Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_dangling_link(rng: random.Random, path: Path) -> None:
    path.unlink()
    path.symlink_to('nowhere')


def _make_loop(rng: random.Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _make_fifo(rng: random.Random, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _copy_another(rng: random.Random, path: Path) -> None:
    """Puts another file of the same folder in the place of this one."""
    path.unlink()
    others = [other for other in sorted(path.parent.iterdir()) if other.is_file()]
    if others:
        shutil.copy(rng.choice(others), path)


_CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _swap, _swap, _swap, flip, flip, cut, overwrite, _zeros, _longer, _emptied)
_REPLACEMENTS: tuple[Callable[[random.Random, Path], None], ...] = (
    _forbid, _remove, _make_folder, _make_dangling_link, _make_loop, _make_fifo, _copy_another)


def _damage(rng: random.Random, path: Path) -> str:
    """Changes a file of a cache, or what is in its place."""
    if rng.random() < 0.4:
        replace = rng.choice(_REPLACEMENTS)
        replace(rng, path)
        return in_words(replace)
    before = path.stat()
    data = path.read_bytes()
    change = rng.choice(_CHANGES)
    path.write_bytes(change(rng, data) if data else b'x')
    if rng.random() < 0.5:  # as a disk does it
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return in_words(change)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob('*')) if path.is_file() and path.suffix != '.lock']


def _tokens(folder: Path) -> None:
    """Prints what the unpacked vocabulary of a folder makes of a text."""
    weights = load_weights(as_path(folder / 'words'), any_head=True)
    assert weights.vocab_file is not None
    tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)
    print(tokenizer.encode('the leader was john smith, born in antwerp'))


def _rows(folder: Path) -> None:
    """Prints a digest of the first rows that a run on the text would train on."""
    _, *words = arguments(f'main @text --config.data.vocab_file={folder}/run/vocab.txt', folder)
    config, _ = parse_command(['main', *(word for word in words if '--workdir' not in word)], '')
    task: Any = open_task(complete(config))
    rows = task.data.training(32, 5)
    batch = rows.rows(np.arange(64))
    print({name: int(np.asarray(x, np.int64).sum()) for name, x in batch.items()})


def _records(folder: Path) -> None:
    """Prints a digest of Google's records, whose index is kept."""
    from bert_jax.corpus.records import RecordFiles

    records = RecordFiles.open(f'{folder}/examples.tfrecord', folder / 'cache')
    batch = records.read(np.arange(len(records)))
    print({name: int(np.asarray(x, np.int64).sum()) for name, x in batch.items()})


def _hub(folder: Path) -> None:
    """Prints a model of the hub's cache."""
    from bert_jax.runtime.hub import model_folder

    weights = load_weights(as_path(model_folder('hf:org/name')), any_head=True)
    print(weights.model, sum(float(np.abs(x).sum()) for x in weights.params.values()))


def _make_hub(things: Path, folder: Path) -> Path:
    """A model in the hub's cache: files that are links to blobs."""
    top = folder / _HUB
    snapshot = top / 'snapshots' / ('a' * 40)
    snapshot.mkdir(parents=True)
    (top / 'blobs').mkdir()
    (top / 'refs').mkdir()
    (top / 'refs' / 'main').write_text('a' * 40)
    for path in (things / 'hf_pretraining').iterdir():
        shutil.copy(path, top / 'blobs' / f'blob_{path.name}')
        (snapshot / path.name).symlink_to(f'../../blobs/blob_{path.name}')
    return top


def _of_vocabulary(rng: random.Random, folder: Path, things: Path) -> Use:
    shutil.copytree(things / 'json' / 'words', folder / 'words')
    for name in ('vocab.txt', 'added_tokens.json', 'special_tokens_map.json'):
        (folder / 'words' / name).unlink(missing_ok=True)
    return _tokens, lambda: _damage_one(rng, _files(folder / 'home'))


def _of_store(rng: random.Random, folder: Path, things: Path) -> Use:
    copy(things, folder, 'text.txt', 'run', 'cache')
    return _rows, lambda: _damage_one(rng, _files(folder / 'cache') + _files(folder / 'home'))


def _of_records(rng: random.Random, folder: Path, things: Path) -> Use:
    copy(things, folder, 'examples.tfrecord')
    return _records, lambda: _damage_one(rng, _files(folder / 'cache') + _files(folder / 'home'))


def _of_hub(rng: random.Random, folder: Path, things: Path) -> Use:
    top = _make_hub(things, folder)
    return _hub, lambda: _damage_one(rng, _files(top))


_KINDS = {
    'vocabulary': _of_vocabulary, 'store': _of_store, 'hub': _of_hub, 'records': _of_records}


def _damage_one(rng: random.Random, paths: list[Path]) -> str:
    if not paths:
        return 'nothing is kept'
    path = rng.choice(paths)
    return f'{path} {_damage(rng, path)}'


def make(folder: Path) -> None:
    """Makes `examples.tfrecord`."""
    import tensorflow as tf

    from tests.corpus.test_records import make_example

    rng = np.random.default_rng(0)
    with tf.io.TFRecordWriter(str(folder / 'examples.tfrecord')) as writer:
        for _ in range(20):
            writer.write(make_example(rng).SerializeToString())


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """What is in a cache changes between two uses, which must agree, unless the second refuses."""
    name = rng.choice(('vocabulary', 'store', 'store', 'hub', 'records'))
    act, damage = _KINDS[name](rng, folder, things)
    environment = {'HOME': f'{folder}/home', 'HF_HOME': f'{folder}/home',
                   'HF_HUB_CACHE': f'{folder}/home/hub', 'XDG_CACHE_HOME': f'{folder}/home'}

    def both() -> None:
        from huggingface_hub import constants

        constants.HF_HUB_CACHE = environment['HF_HUB_CACHE']
        act(folder)
        print('damaged:', damage())
        act(folder)

    def check(answer: Answer) -> str:
        lines = [line for line in answer.out.splitlines() if line.startswith(('[', '{'))]
        if not answer.status and len(lines) != 2:
            return f'{len(lines)} lines'
        if not answer.status and lines[0] != lines[1] and name != 'hub':
            return f'another result: {lines!r:.300}'
        return ''

    with contextlib.suppress(FileExistsError):
        (folder / 'home').mkdir()
    return Case(done=f'the kept {name} is damaged', act=both, check=check, environment=environment,
                made=('home', 'cache', 'new'))
