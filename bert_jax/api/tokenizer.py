"""Texts to the arrays that a module takes, padded or packed, with Hugging Face's names.

    n: texts, B: rows, S: row length, K: texts a row, C: choices an example
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.rows.packing import Plan, Shape, Units, pack, packed_batch
from bert_jax.rows.sequences import Sequences, make_sequences, ranges
from bert_jax.runtime.errors import InputError
from bert_jax.text.frames import Frame
from bert_jax.text.tokenizer import Tokenizer as Pieces

Arrays = dict[str, np.ndarray]
_LEAST_LENGTH = 8  # a pair needs five tokens or six, and one of each text should fit
_RENAMED = {'sequence_ids': 'attention_mask', 'segment_ids': 'token_type_ids'}


class PackedTexts(NamedTuple):
    """Rows that hold several texts, and where each text lies in them.

    Attributes:
      batch: arguments of the module: `input_ids`, `attention_mask`, `token_type_ids` and
        `position_ids` [B, S], `cls_positions` [B, K].
      row: [n] the row of each text.
      number: [n] its number among the texts of its row, from 0: an output of texts is
        `x[row, number]`.
      start: [n] the place of its first token: outputs of its tokens are
        `x[row[i], start[i] : start[i] + length[i]]`.
      length: [n] its tokens, [CLS] and [SEP] included.
    """

    batch: Arrays
    row: np.ndarray
    number: np.ndarray
    start: np.ndarray
    length: np.ndarray


class Tokenizer:
    """Makes arrays of texts, of any kind of vocabulary.

    Attributes:
      pieces: splits texts into the pieces of the vocabulary (`bert_jax.text.tokenizer.Tokenizer`):
        ids without [CLS] and [SEP], the characters of each piece, and `pieces.vocab` with the ids
        of special tokens (`mask_id`, `pad_id`, ...).
      limit: the most tokens of a text that the model takes, [CLS] and [SEP] included.
      frame: the special tokens and types that are put around and between texts, and how texts that
        are too long are cut.
    """

    def __init__(self, pieces: Pieces, limit: int, frame: Frame | None = None):
        """See the class; without a frame it is the tokenizer's own."""
        self.pieces = pieces
        self.limit = limit
        self.frame = frame or pieces.vocab.frame

    def __call__(self, texts: Sequence[Any], max_length: int | None = None) -> Arrays:
        """Rows of one text each, padded: `input_ids`, `attention_mask`, `token_type_ids`.

        Args:
          texts: each a string, a pair (first, second) as a tuple, or, all of them, a list of
            strings or pairs: the choices of an example.
          max_length: the length of the rows; longer texts are cut as `frame` says, with a warning.
            None: the rows are as long as the longest text, at most `limit`; then each new length
            compiles the functions that take them anew.

        Returns:
          Arrays [B, S] int32, or [B, C, S] of choices.

        Raises:
          InputError: a text is none, or max_length is not possible.
        """
        length = self._checked_length(max_length)
        num_choices = _num_choices(texts)
        flat = list(texts)
        if num_choices:
            flat = [choice for choices in texts for choice in choices]
        sequences = self._sequences(flat, length)
        if max_length is None:
            length = int(sequences.lengths.max())
        arrays = self._padded(sequences, length)
        if num_choices:
            shape = (-1, num_choices, length)
            arrays = {name: x.reshape(shape) for name, x in arrays.items()}
        return arrays

    def pack(self, texts: Sequence[Any], max_length: int | None = None) -> PackedTexts:
        """Rows that hold several texts, so that little of them is padding.

        Each text attends to itself only, and its outputs are those that it has in a row of its own.

        Args:
          texts: strings, or pairs (first, second) as tuples.
          max_length: the length of the rows, and the most tokens of a text; longer ones are cut, as
            in padded rows. None: `limit`.

        Raises:
          InputError: as for padded rows; choices are not packed.
        """
        length = self._checked_length(max_length)
        if _num_choices(texts):
            raise InputError('texts[0] is a list of choices, which are not packed: make padded '
                             'rows of them, tokenizer(texts)')
        sequences = self._sequences(texts, length)
        units = Units(sequences)
        (row_n,) = pack(units.lengths[None], length)
        units_of_rows = np.bincount(row_n)
        shape = Shape(len(units_of_rows), length, int(units_of_rows.max()))
        plan = Plan.of_rows(units.lengths, row_n, shape)
        batch = packed_batch(units, plan, 0, np.arange(shape.rows))
        rows, numbers = np.nonzero(batch.pop('unit_weights'))
        text = batch.pop('unit_index')[rows, numbers]
        order = np.argsort(text)
        starts = batch['cls_positions'][rows, numbers]
        return PackedTexts(
            batch={_RENAMED.get(name, name): x for name, x in batch.items()},
            row=rows[order],
            number=numbers[order],
            start=starts[order],
            length=units.lengths)

    def _checked_length(self, max_length: int | None) -> int:
        """The most tokens of a text; raises InputError if it is not possible."""
        if max_length is None:
            return self.limit
        is_whole = isinstance(max_length, (int, np.integer)) and not isinstance(max_length, bool)
        least = min(_LEAST_LENGTH, self.limit)
        if not is_whole or not least <= max_length <= self.limit:
            raise InputError(f'max_length={max_length!r:.40} must be a whole number from '
                             f'{least} to {self.limit}, the most tokens that the model takes')
        return int(max_length)

    def _sequences(self, texts: Sequence[Any], max_length: int) -> Sequences:
        """The tokens of all texts, in their order, cut to `max_length`."""
        is_pair = np.array([not isinstance(text, str) for text in texts], bool)
        pairs = np.flatnonzero(is_pair).tolist()
        _check_texts(texts, pairs)
        single = [text for text in texts if isinstance(text, str)]
        parts = [self._framed(single, None, max_length)]
        if pairs:
            firsts, seconds = zip(*(texts[i] for i in pairs), strict=True)
            parts.append(self._framed(list(firsts), list(seconds), max_length))
        sequences = _interleaved(parts, np.argsort(is_pair, kind='stable'))
        if sequences.num_cut:
            warnings.warn(f'{sequences.num_cut} of {len(texts)} texts are longer than {max_length} '
                          f'tokens: their {self.frame.lost_part}s are left out', stacklevel=3)
        return sequences

    def _framed(
        self, firsts: list[str], seconds: list[str] | None, max_length: int
    ) -> Sequences:
        """The sequences of all texts, or of all pairs."""
        a = self.pieces.encode_joined(firsts)
        b = None if seconds is None else self.pieces.encode_joined(seconds)
        return make_sequences(a, b, max_length=max_length, frame=self.frame)

    def _padded(self, sequences: Sequences, length: int) -> Arrays:
        """Arrays [n, length] int32 of one sequence a row."""
        lengths = sequences.lengths
        places_S = np.arange(length)
        is_token_nxS = places_S < lengths[:, None]
        ids_nxS = np.full(is_token_nxS.shape, self.pieces.vocab.pad_id, np.int32)
        ids_nxS[is_token_nxS] = sequences.ids
        types_nxS = np.zeros_like(ids_nxS)
        types_nxS[is_token_nxS] = sequences.types
        return {
            'input_ids': ids_nxS,
            'attention_mask': is_token_nxS.astype(np.int32),
            'token_type_ids': types_nxS,
        }


