"""Random pre-training rows: for benchmarks, and for trying a machine without any data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bert_jax.data.examples import Rows
from bert_jax.data.spec import pretrain_spec


class SyntheticExamples:
    """Rows of uniformly random pieces, full length, every prediction slot in use."""

    def __init__(
        self, *, vocab_size: int, max_seq_length: int, max_predictions_per_seq: int,
        num_examples: int = 4096, seed: int = 0,
    ):
        self.spec = pretrain_spec(max_seq_length, max_predictions_per_seq)
        self.num_examples = self.num_frozen = num_examples
        self._vocab_size = vocab_size
        self._seed = seed

    def rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of these ids [n]; equal ids modulo `num_examples` give equal rows."""
        rows = [self._row(int(i) % self.num_examples) for i in row_ids]
        return {name: np.stack([row[name] for row in rows]) for name in self.spec}

    def sizes(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All are full."""
        (length,), (slots,) = self.spec['input_ids'].shape, self.spec['masked_lm_ids'].shape
        return np.full(len(row_ids), length), np.full(len(row_ids), slots)

    def frozen_rows(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """As `rows`."""
        return self.rows(row_ids)

    def _row(self, index: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng((self._seed, index))
        (length,), (slots,) = self.spec['input_ids'].shape, self.spec['masked_lm_ids'].shape
        return {
            'input_ids': rng.integers(0, self._vocab_size, length, np.int32),
            'input_mask': np.ones(length, np.int32),
            'segment_ids': (np.arange(length) > length // 2).astype(np.int32),
            'masked_lm_positions': np.sort(rng.permutation(np.arange(1, length - 1))[:slots])
            .astype(np.int32),
            'masked_lm_ids': rng.integers(0, self._vocab_size, slots, np.int32),
            'masked_lm_weights': np.ones(slots, np.float32),
            'next_sentence_labels': np.asarray(rng.integers(2), np.int32),
            'example_weights': np.ones((), np.float32),
        }


def plain_batches(
    examples: Rows, batch_size: int, local: np.ndarray, steps: range
) -> Iterator[dict[str, np.ndarray]]:
    """Like `pipeline.train_batches`, without TensorFlow and without making anything ahead."""
    for step in steps:
        yield examples.rows(step * batch_size + local)
