"""Runs a grid of settings, each as a run of its own, and picks the best on the dev set.

    python -m bert_jax.tools.sweep --config=configs/sweeps/glue.py:mrpc \\
        --config.init_checkpoint=DIR --config.data.source=glue
    python -m bert_jax.tools.sweep --config=configs/glue.py:rte --restarts=5 \\
        --grid optimizer.learning_rate=5e-5,3e-5,2e-5 --grid train.batch_size=16,32 ...

The files in configs/sweeps name the paper's grids; --grid replaces their values of a field.
--restarts=N adds the seeds 0 to N-1, the paper's remedy for small data sets. Every
--config.FIELD=VALUE applies to all runs. The same command resumes a sweep: finished runs are kept,
an interrupted one resumes from its checkpoint.

A process trains runs that differ only in seed and learning rate one after another; for these it
reads weights and data and compiles the step only once. --chips=1 starts a process for every chip of
this machine (--chips=2 for every two, ...). Any number of processes and machines may run the same
command on one folder, such as the hosts of a slice: each run is claimed by one process, and taken
over by another if that one dies.

The directory receives table.md, results.json, every run with its log, and `winner`, a link to the
best one (in a bucket, a file with its name). The checkpoints of the other runs are deleted once
they are beaten; --keep=K keeps those of the K best, for example for an ensemble, --keep=all those
of all runs.
"""

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import math
import os
import platform
import runpy
import statistics
import sys
import time
import traceback
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

from bert_jax.config import ConfigDict
from bert_jax.config.command_line import Parser, at_least, config_file, parse_command, run_name
from bert_jax.config.fields import FIELDS, flat_fields, meant
from bert_jax.runtime import files
from bert_jax.runtime.errors import Diverged, InputError, Stopped, tell
from bert_jax.runtime.lease import Claim
from bert_jax.runtime.process import error_boundary
from bert_jax.tools.workers import run_workers
from bert_jax.validation import check_used, validate

Settings = tuple[tuple[str, str], ...]
# Fields in which members that share a compiled step may differ, as they are its arguments.
_ARGUMENTS = ('seed', 'optimizer.learning_rate')
_SAFE = ' :+@'  # characters that are harmless in a file name and stay unquoted
WAIT_SECONDS = 5.0  # between checks of runs that other processes have claimed


