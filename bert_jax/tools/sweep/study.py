"""The Optuna study of a sweep: which points there are, who has one, and what came of it.

A trial is a point: a setting of the fields, with a run for each of its seeds. All points are
enqueued at the beginning: those of a grid with their values, those of a search without, as they are
drawn when their turn comes. The value of a trial is the mean of its runs, and its intermediate
values are the means of their evaluations, the first, the second, ... (`pruning.py`).

The run folders are what counts. A point whose runs are finished is answered by them, and a study
that is lost is made anew from them. Which process trains a run is decided by the lock of its folder
alone: a trial whose process is gone goes on in the next one that finds its runs free. The study
knows nothing of processes, so it needs no heartbeats, which only databases have.

Points are drawn while this process has the folder of the sweep to itself.
"""

import contextlib
import itertools
import json
import math
import secrets
import statistics
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, QMCSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from bert_jax.config.fields import FIELDS
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.folder_lock import Claim
from bert_jax.runtime.hashing import digest
from bert_jax.tools.sweep.database import open_database, shown_url
from bert_jax.tools.sweep.folder import Sweep, score_of
from bert_jax.tools.sweep.members import Member, Settings
from bert_jax.tools.sweep.pruning import is_behind, make_pruner, means_by_place
from bert_jax.tools.sweep.search import Axis, Choices, Range, Search

JOURNAL = 'study.journal'
_READERS = 16  # requests to a bucket at a time
_LOOK_SECONDS = 0.05  # between two looks at the lock of the folder
_STARTUP_TRIALS = 10  # which TPE draws at random; of a short search a third
_WAITING = TrialState.WAITING
_RUNNING = TrialState.RUNNING
# Fields in which points may differ that share a compiled step.
_STEP_ARGUMENTS = tuple(path for path, field in FIELDS.items() if field.step_argument)


