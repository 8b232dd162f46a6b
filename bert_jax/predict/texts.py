"""The commands on whole texts and pairs: next-sentence and classify, and what they share.

    H: hidden_size, W: windows, n: texts
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.answers import engine
from bert_jax.answers.engine import Outputs, bound
from bert_jax.heads import HEADS
from bert_jax.heads.classification import softmax
from bert_jax.predict.loaded import LoadedModel, true_or_false
from bert_jax.predict.sentences import ACTIVATIONS
from bert_jax.predict.stream import Notes, Result, TextJob, parts_of, shown
from bert_jax.rows.packing import Units
from bert_jax.rows.sequences import Sequences, TextWindows, joined, kept_lengths, text_windows
from bert_jax.runtime.errors import InputError, tell_once


class Tokenized(NamedTuple):
    """Texts that belong together, and the token ids of each, without [CLS] and [SEP]."""

    texts: list[str]
    ids: list[list[int]]


def tokenize(
    model: LoadedModel, texts: list[str], number: int, *, notes: Notes,
    encode: Callable[[str], list[int]],
    is_cut: bool = True, prepare: Callable[[Sequence[str]], Sequence[str]] = list,
) -> Tokenized:
    """Tokenizes texts that belong together, and notes if they will be cut.

    Args:
      model: its `max_length` is the limit.
      texts: one, or a pair.
      number: as for `TextJob.read`.
      notes: of the job.
      encode: gives the token ids of a text.
      is_cut: whether texts that are too long are cut.
      prepare: what is done to the texts first.

    Raises:
      The exceptions of `encode`.
      InputError: nothing would be left of a text, or it has no tokens, not even special ones.
    """
    ids = [encode(text) for text in prepare(texts)]
    num_tokens = sum(map(len, ids))
    num_special = model.frame.num_special(pair=len(ids) > 1)
    if not num_tokens + num_special:
        raise InputError('it has no tokens')
    most = model.max_length - num_special
    if is_cut and num_tokens > most:
        if len(ids) > 1:
            first, second = (np.array([len(of_text)]) for of_text in ids)
            kept_lengths(first, second, most, model.frame.truncation)
        lost = model.frame.lost_part
        notes.add(f'text {number} has {num_tokens} tokens, the model takes {most}: its {lost} is '
                  'left out', f'texts are longer than that: their {lost}s are left out')
    return Tokenized(texts, ids)


class _Window(NamedTuple):
    """A window of a text: the text's index, the tokens and their types, and where the second is."""

    text: int
    ids: np.ndarray
    types: np.ndarray
    first_length: int


def text_units(
    model: LoadedModel, texts: list[Tokenized], how: str = 'first'
) -> tuple[TextWindows, Units]:
    """(Windows, units) of single texts and pairs, in the order of the texts.

    Args:
      model: takes them.
      texts: tokenized.
      how: one of `config.choices.WINDOWS`.
    """
    windows = _windows(model, texts, 1, how) + _windows(model, texts, 2, how)
    windows.sort(key=lambda window: window.text)
    of_text, ids, types, first_lengths = zip(*windows, strict=True)
    sequences = Sequences(
        ids=np.concatenate(ids),
        offsets=np.cumsum([0, *map(len, ids)]),
        first_lengths=np.array(first_lengths),
        types=np.concatenate(types))
    return TextWindows(sequences, np.array(of_text), how), Units(sequences)


def _windows(
    model: LoadedModel, texts: list[Tokenized], num_parts: int, how: str
) -> list[_Window]:
    """The windows of the single texts (`num_parts` 1) or of the pairs (2) among the texts."""
    index = [i for i, text in enumerate(texts) if len(text.ids) == num_parts]
    if not index:
        return []
    first = joined([texts[i].ids[0] for i in index])
    second = None
    if num_parts == 2:
        second = joined([texts[i].ids[1] for i in index])
    windows = text_windows(
        first, second, how, max_length=model.max_length, frame=model.frame)
    sequences = windows.sequences
    of_text = [index[i] for i in windows.text]
    ids = np.split(sequences.ids, sequences.offsets[1:-1])
    types = np.split(sequences.types, sequences.offsets[1:-1])
    return list(map(_Window, of_text, ids, types, sequences.first_lengths))


