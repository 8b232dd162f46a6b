"""Runs a grid of settings, each as a run of its own, and picks the best on the dev set.

    python -m bert_jax.tools.sweep --config=configs/sweeps/glue.py:mrpc \\
        --config.init_checkpoint=DIR --config.data.source=glue
    python -m bert_jax.tools.sweep --config=configs/glue.py:rte --restarts=5 \\
        --grid optimizer.learning_rate=5e-5,3e-5,2e-5 --grid train.batch_size=16,32 ...

The files in configs/sweeps name the paper's grids; --grid takes the place of their values of a
field. --restarts=N adds the seeds 0 to N-1, the paper's remedy for small data sets. All
--config.FIELD=VALUE go to every run. Started again, the sweep goes on where it was: finished runs
are kept, an interrupted one resumes from its checkpoint.

Runs that differ in seed and learning rate only share the process, the weights and data that were
read, and the compiled step, one after another. --chips=1 starts a process for every chip of this
machine (--chips=2 for every two, ...), --parallel=P starts P that share the processor cores. Any
number of machines may run the same command on one folder, such as the hosts of a slice: each run
is claimed by one process, and taken over if that one dies.

The directory receives table.md, results.json, sweep.png, every run with its log, and `winner`, a
link to the best one (in a bucket, a file with its name). Of the other runs the checkpoints are
deleted once they are beaten; --keep=K keeps those of the K best, as an ensemble wants them,
--keep=all those of all.
"""

from __future__ import annotations

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # before anything loads TensorFlow

import argparse
import contextlib
import ctypes
import dataclasses
import io
import itertools
import json
import math
import platform
import runpy
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from absl import logging

from bert_jax.config import ConfigDict, get_field
from bert_jax.config.command_line import config_file, parse_command
from bert_jax.config.fields import FIELDS
from bert_jax.config.validation import check_used, validate
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import Diverged, InputError, Stopped, nearest
from bert_jax.runtime.files import (
    Path,
    as_path,
    children,
    in_bucket,
    is_by_the_way,
    open_folder,
    open_whole,
    upload,
    write_whole,
)
from bert_jax.runtime.lease import Claim
from bert_jax.runtime.process import error_boundary
from bert_jax.runtime.stopping import Guard
from bert_jax.weights.formats import read_json

_SAFE = ' :+@'  # of the characters that quoting would replace, harmless in a file's name


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of the sweep: its settings by field, as they are written on the command line."""

    settings: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The name of its folder: a value may be a path, and stays one name."""
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
    known = list(FIELDS)
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
    result, _ = parse_command(argv, __doc__ or '')
    validate(result)
    check_used(result)
    return result


Settings = tuple[tuple[str, str], ...]


