"""The runs of a sweep: all combinations of a grid's values, each with its config."""

import collections
import contextlib
import itertools
import math
import os
import runpy
import urllib.parse
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from bert_jax.config import ConfigDict
from bert_jax.config.command_line import parse_command
from bert_jax.config.fields import FIELDS, flat_fields
from bert_jax.config.suggestions import suggest_field
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hashing import digest
from bert_jax.runtime.schema import TEXT, ListOf, check_fields
from bert_jax.validation import check_used, validate

Settings = tuple[tuple[str, str], ...]
MOST_RUNS = 10_000  # each has a folder, and is looked at whenever another ends
_UNQUOTED = ' :+@'  # characters that are harmless in a file name


class Member(NamedTuple):
    """One run of the sweep: its settings, (field, value) as written on the command line."""

    settings: Settings

    @property
    def name(self) -> str:
        """The name of its folder; quoting makes a value that is a path part of one name."""
        parts = []
        for field, value in self.settings:
            quoted = urllib.parse.quote(value, safe=_UNQUOTED)
            parts.append(f'{field}={quoted}')
        return ','.join(parts)

    @classmethod
    def of_folder(cls, name: str) -> Self | None:
        """The member whose folder has a name; None if none has."""
        settings = []
        for part in name.split(','):
            field, equals, quoted = part.partition('=')
            if not equals:
                return None
            settings.append((field, urllib.parse.unquote(quoted)))
        return cls(tuple(settings))

    def without(self, *fields: str) -> Settings:
        """Its settings without those of these fields."""
        return tuple(item for item in self.settings if item[0] not in fields)


def grid_members(grid: Sequence[str], restarts: int) -> list[Member]:
    """Members for all combinations of a grid's values and the seeds.

    Args:
      grid: entries 'FIELD=VALUE,VALUE'.
      restarts: adds the seeds 0 to restarts - 1; 0: none.

    Raises:
      InputError: an entry has another form, names no field of the config, or has a field or value
        twice; or there is nothing to vary, or too much.
    """
    entries = list(grid)
    if restarts > MOST_RUNS:
        raise InputError(f'--restarts={restarts} is above {MOST_RUNS:,}: name fewer')
    if restarts:
        entries.append('seed=' + ','.join(map(str, range(restarts))))
    axes: dict[str, list[str]] = {}
    for entry in entries:
        field, _, text = entry.partition('=')
        values = text.split(',')
        if not all(values):
            raise InputError(f'--grid {entry}: write FIELD=VALUE,VALUE')
        if field not in FIELDS:
            raise InputError(f'--grid {field} is not a field: {suggest_field(field)}')
        if field in axes or len(set(values)) < len(values):
            raise InputError(f'--grid {entry} has a field or value twice')
        axes[field] = values
    if not axes:
        raise InputError(
            'nothing varies: give --grid FIELD=VALUE,VALUE, --restarts=N, or as --config a file '
            'of configs/sweeps, which has the grid of a paper')
    num_runs = math.prod(len(values) for values in axes.values())
    if num_runs > MOST_RUNS:
        raise InputError(f'the grid has {num_runs:,} runs, more than {MOST_RUNS:,}: divide it '
                         'into several sweeps')
    combinations = itertools.product(*axes.values())
    return [Member(tuple(zip(axes, values, strict=True))) for values in combinations]


def most_seeds(members: Sequence[Member]) -> int:
    """The largest number of members that differ in their seed alone."""
    return max(collections.Counter(member.without('seed') for member in members).values())


def read_sweep(named: str, grid: Sequence[str] = ()) -> tuple[str, list[str]]:
    """(Config of the runs, grid) of the command line.

    Args:
      named: a config, or a sweep's file, which defines CONFIG, a path relative to the file, and
        GRID, entries as for --grid.
      grid: from the command line; replaces the file's values of the same fields.
    """
    name, colon, argument = named.partition(':')
    defined: dict[str, Any] = {}
    if os.path.isfile(name):
        with contextlib.suppress(Exception, SystemExit):  # reported when the file is parsed
            defined = runpy.run_path(name)
    if not {'GRID', 'CONFIG'} <= defined.keys():
        return named, list(grid)
    for field in ('CONFIG', 'GRID'):
        if defined[field] is None:
            raise InputError(f'{name}: {field} is None')
    check_fields(
        defined, {'CONFIG': TEXT, 'GRID': ListOf(TEXT)}, name,
        "write CONFIG = 'FILE.py' and GRID = ('FIELD=VALUE,VALUE', ...)")
    given = {_field_of(entry) for entry in grid}
    kept = [entry for entry in defined['GRID'] if _field_of(entry) not in given]
    config = os.path.normpath(os.path.join(os.path.dirname(name), defined['CONFIG']))
    return config + colon + argument, [*kept, *grid]


def _field_of(entry: str) -> str:
    """The field of a grid's entry 'FIELD=VALUE,VALUE'."""
    return entry.partition('=')[0]


def config_name(config: str | ConfigDict) -> str:
    """The name that distinguishes a config from others: its file, or a digest of its fields."""
    if isinstance(config, str):
        return config
    return f'object {digest(repr(sorted(flat_fields(config).items())).encode())[:12]}'


def member_config(
    config: str | ConfigDict, overrides: Sequence[str], member: Member, flag: str = '--grid'
) -> ConfigDict:
    """A member's config.

    Args:
      config: file, as on the command line, or a config, which stays as it is.
      overrides: '--config.FIELD=VALUE' for all members.
      member: the member; its settings take precedence.
      flag: which gave the settings, for messages.

    Raises:
      InputError: there is no such file or field, or a value is invalid.
    """
    try:
        return _config_with(config, overrides, member.settings)
    except InputError as error:
        _config_with(config, overrides, ())  # raises what is not the grid's fault
        raise InputError(_as_of_flag(str(error), member.settings, flag)) from None


def _config_with(
    config: str | ConfigDict, overrides: Sequence[str], settings: Settings
) -> ConfigDict:
    """The config with some settings; raises InputError if it cannot work."""
    flags = [f'--config.{field}={value}' for field, value in settings]
    given = None
    named = []
    if isinstance(config, str):
        named.append(f'--config={config}')
    else:
        given = ConfigDict(config.copy_and_resolve_references()).lock()
    result, _ = parse_command(
        ['sweep', *named, '--config.train.keep_checkpoints=1', *overrides, *flags], '',
        config=given)
    validate(result)
    check_used(result)
    return result


def _as_of_flag(message: str, settings: Settings, flag: str) -> str:
    """The message about a setting as one about the flag where it was written."""
    for field, value in settings:
        if f'config.{field}' in message:
            said = message.replace(f'--config.{field}', field).replace(f'config.{field}', field)
            return f'{flag} {field}={value}: {said}'
    shown = ' '.join(f'{field}={value}' for field, value in settings)
    return f'{flag} {shown}: {message}'
