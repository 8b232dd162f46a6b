"""Which points of a sweep are not worth going on with, by the evaluations of their runs.

An evaluation is known by its place: the first of a run is compared with the first ones of the other
points, also where their steps differ because their batches do. With several seeds it is the mean of
those that have come so far that is compared, and all runs of a point end with it.
"""

import copy
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bert_jax.config import ConfigDict
from bert_jax.config.durations import ANY_NUMBER, parse_duration
from bert_jax.runtime.errors import InputError

if TYPE_CHECKING:  # the command checks its flags without
    import optuna
    from optuna.pruners import BasePruner
    from optuna.trial import FrozenTrial

PRUNERS = ('median', 'hyperband', 'wilcoxon')
_STARTUP_TRIALS = 5  # whose median is the first to be compared with; of a short sweep a third


def check_can_prune(prune: str, config: ConfigDict, num_seeds: int) -> None:
    """Refuses what cannot be pruned; '' always can.

    Args:
      prune: one of PRUNERS, or ''.
      config: of a run.
      num_seeds: the largest number of runs that a point has.

    Raises:
      InputError: the runs are evaluated at their end only, or Hyperband is to decide about means.
    """
    if not prune:
        return
    if prune == 'hyperband' and num_seeds > 1:
        # It remembers what it has decided about the first seed.
        raise InputError(f'--prune=hyperband decides once about a point, and a point has '
                         f'{num_seeds} seeds here: take --prune=median or --prune=wilcoxon')
    every = parse_duration(
        config.train.eval_every, 'train.eval_every', batch_size=1, num_examples=ANY_NUMBER,
        total=ANY_NUMBER)
    if not every:
        raise InputError('--prune compares runs by their evaluations, and config.train.eval_every '
                         "is 0, only at the end: set it, such as --config.train.eval_every='10%'")


def make_pruner(name: str, num_points: int) -> 'BasePruner':
    """Optuna's pruner of a name of PRUNERS, for a sweep of so many points; '': none prunes."""
    from optuna.exceptions import ExperimentalWarning
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner, WilcoxonPruner

    if not name:
        return NopPruner()
    if name == 'median':
        return MedianPruner(n_startup_trials=max(1, min(_STARTUP_TRIALS, num_points // 3)))
    if name == 'hyperband':
        return HyperbandPruner()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', ExperimentalWarning)
        return WilcoxonPruner()


def means_by_place(runs: Sequence[Sequence[float | None]]) -> dict[int, float]:
    """The mean over runs of their first, second, ... evaluations; without those undefined.

    Args:
      runs: the evaluations of each, in their order; None: undefined.
    """
    found = {}
    for place in range(max(map(len, runs), default=0)):
        scores = [run[place] for run in runs if place < len(run)]
        defined = [score for score in scores if score is not None]
        if defined:
            found[place + 1] = statistics.fmean(defined)
    return found


def is_behind(
    study: 'optuna.Study', trial: 'FrozenTrial', values: Mapping[int, float]
) -> bool:
    """Whether the study's pruner ends a trial.

    Args:
      study: has the pruner and the other trials.
      trial: as the storage has it.
      values: its evaluations by place, up to the one that has just come.
    """
    asked = copy.copy(trial)
    asked.intermediate_values = dict(values)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of a best trial that has fewer evaluations
        return study.pruner.prune(study, asked)
