"""The command tag: a label for each word, and the entities that the labels form."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.answers.engine import Outputs
from bert_jax.answers.entities import EntitySpan, entity_spans, entity_tags
from bert_jax.heads.classification import softmax
from bert_jax.predict.loaded import LoadedModel, one_of
from bert_jax.predict.stream import Result, TextJob, parts_of, shown
from bert_jax.rows.packing import Units
from bert_jax.rows.word_windows import WordWindows, word_windows
from bert_jax.text.tokenizer import Place
from bert_jax.text.words import WordSplitter

AGGREGATIONS = ('first', 'simple')


@dataclasses.dataclass(frozen=True)
class Words:
    """A text and its words, or its tokens, which are labelled.

    Attributes:
      text: the text.
      places: the first and last (exclusive) character of each word.
      pieces: the ids of each word.
    """

    text: str
    places: list[Place]
    pieces: list[list[int]]


class Tag(TextJob[Words, WordWindows]):
    """Labels words and finds entities; see `Model.tag`."""

    def __init__(self, model: LoadedModel, aggregation: Any):
        """See `Model.tag`."""
        model.require('tag')
        super().__init__(model, model.head.outputs)
        splitter = WordSplitter(model.tokenizer)
        self._split = splitter.words
        if one_of('aggregation', aggregation, AGGREGATIONS) == 'simple':
            self._split = splitter.tokens
        self._labels = model.weights.labels
        self._entity_tags = entity_tags(self._labels)  # part-of-speech labels form no entities

    def read(self, text: Any, number: int) -> Words:
        """The words of a text, or of a list of words."""
        if not isinstance(text, str):
            words = parts_of(text)
            pieces = self.model.tokenizer.encode_words(words)
            return Words(' '.join(words), _places(words), pieces)
        places = []
        pieces = []
        for word in self._split(text):
            places.append((word.begin, word.end))
            pieces.append(word.ids)
        return Words(text, places, pieces)

    def batch(self, texts: list[Words]) -> tuple[WordWindows, Units]:
        """Windows in which each word is labelled once."""
        windows = word_windows(
            [text.pieces for text in texts if text.pieces], max_length=self.model.max_length,
            frame=self.model.frame, stand_in_id=self.model.vocab.stand_in_id)
        return windows, Units(windows.sequences)

    def results(
        self, texts: list[Words], windows: WordWindows, outputs: Outputs
    ) -> Iterator[Result]:
        """The labels and entities of each text."""
        logits = np.zeros((0, len(self._labels)))  # if no text has words
        if outputs:
            logits = windows.of_words(outputs['logits']).astype(np.float64)
        bounds = np.cumsum([len(text.pieces) for text in texts])[:-1]
        for text, of_text in zip(texts, np.split(logits, bounds), strict=True):
            tags = self._tags(text, softmax(of_text))
            entities = []
            for label, begin, end in self._spans(tags):
                entities.append(_entity(text.text, label, tags[begin:end]))
            yield {'text': text.text, 'tags': tags, 'entities': entities}

    def _tags(self, text: Words, probabilities: np.ndarray) -> list[Result]:
        """The likeliest label of each word, from probabilities [words, labels]."""
        tags: list[Result] = []
        for (begin, end), row in zip(text.places, probabilities, strict=True):
            tags.append({
                'word': text.text[begin:end],
                'label': self._labels[int(row.argmax())],
                'probability': float(row.max()),
                'start': begin,
                'end': end,
            })
        return tags

    def _spans(self, tags: list[Result]) -> list[EntitySpan]:
        """The words of each entity."""
        if not self._entity_tags:
            return []
        return entity_spans([self._entity_tags[tag['label']] for tag in tags])

    def without_result(self, text: Any, reason: str) -> Result:
        """No tags, and the reason."""
        return {'text': shown(text).get('text'), 'tags': [], 'entities': [], 'error': reason}


def _places(words: Sequence[str]) -> list[Place]:
    """The characters of words in the text that joins them with spaces."""
    places: list[Place] = []
    begin = 0
    for word in words:
        places.append((begin, begin + len(word)))
        begin += len(word) + 1
    return places


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
