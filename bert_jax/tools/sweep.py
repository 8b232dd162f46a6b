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
import functools
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from bert_jax.config import ConfigDict
from bert_jax.config.command_line import Parser, at_least, config_file, parse_command, run_name
from bert_jax.config.fields import FIELDS, flat_fields
from bert_jax.config.suggestions import suggest_field
from bert_jax.runtime import files
from bert_jax.runtime.errors import Diverged, InputError, Stopped, tell
from bert_jax.runtime.lease import Claim
from bert_jax.runtime.process import error_boundary
from bert_jax.tools.workers import ShouldStop, run_workers
from bert_jax.validation import check_used, validate

Settings = tuple[tuple[str, str], ...]
# Fields in which members that share a compiled step may differ, as they are its arguments.
_ARGUMENTS = tuple(path for path, field in FIELDS.items() if field.step_argument)
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
    entries = list(grid)
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
    combinations = itertools.product(*axes.values())
    return [Member(tuple(zip(axes, values, strict=True))) for values in combinations]


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
    given = {_field_of(entry) for entry in grid}
    kept = [entry for entry in defined['GRID'] if _field_of(entry) not in given]
    config = os.path.normpath(os.path.join(os.path.dirname(name), defined['CONFIG']))
    return config + colon + argument, [*kept, *grid]


def _field_of(entry: str) -> str:
    """The field of a grid's entry 'FIELD=VALUE,VALUE'."""
    return entry.partition('=')[0]


def member_config(config: str, overrides: Sequence[str], member: Member) -> ConfigDict:
    """A member's config.

    Args:
      config: file, as on the command line.
      overrides: '--config.FIELD=VALUE' for all members.
      member: the member; its settings take precedence.

    Raises:
      InputError: there is no such file or field, or a value is invalid.
    """
    settings = [f'--config.{field}={value}' for field, value in member.settings]
    result, _ = parse_command(
        ['sweep', f'--config={config}', '--config.train.keep_checkpoints=1', *overrides, *settings],
        '')
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
        is_sweep = 'sweep.json' in names or names == {'runs'}
        files.open_folder(self.path, '--workdir', lambda _: is_sweep)
        path = self.path / 'sweep.json'
        ours = {'config': config, 'settings': sorted(settings)}
        theirs = files.read_json(path, 'put it back, or delete it') if path.exists() else None
        if theirs != ours:
            if theirs and self._has_begun():
                raise InputError(
                    f'{self.path} holds a sweep of {_described(theirs)}, this is one of '
                    f'{_described(ours)}: give another --workdir, or the same settings')
            files.write_whole(path, json.dumps(ours) + '\n')
        (self.path / 'runs').mkdir(exist_ok=True)

    def _has_begun(self) -> bool:
        """Whether any run has begun."""
        for run in files.children(self.path / 'runs'):
            if (run / 'config.json').exists() or (run / 'sweep_result.json').exists():
                return True
        return False

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
        return [
            member for member in self.members
            if self.result(member) is None and not self.failed(member)]

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
        record = {'metric': metric, 'host': platform.node(), **result}
        files.write_whole(self.run(member) / 'sweep_result.json', json.dumps(record) + '\n')
        self._keep_the_best()

    def fail(self, member: Member) -> None:
        """Records that a member failed."""
        record = {'time': time.time()}
        files.write_whole(self.run(member) / 'sweep_failed.json', json.dumps(record))

    def results(self) -> dict[Member, dict[str, Any]]:
        """The results of the finished members, best first."""
        found = {}
        for member in self.members:
            result = self.result(member)
            if result is not None:
                found[member] = result
        best_first = sorted(found, key=lambda member: -_score(found[member]))
        return {member: found[member] for member in best_first}

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
        groups = self._groups(results)
        text = self._table(results, groups)
        print(text, flush=True)
        files.write_whole(self.path / 'table.md', text)
        winner, best = next(iter(results.items()))
        files.write_whole(self.path / 'results.json', json.dumps({
            'metric': best['metric'], 'winner': winner.name, 'best': _score(best),
            'groups': groups,
            'runs': {member.name: results.get(member) for member in self.members},
        }, indent=1))
        return 1 if len(results) < len(self.members) else 0

    def _groups(self, results: Mapping[Member, dict[str, Any]]) -> list[dict[str, Any]]:
        """The scores of finished members that differ only in their seed, summarized."""
        scores: dict[Settings, list[float]] = {}
        for member in self.members:
            if member in results:
                group = scores.setdefault(member.without('seed'), [])
                group.append(_score(results[member]))
        return [
            {'settings': dict(settings), **summary(values), 'best': max(values)}
            for settings, values in scores.items()]

    def _table(
        self, results: Mapping[Member, dict[str, Any]], groups: Sequence[dict[str, Any]]
    ) -> str:
        """The table in Markdown, with the best run and the deleted and failed ones.

        Args:
          results: of the finished members, best first.
          groups: from `_groups`.
        """
        winner, best = next(iter(results.items()))
        metric = best['metric']
        heading = ['settings', 'runs', f'mean {metric}', 'deviation', 'best']
        lines = markdown(heading, [_group_cells(group) for group in groups])
        lines.append(f'\nbest: {winner.name} ({metric} {_score(best):.4f})')
        hours = sum(map(self.seconds, results)) / 3600
        hosts = {result.get('host', '') for result in results.values()} - {''}
        lines.append(
            f"{len(results)} runs, {hours:.2f} hours of a process in all, on "
            f"{', '.join(sorted(hosts))}")
        deleted = len(results) - self.keep
        if deleted > 0:
            kept = '; '.join(member.name for member in list(results)[: self.keep])
            lines.append(f'the checkpoints of {deleted} runs are deleted; kept: {kept}')
        failed = [member.name for member in self.members if member not in results]
        if failed:
            lines.append(f"failed: {', '.join(sorted(failed))}")
        return '\n'.join(lines) + '\n'


