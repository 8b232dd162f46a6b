"""Hashes: of 32-bit integers, in NumPy or JAX, and digests of bytes.

Draws of data, dropout and checksums share that of integers.
"""

import hashlib
from typing import Any

import numpy as np

# 2**32 divided by the golden ratio: multiples of it are spread evenly over all integers.
GOLDEN_RATIO = 0x9E3779B9
# Odd multipliers found by a search for low bias (Wellons, hash-prospector).
FIRST_MULTIPLIER = 0x7FEB352D
SECOND_MULTIPLIER = 0x846CA68B


def mix(x: Any) -> Any:
    """A bijection of uint32 that spreads every input bit."""
    x = (x ^ (x >> 16)) * np.uint32(FIRST_MULTIPLIER)
    x = (x ^ (x >> 15)) * np.uint32(SECOND_MULTIPLIER)
    return x ^ (x >> 16)


def digest(content: bytes) -> str:
    """The first 32 hexadecimal digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:32]
