"""Which characters of a word each of its pieces stands for."""

import functools
import unicodedata
from collections.abc import Callable, Sequence

from bert_jax.text import Tokenizer
from bert_jax.text.sentencepiece import WORD_START
from bert_jax.text.vocab import CONTINUATION
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
    vocab = tokenizer.vocab
    is_wordpiece = isinstance(tokenizer, WordPieceTokenizer)
    lowercase = isinstance(tokenizer, WordPieceTokenizer) and tokenizer.lowercase

    @functools.lru_cache(maxsize=1 << 16)
    def places(word: str, ids: tuple[int, ...]) -> list[Place]:
        if is_wordpiece:
            forms = [''.join(basic_tokens(char, lowercase, tokenizer.switches)) for char in word]
            tokens = basic_tokens(word, lowercase, tokenizer.switches)
        else:  # SentencePiece models normalize with NFKC, as a rule
            forms = [unicodedata.normalize('NFKC', char).strip() for char in word]
            tokens = [''.join(forms)]
        # None: [UNK], which stands for any number of characters
        lengths = [None if i == vocab.unk_id else _length(vocab.tokens[i]) for i in ids]
        return _followed(word, forms, tokens, lengths) or [(0, len(word))] * len(ids)

    return places


def _length(piece: str) -> int:
    return len(piece.removeprefix(CONTINUATION).removeprefix(WORD_START))


def _followed(
    word: str, forms: Sequence[str], tokens: Sequence[str], lengths: Sequence[int | None]
) -> list[Place]:
    """The places of pieces, read off one after the other; [] if the lengths do not add up.

    Args:
      word: as it stands in the text.
      forms: what tokenizing makes of each of its characters; '' if it is removed.
      tokens: what tokenizing makes of the word, before it is cut into pieces.
      lengths: characters of each piece; None: up to the end of the token.
    """
    sources = [i for i, form in enumerate(forms) for _ in form]
    token_ends, at = set(), 0
    for token in tokens:
        at += len(token)
        token_ends.add(at)
    if at != len(sources):
        return []
    found: list[Place] = []
    at = 0
    for length in lengths:
        end = at + length if length is not None else min(
            (x for x in token_ends if x > at), default=at)
        if not at < end <= len(sources):
            return []
        last = sources[end - 1] + 1
        while last < len(word) and not forms[last] and unicodedata.category(word[last])[0] == 'M':
            last += 1
        found.append((sources[at], last))
        at = end
    return found if at == len(sources) else []