def _described(sweep: Mapping[str, Any]) -> str:
    """The content of a sweep.json, for a message."""
    return f"--config={sweep.get('config')} {sweep.get('settings')}"


def _score(result: Mapping[str, Any]) -> float:
    """A result by its own metric: pre-training that masks differently from BERT has another one."""
    score: float = result[result['metric']]
    return score


def _group_cells(group: Mapping[str, Any]) -> list[str]:
    """The cells of a group in the table."""
    settings = [f'{field} {value}' for field, value in group['settings'].items()]
    return [
        ', '.join(settings) or 'as configured', str(group['runs']), _four_places(group['mean']),
        _four_places(group['deviation']), _four_places(group['best'])]


def _four_places(value: float | None) -> str:
    return '' if value is None else f'{value:.4f}'


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Number of runs, their mean, and their standard deviation, None for a single run."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {'runs': len(values), 'mean': statistics.fmean(values), 'deviation': deviation}


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    rule = ['---'] * len(heading)
    return [f"| {' | '.join(cells)} |" for cells in (heading, rule, *rows)]


def work(sweep: Sweep, should_stop: ShouldStop) -> bool:
    """Trains the members that no other process has, one after another; False: a stop was requested.

    Members with the same compiled step share weights and data.

    Args:
      sweep: opened.
      should_stop: polled with the step of a run, and between runs.

    Raises:
      InputError: the config cannot work.
    """
    worker = _Worker(sweep, should_stop)
    while not should_stop(0):
        member = worker.train_next()
        if member is None:
            return True
        worker.print_progress(member)
    return False


