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
_SPACES = re.compile(_SPACE)
_SPACES_AT_END = re.compile(f'{_SPACE}\\Z')


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
        longest_first = sorted(tokens, key=len, reverse=True)
        self._pattern = re.compile('|'.join(re.escape(text) for text in longest_first))

    def is_in(self, text: str) -> bool:
        """Whether a token may be found in the text."""
        return bool(self._tokens) and self._pattern.search(text) is not None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The text in parts, each with the id of the token that it is, or None."""
        if not self._tokens:
            if text:
                yield text, None
            return
        done = 0
        for match in self._pattern.finditer(text):
            token, number = self._tokens[match[0]]
            begin, end = match.span()
            if token.single_word and _touches_word(text, begin, end):
                continue
            if token.lstrip:
                begin = max(done, _start_of_spaces(text, begin))
            if token.rstrip:
                end = _end_of_spaces(text, end)
            if begin > done:
                yield text[done:begin], None
            yield text[begin:end], number
            done = end
        if done < len(text):
            yield text[done:], None


def _start_of_spaces(text: str, end: int) -> int:
    """Where the spaces begin that stand before a place in a text."""
    found = _SPACES_AT_END.search(text, 0, end)
    assert found  # of no spaces, if there are none
    return found.start()


def _end_of_spaces(text: str, start: int) -> int:
    """Where the spaces end that stand after a place in a text."""
    found = _SPACES.match(text, start)
    assert found
    return found.end()


def _touches_word(text: str, begin: int, end: int) -> bool:
    """Whether a letter or digit stands right before or after a part of a text."""
    return _is_word(text[begin - 1 : begin]) or _is_word(text[end : end + 1])


def _is_word(char: str) -> bool:
    """Whether a character, or none, belongs to a word (`\\w` of Unicode's regular expressions)."""
    if char == '':
        return False
    if char.isalnum() or unicodedata.category(char) in ('Mn', 'Mc', 'Me', 'Pc', 'Nl'):
        return True
    return char in '\u200c\u200d' or '\u24b6' <= char <= '\u24e9'


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
    special = _read_special_tokens(fields, source)
    special_contents = {token.content for token in special}
    by_id = fields.get('added_tokens_decoder') or {}
    if not isinstance(by_id, Mapping) or not isinstance(numbered, Mapping):
        raise InputError(f'{source}: its added tokens are not listed by id: download it again')

    # Of several entries of a token, the first counts.
    tokens = []
    for entry in listed:
        number = entry.get('id') if isinstance(entry, Mapping) else None
        tokens.append(_read_token(entry, number, source))
    for number, entry in by_id.items():
        tokens.append(_read_token(entry, number, source))
    for content, number in numbered.items():
        is_special = content in special_contents
        tokens.append(_read_token(
            content, number, source, normalized=not is_special, special=is_special))
    tokens += special
    return tuple(sorted(_distinct(tokens), key=_id_or_last))


def _read_special_tokens(fields: Mapping[str, Any], source: object) -> list[AddedToken]:
    """The special tokens beyond BERT's five, which the files name without their ids.

    Raises:
      InputError: they are no list, or an entry is not one that Hugging Face's libraries write.
    """
    tokens = []
    for name in ('additional_special_tokens', 'extra_special_tokens'):
        entries = fields.get(name) or ()
        if isinstance(entries, Mapping):
            entries = list(entries.values())
        if not isinstance(entries, list | tuple):
            raise InputError(f'{source}: {name}={entries!r:.100} is no list of tokens: download it '
                             'again')
        for entry in entries:
            tokens.append(_read_token(entry, None, source, normalized=False, special=True))
    return tokens


def _distinct(tokens: Iterable[AddedToken]) -> list[AddedToken]:
    """The first of the tokens with each content, without BERT's special tokens."""
    first: dict[str, AddedToken] = {}
    for token in tokens:
        if token.content and token.content not in SPECIAL_TOKENS:
            first.setdefault(token.content, token)
    return list(first.values())


def _id_or_last(token: AddedToken) -> int:
    """A key that sorts tokens by id, those without one last."""
    return MOST_TOKENS if token.id is None else token.id


def _read_token(entry: Any, number: Any, source: object, **flags: bool) -> AddedToken:
    """A token from its entry in a file.

    Args:
      entry: the token's content, or an object with content and flags.
      number: its id as the file has it; None: the file names none.
      source: the file, for messages.
      **flags: of the token, where the entry does not have them.

    Raises:
      InputError: the entry is something else.
    """
    fields = entry if isinstance(entry, Mapping) else {'content': entry}
    content: Any = fields.get('content')
    flags |= {flag: fields[flag] for flag in _FLAGS if flag in fields}
    are_flags = all(isinstance(flag, bool) for flag in flags.values())
    if not _is_text(content) or not are_flags or not _is_id(number):
        raise InputError(f'{source}: the added token {entry!r:.100} is not one that can be read: '
                         'it has a content, an id and flags')
    return AddedToken(content, None if number is None else int(number), **flags)


def _is_text(content: Any) -> bool:
    """Whether a value of a file is a string, without lone surrogates, which no text has."""
    if not isinstance(content, str):
        return False
    try:
        content.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_id(number: Any) -> bool:
    """Whether a value of a file is an id, or None."""
    if number is None:
        return True
    try:
        return 0 <= int(number) < MOST_TOKENS
    except (TypeError, ValueError, OverflowError):
        return False


def with_ids(
    tokens: Iterable[AddedToken], index: Mapping[str, int], source: str
) -> list[tuple[AddedToken, int]]:
    """Each token with its id, which is the vocabulary's if that has the token, else its own.

    A token with neither is left out, with a note; ids that leave a gap are noted.

    Args:
      tokens: by id.
      index: of the vocabulary.
      source: what messages call it.
    """
    found = []
    lost = []
    following = 1 + max(index.values(), default=-1)
    for token in tokens:
        number = index.get(token.content, token.id)
        if number is None:
            lost.append(token.content)
            continue
        found.append((token, number))
        if number > following:
            tell_once(f'note: {source}: the added token {token.content!r:.60} has the id {number} '
                      'in the files beside it, which is kept; transformers 5 gives it the next '
                      f'that is free, {following}')
        following = max(following, number + 1)
    if lost:
        names = ', '.join(lost)
        tell_once(f'note: {source}: the special tokens {names} have no id in the '
                  'vocabulary, so they are not applied: they are split like other text')
    return found


def fields_of(tokens: Iterable[AddedToken]) -> dict[str, Any]:
    """The tokens as fields of a tokenizer_config.json; `added_tokens_of` reads them back."""
    numbered: dict[str, dict[str, Any]] = {}
    others = []
    for token in tokens:
        if token.id is None:
            others.append(token.content)
        else:
            flags = {flag: getattr(token, flag) for flag in _FLAGS}
            numbered[str(token.id)] = {'content': token.content, **flags}
    fields: dict[str, Any] = {}
    if numbered:
        fields['added_tokens_decoder'] = numbered
    if others:
        fields['additional_special_tokens'] = others
    return fields
