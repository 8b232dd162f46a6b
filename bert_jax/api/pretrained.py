"""A model in one's own program: from published weights or a config, and back into a folder."""

import dataclasses
import functools
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import AxisType, Mesh

from bert_jax.api.modules import (
    ENCODER,
    HEAD_NAMES,
    BertModule,
    check_head_name,
    declared_params,
)
from bert_jax.api.tokenizer import Tokenizer
from bert_jax.config import size_named
from bert_jax.config.bert_config import COMPUTATION, OPTIONS, BertConfig
from bert_jax.config.choices import TEMPLATE
from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.heads import HEADS
from bert_jax.loading import read_model
from bert_jax.model.attention_check import config_on_chip
from bert_jax.predict.loaded import one_of, true_or_false
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import absolute, check_is_path
from bert_jax.runtime.forks import check_no_fork
from bert_jax.runtime.hub import check_unpublished
from bert_jax.sharding import MESH_AXES, Layout, tree_shardings
from bert_jax.text.kinds import find_lowercase, load_tokenizer
from bert_jax.weights.parameters import Weights, check_model, from_tree, to_tree
from bert_jax.weights.text_reader import TextReader
from bert_jax.weights.vocabulary import check_vocabulary
from bert_jax.weights.warm_start import Placement, place

# What weights say of how predictions are made, whatever the head is.
_OF_ALL_TASKS = ('max_seq_length', 'truncation', 'token_types')
Params = Any  # nested dicts of arrays
StrPath = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True, eq=False)
class Bert:
    """A flax module, its parameters, its tokenizer.

    `from_pretrained` and `from_config` make one. Nothing in it changes: a training loop has the
    parameters in its own state, and gives them to `save`.

    Attributes:
      module: applied as `module.apply({'params': params}, **batch)`; see `BertModule`.
      params: nested dicts of float32 arrays. The word table has rows of zeros behind the
        vocabulary's, up to a multiple of 128.
      labels: names of a classifier's outputs, by id; else empty.
      fresh: names of the parameters that were drawn at random.
      _origin: what the weights' files say beside the parameters.
    """

    module: BertModule
    params: Params = dataclasses.field(repr=False)
    labels: tuple[str, ...]
    fresh: tuple[str, ...] = dataclasses.field(repr=False)
    _origin: Weights = dataclasses.field(repr=False)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Makes arrays of texts.

        Raises:
          InputError: the model has no vocabulary.
        """
        reader = TextReader(
            self._origin, 'give vocab_file=FILE, the vocab.txt that belongs to it')
        return Tokenizer(reader.tokenizer, reader.max_length, reader.frame)

    def save(
        self, folder: StrPath, params: Params | None = None, *, overwrite: bool = False
    ) -> list[str]:
        """Writes a Hugging Face folder, which transformers and `from_pretrained` load.

        Args:
          folder: a new or empty one; or hf:ORG/NAME, a model to publish on the Hugging Face hub.
          params: the parameters to write; None: those of this object.
          overwrite: whether a model that is on the hub may be replaced.

        Returns:
          Notes on what the folder does not hold, a line each.

        Raises:
          InputError: the folder holds something, the parameters are not this model's, or the family
            cannot hold it.
        """
        check_is_path('folder', folder)
        may_replace = true_or_false('overwrite', overwrite)
        if str(folder).startswith('hf:') and not may_replace:
            check_unpublished(str(folder))
        tree = jax.device_get(self.params if params is None else params)
        _check_params(tree, self.module)
        arrays = {}
        for name, x in from_tree(tree, self.module.config.vocab_size).items():
            arrays[name] = np.asarray(x, np.float32)
        return write_huggingface(folder, dataclasses.replace(self._origin, params=arrays))

    def shardings(self, mesh: Mesh) -> Any:
        """A `NamedSharding` for each parameter, as the project's own runs split them.

        Args:
          mesh: with any of the axes `data`, `fsdp` and `tensor`, which split rows (`data` and
            `fsdp`) and the dims of layers (`tensor`); of `jax.make_mesh`, with axes of
            `jax.sharding.AxisType.Auto`.

        Raises:
          InputError: it has another axis, or one that is not Auto.
        """
        return tree_shardings(_whole_mesh(mesh), _declared_shapes(self.module))

    def on_mesh(self, mesh: Mesh) -> Self:
        """The model with its parameters on the devices of a mesh, as `shardings` says.

        Its module also tells the compiler how activations are split. Batches are to be split over
        the axes `data` and `fsdp`.

        Raises:
          InputError: as for `shardings`.
        """
        config = dataclasses.replace(self.module.config, layout=Layout(_whole_mesh(mesh)))
        return dataclasses.replace(
            self,
            module=self.module.clone(config=config),
            params=jax.device_put(self.params, self.shardings(mesh)))


def from_pretrained(
    path: StrPath, head: str | None = None, *, num_labels: int | None = None,
    labels: Sequence[str] = (), vocab_file: StrPath | None = None, dtype: str = 'float32',
    remat: str = 'none', seed: int = 0,
) -> Bert:
    """A model from weights.

    What the weights lack for the head is drawn at random, with a warning that names it.

    Args:
      path: a Hugging Face folder, hf:ORG/NAME[@REVISION] of the hub, a run directory or one of its
        `checkpoints/STEP`, or a TF1 checkpoint.
      head: one of `encoder`, `masked_lm`, `next_sentence`, `pretraining`, `replaced_tokens`,
        `classification`, `regression`, `multi_label`, `multiple_choice`, `token_classification`
        and `question_answering`. None: that of the weights.
      num_labels: of a classifier. None: those of the weights, if they have this head.
      labels: their names, by id, instead of their number.
      vocab_file: the vocabulary, if it is not beside the weights.
      dtype: of the computation, 'float32' or 'bfloat16'. Parameters and logits are float32.
      remat: 'none'; 'dots' or 'full': the backward pass computes activations again, to need less
        memory.
      seed: of what is drawn.

    Raises:
      InputError: there is no model, something is wrong with it, or an argument is invalid.
    """
    check_no_fork(path)
    if head is not None:
        check_head_name(head)
    weights, _ = read_model(path, vocab_file)
    if weights.vocab_file is not None:  # it is read when the tokenizer is used
        weights = dataclasses.replace(weights, vocab_file=absolute(weights.vocab_file))
    if HEADS[weights.head].stays_in_run:
        raise InputError(f'{weights.source} has {HEADS[weights.head].title()}, which stays in its '
                         'run: bert_jax.load uses it')
    wanted = _head_of(weights) if head is None else head
    named = _labels(wanted, num_labels, labels, weights)
    pooled = wanted != ENCODER or weights.has('bert/pooler')
    module = _module(BertConfig(**weights.model), wanted, named, dtype, remat, pooled)
    return _initialised(module, weights, named, seed)


def from_config(
    config: str | BertConfig, head: str = 'pretraining', *, num_labels: int | None = None,
    labels: Sequence[str] = (), vocab_file: StrPath | None = None, vocab_size: int | None = None,
    dtype: str = 'float32', remat: str = 'none', seed: int = 0,
) -> Bert:
    """A model with new weights.

    Args:
      config: its options; or the name of a size, such as 'tiny', 'base' or 'L-8_H-512_A-8', of
        BERT with the paper's options.
      head, num_labels, labels, dtype, remat: as for `from_pretrained`.
      vocab_file: the vocabulary, for the tokenizer and the size of the word table.
      vocab_size: the size of the word table, of a named size without `vocab_file`.
      seed: the weights follow from it.

    Raises:
      InputError: an argument is invalid.
    """
    check_no_fork(f'config={config!r:.60}')
    check_head_name(head)
    lowercase = True
    if vocab_file is not None:
        check_is_path('vocab_file', vocab_file)
        lowercase, _ = find_lowercase(vocab_file)
    if isinstance(config, str):
        config = _config_named(config, vocab_file, lowercase, vocab_size)
    elif vocab_size is not None:
        raise InputError(f'vocab_size={vocab_size} is for a named size: the config has its own')
    model = {option.name: getattr(config, option.name) for option in OPTIONS}
    check_model(model, 'config')
    path = None if vocab_file is None else absolute(vocab_file)
    path, lowercase = check_vocabulary(
        path, lowercase, config.vocab_size, warn=lambda line: warnings.warn(line, stacklevel=4))
    without_params = Weights(
        params={}, model=model, head='', labels=(), vocab_file=path, lowercase=lowercase,
        unused=(), source=f'new weights of seed {seed}', inference={'token_types': TEMPLATE})
    named = _labels(head, num_labels, labels, without_params)
    module = _module(config, head, named, dtype, remat, pooled=True)
    params = _fresh_params(module, seed)
    origin = dataclasses.replace(without_params, head=HEAD_NAMES[head], labels=named)
    return Bert(module, params, named, tuple(flatten_dict(params, sep='/')), origin)


def _config_named(
    size: str, vocab_file: StrPath | None, lowercase: bool, vocab_size: int | None
) -> BertConfig:
    """BERT of a named size.

    Raises:
      InputError: there is no such size, or the number of its words is not said.
    """
    num_layers, hidden_size, num_heads = size_named(size, 'config')
    if vocab_size is None:
        if vocab_file is None:
            raise InputError(f'config={size!r} does not say how many words the model has: give '
                             'vocab_file=FILE, or vocab_size=N')
        vocab_size = len(load_tokenizer(vocab_file, lowercase).vocab)
    return BertConfig(
        vocab_size=vocab_size, num_layers=num_layers, hidden_size=hidden_size, num_heads=num_heads,
        intermediate_size=4 * hidden_size)


def _head_of(weights: Weights) -> str:
    """The head that weights have, one of `HEAD_NAMES`."""
    if weights.head != 'pretraining':
        return weights.head or ENCODER
    if not weights.has('cls/seq_relationship'):
        return 'masked_lm'
    return 'pretraining' if weights.has('cls/predictions') else 'next_sentence'


def _labels(
    head: str, num_labels: int | None, labels: Sequence[str], weights: Weights
) -> tuple[str, ...]:
    """The names of a head's outputs; () if they have none.

    Args:
      head, num_labels, labels: as the user gave them.
      weights: whose labels are kept if the head is theirs and there are as many.

    Raises:
      InputError: the head has no labels and some are given, or the other way round.
    """
    given = _names_of_labels(labels)
    if not HEADS[HEAD_NAMES[head]].labelled:
        if given or num_labels is not None:
            raise InputError(f'head={head!r} has no labels: leave num_labels and labels out')
        return ()
    if given:
        is_number = isinstance(num_labels, (int, np.integer))
        are_as_many = num_labels is None or (is_number and num_labels == len(given))
        if len(set(given)) != len(given) or not are_as_many:
            raise InputError(f'labels={given!r:.100} must be different names, as many as '
                             f'num_labels={num_labels} says')
        return given
    own = weights.labels if weights.head == HEAD_NAMES[head] else ()
    if num_labels is None:
        if not own:
            raise InputError(f'head={head!r} needs num_labels=N, the number of its labels, which '
                             f'{weights.source} does not say (or labels=[...], their names)')
        return own
    _check_num_labels(head, num_labels)
    if len(own) == num_labels:
        return own
    return tuple(f'LABEL_{i}' for i in range(num_labels))


def _names_of_labels(labels: Any) -> tuple[str, ...]:
    """Labels as a user gave them; raises InputError unless they are a list of names."""
    if isinstance(labels, Iterable) and not isinstance(labels, (str, Mapping)):
        names = tuple(labels)
        if all(isinstance(name, str) for name in names):
            return names
    raise InputError(f"labels={labels!r:.100} must be a list of names, by id, such as "
                     "['negative', 'positive']")


def _check_num_labels(head: str, num_labels: Any) -> None:
    """Raises InputError unless a classifier with this head can have so many labels."""
    least = 2 if head == 'classification' else 1
    if not isinstance(num_labels, (int, np.integer)) or num_labels < least:
        raise InputError(f'num_labels={num_labels!r:.40} must be a whole number from {least} (a '
                         "single value: head='regression')")


def _module(
    config: BertConfig, head: str, labels: Sequence[str], dtype: str, remat: str, pooled: bool
) -> BertModule:
    """The module of a model.

    Raises:
      InputError: dtype or remat is unknown.
    """
    if not isinstance(dtype, str) or dtype not in ('float32', 'bfloat16'):
        raise InputError(f"dtype={dtype!r:.60} must be 'float32' or 'bfloat16', as text")
    one_of('remat', remat, COMPUTATION['remat'])
    model = {option.name: getattr(config, option.name) for option in OPTIONS}
    computed = config_on_chip(model, dtype=dtype, remat=remat)
    return BertModule(computed, head, len(labels), pooled)


def _fresh_params(module: BertModule, seed: int, names: Collection[str] = ()) -> Params:
    """Parameters drawn at random: nested dicts.

    Args:
      module: of the model.
      seed: they follow from it.
      names: only these are drawn, by the names in `Weights.params`; empty: all are.
    """
    # Made inside another module's setup or call, a module has a parent, which has no hash.
    alone = module.clone(parent=None)
    return unflatten_dict(_drawn(alone, frozenset(names), jax.random.key(seed)), sep='/')


@functools.partial(jax.jit, static_argnums=(0, 1))
def _drawn(module: BertModule, names: frozenset[str], key: jax.Array) -> dict[str, jax.Array]:
    """`_fresh_params`, by names with slashes; compiled once for models that are alike."""
    flat = flatten_dict(nn.meta.unbox(declared_params(module, key)), sep='/')
    return {name: x for name, x in flat.items() if not names or name in names}


def _declared_shapes(module: BertModule) -> Any:
    """The shapes of a module's parameters, with their declarations."""
    return jax.eval_shape(lambda: declared_params(module, jax.random.key(0)))


