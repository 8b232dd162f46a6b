"""Labels of words, and the entities that they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.predict.engine import Outputs
from bert_jax.predict.loaded import LoadedModel
from bert_jax.predict.texts import Note, Text, shown, stream
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.packing import Units
from bert_jax.tasks.tagging import (
    ConllExamples,
    ConllWindows,
    are_entities,
    conll_windows,
    normal_tags,
)
from bert_jax.text.wordpiece import raw_words


class _Words(NamedTuple):
    """A text, its words and their first characters in it."""

    text: str
    words: list[str]
    begins: list[int]


def tag(
    model: LoadedModel, texts: Iterable[Text]
) -> Iterator[dict[str, Any]]:
    """A label for each word, and entities; see `Model.tag`."""
    model.need('tag')
    labels = model.weights.labels

    def read(text: Any, number: int, note: Note) -> _Words:
        del number, note
        found = _words(text)
        for word in found.words:
            model.tokenizer.encode(word)  # what cannot be tokenized is this text's own fault
        return found

    def make(texts: list[_Words]) -> tuple[tuple[list[_Words], ConllWindows], Units]:
        words = [word for text in texts for word in text.words]
        offsets = np.cumsum([0, *(len(text.words) for text in texts if text.words)])
        spans = np.arange(len(offsets) - 1)
        examples = ConllExamples(
            words=words, tags=[labels[0]] * len(words), lines=np.arange(len(words)),
            sentence_offsets=offsets, documents=spans, num_skipped=0, source='texts',
        )
        windows = conll_windows(
            examples, model.encode_all, labels, max_length=model.max_length,
            document_context=False, **model.vocab.ends, unk_id=model.vocab.unk_id,
        )
        return (texts, windows), Units(windows.sequences)

    def results(
        made: tuple[list[_Words], ConllWindows], outputs: Outputs
    ) -> Iterator[dict[str, Any]]:
        texts, windows = made
        places = np.flatnonzero(windows.word_index >= 0)
        logits = np.empty((len(places), len(labels)))
        if len(places):
            logits[windows.word_index[places]] = outputs['logits'][places]
        bounds = np.cumsum([len(text.words) for text in texts])[:-1]
        for text, of_text in zip(texts, np.split(logits, bounds), strict=True):
            yield _result(text, of_text, labels)

    return stream(
        model, texts, read=read, make=make, results=results,
        function=model.objective.outputs,
        refused=lambda text, reason: {
            'text': shown(text).get('text'), 'tags': [], 'entities': [], 'error': reason},
    )


def _words(text: Any) -> _Words:
    if isinstance(text, str):
        words, begins, at = raw_words(text), [], 0
        for word in words:
            at = text.index(word, at)
            begins.append(at)
            at += len(word)
        return _Words(text, words, begins)
    if not isinstance(text, Sequence) or not all(isinstance(word, str) for word in text):
        raise InputError(f'{text!r:.60} is no text: a str, or a list of words, is expected')
    ends = np.cumsum([len(word) + 1 for word in text]).tolist()
    return _Words(' '.join(text), list(text), [0, *ends][: len(text)])


def _result(text: _Words, logits: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    tags = [
        {
            'word': word, 'label': labels[i], 'probability': float(row[i]), 'start': begin,
            'end': begin + len(word),
        }
        for word, begin, row, i in zip(
            text.words, text.begins, probabilities, probabilities.argmax(axis=1).tolist(),
            strict=True)
    ]
    return {'text': text.text, 'tags': tags, 'entities': entities(text.text, tags, labels)}


def entities(
    text: str, tags: Sequence[dict[str, Any]], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """Words that belong together by their labels, as the evaluation counts them.

    Args:
      text: which the words are of.
      tags: of the words, as `Model.tag` gives them.
      labels: all that there are; those of no scheme of entities (parts of speech) make none.
    """
    if not are_entities(labels):
        return []
    found: list[dict[str, Any]] = []
    in_iob2 = normal_tags([x['label'] for x in tags], np.array([0, len(tags)]))
    for of_word, label in zip(tags, in_iob2, strict=True):
        if label == 'O':
            continue
        if label.startswith('B-'):
            found.append(of_word | {'label': label[2:]})
        entity = found[-1]
        entity['end'] = of_word['end']
        entity['probability'] = min(entity['probability'], of_word['probability'])
    return [
        {
            'text': text[x['start'] : x['end']], 'label': x['label'], 'start': x['start'],
            'end': x['end'], 'probability': x['probability'],
        }
        for x in found
    ]
