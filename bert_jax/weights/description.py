"""A model as it lies on disk, and the checks that all readers share."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import InputError
from bert_jax.text.load import load_tokenizer
from bert_jax.text.vocab import Vocab
from bert_jax.weights.names import OPTIONAL, Format, sizes_of, tensors

# The part that holds a head's last layer.
HEAD_PARTS: Mapping[str, tuple[str, ...]] = {
    '': (),
    'pretraining': ('cls/predictions/', 'cls/seq_relationship/'),
    'classification': ('classifier/',),
    'regression': ('classifier/',),
    'multiple_choice': ('classifier/',),
    'token_classification': ('classifier/',),
    'question_answering': ('cls/squad/',),
}
LABELLED = ('classification', 'token_classification')
# What the code of google-research/bert has fixed, and others' config files may leave out.
DEFAULTS: Mapping[str, Any] = {
    'max_position_embeddings': 512, 'type_vocab_size': 2, 'layer_norm_eps': 1e-12,
    'initializer_range': 0.02, 'hidden_dropout': 0.1, 'attention_dropout': 0.1,
    'classifier_dropout': 0.1,
}
_WHOLE = ('vocab_size', 'num_layers', 'hidden_size', 'num_heads', 'intermediate_size',
          'max_position_embeddings', 'type_vocab_size')


@dataclasses.dataclass(frozen=True)
class Weights:
    """A model as it lies on disk.

    Attributes:
      params: float32 arrays by our names (`weights.names`): unrolled layers, unpadded vocabulary.
      model: fields of the model's configuration: vocab_size, num_layers, hidden_size, num_heads,
        intermediate_size, max_position_embeddings, type_vocab_size, hidden_act ('gelu_tanh' or
        'gelu_erf'), layer_norm_eps, initializer_range, hidden_dropout, attention_dropout,
        classifier_dropout.
      head: '' (encoder only), 'pretraining' (masked LM, next sentence or both, as `params` has
        them), 'classification', 'regression', 'multiple_choice', 'token_classification' or
        'question_answering'.
      labels: by id, of classification and token_classification.
      vocab_file: a vocab.txt or a SentencePiece .model; None where there is none.
      lowercase: whether text is lower-cased before WordPiece.
      unused: tensors of the files that have no place here.
      source: what was read and where, for messages.
    """

    params: dict[str, np.ndarray]
    model: dict[str, Any]
    head: str
    labels: tuple[str, ...]
    vocab_file: Path | None
    lowercase: bool
    unused: tuple[str, ...]
    source: str

    @property
    def num_labels(self) -> int:
        """Outputs of the classifier; 0 where there is none."""
        return len(self.params['classifier/bias']) if 'classifier/bias' in self.params else 0

    def has(self, part: str) -> bool:
        """Whether a part of the model is there, such as 'bert/pooler' or 'cls/predictions'."""
        return any(name.startswith(part.rstrip('/') + '/') for name in self.params)


def read_json(path: Path, wanted_for: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
      InputError: it is missing, or something else.
    """
    try:
        value = json.loads(path.read_text(encoding='utf-8'))
    except FileNotFoundError:
        raise InputError(f'{path} is missing: {wanted_for}') from None
    except (OSError, ValueError) as error:
        raise InputError(f'{path} cannot be read as JSON ({error}): {wanted_for}') from None
    if not isinstance(value, dict):
        raise InputError(f'{path} holds no JSON object: {wanted_for}')
    return value


def model_fields(
    config: Mapping[str, Any], keys: Mapping[str, str], hidden_act: str, where: Path
) -> dict[str, Any]:
    """`Weights.model` from a config file.

    Args:
      config: what the file says.
      keys: what it calls our fields.
      hidden_act: our name of its activation.
      where: the file, for messages.

    Raises:
      InputError: a field is missing or cannot be.
    """
    model: dict[str, Any] = {'hidden_act': hidden_act}
    for name, key in keys.items():
        value = config.get(key)
        if value is None:
            if name not in DEFAULTS:
                raise InputError(f'{where} does not say {key}: it is no config of a BERT')
            value = model['hidden_dropout'] if name == 'classifier_dropout' else DEFAULTS[name]
        whole = name in _WHOLE
        good = isinstance(value, int) and value > 0 if whole else isinstance(value, (int, float))
        if not good or isinstance(value, bool):
            kind = 'a whole number above 0' if whole else 'a number'
            raise InputError(f'{where}: {key}={value!r} must be {kind}')
        model[name] = value if whole else float(value)
    if model['hidden_size'] % model['num_heads']:
        raise InputError(
            f"{where}: {keys['num_heads']}={model['num_heads']} does not divide "
            f"{keys['hidden_size']}={model['hidden_size']}"
        )
    return model


