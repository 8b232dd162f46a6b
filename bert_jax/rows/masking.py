"""Dynamic masking for the masked LM (paper section 3.1), vectorised over rows.

    n: rows, S: sequence, P: prediction slots
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.config.fields import FIELDS
from bert_jax.rows.stateless import Purpose, below, hash32_rows, hash64, uniform
from bert_jax.runtime.errors import InputError
from bert_jax.text.vocab import Vocab


class _Runs(NamedTuple):
    """A scheme that masks runs of words.

    Attributes:
      lengths: how likely a run of 1, 2, ... words is; need not add up to 1.
      alike: whether all positions of a run are replaced alike, rather than each by its own draw.
    """

    lengths: np.ndarray
    alike: bool = False


# By name in `config.choices.MASKINGS`; None: positions are drawn each for itself.
_SCHEMES: Mapping[str, _Runs | None] = {
    'pieces': None,
    # Whole words, as in google-research/bert: runs of one word.
    'words': _Runs(lengths=np.ones(1)),
    # As in ALBERT (Lan et al., 2019, equation 1).
    'ngrams': _Runs(lengths=1 / np.arange(1, 4)),
    # As in SpanBERT (Joshi et al., 2019, section 3.1): geometric, p = 0.2, at most 10.
    'spans': _Runs(lengths=0.2 * 0.8 ** np.arange(10), alike=True),
}
_ROUNDING = 1e-9  # of a sum of shares
_NOT_CHOSEN = np.uint32(0xFFFFFFFF)  # sort key behind those of all positions


@dataclasses.dataclass(frozen=True)
class MaskingRates:
    """Options of masking, named as the fields of `config.data`; the defaults are BERT's."""

    masked_lm_prob: float = FIELDS['data.masked_lm_prob'].default
    mask_rate: float = FIELDS['data.mask_rate'].default
    random_rate: float = FIELDS['data.random_rate'].default
    masking: str = FIELDS['data.masking'].default  # one of `config.choices.MASKINGS`

    def __post_init__(self) -> None:
        """Raises InputError: more positions would be replaced than are masked."""
        if self.mask_rate + self.random_rate > 1 + _ROUNDING:
            raise InputError(
                f'config.data.mask_rate={self.mask_rate} and config.data.random_rate='
                f'{self.random_rate} add up to more than 1')


def num_to_predict(lengths: np.ndarray, masked_lm_prob: float, slots: int) -> np.ndarray:
    """Number of masked positions [n] of rows of `lengths` (with [CLS] and [SEP]).

    max(1, round(length * masked_lm_prob)), at most `slots`; halves round to even, as in Python 3.
    """
    wanted = np.rint(lengths * masked_lm_prob).astype(np.int64)
    return np.minimum(np.maximum(wanted, 1), slots)


def mask_rows(
    input_ids: np.ndarray, candidates: np.ndarray, lengths: np.ndarray, row_keys: np.ndarray, *,
    rates: MaskingRates, row_length: int, slots: int, vocab: Vocab,
) -> dict[str, np.ndarray]:
    """Masks `input_ids` in place and returns the labels.

    With `masking='pieces'`, positions are drawn uniformly from the candidates. With 'words', words
    (a piece and the continuation pieces after it) are taken in random order, leaving out any that
    would exceed the count. With other schemes, the row is cut into runs of words of random
    lengths, and words are taken run by run, so that the last run may be taken in part. A row all of
    whose words exceed the count is masked as with 'pieces', because a row without a mask teaches
    nothing (google-research/bert leaves it so). The count is the same for all schemes. Each masked
    position becomes [MASK] or a piece drawn from the whole vocabulary, or stays, at the given
    rates.

    Args:
      input_ids: [n, S] int32, changed in place; or the first columns of such rows, if the others
        are padding.
      candidates: [n, S] bool; false on [CLS], [SEP] and padding, which are never masked.
      lengths: [n] real tokens, [CLS] and [SEP] included.
      row_keys: [n] uint64; everything random follows from them.
      rates: how positions are chosen and replaced.
      row_length: S, whatever columns are left out; what is masked depends on it.
      slots: P, `max_predictions_per_seq`, at most S.
      vocab: `mask_id` and `is_continuation` are used.

    Returns:
      masked_lm_positions [n, P] int32 (ascending, 0 in unused slots), masked_lm_ids [n, P] int32,
      masked_lm_weights [n, P] float32.
    """
    wanted = num_to_predict(lengths, rates.masked_lm_prob, slots)
    wanted = np.minimum(wanted, candidates.sum(axis=1))
    bits = _position_bits(row_length)
    keys = _random_keys(row_keys, input_ids.shape[1], bits)
    words = None
    scheme = _SCHEMES[rates.masking]
    if scheme is not None:
        continues = vocab.is_continuation[input_ids]
        words = _words_and_runs(candidates, continues, row_keys, scheme.lengths)
        by_word = _word_keys(keys, words, candidates, wanted, row_keys, bits)
        num_fitting = (by_word != _NOT_CHOSEN).sum(axis=1)
        any_fits = num_fitting > 0
        keys = np.where(any_fits[:, None], by_word, keys)
        wanted = np.where(any_fits, np.minimum(wanted, num_fitting), wanted)
    keys[~candidates] = _NOT_CHOSEN
    positions, used = _first_positions(keys, wanted, slots, bits)
    labels = np.take_along_axis(input_ids, positions, axis=1)
    labels = np.where(used, labels, 0).astype(np.int32)

    runs = None
    if words is not None and scheme is not None and scheme.alike:
        runs = np.take_along_axis(words.run, positions, axis=1)
    replacement = _replacements(labels, runs, row_keys, rates, vocab)
    input_ids[np.nonzero(used)[0], positions[used]] = replacement[used]
    return {
        'masked_lm_positions': positions.astype(np.int32),
        'masked_lm_ids': labels,
        'masked_lm_weights': used.astype(np.float32),
    }


