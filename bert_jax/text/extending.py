"""Adding words to a vocabulary.

Words replace `[unused...]` tokens first, then get new lines. The result is an ordinary `vocab.txt`.
WordPiece is greedy, so a longer word that begins with an added one is split after it; all other
words keep their pieces.
"""

import os
from collections.abc import Iterable, Sequence

from bert_jax.runtime.errors import InputError
from bert_jax.text import load_tokenizer
from bert_jax.text.vocab import is_unused, read_lines, unused_row
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer, basic_tokens

_SHOWN = 5  # words in a note


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
      InputError: a file that cannot be read, a SentencePiece vocabulary, or a line that is not
        one word.
    """
    if os.fspath(vocab_file).endswith('.model'):
        raise InputError(
            f'config.data.add_tokens={words_file}: the vocabulary {vocab_file} is a SentencePiece '
            'model, to which words cannot be added: leave config.data.add_tokens empty')
    tokenizer = load_tokenizer(vocab_file, lowercase)
    assert isinstance(tokenizer, WordPieceTokenizer)
    words = _read_words(words_file, lowercase, switches)
    known = set(tokenizer.vocab.tokens)
    new = [word for word in dict.fromkeys(words) if word not in known]
    tokens, num_in_slots = _place(new, tokenizer)

    notes = []
    passed_over = _passed_over(words, known)
    if passed_over:
        shown = ', '.join(passed_over[:_SHOWN])
        if len(passed_over) > _SHOWN:
            shown += ', ...'
        notes.append(f'{words_file}: named twice, or in {vocab_file} already: {shown}')
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
