"""How long the normalizer of a tokenizer.json may make a text.

A normalizer is a list of steps that replace parts of a text, and a few of them that each make ten
letters of one make gigabytes of a line. Files of that kind are known by what their steps could do
at worst; a text is then normalized step by step before the library gets it, and each step is
foreseen.
"""

import base64
import contextlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.text.library import Library, LibraryError

_MOST_TIMES = 64  # a text may become so many times as long,
_MOST_MORE = 4096  # and by so many characters longer
_LONGEST_CONTENT = 1024  # characters that a step puts in one place
_MOST_BYTE_LEVELS = 4  # each may make a text twice as long
_LONGEST_FORM = 18  # characters that Unicode's forms make of one
_PROBE_LENGTH = 1000
_SENTENCE = 'the quick brown fox jumps over 13 lazy dogs. '


class Growth:
    """Refuses texts that a normalizer would make far longer than they are."""

    def __init__(self, parts: Mapping[str, Any], source: str):
        """Looks at the steps.

        Args:
          parts: of a tokenizer.json.
          source: what messages call it.

        Raises:
          InputError: the steps make far more of any text that they change, or of an added token.
        """
        self._source = source
        normalizers = steps_of(parts.get('normalizer'))
        _check_byte_levels([*normalizers, *steps_of(parts.get('pre_tokenizer'))], source)
        for step in normalizers:
            _check_content(step, source)
        self._added = _added_contents(parts)
        self._steps: list[_Step] = []
        num_maps = sum(step.get('type') == 'Precompiled' for step in normalizers)
        if num_maps > 1 or math.prod(map(_most_times, normalizers)) > _MOST_TIMES:
            with contextlib.suppress(LibraryError):  # which will not read the file either
                self._steps = [_Step(step) for step in normalizers]
        for text in (*self._added, *self._probes()):
            self.check(text)

    def check(self, text: str) -> None:
        """Raises InputError if the normalizer makes far more of the text."""
        if not self._steps:
            return
        most = _MOST_TIMES * len(text) + _MOST_MORE
        length = sum(self._length(part, most) for part in self._between_added(text))
        if length > most:
            raise InputError(
                f'{self._source}: its normalizer makes over {most:,} characters of {len(text):,} '
                f'({text!r:.40}): take another tokenizer, or leave the text out')

    def _between_added(self, text: str) -> Sequence[str]:
        """The parts of a text between added tokens, which are normalized one by one."""
        if not self._added:
            return [text]
        return re.split('|'.join(map(re.escape, self._added)), text)

    def _length(self, text: str, most: int) -> int:
        """How many characters a text has once normalized; above `most` if a step makes so many."""
        for step in self._steps:
            length = step.length_of(text)
            if length > most:
                return length
            text = step.apply(text)
        return len(text)

    def _probes(self) -> list[str]:
        """Texts of a sentence, and of what each of the steps replaces, again and again."""
        repeated = [_SENTENCE, *(step.replaced for step in self._steps if step.replaced)]
        return [text * (1 + _PROBE_LENGTH // len(text)) for text in repeated]


class _Step:
    """One step of a normalizer.

    Attributes:
      replaced: the text that it replaces, if it is one that it names; else ''.
    """

    def __init__(self, step: Mapping[str, Any]):
        self._content_length = len(_content_of(step))
        self._prepends = step.get('type') == 'Prepend'
        self.replaced = ''
        self._step = _alone(step)
        self._removing: Library | None = None
        if step.get('type') == 'Replace':
            pattern = step.get('pattern')
            self.replaced = str(pattern.get('String', '')) if isinstance(pattern, Mapping) else ''
            self._removing = _alone(dict(step) | {'content': ''})
            self._marking = _alone(dict(step) | {'content': '-'})

    def apply(self, text: str) -> str:
        """The text after the step."""
        return self._step.normalize(text)

    def length_of(self, text: str) -> int:
        """How many characters a text has after the step, which is not done if they may be many."""
        if self._prepends:
            return len(text) + self._content_length
        if self._removing is None:  # the others give a character 18 at most
            return len(text)
        without = len(self._removing.normalize(text))
        num_places = len(self._marking.normalize(text)) - without
        return without + num_places * self._content_length


def steps_of(stage: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer, a pre-tokenizer or a decoder, which may be a sequence of some."""
    found: list[dict[str, Any]] = []
    waiting = [stage]
    while waiting:
        step = waiting.pop()
        parts: Any = None
        if isinstance(step, dict):
            for name in ('normalizers', 'pretokenizers', 'decoders'):
                parts = step.get(name, parts)
        if isinstance(parts, list):
            waiting += reversed(parts)
        elif isinstance(step, dict):
            found.append(step)
    return found


def _alone(step: Mapping[str, Any]) -> Library:
    """A tokenizer of the library with this step of a normalizer alone."""
    parts: dict[str, Any] = {
        'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [],
        'normalizer': step, 'pre_tokenizer': None, 'post_processor': None, 'decoder': None,
        'model': {'type': 'WordLevel', 'vocab': {'-': 0}, 'unk_token': '-'}}
    return Library(json.dumps(parts))


def _content_of(step: Mapping[str, Any]) -> str:
    """The text that a step inserts, the longest of several; '' if the step names none."""
    kind = step.get('type')
    if kind == 'Precompiled':
        return _longest_replacement(step.get('precompiled_charsmap'))
    content = step.get('prepend') if kind == 'Prepend' else step.get('content')
    return content if isinstance(content, str) else ''


def _longest_replacement(charsmap: Any) -> str:
    """The longest text of SentencePiece's map of characters.

    The map is in base64: the bytes of a trie after their number, and texts that end with NUL.
    """
    try:
        data = base64.b64decode(charsmap)
    except (TypeError, ValueError):  # the library refuses it
        return ''
    begin = 4 + int.from_bytes(data[:4], 'little')
    texts = data[begin:].split(b'\0')
    return max(texts, key=len).decode('utf-8', 'replace')


def _longest_form(content: str) -> int:
    """The characters of a content after further steps, which may take letters apart."""
    return max(len(content), len(unicodedata.normalize('NFKD', content.lower())))


def _most_times(step: Mapping[str, Any]) -> float:
    """How many times as long a step may make a text; 1 of steps that do so once.

    Letters have forms of up to 18 characters, but these have none.
    """
    kind = step.get('type')
    length = _longest_form(_content_of(step))
    if kind == 'Precompiled':
        return max(1, length / _LONGEST_FORM)
    if kind == 'Prepend':
        return 1 + length
    if kind == 'ByteLevel':
        return 2
    if kind != 'Replace':
        return 1
    pattern = step.get('pattern')
    replaced = pattern.get('String') if isinstance(pattern, Mapping) else None
    if isinstance(replaced, str) and replaced:
        return max(1, length / len(replaced))
    return 1 + length  # it may match nothing between any two letters


def _check_content(step: Mapping[str, Any], source: str) -> None:
    """Raises InputError for a step that puts a very long text into others."""
    length = len(_content_of(step))
    if length > _LONGEST_CONTENT:
        raise InputError(
            f'{source}: a step of its normalizer, {step.get("type")}, puts {length:,} characters '
            f'into a text, and {_LONGEST_CONTENT:,} are the most that are read: take another '
            'tokenizer')


def _check_byte_levels(steps: Sequence[Mapping[str, Any]], source: str) -> None:
    """Raises InputError if characters would be replaced by those of their bytes many times."""
    number = sum(step.get('type') == 'ByteLevel' for step in steps)
    if number > _MOST_BYTE_LEVELS:
        raise InputError(
            f'{source}: it has {number} steps of the kind ByteLevel, each of which may make a text '
            f'twice as long, and {_MOST_BYTE_LEVELS} are the most that are read: take another '
            'tokenizer')


def _added_contents(parts: Mapping[str, Any]) -> list[str]:
    """The added tokens of a tokenizer.json, which the library normalizes while it reads them."""
    entries = parts.get('added_tokens')
    contents = []
    for entry in entries if isinstance(entries, list) else ():
        content = entry.get('content') if isinstance(entry, Mapping) else None
        if isinstance(content, str) and content:
            contents.append(content)
    return contents
