"""Whether hosts see the same folder."""

import contextlib
import secrets
import time

from bert_jax.runtime import hosts
from bert_jax.runtime.files import Path

# A network disk shows a new name at once, if no host has looked for it before; buckets do always.
_PATIENCE_SECONDS = 15.0


def host_without(folder: Path) -> int | None:
    """The first host that does not see what the first host writes into a folder; None: all do.

    All hosts call it, and get the same. A folder in which the first host may not write tells
    nothing.

    Args:
      folder: it exists on the first host.
    """
    if hosts.count() == 1:
        return None

    def write() -> str:
        name = f'.shared-{secrets.token_hex(8)}'
        try:
            (folder / name).write_text('All hosts of a run look for this file while it starts.\n')
        except OSError:
            return ''
        return name

    name = hosts.share('shared folder', write)
    if not name:
        return None
    mark = folder / name
    try:
        is_seen = _appears(mark)
        answers = hosts.exchange('shared folder', 'seen' if is_seen else '')
    finally:
        if hosts.first():
            with contextlib.suppress(OSError):
                mark.unlink(missing_ok=True)
    return answers.index('') if '' in answers else None


def _appears(mark: Path) -> bool:
    """Whether this host sees a file within the time that a network disk may take."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not mark.exists():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)
    return True
