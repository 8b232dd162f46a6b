"""The parts of a table: the sweeps of runs that its figures come from."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_jax.config import ConfigDict, model_sizes
from bert_jax.config.command_line import config_file
from bert_jax.config.phases import phases
from bert_jax.corpus.trainers import name_in_run
from bert_jax.foreign import load_weights
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.tasks.opening import open_task
from bert_jax.tools.paper.part_names import part_name
from bert_jax.tools.paper.tables import COLUMNS, TASKS, Row, Table
from bert_jax.tools.preflight.measure import without_data
from bert_jax.tools.sweep.folder import Sweep
from bert_jax.tools.sweep.members import Member, grid_members, member_config

_RATE = 'optimizer.learning_rate='
# At the small scales, the learning rates of every task that has a grid. 3e-4 is the highest rate
# that google-research/bert names for its miniatures. The smallest model's taggers do better at
# 1e-3, and far worse at 1e-4.
SMALL_SCALE_RATES = {'tiny': '1e-3,3e-4', 'between': '1e-3,3e-4,1e-4', 'mini': '3e-4,1e-4'}
# Figure 5 fine-tunes intermediate checkpoints of Base, which has several names, and of LTR.
_FINE_TUNED_MIDWAY = ('base', 'ltr', '12/768/12', '2/128/2')


@dataclasses.dataclass(frozen=True)
class Part:
    """A sweep of a table: one pre-training over its seeds, or one fine-tuning over its grid.

    Attributes:
      title: for messages.
      sweep: the sweep, with its members.
      resolved: the config of its members, without the settings in which they differ.
      start: the pre-training that a fine-tuning starts from, or None.
    """

    title: str
    sweep: Sweep
    resolved: ConfigDict
    start: PretrainingRun | None = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.sweep.path.name


@dataclasses.dataclass(frozen=True)
class PretrainingRun:
    """One seed of a pre-training.

    Attributes:
      part: the pre-training.
      member: the seed, a member of its sweep.
    """

    part: Part
    member: Member

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.part.sweep.run(self.member)

    def is_finished(self) -> bool:
        return self.part.sweep.result(self.member) is not None

    def has_failed(self) -> bool:
        return self.part.sweep.failed(self.member)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A table with the settings of the command line: its rows and its parts.

    Attributes:
      table: the table.
      scale: 'paper', or one of SMALL_SCALE_RATES.
      root: the directory of the tables, with all parts in `parts/`.
      data: folder of the downstream tasks' folders.
      pretrain, finetune: settings 'FIELD=VALUE'; for fine-tuning also 'TASK:FIELD=VALUE'.
      weights: weights that replace pre-training, by NAME in configs/ablations.py.
      seeds: number of pre-training seeds.
      restarts: number of seeds of each fine-tuning; 0: the table's.
      only: keys of COLUMNS; empty: the table's.
    """

    table: Table
    scale: str
    root: Path
    data: str
    pretrain: Sequence[str] = ()
    finetune: Sequence[str] = ()
    weights: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seeds: int = 1
    restarts: int = 0
    only: Sequence[str] = ()

    @property
    def small(self) -> bool:
        """Whether the scale is one of those for two cores."""
        return self.scale != 'paper'

    @property
    def columns(self) -> Sequence[str]:
        """Keys of COLUMNS."""
        if self.only:
            return self.only
        if self.small:
            return self.table.tiny
        return self.table.columns

    @property
    def rows(self) -> list[Row]:
        """The rows at the chosen scale; a title names the model if it is not the paper's."""
        if not self.small:
            return list(self.table.rows)
        return [_at_small_scale(row) for row in self.table.rows if row.tiny != 'none']

    def parts(self) -> list[Part]:
        """All parts, each once, in an order in which they can run.

        They go row by row, so that the first rows of the table are complete early.
        """
        by_name: dict[str, Part] = {}
        for row in self.rows:
            for part in self._parts_of_row(row):
                by_name.setdefault(part.name, part)
        return list(by_name.values())

    def _parts_of_row(self, row: Row) -> Iterator[Part]:
        if row.pretraining not in self.weights:
            yield self.pretraining(row.pretraining)
        for column in self.columns:
            yield from self.parts_of(row, column)

    def parts_of(self, row: Row, column: str) -> list[Part]:
        """The parts that a row's figure in a column comes from; empty if it has none there.

        For a fine-tuning, one for each pre-training seed, or one if it has no pre-training here.
        """
        if row.only and column not in row.only:
            return []
        has_pretraining = not row.scratch and row.pretraining not in self.weights
        task = COLUMNS[column].task
        if task:
            num_seeds = 1
            if has_pretraining:
                num_seeds = self.seeds
            return [self.finetuning(row, task, seed) for seed in range(num_seeds)]
        if has_pretraining and row.share == 1:
            return [self.pretraining(row.pretraining)]
        return []

    def pretraining(self, name: str) -> Part:
        """The pre-training NAME in configs/ablations.py, or FILE.py:NAME; a user's own as it is."""
        num_kept = 2
        if name in _FINE_TUNED_MIDWAY:
            num_kept = 10
        return self._part(
            title=f'pre-training {name}',
            config=self._pretraining_config(name),
            settings=[*self.pretrain, f'train.keep_checkpoints={num_kept}'],
            members=grid_members([], self.seeds),
            keep=sys.maxsize)

    def _pretraining_config(self, name: str) -> str:
        if self.table.own:
            return name
        config = name
        if '.py:' not in name:
            config = f'ablations.py:{name}'
        if self.small:
            config += f',{self.scale}'
        return config

    def finetuning(self, row: Row, task: str, seed: int) -> Part:
        """The fine-tuning of a row on one of TASKS, from its pre-training with the given seed."""
        start: PretrainingRun | None = None
        if row.scratch or row.pretraining not in self.weights:
            pretraining = self.pretraining(row.pretraining)
            start = PretrainingRun(pretraining, pretraining.sweep.members[seed])
        rates: list[str] = []
        others: list[str] = []
        for setting in self._settings_for(task):
            if setting.startswith(_RATE):
                rates.append(setting)
            else:
                others.append(setting)
        of_scale: Sequence[str] = ()
        if self.small:
            of_scale = TASKS[task].tiny
        part = self._part(
            title=f'{task} from {row.title}, seed {seed}',
            config=TASKS[task].config,
            settings=[
                *self._data_settings(task),
                *self._start_settings(row, start),
                *of_scale,
                *row.finetuning,
                *others],
            members=grid_members(self._grid(task, rates), self._num_restarts(row)),
            keep=1)
        if row.pretraining in self.weights:
            return part
        return dataclasses.replace(part, start=start)

    def _data_settings(self, task: str) -> list[str]:
        if not self.data:
            return []
        return [f'data.source={self.data}/{TASKS[task].folder}']

    def _start_settings(self, row: Row, start: PretrainingRun | None) -> list[str]:
        """The settings that say which parameters the fine-tuning of a row starts from."""
        given = self.weights.get(row.pretraining)
        if start is None:
            if row.share == 1:
                return [f'init_checkpoint={given}']
            raise InputError(
                f'--weights {row.pretraining}=...: the row {row.title!r} needs its pre-training')
        if row.scratch:
            return _random_parameters(start, given)
        if row.share == 1:
            return [f'init_checkpoint={start.path}']
        steps = sum(phase['steps'] for phase in phases(start.part.resolved))
        return [f'init_checkpoint={start.path}/checkpoints/{round(steps * row.share)}']

    def _settings_for(self, task: str) -> list[str]:
        """The settings of --finetune that a task has."""
        settings: list[str] = []
        for text in self.finetune:
            of_task, setting = split_setting(text)
            if of_task in ('', task):
                settings.append(setting)
        return settings

    def _grid(self, task: str, rates: Sequence[str]) -> Sequence[str]:
        """The grid of a fine-tuning; the last of the `rates` of --finetune replaces it."""
        if rates:
            return rates[-1:]
        if TASKS[task].grid and self.small:
            return [_RATE + SMALL_SCALE_RATES[self.scale]]
        return TASKS[task].grid

    def _num_restarts(self, row: Row) -> int:
        restarts = self.restarts or self.table.restarts
        if row.scratch:
            restarts *= self.seeds  # it has no pre-training seeds
        return restarts

    def _part(
        self, title: str, config: str, settings: Iterable[str], members: Sequence[Member], keep: int
    ) -> Part:
        file = config_file(config)
        overrides = tuple(f'--config.{setting}' for setting in settings)
        resolved, name = _resolve(file, overrides, self.root)
        sweep = Sweep(self.root / 'parts' / name, file, overrides, members, keep)
        return Part(title, sweep, resolved)

    def flops(self, row: Row) -> float | None:
        """FLOPs of a row's pre-training, 0 if it has none.

        None if weights are given, only a part of the steps counts, or the config does not
        determine the FLOPs.
        """
        if row.pretraining in self.weights:
            return None
        if row.scratch:
            return 0.0
        if row.share != 1:
            return None
        try:
            task: Any = open_task(
                without_data(self.pretraining(row.pretraining).resolved), None)
            return float(task.run_flops())
        except InputError:  # its vocabulary is missing, or its steps depend on the data
            return None


