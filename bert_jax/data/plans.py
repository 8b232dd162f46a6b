"""Documents -> the sentence chunks of each epoch, as functions of (store, seed, epoch).

An epoch's plan is the first sentence of every chunk and nothing else: 4 bytes a chunk, 200 MB for
Wikipedia and Books. Where A and B meet, where the chunk ends and whether B is random follow from
hashes of (seed, epoch, document, first sentence) and are drawn again for the chunks asked for.

    n: chunks asked for, k: documents
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.stateless import below, hash64, uniform

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
        """Where the chunks after those that begin at these sentences begin."""
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
