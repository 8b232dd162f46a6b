"""Pre-training examples of a text of any length: rows from windows of randomly chosen blocks.

A text longer than what is shuffled at once is read in windows. In every epoch its blocks are put
into a random order and dealt to windows, and each window is a small text, which is cut into pairs
and shuffled like any other; random next sentences come from the same window. The rows of a batch
belong to lanes: a lane is a fixed share of each batch with a row of windows of its own, one after
the other. A host opens the windows of its own rows' lanes only.

All of it follows from (seed, epoch, lane, place): any number of hosts makes the same batches, and
any step can be made without those before it.

    N: blocks of the text, L: lanes, n: rows
"""

import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from bert_jax.rows.examples import Examples, grouped, pretrain_spec, rows_by_key
from bert_jax.rows.pairs import PairText, PlannedPairs, RowOptions, RowStatistics
from bert_jax.rows.stateless import Purpose, hash64, permute
from bert_jax.rows.store import TokenStore, held_out_limit
from bert_jax.runtime.errors import InputError, counted
from bert_jax.runtime.long_work import long_work
from bert_jax.text.vocab import Vocab

# More lanes let more hosts read apart; fewer give each window more blocks to mix.
_MOST_LANES = 32
_LEAST_BLOCKS_A_WINDOW = 4
_SAMPLED_BLOCKS = 16  # whose pairs are counted
_OPENED_AHEAD = 0.25  # of a window's rows: how early the next window of its lane is opened
_CALLS_KEPT = 16  # of a lane: after so many without a window it is closed
_OPENERS = 4  # threads
_LAYOUTS_KEPT = 4
_BLOCK_ORDER = 0xB10C  # purposes of draws
_WINDOW = 0x3D0
_SEED_BITS = (1 << 63) - 1


