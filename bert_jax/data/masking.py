"""Dynamic masking for the masked LM (paper section 3.1), vectorised over rows.

    n: rows, S: sequence, P: prediction slots
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.data.stateless import below, hash32_rows, hash64, uniform

# Units of masking: pieces, words (google-research/bert's whole-word masking), or runs of words.
MASKINGS = ('pieces', 'words', 'ngrams', 'spans')
# Distribution of run lengths in words, from 1: n-grams as in ALBERT (Lan et al., 2019, equation
# 1), spans as in SpanBERT (Joshi et al., 2019, section 3.1: geometric, p = 0.2, at most 10).
_LENGTHS = {
    'ngrams': 1 / np.arange(1, 4),
    'spans': 0.2 * 0.8 ** np.arange(10),
}
_LAST = np.uint32(0xFFFFFFFF)  # sort key of positions that are not chosen


@dataclasses.dataclass(frozen=True)
class MaskingRates:
    """Options of masking."""

    masked_lm_prob: float = 0.15
    mask_rate: float = 0.8
    random_rate: float = 0.1
    masking: str = 'pieces'  # one of MASKINGS


def num_to_predict(lengths: np.ndarray, masked_lm_prob: float, slots: int) -> np.ndarray:
    """Number of masked positions [n] of rows of `lengths` (with [CLS] and [SEP]).

    max(1, round(length * masked_lm_prob)), at most `slots`; halves round to even, as in Python 3.
    """
    wanted = np.rint(lengths * masked_lm_prob).astype(np.int64)
    return np.minimum(np.maximum(wanted, 1), slots)


def mask_rows(
    input_ids: np.ndarray,
    candidates: np.ndarray,
    lengths: np.ndarray,
    row_keys: np.ndarray,
    *,
    rates: MaskingRates,
    slots: int,
    vocab_size: int,
    mask_id: int,
    is_continuation: np.ndarray,
) -> dict[str, np.ndarray]:
    """Masks `input_ids` in place and returns the labels.

    The positions are a uniform choice among the candidates. With `masking='words'` words (a piece
    and the continuation pieces after it) are taken in random order, leaving out any that would
    exceed the count; with 'ngrams' and 'spans' the row is cut into runs of words of random lengths,
    and the words are taken run by run, so that the last run may be taken in part. The count is the
    same for all. Each masked position becomes [MASK], or a piece drawn from the whole vocabulary,
    or stays, at the given rates; of a span all positions do the same, as in SpanBERT.

    Args:
      input_ids: [n, S] int32, changed in place.
      candidates: [n, S] bool; false on [CLS], [SEP] and padding, which are never masked.
      lengths: [n] real tokens, [CLS] and [SEP] included.
      row_keys: [n] uint64; everything random follows from them.
      rates: how positions are chosen and replaced.
      slots: P, `max_predictions_per_seq`.
      vocab_size: random pieces are below it.
      mask_id: of [MASK].
      is_continuation: [vocabulary] bool; pieces that continue a word.

    Returns:
      masked_lm_positions [n, P] int32 (ascending, 0 in unused slots), masked_lm_ids [n, P] int32,
      masked_lm_weights [n, P] float32.
    """
    n, width = input_ids.shape
    slots_kept = slots
    slots = min(slots, width)
    wanted = num_to_predict(lengths, rates.masked_lm_prob, slots)
    wanted = np.minimum(wanted, candidates.sum(axis=1))
    # The position sits in the low bits of its own sort key, so that sorting needs no indices.
    bits = np.uint32((1 << int(width - 1).bit_length()) - 1)
    columns = np.arange(width, dtype=np.uint32)
    keys = hash32_rows(hash64(row_keys, 1), width)
    keys &= ~bits
    keys |= columns
    if rates.masking != 'pieces':
        word = _words(input_ids, candidates, is_continuation)
        run = word
        if rates.masking in _LENGTHS:
            run = _runs(word, candidates, row_keys, _LENGTHS[rates.masking])
        keys = _word_keys(keys, word, run, candidates, wanted, bits, row_keys)
        wanted = np.minimum(wanted, (keys != _LAST).sum(axis=1))
    keys[~candidates] = _LAST
    chosen = np.sort(np.partition(keys, slots - 1, axis=1)[:, :slots], axis=1)
    used = np.arange(slots) < wanted[:, None]
    positions = np.where(used, (chosen & bits).astype(np.int64), width)
    positions.sort(axis=1)
    safe = np.where(used, positions, 0)
    labels = np.where(used, np.take_along_axis(input_ids, safe, axis=1), 0).astype(np.int32)

    draws = hash64(hash64(row_keys, 2)[:, None], np.arange(slots)[None, :])
    share = uniform(draws)
    if rates.masking == 'spans':
        share = uniform(hash64(
            hash64(row_keys, 4)[:, None], np.take_along_axis(run, safe, axis=1)))
    random_ids = below(hash64(draws, 3), vocab_size).astype(np.int32)
    replacement = np.where(
        share < rates.mask_rate, np.int32(mask_id),
        np.where(share < rates.mask_rate + rates.random_rate, random_ids, labels),
    )
    rows = np.broadcast_to(np.arange(n)[:, None], used.shape)
    input_ids[rows[used], safe[used]] = replacement[used]
    result = {
        'masked_lm_positions': safe.astype(np.int32),
        'masked_lm_ids': labels,
        'masked_lm_weights': used.astype(np.float32),
    }
    if slots < slots_kept:
        pad = ((0, 0), (0, slots_kept - slots))
        result = {name: np.pad(x, pad) for name, x in result.items()}
    return result


def _words(
    input_ids: np.ndarray, candidates: np.ndarray, is_continuation: np.ndarray
) -> np.ndarray:
    """Index of the word [n, S] at each position; at other positions, of the word before."""
    starts = candidates & ~is_continuation[input_ids] | _segment_starts(candidates)
    return np.cumsum(starts, axis=1) - 1


def _segment_starts(candidates: np.ndarray) -> np.ndarray:
    """Whether [n, S] a position follows [CLS] or [SEP]."""
    return candidates & ~np.pad(candidates, ((0, 0), (1, 0)))[:, :-1]


def _runs(
    word: np.ndarray, candidates: np.ndarray, row_keys: np.ndarray, shares: np.ndarray
) -> np.ndarray:
    """Index of the run [n, S] at each position; run lengths have this distribution.

    All runs are equally likely to be chosen, so the chosen ones have the same distribution, except
    for runs cut at the end of a segment.
    """
    width = word.shape[1]
    draws = uniform(hash64(hash64(row_keys, 5)[:, None], np.arange(width)[None, :]))
    lengths = 1 + np.searchsorted(np.cumsum(shares / shares.sum())[:-1], draws, 'right')
    firsts = np.cumsum(lengths, axis=1)  # first words of the later runs
    begins = np.zeros((len(row_keys), width), np.int64)
    rows, columns = np.nonzero(firsts < width)
    begins[rows, firsts[rows, columns]] = 1
    rows, columns = np.nonzero(_segment_starts(candidates))
    begins[rows, word[rows, columns]] = 1
    run_of_word = np.cumsum(begins, axis=1) - 1
    return np.take_along_axis(run_of_word, np.maximum(word, 0), axis=1)


def _word_keys(
    keys: np.ndarray,
    word: np.ndarray,
    run: np.ndarray,
    candidates: np.ndarray,
    wanted: np.ndarray,
    bits: np.uint32,
    row_keys: np.ndarray,
) -> np.ndarray:
    """Sort keys [n, S] in which whole words that fit the count come first, all others last.

    Args:
      keys: [n, S] random, the position in the low bits.
      word: of each position.
      run: of each position; the words of a run are taken one after another, from its first word
        on or from its last backwards, by a coin: of the run that is taken in part, either end is
        as likely. (From the first only, the first word of a segment, which always begins a run,
        would be masked more often than others.)
      candidates, wanted: as in `mask_rows`.
      bits: the low ones.
      row_keys: [n] uint64, for the coins.
    """
    n, width = keys.shape
    columns = np.arange(width, dtype=np.uint32)
    rows = np.broadcast_to(np.arange(n)[:, None], keys.shape)
    sizes = np.zeros((n, width), np.int64)
    np.add.at(sizes, (rows[candidates], word[candidates]), 1)
    run_of_word = np.zeros((n, width), np.int64)
    run_of_word[rows[candidates], word[candidates]] = run[candidates]
    backwards = uniform(hash64(hash64(row_keys, 6)[:, None], run_of_word)) < 0.5
    drawn = (np.take_along_axis(keys, run_of_word, axis=1) & ~bits) | np.where(
        backwards, bits - columns, columns)
    order = np.argsort(np.where(sizes > 0, drawn, _LAST), axis=1, kind='stable')
    ordered_sizes = np.take_along_axis(sizes, order, axis=1)
    taken = np.zeros((n, width), bool)
    total = np.zeros(n, np.int64)
    for rank in range(width):
        size = ordered_sizes[:, rank]
        fits = (size > 0) & (total + size <= wanted)
        taken[np.arange(n), order[:, rank]] = fits
        total += np.where(fits, size, 0)
        if ((total >= wanted) | (size == 0)).all():
            break
    picked = candidates & taken[rows, np.maximum(word, 0)]
    return np.where(picked, (keys & ~bits) | columns, _LAST)
