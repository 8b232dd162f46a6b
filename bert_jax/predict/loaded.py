"""A model that is ready for use: what it can do, its tokenizer, its runner."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence

import jax

from bert_jax.errors import InputError
from bert_jax.files import as_path
from bert_jax.model.layers import ModelConfig
from bert_jax.predict.runner import Runner
from bert_jax.text.load import load_tokenizer
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer
from bert_jax.weights.description import Weights, check_vocabulary, looks_lowercase
from bert_jax.weights.names import to_tree

# One text, or several that go together: a pair; a beginning and its possible ends.
Text = str | Sequence[str]

_HEADS = {
    '': 'no head', 'pretraining': 'a pre-training head', 'classification': 'a classification head',
    'regression': 'a regression head', 'multiple_choice': 'a multiple-choice head',
    'token_classification': 'a token-classification head',
    'question_answering': 'a question-answering head',
}
# Command -> (heads that it works with, parts of the model that it needs, what that is called).
_NEEDS = {
    'fill-mask': (('pretraining',), ('cls/predictions',), 'a masked-LM head'),
    'score': (('pretraining',), ('cls/predictions',), 'a masked-LM head'),
    'next-sentence': (
        ('pretraining',), ('bert/pooler', 'cls/seq_relationship'), 'a next-sentence head'
    ),
    'classify': (
        ('classification', 'regression', 'multiple_choice'), ('bert/pooler', 'classifier'),
        'a classification, regression or multiple-choice head',
    ),
    'answer': (('question_answering',), ('cls/squad',), 'a question-answering head'),
    'tag': (('token_classification',), ('classifier',), 'a token-classification head'),
    'features': (tuple(_HEADS), (), ''),
    'export': (tuple(_HEADS), (), ''),
}


def with_vocabulary(weights: Weights, vocab_file: str) -> Weights:
    """Weights with another vocabulary; whether it is lower-cased is seen from its tokens.

    Raises:
      InputError: it cannot be read, or has another size than the embedding.
    """
    path = as_path(vocab_file)
    vocab = load_tokenizer(path, lowercase=True).vocab
    check_vocabulary(vocab, path, weights.model['vocab_size'])
    return dataclasses.replace(weights, vocab_file=path, lowercase=looks_lowercase(vocab))


class LoadedModel:
    """Weights on the device with their tokenizer.

    Attributes:
      weights: as they were read.
      config: of the model, with unrolled layers (in them compiling is as quick as scanned, and
        inner layers can be had).
      note: is called with remarks on the input, one line each; by default they are warnings.
    """

    def __init__(self, weights: Weights, dtype: str | None = None):
        """Takes weights as `bert_jax.weights.load` reads them.

        Args:
          weights: of any head.
          dtype: of the computation, 'float32' or 'bfloat16'; default: float32 on CPUs, else
            bfloat16.
        """
        self.weights = weights
        dtype = dtype or ('float32' if jax.default_backend() == 'cpu' else 'bfloat16')
        self.config = ModelConfig(**weights.model, dtype=dtype)
        self.note: Callable[[str], None] = lambda line: warnings.warn(line, stacklevel=2)

    @functools.cached_property
    def params(self) -> dict:
        """The parameters as the model takes them, on the host."""
        return to_tree(
            self.weights.params, padded_vocab_size=self.config.padded_vocab_size,
            scan_layers=False,
        )

    @functools.cached_property
    def runner(self) -> Runner:
        """The parameters on the device."""
        return Runner(self.params, self.config)

    @functools.cached_property
    def tokenizer(self) -> WordPieceTokenizer | SentencePieceTokenizer:
        """The tokenizer of the vocabulary that came with the weights.

        Raises:
          InputError: none came with them.
        """
        if self.weights.vocab_file is None:
            raise InputError(
                f'{self.weights.source} has no vocabulary: put the vocab.txt that belongs to it '
                'beside it, or name it with --vocab-file'
            )
        return load_tokenizer(self.weights.vocab_file, self.weights.lowercase)

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence, [CLS] and [SEP] included."""
        return self.config.max_position_embeddings

    def commands(self) -> list[str]:
        """What can be done with this model."""
        return [
            command for command, (heads, parts, _) in _NEEDS.items()
            if self.weights.head in heads and all(map(self.weights.has, parts))
        ]

    def need(self, command: str) -> None:
        """Refuses what the model has no head for, with an InputError."""
        fits = self.commands()
        if command not in fits:
            head = _HEADS[self.weights.head]
            if self.weights.head == 'pretraining':
                head = ' and '.join(
                    name for name, part in (
                        ('a masked-LM head', 'cls/predictions'),
                        ('a next-sentence head', 'cls/seq_relationship'),
                    ) if self.weights.has(part)
                )
            raise InputError(
                f'{self.weights.source} has {head}, and {command} needs {_NEEDS[command][2]}: '
                f'this model serves {", ".join(fits)}'
            )

    def encode(self, text: str, number: int, what: str = 'text') -> list[int]:
        """Ids of the pieces of a text that must have some.

        Args:
          text: any.
          number: of the text in the input, from 0, for messages.
          what: likewise.

        Raises:
          InputError: there is nothing in it.
        """
        ids = self.tokenizer.encode(text)
        if not ids:
            raise InputError(f'{what} {number + 1} is empty: every {what} needs a word or more')
        return ids
