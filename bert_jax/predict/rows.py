"""Packs token sequences into rows of a few fixed lengths, and rows into batches.

Several sequences share a row, each attending to itself alone (see `model.encoder.Bert`), so that
almost nothing is computed for padding and a run needs only a handful of compiled shapes.

    m: sequences, p: positions asked about, B: rows of a batch, S: length of a row
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

import numpy as np

from bert_jax.text.vocab import Vocab

_SMALL_ROW = 64  # everything fits into one short row: a prompt typed by hand
_ROW_STEP = 128  # else rows are multiples of it,
_LONGEST_ROW = 512  # up to this, or to the longest sequence
_SAMPLE = 2048  # sequences that the choice of row lengths looks at
_NEW_SHAPE = 1.05  # what a new shape must save to be worth compiling


@dataclasses.dataclass(frozen=True)
class Tokens:
    """One sequence, [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

    Attributes:
      ids: [n] int32.
      first_length: tokens of segment 0; the rest is segment 1.
      positions: [p] int, tokens that a head is asked about.
      targets: [p] int, ids whose probability is asked for there; 0 where none is.
    """

    ids: np.ndarray
    first_length: int
    positions: np.ndarray
    targets: np.ndarray

    @classmethod
    def of(
        cls, vocab: Vocab, first: Sequence[int], second: Sequence[int] | None = None,
        positions: Sequence[int] = (), targets: Sequence[int] | None = None,
    ) -> Tokens:
        """[CLS] first [SEP], or [CLS] first [SEP] second [SEP], without cutting anything.

        Args:
          vocab: names the special tokens.
          first, second: ids.
          positions: in the sequence, [CLS] being 0.
          targets: one a position, or none.
        """
        ids = [vocab.cls_id, *first, vocab.sep_id]
        if second is not None:
            ids += [*second, vocab.sep_id]
        targets = [0] * len(positions) if targets is None else targets
        return cls(np.array(ids, np.int32), len(first) + 2, np.array(positions, np.int64),
                   np.array(targets, np.int64))


@dataclasses.dataclass(frozen=True)
class Batch:
    """Packed rows.

    Attributes:
      inputs: `input_ids`, `input_mask` (numbers the sequences of a row from 1), `segment_ids` and
        `position_ids`, all [B, S] int32.
      owners: [B, S] int32, number of the sequence in `members`, from 1; 0 on padding.
      members: [m] int64, which sequences these are.
      starts, lengths: [m] int64, where they begin in the rows laid end to end, and their tokens.
      positions, targets: [p] int32, those of all sequences, positions in the rows laid end to end.
      counts: [m] int64, how many of the p belong to each sequence.
    """

    inputs: dict[str, np.ndarray]
    owners: np.ndarray
    members: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    counts: np.ndarray


def pack(
    lengths: np.ndarray, row_lengths: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Best fit, longest first: a sequence goes where it leaves the least room.

    A new row is of the shortest length that holds the sequence.

    Args:
      lengths: [m] tokens of each sequence, none longer than the longest row.
      row_lengths: ascending.

    Returns:
      (row of each sequence [m], where it begins in the row [m], length of each row).
    """
    rows = np.zeros(len(lengths), np.int64)
    begins = np.zeros(len(lengths), np.int64)
    made: list[int] = []
    by_room: dict[int, list[int]] = {}
    rooms = 0  # bit r is set where a row has room for r tokens
    for i in np.argsort(-lengths, kind='stable').tolist():
        length = int(lengths[i])
        fits = rooms >> length
        if fits:
            room = length + (fits & -fits).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room = next(r for r in row_lengths if r >= length)
            row = len(made)
            made.append(room)
        rows[i], begins[i] = row, made[row] - room
        left = room - length
        if left:
            by_room.setdefault(left, []).append(row)
            rooms |= 1 << left
    return rows, begins, np.array(made, np.int64)


def choose_row_lengths(
    lengths: np.ndarray, hidden_size: int, used: Collection[tuple[int, ...]] = ()
) -> tuple[int, ...]:
    """The row lengths that cost least for these sequences, one or two of them.

    The cost of a token in a row of S is that of its matrix products, 24 H^2 + 4 S H a layer.

    Args:
      lengths: [m] tokens of each sequence, m > 0.
      hidden_size: H.
      used: row lengths that are compiled already; others must be clearly better.
    """
    if lengths.sum() <= _SMALL_ROW:
        return (_SMALL_ROW,)
    longest = -(-int(lengths.max()) // _ROW_STEP) * _ROW_STEP
    longer = range(longest, max(longest, _LONGEST_ROW) + 1, _ROW_STEP)
    choices = {(s,) for s in longer} | {(_ROW_STEP, s) for s in longer if s > _ROW_STEP}
    sample = lengths[:: math.ceil(len(lengths) / _SAMPLE)]

    def cost(choice: tuple[int, ...]) -> float:
        if choice[-1] < lengths.max():
            return math.inf
        made = pack(sample, choice)[2]
        products = float(np.sum(made * (6 * hidden_size + made)))
        return products * (1 if choice in used else _NEW_SHAPE)

    return min(sorted(choices | set(used)), key=cost)


def batch_sizes(num_rows: int, largest: int) -> list[int]:
    """Rows of each batch: few different numbers, little filling up, nothing huge for a few rows."""
    sizes = sorted({size for size in (1, 8, largest) if size <= largest}, reverse=True)
    chosen = []
    for size, smaller in zip(sizes, [*sizes[1:], 0], strict=True):
        while num_rows >= size or num_rows > 2 * smaller:
            chosen.append(size)
            num_rows -= size
    return chosen


def make_batches(
    sequences: Sequence[Tokens], row_lengths: Sequence[int], tokens_per_batch: int
) -> list[Batch]:
    """Packs sequences into rows, and rows of one length into batches.

    Args:
      sequences: m of them.
      row_lengths: as `pack` takes them.
      tokens_per_batch: the most tokens of a batch, padding included (a row is always allowed).
    """
    lengths = np.array([len(s.ids) for s in sequences], np.int64)
    rows, begins, made = pack(lengths, row_lengths)
    members_of: list[list[int]] = [[] for _ in made]
    for i, row in enumerate(rows.tolist()):
        members_of[row].append(i)
    batches = []
    for row_length in row_lengths:
        of_length = np.flatnonzero(made == row_length).tolist()
        for size in batch_sizes(len(of_length), max(1, tokens_per_batch // row_length)):
            part, of_length = of_length[:size], of_length[size:]
            batches.append(
                _fill(sequences, [members_of[row] for row in part], begins, size, row_length)
            )
    return batches


def _fill(
    sequences: Sequence[Tokens], rows: list[list[int]], begins: np.ndarray, size: int,
    row_length: int,
) -> Batch:
    """A batch of `size` rows of `row_length`; `rows` says which sequences are in the first ones."""
    names = ('input_ids', 'input_mask', 'segment_ids', 'position_ids')
    inputs = {name: np.zeros((size, row_length), np.int32) for name in names}
    owners = np.zeros((size, row_length), np.int32)
    places = [(row, number, i) for row, of_row in enumerate(rows)
              for number, i in enumerate(of_row, 1)]
    for owner, (row, number, i) in enumerate(places, 1):
        tokens, begin = sequences[i], int(begins[i])
        end = begin + len(tokens.ids)
        inputs['input_ids'][row, begin:end] = tokens.ids
        inputs['input_mask'][row, begin:end] = number
        inputs['segment_ids'][row, begin + tokens.first_length : end] = 1
        inputs['position_ids'][row, begin:end] = np.arange(len(tokens.ids))
        owners[row, begin:end] = owner
    members = np.array([i for _, _, i in places], np.int64)
    starts = np.array([row * row_length for row, _, _ in places], np.int64) + begins[members]
    inside = [sequences[i] for i in members]
    positions = [start + t.positions for start, t in zip(starts, inside, strict=True)]
    return Batch(
        inputs, owners, members, starts,
        lengths=np.array([len(t.ids) for t in inside], np.int64),
        positions=np.concatenate(positions).astype(np.int32),
        targets=np.concatenate([t.targets for t in inside]).astype(np.int32),
        counts=np.array([len(t.positions) for t in inside], np.int64),
    )
