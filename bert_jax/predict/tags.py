"""The command tag: a label for each word, and the entities that the labels form.

    T: tokens of all windows
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.data.packing import Units
from bert_jax.heads.classification import softmax
from bert_jax.inference.engine import Outputs
from bert_jax.predict.loaded import LoadedModel
from bert_jax.predict.stream import Command, Result, parts_of, shown
from bert_jax.tasks.entities import EntitySpan, entity_spans, entity_tags
from bert_jax.tasks.tagging import word_windows
from bert_jax.text.wordpiece import raw_words


@dataclasses.dataclass(frozen=True)
class Words:
    """A text, its words, and the index in it where each begins."""

    text: str
    words: Sequence[str]
    begins: Sequence[int]


class Tag(Command[Words, np.ndarray]):
    """Labels words and finds entities; see `Model.tag`."""

    def __init__(self, model: LoadedModel):
        """See `Model.tag`."""
        model.require('tag')
        super().__init__(model, model.head.outputs)
        self._labels = model.weights.labels
        self._entity_tags = entity_tags(self._labels)  # part-of-speech labels form no entities

    def read(self, text: Any, number: int) -> Words:
        """The words of a text, or of a list of words."""
        if isinstance(text, str):
            return _place(text, raw_words(text))
        words = parts_of(text)
        return _place(' '.join(words), words)

    def batch(self, texts: list[Words]) -> tuple[np.ndarray, Units]:
        """(For each token, the word that is labelled at it or -1; windows)."""
        vocab = self.model.vocab
        sequences, word_T = word_windows(
            [text.words for text in texts if text.words], self.model.tokenizer.encode_words,
            max_length=self.model.max_length, frame=vocab.frame, stand_in_id=vocab.stand_in_id)
        return word_T, Units(sequences)

    def results(self, texts: list[Words], word_T: np.ndarray, outputs: Outputs) -> Iterator[Result]:
        """The labels and entities of each text."""
        places = np.flatnonzero(word_T >= 0)
        logits = np.empty((len(places), len(self._labels)))
        if len(places):
            logits[word_T[places]] = outputs['logits'][places]
        bounds = np.cumsum([len(text.words) for text in texts])[:-1]
        for text, of_text in zip(texts, np.split(logits, bounds), strict=True):
            tags = self._tags(text, softmax(of_text))
            entities = [
                _entity(text.text, label, tags[begin:end])
                for label, begin, end in self._spans(tags)]
            yield {'text': text.text, 'tags': tags, 'entities': entities}

    def _tags(self, text: Words, probabilities: np.ndarray) -> list[Result]:
        """The likeliest label of each word, from probabilities [words, labels]."""
        return [
            {'word': word, 'label': self._labels[int(row.argmax())],
             'probability': float(row.max()), 'start': begin, 'end': begin + len(word)}
            for word, begin, row in zip(text.words, text.begins, probabilities, strict=True)]

    def _spans(self, tags: list[Result]) -> list[EntitySpan]:
        """The words of each entity."""
        if not self._entity_tags:
            return []
        return entity_spans([self._entity_tags[tag['label']] for tag in tags])

    def without_result(self, text: Any, reason: str) -> Result:
        """No tags, and the reason."""
        return {'text': shown(text).get('text'), 'tags': [], 'entities': [], 'error': reason}


def _place(text: str, words: Sequence[str]) -> Words:
    """Finds the words in their text."""
    begins: list[int] = []
    end = 0
    for word in words:
        begin = text.index(word, end)
        begins.append(begin)
        end = begin + len(word)
    return Words(text, words, begins)


def _entity(text: str, label: str, tags: list[Result]) -> Result:
    """The entity that the tags of some words form; as likely as the least likely of them."""
    begin = tags[0]['start']
    end = tags[-1]['end']
    return {
        'label': label,
        'start': begin,
        'probability': min(tag['probability'] for tag in tags),
        'text': text[begin:end],
        'end': end,
    }
