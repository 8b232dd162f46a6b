"""Runs and their scores as functions, with their results as values."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax import scoring
from bert_jax.config.command_line import parse_command
from bert_jax.run.resume_checks import locked_workdir
from bert_jax.run_setup import open_run
from bert_jax.runtime.accelerators import check_accelerators
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, check_is_path
from bert_jax.runtime.same_code import check_same_code
from bert_jax.train import experiment
from bert_jax.validation import check_used, validate

StrPath = str | os.PathLike[str]


def train_run(
    config: str | ConfigDict, workdir: StrPath, changes: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Trains a run from its start or its newest checkpoint, as `python -m bert_jax.main` does.

    An interruption loses the steps since the newest checkpoint; called again, the run goes on from
    there. In a run of several processes, each calls `jax.distributed.initialize()` first.

    Args:
      config: as for `--config`: a file or the name of one, with its argument, such as 'glue:mrpc';
        or an object from `bert_jax.config`, which stays as it is.
      workdir: the run directory.
      changes: values of fields by dotted name, such as {'data.source': 'train.csv'}.

    Returns:
      What the command prints as `result`: `step` and the scores `eval/...`; in a run that keeps its
      best evaluation those of this one, and those of the last as `last/...`.

    Raises:
      InputError: bad configuration or data, or a run in `workdir` that is another one.
      bert_jax.runtime.errors.Diverged: a loss or parameter is not finite.
    """
    read = _read_config(config, changes)
    validate(read)
    check_used(read)
    check_accelerators()
    check_same_code()
    check_is_path('workdir', workdir)
    path = as_path(workdir)
    with locked_workdir(path) as claim:

        def should_stop(step: int) -> bool:
            if claim is not None:
                claim.check()  # raises InputError if another process took the run over
            return False

        def check_lock() -> None:
            if claim is not None:
                claim.check_folder()

        program = open_run(read, [path])
        return experiment.train_run(
            program, path, should_stop, check_lock=check_lock, began=time.time())


def evaluate_run(
    runs: StrPath | Sequence[StrPath], workdir: StrPath,
    config: str | ConfigDict | None = None, changes: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Scores a run, or the mean of several, as `python -m bert_jax.evaluate` does.

    Args:
      runs: a run directory, one of its `checkpoints/STEP`, or weights of any other format; or a
        list of runs.
      workdir: receives the predictions.
      config: names the task of weights that are no run, as for `train_run`. None: the run's own.
      changes: as for `train_run`, such as {'data.eval_source': 'new.csv'}.

    Returns:
      Scores by name, 'eval/...'.

    Raises:
      InputError: there are no runs, a model is of another task, the runs do not belong together,
        the data are bad, or `workdir` is a run.
    """
    check_is_path('workdir', workdir)
    models = _models(runs)
    if not models:
        raise InputError('runs=[] names no run: give the directory of one or more')
    names = [os.fspath(model) for model in models]
    if config is None:
        config = scoring.config_of_run(as_path(names[0]))
    return scoring.evaluate(_read_config(config, changes), names, as_path(workdir))


def _models(runs: Any) -> list[StrPath]:
    """Runs as a user gave them; raises InputError unless they are paths."""
    if isinstance(runs, (list, tuple)):
        for number, run in enumerate(runs):
            check_is_path(f'runs[{number}]', run)
        return list(runs)
    check_is_path('runs', runs)
    return [runs]


def _read_config(config: str | ConfigDict, changes: Mapping[str, Any] | None) -> ConfigDict:
    """The config that is named, or a copy of the one given, with changes to its fields.

    Raises:
      InputError: there is no such config or field, or a value is not one that it can have.
    """
    if not isinstance(changes, Mapping | None):
        raise InputError(f"changes={changes!r:.60} must map fields to values, such as "
                         "{'data.source': 'train.csv'}")
    if not isinstance(config, (str, ConfigDict)):
        raise InputError(f'config={config!r:.60} must be the name of a config or a config of '
                         'bert_jax.config')
    arguments = []
    for field, value in (changes or {}).items():
        if value is None:
            raise InputError(f'changes: {field}=None is no value: leave it out for the one that '
                             "the config has, or give '' where the field may be empty")
        arguments.append(f'--config.{field}={value}')
    given = None
    if isinstance(config, str):
        arguments.insert(0, f'--config={config}')
    else:
        given = ConfigDict(config.copy_and_resolve_references()).lock()
    read, _ = parse_command(['bert_jax', *arguments], '', config=given)
    return read
