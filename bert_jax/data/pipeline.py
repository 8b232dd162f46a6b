"""tf.data: row numbers -> this host's rows -> batches, made ahead of the device.

Nothing here has state: the batch of step s holds the rows s * batch_size + local.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert_jax.data.examples import BatchSpec, Examples, Rows, eval_batch

_ROWS_A_CALL = 2048  # rows made in one call: numpy's cost a call is then small
_PREFETCH_BATCHES = 8


def hide_accelerators() -> None:
    """Keeps TensorFlow off the devices that jax computes on."""
    for kind in ('GPU', 'TPU'):
        tf.config.set_visible_devices([], kind)


def train_batches(
    examples: Rows, *, batch_size: int, local: np.ndarray, first_step: int, num_steps: int
) -> Iterator[dict[str, np.ndarray]]:
    """Batches of the steps first_step .. first_step + num_steps - 1.

    Args:
      examples: where rows come from.
      batch_size: rows of a global batch.
      local: the rows of each global batch that this host holds.
      first_step: step (of this phase) to begin at; any step can be begun at, at once.
      num_steps: how many batches follow.

    Yields:
      Features [len(local), ...].
    """
    steps_a_call = max(1, _ROWS_A_CALL // len(local))
    last_step = first_step + num_steps

    def make(call: np.ndarray) -> list[np.ndarray]:
        begin = first_step + int(call) * steps_a_call
        steps = np.arange(begin, min(begin + steps_a_call, last_step), dtype=np.int64)
        row_ids = steps[:, None] * batch_size + local[None, :]
        rows = examples.rows(row_ids.reshape(-1))
        return [rows[name].reshape(*row_ids.shape, *f.shape) for name, f in examples.spec.items()]

    calls = tf.data.Dataset.range(-(-num_steps // steps_a_call))
    dataset = calls.map(
        lambda call: _call(make, call, examples.spec, len(local)),
        num_parallel_calls=2, deterministic=True,
    )
    dataset = dataset.unbatch().prefetch(_PREFETCH_BATCHES)
    options = tf.data.Options()
    options.autotune.enabled = False
    return iter(dataset.with_options(options).as_numpy_iterator())


def eval_batches(
    examples: Examples, *, batch_size: int, local: np.ndarray, num_examples: int
) -> Iterator[dict[str, np.ndarray]]:
    """The first `num_examples` frozen rows, each once; the last batch is filled with empty rows.

    Every host gets the same number of batches, whatever its share of rows.
    """

    def make(step: np.ndarray) -> list[np.ndarray]:
        batch = eval_batch(examples, int(step), batch_size, local, num_examples)
        return [batch[name][None] for name in examples.spec]

    steps = tf.data.Dataset.range(-(-num_examples // batch_size))
    dataset = steps.map(
        lambda step: _call(make, step, examples.spec, len(local)),
        num_parallel_calls=2, deterministic=True,
    )
    return iter(dataset.unbatch().prefetch(2).as_numpy_iterator())


def _call(make, index: tf.Tensor, spec: BatchSpec, rows: int) -> dict[str, tf.Tensor]:
    """Calls numpy code from the graph and says what comes back: [steps, rows, ...]."""
    tensors = tf.numpy_function(make, [index], [tf.as_dtype(f.dtype) for f in spec.values()])
    for tensor, feature in zip(tensors, spec.values(), strict=True):
        tensor.set_shape([None, rows, *feature.shape])
    return dict(zip(spec, tensors, strict=True))
