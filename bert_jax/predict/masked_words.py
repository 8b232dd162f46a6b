"""The commands fill-mask and score: words that a masked LM predicts from those around them."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.packing import Units
from bert_jax.data.pairs import joined, make_sequences
from bert_jax.inference import engine
from bert_jax.inference.engine import Outputs, bound
from bert_jax.predict.loaded import LoadedModel, whole_number
from bert_jax.predict.stream import Command, Result, num_tokens, parts_of
from bert_jax.runtime.errors import InputError
from bert_jax.text.sentencepiece import WORD_START
from bert_jax.text.vocab import CONTINUATION, MASK, Vocab, unused_row


class MaskedToken(NamedTuple):
    """A token to predict.

    Attributes:
      ids: the tokens around it, with [MASK] in its place.
      place: index of this [MASK].
      target: the id of the token itself.
    """

    ids: list[int]
    place: int
    target: int


class MaskedText(NamedTuple):
    """A text, and its tokens that are predicted."""

    text: str
    tokens: list[MaskedToken]


class _MaskedWords(Command[MaskedText, None]):
    """Predicts some tokens of each text, each in a sequence of its own."""

    def batch(self, texts: list[MaskedText]) -> tuple[None, Units]:
        """The sequences of all tokens to predict, text by text."""
        tokens = itertools.chain.from_iterable(text.tokens for text in texts)
        ids, places, targets = zip(*tokens, strict=True)
        sequences = make_sequences(
            joined(ids), None, max_length=self.model.max_length, frame=self.model.vocab.frame)
        units = Units(
            sequences,
            labels={'targets': np.array(targets, np.int32)},
            positions={'masked_positions': 1 + np.array(places)})
        return None, units

    def _masked(self, ids: list[int], places: Iterable[int]) -> list[MaskedToken]:
        """For each place, the tokens around it, as many as the model takes, with it masked.

        The place is in the middle, except near an end of the text.
        """
        size = self.model.max_length - 2
        mask_id = self.model.vocab.mask_id
        masked = []
        for place in places:
            begin = max(0, min(place - size // 2, len(ids) - size))
            around = ids[begin : begin + size]
            around[place - begin] = mask_id
            masked.append(MaskedToken(around, place - begin, ids[place]))
        return masked


class FillMask(_MaskedWords):
    """The likeliest tokens for each [MASK]; see `Model.fill_mask`."""

    keys = ('predictions',)

    def __init__(self, model: LoadedModel, top_k: Any):
        """See `Model.fill_mask`."""
        model.require('fill-mask')
        num = min(whole_number('top_k', top_k), model.config.vocab_size)
        super().__init__(model, bound(engine.masked_lm_top, model.config, num))
        self._vocab = model.vocab

    def read(self, text: Any, number: int) -> MaskedText:
        """The tokens around each [MASK]."""
        model = self.model
        (text,) = parts_of(text, 1)
        model.encode(text)  # raises if the text is empty
        ids = self._encode_with_masks(text)
        masks = [place for place, token in enumerate(ids) if token == self._vocab.mask_id]
        if not masks:
            raise InputError(
                f'it has no {MASK}: write {MASK} where a word is to be filled in ({text[:60]!r})')
        size = model.max_length - 2
        if len(ids) > size:
            model.note(f'text {number} has {len(ids)} tokens, the model takes {size}: each {MASK} '
                       f'is filled in from the {size} tokens around it')
        return MaskedText(text, self._masked(ids, masks))

    def _encode_with_masks(self, text: str) -> list[int]:
        """Token ids of a text; [MASK] is one token, also where the tokenizer does not know it."""
        ids: list[int] = []
        for part in text.split(MASK):
            ids += self.model.tokenizer.encode(part)
            ids.append(self._vocab.mask_id)
        return ids[:-1]

    def results(self, texts: list[MaskedText], made: None, outputs: Outputs) -> Iterator[Result]:
        """A list of predictions for each [MASK]; if it is the only one, the list itself."""
        probabilities = outputs['probabilities'].tolist()
        ids = outputs['ids'].tolist()
        of_masks = zip(probabilities, ids, strict=True)
        for text, tokens in texts:
            predictions: list[Any] = [
                self._predictions(text, number, *next(of_masks)) for number in range(len(tokens))]
            if len(predictions) == 1:
                (predictions,) = predictions
            yield {'text': text, 'predictions': predictions}

    def _predictions(
        self, text: str, number: int, probabilities: list[float], ids: list[int]
    ) -> list[Result]:
        """The tokens for [MASK] `number` of a text, from 0."""
        vocab = self._vocab
        return [
            {'token': _name(vocab, token), 'id': token, 'probability': probability,
             'sequence': _with_token(text, number, vocab, token)}
            for probability, token in zip(probabilities, ids, strict=True)]


class Score(_MaskedWords):
    """The log probability of each text, its tokens masked in turn; see `Model.score`."""

    keys = ('num_tokens', 'log_probability', 'pseudo_perplexity')

    def __init__(self, model: LoadedModel):
        """See `Model.score`."""
        model.require('score')
        super().__init__(model, bound(engine.masked_lm_log_probability, model.config))

    def read(self, text: Any, number: int) -> MaskedText:
        """Every token of a text."""
        (text,) = parts_of(text, 1)
        ids = self.model.encode(text)
        return MaskedText(text, self._masked(ids, range(len(ids))))

    def results(self, texts: list[MaskedText], made: None, outputs: Outputs) -> Iterator[Result]:
        """The sum over the tokens of each text."""
        bounds = np.cumsum([len(text.tokens) for text in texts])[:-1]
        of_texts = np.split(outputs['log_probability'], bounds)
        for (text, _), log_probabilities in zip(texts, of_texts, strict=True):
            total = math.fsum(log_probabilities.tolist())
            num = len(log_probabilities)
            yield {'text': text, 'num_tokens': num, 'log_probability': total,
                   'pseudo_perplexity': pseudo_perplexity(total, num)}

    def size(self, text: Any) -> int:
        """Each token has a sequence of its own."""
        num = num_tokens(text)
        return num * min(num, self.model.max_length)


def _name(vocab: Vocab, token: int) -> str:
    """The token of an id; the embedding may have more rows than the vocabulary has tokens."""
    return vocab.tokens[token] if token < len(vocab) else unused_row(token)


def _with_token(text: str, number: int, vocab: Vocab, token: int) -> str:
    """The text with [MASK] `number`, from 0, replaced; a continuation joins the word before it."""
    parts = text.split(MASK)
    before = MASK.join(parts[: number + 1])
    after = MASK.join(parts[number + 1 :])
    name = _name(vocab, token).removeprefix(WORD_START)
    if token < len(vocab) and vocab.is_continuation[token]:
        return before.rstrip() + name.removeprefix(CONTINUATION) + after
    return before + name + after


def pseudo_perplexity(log_probability: float, num_tokens: int) -> float:
    """exp(-mean log probability of a token): Salazar et al., 2020, section 2.3."""
    return math.exp(min(-log_probability / max(num_tokens, 1), 700.0))
