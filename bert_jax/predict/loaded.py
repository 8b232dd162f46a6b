"""A loaded model: the commands that it serves, its tokenizer, pooling and stream of results."""

import dataclasses
import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from scipy.special import expit

from bert_jax.config.choices import WINDOWS
from bert_jax.data.packing import Units
from bert_jax.data.pairs import joined
from bert_jax.heads import HEADS
from bert_jax.heads.base import Head
from bert_jax.inference.engine import Engine, Function, Outputs
from bert_jax.model.attention import resolve_backend
from bert_jax.model.flops import token_flops
from bert_jax.model.layers import ModelConfig
from bert_jax.predict.sentences import Sentences, read_sentences
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.files import Path, as_path, read_json
from bert_jax.runtime.hub import model_folder
from bert_jax.sharding import Layout, make_mesh
from bert_jax.text import Tokenizer, find_lowercase, load_tokenizer
from bert_jax.text.vocab import Vocab
from bert_jax.weights import load_weights
from bert_jax.weights.formats import Weights, to_tree
from bert_jax.weights.vocabulary import check_order, check_vocabulary

Result = dict[str, Any]

_CHUNK_STEPS = 8  # a chunk of texts fills about so many steps of the engine,
_CHUNK_VALUES = 1 << 27  # and its outputs have at most about so many values
_CHARACTERS = 4  # of a token, roughly


def read_model(path: str | os.PathLike[str], vocab_file: Any = None) -> tuple[Weights, Sentences]:
    """(The weights at a path, with the given vocabulary; the settings of sentence-transformers).

    Args:
      path, vocab_file: as for `bert_jax.predict.load`.

    Raises:
      InputError: there is no model, or something is wrong with it or with the vocabulary.
    """
    sentences = read_sentences(as_path(model_folder(path)))
    weights = load_weights(sentences.encoder, any_head=True)
    inference = dict(weights.inference)
    if weights.head == 'regression' and (activation := _activation(sentences.encoder)):
        inference.setdefault('activation', activation)
    if sentences.max_length is not None:
        inference['max_seq_length'] = sentences.max_length
    weights = dataclasses.replace(weights, inference=inference)
    if vocab_file is None:
        return weights, sentences
    lowercase, _ = find_lowercase(vocab_file)
    named, lowercase = check_vocabulary(
        as_path(vocab_file), lowercase, weights.model['vocab_size'])
    check_order(weights, vocab_file, load_tokenizer(vocab_file, lowercase).vocab.tokens,
                'leave it out to take that one')
    return dataclasses.replace(weights, vocab_file=named, lowercase=lowercase), sentences


# What a cross-encoder's value goes through, by the last part of the name that its folder has.
ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    'Identity': lambda x: x, 'Sigmoid': expit, 'Tanh': np.tanh}


def _activation(folder: Path) -> str:
    """The activation that sentence-transformers' CrossEncoder names in a folder; '' without one."""
    named: Any = ''
    for file in ('config.json', 'config_sentence_transformers.json'):
        if (folder / file).exists():
            fields = read_json(folder / file, '')
            section = fields.get('sentence_transformers')
            named = named or (section if isinstance(section, dict) else {}).get('activation_fn') \
                or fields.get('sbert_ce_default_activation_function') or fields.get('activation_fn')
    name = str(named or '').rpartition('.')[2]
    if name and name not in ACTIVATIONS:
        tell(f'note: {folder}: the activation {named} is unknown here, so values are those before '
             f"it ({', '.join(ACTIVATIONS)} are applied)")
        return ''
    return name


_TASK_HEADS = ('classification', 'multi_label', 'regression', 'multiple_choice')
# Command -> (heads that serve it, a part of the model that it needs, what messages call these).
_NEEDS: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    'fill-mask': (('pretraining',), 'cls/predictions', 'a masked-LM head'),
    'score': (('pretraining',), 'cls/predictions', 'a masked-LM head'),
    'next-sentence': (('pretraining',), 'cls/seq_relationship',
                      'a next-sentence head (data.next_sentence=False trains none)'),
    'classify': (_TASK_HEADS, 'classifier',
                 'a classification, multi-label, regression or multiple-choice head'),
    'answer': (('question_answering',), 'cls/squad', 'a question-answering head'),
    'tag': (('token_classification', 'feature_tagger'), 'classifier',
            'a token-classification head'),
    'features': (tuple(HEADS), 'bert', ''),
    'export': (tuple(name for name, head in HEADS.items() if head.classes), 'bert',
               'a head that other formats have'),
}
# Not served by models of the ablations (`causal`, `bilstm`): a masked word needs context on both
# sides, and an export consists of the plain encoder and heads.
_PLAIN_ONLY = ('fill-mask', 'score', 'next-sentence', 'export')


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns an argument's value; raises InputError if it is none of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name}={value!r:.60} is unknown: {', '.join(choices)}")
    return value


