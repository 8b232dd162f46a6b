"""Random numbers as functions of an index: hashes and permutations on numpy arrays.

No generator state: the same (seed, epoch, index) gives the same draw on every host, after every
restart, in any order of evaluation.
"""

import numpy as np

from bert_jax.runtime.hashing import FIRST_MULTIPLIER, GOLDEN_RATIO, SECOND_MULTIPLIER

_U64 = np.uint64
_GOLDEN = 0x9E3779B97F4A7C15
_FEISTEL_ROUNDS = 6


def hash64(*values: int | np.ndarray) -> np.ndarray:
    """A uint64 hash of integers, elementwise over broadcast arrays (SplitMix64's finaliser)."""
    with np.errstate(over='ignore'):
        h = np.asarray(0x243F6A8885A308D3, _U64)
        for value in values:
            if isinstance(value, (int, np.integer)):
                value = np.asarray(int(value) & 0xFFFFFFFFFFFFFFFF, _U64)
            h = (h ^ value.astype(_U64)) * _U64(_GOLDEN)
            h = (h ^ (h >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
            h = (h ^ (h >> _U64(27))) * _U64(0x94D049BB133111EB)
            h = h ^ (h >> _U64(31))
        return h


def uniform(hashes: np.ndarray) -> np.ndarray:
    """Float64 in [0, 1) from uint64 hashes."""
    return (hashes >> _U64(11)).astype(np.float64) * 2.0**-53


def below(hashes: np.ndarray, bound: int | np.ndarray) -> np.ndarray:
    """Int64 in [0, bound), bound below 2**32, from uint64 hashes (bias under 2**-32)."""
    with np.errstate(over='ignore'):
        return (((hashes >> _U64(32)) * np.asarray(bound).astype(_U64)) >> _U64(32)).astype(
            np.int64)


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
    half = max(1, -(-max(size - 1, 1).bit_length() // 2))
    mask = _U64((1 << half) - 1)

    def rounds(x: np.ndarray) -> np.ndarray:
        left, right = x >> _U64(half), x & mask
        for i in range(_FEISTEL_ROUNDS):
            left, right = right, left ^ (hash64(key, i, right) & mask)
        return (left << _U64(half)) | right

    result = rounds(np.asarray(indices).astype(_U64))
    while (outside := result >= _U64(size)).any():
        result[outside] = rounds(result[outside])
    return result.astype(np.int64)


def coin_flips(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Number of heads, int64 [n], in `counts` [n] fair coin flips, from uint64 keys [n]."""
    heads = np.zeros(len(keys), np.int64)
    for word in range(-(-int(np.max(counts, initial=0)) // 64)):
        used = np.clip(np.asarray(counts, np.int64) - 64 * word, 0, 64).astype(_U64)
        bits = hash64(keys, 0xC01, word)
        bits = np.where(used == 64, bits, bits & ((_U64(1) << (used % _U64(64))) - _U64(1)))
        heads += np.bitwise_count(bits)
    return heads
