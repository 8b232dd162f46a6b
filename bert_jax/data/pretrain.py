"""Pre-training examples as functions of (seed, epoch, index): plans of pairs, then masks."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from bert_jax.data.examples import BatchSpec, pretrain_spec
from bert_jax.data.masking import MaskingRates, mask_rows, num_to_predict
from bert_jax.data.stateless import below, coin_flips, hash64, permute, uniform
from bert_jax.runtime.errors import InputError

# Purposes of draws, so that no two decisions share one (the other numbers are in `pretrain`).
_TARGET, _SPLIT, _NEXT = range(101, 104)
_Plan = concurrent.futures.Future  # of the first sentence [chunks] of every chunk
_Map = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
_BLOCK = 1 << 13  # chunks cut in one go: their arrays stay in the processor's cache
_FEW = 1 << 9  # documents for which a pass costs more than its chunks do
_REST = 1 << 22  # sentences of the longest documents that are cut at once


class Chunks(NamedTuple):
    """Sentence chunks (all [n]).

    Attributes:
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


class EpochPlans:
    """The chunks of every epoch of one list of documents."""

    def __init__(
        self, offsets: np.ndarray, first: np.ndarray, last: np.ndarray, *, seed: int,
        max_tokens: int, short_seq_prob: float, random_next_prob: float, next_sentence: bool,
    ):
        """Cuts nothing yet.

        Args:
          offsets: [sentences + 1] int64, strictly increasing: sentence -> first token.
          first: [k] first sentence of each document, ascending.
          last: [k] the sentence after its last.
          seed: of all draws.
          max_tokens: room for A and B in a row.
          short_seq_prob: share of documents whose pairs aim at fewer tokens.
          random_next_prob: share of B from another document.
          next_sentence: whether chunks have a B at all.
        """
        self._offsets = offsets
        index = np.dtype(np.uint32 if len(offsets) < 2**32 else np.int64)
        self.first, self.last = first.astype(index), last.astype(index)
        self._seed, self._max_tokens = seed, max_tokens
        self._short_seq_prob, self._random_next_prob = short_seq_prob, random_next_prob
        self._next_sentence = next_sentence
        self._plans: dict[int, _Plan] = {}
        self._lock = threading.Lock()

    def size(self, epoch: int) -> int:
        """Chunks of an epoch."""
        return len(self._plan(epoch))

    def chunks(self, epoch: int, index: np.ndarray) -> Chunks:
        """The chunks [n] that stand at these places of an epoch's plan."""
        start = self._plan(epoch)[index]
        document = np.searchsorted(self.first, start, 'right') - 1
        start = start.astype(np.int64)
        target = self._targets(epoch, document)
        split, end, is_random = self._cut(epoch, document, start, target)
        return Chunks(start, split, end, document, is_random, target)

    def sentences_within(
        self, start: np.ndarray, tokens: np.ndarray, limit: np.ndarray
    ) -> np.ndarray:
        """The end [n] of the fewest sentences from `start` that hold so many tokens.

        Args:
          start: [n] int64 sentences.
          tokens: [n] at most `max_tokens`; one sentence is always taken.
          limit: [n] past `start`; the end is not beyond it.
        """
        # A bisection of the next `max_tokens` sentences, none of which is empty: they are near in
        # memory, where a search of all offsets would wait for memory at every step.
        wanted = np.take(self._offsets, start) + tokens
        place = start.copy()
        for bit in reversed(range((self._max_tokens - 1).bit_length())):
            probe = place + (1 << bit)
            np.copyto(place, probe, where=np.take(self._offsets, probe, mode='clip') < wanted)
        return np.minimum(place + 1, limit)

    def prepare(self, epoch: int) -> None:
        """Begins an epoch's plan in the background, unless it is there already."""
        plan, is_new = self._claim(epoch)
        if is_new:
            threading.Thread(target=self._make, args=(epoch, plan, True), daemon=True).start()

    def _plan(self, epoch: int) -> np.ndarray:
        """The first sentence [chunks] of every chunk; waits where it is being made."""
        plan, is_new = self._claim(epoch)
        if is_new:
            self._make(epoch, plan, False)
        return plan.result()

    def _claim(self, epoch: int) -> tuple[_Plan, bool]:
        """The plan of an epoch, and whether the caller has to make it. The last two are kept."""
        with self._lock:
            plan = self._plans.pop(epoch, None)
            is_new = plan is None
            plan = plan or concurrent.futures.Future()
            self._plans = dict([*self._plans.items()][-1:])
            self._plans[epoch] = plan
            return plan, is_new

    def _make(self, epoch: int, plan: _Plan, in_background: bool) -> None:
        try:
            plan.set_result(self._starts(epoch, in_background))
        except BaseException as error:  # whoever waits for the plan shall hear of it
            plan.set_exception(error)

    def _starts(self, epoch: int, in_background: bool) -> np.ndarray:
        """Cuts all documents, one chunk of each a pass; store order within a pass."""
        starts = np.empty(int((self.last - self.first).sum(dtype=np.int64)), self.first.dtype)
        made = 0
        document = np.arange(len(self.first), dtype=np.uint32)
        start = self.first
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            run = map if in_background else pool.map  # rows of the present epoch come first
            target = np.concatenate([*run(
                lambda begin: self._targets(epoch, document[begin:begin + _BLOCK]),
                range(0, len(document), _BLOCK),
            )])
            while len(start) > _FEW or (self.last[document] - start).sum(dtype=np.int64) > _REST:
                starts[made:made + len(start)] = start
                made += len(start)
                following = self._following(epoch, document, start, target, run)
                left = following < self.last[document]
                document, start, target = document[left], following[left], target[left]
            # The longest documents would take thousands of passes more: cut at all their sentences
            # at once, whichever of them begin a chunk, and then go from chunk to chunk.
            rest = (self.last[document] - start).astype(np.int64)
            begin = np.cumsum(rest) - rest
            document, target = np.repeat(document, rest), np.repeat(target, rest)
            start = np.repeat(start - begin, rest) + np.arange(len(document))
            following = self._following(epoch, document, start, target, run)
            step = np.where(following < self.last[document], following - start, 0)
            place = begin
            while len(place):
                starts[made:made + len(place)] = start[place]
                made += len(place)
                step_here = step[place]
                place = (place + step_here)[step_here > 0]
                if in_background:
                    time.sleep(1e-4)
        starts.resize(made, refcheck=False)
        return starts

    def _following(
        self, epoch: int, document: np.ndarray, start: np.ndarray, target: np.ndarray, run: _Map
    ) -> np.ndarray:
        """The first sentences of the chunks that follow those beginning at these sentences."""
        following = np.empty_like(start)

        def advance(begin: int) -> None:
            block = slice(begin, begin + _BLOCK)
            split, end, is_random = self._cut(
                epoch, document[block], start[block].astype(np.int64), target[block]
            )
            # What a random B takes the place of comes next.
            following[block] = np.where(is_random, split, end)

        for _ in run(advance, range(0, len(start), _BLOCK)):
            pass
        return following

    def _targets(self, epoch: int, document: np.ndarray) -> np.ndarray:
        """Tokens [n] that the pairs of these documents aim at in this epoch."""
        draws = hash64(self._seed, epoch, _TARGET, document)
        short = uniform(draws) < self._short_seq_prob
        length = 2 + below(hash64(draws, 1), self._max_tokens - 1)
        return np.where(short, length, self._max_tokens).astype(np.int32)

    def _cut(
        self, epoch: int, document: np.ndarray, start: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(split, end, is_random) of the chunks [n] that begin at these sentences."""
        end = self.sentences_within(start, target, self.last[document])
        if not self._next_sentence:
            return end, end, np.zeros(len(end), bool)
        draws = hash64(self._seed, epoch, _SPLIT, document, start)
        split = start + 1 + below(draws, np.maximum(end - start - 1, 1))
        is_random = (end - start == 1) | (uniform(hash64(draws, _NEXT)) < self._random_next_prob)
        return split, end, is_random


# Purposes of draws, so that no two decisions share one (101 to 103 are in `plans`).
_DOCUMENT, _START, _TRUNCATE, _MASK, _ORDER = range(104, 109)


class Tokens(Protocol):
    """The arrays of a token store that are used (`data.store.TokenStore`)."""

    tokens: np.ndarray  # [T] unsigned
    sentence_offsets: np.ndarray  # [sentences + 1] int64, into tokens
    document_offsets: np.ndarray  # [documents + 1] int64, into sentences


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The options of making rows."""

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
        result = np.empty(len(row_ids), np.int64)
        for here, epoch, index in self._chunks(np.asarray(row_ids, np.int64)):
            sentence = np.searchsorted(self._offsets, self._segments(epoch, index)[0], 'right') - 1
            result[here] = np.searchsorted(self._store.document_offsets, sentence, 'right') - 1
        return result

    def _chunks(self, row_ids: np.ndarray) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
        """By epoch: the rows that belong to it, and the drawn epoch whose chunks they are."""
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
        real = column <= end
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
            'sequence_ids': real.astype(np.int32),
            'segment_ids': (in_b & real).astype(np.int32),
            **masked,
            'next_sentence_labels': is_random.astype(np.int32),
            'example_weights': np.ones(n, np.float32),
        }


