"""Archives and compressed files: of kinds, names and contents that somebody may have."""

import bz2
import gzip
import lzma
import random
import shutil
import struct
import warnings
import zipfile
from pathlib import Path

from tests.abuse.classes.case import Case, copy, write
from tests.abuse.fuzz import cut, flip, overwrite

_FOLDER = 'hf_pretraining'
_NAMES = (
    '../evil.txt', '/tmp/evil.txt', 'a/../../evil.txt', 'C:\\evil.txt', 'x\\y', 'a\x1b[31m', '',
    'x' * 250, 'é', '.hidden', '__MACOSX/._config.json', 'config.json', 'config.json/x', 'sub/',
    'CON', 'a\nb', 'new')


def _members(things: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((things / _FOLDER).iterdir())}


def _write_zip(rng: random.Random, path: Path, things: Path) -> str:
    """Writes a .zip of a model, with one thing that is odd."""
    members = _members(things)
    how = rng.choice((
        'plain', 'folder', 'two folders', 'name', 'link', 'twice', 'empty', 'encrypted', 'method',
        'bomb', 'damaged', 'damaged', 'cut', 'prefix', 'comment', 'macos', 'nested', 'no zip',
        'lzma',
        'without', 'crc'))
    prefix = {'folder': 'model/', 'two folders': 'model/'}.get(how, '')
    kind = {'lzma': zipfile.ZIP_LZMA}.get(how, zipfile.ZIP_DEFLATED)
    with warnings.catch_warnings(action='ignore'), zipfile.ZipFile(path, 'w', kind) as archive:
        if how != 'empty':
            for name, data in members.items():
                archive.writestr(prefix + name, data)
        if how == 'two folders':
            archive.writestr('other/config.json', b'{}')
        elif how == 'name':
            archive.writestr(rng.choice(_NAMES), b'x')
        elif how == 'twice':
            archive.writestr('config.json', rng.choice((b'{}', members['config.json'])))
        elif how == 'macos':
            archive.writestr('__MACOSX/._config.json', b'x')
            archive.writestr('.DS_Store', b'x')
        elif how == 'nested':
            archive.writestr('inner.zip', b'PK\x03\x04')
        elif how == 'link':
            info = zipfile.ZipInfo(rng.choice(('vocab.txt', 'link')))
            info.external_attr = 0o120777 << 16
            archive.writestr(info, rng.choice(('/etc/passwd', '../../outside/kept.txt', 'link')))
        elif how == 'bomb':
            archive.writestr('zeros.txt', bytes(300 << 20))
        elif how == 'comment':
            archive.comment = b'PK\x05\x06' * 100
    data = path.read_bytes()
    if how == 'encrypted':
        data = _with_bytes(data, b'PK\x01\x02', 8, struct.pack('<H', 1))
    elif how == 'method':
        data = _with_bytes(data, b'PK\x01\x02', 10,
                           struct.pack('<H', rng.choice((9, 93, 98, 6, 1))))
    elif how == 'crc':
        data = _with_bytes(data, b'PK\x01\x02', 16, b'abcd')
    elif how == 'damaged':
        for _ in range(rng.choice((1, 3, 20))):
            data = rng.choice((flip, overwrite))(rng, data)
    elif how == 'cut':
        data = cut(rng, data)
    elif how == 'prefix':
        data = b'#!/bin/sh\n' * 9 + data
    elif how == 'no zip':
        data = rng.choice((b'', b'PK', b'<html>', bytes(9999), gzip.compress(b'x')))
    path.write_bytes(data)
    return how


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
