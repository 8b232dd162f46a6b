"""Pre-training examples as functions of (seed, epoch, index): plans of pairs, then masks.

The plan of an epoch is the first sentence of each of its chunks. A chunk is a run of sentences of
one document, from which a pair is made (see `PretrainExamples`).
"""

import dataclasses
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.examples import collect, grouped, pretrain_spec
from bert_jax.data.masking import MaskingRates, mask_rows, num_to_predict
from bert_jax.data.pairs import ranges, truncated_lengths
from bert_jax.data.stateless import below, coin_flips, hash64, permute, uniform
from bert_jax.data.store import TokenStore
from bert_jax.runtime.errors import InputError
from bert_jax.text.vocab import Vocab

# Purposes of draws, so that no two decisions share one.
_TARGET, _SPLIT, _NEXT, _DOCUMENT, _START, _TRUNCATE, _MASK, _ORDER = range(101, 109)
_Map = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
_BLOCK = 1 << 13  # chunks or sentences cut at a time: their arrays fit into the processor's cache
_FEW = 1 << 9  # documents: with fewer left, a pass costs more than its chunks
_REST = 1 << 22  # sentences of the longest documents that may be cut at once
_SAMPLE = 10_000  # rows that are counted
# How far counts may be from what was asked for: documents end somewhere, and the last sentence of
# many has no next one.
_FAR_FROM_ASKED, _FEW_USED, _FEW_MASKED = 0.15, 0.8, 0.9


@dataclasses.dataclass(frozen=True)
class Recipe(MaskingRates):
    """Options of making rows, named as the fields of `config.data`."""

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    short_seq_prob: float = 0.1
    random_next_prob: float = 0.5
    next_sentence: bool = True
    min_sentences: int = 1
    split_long_sentences: bool = True
    num_maskings: int = 0

    @property
    def num_special(self) -> int:
        """Number of [CLS] and [SEP] in a row."""
        return 3 if self.next_sentence else 2

    @property
    def max_tokens(self) -> int:
        """Room for A and B in a row, in tokens."""
        return self.max_seq_length - self.num_special


