"""Runs a table of the paper: pre-trains, fine-tunes, picks on dev, writes it beside the paper's.

    python -m bert_jax.tools.paper 5 --scale=tiny --data=DATA
    python -m bert_jax.tools.paper 1 --scale=paper --data=DATA --weights base=bert-base-uncased \\
        --weights 24/1024/16=bert-large-uncased
    python -m bert_jax.tools.paper 8 --scale=tiny --list

TABLE is 1 (GLUE), 2 and 3 (SQuAD 1.1 and 2.0), 4 (SWAG), 5 to 8, c1 (figure 5, appendix C.1), or
efficient (not in the paper: recipes with half the FLOPs). tools/paper_tables.py has their rows and
the paper's figures. DATA is the folder of glue/, squad/, swag/ and conll2003/, laid out as the
files of configs/ describe. Pre-training is configs/ablations.py:NAME; at the tiny scale the model
and text are small enough for two cores.

--pretrain FIELD=VALUE sets a field of every pre-training, --finetune [TASK:]FIELD=VALUE one of
every fine-tuning or of one task's:

    ... --pretrain data.source='wiki/*.txt.gz' --pretrain data.vocab_file=vocab.txt \\
        --pretrain model.name=mini --pretrain train.steps=50000 \\
        --finetune sst2:train.steps='3 epochs'

Every part is a sweep (tools.sweep) in DIRECTORY/parts, named after its resolved config, so that
tables share parts, and more --seeds or another table add to them. The same command resumes where it
stopped. Several machines may run it on one folder; a part that depends on another machine's waits
for it. The table's .md and .json are rewritten after each part, its .png at the end.

--chips=1 starts a process for every chip of this machine, each of which takes runs.
Pre-training runs in one process here. For a slice of several hosts, pre-train with bert_jax.main
and pass --weights NAME=RUN. --list prints the config of each part; tools.preflight estimates what
a pre-training at the paper's scale costs.

Exit status: 0 the table is whole, 1 a part failed, 2 bad input, 143 stopped.
"""

from __future__ import annotations

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # before anything loads TensorFlow

