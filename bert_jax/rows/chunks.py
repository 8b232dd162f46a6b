"""Documents cut into chunks, anew in every epoch, as functions of (seed, epoch, sentence).

A chunk is a run of sentences of one document, from which a pair is made. The plan of an epoch is
the first sentence of each of its chunks.

    k: documents, n: chunks
"""

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from bert_jax.rows.pairs import ranges
from bert_jax.rows.recipe import RowOptions
from bert_jax.rows.stateless import Purpose, below, hash64, uniform

_BLOCK = 1 << 13  # chunks or sentences cut at a time: their arrays fit into the processor's cache
MIN_BATCH_DOCUMENTS = 1 << 9  # with fewer left, a pass costs more than its chunks
MAX_REST_SENTENCES = 1 << 22  # of the longest documents, that may be cut at once
_PAUSE_SECONDS = 1e-4  # between short steps in the background

_Map = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]


@dataclasses.dataclass(frozen=True)
class Documents:
    """The documents that rows are made of, as runs of sentences.

    Attributes:
      offsets: [s + 1], where sentences begin and end in the store, in tokens.
      first: [k] the first sentence of each document, ascending.
      last: [k] the sentence after its last.
    """

    offsets: np.ndarray
    first: np.ndarray
    last: np.ndarray

    def __len__(self) -> int:
        return len(self.first)


