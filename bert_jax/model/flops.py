"""FLOPs, by the one formula that every MFU figure and every choice of rows here uses."""

from __future__ import annotations

from bert_jax.model.layers import ModelConfig


def token_flops(config: ModelConfig, row_length: int) -> float:
    """FLOPs of the forward pass through all layers on one token of a row of `row_length`.

    A multiply-add counts two. Matrix products only: embedding look-ups, softmax and LayerNorm are
    left out.
    """
    c = config
    per_layer = 8 * c.hidden_size**2 + 4 * c.hidden_size * c.intermediate_size
    return float(c.num_layers * (per_layer + 4 * row_length * c.hidden_size))


def bilstm_flops(inputs: int, units: int) -> float:
    """FLOPs of the forward pass of both directions of a BiLSTM layer on one token."""
    return 16.0 * units * (inputs + units)


def train_flops(
    config: ModelConfig, seq_length: int, num_predictions: int, num_cls: int = 1
) -> float:
    """FLOPs of training on one row: three times the forward pass, as far as it is needed.

    The row holds `num_cls` sequences. As `token_flops` counts, but the last layer has queries at
    [CLS] and the predicted positions alone. The optimizer and rematerialisation are left out, and
    the vocabulary is counted unpadded.
    """
    c, s, p, h = config, seq_length, num_predictions, config.hidden_size
    before = s * token_flops(c, s) * (c.num_layers - 1) / c.num_layers
    last = s * 6 * h**2 + (p + num_cls) * (2 * h**2 + 4 * h * c.intermediate_size + 4 * s * h)
    head = p * (2 * h**2 + 2 * h * c.vocab_size)
    return 3.0 * (before + last + head + num_cls * (2 * h**2 + 4 * h))


def muon_flops(config: ModelConfig) -> float:
    """FLOPs of Muon's five Newton-Schulz iterations at a step, on the matrices of all layers.

    On one of m x n, m <= n, an iteration takes 4 m^2 n + 2 m^3. They do not depend on the batch: at
    an intermediate size of 4 h, a step's are those of training the layers on some 4 h tokens. MFU
    leaves them out, as all of an optimizer; a comparison of recipes must not.
    """
    h, i = config.hidden_size, config.intermediate_size
    m, n = min(h, i), max(h, i)
    return 5.0 * config.num_layers * (4 * 6 * h**3 + 2 * (4 * m**2 * n + 2 * m**3))
