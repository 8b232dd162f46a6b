"""Sequences packed into rows, so that little work is spent on padding.

A *unit* is what must stay together in a row: a sequence, a pre-training pair, the choices of a
question. `pack` finds the rows of units, for all that packs; a `Planner` chooses the shapes of the
steps of a task, or of a set that is predicted. Both see lengths only; batches are then filled in
by index. Packing changes no score: each sequence attends only to itself and has its own positions.
(Krell et al., 2021, pack for pre-training; here fine-tuning and evaluation do too.)

    n: units, G: groups, U: units in a group (a training step), R: rows, S: row length, K: units in
    a row, T: tokens of all units
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from bert_jax.rows.sequences import Sequences, ranges

MAX_SHAPES = 4
_SHAPE_GAIN = 0.02  # a further shape is worth compiling if it saves this share of the work
_MAX_COUNTS = 200  # row counts to choose shapes from; the search is quadratic in them
_SAMPLED_STEPS = 256  # steps by which the row length is chosen
_ROWS_ADDED = 8  # empty rows that `pack` adds at a time
_NO_ROOM = np.iinfo(np.int64).max
# Of sets that are computed once:
_ROW_STEP = 64  # row lengths are multiples of it
_SHARED_ROWS = (256, 512)  # lengths of rows that several units share
# Tokens of a unit that fills up a long row: there are places for so many in all of it, though this
# set may not have them, so that its shape serves the next one.
_SHORT_UNIT = 32
# A new shape is compiled if the compiled ones cost more than this factor of its own cost plus this
# share of a full step's.
_NEW_SHAPE = 1.05
_NEW_SHAPE_STEPS = 0.5
_STEP_COST = 1 / 16  # fixed cost of any step, as a share of a full one


class Limit(NamedTuple):
    """A resource of rows besides their length.

    Attributes:
      demands: [G, U] integers, what each unit takes of it.
      capacity: of a row; at least the demand of any single unit.
    """

    demands: np.ndarray
    capacity: int


def pack(lengths_GxU: np.ndarray, row_length: int, limits: Sequence[Limit] = ()) -> np.ndarray:
    """Assigns the units of each group to rows (int32 [G, U]) by best fit, longest first.

    Groups are packed separately, in one vectorised pass over their units; a single group, which may
    be a whole set, in one over the lengths of its units, to the same rows.

    Args:
      lengths_GxU: tokens of each unit, at most `row_length`; 0: no unit (its row is -1).
      row_length: capacity of a row in tokens.
      limits: further resources.
    """
    if len(lengths_GxU) == 1 and not limits:
        return _pack_group(lengths_GxU[0], row_length)[None]
    demands = np.stack([lengths_GxU, *(limit.demands for limit in limits)])
    capacities = np.array([row_length, *(limit.capacity for limit in limits)])
    groups = np.arange(len(lengths_GxU))
    empty_shape = (len(demands), len(groups), _ROWS_ADDED)
    empty = np.broadcast_to(capacities[:, None, None], empty_shape)
    free = empty.copy()  # room left in each row [resources, G, rows]
    rows = np.full(lengths_GxU.shape, -1, np.int32)
    for unit in np.argsort(-lengths_GxU, axis=1, kind='stable').T:
        demand = demands[:, groups, unit]
        best, fits = _best_rows(free, demand)
        while not fits.all():
            free = np.concatenate([free, empty], axis=2)
            best, fits = _best_rows(free, demand)
        real = demand[0] > 0
        rows[groups[real], unit[real]] = best[real]
        free[:, groups[real], best[real]] -= demand[:, real]
    return rows


def _best_rows(free: np.ndarray, demand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The row of each group that is fullest among those with room, and whether there is one.

    Best fit uses empty rows last, so that rows are numbered without gaps.

    Args:
      free: [resources, G, rows], what is left in each row.
      demand: [resources, G] of one unit of each group.
    """
    fits = np.all(free >= demand[:, :, None], axis=0)
    best = np.where(fits, free[0], _NO_ROOM).argmin(axis=1)
    return best, fits[np.arange(len(best)), best]


