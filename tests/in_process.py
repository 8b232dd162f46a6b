"""Runs and evaluations in the tests' own process, on one of its devices.

The command line has its own tests, and short runs spend most of their time on starting a program,
or on compiling for eight devices. Runs that compute the same share their steps.
"""

import contextlib
import dataclasses
import io
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

from bert_jax import run_setup
from bert_jax.config.command_line import parse_command
from bert_jax.evaluate import main as evaluate_main
from bert_jax.runtime.errors import Stopped
from bert_jax.runtime.files import as_path
from bert_jax.tasks.opening import SHIPPED, TASKS
from bert_jax.train import experiment
from bert_jax.validation import validate
from bert_jax.watch import metrics_log
from tests.conftest import ROOT, storing_no_programs
from tests.shared_steps import shared_steps
from tests.tiny_runs import one_device


@dataclasses.dataclass
class Ended:
    """The result of a run or of an evaluation, and what it printed."""

    result: dict[str, Any]
    said: str


def run(config, *args, workdir, stop_at=None, devices=one_device):
    """Runs bert_jax.main in this process.

    It draws no curves, which takes a second, and saves only at its end, unless a flag says more.

    Args:
      config: a file, from the folder `configs`. A task that it adds is removed afterwards.
      args: flags.
      workdir: the run directory.
      stop_at: the step at which the run is told to stop.
      devices: a context in which jax shows the devices to use.

    Raises:
      Stopped: at `stop_at`.
    """
    said = io.StringIO()
    result = _run(config, args, workdir, lambda step: step == stop_at, devices, said)
    return Ended(result, said.getvalue())


def run_first_steps(config, *args, workdir, num_steps):
    """What a run said that was stopped after so many steps.

    A run of so many steps would have a schedule, and so a train step to compile, of its own.
    """
    said = io.StringIO()
    with contextlib.suppress(Stopped):
        _run(config, args, workdir, lambda step: step == num_steps, one_device, said)
        raise AssertionError('it was not stopped')
    return said.getvalue()


def _run(
    config: str, args: tuple[str, ...], workdir: Any, should_stop: Callable[[int], bool],
    devices: Callable[[], Any], said: io.StringIO,
) -> dict[str, float]:
    """The result of a run."""
    no_curves = mock.patch.object(metrics_log, 'curves', lambda *_: None)
    with (mock.patch.dict(TASKS), contextlib.redirect_stdout(said),
          contextlib.redirect_stderr(said), devices(), no_curves, shared_steps(),
          storing_no_programs()):
        flags = f'--config={ROOT / "configs" / config}', '--config.train.save_every=0', *args
        config, _ = parse_command(['run', *flags], '')
        validate(config)
        program = run_setup.open_run(config, [as_path(workdir)])
        return experiment.train_run(program, as_path(workdir), should_stop)


def evaluate(*args, workdir):
    """Runs bert_jax.evaluate in this process."""
    said = io.StringIO()
    with (mock.patch.dict(TASKS), contextlib.redirect_stdout(said), one_device(),
          shared_steps(), storing_no_programs()):
        for name in set(TASKS) - SHIPPED:  # of config files that this process has loaded
            del TASKS[name]
        evaluate_main(['evaluate', *map(str, args), f'--workdir={workdir}'])
    last_line = said.getvalue().splitlines()[-1]
    return Ended(json.loads(last_line.removeprefix('result ')), said.getvalue())


def recorded(workdir, metric):
    """The values of a metric in a run's records."""
    records = map(json.loads, (workdir / 'metrics.jsonl').read_text().splitlines())
    return [record[metric] for record in records if metric in record]
