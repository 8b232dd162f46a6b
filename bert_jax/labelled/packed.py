"""Batches of packed rows, filled in by index from a plan, and their outputs brought back.

    n: units, R: rows, S: row length, K: units a row, T: tokens of all units
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from bert_jax.data.spec import BatchSpec, Feature, empty_rows
from bert_jax.labelled.packing import Plan, Units


def packed_spec(units: Units, plan: Plan) -> BatchSpec:
    """Features of a packed batch; see `Bert` for `input_mask`, `position_ids`, `cls_positions`."""
    s, k = (plan.row_length,), plan.units_a_row
    spec = {
        'input_ids': Feature(s, np.int32),
        'input_mask': Feature(s, np.int32),
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
    """Where everything of a step goes: u units of it, t tokens of these.

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
    put('input_mask', p.number)
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