def _pack_group(lengths_n: np.ndarray, row_length: int) -> np.ndarray:
    """`pack` of one group without limits: int32 [n].

    Units of equal length are placed together: the open rows, fullest first, each take as many as
    they hold, which is where best fit would put them one by one. So the number of passes is the
    number of distinct lengths, however large the set.
    """
    longest_first = np.argsort(-lengths_n, kind='stable')
    lengths, counts = np.unique(lengths_n[lengths_n > 0], return_counts=True)
    rows = np.full(len(lengths_n), -1, np.int32)
    open_rows = _OpenRows(row_length, most=len(lengths_n))
    num_placed = 0
    for length, count in zip(lengths[::-1].tolist(), counts[::-1].tolist(), strict=True):
        units = longest_first[num_placed : num_placed + count]
        rows[units] = open_rows.place(length, count)
        num_placed += count
    return rows


class _OpenRows:
    """Rows that are being filled, and the room that is left in each."""

    def __init__(self, row_length: int, most: int):
        self._row_length = row_length
        self._free = np.empty(most, np.int64)
        self._num_open = 0

    def place(self, length: int, count: int) -> np.ndarray:
        """The rows [count] of so many units of this length; opens those that are needed."""
        fitting = np.flatnonzero(self._free[: self._num_open] >= length)
        fitting = fitting[np.argsort(self._free[fitting], kind='stable')]  # fullest first
        capacity = self._free[fitting] // length
        capacity_before = np.cumsum(capacity) - capacity
        taken = np.clip(count - capacity_before, 0, capacity)
        self._free[fitting] -= taken * length
        opened = self._open(length, count - int(taken.sum()))
        return np.concatenate([np.repeat(fitting, taken), opened])

    def _open(self, length: int, count: int) -> np.ndarray:
        """Puts units into new rows, as many into each as it holds; their rows [count]."""
        number = np.arange(count) // (self._row_length // length)  # of the new row
        used = np.bincount(number)
        end = self._num_open + len(used)
        self._free[self._num_open : end] = self._row_length - used * length
        opened = self._num_open + number
        self._num_open = end
        return opened


