"""Dynamic masking for the masked LM (paper section 3.1), vectorised over rows.

    n: rows, S: sequence, P: prediction slots
"""

import dataclasses

import numpy as np

from bert_jax.data.stateless import below, hash32_rows, hash64, uniform
from bert_jax.text.vocab import Vocab

# Units of masking: pieces, words (google-research/bert's whole-word masking), or runs of words.
MASKINGS = ('pieces', 'words', 'ngrams', 'spans')
# Distribution of run lengths in words, from 1: n-grams as in ALBERT (Lan et al., 2019, equation
# 1), spans as in SpanBERT (Joshi et al., 2019, section 3.1: geometric, p = 0.2, at most 10).
_LENGTHS = {'ngrams': 1 / np.arange(1, 4), 'spans': 0.2 * 0.8 ** np.arange(10)}
_LAST = np.uint32(0xFFFFFFFF)  # sort key of positions that are not chosen
# Purposes of draws, so that no two decisions share one.
_ORDER, _REPLACE, _RANDOM_PIECE, _REPLACE_SPAN, _LENGTH, _BACKWARDS = range(1, 7)


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
    input_ids: np.ndarray, candidates: np.ndarray, lengths: np.ndarray, row_keys: np.ndarray, *,
    rates: MaskingRates, slots: int, vocab: Vocab,
) -> dict[str, np.ndarray]:
    """Masks `input_ids` in place and returns the labels.

    With `masking='pieces'`, positions are drawn uniformly from the candidates. With 'words', words
    (a piece and the continuation pieces after it) are taken in random order, leaving out any that
    would exceed the count. With 'ngrams' and 'spans', the row is cut into runs of words of random
    lengths, and words are taken run by run, so that the last run may be taken in part. A row all of
    whose words exceed the count is masked as with 'pieces', because a row without a mask teaches
    nothing (google-research/bert leaves it so). The count is the same for all schemes. Each masked
    position becomes [MASK] or a piece drawn from the whole vocabulary, or stays, at the given
    rates; with 'spans', all positions of a span are treated alike, as in SpanBERT.

    Args:
      input_ids: [n, S] int32, changed in place.
      candidates: [n, S] bool; false on [CLS], [SEP] and padding, which are never masked.
      lengths: [n] real tokens, [CLS] and [SEP] included.
      row_keys: [n] uint64; everything random follows from them.
      rates: how positions are chosen and replaced.
      slots: P, `max_predictions_per_seq`, at most S.
      vocab: `mask_id` and `is_continuation` are used.

    Returns:
      masked_lm_positions [n, P] int32 (ascending, 0 in unused slots), masked_lm_ids [n, P] int32,
      masked_lm_weights [n, P] float32.
    """
    n, width = input_ids.shape
    wanted = num_to_predict(lengths, rates.masked_lm_prob, slots)
    wanted = np.minimum(wanted, candidates.sum(axis=1))
    # The position sits in the low bits of its own sort key, so that sorting needs no indices.
    bits = np.uint32((1 << int(width - 1).bit_length()) - 1)
    keys = hash32_rows(hash64(row_keys, _ORDER), width)
    keys &= ~bits
    keys |= np.arange(width, dtype=np.uint32)
    if rates.masking != 'pieces':
        word, run = _words_and_runs(
            candidates, vocab.is_continuation[input_ids], row_keys, rates.masking)
        by_word = _word_keys(keys, word, run, candidates, wanted, bits, row_keys)
        fitting = (by_word != _LAST).sum(axis=1)
        keys = np.where(fitting[:, None] > 0, by_word, keys)
        wanted = np.where(fitting > 0, np.minimum(wanted, fitting), wanted)
    keys[~candidates] = _LAST
    chosen = np.sort(np.partition(keys, slots - 1, axis=1)[:, :slots], axis=1)
    used = np.arange(slots) < wanted[:, None]
    positions = np.where(used, (chosen & bits).astype(np.int64), width)
    positions.sort(axis=1)
    positions[~used] = 0
    labels = np.where(used, np.take_along_axis(input_ids, positions, axis=1), 0).astype(np.int32)

    draws = hash64(hash64(row_keys, _REPLACE)[:, None], np.arange(slots))
    share = uniform(draws)
    if rates.masking == 'spans':
        share = uniform(hash64(
            hash64(row_keys, _REPLACE_SPAN)[:, None], np.take_along_axis(run, positions, axis=1)))
    random_ids = below(hash64(draws, _RANDOM_PIECE), len(vocab.is_continuation)).astype(np.int32)
    replacement = np.where(
        share < rates.mask_rate, np.int32(vocab.mask_id),
        np.where(share < rates.mask_rate + rates.random_rate, random_ids, labels))
    input_ids[np.nonzero(used)[0], positions[used]] = replacement[used]
    return {'masked_lm_positions': positions.astype(np.int32), 'masked_lm_ids': labels,
            'masked_lm_weights': used.astype(np.float32)}


