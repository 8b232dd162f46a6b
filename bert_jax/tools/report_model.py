"""What a run's own weights make of a sentence: for `tools.report`."""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np

from bert_jax.predict.api import Model
from bert_jax.predict.attention import attention
from bert_jax.runtime.errors import InputError
from bert_jax.text.vocab import CONTINUATION, MASK

_TOP = 5
_MOST_WORDS = 30  # a picture of more cannot be read, and a large model's would make a large page
_WORD = re.compile(r'\w+')


def check_text(text: str) -> None:
    """Raises:
      InputError: a text that the page cannot be made of.
    """
    if MASK in text:
        raise InputError(f'--text has {MASK}: write it without, each word is masked in turn')
    if not 0 < (words := len(_WORD.findall(text))) <= _MOST_WORDS:
        raise InputError(f'--text has {words} words: give one sentence, of at most {_MOST_WORDS}')


def masked_words(model: Model, text: str) -> list[dict[str, Any]]:
    """Each word of a text masked in turn: {'word', 'guesses': [(token, probability), ...]}.

    One [MASK] stands for a word, so a word of several pieces cannot be guessed.
    """
    words = list(_WORD.finditer(text))
    masked = [text[: word.start()] + MASK + text[word.end() :] for word in words]
    return [
        {'word': word.group(),
         'guesses': [(p['token'], p['probability']) for p in answer['predictions']]}
        for word, answer in zip(words, model.fill_mask(masked, _TOP), strict=True)
    ]


def heads(model: Model, text: str) -> dict[str, Any]:
    """Attention as the page draws it.

    Returns:
      {'tokens', 'layers', 'heads', 'values': base64 of bytes [layers, heads, n, n], each a
      probability in parts of 255}.
    """
    found = attention(model, text)
    values = np.round(found['probabilities'] * 255).astype(np.uint8)
    return {
        'tokens': found['tokens'], 'layers': values.shape[0], 'heads': values.shape[1],
        'values': base64.b64encode(values.tobytes()).decode(),
    }


def neighbours(model: Model, text: str) -> list[dict[str, Any]]:
    """The pieces of a text with the nearest rows of the word table, by the cosine:
    {'word', 'nearest': [(token, cosine), ...]}."""
    vocab = model.vocab
    known = np.array([re.fullmatch(r'\[.+\]', token) is None for token in vocab.tokens])
    table = model.weights.params['bert/embeddings/word_embeddings'][: len(vocab)].astype(np.float32)
    table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    wanted = [i for i in dict.fromkeys(model.tokenizer.encode(text))
              if known[i] and _WORD.search(vocab.tokens[i].removeprefix(CONTINUATION))]
    found = []
    for i in wanted:
        cosines = np.where(known, table @ table[i], -np.inf)
        cosines[i] = -np.inf
        best = np.argsort(-cosines, kind='stable')[: min(_TOP, int(known.sum()) - 1)]
        found.append({'word': vocab.tokens[i],
                      'nearest': [(vocab.tokens[j], float(cosines[j])) for j in best]})
    return found
