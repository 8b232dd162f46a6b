"""Files that libraries read: TF1 indices, safetensors, Flax, orbax checkpoints, arrays."""

import contextlib
import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from bert_jax.foreign import load_weights
from bert_jax.runtime.files import as_path
from tests.abuse.classes.case import Case, copy, in_words, write
from tests.abuse.classes.foreign import spoil_file
from tests.abuse.commands import open_command
from tests.abuse.fuzz import cut, flip, overwrite
from tests.conftest import ROOT

_SIZES = (-5, -1, 0, 1, 3, 2**31, 2**40, 2**62, 2**63 - 1)
_DTYPES = ('F64', 'F16', 'BF16', 'F8_E4M3', 'I64', 'I8', 'BOOL', 'C64', 'X', '', None, 3, 'f32')
_FLAX = ROOT / 'tests' / 'fixtures' / 'flax' / 'FlaxBertForPreTraining'
_FLAX_TYPES = (
    b'f4,(', b'(2,', b'object', b'O', b'float16', b'bfloat16', b'>f4', b'2f4', b'f4,f4', b'S4',
    b'V4', b'datetime64', b'c8', b'', b'\xff', b'\x1b[31m', b'f4,' * 1000, None, 3, [], {},
    [[b'a', b'f4']])
_FLAX_SHAPES = (
    [], [0], [-1], [-2], [8, -1, -1], [2**62, 4], [2**63], [1] * 70, [b'8'], [1.5], [None], None, 3,
    b'x', {}, [[8]])
# What a tree may have that is no tensor; of the large arrays that Flax writes in parts, too.
_PARTS = '__msgpack_chunked_array__'
_NO_TENSORS = (
    None, True, 3, 0.5, 'x', b'', [], {}, [1, [2]], msgpack.ExtType(1, b''),
    msgpack.ExtType(1, b'x'), msgpack.ExtType(2, b''), msgpack.ExtType(2, b'\x92\x01\x02'),
    msgpack.ExtType(3, b'\x90'), msgpack.ExtType(99, b'x'), msgpack.Timestamp(0), {_PARTS: True},
    {_PARTS: True, 'shape': {'0': 8}, 'chunks': {}}, {_PARTS: True, 'shape': 8, 'chunks': 3},
    {_PARTS: True, 'shape': {'0': 2**62}, 'chunks': {'0': None}})
_NAMES = ('x', '', '../x', 'a\nb', '\x1b[31m', 'x' * 5000, 'kernel', 3, None, b'\xff')


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
    return f'{in_words(damage)} {path.name}'


class _Safetensors:
    """A file: its header by tensors' names, and the bytes of all of them.

    Attributes:
      header: says of each tensor its type, shape and place.
      body: the tensors' bytes.
      name: of the tensor that is changed.
    """

    def __init__(self, rng: random.Random, data: bytes):
        (size,) = struct.unpack('<Q', data[:8])
        self.header: Any = json.loads(data[8 : 8 + size])
        self.body = data[8 + size :]
        self.names = [name for name in self.header if name != '__metadata__']
        self.name = rng.choice(self.names)

    @property
    def entry(self) -> dict[str, Any]:
        """What the header says of the tensor."""
        return self.header[self.name]

    def encoded(self) -> bytes:
        """The header as it is written."""
        return json.dumps(self.header).encode()


def _shape(rng: random.Random, file: _Safetensors) -> None:
    shape = file.entry['shape']
    file.entry['shape'] = rng.choice((
        [], [-1], [0], [2**62, 4], [2**63], ['3'], [1] * 300, None, 'x', shape[::-1], [1, *shape],
        [*shape, 1], [1.5], [True], {}))


def _type(rng: random.Random, file: _Safetensors) -> None:
    file.entry['dtype'] = rng.choice(_DTYPES)


def _offsets(rng: random.Random, file: _Safetensors) -> None:
    file.entry['data_offsets'] = rng.choice((
        [0, 0], [-1, 3], [3, 1], [0, 2**63], [0, 2**62], [1], [], None, ['a', 'b'], [0.5, 4.5]))


def _swap(rng: random.Random, file: _Safetensors) -> None:
    other = rng.choice(file.names)
    header = file.header
    header[file.name], header[other] = header[other], header[file.name]


def _drop(rng: random.Random, file: _Safetensors) -> None:
    del file.header[file.name]


def _add(rng: random.Random, file: _Safetensors) -> None:
    name = rng.choice(('x', '', '../x', 'a\nb', '\x1b[31m', 'x' * 5000))
    file.header[name] = dict(file.entry)


def _metadata(rng: random.Random, file: _Safetensors) -> None:
    file.header['__metadata__'] = rng.choice((
        None, 3, [], {'a': 1}, {'a': None}, {'format': 'tf'},
        {f'bert_jax.checksum {file.name}': 'x'}, {'\x1b': '\x1b'}))


def _another_header(rng: random.Random, file: _Safetensors) -> None:
    file.header = rng.choice(([], 3, None, 'x', {}))


