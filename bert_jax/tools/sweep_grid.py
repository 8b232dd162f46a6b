"""What a sweep runs: its members, from a grid of settings or a file of configs/sweeps."""

from __future__ import annotations

import dataclasses
import itertools
import os
import runpy
import urllib.parse

from absl import flags

from bert_jax.config import ConfigDict, all_fields
from bert_jax.config.command_line import define_config, parse_flags
from bert_jax.config.validation import check_used, validate
from bert_jax.runtime.errors import InputError, nearest

_SAFE = ' :+@'  # of the characters that quoting would replace, harmless in a file's name


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of the sweep: its settings by field, as they are written on the command line."""

    settings: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Of its folder: a value may be a path, and stays one name."""
        return ','.join(
            f'{field}={urllib.parse.quote(value, safe=_SAFE)}' for field, value in self.settings)

    def without(self, *fields: str) -> tuple[tuple[str, str], ...]:
        """Its settings but for these."""
        return tuple(item for item in self.settings if item[0] not in fields)


def grid_members(grid: list[str], restarts: int) -> list[Member]:
    """All combinations.

    Args:
      grid: 'FIELD=VALUE,VALUE' each.
      restarts: seeds 0 to restarts - 1, where above 0.

    Raises:
      InputError: not in that form, or no field of the config; or there is nothing to vary.
    """
    known = all_fields()
    axes = []
    for entry in grid:
        field, equals, values = entry.partition('=')
        if not equals or not all(values.split(',')):
            raise InputError(f'--grid {entry}: write FIELD=VALUE,VALUE')
        if len(set(values.split(','))) < len(values.split(',')):
            raise InputError(f'--grid {entry} has a value twice')
        if field not in known:
            raise InputError(f'--grid {field} is not a field: {nearest(field, known)}')
        axes.append([(field, value) for value in values.split(',')])
    if restarts:
        axes.append([('seed', str(seed)) for seed in range(restarts)])
    names = [axis[0][0] for axis in axes]
    if len(set(names)) < len(names):
        raise InputError(f'--grid names a field twice: {", ".join(names)}')
    if not axes:
        raise InputError(
            'nothing varies: give --grid FIELD=VALUE,VALUE, --restarts=N, or as --config a file '
            'of configs/sweeps, which has the grid of a paper'
        )
    return [Member(settings) for settings in itertools.product(*axes)]


def read_sweep(named: str) -> tuple[str, list[str]]:
    """(config of the runs, grid) that `--config` names.

    A file of a sweep says both: CONFIG, a path from where it is, and GRID, as --grid is written.
    Any other is the config itself.

    Raises:
      InputError: the file cannot be run.
    """
    name, colon, argument = named.partition(':')
    if not os.path.isfile(name):  # whoever reads it as a config says so
        return named, []
    try:
        found = runpy.run_path(name)
    except Exception as error:
        raise InputError(f'--config={name}: {type(error).__name__}: {error}') from error
    if 'GRID' not in found:
        return named, []
    config = os.path.normpath(os.path.join(os.path.dirname(name), found['CONFIG']))
    return config + colon + argument, list(found['GRID'])


def merged(grid: list[str], ours: list[str]) -> list[str]:
    """A grid in which `ours` takes the place of values of the same fields."""
    fields = {entry.partition('=')[0] for entry in ours}
    return [entry for entry in grid if entry.partition('=')[0] not in fields] + ours


def member_config(config: str, overrides: list[str], member: Member) -> ConfigDict:
    """A member's config.

    Args:
      config: file, as on the command line.
      overrides: '--config.FIELD=VALUE' of all members.
      member: whose settings go before those.

    Raises:
      InputError: there is no such file or field, or a value cannot be.
    """
    argv = ['sweep', f'--config={config}', '--config.train.keep_checkpoints=1', *overrides,
            *(f'--config.{field}={value}' for field, value in member.settings)]
    values = flags.FlagValues()
    define_config(values, argv)
    rest = parse_flags(argv, values)
    if len(rest) > 1:
        raise InputError(f'{rest[1]} is no option of this program; see --help')
    found: ConfigDict = values['config'].value
    validate(found)
    check_used(found)
    return found