def _words_and_runs(
    candidates: np.ndarray, continues: np.ndarray, row_keys: np.ndarray, masking: str
) -> tuple[np.ndarray, np.ndarray]:
    """Index of the word and of the run of words at each position [n, S].

    Positions outside words ([CLS], [SEP], padding) have the indices of the word before. All runs
    are equally likely to be chosen, so the lengths of the chosen ones have the distribution of
    `masking`, except for runs cut off at the end of a segment.
    """
    segment_starts = candidates & ~np.pad(candidates, ((0, 0), (1, 0)))[:, :-1]
    word = np.cumsum(candidates & ~continues | segment_starts, axis=1) - 1
    if masking not in _LENGTHS:
        return word, word
    width = word.shape[1]
    shares = np.cumsum(_LENGTHS[masking] / _LENGTHS[masking].sum())[:-1]
    draws = uniform(hash64(hash64(row_keys, _LENGTH)[:, None], np.arange(width)))
    # The first words of all runs but the first.
    firsts = np.cumsum(1 + np.searchsorted(shares, draws, 'right'), axis=1)
    begins = np.zeros(word.shape, np.int64)  # by word: 1 where a run begins
    for words, where in ((firsts, firsts < width), (word, segment_starts)):
        begins[np.nonzero(where)[0], words[where]] = 1
    return word, np.take_along_axis(np.cumsum(begins, axis=1) - 1, np.maximum(word, 0), axis=1)


def _word_keys(
    keys: np.ndarray, word: np.ndarray, run: np.ndarray, candidates: np.ndarray,
    wanted: np.ndarray, bits: np.uint32, row_keys: np.ndarray,
) -> np.ndarray:
    """Sort keys [n, S] in which whole words that fit the count come first, all others last.

    Args:
      keys: [n, S] random, the position in the low bits.
      word: of each position.
      run: of each position. A coin flip decides whether the words of a run are taken forwards or
        backwards, so that a run taken in part is equally likely to lose either end. (If always
        forwards, the first word of a segment, which always begins a run, would be masked more
        often than others.)
      candidates, wanted: as in `mask_rows`.
      bits: mask of the low bits, which hold the position.
      row_keys: [n] uint64, for the coin flips.
    """
    n, width = keys.shape
    columns = np.arange(width, dtype=np.uint32)
    rows = np.arange(n)
    at_word = np.nonzero(candidates)[0], word[candidates]
    sizes, run_of_word = np.zeros((2, n, width), np.int64)
    np.add.at(sizes, at_word, 1)
    run_of_word[at_word] = run[candidates]
    backwards = uniform(hash64(hash64(row_keys, _BACKWARDS)[:, None], run_of_word)) < 0.5
    drawn = (np.take_along_axis(keys, run_of_word, axis=1) & ~bits) | np.where(
        backwards, bits - columns, columns)
    order = np.argsort(np.where(sizes > 0, drawn, _LAST), axis=1, kind='stable')
    taken = np.zeros((n, width), bool)
    total = np.zeros(n, np.int64)
    for ranked in order.T:
        size = sizes[rows, ranked]
        fits = (size > 0) & (total + size <= wanted)
        taken[rows, ranked] = fits
        total += np.where(fits, size, 0)
        if ((total >= wanted) | (size == 0)).all():
            break
    picked = candidates & taken[rows[:, None], np.maximum(word, 0)]
    return np.where(picked, keys, _LAST)
