"""Pre-training batches: features and their shapes, rows of a step, synthetic rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from bert_jax.data.stateless import hash64, permute
from bert_jax.runtime.errors import InputError

Batch = Mapping[str, np.ndarray]


class Feature(NamedTuple):
    """Shape and dtype of a feature in one row; a batch is [B, *shape]."""

    shape: tuple[int, ...]
    dtype: type


BatchSpec = Mapping[str, Feature]


def pretrain_spec(max_seq_length: int, max_predictions_per_seq: int) -> BatchSpec:
    """Features of pre-training, named as in google-research/bert, plus `example_weights`.

    `example_weights` is 1 for real rows and 0 for padding rows of an evaluation batch, whose
    `masked_lm_weights` are 0 as well.
    """
    s, p = (max_seq_length,), (max_predictions_per_seq,)
    return {
        'input_ids': Feature(s, np.int32),
        'sequence_ids': Feature(s, np.int32),
        'segment_ids': Feature(s, np.int32),
        'masked_lm_positions': Feature(p, np.int32),
        'masked_lm_ids': Feature(p, np.int32),
        'masked_lm_weights': Feature(p, np.float32),
        'next_sentence_labels': Feature((), np.int32),
        'example_weights': Feature((), np.float32),
    }


def packed_pretrain_spec(
    max_seq_length: int, max_predictions_per_seq: int, pairs_a_row: int
) -> BatchSpec:
    """`pretrain_spec` for rows of up to `pairs_a_row` pairs.

    `sequence_ids` number the pairs from 1, `position_ids` start at 0 in each, `cls_positions` are
    their starts. All pairs of a row share its prediction slots.
    """
    spec, k = dict(pretrain_spec(max_seq_length, max_predictions_per_seq)), (pairs_a_row,)
    return spec | {
        'position_ids': Feature((max_seq_length,), np.int32),
        'cls_positions': Feature(k, np.int32),
        'next_sentence_labels': Feature(k, np.int32),
        'example_weights': Feature(k, np.float32),
    }


def empty_rows(spec: BatchSpec, num_rows: int) -> dict[str, np.ndarray]:
    """Padding rows: zeros, with weight 0."""
    return {name: np.zeros((num_rows, *f.shape), f.dtype) for name, f in spec.items()}


def check_batch(spec: BatchSpec, batch: Batch) -> None:
    """Asserts that a batch matches its spec."""
    assert set(batch) == set(spec), f'{sorted(batch)} != {sorted(spec)}'
    for name, feature in spec.items():
        x = batch[name]
        assert x.shape[1:] == feature.shape, (name, x.shape, feature.shape)
        assert x.dtype == feature.dtype, (name, x.dtype, feature.dtype)


_MIXTURE_BLOCK = 1000  # rows in which a mixture has its exact weights


class Rows(Protocol):
    """Rows as a function of their index, which counts through the whole run."""

    spec: BatchSpec

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]: ...


class Examples(Rows, Protocol):
    """Sequences as a function of their index, one for each row.

    Indices of `rows` count through the whole run, shuffled, epoch after epoch; those of
    `frozen_rows` through the `num_frozen` rows of one fixed pass, for evaluation.
    """

    num_examples: int  # an epoch
    num_frozen: int

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens [n] of these `rows`, most prediction slots used)."""
        ...

    def frozen_rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]: ...


def eval_batch(
    examples: Examples, step: int, batch_size: int, local: np.ndarray, num_examples: int
) -> dict[str, np.ndarray]:
    """This host's rows of evaluation batch `step`; those past `num_examples` are padding."""
    row_ids = step * batch_size + local
    real = row_ids[row_ids < num_examples]
    batch = empty_rows(examples.spec, len(local))
    if len(real):
        for name, x in examples.frozen_rows(real).items():
            batch[name][: len(real)] = x
    return batch


class Records(Protocol):
    """The interface of `data.records.RecordFiles`."""

    max_seq_length: int
    max_predictions_per_seq: int

    def __len__(self) -> int: ...

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]: ...


class RecordExamples:
    """Records of Google's create_pretraining_data.py, shuffled by index, with fixed masks."""

    def __init__(self, records: Records, seed: int, slots: int | None = None, name: str = ''):
        """Pads records to `slots` prediction slots (default: the records' number).

        Raises:
          InputError: the records have more prediction slots than `slots`.
        """
        slots = records.max_predictions_per_seq if slots is None else slots
        if records.max_predictions_per_seq > slots:
            raise InputError(
                f'{name} has {records.max_predictions_per_seq} predictions a record, more than '
                f'config.data.max_predictions_per_seq={slots}: set that to '
                f'{records.max_predictions_per_seq}'
            )
        self.spec = pretrain_spec(records.max_seq_length, slots)
        self.num_examples = self.num_frozen = len(records)
        self._records, self._seed, self._slots = records, seed, slots

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        place = np.asarray(row_ids, np.int64) % self.num_examples
        epochs = np.asarray(row_ids, np.int64) // self.num_examples
        order = np.empty_like(place)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            key = int(hash64(self._seed, int(epoch)))
            order[here] = permute(place[here], self.num_examples, key)
        return self.frozen_rows(order)

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise InputError(
            'config.train.packed_rows is for text: how long ready-made records are is known only '
            'when they are read; leave it at 0'
        )

    def frozen_rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        batch = dict(self._records.read(np.asarray(row_ids, np.int64)))
        missing = self._slots - self._records.max_predictions_per_seq
        if missing:
            for name in ('masked_lm_positions', 'masked_lm_ids', 'masked_lm_weights'):
                batch[name] = np.pad(batch[name], ((0, 0), (0, missing)))
        batch['example_weights'] = np.ones(len(row_ids), np.float32)
        return batch