_COMPARED = 10  # tokens that a sentence must have, and by which it is known
_KEPT = 1 << 18  # sentences that are compared, more or less
_CHUNK = 1 << 22
_COUNTED = 1 << 23  # tokens


def repeated_share(store: Tokens, documents: np.ndarray) -> float:
    """Share of the sentences whose first ten tokens an earlier sentence has.

    Whole documents that are there twice are left out when a store is built. This sees those that
    are almost alike, and parts of them. Of a large store some sentences are looked at, chosen by
    their first tokens, so that of several alike all are or none.

    Args:
      store: of which text.
      documents: [k] indices of those that are used.
    """
    used = np.zeros(len(store.document_offsets) - 1, bool)
    used[documents] = True
    num_sentences = len(store.sentence_offsets) - 1
    every = max(1, num_sentences // _KEPT)
    result = []
    for begin in range(0, num_sentences, _CHUNK):
        offsets = np.asarray(store.sentence_offsets[begin : begin + _CHUNK + 1])
        sentence = np.flatnonzero(np.diff(offsets) >= _COMPARED)
        starts = offsets[sentence]
        key = hash64(store.tokens[starts], store.tokens[starts + 1])
        chosen = np.flatnonzero(key % np.uint64(every) == 0)
        document = np.searchsorted(store.document_offsets, begin + sentence[chosen], 'right') - 1
        chosen = chosen[used[document]]
        starts, key = starts[chosen], key[chosen]
        for i in range(2, _COMPARED):
            key = hash64(key, store.tokens[starts + i])
        result.append(key)
    keys = np.sort(np.concatenate(result))  # np.unique takes several times as long
    return int((keys[1:] == keys[:-1]).sum()) / max(len(keys), 1)


def frequency_loss(stores: Sequence[tuple[Tokens, float]], vocab_size: int) -> float:
    """Mean masked-LM loss of guessing each token as often as it occurs: the entropy, in nats.

    Args:
      stores: with the weight of each.
      vocab_size: of all of them.
    """
    shares = np.zeros(vocab_size)
    total = sum(weight for _, weight in stores)
    for store, weight in stores:
        counts = np.bincount(store.tokens[:_COUNTED], minlength=vocab_size)
        shares += counts * (weight / total / max(counts.sum(), 1))
    shares = shares[shares > 0]
    return math.fsum(-shares * np.log(shares))
