"""The FLOPs formula against published figures and the matrix products in the traced models."""

import dataclasses
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
from bert_jax.model.flops import muon_flops, token_flops, train_flops
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
    a_token = model.hidden_size * (4 * model.hidden_size + 4 * model.intermediate_size + 4 * length)
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


# Options of BERT's family that change which products there are.
GATED = {'gated': True, 'pre_norm': True, 'biases': False, 'positions': 'rotary',
         'type_vocab_size': 0}
LOCAL = {'local_attention': 24, 'global_every': 2}


@pytest.mark.parametrize('options', [
    {}, GATED, {'embedding_size': 64}, {'num_layers': 1, 'embedding_size': 64}, LOCAL,
    LOCAL | {'num_layers': 3}], ids=str)
def test_the_formula_counts_the_products_of_the_forward_pass(options):
    small = dataclasses.replace(config('mini', vocab_size=1024), **options)
    slots = 10
    batch = ROW | {'masked_lm_positions': jnp.ones((1, slots), jnp.int32)}
    model = BertForPreTraining(small)

    def forward(params):
        out = model.apply(params, batch)
        return masked_lm_logits(out['mlm_output']), out['nsp_logits']

    params = jax.eval_shape(lambda: model.init(jax.random.key(0), batch))
    found = product_flops(jax.make_jaxpr(forward)(params).jaxpr)
    # Look-ups by products with one-hot rows do not count in the formula.
    look_ups = slots + 1
    if small.pre_norm:  # what queries are made of is not the residual
        look_ups *= 2
    found -= 2 * small.hidden_size * LENGTH * look_ups
    found -= 2 * small.num_embedding_columns * LENGTH * small.type_vocab_size
    for layer in range(small.num_layers):  # the scores outside of windows, which are masked
        if small.of_layer(layer).local_attention:
            num_queries = slots + 1 if layer == small.num_layers - 1 else LENGTH
            found -= 4 * small.hidden_size * num_queries * (LENGTH - 25)
    assert 3 * found == train_flops(small, LENGTH, slots)


def test_muon_orthogonalises_both_matrices_of_a_gated_layer():
    small = config('mini', **GATED)
    hidden, inner = small.hidden_size, small.intermediate_size
    square = 4 * hidden**3 + 2 * hidden**3
    wide = 4 * hidden**2 * inner + 2 * hidden**3
    assert muon_flops(small) == 5 * small.num_layers * (4 * square + 3 * wide)


@pytest.mark.slow
@pytest.mark.parametrize('kind, arguments, options', [
    (Tagging, (), {}), (Tagging, (), {'bilstm': True}), (Tagging, (), {'pools_tokens': True}),
    (Classification, (), {}), (Classification, (), {'bilstm': True}),
    (Classification, (), {'pooling': 'mean'}), (Classification, (), GATED),
    (FeatureTagging, ('concat_last_four',), {}), (FeatureTagging, ('last',), {})], ids=str)
def test_the_formula_counts_the_products_of_downstream_models(kind, arguments, options):
    small = dataclasses.replace(config('mini', vocab_size=64), **options)
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
