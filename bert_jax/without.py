"""Imports without what is loaded along with them, for seconds, and is not used here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def without(package: str) -> Iterator[None]:
    """Within it, a package that is not loaded yet cannot be found."""
    modules: dict[str, Any] = sys.modules
    hidden = modules.setdefault(package, None) is None
    try:
        yield
    finally:
        if hidden:
            del modules[package]