import argparse
import datetime
import itertools
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError, Stopped, nearest
from bert_jax.runtime.files import (
    Path,
    as_path,
    is_by_the_way,
    open_folder,
    open_whole,
    write_whole,
)
from bert_jax.runtime.process import error_boundary, hardware
from bert_jax.runtime.stopping import Guard
from bert_jax.tasks.glue import GLUE_TASKS
from bert_jax.tasks.pretrain import run_flops
from bert_jax.tools.paper_tables import (
    COLUMNS,
    CONFIGS,
    TABLES,
    TASKS,
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
from bert_jax.tools.sweep import (
    Folder,
    Member,
    Settings,
    Worker,
    as_worker,
    num_workers,
    supervise,
)
from bert_jax.train.experiment import versions

Cell = dict[str, Any]
_WAIT_SECONDS = 10.0  # between checks of parts that other machines run


def cell_of(row: Row, column: str, table: Table, options: Options) -> Cell | None:
    """A row's figure in a column; None where it has none there.

    Returns:
      `paper` (its figure, or None), `dev` (a published figure of the dev set, or None), `parts`.
      With finished runs also the `mean` of all runs with the chosen settings, their `deviation`,
      the number of `runs`, their `values`, `seeds` (of each run's pre-training; of its fine-tuning
      without pre-training) and `settings`.
    """
    what = COLUMNS[column]
    if row.only and column not in row.only:
        return None
    if what.task:
        parts = [finetuning(row, what.task, seed, table, options)
                 for seed in seeds_of(row, options)]
    else:
        part = None if row.scratch or row.share != 1 else pretraining(row, options)
        if part is None:
            return None
        parts = [part]
    cell: Cell = {'paper': row.figures.get(column), 'dev': row.dev.get(column),
                  'parts': [part.path.name for part in parts]}
    result = _chosen(parts, what, by_part=bool(what.task) and not row.scratch)
    if result is None:
        return cell
    settings, values, seeds = result
    if not what.lower and not what.task.startswith('squad'):  # SQuAD scores are per cent already
        values = [100 * value for value in values]
    return cell | _statistics(values) | {'seeds': seeds, 'settings': dict(settings)}


def _statistics(values: list[float]) -> Cell:
    return {
        'mean': statistics.fmean(values), 'values': values, 'runs': len(values),
        'deviation': statistics.stdev(values) if len(values) > 1 else None,
    }


def _chosen(
    parts: list[Part], what: Column, by_part: bool
) -> tuple[Settings, list[float], list[int]] | None:
    """The settings that are best on the dev set, the metric of all runs with them, their seeds.

    The choice is by the mean of the task's first metric, the same for all columns of a task, so
    that a row's figures are of the same models. Only settings with the most finished runs compete:
    one that lost its worst seed is no better. The seed is that of the pre-training, which is the
    part's number (`by_part`), or the run's own.
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

    The last and not the best, so that all runs of a task are compared after as many epochs.
    """
    result = folder.result(member)
    if result is None:
        return None
    last = {name: value for name, value in result.items() if name.startswith('eval/')} | {
        f'eval/{name.removeprefix("last/")}': value for name, value in result.items()
        if name.startswith('last/')}
    by = result['metric']
    return (last[by], last[what.metric]) if {by, what.metric} <= set(last) else None


def mean_of_columns(columns: Iterable[Mapping[str, Cell]]) -> dict[str, Cell]:
    """The mean of columns by row, with a value for each seed that all of them have."""
    result: dict[str, Cell] = {}
    columns = list(columns)
    for row in dict.fromkeys(itertools.chain(*columns)):
        by_seed = [_by_seed(column.get(row, {})) for column in columns]
        seeds = sorted(set.intersection(*map(set, by_seed)))
        values = [statistics.fmean(means[seed] for means in by_seed) for seed in seeds]
        result[row] = {'paper': None, 'dev': None} | (_statistics(values) if values else {})
    return result


def _by_seed(cell: Cell) -> dict[int, float]:
    """The mean of a cell's runs of each seed."""
    return {seed: statistics.fmean(
        value for value, of in zip(cell['values'], cell['seeds'], strict=True) if of == seed)
        for seed in sorted(set(cell.get('seeds', ())))}


def order_of_rows(cells: Mapping[str, Cell]) -> dict[str, Any] | None:
    """Counts the pairs of rows that are in the paper's order, beyond chance.

    A run is a seed of pre-training. Rows are compared by Tukey's honestly significant difference at
    5 % over all pairs of the column: it pools the deviation, which two seeds of one row estimate
    too badly. Rows with a single run are left out.

    Returns:
      Counts `same`, `opposite`, `undecided`, and `pairs_opposite`; None where no two rows have
      different figures in the paper.
    """
    from scipy import stats

    ours = {row: runs for row, cell in cells.items()
            if cell['paper'] is not None and len(runs := list(_by_seed(cell).values())) > 1}
    rows = list(ours)
    pairs = [(i, j) for i, j in itertools.combinations(range(len(rows)), 2)
             if cells[rows[i]]['paper'] != cells[rows[j]]['paper']]
    if not pairs:
        return None
    test = stats.tukey_hsd(*ours.values())  # statistic: differences of means
    count: dict[str, Any] = {'same': 0, 'opposite': 0, 'undecided': 0, 'pairs_opposite': []}
    for i, j in pairs:
        published = cells[rows[i]]['paper'] - cells[rows[j]]['paper']
        if not test.pvalue[i, j] <= 0.05:  # not a number: of rows without any deviation
            count['undecided'] += 1
        elif test.statistic[i, j] * published > 0:
            count['same'] += 1
        else:
            count['opposite'] += 1
            count['pairs_opposite'].append(f'{rows[i]} / {rows[j]}')
    return count


def pretraining_flops(row: Row, options: Options) -> float | None:
    """FLOPs of a row's pre-training, 0 without; None where weights are given, only a part of the
    steps counts, or the config does not determine them."""
    part = pretraining(row, options)
    if row.scratch or part is None or row.share != 1:
        return 0.0 if row.scratch and part is not None else None
    try:
        return run_flops(without_data(part.resolved))
    except InputError:  # of its vocabulary, or of steps that depend on the data
        return None


def write_table(
    name: str, options: Options, failed: Mapping[str, str], draw: bool
) -> tuple[str, bool]:
    """Writes table NAME's files into the directory of the parts, from the runs so far.

    Args:
      name: of TABLES.
      options: of the command.
      failed: by the titles of parts that could not be run, why.
      draw: whether to draw the picture too.

    Returns:
      (The Markdown, whether every cell has a figure of ours).
    """
    table = TABLES[name]
    rows, columns = rows_of(table, options), columns_of(table, options)
    cells = {
        column: {row.title: cell for row in rows
                 if (cell := cell_of(row, column, table, options)) is not None}
        for column in columns
    }
    titles = {column: {'title': COLUMNS[column].title, 'metric': COLUMNS[column].metric}
              for column in columns}
    if table.mean:
        titles['mean'] = {'title': 'mean'}
        cells['mean'] = mean_of_columns(
            cells[one] for one in columns if COLUMNS[one].task and not COLUMNS[one].lower)
    parts = parts_of(table, options)
    record = {
        'table': name, 'title': table.title, 'scale': 'tiny' if options.tiny else 'paper',
        'source': 'Devlin et al. (2018), arXiv 1810.04805v2',
        'date': datetime.date.today().isoformat(), 'hardware': hardware(),
        'versions': versions(), 'seeds': options.seeds,
        'restarts': options.restarts or table.restarts,
        'hours': sum(part.seconds() for part in parts) / 3600,
        'settings': {'pretrain': options.pretrain, 'finetune': options.finetune,
                     'weights': dict(options.weights)},
        'runs': {
            'finished': sum(len(part.members) - len(part.folder.unfinished()) for part in parts),
            'all': sum(len(part.members) for part in parts),
        },
        'columns': titles, 'rows': [row.title for row in rows], 'cells': cells,
        'flops': {row.title: pretraining_flops(row, options) for row in rows},
        'order': {column: order for column in columns
                  if (order := order_of_rows(cells[column])) is not None},
        'failed': dict(failed), 'note': table.note,
    }
    text = _markdown(record)
    stem = stem_of(name)
    write_whole(options.root / f'{stem}.json', json.dumps(record, indent=1) + '\n')
    write_whole(options.root / f'{stem}.md', text)
    if draw:
        with open_whole(options.root / f'{stem}.png') as file:
            _draw(file, record)
    return text, all('mean' in cell for result in cells.values() for cell in result.values())


def _markdown(record: dict[str, Any]) -> str:
    columns = record['columns']
    lines = [
        f"# {record['title']}, {record['scale']} scale", '',
        '| | FLOPs | ' + ' | '.join(column['title'] for column in columns.values()) + ' |',
        '|---' * (len(columns) + 2) + '|',
    ]
    for row in record['rows']:
        flops = record['flops'][row]
        texts = [row, f'{flops:.1e}' if flops else '',
                 *(_text(record['cells'][column].get(row)) for column in columns)]
        lines.append(f"| {' | '.join(texts)} |")
    lines += ['', 'FLOPs: of one pre-training. Ours: mean and standard deviation over n runs, at '
                  'the last evaluation, with the settings of the row and task whose first metric '
                  "is best on the dev set; in brackets the paper's."]
    if record['scale'] == 'tiny':
        lines.append("A tiny model does not reach the paper's figures; compare the order of rows.")
    for column, order in record['order'].items():
        opposite = '; '.join(order['pairs_opposite'])
        lines.append(
            f"- {columns[column]['title']}: {order['same']} pairs of rows are in the paper's "
            f"order, {order['opposite']} in the opposite one, {order['undecided']} undecided "
            "(Tukey's HSD, 5 % over all pairs)" + (f' (opposite: {opposite})' if opposite else ''))
    lines += ['', record['note']] if record['note'] else []
    runs, settings = record['runs'], record['settings']
    known = ', '.join(f"{name.removeprefix('version of ')} {version}"
                      for name, version in record['versions'].items())
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


def _draw(file: Any, record: dict[str, Any]) -> None:
    """A panel for each column: our runs with their deviation, the paper's figures beside them."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    columns, rows = record['columns'], record['rows']
    figure, axes = plt.subplots(
        1, len(columns), figsize=(2.5 + 2.6 * len(columns), 1.2 + 0.35 * len(rows)),
        squeeze=False, sharey=True)
    for axis, (name, column) in zip(axes.flat, columns.items(), strict=True):
        # A tiny model's figures lie elsewhere: only the order can be compared.
        other = axis.twiny() if record['scale'] == 'tiny' else axis
        for row, cell in record['cells'][name].items():
            place = -rows.index(row)
            if 'mean' in cell:
                axis.errorbar(cell['mean'], place, xerr=cell['deviation'] or 0.0, fmt='o',
                              color='C0', capsize=3, markersize=5)
                axis.plot(cell['values'], [place] * cell['runs'], '.', color='C0', alpha=0.4)
            if cell['paper'] is not None:
                other.plot(cell['paper'], place, 'D', color='C1', markersize=5, alpha=0.8)
        axis.set_title(column['title'], fontsize=10)
        axis.grid(alpha=0.3)
    axes[0, 0].set_yticks([-i for i in range(len(rows))], rows, fontsize=8)
    figure.suptitle(f"{record['title']}: ours (blue), the paper's (orange)", fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=110, format='png')
    plt.close(figure)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m bert_jax.tools.paper', description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('table', choices=list(TABLES), metavar='TABLE')
    parser.add_argument('--scale', choices=('tiny', 'paper'), default='tiny')
    parser.add_argument('--data', default='.', help='folder of glue/, squad/, swag/, conll2003/')
    parser.add_argument('--workdir', help='default: runs/paper-SCALE')
    parser.add_argument('--pretrain', action='append', default=[], metavar='FIELD=VALUE')
    parser.add_argument('--finetune', action='append', default=[], metavar='[TASK:]FIELD=VALUE')
    parser.add_argument('--weights', action='append', default=[], metavar='NAME=PATH',
                        help='weights that replace pre-training NAME')
    parser.add_argument('--seeds', type=int, help='of pre-training; default: 2 tiny, 1 paper')
    parser.add_argument('--restarts', type=int, default=0,
                        help="seeds of fine-tuning; default: 1 tiny, else the paper's")
    parser.add_argument('--columns', default='', help=f'some of {",".join(COLUMNS)}')
    parser.add_argument('--chips', type=int, default=0,
                        help='chips of each process on this machine (all: one process)')
    parser.add_argument('--worker', type=int, help=argparse.SUPPRESS)  # number of a process
    parser.add_argument('--list', action='store_true', help='only print what would be run')
    return parser.parse_args(argv)


def _options(given: argparse.Namespace) -> Options:
    for flag in ('pretrain', 'finetune', 'weights'):
        for text in getattr(given, flag):
            if '=' not in text:
                raise InputError(f'--{flag} {text}: write NAME=VALUE')
    tiny = given.scale == 'tiny'
    seeds = given.seeds if given.seeds is not None else 2 if tiny else 1
    if seeds < 1 or given.restarts < 0:
        raise InputError(f'--seeds={seeds} --restarts={given.restarts}: at least 1 and 0')
    columns = tuple(filter(None, given.columns.split(',')))
    for name in columns:
        if name not in COLUMNS:
            raise InputError(f'--columns={name} is unknown: choose from {", ".join(COLUMNS)}')
    for text in given.finetune:
        of, colon, _ = text.partition(':')
        if colon and '=' not in of and of not in TASKS:
            raise InputError(f'--finetune {text}: {of} is no task: {nearest(of, list(TASKS))}')
    if not CONFIGS.is_dir():
        raise InputError(f'{CONFIGS} does not exist: this command runs from a clone')
    options = Options(
        tiny=tiny, root=as_path(given.workdir or f'runs/paper-{given.scale}'),
        data=str(as_path(given.data)), pretrain=tuple(given.pretrain),
        finetune=tuple(given.finetune), weights=dict(text.split('=', 1) for text in given.weights),
        seeds=seeds, restarts=given.restarts or int(tiny), columns=columns,
    )
    names = {row.pretraining for row in rows_of(TABLES[given.table], options)}
    for name in options.weights:
        if name not in names:
            raise InputError(f'--weights {name}=...: no row of table {given.table} at the scale '
                             f'{given.scale} has it: {nearest(name, sorted(names))}')
    return options


def _check_parts(parts: Sequence[Part], options: Options) -> None:
    """Refuses what would fail after hours of pre-training."""
    for part in parts:
        if part.task:
            needed = as_path(f'{options.data}/{TASKS[part.task].folder}')
            given = part.resolved.data.source == str(needed)  # not set by --finetune
            if part.task in GLUE_TASKS:
                needed /= GLUE_TASKS[part.task].folder
            if given and part.folder.unfinished() and not needed.exists():
                raise InputError(f'--data={options.data}: {needed} does not exist')


def _why_not(part: Part, failed: Mapping[str, str]) -> str | None:
    """'' if a part can run now, None if its pre-training is not finished, else why it never can."""
    if part.before is None or part.start is None:
        return ''
    before, member = part.before
    if before.folder.result(member) is not None:
        return '' if part.start.exists() else f'{part.start} does not exist'
    if before.title in failed or before.folder.failed(member):
        return f'{before.title} failed'
    return None


def _run_parts(
    parts: list[Part], should_stop: Callable[[int], bool], failed: dict[str, str],
    write: Callable[[], object],
) -> None:
    """Runs unfinished parts and calls `write` as they finish; notes in `failed`, by title, why a
    part cannot run.

    Raises:
      Stopped: `should_stop` was true.
    """
    workers: dict[Path, Worker] = {}  # kept: a worker takes over a claim that it sees grow old
    waiting = True
    while waiting:
        waiting = False  # for other machines
        for number, part in enumerate(parts, 1):
            left = len(part.folder.unfinished())
            if not left or part.title in failed:
                continue
            if why := _why_not(part, failed):
                failed[part.title] = why
            waiting |= why is None
            if why != '':
                continue
            try:
                if part.path not in workers:
                    print(f'[{number}/{len(parts)}] {time.strftime("%H:%M")} {part.title}: {left} '
                          f'runs in {part.path}', flush=True)
                    part.path.mkdir(parents=True, exist_ok=True)
                    part.folder.open(part.path.name, [])
                    workers[part.path] = Worker(
                        part.config, part.overrides, part.folder, should_stop)
                if not workers[part.path].work():
                    raise Stopped('')
            except InputError as error:  # other parts may still work
                failed[part.title] = str(error)
                print(f'error: {part.title}: {error}', file=sys.stderr, flush=True)
            waiting |= bool(part.folder.unfinished()) and part.title not in failed
            if len(part.folder.unfinished()) < left:
                write()
        if waiting:
            if should_stop(0):
                raise Stopped('')
            time.sleep(_WAIT_SECONDS)


def _run(
    given: argparse.Namespace, argv: Sequence[str], options: Options, parts: list[Part]
) -> int:
    table, workers = given.table, num_workers(given.chips)
    if given.worker is not None:
        as_worker(given.worker, workers)
    guard = Guard()
    guard.start()
    failed: dict[str, str] = {}  # by the part's title
    status = 0
    if given.worker is None and workers > 1:
        status = supervise('bert_jax.tools.paper', argv, workers, given.chips, guard.should_stop)
    else:
        hosts.check_accelerators()
        try:
            _run_parts(parts, guard.should_stop, failed,
                       lambda: write_table(table, options, failed, False))
        except Stopped:
            status = 143
    if status or given.worker is not None:
        if status == 143 and given.worker is None:
            print('stopped; the same command resumes from here', flush=True)
        return status
    for part in parts:  # here or on another machine
        if any(map(part.folder.failed, part.members)):
            failed.setdefault(part.title, f'see log.txt in {part.path}/runs')
    text, whole = write_table(table, options, failed, draw=True)
    print(f'{text}\nwritten: {options.root}/{stem_of(table)}.md, .json and .png', flush=True)
    return 0 if whole and not failed else 1


def _is_ours(folder: os.PathLike[str]) -> bool:
    return 'parts' in {path.name for path in as_path(folder).iterdir() if not is_by_the_way(path)}


def main(argv: Sequence[str]) -> int:
    given = _parse(argv)
    logging.set_verbosity(logging.ERROR)  # libraries log a great deal below it
    with error_boundary():
        options = _options(given)
        parts = parts_of(TABLES[given.table], options)
        if given.list:
            for part in parts:
                print(f'{part.title}: {len(part.folder.unfinished())} of {len(part.members)} runs '
                      f'left, {part.path}\n'
                      f"    {shlex.join([f'--config={part.config}', *part.overrides])}")
            print(f'{sum(len(part.folder.unfinished()) for part in parts)} of '
                  f'{sum(len(part.members) for part in parts)} runs left in {len(parts)} parts')
            return 0
        _check_parts(parts, options)
        open_folder(options.root, '--workdir', _is_ours)
        (options.root / 'parts').mkdir(exist_ok=True)
        return _run(given, argv, options, parts)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
