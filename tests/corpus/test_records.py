"""Google's TFRecords of examples: what is read, and what is said of damaged files."""

import gzip
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip('tensorflow')

import tensorflow as tf

from bert_jax.corpus import records
from bert_jax.corpus.records import RecordFiles
from bert_jax.runtime.files import as_path, download, write_whole
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
    RecordFiles.open(f'{folder}/a-*.tfrecord', tmp_path / 'cache')
    return RecordFiles.open(f'{folder}/a-*.tfrecord', tmp_path / 'cache')


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


@pytest.fixture
def in_bucket(tmp_path, examples, bucket):
    """A pattern of three files in a bucket, two of which are equal."""
    folder = as_path(bucket) / 'folder'
    for number, some in enumerate((examples[:6], examples[6:], examples[:6])):
        _write(tmp_path / 'written', some)
        write_whole(folder / f'a-{number}.tfrecord', (tmp_path / 'written').read_bytes())
    return f'{folder}/a-*.tfrecord'


def num_downloads(bucket_server, url):
    return sum(asked.startswith('GET /download/') for asked in bucket_server.take_requests(url))


def test_files_of_a_bucket_are_copied_once_a_machine(in_bucket, tmp_path, bucket_server, capsys):
    num_downloads(bucket_server, in_bucket)
    with ThreadPoolExecutor(4) as processes:
        opened = list(processes.map(lambda _: RecordFiles.open(in_bucket, tmp_path), range(4)))
    assert num_downloads(bucket_server, in_bucket) == 2
    size = sum(path.stat().st_size for path in tmp_path.glob('records/copies/*.tfrecord'))
    said = capsys.readouterr().out
    assert said.count('copying') == said.count(f'copying 2 file(s), {size / 1e6:,.0f} MB') == 1

    again = RecordFiles.open(in_bucket, tmp_path)
    assert num_downloads(bucket_server, in_bucket) == 0
    assert not capsys.readouterr().out
    for files in (*opened, again):
        assert len(files) == 16
        ids = files.read(np.array([0, 9, 10]))['input_ids']
        np.testing.assert_array_equal(ids[0], ids[2])


def test_a_file_of_a_bucket_that_changed_is_copied_again(in_bucket, tmp_path, examples):
    assert len(RecordFiles.open(in_bucket, tmp_path)) == 16
    _write(tmp_path / 'written', examples[:1])
    write_whole(in_bucket.replace('*', '1'), (tmp_path / 'written').read_bytes())
    assert len(RecordFiles.open(in_bucket, tmp_path)) == 13


def test_an_interrupted_copy_is_resumed(in_bucket, tmp_path, bucket_server, monkeypatch):
    def killed_in_the_second(path, local):
        if '-1.' in str(path):
            raise KeyboardInterrupt
        download(path, local)

    monkeypatch.setattr(records, 'download', killed_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        RecordFiles.open(in_bucket, tmp_path)
    copies = tmp_path / 'records' / 'copies'
    (copies / '.left.tmp').write_bytes(b'by a kill')
    monkeypatch.undo()
    num_downloads(bucket_server, in_bucket)
    assert len(RecordFiles.open(in_bucket, tmp_path)) == 16
    assert num_downloads(bucket_server, in_bucket) == 1
    assert len(list(copies.iterdir())) == 2


@pytest.mark.parametrize('arrives', [
    pytest.param(lambda content: content[:-1], id='cut short'),
    pytest.param(lambda content: content[:-1] + bytes([content[-1] ^ 1]), id='other bytes'),
    pytest.param(None, id='nothing'),
])
def test_what_arrives_of_a_bucket_is_checked(in_bucket, tmp_path, monkeypatch, arrives):
    def damaging(path, local):
        if arrives is None:
            raise FileNotFoundError(path)
        download(path, local)
        local.write_bytes(arrives(local.read_bytes()))

    monkeypatch.setattr(records, 'download', damaging)
    with refused('/folder/a-', 'changed or damaged while it was copied'):
        RecordFiles.open(in_bucket, tmp_path)
    assert not list(tmp_path.glob('records/copies/*'))


def test_damage_in_a_bucket_is_named_by_the_object(in_bucket, tmp_path):
    write_whole(in_bucket.replace('*', '1'), b'no records')
    with refused('gs://', '/folder/a-1.tfrecord is not a TFRecord file'):
        RecordFiles.open(in_bucket, tmp_path)


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


@pytest.mark.parametrize(('size', 'header', 'words'), [
    (3 << 30, b'', 'the record at byte 0 has 0 bytes'),
    (1 << 30, (1 << 29).to_bytes(8, 'little'), 'the record at byte 0 has 536,870,912 bytes'),
    (1 << 30, (1).to_bytes(8, 'little'), 'the record at byte 12 is not a tf.train.Example'),
], ids=['zeros', 'one large record', 'tiny records'])
def test_a_large_file_of_something_else_is_refused_at_its_first_record(
    size, header, words, tmp_path
):
    with (tmp_path / 'x.tfrecord').open('wb') as file:
        file.write(header + bytes(4) + b'\xff' if header else b'')
        file.truncate(size)  # without taking room on the disk
    with refused(words):
        RecordFiles.open(f'{tmp_path}/x.tfrecord', tmp_path / 'cache')


def test_a_record_that_lacks_a_feature_is_named(tmp_path):
    path = tmp_path / 'a.tfrecord'
    _write(path, [make_example(np.random.default_rng(1), without='segment_ids')])
    with refused("no feature 'segment_ids'"):
        RecordFiles.open(str(path), tmp_path)


def flipped(path, at):
    """Changes a byte of a file, whose size and time stay, as a failing disk does."""
    before = os.stat(path)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_record_that_rots_after_it_was_indexed_is_refused(tmp_path, examples):
    file = tmp_path / 'a.tfrecord'
    _write(file, examples)
    RecordFiles.open(str(file), tmp_path / 'cache')
    flipped(file, -20)
    again = RecordFiles.open(str(file), tmp_path / 'cache')
    again.read(np.arange(9))
    with refused(file, 'the record at byte', 'is damaged', 'copy the file again'):
        again.read(np.array([9]))


def test_a_damaged_index_is_made_again(tmp_path, examples, capsys):
    file = tmp_path / 'a.tfrecord'
    _write(file, examples)
    first = RecordFiles.open(str(file), tmp_path / 'cache')
    (index,) = (tmp_path / 'cache' / 'records').glob('*.npz')
    for damage in ('flipped', 'emptied'):
        if damage == 'flipped':
            flipped(index, index.stat().st_size // 2)
        else:
            index.write_bytes(b'')
        again = RecordFiles.open(str(file), tmp_path / 'cache')
        np.testing.assert_array_equal(again.records, first.records)
        assert f'note: {index} is damaged' in capsys.readouterr().err
