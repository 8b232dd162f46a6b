"""Warm start: initialises parameters from other weights where they fit."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from bert_jax.config.adapters import AdapterOptions
from bert_jax.config.bert_config import OPTIONS
from bert_jax.heads import part_of
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.vocab import is_unused
from bert_jax.weights.adapters import first_magnitudes, is_of_adapter
from bert_jax.weights.parameters import (
    ENCODER,
    VOCABULARY_ROWS,
    Weights,
    from_tree,
    tensors,
    to_tree,
    with_rows,
)
from bert_jax.weights.vocabulary import check_order

_WORDS = 'bert/embeddings/word_embeddings'
_POSITIONS = 'bert/embeddings/position_embeddings'
# Options that change what the same parameters compute.
_COMPUTING_OPTIONS = tuple(option.name for option in OPTIONS if option.effect == 'computes')
_MOST_LISTED = 8  # names that a line of the summary lists


def warm_start(
    init_weights: Weights,
    params: Any,
    model_config: ModelConfig,
    *,
    head: str,
    labels: Sequence[str],
    vocab_file: Path | None,
    whole: bool = False,
) -> Any:
    """Replaces fresh parameters with initial weights where they fit, and prints a summary.

    Args:
      init_weights: from `load_weights`.
      params: fresh parameters on the mesh; with `whole`, their shapes and shardings will do.
      model_config: of the target.
      head: of the target, as in `Weights.head`.
      labels: of the head, by id.
      vocab_file: the target's vocabulary; words that `init_weights` lack start at the mean of their
        old pieces.
      whole: whether all parameters must fit, for use without training.

    Returns:
      The parameters, sharded like `params`.

    Raises:
      InputError: the weights are of another model, the vocabularies differ in order, or, with
        `whole`, a parameter would start fresh.
    """
    notes: list[str] = []
    init_weights, notes_on_adapter = _with_adapter_of(init_weights, model_config.adapter)
    if vocab_file is not None:
        init_weights, notes = extended(init_weights, vocab_file)
    unpadded = jax.eval_shape(lambda tree: from_tree(tree, model_config.vocab_size), params)
    shapes = {name: x.shape for name, x in unpadded.items()}
    # Not asdict, which would copy the layout: devices cannot be copied.
    placement = place(
        init_weights, shapes, head=head, labels=labels, model=vars(model_config), whole=whole)
    if whole:
        _check_whole(placement, init_weights, notes, labels)
    for line in (*placement.report(init_weights), *notes_on_adapter, *notes):
        hosts.say(line)
    model = {option.name: getattr(model_config, option.name) for option in OPTIONS}
    lengths = first_magnitudes(placement.params, model_config.adapter, tensors(model))
    tree = to_tree(placement.params | lengths, model_config.padded_vocab_size)
    arrays = flatten_dict(tree, sep='/')

    def choose(path: Any, fresh: jax.Array) -> jax.Array:
        array = arrays.get('/'.join(key.key for key in path))
        if array is None:
            return fresh
        # Each process fills its own shards.
        return jax.make_array_from_callback(fresh.shape, fresh.sharding, array.__getitem__)

    return jax.tree_util.tree_map_with_path(choose, params)


def _with_adapter_of(weights: Weights, target: AdapterOptions) -> tuple[Weights, list[str]]:
    """(Weights whose adapter, if they have one, is among the parameters or in the kernels; notes).

    Args:
      weights: to start from.
      target: the adapter of the target, which goes on with one that is the same but for dropout.
    """
    adapter = weights.adapter
    if adapter is None:
        return weights, []
    if adapter.options.has_parameters_of(target):
        params = {**weights.params, **adapter.params}
        return dataclasses.replace(weights, params=params, adapter=None), []
    return weights.merged, [f'note: the adapter of {weights.source} is in the weights now']


def _check_whole(
    placement: 'Placement', init_weights: Weights, notes: Sequence[str], labels: Sequence[str]
) -> None:
    """Raises InputError if not all parameters come unchanged from the weights.

    Args:
      placement: of the weights.
      init_weights: the weights.
      notes: about tokens that the weights lack.
      labels: of the target's head.
    """
    if not (placement.fresh or placement.repeats_positions or notes):
        return
    lines = [*placement.report(init_weights)[1:], *notes]
    fresh = [line for line in lines if 'fresh' in line or 'repeated' in line]
    remedy = ''
    if any(label.startswith('LABEL_') for label in init_weights.labels):
        remedy = (". If its LABEL_0, LABEL_1, ... are this task's labels "
                  f"({', '.join(labels[:5])}) in this order, add --labels_by_position")
    raise InputError(f'{init_weights.source} does not have all parameters of this model, which is '
                     f"used without training: {'; '.join(fresh or notes)}{remedy}")


class Placement(NamedTuple):
    """The result of `place`.

    Attributes:
      params: arrays for the target by our names.
      fresh: names of the target's parameters that start fresh.
      unused: names of weights that the target lacks, and of tensors unknown to this project.
      notes: further remarks, a line each.
      repeats_positions: whether the target's position table is longer and repeats that of the
        weights.
    """

    params: dict[str, np.ndarray]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]
    repeats_positions: bool = False

    def report(self, weights: Weights) -> list[str]:
        """A few lines for the user."""
        num_taken = len(self.params)
        num_all = num_taken + len(self.fresh)
        lines = [f'{num_taken} of {num_all} parameters from {weights.source}']
        if self.fresh:
            lines.append(f'starts fresh: {_listed(self.fresh)}')
        if self.unused:
            lines.append(f'left unused: {_listed(self.unused)}')
        return lines + [f'note: {note}' for note in self.notes]


def _listed(names: Sequence[str]) -> str:
    """Names of parameters for a message; all of a part are one, `PART/...`, or 'the adapter'."""
    distinct: dict[str, None] = {}
    for name in names:
        part = part_of(name)
        if is_of_adapter(name):
            distinct['the adapter'] = None
        else:
            distinct[f'{part.prefix}...' if part else name] = None
    listed = ', '.join(list(distinct)[:_MOST_LISTED])
    if len(distinct) > _MOST_LISTED:
        listed += f', and {len(distinct) - _MOST_LISTED} more'
    return listed


def place(
    weights: Weights, shapes: Mapping[str, tuple[int, ...]], *, head: str = '',
    labels: Sequence[str] = (), model: Mapping[str, Any] | None = None, whole: bool = False,
) -> Placement:
    """Matches weights to the parameters of a target model.

    Embeddings and encoder layers must have the target's shapes, except that the position table may
    be longer, and is cut, or shorter, and is repeated. Pooler and heads may start fresh; a
    classifier does if it has another number of outputs, other labels or another head. If its labels
    are the same in another order, its outputs are reordered; if they are only numbers (LABEL_0,
    LABEL_1, ...), its outputs get the names here in their order. What stands between the encoder
    and a head's last layer is taken where transformers has one name for both: a classifier of
    ModernBERT starts with the dense layer of the masked LM.

    Args:
      weights: the source.
      shapes: of the target's parameters by our names, with an unpadded vocabulary.
      head: of the target, as in `Weights.head`; '' for any.
      labels: of the target, by id.
      model: fields of the target's configuration; those that change what the parameters compute
        are compared and noted.
      whole: whether the weights are used without training: labels that are only numbers are then
        not given the target's names.

    Raises:
      InputError: the weights are not of this model.
    """
    shared = weights.shared_layers(weights, shapes, head)
    source = _source_params(weights, head, shared)
    notes = _different_options(weights.model, model) if model else []
    notes += _shared_notes(shared)
    if 'classifier/bias' in source and 'classifier/bias' in shapes:
        notes += _place_classifier(
            source, weights, shapes['classifier/bias'][0], head, labels, whole)
    matched: dict[str, np.ndarray] = {}
    repeats_positions = False
    for name, shape in shapes.items():
        x = source.get(name)
        if x is not None and x.shape == tuple(shape):
            matched[name] = x
        elif name == _POSITIONS and x is not None and x.shape[1:] == tuple(shape)[1:]:
            matched[name] = _resized(x, shape[0], weights.model['first_position'])
            repeats_positions = len(x) < shape[0]
            how = 'they are repeated' if repeats_positions else 'the first of them are taken'
            notes.append(f'position_embeddings: {len(x)} rows there, {shape[0]} here; {how}')
        elif name.startswith(ENCODER) and not is_of_adapter(name):
            raise InputError(_misfit(name, x, tuple(shape), weights))
    _check_no_more_layers(weights, source, shapes)
    taken = {shared.get(name) or name for name in matched}
    unused = [name for name in weights.params if name not in taken]
    return Placement(
        params=matched,
        fresh=tuple(name for name in shapes if name not in matched),
        unused=(*unused, *weights.unused),
        notes=tuple(notes),
        repeats_positions=repeats_positions)


def _source_params(
    weights: Weights, head: str, shared: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """The weights' parameters by the names that the target may have for them.

    Args:
      weights: the source.
      head: of the target.
      shared: see `Weights.shared_layers`: for a name of the target the source's name of the same
        layer, or '' if the source's parameter of this name means something else.
    """
    source = dict(weights.params)
    if head != weights.head:
        # A parameter that only a config file's own head knows may mean something else elsewhere.
        listed = {tensor.name for tensor in tensors(weights.model)}
        source = {
            name: x for name, x in source.items() if name in listed or is_of_adapter(name)}
    for name, other in shared.items():
        if other:
            source[name] = weights.params[other]
        else:
            source.pop(name, None)
    return source


def _shared_notes(shared: Mapping[str, str]) -> list[str]:
    """A note for each part that starts with the layers of another part."""
    notes: dict[str, None] = {}
    for name, other in shared.items():
        here = part_of(name)
        there = part_of(other)
        if here and there:
            notes[f'{here.prefix}... starts as {there.prefix}... there: transformers has one '
                  'layer for both'] = None
    return list(notes)


def _resized(table: np.ndarray, num_rows: int, first: int) -> np.ndarray:
    """A position table, cut or repeated from its row `first` on, that of the first position.

    If it is repeated (Longformer, Beltagy et al., 2020, section 5), neighbouring positions stay
    neighbours.
    """
    positions = np.resize(table[first:], (num_rows - first, table.shape[1]))
    return np.concatenate([table[:first], positions])


def _different_options(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Notes on options by which the same parameters compute something else."""
    notes = []
    for name in _COMPUTING_OPTIONS:
        if here[name] != there[name]:
            notes.append(f'{name} is {there[name]} there and {here[name]} here')
    return notes