def _check_params(params: Params, module: BertModule) -> None:
    """Raises InputError unless these are the parameters of a module, by names and shapes."""
    if not isinstance(params, Mapping):
        raise InputError(f'params={params!r:.60} must be nested dicts of arrays, such as those of '
                         'bert.params')
    wanted = flatten_dict(nn.meta.unbox(_declared_shapes(module)), sep='/')
    given = flatten_dict(params, sep='/')
    if given.keys() != wanted.keys():
        name = min(given.keys() ^ wanted.keys())
        what = 'lack' if name in wanted else 'have'
        raise InputError(f'params {what} {name}: give those of this model alone, such as '
                         "variables['params'], or the part of a larger tree that is its own")
    for name, x in wanted.items():
        if np.shape(given[name]) != x.shape:
            raise InputError(f'params: {name} has the shape {list(np.shape(given[name]))}, and the '
                             f'model {list(x.shape)}')


def _initialised(
    module: BertModule, weights: Weights, labels: tuple[str, ...], seed: int
) -> Bert:
    """A model with the parameters of weights where they fit, and fresh ones elsewhere.

    Raises:
      InputError: the weights are of another model.
    """
    config = module.config
    shapes = jax.eval_shape(
        lambda tree: from_tree(tree, config.vocab_size), nn.meta.unbox(_declared_shapes(module)))
    head = HEAD_NAMES[module.head]
    placement = place(
        weights, {name: x.shape for name, x in shapes.items()}, head=head, labels=labels)
    params = to_tree(placement.params, config.padded_vocab_size)
    if placement.fresh:
        _warn_of_fresh(placement, weights)
        drawn = _fresh_params(module, seed, placement.fresh)
        params = unflatten_dict(
            flatten_dict(params, sep='/') | flatten_dict(drawn, sep='/'), sep='/')
    inference = dict(weights.inference)
    if head != weights.head:  # the rest is of the other task
        inference = {name: x for name, x in inference.items() if name in _OF_ALL_TASKS}
    origin = dataclasses.replace(
        weights, params={}, head=head, labels=labels, unused=(), inference=inference)
    return Bert(module, jax.device_put(params), labels, placement.fresh, origin)


