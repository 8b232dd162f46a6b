"""Checks the shapes in the index of a TensorFlow 1 checkpoint before TensorFlow reads them.

TensorFlow ends the process at a shape that no tensor can have. The index is a table of sorted
strings in LevelDB's format (leveldb's doc/table_format.md): blocks of entries, then a block that
lists these, then a footer. The value of each entry but the first is a `BundleEntryProto`
(tensorflow/core/protobuf/tensor_bundle.proto).
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_FOOTER_BYTES = 48
_MAGIC = struct.pack('<Q', 0xDB4775248B80FB57)
_MOST_DIMS = 254  # of a TensorFlow tensor
_MOST_ELEMENTS = 2**40
_UNCOMPRESSED = 0


class _BlockHandle(NamedTuple):
    """Where a block is in the file, as LevelDB's BlockHandle has it."""

    offset: int  # bytes
    size: int  # bytes


def check_shapes(index: bytes) -> None:
    """Raises ValueError if an index is damaged, or a tensor in it has an impossible shape.

    Args:
      index: the content of the file `PREFIX.index`.
    """
    from tensorflow.core.protobuf import tensor_bundle_pb2

    footer = index[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or not footer.endswith(_MAGIC):
        raise ValueError('the index is cut short, or no index')
    _, at = _read_handle(footer, 0)  # the block of metadata, which is empty
    list_of_blocks, _ = _read_handle(footer, at)
    for _, encoded in _entries(_block(index, list_of_blocks)):
        handle, _ = _read_handle(encoded, 0)
        for name, value in _entries(_block(index, handle)):
            if name:  # the first entry describes the file
                entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
                _check_shape(name, [dim.size for dim in entry.shape.dim])


def _check_shape(name: bytes, shape: Sequence[int]) -> None:
    is_possible = len(shape) <= _MOST_DIMS and all(0 <= size <= _MOST_ELEMENTS for size in shape)
    if not is_possible or math.prod(shape) > _MOST_ELEMENTS:
        shown = ', '.join(map(str, shape[:4]))
        raise ValueError(f"{name.decode(errors='replace'):.100} has an impossible shape, of "
                         f'{len(shape)} dims ({shown}{", ..." if len(shape) > 4 else ""})')


def _block(index: bytes, handle: _BlockHandle) -> bytes:
    """A block's content, without the byte for its compression and the checksum behind it."""
    end = handle.offset + handle.size
    if end + 1 > len(index) or index[end] != _UNCOMPRESSED:
        raise ValueError('the index is damaged, or compressed')
    return index[handle.offset : end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block, where a key is stored without its common start with the last.

    The block ends with the offsets of its restarts, which are not needed here, and their number.
    """
    (num_restarts,) = struct.unpack('<I', block[-4:].rjust(4, b'\xff'))
    end = len(block) - 4 - 4 * num_restarts
    if end < 0:
        raise ValueError('the index is damaged')
    key = b''
    at = 0
    while at < end:
        num_shared, at = _read_varint(block, at)
        num_own, at = _read_varint(block, at)
        num_value, at = _read_varint(block, at)
        begin = at + num_own
        if num_shared > len(key) or begin + num_value > end:
            raise ValueError('the index is damaged')
        key = key[:num_shared] + block[at:begin]
        at = begin + num_value
        yield key, block[begin:at]


def _read_handle(data: bytes, at: int) -> tuple[_BlockHandle, int]:
    """(The block handle at an offset, the offset behind it)."""
    offset, at = _read_varint(data, at)
    size, at = _read_varint(data, at)
    return _BlockHandle(offset, size), at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(The whole number at an offset, 7 bits a byte, lowest first; the offset behind it)."""
    number = 0
    for i, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return number, at + i + 1
    raise ValueError('the index is damaged')
