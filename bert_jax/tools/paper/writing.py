"""The files of a table: its record as JSON, as Markdown, and as a picture of differences."""

import json
from collections.abc import Mapping
from typing import IO, Any

from bert_jax.runtime.errors import counted
from bert_jax.runtime.files import open_whole, write_whole
from bert_jax.tools.paper.cells import Cell
from bert_jax.tools.paper.plan import Plan
from bert_jax.tools.paper.record import Record, make_record
from bert_jax.tools.sweep.report import markdown_table

_LEGEND = (
    'FLOPs: of one pre-training. Ours: mean and standard deviation over n runs, at the last '
    'evaluation, with the settings of the row and task whose first metric is best on the dev set')
_TINY_NOTE = "A tiny model does not reach the paper's figures; compare the order of rows."


def write_table(plan: Plan, failed: Mapping[str, str], whole: bool) -> tuple[str, bool]:
    """Writes a table's files into `plan.root`, from the runs so far.

    Args:
      plan: of the table.
      failed: reasons by title, for parts that could not be run.
      whole: whether to also compute differences and draw the picture.

    Returns:
      (The Markdown, whether every cell has a figure of ours).
    """
    record = make_record(plan, failed, whole)
    text = markdown(record)
    stem = table_path(plan)
    write_whole(f'{stem}.json', json.dumps(vars(record), indent=1) + '\n')
    write_whole(f'{stem}.md', text)
    if whole:
        with open_whole(f'{stem}.png') as file:
            _draw(file, record)
    return text, record.is_complete


def table_path(plan: Plan) -> str:
    """The path of a table's files, without their suffix."""
    name = plan.table.name
    if plan.table.own or plan.table.of_models:
        kind = 'table_'
    elif name.isdigit():
        kind = 'table'
    else:
        kind = 'figure_'
    return f'{plan.root}/{kind}{name}'


def markdown(record: Record) -> str:
    """The table with its differences and explanations, as Markdown."""
    paragraphs = [
        [f'# {record.title}, {record.scale} scale'],
        _figures(record),
        _explanation(record),
        _warning(record),
        *_differences(record)]
    if record.note:
        paragraphs.append([record.note])
    paragraphs.append(_provenance(record))
    texts = ['\n'.join(lines) for lines in paragraphs if lines]
    return '\n\n'.join(texts) + '\n'


def _headings(record: Record) -> list[str]:
    return [column['title'] for column in record.columns.values()]


def _figures(record: Record) -> list[str]:
    """The table itself: the FLOPs and the cells of each row, and the scores of guessing."""
    rows = []
    for row, flops in record.flops.items():
        cost = ''
        if flops:
            cost = f'{flops:.1e}'
        cells = [_cell_text(column.get(row)) for column in record.cells.values()]
        rows.append([row, cost, *cells])
    rows.append(_guessing_row(record))
    return markdown_table(['', 'FLOPs', *_headings(record)], rows)


def _guessing_row(record: Record) -> list[str]:
    cells = ['by guessing', '']
    for column in record.columns:
        score = record.guessing.get(column)
        text = ''
        if score is not None:
            text = f'{score:.2f}'
        cells.append(text)
    return cells


def _cell_text(cell: Cell | None) -> str:
    """A cell as in '84.40 ± 0.20 n=3 (84.6; dev 84.4)'; '–' where no run has finished."""
    if cell is None:
        return ''
    published = _published_text(cell)
    if 'mean' not in cell:
        return f'–{published}'
    score = f'{cell["mean"]:.2f}'
    if cell['deviation'] is not None:
        score += f' ± {cell["deviation"]:.2f}'
    if 'interval' in cell:
        low, high = cell['interval']
        published += f' (95 %: {low:.2f} to {high:.2f})'
    return f'{score} n={cell["runs"]}{published}'


def _published_text(cell: Cell) -> str:
    """The paper's figure in brackets, with that of the dev set if there is one."""
    if cell['paper'] is None:
        return ''
    if cell['dev'] is None:
        return f' ({cell["paper"]:g})'
    return f' ({cell["paper"]:g}; dev {cell["dev"]:g})'


def _explanation(record: Record) -> list[str]:
    """The lines that explain the figures."""
    if not record.source:
        return [f'{_LEGEND}.']
    lines = [f"{_LEGEND}; in brackets the paper's."]
    if record.scale != 'paper':
        lines.append(_TINY_NOTE)
    return lines


