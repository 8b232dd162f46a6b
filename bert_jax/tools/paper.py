"""Runs a table of the paper: pre-trains, fine-tunes, picks on dev, shows ours beside the paper's.

    python -m bert_jax.tools.paper 5 --scale=tiny --data=DATA
    python -m bert_jax.tools.paper 1 --scale=paper --data=DATA --weights base=bert-base-uncased \\
        --weights 24/1024/16=bert-large-uncased
    python -m bert_jax.tools.paper 8 --scale=tiny --list
    python -m bert_jax.tools.paper mine --rows=mine.py:one,mine.py:two --data=DATA --seeds=3

TABLE is 1 (GLUE), 2 and 3 (SQuAD 1.1 and 2.0), 4 (SWAG), 5 to 8, c1 (figure 5, appendix C.1); or,
not in the paper, efficient (recipes with half the FLOPs) or loo (one of five ingredients left out).
DATA is the folder that holds glue/, squad/, swag/ and conll2003/, laid out as the files in configs/
describe. Pre-training is configs/ablations.py:NAME. At the tiny scale, the model and the text are
small enough for two cores, as are efficient and loo at the larger scales between and mini.

--rows=FILE:NAME,FILE:NAME makes a table of your own: each row is a pre-training config, taken as it
is (ablations.py:base,tiny is one), and is compared with the first; TABLE then names its files.

--pretrain FIELD=VALUE sets a field of every pre-training, --finetune [TASK:]FIELD=VALUE a field of
every fine-tuning, or only of one task's:

    ... --pretrain data.source='wiki/*.txt.gz' --pretrain data.vocab_file=vocab.txt \\
        --pretrain model.name=mini --pretrain train.steps=50000 \\
        --finetune sst2:train.steps='3 epochs' --finetune sst2:optimizer.learning_rate=3e-4,1e-4

Every part is a sweep (tools.sweep) in WORKDIR/parts, named after a digest of its config, so that
tables share parts, and more --seeds or another table only add to them. The same command resumes
where it stopped. Several machines may run it on one folder; a part that starts from another
machine's part waits for it. The table's .md and .json are rewritten after each part, its .png is
drawn at the end.

--chips=1 starts a process for every chip of this machine; each of them claims runs. A pre-training
runs in a single process here: for a slice of several hosts, pre-train with bert_jax.main and pass
--weights NAME=RUN. --list prints the config of each part; tools.preflight estimates what a
pre-training at the paper's scale costs.

Exit status: 0 the table is complete, 1 a part failed, 2 bad input, 143 stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import itertools
import json
import os
import re
import shlex
import statistics
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config import ConfigDict, model_sizes
from bert_jax.config.command_line import Parser, at_least, config_file, load_config
from bert_jax.config.fields import FIELDS, PRETRAINING, WITHOUT_A_SAY, flat_fields
from bert_jax.config.phases import phases
from bert_jax.runtime.errors import InputError, nearest, tell
from bert_jax.runtime.files import Path, as_path, digest, open_folder, open_whole, write_whole
from bert_jax.runtime.process import error_boundary
from bert_jax.runtime.provenance import hardware, versions
from bert_jax.tasks.glue import GLUE_TASKS
from bert_jax.tasks.pretrain import run_flops
from bert_jax.tools import sweep as sweeps
from bert_jax.tools.preflight import without_data
from bert_jax.tools.sweep import Member, Sweep, grid_members, member_config
from bert_jax.train.workdirs import read_run_fields
from bert_jax.validation import complete
from bert_jax.weights import load_weights

Cell = dict[str, Any]


class Task(NamedTuple):
    """The fine-tuning of a downstream task in the tables.

    Attributes:
      config: file in configs/, with its argument.
      folder: of its data, within --data.
      grid: settings to search at the paper's scale (sections 4 and 5.3, appendix A.3); those with
        the best dev score count.
      tiny: further settings at the small scales.
    """

    config: str
    folder: str
    grid: Sequence[str] = ()
    tiny: Sequence[str] = ()


class Column(NamedTuple):
    """A column of a table: a metric of each row.

    Attributes:
      title: its heading.
      metric: its key in the run's result.
      task: one of TASKS; '' for pre-training itself.
    """

    title: str
    metric: str
    task: str = ''


class Row(NamedTuple):
    """A model of a table.

    Attributes:
      title: its heading.
      pretraining: NAME in configs/ablations.py, or FILE.py:NAME.
      figures: the paper's, by column.
      dev: published dev set figures, where `figures` are test set figures; ours are of dev sets.
      tiny: NAME at the small scales if it differs; 'none': the row is left out there.
      finetuning: settings of its downstream runs.
      share: fraction of the pre-training steps after which it is fine-tuned.
      scratch: whether it is fine-tuned from random parameters.
      only: the columns that it has; empty: all.
    """

    title: str
    pretraining: str
    figures: Mapping[str, float] = {}
    dev: Mapping[str, float] = {}
    tiny: str = ''
    finetuning: Sequence[str] = ()
    share: float = 1.0
    scratch: bool = False
    only: Sequence[str] = ()


class Table(NamedTuple):
    """A table or figure of the paper.

    Attributes:
      name: on the command line.
      title: its heading.
      columns: at the paper's scale.
      tiny: columns at the small scales: data that is quick to train on.
      rows: from top to bottom.
      restarts: number of the paper's seeds of each fine-tuning.
      mean: whether it also has the mean of its downstream columns.
      note: a paragraph below the table.
      own: whether its rows are configs that the user names, not the paper's.
    """

    name: str
    title: str
    columns: Sequence[str]
    tiny: Sequence[str]
    rows: Sequence[Row]
    restarts: int = 1
    mean: bool = False
    note: str = ''
    own: bool = False


with open(os.path.join(os.path.dirname(__file__), 'paper.toml'), 'rb') as _file:
    _DATA = tomllib.load(_file)
TASKS = {name: Task(**fields) for name, fields in _DATA['tasks'].items()}
COLUMNS = {name: Column(**fields) for name, fields in _DATA['columns'].items()}
TABLES = {
    name: Table(name, **fields | {
        'rows': [Row(title, **row) for title, row in fields['rows'].items()]})
    for name, fields in _DATA['tables'].items()}
_RATE = 'optimizer.learning_rate='
# At the small scales, the grid of every task that has one. 3e-4 is the highest rate that
# google-research/bert names for its miniatures. The smallest model's taggers do better at 1e-3, and
# far worse at 1e-4.
_GRIDS = {'tiny': '1e-3,3e-4', 'between': '1e-3,3e-4,1e-4', 'mini': '3e-4,1e-4'}
# Fields that do not change the result of a run.
_BESIDE = (*WITHOUT_A_SAY, 'seed', 'model.name', 'mesh.')
# Fields added after parts were made, with the value that fits those. They are left out of the
# digest at that value, and where the task does not read them, so that the old parts are found.
_LATER = {'optimizer.average': 0, 'optimizer.frozen': '', 'debug': False,
          'data.split_long_sentences': False, 'data.strip_accents': None}
_SLOTS, _EARLIER_SLOTS = 'data.max_predictions_per_seq', 20  # the default when parts were made
# Figure 5 fine-tunes intermediate checkpoints of Base, which has several names, and of LTR.
_KEEPS_STEPS = ('base', 'ltr', '12/768/12', '2/128/2')


class Part(NamedTuple):
    """A sweep of a table: one pre-training over its seeds, or one fine-tuning over its grid.

    Attributes:
      title: for messages.
      sweep: the sweep, with its members.
      resolved: the config of its members, without the settings in which they differ.
      before: (part, member) of the pre-training that it starts from, or None.
    """

    title: str
    sweep: Sweep
    resolved: ConfigDict
    before: tuple[Part, Member] | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A table with the settings of the command line: its rows, parts and cells.

    Attributes:
      table: of TABLES.
      scale: 'paper', or one of _GRIDS.
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
        return self.only or (self.table.tiny if self.small else self.table.columns)

    @property
    def rows(self) -> list[Row]:
        """The rows at the chosen scale; a title names the model if it is not the paper's."""
        if not self.small:
            return list(self.table.rows)
        return [row._replace(title=f'{row.title} (here {row.tiny})', pretraining=row.tiny)
                if row.tiny else row for row in self.table.rows if row.tiny != 'none']

    def parts(self) -> list[Part]:
        """All parts, each once, in an order in which they can run.

        They go row by row, so that the first rows of the table are complete early.
        """
        result: dict[str, Part] = {}
        for row in self.rows:
            parts = [] if row.pretraining in self.weights else [self.pretraining(row.pretraining)]
            for column in self.columns:
                parts += self.parts_of(row, column)
            for part in parts:
                result.setdefault(part.sweep.path.name, part)
        return list(result.values())

    def parts_of(self, row: Row, column: str) -> list[Part]:
        """The parts that a row's figure in a column comes from; empty if it has none there.

        For a fine-tuning, one for each pre-training seed, or one if it has no pre-training here.
        """
        task, given = COLUMNS[column].task, row.pretraining in self.weights
        if row.only and column not in row.only:
            return []
        if task:
            seeds = 1 if row.scratch or given else self.seeds
            return [self.finetuning(row, task, seed) for seed in range(seeds)]
        has_none = row.scratch or given or row.share != 1
        return [] if has_none else [self.pretraining(row.pretraining)]

    def pretraining(self, name: str) -> Part:
        """The pre-training NAME in configs/ablations.py, or FILE.py:NAME; a user's own as it is."""
        settings = *self.pretrain, f'train.keep_checkpoints={10 if name in _KEEPS_STEPS else 2}'
        scale = f',{self.scale}' if self.small else ''
        config = name if self.table.own else (
            ('' if '.py:' in name else 'ablations.py:') + name + scale)
        return self._part(
            f'pre-training {name}', config, settings, grid_members([], self.seeds), sys.maxsize)

    def finetuning(self, row: Row, task: str, seed: int) -> Part:
        """The fine-tuning of a row on one of TASKS, from its pre-training with the given seed."""
        what, given = TASKS[task], self.weights.get(row.pretraining)
        pretrained = self.pretraining(row.pretraining)
        member = pretrained.sweep.members[seed]
        start = given or str(pretrained.sweep.run(member))
        settings = [f'data.source={self.data}/{what.folder}']
        if row.scratch:  # the same model and vocabulary, with random parameters
            sizes = model_sizes(pretrained.resolved)
            model: Mapping[str, Any] = {**pretrained.resolved.model, **sizes}
            vocab_file: object = f'{start}/vocab.txt'
            if given:
                model, vocab_file = _described(given)
            settings += [f'model.{name}={model[name]}' for name in (*sizes, 'initializer_range')]
            settings += [f'data.vocab_file={vocab_file}', 'init_checkpoint=']
        elif row.share == 1:
            settings.append(f'init_checkpoint={start}')
        elif given:
            raise InputError(
                f'--weights {row.pretraining}=...: the row {row.title!r} needs its pre-training')
        else:
            steps = sum(phase['steps'] for phase in phases(pretrained.resolved))
            settings.append(f'init_checkpoint={start}/checkpoints/{round(steps * row.share)}')
        settings += [*(what.tiny if self.small else ()), *row.finetuning]
        given_here = [setting for of, setting in map(_split, self.finetune) if of in ('', task)]
        rates = [setting for setting in given_here if setting.startswith(_RATE)]
        settings += [setting for setting in given_here if setting not in rates]
        grid = rates[-1:] or (
            [_RATE + _GRIDS[self.scale]] if what.grid and self.small else what.grid)
        restarts = self.restarts or self.table.restarts
        if row.scratch:
            restarts *= self.seeds  # it has no pre-training seeds
        part = self._part(f'{task} from {row.title}, seed {seed}', what.config, settings,
                          grid_members(grid, restarts), 1)
        return part if given else part._replace(before=(pretrained, member))

    def _part(
        self, title: str, config: str, settings: Iterable[str], members: Sequence[Member], keep: int
    ) -> Part:
        file, overrides = config_file(config), tuple(f'--config.{one}' for one in settings)
        resolved, name = _resolved(file, overrides, self.root)
        return Part(
            title, Sweep(self.root / 'parts' / name, file, overrides, members, keep), resolved)

    def cell(self, row: Row, column: str) -> Cell | None:
        """A row's figure in a column; None if it has none there.

        It is of the settings with the best mean of the task's first metric on the dev set. They are
        the same for all columns of a task, so that a row's figures are of the same models. Only
        settings with the most finished runs compete: losing the worst seed makes none better.

        Returns:
          `paper` (its figure, or None), `dev` (a published figure of the dev set, or None),
          `parts`; `guessing`, if known. With finished runs also the `mean` of all runs with the
          chosen settings, their `deviation`, the number of `runs`, their `values`, `seeds` (of each
          run's pre-training, or without one, of its fine-tuning) and `settings`.
        """
        what = COLUMNS[column]
        parts = self.parts_of(row, column)
        if not parts:
            return None
        cell: Cell = {'paper': row.figures.get(column), 'dev': row.dev.get(column),
                      'parts': [part.sweep.path.name for part in parts]}
        # Perplexity is not a fraction, and SQuAD's scores are percentages already.
        scale = 1 if not what.task or what.task.startswith('squad') else 100
        guessing = f"guessing.{what.metric.removeprefix('eval/')}"
        groups: dict[Any, list[tuple[float, float, int]]] = {}
        for number, part in enumerate(parts):
            for member in part.sweep.members:
                # The last evaluation, not the best: runs are compared after equally many epochs.
                result = part.sweep.result(member) or {'metric': ''}
                # If pre-training masks in another way, the metric under BERT's masking.
                first, ours = (next((result[key] for key in (
                    name.replace('eval/', 'last/'), name.replace('eval/', 'eval/standard_'), name
                ) if key in result), None) for name in (result['metric'], what.metric))
                if first is not None and ours is not None:
                    of_the_run = row.scratch or not what.task
                    seed = int(dict(member.settings)['seed']) if of_the_run else number
                    groups.setdefault(member.without('seed'), []).append((first, ours, seed))
                    run = part.sweep.run(member)
                    if 'guessing' not in cell and (run / 'config.json').exists():
                        known = read_run_fields(run).get(guessing)
                        cell['guessing'] = None if known is None else scale * known
        if not groups:
            return cell
        most = max(map(len, groups.values()))
        settings, runs = max(
            ((settings, runs) for settings, runs in groups.items() if len(runs) == most),
            key=lambda item: statistics.fmean(first for first, *_ in item[1]))
        values = [scale * ours for _, ours, _ in runs]
        return cell | sweeps.summary(values) | {
            'values': values, 'seeds': [seed for *_, seed in runs], 'settings': dict(settings)}

    def flops(self, row: Row) -> float | None:
        """FLOPs of a row's pre-training, 0 if it has none.

        None if weights are given, only a part of the steps counts, or the config does not
        determine the FLOPs.
        """
        if row.pretraining in self.weights or (row.share != 1 and not row.scratch):
            return None
        try:
            return 0.0 if row.scratch else run_flops(
                without_data(self.pretraining(row.pretraining).resolved))
        except InputError:  # its vocabulary is missing, or its steps depend on the data
            return None


