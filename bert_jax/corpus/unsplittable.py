"""Lines of a corpus that its tokenizer cannot split: left out and counted."""

from collections.abc import Sequence

import numpy as np

from bert_jax.runtime.errors import tell
from bert_jax.text.library import Unsplittable
from bert_jax.text.tokenizer import Tokenizer, Tokens


class LeavingOut:
    """Gives lines their ids; those that the tokenizer cannot split have none."""

    def __init__(self, tokenizer: Tokenizer):
        """Begins to count."""
        self._tokenizer = tokenizer
        self._reasons: list[str] = []  # one for each line; threads append to it

    def encode_joined(self, lines: Sequence[str]) -> Tokens:
        """The ids of lines, as of the tokenizer's method."""
        try:
            return self._tokenizer.encode_joined(lines)
        except Unsplittable as error:
            self._reasons += [str(error)] * len(error.places)
            is_known = np.ones(len(lines), np.bool_)
            is_known[list(error.places)] = False
        known = [lines[i] for i in np.flatnonzero(is_known).tolist()]
        ids, counts_of_known = self.encode_joined(known)
        counts = np.zeros(len(lines), np.int64)
        counts[is_known] = counts_of_known
        return ids, counts

    def tell(self) -> None:
        """Says how many lines were left out, if any were."""
        if self._reasons:
            tell(f'warning: {len(self._reasons):,} lines are left out ({self._reasons[0]})')
