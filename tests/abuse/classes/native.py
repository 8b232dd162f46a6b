"""Files that libraries read: TF1 indices, safetensors, orbax checkpoints, arrays of NumPy."""

import contextlib
import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.runtime.files import as_path
from bert_jax.weights import load_weights
from tests.abuse.classes.case import Case, copy, write
from tests.abuse.classes.foreign import spoil_file
from tests.abuse.commands import open_command
from tests.abuse.fuzz import cut, flip, overwrite

_SIZES = (-5, -1, 0, 1, 3, 2**31, 2**40, 2**62, 2**63 - 1)
_DTYPES = ('F64', 'F16', 'BF16', 'F8_E4M3', 'I64', 'I8', 'BOOL', 'C64', 'X', '', None, 3, 'f32')


def make(folder: Path) -> None:
    """Makes `tf1` and `native`, a folder of arrays; `run` is there."""
    answer = open_command('convert {folder}/run {folder}/tf1 --to tf1', folder)
    assert answer.status == 0, answer.err


def _spoil_index(rng: random.Random, path: Path) -> str:
    """Writes an index of its own making, of tensors that are impossible or not there."""
    from tensorflow.core.protobuf import tensor_bundle_pb2

    names = ['bert/embeddings/word_embeddings', 'bert/pooler/dense/kernel', 'x' * 300, '\udcff', '']
    entries = [(b'', tensor_bundle_pb2.BundleHeaderProto(
        num_shards=rng.choice((0, 1, 2, 2**31 - 1))).SerializeToString())]
    for name in sorted(rng.sample(names, rng.randint(1, len(names)))):
        entry = tensor_bundle_pb2.BundleEntryProto(
            dtype=rng.choice((0, 1, 3, 7, 19, 21, 101)),
            shard_id=rng.choice((0, 0, 1, 2**31 - 1, -1)),
            offset=rng.choice((0, 0, -1, 2**62)), size=rng.choice((0, 4, -4, 2**62)))
        for _ in range(rng.choice((0, 1, 2, 2, 255, 300))):
            entry.shape.dim.add(size=rng.choice(_SIZES))
        entry.shape.unknown_rank = rng.random() < 0.1
        entries.append((name.encode('utf-8', 'surrogateescape'), entry.SerializeToString()))
    write(path, _table(sorted(entries)))
    return f'{path.name} of {entries!r}'


def _number(value: int) -> bytes:
    """A number as the index holds it, below 2**14."""
    return bytes([value & 127 | 128, value >> 7])


def _block(entries: list[tuple[bytes, bytes]]) -> bytes:
    block = b''
    for key, value in entries:
        block += _number(0) + _number(len(key)) + _number(len(value)) + key + value
    return block + bytes(4) + b'\x01\0\0\0'


def _table(entries: list[tuple[bytes, bytes]]) -> bytes:
    """LevelDB's table of one block of entries; with wrong checksums, which is one more mistake."""
    content = _block(entries)
    handle = _number(0) + _number(len(content))
    table = content + bytes(5)
    index = _block([(b'\xff', handle)])
    at = len(table)
    table += index + bytes(5)
    footer = handle + bytes([at & 127 | 128, at >> 7 & 127 | 128, at >> 14]) + _number(len(index))
    return table + footer.ljust(40, b'\0') + bytes.fromhex('57fb808b247547db')


def _spoil_bytes(rng: random.Random, path: Path) -> str:
    data = path.read_bytes()
    if not data:
        return f'{path.name} is empty'
    damage = rng.choice((flip, cut, overwrite, flip))
    for _ in range(rng.choice((1, 1, 4, 30))):
        data = damage(rng, data) or b'x'
    path.write_bytes(data)
    return f'{damage.__name__} {path.name}'