def split_setting(text: str) -> tuple[str, str]:
    """Splits a --finetune into (task or '', FIELD=VALUE)."""
    task, colon, setting = text.partition(':')
    if colon and '=' not in task:
        return task, setting
    return '', text


def _at_small_scale(row: Row) -> Row:
    if not row.tiny:
        return row
    return dataclasses.replace(
        row, title=f'{row.title} (here {row.tiny})', pretraining=row.tiny)


def _random_parameters(start: PretrainingRun, given: str | None) -> list[str]:
    """Settings for the model and the vocabulary of a pre-training, with random parameters.

    Args:
      start: the pre-training.
      given: weights that take its place, if any.
    """
    resolved = start.part.resolved
    sizes = model_sizes(resolved)
    if given:
        model, vocab_file = _model_of_weights(given)
    else:
        model = {**resolved.model, **sizes}
        data = resolved.data
        vocab_file = f'{start.path}/{name_in_run(data.vocab_file, data.tokenizer)}'
    settings = [f'model.{name}={model[name]}' for name in (*sizes, 'initializer_range')]
    return [*settings, f'data.vocab_file={vocab_file}', 'init_checkpoint=']


@functools.cache
def _model_of_weights(given: str) -> tuple[Mapping[str, Any], str]:
    """(Model fields, vocabulary file) of weights that the user gives."""
    weights = load_weights(given)
    if weights.vocab_file is None:
        raise InputError(f'--weights ...={given} has no vocabulary: put its file there')
    return weights.model, str(weights.vocab_file)


@functools.cache
def _resolve(file: str, overrides: tuple[str, ...], root: Path) -> tuple[ConfigDict, str]:
    """(The config of a part, its folder's name); cached, as tables look it up after every part."""
    resolved = member_config(file, overrides, Member(()))
    return resolved, part_name(resolved, root)
