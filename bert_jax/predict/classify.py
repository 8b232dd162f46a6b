"""Commands over the pooled vector: next sentence, classification, regression, multiple choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.data.pairs import truncated_lengths
from bert_jax.errors import InputError
from bert_jax.predict import heads
from bert_jax.predict.loaded import LoadedModel, Text
from bert_jax.predict.rows import Tokens
from bert_jax.predict.runner import Read, each_position


def next_sentence(
    model: LoadedModel, pairs: Iterable[Sequence[str]]
) -> Iterator[dict[str, Any]]:
    """How likely B follows A; see `Model.next_sentence`."""
    model.need('next-sentence')
    items = ((pair, [sequence(model, pair, i, (2,))]) for i, pair in enumerate(pairs))
    read = _pooled(model, ('cls', 'seq_relationship'))
    for (first, second), (logits,) in model.runner.stream(items, read):
        yield {'first': first, 'second': second, 'probability': float(_softmax(logits[0])[0])}


def classify(model: LoadedModel, texts: Iterable[Text]) -> Iterator[dict[str, Any]]:
    """Labels of texts or pairs, values, or choices; see `Model.classify`."""
    model.need('classify')
    head = model.weights.head
    read = _pooled(model, ('classifier',))
    if head == 'multiple_choice':
        choices = ((text, _choices(model, text, i)) for i, text in enumerate(texts))
        for text, results in model.runner.stream(choices, read):
            probabilities = _softmax(np.array([x[0, 0] for x in results]))
            best = int(probabilities.argmax())
            yield {
                'text': text[0], 'choices': list(text[1:]), 'choice': best,
                'probability': float(probabilities[best]), 'probabilities': probabilities.tolist(),
            }
        return
    items = ((text, [sequence(model, text, i, (1, 2))]) for i, text in enumerate(texts))
    labels = model.weights.labels
    for text, (logits,) in model.runner.stream(items, read):
        parts = [text] if isinstance(text, str) else list(text)
        shown = dict(zip(('first', 'second') if len(parts) == 2 else ('text',), parts))
        if head == 'regression':
            yield shown | {'value': float(logits[0, 0])}
            continue
        probabilities = _softmax(logits[0])
        best = int(probabilities.argmax())
        yield shown | {
            'label': labels[best], 'probability': float(probabilities[best]),
            'probabilities': dict(zip(labels, probabilities.tolist(), strict=True)),
        }


def sequence(model: LoadedModel, text: Text, number: int, allowed: tuple[int, ...]) -> Tokens:
    """The sequence of a text or a pair, cut to what the model takes, to be read at [CLS].

    Args:
      model: says how long it may be.
      text: one text or several.
      number: of the text in the input, from 0, for messages.
      allowed: how many texts there may be in one.

    Raises:
      InputError: another number of texts, or an empty one.
    """
    parts = [text] if isinstance(text, str) else list(text)
    if len(parts) not in allowed:
        wanted = ' or '.join(('one text', 'two texts')[n - 1] for n in allowed)
        raise InputError(f'text {number + 1} has {len(parts)} parts: {wanted} expected')
    ids = [model.encode(part, number) for part in parts]
    kept = np.array([len(x) for x in ids])
    budget = model.max_length - 1 - len(ids)
    if kept.sum() > budget:
        model.note(
            f'text {number + 1} has {kept.sum()} tokens, the model takes {budget}: its end is '
            'left out'
        )
        if len(ids) == 1:
            kept[0] = budget
        else:
            kept = np.concatenate(truncated_lengths(kept[:1], kept[1:], budget))
    cut = [x[:n] for x, n in zip(ids, kept.tolist(), strict=True)]
    second = cut[1] if len(cut) > 1 else None
    return Tokens.of(model.tokenizer.vocab, cut[0], second, positions=[0])


def _choices(model: LoadedModel, text: Text, number: int) -> list[Tokens]:
    if isinstance(text, str) or len(text) < 3:
        raise InputError(
            f'text {number + 1} has no choices: a beginning and two or more ends of it expected'
        )
    return [sequence(model, (text[0], end), number, (2,)) for end in text[1:]]


def _pooled(model: LoadedModel, path: tuple[str, ...]) -> Read:
    runner = model.runner

    def program(x, positions, targets):  # type: ignore[no-untyped-def]
        del targets
        return heads.pooled_logits(runner.params, x, positions, config=model.config, path=path)

    return each_position(program)


def _softmax(logits: np.ndarray) -> np.ndarray:
    x = np.exp(logits.astype(np.float64) - logits.max())
    return x / x.sum()