def _interleaved(parts: Sequence[Sequences], texts: np.ndarray) -> Sequences:
    """Sequences in the order of texts.

    Args:
      parts: the sequences, in some of them.
      texts: [n] the text of each sequence, of the first part first.
    """
    order = np.argsort(texts)
    lengths = np.concatenate([part.lengths for part in parts])
    starts = np.cumsum(lengths) - lengths
    tokens = ranges(starts[order], lengths[order])
    return Sequences(
        ids=np.concatenate([part.ids for part in parts])[tokens],
        offsets=np.concatenate([[0], np.cumsum(lengths[order])]),
        first_lengths=np.concatenate([part.first_lengths for part in parts])[order],
        types=np.concatenate([part.types for part in parts])[tokens],
        num_cut=sum(part.num_cut for part in parts))


def _num_choices(texts: Sequence[Any]) -> int:
    """The number of choices of each example; 0: the texts are no lists of choices.

    Raises:
      InputError: there is no text, or examples have different numbers of choices.
    """
    if isinstance(texts, str):
        raise InputError(f'texts={texts!r:.60} is a single text: give a list, [text]')
    if not isinstance(texts, Sequence | np.ndarray):
        raise InputError(f'texts={texts!r:.60} is no list of texts: give [text, ...]')
    if not len(texts):
        raise InputError('texts is empty: give one text or more')
    numbers = [len(text) if isinstance(text, list) else 0 for text in texts]
    for i, number in enumerate(numbers):
        if number != numbers[0]:
            raise InputError(f'texts[{i}] has {number} choices, and texts[0] has {numbers[0]}: '
                             'all examples of a batch need as many (0: it is no list)')
    return numbers[0]


def _check_texts(texts: Sequence[Any], pairs: Sequence[int]) -> None:
    """Raises InputError for an item that is neither a string nor a pair of strings."""
    for i in pairs:
        pair = texts[i]
        is_pair = isinstance(pair, tuple) and len(pair) == 2
        if not is_pair or not all(isinstance(text, str) for text in pair):
            raise InputError(f'texts[{i}]={pair!r:.60} is no text: give a string, or a pair '
                             '(first, second)')