def _position_bits(row_length: int) -> np.uint32:
    """The low bits of a sort key, which hold the position in a row of this length."""
    return np.uint32((1 << int(row_length - 1).bit_length()) - 1)


def _random_keys(row_keys: np.ndarray, width: int, bits: np.uint32) -> np.ndarray:
    """Random sort keys [n, width] uint32 of the first positions of rows.

    A key holds its position in its low bits, so that sorting needs no indices.
    """
    keys = hash32_rows(hash64(row_keys, Purpose.POSITION_ORDER), width)
    keys &= ~bits
    keys |= np.arange(width, dtype=np.uint32)
    return keys


def _first_positions(
    keys: np.ndarray, wanted: np.ndarray, slots: int, bits: np.uint32
) -> tuple[np.ndarray, np.ndarray]:
    """The `wanted` [n] positions with the lowest keys in each row, and which slots they use.

    Args:
      keys: [n, S] as from `_random_keys`.
      wanted: [n], at most `slots`.
      slots: P.
      bits: of the position in a key.

    Returns:
      positions [n, P] int64, ascending, 0 in unused slots; used [n, P] bool.
    """
    width = keys.shape[1]
    lowest = np.partition(keys, slots - 1, axis=1)[:, :slots]
    in_order = np.sort(lowest, axis=1) & bits
    used = np.arange(slots) < wanted[:, None]
    positions = np.where(used, in_order.astype(np.int64), width)
    positions.sort(axis=1)
    positions[~used] = 0
    return positions, used


def _replacements(
    labels: np.ndarray, runs: np.ndarray | None, row_keys: np.ndarray, rates: MaskingRates,
    vocab: Vocab,
) -> np.ndarray:
    """The pieces that replace the labels at the masked positions: [n, P] int32.

    Args:
      labels: [n, P] int32.
      runs: [n, P], the run of each masked position, if those of a run are replaced alike.
      row_keys: [n] uint64.
      rates: how often a piece becomes [MASK] or a random one.
      vocab: `mask_id` and `is_continuation` are used.
    """
    draws = hash64(hash64(row_keys, Purpose.REPLACE)[:, None], np.arange(labels.shape[1]))
    share = uniform(draws)
    if runs is not None:
        share = uniform(hash64(hash64(row_keys, Purpose.REPLACE_SPAN)[:, None], runs))
    random_ids = below(hash64(draws, Purpose.RANDOM_PIECE), len(vocab.is_continuation))
    random_or_same = np.where(
        share < rates.mask_rate + rates.random_rate, random_ids.astype(np.int32), labels)
    return np.where(share < rates.mask_rate, np.int32(vocab.mask_id), random_or_same)


class _Words(NamedTuple):
    """The word and the run of words at each position.

    Attributes:
      word: [n, S] index of the word in its row. Positions outside words ([CLS], [SEP], padding)
        have the index of the word before, -1 if there is none.
      run: [n, S] index of the run of words in its row.
    """

    word: np.ndarray
    run: np.ndarray


