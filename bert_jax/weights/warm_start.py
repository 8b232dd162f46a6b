"""Warm start: initialises parameters from other weights where they fit."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
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
from bert_jax.weights.formats import VOCABULARY_ROWS, Weights, check_order, from_tree, to_tree

_WORDS = 'bert/embeddings/word_embeddings'
_POSITIONS = 'bert/embeddings/position_embeddings'
_NUMERICS = tuple(option.name for option in OPTIONS if option.role == 'computes')


def warm_start(
    published: Weights, params: Any, bert: ModelConfig, *, head: str, labels: Sequence[str],
    vocab_file: Path | None, whole: bool = False,
) -> Any:
    """Replaces fresh parameters with published ones where they fit, and prints a summary.

    Args:
      published: from `load_weights`.
      params: fresh parameters on the mesh.
      bert: the target model.
      head: of the target, as in `Weights.head`.
      labels: of the head, by id.
      vocab_file: the target's vocabulary; words that the published one lacks start at the mean of
        their old pieces.
      whole: whether all parameters must fit, for use without training.

    Returns:
      The parameters, sharded like `params`.

    Raises:
      InputError: the weights are of another model, the vocabularies differ in order, or, with
        `whole`, a parameter would start fresh.
    """
    notes: list[str] = []
    if vocab_file is not None:
        published, notes = extended(published, vocab_file)
    shapes = {name: x.shape for name, x in jax.eval_shape(
        lambda tree: from_tree(tree, bert.vocab_size), params).items()}
    # Not asdict, which would copy the layout: devices cannot be copied.
    placement = place(published, shapes, head=head, labels=labels, model=vars(bert))
    lines = [*placement.report(published), *notes]
    longer = any(note.endswith('they are repeated') for note in placement.notes)
    if whole and (placement.fresh or longer or notes):
        fresh = [line for line in lines[1:] if 'fresh' in line or 'repeated' in line]
        remedy = (". If its LABEL_0, LABEL_1, ... are this task's labels "
                  f"({', '.join(labels[:5])}) in this order, add --labels_by_position"
                  if any(label.startswith('LABEL_') for label in published.labels) else '')
        raise InputError(f'{published.source} does not have all parameters of this model, which is '
                         f"used without training: {'; '.join(fresh or notes)}{remedy}")
    for line in lines:
        hosts.say(line)
    arrays = flatten_dict(to_tree(placement.params, bert.padded_vocab_size), sep='/')

    def choose(path: Any, fresh: jax.Array) -> jax.Array:
        array = arrays.get('/'.join(key.key for key in path))
        # Each process fills its own shards.
        return fresh if array is None else jax.make_array_from_callback(
            fresh.shape, fresh.sharding, array.__getitem__)

    return jax.tree_util.tree_map_with_path(choose, params)


class Placement(NamedTuple):
    """The result of `place`.

    Attributes:
      params: arrays for the target by our names.
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
        num = len(self.params)
        lines = [f'{num} of {num + len(self.fresh)} parameters from {weights.source}']
        for title, names in (('starts fresh', self.fresh), ('left unused', self.unused)):
            # All parameters of a part of a head are one entry, `HEAD/...`.
            parts = list(dict.fromkeys(
                f'{part.prefix}...' if (part := part_of(name)) else name for name in names))
            more = f', and {len(parts) - 8} more' if len(parts) > 8 else ''
            lines += [f"{title}: {', '.join(parts[:8])}{more}"] if parts else []
        return lines + [f'note: {note}' for note in self.notes]


