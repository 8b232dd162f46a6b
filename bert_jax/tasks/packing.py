"""Short sequences packed into rows, with attention kept inside each, so that no work is padding.

A *unit* is what must stay together in a row: one sequence, or the choices of one question. The
packing is planned from the lengths only, for all steps at once; a batch is then filled in by
index, and its outputs are brought back to the units. Packing changes no score: sequences attend to
themselves and have positions of their own (Krell et al., 2021, pack for pre-training; here for
fine-tuning and evaluation too).

    n: units, U: units a group (a step of training), R: rows, S: row length, K: units a row,
    T: tokens of all units
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.examples import BatchSpec, Feature, empty_rows
from bert_jax.data.packing import pack
from bert_jax.data.pairs import Sequences

MAX_SHAPES = 4
_SHAPE_GAIN = 0.02  # a further shape is worth compiling if it saves this share of the work
_SAMPLED_STEPS = 256  # the row length is chosen by


@dataclasses.dataclass(frozen=True)
class Units:
    """Tokenized examples of a task.

    Attributes:
      sequences: `choices` consecutive ones a unit.
      choices: sequences a unit (4 for SWAG, else 1).
      labels: arrays [n, ...], a row a unit; `unit_index` and `unit_weights` are added.
      positions: arrays [n] of token positions within the unit, moved along with it.
      tokens: arrays [T, ...], one entry a token of `sequences`.
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

    def digest(self) -> str:
        """Identity of the content."""
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
      units: [steps, U] int64, -1: none.
      rows: [steps, U] int32.
      row_length: S.
      num_rows: [steps] int64, R of each step: one of at most MAX_SHAPES.
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


