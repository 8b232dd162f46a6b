"""A loaded model: the commands that it serves, its tokenizer, its engine, its pooling."""

from __future__ import annotations

import dataclasses
import functools
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.data.pairs import joined
from bert_jax.heads import HEADS
from bert_jax.heads.base import Head
from bert_jax.model.attention import settled
from bert_jax.model.flops import token_flops
from bert_jax.model.layers import ModelConfig
from bert_jax.predict.engine import Engine
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path
from bert_jax.tasks.texts import WINDOWS
from bert_jax.text import load_tokenizer
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.vocab import Vocab, is_unused
from bert_jax.text.wordpiece import WordPieceTokenizer
from bert_jax.train.sharding import Layout, make_mesh
from bert_jax.weights.formats import Weights, check_vocabulary, read_json, to_tree

POOLS = ('mean', 'cls', 'max')


def transformer_of(folder: Path) -> tuple[Path, dict[str, Any]]:
    """(the encoder's folder, `Weights.inference` with its maximum length).

    The folder itself, or the one that an old `modules.json` of sentence-transformers names.
    """
    modules = _modules(folder)
    encoder = folder / modules[0].get('path', '') if modules else folder
    settings = encoder / 'sentence_bert_config.json'
    limit = read_json(settings, '').get('max_seq_length') if settings.exists() else None
    return encoder, {'max_seq_length': limit} if isinstance(limit, int) else {}


def read_pooling(folder: Path) -> tuple[str, bool]:
    """(pool, normalize) of `modules.json`; ('mean', False) without one.

    Raises:
      InputError: it has a module that is not supported.
    """
    pool, normalize = 'mean', False
    for module in _modules(folder):
        name = str(module.get('type', '')).rpartition('.')[2]
        if name == 'Pooling':
            pool = _pool(folder / module.get('path', '') / 'config.json')
        elif name == 'Normalize':
            normalize = True
        elif name != 'Transformer':
            raise InputError(
                f'{folder / "modules.json"} has a module {name} behind the encoder, which this '
                'project does not have, so that its vectors would be others: name pool and '
                'normalize to have those of the encoder'
            )
    return pool, normalize


def _pool(config_file: Path) -> str:
    config = read_json(config_file, 'it describes how vectors are made: copy it again, or name '
                       f"pool, one of {', '.join(POOLS)}")
    modes = [name.removeprefix('pooling_mode_') for name, on in config.items()
             if name.startswith('pooling_mode_') and on is True]
    named = config.get('pooling_mode')  # of newer versions
    result = [named] if isinstance(named, str) else [
        mode.removesuffix('_tokens').removesuffix('_token') for mode in modes]
    if len(result) != 1 or result[0] not in POOLS:
        raise InputError(
            f"{config_file} pools by {' and '.join(map(str, result)) or 'nothing'}, which cannot "
            f"be computed: name pool, one of {', '.join(POOLS)}"
        )
    return result[0]


def _modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / 'modules.json'
    try:
        return json.loads(path.read_text(encoding='utf-8')) if path.exists() else []
    except (OSError, ValueError) as error:
        raise InputError(f'{path} cannot be read as JSON ({error})') from None


# Command -> (heads that serve it, parts of the model that it needs, their name for messages).
_NEEDS = {
    'fill-mask': (('pretraining',), ('cls/predictions',), 'a masked-LM head'),
    'score': (('pretraining',), ('cls/predictions',), 'a masked-LM head'),
    'next-sentence': (
        ('pretraining',), ('bert/pooler', 'cls/seq_relationship'), 'a next-sentence head'),
    'classify': (
        ('classification', 'multi_label', 'regression', 'multiple_choice'),
        ('bert/pooler', 'classifier'),
        'a classification, multi-label, regression or multiple-choice head',
    ),
    'answer': (('question_answering',), ('cls/squad',), 'a question-answering head'),
    'tag': (
        ('token_classification', 'feature_tagger'), ('classifier',), 'a token-classification head'),
    'features': (tuple(HEADS), (), ''),
    'export': ([name for name, head in HEADS.items() if head.classes], (),
               'a head that other formats have'),
}
# Not served by models of the ablations (`causal`, `bilstm`): a masked word needs context on both
# sides, and an export consists of the plain encoder and heads.
_PLAIN_ONLY = ('fill-mask', 'score', 'next-sentence', 'export')


def with_vocabulary(weights: Weights, vocab_file: str) -> Weights:
    """Weights with another vocabulary; its tokens show whether it is lower-cased.

    Raises:
      InputError: it cannot be read, or differs in size from the embedding, or in order from the
        vocabulary of the weights.
    """
    path, lowercase = check_vocabulary(as_path(vocab_file), None, weights.model['vocab_size'])
    if weights.vocab_file is not None:
        pairs = zip(*(load_tokenizer(file, lowercase).vocab.tokens
                      for file in (vocab_file, weights.vocab_file)), strict=False)
        for line, (token, expected) in enumerate(pairs, 1):
            if token != expected and not is_unused(expected):
                raise InputError(
                    f'{path}: line {line} is {token!r}, and {expected!r} in {weights.vocab_file}, '
                    f'the vocabulary of {weights.source}: leave it out to take that one'
                )
    return dataclasses.replace(weights, vocab_file=path, lowercase=lowercase)


