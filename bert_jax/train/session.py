"""A run's session: hosts joined, signals handled, the run directory locked, errors reported."""

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
    """Decides, while a run trains, whether it goes on.

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
        """Checks, on the first host for all, that no other process has taken the run directory.

        Raises:
          TakenOver: one has; raised on the first host, which ends the others.
          SaveFailed: the directory cannot be read.
        """
        hosts.share_json('lock', self._check_claim)

    def _check_claim(self) -> None:
        if self.claim is None:
            return
        try:
            self.claim.check_folder()
        except TakenOver:
            raise
        except Exception as error:  # of many libraries
            line, _ = describe_error(error)
            raise SaveFailed(f'the run directory cannot be read: {line}') from error


@contextlib.contextmanager
def run_session(workdir: Path) -> Iterator[RunSession]:
    """Joins the hosts and holds the run directory while the `with` block trains.

    An error in the block ends this process, and all hosts, with one line and an exit status.
    """
    guard = Guard()
    try:
        with error_boundary():  # no guard yet, and no other hosts to end
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
    """Replaces SaveFailed by TakenOver if another process has the run."""
    try:
        yield
    except SaveFailed:
        if claim is not None:
            try:
                claim.check_folder()
            except TakenOver:
                raise
            except Exception:  # of many libraries, and less than SaveFailed says
                pass
        raise
