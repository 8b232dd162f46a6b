"""Reads and writes models of other programs: Hugging Face folders, peft, Flax, TensorFlow 1.

`load_weights` also reads run directories, so that users name weights in one way everywhere.
Nothing of the model, the rows or the training loop imports this folder: the commands and the
library (`main`, `convert`, `api`) call it and hand on the `Weights`.
"""

import dataclasses
import os
import re
from collections.abc import Sequence

import numpy as np

from bert_jax.config import DECIDED
from bert_jax.foreign.families import shared_layers
from bert_jax.foreign.huggingface import length_limit, read_huggingface
from bert_jax.foreign.peft import base_of, is_peft, read_peft
from bert_jax.foreign.tf1 import read_tf1
from bert_jax.predict.sentences import Sentences, read_sentences
from bert_jax.run.layout import is_step
from bert_jax.run.model import read_run
from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import Path, as_path, children, exists, near_folder, unpacked
from bert_jax.runtime.hub import model_folder
from bert_jax.text.settings import SETTINGS_FILE
from bert_jax.weights.inference_settings import without_vectors
from bert_jax.weights.parameters import ENCODER, Weights

# What the files of a model look like, for messages about a path that holds none.
_LOOKS = (
    'a run directory holds config.json and checkpoints/, a Hugging Face folder config.json and '
    'model.safetensors (or flax_model.msgpack), a TF1 checkpoint bert_model.ckpt.index, '
    'bert_model.ckpt.data-* and bert_config.json (name the folder, or the prefix '
    'FOLDER/bert_model.ckpt)')
_ADAPTER_LOOKS = (
    'it is a folder of peft, with adapter_config.json and adapter_model.safetensors, or a run that '
    'trained an adapter or the head alone; the files of the model hold no adapters')


def load_weights(
    named: str | os.PathLike[str], *, any_head: bool = False, own_head: bool = False,
    keep_adapter: bool = False,
) -> Weights:
    """Reads the model at a path, local or in a bucket.

    Args:
      named: a run directory of this project, or one of its `checkpoints/STEP`; a Hugging Face
        folder or `hf:ORG/NAME[/FOLDER][@REVISION]` of the hub; a folder of sentence-transformers,
        whose pooling and prompts are then in `Weights.inference`; a folder of peft with an adapter,
        which names the model that it is added to; a TF1 checkpoint's prefix, or a folder that holds
        `bert_model.ckpt.index`; or a .zip of such a folder.
      any_head: whether to accept heads that stay in their run (`parameters.check_head`): for use of
        the model as it is.
      own_head: of a run with a head that only its config file defines, whether to read all
        parameters. `Weights.head` is then the name of that head, which need not be in
        `heads.HEADS`. Otherwise such a run is read as the head of that name in `HEADS`, or else as
        its encoder alone.
      keep_adapter: whether an adapter stays beside the parameters (`Weights.adapter`); otherwise it
        is merged into them.

    Returns:
      The weights, float32, under this project's names.

    Raises:
      InputError: there is no model at the path, or a file of it is missing, damaged or
        contradictory.
    """
    weights = _read(named, any_head=any_head, own_head=own_head)
    if not keep_adapter:
        weights = weights.merged
    return dataclasses.replace(weights, shared_layers=shared_layers)


def with_adapter(
    base: Weights, folder: str | os.PathLike[str], *, keep_adapter: bool = False
) -> Weights:
    """A model with what was trained on top of it: an adapter, a head, or both.

    Parameters that equal those of `base` are its arrays, not copies.

    Args:
      base: the model that the adapter or head was trained on.
      folder: a folder of peft, or `hf:ORG/NAME[/FOLDER][@REVISION]` of the hub; or one of
        `base.tasks`; or a run of this project, or any other model, whose encoder is that of `base`
        except for an adapter.
      keep_adapter: as for `load_weights`.

    Raises:
      InputError: the folder holds nothing that can be read, or it was trained on another model.
    """
    named = os.fspath(folder)
    if named in base.tasks:
        return dataclasses.replace(
            base, params=base.tasks[named](), tasks={}, source=f'{base.source}, {named}')
    if base.tasks and not as_path(named).exists() and not named.startswith('hf:'):
        raise InputError(f'{base.source} has no adapter {named!r}: it has '
                         f'{", ".join(base.tasks)}')
    path = as_path(model_folder(folder))
    if not path.exists() and _tf1_prefix(path, ()) is None:
        raise InputError(f'adapter {path} does not exist: '
                         f'{near_folder(path) or _ADAPTER_LOOKS}{_on_hub(named)}')
    if is_peft([child.name for child in children(path)]):
        weights = read_peft(path, base)
    else:
        weights = _trained_on(base.merged, _read(folder, any_head=True, own_head=False))
    if not keep_adapter:
        weights = weights.merged
    return dataclasses.replace(weights, shared_layers=shared_layers)


def _trained_on(base: Weights, trained: Weights) -> Weights:
    """`trained`, with the vocabulary of its base, and the base's own arrays where they are equal.

    Args:
      base: the model that `trained` started from; it has no adapter.
      trained: a model that differs from its base in an adapter, which is beside its parameters, or
        in its head.

    Raises:
      InputError: it was trained on another model, or more of it than an adapter and its head.
    """
    biases_may_differ = False
    if trained.adapter is not None:
        biases_may_differ = trained.adapter.options.kind == 'bitfit'
    differing = [f'model.{option.name}' for option in DECIDED
                 if trained.model[option.name] != base.model[option.name]]
    params = dict(trained.params)
    for name, x in base.params.items():
        if name in params and np.array_equal(params[name], x):
            params[name] = x
        elif name.startswith(ENCODER) and not (biases_may_differ and name.endswith('/bias')):
            differing.append(name)
    if differing:
        raise InputError(
            f'{trained.source}: {differing[0]} is not that of {base.source}: --adapter takes what '
            'was trained beside that model (config.adapter, or config.optimizer.frozen=bert/ for a '
            'head alone); a model of its own is named with --model')
    with_vocabulary = trained if base.vocab_file is None else base
    return dataclasses.replace(
        trained, params=params, vocab_file=with_vocabulary.vocab_file,
        lowercase=with_vocabulary.lowercase)


