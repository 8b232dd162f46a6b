"""Counter-based dropout: its statistics, and that masks of different places are unrelated."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from bert_jax.kernels import dropout as drop

SHAPE = (8, 64, 128)  # 65,536 elements


def rows(seed=0, step=0, count=SHAPE[0], first=0):
    return drop.dropout_keys(seed, step, first + np.arange(count, dtype=np.uint32))


# One program for all places of a site; operation by operation, each place would be twenty.
@functools.partial(jax.jit, static_argnames=('rate', 'shape', 'site'))
def is_kept(seed, step, first, layer, rate, shape, site):
    keys = rows(seed, step, shape[0], first)
    return drop.dropout(jnp.ones(shape), rate, keys, site, layer) > 0


def kept(rate=0.1, shape=SHAPE, site=drop.EMBEDDINGS, layer=0, seed=0, step=0, first=0):
    """Which elements are kept, as float 0 and 1."""
    return np.asarray(is_kept(seed, step, first, layer, rate, shape, site), np.float64)


def correlation(a, b):
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


@pytest.mark.parametrize('rate', [0.01, 0.1, 0.5, 0.9])
def test_the_rate_holds_over_all_and_in_every_row_and_column(rate):
    mask = kept(rate, shape=(64, 64, 64))
    sigma = np.sqrt(rate * (1 - rate))
    assert abs(mask.mean() - (1 - rate)) < 4 * sigma / np.sqrt(mask.size)
    for axis in range(3):
        means = mask.mean(axis=tuple({0, 1, 2} - {axis}))
        assert np.abs(means - (1 - rate)).max() < 5 * sigma / 64
        # The means spread as those of independent draws: neither clumped nor too even.
        assert 0.6 < means.std() / (sigma / 64) < 1.4


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_dropped_values_are_zero_and_kept_ones_scaled(dtype):
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(dtype)
    y = jax.jit(lambda x: drop.dropout(x, 0.25, rows(), drop.FFN_OUTPUT))(x)
    assert y.dtype == dtype
    mask = kept(0.25, site=drop.FFN_OUTPUT)
    # 4 / 3 is not rounded to bfloat16.
    scaled = (x.astype(np.float32) * np.float32(4 / 3)).astype(dtype)
    expected = np.asarray(scaled, np.float32) * mask
    np.testing.assert_array_equal(np.asarray(y, np.float32), expected)
    for rate, keys in ((0.25, None), (0.0, rows())):
        assert drop.dropout(x, rate, keys, drop.FFN_OUTPUT) is x


def test_masks_differ_by_site_layer_step_and_seed_without_correlation():
    places = [
        *({'site': site, 'layer': layer} for site in range(6) for layer in (0, 1, 2, 23)),
        *({'step': step} for step in (1, 2, 3, 1000, 999_999)),
        *({'seed': seed} for seed in (1, 2, 12345, 2**31 - 1)),
        {'seed': 1, 'step': 1}, {'first': 8}, {'first': 65_528},
    ]
    masks = [kept(0.5, **place) for place in places]
    for (i, a), (j, b) in itertools.combinations(enumerate(masks), 2):
        assert abs(correlation(a, b)) < 5.5 / np.sqrt(a.size), (places[i], places[j])


def test_rows_and_neighbours_in_each_dim_are_uncorrelated():
    mask = kept(0.5, shape=(64, 64, 64))
    shifts = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 2), (0, 2, 0), (1, 1, 0), (1, 0, 1),
              (0, 1, 1), (0, 1, 63), (2, 0, 0), (8, 0, 0), (32, 0, 0), (0, 32, 0), (0, 0, 32)]
    # Five standard deviations of the correlation of independent masks.
    for shift in shifts:
        assert abs(correlation(mask, np.roll(mask, shift, (0, 1, 2)))) < 5 / mask.size**0.5, shift
    for a, b in itertools.combinations(mask, 2):
        assert abs(correlation(a, b)) < 5 / a.size**0.5
    # Nor do three corners of a rectangle determine the fourth.
    sign, place = 2 * mask - 1, np.random.default_rng(0).integers(64, size=(4, 100_000))
    a, b, c, d = place[:, (place[0] != place[2]) & (place[1] != place[3])]
    for x in (sign, sign.swapaxes(0, 1), sign.swapaxes(0, 2)):
        corners = x[:, a, b] * x[:, a, d] * x[:, c, b] * x[:, c, d]
        assert abs(corners.mean()) < 5 / mask.size**0.5


@jax.jit
def uniform(layer, seed, step):
    return drop.uniform(rows(seed, step), SHAPE[1:], drop.HEAD, layer)


def draws(layer=0, seed=0, step=0):
    return np.asarray(uniform(layer, seed, step), np.float64)


def test_uniform_draws_have_the_distribution_of_their_name():
    x = draws()
    assert 0 < x.min() < x.max() < 1
    assert scipy.stats.kstest(x.ravel(), 'uniform').pvalue > 1e-3
    counts = np.histogram(x, 4096, (0, 1))[0]  # their low bits, too
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    low_bits = (x * 2**23).astype(np.int64) % 256
    assert scipy.stats.chisquare(np.bincount(low_bits.ravel(), minlength=256)).pvalue > 1e-3


def test_uniform_draws_of_different_places_are_unrelated():
    different = [draws(), draws(layer=1), draws(step=1), draws(seed=1)]
    for a, b in itertools.combinations(different, 2):
        assert abs(correlation(a, b)) < 5 / np.sqrt(a.size)
    for shift in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 0, 64)]:
        moved = np.roll(different[0], shift, (0, 1, 2))
        assert abs(correlation(different[0], moved)) < 5 / np.sqrt(moved.size), shift


def test_draws_with_gumbel_noise_follow_the_softmax():
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    noise = np.asarray(jax.jit(lambda: drop.gumbel(rows(count=64), (2000, 4), drop.HEAD))())
    counts = np.bincount((logits + noise).argmax(-1).ravel(), minlength=4)
    expected = np.exp(logits) * counts.sum()
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3


def test_a_part_of_the_lines_has_its_part_of_the_draws():
    lines = np.broadcast_to(np.arange(10, 20), (SHAPE[0], 10))
    part = jax.jit(
        lambda lines: drop.uniform(rows(), (10, SHAPE[2]), drop.HEAD, lines_BxL=lines))(lines)
    np.testing.assert_array_equal(np.asarray(part), draws()[:, 10:20].astype(np.float32))


def test_draws_of_an_evaluation_follow_from_the_content_of_a_row_alone():
    keys_of = jax.jit(drop.keys_from_content)
    ids = np.random.default_rng(0).integers(0, 1000, (64, 32))
    keys = np.asarray(keys_of(ids))
    np.testing.assert_array_equal(keys[::-1], keys_of(ids[::-1]))
    np.testing.assert_array_equal(keys[:3], keys_of(ids[:3]))
    swapped = ids[:, [1, 0, *range(2, 32)]]
    changed = ids + (np.arange(32) == 5)
    every = np.concatenate([keys, keys_of(swapped), keys_of(changed)])
    assert len(np.unique(every[:, 0])) == len(every)


def test_another_model_has_other_masks():
    assert drop.keys_of_further_model(None, 1) is None
    x = np.ones(SHAPE, np.float32)
    masks = jax.device_get(jax.jit(lambda x: [
        drop.dropout(x, 0.5, keys, drop.EMBEDDINGS) for keys in (
            rows(), drop.keys_of_further_model(rows(), 1), drop.keys_of_further_model(rows(), 2))
    ])(x))
    for a, b in itertools.combinations(masks, 2):
        assert abs(correlation(a, b)) < 5 / np.sqrt(a.size)
