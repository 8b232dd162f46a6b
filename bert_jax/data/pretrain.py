"""Token store -> pre-training rows, each a pure function of (store, seed, epoch, index).

    n: rows, S: max_seq_length, P: max_predictions_per_seq
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from bert_jax.data.masking import MaskingRates, mask_rows, num_to_predict
from bert_jax.data.plans import EpochPlans
from bert_jax.data.spec import BatchSpec, pretrain_spec
from bert_jax.data.stateless import below, coin_flips, hash64, permute
from bert_jax.runtime.errors import InputError

# Purposes of draws, so that no two decisions share one (101 to 103 are in `plans`).
_DOCUMENT, _START, _TRUNCATE, _MASK, _ORDER = range(104, 109)


class Tokens(Protocol):
    """What is read of a token store (`data.token_store.TokenStore`)."""

    tokens: np.ndarray  # [T] unsigned
    sentence_offsets: np.ndarray  # [sentences + 1] int64, into tokens
    document_offsets: np.ndarray  # [documents + 1] int64, into sentences


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How rows are made."""

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    short_seq_prob: float = 0.1
    random_next_prob: float = 0.5
    next_sentence: bool = True
    min_sentences: int = 1
    num_maskings: int = 0
    masking: MaskingRates = MaskingRates()


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """Ids and facts of the vocabulary that rows need."""

    vocab_size: int
    cls_id: int
    sep_id: int
    mask_id: int
    is_continuation: np.ndarray


