"""Pre-training batches: features and shapes, sets of rows, batches prepared ahead of the device.

A set's rows are a function of their index, so nothing here has state: the batch of step s holds the
rows s * batch_size + local.
"""

import collections
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np

from bert_jax.rows.stateless import hash64, permute
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.pauses import result_of

# Rows made in one call, which keep numpy's overhead per call small.
_ROWS_A_CALL = 2048
_ROWS_OF_A_LANE = 512  # in one call, as each lane has an overhead of its own
_TOKENS_A_CALL = 1 << 22  # at most, for the sake of the lanes
_THREADS = 2
_MIXTURE_BLOCK = 1000  # rows in each of which a mixture has its weights, to whole rows
_MIXTURE_ORDER = 0x313  # purpose of draws


class Feature(NamedTuple):
    """Shape and dtype of a feature in one row; a batch is [B, *shape]."""

    shape: tuple[int, ...]
    dtype: type


BatchSpec = Mapping[str, Feature]


def pretrain_spec(max_seq_length: int, max_predictions_per_seq: int) -> BatchSpec:
    """Features of pre-training, named as in google-research/bert, plus `example_weights`.

    One name differs: `sequence_ids` is `input_mask` there. `example_weights` is 1 for real rows and
    0 for padding rows of an evaluation batch, whose `masked_lm_weights` are 0 as well.
    """
    row = (max_seq_length,)
    slots = (max_predictions_per_seq,)
    return {
        'input_ids': Feature(row, np.int32),
        'sequence_ids': Feature(row, np.int32),
        'segment_ids': Feature(row, np.int32),
        'masked_lm_positions': Feature(slots, np.int32),
        'masked_lm_ids': Feature(slots, np.int32),
        'masked_lm_weights': Feature(slots, np.float32),
        'next_sentence_labels': Feature((), np.int32),
        'example_weights': Feature((), np.float32),
    }


def empty_rows(spec: BatchSpec, num_rows: int) -> dict[str, np.ndarray]:
    """Padding rows: zeros, with weight 0."""
    return {
        name: np.zeros((num_rows, *feature.shape), feature.dtype)
        for name, feature in spec.items()}


def grouped(keys: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each distinct value of `keys` [n], with the indices where it occurs."""
    for key in np.unique(keys):
        yield int(key), np.flatnonzero(keys == key)


def rows_by_key(
    keys: np.ndarray, make: Callable[[int, np.ndarray], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Collects rows [n] from one call `make(key, indices)` per distinct value of `keys` [n]."""
    batch: dict[str, np.ndarray] = {}
    for key, here in grouped(keys):
        part = make(key, here)
        if len(here) == len(keys):
            return part
        for name, values in part.items():
            if name not in batch:
                batch[name] = np.empty((len(keys), *values.shape[1:]), values.dtype)
            batch[name][here] = values
    return batch


class Rows(Protocol):
    """Rows as a function of their index, which counts through the whole run.

    Attributes:
      spec: their features.
      lanes: of a batch, which are made separately (see `rows.windows.Lanes`).
    """

    spec: BatchSpec
    lanes: int

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]: ...


class Examples(Rows, Protocol):
    """Sequences as a function of their index, one for each row.

    Indices count through the whole run, epoch after epoch, each epoch shuffled. With `frozen` they
    count through the `num_frozen` rows of one fixed pass, for evaluation.
    """

    num_examples: int  # per epoch
    num_frozen: int

    def rows(
        self, row_ids: np.ndarray, frozen: bool = False, width: int | None = None
    ) -> dict[str, np.ndarray]:
        """The rows of these ids [n]; those of at most `width` tokens may lack columns behind it."""

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens [n], most prediction slots used [n]) of these rows."""

    def forget(self) -> None:
        """Frees what is held for rows that were made, after other rows than those of the run."""


class RecordExamples:
    """Records of Google's create_pretraining_data.py, shuffled by index, with fixed masks."""

    lanes = 1

    def __init__(self, records: Any, seed: int, slots: int | None = None, name: str = ''):
        """Pads records to `slots` prediction slots.

        Args:
          records: `corpus.records.RecordFiles`.
          seed: of the order.
          slots: P; None: as many as the records have.
          name: of the source, for messages.

        Raises:
          InputError: the records have more prediction slots than `slots`.
        """
        slots = records.max_predictions_per_seq if slots is None else slots
        self._missing = slots - records.max_predictions_per_seq
        if self._missing < 0:
            raise InputError(
                f'{name} has {records.max_predictions_per_seq} predictions a record, more than the '
                f'{slots} slots of a row: set config.data.max_predictions_per_seq='
                f'{records.max_predictions_per_seq}')
        self.spec = pretrain_spec(records.max_seq_length, slots)
        self.num_examples = len(records)
        self.num_frozen = len(records)
        self._records = records
        self._seed = seed

    def rows(
        self, row_ids: np.ndarray, frozen: bool = False, width: int | None = None
    ) -> dict[str, np.ndarray]:
        del width  # records come with their padding
        epochs, place = np.divmod(np.asarray(row_ids, np.int64), self.num_examples)
        if not frozen:
            for epoch, here in grouped(epochs):
                order = int(hash64(self._seed, epoch))
                place[here] = permute(place[here], self.num_examples, order)
        batch = dict(self._records.read(place))
        for name in ('masked_lm_positions', 'masked_lm_ids', 'masked_lm_weights'):
            batch[name] = np.pad(batch[name], ((0, 0), (0, self._missing)))
        return batch | {'example_weights': np.ones(len(row_ids), np.float32)}

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise InputError('config.train.packed_rows is for text: the lengths of ready-made records '
                         'are known only when they are read; leave it at 0')

    def forget(self) -> None:
        """Nothing is held."""