class WindowedJob(TextJob[Tokenized, TextWindows]):
    """A job on texts and pairs, which are cut or read in windows.

    Attributes:
      allowed: how many texts may belong together.
      accepts_empty: whether a text may have no words.
      how: what happens to long texts, one of `config.choices.WINDOWS`.
    """

    allowed: Collection[int] = (1, 2)
    accepts_empty: bool = False
    how: str = 'first'

    def read(self, text: Any, number: int) -> Tokenized:
        """Tokenizes a text or pair."""
        parts = parts_of(text, *self.allowed)
        self.check_form(parts)
        encode = self.model.encode
        if self.accepts_empty:
            encode = self.model.tokenizer.encode
        return tokenize(
            self.model, parts, number, notes=self.notes, encode=encode,
            is_cut=self.how == 'first', prepare=self.prepare)

    def check_form(self, texts: list[str]) -> None:
        """Raises InputError if single texts, or pairs, are not what the model is for."""

    def prepare(self, texts: Sequence[str]) -> Sequence[str]:
        """The texts as they go to the tokenizer."""
        return texts

    def batch(self, texts: list[Tokenized]) -> tuple[TextWindows, Units]:
        """The windows of the texts."""
        return text_units(self.model, texts, self.how)


class NextSentence(WindowedJob):
    """Whether the second text of a pair follows the first; see `Model.next_sentence`."""

    allowed = (2,)
    keys = ('probability',)
    num_texts = 2

    def __init__(self, model: LoadedModel):
        """See `Model.next_sentence`."""
        model.require('next-sentence')
        super().__init__(model, bound(engine.next_sentence, model.config))

    def results(
        self, texts: list[Tokenized], windows: TextWindows, outputs: Outputs
    ) -> Iterator[Result]:
        """A probability for each pair."""
        probabilities = softmax(outputs['logits']).tolist()
        for (parts, _), (follows, _) in zip(texts, probabilities, strict=True):
            yield shown(parts) | {'probability': follows}


def activated(model: LoadedModel, logits: np.ndarray) -> np.ndarray:
    """Logits float64, of a cross-encoder after the activation that its folder names."""
    logits = logits.astype(np.float64)
    activation = model.weights.inference.get('activation')
    return ACTIVATIONS[activation](logits) if activation else logits


class Classify(WindowedJob):
    """Labels or values of texts or pairs; see `Model.classify`."""

    def __init__(self, model: LoadedModel, windows: str | None, any_form: bool):
        """See `Model.classify`; the head is not multiple choice."""
        model.require('classify')
        super().__init__(model, model.head.outputs)
        self.how = model.windows(windows)
        self.num_texts = 0
        if not true_or_false('any_form', any_form):
            self.num_texts = int(model.weights.inference.get('num_texts', 0))
        self.reading = (self.how, self.num_texts)
        self._head: Any = HEADS[model.weights.head]
        self._labels = model.weights.labels
        no_logits = np.zeros((1, max(1, len(self._labels))))
        (described,) = self._head.described(no_logits, self._labels)
        self.keys = tuple(described)

    def check_form(self, texts: list[str]) -> None:
        """Raises InputError for a single text if the model was trained on pairs, or the reverse."""
        if self.num_texts == 2 and len(texts) == 1:
            raise InputError(
                'it is a single text, and the model was trained on pairs: give a second text (with '
                'a TAB between the two, --pairs or --text-pair), or ask for it with --any-form '
                '(any_form=True)')
        if self.num_texts == 1 and len(texts) == 2:
            raise InputError(
                'it is a pair, and the model was trained on single texts: ask for it with '
                '--any-form (any_form=True)')

    def results(
        self, texts: list[Tokenized], windows: TextWindows, outputs: Outputs
    ) -> Iterator[Result]:
        """The head's result for each text, from the combined logits of its windows."""
        logits = windows.combined_logits(self._head, outputs['logits'])
        described = self._head.described(activated(self.model, logits), self._labels)
        for (parts, _), result in zip(texts, described, strict=True):
            yield shown(parts) | result


