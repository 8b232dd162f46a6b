"""A loaded model: its weights on the devices, its tokenizer, and the commands that it serves."""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.answers.engine import Engine
from bert_jax.config.choices import WINDOWS
from bert_jax.heads import HEADS
from bert_jax.heads.base import Head
from bert_jax.model.attention_check import config_on_chip
from bert_jax.model.flops import row_cost
from bert_jax.predict.sentences import Sentences
from bert_jax.rows.sequences import joined
from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import as_path
from bert_jax.runtime.forks import check_no_fork
from bert_jax.sharding import Layout, make_mesh
from bert_jax.weights.parameters import Weights, to_tree
from bert_jax.weights.text_reader import TextReader


class _Requirement(NamedTuple):
    """The parts of a model that a command needs.

    Attributes:
      heads: those that serve it.
      part: of the model, which has to be there.
      described: what messages call the two.
      plain: whether the ablations `causal` and `bilstm` are excluded.
    """

    heads: tuple[str, ...]
    part: str
    described: str = ''
    plain: bool = False


_EXPORTED_HEADS = tuple(name for name, head in HEADS.items() if not head.stays_in_run)
# By command. A masked word needs context on both sides, and an export consists of the plain encoder
# and heads, so the ablations do not serve these.
_REQUIREMENTS: Mapping[str, _Requirement] = {
    'fill-mask': _Requirement(
        ('pretraining',), 'cls/predictions', 'a masked-LM head', plain=True),
    'score': _Requirement(
        ('pretraining',), 'cls/predictions', 'a masked-LM head', plain=True),
    'next-sentence': _Requirement(
        ('pretraining',), 'cls/seq_relationship',
        'a next-sentence head (data.next_sentence=False trains none)', plain=True),
    'classify': _Requirement(
        ('classification', 'multi_label', 'regression', 'multiple_choice'), 'classifier',
        'a classification, multi-label, regression or multiple-choice head'),
    'rerank': _Requirement(
        ('regression',), 'classifier', 'a regression head on pairs (configs/reranking.py)'),
    'answer': _Requirement(
        ('question_answering',), 'cls/squad', 'a question-answering head'),
    'tag': _Requirement(
        ('token_classification', 'feature_tagger'), 'classifier', 'a token-classification head'),
    'features': _Requirement(tuple(HEADS), 'bert'),
    'export': _Requirement(
        _EXPORTED_HEADS, 'bert', 'a head that other formats have', plain=True),
}


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns an argument's value; raises InputError if it is none of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name}={value!r:.60} is unknown: {', '.join(choices)}")
    return value


def whole_number(name: str, value: Any) -> int:
    """Returns an argument's value; raises InputError unless it is a whole number of 1 or more."""
    if not isinstance(value, (int, np.integer)) or value < 1:
        raise InputError(f'{name}={value!r:.60} must be 1 or more, a whole number')
    return int(value)


