"""Shows runs beside each other: one page that needs nothing else.

    python -m bert_jax.tools.report RUN [RUN ...] --output=report.html

Curves over steps, tokens and FLOPs, speed and where the time went, results, settings that differ,
warnings; and from the run's own weights masked words, attention and nearest words of a sentence.
A run that goes on, was killed or has no checkpoint is shown as far as there is something of it, and
the page says what is missing.

Exit status: 0 done, 2 bad input.
"""

from __future__ import annotations

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import argparse
import base64
import dataclasses
import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from bert_jax.heads import HEADS
from bert_jax.heads.tagging import Tagging
from bert_jax.model.layers import ModelConfig
from bert_jax.predict.api import Model
from bert_jax.predict.features import attention
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, check_new_file, write_whole
from bert_jax.runtime.lease import holder
from bert_jax.runtime.process import error_boundary
from bert_jax.tasks.pretrain import whole_step_flops
from bert_jax.text.vocab import CONTINUATION, MASK
from bert_jax.train.gates import MEANINGS
from bert_jax.train.report import count, duration, read_records
from bert_jax.train.run_directory import read_run_fields
from bert_jax.weights.run_directory import read_description, whole_steps

Record = Mapping[str, Any]
Point = tuple[float, float, float, float]  # step, tokens and FLOPs so far, value


@dataclasses.dataclass(frozen=True)
class RunRecords:
    """A run without its weights: fields, records, state.

    Attributes:
      name: by which the page calls it.
      folder: its directory.
      fields: of its config.json, by dotted name; empty where there is none.
      records: of its metrics.jsonl, in order.
      state: how far it is, in words.
      missing: what the page cannot show of it, and why.
    """

    name: str
    folder: Path
    fields: dict[str, Any]
    records: list[dict[str, Any]]
    state: str
    missing: list[str]

    def curves(self) -> dict[str, list[Point]]:
        """Every `train/...` and `eval/...` by its name."""
        steps, tokens, flops = self._work()
        result: dict[str, list[Point]] = {}
        for record in self.records:
            step = record['step']
            place = (step, float(np.interp(step, steps, tokens)),
                     float(np.interp(step, steps, flops)))
            for name, value in record.items():
                if name.startswith(('train/', 'eval/')):
                    result.setdefault(name, []).append((*place, value))
        return result

    def _work(self) -> tuple[list[float], list[float], list[float]]:
        """Steps, and tokens (no padding) and training FLOPs up to each."""
        steps, tokens, flops = [0.0], [0.0], [0.0]
        phases = self._phases()
        model = _model(self.folder) if phases else None
        share = 1.0  # of a row's length that is no padding
        for record in self.records:
            if not phases or 'train/loss' not in record or record['step'] <= steps[-1]:
                continue
            step = record['step']
            phase = next((p for p in phases if step <= p['end']), phases[-1])
            rows, length = phase['batch_size'], phase['max_seq_length']
            if record.get('train/sequences_per_second') and record.get('train/tokens_per_second'):
                share = (record['train/tokens_per_second']
                         / record['train/sequences_per_second'] / length)
            if model is None:
                a_step = 0.0
            elif (head := self.fields.get('head', '')) == 'pretraining':
                a_step = whole_step_flops(
                    model, {'packed_rows': 0} | phase, self.fields.get('optimizer.name', ''))
            else:  # rows are packed; an old run may not say its head
                features = self.fields.get('inference.features') or 'concat_last_four'
                trained = HEADS[head or Tagging.name].of_model(model, 1, {'features': features})
                a_step = rows * length * share * trained.token_flops(length)
            new_steps = step - steps[-1]
            steps.append(step)
            tokens.append(tokens[-1] + new_steps * rows * length * share)
            flops.append(flops[-1] + new_steps * a_step)
        return steps, tokens, flops

    def _phases(self) -> list[dict[str, Any]]:
        """The phases, each with the step that it `end`s with."""
        result, end = [], 0
        for phase in self.fields.get('phases') or ():
            end += phase['steps']
            result.append(dict(phase, end=end))
        return result

    def gates(self) -> dict[str, list[int]]:
        """The steps at which each gate has spoken."""
        result: dict[str, list[int]] = {}
        for record in self.records:
            for name in record:
                if name.startswith('gate/'):
                    result.setdefault(name.removeprefix('gate/'), []).append(record['step'])
        return result

    def results(self) -> dict[str, str]:
        """The scores of the best evaluation where the run keeps it, else of the last; and what the
        run has done up to there."""
        evaluations = [r for r in self.records if any(n.startswith('eval/') for n in r)]
        if not evaluations:
            return {}
        chosen, what = evaluations[-1], 'last'
        metric = f"eval/{self.fields.get('metric')}"
        if whole_steps(self.folder / 'best') and all(metric in r for r in evaluations):
            chosen, what = max(evaluations, key=lambda r: r[metric]), 'best'
        steps, tokens, flops = self._work()
        step = chosen['step']
        return {
            'evaluation': f'{what}, step {step:,}',
            'tokens': count(float(np.interp(step, steps, tokens))),
            'FLOPs': f'{np.interp(step, steps, flops):.2e}',
            **{name.removeprefix('eval/'): f'{value:.4f}' for name, value in chosen.items()
               if name.startswith('eval/')},
        }

    def speed(self) -> dict[str, str]:
        """Medians over the log lines, and the goodput."""
        def of(name: str) -> float | None:
            values = [r[f'train/{name}'] for r in self.records if f'train/{name}' in r]
            if not values:
                return None
            return values[-1] if name == 'goodput' else statistics.median(values)

        shown = {
            'sequences/s': (of('sequences_per_second'), count),
            'tokens/s': (of('tokens_per_second'), count),
            'waiting for data': (of('data_wait'), '{:.1%}'.format),
            'MFU': (of('mfu'), '{:.1%}'.format),
            'goodput': (of('goodput'), '{:.1%}'.format),
        }
        return {name: form(value) for name, (value, form) in shown.items() if value is not None}

    def seconds(self) -> dict[str, float]:
        """Seconds by cause, from the last record that has them."""
        return _seconds(self.records)


