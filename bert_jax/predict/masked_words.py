"""The commands fill-mask and score: words that a masked LM predicts from those around them."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax.answers import engine
from bert_jax.answers.engine import Outputs, bound
from bert_jax.predict.loaded import LoadedModel, whole_number
from bert_jax.predict.stream import Result, TextJob, num_tokens, parts_of
from bert_jax.rows.packing import Units
from bert_jax.rows.sequences import joined, make_sequences
from bert_jax.runtime.errors import InputError
from bert_jax.text.tokenizer import Place, Tokenizer, name_of


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


class _MaskedWords(TextJob[MaskedText, None]):
    """Predicts some tokens of each text, each in a sequence of its own."""

    @property
    def room(self) -> int:
        """The most tokens of a text in a sequence."""
        return self.model.max_length - self.model.frame.num_special(pair=False)

    def batch(self, texts: list[MaskedText]) -> tuple[None, Units]:
        """The sequences of all tokens to predict, text by text."""
        tokens = itertools.chain.from_iterable(text.tokens for text in texts)
        ids, places, targets = zip(*tokens, strict=True)
        frame = self.model.frame
        sequences = make_sequences(
            joined(ids), None, max_length=self.model.max_length, frame=frame)
        units = Units(
            sequences,
            labels={'targets': np.array(targets, np.int32)},
            positions={'masked_positions': frame.num_before_single + np.array(places)})
        return None, units

    def _masked(self, ids: list[int], places: Iterable[int]) -> list[MaskedToken]:
        """For each place, the tokens around it, as many as the model takes, with it masked.

        The place is in the middle, except near an end of the text.
        """
        size = self.room
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
        self._mask_id = model.vocab.mask_id
        self._written_mask = model.vocab.written_mask

    def read(self, text: Any, number: int) -> MaskedText:
        """The tokens around each [MASK]."""
        model = self.model
        (text,) = parts_of(text, 1)
        model.encode(text)  # raises if the text is empty
        ids, masks = self._encode_with_masks(text)
        if not masks:
            raise InputError('it has no [MASK]: write [MASK] where a word is to be filled in '
                             f'({text[:60]!r})')
        if len(ids) > self.room:
            self.notes.add(
                f'text {number} has {len(ids)} tokens, the model takes {self.room}: each [MASK] is '
                f'filled in from the {self.room} tokens around it', 'texts are longer than that')
        return MaskedText(text, self._masked(ids, masks))

    def _encode_with_masks(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids of a text, in which each [MASK] is one token, and the indices of these.

        Tokenizers that do not know it split it as other text. Spaces before it are left out: they
        belong to the token in its place.
        """
        *before_masks, last = self._written_mask.split(text)
        ids: list[int] = []
        masks: list[int] = []
        for part in before_masks:
            ids += self.model.tokenizer.encode(part.rstrip())
            masks.append(len(ids))
            ids.append(self._mask_id)
        return ids + self.model.tokenizer.encode(last), masks

    def results(self, texts: list[MaskedText], made: None, outputs: Outputs) -> Iterator[Result]:
        """A list of predictions for each [MASK]; if it is the only one, the list itself."""
        probabilities = outputs['probabilities'].tolist()
        ids = outputs['ids'].tolist()
        of_masks = zip(probabilities, ids, strict=True)
        for text, _ in texts:
            predictions: list[Any] = []
            for mask in self._written_mask.finditer(text):
                predictions.append(self._predictions(text, mask.span(), *next(of_masks)))
            if len(predictions) == 1:
                (predictions,) = predictions
            yield {'text': text, 'predictions': predictions}

    def _predictions(
        self, text: str, mask: Place, probabilities: list[float], ids: list[int]
    ) -> list[Result]:
        """The tokens for the [MASK] at a place of a text."""
        tokenizer = self.model.tokenizer
        predictions: list[Result] = []
        for probability, token in zip(probabilities, ids, strict=True):
            predictions.append({
                'token': name_of(tokenizer, token),
                'id': token,
                'probability': probability,
                'sequence': _with_token(text, mask, tokenizer, token),
            })
        return predictions


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


def _with_token(text: str, mask: Place, tokenizer: Tokenizer, token: int) -> str:
    """The text with a token in place of a mask; a continuation joins the word before it."""
    begin, end = mask
    before = text[:begin]
    after = text[end:]
    if token >= len(tokenizer.vocab):
        return before + name_of(tokenizer, token) + after
    shown = tokenizer.shown(token)
    if tokenizer.vocab.is_continuation[token]:
        return before.rstrip() + shown + after
    if _needs_space(before, tokenizer, token):
        return f'{before} {shown}{after}'
    return before + shown + after


def _needs_space(before: str, tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token that begins a word would be another one right behind a text."""
    if not before or before[-1].isspace():
        return False
    last_word = before.split()[-1]
    return tokenizer.encode(last_word + tokenizer.shown(token))[-1:] != [token]


def pseudo_perplexity(log_probability: float, num_tokens: int) -> float:
    """exp(-mean log probability of a token): Salazar et al., 2020, section 2.3."""
    return math.exp(min(-log_probability / max(num_tokens, 1), 700.0))
