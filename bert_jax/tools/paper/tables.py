"""The tables: their columns, their rows and the paper's figures, from tables.toml."""

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Task:
    """The fine-tuning of a downstream task in the tables.

    Attributes:
      config: file in configs/, with its argument.
      folder: the folder of its data, within --data.
      grid: settings to search at the paper's scale (sections 4 and 5.3, appendix A.3); those with
        the best dev score count.
      tiny: further settings at the small scales.
    """

    config: str
    folder: str
    grid: Sequence[str] = ()
    tiny: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: a metric of each row.

    Attributes:
      title: its heading.
      metric: its key in the run's result.
      task: one of TASKS; '' for pre-training itself.
    """

    title: str
    metric: str
    task: str = ''


@dataclasses.dataclass(frozen=True)
class Row:
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
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    dev: Mapping[str, float] = dataclasses.field(default_factory=dict)
    tiny: str = ''
    finetuning: Sequence[str] = ()
    share: float = 1.0
    scratch: bool = False
    only: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Table:
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
      of_models: whether its rows are weights that the user names.
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
    of_models: bool = False


def _read_definitions() -> dict[str, Any]:
    path = os.path.join(os.path.dirname(__file__), 'tables.toml')
    with open(path, 'rb') as file:
        return tomllib.load(file)


def _paper_table(name: str, fields: Mapping[str, Any]) -> Table:
    """A table of the paper, from its fields in tables.toml."""
    others = dict(fields)
    rows: list[Row] = []
    for title, row in others.pop('rows').items():
        rows.append(Row(title, **row))
    return Table(name, rows=rows, **others)


def own_table(name: str, configs: str) -> Table:
    """A table of the user's own configs.

    Args:
      name: of the table.
      configs: comma-separated pre-training configs, as FILE:NAME; each is a row. The last row is
        the first config's model without pre-training.
    """
    # A piece with neither .py nor : belongs to the one before it, as in ablations.py:base,tiny.
    names = re.split(r',(?=[^,]*(?:\.py|:))', configs)
    rows = [Row(config, config) for config in names]
    rows.append(Row('not pre-trained', names[0], scratch=True))
    return Table(name, f'Table {name}', rows=rows, **_DEFINITIONS['own'])


_DEFINITIONS = _read_definitions()
TASKS = {name: Task(**fields) for name, fields in _DEFINITIONS['tasks'].items()}
COLUMNS = {name: Column(**fields) for name, fields in _DEFINITIONS['columns'].items()}
TABLES = {name: _paper_table(name, fields) for name, fields in _DEFINITIONS['tables'].items()}
