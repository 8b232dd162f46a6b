"""The FLOPs of a train step, by the one formula that every MFU figure here uses."""

from __future__ import annotations

from bert_jax.model.layers import ModelConfig


def train_flops(config: ModelConfig, seq_length: int, num_predictions: int) -> float:
    """FLOPs of training on one sequence: three times the forward pass.

    A multiply-add counts two. Matrix products only: embedding look-ups, softmax, LayerNorm, the
    optimizer and rematerialisation are left out, and the vocabulary is counted unpadded.
    """
    c, s, p = config, seq_length, num_predictions
    per_token = (
        8 * c.hidden_size**2 + 4 * c.hidden_size * c.intermediate_size + 4 * s * c.hidden_size
    )
    head = p * (2 * c.hidden_size**2 + 2 * c.hidden_size * c.vocab_size)
    return 3.0 * (c.num_layers * s * per_token + head + 2 * c.hidden_size**2 + 4 * c.hidden_size)