def _split(setting: str) -> tuple[str, str]:
    """Splits a --finetune into (task or '', FIELD=VALUE)."""
    task, colon, rest = setting.partition(':')
    return (task, rest) if colon and '=' not in task else ('', setting)


@functools.cache
def _described(given: str) -> tuple[Mapping[str, Any], str]:
    """(Model fields, vocabulary file) of weights that the user gives."""
    weights = load_weights(given)
    if weights.vocab_file is None:
        raise InputError(f'--weights ...={given} has no vocabulary: put its vocab.txt there')
    return weights.model, str(weights.vocab_file)


@functools.cache
def _resolved(file: str, overrides: tuple[str, ...], root: Path) -> tuple[ConfigDict, str]:
    """(The config of a part, its folder's name); cached, as tables look it up after every part.

    The name has a digest of the fields that the result depends on, so that tables share parts; in
    it, paths below `root` are relative to that, so that the directory may be moved.
    """
    resolved = member_config(file, overrides, Member(()))
    values = flat_fields(json.loads(resolved.to_json_best_effort()))
    if not resolved.init_checkpoint:
        whole = complete(resolved)
        values |= {f'model.{name}': whole.model[name] for name in whole.model}
        values |= {f'model.{name}': x for name, x in model_sizes(whole).items()}
    stated = resolved.phases and all('max_predictions_per_seq' in x for x in resolved.phases)
    if stated or resolved.task not in FIELDS[_SLOTS].read_by:  # then the field has no say
        values[_SLOTS] = values[_SLOTS] or _EARLIER_SLOTS
    if resolved.task not in PRETRAINING:  # no task of the tables holds rows out of its training set
        values['data.held_out'] = FIELDS['data.held_out'].default
    values = {name: x for name, x in values.items() if not name.startswith(_BESIDE) and not (
        name in _LATER
        and (x == _LATER[name] or resolved.task not in (FIELDS[name].read_by or (resolved.task,))))}
    for name in ('init_checkpoint', 'data.vocab_file'):
        values[name] = str(values[name]).removeprefix(f'{root}/')
    known = json.dumps(values, sort_keys=True)
    return resolved, f'{resolved.task}-{digest(known.encode())[:12]}'


