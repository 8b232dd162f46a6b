"""Archives and compressed files: of kinds, names and contents that somebody may have."""

import bz2
import gzip
import lzma
import random
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.abuse.classes.case import Case, copy, in_words, write
from tests.abuse.fuzz import cut, flip, overwrite

_FOLDER = 'hf_pretraining'
_NAMES = (
    '../evil.txt', '/tmp/evil.txt', 'a/../../evil.txt', 'C:\\evil.txt', 'x\\y', 'a\x1b[31m', '',
    'x' * 250, 'é', '.hidden', '__MACOSX/._config.json', 'config.json', 'config.json/x', 'sub/',
    'CON', 'a\nb', 'new')


def _members(things: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((things / _FOLDER).iterdir())}


def _another_folder(rng: random.Random, archive: zipfile.ZipFile) -> None:
    archive.writestr('other/config.json', b'{}')


def _odd_name(rng: random.Random, archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo('x')
    info.filename = rng.choice(_NAMES)  # of an empty one, Python 3.11 makes no ZipInfo
    archive.writestr(info, b'x')


def _link(rng: random.Random, archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo(rng.choice(('vocab.txt', 'link')))
    info.external_attr = 0o120777 << 16
    archive.writestr(info, rng.choice(('/etc/passwd', '../../outside/kept.txt', 'link')))


def _another_config(rng: random.Random, archive: zipfile.ZipFile) -> None:
    archive.writestr('config.json', b'{}')


def _same_config(rng: random.Random, archive: zipfile.ZipFile) -> None:
    archive.writestr('config.json', archive.read('config.json'))


def _of_macos(rng: random.Random, archive: zipfile.ZipFile) -> None:
    archive.writestr('__MACOSX/._config.json', b'x')
    archive.writestr('.DS_Store', b'x')


def _nested(rng: random.Random, archive: zipfile.ZipFile) -> None:
    archive.writestr('inner.zip', b'PK\x03\x04')


def _bomb(rng: random.Random, archive: zipfile.ZipFile) -> None:
    archive.writestr('zeros.txt', bytes(300 << 20))


def _comment(rng: random.Random, archive: zipfile.ZipFile) -> None:
    archive.comment = b'PK\x05\x06' * 100


def _encrypted(rng: random.Random, data: bytes) -> bytes:
    return _with_bytes(data, b'PK\x01\x02', 8, struct.pack('<H', 1))


def _method(rng: random.Random, data: bytes) -> bytes:
    method = struct.pack('<H', rng.choice((9, 93, 98, 6, 1)))
    return _with_bytes(data, b'PK\x01\x02', 10, method)


def _checksum(rng: random.Random, data: bytes) -> bytes:
    return _with_bytes(data, b'PK\x01\x02', 16, b'abcd')


def _damaged(rng: random.Random, data: bytes) -> bytes:
    for _ in range(rng.choice((1, 3, 20))):
        data = rng.choice((flip, overwrite))(rng, data)
    return data


def _after_a_script(rng: random.Random, data: bytes) -> bytes:
    return b'#!/bin/sh\n' * 9 + data


def _no_zip(rng: random.Random, data: bytes) -> bytes:
    return rng.choice((b'', b'PK', b'<html>', bytes(9999), gzip.compress(b'x')))


# Each adds something odd to an archive that is being written.
_ADDITIONS: tuple[Callable[[random.Random, zipfile.ZipFile], None], ...] = (
    _another_folder, _odd_name, _link, _another_config, _same_config, _of_macos, _nested, _bomb,
    _comment)
# Each changes the bytes of an archive.
_CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _encrypted, _method, _checksum, _damaged, _damaged, cut, _after_a_script, _no_zip)
# Otherwise: what is in it, and how it is compressed.
_FORMS = ('plain', 'in a folder', 'empty', 'lzma', 'without a config')


def _write_zip(rng: random.Random, path: Path, things: Path) -> str:
    """Writes a .zip of a model, with one thing that is odd."""
    how = rng.choice((*_ADDITIONS, *_CHANGES, *_FORMS))
    members = _members(things)
    if how == 'empty':
        members.clear()
    elif how == 'without a config':
        del members['config.json']
    prefix = 'model/' if how in ('in a folder', _another_folder) else ''
    kind = zipfile.ZIP_LZMA if how == 'lzma' else zipfile.ZIP_DEFLATED
    with warnings.catch_warnings(action='ignore'), zipfile.ZipFile(path, 'w', kind) as archive:
        for name, data in members.items():
            archive.writestr(prefix + name, data)
        if how in _ADDITIONS:
            how(rng, archive)
    if how in _CHANGES:
        path.write_bytes(how(rng, path.read_bytes()))
    return how if isinstance(how, str) else in_words(how)


def _with_bytes(data: bytes, mark: bytes, at: int, new: bytes) -> bytes:
    """The data with other bytes in all of their headers with a mark."""
    parts = data.split(mark)
    return mark.join([parts[0],
                      *(part[: at - 4] + new + part[at - 4 + len(new):] for part in parts[1:])])


def _write_text(rng: random.Random, path: Path, text: bytes) -> str:
    """Writes a compressed text that is damaged, doubled, of another kind or of another name."""
    how = rng.choice(('gzip', 'bz2', 'xz', 'twice', 'parts', 'cut', 'flip', 'garbage', 'bomb',
                      'empty'))
    data = {'bz2': bz2.compress, 'xz': lzma.compress}.get(how, gzip.compress)(text)
    if how == 'twice':
        data = gzip.compress(data)
    elif how == 'parts':
        data += gzip.compress(text)
    elif how == 'cut':
        data = cut(rng, data)
    elif how == 'flip':
        data = flip(rng, data)
    elif how == 'garbage':
        data += rng.randbytes(300)
    elif how == 'bomb':
        data = gzip.compress(rng.choice((bytes(200 << 20), b'\n' * (60 << 20))))
    elif how == 'empty':
        data = gzip.compress(b'')
    write(path, data)
    return how


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A .zip of a model that is converted, or a compressed text that is looked at."""
    if rng.random() < 0.65:
        name = rng.choice(('m.zip', 'm.zip', 'm.ZIP', 'm.zip.zip', 'a b.zip', 'm.tar', 'm'))
        if rng.random() < 0.1:
            shutil.copytree(things / _FOLDER, folder / 'm.zip')
            name, done = 'm.zip', 'a folder of this name'
        else:
            done = _write_zip(rng, folder / name, things)
        form = rng.choice(('bert_jax', 'huggingface'))
        return Case(done=f'{name}: {done}', act=('convert', f'{folder}/{name}', f'{folder}/new',
                                                 '--to', form))
    copy(things, folder, 'text.txt', 'run')
    name = rng.choice(('t.gz', 't.txt.gz', 't.bz2', 't.txt', 't.xz', 't.csv.gz', 't.jsonl.gz',
                       't.zip'))
    done = _write_text(rng, folder / name, (folder / 'text.txt').read_bytes())
    act = rng.choice((
        f'look @text --config.data.source={folder}/{name} --vocab_sizes=300',
        f'predict features --model {folder}/run --pool=mean --input {folder}/{name} --output '
        f'{folder}/new.npz'))
    return Case(done=f'{name}: {done}', act=act, made=('new', 'new.npz', 'cache'))