class Counts(NamedTuple):
    """What a sample of an epoch's rows holds.

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


class PretrainExamples:
    """The rows of one set of documents (training or held-out) in one phase.

    Follows google-research/bert's create_pretraining_data: documents are cut into chunks of
    consecutive sentences of about `max_seq_length` tokens (for a share `short_seq_prob` of the
    documents, a random shorter length). Each chunk is split at a random sentence into A and B. At
    the rate `random_next_prob`, and if the chunk is one sentence, B is text from another document
    (the unused sentences then begin the next chunk). Pairs that are too long lose tokens from the
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
        first = np.asarray(store.document_offsets[documents])
        last = np.asarray(store.document_offsets[documents + 1])
        enough = last - first >= recipe.min_sentences
        first, last = first[enough], last[enough]
        needed = 2 if recipe.next_sentence else 1  # the other supplies random next sentences
        if len(first) < needed:
            raise InputError(
                f'{name} has {len(first)} document(s) of at least {recipe.min_sentences} '
                f'sentence(s) here, and {needed} are needed: separate documents by blank lines, '
                'give more text, or set config.data.next_sentence=False')
        self.spec = pretrain_spec(recipe.max_seq_length, recipe.max_predictions_per_seq)
        self._store, self._recipe, self._vocab, self._seed = store, recipe, vocab, seed
        self._offsets = np.asarray(store.sentence_offsets)  # a memmap's own indexing is slower
        if recipe.split_long_sentences:
            self._offsets, first, last = split_sentences(
                self._offsets, first, last, recipe.max_tokens)
        index = np.dtype(np.uint32 if len(self._offsets) < 2**32 else np.int64)
        self._first, self._last = first.astype(index), last.astype(index)
        self._plans: dict[int, Future[np.ndarray]] = {}
        self._lock, self._pool = threading.Lock(), ThreadPoolExecutor(2)
        self.num_examples = self.num_frozen = len(self._plan(0).result())

    def rows(self, row_ids: np.ndarray, frozen: bool = False) -> dict[str, np.ndarray]:
        """The rows of these ids, in shuffled order, epoch after epoch.

        Args:
          row_ids: [n] int64; id = epoch * num_examples + place in the epoch.
          frozen: take the rows of the first epoch, in a fixed shuffled order, so that evaluation
            sees the same pairs and masks every time, and its first k rows are a fair sample.
            (Unshuffled, a plan starts with the beginnings of documents.)

        Returns:
          Features of `spec`, [n, ...].
        """
        row_ids = np.asarray(row_ids, np.int64)
        if frozen:
            return self._make(0, permute(row_ids, self.num_frozen, 0xF20))
        epochs, places = np.divmod(row_ids, self.num_examples)
        return collect(
            self.spec, epochs, lambda epoch, here: self._make(*self._chunks(epoch, places[here])))

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens [n], most prediction slots used [n]) of these rows."""
        lengths = np.empty(len(row_ids), np.int64)
        epochs, places = np.divmod(np.asarray(row_ids, np.int64), self.num_examples)
        for epoch, here in grouped(epochs):
            _, a_length, _, b_length, _ = self._segments(*self._chunks(epoch, places[here]))
            lengths[here] = a_length + b_length + self._recipe.num_special
        slots = self._recipe.max_predictions_per_seq
        return lengths, num_to_predict(lengths, self._recipe.masked_lm_prob, slots)

    def counts(self) -> Counts:
        """Counts of at most 10,000 rows of the first epoch."""
        index = permute(np.arange(min(self.num_frozen, _SAMPLE)), self.num_frozen, 0x5A3)
        _, start, _, split, end, is_random = self._chunk(0, index)
        own = self._offsets_of(np.where(is_random, split, end)) - self._offsets_of(start)
        _, a_length, _, b_length, _ = self._segments(0, index)
        lengths = a_length + b_length + self._recipe.num_special
        wanted = num_to_predict(
            lengths, self._recipe.masked_lm_prob, self._recipe.max_predictions_per_seq)
        masked = sum(self._make(0, part)['masked_lm_weights'].sum(dtype=np.float64)
                     for part in np.array_split(index, -(-len(index) // 1000)))
        return Counts(
            len(index), float(is_random.mean()),
            int(a_length.sum() + b_length[~is_random].sum()) / int(own.sum()),
            float(masked / lengths.sum()), int(wanted.sum()) / int(lengths.sum()))

    def _chunks(self, epoch: int, place: np.ndarray) -> tuple[int, np.ndarray]:
        """The epoch whose plan `epoch` uses, and the indices [n] of the chunks at these places."""
        num_maskings = self._recipe.num_maskings
        drawn = epoch % num_maskings if num_maskings else epoch
        # Epochs differ a little in their number of chunks: a longer one leaves out a few, a
        # shorter one repeats a few.
        size = len(self._plan(drawn).result())
        order = hash64(self._seed, epoch, _ORDER)
        # Starts the next plan ahead of time. It replaces the previous one, which is done with.
        if (place >= self.num_examples // 4).any():
            self._plan((epoch + 1) % num_maskings if num_maskings else epoch + 1, True)
        return drawn, permute(place % size, size, int(order))

    def _plan(self, epoch: int, in_background: bool = False) -> Future[np.ndarray]:
        """The first sentence [chunks] of every chunk. The two plans last asked for are kept."""
        with self._lock:
            plan = self._plans.pop(epoch, None) or self._pool.submit(
                self._starts, epoch, in_background)
            self._plans = dict([*self._plans.items()][-1:]) | {epoch: plan}
        return plan

    def _starts(self, epoch: int, in_background: bool) -> np.ndarray:
        """Cuts all documents, one chunk of each per pass; in store order within a pass."""
        starts = []
        document = np.arange(len(self._first), dtype=np.uint32)
        start = self._first
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            run = map if in_background else pool.map  # leave the cores to the present epoch
            target = np.concatenate([*run(
                lambda begin: self._targets(epoch, document[begin:begin + _BLOCK]),
                range(0, len(document), _BLOCK))])
            while len(start) > _FEW or (self._last[document] - start).sum(dtype=np.int64) > _REST:
                starts.append(start)
                following = self._following(epoch, document, start, target, run)
                left = following < self._last[document]
                document, start, target = document[left], following[left], target[left]
            # The longest documents would take thousands of further passes. Instead, find for each
            # of their sentences, as if a chunk began there, where the next chunk begins. Then go
            # from chunk to chunk.
            rest = (self._last[document] - start).astype(np.int64)
            begin = np.cumsum(rest) - rest
            document, target = np.repeat(document, rest), np.repeat(target, rest)
            start = np.repeat(start - begin, rest) + np.arange(len(document))
            following = self._following(epoch, document, start, target, run)
            step = np.where(following < self._last[document], following - start, 0)
            place = begin
            while len(place):
                starts.append(start[place].astype(self._first.dtype))
                step_here = step[place]
                place = (place + step_here)[step_here > 0]
                if in_background:
                    time.sleep(1e-4)
        return np.concatenate(starts)

    def _following(
        self, epoch: int, document: np.ndarray, start: np.ndarray, target: np.ndarray, run: _Map
    ) -> np.ndarray:
        """First sentence of the next chunk, for chunks that begin at the sentences `start`."""
        following = np.empty_like(start)

        def advance(begin: int) -> None:
            block = slice(begin, begin + _BLOCK)
            split, end, is_random = self._cut(
                epoch, document[block], start[block].astype(np.int64), target[block])
            # The sentences that a random B replaces begin the next chunk.
            following[block] = np.where(is_random, split, end)

        for _ in run(advance, range(0, len(start), _BLOCK)):
            pass
        return following

    def _targets(self, epoch: int, document: np.ndarray) -> np.ndarray:
        """Target lengths [n], in tokens, of the pairs of these documents in this epoch."""
        draws = hash64(self._seed, epoch, _TARGET, document)
        is_short, most = uniform(draws) < self._recipe.short_seq_prob, self._recipe.max_tokens
        return np.where(is_short, 2 + below(hash64(draws, 1), most - 1), most).astype(np.int32)

    def _cut(
        self, epoch: int, document: np.ndarray, start: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """(first sentence of B, end, is B random) of the chunks [n] that begin at `start`."""
        end = self._within(start, target, self._last[document])
        if not self._recipe.next_sentence:
            return end, end, np.zeros(len(end), bool)
        draws = hash64(self._seed, epoch, _SPLIT, document, start)
        split = start + 1 + below(draws, np.maximum(end - start - 1, 1))
        random = uniform(hash64(draws, _NEXT)) < self._recipe.random_next_prob
        return split, end, random | (end - start == 1)

    def _within(self, start: np.ndarray, tokens: np.ndarray, limit: np.ndarray) -> np.ndarray:
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

    def _chunk(self, epoch: int, index: np.ndarray) -> tuple[np.ndarray, ...]:
        """Chunks [n]: (document, first sentence, target length, and what `_cut` returns)."""
        start = self._plan(epoch).result()[index]
        document = np.searchsorted(self._first, start, 'right') - 1
        start, target = start.astype(np.int64), self._targets(epoch, document)
        return document, start, target, *self._cut(epoch, document, start, target)

    def _offsets_of(self, sentence: np.ndarray) -> np.ndarray:
        return np.take(self._offsets, sentence).astype(np.int64, copy=False)

    def _segments(self, epoch: int, index: np.ndarray) -> tuple[np.ndarray, ...]:
        """Token spans of chunks [n]: (A begin, A length, B begin, B length, is_random)."""
        document, start, target, split, end, is_random = self._chunk(epoch, index)
        a_begin = self._offsets_of(start)
        a_length = self._offsets_of(split) - a_begin
        b_first, b_last = split.copy(), end.copy()
        r = np.flatnonzero(is_random)
        if len(r):
            keys = hash64(self._seed, epoch, _DOCUMENT, index[r])
            other = below(keys, len(self._first) - 1)
            other += other >= document[r]  # any document but its own
            first, limit = self._first[other], self._last[other]
            b_first[r] = first + below(hash64(keys, _START), limit - first)
            b_last[r] = self._within(b_first[r], target[r] - a_length[r], limit)
        b_begin = self._offsets_of(b_first)
        b_length = self._offsets_of(b_last) - b_begin
        # The longer segment loses tokens; for each, a coin flip decides from which end.
        a_kept, b_kept = truncated_lengths(a_length, b_length, self._recipe.max_tokens)
        keys = hash64(self._seed, epoch, _TRUNCATE, index)
        cut = np.flatnonzero(a_kept + b_kept < a_length + b_length)
        a_begin[cut] += coin_flips(hash64(keys[cut], 1), (a_length - a_kept)[cut])
        b_begin[cut] += coin_flips(hash64(keys[cut], 2), (b_length - b_kept)[cut])
        return a_begin, a_kept, b_begin, b_kept, is_random

    def _make(self, epoch: int, index: np.ndarray) -> dict[str, np.ndarray]:
        recipe, vocab = self._recipe, self._vocab
        a_begin, a_length, b_begin, b_length, is_random = self._segments(epoch, index)
        lengths = a_length + b_length + recipe.num_special
        column = np.arange(recipe.max_seq_length, dtype=np.int32)
        a_end = (a_length + 1).astype(np.int32)[:, None]  # column of the first [SEP]
        end = (lengths - 1).astype(np.int32)[:, None]  # column of the last [SEP]
        in_b = column > a_end
        source = column + np.where(in_b, (b_begin - a_length - 2)[:, None], (a_begin - 1)[:, None])
        candidates = (column > 0) & (column < end) & (column != a_end)
        np.copyto(source, 0, where=~candidates)
        input_ids = self._store.tokens[source].astype(np.int32)
        real = column <= end
        np.copyto(input_ids, 0, where=~candidates)
        input_ids[:, 0] = vocab.cls_id
        for ends in (a_end, end):
            np.put_along_axis(input_ids, ends, vocab.sep_id, axis=1)
        masked = mask_rows(
            input_ids, candidates, lengths, hash64(self._seed, epoch, _MASK, index),
            rates=recipe, slots=recipe.max_predictions_per_seq, vocab=vocab)
        return {
            'input_ids': input_ids,
            'sequence_ids': real.astype(np.int32),
            'segment_ids': (in_b & real).astype(np.int32),
            **masked,
            'next_sentence_labels': is_random.astype(np.int32),
            'example_weights': np.ones(len(index), np.float32),
        }


def losses(counts: Counts, recipe: Recipe, name: str) -> list[str]:
    """What is lost in these rows, in a line each with the remedy.

    Args:
      counts: of the rows.
      recipe: that they were made by.
      name: of their source.
    """
    rows, lines = f'rows of {recipe.max_seq_length} from {name}', list[str]()
    split = 'config.data.split_long_sentences=True'
    cuts_off = counts.used < _FEW_USED and not recipe.split_long_sentences
    noise = 0.5 / math.sqrt(counts.rows)  # the standard deviation of a share of a half
    if recipe.next_sentence and (
            abs(counts.random_next - recipe.random_next_prob) > _FAR_FROM_ASKED + noise):
        lines.append(
            f'{counts.random_next:.1%} of the pairs in {rows} have a random next sentence, not '
            f'{recipe.random_next_prob:.0%} (config.data.random_next_prob), because '
            + (f'a long sentence fills a row: set {split}' if cuts_off else
               'most documents are too short for two segments: join rows into documents')
            + ', or train without pairs, config.data.next_sentence=False')
    if cuts_off:
        lines.append(f'{1 - counts.used:.1%} of the tokens are cut off in {rows}, at the ends of '
                     f'long sentences: set {split}, or take longer rows')
    if counts.masked < _FEW_MASKED * counts.wanted:
        lines.append(
            f'{counts.masked:.1%} of the tokens are masked in {rows}, not {counts.wanted:.1%}, '
            'because many words have more pieces than may be masked in a row: set '
            "config.data.masking='pieces', or take longer rows")
    return lines


def split_sentences(
    offsets: np.ndarray, first: np.ndarray, last: np.ndarray, room: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Splits sentences longer than half of a row's room into parts of an eighth of it.

    Two such sentences do not fit into a row, so both would lose their ends in every epoch, or a
    single one would be the whole row. Short parts fill a row well, whatever room the rest leaves,
    and A and B may meet at any of them. The last part of a sentence may be shorter.

    Args:
      offsets: [s + 1] int64, where sentences begin and end in the store, in tokens.
      first, last: [k] the first sentence of each document and the one after its last, ascending.
      room: of a row, in tokens.

    Returns:
      The same of the parts, with the offsets of these documents only, each with an end of its own,
      as uint32 if that holds them. The arguments themselves if no sentence is that long.
    """
    size, dtype = max(room // 8, 1), np.dtype(np.uint32 if offsets[-1] < 2**32 else np.int64)
    counts = last - first + 1  # of offsets, the document's end included
    ends = np.cumsum(counts)
    blocks = np.unique([0, *np.searchsorted(ends, range(_BLOCK, ends[-1], _BLOCK)), len(ends)])
    parts, lasts, done = [], [], 0
    for begin, end in itertools.pairwise(blocks.tolist()):
        starts = offsets[ranges(first[begin:end], counts[begin:end])]
        ending = np.cumsum(counts[begin:end]) - 1
        lengths = np.diff(starts, append=starts[-1])
        lengths[ending] = 0  # up to the next document
        times = np.where(lengths > room // 2, -(-lengths // size), 1)
        total = np.cumsum(times)
        number = np.arange(total[-1])  # less that of the sentence's first part: from 0
        found = np.repeat(starts - size * (total - times), times) + size * number
        parts.append(found.astype(dtype))
        lasts.append(done + total[ending] - 1)
        done += total[-1]
    if done == ends[-1]:
        return offsets, first, last
    last = np.concatenate(lasts)
    return np.concatenate(parts), np.append(0, last[:-1] + 1), last


_COMPARED = 10  # first tokens by which sentences are compared
_KEPT = 1 << 18  # about so many sentences are compared
_CHUNK = 1 << 22  # sentences read at a time
_COUNTED = 1 << 23  # tokens of a store, from its start


def repeated_share(store: TokenStore, documents: np.ndarray) -> float:
    """Share of the sentences that begin with the same ten tokens as an earlier one.

    Exact duplicates of documents are left out when a store is built; this finds near duplicates and
    repeated passages. Shorter sentences do not count. In a large store only a sample is compared:
    sentences are chosen by their first two tokens, so that of several equal ones all are or none.

    Args:
      store: the token store.
      documents: [k] indices of the documents that are used.
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
        result.append(hash64(
            key[chosen], *(store.tokens[starts[chosen] + i] for i in range(2, _COMPARED))))
    keys = np.sort(np.concatenate(result))  # np.unique takes several times as long
    return int((keys[1:] == keys[:-1]).sum()) / max(len(keys), 1)


def frequency_loss(stores: Sequence[tuple[TokenStore, float]], vocab_size: int) -> float:
    """Mean masked-LM loss, in nats, of always predicting the token frequencies: their entropy.

    Args:
      stores: (store, weight) pairs.
      vocab_size: the same for all stores.
    """
    shares = np.zeros(vocab_size)
    total = sum(weight for _, weight in stores)
    for store, weight in stores:
        counts = np.bincount(store.tokens[:_COUNTED], minlength=vocab_size)
        shares += counts * (weight / total / max(counts.sum(), 1))
    shares = shares[shares > 0]
    return math.fsum(-shares * np.log(shares))