def _by_seed(cell: Cell) -> dict[int, float]:
    """The mean of a cell's runs, by seed."""
    runs = list(zip(cell.get('seeds', ()), cell.get('values', ()), strict=True))
    return {seed: statistics.fmean(value for of, value in runs if of == seed)
            for seed in sorted({of for of, _ in runs})}


def mean_of_columns(columns: Iterable[Mapping[str, Cell]]) -> dict[str, Cell]:
    """The mean over columns of each row, with a value for each seed that all columns have."""
    result: dict[str, Cell] = {}
    columns = list(columns)
    for row in dict.fromkeys(itertools.chain(*columns)):
        by_seed = [_by_seed(column.get(row, {})) for column in columns]
        seeds = sorted(set.intersection(*map(set, by_seed)))
        values = [statistics.fmean(means[seed] for means in by_seed) for seed in seeds]
        result[row] = {'paper': None, 'dev': None}
        if values:
            result[row] |= sweeps.summary(values) | {'values': values, 'seeds': seeds}
    return result


def differences(cells: Mapping[str, Cell]) -> dict[str, list[float]]:
    """Each row's difference from the first, and the ends of its interval.

    Samples are the means by seed of pre-training. The intervals, of Tukey's honestly significant
    difference, hold for all rows together at 95 %. They pool the deviation, which the two seeds of
    one row estimate too badly. Rows with a single seed are left out; if the first is one of them,
    there are no differences.
    """
    from scipy import stats

    runs = {row: values for row, cell in cells.items()
            if len(values := list(_by_seed(cell).values())) > 1}
    if len(runs) < 2 or (rows := list(runs))[0] != next(iter(cells)):
        return {}
    with np.errstate(all='ignore'):  # where no row has a deviation, there is no interval
        test = stats.tukey_hsd(*runs.values())  # statistic: differences of means
        bounds = test.confidence_interval()
    found = {row: [float(x[i, 0]) for x in (test.statistic, bounds.low, bounds.high)]
             for i, row in enumerate(rows) if i}
    return {row: ours for row, ours in found.items() if ours[1] < ours[2]}


