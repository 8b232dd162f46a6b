"""A case of the campaign: what is wrong, and the command or the call that meets it."""

import dataclasses
import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.abuse.commands import Answer


def _nothing(answer: Answer) -> str:
    return ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is wrong, and what meets it.

    Attributes:
      done: what is wrong, in words.
      act: a command's line, as `commands.arguments` takes it, or a function.
      made: names below the case's folder that the act may make or change, with all that is in them.
        It runs in here/in, an empty folder: a case that names outputs from there has 'here'.
      stdin: bytes of its standard input.
      environment: variables to set.
      check: says what else is wrong with an answer, and with what was written; '' if nothing is.
    """

    done: str
    act: str | tuple[str, ...] | Callable[[], object]
    made: tuple[str, ...] = ('new',)
    stdin: bytes = b''
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    check: Callable[[Answer], str] = _nothing


# Makes a case in an empty folder, of what lies in the folder of things.
Draw = Callable[[random.Random, Path, Path], Case]

# Texts that mean something to terminals, shells, browsers, spreadsheets, YAML, TOML or formats.
NASTY = (
    '\x1b[31mred\x1b[0m', '\x1b]0;title\x07', '\r\nerased', 'a\nb', '\x00', '\x7f\x9b31m',
    '\u202eevil', '<script>alert(1)</script>', '"><img src=x onerror=alert(1)>', "'onmouseover='x",
    '&lt;b&gt;', '=cmd|"/c calc"!A0', '+1+1', '-2+3', '@SUM(A1)', '\t=1+1', '---',
    '---\nlicense: evil', '...', '| a | b |', '[x](javascript:alert(1))', '`rm -rf`',
    '$(touch gone)', '${HOME}', '%s%n', '{0}', '{__class__}', '{title}', 'null', 'true', 'yes',
    '123', '0x10', '1e5', 'NaN', '-inf', '~', '#', '!!python/object:x', '*a', '&a', '../../x',
    '/etc/passwd', 'C:\\x', 'x' * 5000, '\ud800', '', ' ', '\ufeff', '\u200b', 'ß', 'ﬁ', '🤖',
    'a,b', 'a;b', 'a|b', 'a"b', "a'b", '\\', '--help', '-', '__proto__')
# Values that numbers, switches and paths are not.
WORDS_OF_FLAGS = (
    'nan', 'inf', '-inf', '1e400', '-1', '0', '99999999999999999999999', '1e-400', '0x10', '1_000',
    '', ' ', 'None', 'true', 'True', '[]', '{}', '()', '(1, 2)', '{"a": 1}', '[[[[]]]]', 'hf:',
    'hf:a', 'hf:a/b', 'hf:datasets/a', 'gs:', 'gs://', 's3://a/b', '~nosuchuser', '/dev/null',
    '/proc/self/mem', '/', '.', '..', 'a\nb', 'a\x00b', 'a\tb', '\x1b[31m', 'x' * 300, 'x' * 5000,
    '%s', '{0}', '*', '**', '?', '-', '--', '=', ',', ',,', ':', 'a:b', '1..2', '9..1', '1 epoch',
    '-3 epochs', 'nan epochs', '50%', '-50%', '200%', 'nan%', '１', '٣', 'ｔrue', '\ufeff1',
    '\udcff', '\'"', '$HOME', '`ls`', ';ls')


def copy(things: Path, folder: Path, *names: str) -> None:
    """Copies some of the things into a case's folder."""
    for name in names:
        source = things / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True)
        else:
            shutil.copy2(source, folder / name)


def write(path: Path, content: Any) -> None:
    """Writes bytes, a text or, of anything else, its JSON; makes the folder that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, (bytes, str)):
        content = json.dumps(content)
    if isinstance(content, str):
        content = content.encode('utf-8', 'surrogateescape')
    path.write_bytes(content)


def in_words(act: Callable[..., object]) -> str:
    """What a function does, by its name."""
    return act.__name__.strip('_').replace('_', ' ')


def is_clean(text: str) -> bool:
    """Whether a text has no characters that move a terminal's cursor, but TAB and line feed."""
    return not any(ord(c) < 32 and c not in '\t\n' or 127 <= ord(c) < 160 for c in text)


def one_of(rng: random.Random, choices: Sequence[Any]) -> Any:
    """One of some choices; of a mapping's items, one."""
    return choices[rng.randrange(len(choices))]
