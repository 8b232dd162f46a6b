"""Pre-training rows that hold several pairs each, as functions of their index.

The pairs of a step are packed in groups, each into its own share of the step's rows, so that any
row can be made without the others. The pairs that a share has no room for are left out: the next
epoch groups others.

    G: groups, U: pairs in a group, T: tokens of all pairs, M: masked positions of all pairs
"""

import math
from typing import NamedTuple

import numpy as np

from bert_jax.rows.examples import BatchSpec, Examples, Feature, empty_rows, grouped, pretrain_spec
from bert_jax.rows.packing import Limit, Plan, Shape, Units, pack, packed_batch, sum_before
from bert_jax.rows.sequences import Sequences, ranges
from bert_jax.runtime.errors import InputError

_GROUP = 1024  # pairs packed together; larger groups take longer
_TOKENS_A_PAIR = 32  # a row has room for one pair per so many tokens
_SAMPLED_PAIRS = 1 << 13
_MOST_LEFT_OUT = 0.1  # of the tokens of a step
_WELL_FILLED = 0.95  # of the places of a step's rows
_LEAST_WIDTH = 128  # columns of rows from which pairs are packed
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
      lengths: [G, U] int64 tokens of each pair; 0: there is no pair.
      slots: [G, U] int64 prediction slots of each pair.
      rows: [G, U] int32, the row of each pair among those of its group; -1: it has none.
    """

    pairs: np.ndarray
    lengths: np.ndarray
    slots: np.ndarray
    rows: np.ndarray

    @property
    def num_rows(self) -> np.ndarray:
        """[G]: the rows that each group needs."""
        return self.rows.max(axis=1) + 1

    @property
    def num_tokens(self) -> int:
        """Tokens of the pairs that are in rows."""
        return int(self.lengths[self.rows >= 0].sum())


class _Pairs(NamedTuple):
    """Pairs, without padding.

    Attributes:
      units: their tokens and labels.
      num_masked: [n] masked positions of each.
      positions: [M] int32, the places in their pairs of all masked positions, pair after pair.
      pieces: [M] int32, what stood there.
    """

    units: Units
    num_masked: np.ndarray
    positions: np.ndarray
    pieces: np.ndarray


class PackedExamples:
    """The packed rows of pre-training: row r of step s has the id s * num_rows + r.

    Attributes:
      spec: features of the rows.
      num_rows: of a step.
      lanes: of its pairs.
      filled: share of the places of a step's rows that hold tokens, in a sample.
      left_out: share of the tokens of a step's pairs for which there is no room, in the same one.
    """

    def __init__(self, examples: Examples, batch_size: int, num_rows: int):
        """Measures on a sample of pairs how well they fit the rows.

        Args:
          examples: unpacked; step s has those from s * batch_size on.
          batch_size: pairs in a step.
          num_rows: rows in a step, at most `batch_size`.

        Raises:
          InputError: over a tenth of the tokens would be left out.
        """
        (self._row_length,) = examples.spec['input_ids'].shape
        (self._slots,) = examples.spec['masked_lm_ids'].shape
        self.spec = packed_spec(self._row_length, self._slots)
        (self._pairs_a_row,) = self.spec['cls_positions'].shape
        self.num_rows = num_rows
        self.lanes = examples.lanes
        self._examples = examples
        self._batch_size = batch_size
        self._num_groups = -(-batch_size // _GROUP)
        # Where the share of each group of a step begins, with the end of the last: [groups + 1].
        group = np.arange(self._num_groups + 1)
        self._first_pair = group * batch_size // self._num_groups
        self._first_row = group * num_rows // self._num_groups
        self._measure()
        examples.forget()  # the sample is of all lanes, and of the first steps

    def _measure(self) -> None:
        """Packs a sample of groups and notes how well they fit; refuses too few rows."""
        num_groups = self._num_groups
        sample_size = max(2, num_groups, num_groups * _SAMPLED_PAIRS // self._batch_size)
        steps, groups = np.divmod(np.arange(sample_size), num_groups)
        whole = self._pack_all(steps, groups)
        packed = self._limited(whole, groups)
        num_places = np.diff(self._first_row)[groups].sum() * self._row_length
        self.filled = packed.num_tokens / float(num_places)
        self.left_out = 1 - packed.num_tokens / whole.num_tokens
        self._rows_needed = num_groups * float(whole.num_rows.mean())
        if self.left_out <= _MOST_LEFT_OUT:
            return
        enough = '0 for a row each'
        if self._rows_needed < self._batch_size:
            enough = f'{math.ceil(self._rows_needed)} or more, or to {enough}'
        raise InputError(
            f'config.train.packed_rows={self.num_rows} are too few: {self.left_out:.0%} of the '
            f'tokens of the {self._batch_size} sequences of a step have no room. Set it to '
            f'{enough}; or take a batch of {self._best_batch_size}')

    @property
    def _best_batch_size(self) -> int:
        """About how many pairs fill the rows."""
        return int(self._batch_size * self.num_rows / self._rows_needed)

    def summary(self) -> str:
        """How well the rows are filled, and what would fill them, in a line."""
        text = (f'{self.filled:.1%} of the {self.num_rows:,} rows of {self._row_length:,} is '
                f'filled by {self._batch_size:,} sequences')
        if self.left_out > 0:
            text += f'; {self.left_out:.1%} of their tokens have no room and are left out'
        if self.filled < _WELL_FILLED and self._best_batch_size > self._batch_size:
            text += f'; a batch of {self._best_batch_size:,} would fill them'
        return text

    def _pack_all(self, steps_G: np.ndarray, groups_G: np.ndarray) -> _PackedGroups:
        """Packs the pairs of some groups of some steps, into as many rows as they need."""
        index = np.arange(np.diff(self._first_pair).max())
        pair_of_step = self._first_pair[groups_G, None] + index
        is_real = pair_of_step < self._first_pair[groups_G + 1, None]
        pairs = steps_G[:, None] * self._batch_size + pair_of_step
        lengths = np.zeros(pairs.shape, np.int64)
        slots = np.zeros(pairs.shape, np.int64)
        lengths[is_real], slots[is_real] = self._examples.sizes(pairs[is_real])
        return _PackedGroups(pairs, lengths, slots, self._rows_of(lengths, slots))

    def _limited(self, whole: _PackedGroups, groups_G: np.ndarray) -> _PackedGroups:
        """Leaves out what the groups' shares of a step's rows have no room for.

        Of a group that needs more rows, only the first pairs are packed, as many as have tokens for
        its share; what best fit still puts into further rows is left out too. So which pairs are
        left out depends little on their lengths.
        """
        share_G = np.diff(self._first_row)[groups_G]
        is_too_long = whole.num_rows > share_G
        if not is_too_long.any():
            return whole
        lengths = whole.lengths[is_too_long]
        capacity = share_G[is_too_long, None] * self._row_length
        first = np.where(np.cumsum(lengths, axis=1) <= capacity, lengths, 0)
        rows = whole.rows.copy()
        rows[is_too_long] = self._rows_of(first, whole.slots[is_too_long])
        rows[rows >= share_G[:, None]] = -1
        return whole._replace(rows=rows)

    def _rows_of(self, lengths: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """`packing.pack` for pairs [G, U] of these tokens, 0 for none, and prediction slots."""
        is_real = lengths > 0
        limits = [
            Limit(np.where(is_real, slots, 0), self._slots),
            Limit(is_real.astype(np.int64), self._pairs_a_row),
        ]
        return pack(lengths, self._row_length, limits)

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of these ids [n], ascending."""
        row_ids = np.asarray(row_ids, np.int64)
        packed, row_id = self._packed(row_ids)
        wanted = (packed.rows >= 0) & np.isin(row_id, row_ids)
        pairs = self._make(packed.pairs[wanted], packed.lengths[wanted])
        row_of_pair = np.searchsorted(row_ids, row_id[wanted])
        return self._pack_rows(pairs, row_of_pair, len(row_ids))

    def _packed(self, row_ids: np.ndarray) -> tuple[_PackedGroups, np.ndarray]:
        """The groups that these rows belong to, and the id [G, U] of the row of each pair."""
        steps, row_of_step = np.divmod(row_ids, self.num_rows)
        groups = np.searchsorted(self._first_row, row_of_step, 'right') - 1
        steps, groups = np.unique(np.stack([steps, groups]), axis=1)
        packed = self._limited(self._pack_all(steps, groups), groups)
        first_row_id = steps * self.num_rows + self._first_row[groups]
        return packed, first_row_id[:, None] + packed.rows

    def _make(self, pair_ids: np.ndarray, lengths: np.ndarray) -> _Pairs:
        """Makes the pairs of these ids [n] and lengths [n].

        Those of about the same length are made together, in rows hardly longer, because a row of
        8,192 may hold dozens of pairs.
        """
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ids = np.empty(offsets[-1], np.int32)
        first_lengths = np.empty(len(lengths), np.int64)
        labels = np.empty(len(lengths), np.int32)
        masked = _MaskedPositions()
        for width, here in grouped(_widths(lengths, self._row_length)):
            made = self._examples.rows(pair_ids[here], width=width)
            is_real = made['sequence_ids'] > 0
            ids[ranges(offsets[here], lengths[here])] = made['input_ids'][is_real]
            first_lengths[here] = (is_real & (made['segment_ids'] == 0)).sum(axis=1)
            labels[here] = made['next_sentence_labels']
            masked.add(here, made)
        sequences = Sequences.of_segments(ids, offsets, first_lengths)
        units = Units(sequences, labels={'next_sentence_labels': labels})
        return _Pairs(units, *masked.in_order(len(lengths)))

    def _pack_rows(
        self, pairs: _Pairs, row_of_pair: np.ndarray, num_rows: int
    ) -> dict[str, np.ndarray]:
        """Rows [num_rows, ...] of these pairs."""
        shape = Shape(num_rows, self._row_length, self._pairs_a_row)
        plan = Plan.of_rows(pairs.units.lengths, row_of_pair, shape)
        batch = packed_batch(pairs.units, plan, 0, np.arange(num_rows))
        unit_index = batch.pop('unit_index')
        batch['example_weights'] = batch.pop('unit_weights')
        batch |= empty_rows({name: self.spec[name] for name in _SLOT_FEATURES}, num_rows)
        _fill_slots(batch, pairs, unit_index)
        return batch