def _check_no_more_layers(
    weights: Weights, source: Mapping[str, Any], shapes: Mapping[str, Any]
) -> None:
    """Raises InputError if the weights have layers that the target lacks."""
    more = source.keys() - shapes.keys()
    if any(name.startswith('bert/encoder/') for name in more):
        num_layers = weights.model['num_layers']
        raise InputError(f'{weights.source} has {num_layers} layers, the config fewer: set '
                         f'--config.model.num_layers={num_layers}')


def _place_classifier(
    source: dict[str, np.ndarray],
    weights: Weights,
    num_here: int,
    head: str,
    labels: Sequence[str],
    whole: bool,
) -> list[str]:
    """Puts the outputs of a classifier in the target's order, or removes it; returns notes.

    Args:
      source: the parameters, which are changed.
      weights: of which these are.
      num_here: outputs of the target's classifier.
      head, labels: of the target, as for `place`.
      whole: as for `place`.
    """
    if head == weights.head and not whole and _only_gives_names(weights, num_here, labels):
        return [f"classifier: LABEL_0, LABEL_1, ... there are {', '.join(labels)} here"]
    why_fresh = _why_classifier_is_fresh(weights, num_here, head, labels)
    if why_fresh:
        del source['classifier/kernel'], source['classifier/bias']
        return [f'classifier: {why_fresh}; it starts fresh']
    there = list(weights.labels)
    if not labels or not there or list(labels) == there:
        return []
    order = [there.index(label) for label in labels]
    for name in ('classifier/kernel', 'classifier/bias'):
        source[name] = source[name][..., order]
    return [f"classifier: labels put in the order here, {', '.join(labels)}"]


