"""Google's TFRecords of examples: what is read, and what is said of damaged files."""

import gzip

import numpy as np
import pytest

pytest.importorskip('tensorflow')

import tensorflow as tf

from bert_jax.data.records import RecordFiles
from bert_jax.runtime.files import write_whole
from tests.refusals import refused

S, P = 16, 4


def make_example(rng, seq_length=S, predictions=P, without=''):
    """A record of random values, without one of its features."""
    lengths = {
        'input_ids': seq_length, 'input_mask': seq_length, 'segment_ids': seq_length,
        'masked_lm_positions': predictions, 'masked_lm_ids': predictions,
        'masked_lm_weights': predictions, 'next_sentence_labels': 1,
    }
    bounds = {'input_ids': 1000, 'masked_lm_ids': 1000, 'masked_lm_positions': seq_length}
    features = {}
    for name, length in lengths.items():
        values = rng.integers(0, bounds.get(name, 2), length)
        if name == 'masked_lm_weights':
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    features.pop(without, None)
    return tf.train.Example(features=tf.train.Features(feature=features))


def _write(path, examples):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            writer.write(example if isinstance(example, bytes) else example.SerializeToString())


@pytest.fixture
def examples():
    rng = np.random.default_rng(0)
    return [make_example(rng) for _ in range(10)]


@pytest.fixture
def two_files(tmp_path, examples, folder):
    """The examples in two files, whose offsets are cached."""
    for number, some in enumerate((examples[:6], examples[6:])):
        _write(tmp_path / 'written', some)
        write_whole(folder / f'a-{number}.tfrecord', (tmp_path / 'written').read_bytes())
    RecordFiles.open(f'{folder}/a-*.tfrecord', folder / 'cache')
    return RecordFiles.open(f'{folder}/a-*.tfrecord', folder / 'cache')


def test_shapes_and_dtypes(two_files):
    assert len(two_files) == 10
    assert two_files.max_seq_length == S
    assert two_files.max_predictions_per_seq == P
    batch = two_files.read(np.arange(8))
    tokens = ((8, S), np.int32)
    slots = ((8, P), np.int32)
    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == {
        'input_ids': tokens,
        'sequence_ids': tokens,
        'segment_ids': tokens,
        'masked_lm_positions': slots,
        'masked_lm_ids': slots,
        'masked_lm_weights': ((8, P), np.float32),
        'next_sentence_labels': ((8,), np.int32),
    }


def test_reads_any_order_over_files(two_files, examples):
    indices = np.array([9, 0, 1, 2, 8, 5, 6, 2])
    for name, values in two_files.read(indices).items():
        name_there = 'input_mask' if name == 'sequence_ids' else name
        expected = []
        for index in indices:
            feature = examples[index].features.feature[name_there]
            expected.append(feature.float_list.value or feature.int64_list.value)
        np.testing.assert_array_equal(values.reshape(8, -1), expected)


def test_a_file_that_changed_is_scanned_again(tmp_path, examples):
    path = tmp_path / 'a.tfrecord'
    _write(path, examples)
    assert len(RecordFiles.open(str(path), tmp_path)) == 10
    _write(path, examples[:3])
    assert len(RecordFiles.open(f'{path},{path}', tmp_path)) == 6


@pytest.mark.parametrize(('change', 'words'), [
    (lambda data: data[:-3], ['cut short', 'record at byte 0']),
    (lambda data: data + b'\x05\0\0', ['cut short', 'record at byte']),
    (lambda data: gzip.compress(data), ['gzipped', 'gunzip']),
    (lambda data: b'', ['is empty']),
    (lambda data: b'Some text, no records at all in it.\n' * 9, ['not a TFRecord file']),
    (lambda data: data + b'\xff' * 8 + data[8:], ['damaged', 'record at byte']),
    (lambda data: data[:12] + b'\xff' * 40 + data[52:], ['record at byte 12', 'not a tf.train']),
])
def test_damage_is_named(tmp_path, examples, change, words):
    path = tmp_path / 'a.tfrecord'
    _write(path, examples[:1])
    path.write_bytes(change(path.read_bytes()))
    with refused('a.tfrecord', *words):
        RecordFiles.open(str(path), tmp_path)
    assert not list(tmp_path.glob('records/*.tmp'))


def test_odd_records_are_named(tmp_path, examples):
    longer = make_example(np.random.default_rng(1), seq_length=S + 1)
    path = tmp_path / 'a.tfrecord'
    _write(path, [*examples[:2], longer, b'\xff\xff\xff'])
    files = RecordFiles.open(str(path), tmp_path)
    assert len(files.read(np.array([1, 0]))['input_ids']) == 2
    with refused('record 2 at byte', 'max_seq_length', f'({S + 1}, {P})'):
        files.read(np.array([0, 2]))
    with refused('not a tf.train.Example'):
        files.read(np.array([3]))


def test_a_record_that_lacks_a_feature_is_named(tmp_path):
    path = tmp_path / 'a.tfrecord'
    _write(path, [make_example(np.random.default_rng(1), without='segment_ids')])
    with refused("no feature 'segment_ids'"):
        RecordFiles.open(str(path), tmp_path)
