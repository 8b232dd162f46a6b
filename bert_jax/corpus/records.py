"""Ready-made pre-training examples: the TFRecords that google-research/bert writes.

`create_pretraining_data.py` fixes pairs and masks once. Record offsets are indexed, so that example
i can be read without those before it, as from a token store. S = max_seq_length, P =
max_predictions_per_seq, n = examples read.
"""

import array
import contextlib
import dataclasses
import hashlib
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np
import tensorflow as tf

from bert_jax.corpus.digests import md5_of, name_of, object_digest
from bert_jax.rows.examples import pretrain_spec
from bert_jax.rows.store import disk_faults, locked
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError, first_line, tell
from bert_jax.runtime.files import (
    Found,
    Path,
    as_path,
    check_ends,
    download,
    find,
    in_bucket,
    open_whole,
    temporary_name,
)

# A record: uint64 length, uint32 CRC of the length, the data, uint32 CRC of the data.
_HEADER = struct.Struct('<QI')
_FOOTER_BYTES = 4
_GZIP_BEGINS = b'\x1f\x8b'
_LONGEST_BYTES = 64 << 20  # of a record; one of 512 tokens has some 6,000
_THREADS = 16  # that copy files
_REMEDY = 'copy the file again or write it anew'


@dataclasses.dataclass(frozen=True)
class RecordFiles:
    """Examples in TFRecord files, numbered through all files in the order of `paths`.

    Attributes:
      paths: the files, for each pattern in order of their names.
      places: where each is on this machine's disk: itself, or its copy.
      contents: the files, mapped into memory.
      records: int64 [N, 4]: for each record, index of its file, byte offset and length of its data,
        and their CRC-32 when the file was indexed.
      max_seq_length: S, of the first record.
      max_predictions_per_seq: P, of the first record.
    """

    paths: list[str]
    places: list[str]
    contents: list[mmap.mmap]
    records: np.ndarray
    max_seq_length: int
    max_predictions_per_seq: int

    @classmethod
    def open(cls, glob: str, cache_dir: str | os.PathLike[str]) -> Self:
        """Finds all records; their offsets are cached in `cache_dir/records`.

        Files of a bucket are copied there too, because rows are drawn at random from all of them.
        The processes of a machine copy and index them once, and later starts find them. Nothing
        there is ever deleted.

        Args:
          glob: a path, a pattern, or several separated by commas, as Google's program takes them.
          cache_dir: folder of the cache, on this machine's disk. The cache goes by the files'
            paths, sizes and times, or in a bucket by their sizes and checksums.

        Raises:
          InputError: a file is missing, empty, gzipped, cut short, damaged, or does not hold
            pre-training examples.
        """
        found = _find(glob)
        paths = [file.path for file in found]
        folder = as_path(cache_dir) / 'records'
        cached = folder / f'{name_of(_identity(found))}.npz'
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / '.lock'), disk_faults(folder):
            places = _Copies(folder / 'copies').of(found)
            contents = [_mapped(file, place) for file, place in zip(paths, places, strict=True)]
            records = _kept_index(cached)
            if records is None:
                records = _scan_all(paths, contents)
                with open_whole(cached) as file:
                    np.savez(file, records=records)
        _, offset, length, _ = records[0].tolist()
        lengths = _feature_lengths(paths[0], offset, contents[0][offset : offset + length])
        return cls(
            paths,
            places,
            contents,
            records,
            max_seq_length=lengths['input_ids'],
            max_predictions_per_seq=lengths['masked_lm_positions'])

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
        data = [self._content(*record) for record in records]
        features = _features(self.max_seq_length, self.max_predictions_per_seq)
        try:
            with tf.device('/cpu:0'):
                parsed = tf.io.parse_example(tf.constant(data, tf.string), features)
        # UnicodeDecodeError: TensorFlow has quoted a damaged record in its message.
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
            for index, (file, offset, _, _), record in zip(indices, records, data, strict=True):
                self._check_record(index, self.paths[file], offset, record)
            raise
        batch = {}
        for name, values in parsed.items():
            dtype = np.float32 if values.dtype == tf.float32 else np.int32
            batch[name] = values.numpy().astype(dtype)
        batch['sequence_ids'] = batch.pop('input_mask')
        return batch

    def which_are_in(self, others: Self) -> np.ndarray:
        """[N] bool: which of the records other files hold too, byte for byte.

        Raises:
          InputError: a record is damaged.
        """
        checksums = _length_and_crc(self.records)
        of_others = _length_and_crc(others.records)
        known: set[bytes] = set()
        for record in others.records[np.isin(of_others, checksums)].tolist():
            known.add(_digest(others._content(*record)))
        found = np.isin(checksums, of_others)
        for index in np.flatnonzero(found).tolist():
            found[index] = _digest(self._content(*self.records[index].tolist())) in known
        return found

    def _content(self, file: int, offset: int, length: int, crc: int) -> bytes:
        """The bytes of a record.

        Raises:
          InputError: they are not those that were indexed.
        """
        content = self.contents[file][offset : offset + length]
        if zlib.crc32(content) != crc:
            place = self.places[file]
            remedy = _REMEDY if place == self.paths[file] else 'delete this copy and start again'
            raise InputError(f'{place}: the record at byte {offset} is damaged, it is not what it '
                             f'was when it was indexed: {remedy}')
        return content

    def _check_record(self, index: int, path: str, offset: int, record: bytes) -> None:
        """Refuses a record that is damaged or has other lengths than the first one."""
        lengths = _feature_lengths(path, offset, record)
        found = lengths['input_ids'], lengths['masked_lm_positions']
        expected = self.max_seq_length, self.max_predictions_per_seq
        if found != expected:
            raise InputError(
                f'{path}: record {index} at byte {offset} has another max_seq_length and '
                f'max_predictions_per_seq {found} than the first record {expected}; do not mix '
                'files') from None


