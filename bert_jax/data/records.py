"""Ready-made pre-training examples: the TFRecords that google-research/bert writes.

`create_pretraining_data.py` fixes pairs and masks once. Record offsets are indexed, so that example
i can be read without those before it, as from a token store. S = max_seq_length, P =
max_predictions_per_seq, n = examples read.
"""

import dataclasses
import mmap
import os
import struct
from typing import Self

import numpy as np
import tensorflow as tf

from bert_jax.data.digests import name_of
from bert_jax.data.examples import pretrain_spec
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, find, local_copy, open_whole

# A record: uint64 length, uint32 CRC of the length, the data, uint32 CRC of the data.
_HEADER = struct.Struct('<QI')
_FOOTER_BYTES = 4
_REMEDY = 'copy the file again or write it anew'


@dataclasses.dataclass(frozen=True)
class RecordFiles:
    """Examples in TFRecord files, numbered through all files in the order of `paths`.

    Attributes:
      paths: the files, for each pattern in order of their names.
      contents: the files, mapped into memory.
      records: int64 [N, 3]: for each record, index of its file, byte offset and length of its data.
      max_seq_length: S, of the first record.
      max_predictions_per_seq: P, of the first record.
    """

    paths: list[str]
    contents: list[mmap.mmap]
    records: np.ndarray
    max_seq_length: int
    max_predictions_per_seq: int

    @classmethod
    def open(cls, glob: str, cache_dir: str | os.PathLike[str]) -> Self:
        """Finds all records; their offsets are cached in `cache_dir/records`.

        Args:
          glob: a path, a pattern, or several separated by commas, as Google's program takes them.
          cache_dir: folder of the cache, which goes by the files' paths, sizes and times, or in a
            bucket by their sizes and checksums.

        Raises:
          InputError: a file is missing, empty, gzipped, cut short, damaged, or does not hold
            pre-training examples.
        """
        found = []
        for pattern in map(str.strip, glob.split(',')):
            if not (matches := find(pattern)):
                raise InputError(f"no file matches '{pattern}': name existing TFRecord files")
            found += matches
        paths = [str(local_copy(file.path)) for file in found]  # for random access
        contents = []
        for path in paths:
            if os.stat(path).st_size == 0:
                raise InputError(f'{path} is empty: {_REMEDY}')
            with open(path, 'rb') as raw:
                contents.append(mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ))
        identity = [[file.size, file.checksum
                     or f'{os.path.realpath(file.path)} {os.stat(file.path).st_mtime_ns}']
                    for file in found]
        cached = as_path(cache_dir) / 'records' / f'{name_of(identity)}.npy'
        if cached.exists():
            records = np.load(local_copy(cached))
        else:
            records = np.array([(i, *place) for i, path in enumerate(paths)
                                for place in _scan(path, contents[i])], np.int64)
            cached.parent.mkdir(parents=True, exist_ok=True)
            with open_whole(cached) as file:
                np.save(file, records)
        _, offset, length = records[0].tolist()
        first = _feature_lengths(paths[0], offset, contents[0][offset:offset + length])
        return cls(paths, contents, records, first['input_ids'], first['masked_lm_positions'])

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
          InputError: a record is damaged, or its S or P differs from the first record's.
        """
        records = self.records[indices].tolist()
        data = [self.contents[file][offset:offset + length] for file, offset, length in records]
        shape = self.max_seq_length, self.max_predictions_per_seq
        try:
            with tf.device('/cpu:0'):
                parsed = tf.io.parse_example(tf.constant(data, tf.string), _features(*shape))
        # UnicodeDecodeError: TensorFlow has quoted a damaged record in its message.
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
            for index, (file, offset, _), record in zip(indices, records, data, strict=True):
                lengths = _feature_lengths(self.paths[file], offset, record)
                other = lengths['input_ids'], lengths['masked_lm_positions']
                if other != shape:
                    raise InputError(
                        f'{self.paths[file]}: record {index} at byte {offset} has another '
                        f'max_seq_length and max_predictions_per_seq {other} than the first '
                        f'record {shape}; do not mix files') from None
            raise
        out = {key: value.numpy().astype(np.float32 if value.dtype == tf.float32 else np.int32)
               for key, value in parsed.items()}
        out['sequence_ids'] = out.pop('input_mask')
        return out


def _features(seq_length: int, num_predictions: int) -> dict[str, tf.io.FixedLenFeature]:
    """The features of a record: those of a row, under the names of Google's program."""
    names = {'sequence_ids': 'input_mask'}  # see `model.encoder.Bert`
    return {names.get(name, name): tf.io.FixedLenFeature(
        x.shape, tf.float32 if x.dtype == np.float32 else tf.int64)
        for name, x in pretrain_spec(seq_length, num_predictions).items()
        if name != 'example_weights'}


def _scan(path: str, content: mmap.mmap) -> list[tuple[int, int]]:
    """Offset and length of every record. A damaged length sooner or later points past the end."""
    if content[:2] == b'\x1f\x8b':
        raise InputError(f'{path} is gzipped, and records are read in place: gunzip it')
    records, offset, size = [], 0, len(content)
    while offset < size:
        start = offset + _HEADER.size
        length = _HEADER.unpack_from(content, offset)[0] if start <= size else size
        offset, at = start + length + _FOOTER_BYTES, offset
        if offset > size:
            raise InputError(f'{path} is not a TFRecord file, or cut short or damaged: the record '
                             f'at byte {at} does not end before byte {size}; {_REMEDY}')
        records.append((start, length))
    return records


def _feature_lengths(path: str, offset: int, data: bytes) -> dict[str, int]:
    """Number of values of each feature of one record; refuses a record that lacks a feature."""
    try:
        features = tf.train.Example.FromString(data).features.feature
    except Exception as error:
        raise InputError(f'{path}: the record at byte {offset} is not a tf.train.Example '
                         f'({error}); {_REMEDY}') from None
    lengths = {}
    for key, spec in _features(0, 0).items():
        values = features[key].float_list if spec.dtype == tf.float32 else features[key].int64_list
        lengths[key] = len(values.value)
        if not lengths[key]:
            raise InputError(f"{path}: the record at byte {offset} has no feature '{key}': is this "
                             "a file of Google's create_pretraining_data.py?")
    return lengths