class _Worker:
    """Trains members of a sweep in this process, and keeps the program of the last one."""

    def __init__(self, sweep: Sweep, should_stop: ShouldStop):
        self.sweep = sweep
        self.should_stop = should_stop
        self._program: Any = None
        self._program_settings: Settings | None = None  # of the members that `_program` suits
        self._started = time.monotonic()
        self._unfinished_before = len(sweep.unfinished())

    def train_next(self) -> Member | None:
        """Trains a member that no other process has, and returns it; None: there is none."""
        waiting = sorted(self.sweep.unfinished(), key=self._needs_another_program)
        for member in waiting:
            claim = self.sweep.claim(member)
            if claim is None:
                continue
            log_path = self.sweep.run(member) / 'log.txt'
            try:
                with _open_log(log_path, claim) as log, contextlib.redirect_stdout(log):
                    if self._needs_another_program(member):
                        self._open_program(member, waiting)
                    self._train(member, claim)
            finally:
                claim.release()
            return member
        return None

    def print_progress(self, member: Member) -> None:
        """Prints the score of a member, if it has finished, and when all will have."""
        result = self.sweep.result(member)
        if result is None:
            return
        print(f"{member.name}: {result['metric']} {_score(result):.4f}", flush=True)
        left = len(self.sweep.unfinished())
        done = self._unfinished_before - left
        if left and done > 0:
            seconds = (time.monotonic() - self._started) / done * left
            print(
                f'  {done}/{self._unfinished_before} runs, eta {seconds / 60:.0f} min', flush=True)

    def _needs_another_program(self, member: Member) -> bool:
        return member.without(*_ARGUMENTS) != self._program_settings

    def _open_program(self, member: Member, waiting: Sequence[Member]) -> None:
        """Opens the program of a member and of all others that are waiting for the same."""
        from bert_jax.run_setup import open_run

        self._program = None  # frees its memory
        self._program_settings = member.without(*_ARGUMENTS)
        alike = [
            self.sweep.run(other) for other in waiting if not self._needs_another_program(other)]
        self._program = open_run(self._config(member), alike)

    def _config(self, member: Member) -> ConfigDict:
        return member_config(self.sweep.config, self.sweep.overrides, member)

    def _own_program(self, member: Member) -> Any:
        """The program with the member's own seed and learning rate."""
        shared = self._program
        fields = flat_fields(self._config(member))
        config = ConfigDict(shared.config.copy_and_resolve_references())
        with config.unlocked():
            config.update_from_flattened_dict({name: fields[name] for name in _ARGUMENTS})
        return dataclasses.replace(
            shared, config=config, task=shared.task.with_seed(config.seed))

    def _train(self, member: Member, claim: Claim) -> None:
        """Trains a claimed member with its own seed and learning rate, and records how it ended.

        Standard output must be redirected to the log.
        """
        from bert_jax.train.experiment import train_run

        program = self._own_program(member)

        def should_stop(step: int) -> bool:
            claim.check()
            return self.should_stop(step)

        try:
            result = train_run(program, self.sweep.run(member), should_stop, began=time.time())
        except InputError as error:
            if not claim.lost:
                raise
            print(error)  # the process that took the run over goes on with it
        except Stopped as stopped:
            print(stopped)
        except Exception as error:
            if not isinstance(error, Diverged):
                traceback.print_exc(file=sys.stdout)
            self._record_failure(member, error)
        else:
            print(f'result {json.dumps(result)}')
            self.sweep.finish(member, f'eval/{program.task.metric}', result)

    def _record_failure(self, member: Member, error: Exception) -> None:
        line = ' '.join(f'{type(error).__name__}: {error}'.split())[:300]
        print(f'error: {line}')
        self.sweep.fail(member)
        tell(f'{member.name}: failed ({line}); see {self.sweep.run(member)}/log.txt')


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


def number_or_all(text: str) -> int:
    """A type of an argument: a number from 0, or `all`, which is more than any."""
    return sys.maxsize if text == 'all' else at_least(0)(text)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """(The command's own flags, those of the config)."""
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
    return parser.parse_known_args(argv)


def _work_until_done(sweep: Sweep, should_stop: ShouldStop) -> bool:
    """Works until every run has ended, also those of other processes; False: stopped before."""
    while work(sweep, should_stop):
        if not sweep.unfinished():
            return True
        time.sleep(WAIT_SECONDS)  # a run whose process dies meanwhile is taken over
    return False


def main(argv: Sequence[str]) -> int:
    """Runs the command (see the top of this file) and returns its exit status."""
    options, overrides = _parse(argv)
    with error_boundary():
        is_worker = options.worker is not None
        config, grid = read_sweep(config_file(options.config), options.grid)
        members = grid_members(grid, options.restarts)
        for member in members:  # reports one that cannot work before any is run
            member_config(config, overrides, member)
        workdir = options.workdir or f'runs/sweep-{run_name(config)}'
        sweep = Sweep(files.as_path(workdir), config, overrides, members, options.keep)
        if not is_worker:
            print(f'sweep directory: {workdir}', flush=True)
            sweep.open(config, overrides)
            done = len(members) - len(sweep.unfinished())
            if done:
                print(f'{done} of {len(members)} runs are finished already', flush=True)
        status = run_workers(
            'bert_jax.tools.sweep', argv, options.worker, options.chips,
            functools.partial(_work_until_done, sweep))
        if status or is_worker:
            return status
        return sweep.report()


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
