"""Counter-based dropout: its statistics, and that masks of different places are unrelated."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import dropout as drop

SHAPE = (8, 64, 128)  # 65,536 elements


def rows(seed=0, step=0, count=SHAPE[0], first=0):
    return drop.dropout_rows(seed, step, jnp.arange(first, first + count, dtype=jnp.uint32))


def kept(rate=0.1, shape=SHAPE, site=drop.EMBEDDINGS, layer=0, seed=0, step=0, first=0):
    """Which elements are kept, as float 0 and 1."""
    keys = rows(seed, step, shape[0], first)
    return np.asarray(drop.dropout(jnp.ones(shape), rate, keys, site, layer) > 0, np.float64)


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
    x = jax.random.normal(jax.random.key(1), SHAPE).astype(dtype)
    y = drop.dropout(x, 0.25, rows(), drop.FFN_OUTPUT)
    assert y.dtype == dtype
    mask = kept(0.25, site=drop.FFN_OUTPUT)
    scaled = (x.astype(jnp.float32) * (4 / 3)).astype(dtype)  # 4 / 3 is not rounded to bfloat16
    expected = np.asarray(scaled, np.float32) * mask
    np.testing.assert_array_equal(np.asarray(y, np.float32), expected)
    for rate, keys in ((0.25, None), (0.0, rows())):
        assert drop.dropout(x, rate, keys, drop.FFN_OUTPUT) is x


def test_masks_differ_by_site_layer_step_and_seed_without_correlation():
    places = [
        *({'site': site, 'layer': layer} for site in range(5) for layer in (0, 1, 2, 23)),
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