class LoadedModel:
    """Weights on the device with their tokenizer.

    Attributes:
      weights: as read.
      config: of the model, with unrolled layers, which give access to inner layers.
      note: receives notes on the input, one line each; default: warnings.
    """

    def __init__(
        self, weights: Weights, dtype: str | None = None,
        devices: Sequence[jax.Device] | None = None, folder: Path | None = None,
    ):
        """Loads weights onto devices.

        Args:
          weights: from `bert_jax.weights`, with any head.
          dtype: of the computation, 'float32' or 'bfloat16'; default: float32 on CPUs, else
            bfloat16.
          devices: share the texts; default: all.
          folder: of the weights; a `modules.json` in it determines the pooling.
        """
        if dtype not in (None, 'float32', 'bfloat16'):
            raise InputError(f"dtype={dtype!r:.60} is unknown: 'float32' or 'bfloat16'")
        self._folder = folder
        self.weights = weights
        dtype = dtype or ('float32' if jax.default_backend() == 'cpu' else 'bfloat16')
        devices = jax.devices() if devices is None else devices
        self._mesh = make_mesh(len(devices), 1, 1, devices)
        self.config = ModelConfig(
            **weights.model, dtype=dtype, attention=settled('auto'), layout=Layout(self._mesh)
        )
        self.note: Callable[[str], None] = lambda line: warnings.warn(line, stacklevel=2)

    @functools.cached_property
    def params(self) -> dict:
        """The parameter tree of the model, on the host."""
        rows = self.config.padded_vocab_size
        return to_tree(self.weights.params, padded_vocab_size=rows, scan_layers=False)

    @functools.cached_property
    def device_params(self) -> dict:
        """The parameters, replicated on the devices."""
        return jax.device_put(self.params, NamedSharding(self._mesh, PartitionSpec()))

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine that computes."""
        return Engine(self._mesh, token_cost=functools.partial(token_flops, self.config))

    @functools.cached_property
    def objective(self) -> Head:
        """The head; each sequence is an example."""
        weights = self.weights
        try:
            return HEADS[weights.head].of_model(self.config, weights.num_labels, weights.inference)
        except InputError as error:
            raise InputError(f'{weights.source}: {error}') from None

    @functools.cached_property
    def pooling(self) -> tuple[str, bool]:
        """(pool, normalize): the default pooling of a text's vector."""
        return ('mean', False) if self._folder is None else read_pooling(self._folder)

    @functools.cached_property
    def tokenizer(self) -> WordPieceTokenizer | SentencePieceTokenizer:
        """The tokenizer of the weights' vocabulary.

        Raises:
          InputError: they have none.
        """
        if self.weights.vocab_file is None:
            raise InputError(
                f'{self.weights.source} has no vocabulary: put the vocab.txt that belongs to it '
                'beside it, or name it with --vocab-file'
            )
        return load_tokenizer(self.weights.vocab_file, self.weights.lowercase)

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the tokenizer."""
        return self.tokenizer.vocab

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence, [CLS] and [SEP] included."""
        positions = self.config.max_position_embeddings
        return min(positions, self.weights.inference.get('max_seq_length') or positions)

    def windows(self, how: str | None = None) -> str:
        """The combination of windows of long texts: the given one, else the run's."""
        how = self.weights.inference.get('windows') or 'first' if how is None else how
        if not isinstance(how, str) or how not in WINDOWS:
            raise InputError(f"windows={how!r:.60} is unknown: {', '.join(WINDOWS)}")
        return how

    def commands(self) -> list[str]:
        """The commands that this model serves."""
        plain = not (self.config.causal or self.config.bilstm)
        return [
            command for command, (heads, parts, _) in _NEEDS.items()
            if self.weights.head in heads and all(map(self.weights.has, parts))
            and (plain or command not in _PLAIN_ONLY)
        ]

    def need(self, command: str) -> None:
        """Refuses a command that the model has no head for, with an InputError."""
        fits = self.commands()
        if command not in fits:
            wanted = _NEEDS[command][2]
            for name in ('causal', 'bilstm'):
                if getattr(self.config, name) and command in _PLAIN_ONLY:
                    wanted = f'a model without {name}=True'
            raise InputError(f'{self.weights.source}: {command} needs {wanted}: this model serves '
                             f'{", ".join(fits)}')

    def encode(self, text: str) -> list[int]:
        """Token ids of a text.

        Raises:
          InputError: it has none.
        """
        ids = self.tokenizer.encode(text)
        if not ids:
            raise InputError('it is empty: a word or more is needed')
        return ids

    def encode_all(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of many texts, as `data.pairs.Encode`."""
        return joined([self.tokenizer.encode(text) for text in texts])