def _odd_number(rng: random.Random, file: _Safetensors) -> None:
    values = np.frombuffer(file.body, '<f4').copy()
    values[rng.randrange(len(values))] = rng.choice((np.nan, np.inf, -np.inf, 3e38))
    file.body = values.tobytes()


# Each changes what a file says or holds.
_SAFETENSORS_MISTAKES = (
    _shape, _type, _offsets, _swap, _drop, _add, _metadata, _another_header, _odd_number)


def _spoil_safetensors(rng: random.Random, path: Path) -> str:
    """Changes the header of a file, which says where each tensor is, or its bytes."""
    file = _Safetensors(rng, path.read_bytes())
    how = rng.choice((*_SAFETENSORS_MISTAKES, 'size', 'large number', 'deep'))
    if callable(how):
        how(rng, file)
        how = in_words(how)
    encoded = file.encoded()
    if how == 'deep':
        encoded = b'[' * 100_000
    elif how == 'large number':
        encoded = encoded.replace(b'"F32"', b'"F32","x":1e999', 1)
    length = len(encoded)
    if how == 'size':
        length = rng.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
    path.write_bytes(struct.pack('<Q', length) + encoded + file.body)
    return f'safetensors: {how} of {file.name}'


def _packed(shape: object, dtype: object, content: object) -> msgpack.ExtType:
    """A tensor as Flax writes it."""
    return msgpack.ExtType(1, msgpack.packb([shape, dtype, content]))


def _of_another_type(rng: random.Random, shape: list[int], content: bytes) -> object:
    return _packed(shape, rng.choice(_FLAX_TYPES), content)


def _of_another_shape(rng: random.Random, shape: list[int], content: bytes) -> object:
    shapes = (*_FLAX_SHAPES, shape[::-1], [1, *shape], [*shape, 1])
    return _packed(rng.choice(shapes), b'float32', content)


def _with_other_content(rng: random.Random, shape: list[int], content: bytes) -> object:
    contents = (cut(rng, content), content + bytes(4), content + b'x', b'', None, 3, [1.0])
    return _packed(shape, b'float32', rng.choice(contents))


def _with_an_odd_number(rng: random.Random, shape: list[int], content: bytes) -> object:
    values = np.frombuffer(content, '<f4').copy()
    values[rng.randrange(len(values))] = rng.choice((np.nan, np.inf, -np.inf, 3e38))
    return _packed(shape, b'float32', values.tobytes())


def _none(rng: random.Random, shape: list[int], content: bytes) -> object:
    return rng.choice(_NO_TENSORS)


# Each puts something in place of a tensor.
_FLAX_MISTAKES: tuple[Callable[[random.Random, list[int], bytes], object], ...] = (
    _of_another_type, _of_another_type, _of_another_shape, _with_other_content,
    _with_an_odd_number, _none)


def _spoil_flax(rng: random.Random, path: Path) -> str:
    """Changes a tensor of Flax's tree, its name, or the tree."""
    tree: Any = msgpack.unpackb(path.read_bytes())
    part = tree
    name = rng.choice(sorted(part))
    while isinstance(part[name], dict):
        part = part[name]
        name = rng.choice(sorted(part))
    shape, _, content = msgpack.unpackb(part[name].data, raw=True)
    how = rng.choice(('mistake', 'mistake', 'mistake', 'mistake', 'name', 'drop', 'tree', 'deep'))
    if how == 'mistake':
        mistake = rng.choice(_FLAX_MISTAKES)
        part[name] = mistake(rng, shape, content)
        how = f'{in_words(mistake)} {part[name]!r:.300}'
    elif how == 'name':
        part[rng.choice(_NAMES)] = part[name]
    elif how == 'drop':
        del part[name]
    elif how == 'tree':
        tree = rng.choice((*_NO_TENSORS, {'params': tree}, [tree], {'bert': {}}))
    encoded = msgpack.packb(tree)
    if how == 'deep':
        encoded = rng.choice((b'\x81\xa1a', b'\x91')) * 100_000
    path.write_bytes(encoded)
    return f'Flax: {name} {how}'


def _of_flax(rng: random.Random, folder: Path) -> Case:
    """A model of transformers' Flax classes, whose bytes or tensors are wrong."""
    model = folder / 'flax'
    shutil.copytree(_FLAX, model)
    words = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(f'w{number}' for number in range(35)))
    write(model / 'vocab.txt', '\n'.join(words))
    spoil = rng.choice((_spoil_flax, _spoil_flax, _spoil_bytes))
    done = spoil(rng, model / 'flax_model.msgpack')
    return Case(done=done, act=f'convert {model} {folder}/new --to huggingface')


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
    kind = rng.choice(('index', 'tf1', 'safetensors', 'safetensors', 'flax', 'flax', 'orbax',
                       'orbax', 'arrays'))
    if kind == 'flax':
        return _of_flax(rng, folder)
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