class Member(NamedTuple):
    """One run of the sweep: its settings, (field, value) as written on the command line."""

    settings: Settings

    @property
    def name(self) -> str:
        """The name of its folder; quoting makes a value that is a path part of one name."""
        return ','.join(
            f'{field}={urllib.parse.quote(value, safe=_SAFE)}' for field, value in self.settings)

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
        twice; or there is nothing to vary.
    """
    axes: dict[str, list[str]] = {}
    seeds = [f"seed={','.join(map(str, range(restarts)))}"] if restarts else []
    for entry in [*grid, *seeds]:
        field, _, text = entry.partition('=')
        values = text.split(',')
        if not all(values):
            raise InputError(f'--grid {entry}: write FIELD=VALUE,VALUE')
        if field not in FIELDS:
            raise InputError(f'--grid {field} is not a field: {meant(field)}')
        if field in axes or len(set(values)) < len(values):
            raise InputError(f'--grid {entry} has a field or value twice')
        axes[field] = values
    if not axes:
        raise InputError(
            'nothing varies: give --grid FIELD=VALUE,VALUE, --restarts=N, or as --config a file '
            'of configs/sweeps, which has the grid of a paper')
    return [Member(tuple(zip(axes, values, strict=True)))
            for values in itertools.product(*axes.values())]


def read_sweep(named: str, grid: Sequence[str] = ()) -> tuple[str, list[str]]:
    """(Config of the runs, grid) of the command line.

    Args:
      named: a config, or a sweep's file, which defines CONFIG, a path relative to the file, and
        GRID, entries as for --grid.
      grid: from the command line; replaces the file's values of the same fields.
    """
    name, colon, argument = named.partition(':')
    defined: dict[str, Any] = {}
    with contextlib.suppress(Exception, SystemExit):  # reported when the file is parsed
        defined = runpy.run_path(name)
    if not {'GRID', 'CONFIG'} <= defined.keys():
        return named, list(grid)
    given = {entry.partition('=')[0] for entry in grid}
    config = os.path.normpath(os.path.join(os.path.dirname(name), defined['CONFIG']))
    return config + colon + argument, [
        *(entry for entry in defined['GRID'] if entry.partition('=')[0] not in given), *grid]


def member_config(config: str, overrides: Sequence[str], member: Member) -> ConfigDict:
    """A member's config.

    Args:
      config: file, as on the command line.
      overrides: '--config.FIELD=VALUE' for all members.
      member: the member; its settings take precedence.

    Raises:
      InputError: there is no such file or field, or a value is invalid.
    """
    result, _ = parse_command(
        ['sweep', f'--config={config}', '--config.train.keep_checkpoints=1', *overrides,
         *(f'--config.{field}={value}' for field, value in member.settings)], '')
    validate(result)
    check_used(result)
    return result


@dataclasses.dataclass(eq=False)
class Sweep:
    """A sweep and its directory, in which several processes may work.

    Attributes:
      path: of the directory.
      config: file, as on the command line.
      overrides: '--config.FIELD=VALUE' for all members.
      members: all runs, in their order.
      keep: number of best runs whose checkpoints are kept.
    """

    path: files.Path
    config: str
    overrides: Sequence[str]
    members: Sequence[Member]
    keep: int = 1
    _begun: float = dataclasses.field(default_factory=time.time)
    # Claims on members that another process has; repeated attempts notice when that one is dead.
    _claims: dict[Member, Claim] = dataclasses.field(default_factory=dict)

    def run(self, member: Member) -> files.Path:
        """The run directory of a member."""
        return self.path / 'runs' / member.name

    def open(self, config: str, settings: Sequence[str]) -> None:
        """Makes the directory, or accepts one with the same runs, or one in which none has begun.

        Args:
          config, settings: what the results depend on.

        Raises:
          InputError: it holds a sweep of another config, whose results would pass for ours.
        """
        names = {path.name for path in files.children(self.path) if not files.is_incidental(path)}
        files.open_folder(
            self.path, '--workdir', lambda _: 'sweep.json' in names or names == {'runs'})
        path, runs = self.path / 'sweep.json', self.path / 'runs'
        ours = {'config': config, 'settings': sorted(settings)}
        theirs = files.read_json(path, 'put it back, or delete it') if path.exists() else None
        if theirs and theirs != ours and any(
            (run / name).exists() for run in files.children(runs)
            for name in ('config.json', 'sweep_result.json')
        ):
            shown = [f"--config={of.get('config')} {of.get('settings')}" for of in (theirs, ours)]
            raise InputError(f'{self.path} holds a sweep of {shown[0]}, this is one of {shown[1]}: '
                             'give another --workdir, or the same settings')
        if theirs != ours:
            files.write_whole(path, json.dumps(ours) + '\n')
        runs.mkdir(exist_ok=True)

    def result(self, member: Member) -> dict[str, Any] | None:
        """The result of a finished member, with `metric`; None if it is not finished."""
        path = self.run(member) / 'sweep_result.json'
        if not path.exists():
            return None
        remedy = 'delete it, and the run is run again'
        result = files.read_json(path, remedy)
        value = result.get(str(result.get('metric')))
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InputError(f"{path} has {result.get('metric')}={value!r}: {remedy}")
        return result

    def failed(self, member: Member) -> bool:
        """Whether a member failed since this process began; if earlier, it is tried again."""
        path = self.run(member) / 'sweep_failed.json'
        return path.exists() and files.read_json(path, 'delete it').get('time', 0) >= self._begun

    def unfinished(self) -> list[Member]:
        """Members that are neither finished nor failed, even if another process runs them."""
        return [m for m in self.members if self.result(m) is None and not self.failed(m)]

    def claim(self, member: Member) -> Claim | None:
        """A claim on an unfinished member, to be released by the caller; None if it is not free."""
        self.run(member).mkdir(parents=True, exist_ok=True)
        claim = self._claims.setdefault(member, Claim(self.run(member)))
        if not claim.attempt():
            return None
        del self._claims[member]
        if self.result(member) is None:
            return claim
        claim.release()  # another has just finished it
        return None

    def finish(self, member: Member, metric: str, result: dict[str, float]) -> None:
        """Writes the result of a member, and deletes checkpoints that are not to be kept."""
        files.write_whole(self.run(member) / 'sweep_result.json', json.dumps(
            {'metric': metric, 'host': platform.node(), **result}) + '\n')
        self._keep_the_best()

    def fail(self, member: Member) -> None:
        """Records that a member failed."""
        files.write_whole(self.run(member) / 'sweep_failed.json', json.dumps({'time': time.time()}))

    def results(self) -> dict[Member, dict[str, Any]]:
        """The results of the finished members, best first."""
        found = {m: r for m in self.members if (r := self.result(m)) is not None}
        # Each by its own metric: pre-training that masks differently from BERT has another one.
        return dict(sorted(found.items(), key=lambda item: -item[1][item[1]['metric']]))

    def seconds(self, member: Member) -> float:
        """Seconds that a run took, over all its starts."""
        path = self.run(member) / 'goodput.json'
        known = files.read_json(path, 'delete it') if path.exists() else {}
        return sum(known.get('seconds', {}).values())

    def _keep_the_best(self) -> None:
        ranking = list(self.results())
        if files.in_bucket(self.path):
            files.write_whole(self.path / 'winner', f'{self.run(ranking[0])}\n')
        else:
            link = files.temporary_name(self.path / 'winner')
            os.symlink(f'runs/{ranking[0].name}', link)
            os.replace(link, self.path / 'winner')  # replaces the link, not its target
        for member in ranking[self.keep :]:
            for name in ('checkpoints', 'best'):
                with contextlib.suppress(OSError):  # another process may delete it at the same time
                    (self.run(member) / name).rmtree(missing_ok=True)

    def report(self) -> int:
        """Prints and writes the table; returns the exit status of the sweep."""
        results = self.results()
        if not results:
            print('error: no run ended well; see their log.txt', flush=True)
            return 1
        self._keep_the_best()
        winner, best = next(iter(results.items()))
        metric = best['metric']
        groups: dict[Settings, list[float]] = {}
        for member in self.members:
            if member in results:
                score = results[member][results[member]['metric']]
                groups.setdefault(member.without('seed'), []).append(score)
        rows = [{'settings': dict(group), **summary(values), 'best': max(values)}
                for group, values in groups.items()]
        lines = markdown(['settings', 'runs', f'mean {metric}', 'deviation', 'best'], [[
            ', '.join(map(' '.join, row['settings'].items())) or 'as configured', str(row['runs']),
            *('' if row[name] is None else f'{row[name]:.4f}'
              for name in ('mean', 'deviation', 'best'))] for row in rows])
        hours = sum(map(self.seconds, results)) / 3600
        places = sorted({result.get('host', '') for result in results.values()} - {''})
        lines += [f'\nbest: {winner.name} ({metric} {best[metric]:.4f})',
                  f"{len(results)} runs, {hours:.2f} hours of a process in all, on "
                  f"{', '.join(places)}"]
        if (deleted := len(results) - self.keep) > 0:
            lines.append(f'the checkpoints of {deleted} runs are deleted; kept: '
                         + '; '.join(m.name for m in list(results)[: self.keep]))
        failed = sorted(member.name for member in self.members if member not in results)
        if failed:
            lines.append(f"failed: {', '.join(failed)}")
        text = '\n'.join(lines) + '\n'
        print(text, flush=True)
        files.write_whole(self.path / 'table.md', text)
        files.write_whole(self.path / 'results.json', json.dumps({
            'metric': metric, 'winner': winner.name, 'best': best[metric], 'groups': rows,
            'runs': {m.name: results.get(m) for m in self.members},
        }, indent=1))
        return 1 if failed else 0


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Number of runs, their mean, and their standard deviation, None for a single run."""
    return {'runs': len(values), 'mean': statistics.fmean(values),
            'deviation': statistics.stdev(values) if len(values) > 1 else None}


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (heading, ['---'] * len(heading), *rows)]


