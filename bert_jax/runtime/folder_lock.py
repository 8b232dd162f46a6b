"""The lock of a folder: one process at a time writes there, on one machine or many.

A claim is a small file in the folder, `.claim-NUMBER`; the highest number counts. It is created
exclusively, which disks and buckets both support, so only one of two simultaneous starts gets it.
(Where processes may work on pieces of a folder, each piece has claims of its own,
`.PIECE-claim-NUMBER`.)
Its holder rewrites it every few seconds. A killed process leaves its claim behind, and the next
process creates the next number once that claim is dead:

- at once, if its process ran on this machine and has ended;
- after `SECONDS` without a change by the waiting process's clock; clocks of other machines and file
  times are not used.

So a preempted run continues elsewhere after at most `SECONDS`, and a run that stopped in an orderly
way, and so deleted its claim, at once.
"""

import contextlib
import dataclasses
import json
import os
import platform
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.files import (
    Path,
    as_path,
    children,
    read_fields,
    read_system,
    write_new,
    write_whole,
)
from bert_jax.runtime.schema import TEXT, count

SECONDS = 30.0  # a claim that has not changed for this long is dead
BEAT_SECONDS = 5.0  # between two changes by the holder
_LOOK_SECONDS = 0.2  # between two looks of a process that waits
_CLAIM = {
    'token': TEXT, 'host': TEXT, 'pid': count(2**31), 'machine': TEXT, 'started': TEXT,
    'beat': count(2**63, least=0)}


class TakenOver(InputError):
    """Another process has the folder now, and this one must not write there."""


@dataclasses.dataclass(frozen=True)
class _Seen:
    """Another process's claim as it was read last, and since when it has not changed."""

    content: Mapping[str, Any]
    since: float


class Claim:
    """A claim on a folder; this process has the folder once `attempt` returns True.

    Attributes:
      folder: that is claimed.
      holder: the process that has the folder, as the last failed attempt saw it.
      known_alive: whether that process is known to be at work.
      lost: whether another process has taken the folder from this one.
    """

    def __init__(self, folder: str | os.PathLike[str], piece: str = ''):
        """Takes nothing yet.

        Args:
          folder: must exist, unless it is in a bucket.
          piece: of the folder, a word; '': all of it.
        """
        self.folder = as_path(folder)
        self._piece = piece
        self._content = new_claim()
        self._number = 0  # of our claim
        self._seen: _Seen | None = None
        self._ended = threading.Event()
        self.lost = False
        self.holder = ''
        self.known_alive = False

    def attempt(self) -> bool:
        """Tries once to take the folder, without waiting; whether this process now has it.

        Raises:
          OSError: the folder cannot be written.
        """
        numbers = self._numbers()
        last = max(numbers, default=0)
        if last and not self._is_dead(last):
            return False
        if not self._create(last + 1):
            return False  # another was quicker
        if last and self._is_alive_again(last):
            self._path(last + 1).unlink(missing_ok=True)
            return False
        for number in numbers:
            self._path(number).unlink(missing_ok=True)
        self._number = last + 1
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return True

    def is_free(self) -> bool:
        """Whether no other process has the folder, as far as this one knows."""
        last = max(self._numbers(), default=0)
        return not last or self._is_dead(last)

    def check(self) -> None:
        """Checks that this process still has the folder, as far as it knows; reads no files.

        Raises:
          TakenOver: another process has taken it, because this one's claim went stale.
        """
        if self.lost:
            raise TakenOver(
                f'{self.folder} was taken by another process, as this one had not been heard of '
                f'for {SECONDS:.0f} s (was it suspended?): this one stops here')

    def check_folder(self) -> None:
        """Checks by the claims in the folder that this process still has it.

        A process that was suspended does not know what happened meanwhile. So it calls this before
        it writes what could harm the process that has taken the folder.

        Raises:
          TakenOver: another process has taken it.
          OSError: the folder cannot be read.
        """
        if self._number and max(self._numbers(), default=0) != self._number:
            self.lost = True
        self.check()

    def release(self) -> None:
        """Gives the folder back, if this process has it."""
        self._ended.set()
        if self._number and not self.lost:
            self._thread.join(BEAT_SECONDS)  # a beat in progress would write the claim again
            with contextlib.suppress(OSError):
                self._path(self._number).unlink(missing_ok=True)
        self._number = 0

    @property
    def path(self) -> Path:
        """The file that says that this process has the folder."""
        return self._path(self._number)

    def _numbers(self) -> list[int]:
        return claims_in(self.folder, self._piece)

    def _path(self, number: int) -> Path:
        return self.folder / f'.{_prefix(self._piece)}claim-{number}'

    def _create(self, number: int) -> bool:
        """Creates our claim; False if another process has created the one of this number."""
        path = self._path(number)
        if write_new(path, json.dumps(self._content)):
            return True
        # If the token is ours, only the reply was lost.
        return read_claim(path).get('token') == self._content['token']

    def _is_dead(self, number: int) -> bool:
        """Whether the holder of a claim is known to be gone. Also updates `known_alive`."""
        seen = self._look(number)
        content = seen.content
        pid = content.get('pid', '?')
        self.holder = f"process {pid} on {content.get('host', 'another machine')}"
        is_alive = is_at_work(content)
        if is_alive is not None:
            self.known_alive = is_alive
            return not is_alive
        return time.monotonic() - seen.since > SECONDS

    def _look(self, number: int) -> _Seen:
        """Reads another's claim; its holder is alive if it has changed since the last look."""
        content = read_claim(self._path(number))
        before = self._seen
        if before is not None and content == before.content:
            return before
        self.known_alive = before is not None and (
            content.get('token') == before.content.get('token'))
        self._seen = _Seen(content, since=time.monotonic())
        return self._seen

    def _is_alive_again(self, number: int) -> bool:
        """Whether a claim that seemed dead has changed since."""
        assert self._seen is not None
        content = read_claim(self._path(number))
        return bool(content) and content != self._seen.content

    def _beat(self) -> None:
        """Rewrites our claim from time to time, until it is released or lost."""
        while not self._ended.wait(BEAT_SECONDS):
            self._content['beat'] += 1
            with contextlib.suppress(Exception):  # of many libraries; the next beat tries again
                if max(self._numbers(), default=0) != self._number:
                    self.lost = True
                    return
                write_whole(self._path(self._number), json.dumps(self._content))


