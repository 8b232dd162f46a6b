"""Packing of sequences into rows; pre-training pairs packed into rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bert_jax.data.examples import BatchSpec, Examples, empty_rows, packed_pretrain_spec
from bert_jax.runtime.errors import InputError

_NOT = np.iinfo(np.int64).max


def pack(
    lengths_GxU: np.ndarray, row_length: int, limits: Sequence[tuple[np.ndarray, int]] = ()
) -> np.ndarray:
    """Assigns the units of each group to rows [G, U] by best fit, longest first.

    Groups are packed separately, in one vectorised pass.

    Args:
      lengths_GxU: tokens of each unit, at most `row_length`; 0: no unit (its row is -1).
      row_length: capacity of a row in tokens.
      limits: further resources: units' demands [G, U] and a row's capacity, enough for any unit.
    """
    num_groups, size = lengths_GxU.shape
    order = np.argsort(-lengths_GxU, axis=1, kind='stable')
    groups = np.arange(num_groups)
    rows = np.full(lengths_GxU.shape, -1, np.int32)
    needs = [(lengths_GxU, row_length), *limits]
    # Room left in each row. Best fit takes an empty row last; eight are added when none fits.
    free = [np.full((num_groups, min(size, 8)), holds, np.int64) for _, holds in needs]
    for i in range(size):
        unit = order[:, i]
        taken = [need[groups, unit] for need, _ in needs]
        left = _left(free, taken)
        while (left == _NOT).all(axis=1).any():
            free = [
                np.pad(room, ((0, 0), (0, 8)), constant_values=holds)
                for room, (_, holds) in zip(free, needs, strict=True)
            ]
            left = _left(free, taken)
        best = np.argmin(left, axis=1)
        real = taken[0] > 0
        rows[groups[real], unit[real]] = best[real]
        for room, need in zip(free, taken, strict=True):
            room[groups[real], best[real]] -= need[real]
    return rows


def _left(free: list[np.ndarray], taken: list[np.ndarray]) -> np.ndarray:
    """Tokens [G, rows] left in each row with the unit; `_NOT` if it does not fit."""
    left = free[0] - taken[0][:, None]
    for room, need in zip(free, taken, strict=True):
        left = np.where(room < need[:, None], _NOT, left)
    return left


_GROUP = 1024  # pairs packed together; larger groups take longer
_TOKENS_A_PAIR = 32  # a row holds one pair for each so many tokens
_SAMPLED_PAIRS = 1 << 13
_DEVIATIONS = 6  # standard deviations of rows in reserve: one group in a billion needs more


def packed_spec(max_seq_length: int, max_predictions_per_seq: int) -> BatchSpec:
    """The spec of packed rows."""
    pairs_a_row = max(1, max_seq_length // _TOKENS_A_PAIR)
    return packed_pretrain_spec(max_seq_length, max_predictions_per_seq, pairs_a_row)


class PackedExamples:
    """The rows of all steps: row r of step s has the id s * num_rows + r."""

    def __init__(self, examples: Examples, batch_size: int, num_rows: int):
        """Checks with the lengths of some steps that the rows suffice.

        Args:
          examples: unpacked; step s has those from s * batch_size on.
          batch_size: pairs a step.
          num_rows: rows a step, at most `batch_size`.

        Raises:
          InputError: the pairs of a step do not fit into so many rows.
        """
        (self._length,) = examples.spec['input_ids'].shape
        (self._slots,) = examples.spec['masked_lm_ids'].shape
        self.spec = packed_spec(self._length, self._slots)
        (self._pairs_a_row,) = self.spec['cls_positions'].shape
        self._examples, self._batch_size, self.num_rows = examples, batch_size, num_rows
        groups = np.arange(-(-batch_size // _GROUP) + 1)
        self._first_pair = groups * batch_size // groups[-1]
        self._first_row = groups * num_rows // groups[-1]
        self._check()

    def _check(self) -> None:
        groups = len(self._first_pair) - 1
        sampled = np.arange(max(2, groups, groups * _SAMPLED_PAIRS // self._batch_size))
        _, _, rows = self._pack(sampled // groups, sampled % groups)
        needed = rows.max(axis=1) + 1
        most = groups * (needed.mean() + _DEVIATIONS * needed.std())
        if most > self.num_rows:
            raise InputError(
                f'config.train.packed_rows={self.num_rows} are too few: the {self._batch_size} '
                f'sequences of a step fill {groups * needed.min()} to {groups * needed.max()} rows '
                f'of {self._length} tokens. Set it to '
                + (f'{math.ceil(most)} or more, or to ' if most < self._batch_size else '')
                + '0 for a row each'
            )

    def _pack(
        self, steps_G: np.ndarray, groups_G: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(numbers of the pairs [G, U] in their step, which are real, rows [G, U] in the group)."""
        first = self._first_pair[groups_G, None]
        pairs = first + np.arange(np.diff(self._first_pair).max())
        real = pairs < self._first_pair[groups_G + 1, None]
        lengths, slots = np.zeros((2, *pairs.shape), np.int64)
        lengths[real], slots[real] = self._examples.sizes(
            (steps_G[:, None] * self._batch_size + pairs)[real]
        )
        rows = pack(
            lengths, self._length,
            [(slots, self._slots), (real.astype(np.int64), self._pairs_a_row)],
        )
        return pairs, real, rows

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of these ids [n], ascending.

        Raises:
          InputError: the pairs of a step need more rows than there are.
        """
        row_ids = np.asarray(row_ids, np.int64)
        steps, row = row_ids // self.num_rows, row_ids % self.num_rows
        group = np.searchsorted(self._first_row, row, 'right') - 1
        needed = np.unique(np.stack([steps, group]), axis=1)
        pairs, real, rows = self._pack(*needed)
        room = np.diff(self._first_row)[needed[1]]
        if (short := rows.max(axis=1) >= room).any():
            raise InputError(
                f'config.train.packed_rows={self.num_rows} are too few for step '
                f'{needed[0, short][0]} of the phase: set it a little higher. The run goes on from '
                'its last save'
            )
        row_of = (needed[0] * self.num_rows + self._first_row[needed[1]])[:, None] + rows
        pair_of = needed[0][:, None] * self._batch_size + pairs
        wanted = real & np.isin(row_of, row_ids)
        at = np.searchsorted(row_ids, row_of[wanted])
        order = np.lexsort((pair_of[wanted], at))
        return self._joined(self._examples.rows(pair_of[wanted][order]), at[order], len(row_ids))

    def _joined(
        self, pairs: dict[str, np.ndarray], at_m: np.ndarray, num_rows: int
    ) -> dict[str, np.ndarray]:
        """Pairs one after the other in the rows `at`, ascending."""
        batch = empty_rows(self.spec, num_rows)
        first = np.searchsorted(at_m, at_m)

        def before(sizes: np.ndarray) -> np.ndarray:
            """The places taken in its row by the pairs before each."""
            total = np.cumsum(sizes) - sizes
            return total - total[first]

        start = before(pairs['sequence_ids'].sum(axis=1))
        number = np.arange(len(at_m)) - first
        pair, position = np.nonzero(pairs['sequence_ids'])
        token = at_m[pair], start[pair] + position
        for name in ('input_ids', 'segment_ids'):
            batch[name][token] = pairs[name][pair, position]
        batch['sequence_ids'][token] = number[pair] + 1
        batch['position_ids'][token] = position
        used = pairs['masked_lm_weights'] > 0
        pair, slot = np.nonzero(used)
        place = at_m[pair], before(used.sum(axis=1))[pair] + slot
        for name in ('masked_lm_ids', 'masked_lm_weights'):
            batch[name][place] = pairs[name][pair, slot]
        batch['masked_lm_positions'][place] = pairs['masked_lm_positions'][pair, slot] + start[pair]
        batch['cls_positions'][at_m, number] = start
        for name in ('next_sentence_labels', 'example_weights'):
            batch[name][at_m, number] = pairs[name]
        return batch
