"""The weights of a run on a sentence: guesses of masked words, and attention."""

import base64
import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.model.encoder import Bert, kept_probabilities
from bert_jax.predict import load
from bert_jax.predict.model import Model
from bert_jax.rows.sequences import joined, make_sequences
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import Layout
from bert_jax.text.tokenizer import name_of
from bert_jax.tools.report.runs import RunRecords

WORD = re.compile(r'\w+')
_NUM_GUESSES = 4


class Guess(NamedTuple):
    """A piece in the place of a word, its probability, and whether it is the word."""

    piece: str
    probability: float
    is_true: bool


@dataclasses.dataclass(frozen=True)
class MaskedWord:
    """A word of the sentence, and what the model guesses in its place, the likeliest first."""

    word: str
    guesses: Sequence[Guess]


@dataclasses.dataclass
class Examples:
    """The results of a run's weights for a sentence, as far as they give any.

    Attributes:
      num_params: number of parameters; 0 if there are no weights.
      attention: as `heads` returns it, or None.
      masked_words: in their order; empty if the model has no masked LM.
    """

    num_params: int = 0
    attention: dict[str, Any] | None = None
    masked_words: Sequence[MaskedWord] = ()


def make_examples(run: RunRecords, text: str) -> Examples:
    """The examples of a run; those that its weights cannot make are listed in `run.missing`."""
    result = Examples()
    try:
        model = load(run.folder)
        model.note = run.missing.append
        sizes = [parameter.size for parameter in model.weights.params.values()]
        result.num_params = sum(sizes)
        result.attention = heads(model, text)
        result.masked_words = mask_each_word(model, text)
    except InputError as error:
        what = 'examples'
        if result.attention:
            what = 'masked words'
        run.missing.append(f'no {what}: {error}')
    return result


def mask_each_word(model: Model, text: str) -> list[MaskedWord]:
    """Masks the words of a text in turn.

    A single [MASK] replaces a word, so a word of several pieces cannot be guessed.
    """
    mask = model.vocab.tokens[model.vocab.mask_id]
    words = list(WORD.finditer(text))
    texts = [text[: word.start()] + mask + text[word.end() :] for word in words]
    answers = model.fill_mask(texts, _NUM_GUESSES)
    result = []
    for word, answer in zip(words, answers, strict=True):
        guesses = []
        for guess in answer['predictions']:
            is_true = guess['sequence'].lower() == text.lower()
            guesses.append(Guess(guess['token'], guess['probability'], is_true))
        result.append(MaskedWord(word.group(), guesses))
    return result


def attention(model: Model, text: str) -> tuple[list[str], np.ndarray]:
    """The tokens of a text, and attention probabilities [layers, heads, n (queries), n (keys)]."""
    sequences = make_sequences(
        joined([model.encode(text)]), None, max_length=model.max_length, frame=model.frame)
    ids = sequences.ids.tolist()
    config = dataclasses.replace(model.config, attention='xla', layout=Layout())
    row = sequences.ids[None]
    types = sequences.types[None].astype(np.int32)

    @jax.jit
    def probabilities_of(params: Any) -> list[jax.Array]:
        _, kept = Bert(config, pooled=False).apply(
            {'params': params}, row, np.ones_like(row), types, mutable=['intermediates'])
        return kept_probabilities(kept['intermediates'], config)

    probabilities = [x[0] for x in probabilities_of(model.params['bert'])]
    tokens = [name_of(model.tokenizer, i) for i in ids]
    return tokens, np.stack(probabilities).astype(np.float32)


def heads(model: Model, text: str) -> dict[str, Any]:
    """Attention probabilities in the form that the page draws.

    Returns:
      {'tokens', 'layers', 'heads', 'values': base64 of bytes [layers, heads, n, n], each a
      probability times 255}.
    """
    tokens, probabilities = attention(model, text)
    values = np.round(probabilities * 255).astype(np.uint8)
    return {
        'tokens': tokens,
        'layers': values.shape[0],
        'heads': values.shape[1],
        'values': base64.b64encode(values.tobytes()).decode()}
