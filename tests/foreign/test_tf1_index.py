"""Shapes in the index of a TF1 checkpoint that would end the process are refused before."""

import random

import pytest

pytest.importorskip('tensorflow')

import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

from bert_jax.foreign.tf1_index import _entries, check_shapes

NAMES = ['bert/dense/bias', 'bert/dense/kernel', 'bert/dense/kernel/adam_m', 'global_step']


@pytest.fixture(scope='module')
def index(tmp_path_factory):
    """An index that TensorFlow has written, of many variables so that it has several blocks."""
    prefix = str(tmp_path_factory.mktemp('tf1') / 'model.ckpt')
    names = NAMES + [f'bert/{i}/{"long" * 20}' for i in range(100)]
    tensors = [tf.zeros([2, 3]) for _ in names]
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=sorted(names), shape_and_slices=[''] * len(names),
        tensors=tensors)
    with open(f'{prefix}.index', 'rb') as file:
        return file.read()


def shape_of(*dims):
    """The bytes of an entry's shape."""
    entry = tensor_bundle_pb2.BundleEntryProto()
    for size in dims:
        entry.shape.dim.add(size=size)
    return entry.SerializeToString()


def test_what_tensorflow_writes_is_read(index):
    check_shapes(index)


def with_dims(index, first):
    """The index with another first dim of all tensors; checksums are not looked at here."""
    changed = index.replace(b'\x12\x02\x08\x02', b'\x12\x02\x08' + bytes([first]))
    assert changed != index
    return changed


def test_an_empty_dim_is_no_fault(index):
    check_shapes(with_dims(index, 0))


@pytest.mark.parametrize('dims', [(-5,), (-1, 3), (2**62,), (2**41,), (2**30, 2**30), (1,) * 300])
def test_impossible_shapes_are_refused(dims):
    table = written([(b'', b''), (b'bert/dense/kernel/adam_m', shape_of(*dims))])
    with pytest.raises(ValueError, match=f'adam_m has an impossible shape, of {len(dims)} dims'):
        check_shapes(table)


def test_possible_shapes_are_accepted():
    check_shapes(written([(b'', b''), (b'a', shape_of()), (b'b', shape_of(1024, 30522))]))


def test_a_damaged_index_is_refused(index):
    rng = random.Random(0)
    for _ in range(300):
        data = bytearray(index)
        for _ in range(3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        for damaged in (bytes(data), bytes(data[: rng.randrange(len(data))])):
            try:
                check_shapes(damaged)
            except Exception as error:  # also of protobuf
                assert str(error)


def number(value):
    """A number as the index holds it, below 2**14."""
    return bytes([value & 127 | 128, value >> 7])


def written(entries):
    """A table of one block of entries."""
    block = b''
    for key, value in entries:
        block += number(0) + number(len(key)) + number(len(value)) + key + value
    block += bytes(4) + b'\x01\0\0\0'
    assert dict(_entries(block)) == dict(entries)
    handle = number(0) + number(len(block))
    table = number(0) + number(1) + number(len(handle)) + b'z' + handle
    table += bytes(4) + b'\x01\0\0\0'
    content = block + bytes(5) + table + bytes(5)
    footer = number(0) + number(0) + number(len(block) + 5) + number(len(table))
    return content + footer.ljust(40, b'\0') + bytes.fromhex('57fb808b247547db')
