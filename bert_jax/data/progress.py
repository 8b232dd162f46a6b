"""What building a token store says while it is at work."""

from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    """A line on standard error: how much of the text is done, how fast, how long yet."""

    def __init__(self, enabled: bool, total_bytes: int):
        self._enabled = enabled
        self._total = total_bytes  # 0 where unknown
        self._terminal = sys.stderr.isatty()
        self._shown = time.monotonic()

    def show(self, state: dict[str, Any]) -> None:
        """Reports now and then: often on a terminal, every ten seconds in a log."""
        now = time.monotonic()
        if not self._enabled or now - self._shown < (0.5 if self._terminal else 10):
            return
        self._shown = now
        rate = state['bytes'] / max(state['seconds'], 1e-3)
        line = f"token store: {state['bytes'] / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s"
        if self._total:
            share = min(state['bytes'] / self._total, 0.99)
            left = max(self._total - state['bytes'], 0) / max(rate, 1)
            line = (
                f'token store: {share:.0%} of {self._total / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s, '
                f'{left / 60:.0f} min {left % 60:.0f} s left'
            )
        print(f'\r{line}\033[K' if self._terminal else line, file=sys.stderr, flush=True,
              end='' if self._terminal else '\n')

    def end(self, manifest: dict[str, Any]) -> None:
        """Says what was built."""
        if self._enabled:
            print(
                ('\r\033[K' if self._terminal else '')
                + f"token store: {manifest['num_tokens']} tokens, {manifest['num_sentences']} "
                f"sentences, {manifest['num_documents']} documents "
                f"({manifest['num_duplicates']} duplicates left out) from "
                f"{manifest['text_bytes'] / 1e6:.1f} MB in {manifest['seconds']} s",
                file=sys.stderr, flush=True,
            )
