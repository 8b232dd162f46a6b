"""The state is born sharded, and is the same numbers on any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toy import Toy, mesh

from bert_jax.train.step import abstract_state, init_state, num_params

OPTIMIZER = optax.adam(1e-3)


@pytest.mark.parametrize('axes, kernel, bias', [
    ((8, 1, 1), (1, 16), (16,)), ((2, 2, 2), (2, 8), (8,)), ((1, 8, 1), (1, 16), (16,)),
    ((4, 1, 2), (2, 8), (8,)),
])
def test_parameters_and_moments_are_born_as_shards_and_do_not_depend_on_the_mesh(
    axes, kernel, bias
):
    state = init_state(Toy(), OPTIMIZER, mesh(*axes), seed=7)
    for tree in (state.params, state.opt_state[0].mu, state.opt_state[0].nu):
        for leaf, shape in ((tree['dense']['kernel'], kernel), (tree['dense']['bias'], bias)):
            assert {shard.data.shape for shard in leaf.addressable_shards} == {shape}
            assert len(leaf.addressable_shards) == 8
    alone = init_state(Toy(), OPTIMIZER, mesh(), seed=7)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), state, alone)


def test_the_abstract_state_is_the_state_without_its_numbers():
    on = mesh(2, 2, 2)
    state, abstract = init_state(Toy(), OPTIMIZER, on, 0), abstract_state(Toy(), OPTIMIZER, on)
    assert jax.tree.structure(state) == jax.tree.structure(abstract)
    for x, a in zip(jax.tree.leaves(state), jax.tree.leaves(abstract), strict=True):
        assert (x.shape, x.dtype) == (a.shape, a.dtype)
        assert x.sharding.is_equivalent_to(a.sharding, x.ndim)


def test_step_starts_at_0_and_seeds_differ():
    one, two = (init_state(Toy(), OPTIMIZER, mesh(), seed) for seed in (1, 2))
    assert one.step == 0 and one.step.dtype == jnp.int32
    assert not np.allclose(one.params['dense']['kernel'], two.params['dense']['kernel'])
    assert num_params(one) == 8 * 16 + 16


def test_parameters_that_an_optimizer_has_masked_out_have_no_moments():
    def labels(params):
        return jax.tree.map(lambda x: 'sgd' if x.ndim == 2 else 'adam', params)

    optimizer = optax.partition({'sgd': optax.sgd(0.1), 'adam': optax.adam(0.1)}, labels)
    on = mesh(2, 2, 2)
    state = init_state(Toy(), optimizer, on, 0)
    assert jax.tree.structure(state) == jax.tree.structure(abstract_state(Toy(), optimizer, on))
    assert [x.shape for x in jax.tree.leaves(state.opt_state) if x.ndim] == [(16,), (16,)]
