"""The paper's tables from finished runs: cells, statistics, pages, figures."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import open_whole, write_whole
from bert_jax.tasks.pretrain import run_flops
from bert_jax.tools.paper_tables import (
    COLUMNS,
    TABLES,
    Column,
    Options,
    Part,
    Row,
    Table,
    columns_of,
    finetuning,
    parts_of,
    pretraining,
    rows_of,
    seeds_of,
    stem_of,
)
from bert_jax.tools.preflight import without_data
from bert_jax.tools.sweep import Folder, Member, Settings
from bert_jax.train.experiment import versions

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
    result = _chosen(parts, what, by_part=bool(what.task) and not row.scratch)
    if result is None:
        return cell
    settings, values, seeds = result
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
            if (result := _evaluation(part.folder, member, what)) is not None:
                seed = number if by_part else int(dict(member.settings)['seed'])
                groups.setdefault(member.without('seed'), []).append((*result, seed))
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
    result: dict[str, Cell] = {}
    columns = list(columns)
    for row in dict.fromkeys(itertools.chain(*columns)):
        by_seed = [_by_seed(column[row]) for column in columns if 'values' in column.get(row, {})]
        seeds = set.intersection(*map(set, by_seed)) if len(by_seed) == len(columns) else set()
        runs = [statistics.fmean(values[seed] for values in by_seed) for seed in sorted(seeds)]
        result[row] = {'paper': None}
        if runs:
            result[row] |= {
                'mean': statistics.fmean(runs), 'values': runs, 'runs': len(runs), 'passes': None,
                'deviation': statistics.stdev(runs) if len(runs) > 1 else None,
            }
    return result


def _by_seed(cell: Cell) -> dict[int, float]:
    """The mean of a cell's runs of each seed."""
    return {seed: statistics.fmean(
        value for value, of in zip(cell['values'], cell['seeds'], strict=True) if of == seed)
        for seed in sorted(set(cell['seeds']))}


def order_of_rows(cells: Mapping[str, Cell]) -> dict[str, Any] | None:
    """Counts pairs of rows in the paper's order; those that chance may have ordered are undecided.

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
        result = statistics.fmean(ours[a]) - statistics.fmean(ours[b])
        kind = 'undecided' if not differ else (
            'same' if result * (known[a] - known[b]) > 0 else 'opposite')
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
    result = [False] * len(chances)
    for rank, i in enumerate(order):
        if chances[i] > level / (len(chances) - rank):
            break
        result[i] = True
    return result


def pretraining_flops(row: Row, options: Options) -> float | None:
    """Of the row's pre-training, 0 without; None where it is given or in part, or none can tell."""
    part = pretraining(row, options)
    if part is None or row.scratch or row.share != 1:
        return 0.0 if row.scratch else None
    try:
        return run_flops(without_data(part.resolved))
    except InputError:  # of its vocabulary, or of steps that depend on the data
        return None


def write_table(
    name: str, options: Options, failed: dict[str, str], draw: bool
) -> tuple[str, bool]:
    """Writes table NAME's files into the directory of the parts, as far as its runs are there.

    Args:
      name: of TABLES.
      options: of the command.
      failed: parts that could not be run, and why.
      draw: whether the picture is drawn too.

    Returns:
      (The Markdown, whether every cell has a figure of ours).
    """
    table = TABLES[name]
    rows, columns = rows_of(table, options), columns_of(table, options)
    cells = {
        column: {row.title: result for row in rows
                 if (result := cell_of(row, column, table, options)) is not None}
        for column in columns
    }
    titles = {column: COLUMNS[column].title for column in columns}
    if table.curves:
        titles['mean'] = 'mean'
        cells['mean'] = mean_of_columns(
            cells[one] for one in columns if COLUMNS[one].task and not COLUMNS[one].lower)
    parts = parts_of(table, options)
    record = {
        'table': name, 'title': table.title, 'scale': 'tiny' if options.tiny else 'paper',
        'source': 'Devlin et al. (2018), arXiv 1810.04805v2',
        'date': datetime.date.today().isoformat(), 'hardware': hardware(),
        'versions': versions(), 'seeds': options.seeds,
        'restarts': options.restarts or table.restarts,
        'hours': sum(sum(part.seconds()) for part in parts) / 3600,
        'settings': {'pretrain': options.pretrain, 'finetune': options.finetune,
                     'weights': dict(options.weights)},
        'runs': {
            'finished': sum(len(part.members) - len(part.folder.unfinished()) for part in parts),
            'all': sum(len(part.members) for part in parts),
        },
        'columns': {column: {'title': title} | (
            {} if column == 'mean' else {'metric': COLUMNS[column].metric,
                                         'band': COLUMNS[column].band}
        ) for column, title in titles.items()},
        'rows': [row.title for row in rows], 'cells': cells,
        'flops': {row.title: pretraining_flops(row, options) for row in rows},
        'curves': table.curves,
        'order': {column: order for column in columns
                  if (order := order_of_rows(cells[column])) is not None},
        'failed': failed, 'note': table.note,
    }
    text = _markdown(record)
    stem = stem_of(name)
    write_whole(options.root / f'{stem}.json', json.dumps(record, indent=1) + '\n')
    write_whole(options.root / f'{stem}.md', text)
    if draw:
        with open_whole(options.root / f'{stem}.png') as file:
            _draw(file, record)
        if table.curves:
            with open_whole(options.root / f'{stem}_flops.png') as file:
                _draw_curves(file, record)
    return text, all('mean' in cell for result in cells.values() for cell in result.values())


