"""Checkpoints of google-research/bert as our parameters: the smallest reader, for tests only."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_jax.model.layers import BertConfig


def config_of(path: Path, **changes) -> BertConfig:
    """The model that a `bert_config.json` of the original describes (its gelu is the tanh form)."""
    c = json.loads(path.read_text())
    return BertConfig(**{
        'vocab_size': c['vocab_size'], 'num_layers': c['num_hidden_layers'],
        'hidden_size': c['hidden_size'], 'num_heads': c['num_attention_heads'],
        'intermediate_size': c['intermediate_size'],
        'max_position_embeddings': c['max_position_embeddings'],
        'hidden_dropout': c['hidden_dropout_prob'],
        'attention_dropout': c['attention_probs_dropout_prob'],
        'initializer_range': c['initializer_range'], **changes,
    })


def parameters_of(checkpoint: Path, config: BertConfig) -> dict:
    """Its variables under our names, in our shapes: unrolled layers, fused QKV, padded words."""
    reader = tf.train.load_checkpoint(str(checkpoint))
    names = [
        name for name in reader.get_variable_to_shape_map()
        if name.startswith(('bert/', 'cls/')) and not name.endswith(('adam_m', 'adam_v'))
    ]
    variables = {name: reader.get_tensor(name) for name in names}
    heads = (config.num_heads, config.head_dim)
    flat = {}
    for name, x in variables.items():
        if '/self/' in name:
            if '/query/' not in name:
                continue
            three = [variables[name.replace('query', part)] for part in ('query', 'key', 'value')]
            x = np.stack(three, axis=-2).reshape(*x.shape[:-1], 3, *heads)
            name = name.replace('query', 'qkv')
        elif name.endswith('attention/output/dense/kernel'):
            x = x.reshape(*heads, -1)
        elif name == 'cls/seq_relationship/output_weights':
            name, x = 'cls/seq_relationship/kernel', x.T
        elif name in ('bert/embeddings/word_embeddings', 'cls/predictions/output_bias'):
            padding = config.padded_vocab_size - config.vocab_size
            x = np.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
        name = name.replace('seq_relationship/output_bias', 'seq_relationship/bias')
        flat[name.replace('gamma', 'scale').replace('beta', 'bias')] = x
    tree: dict = {}
    for name, x in flat.items():
        *folders, leaf = name.split('/')
        at = tree
        for folder in folders:
            at = at.setdefault(folder, {})
        at[leaf] = x
    return tree
