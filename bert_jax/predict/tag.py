"""Labels of words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bert_jax.predict import heads
from bert_jax.predict.loaded import LoadedModel
from bert_jax.predict.rows import Tokens
from bert_jax.predict.runner import each_token
from bert_jax.predict.windows import sliding, with_most_context
from bert_jax.text.wordpiece import raw_words


def tag(model: LoadedModel, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """A label for each word; see `Model.tag`."""
    model.need('tag')
    runner = model.runner
    labels = model.weights.labels
    vocab = model.tokenizer.vocab
    size = model.max_length - 2

    def program(states):  # type: ignore[no-untyped-def]
        return heads.token_logits(
            runner.params, states[0], config=model.config, path=('classifier',)
        )

    def items():  # type: ignore[no-untyped-def]
        for number, text in enumerate(texts):
            model.encode(text, number)  # refuses empty ones
            words = raw_words(text)
            # A word without pieces (control characters) has a label all the same.
            pieces = [model.tokenizer.encode(word) or [vocab.unk_id] for word in words]
            ids = [i for word in pieces for i in word]
            firsts = np.cumsum([0, *map(len, pieces)])[:-1]
            windows = sliding(len(ids), size, max(1, size // 2))
            sequences = [Tokens.of(vocab, ids[begin : begin + n]) for begin, n in windows]
            yield (text, words, firsts, windows), sequences

    for (text, words, firsts, windows), results in runner.stream(items(), each_token(program)):
        best = with_most_context(windows, sum(windows[-1]))
        logits = np.stack([
            results[best[at]][1 + at - windows[best[at]][0]] for at in firsts
        ]).astype(np.float64)
        probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        yield {
            'text': text,
            'tags': [
                {'word': word, 'label': labels[i], 'probability': float(row[i])}
                for word, row, i in zip(
                    words, probabilities, probabilities.argmax(axis=1).tolist(), strict=True)
            ],
        }
