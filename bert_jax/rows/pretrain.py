"""Pre-training examples of a text that is shuffled whole, as functions of (seed, epoch, index).

    n: rows
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from bert_jax.rows.examples import grouped, pretrain_spec, rows_by_key
from bert_jax.rows.planned_pairs import PairText, PlannedPairs
from bert_jax.rows.recipe import RowOptions, RowStatistics
from bert_jax.rows.stateless import Purpose, hash64, permute
from bert_jax.rows.store import LoadedBlocks
from bert_jax.text.vocab import Vocab

_FROZEN_ORDER = 0xF20  # key of a permutation


class WholeTextRows:
    """The rows of one set of documents (training or held-out) in one phase.

    Chunks, pairs and masks are drawn anew in every epoch, or in each of `num_maskings` epochs that
    then repeat. With `split_long_sentences`, a sentence longer than half of the room, of which
    every row would show the middle, counts as several (see `cut_long_sentences`).
    """

    lanes = 1

    def __init__(
        self, window: LoadedBlocks, documents: np.ndarray, recipe: RowOptions, vocab: Vocab,
        seed: int, name: str = 'the corpus',
    ):
        """Plans the first epoch, which fixes `num_examples`.

        Args:
          window: the text.
          documents: [k] int64 indices of the documents to use, ascending.
          recipe: how rows are made.
          vocab: that the text was tokenized with.
          seed: of all draws.
          name: of the source, for messages.

        Raises:
          InputError: too few documents for next sentence prediction, or none.
        """
        self.spec = pretrain_spec(recipe.max_seq_length, recipe.max_predictions_per_seq)
        self._text = PairText(window, documents, recipe, vocab, seed, name)
        self._recipe = recipe
        self._seed = seed
        self._plans: dict[int, Future[PlannedPairs]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(2)
        self.num_examples = len(self._plan(0).result())
        self.num_frozen = self.num_examples

    def rows(
        self, row_ids: np.ndarray, frozen: bool = False, width: int | None = None
    ) -> dict[str, np.ndarray]:
        """The rows of these ids, in shuffled order, epoch after epoch.

        Args:
          row_ids: [n] int64; id = epoch * num_examples + place in the epoch.
          frozen: take the rows of the first epoch, in a fixed shuffled order, so that evaluation
            sees the same pairs and masks every time, and its first k rows are a fair sample.
            (Unshuffled, a plan starts with the beginnings of documents.)
          width: number of columns, at least the tokens of the longest row; None: all. Rows are the
            same whatever padding is left out.

        Returns:
          Features of `spec`, [n, ...]; with a `width`, of so many columns and at most so many
          slots.
        """
        row_ids = np.asarray(row_ids, np.int64)
        columns = width or self._recipe.max_seq_length
        if frozen:
            order = permute(row_ids, self.num_frozen, _FROZEN_ORDER)
            return self._plan(0).result().rows(order, columns)
        epochs, places = np.divmod(row_ids, self.num_examples)

        def make(epoch: int, here: np.ndarray) -> dict[str, np.ndarray]:
            pairs, index = self._pairs_at(epoch, places[here])
            return pairs.rows(index, columns)

        return rows_by_key(epochs, make)

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens [n], most prediction slots used [n]) of these rows."""
        lengths = np.empty(len(row_ids), np.int64)
        slots = np.empty(len(row_ids), np.int64)
        epochs, places = np.divmod(np.asarray(row_ids, np.int64), self.num_examples)
        for epoch, here in grouped(epochs):
            pairs, index = self._pairs_at(epoch, places[here])
            lengths[here] = pairs.lengths(index)
            slots[here] = pairs.num_to_predict(lengths[here])
        return lengths, slots

    def forget(self) -> None:
        """Nothing but plans is held, and those of the run are probably the same."""

    def counts(self) -> RowStatistics:
        """Counts of at most 10,000 rows of the first epoch."""
        return self._plan(0).result().counts()

    def _pairs_at(self, epoch: int, places: np.ndarray) -> tuple[PlannedPairs, np.ndarray]:
        """The pairs that an epoch draws from, and the indices [n] of those at these places."""
        pairs = self._plan(planned_epoch(epoch, self._recipe)).result()
        # Starts the next plan ahead of time. It replaces the previous one, which is done with.
        if (places >= self.num_examples // 4).any():
            self._plan(planned_epoch(epoch + 1, self._recipe), in_background=True)
        # Epochs differ a little in their number of chunks: a longer one leaves out a few, a
        # shorter one repeats a few.
        order = hash64(self._seed, epoch, Purpose.ROW_ORDER)
        return pairs, permute(places % len(pairs), len(pairs), int(order))

    def _plan(self, epoch: int, in_background: bool = False) -> Future[PlannedPairs]:
        """The pairs of an epoch. The two plans last asked for are kept."""
        with self._lock:
            plan = self._plans.pop(epoch, None)
            if plan is None:
                plan = self._pool.submit(self._text.planned, epoch, in_background)
            latest = list(self._plans.items())[-1:]
            self._plans = dict(latest) | {epoch: plan}
        return plan


def planned_epoch(epoch: int, recipe: RowOptions) -> int:
    """The first epoch that has the same chunks, pairs and masks as `epoch`."""
    return epoch % recipe.num_maskings if recipe.num_maskings else epoch


# Old names, for config files of users (docs/stability.md).
PretrainExamples = WholeTextRows
