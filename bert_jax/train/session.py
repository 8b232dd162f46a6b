"""A run's session: hosts joined, signals handled, the run directory locked, errors told."""

import contextlib
import dataclasses
from collections.abc import Iterator

from bert_jax.run.resume_checks import locked_workdir
from bert_jax.runtime import connecting, hosts
from bert_jax.runtime.accelerators import check_accelerators
from bert_jax.runtime.errors import Diverged, InputError, SaveFailed, Stopped
from bert_jax.runtime.files import Path
from bert_jax.runtime.folder_lock import Claim, TakenOver
from bert_jax.runtime.process import describe_error, error_boundary
from bert_jax.runtime.same_code import check_same_code
from bert_jax.runtime.stopping import Guard


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
          TakenOver: another process took over the run directory.
        """
        if self.claim is not None:
            self.claim.check()
        return self.guard.should_stop(step)

    def check_lock(self) -> None:
        """Asks, on the first host for all, whether the run directory is still this run's.

        Raises:
          TakenOver: another process took it over; raised on the first host, which ends the others.
          SaveFailed: the directory cannot be read.
        """
        hosts.share('lock', self._ask)

    def _ask(self) -> str:
        if self.claim is not None:
            try:
                self.claim.ask()
            except TakenOver:
                raise
            except Exception as error:  # of many libraries
                line, _ = describe_error(error)
                raise SaveFailed(f'the run directory cannot be read: {line}') from error
        return ''


@contextlib.contextmanager
def run_session(workdir: Path) -> Iterator[RunSession]:
    """Joins the hosts and holds the run directory while the `with` block trains.

    An error in the block ends this process, and all hosts, with one line and an exit status.
    """
    guard = Guard()
    try:
        with error_boundary():  # as yet, there is no guard and nobody to tell
            connecting.connect()
        guard.start()
        check_same_code()
        check_accelerators()
        with locked_workdir(workdir) as claim, _naming_who_took_over(claim):
            yield RunSession(guard, claim)
        guard.finish()
    except TakenOver as error:
        guard.leave(str(error), status=2)
    except (Stopped, Exception) as error:
        message, status = describe_error(error, workdir, workdir if hosts.first() else None)
        # Other errors may come from another host that ended, which makes collectives fail here.
        is_ours = isinstance(error, (Stopped, InputError, Diverged, SaveFailed))
        guard.fail(message, status, is_ours)


@contextlib.contextmanager
def _naming_who_took_over(claim: Claim | None) -> Iterator[None]:
    """Raises TakenOver in the place of errors that come of another process at work in the run."""
    try:
        yield
    except SaveFailed:
        if claim is not None:
            try:
                claim.ask()
            except TakenOver:
                raise
            except Exception:  # of many libraries, and less than SaveFailed says
                pass
        raise
