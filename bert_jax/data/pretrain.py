"""Token store -> pre-training rows, each a pure function of (store, seed, epoch, index).

    n: rows, S: max_seq_length, P: max_predictions_per_seq
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Protocol

import numpy as np

from bert_jax.data.masking import MaskingRates, mask_rows
from bert_jax.data.spec import BatchSpec, pretrain_spec
from bert_jax.data.stateless import below, coin_flips, hash64, permute, uniform
from bert_jax.errors import InputError

# Purposes of draws, so that no two decisions share one.
_TARGET, _SPLIT, _NEXT, _DOCUMENT, _START, _TRUNCATE, _MASK, _ORDER = range(101, 109)


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


@dataclasses.dataclass(frozen=True)
class Plan:
    """The sentence chunks of one epoch, in store order within each pass over the documents.

    Attributes (all [chunks]):
      start, split, end: sentence indices; A is start..split, and where the next segment is the
        real one B is split..end.
      document: position in the list of documents.
      is_random: B comes from another document instead.
      target: tokens that the pair aims at.
    """

    start: np.ndarray
    split: np.ndarray
    end: np.ndarray
    document: np.ndarray
    is_random: np.ndarray
    target: np.ndarray


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
          documents: [k] int64 indices of the documents to use.
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
        self._first, self._last = first[enough], last[enough]
        needed = 2 if recipe.next_sentence else 1
        if len(self._first) < needed:
            raise InputError(
                f'{name} has {len(self._first)} document(s) of at least {recipe.min_sentences} '
                f'sentence(s) here, and {needed} are needed'
                + (' to draw a random next sentence from: separate documents by blank lines, '
                   'give more text, or set config.data.next_sentence=False'
                   if recipe.next_sentence else ': give more text')
            )
        self.spec: BatchSpec = pretrain_spec(
            recipe.max_seq_length, recipe.max_predictions_per_seq
        )
        self._store, self._recipe, self._special, self._seed = store, recipe, special, seed
        self._max_tokens = recipe.max_seq_length - (3 if recipe.next_sentence else 2)
        self._plans: dict[int, Plan] = {}
        self._lock = threading.Lock()
        self.num_examples = self.num_frozen = len(self._plan(0).start)

    def _plan(self, epoch: int) -> Plan:
        with self._lock:
            plan = self._plans.pop(epoch, None) or self._make_plan(epoch)
            # Two epochs at most meet in a batch: the two used last are kept.
            self._plans = dict([*self._plans.items()][-1:])
            self._plans[epoch] = plan
            return plan

    def _make_plan(self, epoch: int) -> Plan:
        """Cuts all documents at once, one chunk of each a pass."""
        recipe, offsets = self._recipe, self._store.sentence_offsets
        documents = np.arange(len(self._first))
        draws = hash64(self._seed, epoch, _TARGET, documents)
        short = uniform(draws) < recipe.short_seq_prob
        length = 2 + below(hash64(draws, 1), self._max_tokens - 1)
        targets = np.where(short, length, self._max_tokens)
        starts = self._first.copy()
        passes: list[tuple[np.ndarray, ...]] = []
        active = documents
        while len(active):
            start, target, limit = starts[active], targets[active], self._last[active]
            wanted = np.asarray(offsets[start]) + target
            end = np.minimum(np.searchsorted(offsets, wanted), limit)
            draws = hash64(self._seed, epoch, _SPLIT, active, start)
            if recipe.next_sentence:
                split = start + 1 + below(draws, np.maximum(end - start - 1, 1))
                is_random = (end - start == 1) | (
                    uniform(hash64(draws, _NEXT)) < recipe.random_next_prob
                )
            else:
                split, is_random = end, np.zeros(len(active), bool)
            passes.append((start, split, end, active, is_random, target))
            starts[active] = np.where(is_random, split, end)
            active = active[starts[active] < limit]
        return Plan(*(np.concatenate(column) for column in zip(*passes, strict=True)))

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of these ids, in shuffled order, epoch after epoch.

        Args:
          row_ids: [n] int64; id = epoch * num_examples + place in the epoch.

        Returns:
          Features of `spec`, [n, ...].
        """
        row_ids = np.asarray(row_ids, np.int64)
        epochs = row_ids // self.num_examples
        batch: dict[str, np.ndarray] = {}
        for epoch in np.unique(epochs):
            here = np.flatnonzero(epochs == epoch)
            place = row_ids[here] - epoch * self.num_examples
            drawn = int(epoch)
            if self._recipe.num_maskings:
                drawn %= self._recipe.num_maskings
            size = len(self._plan(drawn).start)
            # Epochs differ a little in their number of chunks: of a longer one the last few are
            # left out, of a shorter one the first few come twice.
            order = hash64(self._seed, int(epoch), _ORDER)
            part = self._make(drawn, permute(place % size, size, int(order)))
            if len(here) == len(row_ids):
                return part
            for name, x in part.items():
                batch.setdefault(name, np.empty((len(row_ids), *x.shape[1:]), x.dtype))[here] = x
        return batch

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
        plan, offsets = self._plan(epoch), self._store.sentence_offsets
        start, split, end = plan.start[index], plan.split[index], plan.end[index]
        a_begin = np.asarray(offsets[start])
        a_length = np.asarray(offsets[split]) - a_begin
        is_random = plan.is_random[index]
        b_first, b_last = split.copy(), end.copy()
        r = np.flatnonzero(is_random)
        if len(r):
            own = plan.document[index[r]]
            keys = hash64(self._seed, epoch, _DOCUMENT, index[r])
            other = below(keys, len(self._first) - 1)
            other += other >= own  # any document but its own
            sentences = self._last[other] - self._first[other]
            first = self._first[other] + below(hash64(keys, _START), sentences)
            wanted = np.asarray(offsets[first]) + plan.target[index[r]] - a_length[r]
            last = np.minimum(np.searchsorted(offsets, wanted), self._last[other])
            b_first[r], b_last[r] = first, np.maximum(last, first + 1)
        b_begin = np.asarray(offsets[b_first])
        b_length = np.asarray(offsets[b_last]) - b_begin
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
        has_b = int(recipe.next_sentence)
        lengths = a_length + b_length + 2 + has_b
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