def _length_and_crc(records: np.ndarray) -> np.ndarray:
    """A number for each record, which is the same for equal ones: int64."""
    return (records[:, 2] << 32) | records[:, 3]


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _find(glob: str) -> list[Found]:
    """The files that comma-separated patterns match."""
    found = []
    for pattern in glob.split(','):
        matches = find(pattern.strip())
        if not matches:
            raise InputError(
                f"no file matches '{pattern.strip()}': name existing TFRecord files")
        found += matches
    return found


@dataclasses.dataclass(frozen=True)
class _Copies:
    """Copies of objects in buckets on this machine's disk, named by their content.

    Attributes:
      folder: holds them; it need not exist.
    """

    folder: Path

    def of(self, found: Sequence[Found]) -> list[str]:
        """Where each file can be mapped: itself, or its copy, which is made if it is missing."""
        places = [self._place(file) for file in found]
        missing: dict[str, Found] = {}
        for file, place in zip(found, places, strict=True):
            if not os.path.exists(place):
                missing[place] = file
        if missing:
            self._copy(missing)
        return places

    def _place(self, file: Found) -> str:
        if not in_bucket(file.path):
            return file.path
        return os.fspath(self.folder / f'{name_of([file.size, file.checksum])}.tfrecord')

    def _copy(self, missing: dict[str, Found]) -> None:
        """Copies files, several at once; `missing`: by the path of the copy."""
        size = sum(file.size for file in missing.values())
        hosts.say(f'records: copying {len(missing)} file(s), {size / 1e6:,.0f} MB, to '
                  f'{self.folder}; later starts find them there')
        self.folder.mkdir(exist_ok=True)
        for left in self.folder.glob('.*.tmp'):  # by a killed process
            left.unlink()
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(_copy_checked, missing.values(), missing))


def _copy_checked(file: Found, place: str) -> None:
    """Copies an object; an InputError if what arrives is not what the listing describes."""
    beside = temporary_name(as_path(place))
    try:
        with contextlib.suppress(FileNotFoundError):
            download(file.path, beside)
        if not _is_copy(beside, file):
            raise InputError(
                f'{file.path} was changed or damaged while it was copied: start again')
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)


def _is_copy(path: Path, file: Found) -> bool:
    """Whether a file holds what the listing of an object says: the size, and the MD5 if it has one.

    (An object that was uploaded in pieces has none.)
    """
    if not path.exists() or os.stat(path).st_size != file.size:
        return False
    expected = object_digest(file)
    return expected.startswith('crc32c') or md5_of(path) == expected


