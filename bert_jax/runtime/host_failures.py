"""The conclusions of host 0 from all hosts' reports: who failed, whether they hang, when to stop.

Nothing here looks at a clock or at another process: times and reports are arguments.
"""

import dataclasses
import json
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

from bert_jax.runtime.errors import named_hosts

# A host without a heartbeat for this long counts as dead: in training, and before its first step.
SILENCE_SECONDS = 30.0
SILENCE_AT_START_SECONDS = 300.0
# A run counts as hung after this long without a step, or the time of this many usual steps if that
# is longer.
STILL_SECONDS = 600.0
_STILL_STEPS = 20
_DOINGS = {
    'step': 'in a step', 'data': 'waiting for data', 'profile': 'writing a trace',
    'save': 'saving', 'evaluation': 'evaluating', 'compile': 'compiling', 'start': 'starting'}


@dataclasses.dataclass(frozen=True)
class Failure:
    """The message and exit status that a host ends with."""

    message: str
    status: int


@dataclasses.dataclass
class HostState:
    """A host's report of itself. The defaults stand for a host that has not reported yet.

    Attributes:
      beat: its heartbeat, which is higher in every report.
      step: the last step that it finished; None before training.
      was_signalled: whether a signal asked it to stop.
      earliest_stop: the first poll at which it can stop; None: not decided yet.
      failure: why it ends; None: it does not.
      still_seconds: how long it has been at its present step.
      usual_seconds: how long its steps usually take.
      cause: the `Goodput` cause that its main thread is in.
      seconds: by cause, since it started.
    """

    beat: int = 0
    step: int | None = None
    was_signalled: bool = False
    earliest_stop: int | None = None
    failure: Failure | None = None
    still_seconds: float = 0.0
    usual_seconds: float = 0.0
    cause: str = ''
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """The report as text for other hosts."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads `to_json`."""
        return cls(**_with_failure(json.loads(text)))


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The decision that all hosts obey.

    Attributes:
      failed_host: the host that failed first; None: none did.
      failure: the message and status with which the others end.
      hangs: whether the failure is that no host finishes a step. Then `failed_host` is the one for
        which the others wait; None: it is not known.
      must_stop: whether a host was signalled to stop.
      stop_poll: the poll at which all stop; None: not decided yet.
    """

    failed_host: int | None = None
    failure: Failure | None = None
    hangs: bool = False
    must_stop: bool = False
    stop_poll: int | None = None

    def to_json(self) -> str:
        """The verdict as text for other hosts."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads `to_json`."""
        return cls(**_with_failure(json.loads(text)))


