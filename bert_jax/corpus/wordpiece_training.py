"""Training a vocabulary on plain text.

SentencePiece learns byte-pair merges from counted words. Two things make its pieces fit BERT's
greedy longest-match tokenizer:

- The first letter of a word is a symbol of its own (a private code point), so that `th` and
  `##th` are learned apart, each on its merit, without spending tokens on intermediate merges.
- Tokenizing in the order of the merges needs many pieces only on the way to longer ones; greedy
  matching skips those. So more pieces are learned than needed, the words are tokenized greedily,
  and the pieces used least are dropped, in a few rounds.
"""

import collections
import functools
import io
import itertools
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import sentencepiece

from bert_jax.runtime.errors import InputError
from bert_jax.text import wordpiece
from bert_jax.text.vocab import CONTINUATION, SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer, basic_tokens

MAX_COUNTED_WORDS = 4_000_000  # about 0.5 GB

_MAX_TRAINED_WORDS = 1_000_000
_MAX_PIECE_CHARS = 32
_CHARACTER_COVERAGE = 0.9999
_EXTRA_CHARACTERS = 12  # a twelfth of the vocabulary may go to rare characters
_SURPLUS = 1.25  # pieces learned for each piece kept
_PRUNING_ROUNDS = 4
_MAX_UNUSED = 99  # [unused] tokens
_FIRST_LETTERS = 0xF0000  # planes 15 and 16: private use
_SHOWN = 5  # marks
_FEW_MARKS = 0.001  # of the characters
_VOICING = '\u3099\u309a'  # of kana
_SPACE_MARK = '\u2581'  # SentencePiece's own stand-in for a space
_Part = TypeVar('_Part')