def num_tokens(text: Any) -> int:
    """An estimate of the tokens in a text, a pair or anything else."""
    if isinstance(text, str):
        return 2 + len(text) // _CHARACTERS
    return sum(map(num_tokens, text)) if isinstance(text, Sequence) else 1


def shown(text: Any, num: int = 0) -> Result:
    """A text, or several that belong together, as a result shows them; None for those not there.

    Args:
      text: as the user gave it, or an exception in its place.
      num: how many texts belong together; 0: as many as `text` has.
    """
    parts: list[Any] = [] if isinstance(text, Exception) else [repr(text)]
    if isinstance(text, str):
        parts = [text]
    elif isinstance(text, Sequence) and all(isinstance(part, str) for part in text):
        parts = list(text)
    if (num or getattr(text, 'num', 0) or len(parts)) == 2:
        return dict(zip(('first', 'second'), [*parts, None, None]))
    return {'text': parts[0] if len(parts) == 1 else parts or None}


def parts_of(text: Any, *allowed: int) -> list[str]:
    """The texts of one item, as a list.

    Args:
      text: one text, or several that belong together.
      allowed: how many there may be; none given: any number.

    Raises:
      InputError: it is no text, or there is another number of them.
    """
    parts = [text] if isinstance(text, str) else text
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise InputError(f'{text!r:.60} is no text: a str, or a tuple of them, is expected')
    if allowed and len(parts) not in allowed:
        wanted = ' or '.join(('one text', 'two texts')[n - 1] for n in allowed)
        raise InputError(f"it has {len(parts)} part{'s' * (len(parts) != 1)}: {wanted} expected")
    return list(parts)