def take_params(
    form: Format,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], np.ndarray],
    model: Mapping[str, Any],
    where: str,
    config_file: Path,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Our parameters out of the tensors of a file, one at a time, after all shapes are checked.

    Args:
      form: what the tensors are called.
      shapes: of all tensors in the file, by name.
      read: gives a tensor.
      model: `Weights.model`.
      where: the file, for messages.
      config_file: likewise.

    Returns:
      (`Weights.params`, names of tensors that were not taken).

    Raises:
      InputError: a tensor is missing, or its shape is not what the config says.
    """
    table = tensors(model['num_layers'])
    found = {part for part in OPTIONAL for tensor in table if tensor.optional == part
             and any(name in shapes for name in tensor.file_names(form))}
    wanted = [tensor for tensor in table if not tensor.optional or tensor.optional in found]
    _check_layers(form, shapes, model['num_layers'], where, config_file)
    classifier = next(t for t in table if t.name == 'classifier/bias').file_names(form)[0]
    sizes = sizes_of(model, shapes.get(classifier, (0,))[0])
    for tensor in wanted:
        expected = tensor.file_shape(form, sizes)
        for name in tensor.file_names(form):
            if name not in shapes:
                raise InputError(f'{where} has no tensor {name}: it is not the whole of a model')
            if tuple(shapes[name]) != expected:
                raise InputError(
                    f'{where}: {name} is {list(shapes[name])}, and by {config_file.name} it is '
                    f'{list(expected)}: put the {config_file.name} beside it that belongs to it'
                )
    params = {}
    used: set[str] = set()
    for tensor in wanted:
        names = tensor.file_names(form)
        params[tensor.name] = tensor.from_files(form, [read(name) for name in names], sizes)
        used.update(names)
    return params, tuple(sorted(set(shapes) - used))


def _check_layers(
    form: Format, shapes: Mapping[str, Any], num_layers: int, where: str, config_file: Path
) -> None:
    first = tensors(1)[5].file_names(form)[0]  # of layer 0
    before, _, after = first.partition('0')
    num_found = 0
    while f'{before}{num_found}{after}' in shapes:
        num_found += 1
    if num_found != num_layers:
        raise InputError(
            f'{where} has {num_found} layers, and by {config_file.name} there are {num_layers}: '
            f'put the {config_file.name} beside it that belongs to it'
        )


def find_head(params: Mapping[str, Any], hint: str, said_by: str) -> str:
    """`Weights.head`.

    Args:
      params: by our names.
      hint: the head that the config names, or ''.
      said_by: how the config says so, for messages.

    Raises:
      InputError: the parameters have not the head that the config names.
    """
    def has(head: str) -> bool:
        return any(name.startswith(HEAD_PARTS[head]) for name in params)

    if hint:
        if not has(hint):
            raise InputError(
                f'{said_by}, but there is no tensor of such a head: the config contradicts the '
                'weights'
            )
        if hint == 'classification' and len(params['classifier/bias']) == 1:
            return 'regression'
        return hint
    if has('question_answering'):
        return 'question_answering'
    if has('classification'):
        if not any(name.startswith('bert/pooler/') for name in params):
            return 'token_classification'
        return 'regression' if len(params['classifier/bias']) == 1 else 'classification'
    return 'pretraining' if has('pretraining') else ''


def check_labels(labels: tuple[str, ...], num_labels: int, where: Path) -> tuple[str, ...]:
    """`labels`, refused where they are not one different name for each output."""
    if len(labels) != num_labels or len(set(labels)) != num_labels:
        raise InputError(
            f'{where}: labels {list(labels)} for {num_labels} outputs of the classifier: there '
            'must be as many, each once'
        )
    return labels


def read_vocabulary(path: Path, lowercase: bool) -> Vocab:
    """A vocab.txt or a SentencePiece model; InputError where it is none."""
    return load_tokenizer(path, lowercase).vocab


def looks_lowercase(vocab: Vocab) -> bool:
    """Whether no token but the bracketed special ones has an upper-case letter."""
    return not any(
        token != token.lower() for token in vocab.tokens
        if not (token.startswith('[') and token.endswith(']'))
    )


def whole_vocabulary(weights: Weights) -> list[str]:
    """A token for each row of the embedding of weights that have a WordPiece vocabulary.

    A run may have more rows than its vocabulary has tokens; rows past them get names that occur in
    no text.
    """
    assert weights.vocab_file is not None
    tokens = list(read_vocabulary(weights.vocab_file, weights.lowercase).tokens)
    return tokens + [f'[unused row {i}]' for i in range(len(tokens), weights.model['vocab_size'])]


def check_vocabulary(vocab: Vocab, vocab_file: Path, vocab_size: int) -> None:
    """Refuses a vocabulary of another size than the embedding."""
    if len(vocab) != vocab_size:
        more = vocab_size - len(vocab)
        remedy = (
            f'add {more} lines such as [unused-1] at its end if the embedding was filled up'
            if more > 0 else 'put the vocabulary beside it that belongs to it'
        )
        raise InputError(
            f'{vocab_file} has {len(vocab)} tokens, the embedding has {vocab_size} rows: {remedy}'
        )