def read_run(folder: Path, name: str) -> RunRecords:
    """Reads a run directory of a run that is over, going on, or was killed.

    Raises:
      InputError: it is no run directory, or a file in it is not as it was written.
    """
    has_config = (folder / 'config.json').exists()
    records = read_records(folder / 'metrics.jsonl')
    if not has_config and not (folder / 'metrics.jsonl').exists():
        raise InputError(
            f'{folder} is no run directory: it has neither config.json nor metrics.jsonl')
    fields = read_run_fields(folder) if has_config else {}
    missing = []
    if not has_config:
        missing.append('no config.json: no settings, tokens, FLOPs or weights')
    if not records:
        missing.append('no records in metrics.jsonl: no curves, speed or results')
    elif not any(name.startswith('eval/') for record in records for name in record):
        missing.append('no evaluation so far: no results')
    elif fields and not fields.get('phases'):
        missing.append('config.json has no phases: no tokens or FLOPs')
    return RunRecords(name, folder, fields, records, _state(folder, fields, records), missing)


def _state(folder: Path, fields: Mapping[str, Any], records: Sequence[Record]) -> str:
    step, total = max((r['step'] for r in records), default=0), fields.get('train.steps')
    seconds = sum(_seconds(records).values())
    took = f' in {duration(seconds)}' if seconds else ''
    if total and step >= total:
        return f'finished: {step:,} steps{took}'
    where = f'step {step:,} of {total:,}' if total else f'step {step:,}'
    if who := holder(folder):
        return f'{where}{took}, going on ({who})'
    return f'{where}{took}, stopped'


def _seconds(records: Sequence[Record]) -> dict[str, float]:
    last = next((r for r in reversed(records) if 'time/step' in r), {})
    return {name.removeprefix('time/'): value for name, value in last.items()
            if name.startswith('time/') and value > 0}


def _model(folder: Path) -> ModelConfig:
    return ModelConfig(**read_description(folder).model)


def differences(runs: Sequence[RunRecords]) -> dict[str, list[str]]:
    """The fields that are not alike in all runs, with the value of each; '' where it has none."""
    names = dict.fromkeys(name for run in runs for name in run.fields)
    result = {}
    for name in names:
        values = [repr(run.fields[name]) if name in run.fields else '' for run in runs]
        if len(set(values)) > 1:
            result[name] = values
    return result


