"""Runs our model on `Weights`, for comparison with other programs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.heads import HEADS
from bert_jax.heads.masked_lm_loss import masked_lm_logits
from bert_jax.heads.pretraining import Predictions, Pretraining
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.weights.inference_settings import framing_of
from bert_jax.weights.parameters import to_tree

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
    for field in ('model', 'head', 'labels', 'lowercase'):
        assert getattr(a, field) == getattr(b, field)
    # A folder says how its texts are framed where an old run leaves that out.
    assert framing_of(a.inference) | a.inference == framing_of(b.inference) | b.inference


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
    rows = [jnp.asarray(x.reshape(-1, x.shape[-1]), jnp.int32) for x in arrays]
    if weights.head == '':
        return encoder_outputs(config, params, rows)
    if weights.head == 'pretraining':
        return pretraining_outputs(config, params, rows)
    head = HEADS[weights.head].of_model(config, weights.num_labels, {})
    found = jax.jit(head.outputs)(params, batch_of(rows))
    if weights.head in ('classification', 'regression'):
        return {'logits': found['logits'][:, 0]}
    if weights.head == 'multiple_choice':
        return {'logits': found['logits'].reshape(arrays[0].shape[:-1])}
    return found


def batch_of(rows):
    """A batch of one sequence a row."""
    input_ids, sequence_ids, segment_ids = rows
    return {
        'input_ids': input_ids,
        'sequence_ids': sequence_ids,
        'segment_ids': segment_ids,
        'cls_positions': jnp.zeros((len(input_ids), 1), jnp.int32),
    }


def encoder_outputs(config, params, rows):
    """Outputs of a model without a head, with or without a pooler."""
    has_pooler = 'pooler' in params['bert']
    outputs = jax.jit(Bert(config, pooled=has_pooler).apply)({'params': params['bert']}, *rows)
    found = {'last_hidden_state': outputs['sequence_output'], 'layers': outputs['layers']}
    if has_pooler:
        found['pooler_output'] = outputs['pooled_output']
    return found


def pretraining_outputs(config, params, rows):
    """Outputs of a model with masked LM alone, or with next sentence as well."""
    def logits_of(mlm_output):
        return masked_lm_logits(mlm_output)[..., : config.vocab_size]

    if 'seq_relationship' not in params['cls']:
        @jax.jit
        def logits_everywhere(params, rows):
            outputs = Bert(config, pooled=False).apply({'params': params['bert']}, *rows)
            predictions = Predictions(config).bind({'params': params['cls']['predictions']})
            hidden, bias = predictions(outputs['sequence_output'])
            table = predictions.output_table(params['bert']['embeddings']['word_embeddings'])
            return logits_of((hidden, table, bias))

        return {'logits': logits_everywhere(params, rows)}
    input_ids = rows[0]
    everywhere = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
    batch = batch_of(rows) | {
        'masked_lm_ids': input_ids,
        'masked_lm_positions': everywhere,
        'masked_lm_weights': 0.0 * everywhere,
    }
    found = jax.jit(Pretraining(config).outputs)(params, batch)
    return {
        'prediction_logits': logits_of(found['mlm_output']),
        'seq_relationship_logits': found['nsp_logits'][:, 0],
    }