def is_guessing(column: Column, cells: Iterable[Cell]) -> bool:
    """Whether no row is better than guessing by more than three standard errors.

    The errors follow from the deviation pooled over rows. With single seeds: whether no row is
    better at all.
    """
    ours = [cell for cell in cells if cell.get('guessing') is not None]
    squares = [cell['deviation'] ** 2 for cell in ours if cell['deviation'] is not None]
    margin = 1e-6 + 3 * (statistics.fmean(squares) if squares else 0.0) ** 0.5
    sign = -1 if column.metric.endswith('perplexity') else 1
    return bool(ours) and all(
        sign * (cell['mean'] - cell['guessing']) <= margin / len(_by_seed(cell)) ** 0.5
        for cell in ours)


def write_table(plan: Plan, failed: Mapping[str, str], whole: bool) -> tuple[str, bool]:
    """Writes a table's files into `plan.root`, from the runs so far.

    Args:
      plan: of the table.
      failed: reasons by title, for parts that could not be run.
      whole: whether to also compute differences and draw the picture.

    Returns:
      (The Markdown, whether every cell has a figure of ours).
    """
    table, rows, columns, parts = plan.table, plan.rows, plan.columns, plan.parts()
    cells = {column: {row.title: cell for row in rows
                      if (cell := plan.cell(row, column)) is not None} for column in columns}
    titles = {column: {'title': COLUMNS[column].title, 'metric': COLUMNS[column].metric}
              for column in columns}
    downstream = [cells[one] for one in columns if COLUMNS[one].task]
    if table.mean and len(downstream) > 1:
        titles['mean'] = {'title': 'mean'}
        cells['mean'] = mean_of_columns(downstream)
    runs = [(part.sweep, member) for part in parts for member in part.sweep.members]
    finished = [(sweep, member) for sweep, member in runs if sweep.result(member)]
    record = {
        'table': table.name, 'title': table.title, 'scale': plan.scale,
        'source': '' if table.own else 'Devlin et al. (2018), arXiv 1810.04805v2',
        'date': datetime.date.today().isoformat(), 'hardware': hardware(),
        'versions': versions(), 'seeds': plan.seeds, 'restarts': plan.restarts or table.restarts,
        'hours': sum(sweep.seconds(member) for sweep, member in finished) / 3600,
        'settings': {'pretrain': plan.pretrain, 'finetune': plan.finetune,
                     'weights': dict(plan.weights)},
        'runs': {'finished': len(finished), 'all': len(runs)},
        'columns': titles, 'rows': [row.title for row in rows], 'cells': cells,
        'flops': {row.title: plan.flops(row) for row in rows},
        # Only at the end: for sixteen rows they take seconds.
        'differences': {
            column: differences(of_rows) if whole and rows[0].title in of_rows else {}
            for column, of_rows in cells.items()},
        'guessing': {column: guesses[0] for column in cells
                     if (guesses := [guess for cell in cells[column].values()
                                     if (guess := cell.get('guessing')) is not None])},
        'is_guessing': [one for one in columns if is_guessing(COLUMNS[one], cells[one].values())],
        'parts': {part.sweep.path.name: part.title for part in parts},
        'failed': dict(failed), 'note': table.note,
    }
    text = _markdown(record)
    write_whole(f'{_stem(plan)}.json', json.dumps(record, indent=1) + '\n')
    write_whole(f'{_stem(plan)}.md', text)
    if whole:
        with open_whole(f'{_stem(plan)}.png') as file:
            _draw(file, record)
    return text, all('mean' in cell for result in cells.values() for cell in result.values())


