"""Checksums do not depend on mesh or device, and detect every change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.runtime import checksum
from bert_jax.sharding import make_mesh

X = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)


def one(x):
    return int(checksum.checksums({'x': jnp.asarray(x)})[0])


@pytest.mark.parametrize('x', [
    X, np.zeros((), np.int32), np.arange(7, dtype=np.uint32), X[0].astype(jnp.bfloat16),
    np.zeros((0, 3), np.float32), np.arange(600_000, dtype=np.float32),
    jax.device_put(X, NamedSharding(make_mesh(2, 2, 2), PartitionSpec('fsdp', 'tensor'))),
])
def test_host_and_device_and_every_layout_agree(x):
    assert one(x) == int(checksum.checksum_on_device(x))
    assert x.shape != X.shape or one(x) == one(X)


def test_the_value_is_what_the_formula_says():
    """A transcription in Python's integers."""
    total = 0
    for index, bits in enumerate(X.reshape(-1).view(np.uint32).tolist()):
        h = bits ^ index * 0x9E3779B9 % 2**32
        h = (h ^ h >> 16) * 0x7FEB352D % 2**32
        h = (h ^ h >> 15) * 0x846CA68B % 2**32
        total += h ^ h >> 16
    assert one(X) == total % 2**32


def test_every_change_is_noticed():
    rng = np.random.default_rng(1)
    whole = one(X)
    for _ in range(200):
        changed = X.copy()
        changed.view(np.uint8).reshape(-1)[rng.integers(X.nbytes)] ^= 1 << rng.integers(8)
        assert one(changed) != whole
    swapped = X.copy()
    swapped[0, :2] = X[0, 1::-1]
    assert one(swapped) != whole
    assert one(-np.zeros(3, np.float32)) != one(np.zeros(3, np.float32))
    first, second = checksum.checksums({'b': X, 'a': swapped})
    assert (first, second) == (one(swapped), whole)


@pytest.mark.parametrize('dtype', [np.float32, np.float16, jnp.bfloat16])
@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found(dtype, value):
    large = np.full(9, np.finfo(np.float32).max if dtype is np.float32 else 6e4, dtype)
    good = {'a': X.astype(dtype), 'count': jnp.zeros(2, jnp.int32), 'its sum is not': large}
    assert checksum.not_finite(good) is None
    bad = X.astype(dtype)
    bad[3, 5] = value
    for whole in (bad, jnp.asarray(bad)):
        assert checksum.not_finite({**good, 'b': whole}) == 'b'
    assert not bool(checksum.is_finite_on_device(jnp.asarray(bad)))
