"""transformers' tiny models with their recorded outputs, for the tests of the library."""

import functools

import numpy as np

import bert_jax
from tests.conftest import RECORDED
from tests.tiny_models import jit

INPUTS = ('input_ids', 'attention_mask', 'token_type_ids')


@functools.cache
def model_and_batch(name):
    """(The model of a folder in `RECORDED`, its inputs, what transformers computed from them)."""
    arrays = dict(np.load(RECORDED / name / 'recorded.npz'))
    batch = {key: arrays.pop(key) for key in INPUTS}
    return bert_jax.from_pretrained(RECORDED / name), batch, arrays


def outputs(bert, batch, **options):
    """What a model gives for a batch, compiled in a moment, and once for models that are alike."""
    return _compiled(bert.module, tuple(options.items()))(bert.params, batch)


@functools.cache
def _compiled(module, options):
    return jit(lambda params, batch: module.apply({'params': params}, **batch, **dict(options)))


def at_tokens(x, batch):
    """An output without what stands at padding; an output of texts as it is."""
    mask = np.asarray(batch['attention_mask']) > 0
    x = np.asarray(x)
    return x[mask] if x.shape[: mask.ndim] == mask.shape else x


def assert_same_outputs(found, expected, batch, atol=1e-5):
    """The same outputs by name at all tokens."""
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(
            at_tokens(found[name], batch), at_tokens(x, batch), rtol=0, atol=atol, err_msg=name)