_AXES = ('steps', 'tokens', 'FLOPs')
_NUM_COLOURS, _DASHES = 8, ('', '7 3', '2 3', '9 3 2 3')  # as report.css and report.js have them
# Curves of how the run went, not of what it learnt; and what is another of them by a formula.
_OF_SPEED = ('sequences_per_second', 'tokens_per_second', 'data_wait', 'mfu', 'goodput')
_NOT_DRAWN = ('mlm_perplexity', 'lm_perplexity')


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of the report's sentence that a run's weights can make."""

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
    result = differences(runs)
    if len(runs) == 1:
        return ''
    if not result:
        return '<p>None.</p>'
    return _table(runs, [
        {name: values[i] for name, values in result.items()} for i in range(len(runs))
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


_TOP = 5
_MOST_WORDS = 30  # a picture of more cannot be read, and a large model's would make a large page
_WORD = re.compile(r'\w+')


def check_text(text: str) -> None:
    """Raises:
      InputError: a text that the page cannot be made of.
    """
    if MASK in text:
        raise InputError(f'--text has {MASK}: write it without, each word is masked in turn')
    if not 0 < (words := len(_WORD.findall(text))) <= _MOST_WORDS:
        raise InputError(f'--text has {words} words: give one sentence, of at most {_MOST_WORDS}')


def masked_words(model: Model, text: str) -> list[dict[str, Any]]:
    """Each word of a text masked in turn: {'word', 'guesses': [(token, probability), ...]}.

    One [MASK] stands for a word, so a word of several pieces cannot be guessed.
    """
    words = list(_WORD.finditer(text))
    masked = [text[: word.start()] + MASK + text[word.end() :] for word in words]
    return [
        {'word': word.group(),
         'guesses': [(p['token'], p['probability']) for p in answer['predictions']]}
        for word, answer in zip(words, model.fill_mask(masked, _TOP), strict=True)
    ]


def heads(model: Model, text: str) -> dict[str, Any]:
    """Attention as the page draws it.

    Returns:
      {'tokens', 'layers', 'heads', 'values': base64 of bytes [layers, heads, n, n], each a
      probability in parts of 255}.
    """
    result = attention(model, text)
    values = np.round(result['probabilities'] * 255).astype(np.uint8)
    return {
        'tokens': result['tokens'], 'layers': values.shape[0], 'heads': values.shape[1],
        'values': base64.b64encode(values.tobytes()).decode(),
    }


def neighbours(model: Model, text: str) -> list[dict[str, Any]]:
    """The pieces of a text with the nearest rows of the word table, by the cosine:
    {'word', 'nearest': [(token, cosine), ...]}."""
    vocab = model.vocab
    known = np.array([re.fullmatch(r'\[.+\]', token) is None for token in vocab.tokens])
    table = model.weights.params['bert/embeddings/word_embeddings'][: len(vocab)].astype(np.float32)
    table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    wanted = [i for i in dict.fromkeys(model.tokenizer.encode(text))
              if known[i] and _WORD.search(vocab.tokens[i].removeprefix(CONTINUATION))]
    result = []
    for i in wanted:
        cosines = np.where(known, table @ table[i], -np.inf)
        cosines[i] = -np.inf
        best = np.argsort(-cosines, kind='stable')[: min(_TOP, int(known.sum()) - 1)]
        result.append({'word': vocab.tokens[i],
                      'nearest': [(vocab.tokens[j], float(cosines[j])) for j in best]})
    return result


_TEXT = 'The old town lies on the river, and the king lived in the castle for many years.'


def report(folders: Sequence[str], output: str, text: str = _TEXT) -> None:
    """Writes the page.

    Args:
      folders: run directories.
      output: a new file.
      text: the sentence of the examples.

    Raises:
      InputError: a folder is no run, the text cannot be used, or `output` not be written.
    """

    check_new_file(output, '--output')
    check_text(text)
    paths = [as_path(folder) for folder in folders]
    runs = [read_run(path, name) for path, name in zip(paths, _names(folders), strict=True)]
    examples = [_examples(run, text) for run in runs]
    write_whole(output, page(runs, examples, text))
    for run in runs:
        print(f'{run.name}: {run.state}' + ''.join(f'; {line}' for line in run.missing))
    print(f'written: {output}')


def _names(folders: Sequence[str]) -> list[str]:
    """The last part of each path, or as many as tell them apart.

    Raises:
      InputError: a folder is named twice.
    """
    parts = [os.path.abspath(folder).split(os.sep) for folder in folders]
    if twice := next((f for i, f in enumerate(folders) if parts[i] in parts[:i]), None):
        raise InputError(f'{twice} is named twice: name each run once')
    for num in range(1, max(map(len, parts)) + 1):
        names = [os.sep.join(part[-num:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise AssertionError(folders)


def _examples(run: Any, text: str) -> Any:
    """Makes the examples of a run; those that its weights cannot make are listed as missing."""
    from bert_jax.predict import load

    try:
        model = load(run.folder)
        model.note = run.missing.append
        model.tokenizer  # noqa: B018 - whether there is a vocabulary
    except InputError as error:
        run.missing.append(f'no masked words, attention or nearest words: {error}')
        return Examples()

    def tried(what: str, make: Callable[..., Any]) -> Any:
        try:
            return make(model, text)
        except InputError as error:
            run.missing.append(f'no {what}: {error}')
            return None

    return Examples(
        tried('masked words', masked_words), tried('attention', heads), neighbours(model, text))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m bert_jax.tools.report', description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('runs', metavar='RUN', nargs='+', help='run directories')
    parser.add_argument('--output', required=True, help='the page, a new file')
    parser.add_argument('--text', default=_TEXT, help='the sentence of the examples')
    options = parser.parse_args(arguments)
    with error_boundary(writing=options.output):
        report(options.runs, options.output, options.text)
    return 0


if __name__ == '__main__':
    sys.exit(main())
