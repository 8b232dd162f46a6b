"""Random numbers by index: the same wherever they are asked for, and random enough."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.rows.stateless import below, coin_flips, hash32_rows, hash64, permute, uniform

KEYS = st.integers(0, 2**64 - 1)


def _chi_square(counts):
    """Chi-square against equal shares, in standard deviations above its expectation."""
    counts = np.asarray(counts, float)
    expected, freedom = counts.mean(), counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 3000), key=KEYS)
def test_permutation_is_a_bijection(size, key):
    order = permute(np.arange(size), size, key)
    assert np.array_equal(np.sort(order), np.arange(size))
    assert permute(np.array([size // 2]), size, key) == order[size // 2]  # also asked for alone


@pytest.mark.slow
@pytest.mark.parametrize('size', [2, 5, 11, 100])
def test_permutations_put_every_element_everywhere_equally_often(size):
    # Sequential keys, as small seeds are. (Whole orders of tiny sets are not all equally likely.)
    orders = np.array([permute(np.arange(size), size, key) for key in range(1500)])
    for element in (0, size // 2, size - 1):
        assert _chi_square(np.bincount(orders[:, element], minlength=size)) < 4


@pytest.mark.parametrize('bound', [1, 2, 7, 30_522, 2**32 - 1])
def test_below_stays_below_and_reaches_both_ends(bound):
    extremes = below(np.array([0, 2**64 - 1], np.uint64), bound)
    assert extremes.tolist() == [0, bound - 1]
    draws = below(hash64(np.arange(40_000)), bound)
    assert draws.min() >= 0 and draws.max() < bound
    shares = min(bound, 7)
    assert shares == 1 or _chi_square(np.bincount(draws * shares // bound)) < 4


def test_uniform_is_in_the_unit_interval_and_even():
    ends = uniform(np.array([0, 2**64 - 1], np.uint64))
    assert ends[0] == 0 and 1 - 1e-12 < ends[1] < 1
    draws = uniform(hash64(5, np.arange(40_000)))
    assert _chi_square(np.histogram(draws, 64, (0, 1))[0]) < 4


def test_hash_tells_arguments_apart():
    numbers = np.arange(-20, 20)
    assert len(np.unique(hash64(numbers[:, None], numbers[None, :]))) == 1600  # order counts
    assert hash64(3, np.array([-4]))[0] == hash64(np.array([3]), -4)[0]
    assert len(np.unique(hash64(np.arange(200_000)))) == 200_000


def test_coin_flips_are_binomial():
    n, counts = 20_000, [0, 1, 5, 63, 64, 65, 128, 129, 1000]
    mixed = coin_flips(hash64(np.arange(n * len(counts))), np.repeat(counts, n))
    for heads, count in zip(np.split(mixed, len(counts)), counts, strict=True):
        assert heads.min() >= 0 and heads.max() <= count
        deviation = np.sqrt(count) / 2
        assert abs(heads.mean() - count / 2) <= 4.5 * deviation / np.sqrt(n)
        assert heads.var() == pytest.approx(count / 4, rel=0.06)
    assert coin_flips(hash64(np.arange(3 * n, 3 * n + 9)), np.full(9, 63)).tolist() == (
        mixed[3 * n:3 * n + 9].tolist())  # also asked for alone


def test_hashes_of_rows_are_even_and_unrelated():
    hashes = hash32_rows(hash64(np.arange(4000)), 64).astype(np.float64) / 2**32
    assert _chi_square(np.histogram(hashes, 64, (0, 1))[0]) < 4
    for columns in (hashes[:, :-1] * hashes[:, 1:], hashes[:-1] * hashes[1:]):
        assert columns.mean() == pytest.approx(0.25, abs=0.003)  # neighbours in and between rows
    # The lowest column, by which masking chooses, is evenly distributed too.
    assert _chi_square(np.bincount(hashes.argmin(axis=1), minlength=64)) < 4
