"""What a task is opened with: prepared text, and facts about a model that is only scored."""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax.rows.prepared import Prepared
from bert_jax.runtime.errors import InputError


class ScoredModel(NamedTuple):
    """The facts about a model that is scored and not trained.

    Attributes:
      labels: of its head, by id; empty if it has none, or if the task's own labels apply.
      inference: how its predictions are made (`Weights.inference`).
      trained: the fields of its run's config.json by dotted name; empty if it is no run of this
        project, or a run converted from elsewhere.
    """

    labels: tuple[str, ...] = ()
    inference: Mapping[str, Any] = {}
    trained: Mapping[str, Any] = {}


# A context variable and not an argument, because config files of users define openers with the
# signature (config, scored).
_PREPARED: ContextVar[Prepared | None] = ContextVar('prepared', default=None)


@contextlib.contextmanager
def given(prepared: Prepared | None) -> Iterator[None]:
    """Within the block, tasks are opened with this text.

    Args:
      prepared: from `corpus.prepare`; None: the config names no vocabulary.
    """
    token = _PREPARED.set(prepared)
    try:
        yield
    finally:
        _PREPARED.reset(token)


def prepared_text(config: ConfigDict) -> Prepared:
    """The text of the task that is being opened.

    Raises:
      InputError: the config names no vocabulary.
    """
    prepared = _PREPARED.get()
    if prepared is None:
        assert not config.data.vocab_file, 'open tasks by tasks.opening.open_task'
        raise InputError(
            'config.data.vocab_file is empty, and there is no config.init_checkpoint that '
            'brings one: a downstream task starts from a vocabulary')
    return prepared
