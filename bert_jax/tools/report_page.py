"""The page of `tools.report`: one HTML file that asks nothing of a network.

Tables are HTML; curves and attention are drawn by report.js from the data that the page carries.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bert_jax.runtime.files import as_path
from bert_jax.tools.report_run import Point, RunRecords, differences
from bert_jax.train.gates import MEANINGS
from bert_jax.train.report import duration

_AXES = ('steps', 'tokens', 'FLOPs')
_NUM_COLOURS, _DASHES = 8, ('', '7 3', '2 3', '9 3 2 3')  # as report.css and report.js have them
# Curves of how the run went, not of what it learnt; and what is another of them by a formula.
_OF_SPEED = ('sequences_per_second', 'tokens_per_second', 'data_wait', 'mfu', 'goodput')
_NOT_DRAWN = ('mlm_perplexity', 'lm_perplexity')


@dataclasses.dataclass(frozen=True)
class Examples:
    """What a run's weights make of the sentence (`tools.report_model`), as far as they can."""

    masked: list[dict[str, Any]] | None = None
    heads: dict[str, Any] | None = None
    nearest: list[dict[str, Any]] | None = None


def page(runs: Sequence[RunRecords], examples: Sequence[Examples], text: str) -> str:
    """The whole page.

    Args:
      runs: in the order in which they are shown.
      examples: of each.
      text: that the examples are of.
    """
    curves = [run.curves() for run in runs]
    sections = [
        ('runs', 'Runs', _runs(runs)),
        ('gates', 'Warnings', _gates(runs)),
        ('results', 'Results', _table(runs, [run.results() for run in runs])),
        ('curves', 'Curves', _curves_intro(runs) if any(curves) else ''),
        ('speed', 'Speed and time', _table(runs, [run.speed() for run in runs]) + _times(runs)),
        ('settings', 'Settings that differ', _settings(runs)),
        ('masked', 'Masked words', _words(
            runs, [e.masked for e in examples], 'word', 'guesses', '{:.1%}',
            'Each word masked in turn, with the five likeliest pieces in its place.')),
        ('attention', 'Attention', _attention(examples, text)),
        ('nearest', 'Nearest words', _words(
            runs, [e.nearest for e in examples], 'piece', 'nearest', '{:.2f}',
            'Pieces with the most alike rows of the word table, by the cosine.')),
    ]
    sections = [section for section in sections if section[2]]
    data = {
        'runs': [run.name for run in runs], 'axes': _AXES, 'charts': _charts(curves),
        'attention': [e.heads for e in examples],
    }
    names = ', '.join(run.name for run in runs)
    here = as_path(__file__).parent
    return '\n'.join([
        '<!DOCTYPE html>', '<html lang="en">', '<head>', '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{escape(names)}</title>',
        f"<style>\n{(here / 'report.css').read_text(encoding='utf-8')}</style>", '</head>',
        '<body>', f'<h1>{escape(names)}</h1>',
        '<nav aria-label="Sections">',
        *(f'<a href="#{name}">{title}</a>' for name, title, _ in sections), '</nav>',
        '<noscript><p class="note">Curves and attention are drawn by the script of this page.'
        '</p></noscript>',
        *(f'<section id="{name}">\n<h2>{title}</h2>\n{content}\n</section>'
          for name, title, content in sections),
        # Nothing in it can end the element.
        f'<script type="application/json" id="data">'
        f'{json.dumps(data, allow_nan=False).replace("<", chr(92) + "u003c")}</script>',
        f"<script>\n{(here / 'report.js').read_text(encoding='utf-8')}</script>",
        '</body>', '</html>', '',
    ])


def _key(number: int) -> str:
    """A run's line, as the curves have it."""
    return (f'<svg class="key" viewBox="0 0 24 10" aria-hidden="true"><line x1="0" x2="24" y1="5" '
            f'y2="5" stroke="var(--run{number % _NUM_COLOURS})" '
            f'stroke-dasharray="{_DASHES[number // 2 % 4]}"/></svg>')


def _heading(runs: Sequence[RunRecords]) -> str:
    return ''.join(f'<th scope="col">{_key(i)}{escape(run.name)}</th>'
                   for i, run in enumerate(runs))


def _table(
    runs: Sequence[RunRecords], values: Sequence[Mapping[str, str]], note: str = ''
) -> str:
    """A row a name, a column a run; '' where there is nothing to show."""
    names = dict.fromkeys(name for of_run in values for name in of_run)
    if not names:
        return ''
    rows = ''.join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + ''.join(f"<td>{escape(of_run.get(name, ''))}</td>" for of_run in values) + '</tr>\n'
        for name in names
    )
    caption = f'<caption>{escape(note)}</caption>' if note else ''
    return (f'<div class="wide" tabindex="0"><table>{caption}<thead><tr><td></td>{_heading(runs)}'
            f'</tr></thead>\n<tbody>{rows}</tbody></table></div>')


