"""What a model of ours computes with `Weights`, for comparison with other programs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.heads.classification import BertForSequenceClassification
from bert_jax.heads.pretraining import BertForPreTraining, Predictions, masked_lm_logits
from bert_jax.heads.tokens import BertForTokens
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
    """The same `Weights`, but for where they are from."""
    assert_same_params(a.params, b.params)
    for field in ('model', 'head', 'labels', 'lowercase'):
        assert getattr(a, field) == getattr(b, field)


def apply(model, params, *args):
    return jax.jit(model.apply)({'params': params}, *args)


def real(found, inputs):
    """Outputs without those at padding, which nobody uses: an implementation may give any."""
    mask = np.asarray(inputs['attention_mask']) == 1
    arrays = {name: np.asarray(x) for name, x in found.items() if not isinstance(x, tuple)}
    return {name: x[mask] if x.shape[: mask.ndim] == mask.shape else x
            for name, x in arrays.items()}


def outputs(weights, inputs):
    """Outputs by the names that transformers has for them.

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
    if weights.head == 'pretraining':
        return _pretraining(weights, config, params, flat, batch)
    if weights.head == 'question_answering':
        logits = apply(BertForTokens(config, 2, span=True), params, batch)
        return {'start_logits': logits[..., 0], 'end_logits': logits[..., 1]}
    if weights.head == 'token_classification':
        model = BertForTokens(config, weights.num_labels)
        return {'logits': apply(model, params, batch)}
    if weights.head:
        model = BertForSequenceClassification(config, weights.num_labels)
        first = jnp.zeros((len(flat[0]), 1), jnp.int32)
        logits = apply(model, params, batch | {'cls_positions': first})[:, 0]
        return {'logits': logits.reshape(arrays[0].shape[:-1])
                if weights.head == 'multiple_choice' else logits}
    pooled = weights.has('bert/pooler')
    out = apply(Bert(config, pooled=pooled), params['bert'], *flat)
    found = {'last_hidden_state': out['sequence_output'], 'layers': out['layers']}
    return found | ({'pooler_output': out['pooled_output']} if pooled else {})


def _pretraining(weights, config, params, flat, batch):
    vocab_size = weights.model['vocab_size']
    if weights.has('cls/seq_relationship') and weights.has('cls/predictions'):
        everywhere = jnp.broadcast_to(jnp.arange(flat[0].shape[1]), flat[0].shape)
        out = apply(
            BertForPreTraining(config), params, batch | {'masked_lm_positions': everywhere})
        return {'prediction_logits': masked_lm_logits(out['mlm_output'])[..., :vocab_size],
                'seq_relationship_logits': out['nsp_logits']}
    bert = {name: x for name, x in params['bert'].items() if name != 'pooler'}
    out = apply(Bert(config, pooled=False), bert, *flat)
    hidden, bias = apply(
        Predictions(config), params['cls']['predictions'], out['sequence_output']
    )
    table = params['bert']['embeddings']['word_embeddings']
    return {'logits': masked_lm_logits((hidden, table, bias))[..., :vocab_size]}