class SweepStudy:
    """The study of a sweep.

    Attributes:
      optuna: the study itself.
    """

    def __init__(self, sweep: Sweep):
        """Opens the study of an opened sweep, and enqueues the points that it does not have.

        Raises:
          InputError: the journal or the database cannot be read.
          Unavailable: the database does not answer.
        """
        self._sweep = sweep
        self._space = _space_of(sweep)
        self._distributions = {
            field: _distribution(axis) for field, axis in self._space.items()}
        num_points = sweep.num_runs if sweep.search is None else sweep.search.trials
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with self._alone():
            name = self._name()
            try:
                self._storage = _open_storage(sweep)
                self.optuna = optuna.create_study(
                    storage=self._storage, study_name=name, sampler=RandomSampler(),
                    pruner=make_pruner(sweep.prune, num_points), direction='maximize',
                    load_if_exists=True)
            except InputError:
                raise  # of the database, which says what to do
            except (ValueError, KeyError, AssertionError) as error:
                damaged = str(sweep.path / JOURNAL)
                if sweep.storage:
                    damaged = f'the study {name} in {shown_url(sweep.storage)}'
                raise InputError(
                    f'{damaged} cannot be read ({error!r:.100}): delete it, and the study is made '
                    'anew from the runs') from None
            self._enqueue_half_drawn()
            self._enqueue_missing()

    def ask(self) -> Settings | None:
        """The next point, which this process or any other may train from now on; None: no more."""
        with self._alone():
            self._enqueue_half_drawn()
            waiting = self._trials(_WAITING)
            if not waiting:
                return None
            if self._sweep.search is not None:
                # A function of the trial's number, also if another process draws the next one.
                self.optuna.sampler = _Rounding(
                    _sampler(self._sweep.search, waiting[0].number), self._space)
            trial = self.optuna.ask(self._distributions)
            point = self._settings(trial.params)
            names = [member.name for member in self._sweep.runs_of(point)]
            trial.set_user_attr('runs', names)
            return point

    def settle(self) -> None:
        """Tells the study of points whose runs have ended, in whatever process."""
        for trial in self._trials(_RUNNING):
            if self._is_drawn(trial):
                self._tell_if_ended(trial.number, self._runs_of(trial))

    def _tell_if_ended(self, number: int, members: Sequence[Member]) -> None:
        results = []
        pruned: dict[str, Any] = {}
        has_failed = False
        for member in members:
            result = self._sweep.result(member)
            pruned = self._sweep.pruned(member) or pruned
            if result is not None:
                results.append(result)
            elif self._sweep.failed(member):
                has_failed = True
            elif not pruned:
                return
        scores = [score_of(result) for result in results]
        defined = [score for score in scores if score is not None and math.isfinite(score)]
        # Another process may have told it meanwhile.
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            for ended in [*results, pruned][:1]:
                self._report_evaluations(number, members, ended.get('metric', ''))
            if pruned:
                self.optuna.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
            elif has_failed or not defined:
                self.optuna.tell(number, state=TrialState.FAIL, skip_if_finished=True)
            else:
                self.optuna.tell(number, statistics.fmean(defined), skip_if_finished=True)

    def _report_evaluations(self, number: int, members: Iterable[Member], metric: str) -> None:
        """Tells the study of a trial's evaluations that it does not have."""
        runs = [list(self._sweep.evaluations(member, metric).values()) for member in members]
        known = self._trial(number).intermediate_values
        for place, value in means_by_place(runs).items():
            if known.get(place) != value:
                self._storage.set_trial_intermediate_value(self._trial_id(number), place, value)

    def why_pruned(
        self, member: Member, metric: str, scores: Sequence[float | None]
    ) -> str:
        """Why a run that is being trained is to end early; '' if it is not.

        Args:
          member: the run.
          metric: that is compared, 'eval/...'.
          scores: its evaluations, of which the last has just come.
        """
        trial = self._running(member)
        if trial is None:
            return ''
        others = [other for other in self._runs_of(trial) if other != member]
        runs = [list(self._sweep.evaluations(other, metric).values()) for other in others]
        values = means_by_place([scores, *runs])
        place = len(scores)
        if place not in values:
            return ''
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            self._storage.set_trial_intermediate_value(
                self._trial_id(trial.number), place, values[place])
        so_far = {at: value for at, value in values.items() if at <= place}
        if not is_behind(self.optuna, trial, so_far):
            return ''
        num_seeds = 1 + sum(len(run) >= place for run in runs)
        of_seeds = f' (the mean of {num_seeds} seeds)' if num_seeds > 1 else ''
        best = self.optuna.best_trial.intermediate_values.get(place)
        of_best = '' if best is None else f', where the best point had {best:.4f}'
        return (f'evaluation {place} gives {metric} {values[place]:.4f}{of_seeds}{of_best}: '
                f'pruned by --prune={self._sweep.prune}')

    def _running(self, member: Member) -> FrozenTrial | None:
        """The trial that a run is trained for; None if another process has told its end."""
        for trial in self._trials(_RUNNING):
            if self._is_drawn(trial) and member in self._runs_of(trial):
                return trial
        return None

    def _trial(self, number: int) -> FrozenTrial:
        return self._storage.get_trial(self._trial_id(number))

    def _trial_id(self, number: int) -> int:
        study = self._storage.get_study_id_from_name(self.optuna.study_name)
        return self._storage.get_trial_id_from_study_id_trial_number(study, number)

    def begun(self) -> list[Member]:
        """The runs of points that have been asked for and that have not ended."""
        found: dict[Member, None] = {}
        for trial in self._trials(_RUNNING):
            if self._is_drawn(trial):
                found |= dict.fromkeys(self._runs_of(trial))
        return [member for member in found if not self._sweep.has_ended(member)]

    def is_over(self) -> bool:
        """Whether all points have ended."""
        self.settle()
        return not self._trials(_WAITING, _RUNNING)

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self.optuna.get_trials(deepcopy=False, states=states or None)

    def _is_drawn(self, trial: FrozenTrial) -> bool:
        """Whether a trial has all its values; if not, a process is drawing them, or has died."""
        return len(trial.params) == len(self._space)

    def _settings(self, params: Mapping[str, Any]) -> Settings:
        """The values of a trial as they are written on the command line."""
        return tuple(
            (field, _text(axis, params[field])) for field, axis in self._space.items())

    def _runs_of(self, trial: FrozenTrial) -> list[Member]:
        return self._sweep.runs_of(self._settings(trial.params))

    def _name(self) -> str:
        """The name of the study: points of another space are another study in the same storage."""
        space = {field: axis._asdict() for field, axis in self._space.items()}
        name = f'sweep-{digest(json.dumps(space).encode())[:12]}'
        return f'{name}-{self._sweep.token()}' if self._sweep.storage else name

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the lock on the folder of the sweep, for a moment."""
        claim = Claim(self._sweep.path)
        while not claim.attempt():
            time.sleep(_LOOK_SECONDS)
        try:
            yield
        finally:
            claim.release()

    def _enqueue(self, params: Mapping[str, Any]) -> None:
        self.optuna.enqueue_trial(dict(params))

    def _enqueue_half_drawn(self) -> None:
        """Enqueues again what a process was drawing when it died."""
        for trial in self._trials(_RUNNING):
            if not self._is_drawn(trial):
                self.optuna.tell(trial.number, state=TrialState.FAIL)
                self._enqueue(trial.system_attrs.get('fixed_params', {}))

    def _enqueue_missing(self) -> None:
        """Enqueues the points that the study does not have, and those that must be run again."""
        known = set()  # that are waiting or begun, or have ended
        blank = 0  # still to be drawn
        ended = []
        for trial in self._trials():
            params = trial.params
            if trial.state is _WAITING:
                params = trial.system_attrs.get('fixed_params', {})
            if len(params) < len(self._space):
                blank += trial.state is not TrialState.FAIL
            elif trial.state.is_finished():
                ended.append(params)
            else:
                known.add(self._settings(params))
        for params in ended:
            point = self._settings(params)
            has_ended = all(map(self._sweep.has_ended, self._sweep.runs_of(point)))
            if not has_ended and point not in known:
                # It failed before this process began, or somebody has deleted its result.
                self._enqueue(params)
            known.add(point)
        num_drawn = blank + len(known)
        for point in self._points():
            if point not in known:
                self._enqueue(self._params(point))
                num_drawn += 1
        if self._sweep.search is not None:
            for _ in range(self._sweep.search.trials - num_drawn):
                self._enqueue({})

    def _params(self, point: Settings) -> dict[str, Any]:
        """The values of a point as the study has them."""
        return {field: _value(self._space[field], text) for field, text in point}

    def _points(self) -> list[Settings]:
        """The points of the grid, or those of a search that have a run folder.

        Those that share a compiled step follow one another.
        """
        by_program: dict[Settings, list[Settings]] = {}
        for point in dict.fromkeys(member.without('seed') for member in self._sweep.members):
            by_program.setdefault(Member(point).without(*_STEP_ARGUMENTS), []).append(point)
        return [point for points in by_program.values() for point in points]


def _space_of(sweep: Sweep) -> dict[str, Axis]:
    """The values that each field is drawn from; the seeds are no field of a point."""
    if sweep.search is not None:
        return dict(sweep.search.space)
    values: dict[str, dict[str, None]] = {}
    for member in sweep.grid:
        for field, value in member.without('seed'):
            values.setdefault(field, {})[value] = None
    return {field: Choices(tuple(texts)) for field, texts in values.items()}


def _distribution(axis: Axis) -> BaseDistribution:
    if isinstance(axis, Choices):
        return CategoricalDistribution(axis.values)
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _text(axis: Axis, value: Any) -> str:
    """A value of a trial as it is written on the command line."""
    return axis.text(value) if isinstance(axis, Range) else str(value)


def _value(axis: Axis, text: str) -> Any:
    """A value of a trial that is written on the command line as `text`."""
    if isinstance(axis, Choices):
        return text
    return int(text) if axis.whole else float(text)


def _sampler(search: Search, seed: int) -> BaseSampler:
    if search.sampler == 'random':
        return RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', optuna.exceptions.ExperimentalWarning)
        if search.sampler == 'qmc':
            return QMCSampler(
                seed=seed, independent_sampler=RandomSampler(seed=seed),
                warn_independent_sampling=False)
        return TPESampler(
            seed=seed, n_startup_trials=min(_STARTUP_TRIALS, search.trials // 3))


class _Rounding(BaseSampler):
    """A sampler whose numbers are those that settings and the names of folders have."""

    def __init__(self, sampler: BaseSampler, space: Mapping[str, Axis]):
        self._sampler = sampler
        self._space = space

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        drawn = self._sampler.sample_relative(study, trial, search_space)
        return {field: self._rounded(field, value) for field, value in drawn.items()}

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        drawn = self._sampler.sample_independent(study, trial, param_name, param_distribution)
        return self._rounded(param_name, drawn)

    def _rounded(self, field: str, value: Any) -> Any:
        axis = self._space[field]
        return axis.rounded(value) if isinstance(axis, Range) else value


def _open_storage(sweep: Sweep) -> BaseStorage:
    """The database of a sweep, or its journal.

    The journal is a file, or in a bucket, which cannot append, a folder of files. So the hosts of a
    slice share a study through the bucket that their runs are in: no host serves it to the others,
    and none is missed.
    """
    if sweep.storage:
        return open_database(sweep.storage)
    if files.in_bucket(sweep.path):
        return JournalStorage(_JournalOfFiles(sweep.path / JOURNAL))
    return JournalStorage(JournalFileBackend(str(sweep.path / JOURNAL)))


class _JournalOfFiles(BaseJournalBackend):
    """A journal with a file for each entry, made exclusively, in a place that cannot append."""

    def __init__(self, folder: files.Path):
        self._folder = folder
        self._entries: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Entries from a number on."""
        self._read_new()
        return [entry['log'] for entry in self._entries[log_number_from:]]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Adds entries, after those that other processes have added meanwhile."""
        for log in logs:
            entry = {'token': secrets.token_hex(8), 'log': log}
            while True:
                self._read_new()
                if entry in self._entries:  # only the reply was lost
                    break
                if files.write_new(self._path(len(self._entries)), json.dumps(entry)):
                    self._entries.append(entry)
                    break

    def _read_new(self) -> None:
        """Reads the entries that were added since the last time; they have no gaps."""
        if not self._entries:  # perhaps thousands: not one after another
            names = {path.name for path in files.children(self._folder)}
            numbers = itertools.takewhile(
                lambda number: self._path(number).name in names, itertools.count())
            with ThreadPoolExecutor(_READERS) as readers:
                contents = readers.map(files.read_bytes, map(self._path, numbers))
                self._entries = list(map(json.loads, contents))
        while self._path(len(self._entries)).exists():
            content = files.read_bytes(self._path(len(self._entries)))
            self._entries.append(json.loads(content))

    def _path(self, number: int) -> files.Path:
        return self._folder / f'{number:08}.json'
