"""The values allowed in config fields and, by a schema for each file, in foreign JSON.

A file is foreign if another program, an editor or an older version may have written it. A schema
names the fields that are read; others are kept as they are. null is the same as no field.
`files.read_fields` reads such a file.
"""

import contextlib
import dataclasses
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from bert_jax.runtime.errors import InputError, nearest


@dataclasses.dataclass(frozen=True)
class Range:
    """An interval of finite numbers.

    Attributes:
      least: lower bound.
      most: upper bound.
      whole: whether only integers are allowed.
      without: the excluded ends.
    """

    least: float
    most: float
    whole: bool = False
    without: tuple[float, ...] = ()

    def __contains__(self, value: Any) -> bool:
        kinds = int if self.whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool):
            return False
        return self.least <= value <= self.most and value not in self.without

    def __str__(self) -> str:
        """In words, such as 'a whole number from 1 to 4,096'."""
        kind = 'a whole number' if self.whole else 'a number'
        above = 'above' if self.least in self.without else 'from'
        below = 'to below' if self.most in self.without else 'to'
        return f'{kind} {above} {self.least:,} {below} {self.most:,}'


def count(most: float, least: float = 1) -> Range:
    """The range of whole numbers from `least` to `most`."""
    return Range(least, most, whole=True)


class _Text:
    """Text that can be written as UTF-8."""

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, str) and not re.search('[\ud800-\udfff]', value)

    def __str__(self) -> str:
        return 'a text'


class _Truth:
    """true or false."""

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return 'true or false'


class _Inside(_Text):
    """A path that does not leave the folder of the file that names it."""

    def __contains__(self, value: Any) -> bool:
        if not super().__contains__(value) or '\0' in value or '\\' in value:
            return False
        is_absolute = value.startswith(('/', '~')) or ':' in value
        return not is_absolute and posixpath.normpath(value).split('/')[0] != '..'

    def __str__(self) -> str:
        return 'a path inside the folder'


TEXT = _Text()
TRUTH = _Truth()
INSIDE = _Inside()
NUMBER = Range(-1e300, 1e300)


@dataclasses.dataclass(frozen=True)
class AnyOf:
    """A value of one of several kinds, none of which is a list or an object."""

    kinds: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return any(value in kind for kind in self.kinds)

    def __str__(self) -> str:
        return ' or '.join(map(str, self.kinds))


Allowed = Range | tuple[Any, ...] | _Text | _Truth | AnyOf  # a tuple lists the values


def why_not_allowed(value: Any, allowed: Allowed) -> str:
    """Why a value is not allowed; '' if it is."""
    with contextlib.suppress(ValueError):  # of an array, which is not equal or unequal to anything
        if value in allowed:
            return ''
    if isinstance(allowed, tuple):
        return f'is unknown: {nearest(value, allowed)}'
    return f'must be {allowed}'


@dataclasses.dataclass(frozen=True)
class ListOf:
    """A list of things of a kind."""

    kind: Any


@dataclasses.dataclass(frozen=True)
class MapOf:
    """An object whose values are of a kind, whatever its keys are, if they can be written."""

    kind: Any


# Also a mapping: an object, by the kinds of its fields; {}: any object.
Schema = Mapping[str, Any] | ListOf | MapOf | Allowed


def fault_in(value: Any, schema: Schema, name: str = '') -> str:
    """The first value that its schema does not allow, as 'NAME=VALUE must be ...'; '' without one.

    Args:
      value: as read from JSON.
      schema: of the value.
      name: of the value; '': it is all of a file.
    """
    if isinstance(schema, ListOf):
        if not isinstance(value, (list, tuple)):
            return _named(value, name, 'is no list')
        for number, inner in enumerate(value):
            fault = fault_in(inner, schema.kind, f'{name}[{number}]')
            if fault:
                return fault
        return ''
    if isinstance(schema, (Mapping, MapOf)):
        if not isinstance(value, Mapping):
            return _named(value, name, 'is no JSON object')
        for key, inner in value.items():
            if isinstance(schema, MapOf) and key not in TEXT:
                return f'the name {key!r:.100} cannot be written as UTF-8'
            kind = schema.kind if isinstance(schema, MapOf) else schema.get(key)
            if kind is None or inner is None:
                continue
            fault = fault_in(inner, kind, f'{name}.{key}' if name else str(key))
            if fault:
                return fault
        return ''
    why = why_not_allowed(value, schema)
    return _named(value, name, why) if why else ''


def _named(value: Any, name: str, why: str) -> str:
    shown = repr(value)
    if len(shown) > 100:
        shown = shown[:100] + '...'
    return f'{name}={shown} {why}' if name else f'{shown} {why}'


def check_fields(value: Any, schema: Schema, where: object, remedy: str) -> None:
    """Checks a value that was read from a file.

    Args:
      value: as read from JSON.
      schema: of the value.
      where: the file, and the key where the value is not all of it, for the message.
      remedy: what to do about a bad one.

    Raises:
      InputError: the value, or one inside it, is not allowed.
    """
    fault = fault_in(value, schema)
    if fault:
        raise InputError(f'{where}: {fault}: {remedy}')
