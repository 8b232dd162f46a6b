"""Words that are added to a WordPiece vocabulary: `[unused…]` slots first, then new lines.

The result is an ordinary `vocab.txt`, which every program that reads BERT's vocabularies takes.
WordPiece is greedy, so a longer word that begins with an added one is cut behind it from now on;
all other words keep their pieces.
"""

from __future__ import annotations

import os
import re

from bert_jax.runtime.errors import InputError
from bert_jax.text.vocab import Vocab, read_lines
from bert_jax.text.wordpiece import basic_tokens

_MAX_CHARS = 100  # beyond, Hugging Face's tokenizers make a word [UNK]; the original from 201 on
_SHOWN = 5  # words in a note


def is_unused(token: str) -> bool:
    """Whether a token of a vocabulary stands for nothing: `[unused0]` and the like."""
    return re.fullmatch(r"\[unused[^\[\]]*\]", token) is not None


def add_words(
    vocab_file: str | os.PathLike[str], words_file: str | os.PathLike[str], lowercase: bool
) -> tuple[list[str], list[str]]:
    """A vocabulary with the words of a file added.

    Args:
        vocab_file: a WordPiece vocabulary.
        words_file: one word a line, in UTF-8; empty lines are passed over.
        lowercase: whether the vocabulary is uncased; the words are lower-cased then, as text is.

    Returns:
        (tokens by id, notes for the user). The tokens are those of the vocabulary where it has
        all of the words.

    Raises:
        InputError: a file that cannot be read, a SentencePiece vocabulary, or a line that is not
            one word.
    """
    if os.fspath(vocab_file).endswith(".model"):
        raise InputError(
            f"config.data.add_tokens={words_file}: the vocabulary {vocab_file} is a SentencePiece "
            "model, to which words cannot be added: leave config.data.add_tokens empty"
        )
    vocab = Vocab.from_file(vocab_file)
    words, notes = _read_words(words_file, lowercase)
    new = [word for word in words if word not in vocab]
    if known := [word for word in words if word in vocab]:
        notes.append(f"{words_file}: in {vocab_file} already: {_shown(known)}")
    tokens = list(vocab.tokens)
    slots = [i for i, token in enumerate(tokens) if is_unused(token)][: len(new)]
    for i, word in zip(slots, new, strict=False):
        tokens[i] = word
    tokens += new[len(slots) :]
    if new:
        notes.append(
            f"{len(new)} words added to the vocabulary, {len(slots)} of them in [unused] slots: "
            f"{len(tokens):,} tokens"
        )
    return tokens, notes


def _read_words(
    path: str | os.PathLike[str], lowercase: bool
) -> tuple[list[str], list[str]]:
    """The words as text is tokenized, each once, and notes."""
    lines_of: dict[str, int] = {}
    again = []
    for number, line in enumerate(read_lines(path, "words", "config.data.add_tokens"), 1):
        if not line.strip():
            continue
        parts = basic_tokens(line, lowercase)
        if len(parts) != 1 or basic_tokens(parts[0], lowercase) != parts:
            raise InputError(
                f"{path}: line {number} is {line.strip()[:80]!r}, which BERT splits into "
                f"{len(parts)} words before the vocabulary is asked"
                + (f" ({' '.join(parts)[:80]})" if parts else "")
                + ": write one word a line, without spaces and punctuation marks"
            )
        if len(parts[0]) > _MAX_CHARS:
            raise InputError(
                f"{path}: line {number} has {len(parts[0])} characters; a word of more than "
                f"{_MAX_CHARS} is unknown to other programs: leave it out"
            )
        if parts[0] in lines_of:
            again.append(parts[0])
        lines_of.setdefault(parts[0], number)
    if not lines_of:
        raise InputError(f"{path} names no words; expected one word a line")
    return list(lines_of), [f"{path}: named twice: {_shown(again)}"] if again else []


def _shown(words: list[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