def _stem(plan: Plan) -> str:
    """The path of a table's files, without their suffix."""
    name = plan.table.name
    kind = 'table_' if plan.table.own else 'table' if name.isdigit() else 'figure_'
    return f'{plan.root}/{kind}{name}'


def _markdown(record: dict[str, Any]) -> str:
    columns, published = record['columns'], record['source']
    headings = [column['title'] for column in columns.values()]
    lines = [
        f"# {record['title']}, {record['scale']} scale", '',
        *sweeps.markdown(['', 'FLOPs', *headings], [
            *([row, f'{flops:.1e}' if flops else '',
               *(_text(record['cells'][name].get(row)) for name in columns)]
              for row, flops in record['flops'].items()),
            ['by guessing', '', *(f"{record['guessing'][name]:.2f}" if name in record['guessing']
                                  else '' for name in columns)]]),
        '', 'FLOPs: of one pre-training. Ours: mean and standard deviation over n runs, at the '
            'last evaluation, with the settings of the row and task whose first metric is best on '
            'the dev set' + ("; in brackets the paper's." if published else '.')]
    if published and record['scale'] != 'paper':
        lines.append("A tiny model does not reach the paper's figures; compare the order of rows.")
    if guessed := [columns[name]['title'] for name in record['is_guessing']]:
        whole = guessed == [title for title in headings if title != 'mean']
        what = 'this table' if whole else ', '.join(guessed)
        lines += ['', f'**Inconclusive: {what}. No row is better than guessing (the most '
                      'frequent label, words by frequency) beyond chance.**']
    if any(record['differences'].values()):
        lines += [
            '', f"Differences to {record['rows'][0]}, with intervals that hold together for a "
                "column at 95 % (Tukey's HSD over seeds); bold: beyond chance.", '',
            *sweeps.markdown(['', *headings], [
                [row, *(_difference(record, name, row) for name in columns)]
                for row in record['rows'][1:]])]
    lines += ['', record['note']] if record['note'] else []
    runs, settings = record['runs'], record['settings']
    known = ', '.join(map(' '.join, record['versions'].items()))
    lines += ['', f"{record['date']}; {record['hardware']}; {known}; {record['seeds']} seeds of "
                  f"pre-training, {record['restarts']} of fine-tuning; {runs['finished']} of "
                  f"{runs['all']} runs, {record['hours']:.2f} hours."]
    given = [f'`--{flag} {one}`' for flag in ('pretrain', 'finetune') for one in settings[flag]]
    given += [f'`--weights {name}={path}`' for name, path in settings['weights'].items()]
    if given:
        lines.append(f"Settings: {', '.join(given)}.")
    lines += [f'Failed: {title}: {why}' for title, why in record['failed'].items()]
    return '\n'.join(lines) + '\n'


