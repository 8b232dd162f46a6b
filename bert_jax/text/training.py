"""Making a vocabulary: training one on plain text, or adding words to one that exists.

Training: byte-pair merges are learned by SentencePiece from counted words. Two things make its
pieces fit BERT's greedy longest-match tokenizer:

- The first letter of a word is a symbol of its own (a private code point), so that `th` and
  `##th` are learned apart, each on its merit, without spending tokens on intermediate merges.
- Tokenizing in the order of the merges needs many pieces only on the way to longer ones; greedy
  matching skips those. So more pieces are learned than needed, the words are tokenized greedily,
  and the pieces used least are dropped, in a few rounds.

Adding: words replace `[unused...]` tokens first, then get new lines. The result is an ordinary
`vocab.txt`. WordPiece is greedy, so a longer word that begins with an added one is split after it;
all other words keep their pieces.
"""

import collections
import io
import itertools
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sentencepiece

from bert_jax.runtime.errors import InputError
from bert_jax.text import load_tokenizer, wordpiece
from bert_jax.text.vocab import (
    CONTINUATION,
    SPECIAL_TOKENS,
    Vocab,
    is_unused,
    read_lines,
    unused_row,
)
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer, basic_tokens

_MAX_COUNTED_WORDS = 4_000_000  # about 0.5 GB
_MAX_TRAINED_WORDS = 1_000_000
_MAX_PIECE_CHARS = 32
_CHARACTER_COVERAGE = 0.9999
_EXTRA_CHARACTERS = 12  # a twelfth of the vocabulary may go to rare characters
_SURPLUS = 1.25  # pieces learned for each piece kept
_PRUNING_ROUNDS = 4
_UNUSED = 99  # slots, at most
_FIRST_LETTERS = 0xF0000  # planes 15 and 16: private use
_SHOWN = 5  # words in a note
_VOICING = '\u3099\u309a'  # of kana
_SPACE_MARK = '\u2581'  # SentencePiece's own stand-in for a space


