"""Equal documents, by the hashes of their tokens: all but the first are to be left out."""

from collections.abc import Callable, Iterable

import numpy as np

_HASHES_AT_ONCE = 1 << 26  # of documents: sorting them takes 2 GB


def repeated(hashes: Callable[[], Iterable[np.ndarray]], num_hashes: int) -> np.ndarray:
    """Which of some hashes occur earlier among them, bool [num_hashes].

    They are read once for each pass, if they do not fit in one; a pass takes those with some
    leading bits.

    Args:
      hashes: gives them, as uint64 arrays one after the other; called for each pass.
      num_hashes: of all arrays together.
    """
    bits = 0
    while num_hashes >> bits > _HASHES_AT_ONCE:
        bits += 1
    is_repeated = np.zeros(num_hashes, bool)
    for leading in range(1 << bits):
        chosen: list[np.ndarray] = []
        places: list[np.ndarray] = []
        begin = 0
        for values in hashes():
            if bits:
                place = np.flatnonzero(values >> np.uint64(64 - bits) == leading)
                chosen.append(values[place])
                places.append(place + begin)
            else:
                chosen.append(values)
            begin += len(values)
        found = later_ones(np.concatenate([*chosen, np.zeros(0, np.uint64)]))
        if bits:
            found = np.concatenate(places)[found]
        is_repeated[found] = True
    return is_repeated


def later_ones(hashes: np.ndarray) -> np.ndarray:
    """The places of hashes that occur at an earlier place too, int64."""
    order = np.argsort(hashes)
    ordered = hashes[order]
    is_equal = ordered[1:] == ordered[:-1]  # to the one before
    in_run = np.zeros(len(order), bool)
    in_run[1:] = is_equal
    in_run[:-1] |= is_equal
    places = order[in_run]
    of_places = ordered[in_run]
    by_place = np.lexsort((places, of_places))
    places = places[by_place]
    of_places = of_places[by_place]
    return places[1:][of_places[1:] == of_places[:-1]]