def num_lanes(shuffle_blocks: int, batch_size: int) -> int:
    """The number of lanes of a batch: the most that divide its rows into equal shares.

    Args:
      shuffle_blocks: blocks of the windows of all lanes together.
      batch_size: rows of a batch.
    """
    most = max(1, min(_MOST_LANES, shuffle_blocks // _LEAST_BLOCKS_A_WINDOW))
    return max(lanes for lanes in range(1, most + 1) if batch_size % lanes == 0)


class Lanes:
    """Rows by batch, where row j of a batch belongs to lane j // (batch_size / L).

    The underlying examples number rows so that lane l has the ids l, l + L, l + 2L, ...
    """

    def __init__(self, examples: Examples, batch_size: int, lanes: int):
        """Numbers the rows of batches.

        Args:
          examples: with ids by lane.
          batch_size: rows of a batch, a multiple of `lanes`.
          lanes: L.
        """
        assert batch_size % lanes == 0
        self.spec = examples.spec
        self.num_examples = examples.num_examples
        self.num_frozen = examples.num_frozen
        self._examples = examples
        self._batch_size = batch_size
        self.lanes = lanes

    def rows(
        self, row_ids: np.ndarray, frozen: bool = False, width: int | None = None
    ) -> dict[str, np.ndarray]:
        return self._examples.rows(self._by_lane(row_ids), frozen, width)

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._examples.sizes(self._by_lane(row_ids))

    def forget(self) -> None:
        self._examples.forget()

    def _by_lane(self, row_ids: np.ndarray) -> np.ndarray:
        """The ids, in the underlying examples, of rows that are numbered batch after batch."""
        share = self._batch_size // self.lanes
        steps, row = np.divmod(np.asarray(row_ids, np.int64), self._batch_size)
        lane, place = np.divmod(row, share)
        return (steps * share + place) * self.lanes + lane


class _Layout(NamedTuple):
    """Which blocks the windows of an epoch hold, and how many rows each of them gives.

    Attributes:
      blocks: [N] int64, all blocks in the order in which they are dealt.
      block_bounds: [windows + 1] int64; window w holds blocks[bounds[w] : bounds[w + 1]].
      row_bounds: int64 [L, windows / L + 1]; the rows of lane l come from its window k at the
        places bounds[l, k] to bounds[l, k + 1] - 1 of the lane's epoch.
    """

    blocks: np.ndarray
    block_bounds: np.ndarray
    row_bounds: np.ndarray


class _Key(NamedTuple):
    """A window: the `number`-th of a lane in an epoch."""

    epoch: int
    lane: int
    number: int


class _Drawn(NamedTuple):
    """Where n rows come from.

    Attributes:
      keys: of the windows.
      windows: these windows, open or being opened.
      which: [n] int64, which of them each row comes from.
      place: [n] int64, of the row in its window.
    """

    keys: list[_Key]
    windows: list[Future[PlannedPairs]]
    which: np.ndarray
    place: np.ndarray


class WindowedExamples:
    """The rows of a text in windows, in one phase; row ids are by lane (see `Lanes`).

    Like `rows.text_rows.WholeTextRows`, but for the order of rows, and for random next sentences,
    which come from the same window.

    Attributes:
      num_examples: rows of an epoch, estimated from a sample of blocks. A window gives rows in
        proportion to its text: if it has a few pairs more, they are left out, and if it has fewer,
        some are repeated.
      num_windows: in an epoch.
    """

    num_frozen = 0  # evaluation rows come from the held-out documents, which are one window

    def __init__(
        self, store: TokenStore, held_out: float, options: RowOptions, vocab: Vocab, seed: int, *,
        shuffle_blocks: int, lanes: int, name: str = 'the corpus',
    ):
        """Counts the pairs of a sample of blocks; no window is opened yet.

        Args:
          store: the text.
          held_out: share of the documents not to use.
          options: how rows are made.
          vocab: that the text was tokenized with.
          seed: of all draws.
          shuffle_blocks: blocks of the windows of all lanes together, at most.
          lanes: L.
          name: of the source, for messages.

        Raises:
          InputError: too few documents, or a block cannot be read.
        """
        self.spec = pretrain_spec(options.max_seq_length, options.max_predictions_per_seq)
        self._store = store
        self._held_out = held_out
        self._options = options
        self._vocab = vocab
        self._seed = seed
        self.lanes = lanes
        self._name = name
        windows_a_lane = math.ceil(len(store.index) / shuffle_blocks)
        self.num_windows = windows_a_lane * lanes
        self._windows_a_lane = windows_a_lane
        self._expected_pairs = _expected_pairs(store.index, options.max_tokens)
        self._layouts: dict[int, _Layout] = {}
        count = min(_SAMPLED_BLOCKS, len(store.index))
        sample = np.linspace(0, len(store.index) - 1, count).astype(np.int64)
        self._sample = self._planned(sample, seed)
        expected = self._expected_pairs
        num_pairs = int(expected.sum()) * len(self._sample) // int(expected[sample].sum())
        self._rows_a_lane = max(num_pairs // lanes, windows_a_lane)
        self.num_examples = self._rows_a_lane * lanes

        self._open: dict[_Key, Future[PlannedPairs]] = {}
        self._calls: dict[int, int] = {}  # by lane, how many there were
        self._last_call: dict[_Key, int] = {}  # of its lane that asked for an open window
        self._lock = threading.Lock()
        self._openers = ThreadPoolExecutor(_OPENERS)

    def rows(
        self, row_ids: np.ndarray, frozen: bool = False, width: int | None = None
    ) -> dict[str, np.ndarray]:
        """The rows of these ids [n]; for `width` see `WholeTextRows.rows`."""
        assert not frozen
        columns = width or self._options.max_seq_length
        drawn = self._drawn(row_ids)

        def make(number: int, here: np.ndarray) -> dict[str, np.ndarray]:
            pairs, index = self._pairs_at(drawn, number, here)
            return pairs.rows(index, columns)

        return rows_by_key(drawn.which, make)

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens [n], most prediction slots used [n]) of these rows."""
        lengths = np.empty(len(row_ids), np.int64)
        slots = np.empty(len(row_ids), np.int64)
        drawn = self._drawn(row_ids)
        for number, here in grouped(drawn.which):
            pairs, index = self._pairs_at(drawn, number, here)
            lengths[here] = pairs.lengths(index)
            slots[here] = pairs.num_to_predict(lengths[here])
        return lengths, slots

    def forget(self) -> None:
        """Closes all windows; they are opened again if they are used."""
        with self._lock:
            self._open.clear()
            self._last_call.clear()

    def summary(self) -> str:
        """How the text is shuffled, in a few words."""
        return (f"{counted(len(self._store.index), 'block')} in "
                f"{counted(self.num_windows, 'window')} an epoch, {self.lanes} at a time")

    def counts(self) -> RowStatistics:
        """Counts of at most 10,000 rows of the sample of blocks."""
        return self._sample.counts()

    def _pairs_at(
        self, drawn: _Drawn, number: int, here: np.ndarray
    ) -> tuple[PlannedPairs, np.ndarray]:
        """A window, and the indices [n] of the pairs that the rows at `here` [n] are made of."""
        pairs = drawn.windows[number].result()
        order = int(hash64(self._seed, *drawn.keys[number], Purpose.ROW_ORDER))
        return pairs, permute(drawn.place[here] % len(pairs), len(pairs), order)

    def _drawn(self, row_ids: np.ndarray) -> _Drawn:
        """Where the rows of these ids [n] come from. It opens windows and closes others."""
        row_of_lane, lane = np.divmod(np.asarray(row_ids, np.int64), self.lanes)
        keys, which, place = self._located(lane, row_of_lane)
        lanes = np.unique(lane)
        last_row = np.array([row_of_lane[lane == number].max() for number in lanes])
        ahead = int(_OPENED_AHEAD * self._rows_a_lane / self._windows_a_lane)
        coming, _, _ = self._located(lanes, last_row + ahead)
        return _Drawn(keys, self._opened(keys, coming), which, place)

    def _located(
        self, lane: np.ndarray, row_of_lane: np.ndarray
    ) -> tuple[list[_Key], np.ndarray, np.ndarray]:
        """The windows that rows come from.

        Args:
          lane: [n] of the rows.
          row_of_lane: [n] their numbers in their lanes.

        Returns:
          The keys of the windows; for each row [n] which of them it is from, and its place there.
        """
        epoch, place = np.divmod(row_of_lane, self._rows_a_lane)
        # Each lane begins at another place of its first window, so that not all change at once.
        shift = lane * self._rows_a_lane // self.num_windows
        place = (place + shift) % self._rows_a_lane
        number = np.empty(len(place), np.int64)
        for epoch_here, rows in grouped(epoch):
            bounds = self._layout(self._options.planned_epoch(epoch_here)).row_bounds
            for lane_here, index in grouped(lane[rows]):
                here = rows[index]
                number[here] = np.searchsorted(bounds[lane_here], place[here], 'right') - 1
                place[here] -= bounds[lane_here, number[here]]
        found, which = np.unique(
            np.stack([epoch, lane, number], axis=1), axis=0, return_inverse=True)
        return [_Key(*key) for key in found.tolist()], which.reshape(-1), place

    def _opened(
        self, keys: Sequence[_Key], coming: Sequence[_Key]
    ) -> list[Future[PlannedPairs]]:
        """The windows `keys`. Threads open them, and those that come next in their lanes.

        Windows of these lanes that were not asked for lately are closed. (Not at once, because two
        threads make batches, and packed rows are made in several calls.)
        """
        wanted = [self._planned_key(key) for key in keys]
        opened = dict.fromkeys([*wanted, *map(self._planned_key, coming)])
        with self._lock:
            for lane in {key.lane for key in opened}:
                self._calls[lane] = self._calls.get(lane, 0) + 1
            for key in opened:
                if key not in self._open:
                    self._open[key] = self._openers.submit(self._open_window, key)
                self._last_call[key] = self._calls[key.lane]
            for key, call in list(self._last_call.items()):
                if self._calls[key.lane] - call > _CALLS_KEPT:
                    del self._last_call[key]
                    del self._open[key]
            return [self._open[key] for key in wanted]

    def _planned_key(self, key: _Key) -> _Key:
        """The first window with the same chunks, pairs and masks."""
        return key._replace(epoch=self._options.planned_epoch(key.epoch))

    def _open_window(self, key: _Key) -> PlannedPairs:
        """Reads the blocks of a window and plans its pairs."""
        layout = self._layout(key.epoch)
        window = key.number * self.lanes + key.lane
        first, last = layout.block_bounds[window : window + 2].tolist()
        seed = int(hash64(self._seed, key.epoch, _WINDOW, window)) & _SEED_BITS
        return self._planned(layout.blocks[first:last], seed)

    def _planned(self, blocks: np.ndarray, seed: int) -> PlannedPairs:
        """The pairs of the used documents of these blocks, joined."""
        with long_work():
            window = self._store.window(blocks)
        documents = window.documents
        if self._held_out > 0:
            hashes = window.document_hashes[documents]
            documents = documents[hashes >= held_out_limit(self._held_out)]
        name = f"a window of {counted(len(blocks), 'block')} of {self._name}"
        try:
            text = PairText(window, documents, self._options, self._vocab, seed, name)
        except InputError as error:
            raise InputError(f'{error}; or shuffle more blocks at once, '
                             '--config.data.shuffle_blocks') from None
        return text.planned(0, in_background=True)

    def _layout(self, epoch: int) -> _Layout:
        """The layout of an epoch. Those of the epochs last asked for are kept."""
        with self._lock:
            layout = self._layouts.pop(epoch, None)
            if layout is None:
                layout = self._make_layout(epoch)
            latest = list(self._layouts.items())[1 - _LAYOUTS_KEPT :]
            self._layouts = dict(latest) | {epoch: layout}
        return layout

    def _make_layout(self, epoch: int) -> _Layout:
        """Deals the blocks of an epoch to windows, of which number * L + lane is a lane's."""
        num_blocks = len(self._store.index)
        order = int(hash64(self._seed, epoch, _BLOCK_ORDER))
        blocks = permute(np.arange(num_blocks), num_blocks, order)
        block_bounds = np.arange(self.num_windows + 1) * num_blocks // self.num_windows
        expected = np.add.reduceat(self._expected_pairs[blocks], block_bounds[:-1])
        # Whole numbers, so that every host finds the same bounds.
        until = np.cumsum(expected.reshape(self._windows_a_lane, self.lanes), axis=0).T
        row_bounds = np.zeros((self.lanes, self._windows_a_lane + 1), np.int64)
        until = until.astype(object)  # whose products do not overflow
        row_bounds[:, 1:] = until * self._rows_a_lane // until[:, -1:]
        return _Layout(blocks, block_bounds, row_bounds)


def _expected_pairs(index: np.ndarray, max_tokens: int) -> np.ndarray:
    """[N] int64: about how many pairs each block gives, but for a factor common to all.

    A document gives one pair, and one more for each `max_tokens` that do not fit.

    Args:
      index: of the store.
      max_tokens: room of a row.
    """
    num_tokens = index['num_tokens'].astype(np.int64)
    num_documents = index['num_documents'].astype(np.int64)
    return np.maximum(num_documents, num_tokens // max_tokens + num_documents // 2)