def check_is_there(named: str | os.PathLike[str]) -> None:
    """Raises InputError if there is nothing at the path of a model; reads no weights."""
    path = as_path(model_folder(named))
    is_there = path.exists() or children(path) or _tf1_prefix(path, ()) is not None
    if not is_there:
        raise InputError(f'{path} does not exist: '
                         f'{near_folder(path) or _LOOKS}{_on_hub(os.fspath(named))}')


def _read(named: str | os.PathLike[str], *, any_head: bool, own_head: bool) -> Weights:
    """The model at a path; see `load_weights`."""
    path = as_path(model_folder(named))
    if path.suffix.lower() == '.zip' and path.exists() and not path.is_dir():
        path = unpacked(path)
    names = [child.name for child in children(path)]
    if is_step(path) or 'checkpoints' in names:
        return read_run(path, any_head=any_head, own_head=own_head)
    if 'modules.json' in names:
        sentences = read_sentences(path)
        weights = _read_encoder(sentences.encoder)
        # The files of sentence-transformers alone say how vectors are made: what the encoder's own
        # config or an adapter's base says may be older.
        inference = {**without_vectors(weights.inference), **sentences.inference()}
        return _with_activation(dataclasses.replace(weights, inference=inference), sentences)
    if is_peft(names):
        return read_peft(path, _base(path))
    if _is_huggingface(names):
        return _with_activation(read_huggingface(path), read_sentences(path))
    prefix = _tf1_prefix(path, names)
    if prefix is not None:
        return read_tf1(prefix)
    check_is_there(named)
    raise InputError(f'{path} holds no model: {_LOOKS}')


def _with_activation(weights: Weights, sentences: Sentences) -> Weights:
    """The model with the activation that its files put behind a cross-encoder's output, if any.

    Args:
      weights: the model.
      sentences: what the files of sentence-transformers in its folder say.
    """
    if weights.head == 'regression' and (activation := sentences.activation()):
        inference = {**weights.inference, 'activation': activation}
        return dataclasses.replace(weights, inference=inference)
    if weights.head == 'classification':
        named = sentences.named_activation()
        if named.rpartition('.')[2] not in ('', 'Identity', 'Softmax'):
            tell_once(f'note: {sentences.encoder}: the activation {named} is not applied: several '
                      'outputs are probabilities of labels here')
    return weights


def _read_encoder(folder: Path) -> Weights:
    """The encoder in the folder of sentence-transformers' first module, which may be of peft."""
    if not is_peft([child.name for child in children(folder)]):
        return read_huggingface(folder)
    weights = read_peft(folder, _base(folder))
    if not exists(folder / SETTINGS_FILE):
        return weights
    inference = {**weights.inference, 'max_seq_length': length_limit(folder, weights.model)}
    return dataclasses.replace(weights, inference=inference)


def _base(adapter: Path) -> Weights:
    """The model that the adapter in a folder is added to.

    Raises:
      InputError: there is none, or it is an adapter itself.
    """
    named = base_of(adapter)
    if is_peft([child.name for child in children(as_path(model_folder(named)))]):
        raise InputError(f'{adapter} is added to {named}, which is an adapter itself: merge that '
                         'into its model first')
    return load_weights(named)


def _is_huggingface(names: Sequence[str]) -> bool:
    """Whether a folder with these files is a Hugging Face folder."""
    if any('.safetensors' in name for name in names):
        return True
    if 'bert_model.ckpt.index' in names:
        return False
    return 'config.json' in names or any(name.endswith(('.bin', '.msgpack')) for name in names)


def _tf1_prefix(path: Path, names: Sequence[str]) -> Path | None:
    """The prefix of a TF1 checkpoint's files; None if there is none.

    Args:
      path: the prefix, one of the files, or their folder.
      names: of the files in `path`, if it is a folder.

    Raises:
      InputError: the folder holds checkpoints of other names.
    """
    if 'bert_model.ckpt.index' in names:
        path = path / 'bert_model.ckpt'
    else:
        others = [name for name in names if name.endswith('.index')]
        if others:
            example = path / others[0].removesuffix('.index')
            raise InputError(f'{path} holds TF1 checkpoints, none of them bert_model.ckpt: name '
                             f'one by its prefix, such as {example}')
    if path.is_dir():
        return None
    prefix = path.with_name(re.sub(r'\.(index|meta|data-[0-9]+-of-[0-9]+)$', '', path.name))
    parts = (f'{prefix.name}.index', f'{prefix.name}.data-')
    if any(child.name.startswith(parts) for child in children(prefix.parent)):
        return prefix
    return None


def _on_hub(named: str) -> str:
    """The end of a message: how to name a model of the hub, if this could be meant; else ''."""
    hub = re.fullmatch(r'([\w.-]+/)?[\w.-]+', named)
    if hub is None:
        return ''
    organisation = '' if hub[1] else 'ORG/'
    return f'; of the Hugging Face hub: hf:{organisation}{named}'