def _words_and_runs(
    candidates: np.ndarray, continues: np.ndarray, row_keys: np.ndarray, lengths: np.ndarray
) -> _Words:
    """Finds the words and cuts them into runs.

    All runs are equally likely to be chosen, so the lengths of the chosen ones have the
    distribution of `lengths`, except for runs cut off at the end of a segment.

    Args:
      candidates: [n, S] bool; false on [CLS], [SEP] and padding.
      continues: [n, S] bool, whether a piece continues a word.
      row_keys: [n] uint64, for the lengths of the runs.
      lengths: how likely a run of 1, 2, ... words is.
    """
    before = np.pad(candidates, ((0, 0), (1, 0)))[:, :-1]
    segment_starts = candidates & ~before
    word_starts = candidates & ~continues | segment_starts
    word = np.cumsum(word_starts, axis=1) - 1
    if len(lengths) == 1:
        return _Words(word, word)
    width = word.shape[1]
    shares = np.cumsum(lengths / lengths.sum())[:-1]
    draws = uniform(hash64(hash64(row_keys, Purpose.LENGTH)[:, None], np.arange(width)))
    # The first words of all runs but the first.
    firsts = np.cumsum(1 + np.searchsorted(shares, draws, 'right'), axis=1)
    begins = np.zeros(word.shape, np.int64)  # by word: 1 where a run begins
    _mark_words(begins, firsts, firsts < width)
    _mark_words(begins, word, segment_starts)
    run_of_word = np.cumsum(begins, axis=1) - 1
    return _Words(word, np.take_along_axis(run_of_word, np.maximum(word, 0), axis=1))


def _mark_words(table: np.ndarray, words: np.ndarray, where: np.ndarray) -> None:
    """Sets `table` [n, S], by word, to 1 for those of the `words` [n, S] that are chosen."""
    table[np.nonzero(where)[0], words[where]] = 1


def _word_keys(
    keys: np.ndarray, words: _Words, candidates: np.ndarray, wanted: np.ndarray,
    row_keys: np.ndarray, bits: np.uint32,
) -> np.ndarray:
    """Sort keys [n, S] in which whole words that fit the count come first, all others last.

    Args:
      keys: [n, S] random, the position in the low bits.
      words: of each position.
      candidates, wanted, row_keys: as in `mask_rows`.
      bits: of the position in a key.
    """
    at_word = np.nonzero(candidates)[0], words.word[candidates]
    sizes = np.zeros(keys.shape, np.int64)
    np.add.at(sizes, at_word, 1)
    run_of_word = np.zeros(keys.shape, np.int64)
    run_of_word[at_word] = words.run[candidates]

    order = _word_order(keys, sizes, run_of_word, row_keys, bits)
    taken = _fitting_words(order, sizes, wanted)
    rows = np.arange(len(keys))[:, None]
    is_taken = candidates & taken[rows, np.maximum(words.word, 0)]
    return np.where(is_taken, keys, _NOT_CHOSEN)


def _word_order(
    keys: np.ndarray, sizes: np.ndarray, run_of_word: np.ndarray, row_keys: np.ndarray,
    bits: np.uint32,
) -> np.ndarray:
    """The words [n, S] of each row in the order in which they are taken, run by run.

    A coin flip decides whether the words of a run are taken forwards or backwards, so that a run
    taken in part is equally likely to lose either end. (If always forwards, the first word of a
    segment, which always begins a run, would be masked more often than others.)

    Args:
      keys: [n, S] random; a run has the key of the position with its index.
      sizes: [n, S] pieces of each word; 0: there is no such word.
      run_of_word: [n, S].
      row_keys: [n] uint64, for the coin flips.
      bits: of the position in a key.
    """
    columns = np.arange(keys.shape[1], dtype=np.uint32)
    key_of_row = hash64(row_keys, Purpose.BACKWARDS)
    is_backwards = uniform(hash64(key_of_row[:, None], run_of_word)) < 0.5
    place_in_run = np.where(is_backwards, bits - columns, columns)
    key_of_run = np.take_along_axis(keys, run_of_word, axis=1) & ~bits
    word_keys = np.where(sizes > 0, key_of_run | place_in_run, _NOT_CHOSEN)
    return np.argsort(word_keys, axis=1, kind='stable')


def _fitting_words(order: np.ndarray, sizes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Takes words in the given order, leaving out any that would exceed the count.

    Args:
      order: [n, S] words.
      sizes: [n, S] pieces of each word; 0: there is no such word.
      wanted: [n] the most pieces to take.

    Returns:
      [n, S] bool by word: whether it is taken.
    """
    rows = np.arange(len(order))
    taken = np.zeros(order.shape, bool)
    total = np.zeros(len(order), np.int64)
    for word in order.T:
        size = sizes[rows, word]
        fits = (size > 0) & (total + size <= wanted)
        taken[rows, word] = fits
        total += np.where(fits, size, 0)
        if ((total >= wanted) | (size == 0)).all():
            break
    return taken
