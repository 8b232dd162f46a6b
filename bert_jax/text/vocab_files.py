"""Files of tokenizers: what they hold, and a WordPiece vocabulary among them.

The format of a vocabulary is Google BERT's: one token per line, whose id is the line number (from
0).
"""

import os
from collections.abc import Iterable

from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import (
    as_path,
    check_no_pointer,
    check_size,
    lone_cr,
    near_file,
    read_bytes,
    write_whole,
)
from bert_jax.text.vocab import Vocab

_MOST_MIB = 64  # of a tokenizer's file; that of XLM-R, with 250,000 pieces, has 17


def read_vocab(path: str | os.PathLike[str]) -> Vocab:
    """Reads a vocabulary file.

    Lines are stripped of all Unicode white space, as Google's `load_vocab` does. Tokens made
    of nothing but white space cannot occur in text; they keep their line so that the ids
    after them hold.

    Raises:
      InputError: the file is missing, a directory, empty, not UTF-8 text, or lacks a special
        token.
    """
    lines = read_lines(path)
    # Google maps token -> line number and lets later lines win. Where stripping makes two
    # different lines equal, the later one therefore owns the token, and the earlier one keeps
    # its white space, with which it never matches.
    last = {line.strip(): line for line in lines}
    tokens = []
    for line in lines:
        token = line.strip()
        tokens.append(token if token and last[token] == line else line)
    vocab = Vocab.from_tokens(tokens, source=str(path))
    _note_repeated(vocab, path)
    return vocab


def _note_repeated(vocab: Vocab, path: str | os.PathLike[str]) -> None:
    """Says that lines of a vocabulary's file are equal, if some are."""
    if not vocab.repeated:
        return
    first = vocab.repeated[0]
    token = vocab.tokens[first]
    tell_once(
        f'note: {path}: repeated or empty lines ({len(vocab.repeated)} of them, such as line '
        f'{first + 1}, {token!r}, again in line {vocab.index[token] + 1}): as in the original, '
        'the last of equal lines counts, and the ids stay as they are')


def read_file(path: str | os.PathLike[str], what: str, field: str) -> bytes:
    """The content of a file.

    Raises:
      InputError: it cannot be read, is too large or empty; the message names `what` and the
        config's `field`.
    """
    check_size(path, _MOST_MIB)
    try:
        data = read_bytes(as_path(path))
    except OSError as error:
        remedy = near_file(path) or f'check {field}'
        raise InputError(f"{path}: the {what} file cannot be read "
                         f"({error.strerror or 'No such file'}): {remedy}") from None
    check_no_pointer(as_path(path), data)
    if not data.strip():
        raise InputError(f'{path}: the {what} file is empty; check {field}')
    return data


def read_lines(
    path: str | os.PathLike[str], what: str = 'vocabulary', field: str = 'vocab_file'
) -> list[str]:
    """The lines of a UTF-8 file, split at `\\n` only: tokens may hold other line separators.

    A `\\r` before it is no part of the line.

    Raises:
      InputError: where `read_file` raises it, the file is not UTF-8, or a CR stands within a line.
    """
    text = read_text(path, what, field)
    lines = text.removeprefix('\ufeff').rstrip('\r\n').split('\n')
    if '\r' in text:
        for number, line in enumerate(lines, 1):
            if '\r' in line.strip():
                raise InputError(lone_cr(path, number))
    return [line.removesuffix('\r') for line in lines]


def read_text(path: str | os.PathLike[str], what: str, field: str) -> str:
    """The text of a UTF-8 file.

    Raises:
      InputError: where `read_file` raises it, or the file is not UTF-8.
    """
    data = read_file(path, what, field)
    try:
        return data.decode('utf-8')
    except UnicodeDecodeError as error:
        line = data.count(b'\n', 0, error.start) + 1
        raise InputError(
            f'{path}: line {line} is not UTF-8 (byte 0x{data[error.start]:02x} at offset '
            f'{error.start}); convert it to UTF-8 (a SentencePiece model is called NAME.model)'
        ) from None


def vocab_content(tokens: Iterable[str]) -> str:
    """The content of a vocabulary's file: one token per line."""
    return ''.join(f'{token}\n' for token in tokens)


def write_vocab(path: str | os.PathLike[str], tokens: Iterable[str]) -> None:
    """Writes one token per line; the file appears whole or not at all."""
    write_whole(path, vocab_content(tokens))