def hardware() -> str:
    """The hardware that this process computes on."""
    import jax

    devices = f'{jax.device_count()} x {jax.devices()[0].device_kind}'
    if jax.default_backend() != 'cpu':
        return devices
    names = {platform.machine()}
    if os.path.exists('/proc/cpuinfo'):
        with open('/proc/cpuinfo', encoding='utf-8') as file:
            message = {line.partition(':')[2].strip() for line in file if 'model name' in line}
            names = message or names
    return f"{os.cpu_count()} cores of {', '.join(sorted(names))}"


def _markdown(record: dict[str, Any]) -> str:
    columns = record['columns']
    lines = [
        f"# {record['title']}, {record['scale']} scale", '',
        '| | FLOPs | ' + ' | '.join(column['title'] for column in columns.values()) + ' |',
        '|---' * (len(columns) + 2) + '|',
    ]
    for row in record['rows']:
        texts = [_text(record['cells'][column].get(row)) for column in columns]
        flops = record['flops'][row]
        lines.append(f"| {row} | {f'{flops:.1e}' if flops else ''} | " + ' | '.join(texts) + ' |')
    lines += ['', 'FLOPs: of one pre-training. Ours: the mean over runs, its standard deviation, '
                  'how many runs, at the last evaluation, with the settings of the row and task '
                  'whose first metric is best on the dev set; in brackets the paper.']
    if record['scale'] == 'paper':
        lines.append('pass: at most so far behind the paper: ' + ', '.join(
            f"{column['title']} {column['band']}" for column in columns.values()
            if 'band' in column) + '.')
    else:
        lines.append('A tiny model is not to reach the paper; what may hold is the order of rows.')
    for column, order in record['order'].items():
        line = (f"{columns[column]['title']}: of the paper's pairs of rows {order['same']} stand "
                f"the same way, {order['opposite']} the other way, {order['undecided']} undecided "
                "(Student's t, 5 % over all pairs by Holm)")
        lines.append(f"- {line}" + (
            f" (other way: {'; '.join(order['pairs_opposite'])})" if order['opposite'] else ''))
    if record['note']:
        lines += ['', record['note']]
    runs, settings = record['runs'], record['settings']
    lines += ['', f"{record['date']}; {record['hardware']}; "
              + ', '.join(f"{name.removeprefix('version of ')} {version}"
                          for name, version in record['versions'].items())
              + f"; {record['seeds']} seeds of pre-training, {record['restarts']} of fine-tuning; "
              f"{runs['finished']} of {runs['all']} runs, {record['hours']:.2f} hours."]
    message = [f'--{kind} {one}' for kind in ('pretrain', 'finetune') for one in settings[kind]]
    message += [f'--weights {name}={path}' for name, path in settings['weights'].items()]
    if message:
        lines.append('Settings: ' + ', '.join(f'`{one}`' for one in message) + '.')
    lines += [f'Failed: {title}: {why}' for title, why in record['failed'].items()]
    return '\n'.join(lines) + '\n'