def _warn_of_fresh(placement: Placement, weights: Weights) -> None:
    """Warns of parameters that start at random, because the weights have none that fit."""
    _, *lines = placement.report(weights)
    fresh = '; '.join(line for line in lines if 'fresh' in line)
    warnings.warn(f'{weights.source}: {fresh}: train the model before you use it', stacklevel=4)


def _whole_mesh(mesh: Mesh) -> Mesh:
    """The mesh with all of `MESH_AXES`; an axis that it lacks is added, with one device.

    Raises:
      InputError: it has an axis of another name or type.
    """
    for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True):
        if axis not in MESH_AXES:
            raise InputError(f'the mesh has an axis {axis!r}: name its axes by what they split, '
                             f"{', '.join(MESH_AXES)}")
        if kind != AxisType.Auto:
            raise InputError(f'the axis {axis!r} of the mesh is {kind.name}: make it with '
                             'jax.make_mesh(SIZES, NAMES, axis_types=(AxisType.Auto,) * N)')
    if tuple(mesh.axis_names) == MESH_AXES:
        return mesh
    present = [axis for axis in MESH_AXES if axis in mesh.axis_names]
    devices = mesh.devices.transpose([mesh.axis_names.index(axis) for axis in present])
    sizes = [mesh.shape.get(axis, 1) for axis in MESH_AXES]
    return Mesh(devices.reshape(sizes), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))
