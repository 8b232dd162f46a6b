"""Whether all hosts of a run see the same run directory."""

from __future__ import annotations

import secrets
import time
from typing import Any

from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError


def check_shared(workdir: Any, seconds: float = 30.0) -> None:
    """Makes sure that what the first host writes into the run directory is there for the others.

    Otherwise each host would save its part of a checkpoint on a disk of its own, and wait for the
    others' parts.

    Args:
      workdir: exists on the first host.
      seconds: that the others wait; network disks lag.

    Raises:
      InputError: on all hosts, naming the first that does not see it.
    """
    if hosts.count() == 1:
        return
    folder = files.as_path(workdir)

    def leave_token() -> str:
        name = f'.shared-{secrets.token_hex(8)}'
        (folder / name).write_text('All hosts of a run look for this file while it starts.\n')
        return name

    token = folder / hosts.share('run directory', leave_token)
    deadline = time.monotonic() + seconds
    while not (seen := token.exists()) and time.monotonic() < deadline:
        time.sleep(0.2)
    blind = [host for host, text in enumerate(hosts.exchange('run directory', 'seen' * seen))
             if not text]
    if hosts.first():
        token.unlink(missing_ok=True)
    if blind:
        raise InputError(
            f'--workdir={workdir} is not the same folder on all hosts (host {blind[0]} does not '
            'see what host 0 writes there): name a bucket or a disk that they share'
        )
