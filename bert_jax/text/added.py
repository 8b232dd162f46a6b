"""Tokens added to a tokenizer, which are found in the text before it is split into words.

The rules are those of Hugging Face's `tokenizers`. The five special tokens are not among them: in a
text they are ordinary text, as in the original.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.text.vocab import SPECIAL_TOKENS

MOST_TOKENS = 1 << 24
_FLAGS = ('single_word', 'lstrip', 'rstrip', 'normalized', 'special')
# Unicode's White_Space, which is what the rules call a space.
_SPACE = '[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*'
_SPACES, _SPACES_AT_END = re.compile(_SPACE), re.compile(f'{_SPACE}\\Z')


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """A token that somebody added; names and meanings are those of `tokenizers`.

    Attributes:
        content: the token.
        id: its id; None: that of this token in the vocabulary.
        single_word: whether it is found only where no letter or digit touches it.
        lstrip, rstrip: whether it takes in the spaces before and behind it.
        normalized: whether it is looked for in the text as it is lower-cased (and so on), not in
            the text as it stands.
        special: whether it is a special token.
    """

    content: str
    id: int | None = None
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class Finder:
    """Finds tokens in a text: the leftmost first, of those the longest."""

    def __init__(self, tokens: Mapping[str, tuple[AddedToken, int]]):
        """Tokens and their ids, by the text that is looked for, which is not empty."""
        self._tokens = tokens
        self._pattern = re.compile('|'.join(
            re.escape(text) for text in sorted(tokens, key=len, reverse=True)))

    def is_in(self, text: str) -> bool:
        """Whether a token may be found in the text."""
        return bool(self._tokens) and self._pattern.search(text) is not None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The text in parts, each with the id of the token that it is, or None."""
        done = 0
        for match in self._pattern.finditer(text) if self._tokens else ():
            begin, end = match.span()
            token, number = self._tokens[match[0]]
            touched = (_is_word(text[begin - 1 : begin]), _is_word(text[end : end + 1]))
            if token.single_word and any(touched):
                continue
            if token.lstrip:
                found = _SPACES_AT_END.search(text, 0, begin)
                begin = max(done, found.start() if found else begin)
            if token.rstrip:
                found = _SPACES.match(text, end)
                end = found.end() if found else end
            if begin > done:
                yield text[done:begin], None
            yield text[begin:end], number
            done = end
        if done < len(text):
            yield text[done:], None


def _is_word(char: str) -> bool:
    """Whether a character, or none, belongs to a word (`\\w` of Unicode's regular expressions)."""
    return char != '' and (
        char.isalnum() or unicodedata.category(char) in ('Mn', 'Mc', 'Me', 'Pc', 'Nl')
        or char in '\u200c\u200d' or '\u24b6' <= char <= '\u24e9')


def added_tokens_of(
    fields: Mapping[str, Any], listed: Iterable[Any], numbered: Mapping[str, Any], source: object
) -> tuple[AddedToken, ...]:
    """The added tokens that the files of a tokenizer name, in the order of their ids.

    Args:
        fields: of tokenizer_config.json and special_tokens_map.json.
        listed: `added_tokens` of tokenizer.json.
        numbered: tokens with their ids, the content of added_tokens.json.
        source: the folder, for messages.

    Raises:
        InputError: an entry is not one that Hugging Face's libraries write.
    """
    special = [_token(entry, None, source, normalized=False, special=True)
               for name in ('additional_special_tokens', 'extra_special_tokens')
               for entry in _entries(fields.get(name))]
    names = {token.content for token in special}
    by_id = fields.get('added_tokens_decoder') or {}
    if not isinstance(by_id, Mapping) or not isinstance(numbered, Mapping):
        raise InputError(f'{source}: its added tokens are not listed by id: download it again')
    tokens = [
        *(_token(entry, entry.get('id'), source) if isinstance(entry, Mapping)
          else _token(entry, None, source) for entry in listed),
        *(_token(entry, number, source) for number, entry in by_id.items()),
        *(_token(content, number, source, normalized=content not in names,
                 special=content in names) for content, number in numbered.items()),
        *special]
    found: dict[str, AddedToken] = {}
    for token in tokens:
        if token.content and token.content not in SPECIAL_TOKENS:
            found.setdefault(token.content, token)
    return tuple(sorted(found.values(), key=lambda token: MOST_TOKENS if token.id is None
                        else token.id))


def _entries(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value or ()


def _token(entry: Any, number: Any, source: object, **flags: bool) -> AddedToken:
    """A token from its entry in a file, which is its content or an object with flags."""
    fields = entry if isinstance(entry, Mapping) else {'content': entry}
    flags |= {flag: fields[flag] for flag in _FLAGS if flag in fields}
    try:
        number = None if number is None else int(number)
    except (TypeError, ValueError):
        number = -1
    content = fields.get('content')
    if not (isinstance(content, str) and all(isinstance(flag, bool) for flag in flags.values())
            and (number is None or 0 <= number < MOST_TOKENS)):
        raise InputError(f'{source}: the added token {entry!r:.100} is not one that can be read: '
                         'it has a content, an id and flags')
    return AddedToken(content, number, **flags)


def with_ids(
    tokens: Iterable[AddedToken], index: Mapping[str, int], source: str
) -> list[tuple[AddedToken, int]]:
    """Each token with its id, which is the vocabulary's if that has the token, else its own.

    A token with neither is left out, with a note.
    """
    found = [(token, index.get(token.content, token.id)) for token in tokens]
    if lost := [token.content for token, number in found if number is None]:
        tell_once(f"note: {source}: the special tokens {', '.join(lost)} have no id in the "
                  "vocabulary, so they are not applied: they are split like other text")
    return [(token, number) for token, number in found if number is not None]


def fields_of(tokens: Iterable[AddedToken]) -> dict[str, Any]:
    """The tokens as fields of a tokenizer_config.json; `added_tokens_of` reads them back."""
    numbered = {str(token.id): {'content': token.content} | {
        flag: getattr(token, flag) for flag in _FLAGS} for token in tokens if token.id is not None}
    others = [token.content for token in tokens if token.id is None]
    return ({'added_tokens_decoder': numbered} if numbered else {}) | (
        {'additional_special_tokens': others} if others else {})