def _widths(lengths: np.ndarray, row_length: int) -> np.ndarray:
    """The numbers of columns [n] to make pairs of these lengths [n] with: few different ones."""
    widths = np.full(len(lengths), row_length)
    narrower = row_length // 2
    while narrower >= _LEAST_WIDTH:
        widths[lengths <= narrower] = narrower
        narrower //= 2
    return widths


class _MaskedPositions:
    """The masked positions of pairs that are made in several calls."""

    def __init__(self) -> None:
        # Begun with nothing, because a host's rows may hold no pair.
        self._pair = [np.zeros(0, np.int64)]
        self._positions = [np.zeros(0, np.int32)]
        self._pieces = [np.zeros(0, np.int32)]

    def add(self, pairs: np.ndarray, made: dict[str, np.ndarray]) -> None:
        """Adds those of the pairs of these numbers [n], which were made as rows of their own."""
        is_used = made['masked_lm_weights'] > 0
        self._pair.append(np.repeat(pairs, is_used.sum(axis=1)))
        self._positions.append(made['masked_lm_positions'][is_used])
        self._pieces.append(made['masked_lm_ids'][is_used])

    def in_order(self, num_pairs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`num_masked`, `positions` and `pieces` of `_Pairs`."""
        pair = np.concatenate(self._pair)
        order = np.argsort(pair, kind='stable')
        positions = np.concatenate(self._positions)[order]
        pieces = np.concatenate(self._pieces)[order]
        return np.bincount(pair, minlength=num_pairs), positions, pieces


def _fill_slots(
    batch: dict[str, np.ndarray], pairs: _Pairs, unit_index: np.ndarray
) -> None:
    """Fills the prediction slots of rows with the masked positions of their pairs, in their order.

    Args:
      batch: packed rows, changed in place.
      pairs: what is packed.
      unit_index: [rows, K], which of the pairs are in a row, where `example_weights` is not 0.
    """
    row, index_in_row = np.nonzero(batch['example_weights'])
    unit = unit_index[row, index_in_row]
    start_column = batch['cls_positions'][row, index_in_row]
    counts = pairs.num_masked[unit]
    first_of_unit = np.cumsum(pairs.num_masked) - pairs.num_masked
    source = ranges(first_of_unit[unit], counts)
    target = np.repeat(row, counts), ranges(sum_before(row, counts), counts)
    batch['masked_lm_ids'][target] = pairs.pieces[source]
    batch['masked_lm_positions'][target] = (
        pairs.positions[source] + np.repeat(start_column, counts))
    batch['masked_lm_weights'][target] = 1
