"""FLOPs, by the one formula that every MFU figure and every choice of rows here uses."""

from __future__ import annotations

from bert_jax.model.layers import BertConfig


def token_flops(config: BertConfig, row_length: int) -> float:
    """FLOPs of the forward pass through all layers on one token of a row of `row_length`.

    A multiply-add counts two. Matrix products only: embedding look-ups, softmax and LayerNorm are
    left out.
    """
    c = config
    per_layer = 8 * c.hidden_size**2 + 4 * c.hidden_size * c.intermediate_size
    return float(c.num_layers * (per_layer + 4 * row_length * c.hidden_size))


def train_flops(config: BertConfig, seq_length: int, num_predictions: int) -> float:
    """FLOPs of training on one sequence: three times the forward pass.

    As `token_flops` counts; the optimizer and rematerialisation are left out, and the vocabulary
    is counted unpadded.
    """
    c, s, p = config, seq_length, num_predictions
    head = p * (2 * c.hidden_size**2 + 2 * c.hidden_size * c.vocab_size)
    return 3.0 * (s * token_flops(c, s) + head + 2 * c.hidden_size**2 + 4 * c.hidden_size)
