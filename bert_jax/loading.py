"""Opens a model for use: `bert_jax.load`, and the weights of `bert_jax.from_pretrained`."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.config.choices import POOLS
from bert_jax.foreign import load_weights, with_adapter
from bert_jax.predict.loaded import one_of
from bert_jax.predict.model import Model
from bert_jax.predict.sentences import ACTIVATIONS, Sentences, read_sentences
from bert_jax.runtime.compilation_cache import keep_compiled
from bert_jax.runtime.files import Path, as_path, check_is_path
from bert_jax.runtime.hub import model_folder
from bert_jax.text.kinds import find_lowercase, load_tokenizer
from bert_jax.weights.parameters import Weights
from bert_jax.weights.vocabulary import check_order, check_vocabulary


def load(
    path: str | os.PathLike[str], vocab_file: str | os.PathLike[str] | None = None,
    dtype: str | None = None, adapter: str | os.PathLike[str] | None = None,
) -> Model:
    """Loads a model for inference.

    Its programs are kept on the disk, so that the next process need not compile them again: in
    ~/.cache/bert_jax/compiled, unless jax's compilation cache has a folder already
    (JAX_COMPILATION_CACHE_DIR). Everything else that the process compiles for 0.1 seconds is kept
    there, too.

    Args:
      path: a run directory, a Hugging Face or sentence-transformers folder, hf:ORG/NAME for a model
        of the Hugging Face hub, or a TF1 checkpoint.
      vocab_file: the vocabulary, if it is not beside the weights.
      dtype: of the computation, 'float32' or 'bfloat16'; default: float32 on CPUs, else bfloat16.
      adapter: a folder of peft with an adapter of this model and its head, or a run that trained
        these, or a head alone, on this model; or one of the tasks whose adapters the model's files
        hold.

    Raises:
      InputError: an argument is invalid, there is no model, or something is wrong with it.
    """
    if adapter is not None:
        (model,) = load_adapted(path, [adapter], vocab_file, dtype)
    else:
        weights, sentences = read_model(path, vocab_file)
        model = Model(weights, dtype, sentences=sentences)
    keep_programs(in_command=False)
    return model


def load_adapted(
    path: str | os.PathLike[str], adapters: Sequence[str | os.PathLike[str]],
    vocab_file: str | os.PathLike[str] | None = None, dtype: str | None = None,
) -> list[Model]:
    """A model with each of several adapters. They share an engine, and what else they can.

    Args:
      path, vocab_file, dtype: as for `load`.
      adapters: as `adapter` of `load`.

    Raises:
      InputError: as for `load`.
    """
    base, sentences = read_model(path, vocab_file)
    models: list[Model] = []
    for adapter in adapters:
        check_is_path('adapter', adapter)
        weights = with_adapter(base, adapter)
        if models:
            models.append(models[0].with_weights(weights))
        else:
            models.append(Model(weights, dtype, sentences=sentences))
    return models


def keep_programs(in_command: bool) -> None:
    """Keeps compiled programs on the disk, for the next process; see `load`.

    Args:
      in_command: as for `keep_compiled`.
    """
    folder = os.path.expanduser('~/.cache/bert_jax/compiled')
    if os.path.isabs(folder):  # else the user has no home
        keep_compiled(folder, least_seconds=0.1, in_command=in_command)


def read_model(path: str | os.PathLike[str], vocab_file: Any = None) -> tuple[Weights, Sentences]:
    """(The weights at a path, with the given vocabulary; the settings of sentence-transformers).

    Args:
      path, vocab_file: as for `load`.

    Raises:
      InputError: an argument is no path, there is no model, or something is wrong with it or with
        the vocabulary.
    """
    check_is_path('path', path)
    if vocab_file is not None:
        check_is_path('vocab_file', vocab_file)
    sentences = read_sentences(as_path(model_folder(path)))
    weights = load_weights(path, any_head=True)
    inference = weights.inference
    if inference.get('activation'):
        one_of('activation', inference['activation'], tuple(ACTIVATIONS))
    if inference.get('pool') and not sentences.modules:  # a run that was trained to make vectors
        sentences = _sentences_of(inference, sentences.encoder)
    if vocab_file is not None:
        weights = _with_vocabulary(weights, vocab_file)
    return weights, sentences


def _sentences_of(inference: Mapping[str, Any], folder: Path) -> Sentences:
    """The inverse of `Sentences.inference`, for a run with a way of pooling."""
    prompts = inference.get('prompts') or {}
    default = inference.get('default_prompt')
    return Sentences(
        folder, prompt=prompts.get(default, ''), lowercase=bool(inference.get('do_lower_case')),
        pool=one_of('pool', inference['pool'], POOLS), normalize=bool(inference.get('normalize')),
        prompts=prompts, default_prompt=default,
        similarity=inference.get('similarity') or 'cosine',
        truncate_dim=inference.get('truncate_dim'),
        include_prompt=inference.get('include_prompt', True))


def _with_vocabulary(weights: Weights, vocab_file: Any) -> Weights:
    """The weights with another vocabulary file than that beside them.

    Raises:
      InputError: it is not the vocabulary that the embedding was trained with.
    """
    lowercase, _ = find_lowercase(vocab_file)
    named, lowercase = check_vocabulary(
        as_path(vocab_file), lowercase, weights.model['vocab_size'])
    tokens = load_tokenizer(vocab_file, lowercase).vocab.tokens
    check_order(weights, vocab_file, tokens, 'leave it out to take that one')
    return dataclasses.replace(weights, vocab_file=named, lowercase=lowercase)
