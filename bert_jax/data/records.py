"""Ready-made pre-training examples: the TFRecords that google-research/bert writes.

`create_pretraining_data.py` fixes pairs and masks once. Such files are indexed by record offset, so
that example i is read without those before it, as from a token store. S = max_seq_length, P =
max_predictions_per_seq, n = examples read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Found, as_path, find, local_copy, open_whole

# A record: uint64 length, uint32 CRC of the length, the data, uint32 CRC of the data.
_HEADER = struct.Struct('<QI')
_FOOTER_BYTES = 4
_SCAN_BYTES = 4 << 20
_REMEDY = 'copy the file again or write it anew'
# The second when TensorFlow quotes a damaged record in its message.
_PARSE_ERRORS = (tf.errors.InvalidArgumentError, UnicodeDecodeError)


@dataclasses.dataclass(frozen=True)
class RecordFiles:
    """Examples in TFRecord files, by index over all files in order of their names.

    Attributes:
      paths: the files.
      records: int64 [N, 3], of each record the file's index, the data's offset and its length.
      max_seq_length: S, of the first record.
      max_predictions_per_seq: P, of the first record.
    """

    paths: tuple[str, ...]
    records: np.ndarray
    max_seq_length: int
    max_predictions_per_seq: int

    @classmethod
    def open(cls, glob: str, cache_dir: str | os.PathLike[str]) -> RecordFiles:
        """Finds all records, once: the offsets are kept in `cache_dir/records`.

        Args:
          glob: a path, a pattern, or several with commas between, as Google's program takes them.
          cache_dir: where offsets are cached by the files' names, sizes and times, or checksums.

        Raises:
          InputError: no such file, gzipped, cut short, damaged, or not pre-training examples.
        """
        result = _matching(glob)
        paths = [str(local_copy(file.path)) for file in result]  # records are read in any order
        identity = [[file.size, file.checksum or _place_and_time(file.path)] for file in result]
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
        cached = as_path(cache_dir) / 'records' / f'{name}.npy'
        if cached.exists():
            records = np.load(local_copy(cached))
        else:
            records = np.concatenate([_scan(i, path) for i, path in enumerate(paths)])
            cached.parent.mkdir(parents=True, exist_ok=True)
            with open_whole(cached) as file:
                np.save(file, records)
        lengths = _feature_lengths(paths[0], *map(int, records[0, 1:]))
        return cls(tuple(paths), records, lengths['input_ids'], lengths['masked_lm_positions'])

    def __len__(self) -> int:
        return len(self.records)

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The examples at some indices, in their order.

        Args:
          indices: integers [n], from 0 to len - 1.

        Returns:
          `input_ids`, `sequence_ids`, `segment_ids` int32 [n, S]; `masked_lm_positions`,
          `masked_lm_ids` int32 [n, P]; `masked_lm_weights` float32 [n, P];
          `next_sentence_labels` int32 [n].

        Raises:
          InputError: a record that is damaged or of other lengths than the first.
        """
        indices = np.asarray(indices, np.int64)
        data = self._bytes(indices)
        spec = _parse_spec(self.max_seq_length, self.max_predictions_per_seq)
        try:
            parsed = _parse(tf.constant(data, tf.string), spec)
        except _PARSE_ERRORS:
            raise InputError(self._find_fault(indices, data, spec)) from None
        out = {
            key: value.numpy().astype(np.float32 if key == 'masked_lm_weights' else np.int32)
            for key, value in parsed.items()
        }
        out['sequence_ids'] = out.pop('input_mask')  # see `model.encoder.Bert`
        out['next_sentence_labels'] = out['next_sentence_labels'].reshape(len(indices))
        return out

    def _bytes(self, indices: np.ndarray) -> list[bytes]:
        """Each record's data. Records that stand next to each other are read at once."""
        records = self.records[indices]
        order = np.lexsort((records[:, 1], records[:, 0]))
        records = records[order]
        files, starts, lengths = records.T
        ends = starts + lengths
        gap = _HEADER.size + _FOOTER_BYTES
        follows = (files[1:] == files[:-1]) & (starts[1:] == ends[:-1] + gap)
        bounds = np.concatenate([[0], np.flatnonzero(~follows) + 1, [len(indices)]])
        data: list[bytes] = [b''] * len(indices)
        descriptors: dict[int, int] = {}
        try:
            for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                if first == last:
                    continue  # no indices at all
                file, start = int(files[first]), int(starts[first])
                if file not in descriptors:
                    descriptors[file] = os.open(self.paths[file], os.O_RDONLY)
                run = os.pread(descriptors[file], int(ends[last - 1]) - start, start)
                for i in range(first, last):
                    at = int(starts[i]) - start
                    data[order[i]] = run[at:at + int(lengths[i])]
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)
        return data

    def _find_fault(self, indices: np.ndarray, data: Sequence[bytes], spec: dict) -> str:
        """A message for a batch that cannot be parsed: its first bad record."""
        for index, record in zip(indices.tolist(), data, strict=True):
            try:
                _parse(tf.constant([record]), spec)
            except _PARSE_ERRORS:
                file, offset, length = self.records[index].tolist()
                result = _feature_lengths(self.paths[file], offset, length)
                return (
                    f'{self.paths[file]}: record {index} at byte {offset} has max_seq_length '
                    f"{result['input_ids']} and max_predictions_per_seq "
                    f"{result['masked_lm_positions']} where the first record has "
                    f'{self.max_seq_length} and {self.max_predictions_per_seq}; do not mix files '
                    'of several settings'
                )
        raise AssertionError('every record parses alone')


