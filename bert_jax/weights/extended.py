"""Weights for a vocabulary that has words more than the one that they were trained with."""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.text.added import is_unused
from bert_jax.text.load import load_tokenizer
from bert_jax.weights.description import Weights
from bert_jax.weights.names import VOCABULARY_ROWS


def extended(weights: Weights, vocab_file: Path) -> tuple[Weights, list[str]]:
    """The weights with a row for each token of another vocabulary.

    A token that is new (in the place of an `[unused…]` one, or behind the last) starts at the mean
    of the rows of the pieces that its word had before, in the word table and in the output bias.

    Args:
      weights: with their vocabulary, or without one.
      vocab_file: of the model that is to start from them.

    Returns:
      (the weights, notes). They are `weights` themselves where nothing is new, or where they bring
      no vocabulary to compare with.

    Raises:
      InputError: a token that the weights know stands elsewhere in `vocab_file`.
    """
    if weights.vocab_file is None:
        return weights, []
    before = load_tokenizer(weights.vocab_file, weights.lowercase)
    old = before.vocab.tokens
    tokens = load_tokenizer(vocab_file, weights.lowercase).vocab.tokens
    new = []
    for i, token in enumerate(tokens):
        if i < len(old) and token == old[i]:
            continue
        if i < len(old) and not is_unused(old[i]):
            raise InputError(
                f'{vocab_file}: line {i + 1} is {token!r}, and {old[i]!r} in {weights.vocab_file}, '
                f'the vocabulary of {weights.source}: leave config.data.vocab_file empty to take '
                'that one (config.data.add_tokens adds words to it)'
            )
        if not is_unused(token):
            new.append(i)
    if not new:
        return weights, []
    pieces = {i: before.encode(tokens[i]) or [before.vocab.unk_id] for i in new}
    params, num_rows = dict(weights.params), max(len(tokens), weights.model['vocab_size'])
    for name in VOCABULARY_ROWS:
        if name in params:
            x = params[name]
            params[name] = rows = np.pad(x, [(0, num_rows - len(x))] + [(0, 0)] * (x.ndim - 1))
            for i, ids in pieces.items():
                rows[i] = x[ids].mean(0)
    notes = [f'{len(new)} tokens that the weights do not know start at the mean of the rows of '
             'their old pieces']
    if unknown := [tokens[i] for i, ids in pieces.items() if ids == [before.vocab.unk_id]]:
        notes.append(f'of them {len(unknown)} had no pieces and start at the row of [UNK], such '
                     f'as {unknown[0]}')
    model = weights.model | {'vocab_size': num_rows}
    return dataclasses.replace(weights, params=params, model=model, vocab_file=vocab_file), notes