def _warning(record: Record) -> list[str]:
    """The columns in which no row is better than guessing."""
    if not record.is_guessing:
        return []
    compared = [column for column in record.columns if column != 'mean']
    if list(record.is_guessing) == compared:
        what = 'this table'
    else:
        titles = [record.columns[column]['title'] for column in record.is_guessing]
        what = ', '.join(titles)
    return [f'**Inconclusive: {what}. No row is better than guessing (the most frequent label, '
            'words by frequency) beyond chance.**']


def _differences(record: Record) -> list[list[str]]:
    """The paragraphs about the differences to the first row."""
    if not any(record.differences.values()):
        return []
    first, *others = record.rows
    explanation = (
        f'Differences to {first}, with intervals that hold together for a column at 95 % '
        "(Tukey's HSD over seeds); bold: beyond chance.")
    rows = []
    for row in others:
        cells = [_difference_text(record, column, row) for column in record.columns]
        rows.append([row, *cells])
    return [[explanation], markdown_table(['', *_headings(record)], rows)]


def _difference_text(record: Record, column: str, row: str) -> str:
    """A row's difference from the first, with its interval, and the paper's."""
    if row not in record.differences[column]:
        return ''
    value, low, high = record.differences[column][row]
    paper = record.cells[column][row]['paper']
    first = record.cells[column][record.rows[0]]['paper']
    published = ''
    if paper is not None and first is not None:
        published = f'; paper {paper - first:+.2f}'
    text = f'{value:+.2f} ({low:+.2f} to {high:+.2f}{published})'
    is_beyond_chance = low > 0 or high < 0
    if is_beyond_chance:
        return f'**{text}**'
    return text


def _provenance(record: Record) -> list[str]:
    """Where, when and with which settings the table was made, and what failed."""
    versions = [f'{name} {version}' for name, version in record.versions.items()]
    known = ', '.join(versions)
    lines = [
        f'{record.date}; {record.hardware}; {known}; {counted(record.seeds, "seed")} of '
        f'pre-training, {record.restarts} of fine-tuning; {record.runs["finished"]} of '
        f'{record.runs["all"]} runs, {record.hours:.2f} hours.']
    settings = _flags(record.settings)
    if settings:
        lines.append(f'Settings: {", ".join(settings)}.')
    for title, why in record.failed.items():
        lines.append(f'Failed: {title}: {why}')
    return lines


def _flags(settings: Mapping[str, Any]) -> list[str]:
    """The settings of a record, as on the command line."""
    flags = [f'`--pretrain {setting}`' for setting in settings['pretrain']]
    flags += [f'`--finetune {setting}`' for setting in settings['finetune']]
    for name, path in settings['weights'].items():
        flags.append(f'`--weights {name}={path}`')
    return flags


def _draw(file: IO[bytes], record: Record) -> None:
    """Draws a panel for each column: differences from the first row.

    Ours have intervals; the paper's stand beside them.
    """
    from matplotlib.figure import Figure

    num_rows = len(record.rows)
    figure = Figure(figsize=(2.5 + 2.6 * len(record.columns), 1.2 + 0.35 * num_rows))
    panels = figure.subplots(1, len(record.columns), squeeze=False, sharey=True)
    for axis, column in zip(panels.flat, record.columns, strict=True):
        _draw_column(axis, record, column)
    places = [-number for number in range(num_rows)]
    panels[0, 0].set_yticks(places, record.rows, fontsize=8)
    papers = ''
    if record.source:
        papers = ", the paper's (orange)"
    figure.suptitle(
        f'{record.title}: differences to {record.rows[0]}, ours (blue) with intervals{papers}; '
        'dotted: guessing', fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=110, format='png')


def _draw_column(axis: Any, record: Record, column: str) -> None:
    """Draws a column's differences, a line of the panel for each row."""
    first = record.cells[column].get(record.rows[0], {})
    for row, cell in record.cells[column].items():
        place = -record.rows.index(row)
        for key, style in (('paper', 'C1D'), ('mean', 'C0o')):
            value = cell.get(key)
            base = first.get(key)
            if value is not None and base is not None:
                axis.plot(value - base, place, style, markersize=5)
        interval = list(record.differences[column].get(row, ()))[1:]
        axis.plot(interval, [place] * len(interval), 'C0|-')
    if column in record.guessing and 'mean' in first:
        guessing = record.guessing[column] - first['mean']
        axis.axvline(guessing, color='gray', linestyle=':')
    axis.axvline(0, color='gray', linewidth=0.8)
    axis.set_title(record.columns[column]['title'], fontsize=10)
    axis.tick_params(labelsize=7)  # larger labels would overlap
    axis.grid(alpha=0.3)
