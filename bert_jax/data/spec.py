"""What a batch holds: each feature's name, shape of one row, and dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Batch = Mapping[str, np.ndarray]


class Feature(NamedTuple):
    """One row of a feature. A batch of it is [B, *shape]."""

    shape: tuple[int, ...]
    dtype: type


BatchSpec = Mapping[str, Feature]


def pretrain_spec(max_seq_length: int, max_predictions_per_seq: int) -> BatchSpec:
    """Features of pre-training, named as in google-research/bert, plus `example_weights`.

    `example_weights` is 1 for real rows and 0 for rows that only fill up an evaluation batch
    (their `masked_lm_weights` are 0 as well).
    """
    s, p = (max_seq_length,), (max_predictions_per_seq,)
    return {
        'input_ids': Feature(s, np.int32),
        'input_mask': Feature(s, np.int32),
        'segment_ids': Feature(s, np.int32),
        'masked_lm_positions': Feature(p, np.int32),
        'masked_lm_ids': Feature(p, np.int32),
        'masked_lm_weights': Feature(p, np.float32),
        'next_sentence_labels': Feature((), np.int32),
        'example_weights': Feature((), np.float32),
    }


def packed_pretrain_spec(
    max_seq_length: int, max_predictions_per_seq: int, pairs_a_row: int
) -> BatchSpec:
    """As `pretrain_spec`, of rows that up to `pairs_a_row` pairs share.

    `input_mask` numbers the pairs from 1, `position_ids` begin at 0 with each, `cls_positions` says
    where each begins. The prediction slots are the row's.
    """
    spec, k = dict(pretrain_spec(max_seq_length, max_predictions_per_seq)), (pairs_a_row,)
    return spec | {
        'position_ids': Feature((max_seq_length,), np.int32),
        'cls_positions': Feature(k, np.int32),
        'next_sentence_labels': Feature(k, np.int32),
        'example_weights': Feature(k, np.float32),
    }


def empty_rows(spec: BatchSpec, num_rows: int) -> dict[str, np.ndarray]:
    """Rows of zeros: no example, no weight."""
    return {name: np.zeros((num_rows, *f.shape), f.dtype) for name, f in spec.items()}


def check_batch(spec: BatchSpec, batch: Batch) -> None:
    """Asserts that a batch is what the spec says (our own invariant, not user input)."""
    assert set(batch) == set(spec), f'{sorted(batch)} != {sorted(spec)}'
    for name, feature in spec.items():
        x = batch[name]
        assert x.shape[1:] == feature.shape, (name, x.shape, feature.shape)
        assert x.dtype == feature.dtype, (name, x.dtype, feature.dtype)