def classify_job(
    model: LoadedModel, windows: str | None, any_form: bool
) -> TextJob[Any, TextWindows]:
    """The job of `Model.classify`, which depends on the head."""
    if model.weights.head == 'multiple_choice':
        return Choose(model, windows)
    return Classify(model, windows, any_form)


class PairsOfFirst(TextJob[list[Tokenized], TextWindows]):
    """A job on a first text with each of several others: each pair of the two is a unit."""

    least_texts: int = 2
    too_few: str = ''  # the message if there are fewer

    def read(self, text: Any, number: int) -> list[Tokenized]:
        """Tokenizes the first text with each of the others."""
        parts = parts_of(text)
        if len(parts) < self.least_texts:
            raise InputError(self.too_few)
        first, *others = parts
        pairs = []
        for other in others:
            pairs.append(tokenize(
                self.model, [first, other], number, notes=self.notes, encode=self.model.encode))
        return pairs

    def batch(self, texts: list[list[Tokenized]]) -> tuple[TextWindows, Units]:
        """The pairs of all texts."""
        return text_units(self.model, [pair for pairs in texts for pair in pairs])

    def logits_of(self, texts: list[list[Tokenized]], outputs: Outputs) -> list[np.ndarray]:
        """For each text the logits of its pairs."""
        bounds = np.cumsum([len(pairs) for pairs in texts])[:-1]
        return np.split(outputs['logits'][:, 0], bounds)


class Choose(PairsOfFirst):
    """Which ending fits a beginning; see `Model.classify`."""

    keys = ('choices', 'choice', 'probability', 'probabilities')
    least_texts = 3
    too_few = 'it has no choices: a beginning and two or more ends of it expected'

    def __init__(self, model: LoadedModel, windows: str | None):
        """See `Model.classify`; the head is multiple choice."""
        model.require('classify')
        if windows is not None:
            raise InputError(f'windows={windows!r}: beginnings and ends are cut, not read in parts')
        super().__init__(model, model.head.outputs)

    def results(
        self, texts: list[list[Tokenized]], windows: TextWindows, outputs: Outputs
    ) -> Iterator[Result]:
        """The likeliest choice of each text."""
        for pairs, logits in zip(texts, self.logits_of(texts, outputs), strict=True):
            probabilities = softmax(logits).tolist()
            best = int(logits.argmax())
            yield {'text': pairs[0].texts[0], 'choices': [pair.texts[1] for pair in pairs],
                   'choice': best, 'probability': probabilities[best],
                   'probabilities': probabilities}


class Rerank(PairsOfFirst):
    """In which order documents answer a query; see `Model.rerank`."""

    keys = ('ranking',)
    too_few = 'it has no documents: a query and one document or more expected'

    def __init__(self, model: LoadedModel):
        """See `Model.rerank`."""
        model.require('rerank')
        if model.weights.inference.get('num_texts') == 1:
            raise InputError(f'{model.weights.source}: rerank needs a model of pairs: this one was '
                             'trained on single texts')
        if not model.weights.inference.get('activation') and model.weights.step_dir is None:
            tell_once(f'note: {model.weights.source} names no activation that is applied: scores '
                      "are its outputs, of which sentence-transformers' CrossEncoder takes the "
                      'sigmoid where a folder names none')
        super().__init__(model, model.head.outputs)

    def without_result(self, text: Any, reason: str) -> Result:
        """The result of a query that could not be read, or whose documents could not."""
        texts = shown(text, 1)['text']
        query = texts[0] if isinstance(texts, list) else texts
        return {'query': query, 'ranking': None, 'error': reason}

    def results(
        self, texts: list[list[Tokenized]], windows: TextWindows, outputs: Outputs
    ) -> Iterator[Result]:
        """The documents of each query, the highest score first; of equal ones the first."""
        for pairs, logits in zip(texts, self.logits_of(texts, outputs), strict=True):
            scores = activated(self.model, logits)
            yield {'query': pairs[0].texts[0], 'ranking': [
                {'index': int(i), 'score': float(scores[i]), 'text': pairs[i].texts[1]}
                for i in np.argsort(-scores, kind='stable')]}
