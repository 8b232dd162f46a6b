"""Trains the runs of a sweep in this process."""

import contextlib
import dataclasses
import io
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from bert_jax.config import ConfigDict
from bert_jax.config.fields import FIELDS, flat_fields
from bert_jax.runtime import files
from bert_jax.runtime.errors import Diverged, InputError, Pruned, Stopped, show, tell
from bert_jax.runtime.folder_lock import Claim
from bert_jax.runtime.process import is_full_disk
from bert_jax.tools.sweep.folder import Sweep, shown_score
from bert_jax.tools.sweep.members import Member, Settings, member_config
from bert_jax.tools.workers import ShouldStop
from bert_jax.watch.metrics_log import only_warning

# Fields in which members that share a compiled step may differ, as they are its arguments.
_STEP_ARGUMENTS = tuple(path for path, field in FIELDS.items() if field.step_argument)
WAIT_SECONDS = 5.0  # between checks of runs that other processes have claimed


def work_until_done(sweep: Sweep, should_stop: ShouldStop) -> bool:
    """Works until every run has ended, also those of other processes; False: stopped before.

    Raises:
      InputError: the config cannot work, or the study cannot be read.
      Unavailable: its database does not answer any more.
    """
    from bert_jax.tools.sweep.database import needing_database

    with needing_database(sweep.storage):
        worker = _Worker(sweep, should_stop)
        while worker.work():
            if worker.study.is_over():
                return True
            time.sleep(WAIT_SECONDS)  # a run whose process dies meanwhile is taken over
    return False


def work(sweep: Sweep, should_stop: ShouldStop) -> bool:
    """Trains the runs that no other process has, one after another; False: a stop was requested.

    Runs with the same compiled step share weights and data.

    Args:
      sweep: opened.
      should_stop: polled with the step of a run, and between runs.

    Raises:
      InputError: the config cannot work.
    """
    return _Worker(sweep, should_stop).work()


class _Worker:
    """Trains runs of a sweep in this process, and keeps the program of the last one.

    Attributes:
      study: of the sweep.
    """

    def __init__(self, sweep: Sweep, should_stop: ShouldStop):
        from bert_jax.tools.sweep.study import SweepStudy

        self.sweep = sweep
        self.should_stop = should_stop
        self.study = SweepStudy(sweep)
        self._program: Any = None
        self._program_settings: Settings | None = None  # of the members that `_program` suits
        self._started = time.monotonic()
        self._left_before = sweep.num_left()

    def work(self) -> bool:
        """Trains the runs that no other process has; False: a stop was requested."""
        while not self.should_stop(0):
            member = self._train_next()
            self.study.settle()
            if member is None:
                return True
            self.print_progress(member)
        return False

    def _train_next(self) -> Member | None:
        """Trains a run that no other process has, and returns it; None: there is none.

        First those of points that are begun, which other processes may have left; but those for
        which the program must be opened anew come after the points that nobody has begun.
        """
        later = []
        for member in self.study.begun():
            if self._program is not None and self._needs_another_program(member):
                later.append(member)
            elif self._train_if_free(member):
                return member
        while True:
            point = self.study.ask()
            if point is None:
                break
            for member in self.sweep.runs_of(point):
                if self._train_if_free(member):
                    return member
            self.study.settle()  # its runs are finished already
        for member in later:
            if self._train_if_free(member):
                return member
        return None

    def _train_if_free(self, member: Member) -> bool:
        """Trains a run, unless it has ended or another process has it; whether it did."""
        if self.sweep.has_ended(member):
            return False
        claim = self.sweep.claim(member)
        if claim is None:
            return False
        log_path = self.sweep.run(member) / 'log.txt'
        try:
            with _open_log(log_path, claim) as log, contextlib.redirect_stdout(log):
                if self._is_possible(member):
                    if self._needs_another_program(member):
                        self._open_program(member)
                    self._train(member, claim)
        finally:
            claim.release()
        return True

    def _is_possible(self, member: Member) -> bool:
        """Whether a run's settings agree; if not, it has failed. Those of a grid are checked."""
        if self.sweep.search is None:
            return True
        try:
            self._config(member)
        except InputError as error:
            self._record_failure(member, error)
            return False
        return True

    def print_progress(self, member: Member) -> None:
        """Prints the score of a member that has finished, or why not, and when all will have."""
        result = self.sweep.result(member)
        pruned = self.sweep.pruned(member)
        if result is not None:
            show(f"{member.name}: {result['metric']} {shown_score(result)}")
        elif pruned is not None:
            show(f"{member.name}: {pruned['why']}")
        else:
            return
        left = self.sweep.num_left()
        done = self._left_before - left
        if left and done > 0:
            seconds = (time.monotonic() - self._started) / done * left
            show(f'  {done}/{self._left_before} runs, eta {seconds / 60:.0f} min')

    def _needs_another_program(self, member: Member) -> bool:
        return member.without(*_STEP_ARGUMENTS) != self._program_settings

    def _open_program(self, member: Member) -> None:
        """Opens the program of a run and of all others that are waiting for the same."""
        from bert_jax.run_setup import open_run

        self._program = None  # frees its memory
        self._program_settings = member.without(*_STEP_ARGUMENTS)
        alike = [self.sweep.run(member)]
        for other in self.sweep.unfinished():
            if not self._needs_another_program(other):
                alike.append(self.sweep.run(other))
        if self.sweep.search is not None:
            alike.append(self.sweep.path / 'runs' / 'next')  # one that is not drawn yet
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
            result = train_run(
                program, self.sweep.run(member), should_stop, check_lock=claim.check_folder,
                began=time.time(), on_evaluation=self._pruning(member, program))
        except InputError as error:
            if not claim.lost:
                raise
            print(error)  # the process that took the run over goes on with it
        except Stopped as stopped:
            print(stopped)
        except Pruned as pruned:
            print(f'pruned: {pruned}')
            self.sweep.end_early(member, f'eval/{program.task.metric}', str(pruned))
        except Exception as error:
            if is_full_disk(error):
                raise  # every other run would fail like it
            if not isinstance(error, Diverged):
                traceback.print_exc(file=sys.stdout)
            self._record_failure(member, error)
        else:
            print(f'result {json.dumps(result)}')
            self.sweep.finish(member, f'eval/{program.task.metric}', result)

    def _pruning(
        self, member: Member, program: Any
    ) -> Callable[[int, Mapping[str, float]], None] | None:
        """The function that gets a run's evaluations and raises Pruned; None without --prune."""
        if not self.sweep.prune:
            return None
        metric = f'eval/{program.task.metric}'
        scores = self.sweep.evaluations(member, metric)  # of an earlier process

        def on_evaluation(step: int, evaluation: Mapping[str, float]) -> None:
            scores[step] = evaluation.get(program.task.metric)
            if step >= program.num_steps:
                return  # nothing is left to be saved
            of_point = self.sweep.pruned(member)
            if of_point is not None:
                raise Pruned(of_point['why'])
            so_far = [scores[at] for at in sorted(scores) if at <= step]
            why = ''
            with only_warning(f'the study of {self.sweep.path}'):
                why = self.study.why_pruned(member, metric, so_far)
            if why:
                raise Pruned(f'step {step:,}: {why}')

        return on_evaluation

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
