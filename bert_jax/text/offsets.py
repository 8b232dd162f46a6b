"""Which characters of a word each of its pieces stands for."""

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Callable, Sequence

from bert_jax.text import Tokenizer
from bert_jax.text.sentencepiece import WORD_START
from bert_jax.text.vocab import CONTINUATION, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer, basic_tokens

Place = tuple[int, int]  # first and last (exclusive) character
# From a word and the ids of its pieces to the place of each piece in the word.
PiecePlaces = Callable[[str, tuple[int, ...]], list[Place]]


def piece_places(tokenizer: Tokenizer) -> PiecePlaces:
    """A function from a word and the ids of its pieces to the characters of each piece.

    It is computed for the words that are asked for, and kept. What tokenizing removes (soft
    hyphens, white space inside the word) belongs to no piece, a combining mark to the piece of its
    letter, and a piece [UNK] is the word or punctuation mark that it replaces. Where the tokenizer
    changed the text in a way that cannot be followed, each piece has the place of the whole word.
    """
    @functools.lru_cache(maxsize=1 << 16)
    def places(word: str, ids: tuple[int, ...]) -> list[Place]:
        normalized = _normalized(tokenizer, word)
        lengths = [_length(tokenizer.vocab, i) for i in ids]
        return _place_pieces(normalized, lengths) or [(0, len(word))] * len(ids)

    return places


@dataclasses.dataclass(frozen=True)
class _Normalized:
    """What tokenizing makes of a word before it is cut into pieces.

    Attributes:
      word: as it stands in the text.
      forms: what becomes of each of its characters; '' if it is removed.
      tokens: what becomes of the whole word: words and punctuation marks.
    """

    word: str
    forms: Sequence[str]
    tokens: Sequence[str]


def _normalized(tokenizer: Tokenizer, word: str) -> _Normalized:
    if isinstance(tokenizer, WordPieceTokenizer):
        split = functools.partial(
            basic_tokens, lowercase=tokenizer.lowercase, switches=tokenizer.switches)
        forms = [''.join(split(char)) for char in word]
        return _Normalized(word, forms, split(word))
    # SentencePiece models normalize with NFKC, as a rule.
    forms = [unicodedata.normalize('NFKC', char).strip() for char in word]
    return _Normalized(word, forms, [''.join(forms)])


def _length(vocab: Vocab, piece_id: int) -> int | None:
    """The characters of a piece; None for [UNK], which stands for any number of them."""
    if piece_id == vocab.unk_id:
        return None
    return len(vocab.tokens[piece_id].removeprefix(CONTINUATION).removeprefix(WORD_START))


def _place_pieces(normalized: _Normalized, lengths: Sequence[int | None]) -> list[Place]:
    """The places of pieces, read off one after the other; [] if the lengths do not add up.

    Args:
      normalized: the word.
      lengths: characters of each piece; None: up to the end of the token.
    """
    sources: list[int] = []  # by character of the tokens: the character of the word it is from
    for i, form in enumerate(normalized.forms):
        sources += [i] * len(form)
    token_ends = list(itertools.accumulate(len(token) for token in normalized.tokens))
    if sum(len(token) for token in normalized.tokens) != len(sources):
        return []
    found: list[Place] = []
    at = 0
    for length in lengths:
        if length is None:
            end = next((end for end in token_ends if end > at), at)
        else:
            end = at + length
        if not at < end <= len(sources):
            return []
        found.append((sources[at], _end_with_marks(normalized, sources[end - 1] + 1)))
        at = end
    return found if at == len(sources) else []


def _end_with_marks(normalized: _Normalized, end: int) -> int:
    """The end of a piece in the word, behind the combining marks that tokenizing removes."""
    word = normalized.word
    while end < len(word) and not normalized.forms[end] and _is_mark(word[end]):
        end += 1
    return end


def _is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith('M')
