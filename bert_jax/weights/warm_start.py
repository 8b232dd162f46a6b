"""Warm start: initialises parameters from other weights where they fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from bert_jax.config.bert_config import OPTIONS
from bert_jax.heads import part_of
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.text import load_tokenizer
from bert_jax.text.vocab import is_unused
from bert_jax.weights.formats import VOCABULARY_ROWS, Weights, to_tree, tree_shapes

_WORDS = 'bert/embeddings/word_embeddings'
_POSITIONS = 'bert/embeddings/position_embeddings'
_NUMERICS = tuple(option.name for option in OPTIONS if option.role == 'computes')


def warm_start(
    published: Weights, params: Any, bert: ModelConfig, *, head: str, labels: Sequence[str],
    vocab_file: Path | None, whole: bool = False,
) -> Any:
    """Replaces fresh parameters by published ones where they fit, and prints a summary.

    Args:
      published: from `load_weights`.
      params: fresh parameters on the mesh.
      bert: the target model.
      head: of the target, as in `Weights.head`.
      labels: of the head, by id.
      vocab_file: the target's vocabulary; words that the published one lacks start at the mean of
        their old pieces.
      whole: whether all parameters must fit, for use without training.

    Raises:
      InputError: the weights are of another model, the vocabularies differ in order, or, with
        `whole`, a parameter would start fresh.
    """
    notes: list[str] = []
    if vocab_file is not None:
        published, notes = extended(published, vocab_file)
    placement = place(
        published, tree_shapes(params, bert.vocab_size), head=head, labels=labels,
        model=vars(bert),  # asdict would copy the layout, and devices cannot be copied
    )
    lines = [*placement.report(published), *notes]
    longer = any(note.endswith('the rest start fresh') for note in placement.notes)
    if whole and (placement.fresh or longer or notes):
        fresh = [line for line in lines[1:] if 'fresh' in line]
        raise InputError(
            f'{published.source} does not have all parameters of this model, which is used '
            f"without training: {'; '.join(fresh or notes)}"
            + ('. If its LABEL_0, LABEL_1, ... are this task\'s labels '
               f"({', '.join(labels[:5])}) in this order, add --labels_by_position"
               if any(label.startswith('LABEL_') for label in published.labels) else '')
        )
    for line in lines:
        hosts.say(line)
    arrays = flatten_dict(to_tree(
        placement.params, padded_vocab_size=bert.padded_vocab_size, scan_layers=bert.scan_layers
    ), sep='/')

    def choose(path: Any, fresh: jax.Array) -> jax.Array:
        array = arrays.get('/'.join(key.key for key in path))
        if array is None:
            return fresh
        rows = len(array)
        if array.shape != fresh.shape:  # the target's position table is longer
            array = np.pad(array, [(0, len(fresh) - rows)] + [(0, 0)] * (array.ndim - 1))
        # Each process fills its own shards.
        placed = jax.make_array_from_callback(
            fresh.shape, fresh.sharding, lambda index: array[index]
        )
        return placed if rows == len(fresh) else _first_rows(rows, placed, fresh)

    return jax.tree_util.tree_map_with_path(choose, params)


def _first_rows(rows: int, x: jax.Array, rest: jax.Array) -> jax.Array:
    """The first rows of one table and the rest of the other, with their sharding."""
    def merge(x: jax.Array, rest: jax.Array) -> jax.Array:
        return jnp.where(jnp.arange(len(x))[:, None] < rows, x, rest)

    return jax.jit(merge, out_shardings=rest.sharding)(x, rest)


class Placement(NamedTuple):
    """The result of `place`.

    Attributes:
      params: arrays for the target by our names; the position table may have only the first rows
        of the target's.
      fresh: names of the target's parameters that start fresh.
      unused: names of weights that the target lacks, and of tensors unknown to this project.
      notes: further remarks, a line each.
    """

    params: dict[str, np.ndarray]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]

    def report(self, weights: Weights) -> list[str]:
        """A few lines for the user."""
        names = len(self.params) + len(self.fresh)
        return [
            f'{len(self.params)} of {names} parameters from {weights.source}',
            *([f'starts fresh: {_parts(self.fresh)}'] if self.fresh else []),
            *([f'left unused: {_parts(self.unused)}'] if self.unused else []),
            *(f'note: {note}' for note in self.notes),
        ]


def place(
    weights: Weights, shapes: Mapping[str, tuple[int, ...]], *, head: str = '',
    labels: Sequence[str] = (), model: Mapping[str, Any] | None = None,
) -> Placement:
    """Matches weights to the parameters of a target model.

    Embeddings and encoder layers must have the target's shapes, except that the position table may
    be longer or shorter. Pooler and heads may start fresh; a classifier does if it has another
    number of outputs, other labels or another head. If its labels are the same in another order,
    its outputs are reordered.

    Args:
      weights: the source.
      shapes: of the target's parameters by our names, unrolled and unpadded (`names.tree_shapes`).
      head: of the target, as in `Weights.head`; '' for any.
      labels: of the target, by id.
      model: fields of the target's configuration; those that change what the parameters compute
        are compared and noted.

    Raises:
      InputError: the weights are not of this model.
    """
    notes = [
        f'{field} is {weights.model[field]} there and {model[field]} here'
        for field in _NUMERICS if model and model[field] != weights.model[field]
    ]
    source, classifier_note = _classifier(weights, shapes, head, labels)
    if classifier_note:
        notes.append(classifier_note)
    matched: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        x = source.get(name)
        if x is not None and x.shape == tuple(shape):
            matched[name] = x
        elif name == _POSITIONS and x is not None and x.shape[1:] == tuple(shape)[1:]:
            matched[name] = x[: shape[0]]
            rest = 'the rest start fresh' if len(x) < shape[0] else 'the first of them are taken'
            notes.append(f'position_embeddings: {len(x)} rows there, {shape[0]} here; {rest}')
        elif name.startswith(('bert/embeddings/', 'bert/encoder/')):
            raise InputError(_misfit(name, x, tuple(shape), weights))
    layers = {name for name in source if name.startswith('bert/encoder/')} - set(shapes)
    if layers:
        raise InputError(
            f"{weights.source} has {weights.model['num_layers']} layers, the config fewer: set "
            f"--config.model.num_layers={weights.model['num_layers']}"
        )
    return Placement(
        matched, tuple(name for name in shapes if name not in matched),
        tuple(name for name in weights.params if name not in matched) + weights.unused,
        tuple(notes),
    )


def _classifier(
    weights: Weights, shapes: Mapping[str, tuple[int, ...]], head: str, labels: Sequence[str]
) -> tuple[dict[str, np.ndarray], str]:
    """`weights.params` with the classifier reordered for the target or removed; and a note."""
    params = dict(weights.params)
    if 'classifier/bias' not in params or 'classifier/bias' not in shapes:
        return params, ''
    there, here = weights.num_labels, shapes['classifier/bias'][0]
    wanted = list(labels)
    if head and head != weights.head:
        note = f'it is of {weights.head} there, of {head} here'
    elif there != here:
        note = f'{there} labels there, {here} here'
    elif not wanted or not weights.labels or wanted == list(weights.labels):
        return params, ''
    elif set(wanted) == set(weights.labels):
        order = [weights.labels.index(label) for label in wanted]
        params['classifier/kernel'] = params['classifier/kernel'][:, order]
        params['classifier/bias'] = params['classifier/bias'][order]
        return params, f"classifier: labels put in the order here, {', '.join(wanted)}"
    else:
        note = f"labels {', '.join(weights.labels)} there, {', '.join(wanted)} here"
    del params['classifier/kernel'], params['classifier/bias']
    return params, f'classifier: {note}; it starts fresh'


def _misfit(
    name: str, x: np.ndarray | None, shape: tuple[int, ...], weights: Weights
) -> str:
    if x is not None and name == _WORDS and x.shape[1:] == shape[1:]:
        file = weights.vocab_file or 'the vocabulary of these weights'
        return (
            f'vocabulary of {shape[0]} tokens, embedding of {len(x)} rows in {weights.source}: set '
            f'--config.data.vocab_file to {file}'
            + (f' (or --config.model.vocab_size={len(x)}, if it is that already)'
               if len(x) > shape[0] else '')
        )
    fields = ('num_layers', 'hidden_size', 'num_heads', 'intermediate_size', 'type_vocab_size')
    sizes = ' '.join(f'--config.model.{field}={weights.model[field]}' for field in fields)
    there = 'missing' if x is None else list(x.shape)
    return (
        f'{name} is {there} in {weights.source} and {list(shape)} in the config: give it the sizes '
        f'of these weights ({sizes})'
    )


def _parts(names: Sequence[str]) -> str:
    """Names of parameters, with all of a head as `HEAD/...`."""
    parts: dict[str, None] = {}
    for name in names:
        part = part_of(name)
        parts[f'{part.prefix}...' if part else name] = None
    shown = list(parts)
    return ', '.join(shown[:8]) + (f', and {len(shown) - 8} more' if len(shown) > 8 else '')


def extended(weights: Weights, vocab_file: Path) -> tuple[Weights, list[str]]:
    """The weights with a row for each token of another vocabulary.

    A new token (in place of an `[unused…]` one, or after the last) starts at the mean of the rows
    of its word's former pieces, in the word table and in the output bias.

    Args:
      weights: with or without their vocabulary.
      vocab_file: of the target model.

    Returns:
      (the weights, notes). They are `weights` themselves if no token is new, or if they have no
      vocabulary to compare with.

    Raises:
      InputError: a known token has another id in `vocab_file`.
    """
    if weights.vocab_file is None:
        return weights, []
    before = load_tokenizer(weights.vocab_file, weights.lowercase)
    old = before.vocab.tokens
    tokens = load_tokenizer(vocab_file, weights.lowercase).vocab.tokens
    new = []
    for i, token in enumerate(tokens):
        if i < len(old) and token == old[i]:
            continue
        if i < len(old) and not is_unused(old[i]):
            raise InputError(
                f'{vocab_file}: line {i + 1} is {token!r}, and {old[i]!r} in {weights.vocab_file}, '
                f'the vocabulary of {weights.source}: leave config.data.vocab_file empty to take '
                'that one (config.data.add_tokens adds words to it)'
            )
        if not is_unused(token):
            new.append(i)
    if not new:
        return weights, []
    pieces = {i: before.encode(tokens[i]) or [before.vocab.unk_id] for i in new}
    params, num_rows = dict(weights.params), max(len(tokens), weights.model['vocab_size'])
    for name in VOCABULARY_ROWS:
        if name in params:
            x = params[name]
            params[name] = rows = np.pad(x, [(0, num_rows - len(x))] + [(0, 0)] * (x.ndim - 1))
            for i, ids in pieces.items():
                rows[i] = x[ids].mean(0)
    notes = [f'{len(new)} tokens that the weights do not know start at the mean of the rows of '
             'their old pieces']
    if unknown := [tokens[i] for i, ids in pieces.items() if ids == [before.vocab.unk_id]]:
        notes.append(f'of them {len(unknown)} had no pieces and start at the row of [UNK], such '
                     f'as {unknown[0]}')
    model = weights.model | {'vocab_size': num_rows}
    return dataclasses.replace(weights, params=params, model=model, vocab_file=vocab_file), notes