def _mapped(path: str, place: str) -> mmap.mmap:
    """A file that is at `place` on this disk, mapped into memory."""
    if os.stat(place).st_size == 0:
        raise InputError(f'{path} is empty: {_REMEDY}')
    with open(place, 'rb') as raw:
        return mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)


def _identity(found: Sequence[Found]) -> list[list[int | str]]:
    """Values that change with the files' contents."""
    identity: list[list[int | str]] = []
    for file in found:
        content = file.checksum
        if not content:
            modified = os.stat(file.path).st_mtime_ns
            content = f'{os.path.realpath(file.path)} {modified}'
        identity.append([file.size, content])
    return identity


def _features(seq_length: int, num_predictions: int) -> dict[str, tf.io.FixedLenFeature]:
    """The features of a record: those of a row, under the names of Google's program."""
    spec = dict(pretrain_spec(seq_length, num_predictions))
    del spec['example_weights']
    features = {}
    for name, feature in spec.items():
        dtype = tf.float32 if feature.dtype == np.float32 else tf.int64
        name_there = 'input_mask' if name == 'sequence_ids' else name  # see `model.encoder.Bert`
        features[name_there] = tf.io.FixedLenFeature(feature.shape, dtype)
    return features


def _scan_all(paths: Sequence[str], contents: Sequence[mmap.mmap]) -> np.ndarray:
    """int64 [N, 4]: see `RecordFiles.records`."""
    records = array.array('q')
    for file, (path, content) in enumerate(zip(paths, contents, strict=True)):
        is_first = True
        for offset, length in _scan(path, content):
            data = content[offset : offset + length]
            if is_first:  # before all of a file that holds something else is looked at
                _feature_lengths(path, offset, data)
                is_first = False
            records.extend((file, offset, length, zlib.crc32(data)))
    return np.frombuffer(records, np.int64).reshape(-1, 4)


def _kept_index(cached: Path) -> np.ndarray | None:
    """The records of an earlier start; None if there are none, or their file is damaged."""
    if not cached.exists():
        return None
    try:
        check_ends(os.fspath(cached))
        with np.load(cached) as archive:  # which has checksums
            records: np.ndarray = archive['records']
        return records
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        tell(f'note: {cached} is damaged ({first_line(error)}): the records are indexed again')
        return None


def _scan(path: str, content: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Offset and length of every record. A damaged length sooner or later points past the end."""
    if content[:2] == _GZIP_BEGINS:
        raise InputError(f'{path} is gzipped, and records are read in place: gunzip it')
    size = len(content)
    begin = 0
    while begin < size:
        start = begin + _HEADER.size
        length = size
        if start <= size:
            length, _ = _HEADER.unpack_from(content, begin)
        end = start + length + _FOOTER_BYTES
        if end > size:
            raise InputError(f'{path} is not a TFRecord file, or cut short or damaged: the record '
                             f'at byte {begin} does not end before byte {size}; {_REMEDY}')
        if not 0 < length <= _LONGEST_BYTES:
            raise InputError(f'{path} is not a TFRecord file of examples: the record at byte '
                             f'{begin} has {length:,} bytes; {_REMEDY}')
        yield start, length
        begin = end


def _feature_lengths(path: str, offset: int, data: bytes) -> dict[str, int]:
    """Number of values of each feature of one record; refuses a record that lacks a feature."""
    try:
        features = tf.train.Example.FromString(data).features.feature
    except Exception as error:
        raise InputError(f'{path}: the record at byte {offset} is not a tf.train.Example '
                         f'({error}); {_REMEDY}') from None
    lengths = {}
    for name, spec in _features(0, 0).items():
        feature = features[name]
        values = feature.float_list if spec.dtype == tf.float32 else feature.int64_list
        lengths[name] = len(values.value)
        if not lengths[name]:
            raise InputError(f"{path}: the record at byte {offset} has no feature '{name}': is "
                             "this a file of Google's create_pretraining_data.py?")
    return lengths
