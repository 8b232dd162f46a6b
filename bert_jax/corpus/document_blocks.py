"""Documents in blocks, whose arrays stay in a core's cache while they are worked on."""

from collections.abc import Iterator

import numpy as np

_TOKENS_AT_ONCE = 1 << 15


def document_blocks(token_bounds: np.ndarray) -> Iterator[tuple[int, int]]:
    """Blocks of about 32,768 tokens, or of one document that is longer.

    Args:
      token_bounds: int64 [D + 1]; document d is tokens[token_bounds[d] : token_bounds[d + 1]].

    Yields:
      (first, last (exclusive)) documents of a block.
    """
    num_documents = len(token_bounds) - 1
    first = 0
    while first < num_documents:
        end = token_bounds[first] + _TOKENS_AT_ONCE
        last = int(np.searchsorted(token_bounds, end, 'right')) - 1
        last = max(last, first + 1)
        yield first, last
        first = last