def _read(path: Path, **kinds: type) -> Any:
    """The fields of a JSON file, each of its type; None where there is no file.

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
        """Writes the result of a member, and keeps what is to be kept."""
        path = self.run(member) / 'sweep_result.json'
        write_whole(path, json.dumps(
            {'metric': metric, 'host': platform.node(), **result}) + '\n')
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

    def _hours(self, member: Member) -> float:
        """Hours that a run took, over all its starts."""
        try:
            text = (self.run(member) / 'goodput.json').read_text()
            return sum(json.loads(text)['seconds'].values()) / 3600
        except (OSError, ValueError, KeyError):
            return 0.0

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
        finished = {m: result for m, result in results.items() if result is not None}
        places = sorted({result.get('host', '') for result in finished.values()} - {''})
        lines.append(f'{len(finished)} runs, {sum(map(self._hours, finished)):.2f} hours of a '
                     f"process in all, on {', '.join(places)}")
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


# What members that share a compiled step may differ in: its arguments.
_ARGUMENTS = ('seed', 'optimizer.learning_rate')
_PR_SET_PDEATHSIG = 1  # of prctl
# Between looks at runs that other processes have; a look at a bucket is a request a run.
_WAIT_SECONDS, _WAIT_SECONDS_BUCKET = 1.0, 15.0
_BOUNDS = {1: '1,1,1', 2: '1,2,1', 4: '2,2,1', 8: '2,4,1'}  # of the chips of a TPU host
_DEATHS = 3  # of each worker, on average, before a sweep is given up


def worker_environment(worker: int, workers: int, per_worker: int) -> dict[str, str]:
    """Environment variables that give a process its share of the machine, for jax and libtpu.

    Args:
      worker: its number.
      workers: how many there are.
      per_worker: chips of each; 0: they share what there is.

    Raises:
      InputError: there are not so many chips, or a TPU cannot be divided so.
    """
    kind, names = hosts.chips()
    if not per_worker and workers > 1:  # on one GPU, each would take most of its memory
        return {'XLA_PYTHON_CLIENT_MEM_FRACTION': f'{0.9 / workers:.2f}'}
    per_worker = per_worker or len(names)
    if len(names) < workers * per_worker or (kind == 'tpu' and per_worker not in _BOUNDS):
        raise InputError(f'--chips={per_worker}: this machine has {len(names)} ({", ".join(names)}'
                         '); a TPU is divided by 1, 2, 4 or 8')
    ours = ','.join(names[worker * per_worker : (worker + 1) * per_worker])
    if kind == 'cpu':
        others = [flag for flag in os.environ.get('XLA_FLAGS', '').split()
                  if not flag.startswith(hosts.VIRTUAL)]
        return {'XLA_FLAGS': ' '.join([*others, f'{hosts.VIRTUAL}={per_worker}'])}
    if kind == 'gpu':
        return {'CUDA_VISIBLE_DEVICES': ours}
    return {  # a slice of its own, whatever slice the host is in
        'TPU_VISIBLE_CHIPS': ours, 'TPU_CHIPS_PER_PROCESS_BOUNDS': _BOUNDS[per_worker],
        'TPU_PROCESS_BOUNDS': '1,1,1', 'TPU_WORKER_ID': '0', 'TPU_WORKER_HOSTNAMES': 'localhost',
    }


def _kept(text: str) -> int:
    if text == 'all':
        return sys.maxsize
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is neither a number above 0 nor 'all'")
    return int(text)


class Worker:
    """Trains members of a sweep, one group of them after another, until nothing is left to do."""

    def __init__(
        self, config: str, overrides: Sequence[str], folder: Folder,
        should_stop: Callable[[int], bool], *, waits: bool = False,
    ):
        """Takes what the members are.

        Args:
          config: file, as on the command line.
          overrides: '--config.FIELD=VALUE' of all members.
          folder: of the sweep.
          should_stop: polled with the step of a run, and between runs.
          waits: for members that other processes are at.
        """
        self._config_file, self._overrides, self._folder = config, list(overrides), folder
        self._should_stop, self._waits = should_stop, waits
        self._logs = tempfile.TemporaryDirectory(prefix='bert_jax_')  # of a sweep in a bucket
        self._claims: dict[Member, Claim] = {}
        # Of the members that share weights, data and step: their common settings, all that is
        # open of them, and from a member's numbers to its step.
        self._shared: Any = None
        self._opened: Any = None

    def work(self) -> bool:
        """Whether nothing is left to do, but for what others are at if it does not wait for them.

        False: a stop was asked for.

        Raises:
          InputError: a config that cannot work.
        """
        started, before = time.monotonic(), len(self._folder.unfinished())
        while not self._should_stop(0):
            claimed = self._claim_first()
            if claimed is not None:
                self._train(claimed)
                left = len(self._folder.unfinished())
                if left and left < before:
                    seconds = (time.monotonic() - started) / (before - left) * left
                    print(f'  {before - left}/{before} runs, eta {seconds / 60:.0f} min',
                          flush=True)
            elif not self._folder.unfinished() or not self._waits:
                self._opened = self._shared = None  # their memory
                return True
            else:
                # Others are at them; whose claim dies is taken over.
                remote = in_bucket(self._folder.path)
                time.sleep(_WAIT_SECONDS_BUCKET if remote else _WAIT_SECONDS)
        return False

    def _claim_first(self) -> Member | None:
        """Claims the first member that nobody has, of the open group if there is one."""
        todo = self._folder.unfinished()
        todo.sort(key=lambda member: self._key(member) != self._shared)
        return next((member for member in todo if self._claim(member)), None)

    def _claim(self, member: Member) -> bool:
        path = self._folder.run(member)
        path.mkdir(parents=True, exist_ok=True)
        claim = self._claims.setdefault(member, Claim(path))
        if not claim.attempt():
            return False
        if self._folder.result(member) is None:
            return True
        self._release(member)  # another has just finished it
        return False

    def _release(self, member: Member) -> None:
        self._claims.pop(member).release()

    def _key(self, member: Member) -> Any:
        """The settings that members with one compiled step have in common."""
        return member.without(*_ARGUMENTS)

    def _config(self, member: Member) -> Any:
        return member_config(self._config_file, self._overrides, member)

    def _train(self, member: Member) -> None:
        """Trains a claimed member."""
        from bert_jax.train.experiment import train_run
        try:
            printed = io.StringIO()
            if self._shared != self._key(member):
                with contextlib.redirect_stdout(printed):
                    self._open_group(member)
            with self._open_log(member) as log:
                log.write(printed.getvalue())
                opened = self._of_member(member)

                def should_stop(step: int) -> bool:
                    self._claims[member].check()
                    return bool(self._should_stop(step))

                result: Any
                try:
                    with contextlib.redirect_stdout(log):
                        result = train_run(
                            opened, self._folder.run(member), should_stop, began=time.time())
                except InputError:
                    raise
                except (Exception, Stopped) as error:
                    result = error
                self._ended(member, result, log)
        finally:
            self._release(member)

    def _open_group(self, member: Member) -> None:
        """Reads the weights and data, and compiles the step, that a member shares with others."""
        from bert_jax.train.experiment import open_run

        self._opened = None  # the former group's memory, before more is taken
        self._shared = self._key(member)
        members = [m for m in self._folder.members if self._key(m) == self._shared]
        unfinished = [self._folder.run(m) for m in members if self._folder.result(m) is None]
        self._opened = open_run(self._config(member), unfinished)

    def _of_member(self, member: Member) -> Any:
        """The open run, with a member's seed and learning rate."""
        given, shared = self._config(member), self._opened
        config = ConfigDict(shared.config.copy_and_resolve_references())
        with config.unlocked():
            config.update_from_flattened_dict({
                name: get_field(given, name) for name in _ARGUMENTS})
        task = shared.program.task.with_seed(config.seed)
        return dataclasses.replace(
            shared, config=config, program=dataclasses.replace(shared.program, task=task))

    @contextlib.contextmanager
    def _open_log(self, member: Member) -> Iterator[IO[str]]:
        """The log of a run, on this machine; for a bucket it is uploaded at the run's end."""
        remote = in_bucket(self._folder.path)
        path: Path = self._folder.run(member) / 'log.txt'
        local = as_path(self._logs.name) / f'{member.name}.txt' if remote else path
        with open(local, 'a', encoding='utf-8', buffering=1) as log:
            yield log
        if remote:
            upload(local, path)

    def _ended(self, member: Member, result: Any, log: IO[str]) -> None:
        if isinstance(result, Stopped):
            log.write(f'{result}\n')
        elif isinstance(result, dict):
            log.write(f'result {json.dumps(result)}\n')
            metric = f'eval/{self._opened.program.task.metric}'
            self._folder.finish(member, metric, result)
            print(f'{member.name}: {metric} {result[metric]:.4f}', flush=True)
        else:
            if not isinstance(result, Diverged):
                traceback.print_exception(result, file=log)
            line = ' '.join(f'{type(result).__name__}: {result}'.split())[:300]
            log.write(f'error: {line}\n')
            self._folder.fail(member)
            print(f'{member.name}: failed ({line}); see {self._folder.run(member)}/log.txt',
                  file=sys.stderr)


