"""The rows of a text to train on and those held out, as functions of (seed, epoch, index).

    n: rows
"""

import functools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from bert_jax.rows.examples import grouped, pretrain_spec, rows_by_key
from bert_jax.rows.pairs import PairText, PlannedPairs, RowOptions, RowStatistics
from bert_jax.rows.stateless import Purpose, hash64, permute
from bert_jax.rows.store import LoadedBlocks, TokenStore, held_out_limit
from bert_jax.rows.windows import WindowedExamples
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
        self, window: LoadedBlocks, documents: np.ndarray, options: RowOptions, vocab: Vocab,
        seed: int, name: str = 'the corpus',
    ):
        """Plans the first epoch, which fixes `num_examples`.

        Args:
          window: the text.
          documents: [k] int64 indices of the documents to use, ascending.
          options: how rows are made.
          vocab: that the text was tokenized with.
          seed: of all draws.
          name: of the source, for messages.

        Raises:
          InputError: too few documents for next sentence prediction, or none.
        """
        self.spec = pretrain_spec(options.max_seq_length, options.max_predictions_per_seq)
        self._text = PairText(window, documents, options, vocab, seed, name)
        self._options = options
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
        columns = width or self._options.max_seq_length
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
        pairs = self._plan(self._options.planned_epoch(epoch)).result()
        # Starts the next plan ahead of time. It replaces the previous one, which is done with.
        if (places >= self.num_examples // 4).any():
            self._plan(self._options.planned_epoch(epoch + 1), in_background=True)
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


class Split(NamedTuple):
    """How much of a text is held out.

    Attributes:
      fraction: of the documents; 0: none.
      min_documents: on each side, at least, where the text is shuffled whole.
    """

    fraction: float
    min_documents: int


class StoredText:
    """A text whose rows are made from a token store.

    Attributes:
      name: of the source.
      store: with the tokens.
      is_whole: whether the text is shuffled whole, in one window, rather than window by window.
    """

    def __init__(
        self, name: str, store: TokenStore, vocab: Vocab, split: Split, shuffle_blocks: int
    ):
        """Takes the store; nothing is read yet.

        Args:
          name: of the source.
          store: with the tokens.
          vocab: that the store was made with.
          split: what is held out.
          shuffle_blocks: how many blocks are shuffled at once.
        """
        self.name = name
        self.store = store
        self.is_whole = len(store.index) <= shuffle_blocks
        self._vocab = vocab
        self._split = split
        self._shuffle_blocks = shuffle_blocks

    def training(
        self, options: RowOptions, seed: int, lanes: int
    ) -> WholeTextRows | WindowedExamples:
        """Rows to train on.

        Args:
          options: how they are made.
          seed: of all draws.
          lanes: of a batch, if the text is not shuffled whole.

        Raises:
          InputError: too few documents.
        """
        if self.is_whole:
            documents, _ = self._documents
            return WholeTextRows(
                self._window, documents, options, self._vocab, seed, name=self.name)
        return WindowedExamples(
            self.store, self._split.fraction, options, self._vocab, seed,
            shuffle_blocks=self._shuffle_blocks, lanes=lanes, name=self.name)

    def held_out(self, options: RowOptions, seed: int) -> WholeTextRows:
        """Rows of the documents that are held out.

        Of a text that is not shuffled whole, these are the documents of `TokenStore.held_out`: all
        that are held out, or so many that they are enough to evaluate on.

        Raises:
          InputError: too few documents.
        """
        name = f'the held-out part of {self.name}'
        if self.is_whole:
            _, documents = self._documents
            return WholeTextRows(self._window, documents, options, self._vocab, seed, name=name)
        window = self.store.held_out()
        documents = np.flatnonzero(
            window.document_hashes < held_out_limit(self._split.fraction))
        return WholeTextRows(window, documents, options, self._vocab, seed, name=name)

    def evaluated(self, options: RowOptions, seed: int) -> WholeTextRows:
        """Rows of a text that is only evaluated on: of all its documents, or of a sample.

        Raises:
          InputError: too few documents.
        """
        window = self._evaluated_window()
        return WholeTextRows(
            window, window.documents, options, self._vocab, seed, name=self.name)

    def evaluated_hashes(self) -> np.ndarray:
        """The hashes of the documents that `evaluated` makes rows of, uint64."""
        window = self._evaluated_window()
        return window.document_hashes[window.documents]

    def _evaluated_window(self) -> LoadedBlocks:
        return self._window if self.is_whole else self.store.held_out()

    @property
    def num_held_out(self) -> int:
        """Documents that are held out, as far as they are known without reading the whole text."""
        if self.is_whole:
            return len(self._documents[1])
        return int((self.store.held_out().document_hashes
                    < held_out_limit(self._split.fraction)).sum())

    @functools.cached_property
    def _window(self) -> LoadedBlocks:
        """All blocks, in the order of the text."""
        return self.store.window(np.arange(len(self.store.index)))

    @functools.cached_property
    def _documents(self) -> tuple[np.ndarray, np.ndarray]:
        """The documents to train on and those that are held out, of the whole text."""
        return self._window.split_held_out(
            self._split.fraction, self._split.min_documents, self.name)


# Old names, for config files of users (docs/stability.md).
PretrainExamples = WholeTextRows


def planned_epoch(epoch: int, recipe: RowOptions) -> int:
    """`RowOptions.planned_epoch`."""
    return recipe.planned_epoch(epoch)