def true_or_false(name: str, value: Any) -> bool:
    """Returns an argument's value; raises InputError unless it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f'{name}={value!r:.60} must be True or False')
    return bool(value)


class LoadedModel(TextReader):
    """Weights on the device with their tokenizer.

    Attributes:
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
          weights: from `foreign.load_weights`, with any head.
          dtype: of the computation, 'float32' or 'bfloat16'; default: float32 on CPUs, else
            bfloat16.
          devices: the texts are divided among them; default: all.
          sentences: from `read_model`, for vectors; None: those of a model without such files.
        """
        check_no_fork(weights.source)
        if dtype is None:
            dtype = 'float32' if jax.default_backend() == 'cpu' else 'bfloat16'
        one_of('dtype', dtype, ('float32', 'bfloat16'))
        super().__init__(
            weights, 'put the vocab.txt that belongs to it beside it, or name it with --vocab-file')
        self.sentences = sentences or Sentences(as_path('.'))
        devices = jax.devices() if devices is None else devices
        self._mesh = make_mesh(len(devices), 1, 1, devices)
        self.config = config_on_chip(
            weights.model, drops=False, dtype=dtype, layout=Layout(self._mesh))
        # By the id of an array on the host: it, so that the id stays its own, and on the devices.
        self._placed: dict[int, tuple[np.ndarray, jax.Array]] = {}
        self.note: Callable[[str], None] = lambda line: warnings.warn(line, stacklevel=2)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses to be pickled: what is on devices stays in its process."""
        raise TypeError(f'{self.weights.source}: a loaded model cannot be pickled: give other '
                        'processes its path, and load it there')

    def __copy__(self) -> Self:
        """A model that shares the weights, which nothing changes, and has a `note` of its own."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: Any) -> Self:
        return self.__copy__()

    def with_weights(self, weights: Weights) -> Self:
        """The same encoder with other parameters, and perhaps another head, on the same engine.

        Heads that are equal compute with the same programs. Parameters that are the same arrays as
        here are in memory once.
        """
        devices = list(self._mesh.devices.flat)
        other = type(self)(weights, self.config.dtype, devices, self.sentences)
        other.__dict__['_engine'] = self._engine
        other._placed = self._placed
        if other.head == self.head:
            other.__dict__['head'] = self.head  # by which compiled programs are known
        return other

    def pass_on(self, note: str) -> None:
        """Gives a note to `note`; one that it does not take costs no text its result."""
        try:
            self.note(note)
        except Exception:  # of the user's code, or a warning that counts as an error
            tell_once(f'note: {note}')

    @functools.cached_property
    def params(self) -> dict:
        """The parameter tree of the model, on the host."""
        return to_tree(self.weights.params, self.config.padded_vocab_size)

    @functools.cached_property
    def device_params(self) -> dict:
        """The parameters, replicated on the devices."""
        arrays = self.weights.params
        new = {name: x for name, x in arrays.items() if id(x) not in self._placed}
        tree = to_tree(new, self.config.padded_vocab_size)
        on_devices = jax.device_put(tree, NamedSharding(self._mesh, PartitionSpec()))
        for name, x in flatten_dict(on_devices, sep='/').items():
            self._placed[id(new[name])] = (new[name], x)
        placed = {name: self._placed[id(x)][1] for name, x in arrays.items()}
        return dict(unflatten_dict(placed, sep='/'))

    @property
    def engine(self) -> Engine:
        """The engine that runs the model on the devices.

        Raises:
          InputError: this process is a fork of one that has used jax.
        """
        check_no_fork(self.weights.source)
        return self._engine

    @functools.cached_property
    def _engine(self) -> Engine:
        return Engine(self._mesh, token_cost=functools.partial(row_cost, self.config))

    @functools.cached_property
    def head(self) -> Head:
        """The head; each sequence is an example."""
        weights = self.weights
        return HEADS[weights.head].of_model(self.config, weights.num_labels, weights.inference)

    @property
    def vector_size(self) -> int:
        """Columns of the vectors of texts."""
        size = self.config.hidden_size
        return min(size, self.sentences.truncate_dim or size)

    def windows(self, how: str | None = None) -> str:
        """How windows of long texts are combined: as given, else as in the run, else 'first'."""
        if how is None:
            how = self.weights.inference.get('windows') or 'first'
        return one_of('windows', how, WINDOWS)

    def commands(self) -> list[str]:
        """The commands that this model serves."""
        return [
            command for command, requirement in _REQUIREMENTS.items()
            if self._fulfils(requirement)]

    def _fulfils(self, requirement: _Requirement) -> bool:
        if requirement.plain and (self.config.causal or self.config.bilstm):
            return False
        return self.weights.head in requirement.heads and self.weights.has(requirement.part)

    def require(self, command: str) -> None:
        """Raises InputError if the model does not serve a command."""
        served = self.commands()
        if command in served:
            return
        requirement = _REQUIREMENTS[command]
        wanted = requirement.described
        ablations = [name for name in ('causal', 'bilstm') if getattr(self.config, name)]
        if requirement.plain and ablations:
            wanted = f'a model without {ablations[0]}=True'
        raise InputError(f'{self.weights.source}: {command} needs {wanted}: this model serves '
                         f'{", ".join(served)}')

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without [CLS] and [SEP].

        Raises:
          InputError: the text has no tokens.
        """
        ids = self.tokenizer.encode(text)
        if not ids or text.isspace():
            raise InputError('it is empty: a word or more is needed')
        return ids

    def encode_all(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of many texts, in the form of `rows.sequences.Encode`."""
        return joined([self.tokenizer.encode(text) for text in texts])