def _text(cell: Cell | None) -> str:
    if cell is None:
        return ''
    dev = '' if cell['dev'] is None else f"; dev {cell['dev']:g}"
    paper = '' if cell['paper'] is None else f" ({cell['paper']:g}{dev})"
    if 'mean' not in cell:
        return f'–{paper}'
    deviation = '' if cell['deviation'] is None else f" ± {cell['deviation']:.2f}"
    return f"{cell['mean']:.2f}{deviation} n={cell['runs']}{paper}"


def _difference(record: dict[str, Any], column: str, row: str) -> str:
    """A row's difference from the first, with its interval, and the paper's."""
    if row not in record['differences'][column]:
        return ''
    value, low, high = record['differences'][column][row]
    paper, first = (record['cells'][column][one]['paper'] for one in (row, record['rows'][0]))
    published = '' if None in (paper, first) else f'; paper {paper - first:+.2f}'
    bold = '**' if low > 0 or high < 0 else ''
    return f'{bold}{value:+.2f} ({low:+.2f} to {high:+.2f}{published}){bold}'


def _draw(file: Any, record: dict[str, Any]) -> None:
    """Draws a panel for each column: differences from the first row.

    Ours have intervals; the paper's stand beside them.
    """
    from matplotlib.figure import Figure

    columns, rows = record['columns'], record['rows']
    figure = Figure(figsize=(2.5 + 2.6 * len(columns), 1.2 + 0.35 * len(rows)))
    axes = figure.subplots(1, len(columns), squeeze=False, sharey=True)
    for axis, (name, column) in zip(axes.flat, columns.items(), strict=True):
        first = record['cells'][name].get(rows[0], {})
        for row, cell in record['cells'][name].items():
            place = -rows.index(row)
            for figures, style in (('paper', 'C1D'), ('mean', 'C0o')):
                if None not in (value := cell.get(figures), base := first.get(figures)):
                    axis.plot(value - base, place, style, markersize=5)
            _, *interval = record['differences'][name].get(row, [0])
            axis.plot(interval, [place] * len(interval), 'C0|-')
        if name in record['guessing'] and 'mean' in first:
            axis.axvline(record['guessing'][name] - first['mean'], color='gray', linestyle=':')
        axis.axvline(0, color='gray', linewidth=0.8)
        axis.set_title(column['title'], fontsize=10)
        axis.tick_params(labelsize=7)  # larger labels would overlap
        axis.grid(alpha=0.3)
    axes[0, 0].set_yticks([-i for i in range(len(rows))], rows, fontsize=8)
    figure.suptitle(f"{record['title']}: differences to {rows[0]}, ours (blue) with intervals"
                    + (", the paper's (orange)" if record['source'] else '')
                    + '; dotted: guessing', fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=110, format='png')


