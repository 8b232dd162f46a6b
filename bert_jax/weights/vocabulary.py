"""The vocabulary beside a model's weights: compared with them, written."""

from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import Path
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.vocab import is_unused, unused_row
from bert_jax.text.vocab_files import write_vocab
from bert_jax.text.wordpiece import WordPieceTokenizer
from bert_jax.weights.parameters import Weights


def check_vocabulary(
    path: Path | None, lowercase: Any, vocab_size: int, source: Path | None = None,
    warn: Callable[[str], None] = tell_once,
) -> tuple[Path | None, bool]:
    """(The vocabulary, whether text is lower-cased before WordPiece).

    The latter is `lowercase`; if that is None, it follows from the vocabulary (`Vocab.is_cased`).
    An embedding may have more rows than there are tokens: some are padded for speed.

    Args:
      path: of its file; None: there is none.
      lowercase: as the files beside it say, or None.
      vocab_size: rows of the embedding.
      source: what messages call it; default: `path`.
      warn: receives a line if the embedding has more rows.

    Raises:
      InputError: it has more tokens than the embedding has rows.
    """
    if path is None:
        return None, lowercase is not False
    vocab = load_tokenizer(path, lowercase=True).vocab
    sizes = f'{source or path} has {len(vocab)} tokens, the embedding has {vocab_size} rows'
    num_unused = vocab_size - len(vocab)
    if num_unused < 0:
        raise InputError(f'{sizes}: put the vocabulary beside it that belongs to it')
    if num_unused:
        warn(f'note: {sizes}: no text uses the last {num_unused}; if it is the vocabulary of '
                  'another model, put the one there that belongs to it')
    if lowercase is None:
        return path, vocab.is_cased is not True
    return path, bool(lowercase)


def check_order(
    weights: Weights, vocab_file: Any, tokens: Sequence[str], remedy: str
) -> Sequence[str]:
    """The tokens of the weights' own vocabulary; () without one.

    Raises:
      InputError: `tokens`, which `vocab_file` holds, have another token at an id of these; only
        the ids of `[unused…]` tokens may be taken.
    """
    if weights.vocab_file is None:
        return ()
    known = load_tokenizer(weights.vocab_file, weights.lowercase).vocab.tokens
    for line, (token, expected) in enumerate(zip(tokens, known, strict=False), 1):
        if token != expected and not is_unused(expected):
            raise InputError(f'{vocab_file}: line {line} is {token!r}, and {expected!r} in '
                             f'{weights.vocab_file}, the vocabulary of {weights.source}: {remedy}')
    return known


def write_vocabulary(folder: Path, weights: Weights, tokenizer: WordPieceTokenizer) -> None:
    """Writes the vocab.txt of the weights' tokenizer.

    The rows of the embedding that have no token, and those of added tokens, which stand in other
    files, get names that occur in no text.
    """
    tokens = list(tokenizer.word_pieces.tokens)
    tokens += map(unused_row, range(len(tokens), weights.model['vocab_size']))
    write_vocab(folder / 'vocab.txt', tokens)