def work(sweep: Sweep, should_stop: Callable[[int], bool]) -> bool:
    """Trains the members that no other process has, one after another; False: a stop was requested.

    Members with the same compiled step share weights and data.

    Args:
      sweep: opened.
      should_stop: polled with the step of a run, and between runs.

    Raises:
      InputError: the config cannot work.
    """
    from bert_jax.run_setup import open_run

    started, before = time.monotonic(), len(sweep.unfinished())
    program: Any = None
    shared: Settings | None = None
    while not should_stop(0):
        todo = sorted(sweep.unfinished(), key=lambda m: m.without(*_ARGUMENTS) != shared)
        claims = ((member, claim) for member in todo if (claim := sweep.claim(member)))
        member, claim = next(claims, (None, None))
        if member is None or claim is None:
            return True
        run = sweep.run(member)
        try:
            with _open_log(run / 'log.txt', claim) as log, contextlib.redirect_stdout(log):
                if shared != (ours := member.without(*_ARGUMENTS)):
                    program, shared = None, ours  # frees the previous program's memory
                    alike = [sweep.run(m) for m in todo if m.without(*_ARGUMENTS) == shared]
                    program = open_run(member_config(sweep.config, sweep.overrides, member), alike)
                _train(sweep, member, claim, program, should_stop)
        finally:
            claim.release()
        if result := sweep.result(member):
            metric, left = result['metric'], len(sweep.unfinished())
            print(f'{member.name}: {metric} {result[metric]:.4f}', flush=True)
            if 0 < left < before:
                seconds = (time.monotonic() - started) / (before - left) * left
                print(f'  {before - left}/{before} runs, eta {seconds / 60:.0f} min', flush=True)
    return False


