"""A process that builds parts of a token store for another one; see `store_workers`.

Pickled parts come in by standard input, and (kind, what) goes out by standard output.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO

from bert_jax.data.store_workers import Part
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.process import loading_tensorflow

_REPORT_SECONDS = 0.5


class _Answers:
    """Where answers go."""

    def __init__(self, pipe: BinaryIO):
        self._pipe, self._reported = pipe, 0.0

    def send(self, kind: str, what: Any) -> None:
        pickle.dump((kind, what), self._pipe)
        self._pipe.flush()

    def report(self, num_bytes: int) -> None:
        """Says now and then how far a part is."""
        if time.monotonic() - self._reported > _REPORT_SECONDS:
            self._reported = time.monotonic()
            self.send('bytes', num_bytes)


def _listen(parts: queue.SimpleQueue[Part]) -> None:
    """Ends this process when the other one has ended, however it did."""
    with contextlib.suppress(Exception):
        while True:
            parts.put(pickle.load(sys.stdin.buffer))
    os._exit(1)


def _work(answers: _Answers) -> None:
    source, tokenizer, num_threads = pickle.load(sys.stdin.buffer)
    parts: queue.SimpleQueue[Part] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(parts,), daemon=True).start()
    with loading_tensorflow('pre-training from text'):
        from bert_jax.data.pipeline import hide_accelerators
        from bert_jax.data.store_part import PartBuilder

        hide_accelerators()
        builder = PartBuilder(source, tokenizer, num_threads)
    while True:
        answers.send('done', builder.build(parts.get(), answers.report))


def main() -> None:
    answers = _Answers(os.fdopen(os.dup(1), 'wb'))
    os.dup2(2, 1)  # whatever else prints does not get among the answers
    try:
        _work(answers)
    except (InputError, OSError) as error:
        answers.send('fault', error)
    except BaseException:
        answers.send('fault', RuntimeError(traceback.format_exc()))


if __name__ == '__main__':
    main()
