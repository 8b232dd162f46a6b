"""Runs the parts of a table, on this machine and beside others that run the same command."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence

from bert_jax.runtime.errors import InputError, first_line, show, tell
from bert_jax.tools.paper.plan import Part, Plan
from bert_jax.tools.paper.writing import write_table
from bert_jax.tools.sweep import training as sweep_training


class Outcome(enum.Enum):
    """The outcome of a part in one pass over all parts."""

    ENDED = 'finished or failed'
    WAITING = 'another machine works on it, or on its pre-training'
    STOPPED = 'a stop was requested'


class PartRunner:
    """Runs the unfinished parts of a table, and writes the table as they finish.

    Attributes:
      failed: the reasons of parts that could not be run, by the part's title.
    """

    def __init__(self, plan: Plan, parts: Sequence[Part]):
        self.failed: dict[str, str] = {}
        self._plan = plan
        self._parts = parts
        self._begun: set[str] = set()  # titles

    def run(self, should_stop: Callable[[int], bool]) -> bool:
        """Runs all parts; False: a stop was requested.

        A part that another machine works on delays only those that start from it. If a part cannot
        be run, the others go on.
        """
        while True:
            outcomes = set()
            for number, part in enumerate(self._parts, 1):
                outcome = self._advance(part, number, should_stop)
                if outcome is Outcome.STOPPED:
                    return False
                outcomes.add(outcome)
            if Outcome.WAITING not in outcomes:
                return True
            if should_stop(0):
                return False
            time.sleep(sweep_training.WAIT_SECONDS)

    def _advance(
        self, part: Part, number: int, should_stop: Callable[[int], bool]
    ) -> Outcome:
        """Runs what is left of a part, if its pre-training is finished."""
        num_left = len(part.sweep.unfinished())
        if not num_left:
            if part.title not in self._begun:  # by an earlier process, which may have been killed
                self._begun.add(part.title)
                try:
                    part.sweep.settle()
                except (InputError, OSError) as error:  # of an archive, which nobody may write
                    tell(f'warning: {part.title}: {first_line(error)}')
            return Outcome.ENDED
        if part.title in self.failed:
            return Outcome.ENDED
        start = part.start
        if start is not None and not start.is_finished():
            if start.part.title in self.failed or start.has_failed():
                self.failed[part.title] = f'{start.part.title} failed'
                return Outcome.ENDED
            return Outcome.WAITING
        try:
            self._open(part, number, num_left)
            if not sweep_training.work(part.sweep, should_stop):
                return Outcome.STOPPED
        except InputError as error:
            self.failed[part.title] = str(error)
            tell(f'error: {part.title}: {error}')
            return Outcome.ENDED
        num_left_now = len(part.sweep.unfinished())
        if num_left_now < num_left:
            write_table(self._plan, self.failed, whole=False)
        if num_left_now:
            return Outcome.WAITING
        return Outcome.ENDED

    def _open(self, part: Part, number: int, num_left: int) -> None:
        """Announces a part and opens its directory, the first time."""
        if part.title in self._begun:
            return
        self._begun.add(part.title)
        show(f'[{number}/{len(self._parts)}] {time.strftime("%H:%M")} {part.title}: {num_left} '
             f'runs in {part.sweep.path}')
        part.sweep.open(part.name, [])

    def add_failed_elsewhere(self) -> None:
        """Adds the parts that failed on another machine, or in another process of this one."""
        for part in self._parts:
            if any(map(part.sweep.failed, part.sweep.members)):
                self.failed.setdefault(part.title, f'see log.txt in {part.sweep.path}/runs')