class Mixture:
    """Several sets of rows, mixed by weight.

    Each 1,000 rows contain every set's exact share, in random order; each set has its own epochs.
    After `num_examples` rows, every set has been seen at least once.
    """

    def __init__(self, parts: Sequence[Examples], weights: Sequence[float], seed: int):
        total = float(sum(weights))
        exact = np.array(weights) * _MIXTURE_BLOCK / total
        counts = np.maximum(np.floor(exact), 1).astype(np.int64)
        while counts.sum() < _MIXTURE_BLOCK:
            counts[np.argmax(exact - counts)] += 1
        while counts.sum() > _MIXTURE_BLOCK:
            counts[np.argmax(counts - exact)] -= 1
        self._parts, self._seed, self._counts = list(parts), seed, counts
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self.spec = parts[0].spec
        self.num_examples = int(max(
            -(-part.num_examples * _MIXTURE_BLOCK // count)
            for part, count in zip(parts, counts, strict=True)
        ))
        self._frozen_starts = np.concatenate([[0], np.cumsum([p.num_frozen for p in parts])])
        self.num_frozen = int(self._frozen_starts[-1])

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        return self._collect(*self._drawn(row_ids), frozen=False)

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        which, inner = self._drawn(row_ids)
        sizes = np.empty((2, len(which)), np.int64)
        for i in np.unique(which):
            here = which == i
            sizes[:, here] = self._parts[i].sizes(inner[here])
        return sizes[0], sizes[1]

    def _drawn(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The set that each row comes from, and its index there."""
        row_ids = np.asarray(row_ids, np.int64)
        blocks = row_ids // _MIXTURE_BLOCK
        slot = np.empty_like(row_ids)
        for block in np.unique(blocks):
            here = blocks == block
            key = int(hash64(self._seed, 0x313, int(block)))
            slot[here] = permute(row_ids[here] - block * _MIXTURE_BLOCK, _MIXTURE_BLOCK, key)
        which = np.searchsorted(self._starts, slot, side='right') - 1
        return which, blocks * self._counts[which] + slot - self._starts[which]

    def frozen_rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """The frozen rows of all sets, in one fixed shuffled order."""
        row_ids = permute(np.asarray(row_ids, np.int64), self.num_frozen, 0x313)
        which = np.searchsorted(self._frozen_starts, row_ids, side='right') - 1
        return self._collect(which, row_ids - self._frozen_starts[which], frozen=True)

    def _collect(self, which: np.ndarray, inner: np.ndarray, frozen: bool) -> dict[str, np.ndarray]:
        batch: dict[str, np.ndarray] = {
            name: np.empty((len(which), *f.shape), f.dtype) for name, f in self.spec.items()
        }
        for i in np.unique(which):
            here = np.flatnonzero(which == i)
            part = self._parts[i]
            rows = part.frozen_rows(inner[here]) if frozen else part.rows(inner[here])
            for name in batch:
                batch[name][here] = rows[name]
        return batch


class SyntheticExamples:
    """Rows of uniformly random pieces, full length, every prediction slot in use."""

    def __init__(
        self, *, vocab_size: int, max_seq_length: int, max_predictions_per_seq: int,
        num_examples: int = 4096, seed: int = 0,
    ):
        self.spec = pretrain_spec(max_seq_length, max_predictions_per_seq)
        self.num_examples = self.num_frozen = num_examples
        self._vocab_size = vocab_size
        self._seed = seed

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of these ids [n], which repeat after `num_examples`."""
        rows = [self._row(int(i) % self.num_examples) for i in row_ids]
        return {name: np.stack([row[name] for row in rows]) for name in self.spec}

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All are full."""
        (length,), (slots,) = self.spec['input_ids'].shape, self.spec['masked_lm_ids'].shape
        return np.full(len(row_ids), length), np.full(len(row_ids), slots)

    def frozen_rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """As `rows`."""
        return self.rows(row_ids)

    def _row(self, index: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng((self._seed, index))
        (length,), (slots,) = self.spec['input_ids'].shape, self.spec['masked_lm_ids'].shape
        return {
            'input_ids': rng.integers(0, self._vocab_size, length, np.int32),
            'sequence_ids': np.ones(length, np.int32),
            'segment_ids': (np.arange(length) > length // 2).astype(np.int32),
            'masked_lm_positions': np.sort(rng.permutation(np.arange(1, length - 1))[:slots])
            .astype(np.int32),
            'masked_lm_ids': rng.integers(0, self._vocab_size, slots, np.int32),
            'masked_lm_weights': np.ones(slots, np.float32),
            'next_sentence_labels': np.asarray(rng.integers(2), np.int32),
            'example_weights': np.ones((), np.float32),
        }


def plain_batches(
    examples: Rows, batch_size: int, local: np.ndarray, steps: range
) -> Iterator[dict[str, np.ndarray]]:
    """Like `pipeline.train_batches`, without TensorFlow and without prefetching."""
    for step in steps:
        yield examples.rows(step * batch_size + local)
