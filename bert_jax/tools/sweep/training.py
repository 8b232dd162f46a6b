"""Trains the runs of a sweep in this process."""

import contextlib
import dataclasses
import io
import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import IO, Any

from bert_jax.config import ConfigDict
from bert_jax.config.fields import FIELDS, flat_fields
from bert_jax.runtime import files
from bert_jax.runtime.errors import Diverged, InputError, Stopped, show, tell
from bert_jax.runtime.lease import Claim
from bert_jax.runtime.process import is_full_disk
from bert_jax.tools.sweep.directory import Sweep, score_of
from bert_jax.tools.sweep.members import Member, Settings, member_config
from bert_jax.tools.workers import ShouldStop

# Fields in which members that share a compiled step may differ, as they are its arguments.
_STEP_ARGUMENTS = tuple(path for path, field in FIELDS.items() if field.step_argument)
WAIT_SECONDS = 5.0  # between checks of runs that other processes have claimed


def work_until_done(sweep: Sweep, should_stop: ShouldStop) -> bool:
    """Works until every run has ended, also those of other processes; False: stopped before."""
    while work(sweep, should_stop):
        if not sweep.unfinished():
            return True
        time.sleep(WAIT_SECONDS)  # a run whose process dies meanwhile is taken over
    return False


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
        show(f"{member.name}: {result['metric']} {score_of(result):.4f}")
        left = len(self.sweep.unfinished())
        done = self._unfinished_before - left
        if left and done > 0:
            seconds = (time.monotonic() - self._started) / done * left
            show(f'  {done}/{self._unfinished_before} runs, eta {seconds / 60:.0f} min')

    def _needs_another_program(self, member: Member) -> bool:
        return member.without(*_STEP_ARGUMENTS) != self._program_settings

    def _open_program(self, member: Member, waiting: Sequence[Member]) -> None:
        """Opens the program of a member and of all others that are waiting for the same."""
        from bert_jax.run_setup import open_run

        self._program = None  # frees its memory
        self._program_settings = member.without(*_STEP_ARGUMENTS)
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
            config.update_from_flattened_dict({name: fields[name] for name in _STEP_ARGUMENTS})
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
            if is_full_disk(error):
                raise  # every other run would fail like it
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
