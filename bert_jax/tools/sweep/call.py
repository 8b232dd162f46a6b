"""A search as a function, for notebooks."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import optuna

from bert_jax.config import ConfigDict
from bert_jax.config.command_line import config_file
from bert_jax.runtime.accelerators import check_accelerators
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, check_is_path
from bert_jax.runtime.same_code import check_same_code
from bert_jax.tools.sweep import training
from bert_jax.tools.sweep.database import check_url, needing_database
from bert_jax.tools.sweep.folder import Sweep
from bert_jax.tools.sweep.members import config_name, member_config
from bert_jax.tools.sweep.pruning import PRUNERS, check_can_prune
from bert_jax.tools.sweep.report import add_plots, report
from bert_jax.tools.sweep.search import SAMPLERS, read_search
from bert_jax.tools.sweep.study import SweepStudy


def sweep(
    config: str | ConfigDict, search: Mapping[str, str | Sequence[Any]],
    workdir: str | os.PathLike[str], changes: Mapping[str, Any] | None = None, *,
    trials: int = 20, sampler: str = 'tpe', prune: str | None = None, restarts: int = 0,
    keep: int | None = 1, storage: str | None = None,
) -> optuna.Study:
    """Trains points of a search, as `python -m bert_jax.tools.sweep --search` does.

    Called again, it goes on where it was interrupted. The checkpoints of runs that are beaten are
    deleted.

    Args:
      config: as for `--config`: a file or the name of one, with its argument, such as 'glue:rte';
        or an object from `bert_jax.config`, which stays as it is.
      search: for each field a range, 'LOW..HIGH' or 'LOW..HIGH:log', or a list of values.
      workdir: the folder of the sweep.
      changes: values of fields for all runs, such as {'data.source': 'train.csv'}.
      trials: number of points.
      sampler: 'tpe', 'random' or 'qmc'.
      prune: 'median', 'hyperband' or 'wilcoxon' ends runs early whose evaluations are behind those
        of the other points.
      restarts: number of seeds of each point, whose value is their mean; 0: the config's seed.
      keep: number of best runs that keep their checkpoints; None: all.
      storage: URL of a database for the study, such as 'sqlite:///study.db'; None: a journal in
        `workdir`.

    Returns:
      The study. A trial's `params` are the fields' values (those of a list as text), its
      `user_attrs['runs']` the names of its folders in `WORKDIR/runs`.

    Raises:
      InputError: bad configuration, search or data, or `workdir` holds another sweep.
      Unavailable: the database does not answer.
    """
    if not isinstance(config, (str, ConfigDict)) or not isinstance(search, Mapping):
        raise InputError("sweep needs a config or the name of one, and a search, such as "
                         "{'optimizer.learning_rate': '1e-5..1e-4:log'}")
    _check_options(sampler, prune, trials, restarts, keep)
    check_is_path('workdir', workdir)
    found = read_search(
        [_entry(field, values) for field, values in search.items()], trials, sampler, restarts)
    file = config_file(config) if isinstance(config, str) else config
    overrides = [f'--config.{field}={value}' for field, value in (changes or {}).items()]
    for member in found.examples():
        check_can_prune(prune or '', member_config(file, overrides, member, 'search'), restarts)
    check_accelerators()
    check_same_code()
    kept = sys.maxsize if keep is None else keep
    if storage is not None:
        check_url(storage)
    ours = Sweep(as_path(workdir), file, overrides, (), kept, found, prune or '', storage or '')
    ours.open(config_name(file), overrides)
    training.work_until_done(ours, lambda step: False)
    report(ours)
    with needing_database(ours.storage):
        study = SweepStudy(ours).optuna
        add_plots(ours, study)
    return study


def _check_options(
    sampler: str, prune: str | None, trials: int, restarts: int, keep: int | None
) -> None:
    """Raises InputError for an option of `sweep` that is not possible."""
    if sampler not in SAMPLERS:
        raise InputError(f"sampler={sampler!r:.60} must be one of {', '.join(SAMPLERS)}")
    if prune is not None and prune not in PRUNERS:
        raise InputError(f"prune={prune!r:.60} must be one of {', '.join(PRUNERS)}, or None")
    if trials < 1 or restarts < 0 or (keep is not None and keep < 0):
        raise InputError(f'trials={trials} must be above 0, restarts={restarts} and keep={keep} '
                         'not below')


def _entry(field: str, values: str | Sequence[Any]) -> str:
    """A field of a search as --search has it."""
    if isinstance(values, str):
        return f'{field}={values}'
    texts = [str(value) for value in values]
    for text in texts:
        if ',' in text:
            raise InputError(f'search: {field} has the value {text!r:.60}: none may have a comma')
    return f'{field}={",".join(texts)}'
