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
    features = {}
    for key, below, size in (
        ('input_ids', 1000, seq_length), ('input_mask', 2, seq_length),
        ('segment_ids', 2, seq_length), ('masked_lm_positions', seq_length, predictions),
        ('masked_lm_ids', 1000, predictions), ('masked_lm_weights', 2, predictions),
        ('next_sentence_labels', 2, 1),
    ):
        values = {'value': rng.integers(0, below, size)}
        features[key] = (
            tf.train.Feature(float_list=tf.train.FloatList(**values)) if 'weights' in key else
            tf.train.Feature(int64_list=tf.train.Int64List(**values)))
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


def test_reads_any_order_over_files(tmp_path, examples, folder):
    for number, some in enumerate((examples[:6], examples[6:])):
        _write(tmp_path / 'written', some)
        write_whole(folder / f'a-{number}.tfrecord', (tmp_path / 'written').read_bytes())
    RecordFiles.open(f'{folder}/a-*.tfrecord', folder / 'cache')
    files = RecordFiles.open(f'{folder}/a-*.tfrecord', folder / 'cache')  # with the cached offsets
    assert (len(files), files.max_seq_length, files.max_predictions_per_seq) == (10, S, P)
    indices = np.array([9, 0, 1, 2, 8, 5, 6, 2])
    batch = files.read(indices)
    for key, values in batch.items():
        assert values.dtype == (np.float32 if key == 'masked_lm_weights' else np.int32)
        name = 'input_mask' if key == 'sequence_ids' else key
        features = [examples[index].features.feature[name] for index in indices]
        np.testing.assert_array_equal(values.reshape(8, -1), [
            feature.float_list.value or feature.int64_list.value for feature in features])
    assert {name: x.shape[1:] for name, x in batch.items()} == {
        **dict.fromkeys(('input_ids', 'sequence_ids', 'segment_ids'), (S,)),
        **dict.fromkeys(('masked_lm_positions', 'masked_lm_ids', 'masked_lm_weights'), (P,)),
        'next_sentence_labels': ()}


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
    rng = np.random.default_rng(1)
    path = tmp_path / 'a.tfrecord'
    _write(path, [*examples[:2], make_example(rng, seq_length=S + 1), b'\xff\xff\xff'])
    files = RecordFiles.open(str(path), tmp_path)
    assert len(files.read(np.array([1, 0]))['input_ids']) == 2
    with refused('record 2 at byte', 'max_seq_length', f'({S + 1}, {P})'):
        files.read(np.array([0, 2]))
    with refused('not a tf.train.Example'):
        files.read(np.array([3]))
    _write(path, [make_example(rng, without='segment_ids')])
    with refused("no feature 'segment_ids'"):
        RecordFiles.open(str(path), tmp_path)
