"""The FLOPs of a train step, by the one formula that every MFU figure here uses."""

from __future__ import annotations

from bert_jax.model.layers import BertConfig

# Peak dense bf16 FLOP/s of one chip, by a part of jax's device_kind in lower case. Sources: Google
# Cloud TPU documentation (v4, v5e, v5p, v6e); 123e12 is the commonly cited figure for v3, NVIDIA's
# data sheets for the GPUs (dense, not the sparse figure).
_PEAK_FLOPS = (
    ('v6 lite', 918e12), ('v6e', 918e12), ('v5 lite', 197e12), ('v5e', 197e12), ('v5p', 459e12),
    ('v5', 459e12), ('v4', 275e12), ('v3', 123e12), ('v2', 46e12), ('h200', 989e12),
    ('h100', 989e12), ('a100', 312e12),
)


def train_flops(config: BertConfig, seq_length: int, num_predictions: int) -> float:
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


def peak_flops(device_kind: str) -> float | None:
    """Peak bf16 FLOP/s of a chip, or None where it is not known (CPUs)."""
    kind = device_kind.lower()
    return next((peak for name, peak in _PEAK_FLOPS if name in kind), None)
