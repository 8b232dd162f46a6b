"""A 32-bit integer hash, in NumPy or JAX: draws of data, dropout and checksums share it."""

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