class Mixture:
    """Several sets of rows, mixed by weight.

    Every 1,000 rows of a lane hold each set's share, in whole rows but at least one, in random
    order; each set has its own epochs. After `num_examples` rows, rounded up to whole thousands of
    each lane, every set has been seen in full at least once. Ids are by lane (see
    `rows.windows.Lanes`), here and in the sets: the rows of a lane come from that lane of each set.
    """

    def __init__(
        self, parts: Sequence[Examples], weights: Sequence[float], seed: int, lanes: int = 1
    ):
        self.lanes = lanes
        self.spec = parts[0].spec
        self._parts = parts
        self._seed = seed
        self._counts = _rows_in_a_block(weights)  # of each set
        # Where the rows of each set begin, in a block and among all frozen rows.
        self._starts = np.concatenate([[0], np.cumsum(self._counts)])
        num_frozen = [part.num_frozen for part in parts]
        self._frozen_starts = np.concatenate([[0], np.cumsum(num_frozen)])
        self.num_frozen = int(self._frozen_starts[-1])
        self.num_examples = max(
            -(-part.num_examples * _MIXTURE_BLOCK // count)
            for part, count in zip(parts, self._counts.tolist(), strict=True))

    def times_an_epoch(self) -> list[float]:
        """How often the rows of each set are in `num_examples` rows."""
        times: list[float] = []
        for part, count in zip(self._parts, self._counts.tolist(), strict=True):
            times.append(self.num_examples * count / _MIXTURE_BLOCK / part.num_examples)
        return times

    def rows(
        self, row_ids: np.ndarray, frozen: bool = False, width: int | None = None
    ) -> dict[str, np.ndarray]:
        """Rows of the sets; with `frozen`, those of all sets in one fixed shuffled order."""
        if frozen:
            places = permute(np.asarray(row_ids, np.int64), self.num_frozen, _MIXTURE_ORDER)
            which = np.searchsorted(self._frozen_starts, places, side='right') - 1
            index = places - self._frozen_starts[which]
        else:
            which, index = self._drawn(row_ids)

        def make(part: int, here: np.ndarray) -> dict[str, np.ndarray]:
            return self._parts[part].rows(index[here], frozen, width)

        return rows_by_key(which, make)

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        which, index = self._drawn(row_ids)
        lengths = np.empty(len(which), np.int64)
        slots = np.empty(len(which), np.int64)
        for part, here in grouped(which):
            lengths[here], slots[here] = self._parts[part].sizes(index[here])
        return lengths, slots

    def forget(self) -> None:
        """Frees what the sets hold."""
        for part in self._parts:
            part.forget()

    def _drawn(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The set that each row comes from, and its id there."""
        row_of_lane, lane = np.divmod(np.asarray(row_ids, np.int64), self.lanes)
        blocks, slot = np.divmod(row_of_lane, _MIXTURE_BLOCK)
        for number, here in grouped(blocks * self.lanes + lane):
            key = int(hash64(self._seed, _MIXTURE_ORDER, number))
            slot[here] = permute(slot[here], _MIXTURE_BLOCK, key)
        which = np.searchsorted(self._starts, slot, side='right') - 1
        place = blocks * self._counts[which] + slot - self._starts[which]
        return which, place * self.lanes + lane


def _rows_in_a_block(weights: Sequence[float]) -> np.ndarray:
    """[n] int64: the rows that each set of a mixture has in a block, at least one."""
    exact = np.array(weights) * _MIXTURE_BLOCK / float(sum(weights))
    counts = np.maximum(np.floor(exact), 1).astype(np.int64)
    missing = _MIXTURE_BLOCK - counts.sum()
    while missing:
        # One row more, or less, for the set that is farthest from its exact share.
        one = np.sign(missing)
        missed = np.where(counts + one > 0, one * (exact - counts), -np.inf)
        counts[np.argmax(missed)] += one
        missing = _MIXTURE_BLOCK - counts.sum()
    return counts


class SyntheticExamples:
    """Rows of uniformly random pieces, full length, every prediction slot in use."""

    lanes = 1

    def __init__(
        self, vocab_size: int, max_seq_length: int, max_predictions_per_seq: int, *,
        num_examples: int = 4096, seed: int = 0,
    ):
        self.spec = pretrain_spec(max_seq_length, max_predictions_per_seq)
        self.num_examples = num_examples
        self.num_frozen = num_examples
        self._length = max_seq_length
        self._slots = max_predictions_per_seq
        self._vocab_size = vocab_size
        self._seed = seed

    def rows(
        self, row_ids: np.ndarray, frozen: bool = False, width: int | None = None
    ) -> dict[str, np.ndarray]:
        """The rows of these ids [n], which repeat after `num_examples`; all are full."""
        length = self._length
        slots = self._slots
        batch = empty_rows(self.spec, len(row_ids))
        batch['segment_ids'][:] = np.arange(length) > length // 2
        for name in ('sequence_ids', 'masked_lm_weights', 'example_weights'):
            batch[name][:] = 1
        for row, row_id in enumerate(row_ids):
            rng = np.random.default_rng((self._seed, int(row_id) % self.num_examples))
            batch['input_ids'][row] = rng.integers(0, self._vocab_size, length, np.int32)
            places = rng.permutation(np.arange(1, length - 1))[:slots]
            batch['masked_lm_positions'][row] = np.sort(places)
            batch['masked_lm_ids'][row] = rng.integers(0, self._vocab_size, slots, np.int32)
            batch['next_sentence_labels'][row] = rng.integers(2)
        return batch

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every row is full."""
        return np.full(len(row_ids), self._length), np.full(len(row_ids), self._slots)

    def forget(self) -> None:
        """Nothing is held."""


def train_batches(
    examples: Rows, *, batch_size: int, local: np.ndarray, first_step: int, num_steps: int
) -> Iterator[dict[str, np.ndarray]]:
    """Batches of the steps first_step .. first_step + num_steps - 1.

    Args:
      examples: where rows come from.
      batch_size: rows of a global batch.
      local: the rows of each global batch that this host holds.
      first_step: step (of this phase) to begin at; earlier steps need not be made first.
      num_steps: how many batches follow.

    Yields:
      Features [len(local), ...].
    """
    (row_length,) = examples.spec['input_ids'].shape
    of_lanes = _ROWS_OF_A_LANE * examples.lanes * len(local) // batch_size
    rows_a_call = max(_ROWS_A_CALL, min(of_lanes, _TOKENS_A_CALL // row_length))
    steps_a_call = max(1, rows_a_call // len(local))
    end = first_step + num_steps

    def make(begin: int) -> dict[str, np.ndarray]:
        steps = np.arange(begin, min(begin + steps_a_call, end), dtype=np.int64)
        row_ids = steps[:, None] * batch_size + local
        batches = {}
        for name, values in examples.rows(row_ids.reshape(-1)).items():
            batches[name] = values.reshape(*row_ids.shape, *values.shape[1:])
        return batches

    return _prefetched(make, range(first_step, end, steps_a_call))


def eval_batches(
    examples: Examples, *, batch_size: int, local: np.ndarray, num_examples: int
) -> Iterator[dict[str, np.ndarray]]:
    """The first `num_examples` frozen rows, each once; the last batch is filled with empty rows.

    Every host gets the same number of batches, whatever its share of rows. Arguments and results
    are those of `train_batches`.
    """
    def make(begin: int) -> dict[str, np.ndarray]:
        row_ids = begin + local
        real = row_ids[row_ids < num_examples]
        batch = empty_rows(examples.spec, len(local))
        if len(real):
            for name, values in examples.rows(real, frozen=True).items():
                batch[name][: len(real)] = values
        return {name: values[None] for name, values in batch.items()}

    return _prefetched(make, range(0, num_examples, batch_size))


def _prefetched(
    make: Callable[[int], dict[str, np.ndarray]], calls: range
) -> Iterator[dict[str, np.ndarray]]:
    """The batches of all calls, in order, made by two threads while earlier ones are used.

    Args:
      make: makes the batches of a call, features [batches, rows, ...].
      calls: the arguments of `make`.
    """
    pool = ThreadPoolExecutor(_THREADS)
    pending = collections.deque[Future]()
    left = iter(calls)
    try:
        while True:
            # One more than threads: while the first is used, all threads have work.
            for call in itertools.islice(left, _THREADS + 1 - len(pending)):
                pending.append(pool.submit(make, call))
            if not pending:
                return
            made = result_of(pending.popleft())
            num_batches = len(next(iter(made.values())))
            for number in range(num_batches):
                yield {name: values[number] for name, values in made.items()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


# Old names, for config files of users (docs/stability.md).
collect = rows_by_key