def cut_long_sentences(documents: Documents, room: int) -> Documents:
    """Splits sentences longer than half of a row's room into parts of an eighth of it.

    Two such sentences do not fit into a row, so both would lose their ends in every epoch, or a
    single one would be the whole row. Short parts fill a row well, whatever room the rest leaves,
    and A and B may meet at any of them. The last part of a sentence may be shorter.

    Args:
      documents: of whole sentences, with int64 offsets.
      room: of a row, in tokens.

    Returns:
      The same documents with parts as their sentences. `offsets` are of these documents only, each
      with an end of its own, as uint32 if that holds them. The argument itself if no sentence is
      that long.
    """
    part_size = max(room // 8, 1)
    dtype = np.dtype(np.uint32 if documents.offsets[-1] < 2**32 else np.int64)
    counts = documents.last - documents.first + 1  # of offsets, the document's end included
    num_parts = 0
    offsets: list[np.ndarray] = []
    lasts: list[np.ndarray] = []
    for block in _document_blocks(counts):
        starts = documents.offsets[ranges(documents.first[block], counts[block])]
        ends = np.cumsum(counts[block]) - 1  # the places of the documents' ends
        lengths = np.diff(starts, append=starts[-1])
        lengths[ends] = 0  # up to the next document
        times = np.where(lengths > room // 2, -(-lengths // part_size), 1)
        total = np.cumsum(times)
        offsets.append(_part_offsets(starts, times, part_size).astype(dtype))
        lasts.append(num_parts + total[ends] - 1)
        num_parts += total[-1]
    if num_parts == counts.sum():
        return documents
    last = np.concatenate(lasts)
    first = np.append(0, last[:-1] + 1)
    return Documents(np.concatenate(offsets), first, last)


def _document_blocks(counts: np.ndarray) -> Iterator[slice]:
    """Runs of documents of about `_BLOCK` sentences together, from the sentences of each."""
    ends = np.cumsum(counts)
    bounds = np.searchsorted(ends, range(_BLOCK, ends[-1], _BLOCK))
    bounds = np.unique([0, *bounds, len(ends)])
    for begin, end in itertools.pairwise(bounds.tolist()):
        yield slice(begin, end)


def _part_offsets(starts: np.ndarray, times: np.ndarray, part_size: int) -> np.ndarray:
    """Where parts begin, if the sentence that begins at `starts[i]` has `times[i]` of them."""
    total = np.cumsum(times)
    number = np.arange(total[-1])
    # Less the number of the sentence's first part, so that its parts count from 0.
    shifted = starts - part_size * (total - times)
    return np.repeat(shifted, times) + part_size * number


class Chunks(NamedTuple):
    """n chunks.

    Attributes:
      document: [n] the document of each.
      start: [n] int64, its first sentence.
      target: [n] int32, how many tokens the pair should have.
      split: [n] the first sentence of B.
      end: [n] the sentence after its last.
      is_random: [n] bool, whether B comes from another document instead.
    """

    document: np.ndarray
    start: np.ndarray
    target: np.ndarray
    split: np.ndarray
    end: np.ndarray
    is_random: np.ndarray

    @property
    def following(self) -> np.ndarray:
        """[n] the sentence after the last used: those that a random B replaces are left."""
        return np.where(self.is_random, self.split, self.end)


@dataclasses.dataclass(frozen=True)
class _Beginnings:
    """Where chunks begin that are not cut yet.

    Attributes:
      document: [n] uint32.
      start: [n] the first sentence of each.
      target: [n] int32, how many tokens its pair should have.
    """

    document: np.ndarray
    start: np.ndarray
    target: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    def after(self, following: np.ndarray, last: np.ndarray) -> '_Beginnings':
        """Those that follow at the sentences `following` [n], where documents go on."""
        goes_on = following < last[self.document]
        return _Beginnings(self.document[goes_on], following[goes_on], self.target[goes_on])


class Chunker:
    """Cuts documents into chunks.

    Follows google-research/bert's create_pretraining_data: chunks are consecutive sentences of
    about `max_seq_length` tokens (for a share `short_seq_prob` of the documents, a random shorter
    length). Each chunk is split at a random sentence into A and B. At the rate `random_next_prob`,
    and if the chunk is one sentence, B is text from another document (the unused sentences then
    begin the next chunk).
    """

    def __init__(self, documents: Documents, recipe: RowOptions, seed: int):
        """Takes the documents; nothing is cut yet.

        Args:
          documents: all with a sentence at least.
          recipe: how chunks are cut.
          seed: of all draws.
        """
        index = np.dtype(np.uint32 if len(documents.offsets) < 2**32 else np.int64)
        self._first = documents.first.astype(index)
        self._last = documents.last.astype(index)
        self._offsets = documents.offsets
        self._recipe = recipe
        self._seed = seed

    def starts(self, epoch: int, in_background: bool) -> np.ndarray:
        """The plan of an epoch: the first sentence [n] of every chunk of every document.

        Args:
          epoch: whose draws are taken.
          in_background: leave the cores to the present epoch.
        """
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            run: _Map = pool.map
            pause = 0.0
            if in_background:
                run = map
                pause = _PAUSE_SECONDS
            starts, rest = self._cut_in_passes(epoch, run)
            starts += self._cut_rest(epoch, rest, run, pause)
        return np.concatenate(starts)

    def _cut_in_passes(self, epoch: int, run: _Map) -> tuple[list[np.ndarray], _Beginnings]:
        """Cuts one chunk of each document per pass, while that is worth it.

        Returns:
          The first sentences of the chunks of each pass, in store order, and where the next chunks
          of the documents begin that are not cut to their end.
        """
        document = np.arange(len(self._first), dtype=np.uint32)

        def targets(begin: int) -> np.ndarray:
            return self._targets(epoch, document[begin : begin + _BLOCK])

        target = np.concatenate(list(run(targets, range(0, len(document), _BLOCK))))
        rest = _Beginnings(document, self._first, target)
        starts = []
        while len(rest) > MIN_BATCH_DOCUMENTS or self._num_sentences(rest) > MAX_REST_SENTENCES:
            starts.append(rest.start)
            rest = rest.after(self._following(epoch, rest, run), self._last)
        return starts, rest

    def _num_sentences(self, rest: _Beginnings) -> int:
        """How many sentences there are from `rest` to the ends of its documents."""
        return (self._last[rest.document] - rest.start).sum(dtype=np.int64)

    def _cut_rest(
        self, epoch: int, rest: _Beginnings, run: _Map, pause: float
    ) -> list[np.ndarray]:
        """The first sentences of the chunks of the longest documents, from `rest` on.

        They would take thousands of further passes. Instead, this finds for each of their
        sentences, as if a chunk began there, where the next chunk begins; then it goes from chunk
        to chunk. It sleeps `pause` seconds after each step.
        """
        num_sentences = (self._last[rest.document] - rest.start).astype(np.int64)
        first_place = np.cumsum(num_sentences) - num_sentences
        document = np.repeat(rest.document, num_sentences)
        start = np.repeat(rest.start - first_place, num_sentences) + np.arange(len(document))
        target = np.repeat(rest.target, num_sentences)
        following = self._following(epoch, _Beginnings(document, start, target), run)
        # How many places on the next chunk begins; 0: the document ends.
        step = np.where(following < self._last[document], following - start, 0)
        starts = []
        place = first_place
        while len(place):
            starts.append(start[place].astype(self._first.dtype))
            step_here = step[place]
            place = (place + step_here)[step_here > 0]
            if pause:
                time.sleep(pause)
        return starts

    def _following(self, epoch: int, beginnings: _Beginnings, run: _Map) -> np.ndarray:
        """First sentence [n] of the chunk after each of those that begin at `beginnings`."""
        following = np.empty_like(beginnings.start)

        def cut_block(begin: int) -> None:
            block = slice(begin, begin + _BLOCK)
            start = beginnings.start[block].astype(np.int64)
            chunks = self._cut(epoch, beginnings.document[block], start, beginnings.target[block])
            following[block] = chunks.following

        for _ in run(cut_block, range(0, len(beginnings), _BLOCK)):
            pass
        return following

    def chunks(self, epoch: int, start: np.ndarray) -> Chunks:
        """The chunks [n] of an epoch that begin at the sentences `start`, out of its plan."""
        document = np.searchsorted(self._first, start, 'right') - 1
        target = self._targets(epoch, document)
        return self._cut(epoch, document, start.astype(np.int64), target)

    def _targets(self, epoch: int, document: np.ndarray) -> np.ndarray:
        """Target lengths [n] int32, in tokens, of the pairs of these documents in this epoch."""
        longest = self._recipe.max_tokens
        draws = hash64(self._seed, epoch, Purpose.TARGET, document)
        is_short = uniform(draws) < self._recipe.short_seq_prob
        shorter = 2 + below(hash64(draws, 1), longest - 1)
        return np.where(is_short, shorter, longest).astype(np.int32)

    def _cut(
        self, epoch: int, document: np.ndarray, start: np.ndarray, target: np.ndarray
    ) -> Chunks:
        """The chunks [n] that begin at the sentences `start`."""
        end = self.end_of(start, target, self._last[document])
        if not self._recipe.next_sentence:
            is_random = np.zeros(len(end), bool)
            return Chunks(document, start, target, split=end, end=end, is_random=is_random)
        draws = hash64(self._seed, epoch, Purpose.SPLIT, document, start)
        num_sentences = end - start
        split = start + 1 + below(draws, np.maximum(num_sentences - 1, 1))
        is_random = uniform(hash64(draws, Purpose.NEXT)) < self._recipe.random_next_prob
        return Chunks(document, start, target, split, end, is_random | (num_sentences == 1))

    def random_b(
        self, draws: np.ndarray, document: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Text from any place of any other document.

        Args:
          draws: [n] uint64.
          document: [n] documents that it must not come from.
          tokens: [n] how many are wanted.

        Returns:
          The first sentence [n] and the sentence after the last [n].
        """
        other = below(draws, len(self._first) - 1)
        other += other >= document
        first = self._first[other]
        limit = self._last[other]
        start = first + below(hash64(draws, Purpose.START), limit - first)
        return start, self.end_of(start, tokens, limit)

    def end_of(self, start: np.ndarray, tokens: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """The end [n] of the fewest sentences from `start` on with at least `tokens` tokens.

        Args:
          start: [n] int64 sentences.
          tokens: [n] at most `max_tokens`; one sentence is always taken.
          limit: [n] the last end allowed, beyond `start`.
        """
        # Bisects the next `max_tokens` sentences only, which suffice because none is empty. They
        # are close in memory; a search of all offsets would miss the cache at every step.
        wanted = np.take(self._offsets, start) + tokens
        place = start.copy()
        for bit in reversed(range((self._recipe.max_tokens - 1).bit_length())):
            probe = place + (1 << bit)
            np.copyto(place, probe, where=np.take(self._offsets, probe, mode='clip') < wanted)
        return np.minimum(place + 1, limit)

    def tokens_before(self, sentence: np.ndarray) -> np.ndarray:
        """[n] int64: where sentences begin in the store, in tokens."""
        return np.take(self._offsets, sentence).astype(np.int64, copy=False)


# Old names, for config files of users (docs/stability.md).
split_sentences = cut_long_sentences