def _spoil_safetensors(rng: random.Random, path: Path) -> str:
    """Changes the header of a file, which says where each tensor is."""
    data = path.read_bytes()
    (size,) = struct.unpack('<Q', data[:8])
    header: Any = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    names = [name for name in header if name != '__metadata__']
    name = rng.choice(names)
    how = rng.choice(('shape', 'dtype', 'offsets', 'swap', 'drop', 'add', 'metadata', 'kind',
                      'size',
                      'body', 'numbers', 'deep'))
    entry = header[name]
    if how == 'shape':
        entry['shape'] = rng.choice((
            [], [-1], [0], [2**62, 4], [2**63], ['3'], [1] * 300, None, 'x', entry['shape'][::-1],
            [1, *entry['shape']], [*entry['shape'], 1], [1.5], [True], {}))
    elif how == 'dtype':
        entry['dtype'] = rng.choice(_DTYPES)
    elif how == 'offsets':
        entry['data_offsets'] = rng.choice((
            [0, 0], [-1, 3], [3, 1], [0, 2**63], [0, 2**62], [1], [], None, ['a', 'b'], [0.5, 4.5]))
    elif how == 'swap':
        other = rng.choice(names)
        header[name], header[other] = header[other], header[name]
    elif how == 'drop':
        del header[name]
    elif how == 'add':
        header[rng.choice(('x', '', '../x', 'a\nb', '\x1b[31m', 'x' * 5000))] = dict(entry)
    elif how == 'metadata':
        header['__metadata__'] = rng.choice((
            None, 3, [], {'a': 1}, {'a': None}, {'format': 'tf'},
            {'bert_jax.checksum ' + name: 'x'},
            {'\x1b': '\x1b'}))
    elif how == 'kind':
        header = rng.choice(([], 3, None, 'x', {}))
    elif how == 'body':
        values = np.frombuffer(body, '<f4').copy()
        values[rng.randrange(len(values))] = rng.choice((np.nan, np.inf, -np.inf, 3e38))
        body = values.tobytes()
    encoded = json.dumps(header).encode()
    if how == 'deep':
        encoded = b'[' * 100_000
    length = len(encoded)
    if how == 'size':
        length = rng.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
    if how == 'numbers':
        encoded = encoded.replace(b'"F32"', b'"F32","x":1e999', 1)
        length = len(encoded)
    path.write_bytes(struct.pack('<Q', length) + encoded + body)
    return f'safetensors: {how} of {name}'


def _spoil_arrays(rng: random.Random, folder: Path) -> str:
    """Changes one of the files of arrays in a token store's parts."""
    paths = sorted((folder / 'cache').rglob('*.npz'))
    path = rng.choice(paths)
    with np.load(path) as arrays:
        content = dict(arrays)
    name = rng.choice(sorted(content))
    content[name] = rng.choice((
        np.zeros(0), np.array('x'), np.array([None], object), np.zeros(3, 'f2'),
        content[name].ravel()[:1], np.full((3, 3), np.nan), np.zeros((2,) * 20, bool),
        np.array(-1)))
    if rng.random() < 0.3:
        del content[name]
    np.savez(path, **content)
    return f'{path.name}: {name}'


def _load(folder: Path) -> None:
    weights = load_weights(as_path(folder), any_head=True)
    print(weights.source, len(weights.params))


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A file whose header, index or bytes are wrong, and what loads it."""
    kind = rng.choice(('index', 'tf1', 'safetensors', 'safetensors', 'orbax', 'orbax', 'arrays'))
    if kind in ('index', 'tf1'):
        copy(things, folder, 'tf1')
        if kind == 'index':
            done = _spoil_index(rng, next((folder / 'tf1').glob('*.index')))
        else:
            done = _spoil_bytes(rng, rng.choice(sorted((folder / 'tf1').iterdir())))
        return Case(done=done, act=f'convert {folder}/tf1 {folder}/new --to huggingface')
    if kind == 'safetensors':
        copy(things, folder, 'hf_pretraining')
        done = _spoil_safetensors(rng, folder / 'hf_pretraining' / 'model.safetensors')
        return Case(done=done, act=f'convert {folder}/hf_pretraining {folder}/new --to tf1')
    if kind == 'orbax':
        copy(things, folder, 'run')
        paths = [path for path in sorted((folder / 'run' / 'checkpoints').rglob('*'))
                 if path.is_file()]
        path = rng.choice(paths)
        done = ''
        with contextlib.suppress(ValueError):  # it is no JSON
            done = spoil_file(rng, path)
        done = done or _spoil_bytes(rng, path)
        return Case(done=f'{path.relative_to(folder)} {done}', act=lambda: _load(folder / 'run'),
                    made=('new', 'run'))
    copy(things, folder, 'cache', 'text.txt', 'run')
    done = _spoil_arrays(rng, folder)
    return Case(done=done, made=('new', 'cache'),
                act=f'prepare @text --config.data.vocab_file={folder}/run/vocab.txt')
