"""What the rows of a table come to: the settings and evaluations that count, means, orders."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.tasks.pretrain import run_flops
from bert_jax.tools.paper_parts import Options, Part, finetuning, pretraining, seeds_of
from bert_jax.tools.paper_tables import COLUMNS, Column, Row, Table
from bert_jax.tools.preflight import without_data
from bert_jax.tools.sweep_folder import Folder, Settings
from bert_jax.tools.sweep_grid import Member

Cell = dict[str, Any]


def cell_of(row: Row, column: str, table: Table, options: Options) -> Cell | None:
    """A row's figure in a column; None where it has none there.

    Returns:
      `paper` (its figure, or None), `dev` (what ours is judged by, or None) and `parts`; if a run
      is there, the `mean` of all runs with the settings that count, their `deviation`, how many
      `runs`, their `values`, `seeds` (of the pre-training of each; of fine-tuning where there is
      none), `settings`, and whether it `passes`.
    """
    what = COLUMNS[column]
    if row.only and column not in row.only:
        return None
    if not what.task:
        part = pretraining(row, options)
        whole = part is not None and not row.scratch and row.share == 1
        parts = [part] if part is not None and whole else []
    else:
        parts = [finetuning(row, what.task, seed, table, options)
                 for seed in seeds_of(row, options)]
    if not parts:
        return None
    paper = row.figures.get(column)
    dev = paper if row.dev is None else row.dev.get(column)
    cell: Cell = {'paper': paper, 'dev': dev, 'parts': [part.path.name for part in parts]}
    found = _chosen(parts, what, by_part=bool(what.task) and not row.scratch)
    if found is None:
        return cell
    settings, values, seeds = found
    if not what.lower and not what.task.startswith('squad'):  # whose scores are per cent already
        values = [100 * value for value in values]
    mean = statistics.fmean(values)
    short = None if dev is None else (mean - dev if what.lower else dev - mean)
    return cell | {
        'mean': mean, 'deviation': statistics.stdev(values) if len(values) > 1 else None,
        'runs': len(values), 'values': values, 'seeds': seeds, 'settings': dict(settings),
        'passes': None if short is None or options.tiny else short <= what.band,
    }


def _chosen(
    parts: list[Part], what: Column, by_part: bool
) -> tuple[Settings, list[float], list[int]] | None:
    """The settings that are best on the dev set, the metric of all runs with them, their seeds.

    One choice for a row and task, whatever the columns: by the mean of the task's first metric, so
    that a row's figures are of the same models. Settings are compared where all runs are there: one
    that lost its worst seed is no better. A seed is that of the pre-training, which is the part's
    number, or else a run's own.
    """
    groups: dict[Settings, list[tuple[float, float, int]]] = {}
    for number, part in enumerate(parts):
        for member in part.members:
            if (found := _evaluation(part.folder, member, what)) is not None:
                seed = number if by_part else int(dict(member.settings)['seed'])
                groups.setdefault(member.without('seed'), []).append((*found, seed))
    if not groups:
        return None
    most = max(map(len, groups.values()))
    best = max((settings for settings, runs in groups.items() if len(runs) == most),
               key=lambda settings: statistics.fmean(by for by, *_ in groups[settings]))
    _, values, seeds = zip(*groups[best])
    return best, list(values), list(seeds)


def _evaluation(folder: Folder, member: Member, what: Column) -> tuple[float, float] | None:
    """(The task's first metric, the column's) of a run's last evaluation; None without one.

    The last and not the best, so that all runs of a task are compared after as many epochs. A
    column that is the better the lower (perplexity) has no settings to choose from.
    """
    result = folder.result(member)
    if result is None:
        return None
    of_last = {name: value for name, value in result.items() if name.startswith('eval/')} | {
        f'eval/{name.removeprefix("last/")}': value for name, value in result.items()
        if name.startswith('last/')}
    by = result['metric']
    if what.metric not in of_last or by not in of_last:  # test sets have one only where they are
        return None
    return of_last[by], of_last[what.metric]


def mean_of_columns(columns: Iterable[Mapping[str, Cell]]) -> dict[str, Cell]:
    """The mean of columns by row, a value for each seed that all of them have."""
    found: dict[str, Cell] = {}
    columns = list(columns)
    for row in dict.fromkeys(itertools.chain(*columns)):
        by_seed = [_by_seed(column[row]) for column in columns if 'values' in column.get(row, {})]
        seeds = set.intersection(*map(set, by_seed)) if len(by_seed) == len(columns) else set()
        runs = [statistics.fmean(values[seed] for values in by_seed) for seed in sorted(seeds)]
        found[row] = {'paper': None}
        if runs:
            found[row] |= {
                'mean': statistics.fmean(runs), 'values': runs, 'runs': len(runs), 'passes': None,
                'deviation': statistics.stdev(runs) if len(runs) > 1 else None,
            }
    return found


def _by_seed(cell: Cell) -> dict[int, float]:
    """The mean of a cell's runs of each seed."""
    return {seed: statistics.fmean(
        value for value, of in zip(cell['values'], cell['seeds'], strict=True) if of == seed)
        for seed in sorted(set(cell['seeds']))}