def _only_gives_names(weights: Weights, num_here: int, labels: Sequence[str]) -> bool:
    """Whether labels name the outputs of weights that only count theirs."""
    numbered = [f'LABEL_{i}' for i in range(num_here)]
    return list(weights.labels) == numbered and len(labels) == num_here and list(labels) != numbered


def _why_classifier_is_fresh(
    weights: Weights, num_here: int, head: str, labels: Sequence[str]
) -> str:
    """How a classifier differs from the target's other than by the order of labels; else ''."""
    if head and head != weights.head:
        return f'it is of {weights.head} there, of {head} here'
    if weights.num_labels != num_here:
        return f'{weights.num_labels} labels there, {num_here} here'
    if labels and weights.labels and set(labels) != set(weights.labels):
        return f"labels {', '.join(weights.labels)} there, {', '.join(labels)} here"
    return ''


def _misfit(name: str, x: np.ndarray | None, shape: tuple[int, ...], weights: Weights) -> str:
    """Why a parameter of the weights does not fit, and the remedy."""
    if x is not None and name == _WORDS and x.shape[1:] == shape[1:]:
        file = weights.vocab_file or 'the vocabulary of these weights'
        remedy = f'set --config.data.vocab_file to {file}'
        if len(x) > shape[0]:
            remedy += f' (or --config.model.vocab_size={len(x)}, if it is that already)'
        return (f'vocabulary of {shape[0]} tokens, embedding of {len(x)} rows in '
                f'{weights.source}: {remedy}')
    found = 'missing' if x is None else str(list(x.shape))
    fields = ('num_layers', 'hidden_size', 'num_heads', 'intermediate_size', 'type_vocab_size')
    sizes = ' '.join(f'--config.model.{field}={weights.model[field]}' for field in fields)
    return (f'{name} is {found} in {weights.source} and '
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
    former = load_tokenizer(weights.vocab_file, weights.lowercase)
    tokens = load_tokenizer(vocab_file, weights.lowercase).vocab.tokens
    known = check_order(weights, vocab_file, tokens, 'leave config.data.vocab_file empty to take '
                        'that one (config.data.add_tokens adds words to it)')
    unknown_piece = [former.vocab.stand_in_id]
    pieces: dict[int, list[int]] = {}  # of each new token, by its id
    for i, token in enumerate(tokens):
        is_known = i < len(known) and token == known[i]
        if not is_known and not is_unused(token):
            pieces[i] = former.encode_words(['', token])[1] or unknown_piece
    if not pieces:
        return weights, []
    num_rows = max(len(tokens), weights.model['vocab_size'])
    params = dict(weights.params)
    for name in VOCABULARY_ROWS:
        if name in params:
            params[name] = _with_new_rows(params[name], num_rows, pieces)
    notes = [f'{len(pieces)} tokens that the weights do not know start at the mean of the rows of '
             'their old pieces']
    without_pieces = [tokens[i] for i, ids in pieces.items() if ids == unknown_piece]
    if without_pieces:
        notes.append(f'of them {len(without_pieces)} had no pieces and start at the row of [UNK], '
                     f'such as {without_pieces[0]}')
    model = weights.model | {'vocab_size': num_rows}
    return dataclasses.replace(weights, params=params, model=model, vocab_file=vocab_file), notes


def _with_new_rows(
    array: np.ndarray, num_rows: int, pieces: Mapping[int, Sequence[int]]
) -> np.ndarray:
    """The array with `num_rows` rows; a row in `pieces` is the mean of the old rows it lists."""
    rows = with_rows(array, num_rows)
    for i, ids in pieces.items():
        rows[i] = array[ids].mean(0)
    return rows
