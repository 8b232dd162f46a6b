"""Measures how long a run takes from SIGTERM until its state is saved, at random moments.

    JAX_PLATFORMS=cpu python -m benchmarks.stops FOLDER [--moments=100] [--seed=0]

The run is of a toy whose steps, batches of evaluations and files take fixed times, so that what is
measured is how the loop waits: evaluations of 50 batches, checks of the devices, the best
parameters, and saves. It prints how long it took until the last save began, and that save.
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from etils.epath.gpath import _GPath

from bert_jax.run.checkpoint import Best, Checkpoints
from bert_jax.runtime.errors import Stopped
from bert_jax.runtime.pauses import pause
from bert_jax.runtime.stopping import Guard
from bert_jax.step.step import StepInputs, make_init
from bert_jax.train.outputs import RunOutputs
from bert_jax.train.phase import Phase, PhaseSteps
from bert_jax.train.trainer import Control, Intervals, Trainer
from bert_jax.train.watchers import Watchers
from bert_jax.watch.goodput import Goodput
from bert_jax.watch.metrics_log import MetricsLog
from bert_jax.watch.profile import Profile
from bert_jax.watch.slowest import SlowestHosts
from tests.train.toy import Toy, batch, mesh, sgd_step

STEP_SECONDS = 0.3
BATCH_SECONDS = 0.1  # of an evaluation
SAVE_SECONDS = 1.0  # that files of a save take


class SlowRows:
    """Endless rows of the toy, whose evaluations take their time and are better each time."""

    name = 'toy'
    flops_per_sequence = 1.0

    def __init__(self) -> None:
        self._scores = itertools.count(1)

    def batches(self, first_step: int) -> Iterator[Any]:
        """The batches from a step on."""
        return (jax.device_put(batch(first_step + i)) for i in itertools.count())

    def scores(self, steps: Any, params: Any) -> dict[str, float]:
        """The number of the evaluation."""
        del steps, params
        for _ in range(50):
            pause()
            time.sleep(BATCH_SECONDS)
        return {'score': float(next(self._scores))}


def trainer_in(folder: Path, guard: Guard, toy: Any) -> Trainer:
    """A trainer of an endless run with evaluations, checks and saves."""
    step, state = toy

    def train_step(state: Any, inputs: Any, rows: Any) -> Any:
        del inputs
        time.sleep(STEP_SECONDS)
        return step(state, rows)

    def verify(state: Any, rows: Any) -> None:
        del state, rows
        for _ in range(2):
            time.sleep(STEP_SECONDS)
            pause()

    head: Any = Toy()
    no_evaluation: Any = None
    phase = Phase(0, 10**6, 8, SlowRows(), PhaseSteps(head, train_step, no_evaluation))
    goodput = Goodput(folder, True, 0, time.time())
    report = MetricsLog(folder, True, 0)
    return Trainer(
        state=jax.device_put(state), inputs=StepInputs(0, None), phases=[phase],
        intervals=Intervals(log=5, evaluate=10, save=4),
        outputs=RunOutputs(
            Checkpoints(folder / 'checkpoints', 1), Best(folder / 'best', 'score'), report,
            goodput),
        watchers=Watchers(
            report, goodput, Profile(None, ''), SlowestHosts(None, goodput), verify=verify,
            verify_every=5),
        control=Control(guard.should_stop))


def seconds_to_stop(folder: Path, after: float, toy: Any) -> tuple[float, float]:
    """Seconds from a signal, sent so long after the start, to the last save, and of that save."""
    folder.mkdir(parents=True)
    guard = Guard()
    guard.start()
    trainer = trainer_in(folder, guard, toy)
    sent: list[float] = []
    saves: list[float] = []
    save = trainer.save

    def note_and_save() -> None:
        saves.append(time.monotonic())
        save()

    trainer.save = note_and_save  # type: ignore[method-assign]

    def send() -> None:
        while guard._own.step is None:
            time.sleep(0.01)
        time.sleep(after)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send, daemon=True).start()
    try:
        trainer.run()
    except Stopped:
        trainer.outputs.checkpoints.close()
    assert trainer.outputs.best is not None
    trainer.outputs.best.close()
    ended = time.monotonic()
    guard.finish()
    shutil.rmtree(folder)
    return saves[-1] - sent[0], ended - saves[-1]


def main() -> None:
    """Runs the measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--moments', type=int, default=100)
    parser.add_argument('--seed', type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    optimizer, step = sgd_step(mesh())
    toy = step, jax.device_get(make_init(Toy(), optimizer, mesh())(0))
    rename = _GPath.rename

    def slow(path: Any, target: Any) -> Any:
        time.sleep(SAVE_SECONDS)
        return rename(path, target)

    waits = []
    with mock.patch('etils.epath.gpath._GPath.rename', slow):
        for moment in range(options.moments):
            folder = options.folder / str(moment)
            waits.append(seconds_to_stop(folder, rng.uniform(0.0, 14.0), toy))
            print('{}: {:.2f} s, save {:.2f} s'.format(moment, *waits[-1]), flush=True)
    until, saving = np.array(waits).T
    print(f'of {len(waits)} stops the median waited {np.median(until):.2f} s for its save, the '
          f'longest {max(until):.2f} s; the save took {np.median(saving):.2f} s, at most '
          f'{max(saving):.2f} s; a step takes {STEP_SECONDS} s, a save at least {SAVE_SECONDS} s')


if __name__ == '__main__':
    main()
