"""Sequences packed into rows, so that little work is spent on padding.

A *unit* is what must stay together in a row: a sequence, a pre-training pair, the choices of a
question. A plan depends on lengths only; batches are then filled in by index. Packing changes no
score: each sequence attends only to itself and has its own positions. (Krell et al., 2021, pack
for pre-training; here fine-tuning and evaluation do too.)

    n: units, G: groups, U: units in a group (a training step), R: rows, S: row length, K: units in
    a row, T: tokens of all units
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_jax.data.examples import BatchSpec, Examples, Feature, empty_rows, pretrain_spec
from bert_jax.data.pairs import Sequences, ranges
from bert_jax.runtime.errors import InputError

MAX_SHAPES = 4
_SHAPE_GAIN = 0.02  # a further shape is worth compiling if it saves this share of the work
_MAX_COUNTS = 200  # row counts to choose shapes from; the search is quadratic in them
_SAMPLED_STEPS = 256  # steps by which the row length is chosen
_NO_ROOM = np.iinfo(np.int64).max


def pack(
    lengths_GxU: np.ndarray, row_length: int, limits: Sequence[tuple[np.ndarray, int]] = ()
) -> np.ndarray:
    """Assigns the units of each group to rows (int32 [G, U]) by best fit, longest first.

    Groups are packed separately, in one vectorised pass.

    Args:
      lengths_GxU: tokens of each unit, at most `row_length`; 0: no unit (its row is -1).
      row_length: capacity of a row in tokens.
      limits: further resources, as (demand of each unit [G, U], capacity of a row). A row must
        have room for any single unit.
    """
    demands = np.stack([lengths_GxU, *(demand for demand, _ in limits)])
    capacity = np.array([row_length, *(capacity for _, capacity in limits)])[:, None, None]
    groups = np.arange(len(lengths_GxU))
    rows = np.full(lengths_GxU.shape, -1, np.int32)
    empty = np.broadcast_to(capacity, (len(demands), len(groups), 8))
    free = empty.copy()  # room left in each row [resources, G, rows]
    for unit in np.argsort(-lengths_GxU, axis=1, kind='stable').T:
        demand = demands[:, groups, unit]
        while True:  # best fit uses empty rows last; eight are added when none fits
            fits = np.all(free >= demand[:, :, None], axis=0)
            best = np.where(fits, free[0], _NO_ROOM).argmin(axis=1)
            if np.all(fits[groups, best]):
                break
            free = np.concatenate([free, empty], axis=2)
        real = demand[0] > 0
        rows[groups[real], unit[real]] = best[real]
        free[:, groups[real], best[real]] -= demand[:, real]
    return rows


def pack_whole(lengths_n: np.ndarray, row_length: int) -> np.ndarray:
    """Assigns units to rows (int32 [n]), exactly as `pack` does when they form one group.

    Units of equal length are placed together: the open rows, fullest first, each take as many as
    they hold, which is where best fit would put them one by one. So the number of passes is the
    number of distinct lengths, however large the set.

    Args:
      lengths_n: tokens of each unit, from 1 to `row_length`, in any order.
      row_length: capacity of a row in tokens.
    """
    order = np.argsort(-lengths_n, kind='stable')
    lengths, counts = np.unique(lengths_n, return_counts=True)
    rows = np.empty(len(order), np.int32)
    free = np.empty(len(order), np.int64)  # room left in each of the rows that are open
    num_open = placed = 0
    for length, count in zip(lengths[::-1].tolist(), counts[::-1].tolist()):
        fits = np.flatnonzero(free[:num_open] >= length)
        fits = fits[np.argsort(free[fits], kind='stable')]
        capacity = free[fits] // length
        taken = np.clip(count - (np.cumsum(capacity) - capacity), 0, capacity)
        free[fits] -= taken * length
        new = num_open + np.arange(count - int(taken.sum())) // (row_length // length)
        used = np.bincount(new - num_open)
        free[num_open : num_open + len(used)] = row_length - used * length
        rows[order[placed : placed + count]] = np.concatenate([np.repeat(fits, taken), new])
        num_open, placed = num_open + len(used), placed + count
    return rows


@dataclasses.dataclass(frozen=True)
class Units:
    """Tokenized examples of a task.

    Attributes:
      sequences: the sequences of all units, `choices` consecutive ones per unit.
      choices: sequences per unit (4 for SWAG, else 1).
      labels: arrays [n, ...], one entry per unit; batches add `unit_index` and `unit_weights`.
      positions: arrays [n] of token positions within the unit, which become positions in the row.
      tokens: arrays [T, ...], one entry per token of `sequences`.
    """

    sequences: Sequences
    choices: int = 1
    labels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    positions: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    tokens: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sequences) // self.choices

    @property
    def lengths(self) -> np.ndarray:
        """[n] int64: tokens of each unit."""
        return np.diff(self.sequences.offsets[:: self.choices])

    def contents(self) -> list[bytes]:
        """The tokens of each unit, to tell which of two sets are the same."""
        ends = self.sequences.offsets[self.choices :: self.choices]
        return [x.tobytes() for x in np.split(self.sequences.ids.astype(np.int32), ends[:-1])]

    def digest(self) -> str:
        """16 hexadecimal digits that change with the content."""
        digest = hashlib.blake2b(digest_size=8)
        s = self.sequences
        for part in ({'ids': s.ids, 'offsets': s.offsets, 'first': s.first_lengths}, self.labels,
                     self.positions, self.tokens):
            for name, x in sorted(part.items()):
                digest.update(f'{name} {x.dtype} {x.shape}'.encode())
                digest.update(np.ascontiguousarray(x).tobytes())
        return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Plan:
    """The row of every unit, for every step.

    Attributes:
      units: [steps, U] int64, the units of each step; -1: none.
      rows: [steps, U] int32, the row of each of them; -1: none.
      row_length: S.
      num_rows: [steps] int64, R of each step; at most MAX_SHAPES different values.
      units_a_row: K.
      tokens: real tokens of all steps.
    """

    units: np.ndarray
    rows: np.ndarray
    row_length: int
    num_rows: np.ndarray
    units_a_row: int
    tokens: int

    @property
    def padding(self) -> float:
        """Share of the processed tokens that is padding."""
        return 1.0 - self.tokens / float(self.num_rows.sum() * self.row_length)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(R, S) of all compiled programs."""
        return [(int(rows), self.row_length) for rows in np.unique(self.num_rows)]