def _runs(runs: Sequence[RunRecords]) -> str:
    parts = []
    for i, run in enumerate(runs):
        f = run.fields
        model = (f"{f['model.num_layers']} layers of {f['model.hidden_size']}, "
                 f"{f['model.num_heads']} heads" if 'model.num_layers' in f else '')
        what = ', '.join(filter(None, (str(f.get('task', '')), model)))
        parts.append(f'<h3>{_key(i)}{escape(run.name)}</h3>\n<p>{escape(str(run.folder))}<br>'
                     f"{escape('; '.join(filter(None, (what, run.state))))}</p>")
        if run.missing:
            parts.append('<ul class="note">' + ''.join(
                f'<li>{escape(line)}</li>' for line in run.missing) + '</ul>')
    return '\n'.join(parts)


def _gates(runs: Sequence[RunRecords]) -> str:
    rows = []
    for i, run in enumerate(runs):
        for name, steps in run.gates().items():
            times = f'step {steps[0]:,}' + (
                f' and {len(steps) - 1} more, the last at {steps[-1]:,}' if steps[1:] else '')
            rows.append(f'<li>{_key(i)}{escape(run.name)}, {times}: <b>{escape(name)}</b>, '
                        f"{escape(MEANINGS.get(name, ''))}</li>")
    return f"<ul class=\"spoken\">{''.join(rows)}</ul>" if rows else ''


def _curves_intro(runs: Sequence[RunRecords]) -> str:
    keys = ' '.join(f'{_key(i)}{escape(run.name)}' for i, run in enumerate(runs))
    return (f'<p>{keys}</p>\n<p class="note">Thin lines: training; thick ones with dots: held out. '
            'Tokens are those that are no padding; FLOPs are of training, by the formula of '
            'bert_jax/model/flops.py.</p>')


def _charts(curves: Sequence[Mapping[str, list[Point]]]) -> dict[str, list[dict[str, Any]]]:
    """{title of a group: charts}; a metric's training and held-out points in one."""
    names = dict.fromkeys(name.partition('/')[2] for of_run in curves for name in of_run)
    groups: dict[str, list[dict[str, Any]]] = {'': [], 'How it ran': []}
    for name in names:
        if name in _NOT_DRAWN:
            continue
        series = [
            {'run': i, 'held_out': kind == 'eval', 'points': of_run[f'{kind}/{name}']}
            for i, of_run in enumerate(curves) for kind in ('train', 'eval')
            if f'{kind}/{name}' in of_run
        ]
        groups['How it ran' if name in _OF_SPEED else ''].append(
            {'title': name.replace('_', ' '), 'series': series})
    return {title: charts for title, charts in groups.items() if charts}


def _times(runs: Sequence[RunRecords]) -> str:
    seconds = [run.seconds() for run in runs]
    return _table(runs, [
        {cause: f'{duration(value)} ({value / sum(of_run.values()):.1%})'
         for cause, value in sorted(of_run.items(), key=lambda item: -item[1])}
        for of_run in seconds
    ], 'What the time went into; lost: steps that a kill undid.')


def _settings(runs: Sequence[RunRecords]) -> str:
    found = differences(runs)
    if len(runs) == 1:
        return ''
    if not found:
        return '<p>None.</p>'
    return _table(runs, [
        {name: values[i] for name, values in found.items()} for i in range(len(runs))
    ])


def _words(
    runs: Sequence[RunRecords], found: Sequence[list[dict[str, Any]] | None], what: str, key: str,
    form: str, note: str,
) -> str:
    """A table a run: a word, and others with a number each."""
    tables = []
    for i, (run, words) in enumerate(zip(runs, found, strict=True)):
        if not words:
            continue
        rows = ''.join(
            f"<tr><th scope=\"row\">{escape(word['word'])}</th><td>"
            + ' '.join(_guess(word['word'], token, form.format(number))
                       for token, number in word[key]) + '</td></tr>\n'
            for word in words
        )
        tables.append(f'<div class="wide" tabindex="0"><table><caption>{_key(i)}'
                      f'{escape(run.name)}</caption><thead><tr><th scope="col">{what}</th>'
                      f'<th scope="col">{key}</th></tr></thead>\n'
                      f'<tbody>{rows}</tbody></table></div>')
    if not tables:
        return ''
    return f'<p class="note">{note}</p>\n<div class="grid words">' + '\n'.join(tables) + '</div>'


def _guess(word: str, token: str, number: str) -> str:
    right = ' true' if token.lower() == word.lower() else ''
    return f'<span class="guess{right}"><bdi>{escape(token)}</bdi>&nbsp;{number}</span>'


def _attention(examples: Sequence[Examples], text: str) -> str:
    if not any(e.heads for e in examples):
        return ''
    return (f'<p class="note">{escape(text)} Each token is a row; the stronger a column, the more '
            'it looks at that token.</p>')