def order_of_rows(cells: Mapping[str, Cell]) -> dict[str, Any] | None:
    """How often two rows stand as in the paper; pairs that chance may have ordered are undecided.

    A run is a seed of pre-training. Two rows differ by Student's t with the deviation of all rows
    together (of one row's two seeds it would be a matter of luck) and its degrees of freedom, at
    5 % over all pairs of the column by Holm's correction.

    Returns:
      Counts `same`, `opposite`, `undecided`, and `pairs_opposite`; None where there are no pairs,
      or no row has two runs that would say how far they lie apart.
    """
    ours = {row: list(_by_seed(cell).values()) for row, cell in cells.items() if 'values' in cell}
    several = [values for values in ours.values() if len(values) > 1]
    known = {row: cells[row]['paper'] for row in ours if cells[row]['paper'] is not None}
    pairs = [(a, b) for a, b in itertools.combinations(known, 2) if known[a] != known[b]]
    if not several or not pairs:
        return None
    freedom = sum(len(values) - 1 for values in several)
    variance = sum((len(x) - 1) * statistics.variance(x) for x in several) / freedom
    chances = [chance_of_difference(
        statistics.fmean(ours[a]) - statistics.fmean(ours[b]), variance, freedom,
        len(ours[a]), len(ours[b])) for a, b in pairs]
    count = {'same': 0, 'opposite': 0, 'undecided': 0}
    opposite = []
    for (a, b), differ in zip(pairs, beyond_chance(chances), strict=True):
        found = statistics.fmean(ours[a]) - statistics.fmean(ours[b])
        kind = 'undecided' if not differ else (
            'same' if found * (known[a] - known[b]) > 0 else 'opposite')
        count[kind] += 1
        if kind == 'opposite':
            opposite.append(f'{a} / {b}')
    return count | {'pairs_opposite': opposite}


def chance_of_difference(
    difference: float, variance: float, freedom: int, num_a: int, num_b: int
) -> float:
    """Two-sided p of a difference of two means by Student's t.

    Args:
      difference: of the means.
      variance: of one run, pooled.
      freedom: degrees of freedom that the variance has.
      num_a, num_b: runs that each mean is of.
    """
    from scipy import stats

    error = math.sqrt(variance * (1 / num_a + 1 / num_b))
    if not error:
        return float(difference == 0)
    return float(2 * stats.t.sf(abs(difference) / error, freedom))


def beyond_chance(chances: Sequence[float], level: float = 0.05) -> list[bool]:
    """Which of several comparisons differ, by Holm's step-down correction (Holm, 1979).

    Args:
      chances: p of each.
      level: share of families with a false difference among them, at most.
    """
    order = sorted(range(len(chances)), key=chances.__getitem__)
    found = [False] * len(chances)
    for rank, i in enumerate(order):
        if chances[i] > level / (len(chances) - rank):
            break
        found[i] = True
    return found


def pretraining_flops(row: Row, options: Options) -> float | None:
    """Of the row's pre-training, 0 without; None where it is given or in part, or none can tell."""
    part = pretraining(row, options)
    if part is None or row.scratch or row.share != 1:
        return 0.0 if row.scratch else None
    try:
        return run_flops(without_data(part.resolved))
    except InputError:  # of its vocabulary, or of steps that depend on the data
        return None