def place(
    weights: Weights, shapes: Mapping[str, tuple[int, ...]], *, head: str = '',
    labels: Sequence[str] = (), model: Mapping[str, Any] | None = None,
) -> Placement:
    """Matches weights to the parameters of a target model.

    Embeddings and encoder layers must have the target's shapes, except that the position table may
    be longer, and is cut, or shorter, and is repeated. Pooler and heads may start fresh; a
    classifier does if it has another number of outputs, other labels or another head. If its labels
    are the same in another order, its outputs are reordered.

    Args:
      weights: the source.
      shapes: of the target's parameters by our names, with an unpadded vocabulary.
      head: of the target, as in `Weights.head`; '' for any.
      labels: of the target, by id.
      model: fields of the target's configuration; those that change what the parameters compute
        are compared and noted.

    Raises:
      InputError: the weights are not of this model.
    """
    notes = [
        f'{field} is {weights.model[field]} there and {model[field]} here'
        for field in _NUMERICS if model and model[field] != weights.model[field]]
    source = dict(weights.params)
    if 'classifier/bias' in source and 'classifier/bias' in shapes:
        order, note = _classifier(weights, shapes['classifier/bias'][0], head, labels)
        notes += [note] if note else []
        for name in ('classifier/kernel', 'classifier/bias'):
            if order is None:
                del source[name]
            elif note:
                source[name] = source[name][..., order]
    matched: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        x = source.get(name)
        if x is not None and x.shape == tuple(shape):
            matched[name] = x
        elif name == _POSITIONS and x is not None and x.shape[1:] == tuple(shape)[1:]:
            # A short table is repeated (Longformer, Beltagy et al., 2020, section 5): neighbouring
            # positions stay neighbours.
            matched[name] = np.resize(x, shape)
            rest = 'they are repeated' if len(x) < shape[0] else 'the first of them are taken'
            notes.append(f'position_embeddings: {len(x)} rows there, {shape[0]} here; {rest}')
        elif name.startswith(('bert/embeddings/', 'bert/encoder/')):
            raise InputError(_misfit(name, x, tuple(shape), weights))
    layers = {name for name in source if name.startswith('bert/encoder/')} - set(shapes)
    if layers:
        num = weights.model['num_layers']
        raise InputError(f'{weights.source} has {num} layers, the config fewer: set '
                         f'--config.model.num_layers={num}')
    return Placement(
        matched, tuple(name for name in shapes if name not in matched),
        tuple(name for name in weights.params if name not in matched) + weights.unused,
        tuple(notes))


def _classifier(
    weights: Weights, num_here: int, head: str, labels: Sequence[str]
) -> tuple[list[int] | None, str]:
    """(The classifier's outputs in the target's order, or None if it starts fresh; note or '')."""
    there, order = list(weights.labels), list(range(weights.num_labels))
    if head and head != weights.head:
        note = f'it is of {weights.head} there, of {head} here'
    elif len(order) != num_here:
        note = f'{len(order)} labels there, {num_here} here'
    elif not labels or not there or list(labels) == there:
        return order, ''
    elif set(labels) == set(there):
        return [there.index(label) for label in labels], (
            f"classifier: labels put in the order here, {', '.join(labels)}")
    else:
        note = f"labels {', '.join(there)} there, {', '.join(labels)} here"
    return None, f'classifier: {note}; it starts fresh'


def _misfit(name: str, x: np.ndarray | None, shape: tuple[int, ...], weights: Weights) -> str:
    if x is not None and name == _WORDS and x.shape[1:] == shape[1:]:
        file = weights.vocab_file or 'the vocabulary of these weights'
        return (f'vocabulary of {shape[0]} tokens, embedding of {len(x)} rows in {weights.source}: '
                f'set --config.data.vocab_file to {file}'
                + (f' (or --config.model.vocab_size={len(x)}, if it is that already)'
                   if len(x) > shape[0] else ''))
    fields = ('num_layers', 'hidden_size', 'num_heads', 'intermediate_size', 'type_vocab_size')
    sizes = ' '.join(f'--config.model.{field}={weights.model[field]}' for field in fields)
    return (f'{name} is {"missing" if x is None else list(x.shape)} in {weights.source} and '
            f'{list(shape)} in the config: give it the sizes of these weights ({sizes})')


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
    tokens = load_tokenizer(vocab_file, weights.lowercase).vocab.tokens
    old = check_order(weights, vocab_file, tokens, 'leave config.data.vocab_file empty to take '
                      'that one (config.data.add_tokens adds words to it)')
    new = [i for i, token in enumerate(tokens)
           if not (i < len(old) and token == old[i]) and not is_unused(token)]
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
