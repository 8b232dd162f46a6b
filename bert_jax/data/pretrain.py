"""Pre-training examples as functions of (seed, epoch, index): chunks, pairs, then masks.

    n: rows, S: max_seq_length
"""

import dataclasses
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from bert_jax.data.chunks import Chunker, Chunks, Documents, Draw, split_sentences
from bert_jax.data.examples import collect, grouped, pretrain_spec
from bert_jax.data.masking import mask_rows, num_to_predict
from bert_jax.data.pairs import truncated_lengths
from bert_jax.data.recipe import Counts, Recipe
from bert_jax.data.stateless import coin_flips, hash64, permute
from bert_jax.data.store import TokenStore
from bert_jax.runtime.errors import InputError
from bert_jax.text.vocab import Vocab

_FROZEN_ORDER = 0xF20  # keys of permutations
_SAMPLE_ORDER = 0x5A3
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


class PretrainExamples:
    """The rows of one set of documents (training or held-out) in one phase.

    Follows google-research/bert's create_pretraining_data: documents are cut into chunks, from
    each of which a pair is made (see `Chunker`). Pairs that are too long lose tokens from the
    longer segment, at either end. Unlike there, nothing is stored: chunks, pairs and masks are
    drawn anew in every epoch, or in each of `num_maskings` epochs that then repeat. And with
    `split_long_sentences`, a sentence longer than half of the room, of which every row would show
    the middle, counts as several (see `split_sentences`).
    """

    def __init__(
        self, store: TokenStore, documents: np.ndarray, recipe: Recipe, vocab: Vocab, seed: int,
        name: str = 'the corpus',
    ):
        """Plans the first epoch, which fixes `num_examples`.

        Args:
          store: the token store.
          documents: [k] int64 indices of the documents to use, ascending.
          recipe: how rows are made.
          vocab: that the store was made with.
          seed: of all draws.
          name: of the source, for messages.

        Raises:
          InputError: too few documents for next sentence prediction, or none.
        """
        recipe = dataclasses.replace(recipe, num_separators=vocab.num_separators)
        first = np.asarray(store.document_offsets[documents])
        last = np.asarray(store.document_offsets[documents + 1])
        long_enough = last - first >= recipe.min_sentences
        used = Documents(
            np.asarray(store.sentence_offsets),  # a memmap's own indexing is slower
            first[long_enough],
            last[long_enough])
        needed = 2 if recipe.next_sentence else 1  # the other supplies random next sentences
        if len(used) < needed:
            raise InputError(
                f'{name} has {len(used)} document(s) of at least {recipe.min_sentences} '
                f'sentence(s) here, and {needed} are needed: separate documents by blank lines, '
                'give more text, or set config.data.next_sentence=False')
        if recipe.split_long_sentences:
            used = split_sentences(used, recipe.max_tokens)
        self.spec = pretrain_spec(recipe.max_seq_length, recipe.max_predictions_per_seq)
        self._chunker = Chunker(used, recipe, seed)
        self._store = store
        self._recipe = recipe
        self._vocab = vocab
        self._seed = seed
        self._plans: dict[int, Future[np.ndarray]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(2)
        self.num_examples = len(self._plan(0).result())
        self.num_frozen = self.num_examples

    def rows(
        self, row_ids: np.ndarray, frozen: bool = False, width: int | None = None
    ) -> dict[str, np.ndarray]:
        """The rows of these ids, in shuffled order, epoch after epoch.

        Args:
          row_ids: [n] int64; id = epoch * num_examples + place in the epoch.
          frozen: take the rows of the first epoch, in a fixed shuffled order, so that evaluation
            sees the same pairs and masks every time, and its first k rows are a fair sample.
            (Unshuffled, a plan starts with the beginnings of documents.)
          width: number of columns, at least the tokens of the longest row; None: all. Rows are the
            same whatever padding is left out.

        Returns:
          Features of `spec`, [n, ...]; with a `width`, of so many columns and at most so many
          slots.
        """
        row_ids = np.asarray(row_ids, np.int64)
        if width is None:
            width = self._recipe.max_seq_length
        if frozen:
            return self._make(0, permute(row_ids, self.num_frozen, _FROZEN_ORDER), width)
        epochs, places = np.divmod(row_ids, self.num_examples)

        def make(epoch: int, here: np.ndarray) -> dict[str, np.ndarray]:
            return self._make(*self._chunk_indices(epoch, places[here]), width)

        return collect(epochs, make)

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens [n], most prediction slots used [n]) of these rows."""
        lengths = np.empty(len(row_ids), np.int64)
        epochs, places = np.divmod(np.asarray(row_ids, np.int64), self.num_examples)
        for epoch, here in grouped(epochs):
            segments = self._segments(*self._chunk_indices(epoch, places[here]))
            lengths[here] = segments.lengths + self._recipe.num_special
        return lengths, self._num_to_predict(lengths)

    def _num_to_predict(self, lengths: np.ndarray) -> np.ndarray:
        recipe = self._recipe
        return num_to_predict(lengths, recipe.masked_lm_prob, recipe.max_predictions_per_seq)

    def counts(self) -> Counts:
        """Counts of at most 10,000 rows of the first epoch."""
        sample = np.arange(min(self.num_frozen, _SAMPLED_ROWS))
        index = permute(sample, self.num_frozen, _SAMPLE_ORDER)
        chunks = self._chunks(0, index)
        segments = self._segments(0, index)
        lengths = segments.lengths + self._recipe.num_special
        # The tokens of the chunk's own document, and those of them that are in the row.
        begin = self._chunker.tokens_before(chunks.start)
        own = self._chunker.tokens_before(chunks.following) - begin
        used = segments.a_length.sum() + segments.b_length[~segments.is_random].sum()
        num_masked = 0.0
        for part in np.array_split(index, -(-len(index) // _ROWS_AT_ONCE)):
            made = self._make(0, part, self._recipe.max_seq_length)
            num_masked += made['masked_lm_weights'].sum(dtype=np.float64)
        return Counts(
            rows=len(index),
            random_next=float(segments.is_random.mean()),
            used=int(used) / int(own.sum()),
            masked=float(num_masked / lengths.sum()),
            wanted=int(self._num_to_predict(lengths).sum()) / int(lengths.sum()))

    def _chunk_indices(self, epoch: int, place: np.ndarray) -> tuple[int, np.ndarray]:
        """The epoch whose plan `epoch` uses, and the indices [n] of the chunks at these places."""
        planned = self._planned_epoch(epoch)
        # Epochs differ a little in their number of chunks: a longer one leaves out a few, a
        # shorter one repeats a few.
        num_chunks = len(self._plan(planned).result())
        order = hash64(self._seed, epoch, Draw.ORDER)
        # Starts the next plan ahead of time. It replaces the previous one, which is done with.
        if (place >= self.num_examples // 4).any():
            self._plan(self._planned_epoch(epoch + 1), in_background=True)
        return planned, permute(place % num_chunks, num_chunks, int(order))

    def _planned_epoch(self, epoch: int) -> int:
        """The first epoch that has the same chunks, pairs and masks as `epoch`."""
        num_maskings = self._recipe.num_maskings
        return epoch % num_maskings if num_maskings else epoch

    def _plan(self, epoch: int, in_background: bool = False) -> Future[np.ndarray]:
        """The first sentence [chunks] of every chunk. The two plans last asked for are kept."""
        with self._lock:
            plan = self._plans.pop(epoch, None)
            if plan is None:
                plan = self._pool.submit(self._chunker.starts, epoch, in_background)
            latest = list(self._plans.items())[-1:]
            self._plans = dict(latest) | {epoch: plan}
        return plan

    def _chunks(self, epoch: int, index: np.ndarray) -> Chunks:
        return self._chunker.chunks(epoch, self._plan(epoch).result()[index])

    def _segments(self, epoch: int, index: np.ndarray) -> _Segments:
        """The segments of the pairs that are made of the chunks [n] at `index`, cut to the room."""
        chunks = self._chunks(epoch, index)
        tokens_before = self._chunker.tokens_before
        a_begin = tokens_before(chunks.start)
        a_length = tokens_before(chunks.split) - a_begin
        b_first = chunks.split.copy()
        b_last = chunks.end.copy()
        is_random = np.flatnonzero(chunks.is_random)
        if len(is_random):
            b_first[is_random], b_last[is_random] = self._chunker.random_b(
                hash64(self._seed, epoch, Draw.DOCUMENT, index[is_random]),
                chunks.document[is_random],
                chunks.target[is_random] - a_length[is_random])
        b_begin = tokens_before(b_first)
        b_length = tokens_before(b_last) - b_begin
        whole = _Segments(a_begin, a_length, b_begin, b_length, chunks.is_random)
        return self._truncated(whole, hash64(self._seed, epoch, Draw.TRUNCATE, index))

    def _truncated(self, whole: _Segments, keys: np.ndarray) -> _Segments:
        """Cuts pairs to the room of a row.

        The longer segment loses tokens; for each, a coin flip decides from which end.

        Args:
          whole: segments of n pairs.
          keys: [n] uint64, for the coin flips.
        """
        a_kept, b_kept = truncated_lengths(
            whole.a_length, whole.b_length, self._recipe.max_tokens)
        is_cut = np.flatnonzero(a_kept + b_kept < whole.lengths)
        a_lost = (whole.a_length - a_kept)[is_cut]
        b_lost = (whole.b_length - b_kept)[is_cut]
        a_begin = whole.a_begin.copy()
        a_begin[is_cut] += coin_flips(hash64(keys[is_cut], 1), a_lost)
        b_begin = whole.b_begin.copy()
        b_begin[is_cut] += coin_flips(hash64(keys[is_cut], 2), b_lost)
        return _Segments(a_begin, a_kept, b_begin, b_kept, whole.is_random)

    def _make(self, epoch: int, index: np.ndarray, width: int) -> dict[str, np.ndarray]:
        """The rows that are made of the chunks [n] at `index` of the epoch's plan."""
        recipe = self._recipe
        segments = self._segments(epoch, index)
        rows = self._unmasked_rows(segments, width)
        masked = mask_rows(
            rows.input_ids,
            rows.candidates,
            segments.lengths + recipe.num_special,
            hash64(self._seed, epoch, Draw.MASK, index),
            rates=recipe,
            row_length=recipe.max_seq_length,
            slots=min(recipe.max_predictions_per_seq, width),
            vocab=self._vocab)
        return {
            'input_ids': rows.input_ids,
            'sequence_ids': rows.is_real.astype(np.int32),
            'segment_ids': rows.is_b.astype(np.int32),
            **masked,
            'next_sentence_labels': segments.is_random.astype(np.int32),
            'example_weights': np.ones(len(index), np.float32),
        }

    def _unmasked_rows(self, segments: _Segments, width: int) -> _UnmaskedRows:
        """[CLS] A [SEP] B [SEP] or [CLS] A [SEP], and padding up to `width`."""
        column = np.arange(width, dtype=np.int32)
        lengths = segments.lengths + self._recipe.num_special
        num_separators = self._recipe.num_separators
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
        input_ids = self._store.tokens[source].astype(np.int32)
        np.copyto(input_ids, self._vocab.pad_id, where=~is_real)
        np.copyto(input_ids, self._vocab.sep_id, where=is_separator & is_real)
        input_ids[:, 0] = self._vocab.cls_id
        return _UnmaskedRows(input_ids, candidates, is_real, is_after_a & is_real)
