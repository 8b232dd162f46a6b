"""The HTML page that compares groups of runs; its curves and attention are drawn by page.js."""

import base64
import dataclasses
import html
import itertools
import json
import math
import os
import statistics
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.runtime.errors import visible
from bert_jax.runtime.files import Path, as_path, in_bucket
from bert_jax.tools.report.comparison import Comparison, compare, incomparable_groups, is_loss
from bert_jax.tools.report.examples import Examples, MaskedWord
from bert_jax.tools.report.groups import Group, mean_with_deviation
from bert_jax.tools.report.runs import RunRecords
from bert_jax.tools.sweep.plots import plots_in
from bert_jax.watch.alarms import MEANINGS
from bert_jax.watch.metrics_log import short_number

_AXES = ('steps', 'tokens', 'FLOPs')
# As in page.css and page.js.
_NUM_COLOURS = 8
_DASHES = ('', '7 3', '2 3', '9 3 2 3')
_NOT_DRAWN = ('mlm_perplexity', 'standard_mlm_perplexity', 'lm_perplexity',  # follow from others
              'nsp_majority', 'sequences_per_second', 'step_seconds', 'step_seconds_deviation',
              'save_seconds', 'data_wait_host', 'step_seconds_host', 'save_seconds_host')
_ABOUT_CURVES = (
    'Thin lines: training; thick ones with dots: held out; of several seeds their mean, shaded '
    'from the lowest to the highest. Where a vertical line stands, rows of that length begin. '
    'Steep beginnings are cut off. Tokens do not count padding; FLOPs are of training, by the '
    'formula of bert_jax/model/flops.py.')
_ABOUT_INTERVALS = (
    'In brackets: where the difference lies, 95 % sure, by the deviation of all seeds.')
_ABOUT_SINGLE_SEEDS = (
    'What another seed alone changes is unknown: add runs with --config.seed=1, 2, ...')


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
      anchor: its id.
      title: its heading, in HTML.
      content: HTML; '' if there is nothing to show.
    """

    anchor: str
    title: str
    content: str

    @property
    def link(self) -> str:
        """The HTML of a link to the section."""
        return f'<a href="#{self.anchor}">{self.title}</a>'

    @property
    def html(self) -> str:
        """The section as HTML."""
        return (f'<section id="{self.anchor}">\n<h2>{self.title}</h2>\n{self.content}\n'
                '</section>')


def escape(text: str) -> str:
    """A text as it stands in HTML: nothing in it is markup, and control characters are shown."""
    return html.escape(visible(text))


def page(groups: Sequence[Group], examples: Sequence[Examples], text: str) -> str:
    """The whole HTML page.

    Args:
      groups: the columns of its tables; the others are compared with the first.
      examples: those of each group's first run.
      text: the sentence of the examples.
    """
    guessing = _scores_of_guessing(groups)
    curves = [group.curves() for group in groups]
    sections = [
        Section('short', 'In short', _in_short(groups, guessing)),
        Section('settings', 'Settings that differ', _settings(groups)),
        Section('gates', 'Warnings', _gates(groups)),
        Section('results', 'Results', _results(groups, examples)),
        Section('curves', 'Curves', _curves(groups, curves)),
        Section('sweep', 'The sweep', _sweep(groups)),
        Section('masked', 'Masked words', _masked_words(groups, examples)),
        Section('attention', 'Attention', _attention(examples, text)),
        Section('runs', 'Runs', _runs(groups)),
    ]
    names = [group.name for group in groups]
    data = {
        'runs': names,
        'axes': _AXES,
        'charts': _charts(curves),
        'phases': [group.phases() for group in groups],
        'guessing': {name.replace('_', ' '): score for name, score in guessing.items()},
        'attention': [example.attention for example in examples],
    }
    return _fill_template(', '.join(names), sections, data)


def _fill_template(title: str, sections: Iterable[Section], data: Mapping[str, Any]) -> str:
    """The page of page.html.

    Args:
      title: as text.
      sections: those without content are left out.
      data: what page.js draws.
    """
    links = []
    contents = []
    for section in sections:
        if section.content:
            links.append(section.link)
            contents.append(section.html)
    return string.Template(_read('page.html')).substitute(
        title=escape(title),
        style=_read('page.css'),
        script=_read('page.js'),
        links='\n'.join(links),
        sections='\n'.join(contents),
        # Without `<`, no string in the data can end the script element.
        data=json.dumps(data, allow_nan=False).replace('<', '\\u003c').replace('\x7f', '\\u007f'))


def _read(name: str) -> str:
    return (as_path(__file__).parent / name).read_text(encoding='utf-8')


def _scores_of_guessing(groups: Sequence[Group]) -> dict[str, float]:
    """The scores of guessing by metric; where runs differ in them, the first group's."""
    result: dict[str, float] = {}
    for group in reversed(groups):
        for run in group.runs:
            share = run.scores.get('nsp_majority', 0.0)
            if share:
                result['nsp_accuracy'] = share
                result['nsp_loss'] = _entropy(share)
            for name, value in run.fields.items():
                if name.startswith('guessing.'):
                    result[name.removeprefix('guessing.')] = value
    return result


