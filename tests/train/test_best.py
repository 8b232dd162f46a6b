"""The best evaluation is kept, with its metrics, across restarts and meshes."""

import jax
import numpy as np
import optax
import pytest

from bert_jax.train.checkpoint import Best
from bert_jax.train.sharding import make_mesh
from bert_jax.train.step import abstract_state
from tests.train.toy import Toy


def abstract_params(axes=(8, 1, 1)):
    return abstract_state(Toy(), optax.sgd(1e-3), make_mesh(*axes)).params


def params_of(value):
    return jax.tree.map(
        lambda x: jax.device_put(np.full(x.shape, value, np.float32), x.sharding),
        abstract_params(),
    )


def offered(directory, scores, first_step=1):
    best = Best(directory, 'f1')
    for step, score in enumerate(scores, first_step):
        best.offer(step, {'f1': score, 'loss': float(step)}, params_of(step))
    return best


@pytest.mark.parametrize('scores,step', [
    ([0.1, 0.5, 0.3], 2), ([0.5, 0.5], 1), ([0.1, 0.2, 0.3], 3), ([float('-inf'), 0.0], 2),
])
def test_the_highest_score_is_kept_and_the_first_of_equals(tmp_path, scores, step):
    best = offered(tmp_path, scores)
    found, params = best.restore(abstract_params((2, 2, 2)))
    assert found == step
    assert best.metrics() == {'f1': scores[step - 1], 'loss': float(step)}
    assert all((np.asarray(x) == step).all() for x in jax.tree.leaves(params))
    best.close()
    assert [path.name for path in tmp_path.iterdir() if path.name.isdigit()] == [str(step)]


def test_a_restarted_run_remembers(tmp_path):
    offered(tmp_path, [0.1, 0.5]).close()
    best = offered(tmp_path, [0.4, 0.6], first_step=3)
    assert best.restore(abstract_params())[0] == 4
    best.close()
