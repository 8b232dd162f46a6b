"""Which examples of a file without an evaluation set of its own are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from bert_jax.runtime.errors import InputError


def held_out(contents: Sequence[str], share: float, source: str) -> np.ndarray:
    """[n] bool: about `share` of the examples.

    A hash of the content decides, so that an example stays on its side when others come or go, and
    equal ones are on one side.

    Raises:
      InputError: one of the sides would be empty.
    """
    out = np.array([share_of(content) < share for content in contents], np.bool_)
    if out.all() or not out.any():
        raise InputError(
            f'{source} has {len(out):,} examples, of which config.data.held_out={share} would '
            f"leave {int((~out).sum())} to train on and {int(out.sum())} to evaluate: name a file "
            'to evaluate on, config.data.eval_source, or another share'
        )
    return out


def share_of(text: str) -> float:
    """A number from 0 up to 1 that follows from the text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, 'little') / 2**64
