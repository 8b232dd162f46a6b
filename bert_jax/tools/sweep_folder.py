"""A sweep's grid of settings, and the folder that its machines share."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import runpy
import shutil
import statistics
import time
import urllib.parse
from typing import Any

from absl import flags

from bert_jax.config import ConfigDict, all_fields
from bert_jax.config.command_line import define_config, parse_flags
from bert_jax.config.validation import check_used, validate
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.files import (
    Path,
    children,
    in_bucket,
    is_by_the_way,
    open_folder,
    open_whole,
    write_whole,
)
from bert_jax.weights.formats import read_json

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
        result = runpy.run_path(name)
    except Exception as error:
        raise InputError(f'--config={name}: {type(error).__name__}: {error}') from error
    if 'GRID' not in result:
        return named, []
    config = os.path.normpath(os.path.join(os.path.dirname(name), result['CONFIG']))
    return config + colon + argument, list(result['GRID'])


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
    result: ConfigDict = values['config'].value
    validate(result)
    check_used(result)
    return result


Settings = tuple[tuple[str, str], ...]


def _read(path: Path, **kinds: type) -> Any:
    """What a file of ours says, each of these with a value of its kind; None where there is none.

    Raises:
      InputError: it is something else.
    """
    if not path.exists():
        return None
    hint = 'put it back as it was, or delete it'
    result = read_json(path, hint)
    for name, kind in kinds.items():
        if not isinstance(result.get(name), kind):
            raise InputError(f'{path} has {name}={result.get(name)!r}: {hint}')
    return result


def _is_sweep(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir() if not is_by_the_way(path)}
    return 'sweep.json' in names or names == {'runs'}


class Folder:
    """The directory of a sweep; several processes may write in it.

    Attributes:
      path: of it.
      members: all runs of the sweep, in their order.
    """

    def __init__(self, path: Path, members: list[Member], keep: int):
        """See `tools.sweep` for `keep`."""
        self.path, self.members, self._keep = path, members, keep
        self._opened = time.time()

    def run(self, member: Member) -> Path:
        """The run directory of a member."""
        return self.path / 'runs' / member.name

    def open(self, config: str, settings: list[str]) -> None:
        """Refuses a directory with runs of another config: their results would pass for ours."""
        open_folder(self.path, '--workdir', _is_sweep)
        path = self.path / 'sweep.json'
        ours = {'config': config, 'settings': sorted(settings)}
        theirs = _read(path, config=str, settings=list)
        if theirs is not None and theirs != ours:
            shown = [' '.join([f"--config={s['config']}", *map(str, s['settings'])])
                    for s in (theirs, ours)]
            raise InputError(
                f'{self.path} holds a sweep of {shown[0]}, this is one of {shown[1]}: give another '
                '--workdir, or the same settings'
            )
        self._is_new = theirs is None
        if self._is_new:
            write_whole(path, json.dumps(ours) + '\n')
        (self.path / 'runs').mkdir(exist_ok=True)

    def discard_unbegun(self) -> None:
        """Leaves nothing of a sweep that this process made and in which no run has begun.

        So that it can be started again with other settings in the same directory.
        """
        runs = self.path / 'runs'
        if self._is_new and not any((run / 'config.json').exists() for run in children(runs)):
            runs.rmtree(missing_ok=True)
            (self.path / 'sweep.json').unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds something else
                self.path.rmdir()

    def result(self, member: Member) -> dict[str, Any] | None:
        """The result of a finished member, with `metric`; None if it is not finished."""
        path = self.run(member) / 'sweep_result.json'
        results: dict[str, Any] | None = _read(path, metric=str)
        if results is not None:
            metric = results['metric']
            value = results.get(metric)
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise InputError(
                    f'{path} has {metric}={value!r}: delete it, and the run is run again')
        return results

    def failed(self, member: Member) -> bool:
        """Whether a member failed since this process began; before that, it is tried again."""
        result = _read(self.run(member) / 'sweep_failed.json', time=float)
        return result is not None and result['time'] >= self._opened

    def unfinished(self) -> list[Member]:
        """Members that are still to be run, by whomever."""
        return [m for m in self.members if self.result(m) is None and not self.failed(m)]

    def finish(self, member: Member, metric: str, result: dict[str, float]) -> None:
        """Notes the result of a member, and keeps what is to be kept."""
        path = self.run(member) / 'sweep_result.json'
        write_whole(path, json.dumps({'metric': metric, **result}) + '\n')
        self._keep_the_best()

    def fail(self, member: Member) -> None:
        """Notes that a member failed."""
        path = self.run(member) / 'sweep_failed.json'
        write_whole(path, json.dumps({'time': time.time()}) + '\n')

    def ranking(self) -> list[Member]:
        """The finished members, best first."""
        results = [(m, r) for m in self.members if (r := self.result(m)) is not None]
        ranked = sorted(results, key=lambda pair: -pair[1][pair[1]['metric']])
        return [member for member, _ in ranked]

    def _keep_the_best(self) -> None:
        ranking = self.ranking()
        winner = ranking[0]
        if in_bucket(self.path):
            write_whole(self.path / 'winner', f'{self.run(winner)}\n')
        else:
            link = self.path / f'.winner.{os.getpid()}.tmp'
            link.unlink(missing_ok=True)
            os.symlink(f'runs/{winner.name}', link)
            os.replace(link, self.path / 'winner')  # the link, not what it names
        for member in ranking[self._keep :]:
            for name in ('checkpoints', 'best'):
                folder = self.run(member) / name
                if in_bucket(folder):
                    folder.rmtree(missing_ok=True)
                else:  # another process of the sweep may be at it too
                    shutil.rmtree(folder, ignore_errors=True)

    def report(self) -> int:
        """Prints and writes the table; the exit status of the sweep."""
        ranking = self.ranking()
        if not ranking:
            print('error: no run ended well; see their log.txt', flush=True)
            return 1
        self._keep_the_best()
        results = {m: self.result(m) for m in self.members}
        best = results[ranking[0]]
        assert best is not None
        metric = best['metric']
        groups: dict[Settings, list[float]] = {}
        for member, result in results.items():
            if result is not None:
                groups.setdefault(member.without('seed'), []).append(result[metric])
        rows: list[dict[str, Any]] = [{
            'settings': dict(group), 'runs': len(values), 'mean': statistics.fmean(values),
            'deviation': statistics.stdev(values) if len(values) > 1 else None,
            'best': max(values),
        } for group, values in groups.items()]
        lines = [f'| settings | runs | mean {metric} | deviation | best |',
                 '| --- | --- | --- | --- | --- |']
        for row in rows:
            settings = ', '.join(f'{k} {v}' for k, v in row['settings'].items()) or 'as configured'
            deviation = '' if row['deviation'] is None else f"{row['deviation']:.4f}"
            lines.append(f"| {settings} | {row['runs']} | {row['mean']:.4f} | {deviation} | "
                         f"{row['best']:.4f} |")
        lines.append(f'\nbest: {ranking[0].name} ({metric} {best[metric]:.4f})')
        missing = sorted(m.name for m, result in results.items() if result is None)
        if missing:
            lines.append(f'failed: {", ".join(missing)}')
        text = '\n'.join(lines) + '\n'
        print(text, flush=True)
        summary = {
            'metric': metric, 'winner': ranking[0].name, 'best': best[metric], 'groups': rows,
            'runs': {m.name: result for m, result in results.items()},
        }
        write_whole(self.path / 'table.md', text)
        write_whole(self.path / 'results.json', json.dumps(summary, indent=1))
        with open_whole(self.path / 'sweep.png') as file:
            _draw(file, metric, groups)
        return 1 if missing else 0


def _draw(file: Any, metric: str, groups: dict[Settings, list[float]]) -> None:
    """Every run, and the mean of each setting."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(max(4.0, 1.2 * len(groups)), 3.5))
    for x, values in enumerate(groups.values()):
        axis.plot([x] * len(values), values, 'o', color='C0', markersize=4)
        axis.plot([x - 0.2, x + 0.2], [statistics.fmean(values)] * 2, '-', color='C1')
    names = ['\n'.join(f"{k.rpartition('.')[2]}\n{v}" for k, v in group) or 'as configured'
             for group in groups]
    axis.set_xticks(range(len(groups)), names, fontsize=8)
    axis.set_ylabel(metric)
    axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=100, format='png')
    plt.close(figure)
