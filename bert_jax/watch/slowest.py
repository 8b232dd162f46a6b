"""The hosts for which the others wait: who waits most for data, takes longest for a step or a save.

Hosts report their times twice a second beside their heartbeats (`runtime.stopping`), so this costs
the training loop no message: the first host compares what it has heard since its last log line.
"""

import dataclasses
from collections.abc import Callable, Mapping

from bert_jax.runtime import hosts
from bert_jax.runtime.host_failures import HostState
from bert_jax.watch.goodput import Goodput

# Causes of `Goodput` in which the others of a host that takes longer wait for it, in a step.
_WAITED_FOR = ('data', 'save')


@dataclasses.dataclass(frozen=True)
class Spent:
    """The time that a host spent between two log lines.

    Attributes:
      seconds: by cause.
      steps: that it finished.
    """

    seconds: Mapping[str, float]
    steps: int

    @property
    def busy(self) -> float:
        """Seconds in steps and waiting for data."""
        return self.seconds.get('step', 0.0) + self.seconds.get('data', 0.0)

    def measures(self) -> dict[str, float]:
        """The values that are compared between hosts, by the name of a metric."""
        found = {}
        if self.busy > 0:
            found['data_wait'] = self.seconds.get('data', 0.0) / self.busy
        if self.steps:
            found['step_seconds'] = self.busy / self.steps
        if self.seconds.get('save', 0.0) > 0:
            found['save_seconds'] = self.seconds['save']
        return found


class SlowestHosts:
    """Compares the hosts of a run, on the first one.

    Attributes:
      goodput: of this host; it counts the time for which this host waited for slower ones in its
        steps as theirs.
    """

    def __init__(self, reports: Callable[[], Mapping[int, HostState]] | None, goodput: Goodput):
        """Compares reports; None where there is one host.

        Args:
          reports: returns the newest of each host; {} on hosts other than the first.
          goodput: of this host.
        """
        self._reports = reports
        self.goodput = goodput
        # By host, the state up to which its times are compared.
        self._compared: dict[int, HostState] = {}
        self._spent: dict[int, Spent] = {}  # by other hosts, when last compared
        self._own: dict[str, float] = {}

    def begin(self) -> None:
        """Compares the times from now on."""
        self._spent_by_others()
        self._own = self.goodput.now()

    def compare(self, own_steps: int) -> dict[str, float]:
        """The metrics of the slowest hosts since the last time, with `NAME_host`; {} of one host.

        Args:
          own_steps: that this host finished since then.
        """
        heard = self._spent_by_others()
        self._spent |= heard  # those that have not reported since are as they were
        now = self.goodput.now()
        seconds = {cause: now[cause] - self._own.get(cause, 0.0) for cause in now}
        own = {hosts.index(): Spent(seconds, own_steps)}
        metrics: dict[str, float] = {}
        if self._spent:
            for host, of_host in {**own, **self._spent}.items():
                for name, value in of_host.measures().items():
                    if value > metrics.get(name, -1.0):
                        metrics |= {name: value, f'{name}_host': host}
            self._count_waiting({**own, **heard})
        self._own = self.goodput.now()
        return metrics

    def _spent_by_others(self) -> dict[int, Spent]:
        """The time that each other host spent since the last call, if it has reported since."""
        if self._reports is None:
            return {}
        spent = {}
        for host, report in self._reports().items():
            before = self._compared.get(host)
            has_news = before is None or report.beat != before.beat
            if host == hosts.index() or not has_news:
                continue
            self._compared[host] = report
            if before is None:
                continue
            seconds = {}
            for cause, until in report.seconds.items():
                seconds[cause] = until - before.seconds.get(cause, 0.0)
            spent[host] = Spent(seconds, (report.step or 0) - (before.step or 0))
        return spent

    def _count_waiting(self, spent: Mapping[int, Spent]) -> None:
        """Counts the time for which this host waited in its steps for the slowest one."""
        for cause in _WAITED_FOR:
            by_host = {host: of_host.seconds.get(cause, 0.0) for host, of_host in spent.items()}
            slowest = max(by_host, key=lambda host: by_host[host])
            if by_host[slowest] > 0:
                self.goodput.count_waiting(
                    cause, slowest, by_host[slowest], by_host[slowest] - by_host[hosts.index()])