def _with_failure(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a report or verdict that was text, with its failure as an object."""
    if fields['failure'] is not None:
        fields['failure'] = Failure(**fields['failure'])
    return fields


@dataclasses.dataclass(frozen=True)
class _Heartbeat:
    """The newest heartbeat of a host, and when it was first seen."""

    beat: int
    seen: float


class Judge:
    """Makes verdicts; what is once decided stays decided."""

    def __init__(self) -> None:
        self._verdict = Verdict()
        self._heartbeats: dict[int, _Heartbeat] = {}  # by host

    def judge(self, reports: Mapping[int, HostState], now: float, folder: object = None) -> Verdict:
        """The verdict from the newest reports of all hosts.

        Args:
          reports: by host.
          now: the time in seconds, by any clock that never goes back.
          folder: receives the stacks of hosts that hang, for the message.
        """
        self._hear(reports, now)
        verdict = self._verdict
        if verdict.failure is None:
            verdict = self._find_failure(verdict, reports, now)
        if verdict.failure is None:
            verdict = _find_hang(verdict, reports, folder)
        if any(report.was_signalled for report in reports.values()):
            verdict = dataclasses.replace(verdict, must_stop=True)
        if verdict.stop_poll is None:
            verdict = dataclasses.replace(verdict, stop_poll=_common_stop(reports))
        self._verdict = verdict
        return verdict

    def _hear(self, reports: Mapping[int, HostState], now: float) -> None:
        """Remembers when each heartbeat was first seen."""
        for host, report in reports.items():
            known = self._heartbeats.get(host)
            if known is None or known.beat != report.beat:
                self._heartbeats[host] = _Heartbeat(report.beat, seen=now)

    def _find_failure(
        self, verdict: Verdict, reports: Mapping[int, HostState], now: float
    ) -> Verdict:
        """The verdict with the first host that reports a failure or is silent for too long."""
        for host, report in reports.items():
            failure = report.failure
            silence = now - self._heartbeats[host].seen
            limit = SILENCE_AT_START_SECONDS if report.step is None else SILENCE_SECONDS
            if failure is None and silence > limit:
                failure = Failure(f'has not been heard of for {silence:.0f} seconds', status=1)
            if failure is not None:
                return dataclasses.replace(verdict, failed_host=host, failure=failure)
        return verdict


def _find_hang(verdict: Verdict, reports: Mapping[int, HostState], folder: object) -> Verdict:
    """The verdict with the host that does something else than the others, if none goes on."""
    still = min(report.still_seconds for report in reports.values())
    usual = max(report.usual_seconds for report in reports.values())
    if still <= max(STILL_SECONDS, _STILL_STEPS * usual):
        return verdict
    blamed = _blamed(reports)
    step = min(report.step or 0 for report in reports.values())
    if blamed is not None:
        step = reports[blamed].step or 0
    failure = Failure(
        f'at step {step} no step was finished for {still:.0f} s (usually {usual:.2g} s; '
        f'{_doings(reports)}): what each host did is in {folder}/stacks-HOST.txt; start again and '
        'it goes on from the last checkpoint', status=1)
    return dataclasses.replace(verdict, hangs=True, failed_host=blamed, failure=failure)


def _blamed(reports: Mapping[int, HostState]) -> int | None:
    """The host for which the others wait; None if that cannot be told.

    Most hosts wait for it in the same way, mostly in a step, and it does something else; where all
    do the same, it is behind them.
    """
    suspects = next(iter(_by_cause(reports).values()))
    first_step = min(reports[host].step or 0 for host in suspects)
    behind = [host for host in suspects if (reports[host].step or 0) == first_step]
    return behind[0] if len(behind) == 1 else None


def _by_cause(reports: Mapping[int, HostState]) -> dict[str, list[int]]:
    """The hosts that are in each cause, the rarest first; of equally rare ones, a step last."""
    hosts_at: dict[str, list[int]] = {}
    for host, report in reports.items():
        hosts_at.setdefault(report.cause, []).append(host)
    rarest_first = sorted(hosts_at, key=lambda cause: (len(hosts_at[cause]), cause == 'step'))
    return {cause: hosts_at[cause] for cause in rarest_first}


def _doings(reports: Mapping[int, HostState]) -> str:
    """A line on what all hosts do: 'host 1 waiting for data after step 7, hosts 0, 2 ...'."""
    doings = []
    for cause, numbers in _by_cause(reports).items():
        steps = sorted({reports[host].step or 0 for host in numbers})
        shown = str(steps[0]) if len(steps) == 1 else f'{steps[0]} to {steps[-1]}'
        doings.append(f'{named_hosts(numbers)} {_DOINGS.get(cause, cause)} after step {shown}')
    return ', '.join(doings)


def _common_stop(reports: Mapping[int, HostState]) -> int | None:
    """The first poll at which every host can stop; None while one has not said so."""
    latest = 0
    for report in reports.values():
        if report.earliest_stop is None:
            return None
        latest = max(latest, report.earliest_stop)
    return latest


class StepTimes:
    """How long a host has been at its present step, and how long its steps usually take."""

    def __init__(self, now: float) -> None:
        self._begun = now
        self._seconds = deque([0.0], maxlen=99)  # of the last steps

    def finish(self, now: float) -> None:
        """Ends a step, and begins the next."""
        self._seconds.append(now - self._begun)
        self._begun = now

    def begin(self, now: float) -> None:
        """Begins the present step anew, after something that has no time limit."""
        self._begun = now

    def still(self, now: float) -> float:
        """Seconds since the present step began."""
        return now - self._begun

    @property
    def usual(self) -> float:
        """The median of the last steps, in seconds."""
        return statistics.median(self._seconds)
