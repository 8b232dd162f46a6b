"""Random numbers as functions of an index: hashes and permutations on numpy arrays.

No generator state: the same (seed, epoch, index) gives the same draw on every host, after every
restart, in any order of evaluation.
"""

import enum

import numpy as np

from bert_jax.runtime.hashing import FIRST_MULTIPLIER, GOLDEN_RATIO, SECOND_MULTIPLIER

_U64 = np.uint64
_ALL_BITS = 0xFFFFFFFFFFFFFFFF
_START = 0x243F6A8885A308D3  # digits of pi
# The constants of SplitMix64 (Steele et al., 2014).
_GAMMA = 0x9E3779B97F4A7C15
_FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9
_SECOND_MULTIPLIER = 0x94D049BB133111EB
_FEISTEL_ROUNDS = 6
_COIN_FLIPS = 0xC01  # purpose of draws


class Purpose(enum.IntEnum):
    """Purposes of draws for rows and their masks, so that no two decisions share one."""

    POSITION_ORDER = 1
    REPLACE = 2
    RANDOM_PIECE = 3
    REPLACE_SPAN = 4
    LENGTH = 5
    BACKWARDS = 6
    TARGET = 101
    SPLIT = 102
    NEXT = 103
    DOCUMENT = 104
    START = 105
    TRUNCATE = 106
    MASK = 107
    ROW_ORDER = 108


def hash64(*values: int | np.ndarray) -> np.ndarray:
    """A uint64 hash of integers, elementwise over broadcast arrays (SplitMix64's finaliser)."""
    begin = _START
    num_before = 0
    for value in values:  # with Python's own numbers while it is one: a tenth of the time
        if not isinstance(value, (int, np.integer)):
            break
        begin = _mixed(begin ^ int(value) & _ALL_BITS)
        num_before += 1
    h: np.ndarray = np.asarray(begin, _U64)[()]
    with np.errstate(over='ignore'):
        for value in values[num_before:]:
            if isinstance(value, (int, np.integer)):
                value = np.asarray(int(value) & _ALL_BITS, _U64)
            h = (h ^ value.astype(_U64)) * _U64(_GAMMA)
            h = (h ^ (h >> _U64(30))) * _U64(_FIRST_MULTIPLIER)
            h = (h ^ (h >> _U64(27))) * _U64(_SECOND_MULTIPLIER)
            h = h ^ (h >> _U64(31))
        return h


def _mixed(h: int) -> int:
    """What a round of `hash64` makes of one number."""
    h = h * _GAMMA & _ALL_BITS
    h = (h ^ h >> 30) * _FIRST_MULTIPLIER & _ALL_BITS
    h = (h ^ h >> 27) * _SECOND_MULTIPLIER & _ALL_BITS
    return h ^ h >> 31


def uniform(hashes: np.ndarray) -> np.ndarray:
    """Float64 in [0, 1) from uint64 hashes."""
    return (hashes >> _U64(11)).astype(np.float64) * 2.0**-53


def below(hashes: np.ndarray, bound: int | np.ndarray) -> np.ndarray:
    """Int64 in [0, bound), bound below 2**32, from uint64 hashes (bias under 2**-32)."""
    high_bits = hashes >> _U64(32)
    with np.errstate(over='ignore'):
        scaled = high_bits * np.asarray(bound).astype(_U64)
    return (scaled >> _U64(32)).astype(np.int64)


def hash32_rows(row_keys: np.ndarray, width: int) -> np.ndarray:
    """Uint32 hashes [n, width], one per column of each row, from uint64 row keys [n].

    Cheaper than `hash64` on every element: this runs over each token of each batch.
    """
    low = (row_keys & _U64(0xFFFFFFFF)).astype(np.uint32)[:, None]
    high = (row_keys >> _U64(32)).astype(np.uint32)[:, None]
    columns = np.arange(width, dtype=np.uint32) * np.uint32(GOLDEN_RATIO)
    h = columns[None, :] + low
    h ^= h >> np.uint32(16)
    h *= np.uint32(FIRST_MULTIPLIER)
    h ^= h >> np.uint32(15)
    h ^= high
    h *= np.uint32(SECOND_MULTIPLIER)
    h ^= h >> np.uint32(16)
    return h


def permute(indices: np.ndarray, size: int, key: int) -> np.ndarray:
    """Positions (int64) of `indices` (each below `size`) in a pseudo-random permutation.

    A Feistel network over the next even power of two, applied repeatedly until the result is below
    `size` (cycle walking). It needs constant memory however large the epoch, and gives any
    position directly.
    """
    num_bits = max(size - 1, 1).bit_length()
    half = (num_bits + 1) // 2
    mask = _U64((1 << half) - 1)

    def rounds(x: np.ndarray) -> np.ndarray:
        left = x >> _U64(half)
        right = x & mask
        for number in range(_FEISTEL_ROUNDS):
            mixed = left ^ (hash64(key, number, right) & mask)
            left = right
            right = mixed
        return (left << _U64(half)) | right

    result = rounds(np.asarray(indices).astype(_U64))
    outside = result >= _U64(size)
    while outside.any():
        result[outside] = rounds(result[outside])
        outside = result >= _U64(size)
    return result.astype(np.int64)


def coin_flips(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Number of heads, int64 [n], in `counts` [n] fair coin flips, from uint64 keys [n]."""
    heads = np.zeros(len(keys), np.int64)
    most = int(np.max(counts, initial=0))
    for word in range(-(-most // 64)):  # 64 flips at a time
        used = np.clip(np.asarray(counts, np.int64) - 64 * word, 0, 64).astype(_U64)
        bits = hash64(keys, _COIN_FLIPS, word)
        lowest = bits & ((_U64(1) << (used % _U64(64))) - _U64(1))
        bits = np.where(used == 64, bits, lowest)
        heads += np.bitwise_count(bits)
    return heads