def _text(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ''
    paper = '' if cell['paper'] is None else f" ({cell['paper']:g})"
    if 'mean' not in cell:
        return f'–{paper}'
    if cell['passes'] is not None and cell['dev'] != cell['paper']:
        paper = f" ({cell['paper']:g}; dev {cell['dev']:g})"
    deviation = '' if cell['deviation'] is None else f" ± {cell['deviation']:.2f}"
    judged = {None: '', True: ' pass', False: ' **below**'}[cell['passes']]
    return f"{cell['mean']:.2f}{deviation} n={cell['runs']}{paper}{judged}"


def _draw(file: Any, record: dict[str, Any]) -> None:
    """A panel a column: ours with every run and its deviation, the paper's beside it."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    columns, rows = record['columns'], record['rows']
    height = 1.2 + 0.35 * len(rows)
    figure, axes = plt.subplots(
        1, len(columns), figsize=(2.5 + 2.6 * len(columns), height), squeeze=False, sharey=True)
    places = {row: -i for i, row in enumerate(rows)}
    for axis, (name, column) in zip(axes.flat, columns.items(), strict=True):
        for row, cell in record['cells'][name].items():
            if 'mean' in cell:
                axis.errorbar(cell['mean'], places[row], xerr=cell['deviation'] or 0.0, fmt='o',
                              color='C0', capsize=3, markersize=5)
                axis.plot(cell['values'], [places[row]] * cell['runs'], '.', color='C0', alpha=0.4)
        paper = {row: cell['paper'] for row, cell in record['cells'][name].items()
                 if cell['paper'] is not None}
        # A tiny model's figures lie elsewhere: what is compared is the order.
        other = axis.twiny() if record['scale'] == 'tiny' and paper else axis
        other.plot(list(paper.values()), [places[row] for row in paper], 'D', color='C1',
                   markersize=5, alpha=0.8)
        if other is not axis:
            other.tick_params(axis='x', labelcolor='C1', labelsize=7)
        axis.tick_params(axis='x', labelcolor='C0', labelsize=7)
        axis.set_title(column['title'], fontsize=10)
        axis.grid(alpha=0.3)
    axes[0, 0].set_yticks(list(places.values()), list(places), fontsize=8)
    axes[0, 0].set_ylim(-len(rows) + 0.4, 0.6)
    figure.suptitle(f"{record['title']}: ours (blue), the paper's (orange)", fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=110, format='png')
    plt.close(figure)


def _draw_curves(file: Any, record: dict[str, Any]) -> None:
    """The mean of a row's columns over the FLOPs of its pre-training, curves joined."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.8))
    known = {row: (record['flops'][row], cell) for row, cell in record['cells']['mean'].items()
             if 'mean' in cell and record['flops'][row]}
    for i, (title, rows) in enumerate(record['curves'].items()):
        points = [known[row] for row in rows if row in known]
        axis.errorbar(
            [x for x, _ in points], [cell['mean'] for _, cell in points],
            yerr=[cell['deviation'] or 0.0 for _, cell in points], fmt='o-', color=f'C{i}',
            capsize=3, label=title)
    axis.set_xscale('log')
    joined = set(itertools.chain(*record['curves'].values()))
    others = sorted(((cell['mean'], x, row) for row, (x, cell) in known.items()
                     if row not in joined), reverse=True)
    axis.plot([x for _, x, _ in others], [y for y, _, _ in others], 'x', color='0.4')
    bottom, below = axis.get_ylim()
    line = (below - bottom) / 30
    for y, x, row in others:  # downwards, no two names on one line
        below = min(y, below - line)
        axis.annotate(row, (x, y), (x * 1.06, below), fontsize=7, va='center',
                      arrowprops={'arrowstyle': '-', 'color': '0.6', 'linewidth': 0.5})
    for row, cell in record['cells']['mean'].items():
        if 'mean' in cell and record['flops'][row] == 0:  # not those that nothing can tell
            axis.axhline(cell['mean'], color='0.5', linestyle=':', label=row)
    axis.set_xlabel('FLOPs of pre-training')
    axis.set_ylabel('mean of ' + ', '.join(
        column.title for name, column in COLUMNS.items()
        if name in record['columns'] and column.task and not column.lower))
    axis.grid(alpha=0.3, which='both')
    # Below: inside, it would lie on some row's name.
    axis.legend(fontsize=8, loc='upper center', bbox_to_anchor=(0.5, -0.14), ncols=2)
    axis.set_title(record['title'], fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=110, format='png')
    plt.close(figure)
