"""What frozen features are worth while pre-training goes on: logistic regression on labelled texts.

    n: texts, H: hidden_size, L: labels
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.data.pairs import joined, make_sequences
from bert_jax.data.stateless import permute
from bert_jax.model.layers import ModelConfig
from bert_jax.predict.engine import Engine
from bert_jax.predict.functions import vectors
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path
from bert_jax.tasks.packing import Units
from bert_jax.tasks.texts import Columns, LearntNames, read_texts
from bert_jax.text import load_tokenizer

_LONGEST = 128
_RIDGE = 0.01  # a text
_ITERATIONS = 200


@dataclasses.dataclass(frozen=True)
class Probe:
    """Labelled texts that are ready to be probed with.

    Attributes:
      units: the texts.
      labels: [n] int32 ids.
    """

    units: Units
    labels: np.ndarray

    def scorer(self, engine: Engine, config: ModelConfig) -> Callable[[Any], dict[str, float]]:
        """From parameters to `probe_accuracy`: of one half of the texts, by the other."""
        # Packed texts are rows of another length than the run's, for which a kernel may not be.
        function = vectors(dataclasses.replace(config, attention='xla'), -1, 'mean')
        order = permute(np.arange(len(self.labels)), len(self.labels), 0)
        fitted, scored = np.array_split(order, 2)

        def score(params: Any) -> dict[str, float]:
            x = engine.outputs(function, params, self.units)['vectors'].astype(np.float64)
            guesses = fit(x[fitted], self.labels[fitted])(x[scored])
            return {'probe_accuracy': float(np.mean(guesses == self.labels[scored]))}

        return score


def open_probe(config: ConfigDict, vocab_path: Path | None) -> Probe:
    """The texts of `train.probe`.

    Raises:
      InputError: they cannot be read, or there is nothing to learn from them.
    """
    path, d = str(as_path(config.train.probe)), config.data
    if vocab_path is None:
        raise InputError(f'config.train.probe={path}, but config.task={config.task!r} has no '
                         'vocabulary to read texts with: leave it out')
    columns = tuple(name for name in (d.text, d.text_pair) if name)
    examples = read_texts(path, Columns(columns, d.label), LearntNames())
    labels = examples.labelled()
    if len(labels) < 4:
        raise InputError(f'config.train.probe={path} has {len(labels)} texts: some hundred are '
                         'needed to see anything')
    tokenizer = load_tokenizer(vocab_path, d.lowercase)
    first, second = (None if texts is None else joined([tokenizer.encode(text) for text in texts])
                     for texts in (examples.text_a, examples.text_b))
    assert first is not None
    sequences = make_sequences(
        first, second, max_length=min(_LONGEST, config.model.max_position_embeddings),
        **tokenizer.vocab.ends)
    return Probe(Units(sequences), labels)


def fit(x: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Logistic regression on standardised features [n, H], from features to the likeliest label.

    Steps of Newton's kind with a fixed bound in place of the Hessian (Boehning, 1992): each makes
    the likelihood larger, there is no rate to choose, and it is the same every time.
    """
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-6

    def standard(x: np.ndarray) -> np.ndarray:
        return np.concatenate([(x - mean) / deviation, np.ones((len(x), 1))], axis=1)

    z = standard(x)
    wanted = np.eye(int(labels.max()) + 1)[labels]
    ridge = _RIDGE * len(x)
    bound = np.linalg.inv(z.T @ z / 2 + ridge * np.eye(z.shape[1]))
    weights = np.zeros((z.shape[1], wanted.shape[1]))
    for _ in range(_ITERATIONS):
        scores = z @ weights
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        weights += bound @ (z.T @ (wanted - shares) - ridge * weights)
    return lambda x: np.argmax(standard(x) @ weights, axis=1)