@dataclasses.dataclass(frozen=True)
class Units:
    """Tokenized examples of a task.

    Attributes:
      sequences: the sequences of all units, `choices` consecutive ones per unit, of which all but
        the first may be empty.
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
        """The tokens of each unit, as bytes: units are the same where these are equal."""
        ends = self.sequences.offsets[self.choices :: self.choices]
        ids = np.split(self.sequences.ids.astype(np.int32), ends[:-1])
        return [ids_of_unit.tobytes() for ids_of_unit in ids]

    def digest(self) -> str:
        """16 hexadecimal digits that change with the content."""
        sequences = {
            'ids': self.sequences.ids,
            'offsets': self.sequences.offsets,
            'first': self.sequences.first_lengths,
        }
        digest = hashlib.blake2b(digest_size=8)
        for arrays in (sequences, self.labels, self.positions, self.tokens):
            for name, array in sorted(arrays.items()):
                digest.update(f'{name} {array.dtype} {array.shape}'.encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


class Shape(NamedTuple):
    """The shape of a compiled program: R, S and K."""

    rows: int
    row_length: int
    units_a_row: int


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

    @classmethod
    def row_each(cls, lengths_n: np.ndarray, units: np.ndarray) -> Self:
        """Every unit in a row of its own, as long as the longest.

        Args:
          lengths_n: tokens of each unit.
          units: [steps, U] int64, the units of each step.
        """
        num_steps, units_a_step = units.shape
        rows = np.broadcast_to(np.arange(units_a_step, dtype=np.int32), units.shape)
        return cls(
            units, rows, row_length=int(lengths_n.max()),
            num_rows=np.full(num_steps, units_a_step), units_a_row=1,
            tokens=int(lengths_n[units].sum()))

    @classmethod
    def of_rows(cls, lengths_n: np.ndarray, rows_n: np.ndarray, shape: Shape) -> Self:
        """Every unit that has a row, in steps of one shape.

        Args:
          lengths_n: tokens of each unit.
          rows_n: their rows, from 0, those of the first step first; -1: none.
          shape: of all steps; rows of a step may stay empty.
        """
        by_row = np.argsort(rows_n, kind='stable')
        by_row = by_row[rows_n[by_row] >= 0]
        step, row = np.divmod(rows_n[by_row].astype(np.int64), shape.rows)
        units_a_step = np.bincount(step, minlength=1)  # a host's share of the rows may have none
        column = sum_before(step, np.ones_like(step))
        size = (len(units_a_step), int(units_a_step.max()))
        units = np.full(size, -1, np.int64)
        units[step, column] = by_row
        rows = np.full(size, -1, np.int32)
        rows[step, column] = row
        return cls(
            units, rows, row_length=shape.row_length,
            num_rows=np.full(len(units_a_step), shape.rows), units_a_row=shape.units_a_row,
            tokens=int(lengths_n[by_row].sum()))

    @property
    def padding(self) -> float:
        """Share of the processed tokens that is padding."""
        return 1.0 - self.tokens / float(self.num_rows.sum() * self.row_length)

    @property
    def shapes(self) -> list[Shape]:
        """Those of all compiled programs."""
        return [
            Shape(rows, self.row_length, self.units_a_row)
            for rows in np.unique(self.num_rows).tolist()]


@dataclasses.dataclass(frozen=True, order=True)
class _Packing:
    """A way to compute units: what its steps cost, their shape, and units' rows [n]; -1: none."""

    cost: float
    shape: Shape
    rows_n: np.ndarray = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Planner:
    """Packs units into steps of the shapes that cost least.

    Attributes:
      shards: the number of rows in a step is a multiple of it.
      token_cost: from a row length S to the work on one token (FLOPs of the model, say).
    """

    shards: int
    token_cost: Callable[[int], float]

    def steps(
        self, lengths_n: np.ndarray, units: np.ndarray, row_lengths: Iterable[int]
    ) -> Plan:
        """Steps of given units, each packed separately, all in rows of one length.

        Args:
          lengths_n: tokens of each unit.
          units: [steps, U] int64, the units of each step; -1 is none.
          row_lengths: to choose from; those below the longest unit are raised to its length.
        """
        lengths = np.where(units >= 0, lengths_n[units], 0)
        sample = lengths[:_SAMPLED_STEPS]
        longest = int(lengths.max())

        def sample_cost(row_length: int) -> float:
            num_rows = _num_rows(pack(sample, row_length), self.shards)
            return float(num_rows.sum()) * row_length * self.token_cost(row_length)

        allowed = sorted({max(row_length, longest) for row_length in row_lengths})
        row_length = min(allowed, key=sample_cost)
        rows = pack(lengths, row_length)
        return Plan(
            units=units,
            rows=rows,
            row_length=row_length,
            num_rows=_num_rows(rows, self.shards),
            units_a_row=_most_units_in_a_row(rows),
            tokens=int(lengths.sum()))

    def once(
        self, lengths_n: np.ndarray, shard_tokens: int, compiled: Collection[Shape]
    ) -> Plan:
        """All units, in steps of one shape: a compiled one, unless a new one is clearly better.

        Args:
          lengths_n: tokens of each unit.
          shard_tokens: the most tokens of a step's rows in a shard, if that is a row or more.
          compiled: shapes that cost no compilation.
        """
        best = self._of_one_shape(lengths_n, shard_tokens, compiled)
        return Plan.of_rows(lengths_n, best.rows_n, best.shape)

    def by_length(
        self, lengths_n: np.ndarray, shard_tokens: int, compiled: Collection[Shape]
    ) -> list[Plan]:
        """As `once`, but few long units do not make all rows long, where that costs less.

        Rows with a unit longer than half of them become a plan. What is in the others is packed
        again, into rows of half the length, and so on.
        """
        divided: list[_Packing] = []
        rest_n = lengths_n
        options = []
        while rest_n.any():
            options.append([*divided, self._of_one_shape(rest_n, shard_tokens, compiled)])
            row_length = _ROW_STEP
            while row_length < rest_n.max():
                row_length *= 2
            (rows_n,) = pack(rest_n[None], row_length)
            if row_length > _ROW_STEP:
                rows_n = _only_rows_of(rows_n, rest_n > row_length // 2)
            divided.append(min(self._packings(
                rows_n, row_length, shard_tokens, compiled, row_length // _SHORT_UNIT)))
            rest_n = np.where(rows_n < 0, rest_n, 0)
        best = min(options, key=lambda packings: sum(packing.cost for packing in packings))
        return [Plan.of_rows(lengths_n, packing.rows_n, packing.shape) for packing in best]

    def _of_one_shape(
        self, lengths_n: np.ndarray, shard_tokens: int, compiled: Collection[Shape]
    ) -> _Packing:
        """The cheapest way to compute units in steps of one shape; those of length 0 are none."""
        packings: list[_Packing] = []
        for row_length in _row_lengths(lengths_n, compiled):
            (rows_n,) = pack(lengths_n[None], row_length)
            packings += self._packings(rows_n, row_length, shard_tokens, compiled)
        return min(packings)

    def _packings(
        self, rows_n: np.ndarray, row_length: int, shard_tokens: int,
        compiled: Collection[Shape], least_units: int = 1,
    ) -> list[_Packing]:
        """The ways to compute rows of one length: in compiled shapes and in a new one.

        The new one has places for `least_units` in a row, and for as many as there are.
        """
        num_rows = int(rows_n.max()) + 1
        units_a_row = int(np.bincount(rows_n[rows_n >= 0]).max())
        shapes = {
            shape for shape in compiled
            if shape.row_length == row_length and shape.units_a_row >= units_a_row}
        units_a_row = max(units_a_row, least_units)
        shapes.add(Shape(
            self._rows_a_step(num_rows, row_length, shard_tokens), row_length,
            1 << (units_a_row - 1).bit_length()))
        full_step = shard_tokens * self.shards * self.token_cost(_SHARED_ROWS[0])
        packings: list[_Packing] = []
        for shape in sorted(shapes):
            work = shape.rows * shape.row_length * self.token_cost(shape.row_length)
            num_steps = math.ceil(num_rows / shape.rows)
            cost = num_steps * (work + _STEP_COST * full_step)
            if shape not in compiled:
                cost = cost * _NEW_SHAPE + _NEW_SHAPE_STEPS * full_step
            packings.append(_Packing(cost, shape, rows_n))
        return packings

    def _rows_a_step(self, num_rows: int, row_length: int, shard_tokens: int) -> int:
        """Rows of a step: spread evenly over the fewest steps, and a multiple of the shards."""
        most = max(1, shard_tokens // row_length) * self.shards
        num_steps = math.ceil(num_rows / most)
        return math.ceil(num_rows / (num_steps * self.shards)) * self.shards


def _only_rows_of(rows_n: np.ndarray, wanted_n: np.ndarray) -> np.ndarray:
    """The rows [n] that hold a wanted unit, numbered without gaps; -1 for units of others."""
    kept = np.unique(rows_n[wanted_n])
    numbers = np.full(int(rows_n.max()) + 1, -1, np.int32)
    numbers[kept] = np.arange(len(kept))
    return np.where(rows_n < 0, -1, numbers[rows_n])


def _row_lengths(lengths_n: np.ndarray, compiled: Iterable[Shape]) -> list[int]:
    """Row lengths to choose from: that of the longest unit, shared ones, and compiled ones."""
    if lengths_n.sum() <= _ROW_STEP:
        return [_ROW_STEP]
    longest = int(lengths_n.max())
    known = {*_SHARED_ROWS, *(shape.row_length for shape in compiled)}
    fitting = {row_length for row_length in known if row_length >= longest}
    fitting.add(math.ceil(longest / _ROW_STEP) * _ROW_STEP)
    return sorted(fitting)


def _num_rows(rows: np.ndarray, shards: int) -> np.ndarray:
    """[steps] int64: rows of each step, a multiple of `shards`, in at most MAX_SHAPES values."""
    num_filled = rows.max(axis=1).astype(np.int64) + 1
    rows_of_a_shard = -(-num_filled // shards)
    return shards * _round_up_to_few_values(np.maximum(rows_of_a_shard, 1))


def _most_units_in_a_row(rows: np.ndarray) -> int:
    """The number of units in the fullest row of all steps, from the units' rows [steps, U]."""
    step = np.arange(len(rows))[:, None]
    row_of_all = step * (int(rows.max()) + 1) + rows
    _, counts = np.unique(row_of_all[rows >= 0], return_counts=True)
    return int(counts.max())


def _round_up_to_few_values(needed: np.ndarray) -> np.ndarray:
    """Rounds `needed` up to a few of its values: at most MAX_SHAPES, each worth its compilation."""
    if len(np.unique(needed)) > _MAX_COUNTS:
        spacing = -(-int(needed.max()) // _MAX_COUNTS)
        needed = -(-needed // spacing) * spacing
    values, counts = np.unique(needed, return_counts=True)
    kept = _values_to_keep(values.tolist(), counts.tolist())
    return np.array(kept)[np.searchsorted(kept, needed)]


class _Rounding(NamedTuple):
    """How the row counts of some steps are rounded up.

    Attributes:
      total: rows of these steps, after rounding.
      kept: the values that they are rounded to, ascending.
    """

    total: int
    kept: tuple[int, ...]

    def extended(self, value: int, num_steps: int) -> Self:
        """With further steps, which are rounded to a larger value."""
        return type(self)(self.total + value * num_steps, (*self.kept, value))


def _values_to_keep(values: list[int], counts: list[int]) -> tuple[int, ...]:
    """Chooses the row counts of a plan, by dynamic programming over the values.

    Args:
      values: row counts that steps need, ascending.
      counts: the number of steps that need each of them.
    """
    steps_up_to = np.cumsum(counts).tolist()  # steps that need at most each of the values

    def best_with_one_more(roundings: list[_Rounding], i: int) -> _Rounding:
        """The best rounding of the steps up to value i with one more value than `roundings`."""
        options = [roundings[i]]
        for j in range(i):
            num_steps = steps_up_to[i] - steps_up_to[j]
            options.append(roundings[j].extended(values[i], num_steps))
        return min(options, key=lambda rounding: rounding.total)

    # For each value, the best rounding of the steps that need at most that many rows. Each round
    # of the loop allows one more shape.
    roundings = [
        _Rounding(value * num_steps, (value,))
        for value, num_steps in zip(values, steps_up_to, strict=True)]
    best = roundings[-1]
    for _ in range(1, MAX_SHAPES):
        roundings = [best_with_one_more(roundings, i) for i in range(len(values))]
        if roundings[-1].total > best.total * (1 - _SHAPE_GAIN):
            break
        best = roundings[-1]
    return best.kept


def sum_before(keys: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """For each entry, the sum of the sizes of earlier entries with the same key.

    Args:
      keys: [n] integers, ascending.
      sizes: [n] integers.
    """
    total = np.cumsum(sizes) - sizes
    return total - total[np.searchsorted(keys, keys)]


class _Placement(NamedTuple):
    """Where the units of some rows of a step are: u units, in the order of rows, of t tokens.

    Attributes:
      unit: [u] index of each unit.
      row: [u] its row, an index into the wanted rows.
      index_in_row: [u] its number among the units of its row, from 0.
      start_column: [u] column of its first token.
      source_token: [t] index of each token among the tokens of all units.
      target_token: [t] index of its place in the wanted rows, one row after another.
    """

    unit: np.ndarray
    row: np.ndarray
    index_in_row: np.ndarray
    start_column: np.ndarray
    source_token: np.ndarray
    target_token: np.ndarray


def _place(units: Units, plan: Plan, step: int, local: np.ndarray) -> _Placement:
    """Places the units of a step's rows `local`; in a row, units are in ascending order."""
    is_here = np.isin(plan.rows[step], local)
    unit = plan.units[step][is_here]
    row = np.searchsorted(local, plan.rows[step][is_here])
    order = np.lexsort((unit, row))
    unit = unit[order]
    row = row[order]

    begin = units.sequences.offsets[unit * units.choices]
    lengths = units.sequences.offsets[(unit + 1) * units.choices] - begin
    start_column = sum_before(row, lengths)
    return _Placement(
        unit=unit,
        row=row,
        index_in_row=sum_before(row, np.ones_like(row)),
        start_column=start_column,
        source_token=ranges(begin, lengths),
        target_token=ranges(row * plan.row_length + start_column, lengths))


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
    num_rows = len(local)
    placement = _place(units, plan, step, local)
    batch = {}
    for name, values in _token_features(units, placement).items():
        places = np.zeros((num_rows * plan.row_length, *values.shape[1:]), values.dtype)
        places[placement.target_token] = values
        batch[name] = places.reshape(num_rows, plan.row_length, *values.shape[1:])
    for name, values in _unit_features(units, placement).items():
        rows = np.zeros((num_rows, plan.units_a_row, *values.shape[1:]), values.dtype)
        rows[placement.row, placement.index_in_row] = values
        batch[name] = rows
    num_sequences = plan.units_a_row * units.choices
    batch['cls_positions'] = batch['cls_positions'].reshape(num_rows, num_sequences)
    return batch


def _token_features(units: Units, placement: _Placement) -> dict[str, np.ndarray]:
    """Features of the placed tokens [t, ...]."""
    sequences = units.sequences
    sequence = _sequences_of(units, placement.unit)
    begin = sequences.offsets[sequence].reshape(-1)
    counts = sequences.offsets[sequence + 1].reshape(-1) - begin
    number_in_row = placement.index_in_row[:, None] * units.choices + np.arange(units.choices) + 1
    position = placement.source_token - np.repeat(begin, counts)
    features = {
        'input_ids': sequences.ids[placement.source_token],
        'sequence_ids': np.repeat(number_in_row.reshape(-1), counts).astype(np.int32),
        'segment_ids': sequences.types[placement.source_token].astype(np.int32),
        'position_ids': position.astype(np.int32),
    }
    for name, values in units.tokens.items():
        features[name] = values[placement.source_token]
    return features


def _unit_features(units: Units, placement: _Placement) -> dict[str, np.ndarray]:
    """Features of the placed units [u, ...]; `cls_positions` is [u, choices]."""
    sequence = _sequences_of(units, placement.unit)
    begin = units.sequences.offsets[sequence]
    is_empty = units.sequences.offsets[sequence + 1] == begin
    # One without tokens has the position of the first: behind it, there may be no column.
    column_in_unit = np.where(is_empty, 0, begin - begin[:, :1])
    cls_positions = placement.start_column[:, None] + column_in_unit
    features = {
        'cls_positions': cls_positions.astype(np.int32),
        'unit_index': placement.unit.astype(np.int32),
        'unit_weights': np.ones(len(placement.unit), np.float32),
    }
    for name, values in units.labels.items():
        features[name] = values[placement.unit]
    for name, positions in units.positions.items():
        positions_in_row = positions[placement.unit] + placement.start_column
        features[name] = positions_in_row.astype(np.int32)
    return features


def _sequences_of(units: Units, unit: np.ndarray) -> np.ndarray:
    """[u, choices]: the indices of the sequences of units [u]."""
    return unit[:, None] * units.choices + np.arange(units.choices)


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
    placement = _place(units, plan, step, np.arange(plan.num_rows[step]))
    for name, output in outputs.items():
        # K = S would need a row full of one-token units, which [CLS] and [SEP] rule out.
        if output.shape[1] == plan.row_length:
            places = output.reshape(-1, *output.shape[2:])
            values = places[placement.target_token]
            index = placement.source_token
            size = len(units.sequences.ids)
        else:
            values = output[placement.row, placement.index_in_row]
            index = placement.unit
            size = len(units)
        if name not in collected:
            collected[name] = np.zeros((size, *values.shape[1:]), values.dtype)
        collected[name][index] = values


# Old names, for config files of users (docs/stability.md).


def pack_whole(lengths_n: np.ndarray, row_length: int) -> np.ndarray:
    """`pack` of one group: rows [n] int32."""
    (rows_n,) = pack(lengths_n[None], row_length)
    return rows_n


def plan_steps(
    lengths_n: np.ndarray, units: np.ndarray, *, row_lengths: Sequence[int], shards: int,
    token_cost: Callable[[int], float],
) -> Plan:
    """`Planner.steps`."""
    return Planner(shards, token_cost).steps(lengths_n, units, row_lengths)


def plan_once(
    lengths_n: np.ndarray, rows_n: np.ndarray, *, row_length: int, rows_a_step: int,
    units_a_row: int,
) -> Plan:
    """`Plan.of_rows`."""
    return Plan.of_rows(lengths_n, rows_n, Shape(rows_a_step, row_length, units_a_row))
