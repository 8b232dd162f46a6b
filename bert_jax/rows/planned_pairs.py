"""The pairs of one pass over some documents, made from its plan: segments, rows, masks.

    n: rows, S: max_seq_length
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from bert_jax.rows.chunks import Chunker, Chunks, Documents, cut_long_sentences
from bert_jax.rows.masking import mask_rows, num_to_predict
from bert_jax.rows.pairs import truncated_lengths
from bert_jax.rows.recipe import RowOptions, RowStatistics
from bert_jax.rows.stateless import Purpose, coin_flips, hash64, permute
from bert_jax.rows.store import LoadedBlocks
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.long_work import long_work
from bert_jax.text.vocab import Vocab

_SAMPLE_ORDER = 0x5A3  # key of a permutation
_SAMPLED_ROWS = 10_000  # rows that are counted
_ROWS_AT_ONCE = 1000  # of those, made in one call


class _Segments(NamedTuple):
    """The tokens of A and B of n pairs, as spans of the store.

    Attributes:
      a_begin, b_begin: [n] int64, where they begin.
      a_length, b_length: [n] int64, how many tokens they have.
      is_random: [n] bool, whether B is from another document.
    """

    a_begin: np.ndarray
    a_length: np.ndarray
    b_begin: np.ndarray
    b_length: np.ndarray
    is_random: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """[n]: tokens of A and B together."""
        return self.a_length + self.b_length


class _UnmaskedRows(NamedTuple):
    """Rows of n pairs before masking, each [n, S].

    Attributes:
      input_ids: int32.
      candidates: bool; false on [CLS], [SEP] and padding.
      is_real: bool; false on padding.
      is_b: bool; B and its [SEP].
    """

    input_ids: np.ndarray
    candidates: np.ndarray
    is_real: np.ndarray
    is_b: np.ndarray


class PairText:
    """Documents that pairs are made of, and how.

    Attributes:
      window: that holds the documents.
      recipe: how rows are made.
      vocab: that the text was tokenized with.
      seed: of all draws.
      chunker: cuts the documents into chunks.
    """

    def __init__(
        self, window: LoadedBlocks, documents: np.ndarray, recipe: RowOptions, vocab: Vocab,
        seed: int, name: str = 'the corpus',
    ):
        """Chooses the documents; nothing is planned yet.

        Args:
          window: see above.
          documents: [k] int64 indices of the documents to use, ascending.
          recipe, vocab, seed: see above.
          name: of the source, for messages.

        Raises:
          InputError: too few documents for next sentence prediction, or none.
        """
        recipe = dataclasses.replace(recipe, num_separators=vocab.num_separators)
        first = window.document_offsets[documents]
        last = window.document_offsets[documents + 1]
        long_enough = last - first >= recipe.min_sentences
        used = Documents(window.sentence_offsets, first[long_enough], last[long_enough])
        needed = 2 if recipe.next_sentence else 1  # the other supplies random next sentences
        if len(used) < needed:
            raise InputError(
                f'{name} has {len(used)} document(s) of at least {recipe.min_sentences} '
                f'sentence(s) here, and {needed} are needed: separate documents by blank lines, '
                'give more text, or set config.data.next_sentence=False')
        if recipe.split_long_sentences:
            used = cut_long_sentences(used, recipe.max_tokens)
        self.window = window
        self.recipe = recipe
        self.vocab = vocab
        self.seed = seed
        self.chunker = Chunker(used, recipe, seed)

    def planned(self, epoch: int, in_background: bool) -> 'PlannedPairs':
        """The pairs of an epoch; for `in_background` see `Chunker.starts`."""
        with long_work():
            return PlannedPairs(self, epoch, self.chunker.starts(epoch, in_background))


@dataclasses.dataclass(frozen=True)
class PlannedPairs:
    """The pairs of one epoch, each of which is made from one chunk.

    Follows google-research/bert's create_pretraining_data: documents are cut into chunks, from
    each of which a pair is made (see `Chunker`). Pairs that are too long lose tokens from the
    longer segment, at either end. Unlike there, nothing is stored.

    Attributes:
      text: the documents.
      epoch: whose draws are taken.
      starts: [chunks] the first sentence of every chunk.
    """

    text: PairText
    epoch: int
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, index: np.ndarray, width: int) -> dict[str, np.ndarray]:
        """The rows that are made of the chunks [n] at `index`, of so many columns.

        Returns:
          Features of `examples.pretrain_spec`, [n, ...], with at most `width` columns and slots.
        """
        recipe = self.text.recipe
        segments = self._segments(index)
        rows = self._unmasked_rows(segments, width)
        masked = mask_rows(
            rows.input_ids,
            rows.candidates,
            segments.lengths + recipe.num_special,
            self._draws(Purpose.MASK, index),
            rates=recipe,
            row_length=recipe.max_seq_length,
            slots=min(recipe.max_predictions_per_seq, width),
            vocab=self.text.vocab)
        return {
            'input_ids': rows.input_ids,
            'sequence_ids': rows.is_real.astype(np.int32),
            'segment_ids': rows.is_b.astype(np.int32),
            **masked,
            'next_sentence_labels': segments.is_random.astype(np.int32),
            'example_weights': np.ones(len(index), np.float32),
        }

    def lengths(self, index: np.ndarray) -> np.ndarray:
        """[n] tokens of these rows, [CLS] and [SEP] included."""
        return self._segments(index).lengths + self.text.recipe.num_special

    def num_to_predict(self, lengths: np.ndarray) -> np.ndarray:
        """[n] the most prediction slots used in rows of these lengths."""
        recipe = self.text.recipe
        return num_to_predict(lengths, recipe.masked_lm_prob, recipe.max_predictions_per_seq)

    def counts(self) -> RowStatistics:
        """Counts of at most 10,000 rows."""
        sample = np.arange(min(len(self), _SAMPLED_ROWS))
        index = permute(sample, len(self), _SAMPLE_ORDER)
        chunks = self._chunks(index)
        segments = self._segments(index)
        lengths = segments.lengths + self.text.recipe.num_special
        # The tokens of the chunk's own document, and those of them that are in the row.
        tokens_before = self.text.chunker.tokens_before
        own = tokens_before(chunks.following) - tokens_before(chunks.start)
        used = segments.a_length.sum() + segments.b_length[~segments.is_random].sum()
        num_masked = 0.0
        for part in np.array_split(index, -(-len(index) // _ROWS_AT_ONCE)):
            made = self.rows(part, self.text.recipe.max_seq_length)
            num_masked += made['masked_lm_weights'].sum(dtype=np.float64)
        return RowStatistics(
            rows=len(index),
            random_next=float(segments.is_random.mean()),
            used=int(used) / int(own.sum()),
            masked=float(num_masked / lengths.sum()),
            wanted=int(self.num_to_predict(lengths).sum()) / int(lengths.sum()))

    def _draws(self, purpose: Purpose, index: np.ndarray) -> np.ndarray:
        """[n] uint64 for the pairs at `index`."""
        return hash64(self.text.seed, self.epoch, purpose, index)

    def _chunks(self, index: np.ndarray) -> Chunks:
        return self.text.chunker.chunks(self.epoch, self.starts[index])

    def _segments(self, index: np.ndarray) -> _Segments:
        """The segments of the pairs that are made of the chunks [n] at `index`, cut to the room."""
        chunks = self._chunks(index)
        tokens_before = self.text.chunker.tokens_before
        a_begin = tokens_before(chunks.start)
        a_length = tokens_before(chunks.split) - a_begin
        b_first = chunks.split.copy()
        b_last = chunks.end.copy()
        is_random = np.flatnonzero(chunks.is_random)
        if len(is_random):
            b_first[is_random], b_last[is_random] = self.text.chunker.random_b(
                self._draws(Purpose.DOCUMENT, index[is_random]),
                chunks.document[is_random],
                chunks.target[is_random] - a_length[is_random])
        b_begin = tokens_before(b_first)
        b_length = tokens_before(b_last) - b_begin
        whole = _Segments(a_begin, a_length, b_begin, b_length, chunks.is_random)
        return self._truncated(whole, self._draws(Purpose.TRUNCATE, index))

    def _truncated(self, whole: _Segments, keys: np.ndarray) -> _Segments:
        """Cuts pairs to the room of a row.

        The longer segment loses tokens; for each, a coin flip decides from which end.

        Args:
          whole: segments of n pairs.
          keys: [n] uint64, for the coin flips.
        """
        a_kept, b_kept = truncated_lengths(
            whole.a_length, whole.b_length, self.text.recipe.max_tokens)
        is_cut = np.flatnonzero(a_kept + b_kept < whole.lengths)
        a_lost = (whole.a_length - a_kept)[is_cut]
        b_lost = (whole.b_length - b_kept)[is_cut]
        a_begin = whole.a_begin.copy()
        a_begin[is_cut] += coin_flips(hash64(keys[is_cut], 1), a_lost)
        b_begin = whole.b_begin.copy()
        b_begin[is_cut] += coin_flips(hash64(keys[is_cut], 2), b_lost)
        return _Segments(a_begin, a_kept, b_begin, b_kept, whole.is_random)

    def _unmasked_rows(self, segments: _Segments, width: int) -> _UnmaskedRows:
        """[CLS] A [SEP] B [SEP] or [CLS] A [SEP], and padding up to `width`."""
        column = np.arange(width, dtype=np.int32)
        lengths = segments.lengths + self.text.recipe.num_special
        num_separators = self.text.recipe.num_separators
        # The columns [n, 1] of the first [SEP] and of the last.
        a_end = (segments.a_length + 1).astype(np.int32)[:, None]
        end = (lengths - 1).astype(np.int32)[:, None]
        is_after_a = column >= a_end + num_separators
        is_real = column <= end
        is_separator = (column >= a_end) & ~is_after_a | (column == end)
        candidates = (column > 0) & is_real & ~is_separator

        a_shift = segments.a_begin - 1
        b_shift = segments.b_begin - segments.a_length - 1 - num_separators
        source = column + np.where(is_after_a, b_shift[:, None], a_shift[:, None])
        np.copyto(source, 0, where=~candidates)
        input_ids = self.text.window.tokens[source].astype(np.int32)
        np.copyto(input_ids, self.text.vocab.pad_id, where=~is_real)
        np.copyto(input_ids, self.text.vocab.sep_id, where=is_separator & is_real)
        input_ids[:, 0] = self.text.vocab.cls_id
        return _UnmaskedRows(input_ids, candidates, is_real, is_after_a & is_real)
