"""Pairs of pre-training: documents cut into chunks, a pair of each, its row with masks.

All of it is drawn anew in every epoch, as functions of (seed, epoch, sentence or pair). A chunk is
a run of sentences of one document, from which a pair is made. The plan of an epoch is the first
sentence of each of its chunks.

    k: documents, n: chunks, pairs or rows, S: max_seq_length
"""

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bert_jax.config.fields import FIELDS
from bert_jax.rows import sequences
from bert_jax.rows.masking import MaskingRates, mask_rows, num_to_predict
from bert_jax.rows.sequences import ranges, truncated_lengths
from bert_jax.rows.stateless import Purpose, below, coin_flips, hash64, permute, uniform
from bert_jax.rows.store import LoadedBlocks
from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.long_work import long_work
from bert_jax.text.vocab import Vocab

# Where a line says that rows fall short of what was asked for: documents end somewhere, and the
# last sentence of many has no next one.
_MAX_DEVIATION_OF_RANDOM_NEXT = 0.15
_MIN_USED = 0.8
_MIN_MASKED = 0.9  # of what is wanted

_BLOCK = 1 << 13  # chunks or sentences cut at a time: their arrays fit into the processor's cache
MIN_BATCH_DOCUMENTS = 1 << 9  # with fewer left, a pass costs more than its chunks
MAX_REST_SENTENCES = 1 << 22  # of the longest documents, that may be cut at once
_PAUSE_SECONDS = 1e-4  # between short steps in the background

_SAMPLE_ORDER = 0x5A3  # key of a permutation
_SAMPLED_ROWS = 10_000  # rows that are counted
_ROWS_AT_ONCE = 1000  # of those, made in one call

_Map = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]


@dataclasses.dataclass(frozen=True)
class RowOptions(MaskingRates):
    """Options of making rows, named as the fields of `config.data`.

    `num_separators`, the number of [SEP] between A and B, is no config field: `PairText` sets it
    from the vocabulary.
    """

    max_seq_length: int = FIELDS['data.max_seq_length'].default
    max_predictions_per_seq: int = 20  # of so many tokens
    short_seq_prob: float = FIELDS['data.short_seq_prob'].default
    random_next_prob: float = FIELDS['data.random_next_prob'].default
    next_sentence: bool = FIELDS['data.next_sentence'].default
    min_sentences: int = FIELDS['data.min_sentences'].default
    split_long_sentences: bool = FIELDS['data.split_long_sentences'].default
    num_maskings: int = FIELDS['data.num_maskings'].default
    num_separators: int = 1

    @property
    def num_special(self) -> int:
        """Number of [CLS] and [SEP] in a row."""
        return 2 + self.num_separators if self.next_sentence else 2

    @property
    def max_tokens(self) -> int:
        """Room for A and B in a row, in tokens."""
        return self.max_seq_length - self.num_special

    def planned_epoch(self, epoch: int) -> int:
        """The first epoch that has the same chunks, pairs and masks as `epoch`."""
        return epoch % self.num_maskings if self.num_maskings else epoch


class RowStatistics(NamedTuple):
    """Statistics of a sample of an epoch's rows.

    Attributes:
      rows: number of rows in the sample.
      random_next: share of them whose B is from another document.
      used: share of the text's tokens that are in the rows made of them; the others were cut off.
      masked: share of the rows' tokens, [CLS] and [SEP] included, that are masked.
      wanted: what `masked` would be if no word had more pieces than may be masked.
    """

    rows: int
    random_next: float
    used: float
    masked: float
    wanted: float


def row_warnings(counts: RowStatistics, options: RowOptions, name: str) -> list[str]:
    """Warnings about what is lost in rows, one line each, with the remedy.

    Args:
      counts: of the rows.
      options: that they were made by.
      name: of their source.
    """
    rows = f'rows of {options.max_seq_length} from {name}'
    cuts_off = counts.used < _MIN_USED and not options.split_long_sentences
    warnings = []
    if options.next_sentence and _random_next_deviates(counts, options):
        cause = 'most documents are too short for two segments: join rows into documents'
        if cuts_off:
            cause = 'a long sentence fills a row: set config.data.split_long_sentences=True'
        warnings.append(
            f'{counts.random_next:.1%} of the pairs in {rows} have a random next sentence, not '
            f'{options.random_next_prob:.0%} (config.data.random_next_prob), because {cause}, or '
            'train without pairs, config.data.next_sentence=False')
    if cuts_off:
        warnings.append(
            f'{1 - counts.used:.1%} of the tokens are cut off in {rows}, at the ends of long '
            'sentences: set config.data.split_long_sentences=True, or take longer rows')
    if counts.masked < _MIN_MASKED * counts.wanted:
        warnings.append(
            f'{counts.masked:.1%} of the tokens are masked in {rows}, not {counts.wanted:.1%}, '
            'because many words have more pieces than may be masked in a row: set '
            "config.data.masking='pieces', or take longer rows")
    return warnings


def _random_next_deviates(counts: RowStatistics, options: RowOptions) -> bool:
    """Whether more or fewer next sentences are random than asked for, beyond chance."""
    chance = 0.5 / math.sqrt(counts.rows)  # the standard deviation of a share of a half
    deviation = abs(counts.random_next - options.random_next_prob)
    return deviation > _MAX_DEVIATION_OF_RANDOM_NEXT + chance


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
        """The beginnings at the sentences `following` [n], of the documents that go on."""
        goes_on = following < last[self.document]
        return _Beginnings(self.document[goes_on], following[goes_on], self.target[goes_on])


