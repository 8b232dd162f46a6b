"""Runs our model on `Weights`, for comparison with other programs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.heads import HEADS
from bert_jax.heads.masked_lm_loss import masked_lm_logits
from bert_jax.heads.pretraining import Predictions
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.weights.formats import to_tree

RECORDED = Path(__file__).parents[1] / 'fixtures' / 'huggingface'
INPUTS = ('input_ids', 'attention_mask', 'token_type_ids')


def assert_same_params(a, b):
    """The same float32 arrays by name, bit for bit."""
    assert a.keys() == b.keys()
    for name in a:
        assert b[name].dtype == np.float32
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def assert_same(a, b):
    """The same `Weights`, apart from their files and what was unused there."""
    assert_same_params(a.params, b.params)
    for field in ('model', 'head', 'labels', 'lowercase', 'inference'):
        assert getattr(a, field) == getattr(b, field)


def real(found, inputs):
    """Outputs without those at padding, where implementations may differ."""
    mask = np.asarray(inputs['attention_mask']) == 1
    arrays = {name: np.asarray(x) for name, x in found.items() if not isinstance(x, tuple)}
    return {name: x[mask] if x.shape[: mask.ndim] == mask.shape else x
            for name, x in arrays.items()}


def outputs(weights, inputs):
    """Outputs of our model, by transformers' names.

    Args:
      weights: any `Weights`.
      inputs: `input_ids`, `attention_mask`, `token_type_ids`, [B, S] (multiple choice:
        [B, C, S]).
    """
    config = ModelConfig(**weights.model)
    params = to_tree(weights.params, config.padded_vocab_size)
    arrays = [np.asarray(inputs[name]) for name in INPUTS]
    flat = [jnp.asarray(x.reshape(-1, x.shape[-1]), jnp.int32) for x in arrays]
    batch = dict(zip(('input_ids', 'sequence_ids', 'segment_ids'), flat, strict=True))
    rows, length = flat[0].shape
    everywhere = jnp.broadcast_to(jnp.arange(length), (rows, length))
    batch |= {'cls_positions': jnp.zeros((rows, 1), jnp.int32), 'masked_lm_ids': flat[0],
              'masked_lm_positions': everywhere, 'masked_lm_weights': 0.0 * everywhere}
    vocab_size = weights.model['vocab_size']
    if weights.head == 'pretraining' and not weights.has('cls/seq_relationship'):
        out = jax.jit(Bert(config, pooled=False).apply)({'params': params['bert']}, *flat)
        hidden, bias = Predictions(config).apply(
            {'params': params['cls']['predictions']}, out['sequence_output'])
        table = params['bert']['embeddings']['word_embeddings']
        return {'logits': masked_lm_logits((hidden, table, bias))[..., :vocab_size]}
    if weights.head:
        head = HEADS[weights.head].of_model(config, weights.num_labels, {})
        found = jax.jit(head.outputs)(params, batch)
        if weights.head == 'pretraining':
            return {'prediction_logits': masked_lm_logits(found['mlm_output'])[..., :vocab_size],
                    'seq_relationship_logits': found['nsp_logits'][:, 0]}
        if weights.head in ('classification', 'regression'):
            return {'logits': found['logits'][:, 0]}
        if weights.head == 'multiple_choice':
            return {'logits': found['logits'].reshape(arrays[0].shape[:-1])}
        return found
    pooled = weights.has('bert/pooler')
    out = jax.jit(Bert(config, pooled=pooled).apply)({'params': params['bert']}, *flat)
    found = {'last_hidden_state': out['sequence_output'], 'layers': out['layers']}
    return found | ({'pooler_output': out['pooled_output']} if pooled else {})