def run_parts(
    plan: Plan, parts: Sequence[Part], failed: dict[str, str], should_stop: Callable[[int], bool]
) -> bool:
    """Runs unfinished parts and writes the table as they finish; False: a stop was requested.

    A part that another machine works on delays only those that start from it. If a part cannot be
    run, `failed` receives the reason by its title, and the others go on.
    """
    begun: set[str] = set()
    while True:
        waiting = False  # whether to wait for other machines
        for number, part in enumerate(parts, 1):
            sweep, left = part.sweep, len(part.sweep.unfinished())
            if not left or part.title in failed:
                continue
            if part.before is not None and part.before[0].sweep.result(part.before[1]) is None:
                before, member = part.before
                if before.title in failed or before.sweep.failed(member):
                    failed[part.title] = f'{before.title} failed'
                waiting |= part.title not in failed
                continue
            try:
                if part.title not in begun:
                    begun.add(part.title)
                    print(f'[{number}/{len(parts)}] {time.strftime("%H:%M")} {part.title}: {left} '
                          f'runs in {sweep.path}', flush=True)
                    sweep.open(sweep.path.name, [])
                if not sweeps.work(sweep, should_stop):
                    return False
            except InputError as error:
                failed[part.title] = str(error)
                tell(f'error: {part.title}: {error}')
                continue
            waiting |= bool(sweep.unfinished())
            if len(sweep.unfinished()) < left:
                write_table(plan, failed, whole=False)
        if not waiting:
            return True
        if should_stop(0):
            return False
        time.sleep(sweeps.WAIT_SECONDS)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, Plan]:
    parser = Parser('python -m bert_jax.tools.paper', __doc__)
    parser.add_argument('table', metavar='TABLE', nargs='?', default='',
                        help=f"one of {', '.join(TABLES)}; with --rows a name for your own")
    parser.add_argument('--rows', default='', metavar='FILE:NAME,FILE:NAME',
                        help='configs of pre-training, the rows of your own table')
    parser.add_argument('--scale', choices=(*_GRIDS, 'paper'), default='tiny')
    parser.add_argument('--data', default='.', help='folder of glue/, squad/, swag/, conll2003/')
    parser.add_argument('--workdir', help='default: runs/paper-SCALE')
    parser.add_argument('--pretrain', action='append', default=[], metavar='FIELD=VALUE')
    parser.add_argument('--finetune', action='append', default=[], metavar='[TASK:]FIELD=VALUE')
    parser.add_argument('--weights', action='append', default=[], metavar='NAME=PATH',
                        help='weights that replace pre-training NAME')
    parser.add_argument('--seeds', type=at_least(1),
                        help='of pre-training (default 2; 1 at --scale=paper)')
    parser.add_argument('--restarts', type=at_least(0), default=0,
                        help="seeds of fine-tuning; default: 1, at the paper's scale its own")
    parser.add_argument('--columns', default='', help=f'some of {",".join(COLUMNS)}')
    parser.add_argument('--chips', type=at_least(0), default=0,
                        help='chips of a process, one for each such group (default: one has all)')
    parser.add_argument('--worker', type=int, help=argparse.SUPPRESS)  # number of a process
    parser.add_argument('--list', action='store_true', help='only print what would be run')
    given = parser.parse_args(argv)
    for flag in ('pretrain', 'finetune', 'weights'):
        for text in getattr(given, flag):
            if '=' not in text:
                raise InputError(f'--{flag} {text}: write NAME=VALUE')
    tiny = given.scale != 'paper'
    if not given.rows and given.table not in TABLES:
        raise InputError(f'TABLE {given.table!r}: {nearest(given.table, TABLES)}; or give your own '
                         'rows, --rows=FILE:NAME,FILE:NAME')
    table = _own_table(given.table or 'own', given.rows) if given.rows else TABLES[given.table]
    plan = Plan(
        table, given.scale, as_path(given.workdir or f'runs/paper-{given.scale}'),
        str(as_path(given.data)), given.pretrain, given.finetune,
        dict(text.split('=', 1) for text in given.weights),
        seeds=1 + tiny if given.seeds is None else given.seeds,
        restarts=given.restarts or int(tiny), only=list(filter(None, given.columns.split(','))))
    names = sorted({row.pretraining for row in plan.rows})
    for what, asked, known in (
        ('--columns', plan.only, list(COLUMNS)),
        ('--finetune', {_split(text)[0] for text in given.finetune} - {''}, list(TASKS)),
        (f'table {table.name} at the scale {given.scale}: --weights', plan.weights, names),
    ):
        for name in asked:
            if name not in known:
                raise InputError(f'{what}={name} is unknown: {nearest(name, known)}')
    for name in names if table.own else ():
        if (task := load_config(config_file(name)).task) != 'pretrain':
            raise InputError(f'--rows={name} is a config of {task}: a row is a pre-training')
    return given, plan