class PretrainExamples:
    """The rows of one set of documents (training or held-out) in one phase.

    Follows google-research/bert's create_pretraining_data: documents are cut into chunks of
    consecutive sentences of about `max_seq_length` (for a share `short_seq_prob` of the documents
    a random shorter length), each chunk is split at a random sentence into A and B, half of the
    time B is replaced by text from another document (the unused sentences then begin the next
    chunk), and too long pairs lose tokens from the longer segment, at either end. Unlike there,
    nothing is written down: chunks, pairs and masks are drawn again in every epoch.
    """

    def __init__(
        self, store: Tokens, documents: np.ndarray, recipe: Recipe, special: SpecialIds, seed: int,
        name: str = 'the corpus',
    ):
        """Plans the first epoch, which fixes `num_examples`.

        Args:
          store: the token store.
          documents: [k] int64 indices of the documents to use, ascending.
          recipe: how rows are made.
          special: the vocabulary's facts.
          seed: of all draws.
          name: of the source, for messages.

        Raises:
          InputError: too few documents for next sentence prediction, or none.
        """
        first = np.asarray(store.document_offsets[documents])
        last = np.asarray(store.document_offsets[documents + 1])
        enough = last - first >= recipe.min_sentences
        first, last = first[enough], last[enough]
        needed = 2 if recipe.next_sentence else 1
        if len(first) < needed:
            raise InputError(
                f'{name} has {len(first)} document(s) of at least {recipe.min_sentences} '
                f'sentence(s) here, and {needed} are needed'
                + (' to draw a random next sentence from: separate documents by blank lines, '
                   'give more text, or set config.data.next_sentence=False'
                   if recipe.next_sentence else ': give more text')
            )
        self.spec: BatchSpec = pretrain_spec(
            recipe.max_seq_length, recipe.max_predictions_per_seq
        )
        self._store, self._recipe, self._special, self._seed = store, recipe, special, seed
        self._offsets = np.asarray(store.sentence_offsets)  # a memmap's own indexing is slower
        self._num_special = 3 if recipe.next_sentence else 2
        self._max_tokens = recipe.max_seq_length - self._num_special
        self._plans = EpochPlans(
            self._offsets, first, last, seed=seed,
            max_tokens=self._max_tokens, short_seq_prob=recipe.short_seq_prob,
            random_next_prob=recipe.random_next_prob, next_sentence=recipe.next_sentence,
        )
        self.num_examples = self.num_frozen = self._plans.size(0)

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of these ids, in shuffled order, epoch after epoch.

        Args:
          row_ids: [n] int64; id = epoch * num_examples + place in the epoch.

        Returns:
          Features of `spec`, [n, ...].
        """
        row_ids = np.asarray(row_ids, np.int64)
        batch: dict[str, np.ndarray] = {
            name: np.empty((len(row_ids), *f.shape), f.dtype) for name, f in self.spec.items()
        }
        for here, epoch, index in self._chunks(row_ids):
            part = self._make(epoch, index)
            if len(here) == len(row_ids):
                return part
            for name, x in part.items():
                batch[name][here] = x
        return batch

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [n] of these rows, and how many prediction slots they use at most."""
        row_ids = np.asarray(row_ids, np.int64)
        lengths = np.empty(len(row_ids), np.int64)
        for here, epoch, index in self._chunks(row_ids):
            _, a_length, _, b_length, _ = self._segments(epoch, index)
            lengths[here] = a_length + b_length + self._num_special
        slots = self._recipe.max_predictions_per_seq
        return lengths, num_to_predict(lengths, self._recipe.masking.masked_lm_prob, slots)

    def documents(self, row_ids: np.ndarray) -> np.ndarray:
        """The documents [n] of the store that the rows (their segments A) are from."""
        found = np.empty(len(row_ids), np.int64)
        for here, epoch, index in self._chunks(np.asarray(row_ids, np.int64)):
            sentence = np.searchsorted(self._offsets, self._segments(epoch, index)[0], 'right') - 1
            found[here] = np.searchsorted(self._store.document_offsets, sentence, 'right') - 1
        return found

    def _chunks(self, row_ids: np.ndarray) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
        """By epoch: which of the rows are of it, and the chunks of which drawn epoch they are."""
        epochs = row_ids // self.num_examples
        for epoch in np.unique(epochs):
            here = np.flatnonzero(epochs == epoch)
            place = row_ids[here] - epoch * self.num_examples
            drawn = self._drawn(int(epoch))
            size = self._plans.size(drawn)
            # Epochs differ a little in their number of chunks: of a longer one the last few are
            # left out, of a shorter one the first few come twice.
            order = hash64(self._seed, int(epoch), _ORDER)
            # The plan after this one, ahead of time; by now the one before is not read any more.
            if (place >= self.num_examples // 4).any():
                self._plans.prepare(self._drawn(int(epoch) + 1))
            yield here, drawn, permute(place % size, size, int(order))

    def _drawn(self, epoch: int) -> int:
        """The epoch whose chunks, pairs and masks an epoch has."""
        return epoch % self._recipe.num_maskings if self._recipe.num_maskings else epoch

    def frozen_rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of the first epoch [n]: evaluation sees the same pairs and masks every time.

        Shuffled, so that the first so many are a fair sample; a plan begins with the beginnings
        of documents.
        """
        order = permute(np.asarray(row_ids, np.int64), self.num_frozen, 0xF20)
        return self._make(0, order)

    def _segments(
        self, epoch: int, index: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Token spans of chunks [n]: (A begin, A length, B begin, B length, is_random)."""
        plans, offsets = self._plans, self._offsets
        start, split, end, document, is_random, target = plans.chunks(epoch, index)
        a_begin = offsets[start]
        a_length = offsets[split] - a_begin
        b_first, b_last = split.copy(), end.copy()
        r = np.flatnonzero(is_random)
        if len(r):
            keys = hash64(self._seed, epoch, _DOCUMENT, index[r])
            other = below(keys, len(plans.first) - 1)
            other += other >= document[r]  # any document but its own
            first, limit = plans.first[other], plans.last[other]
            b_first[r] = first + below(hash64(keys, _START), limit - first)
            b_last[r] = plans.sentences_within(b_first[r], target[r] - a_length[r], limit)
        b_begin = offsets[b_first]
        b_length = offsets[b_last] - b_begin
        # Tokens go from the longer segment one by one, so the shorter keeps all of it or both end
        # up at half; which end they go from is a coin flip each.
        room = self._max_tokens
        excess = np.maximum(a_length + b_length - room, 0)
        a_kept = np.where(
            b_length <= room // 2, room - b_length,
            np.where(a_length <= (room + 1) // 2, a_length, (room + 1) // 2),
        )
        a_cut = np.where(excess > 0, a_length - np.minimum(a_kept, a_length), 0)
        b_cut = excess - a_cut
        keys = hash64(self._seed, epoch, _TRUNCATE, index)
        cut = np.flatnonzero(excess)
        a_begin[cut] += coin_flips(hash64(keys[cut], 1), a_cut[cut])
        b_begin[cut] += coin_flips(hash64(keys[cut], 2), b_cut[cut])
        return a_begin, a_length - a_cut, b_begin, b_length - b_cut, is_random

    def _make(self, epoch: int, index: np.ndarray) -> dict[str, np.ndarray]:
        recipe, special = self._recipe, self._special
        n, width = len(index), recipe.max_seq_length
        a_begin, a_length, b_begin, b_length, is_random = self._segments(epoch, index)
        lengths = a_length + b_length + self._num_special
        column = np.arange(width, dtype=np.int32)[None, :]
        a_end = (a_length + 1).astype(np.int32)[:, None]  # column of the first [SEP]
        end = (lengths - 1).astype(np.int32)[:, None]  # column of the last [SEP]
        in_b = column > a_end
        source = column + np.where(in_b, (b_begin - a_length - 2)[:, None], (a_begin - 1)[:, None])
        candidates = (column > 0) & (column < end) & (column != a_end)
        np.copyto(source, 0, where=~candidates)
        input_ids = self._store.tokens[source].astype(np.int32)
        input_mask = column <= end
        np.copyto(input_ids, 0, where=~candidates)
        input_ids[:, 0] = special.cls_id
        every = np.arange(n)
        input_ids[every, a_end[:, 0]] = special.sep_id
        input_ids[every, end[:, 0]] = special.sep_id
        masked = mask_rows(
            input_ids, candidates, lengths, hash64(self._seed, epoch, _MASK, index),
            rates=recipe.masking, slots=recipe.max_predictions_per_seq,
            vocab_size=special.vocab_size, mask_id=special.mask_id,
            is_continuation=special.is_continuation,
        )
        return {
            'input_ids': input_ids,
            'input_mask': input_mask.astype(np.int32),
            'segment_ids': (in_b & input_mask).astype(np.int32),
            **masked,
            'next_sentence_labels': is_random.astype(np.int32),
            'example_weights': np.ones(n, np.float32),
        }
