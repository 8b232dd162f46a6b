"""Runs a grid of settings, each as a run of its own, and picks the best on the dev set.

    python -m bert_jax.tools.sweep --config=configs/glue.py:mrpc --config.init_checkpoint=DIR \\
        --config.data.source=glue
    python -m bert_jax.tools.sweep --config=configs/glue.py:rte --restarts=5 --parallel=2 \\
        --grid optimizer.learning_rate=5e-5,3e-5,2e-5 --grid train.batch_size=16,32 ...

Without --grid the learning rates are the paper's for GLUE: 5e-5, 4e-5, 3e-5 and 2e-5. --restarts=N
adds the seeds 0 to N-1, the paper's remedy for small data sets. All --config.FIELD=VALUE go to
every run. Started again, the sweep goes on where it was: finished runs are kept, an interrupted
one resumes from its checkpoint.

Runs are processes side by side: --parallel=P gives each a P-th of the processor cores, and of the
--devices accelerators. The directory receives table.md, results.json, sweep.png, every run with its
log, and `winner`, a link to the best one (in a bucket, a file with its name). Of the other runs the
checkpoints are deleted once they are beaten; --keep=K keeps those of the K best, as an ensemble
wants them, --keep=all those of all.

Why one file: the members, their processes and their results are one thing, a sweep's folder.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from typing import Any

from bert_jax.config import all_fields, nearest
from bert_jax.errors import InputError
from bert_jax.files import Path, as_path, in_bucket, open_whole, upload, write_whole

_PR_SET_PDEATHSIG = 1  # of prctl
_SAFE = ' :+@'  # of the characters that quoting would replace, harmless in a file's name
_PAPER_GRID = ('optimizer.learning_rate=5e-5,4e-5,3e-5,2e-5',)


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of the sweep: its settings by field, as they are written on the command line."""

    settings: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Of its folder: a value may be a path, and stays one name."""
        return ','.join(
            f'{field}={urllib.parse.quote(value, safe=_SAFE)}' for field, value in self.settings)

    @property
    def group(self) -> tuple[tuple[str, str], ...]:
        """Its settings but for the seed."""
        return tuple(item for item in self.settings if item[0] != 'seed')


def grid_members(grid: list[str], restarts: int) -> list[Member]:
    """All combinations.

    Args:
      grid: 'FIELD=VALUE,VALUE' each.
      restarts: seeds 0 to restarts - 1, where above 0.

    Raises:
      InputError: not in that form, or no field of the config.
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
    return [Member(settings) for settings in itertools.product(*axes)]


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


def _begin_child(cores: set[int]) -> None:
    """In a new run's process: on its share of the cores, and stopped if the sweep is killed."""
    if cores:
        os.sched_setaffinity(0, cores)
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _words(sweep: dict[str, Any]) -> list[str]:
    return [f"--config={sweep['config']}", *sweep['settings']]