@contextlib.contextmanager
def _open_log(path: files.Path, claim: Claim) -> Iterator[IO[str]]:
    """Opens the log of a claimed run; in a bucket it is written when the run ends."""
    if not files.in_bucket(path):
        with open(path, 'a', encoding='utf-8', buffering=1) as log:
            yield log
        return
    text = io.StringIO()
    text.write(path.read_text(encoding='utf-8') if path.exists() else '')
    try:
        yield text
    finally:
        if not claim.lost:
            files.write_whole(path, text.getvalue())


def _train(
    sweep: Sweep, member: Member, claim: Claim, program: Any, should_stop: Callable[[int], bool]
) -> None:
    """Trains a claimed member with its own seed and learning rate, and records how it ended.

    Standard output must be redirected to the log.
    """
    from bert_jax.train.experiment import train_run

    own = flat_fields(member_config(sweep.config, sweep.overrides, member))
    config = ConfigDict(program.config.copy_and_resolve_references())
    with config.unlocked():
        config.update_from_flattened_dict({name: own[name] for name in _ARGUMENTS})
    program = dataclasses.replace(program, config=config, task=program.task.with_seed(config.seed))

    def stop(step: int) -> bool:
        claim.check()
        return should_stop(step)

    try:
        result = train_run(program, sweep.run(member), stop, began=time.time())
    except InputError as error:
        if not claim.lost:
            raise
        print(error)  # the process that took the run over goes on with it
    except Stopped as stopped:
        print(stopped)
    except Exception as error:
        if not isinstance(error, Diverged):
            traceback.print_exc(file=sys.stdout)
        line = ' '.join(f'{type(error).__name__}: {error}'.split())[:300]
        print(f'error: {line}')
        sweep.fail(member)
        tell(f'{member.name}: failed ({line}); see {sweep.run(member)}/log.txt')
    else:
        print(f'result {json.dumps(result)}')
        sweep.finish(member, f'eval/{program.task.metric}', result)


def number_or_all(text: str) -> int:
    """A type of an argument: a number from 0, or `all`, which is more than any."""
    return sys.maxsize if text == 'all' else at_least(0)(text)


def main(argv: Sequence[str]) -> int:
    """Runs the command (see the top of this file) and returns its exit status."""
    parser = Parser('python -m bert_jax.tools.sweep', __doc__)
    parser.add_argument('--config', required=True, help='config file, as FILE.py or FILE.py:ARG')
    parser.add_argument('--workdir', help='default: runs/sweep-NAME of the config')
    parser.add_argument('--grid', action='append', default=[], metavar='FIELD=VALUE,VALUE',
                        help='values of a field; repeated: all combinations')
    parser.add_argument('--restarts', type=at_least(0), default=0,
                        help='runs all with seeds 0 to N-1')
    parser.add_argument('--chips', type=at_least(0), default=0,
                        help='chips of a process, one for each such group (default: one has all)')
    parser.add_argument('--keep', type=number_or_all, default=1, metavar='K|all',
                        help='keep the checkpoints of the K best runs (1)')
    parser.add_argument('--worker', type=int, help=argparse.SUPPRESS)  # number of a process
    options, overrides = parser.parse_known_args(argv)
    with error_boundary():
        by_hand = options.worker is None
        config, grid = read_sweep(config_file(options.config), options.grid)
        members = grid_members(grid, options.restarts)
        for member in members:  # reports one that cannot work before any is run
            member_config(config, overrides, member)
        workdir = options.workdir or f'runs/sweep-{run_name(config)}'
        sweep = Sweep(files.as_path(workdir), config, overrides, members, options.keep)
        if by_hand:
            print(f'sweep directory: {workdir}', flush=True)
            sweep.open(config, overrides)
            if done := len(members) - len(sweep.unfinished()):
                print(f'{done} of {len(members)} runs are finished already', flush=True)

        def act(should_stop: Callable[[int], bool]) -> bool:
            while work(sweep, should_stop):
                if not sweep.unfinished():
                    return True
                time.sleep(WAIT_SECONDS)  # a run whose process dies meanwhile is taken over
            return False

        status = run_workers('bert_jax.tools.sweep', argv, options.worker, options.chips, act)
        return status or (sweep.report() if by_hand else 0)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