def train_wordpiece(
    texts: Iterable[str], vocab_size: int, lowercase: bool, switches: Switches = ORIGINAL
) -> list[str]:
    """Trains a BERT vocabulary.

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
    _first_tokens(vocab_size)  # before the text is read
    return train_wordpiece_on_runs(counted_runs(texts), vocab_size, lowercase, switches)


def train_wordpiece_on_runs(
    runs: Mapping[str, int], vocab_size: int, lowercase: bool, switches: Switches = ORIGINAL
) -> list[str]:
    """Trains a BERT vocabulary on the `counted_runs` of texts; see `train_wordpiece`."""
    tokens = _first_tokens(vocab_size)
    split = functools.partial(basic_tokens, lowercase=lowercase, switches=switches)
    counts = _count_parts(runs, split)
    if not counts:
        raise InputError('the training text holds no words; check data.source')

    characters, rare_characters = _characters(counts, vocab_size - len(tokens))
    tokens += characters
    words = _words_to_learn_from(counts, characters)
    room = vocab_size - len(tokens)
    pieces: list[str] = []
    if room and words:
        pieces = _learn_pieces(words, int(room * _SURPLUS))
    tokens += _prune(pieces, room, characters, words, lowercase)
    tokens += rare_characters[: vocab_size - len(tokens)]
    return tokens


def _first_tokens(vocab_size: int) -> list[str]:
    """The tokens of a vocabulary that stand in front, whatever the text.

    Raises:
      InputError: there is no room for others.
    """
    unused = [f'[unused{i}]' for i in range(min(_MAX_UNUSED, vocab_size // 20))]
    tokens = [SPECIAL_TOKENS[0], *unused, *SPECIAL_TOKENS[1:]]
    if vocab_size < len(tokens) + 2:
        raise InputError(
            f'vocab_size={vocab_size} leaves no room for characters beside the special '
            f'tokens: take at least {len(tokens) + 2}, better thousands')
    return tokens


def _words_to_learn_from(counts: Mapping[str, int], characters: Iterable[str]) -> dict[str, int]:
    """The words that consist of covered characters, most frequent first, with their counts.

    Args:
      counts: of all words.
      characters: tokens of one character, with and without `##`.
    """
    single = {token for token in characters if len(token) == 1}
    known = {char for char in single if char != _SPACE_MARK and ord(char) < _FIRST_LETTERS}
    words = {}
    for word, count in counts.items():
        has_fit_length = 1 < len(word) <= wordpiece.MAX_CHARS_PER_WORD
        if has_fit_length and known.issuperset(word):
            words[word] = count
    return {word: words[word] for word in _by_frequency(words)[:_MAX_TRAINED_WORDS]}


def count_basic_tokens(
    texts: Iterable[str], lowercase: bool, switches: Switches = ORIGINAL
) -> collections.Counter[str]:
    """The number of occurrences of each basic token in `texts`.

    Runs between white space are counted first: tokenizing each distinct one once is an order of
    magnitude faster than tokenizing the text.
    """
    runs = counted_runs(texts)
    split = functools.partial(basic_tokens, lowercase=lowercase, switches=switches)
    return _count_parts(runs, split)


def counted_runs(texts: Iterable[str]) -> collections.Counter[str]:
    """The number of occurrences of each run of characters between white space.

    At most `MAX_COUNTED_WORDS` are kept: when there are more, those seen least go, with a
    threshold that rises until half the room is free.
    """
    runs: collections.Counter[str] = collections.Counter()
    for text in texts:
        runs.update(wordpiece.raw_words(text))
        if len(runs) > MAX_COUNTED_WORDS:
            runs = _forget_rare(runs, MAX_COUNTED_WORDS // 2)
    return runs


def _forget_rare(counts: collections.Counter[str], max_items: int) -> collections.Counter[str]:
    """The counts that are at least a threshold, the lowest that leaves at most `max_items`."""
    threshold = 1
    while len(counts) > max_items:
        threshold += 1
        frequent = {item: count for item, count in counts.items() if count >= threshold}
        counts = collections.Counter(frequent)
    return counts


def stripped_marks(texts: Iterable[str]) -> tuple[float, list[str]]:
    """The marks that stripping accents takes from scripts in which they are no accents.

    After lower-casing, the original decomposes letters and drops all characters of category Mn. In
    Hindi, Thai or Khmer many of them are vowels, in Japanese they make か into が.

    Args:
      texts: lines, paragraphs or documents.

    Returns:
      (their share of all characters but white space, some of the most frequent). The accents of
      Latin, Greek and Cyrillic do not count as marks.
    """
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(unicodedata.normalize('NFD', text.lower()))
    marks: collections.Counter[str] = collections.Counter()
    total = 0
    for char, count in counts.items():
        if not char.isspace():
            total += count
        if unicodedata.category(char) == 'Mn' and not _is_accent(char):
            marks[char] = count
    return marks.total() / max(1, total), _by_frequency(marks)[:_SHOWN]


def stripped_marks_warning(texts: Iterable[str]) -> str:
    """A line that warns of `stripped_marks`; '' where an uncased vocabulary drops only accents."""
    share, marks = stripped_marks(texts)
    if share <= _FEW_MARKS:
        return ''
    shown = ' '.join(f'\u25cc{mark}' for mark in marks)
    return (
        f'warning: {100 * share:.1f} % of the characters of the text are vowels and other marks '
        f'that an uncased vocabulary drops as accents ({shown}), as the original does: set '
        '--config.data.strip_accents=False to keep them')


def _is_accent(mark: str) -> bool:
    """Whether it is a mark of Latin, Greek or Cyrillic, or chooses the look of an emoji."""
    named = unicodedata.name(mark, '').startswith(('COMBINING ', 'VARIATION SELECTOR'))
    return named and mark not in _VOICING


def _count_parts(
    words: Mapping[str, int], split: Callable[[str], Iterable[_Part]]
) -> collections.Counter[_Part]:
    """The number of occurrences of each part of words.

    Args:
      words: with their own numbers of occurrences.
      split: gives the parts of a word.
    """
    counts: collections.Counter[_Part] = collections.Counter()
    for word, count in words.items():
        for part in split(word):
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
    seen = _count_parts(counts, split=iter)
    ranked = _by_frequency(seen)
    before = itertools.accumulate((seen[char] for char in ranked), initial=0)
    num_frequent = sum(total < _CHARACTER_COVERAGE * seen.total() for total in before)
    others = sorted(ranked[num_frequent:], key=lambda char: not char.isascii())
    covered = _tokens_of(ranked[:num_frequent])
    optional = _tokens_of(others)
    extra = min(room // _EXTRA_CHARACTERS, max(0, room - len(covered)))
    return covered[:room] + optional[:extra], covered[room:] + optional[extra:]


def _tokens_of(characters: Iterable[str]) -> list[str]:
    """Two tokens for each character; one where it is always a word by itself."""
    tokens = []
    for char in characters:
        tokens.append(char)
        is_word = wordpiece.is_punctuation(char) or wordpiece.is_cjk(char)
        if not is_word:
            tokens.append(CONTINUATION + char)
    return tokens


def _learn_pieces(words: Mapping[str, int], num_pieces: int) -> list[str]:
    """Up to `num_pieces` pieces of two or more characters, in the order of the merges."""
    first_letters = _FirstLetters(words)
    marked = {first_letters.mark(word): count for word, count in words.items()}
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
    pieces = []
    for i in range(1, processor.GetPieceSize()):
        piece = processor.IdToPiece(i)
        if len(piece) > 1 and _SPACE_MARK not in piece:
            pieces.append(first_letters.wordpiece(piece))
    return pieces


class _FirstLetters:
    """Stands private code points in for the first letters of words, and takes them back."""

    def __init__(self, words: Iterable[str]):
        letters = sorted({word[0] for word in words})
        self._mark_of = {letter: chr(_FIRST_LETTERS + i) for i, letter in enumerate(letters)}
        self._letter_of = {mark: letter for letter, mark in self._mark_of.items()}

    def mark(self, word: str) -> str:
        """The word with a private code point as its first letter."""
        return self._mark_of[word[0]] + word[1:]

    def wordpiece(self, piece: str) -> str:
        """A piece of marked words as WordPiece writes it: with `##` where it continues a word."""
        letter = self._letter_of.get(piece[0])
        if letter is None:
            return CONTINUATION + piece
        return letter + piece[1:]


def _prune(
    pieces: Sequence[str], room: int, characters: Sequence[str], words: Mapping[str, int],
    lowercase: bool,
) -> list[str]:
    """The `room` pieces that greedy longest-match uses most, most used first."""
    fixed = [*SPECIAL_TOKENS, *characters]
    kept = list(pieces)
    surplus = max(0, len(pieces) - room)
    num_rounds = _PRUNING_ROUNDS if surplus else 1
    for rounds_left in range(num_rounds, 0, -1):
        num_dropped = math.ceil(surplus / rounds_left)
        surplus -= num_dropped
        by_use = _by_use(kept, fixed, words, lowercase)
        kept = by_use[: len(by_use) - num_dropped]
    return kept


def _by_use(
    pieces: Sequence[str], fixed: Sequence[str], words: Mapping[str, int], lowercase: bool
) -> list[str]:
    """The pieces that greedy longest-match makes of words, most used first.

    Args:
      pieces: the pieces.
      fixed: tokens that the vocabulary has before them.
      words: with their counts.
      lowercase: whether the vocabulary is uncased.
    """
    tokenizer = WordPieceTokenizer(Vocab.from_tokens([*fixed, *pieces]), lowercase)
    uses = _count_parts(words, split=tokenizer.pieces)
    order = sorted(range(len(pieces)), key=lambda i: -uses[len(fixed) + i])
    return [pieces[i] for i in order]