def num_workers(chips: int) -> int:
    """Processes that a machine has room for, of so many chips each; 0: one process with all."""
    return len(hosts.chips()[1]) // chips if chips else 1


def as_worker(worker: int, workers: int) -> None:
    """A worker takes its share of the cores, and is stopped if the process that started it dies."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(
            0, cores[worker * len(cores) // workers : (worker + 1) * len(cores) // workers]
            or [cores[worker % len(cores)]])


def supervise(
    module: str, argv: Sequence[str], workers: int, per_worker: int,
    should_stop: Callable[[int], bool],
) -> int:
    """Runs worker processes until all is done; the exit status of the first that gave up.

    One that dies is started again: its run goes on from what it saved last.

    Args:
      module: run as `python -m MODULE ARGV... --worker=NUMBER`.
      argv: of the command.
      workers, per_worker: see `worker_environment`.
      should_stop: polled; all workers are then stopped, and the status is 143.
    """
    environments = [worker_environment(i, workers, per_worker) for i in range(workers)]

    def start(worker: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, '-m', module, *argv, f'--worker={worker}'],
            env=os.environ | environments[worker],
            start_new_session=True)  # Ctrl-C reaches it through us, once

    running = {worker: start(worker) for worker in range(workers)}
    deaths = result = 0
    stopping = False
    while running:
        time.sleep(0.2)
        if not stopping and (result or should_stop(0)):
            stopping = True
            for process in running.values():
                process.terminate()
        for worker, process in list(running.items()):
            status = process.poll()
            if status is None:
                continue
            del running[worker]
            if status == 0 or stopping:
                continue
            deaths += 1
            if status == 2 or deaths > _DEATHS * workers:
                result = max(status, 1)
                continue
            print(f'worker {worker} ended with status {status}: started again', file=sys.stderr,
                  flush=True)
            running[worker] = start(worker)
    return result or (143 if stopping else 0)


def _run(options: argparse.Namespace, overrides: list[str], folder: Folder, argv: list[str]) -> int:
    workers = options.parallel or num_workers(options.chips)
    if options.worker is not None:
        as_worker(options.worker, workers)
    else:
        folder.open(options.config, overrides)
        if done := len(folder.members) - len(folder.unfinished()):
            print(f'{done} of {len(folder.members)} runs are finished already', flush=True)
    guard = Guard()
    guard.start()
    try:
        if options.worker is None and workers > 1:
            status = supervise(
                'bert_jax.tools.sweep', argv, workers, options.chips, guard.should_stop)
        else:
            if options.worker is None:
                os.environ.update(worker_environment(0, 1, options.chips))
            hosts.check_accelerators()
            finished = Worker(
                options.config, overrides, folder, guard.should_stop, waits=True).work()
            status = 0 if finished else 143
    except Stopped:
        status = 143
    except InputError:
        if options.worker is None:
            folder.discard_unbegun()
        raise
    if options.worker is not None:
        return status
    if status == 2:
        folder.discard_unbegun()
    if status == 143:
        print('stopped; the same command goes on from here', flush=True)
    return status or folder.report()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m bert_jax.tools.sweep', description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--config', required=True, help='config file, as FILE.py or FILE.py:ARG')
    parser.add_argument('--workdir', help='default: runs/sweep-NAME of the config')
    parser.add_argument('--grid', action='append', default=[], metavar='FIELD=VALUE,VALUE',
                        help='values of a field; repeated: all combinations')
    parser.add_argument('--restarts', type=int, default=0, help='seeds 0 to N-1 of each')
    parser.add_argument('--chips', type=int, default=0,
                        help='one process for every so many chips of this machine (all: one)')
    parser.add_argument('--parallel', type=int, default=0, help='or so many processes')
    parser.add_argument('--keep', type=_kept, default=1, metavar='K|all',
                        help='of how many runs, the best ones, the parameters are kept (1)')
    parser.add_argument('--worker', type=int, help=argparse.SUPPRESS)  # number of a process
    options, overrides = parser.parse_known_args(argv)
    logging.set_verbosity(logging.ERROR)  # libraries tell a great deal at the lower levels
    with error_boundary():
        for argument in overrides:
            if not argument.startswith('--config.'):
                raise InputError(f'{argument} is no option of this program; see --help')
        for name in ('restarts', 'chips', 'parallel'):
            if getattr(options, name) < 0:
                raise InputError(f'--{name}={getattr(options, name)} must be 0 or above')
        if options.chips and options.parallel:
            raise InputError('--chips and --parallel both say how many processes: give one')
        options.config, grid = read_sweep(config_file(options.config))
        members = grid_members(merged(grid, options.grid), options.restarts)
        for member in members:  # one that cannot work is reported before any is run
            member_config(options.config, overrides, member)
        if options.workdir is None:
            name, _, argument = options.config.partition(':')
            stem = os.path.basename(name).removesuffix('.py')
            options.workdir = f'runs/sweep-{stem}' + (f'-{argument}' if argument else '')
            if options.worker is None:
                print(f'sweep directory: {options.workdir}', flush=True)
        folder = Folder(as_path(options.workdir), members, options.keep)
        return _run(options, overrides, folder, argv)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
