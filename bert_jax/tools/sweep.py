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
read, and the compiled step, one after another. --parallel=P takes P processes, each on a P-th of
the processor cores and of the --devices accelerators. Any number of machines may run the same
command on one folder: each run is claimed by one, and taken over if that one dies.

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

from absl import flags, logging

from bert_jax.config import ConfigDict, all_fields, get_field
from bert_jax.config.command_line import define_config, parse_flags
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


# What members that share a compiled step may differ in: its arguments.
_ARGUMENTS = ('seed', 'optimizer.learning_rate')
_PR_SET_PDEATHSIG = 1  # of prctl
_WAIT_SECONDS = 1.0  # between looks at runs that other processes have


def visible_devices(count: int) -> list[str]:
    """Names of the accelerators that runs may divide: those that the environment leaves visible.

    Raises:
      InputError: fewer are visible.
    """
    visible = os.environ.get('CUDA_VISIBLE_DEVICES') or os.environ.get('TPU_VISIBLE_CHIPS')
    names = visible.split(',') if visible else [str(i) for i in range(count)]
    if len(names) < count:
        raise InputError(
            f'--devices={count}, but the environment leaves {len(names)} visible ({visible}): '
            'lower --devices, or unset CUDA_VISIBLE_DEVICES'
        )
    return names[:count]


def _kept(text: str) -> int:
    if text == 'all':
        return sys.maxsize
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is neither a number above 0 nor 'all'")
    return int(text)


def _stop_with_parent() -> None:
    """In a new process: it is stopped if the one that started it is killed."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def take_share(slot: int, parallel: int, devices: int) -> None:
    """Limits this process to its share of the machine; before anything looks for devices."""
    if devices:
        share = devices // parallel
        devices_of_slot = ','.join(visible_devices(devices)[slot * share : (slot + 1) * share])
        os.environ.update({
            'CUDA_VISIBLE_DEVICES': devices_of_slot, 'TPU_VISIBLE_CHIPS': devices_of_slot,
            'TPU_CHIPS_PER_PROCESS_BOUNDS': f'1,{share},1', 'TPU_PROCESS_BOUNDS': '1,1,1',
        })
    elif parallel > 1:  # they are on one GPU, if there is one: each would take most of its memory
        os.environ.setdefault('XLA_PYTHON_CLIENT_MEM_FRACTION', f'{0.9 / parallel:.2f}')
    if parallel > 1 and sys.platform == 'linux':
        cores = sorted(os.sched_getaffinity(0))
        own_cores = cores[slot * len(cores) // parallel : (slot + 1) * len(cores) // parallel]
        os.sched_setaffinity(0, own_cores or cores)


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
        self._step_of: Any = None

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
                self._opened = self._step_of = self._shared = None  # their memory
                return True
            else:
                time.sleep(_WAIT_SECONDS)  # others are at them; whose claim dies is taken over
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
        from bert_jax.train.program import numbers_of

        try:
            printed = io.StringIO()
            if self._shared != self._key(member):
                with contextlib.redirect_stdout(printed):
                    self._open_group(member)
            with self._open_log(member) as log:
                log.write(printed.getvalue())
                opened = self._of_member(member)
                numbers = numbers_of(opened.config, opened.program.phases)

                def should_stop(step: int) -> bool:
                    self._claims[member].check()
                    return bool(self._should_stop(step))

                result: Any
                try:
                    with contextlib.redirect_stdout(log):
                        result = train_run(
                            opened, self._folder.run(member), should_stop, began=time.time(),
                            shared_step=self._step_of(numbers))
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
        from bert_jax.train.program import make_shared_step

        self._opened = self._step_of = None  # the former group's memory, before more is taken
        self._shared = self._key(member)
        members = [m for m in self._folder.members if self._key(m) == self._shared]
        unfinished = [self._folder.run(m) for m in members if self._folder.result(m) is None]
        self._opened = open_run(self._config(member), unfinished)
        self._step_of = make_shared_step(self._opened.program)

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


def _helpers(argv: Sequence[str], count: int) -> list[subprocess.Popen[bytes]]:
    """Other processes for the same sweep, numbered from 1."""
    return [
        subprocess.Popen(
            [sys.executable, '-m', 'bert_jax.tools.sweep', *argv, f'--helper={slot}'],
            preexec_fn=_stop_with_parent,
            start_new_session=True,  # Ctrl-C reaches it through us, once
        )
        for slot in range(1, count + 1)
    ]


def _run(options: argparse.Namespace, overrides: list[str], folder: Folder, argv: list[str]) -> int:
    folder.open(options.config, overrides)
    done = len(folder.members) - len(folder.unfinished())
    if done and options.helper is None:
        print(f'{done} of {len(folder.members)} runs are finished already', flush=True)
    helpers = _helpers(argv, options.parallel - 1) if options.helper is None else []
    take_share(options.helper or 0, options.parallel, options.devices)
    guard = Guard()
    guard.start()
    try:
        hosts.check_accelerators()
        finished = Worker(
            options.config, overrides, folder, guard.should_stop, waits=options.helper is None,
        ).work()
    except Stopped:
        finished = False
    except InputError:
        if options.helper is None:
            folder.discard_unbegun()
        raise
    finally:
        for helper in helpers:
            if helper.poll() is None:
                helper.terminate()
            helper.wait()
    if options.helper is not None:
        return 0 if finished else 143
    if not finished:
        print('stopped; the same command goes on from here', flush=True)
        return 143
    return folder.report()


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
    parser.add_argument('--parallel', type=int, default=1, help='processes')
    parser.add_argument('--keep', type=_kept, default=1, metavar='K|all',
                        help='of how many runs, the best ones, the parameters are kept (1)')
    parser.add_argument('--devices', type=int, default=0,
                        help='accelerators of this machine that the processes divide')
    parser.add_argument('--helper', type=int, help=argparse.SUPPRESS)  # number of a process
    options, overrides = parser.parse_known_args(argv)
    logging.set_verbosity(logging.ERROR)  # libraries tell a great deal at the lower levels
    with error_boundary():
        for argument in overrides:
            if not argument.startswith('--config.'):
                raise InputError(f'{argument} is no option of this program; see --help')
        if options.parallel < 1 or (options.devices and options.devices % options.parallel):
            raise InputError(f'--parallel={options.parallel} must be above 0 and divide --devices')
        for name in ('restarts', 'devices'):
            if getattr(options, name) < 0:
                raise InputError(f'--{name}={getattr(options, name)} must be 0 or above')
        visible_devices(options.devices)
        options.config, grid = read_sweep(options.config)
        members = grid_members(merged(grid, options.grid), options.restarts)
        for member in members:  # one that cannot work is reported before any is run
            member_config(options.config, overrides, member)
        if options.workdir is None:
            name, _, argument = options.config.partition(':')
            stem = os.path.basename(name).removesuffix('.py')
            options.workdir = f'runs/sweep-{stem}' + (f'-{argument}' if argument else '')
            print(f'sweep directory: {options.workdir}', flush=True)
        folder = Folder(as_path(options.workdir), members, options.keep)
        return _run(options, overrides, folder, argv)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