class Chunker:
    """Cuts documents into chunks.

    Follows google-research/bert's create_pretraining_data: chunks are consecutive sentences of
    about `max_seq_length` tokens (for a share `short_seq_prob` of the documents, a random shorter
    length). Each chunk is split at a random sentence into A and B. At the rate `random_next_prob`,
    and always where a chunk is one sentence, B is text from another document (the unused sentences
    then begin the next chunk).
    """

    def __init__(self, documents: Documents, options: RowOptions, seed: int):
        """Takes the documents; nothing is cut yet.

        Args:
          documents: all with a sentence at least.
          options: how chunks are cut.
          seed: of all draws.
        """
        index = np.dtype(np.uint32 if len(documents.offsets) < 2**32 else np.int64)
        self._first = documents.first.astype(index)
        self._last = documents.last.astype(index)
        self._offsets = documents.offsets
        self._options = options
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
        longest = self._options.max_tokens
        draws = hash64(self._seed, epoch, Purpose.TARGET, document)
        is_short = uniform(draws) < self._options.short_seq_prob
        shorter = 2 + below(hash64(draws, 1), longest - 1)
        return np.where(is_short, shorter, longest).astype(np.int32)

    def _cut(
        self, epoch: int, document: np.ndarray, start: np.ndarray, target: np.ndarray
    ) -> Chunks:
        """The chunks [n] that begin at the sentences `start`."""
        end = self.end_of(start, target, self._last[document])
        if not self._options.next_sentence:
            is_random = np.zeros(len(end), bool)
            return Chunks(document, start, target, split=end, end=end, is_random=is_random)
        draws = hash64(self._seed, epoch, Purpose.SPLIT, document, start)
        num_sentences = end - start
        split = start + 1 + below(draws, np.maximum(num_sentences - 1, 1))
        is_random = uniform(hash64(draws, Purpose.NEXT)) < self._options.random_next_prob
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
        for bit in reversed(range((self._options.max_tokens - 1).bit_length())):
            probe = place + (1 << bit)
            np.copyto(place, probe, where=np.take(self._offsets, probe, mode='clip') < wanted)
        return np.minimum(place + 1, limit)

    def tokens_before(self, sentence: np.ndarray) -> np.ndarray:
        """[n] int64: where sentences begin in the store, in tokens."""
        return np.take(self._offsets, sentence).astype(np.int64, copy=False)


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
      options: how rows are made.
      vocab: that the text was tokenized with.
      seed: of all draws.
      chunker: cuts the documents into chunks.
    """

    def __init__(
        self, window: LoadedBlocks, documents: np.ndarray, options: RowOptions, vocab: Vocab,
        seed: int, name: str = 'the corpus',
    ):
        """Chooses the documents; nothing is planned yet.

        Args:
          window: see above.
          documents: [k] int64 indices of the documents to use, ascending.
          options, vocab, seed: see above.
          name: of the source, for messages.

        Raises:
          InputError: too few documents for next sentence prediction, or none.
        """
        options = dataclasses.replace(options, num_separators=vocab.num_separators)
        first = window.document_offsets[documents]
        last = window.document_offsets[documents + 1]
        long_enough = last - first >= options.min_sentences
        used = Documents(window.sentence_offsets, first[long_enough], last[long_enough])
        needed = 2 if options.next_sentence else 1  # the other supplies random next sentences
        if len(used) < needed:
            raise InputError(
                f'{name} has {len(used)} document(s) of at least {options.min_sentences} '
                f'sentence(s) here, and {needed} are needed: separate documents by blank lines, '
                'give more text, or set config.data.next_sentence=False')
        if options.split_long_sentences:
            used = cut_long_sentences(used, options.max_tokens)
        self.window = window
        self.options = options
        self.vocab = vocab
        self.seed = seed
        self.chunker = Chunker(used, options, seed)

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
        options = self.text.options
        segments = self._segments(index)
        rows = self._unmasked_rows(segments, width)
        masked = mask_rows(
            rows.input_ids,
            rows.candidates,
            segments.lengths + options.num_special,
            self._draws(Purpose.MASK, index),
            rates=options,
            row_length=options.max_seq_length,
            slots=min(options.max_predictions_per_seq, width),
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
        return self._segments(index).lengths + self.text.options.num_special

    def num_to_predict(self, lengths: np.ndarray) -> np.ndarray:
        """[n] the most prediction slots used in rows of these lengths."""
        options = self.text.options
        return num_to_predict(lengths, options.masked_lm_prob, options.max_predictions_per_seq)

    def counts(self) -> RowStatistics:
        """Counts of at most 10,000 rows."""
        sample = np.arange(min(len(self), _SAMPLED_ROWS))
        index = permute(sample, len(self), _SAMPLE_ORDER)
        chunks = self._chunks(index)
        segments = self._segments(index)
        lengths = segments.lengths + self.text.options.num_special
        # The tokens of the chunk's own document, and those of them that are in the row.
        tokens_before = self.text.chunker.tokens_before
        own = tokens_before(chunks.following) - tokens_before(chunks.start)
        used = segments.a_length.sum() + segments.b_length[~segments.is_random].sum()
        num_masked = 0.0
        for part in np.array_split(index, -(-len(index) // _ROWS_AT_ONCE)):
            made = self.rows(part, self.text.options.max_seq_length)
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
            whole.a_length, whole.b_length, self.text.options.max_tokens)
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
        lengths = segments.lengths + self.text.options.num_special
        num_separators = self.text.options.num_separators
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


# Old names, for config files of users (docs/stability.md).
split_sentences = cut_long_sentences
Recipe = RowOptions
Counts = RowStatistics


if not TYPE_CHECKING:  # a type checker would take any name

    def __getattr__(name: str) -> Any:
        """Names of `rows.sequences`, which was once the module of this name."""
        found = getattr(sequences, name)
        tell_once(f'note: bert_jax.rows.pairs.{name} is in bert_jax.rows.sequences now')
        return found
