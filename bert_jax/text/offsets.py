"""Which characters of a word each of its pieces stands for."""

import dataclasses
import itertools
import unicodedata
from collections.abc import Sequence

from bert_jax.text.tokenizer import Place


@dataclasses.dataclass(frozen=True)
class NormalizedWord:
    """A word, and what tokenizing makes of it before it is cut into pieces.

    Attributes:
      word: as it stands in the text.
      forms: what becomes of each of its characters; '' if it is removed.
      tokens: what becomes of the whole word: words and punctuation marks.
    """

    word: str
    forms: Sequence[str]
    tokens: Sequence[str]


def place_pieces(normalized: NormalizedWord, lengths: Sequence[int | None]) -> list[Place]:
    """The characters of a word that each of its pieces stands for.

    What tokenizing removes (soft hyphens, white space inside the word) belongs to no piece, a
    combining mark to the piece of its letter, and a piece [UNK] is the word or punctuation mark
    that it replaces. Where the tokenizer changed the text in a way that cannot be followed, each
    piece has the place of the whole word.

    Args:
      normalized: the word.
      lengths: characters of each piece; None: of [UNK], which goes up to the end of the token. A
        piece of none has an empty place, where the next begins.
    """
    whole = (0, len(normalized.word))
    return _read_off(normalized, lengths) or [whole] * len(lengths)


def _read_off(normalized: NormalizedWord, lengths: Sequence[int | None]) -> list[Place]:
    """The places of pieces, read off one after the other; [] if the lengths do not add up.

    Args:
      normalized: the word.
      lengths: characters of each piece; None: up to the end of the token.
    """
    sources: list[int] = []  # by character of the tokens: the character of the word it is from
    for i, form in enumerate(normalized.forms):
        sources += [i] * len(form)
    token_lengths = list(map(len, normalized.tokens))
    token_ends = list(itertools.accumulate(token_lengths))
    if sum(token_lengths) != len(sources):
        return []
    found: list[Place] = []
    at = 0
    for length in lengths:
        if length == 0:  # a mark alone
            place = sources[at] if at < len(sources) else len(normalized.word)
            found.append((place, place))
            continue
        if length is None:
            end = next((end for end in token_ends if end > at), at)
        else:
            end = at + length
        if not at < end <= len(sources):
            return []
        found.append((sources[at], _end_with_marks(normalized, sources[end - 1] + 1)))
        at = end
    return found if at == len(sources) else []


def _end_with_marks(normalized: NormalizedWord, end: int) -> int:
    """The end of a piece in the word, behind the combining marks that tokenizing removes."""
    word = normalized.word
    while end < len(word) and not normalized.forms[end] and _is_mark(word[end]):
        end += 1
    return end


def _is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith('M')


def moved(places: Sequence[Place], by: int) -> list[Place]:
    """Places in a word as places in the text where it begins at `by`."""
    return [(by + begin, by + end) for begin, end in places]