def _few_values(needed: np.ndarray, limit: int, gain: float) -> np.ndarray:
    """`needed` rounded up to the fewest of its values that waste little (exact, by recursion)."""
    values, counts = np.unique(needed, return_counts=True)
    if len(values) > 200:  # the search is cubic
        step = -(-int(values[-1]) // 200)
        return _few_values(-(-needed // step) * step, limit, gain)
    before = np.concatenate([[0], np.cumsum(counts)])
    # cost[j]: of covering the first j values with k shapes, the last of them values[j - 1].
    cost = np.concatenate([[0.0], values * before[1:].astype(np.float64)])
    chosen: list[list[int]] = [[]] + [[j] for j in range(1, len(values) + 1)]
    best, best_cost = chosen[-1], cost[-1]
    for _ in range(1, min(limit, len(values))):
        new_cost, new_chosen = cost.copy(), list(chosen)
        for j in range(1, len(values) + 1):
            totals = cost[:j] + values[j - 1] * (before[j] - before[:j])
            i = int(np.argmin(totals))
            if totals[i] < new_cost[j]:
                new_cost[j], new_chosen[j] = totals[i], chosen[i] + [j]
        cost, chosen = new_cost, new_chosen
        if cost[-1] > best_cost * (1 - gain):
            break
        best, best_cost = chosen[-1], cost[-1]
    kept = values[np.array(best) - 1]
    return kept[np.searchsorted(kept, needed)]


def plan_steps(
    lengths_n: np.ndarray, units: np.ndarray, *, row_lengths: Sequence[int], shards: int,
    token_cost: Callable[[int], float], max_shapes: int = MAX_SHAPES,
) -> Plan:
    """Packs the units of each step by themselves, in the row length that costs least.

    Args:
      lengths_n: tokens of each unit.
      units: [steps, U] int64, the units of each step; -1 is none.
      row_lengths: to choose from; those that cannot hold the longest unit are passed over.
      shards: rows of a step are a multiple of it.
      token_cost: work on one token of a row of length S (`flops` of the model, say).
      max_shapes: how many numbers of rows may occur.
    """
    lengths = np.where(units >= 0, lengths_n[units], 0)
    longest = int(lengths.max())

    def attempt(lengths: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray]:
        rows = pack(lengths, row_length)
        needed = -(-(rows.max(axis=1).astype(np.int64) + 1) // shards)  # of each shard
        return rows, shards * _few_values(np.maximum(needed, 1), max_shapes, _SHAPE_GAIN)

    def cost(row_length: int) -> float:
        _, num_rows = attempt(lengths[:_SAMPLED_STEPS], row_length)
        return float(num_rows.sum()) * row_length * token_cost(row_length)

    row_length = min(sorted({max(s, longest) for s in row_lengths}), key=cost)
    rows, num_rows = attempt(lengths, row_length)
    keys = (np.arange(len(rows))[:, None] * (int(num_rows.max()) + 1) + rows)[rows >= 0]
    units_a_row = int(np.unique(keys, return_counts=True)[1].max())
    return Plan(units, rows, row_length, num_rows, units_a_row, int(lengths.sum()))


def pack_whole(lengths_n: np.ndarray, row_length: int) -> np.ndarray:
    """Rows [n] of all units, in any order: what `pack` gives for them as one group.

    Units of one length are placed together: into each row as many as it holds, the fullest first,
    which is where best fit would bring them one by one. So a set of any size costs a few passes.

    Args:
      lengths_n: tokens of each unit, from 1 to `row_length`.
      row_length: tokens a row holds.
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
        a_row = row_length // length
        new = num_open + np.arange(count - int(taken.sum())) // a_row
        used = np.bincount(new - num_open)
        free[num_open : num_open + len(used)] = row_length - used * length
        rows[order[placed : placed + count]] = np.concatenate([np.repeat(fits, taken), new])
        num_open, placed = num_open + len(used), placed + count
    return rows


def plan_once(
    lengths_n: np.ndarray, rows_n: np.ndarray, *, row_length: int, rows_a_step: int,
    units_a_row: int,
) -> Plan:
    """Every unit once, in steps of `rows_a_step` rows: one shape.

    Args:
      lengths_n: tokens of each unit.
      rows_n: their rows, from 0 without gaps (`pack_whole`).
      row_length: of the rows.
      rows_a_step: the last step may be partly empty.
      units_a_row: places for units in a row of a batch, as many as the fullest row has or more.
    """
    units = np.argsort(rows_n, kind='stable')
    rows = rows_n[units].astype(np.int64)
    per_step = np.bincount(rows // rows_a_step)
    column = np.arange(len(rows)) - np.repeat(np.cumsum(per_step) - per_step, per_step)
    units_of = np.full((len(per_step), int(per_step.max())), -1, np.int64)
    rows_of = np.full(units_of.shape, -1, np.int32)
    units_of[rows // rows_a_step, column] = units
    rows_of[rows // rows_a_step, column] = rows % rows_a_step
    return Plan(
        units_of, rows_of, row_length, np.full(len(per_step), rows_a_step), units_a_row,
        int(lengths_n.sum()),
    )


def packed_spec(units: Units, plan: Plan) -> BatchSpec:
    """Features of a packed batch; `Bert` explains `sequence_ids` and its other arguments."""
    s, k = (plan.row_length,), plan.units_a_row
    spec = {
        'input_ids': Feature(s, np.int32),
        'sequence_ids': Feature(s, np.int32),
        'segment_ids': Feature(s, np.int32),
        'position_ids': Feature(s, np.int32),
        'cls_positions': Feature((k * units.choices,), np.int32),
        'unit_index': Feature((k,), np.int32),
        'unit_weights': Feature((k,), np.float32),
    }
    spec |= {name: Feature((k, *x.shape[1:]), x.dtype.type) for name, x in units.labels.items()}
    spec |= {name: Feature((k,), np.int32) for name in units.positions}
    spec |= {name: Feature((*s, *x.shape[1:]), x.dtype.type) for name, x in units.tokens.items()}
    return spec


@dataclasses.dataclass(frozen=True)
class _Placement:
    """The places of a step's u units and of their t tokens.

    Attributes:
      unit, row, slot, start: [u] the unit, its row, its number there, its first column.
      sequence, sequence_start: [u, choices] its sequences and their first columns.
      source, at: [t] index in the flat tokens, and in the flattened rows [R * S].
      position: [t] within the sequence.
      number: [t] of the sequence in its row, from 1.
      first_length: [t] tokens of the sequence's segment 0.
    """

    unit: np.ndarray
    row: np.ndarray
    slot: np.ndarray
    start: np.ndarray
    sequence: np.ndarray
    sequence_start: np.ndarray
    source: np.ndarray
    at: np.ndarray
    position: np.ndarray
    number: np.ndarray
    first_length: np.ndarray


def _place(units: Units, plan: Plan, step: int, local: np.ndarray) -> _Placement:
    here = np.isin(plan.rows[step], local)
    unit = plan.units[step][here]
    row = np.searchsorted(local, plan.rows[step][here])
    by_row = np.lexsort((unit, row))
    unit, row = unit[by_row], row[by_row]
    offsets = units.sequences.offsets
    lengths = offsets[(unit + 1) * units.choices] - offsets[unit * units.choices]
    ends = np.cumsum(lengths)
    first = np.searchsorted(row, row)
    start = ends - lengths - (ends - lengths)[first]
    slot = np.arange(len(unit)) - first

    c = units.choices
    sequence = unit[:, None] * c + np.arange(c)
    sequence_start = start[:, None] + offsets[sequence] - offsets[unit * c][:, None]
    counts = (offsets[sequence + 1] - offsets[sequence]).reshape(-1)
    before = np.cumsum(counts) - counts
    position = np.arange(int(counts.sum())) - np.repeat(before, counts)
    first_column = (row[:, None] * plan.row_length + sequence_start).reshape(-1)
    return _Placement(
        unit, row, slot, start, sequence, sequence_start,
        source=np.repeat(offsets[sequence].reshape(-1), counts) + position,
        at=np.repeat(first_column, counts) + position,
        position=position,
        number=np.repeat((slot[:, None] * c + np.arange(c) + 1).reshape(-1), counts),
        first_length=np.repeat(units.sequences.first_lengths[sequence].reshape(-1), counts),
    )


def packed_batch(units: Units, plan: Plan, step: int, local: np.ndarray) -> dict[str, np.ndarray]:
    """This host's rows of a step.

    Args:
      units: what `plan` was made for.
      plan: where units go.
      step: row of the plan.
      local: the rows of the step, of its `num_rows[step]`, that are wanted, ascending.
    """
    p = _place(units, plan, step, local)
    spec = packed_spec(units, plan)
    batch = empty_rows(spec, len(local))

    def put(name: str, values: np.ndarray) -> None:
        batch[name].reshape(-1, *values.shape[1:])[p.at] = values

    put('input_ids', units.sequences.ids[p.source])
    put('sequence_ids', p.number)
    put('segment_ids', p.position >= p.first_length)
    put('position_ids', p.position)
    for name, x in units.tokens.items():
        put(name, x[p.source])
    slots = p.slot[:, None] * units.choices + np.arange(units.choices)
    batch['cls_positions'][p.row[:, None], slots] = p.sequence_start
    batch['unit_index'][p.row, p.slot] = p.unit
    batch['unit_weights'][p.row, p.slot] = 1.0
    for name, x in units.labels.items():
        batch[name][p.row, p.slot] = x[p.unit]
    for name, x in units.positions.items():
        batch[name][p.row, p.slot] = x[p.unit] + p.start
    return batch


def unpack(
    units: Units, plan: Plan, step: int, outputs: Mapping[str, np.ndarray],
    collected: dict[str, np.ndarray],
) -> None:
    """Brings a step's outputs back into the order of `units`.

    Args:
      units, plan, step: as the batch was made.
      outputs: arrays of all rows of the step, [R, S, ...] a token or [R, K, ...] a unit.
      collected: receives arrays [T, ...] of the former and [n, ...] of the latter.
    """
    p = _place(units, plan, step, np.arange(plan.num_rows[step]))
    for name, x in outputs.items():
        # K is S only where every row is full of units of one token, which [CLS] [SEP] rules out.
        if x.shape[1] == plan.row_length:
            count, index = len(units.sequences.ids), p.source
            values = x.reshape(-1, *x.shape[2:])[p.at]
        else:
            count, index, values = len(units), p.unit, x[p.row, p.slot]
        if name not in collected:
            collected[name] = np.zeros((count, *values.shape[1:]), values.dtype)
        collected[name][index] = values


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[sum(counts)] int64: starts[i], starts[i] + 1, ... (counts[i] of them) for every i."""
    shifts = starts - (np.cumsum(counts) - counts)
    return np.arange(counts.sum()) + np.repeat(shifts, counts)


class Tiles(NamedTuple):
    """Windows [W] over spans: of which, first places, places after the last, where scoring begins.

    Scoring in a window goes on to where it begins in the next.
    """

    span: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    cores: np.ndarray


def tile(spans: np.ndarray, size: int | np.ndarray) -> Tiles:
    """Windows over spans: one of the whole where it fits, else evenly spaced, overlapping by half.

    Args:
      spans: bounds of the spans, which follow each other.
      size: places that a window holds, of all or of each span.
    """
    begins, lengths = spans[:-1], np.diff(spans)
    size = np.broadcast_to(size, lengths.shape)
    over = np.maximum(lengths - size, 0)
    num = 1 + -(-over // ((size + 1) // 2))
    span = np.repeat(np.arange(len(lengths)), num)
    i = np.arange(len(span)) - np.repeat(np.cumsum(num) - num, num)
    starts = begins[span] + i * over[span] // np.maximum(num[span] - 1, 1)
    ends = np.minimum(starts + size[span], spans[1:][span])
    # In the middle of the overlap with the window before.
    middles = (np.roll(ends, 1) + starts) // 2
    return Tiles(span, starts, ends, np.where(i == 0, starts, middles))