def _entropy(share: float) -> float:
    """The entropy, in nats, of two outcomes of which one has this share."""
    shares = filter(None, (share, 1 - share))
    return -sum(p * math.log(p) for p in shares)


def _label(group: Group) -> str:
    """A group's name in HTML, with a sample of its line in the curves."""
    colour = f'var(--run{group.number % _NUM_COLOURS})'
    dashes = _DASHES[group.number // 2 % len(_DASHES)]
    return ('<svg class="key" viewBox="0 0 24 10" aria-hidden="true">'
            f'<line x1="0" x2="24" y1="5" y2="5" stroke="{colour}" stroke-dasharray="{dashes}"/>'
            f'</svg>\u2060{escape(group.name)}')


def _grid(heading: Sequence[str], rows: Iterable[Sequence[str]], caption: str = '') -> str:
    """An HTML table; the first cell of each row is its heading."""
    head = ''.join(map(_column_heading, heading))
    body = ''.join(map(_grid_row, rows))
    if caption:
        caption = f'<caption>{caption}</caption>'
    return (f'<div class="wide" tabindex="0"><table>{caption}<thead><tr>{head}</tr></thead>\n'
            f'<tbody>{body}</tbody></table></div>')


def _column_heading(text: str) -> str:
    if not text:
        return '<td></td>'
    return f'<th scope="col">{text}</th>'


def _grid_row(cells: Sequence[str]) -> str:
    heading, *others = cells
    tail = ''.join([f'<td>{cell}</td>' for cell in others])
    return f'<tr><th scope="row">{heading}</th>{tail}</tr>\n'


def _in_short(groups: Sequence[Group], guessing: Mapping[str, float]) -> str:
    """Each group's score, and how far it is from the first group's."""
    first = groups[0]
    why = incomparable_groups(first, first)
    if why:
        return f'<p>{_label(first)}: {escape(why)}; nothing is compared with it.</p>'
    metric = first.runs[0].metric
    comparisons = compare(groups)
    rows = []
    for group, comparison in zip(groups, comparisons, strict=True):
        difference = ''
        if group is not first:
            difference = _difference(comparison, metric)
        score = mean_with_deviation(comparison.scores)
        rows.append([_label(group), str(len(group.runs)), score, difference])
    if metric in guessing:
        rows.append(['guessing', '', f'{guessing[metric]:.4f}', ''])
    note = _ABOUT_SINGLE_SEEDS
    if any(map(_has_several_seeds, comparisons)):
        note = _ABOUT_INTERVALS
    heading = ['', 'seeds', escape(metric.replace('_', ' ')), f'minus {escape(first.name)}']
    return f'{_grid(heading, rows)}<p class="note">{note}</p>'


def _has_several_seeds(comparison: Comparison) -> bool:
    return len(comparison.scores) > 1 and not comparison.why_not


def _difference(comparison: Comparison, metric: str) -> str:
    """How far a group is from the first, with the interval if that is known."""
    if comparison.why_not:
        return f'<b>not comparable</b>: {escape(comparison.why_not)}'
    gain = comparison.gain
    half_width = comparison.half_width
    if math.isnan(half_width):
        return f'{gain:+.4f}'
    return (f'<b>{gain:+.4f}, {comparison.verdict(metric)}</b> '
            f'({gain - half_width:+.4f} to {gain + half_width:+.4f})')


def _settings(groups: Sequence[Group]) -> str:
    """A table of the settings in which groups differ; '' if there are none."""
    settings = [group.settings() for group in groups]
    rows = []
    for name in _all_names(settings):
        values = [column.get(name, '') for column in settings]
        if len(set(values)) > 1:
            rows.append([escape(name).replace('_', '_<wbr>'), *map(escape, values)])
    return _group_grid(groups, rows)


def _results(groups: Sequence[Group], examples: Sequence[Examples]) -> str:
    """A table of what was trained and of its scores, with the best of each row in bold."""
    results = []
    for group, example in zip(groups, examples, strict=True):
        result = {}
        if example.num_params:
            result['parameters'] = short_number(example.num_params)
        results.append(result | group.results())
    rows = []
    for name in _all_names(results):
        cells = [column.get(name, '') for column in results]
        rows.append([escape(name).replace('_', ' '), *_with_best_bold(groups, name, cells)])
    return _group_grid(groups, rows)


def _all_names(columns: Iterable[Mapping[str, str]]) -> list[str]:
    """The names of all columns, each once, in order of appearance."""
    return list(dict.fromkeys(itertools.chain(*columns)))


def _group_grid(groups: Sequence[Group], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table with a column for each group; '' if it has no rows."""
    if not rows:
        return ''
    return _grid(['', *map(_label, groups)], rows)


def _with_best_bold(groups: Sequence[Group], name: str, cells: Sequence[str]) -> list[str]:
    """The cells of a metric, a column for each group; of different scores the best is bold."""
    means = {}
    for number, group in enumerate(groups):
        scores = group.scores(name)
        if scores:
            means[number] = statistics.fmean(scores)
    if len(set(means.values())) < 2:
        return list(cells)
    choose = min if is_loss(name) else max
    best = choose(means.values())
    result = []
    for number, cell in enumerate(cells):
        if means.get(number) == best:
            result.append(f'<b>{cell}</b>')
        else:
            result.append(cell)
    return result


def _gates(groups: Sequence[Group]) -> str:
    """The steps at which each gate warned."""
    warnings = []
    for group in groups:
        for run in group.runs:
            warnings += _warnings(run)
    if not warnings:
        return ''
    return f'<ul class="spoken">{"".join(warnings)}</ul>'


def _warnings(run: RunRecords) -> list[str]:
    """A list item for each gate that warned in a run."""
    items = []
    for gate, meaning in MEANINGS.items():
        steps = []
        for record in run.records:
            if f'gate/{gate}' in record:
                steps.append(record['step'])
        if steps:
            items.append(
                f'<li>{escape(run.name)}, {_steps(steps)}: <b>{gate}</b>, {escape(meaning)}</li>')
    return items


def _steps(steps: Sequence[int]) -> str:
    """The first step, and how many follow it."""
    if len(steps) == 1:
        return f'step {steps[0]:,}'
    return f'step {steps[0]:,} and {len(steps) - 1} more, to {steps[-1]:,}'


def _curves(groups: Sequence[Group], curves: Sequence[Mapping[str, Any]]) -> str:
    """The legend of the charts, if there are any; page.js draws them below it."""
    if not any(curves):
        return ''
    labels = ' '.join(map(_label, groups))
    return f'<p>{labels}</p>\n<p class="note">{_ABOUT_CURVES}</p>'


def _charts(curves: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The charts, each with a metric's training and held-out points."""
    charts: dict[str, dict[str, Any]] = {}  # by metric
    for key in itertools.chain(*curves):
        _, _, name = key.partition('/')  # of train/METRIC or eval/METRIC
        if name not in charts and name not in _NOT_DRAWN:
            charts[name] = {'title': name.replace('_', ' '), 'series': _series(curves, name)}
    return list(charts.values())


def _series(curves: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """The lines of a metric: each group's points of training, and of held-out data."""
    result = []
    for number, group_curves in enumerate(curves):
        for split in ('train', 'eval'):
            points = group_curves.get(f'{split}/{name}')
            if points is not None:
                result.append({'run': number, 'held_out': split == 'eval', 'points': points})
    return result


def _sweep(groups: Sequence[Group]) -> str:
    """The plots of the sweep whose runs these are; '' if they are of none, or of several."""
    folders = {_absolute(run.folder).parent.parent for group in groups for run in group.runs}
    sweep = folders.pop()
    if folders or not (sweep / 'sweep.json').exists():
        return ''
    figures = []
    for title, path in plots_in(sweep).items():
        image = base64.b64encode(path.read_bytes()).decode('ascii')
        figures.append(f'<figure><img src="data:image/png;base64,{image}" alt="{escape(title)}">'
                       f'<figcaption class="note">{escape(title)}</figcaption></figure>')
    return '\n'.join(figures)


def _absolute(folder: Path) -> Path:
    return folder if in_bucket(folder) else as_path(os.path.abspath(folder))


def _masked_words(groups: Sequence[Group], examples: Sequence[Examples]) -> str:
    """A table with a row for each masked word and a column for the guesses of each group."""
    labels = []
    columns = []
    for group, example in zip(groups, examples, strict=True):
        if example.masked_words:
            labels.append(_label(group))
            columns.append(example.masked_words)
    if not columns:
        return ''
    rows = []
    for masked_words in zip(*columns, strict=True):
        word = masked_words[0].word
        rows.append([escape(word), *map(_guesses, masked_words)])
    caption = 'Each word masked in turn, with the likeliest pieces in its place.'
    return _grid(['', *labels], rows, caption)


def _guesses(masked: MaskedWord) -> str:
    """The guesses of a word in HTML, marked where they are true."""
    spans = []
    for guess in masked.guesses:
        style = 'guess'
        if guess.is_true:
            style = 'guess true'
        spans.append(f'<span class="{style}"><bdi>{escape(guess.piece)}</bdi>&nbsp;'
                     f'{guess.probability:.1%}</span>')
    return ' '.join(spans)


def _attention(examples: Sequence[Examples], text: str) -> str:
    """The caption of the attention; page.js draws it below."""
    if not any(example.attention for example in examples):
        return ''
    return (f'<p class="note">{escape(text)} Each token is a row; darker columns are tokens that '
            'it attends to more.</p>')


def _runs(groups: Sequence[Group]) -> str:
    """How far each run is, what is missing of it, and where it is."""
    items = []
    for group in groups:
        for run in group.runs:
            state = '; '.join([run.state, *run.missing])
            items.append(
                f'<li>{escape(run.name)}: {escape(state)}<br>'
                f'<span class="note">{escape(str(run.folder))}</span></li>')
    return f'<ul>{"".join(items)}</ul>'
