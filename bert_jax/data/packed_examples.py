"""Pre-training rows that hold several pairs each, as functions of their index.

The pairs of a step are packed in groups, each into its own share of the step's rows, so that any
row can be made without the others.

    G: groups, U: pairs in a group
"""

import math
from typing import NamedTuple

import numpy as np

from bert_jax.data.examples import BatchSpec, Examples, Feature, empty_rows, pretrain_spec
from bert_jax.data.packing import Limit, Plan, Units, pack, packed_batch, sum_before
from bert_jax.data.pairs import Sequences
from bert_jax.runtime.errors import InputError

_GROUP = 1024  # pairs packed together; larger groups take longer
_TOKENS_A_PAIR = 32  # a row has room for one pair per so many tokens
_SAMPLED_PAIRS = 1 << 13
_DEVIATIONS = 6  # rows in reserve, in standard deviations: one group in a billion needs more
_SLOT_FEATURES = ('masked_lm_ids', 'masked_lm_weights', 'masked_lm_positions')


def packed_spec(max_seq_length: int, max_predictions_per_seq: int) -> BatchSpec:
    """`pretrain_spec` for rows of several pairs, which share the row's prediction slots.

    `sequence_ids` number the pairs from 1, `position_ids` start at 0 in each pair, `cls_positions`
    are the columns where pairs start.
    """
    pairs_a_row = (max(1, max_seq_length // _TOKENS_A_PAIR),)
    return dict(pretrain_spec(max_seq_length, max_predictions_per_seq)) | {
        'position_ids': Feature((max_seq_length,), np.int32),
        'cls_positions': Feature(pairs_a_row, np.int32),
        'next_sentence_labels': Feature(pairs_a_row, np.int32),
        'example_weights': Feature(pairs_a_row, np.float32),
    }


class _PackedGroups(NamedTuple):
    """The pairs of some groups and where they are packed.

    Attributes:
      pairs: [G, U] int64 ids of the pairs; a small group has places without a pair at its end.
      rows: [G, U] int32, the row of each pair among those of its group; -1: there is no pair.
    """

    pairs: np.ndarray
    rows: np.ndarray

    @property
    def num_rows(self) -> np.ndarray:
        """[G]: the rows that each group needs."""
        return self.rows.max(axis=1) + 1


class PackedExamples:
    """The packed rows of pre-training: row r of step s has the id s * num_rows + r."""

    def __init__(self, examples: Examples, batch_size: int, num_rows: int):
        """Checks on a sample of pairs that the rows suffice.

        Args:
          examples: unpacked; step s has those from s * batch_size on.
          batch_size: pairs in a step.
          num_rows: rows in a step, at most `batch_size`.

        Raises:
          InputError: the pairs of a step are likely not to fit into `num_rows` rows.
        """
        (self._row_length,) = examples.spec['input_ids'].shape
        (self._slots,) = examples.spec['masked_lm_ids'].shape
        self.spec = packed_spec(self._row_length, self._slots)
        (self._pairs_a_row,) = self.spec['cls_positions'].shape
        self.num_rows = num_rows
        self._examples = examples
        self._batch_size = batch_size
        self._num_groups = -(-batch_size // _GROUP)
        # Where the share of each group of a step begins, with the end of the last: [groups + 1].
        group = np.arange(self._num_groups + 1)
        self._first_pair = group * batch_size // self._num_groups
        self._first_row = group * num_rows // self._num_groups
        self._check_rows_suffice()

    def _check_rows_suffice(self) -> None:
        num_groups = self._num_groups
        sample_size = max(2, num_groups, num_groups * _SAMPLED_PAIRS // self._batch_size)
        step, group = np.divmod(np.arange(sample_size), num_groups)
        needed = self._pack(step, group).num_rows
        most = num_groups * (needed.mean() + _DEVIATIONS * needed.std())
        if most <= self.num_rows:
            return
        enough = '0 for a row each'
        if most < self._batch_size:
            enough = f'{math.ceil(most)} or more, or to {enough}'
        raise InputError(
            f'config.train.packed_rows={self.num_rows} are too few: the {self._batch_size} '
            f'sequences of a step fill {num_groups * needed.min()} to '
            f'{num_groups * needed.max()} rows of {self._row_length} tokens. Set it to {enough}')

    def _pack(self, steps_G: np.ndarray, groups_G: np.ndarray) -> _PackedGroups:
        """Packs the pairs of some groups of some steps."""
        index = np.arange(np.diff(self._first_pair).max())
        pair_of_step = self._first_pair[groups_G, None] + index
        is_real = pair_of_step < self._first_pair[groups_G + 1, None]
        pairs = steps_G[:, None] * self._batch_size + pair_of_step
        lengths = np.zeros(pairs.shape, np.int64)
        slots = np.zeros(pairs.shape, np.int64)
        lengths[is_real], slots[is_real] = self._examples.sizes(pairs[is_real])
        limits = [
            Limit(slots, self._slots),
            Limit(is_real.astype(np.int64), self._pairs_a_row),
        ]
        return _PackedGroups(pairs, pack(lengths, self._row_length, limits))

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of these ids [n], ascending.

        Raises:
          InputError: the pairs of a step need more rows than there are.
        """
        row_ids = np.asarray(row_ids, np.int64)
        pair_ids, row_of_pair = self._pairs_in(row_ids)
        pairs = self._examples.rows(pair_ids)
        return self._pack_rows(pairs, np.searchsorted(row_ids, row_of_pair), len(row_ids))

    def _pairs_in(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids of the pairs that are in these rows, and the id of the row of each."""
        steps, row_of_step = np.divmod(row_ids, self.num_rows)
        groups = np.searchsorted(self._first_row, row_of_step, 'right') - 1
        steps, groups = np.unique(np.stack([steps, groups]), axis=1)
        packed = self._pack(steps, groups)
        is_too_long = packed.num_rows > np.diff(self._first_row)[groups]
        if is_too_long.any():
            raise InputError(
                f'config.train.packed_rows={self.num_rows} are too few for step '
                f'{steps[is_too_long][0]} of the phase: set it higher, and resume with the same '
                'command otherwise')
        first_row_id = steps * self.num_rows + self._first_row[groups]
        row_id = first_row_id[:, None] + packed.rows
        wanted = (packed.rows >= 0) & np.isin(row_id, row_ids)
        return packed.pairs[wanted], row_id[wanted]

    def _pack_rows(
        self, pairs: dict[str, np.ndarray], row_of_pair: np.ndarray, num_rows: int
    ) -> dict[str, np.ndarray]:
        """Rows [num_rows, ...] of pairs that were made as rows of their own [n, ...]."""
        units = _units_of(pairs)
        plan = Plan(
            units=np.arange(len(units))[None],
            rows=row_of_pair[None],
            row_length=self._row_length,
            num_rows=np.array([num_rows]),
            units_a_row=self._pairs_a_row,
            tokens=len(units.sequences.ids))
        batch = packed_batch(units, plan, 0, np.arange(num_rows))
        unit_index = batch.pop('unit_index')
        batch['example_weights'] = batch.pop('unit_weights')
        batch |= empty_rows({name: self.spec[name] for name in _SLOT_FEATURES}, num_rows)
        _fill_slots(batch, pairs, unit_index)
        return batch


def _units_of(pairs: dict[str, np.ndarray]) -> Units:
    """The pairs of unpacked rows, without padding."""
    is_real = pairs['sequence_ids'] > 0
    is_first = is_real & (pairs['segment_ids'] == 0)
    sequences = Sequences(
        ids=pairs['input_ids'][is_real],
        offsets=np.concatenate([[0], np.cumsum(is_real.sum(axis=1))]),
        first_lengths=is_first.sum(axis=1))
    return Units(sequences, labels={'next_sentence_labels': pairs['next_sentence_labels']})


def _fill_slots(
    batch: dict[str, np.ndarray], pairs: dict[str, np.ndarray], unit_index: np.ndarray
) -> None:
    """Fills the prediction slots of rows with the used slots of their pairs, pair after pair.

    Args:
      batch: packed rows, changed in place.
      pairs: unpacked rows.
      unit_index: [rows, K], which of the pairs are in a row, where `example_weights` is not 0.
    """
    row, index_in_row = np.nonzero(batch['example_weights'])
    unit = unit_index[row, index_in_row]
    start_column = batch['cls_positions'][row, index_in_row]
    is_used = pairs['masked_lm_weights'][unit] > 0
    first_slot = sum_before(row, is_used.sum(axis=1))

    placed, slot = np.nonzero(is_used)
    target = row[placed], first_slot[placed] + slot
    for name in _SLOT_FEATURES:
        batch[name][target] = pairs[name][unit[placed], slot]
    batch['masked_lm_positions'][target] += start_column[placed]
