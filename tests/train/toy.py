"""A tiny task for the tests of this folder: linear regression with dropout."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.kernels.dropout import CLASSIFIER, dropout
from bert_jax.model.layers import parameter
from bert_jax.sharding import make_mesh
from tests.tiny_models import fixed_step


@dataclasses.dataclass(frozen=True)
class Toy:
    """y = x W + b, with the weighted mean of the rows' squared errors as its loss."""

    width: int = 16
    shown: ClassVar = {'mse': 'mse'}
    loss_spans_batch: ClassVar = False

    def init(self, rng):
        kernel = parameter(jax.random.normal, 'embed', 'mlp')(rng, (8, self.width))
        zeros = parameter(lambda key, shape: jnp.zeros(shape), 'mlp', decays=False)
        bias = zeros(rng, (self.width,))
        return {'dense': {'kernel': kernel, 'bias': bias}}

    def totals(self, batch):
        return {'rows': jnp.maximum(batch['weights'].sum(), 1.0)}

    def loss(self, params, batch, totals, dropout_keys_Bx2):
        x = dropout(batch['x'], 0.5, dropout_keys_Bx2, CLASSIFIER)
        prediction = x @ params['dense']['kernel'] + params['dense']['bias']
        squares_of_rows = jnp.square(prediction - batch['y']).mean(axis=-1)
        squares = jnp.sum(squares_of_rows * batch['weights'])
        sums = {'squares': squares, 'rows': batch['weights'].sum(), 'tokens': 3.0 * len(x)}
        return squares / totals['rows'], sums

    def score(self, sums):
        return {'mse': sums['squares'] / sums['rows']}


def mesh(data=1, fsdp=1, tensor=1):
    """A mesh of the first devices."""
    return make_mesh(data, fsdp, tensor, jax.devices()[: data * fsdp * tensor])


def batch(step, size=8, width=16):
    """The batch of a step; rows have weight 0 or 1, the first one 1."""
    rng = np.random.default_rng(step)
    weights = rng.integers(0, 2, size)
    weights[0] = 1
    return {
        'x': rng.standard_normal((size, 8)).astype(np.float32),
        'y': rng.standard_normal((size, width)).astype(np.float32),
        'weights': weights.astype(np.float32),
    }


def sgd_step(mesh, *, rate=0.1, clip_norm=0.0, optimizer=None, **options):
    """(optimizer, train step) of the toy task.

    Args:
      mesh: the devices.
      rate: learning rate of the first step.
      clip_norm: 0 for no clipping.
      optimizer: default: SGD with momentum.
      options: of `fixed_step`.
    """
    optimizer = optimizer or optax.sgd(rate, momentum=0.9)

    def schedule(step):
        return rate / (1.0 + step)

    step = fixed_step(Toy(), optimizer, schedule, mesh, clip_norm=clip_norm, **options)
    return optimizer, step
