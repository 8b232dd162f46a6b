"""The FLOPs formula against published figures and the matrix products in the traced models."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from bert_jax.config import MODEL_SIZES
from bert_jax.heads.classification import Classification
from bert_jax.heads.masked_lm_loss import masked_lm_logits
from bert_jax.heads.pretraining import BertForPreTraining
from bert_jax.heads.tokens import FeatureTagging, Tagging
from bert_jax.model.flops import token_flops, train_flops
from bert_jax.model.layers import ModelConfig


def config(name, vocab_size=30522, **changes):
    layers, hidden, heads = MODEL_SIZES[name]
    return ModelConfig(vocab_size=vocab_size, num_layers=layers, hidden_size=hidden,
                      num_heads=heads, intermediate_size=4 * hidden, **changes)


@pytest.mark.parametrize('name, length, slots, gflops', [
    ('base', 128, 20, 69.93), ('base', 512, 80, 301.45),
    ('large', 128, 20, 240.64), ('large', 512, 80, 1020.53)])
def test_flops_of_the_paper_s_models(name, length, slots, gflops):
    """The figures count the last layer in full, the formula most of it only at [CLS] and slots."""
    model = config(name)
    a_token = model.hidden_size * (2 * model.hidden_size + 4 * model.intermediate_size + 4 * length)
    left_out = (length - slots - 1) * a_token
    found = train_flops(model, length, slots) + 3 * left_out
    assert found / 1e9 == pytest.approx(gflops, abs=0.005)


LENGTH = 64
ROW = dict.fromkeys(('input_ids', 'sequence_ids', 'segment_ids'), jnp.ones((1, LENGTH), jnp.int32))


def product_flops(jaxpr):
    """FLOPs of all matrix products in a jaxpr; those in a scan count once per iteration."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == 'dot_general':
            (contracted, _), _ = eqn.params['dimension_numbers']
            left = eqn.invars[0].aval.shape
            total += 2 * eqn.outvars[0].aval.size * math.prod(left[i] for i in contracted)
        times = eqn.params.get('length', 1) if eqn.primitive.name == 'scan' else 1
        for inner in jax.tree.leaves(list(eqn.params.values())):
            if isinstance(inner, (ClosedJaxpr, Jaxpr)):
                total += times * product_flops(inner)
    return total


def test_the_formula_counts_the_products_of_the_forward_pass():
    small = config('mini', vocab_size=1024)
    slots = 10
    batch = ROW | {'masked_lm_positions': jnp.ones((1, slots), jnp.int32)}
    model = BertForPreTraining(small)

    def forward(params):
        out = model.apply(params, batch)
        return masked_lm_logits(out['mlm_output']), out['nsp_logits']

    params = jax.eval_shape(lambda: model.init(jax.random.key(0), batch))
    found = product_flops(jax.make_jaxpr(forward)(params).jaxpr)
    # Look-ups by products with one-hot rows do not count in the formula.
    look_ups = 2 * (slots + 1)  # of queries and of the residual that they are added to
    found -= 2 * small.hidden_size * LENGTH * (look_ups + small.type_vocab_size)
    assert 3 * found == train_flops(small, LENGTH, slots)


@pytest.mark.parametrize('kind, arguments, bilstm', [
    (Tagging, (), False), (Tagging, (), True), (Classification, (), False),
    (Classification, (), True), (FeatureTagging, ('concat_last_four',), False),
    (FeatureTagging, ('last',), False)])
def test_the_formula_counts_the_products_of_downstream_models(kind, arguments, bilstm):
    small = config('mini', vocab_size=64, bilstm=bilstm)
    head = kind(small, 1, *arguments)
    batch = ROW | {'position_ids': jnp.zeros((1, LENGTH), jnp.int32),
                   'cls_positions': jnp.zeros((1, 1), jnp.int32)}
    params = jax.eval_shape(lambda: head.init(jax.random.key(0)))
    traced = jax.make_jaxpr(lambda p: head.outputs(p, batch)['logits'])(params)
    found = product_flops(traced.jaxpr)
    expected = LENGTH * head.token_flops(LENGTH)
    if kind is FeatureTagging:  # a frozen encoder has only a forward pass
        encoder = LENGTH * token_flops(small, LENGTH)
        expected = (expected - encoder) / 3 + encoder
    else:
        expected /= 3
    assert found == pytest.approx(expected, rel=0.02)  # for heads, and look-ups as products