class Sweep:
    """The members in their directories."""

    def __init__(self, options: argparse.Namespace, overrides: list[str], members: list[Member]):
        self._options, self._overrides, self._members = options, overrides, members
        self._folder: Path = options.workdir
        self._logs = tempfile.TemporaryDirectory(prefix='bert_jax_')  # of a sweep in a bucket
        self._running: dict[int, tuple[Member, subprocess.Popen[str], Any]] = {}
        self._stopping = False
        self._failed: set[Member] = set()

    def path(self, member: Member) -> Path:
        return self._folder / 'runs' / member.name

    def _log(self, member: Member) -> Path:
        """What a run has said, on this machine; for a bucket it is uploaded at the run's end."""
        if in_bucket(self._folder):
            return as_path(self._logs.name) / f'{member.name}.txt'
        return self.path(member) / 'log.txt'

    def result(self, member: Member) -> dict[str, Any] | None:
        """What a finished member said, with `metric`; None if it is not finished."""
        path = self.path(member) / 'sweep_result.json'
        return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None

    def _check_same(self) -> None:
        """Refuses a directory with runs of another config: their results would pass for ours."""
        path = self._folder / 'sweep.json'
        ours = {'config': self._options.config, 'settings': sorted(self._overrides)}
        if path.exists():
            theirs = json.loads(path.read_text(encoding='utf-8'))
            if theirs != ours:
                raise InputError(
                    f"{self._folder} holds a sweep of {' '.join(_words(theirs))}, this is one of "
                    f"{' '.join(_words(ours))}: give another --workdir, or the same settings"
                )
        write_whole(path, json.dumps(ours) + '\n')

    def run(self) -> int:
        """Runs what is not finished; returns the exit status.

        Raises:
          InputError: the directory holds another sweep.
        """
        (self._folder / 'runs').mkdir(parents=True, exist_ok=True)
        self._check_same()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        todo = [member for member in self._members if self.result(member) is None]
        done = len(self._members) - len(todo)
        if done:
            print(f'{done} of {len(self._members)} runs are finished already', flush=True)
        started, total = time.monotonic(), len(todo)
        while (todo or self._running) and not (self._stopping and not self._running):
            for slot in range(self._options.parallel):
                if slot not in self._running and todo and not self._stopping:
                    self._start(slot, todo.pop(0))
            time.sleep(0.2)
            for slot, (member, process, log) in list(self._running.items()):
                if process.poll() is None:
                    continue
                log.close()
                if in_bucket(self._folder):
                    upload(log.name, self.path(member) / 'log.txt')
                del self._running[slot]
                if process.returncode == 2:
                    self._stopping = True
                    self._forward()
                    for _, other, _ in self._running.values():
                        other.wait()
                    print(f'error: {self._last_line(member)}', file=sys.stderr)
                    return 2
                self._ended(member, process.returncode)
                finished = total - len(todo) - len(self._running)
                if not self._stopping and finished:
                    left = (time.monotonic() - started) / finished * (total - finished)
                    print(f'  {finished}/{total} runs, eta {left / 60:.0f} min', flush=True)
        if self._stopping:
            print('stopped; the same command goes on from here', flush=True)
            return 143
        return self._report()

    def _start(self, slot: int, member: Member) -> None:
        path = self.path(member)
        path.mkdir(parents=True, exist_ok=True)
        o = self._options
        environment = dict(os.environ)
        if o.devices:
            share = o.devices // o.parallel
            devices = ','.join(visible_devices(o.devices)[slot * share : (slot + 1) * share])
            environment |= {
                'CUDA_VISIBLE_DEVICES': devices, 'TPU_VISIBLE_CHIPS': devices,
                'TPU_CHIPS_PER_PROCESS_BOUNDS': f'1,{share},1', 'TPU_PROCESS_BOUNDS': '1,1,1',
            }
        cores = sorted(os.sched_getaffinity(0))
        own = set(cores[slot * len(cores) // o.parallel : (slot + 1) * len(cores) // o.parallel])
        command = [
            sys.executable, '-m', 'bert_jax.main', f'--config={o.config}', f'--workdir={path}',
            *self._overrides, '--config.train.keep_checkpoints=1',
            *(f'--config.{field}={value}' for field, value in member.settings),
        ]
        log = open(self._log(member), 'a', encoding='utf-8')  # noqa: SIM115 (closed when it ends)
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, text=True, env=environment,
            preexec_fn=lambda: _begin_child(own),
            start_new_session=True,  # Ctrl-C reaches it through us, once
        )
        self._running[slot] = member, process, log

    def _stop(self, number: int, frame: object) -> None:
        del number, frame
        self._stopping = True
        self._forward()

    def _forward(self) -> None:
        for _, process, _ in self._running.values():
            process.terminate()

    def _last_line(self, member: Member) -> str:
        lines = self._log(member).read_text(encoding='utf-8').splitlines()
        return next((line for line in reversed(lines) if line.strip()), 'no output').removeprefix(
            'error: ')

    def _ended(self, member: Member, status: int) -> None:
        path = self.path(member)
        if status == 143 or (status < 0 and self._stopping):
            return
        line = self._last_line(member)
        if status or not line.startswith('result '):
            self._failed.add(member)
            print(f'{member.name}: failed with status {status} ({line}); see {path}/log.txt',
                  file=sys.stderr)
            return
        config = json.loads((path / 'config.json').read_text(encoding='utf-8'))
        result = json.loads(line.removeprefix('result '))
        metric = f"eval/{config['metric']}"
        write_whole(
            path / 'sweep_result.json', json.dumps({'metric': metric, **result}) + '\n')
        print(f'{member.name}: {metric} {result[metric]:.4f}', flush=True)
        self._keep_the_winner()

    def _ranking(self) -> list[Member]:
        """The finished members, best first."""
        results = [(m, r) for m in self._members if (r := self.result(m)) is not None]
        ranked = sorted(results, key=lambda pair: -pair[1][pair[1]['metric']])
        return [member for member, _ in ranked]

    def _keep_the_winner(self) -> None:
        ranking = self._ranking()
        winner = ranking[0]
        if in_bucket(self._folder):
            write_whole(self._folder / 'winner', f'{self.path(winner)}\n')
        else:
            link = self._folder / 'winner.tmp'
            link.unlink(missing_ok=True)
            os.symlink(f'runs/{winner.name}', link)
            os.replace(link, self._folder / 'winner')  # the link, not what it names
        for member in ranking[self._options.keep :]:
            for name in ('checkpoints', 'best'):
                (self.path(member) / name).rmtree(missing_ok=True)

    def _report(self) -> int:
        winner = next(iter(self._ranking()), None)
        if winner is None:
            print('error: no run ended well; see their log.txt', file=sys.stderr)
            return 1
        best = self.result(winner)
        assert best is not None
        metric = best['metric']
        groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for member in self._members:
            if (result := self.result(member)) is not None:
                groups.setdefault(member.group, []).append(result[metric])
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
        lines.append(f'\nbest: {winner.name} ({metric} {best[metric]:.4f})')
        if self._failed:
            lines.append(f'failed: {", ".join(sorted(m.name for m in self._failed))}')
        text = '\n'.join(lines) + '\n'
        print(text, flush=True)
        summary = {
            'metric': metric, 'winner': winner.name, 'best': best[metric], 'groups': rows,
            'runs': {m.name: self.result(m) for m in self._members},
        }
        write_whole(self._folder / 'table.md', text)
        write_whole(self._folder / 'results.json', json.dumps(summary, indent=1))
        self._draw(metric, groups)
        return 1 if self._failed else 0

    def _draw(self, metric: str, groups: dict[tuple[tuple[str, str], ...], list[float]]) -> None:
        """`sweep.png`: every run, and the mean of each setting."""
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
        with open_whole(self._folder / 'sweep.png') as file:
            figure.savefig(file, dpi=100, format='png')
        plt.close(figure)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m bert_jax.tools.sweep', description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--config', required=True, help='config file, as FILE.py or FILE.py:ARG')
    parser.add_argument('--workdir', help='default: runs/sweep-NAME of the config')
    parser.add_argument('--grid', action='append', metavar='FIELD=VALUE,VALUE',
                        help='values of a field; repeated: all combinations')
    parser.add_argument('--restarts', type=int, default=0, help='seeds 0 to N-1 of each')
    parser.add_argument('--parallel', type=int, default=1, help='runs at once')
    parser.add_argument('--keep', type=_kept, default=1, metavar='K|all',
                        help='of how many runs, the best ones, the parameters are kept (1)')
    parser.add_argument('--devices', type=int, default=0,
                        help='accelerators of this machine that the runs at once divide')
    options, overrides = parser.parse_known_args(argv)
    try:
        for argument in overrides:
            if not argument.startswith('--config.'):
                raise InputError(f'{argument} is no option of this program; see --help')
        if options.parallel < 1 or (options.devices and options.devices % options.parallel):
            raise InputError(f'--parallel={options.parallel} must be above 0 and divide --devices')
        visible_devices(options.devices)
        members = grid_members(list(options.grid or _PAPER_GRID), options.restarts)
        if options.workdir is None:
            name, _, argument = options.config.partition(':')
            stem = os.path.basename(name).removesuffix('.py')
            options.workdir = f'runs/sweep-{stem}' + (f'-{argument}' if argument else '')
            print(f'sweep directory: {options.workdir}', flush=True)
        options.workdir = as_path(options.workdir)
        return Sweep(options, overrides, members).run()
    except InputError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
