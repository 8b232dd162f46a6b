"""The content of a table's .json, from the runs so far."""

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.runtime.provenance import hardware, versions
from bert_jax.tools.paper.cells import (
    Cell,
    differences,
    is_guessing,
    make_cell,
    mean_of_columns,
)
from bert_jax.tools.paper.plan import Part, Plan
from bert_jax.tools.paper.tables import COLUMNS


@dataclasses.dataclass(frozen=True)
class Record:
    """A table with its figures; the fields of the JSON, in their order.

    Attributes:
      table: its name on the command line.
      title: its heading.
      scale: 'paper', or a small scale.
      source: of the figures beside ours; '' for a table of the user's own.
      date: of this record, as 2018-10-11.
      hardware: of this machine.
      versions: of this program and the packages that compute, by name.
      seeds: number of pre-training seeds.
      restarts: number of seeds of each fine-tuning.
      hours: of all finished runs together.
      settings: those of --pretrain and --finetune, and the paths of --weights.
      runs: numbers of runs, `finished` and `all`.
      columns: `title` and `metric` of each column.
      rows: titles.
      cells: by column, then by row.
      flops: of one pre-training, by row; None if not known.
      differences: by column, then by row: the difference from the first row and its interval.
      guessing: the score of guessing, by column.
      is_guessing: the columns in which no row is better than guessing.
      parts: title of each part, by folder.
      failed: reasons, by the title of the part.
      note: a paragraph below the table.
    """

    table: str
    title: str
    scale: str
    source: str
    date: str
    hardware: str
    versions: Mapping[str, str]
    seeds: int
    restarts: int
    hours: float
    settings: Mapping[str, Any]
    runs: Mapping[str, int]
    columns: Mapping[str, Mapping[str, str]]
    rows: Sequence[str]
    cells: Mapping[str, Mapping[str, Cell]]
    flops: Mapping[str, float | None]
    differences: Mapping[str, Mapping[str, Sequence[float]]]
    guessing: Mapping[str, float]
    is_guessing: Sequence[str]
    parts: Mapping[str, str]
    failed: Mapping[str, str]
    note: str

    @property
    def is_complete(self) -> bool:
        """Whether every cell has a figure of ours."""
        for column in self.cells.values():
            for cell in column.values():
                if 'mean' not in cell:
                    return False
        return True


def make_record(plan: Plan, failed: Mapping[str, str], whole: bool) -> Record:
    """The record of a table, from its runs so far.

    Args:
      plan: of the table.
      failed: reasons by title, for parts that could not be run.
      whole: whether to compute differences; for sixteen rows they take seconds.
    """
    table = plan.table
    parts = plan.parts()
    rows = plan.rows
    cells = _cells(plan)
    seconds = _seconds_of_finished_runs(parts)
    table_differences: Mapping[str, Mapping[str, Sequence[float]]] = dict.fromkeys(cells, {})
    if whole:
        table_differences = _differences(cells, rows[0].title)
    num_runs = sum(len(part.sweep.members) for part in parts)
    source = 'Devlin et al. (2018), arXiv 1810.04805v2'
    if table.own or table.of_models:
        source = ''
    return Record(
        table=table.name,
        title=table.title,
        scale=plan.scale,
        source=source,
        date=datetime.date.today().isoformat(),
        hardware=hardware(),
        versions=versions(),
        seeds=plan.seeds,
        restarts=plan.restarts or table.restarts,
        hours=sum(seconds) / 3600,
        settings={
            'pretrain': plan.pretrain,
            'finetune': plan.finetune,
            'weights': dict(plan.weights)},
        runs={'finished': len(seconds), 'all': num_runs},
        columns={column: _column_heading(column) for column in cells},
        rows=[row.title for row in rows],
        cells=cells,
        flops={row.title: plan.flops(row) for row in rows},
        differences=table_differences,
        guessing=_scores_of_guessing(cells),
        is_guessing=_inconclusive_columns(plan, cells),
        parts={part.name: part.title for part in parts},
        failed=dict(failed),
        note=table.note)


def _cells(plan: Plan) -> dict[str, dict[str, Cell]]:
    """The cells by column and row; with a column `mean` of the tasks, if the table has one."""
    cells = {column: _cells_of_column(plan, column) for column in plan.columns}
    if plan.table.mean:
        cells |= _mean_of_tasks(cells)
    return cells


def _mean_of_tasks(cells: Mapping[str, Mapping[str, Cell]]) -> dict[str, dict[str, Cell]]:
    """The column `mean`, in which each task counts once; none for a single column."""
    by_task: dict[str, list[Mapping[str, Cell]]] = {}
    for column, of_column in cells.items():
        if COLUMNS[column].task:
            by_task.setdefault(COLUMNS[column].task, []).append(of_column)
    if sum(map(len, by_task.values())) < 2:
        return {}
    return {'mean': mean_of_columns(map(mean_of_columns, by_task.values()))}


def _cells_of_column(plan: Plan, column: str) -> dict[str, Cell]:
    """The cells of the rows that have a column, by title."""
    cells = {}
    for row in plan.rows:
        cell = make_cell(plan, row, column)
        if cell is not None:
            cells[row.title] = cell
    return cells


def _column_heading(column: str) -> dict[str, str]:
    """The title of a column, and its metric if it has one."""
    if column == 'mean':
        return {'title': 'mean'}
    return {'title': COLUMNS[column].title, 'metric': COLUMNS[column].metric}


def _seconds_of_finished_runs(parts: Iterable[Part]) -> list[float]:
    """The seconds that each finished run took."""
    seconds = []
    for part in parts:
        for member in part.sweep.members:
            if part.sweep.result(member):
                seconds.append(part.sweep.seconds(member))
    return seconds


def _differences(
    cells: Mapping[str, Mapping[str, Cell]], first_row: str
) -> dict[str, Mapping[str, Sequence[float]]]:
    """The differences from the first row of the table, in the columns that it has."""
    result: dict[str, Mapping[str, Sequence[float]]] = {}
    for column, cells_by_row in cells.items():
        result[column] = {}
        if first_row in cells_by_row:
            result[column] = differences(cells_by_row)
    return result


def _scores_of_guessing(cells: Mapping[str, Mapping[str, Cell]]) -> dict[str, float]:
    """The score of guessing of each column of which it is known."""
    scores: dict[str, float] = {}
    for column, cells_by_row in cells.items():
        for cell in cells_by_row.values():
            score = cell.get('guessing')
            if score is not None:
                scores.setdefault(column, score)
    return scores


def _inconclusive_columns(plan: Plan, cells: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    """The columns in which no row is better than guessing."""
    inconclusive: list[str] = []
    for column in plan.columns:
        if is_guessing(COLUMNS[column], cells[column].values()):
            inconclusive.append(column)
    return inconclusive