class LoadedModel:
    """Weights on the device with their tokenizer.

    Attributes:
      weights: as read.
      config: of the model.
      sentences: how sentence-transformers makes vectors with them.
      note: receives notes on the input, one line each; default: warnings.
    """

    def __init__(
        self, weights: Weights, dtype: str | None = None,
        devices: Sequence[jax.Device] | None = None, sentences: Sentences | None = None,
    ):
        """Loads weights onto devices.

        Args:
          weights: from `bert_jax.weights`, with any head.
          dtype: of the computation, 'float32' or 'bfloat16'; default: float32 on CPUs, else
            bfloat16.
          devices: the texts are divided among them; default: all.
          sentences: from `read_model`, for vectors; None: those of a model without such files.
        """
        if dtype is None:
            dtype = 'float32' if jax.default_backend() == 'cpu' else 'bfloat16'
        one_of('dtype', dtype, ('float32', 'bfloat16'))
        self.weights = weights
        self.sentences = sentences or Sentences(as_path('.'))
        devices = jax.devices() if devices is None else devices
        self._mesh = make_mesh(len(devices), 1, 1, devices)
        self.config = ModelConfig(
            **weights.model,
            dtype=dtype,
            attention=resolve_backend('auto'),
            layout=Layout(self._mesh))
        self.note: Callable[[str], None] = lambda line: warnings.warn(line, stacklevel=2)

    @functools.cached_property
    def params(self) -> dict:
        """The parameter tree of the model, on the host."""
        return to_tree(self.weights.params, self.config.padded_vocab_size)

    @functools.cached_property
    def device_params(self) -> dict:
        """The parameters, replicated on the devices."""
        return jax.device_put(self.params, NamedSharding(self._mesh, PartitionSpec()))

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine that runs the model on the devices."""
        return Engine(self._mesh, token_cost=functools.partial(token_flops, self.config))

    @functools.cached_property
    def objective(self) -> Head:
        """The head; each sequence is an example."""
        w = self.weights
        return HEADS[w.head].of_model(self.config, w.num_labels, w.inference)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the weights' vocabulary.

        Raises:
          InputError: the weights have no vocabulary.
        """
        if self.weights.vocab_file is None:
            raise InputError(f'{self.weights.source} has no vocabulary: put the vocab.txt that '
                             'belongs to it beside it, or name it with --vocab-file')
        return load_tokenizer(self.weights.vocab_file, self.weights.lowercase)

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the tokenizer."""
        return self.tokenizer.vocab

    @property
    def max_length(self) -> int:
        """The most tokens of a sequence, [CLS] and [SEP] included."""
        positions = self.config.max_position_embeddings
        return min(positions, self.weights.inference.get('max_seq_length') or positions)

    def windows(self, how: str | None = None) -> str:
        """How windows of long texts are combined: as given, else as in the run, else 'first'."""
        how = self.weights.inference.get('windows') or 'first' if how is None else how
        return one_of('windows', how, WINDOWS)

    def commands(self) -> list[str]:
        """The commands that this model serves."""
        plain = not (self.config.causal or self.config.bilstm)
        return [
            command for command, (heads, part, _) in _NEEDS.items()
            if self.weights.head in heads and self.weights.has(part)
            and (plain or command not in _PLAIN_ONLY)]

    def check_pair(self) -> None:
        """Raises InputError if the model cannot tell the texts of a pair apart."""
        if self.config.type_vocab_size < 2:
            raise InputError('it is a pair, and the model has one segment type '
                             f'(type_vocab_size={self.config.type_vocab_size}): give single texts')

    def need(self, command: str) -> None:
        """Raises InputError if the model does not serve a command."""
        fits = self.commands()
        if command not in fits:
            others = [name for name in ('causal', 'bilstm') if getattr(self.config, name)]
            wanted = _NEEDS[command][2] if not others or command not in _PLAIN_ONLY else (
                f'a model without {others[0]}=True')
            raise InputError(f'{self.weights.source}: {command} needs {wanted}: this model serves '
                             f'{", ".join(fits)}')

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without [CLS] and [SEP].

        Raises:
          InputError: the text has no tokens.
        """
        ids = self.tokenizer.encode(text)
        if not ids:
            raise InputError('it is empty: a word or more is needed')
        return ids

    def encode_all(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of many texts, in the form of `data.pairs.Encode`."""
        return joined([self.tokenizer.encode(text) for text in texts])

    def stream(
        self, texts: Iterable[Any], *, read: Callable[[Any, int], Any],
        make: Callable[[list[Any]], tuple[Any, Units]], function: Function,
        results: Callable[[list[Any], Any, Outputs], Iterable[Any]],
        refused: Callable[[Any, str], Any] | None = None, keys: Iterable[str] = (), num: int = 1,
        size: Callable[[Any], int] = num_tokens, values_per_token: int = 1,
    ) -> Iterator[Any]:
        """Yields one result per text, in order; memory use does not grow with their number.

        Args:
          texts: any iterable; it is read a few chunks ahead, in the caller's thread.
          read: tokenizes a text, given the text and its number from 1, in another thread, and may
            call `note`; an exception that it raises becomes the text's result.
          make: makes (anything for `results`, units) of what `read` returned for some texts.
          function: computes the units.
          results: makes one result for each text, given what `read` returned, the first result of
            `make`, and the outputs.
          refused: makes the result of a text that could not be read (or of the exception in its
            place), given the reason. By default it has the text, `keys` and 'error'.
          keys: of a result, besides the text; they are None where a text could not be read, so that
            all results are rows of one table.
          num: how many texts belong together in a result; 0: as many as are given.
          size: estimates the tokens of a text's units.
          values_per_token: output values per token, which bound the size of a chunk.

        Raises:
          InputError: `texts` is one text, whose characters would be taken for texts, or not an
            iterable of texts.
        """
        if isinstance(texts, (str, bytes, Mapping)) or not isinstance(texts, Iterable):
            raise InputError(f'{texts!r:.60} ({type(texts).__name__}) where a list of texts is '
                             'expected, such as [text]')
        limit = min(_CHUNK_STEPS * self.engine.tokens_a_step, _CHUNK_VALUES // values_per_token)
        numbers = itertools.count(1)

        def without_result(text: Any, reason: str) -> Any:
            if refused is not None:
                return refused(text, reason)
            return shown(text, num) | dict.fromkeys(keys) | {'error': reason}

        def chunks() -> Iterator[list[Any]]:
            """Consecutive texts, of about `limit` tokens together."""
            chunk: list[Any] = []
            tokens = 0
            for text in texts:
                chunk.append(text)
                tokens += size(text)
                if tokens >= limit:
                    yield chunk
                    chunk, tokens = [], 0
            if chunk:
                yield chunk

        def prepare(chunk: list[Any]) -> tuple[Any, Units | None]:
            """(What `results` needs of a chunk, its units)."""
            given = []  # what `read` returned for each text, or the exception
            for text, number in zip(chunk, numbers):
                try:
                    given.append(text if isinstance(text, Exception) else read(text, number))
                except Exception as error:  # of any type: the other texts still get results
                    given.append(error)
            good = [x for x in given if not isinstance(x, Exception)]
            made, units = make(good) if good else (None, None)
            return (chunk, given, good, made), units

        for (chunk, given, good, made), outputs in self.engine.stream(
                function, self.device_params, chunks(), prepare):
            of_good = iter(results(good, made, outputs) if good else ())
            for text, x in zip(chunk, given, strict=True):
                if isinstance(x, Exception):
                    name = '' if isinstance(x, InputError) else f'{type(x).__name__}: '
                    yield without_result(text, f'{name}{x}')
                else:
                    yield next(of_good)
