"""A run's session: hosts joined, signals handled, the run directory locked, errors told."""

import contextlib
import dataclasses
from collections.abc import Iterator

from bert_jax.runtime import hosts
from bert_jax.runtime.accelerators import check_accelerators
from bert_jax.runtime.errors import Diverged, InputError, Stopped
from bert_jax.runtime.files import Path
from bert_jax.runtime.lease import Claim
from bert_jax.runtime.process import describe_error
from bert_jax.runtime.stopping import Guard
from bert_jax.train.workdirs import locked_workdir


@dataclasses.dataclass(frozen=True)
class RunSession:
    """What a run asks while it trains.

    Attributes:
      guard: watches signals and the other hosts.
      claim: on the run directory; None on hosts other than the first.
    """

    guard: Guard
    claim: Claim | None

    def should_stop(self, step: int) -> bool:
        """Whether to save and stop after this step; the same on all hosts.

        Raises:
          InputError: another process took over the run directory.
        """
        if self.claim is not None:
            self.claim.check()
        return self.guard.should_stop(step)


@contextlib.contextmanager
def run_session(workdir: Path) -> Iterator[RunSession]:
    """Joins the hosts and holds the run directory while the `with` block trains.

    An error in the block ends this process, and all hosts, with one line and an exit status.
    """
    guard = Guard()
    try:
        hosts.connect()
        guard.start()
        check_accelerators()
        with locked_workdir(workdir) as claim:
            yield RunSession(guard, claim)
        guard.finish()
    except (Stopped, Exception) as error:
        message, status = describe_error(error, workdir, workdir if hosts.first() else None)
        # Other errors may come from another host that ended, which makes collectives fail here.
        is_ours = isinstance(error, (Stopped, InputError, Diverged))
        guard.fail(message, status, is_ours)