def train_wordpiece(
    texts: Iterable[str], vocab_size: int, lowercase: bool, switches: Switches = ORIGINAL
) -> list[str]:
    """Train a BERT vocabulary.

    The tokens stand where Google's released vocabularies have them: [PAD] 0, [unused0] to
    [unused98] 1 to 99, [UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103, then characters, then longer
    pieces, the most frequent first. Unused slots take no more than a twentieth of the
    vocabulary: below 1,980 tokens there are fewer, and the ids after them move down.

    A character is covered if it is among those that make up 99.99 % of the text. It gets two
    tokens, `x` and `##x`, so that it is matched anywhere, or one if it is always a word by itself
    (punctuation, CJK). Where `vocab_size` cannot hold the characters, the most frequent win.

    The result depends on the texts, their order and the arguments only. Memory is bounded:
    beyond four million distinct words the rarest are forgotten on the way.

    Args:
        texts: lines, paragraphs or documents.
        vocab_size: the number of tokens wanted.
        lowercase: true for an uncased vocabulary.
        switches: of the tokenizer that it is for.

    Returns:
        `vocab_size` tokens; fewer where the text holds no more distinct pieces.

    Raises:
        InputError: there is no text, or `vocab_size` is too small for any character.
    """
    unused = [f'[unused{i}]' for i in range(min(_UNUSED, vocab_size // 20))]
    tokens = [SPECIAL_TOKENS[0], *unused, *SPECIAL_TOKENS[1:]]
    if vocab_size < len(tokens) + 2:
        raise InputError(
            f'vocab_size={vocab_size} leaves no room for characters beside the special '
            f'tokens: take at least {len(tokens) + 2}, better thousands')
    counts = count_basic_tokens(texts, lowercase, switches)
    if not counts:
        raise InputError('the training text holds no words; check data.source')

    characters, rare_characters = _characters(counts, vocab_size - len(tokens))
    tokens += characters
    known = frozenset(characters)
    words = {
        word: count for word, count in counts.items()
        if 1 < len(word) <= wordpiece.MAX_CHARS_PER_WORD
        and all(c in known and c != _SPACE_MARK and ord(c) < _FIRST_LETTERS for c in word)}
    words = {word: words[word] for word in _by_frequency(words)[:_MAX_TRAINED_WORDS]}
    room = vocab_size - len(tokens)
    pieces = _learn_pieces(words, int(room * _SURPLUS)) if room and words else []
    tokens += _prune(pieces, room, characters, words, lowercase)
    tokens += rare_characters[: vocab_size - len(tokens)]
    return tokens


def count_basic_tokens(
    texts: Iterable[str], lowercase: bool, switches: Switches = ORIGINAL
) -> collections.Counter[str]:
    """The number of occurrences of each basic token in `texts`.

    Runs between white space are counted first: tokenizing each distinct one once is an order of
    magnitude faster than tokenizing the text. At most `_MAX_COUNTED_WORDS` are kept: when there
    are more, those seen least go, with a threshold that rises until half the room is free.
    """
    runs: collections.Counter[str] = collections.Counter()
    for text in texts:
        runs.update(wordpiece.raw_words(text))
        if len(runs) > _MAX_COUNTED_WORDS:
            threshold = 1
            while len(runs) > _MAX_COUNTED_WORDS // 2:
                threshold += 1
                runs = collections.Counter({run: n for run, n in runs.items() if n >= threshold})
    return _weighted((basic_tokens(run, lowercase, switches), count) for run, count in runs.items())


def stripped_marks(texts: Iterable[str]) -> tuple[float, list[str]]:
    """What stripping accents takes from scripts in which these marks are no accents.

    After lower-casing, the original decomposes letters and drops all characters of category Mn. In
    Hindi, Thai or Khmer many of them are vowels, in Japanese they tell が from か.

    Args:
        texts: lines, paragraphs or documents.

    Returns:
        (their share of all characters but white space, some of the most frequent). The accents of
        Latin, Greek and Cyrillic do not count as marks.
    """
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(unicodedata.normalize('NFD', text.lower()))
    marks = collections.Counter({
        char: count for char, count in counts.items()
        if unicodedata.category(char) == 'Mn' and not _is_accent(char)})
    total = sum(count for char, count in counts.items() if not char.isspace())
    return marks.total() / max(1, total), _by_frequency(marks)[:_SHOWN]


def _is_accent(mark: str) -> bool:
    """Whether it is a mark of Latin, Greek or Cyrillic, or chooses the look of an emoji."""
    named = unicodedata.name(mark, '').startswith(('COMBINING ', 'VARIATION SELECTOR'))
    return named and mark not in _VOICING


def _weighted(parts: Iterable[tuple[Iterable[Any], int]]) -> collections.Counter[Any]:
    """The number of occurrences of each part, from (parts of a word, its occurrences)."""
    counts: collections.Counter[Any] = collections.Counter()
    for found, count in parts:
        for part in found:
            counts[part] += count
    return counts


def _by_frequency(counts: Mapping[str, int]) -> list[str]:
    """Most frequent first; ties by code point, so that the order of the text does not matter."""
    return sorted(counts, key=lambda item: (-counts[item], item))


def _characters(counts: Mapping[str, int], room: int) -> tuple[list[str], list[str]]:
    """Tokens for the characters to cover, within `room`, and for those left over.

    First come those that make up 99.99 % of the text. Then, in a twelfth of the room, others, ASCII
    first: other texts will have characters that are rare in this one, such as `@`.
    """
    seen = _weighted(counts.items())
    ranked = _by_frequency(seen)
    before = itertools.accumulate((seen[char] for char in ranked), initial=0)
    num_frequent = sum(total < _CHARACTER_COVERAGE * seen.total() for total in before)
    others = sorted(ranked[num_frequent:], key=lambda char: not char.isascii())

    def forms(chars: list[str]) -> list[str]:
        """Two tokens a character; one where it is always a word by itself."""
        return [mark + char for char in chars for mark in ('', CONTINUATION)
                if not mark or not (wordpiece.is_punctuation(char) or wordpiece.is_cjk(char))]

    covered, optional = forms(ranked[:num_frequent]), forms(others)
    extra = min(room // _EXTRA_CHARACTERS, max(0, room - len(covered)))
    return covered[:room] + optional[:extra], covered[room:] + optional[extra:]


def _learn_pieces(words: Mapping[str, int], num_pieces: int) -> list[str]:
    """Up to `num_pieces` pieces of two or more characters, in the order of the merges."""
    letters = sorted({word[0] for word in words})
    to_private = {letter: chr(_FIRST_LETTERS + i) for i, letter in enumerate(letters)}
    from_private = {private: letter for letter, private in to_private.items()}
    marked = {to_private[word[0]] + word[1:]: count for word, count in words.items()}
    num_symbols = len(set().union(*marked))

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=(f'{word}\t{count}' for word, count in marked.items()),
        input_format='tsv', model_writer=model, model_type='bpe',
        vocab_size=num_symbols + num_pieces + 1,
        hard_vocab_limit=False,  # fewer where the text has no more
        character_coverage=1.0, max_sentencepiece_length=_MAX_PIECE_CHARS,
        normalization_rule_name='identity', add_dummy_prefix=False,
        split_by_unicode_script=False, split_by_number=False,
        unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1, num_threads=1, minloglevel=2)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    learned = [processor.IdToPiece(i) for i in range(1, processor.GetPieceSize())]
    return [
        from_private[piece[0]] + piece[1:] if piece[0] in from_private else CONTINUATION + piece
        for piece in learned
        if len(piece) > 1 and _SPACE_MARK not in piece]


def _prune(
    pieces: Sequence[str], room: int, characters: Sequence[str], words: Mapping[str, int],
    lowercase: bool,
) -> list[str]:
    """The `room` pieces that greedy longest-match uses most, most used first."""
    surplus = max(0, len(pieces) - room)
    kept = list(pieces)
    for rounds_left in range(_PRUNING_ROUNDS if surplus else 1, 0, -1):
        fixed = [*SPECIAL_TOKENS, *characters]
        cut = WordPieceTokenizer(Vocab.from_tokens([*fixed, *kept]), lowercase).pieces
        uses = _weighted((cut(word), count) for word, count in words.items())
        order = sorted(range(len(kept)), key=lambda i: -uses[len(fixed) + i])
        drop = -(-surplus // rounds_left)
        surplus -= drop
        kept = [kept[i] for i in order[: len(order) - drop]]
    return kept


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
    seen, taken = set(tokenizer.vocab.tokens), {i for _, i in tokenizer.added}
    tokens = list(tokenizer.word_pieces.tokens)  # added tokens stay in the file beside it
    tokens += map(unused_row, range(len(tokens), len(tokenizer.vocab)))
    new: list[str] = []
    passed_over: list[str] = []
    for number, line in enumerate(read_lines(words_file, 'words', 'config.data.add_tokens'), 1):
        parts = basic_tokens(line, lowercase, switches)
        if line.strip() and (
                len(parts) != 1 or basic_tokens(parts[0], lowercase, switches) != parts):
            raise InputError(
                f'{words_file}: line {number} is {line.strip()[:80]!r}, which BERT splits into '
                f'{len(parts)} words before the vocabulary is asked: write one word a line, '
                'without spaces and punctuation marks')
        for word in parts:
            (passed_over if word in seen else new).append(word)
            seen.add(word)
    unused = [i for i, token in enumerate(tokens) if is_unused(token) and i not in taken]
    unused = unused[: len(new)]
    for i, word in zip(unused, new, strict=False):
        tokens[i] = word
    tokens += new[len(unused) :]
    notes = []
    if passed_over:
        notes.append(f'{words_file}: named twice, or in {vocab_file} already: '
                     + ', '.join(passed_over[:_SHOWN]) + ', ...' * (len(passed_over) > _SHOWN))
    if new:
        notes.append(f'{len(new)} words added to the vocabulary, {len(unused)} of them in [unused] '
                     f'slots: {len(tokens):,} tokens')
    return tokens, notes