def _own_table(name: str, rows: str) -> Table:
    """The table of --rows: a row per config, and the first one's model without pre-training."""
    # A piece with neither .py nor : belongs to the one before it, as in ablations.py:base,tiny.
    configs = re.split(r',(?=[^,]*(?:\.py|:))', rows)
    return Table(
        name, f'Table {name}', **_DATA['own'], rows=[
            *(Row(config, config) for config in configs),
            Row('not pre-trained', configs[0], scratch=True)])


def main(argv: Sequence[str]) -> int:
    """Runs the command (see the top of this file) and returns its exit status."""
    with error_boundary():
        given, plan = _parse(argv)
        parts = plan.parts()
        left = {part.title: len(part.sweep.unfinished()) for part in parts}
        if given.list:
            for part in parts:
                sweep = part.sweep
                print(f'{part.title}: {left[part.title]} of {len(sweep.members)} runs left, '
                      f'{sweep.path}\n    '
                      + shlex.join([f'--config={sweep.config}', *sweep.overrides]))
            print(f'{sum(left.values())} of {sum(len(part.sweep.members) for part in parts)} runs '
                  f'left in {len(parts)} parts')
            return 0
        for part in parts:  # else missing data would be noticed after hours of pre-training
            folder, task = as_path(part.resolved.data.source), part.resolved.task
            if task in GLUE_TASKS:
                folder /= GLUE_TASKS[task].folder
            is_ours = str(part.resolved.data.source).startswith(f'{plan.data}/')  # within --data
            if task != 'pretrain' and left[part.title] and is_ours and not folder.exists():
                raise InputError(f'--data={plan.data}: {folder} does not exist')
        open_folder(plan.root, '--workdir', lambda folder: (folder / 'parts').is_dir())
        (plan.root / 'parts').mkdir(exist_ok=True)
        failed: dict[str, str] = {}  # by the part's title
        status = sweeps.run_workers('bert_jax.tools.paper', argv, given.worker, given.chips,
                                    functools.partial(run_parts, plan, parts, failed))
        if status or given.worker is not None:
            return status
        for part in parts:  # they may have failed on another machine
            if any(map(part.sweep.failed, part.sweep.members)):
                failed.setdefault(part.title, f'see log.txt in {part.sweep.path}/runs')
        text, is_whole = write_table(plan, failed, whole=True)
        print(f'{text}\nwritten: {_stem(plan)}.md, .json and .png', flush=True)
        return 0 if is_whole and not failed else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
