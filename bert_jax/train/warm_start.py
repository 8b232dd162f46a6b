"""A model that begins with published parameters instead of random ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.layers import ModelConfig
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.weights.description import Weights
from bert_jax.weights.extended import extended
from bert_jax.weights.names import flat_tree, to_tree, tree_shapes
from bert_jax.weights.placement import place


def warm_start(
    published: Weights, params: Any, bert: ModelConfig, *, head: str, labels: Sequence[str],
    vocab_file: Path | None, whole: bool = False,
) -> Any:
    """Published parameters in the place of fresh ones, wherever they belong; it says which.

    Args:
      published: from `load_weights`.
      params: fresh parameters on the mesh.
      bert: the model that is trained.
      head: of the model, as `weights` names it.
      labels: of the head, by id.
      vocab_file: the vocabulary of the model; words that it has more than theirs start at the mean
        of their old pieces.
      whole: whether nothing may start fresh, as the model is used without training.

    Raises:
      InputError: they are of another model, its vocabulary is in another order, or, of a model that
        has to be whole, a parameter would start fresh.
    """
    notes: list[str] = []
    if vocab_file is not None:
        published, notes = extended(published, vocab_file)
    placement = place(
        published, tree_shapes(params, bert.vocab_size), head=head, labels=labels,
        model=vars(bert),  # asdict would copy the layout, and devices cannot be copied
    )
    if whole:
        fresh = [line for line in (*placement.report()[1:], *notes) if 'fresh' in line]
        if placement.fresh or placement.partly_fresh or notes:
            raise InputError(
                f'{published.source} does not have all parameters of this model, which is used '
                f"without training: {'; '.join(fresh or notes)}"
                + ('. If its LABEL_0, LABEL_1, ... are this task\'s labels '
                   f"({', '.join(labels[:5])}) in this order, add --labels_by_position"
                   if any(label.startswith('LABEL_') for label in published.labels) else '')
            )
    for line in [*placement.report(), *notes]:
        hosts.say(line)
    found = flat_tree(to_tree(
        placement.params, padded_vocab_size=bert.padded_vocab_size, scan_layers=bert.scan_layers
    ))

    def choose(path: Any, fresh: jax.Array) -> jax.Array:
        array = found.get('/'.join(key.key for key in path))
        if array is None:
            return fresh
        rows = len(array)
        if array.shape != fresh.shape:  # a longer position table: these are its first rows
            array = np.pad(array, [(0, len(fresh) - rows)] + [(0, 0)] * (array.ndim - 1))
        # Every process fills the shards that it holds.
        placed = jax.make_array_from_callback(
            fresh.shape, fresh.sharding, lambda index: array[index]
        )
        return placed if rows == len(fresh) else _first_rows(rows, placed, fresh)

    return jax.tree_util.tree_map_with_path(choose, params)


def _first_rows(rows: int, x: jax.Array, rest: jax.Array) -> jax.Array:
    """The first rows of one table and the rest of the other, laid out as both are."""
    def merge(x: jax.Array, rest: jax.Array) -> jax.Array:
        return jnp.where(jnp.arange(len(x))[:, None] < rows, x, rest)

    return jax.jit(merge, out_shardings=rest.sharding)(x, rest)
