"""Adding words to a vocabulary.

In a WordPiece vocabulary, words replace `[unused...]` tokens first, then get new lines. The result
is an ordinary `vocab.txt`. WordPiece is greedy, so a longer word that begins with an added one is
split after it; all other words keep their pieces.

In a tokenizer.json, words become added tokens with new ids behind the others. They are found where
no letter or digit touches them, with the space before them; no other word changes.
"""

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bert_jax.runtime.errors import InputError
from bert_jax.text.huggingface import HuggingFaceTokenizer
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.vocab import is_unused, unused_row
from bert_jax.text.vocab_files import read_lines
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer, basic_tokens

_SHOWN = 5  # words in a note


class Extended(NamedTuple):
    """A vocabulary with words added.

    Attributes:
      content: of its file.
      num_tokens: in it.
      notes: for the user.
    """

    content: str
    num_tokens: int
    notes: list[str]


def extend(
    vocab_file: str | os.PathLike[str], words_file: str | os.PathLike[str], lowercase: bool,
    switches: Switches = ORIGINAL,
) -> Extended:
    """A vocabulary of any kind that words can be added to, with those of a file.

    Arguments are those of `add_words`.

    Raises:
      InputError: a file cannot be read, a line is not one word, or the kind takes no words.
    """
    tokenizer = load_tokenizer(vocab_file, lowercase)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return _with_added_tokens(tokenizer, vocab_file, words_file)
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise InputError(
            f'config.data.add_tokens={words_file}: words cannot be added to {vocab_file}, which is '
            f'of the kind {tokenizer.algorithm}: leave config.data.add_tokens empty')
    tokens, notes = add_words(vocab_file, words_file, lowercase, switches)
    return Extended(''.join(f'{token}\n' for token in tokens), len(tokens), notes)


def _with_added_tokens(
    tokenizer: HuggingFaceTokenizer, vocab_file: object, words_file: str | os.PathLike[str]
) -> Extended:
    """`extend` of a tokenizer.json.

    Raises:
      InputError: the words cannot be read, or one has white space inside.
    """
    words = []
    for number, line in enumerate(read_lines(words_file, 'words', 'config.data.add_tokens'), 1):
        parts = line.split()
        if len(parts) > 1:
            raise InputError(f'{words_file}: line {number} is {line.strip()[:80]!r}: write one '
                             'word a line, without spaces')
        words += parts
    known = [word for word in words if _is_one_piece(tokenizer, word)]
    new = [word for word in dict.fromkeys(words) if word not in known]
    content = tokenizer.with_words(new)
    notes = _notes_of_known(_passed_over(words, known), words_file, vocab_file)
    num_tokens = len(tokenizer.vocab) + len(new)
    if new:
        notes.append(f'{len(new)} words added to the vocabulary: {num_tokens:,} tokens')
    return Extended(content, num_tokens, notes)


def _is_one_piece(tokenizer: HuggingFaceTokenizer, word: str) -> bool:
    """Whether a text's words that are not its first have one piece for a word, not [UNK]."""
    _, ids = tokenizer.encode_words(['', word])
    return len(ids) == 1 and ids != [tokenizer.vocab.unk_id]


def _notes_of_known(
    words: Sequence[str], words_file: object, vocab_file: object
) -> list[str]:
    """A note of the words that are passed over, if any are."""
    if not words:
        return []
    shown = ', '.join(words[:_SHOWN])
    if len(words) > _SHOWN:
        shown += ', ...'
    return [f'{words_file}: named twice, or in {vocab_file} already: {shown}']


def add_words(
    vocab_file: str | os.PathLike[str], words_file: str | os.PathLike[str], lowercase: bool,
    switches: Switches = ORIGINAL,
) -> tuple[list[str], list[str]]:
    """A vocabulary with the words of a file added.

    Args:
      vocab_file: a WordPiece vocabulary.
      words_file: one word per line, in UTF-8; empty lines are skipped.
      lowercase: whether the vocabulary is uncased; if so, the words are lower-cased like text.
      switches: of the vocabulary's tokenizer.

    Returns:
      (tokens by id, notes for the user). If the vocabulary has all of the words already, the
      tokens are unchanged.

    Raises:
      InputError: a file that cannot be read, or a line that is not one word.
    """
    tokenizer = load_tokenizer(vocab_file, lowercase)
    assert isinstance(tokenizer, WordPieceTokenizer)
    words = _read_words(words_file, lowercase, switches)
    known = set(tokenizer.vocab.tokens)
    new = [word for word in dict.fromkeys(words) if word not in known]
    tokens, num_in_slots = _place(new, tokenizer)

    notes = _notes_of_known(_passed_over(words, known), words_file, vocab_file)
    if new:
        notes.append(f'{len(new)} words added to the vocabulary, {num_in_slots} of them in '
                     f'[unused] slots: {len(tokens):,} tokens')
    return tokens, notes


def _place(words: Sequence[str], tokenizer: WordPieceTokenizer) -> tuple[list[str], int]:
    """(Tokens of a vocabulary with new words, number of words in place of unused tokens)."""
    # Added tokens stay in the file beside the vocabulary; here their ids are unused.
    tokens = list(tokenizer.word_pieces.tokens)
    tokens += [unused_row(i) for i in range(len(tokens), len(tokenizer.vocab))]
    taken = {number for _, number in tokenizer.added}
    slots = [i for i, token in enumerate(tokens) if is_unused(token) and i not in taken]
    num_in_slots = min(len(slots), len(words))
    for i in range(num_in_slots):
        tokens[slots[i]] = words[i]
    tokens += words[num_in_slots:]
    return tokens, num_in_slots


def _read_words(
    words_file: str | os.PathLike[str], lowercase: bool, switches: Switches
) -> list[str]:
    """The words of a file with one on each line, as they are after basic tokenization.

    Raises:
      InputError: the file cannot be read, or a line is not one word.
    """
    words = []
    lines = read_lines(words_file, 'words', 'config.data.add_tokens')
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        parts = basic_tokens(line, lowercase, switches)
        # A word must stay as it is where a text has it.
        if len(parts) != 1 or basic_tokens(parts[0], lowercase, switches) != parts:
            raise InputError(
                f'{words_file}: line {number} is {line.strip()[:80]!r}, which BERT splits into '
                f'{len(parts)} words before the vocabulary is asked: write one word a line, '
                'without spaces and punctuation marks')
        words += parts
    return words


def _passed_over(words: Iterable[str], known: Iterable[str]) -> list[str]:
    """The words that are known, or that stand in `words` before."""
    seen = set(known)
    found = []
    for word in words:
        if word in seen:
            found.append(word)
        seen.add(word)
    return found
