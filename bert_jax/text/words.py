"""The words of running text, as a tokenizer splits it before it makes pieces."""

import unicodedata
from typing import NamedTuple

from bert_jax.text.huggingface import HuggingFaceTokenizer
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.tokenizer import Place, Split, Tokenizer
from bert_jax.text.vocab import CONTINUATION
from bert_jax.text.wordpiece import is_cjk, is_punctuation

# Scripts beside ideographs that are written without spaces: kana, Thai and Lao, Tibetan, Burmese,
# Khmer; first and last code points.
_WITHOUT_SPACES = (
    (0x3040, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x0E00, 0x0EFF), (0x0F00, 0x0FFF),
    (0x1000, 0x109F), (0x1780, 0x17FF),
)


class Word(NamedTuple):
    """A word of a text.

    Attributes:
      begin, end: its first and last (exclusive) character.
      ids: of its pieces, one or more.
    """

    begin: int
    end: int
    ids: list[int]


class WordSplitter:
    """Finds the words of texts, which are the parts that a tokenizer makes pieces of.

    BERT's are what is left between white space, punctuation marks and ideographs. Kinds that split
    at little more than white space, such as byte-level BPE and Unigram, would have a sentence
    without spaces for one word: there, a piece that touches a punctuation mark, or a character of a
    script without spaces, begins a word, too.
    """

    def __init__(self, tokenizer: Tokenizer):
        """`tokenizer`: of any kind."""
        self._tokenizer = tokenizer
        vocab = tokenizer.vocab
        self._is_wordpiece = any(token.startswith(CONTINUATION) for token in vocab.tokens)
        self._has_marks = bool(vocab.is_continuation.any())

    def words(self, text: str) -> list[Word]:
        """The words of a text, which do not overlap, with their pieces in the whole text."""
        split = self._split(text)
        begins = self._begins(split, text)
        words: list[Word] = []
        for piece_id, (begin, end), begins_word in zip(
                split.ids, split.places, begins, strict=True):
            if begins_word:
                words.append(Word(begin, end, [piece_id]))
            else:
                last = words[-1]
                words[-1] = Word(last.begin, max(last.end, end), [*last.ids, piece_id])
        return [word for word in words if text[word.begin:word.end].strip()]

    def tokens(self, text: str) -> list[Word]:
        """The pieces of a text, each as a word, with the places that transformers gives them."""
        split = self._split(text)
        pieces = zip(split.ids, split.offsets, strict=True)
        return [Word(begin, end, [piece_id]) for piece_id, (begin, end) in pieces]

    def _split(self, text: str) -> Split:
        """The text in pieces, and in parts if these are not words already."""
        if isinstance(self._tokenizer, HuggingFaceTokenizer | SentencePieceTokenizer):
            return self._tokenizer.split(text)
        ids, places = self._tokenizer.encode_with_places(text)
        return Split(ids, places, (), places)

    def _begins(self, split: Split, text: str) -> list[bool]:
        """Whether each piece begins a word.

        A piece may be a mark alone, whose place is empty: what follows it is of the same word.
        """
        begins: list[bool] = []
        before: Place = (0, 0)
        for i, place in enumerate(split.places):
            begins_word = i == 0 or self._begins_part(split, i)
            if not self._is_wordpiece and before[0] < before[1] <= place[0] < place[1]:
                begins_word = begins_word or _is_apart(text, place[0])
            begins.append(begins_word)
            before = place
        return begins

    def _begins_part(self, split: Split, i: int) -> bool:
        """Whether a piece is the first of its part of the text."""
        vocab = self._tokenizer.vocab
        piece_id = split.ids[i]
        is_marked = not vocab.is_continuation[piece_id]
        if self._is_wordpiece or not split.parts:
            return is_marked
        part = split.parts[i]
        if part is None or part != split.parts[i - 1]:
            return True
        return self._has_marks and is_marked and piece_id != vocab.unk_id


def _is_apart(text: str, begin: int) -> bool:
    """Whether a place within a part of a text is one between two words.

    It is at a punctuation mark, or at a character of a script without spaces.
    """
    last, first = text[begin - 1], text[begin]
    if unicodedata.category(first).startswith('M'):  # it belongs to the character before it
        return False
    return any(is_punctuation(char) or _is_without_spaces(char) for char in (last, first))


def _is_without_spaces(char: str) -> bool:
    """Whether a character is of a script that is written without spaces."""
    code = ord(char)
    return is_cjk(char) or any(low <= code <= high for low, high in _WITHOUT_SPACES)