@contextlib.contextmanager
def claimed(
    folder: str | os.PathLike[str], what: str, waits: bool = False, piece: str = ''
) -> Iterator[Claim]:
    """Holds the claim on a folder; waits while the present claim may be a dead process's.

    Args:
      folder: must exist.
      what: what the folder holds, for messages.
      waits: whether it waits for another process that is at work in it, too.
      piece: see `Claim`.

    Raises:
      InputError: another process is at work in it, and it does not wait.
    """
    claim = Claim(folder, piece)
    _wait({what: claim}, Claim.attempt, waits)
    try:
        yield claim
    finally:
        claim.release()


def wait_for_holders(folder: str | os.PathLike[str], pieces: Mapping[str, str]) -> None:
    """Waits while other processes may be at work in a folder, and takes nothing.

    Of several pieces, those whose holders are dead are found so in the same `SECONDS`.

    Args:
      folder: must exist.
      pieces: see `Claim`; by what each is, for messages.
    """
    claims = {what: Claim(folder, piece) for what, piece in pieces.items()}
    _wait(claims, Claim.is_free, waits=True)


def _wait(claims: Mapping[str, Claim], is_done: Callable[[Claim], bool], waits: bool) -> None:
    """Waits for the holders of claims, see `claimed`, until each `is_done`."""
    reported: set[str] = set()
    told: set[str] = set()
    waiting = dict(claims)
    while waiting := {what: claim for what, claim in waiting.items() if not is_done(claim)}:
        for what, claim in waiting.items():
            if claim.known_alive and not waits:
                raise InputError(
                    f'{claim.folder}: {claim.holder} is at work on this {what}: wait until it has '
                    'ended, or give another --workdir')
            if claim.known_alive and what not in told:
                told.add(what)
                tell(f'{claim.holder} is at work on this {what} ({claim.folder}): waiting until it '
                     'has ended')
            elif claim.holder and what not in reported | told:
                reported.add(what)
                tell(f'waiting up to {SECONDS:.0f} s to see whether {claim.holder} is still at '
                     f'work on this {what}')
        time.sleep(_LOOK_SECONDS)


def _prefix(piece: str) -> str:
    """The part before `claim-` in the name of a claim."""
    return f'{piece}-' if piece else ''


def claims_in(folder: str | os.PathLike[str], piece: str = '') -> list[int]:
    """The numbers of all claims in a folder, also those of processes that were killed."""
    numbers = []
    for path in children(folder):
        match = re.fullmatch(rf'\.{_prefix(piece)}claim-(\d+)', path.name)
        if match:
            numbers.append(int(match[1]))
    return numbers


def pieces_in(folder: str | os.PathLike[str]) -> list[str]:
    """The pieces of a folder on which there are claims, in order."""
    found: set[str] = set()
    for path in children(folder):
        match = re.fullmatch(r'\.(.+)-claim-\d+', path.name)
        if match:
            found.add(match[1])
    return sorted(found)


def is_claim(name: str) -> bool:
    """Whether a file of this name is a claim, on its folder or a piece of it."""
    return re.fullmatch(r'\.(.+-)?claim-\d+', name) is not None


def holder(folder: str | os.PathLike[str], piece: str = '') -> str:
    """The process that may be writing in a folder, or in a piece of it, or ''.

    This looks once, without waiting, so it still names a process that was killed on another
    machine.
    """
    claim = Claim(folder, piece)
    return '' if claim.is_free() else claim.holder


def new_claim() -> dict[str, Any]:
    """The content of a claim by this process, unlike that of any other claim."""
    return {
        'token': secrets.token_hex(8),
        'host': platform.node(),
        'pid': os.getpid(),
        'machine': _machine(),
        'started': _started(os.getpid()),
        'beat': 0,
    }


def is_at_work(claim: Mapping[str, Any]) -> bool | None:
    """Whether the process of a claim runs; None if that was not on this machine."""
    machine = _machine()
    if not machine or claim.get('machine') != machine:
        return None
    started = _started(claim.get('pid'))
    return started is not None and started == claim.get('started')


def read_claim(path: Path) -> dict[str, Any]:
    """The content of a claim; {} if it is gone, just being made, or not one of ours."""
    with contextlib.suppress(InputError):
        content: dict[str, Any] = read_fields(path, _CLAIM, '')
        return content
    return {}


def _machine() -> str | None:
    """Identifies this boot of the machine and PID namespace, in which process ids are unique."""
    boot = read_system('/proc/sys/kernel/random/boot_id')
    if not boot:
        return None
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _started(pid: Any) -> str | None:
    """The start time of a process of this machine; None if no process has the number."""
    after_name = read_system(f'/proc/{pid}/stat').rpartition(')')[2]
    fields = after_name.split()
    if not fields or fields[0] == 'Z':  # a zombie has ended
        return None
    return fields[19]
