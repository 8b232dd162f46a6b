"""The command features, and vectors: hidden states of tokens, or one vector a text.

    H: hidden_size, n: tokens of a text
"""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.answers import engine
from bert_jax.answers.engine import Outputs, bound
from bert_jax.config.choices import POOLS
from bert_jax.predict.loaded import LoadedModel, one_of, true_or_false
from bert_jax.predict.stream import Result
from bert_jax.predict.texts import Tokenized, WindowedJob
from bert_jax.rows.sequences import TextWindows
from bert_jax.runtime.errors import InputError
from bert_jax.text.tokenizer import name_of

_MOST_NOTES = 20  # on texts without a vector, which say why


class Features(WindowedJob):
    """Hidden states of every token; see `Model.features`."""

    accepts_empty = True

    def __init__(self, model: LoadedModel, layers: Any):
        """See `Model.features`."""
        wanted = _layers(model, layers)
        super().__init__(model, bound(engine.hidden_states, model.config, wanted))
        self.values_per_token = len(wanted) * model.config.hidden_size

    def results(
        self, texts: list[Tokenized], windows: TextWindows, outputs: Outputs
    ) -> Iterator[Result]:
        """The tokens and their states, text by text."""
        tokenizer = self.model.tokenizer
        ids = windows.sequences.ids.tolist()
        bounds = windows.sequences.offsets.tolist()
        for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
            yield {'tokens': [name_of(tokenizer, i) for i in ids[begin:end]],
                   'values': outputs['values'][begin:end]}

    def without_result(self, text: Any, reason: str) -> Result:
        """The reason alone: results do not have the text."""
        return {'tokens': None, 'values': None, 'error': reason}


class Vectors(WindowedJob):
    """A vector [H] float32 for each text, NaN if it cannot be read; see `Model.vectors`."""

    accepts_empty = True

    def __init__(
        self, model: LoadedModel, pool: Any, layer: Any, normalize: bool | None, windows: Any,
        prompt: Any,
    ):
        """See `Model.vectors`."""
        self.how = model.windows(windows)
        self._sentences = model.sentences.with_prompt(prompt)
        scales_whole = normalize
        if pool is None or normalize is None:
            pool_of_model, normalize_of_model = self._sentences.pooling()
            if pool is None:
                pool = pool_of_model
            if normalize is None:
                scales_whole = normalize_of_model
        pool = one_of('pool', pool, POOLS)
        # As sentence-transformers has it: its modules may scale whole vectors, which are then cut
        # and stay as they are; who asks for length 1 has it after the cut.
        self._scales_whole = true_or_false('normalize', scales_whole)
        self._scales_cut = bool(normalize)
        num_left_out = self._num_left_out(model)
        (layer,) = _layers(model, [layer])
        super().__init__(
            model, bound(engine.vectors, model.config, layer, pool, num_left_out))

    def _num_left_out(self, model: LoadedModel) -> int:
        """How many tokens at the beginning are not pooled: none, or [CLS] and the prompt.

        Raises:
          InputError: a prompt is left out, and nothing else is read, or texts in windows.
        """
        sentences = self._sentences
        if not sentences.prompt or sentences.pools_prompt():
            return 0
        (prompt,) = sentences.prepared([''])
        num_left_out = model.frame.num_before_single + len(model.tokenizer.encode(prompt))
        if num_left_out >= model.max_length:
            raise InputError(f'the prompt {sentences.prompt!r:.60} fills the {model.max_length} '
                             'tokens that the model takes, and is not pooled: nothing is left')
        if self.how != 'first':
            raise InputError(f"windows={self.how!r}: the model's vectors leave out its prompt "
                             f'{sentences.prompt!r:.60}, which only the first window has')
        return num_left_out

    def prepare(self, texts: Sequence[str]) -> Sequence[str]:
        """Adds the model's prompt."""
        return self._sentences.prepared(texts)

    def results(
        self, texts: list[Tokenized], windows: TextWindows, outputs: Outputs
    ) -> Iterator[np.ndarray]:
        """The combined vectors of each text's windows."""
        vectors = windows.combined(outputs['vectors']).astype(np.float32, copy=False)
        if self._scales_whole:
            vectors = _of_length_1(vectors)
        vectors = vectors[:, : self._sentences.truncate_dim]
        if self._scales_cut:
            vectors = _of_length_1(vectors)
        return (vector.copy() for vector in vectors)  # a view would keep the chunk's array alive

    def without_result(self, text: Any, reason: str) -> np.ndarray:
        """NaN; the reason becomes a note."""
        self.notes.add(f'{text!r:.40} has no vector: {reason}', 'texts have no vector', _MOST_NOTES)
        return np.full(self.model.vector_size, np.nan, np.float32)


def _of_length_1(vectors: np.ndarray) -> np.ndarray:
    """Vectors [n, H], scaled."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _layers(model: LoadedModel, layers: Any) -> tuple[int, ...]:
    """Returns the argument `layers`; raises InputError if they are not layers of the model."""
    lowest = -model.config.num_layers - 1
    try:
        numbers = tuple(map(operator.index, layers))
    except TypeError:
        numbers = ()
    if not numbers or not all(lowest <= number <= -1 for number in numbers):
        raise InputError(f'layers={layers!r:.60} must be layers of the model, such as (-1, -2): -1 '
                         f'is the last, {lowest + 1} the first, {lowest} the embeddings')
    return numbers
