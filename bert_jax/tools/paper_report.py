"""A table of the paper beside ours: Markdown, JSON and a picture, from what the parts came to."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import platform
from typing import Any

from bert_jax.runtime.files import open_whole, write_whole
from bert_jax.tools.paper_cells import cell_of, mean_of_columns, order_of_rows, pretraining_flops
from bert_jax.tools.paper_parts import Options, columns_of, parts_of, rows_of
from bert_jax.tools.paper_tables import COLUMNS, TABLES, stem_of
from bert_jax.train.experiment import versions


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
        column: {row.title: found for row in rows
                 if (found := cell_of(row, column, table, options)) is not None}
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
    return text, all('mean' in cell for found in cells.values() for cell in found.values())


def hardware() -> str:
    """What this process computes on."""
    import jax

    devices = f'{jax.device_count()} x {jax.devices()[0].device_kind}'
    if jax.default_backend() != 'cpu':
        return devices
    names = {platform.machine()}
    if os.path.exists('/proc/cpuinfo'):
        with open('/proc/cpuinfo', encoding='utf-8') as file:
            said = {line.partition(':')[2].strip() for line in file if 'model name' in line}
            names = said or names
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
    said = [f'--{kind} {one}' for kind in ('pretrain', 'finetune') for one in settings[kind]]
    said += [f'--weights {name}={path}' for name, path in settings['weights'].items()]
    if said:
        lines.append('Settings: ' + ', '.join(f'`{one}`' for one in said) + '.')
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