def _parse_spec(seq_length: int, num_predictions: int) -> dict[str, tf.io.FixedLenFeature]:
    s, p = [seq_length], [num_predictions]
    return {
        'input_ids': tf.io.FixedLenFeature(s, tf.int64),
        'input_mask': tf.io.FixedLenFeature(s, tf.int64),
        'segment_ids': tf.io.FixedLenFeature(s, tf.int64),
        'masked_lm_positions': tf.io.FixedLenFeature(p, tf.int64),
        'masked_lm_ids': tf.io.FixedLenFeature(p, tf.int64),
        'masked_lm_weights': tf.io.FixedLenFeature(p, tf.float32),
        'next_sentence_labels': tf.io.FixedLenFeature([1], tf.int64),
    }


def _parse(serialized: tf.Tensor, spec: dict) -> dict[str, tf.Tensor]:
    with tf.device('/cpu:0'):
        return tf.io.parse_example(serialized, spec)


def _matching(glob: str) -> list[Found]:
    files: list[Found] = []
    for pattern in map(str.strip, glob.split(',')):
        result = find(pattern)
        if not result:
            raise InputError(f"no file matches '{pattern}': name existing TFRecord files")
        files += result
    return files


def _place_and_time(path: str) -> str:
    return f'{os.path.realpath(path)} {os.stat(path).st_mtime_ns}'


def _scan(file_index: int, path: str) -> np.ndarray:
    """[N, 3] int64: file, offset and length of every record, the framing checked throughout."""
    size = os.stat(path).st_size
    if size == 0:
        raise InputError(f'{path} is empty: {_REMEDY}')
    rows: list[tuple[int, int]] = []
    headers: list[bytes] = []
    with open(path, 'rb', buffering=_SCAN_BYTES) as file:
        offset = 0
        while offset < size:
            header = file.read(_HEADER.size)
            if offset == 0 and header[:2] == b'\x1f\x8b':
                raise InputError(f'{path} is gzipped, and records are read in place: gunzip it')
            length = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else size
            start = offset + _HEADER.size
            end = start + length + _FOOTER_BYTES
            if end > size:
                if len(header) == _HEADER.size and not _sound([header])[0]:
                    raise InputError(_damaged(path, offset))
                raise InputError(
                    f'{path} is cut short: the record at byte {offset} does not end before byte '
                    f'{size}, the end of the file; {_REMEDY}'
                )
            rows.append((start, length))
            headers.append(header)
            file.seek(end)
            offset = end
    sound = _sound(headers)
    if not sound.all():
        raise InputError(_damaged(path, rows[int(np.argmin(sound))][0] - _HEADER.size))
    offsets_lengths = np.array(rows, np.int64)
    return np.insert(offsets_lengths, 0, file_index, axis=1)


def _damaged(path: str, offset: int) -> str:
    if offset == 0:
        return f'{path} is not a TFRecord file: the length at byte 0 fails its checksum'
    return f'{path} is damaged: the record length at byte {offset} fails its checksum; {_REMEDY}'


def _crc_table() -> np.ndarray:
    """uint32 [256]: CRC-32C of each byte, polynomial 0x1EDC6F41 reflected (RFC 3720)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table.astype(np.uint32)


def _sound(headers: Sequence[bytes]) -> np.ndarray:
    """bool [n]: whether each header's length agrees with its masked CRC-32C."""
    rows = np.frombuffer(b''.join(headers), np.uint8).reshape(-1, _HEADER.size)
    table = _crc_table()
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in range(8):
        crc = table[(crc ^ rows[:, column]) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    masked = ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)
    return masked == rows[:, 8:].copy().view('<u4')[:, 0]


def _feature_lengths(path: str, offset: int, length: int) -> dict[str, int]:
    """Number of values of each feature of one record; all that are needed are there."""
    with open(path, 'rb') as file:
        data = os.pread(file.fileno(), length, offset)
    try:
        features = tf.train.Example.FromString(data).features.feature
    except Exception as error:
        raise InputError(
            f'{path}: the record at byte {offset} is not a tf.train.Example ({error}); {_REMEDY}'
        ) from None
    lengths = {}
    for key, spec in _parse_spec(0, 0).items():
        values = features[key].float_list if spec.dtype == tf.float32 else features[key].int64_list
        lengths[key] = len(values.value)
        if not lengths[key]:
            raise InputError(
                f"{path}: the record at byte {offset} has no feature '{key}' of {spec.dtype.name}: "
                "is this a file of Google's create_pretraining_data.py?"
            )
    return lengths