def plan_steps(
    lengths_n: np.ndarray, units: np.ndarray, *, row_lengths: Sequence[int], shards: int,
    token_cost: Callable[[int], float],
) -> Plan:
    """Packs each step separately, with the row length that costs least.

    Args:
      lengths_n: tokens of each unit.
      units: [steps, U] int64, the units of each step; -1 is none.
      row_lengths: to choose from; those below the longest unit are raised to its length.
      shards: the number of rows in a step is a multiple of it.
      token_cost: from a row length S to the work on one token (FLOPs of the model, say).
    """
    lengths = np.where(units >= 0, lengths_n[units], 0)
    longest = int(lengths.max())

    def attempt(lengths: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray]:
        rows = pack(lengths, row_length)
        needed = -(-(rows.max(axis=1).astype(np.int64) + 1) // shards)  # of each shard
        return rows, shards * _few_values(np.maximum(needed, 1))

    def cost(row_length: int) -> float:
        _, num_rows = attempt(lengths[:_SAMPLED_STEPS], row_length)
        return float(num_rows.sum()) * row_length * token_cost(row_length)

    row_length = min(sorted({max(s, longest) for s in row_lengths}), key=cost)
    rows, num_rows = attempt(lengths, row_length)
    keys = (np.arange(len(rows))[:, None] * (int(num_rows.max()) + 1) + rows)[rows >= 0]
    units_a_row = int(np.unique(keys, return_counts=True)[1].max())
    return Plan(units, rows, row_length, num_rows, units_a_row, int(lengths.sum()))


def _few_values(needed: np.ndarray) -> np.ndarray:
    """Rounds `needed` up to a few of its values: at most MAX_SHAPES, each worth its compilation."""
    if len(np.unique(needed)) > _MAX_COUNTS:
        step = -(-int(needed.max()) // _MAX_COUNTS)
        needed = -(-needed // step) * step
    found, counts = np.unique(needed, return_counts=True)
    values, before = found.tolist(), [0, *np.cumsum(counts).tolist()]
    # For each value, the best (total rows, values kept) of the steps that need at most that many
    # rows. Each round of the loop below allows one more shape.
    plans = [(value * before[i + 1], (value,)) for i, value in enumerate(values)]
    best = plans[-1]
    for _ in range(1, MAX_SHAPES):
        plans = [
            min([plans[i], *(
                (plans[j][0] + value * (before[i + 1] - before[j + 1]), (*plans[j][1], value))
                for j in range(i))], key=lambda plan: plan[0])
            for i, value in enumerate(values)]
        if plans[-1][0] > best[0] * (1 - _SHAPE_GAIN):
            break
        best = plans[-1]
    return np.array(best[1])[np.searchsorted(best[1], needed)]


def plan_once(
    lengths_n: np.ndarray, rows_n: np.ndarray, *, row_length: int, rows_a_step: int,
    units_a_row: int,
) -> Plan:
    """Every unit once, in steps of `rows_a_step` rows, so that there is one shape.

    Args:
      lengths_n: tokens of each unit.
      rows_n: their rows, numbered from 0 without gaps (`pack_whole`).
      row_length: S.
      rows_a_step: R; rows at the end of the last step may be empty.
      units_a_row: K, at least the number of units in the fullest row.
    """
    units = np.argsort(rows_n, kind='stable')
    step, row = np.divmod(rows_n[units].astype(np.int64), rows_a_step)
    per_step = np.bincount(step)
    column = np.arange(len(step)) - np.repeat(np.cumsum(per_step) - per_step, per_step)
    units_of = np.full((len(per_step), int(per_step.max())), -1, np.int64)
    rows_of = np.full(units_of.shape, -1, np.int32)
    units_of[step, column], rows_of[step, column] = units, row
    return Plan(
        units_of, rows_of, row_length, np.full(len(per_step), rows_a_step), units_a_row,
        int(lengths_n.sum()))


def _place(units: Units, plan: Plan, step: int, local: np.ndarray) -> tuple[np.ndarray, ...]:
    """The places of the u units in a step's `local` rows, by row, and of their t tokens.

    Returns:
      unit, row, number, start: [u] the unit, its row (an index into `local`), its number in that
        row, its first column.
      source, at: [t] index into the flat tokens, and into the flattened local rows.
    """
    here = np.isin(plan.rows[step], local)
    unit, row = plan.units[step][here], np.searchsorted(local, plan.rows[step][here])
    by_row = np.lexsort((unit, row))
    unit, row = unit[by_row], row[by_row]
    begin = units.sequences.offsets[unit * units.choices]
    lengths = units.sequences.offsets[(unit + 1) * units.choices] - begin
    number, start = _before(row, np.ones_like(row)), _before(row, lengths)
    at = ranges(row * plan.row_length + start, lengths)
    return unit, row, number, start, ranges(begin, lengths), at


def _before(row: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The sum of the sizes of earlier entries of the same row; `row` is ascending."""
    total = np.cumsum(sizes) - sizes
    return total - total[np.searchsorted(row, row)]


def packed_batch(units: Units, plan: Plan, step: int, local: np.ndarray) -> dict[str, np.ndarray]:
    """This host's rows of a step; `model.encoder.Bert` explains `sequence_ids` and the like.

    Args:
      units: what `plan` was made for.
      plan: where units go.
      step: row of the plan.
      local: which of the step's `num_rows[step]` rows are wanted, ascending.

    Returns:
      Features of tokens [len(local), S, ...] and of units [len(local), K, ...]; `cls_positions` is
      [len(local), K * choices].
    """
    unit, row, number, start, source, at = _place(units, plan, step, local)
    sequences, c, k = units.sequences, units.choices, plan.units_a_row
    sequence = unit[:, None] * c + np.arange(c)
    begin = sequences.offsets[sequence]
    counts = (sequences.offsets[sequence + 1] - begin).reshape(-1)
    position = source - np.repeat(begin.reshape(-1), counts)
    of_tokens = {
        'input_ids': sequences.ids[source],
        'sequence_ids': np.repeat(
            (number[:, None] * c + np.arange(c) + 1).reshape(-1), counts).astype(np.int32),
        'segment_ids': (position >= np.repeat(
            sequences.first_lengths[sequence].reshape(-1), counts)).astype(np.int32),
        'position_ids': position.astype(np.int32),
        **{name: x[source] for name, x in units.tokens.items()},
    }
    of_units = {
        'cls_positions': (start[:, None] + begin - begin[:, :1]).astype(np.int32),
        'unit_index': unit.astype(np.int32),
        'unit_weights': np.ones(len(unit), np.float32),
        **{name: x[unit] for name, x in units.labels.items()},
        **{name: (x[unit] + start).astype(np.int32) for name, x in units.positions.items()},
    }
    batch = {}
    for name, x in of_tokens.items():
        batch[name] = np.zeros((len(local), plan.row_length, *x.shape[1:]), x.dtype)
        batch[name].reshape(-1, *x.shape[1:])[at] = x
    for name, x in of_units.items():
        batch[name] = np.zeros((len(local), k, *x.shape[1:]), x.dtype)
        batch[name][row, number] = x
    batch['cls_positions'] = batch['cls_positions'].reshape(len(local), k * c)
    return batch


def unpack(
    units: Units, plan: Plan, step: int, outputs: Mapping[str, np.ndarray],
    collected: dict[str, np.ndarray],
) -> None:
    """Puts a step's outputs back into the order of `units`.

    Args:
      units, plan, step: those that the batch was made of.
      outputs: arrays of all rows of the step, per token [R, S, ...] or per unit [R, K, ...].
      collected: receives them as arrays [T, ...] or [n, ...].
    """
    unit, row, number, _, source, at = _place(units, plan, step, np.arange(plan.num_rows[step]))
    for name, x in outputs.items():
        # K = S would need a row full of one-token units, which [CLS] and [SEP] rule out.
        if x.shape[1] == plan.row_length:
            count, index = len(units.sequences.ids), source
            values = x.reshape(-1, *x.shape[2:])[at]
        else:
            count, index, values = len(units), unit, x[row, number]
        if name not in collected:
            collected[name] = np.zeros((count, *values.shape[1:]), values.dtype)
        collected[name][index] = values


_GROUP = 1024  # pairs packed together; larger groups take longer
_TOKENS_A_PAIR = 32  # a row has room for one pair per so many tokens
_SAMPLED_PAIRS = 1 << 13
_DEVIATIONS = 6  # rows in reserve, in standard deviations: one group in a billion needs more
_OF_SLOTS = ('masked_lm_ids', 'masked_lm_weights', 'masked_lm_positions')


def packed_spec(max_seq_length: int, max_predictions_per_seq: int) -> BatchSpec:
    """`pretrain_spec` for rows of several pairs, which share the row's prediction slots.

    `sequence_ids` number the pairs from 1, `position_ids` start at 0 in each pair, `cls_positions`
    are the columns where pairs start.
    """
    k = (max(1, max_seq_length // _TOKENS_A_PAIR),)
    return dict(pretrain_spec(max_seq_length, max_predictions_per_seq)) | {
        'position_ids': Feature((max_seq_length,), np.int32),
        'cls_positions': Feature(k, np.int32),
        'next_sentence_labels': Feature(k, np.int32),
        'example_weights': Feature(k, np.float32),
    }


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
        (self._length,), (self._slots,) = (
            examples.spec[name].shape for name in ('input_ids', 'masked_lm_ids'))
        self.spec = packed_spec(self._length, self._slots)
        (self._pairs_a_row,) = self.spec['cls_positions'].shape
        self._examples, self._batch_size, self.num_rows = examples, batch_size, num_rows
        groups = -(-batch_size // _GROUP)
        self._first_pair = np.arange(groups + 1) * batch_size // groups
        self._first_row = np.arange(groups + 1) * num_rows // groups
        sampled = np.arange(max(2, groups, groups * _SAMPLED_PAIRS // batch_size))
        _, rows = self._pack(sampled // groups, sampled % groups)
        needed = rows.max(axis=1) + 1
        most = groups * (needed.mean() + _DEVIATIONS * needed.std())
        if most > num_rows:
            enough = f'{math.ceil(most)} or more, or to ' if most < batch_size else ''
            raise InputError(
                f'config.train.packed_rows={num_rows} are too few: the {batch_size} sequences of '
                f'a step fill {groups * needed.min()} to {groups * needed.max()} rows of '
                f'{self._length} tokens. Set it to {enough}0 for a row each')

    def _pack(self, steps_G: np.ndarray, groups_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids of the pairs [G, U], their rows [G, U] in the group, -1: none)."""
        pairs = self._first_pair[groups_G, None] + np.arange(np.diff(self._first_pair).max())
        real = pairs < self._first_pair[groups_G + 1, None]
        pairs += steps_G[:, None] * self._batch_size
        lengths, slots = np.zeros((2, *pairs.shape), np.int64)
        lengths[real], slots[real] = self._examples.sizes(pairs[real])
        limits = [(slots, self._slots), (real.astype(np.int64), self._pairs_a_row)]
        return pairs, pack(lengths, self._length, limits)

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of these ids [n], ascending.

        Raises:
          InputError: the pairs of a step need more rows than there are.
        """
        row_ids = np.asarray(row_ids, np.int64)
        steps, row = np.divmod(row_ids, self.num_rows)
        group = np.searchsorted(self._first_row, row, 'right') - 1
        steps, group = np.unique(np.stack([steps, group]), axis=1)
        ids, rows = self._pack(steps, group)
        if (short := rows.max(axis=1) >= np.diff(self._first_row)[group]).any():
            raise InputError(f'config.train.packed_rows={self.num_rows} are too few for step '
                             f'{steps[short][0]} of the phase: set it higher, the run goes on')
        row_of = (steps * self.num_rows + self._first_row[group])[:, None] + rows
        wanted = (rows >= 0) & np.isin(row_of, row_ids)
        pairs = self._examples.rows(ids[wanted])

        real = pairs['sequence_ids'] > 0
        sequences = Sequences(
            pairs['input_ids'][real], np.concatenate([[0], np.cumsum(real.sum(axis=1))]),
            (real & (pairs['segment_ids'] == 0)).sum(axis=1))
        units = Units(sequences, labels={'next_sentence_labels': pairs['next_sentence_labels']})
        plan = Plan(
            np.arange(len(units))[None], np.searchsorted(row_ids, row_of[wanted])[None],
            self._length, np.array([len(row_ids)]), self._pairs_a_row, len(sequences.ids))
        batch = packed_batch(units, plan, 0, np.arange(len(row_ids)))
        row, number = np.nonzero(batch['unit_weights'])
        unit = batch.pop('unit_index')[row, number]
        batch['example_weights'] = batch.pop('unit_weights')
        # A row's prediction slots hold the used slots of its pairs, one pair after another.
        batch |= empty_rows({name: self.spec[name] for name in _OF_SLOTS}, len(row_ids))
        used = pairs['masked_lm_weights'][unit] > 0
        pair, slot = np.nonzero(used)
        place = row[pair], _before(row, used.sum(axis=1))[pair] + slot
        for name in _OF_SLOTS:
            batch[name][place] = pairs[name][unit[pair], slot]
        batch['masked_lm_positions'][place] += batch['cls_positions'][row, number][pair]
        return batch
