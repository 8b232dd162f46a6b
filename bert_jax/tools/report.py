"""Shows runs beside each other on one HTML page that needs no other file.

    python -m bert_jax.tools.report RUN [RUN ...] --output=report.html

The page has curves over steps, tokens and FLOPs, speed and where the time went, results, settings
that differ and warnings; and from each run's weights masked words, attention and nearest words of a
sentence. A run that is going on, was killed or has no checkpoint is shown as far as it got, and the
page lists what is missing.

Exit status: 0 done, 2 bad input.
"""

from __future__ import annotations

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import base64
import bisect
import dataclasses
import functools
import itertools
import json
import re
import statistics
import string
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from bert_jax.config.command_line import Parser
from bert_jax.heads import HEADS
from bert_jax.heads.tokens import Tagging
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.predict import load
from bert_jax.predict.commands import Model
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, check_new_file, write_whole
from bert_jax.runtime.lease import holder
from bert_jax.runtime.process import error_boundary
from bert_jax.tasks.pretrain import step_flops
from bert_jax.text.vocab import CONTINUATION, MASK
from bert_jax.train.gates import MEANINGS
from bert_jax.train.report import count, duration, read_records
from bert_jax.train.sharding import Layout
from bert_jax.train.workdirs import read_run_fields
from bert_jax.weights.run_directory import read_description, whole_steps

Words = list[tuple[str, list[tuple[str, float]]]]  # words, each with others and their numbers
Examples = dict[str, Any]  # `nearest words`, `masked words`, `attention`: what the weights can make
_TEXT = 'The old town lies on the river, and the king lived in the castle for many years.'
_TOP = 5
_MOST_WORDS = 30  # attention over more is illegible, and a large model would make a large page
_WORD = re.compile(r'\w+')
_AXES = ('steps', 'tokens', 'FLOPs')
_NUM_COLOURS, _DASHES = 8, ('', '7 3', '2 3', '9 3 2 3')  # as in report.css and report.js
_OF_SPEED = ('sequences_per_second', 'tokens_per_second', 'data_wait', 'mfu', 'goodput',
             'step_seconds', 'step_seconds_deviation')
_NOT_DRAWN = ('mlm_perplexity', 'lm_perplexity')  # functions of the loss


class RunRecords:
    """A run without its weights, be it finished, going on, or killed.

    Attributes:
      name: its name on the page.
      label: the same in HTML, with its line as in the curves.
      folder: its directory.
      fields: of its config.json, by dotted name; empty without one.
      records: of its metrics.jsonl, in order.
      evaluations: those of them that have metrics of held-out data.
      state: how far it is, in words.
      missing: what the page cannot show of it, and why.
      seconds: by cause.
    """

    def __init__(self, folder: Path, name: str, number: int = 0):
        """Reads the directory of the run with a number on the page.

        Raises:
          InputError: it is no run directory, or a file in it is damaged.
        """
        has_config = (folder / 'config.json').exists()
        if not has_config and not (folder / 'metrics.jsonl').exists():
            raise InputError(
                f'{folder} is no run directory: it has neither config.json nor metrics.jsonl')
        self.name, self.folder = name, folder
        self.label = (
            '<svg class="key" viewBox="0 0 24 10" aria-hidden="true"><line x1="0" x2="24" y1="5" '
            f'y2="5" stroke="var(--run{number % _NUM_COLOURS})" '
            f'stroke-dasharray="{_DASHES[number // 2 % 4]}"/></svg>{escape(name)}')
        self.records = read_records(folder / 'metrics.jsonl')
        self.fields: dict[str, Any] = read_run_fields(folder) if has_config else {}
        self.evaluations = [
            r for r in self.records if any(name.startswith('eval/') for name in r)]
        self.missing = []
        if not has_config:
            self.missing.append('no config.json: no settings, tokens, FLOPs or weights')
        if not self.records:
            self.missing.append('no records in metrics.jsonl: no curves, speed or results')
        elif not self.evaluations:
            self.missing.append('no evaluation so far: no results')
        elif has_config and not self.fields.get('phases'):
            self.missing.append('config.json has no phases: no tokens or FLOPs')
        timed = [record for record in self.records if 'time/step' in record]
        self.seconds = {name.removeprefix('time/'): value for name, value in timed[-1].items()
                        if name.startswith('time/') and value > 0} if timed else {}
        step = max((r['step'] for r in self.records), default=0)
        total, seconds = self.fields.get('train.steps'), sum(self.seconds.values())
        took = f' in {duration(seconds)}' if seconds else ''
        if total and step >= total:
            self.state = f'finished: {step:,} steps{took}'
        else:
            who = holder(folder)
            self.state = (f'step {step:,}' + (f' of {total:,}' if total else '') + took
                          + (f', going on ({who})' if who else ', stopped'))

    def curves(self) -> dict[str, list[tuple[float, float, float, float]]]:
        """Points (step, tokens, FLOPs so far, value) of every `train/...` and `eval/...`."""
        result: dict[str, list[tuple[float, float, float, float]]] = {}
        for record in self.records:
            place = (record['step'], *self.work_at(record['step']))
            for name, value in record.items():
                if name.startswith(('train/', 'eval/')):
                    result.setdefault(name, []).append((*place, value))
        return result

    def work_at(self, step: int) -> tuple[float, float]:
        """Tokens without padding, and training FLOPs, up to a step."""
        steps, tokens, flops = zip(*self._work)
        return float(np.interp(step, steps, tokens)), float(np.interp(step, steps, flops))

    @functools.cached_property
    def _work(self) -> list[tuple[float, float, float]]:
        """(Step, tokens, FLOPs) at each log line."""
        result = [(0.0, 0.0, 0.0)]
        phases = self.fields.get('phases')
        if not phases:
            return result
        ends = list(itertools.accumulate(phase['steps'] for phase in phases))
        model = ModelConfig(**read_description(self.folder).model)
        head = self.fields.get('head') or Tagging.name  # rows are packed; old runs lack the field
        features = self.fields.get('inference.features') or 'concat_last_four'
        share = 1.0  # of a row's length that is not padding
        for record in self.records:
            step, tokens, flops = record['step'], *result[-1][1:]
            if 'train/loss' not in record or step <= result[-1][0]:
                continue
            phase = {'packed_rows': 0} | phases[min(bisect.bisect_left(ends, step), len(ends) - 1)]
            rows, length = phase['batch_size'], phase['max_seq_length']
            if record.get('train/sequences_per_second') and record.get('train/tokens_per_second'):
                share = (record['train/tokens_per_second']
                         / record['train/sequences_per_second'] / length)
            if head == 'pretraining':
                a_step = step_flops(model, phase, self.fields.get('optimizer.name', ''))
            else:
                trained = HEADS[head].of_model(model, 1, {'features': features})
                a_step = rows * length * share * trained.token_flops(length)
            steps = step - result[-1][0]
            result.append((step, tokens + steps * rows * length * share, flops + steps * a_step))
        return result

    def results(self) -> dict[str, str]:
        """The scores of the best evaluation if the run keeps its weights, else of the last; and the
        work up to it."""
        if not (evaluations := self.evaluations):
            return {}
        chosen, what = evaluations[-1], 'last'
        metric = f"eval/{self.fields.get('metric')}"
        if whole_steps(self.folder / 'best') and all(metric in r for r in evaluations):
            chosen, what = max(evaluations, key=lambda r: r[metric]), 'best'
        tokens, flops = self.work_at(chosen['step'])
        return {
            'evaluation': f"{what}, step {chosen['step']:,}",
            'tokens': count(tokens), 'FLOPs': f'{flops:.2e}',
            **{name.removeprefix('eval/'): f'{value:.4f}' for name, value in chosen.items()
               if name.startswith('eval/')},
        }

    def speed(self) -> dict[str, str]:
        """Medians over the log lines, and the goodput of the whole run."""
        share = '{:.1%}'.format
        result = {}
        for title, name, form, summary in (
            ('sequences/s', 'sequences_per_second', count, statistics.median),
            ('tokens/s', 'tokens_per_second', count, statistics.median),
            ('waiting for data', 'data_wait', share, statistics.median),
            ('MFU', 'mfu', share, statistics.median),
            ('goodput', 'goodput', share, lambda values: values[-1]),
        ):
            if values := [r[f'train/{name}'] for r in self.records if f'train/{name}' in r]:
                result[title] = form(summary(values))
        return result


def page(runs: Sequence[RunRecords], examples: Sequence[Examples], text: str) -> str:
    """The whole page, of runs with their examples of a text."""
    curves = [run.curves() for run in runs]
    times = [{cause: f'{duration(value)} ({value / sum(run.seconds.values()):.1%})'
              for cause, value in sorted(run.seconds.items(), key=lambda item: -item[1])}
             for run in runs]
    sections = [
        ('runs', 'Runs', _runs(runs)),
        ('gates', 'Warnings', _gates(runs)),
        ('results', 'Results', _table(runs, [run.results() for run in runs])),
        ('curves', 'Curves', '<p>' + ' '.join(run.label for run in runs) + '</p>\n'
         '<p class="note">Thin lines: training; thick ones with dots: held out. Tokens do not '
         'count padding; FLOPs are of training, by the formula of bert_jax/model/flops.py.</p>'
         if any(curves) else ''),
        ('speed', 'Speed and time', _table(runs, [run.speed() for run in runs])
         + _table(runs, times, 'Time by cause; lost: steps that a kill undid.')),
        ('settings', 'Settings that differ', _settings(runs)),
        ('masked', 'Masked words', _words(
            runs, [e.get('masked words') for e in examples], ['word', 'guesses'], '{:.1%}',
            'Each word masked in turn, with the five likeliest pieces in its place.')),
        ('attention', 'Attention', f'<p class="note">{escape(text)} Each token is a row; darker '
         'columns are tokens that it attends to more.</p>'
         if any(e.get('attention') for e in examples) else ''),
        ('nearest', 'Nearest words', _words(
            runs, [e.get('nearest words') for e in examples], ['piece', 'nearest'], '{:.2f}',
            'Pieces with the most similar rows of the word table, by cosine.')),
    ]
    sections = [section for section in sections if section[2]]
    data = {
        'runs': [run.name for run in runs], 'axes': _AXES, 'charts': _charts(curves),
        'attention': [e.get('attention') for e in examples],
    }
    html, style, script = (
        (as_path(__file__).parent / f'report.{ending}').read_text(encoding='utf-8')
        for ending in ('html', 'css', 'js'))
    return string.Template(html).substitute(
        title=escape(', '.join(run.name for run in runs)), style=style, script=script,
        links='\n'.join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections),
        sections='\n'.join(f'<section id="{name}">\n<h2>{title}</h2>\n{content}\n</section>'
                           for name, title, content in sections),
        # Without `<`, no string of the data can end its element.
        data=json.dumps(data, allow_nan=False).replace('<', '\\u003c'),
    )


def _grid(heading: Sequence[str], rows: Iterable[Sequence[str]], caption: str = '') -> str:
    """A table of HTML; the first cell of each row is its heading."""
    head = ''.join(f'<th scope="col">{cell}</th>' if cell else '<td></td>' for cell in heading)
    body = ''.join(
        f'<tr><th scope="row">{first}</th>' + ''.join(f'<td>{cell}</td>' for cell in cells)
        + '</tr>\n' for first, *cells in rows)
    caption = f'<caption>{caption}</caption>' if caption else ''
    return (f'<div class="wide" tabindex="0"><table>{caption}<thead><tr>{head}</tr></thead>\n'
            f'<tbody>{body}</tbody></table></div>')


def _table(runs: Sequence[RunRecords], values: Sequence[Mapping[str, str]], note: str = '') -> str:
    """A row for each name, a column for each run; '' where there is nothing to show."""
    names = dict.fromkeys(itertools.chain(*values))
    rows = [[escape(name), *(escape(of_run.get(name, '')) for of_run in values)] for name in names]
    return _grid(['', *(run.label for run in runs)], rows, escape(note)) if rows else ''


def _runs(runs: Sequence[RunRecords]) -> str:
    parts = []
    for run in runs:
        f = run.fields
        model = (f"{f['model.num_layers']} layers of {f['model.hidden_size']}, "
                 f"{f['model.num_heads']} heads" if 'model.num_layers' in f else '')
        what = ', '.join(filter(None, (str(f.get('task', '')), model)))
        parts.append(f'<h3>{run.label}</h3>\n<p>{escape(str(run.folder))}<br>'
                     f"{escape('; '.join(filter(None, (what, run.state))))}</p>")
        if run.missing:
            lines = ''.join(f'<li>{escape(line)}</li>' for line in run.missing)
            parts.append(f'<ul class="note">{lines}</ul>')
    return '\n'.join(parts)


def _gates(runs: Sequence[RunRecords]) -> str:
    """The steps at which each gate warned."""
    rows = []
    for run in runs:
        names = dict.fromkeys(n for r in run.records for n in r if n.startswith('gate/'))
        for name in names:
            first, *more = (r['step'] for r in run.records if name in r)
            times = f'step {first:,}' + (
                f' and {len(more)} more, the last at {more[-1]:,}' if more else '')
            gate = name.removeprefix('gate/')
            rows.append(f'<li>{run.label}, {times}: <b>{escape(gate)}</b>, '
                        f"{escape(MEANINGS.get(gate, ''))}</li>")
    return f"<ul class=\"spoken\">{''.join(rows)}</ul>" if rows else ''


def _charts(curves: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """{title of a group: charts}; a metric's training and held-out points in one chart."""
    groups: dict[str, list[dict[str, Any]]] = {'': [], 'How it ran': []}
    for name in dict.fromkeys(name.partition('/')[2] for of_run in curves for name in of_run):
        if name not in _NOT_DRAWN:
            groups['How it ran' if name in _OF_SPEED else ''].append({
                'title': name.replace('_', ' '), 'series': [
                    {'run': i, 'held_out': split == 'eval', 'points': of_run[f'{split}/{name}']}
                    for i, of_run in enumerate(curves) for split in ('train', 'eval')
                    if f'{split}/{name}' in of_run
                ]})
    return {title: charts for title, charts in groups.items() if charts}


def _settings(runs: Sequence[RunRecords]) -> str:
    if len(runs) == 1:
        return ''
    values = [{name: repr(value) for name, value in run.fields.items()} for run in runs]
    names = [name for name in dict.fromkeys(itertools.chain(*values))
             if len({of_run.get(name) for of_run in values}) > 1]
    return _table(runs, [{name: of_run.get(name, '') for name in names} for of_run in values]) or (
        '<p>None.</p>')


def _words(
    runs: Sequence[RunRecords], words: Sequence[Words | None], heading: Sequence[str], form: str,
    note: str,
) -> str:
    """A table for each run: words, each with others and their numbers."""
    tables = []
    for run, of_run in zip(runs, words, strict=True):
        rows = []
        for word, others in of_run or ():
            guesses = []
            for token, number in others:
                right = ' true' if token.lower() == word.lower() else ''
                guesses.append(f'<span class="guess{right}"><bdi>{escape(token)}</bdi>&nbsp;'
                               f'{form.format(number)}</span>')
            rows.append([escape(word), ' '.join(guesses)])
        if rows:
            tables.append(_grid(heading, rows, run.label))
    return f'<p class="note">{note}</p>\n<div class="grid words">' + '\n'.join(
        tables) + '</div>' if tables else ''


def masked_words(model: Model, text: str) -> Words:
    """Each word of a text masked in turn, with the likeliest pieces and their probabilities.

    One [MASK] replaces a word, so a word of several pieces cannot be guessed.
    """
    words = list(_WORD.finditer(text))
    answers = model.fill_mask(
        [text[: word.start()] + MASK + text[word.end() :] for word in words], _TOP)
    return [(word.group(), [(p['token'], p['probability']) for p in answer['predictions']])
            for word, answer in zip(words, answers, strict=True)]


def attention(model: Model, text: str) -> tuple[list[str], np.ndarray]:
    """The tokens of a text, and attention probabilities [layers, heads, n (queries), n (keys)]."""
    vocab = model.vocab
    ids = [vocab.cls_id, *model.encode(text)[: model.max_length - 2], vocab.sep_id]
    config = dataclasses.replace(model.config, attention='xla', layout=Layout())
    row, ones = np.array([ids], np.int32), np.ones((1, len(ids)), np.int32)
    _, kept = Bert(config, pooled=False).apply(
        {'params': model.params['bert']}, row, ones, 0 * ones, mutable=['intermediates'])
    layers = kept['intermediates']['encoder']
    return [vocab.tokens[i] for i in ids], np.stack([
        layers[f'layer_{i}']['attention']['self']['probabilities'][0][0]
        for i in range(config.num_layers)]).astype(np.float32)


def heads(model: Model, text: str) -> dict[str, Any]:
    """Attention as the page draws it.

    Returns:
      {'tokens', 'layers', 'heads', 'values': base64 of bytes [layers, heads, n, n], each a
      probability times 255}.
    """
    tokens, probabilities = attention(model, text)
    values = np.round(probabilities * 255).astype(np.uint8)
    return {'tokens': tokens, 'layers': values.shape[0], 'heads': values.shape[1],
            'values': base64.b64encode(values.tobytes()).decode()}


def neighbours(model: Model, text: str) -> Words:
    """The pieces of a text with the nearest rows of the word table and their cosines."""
    vocab = model.vocab
    known = np.array([re.fullmatch(r'\[.+\]', token) is None for token in vocab.tokens])
    table = model.weights.params['bert/embeddings/word_embeddings'][: len(vocab)].astype(np.float32)
    table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    result = []
    for i in dict.fromkeys(model.tokenizer.encode(text)):
        if known[i] and _WORD.search(vocab.tokens[i].removeprefix(CONTINUATION)):
            cosines = np.where(known, table @ table[i], -np.inf)
            cosines[i] = -np.inf
            best = np.argsort(-cosines, kind='stable')[: min(_TOP, int(known.sum()) - 1)]
            result.append((vocab.tokens[i], [(vocab.tokens[j], float(cosines[j])) for j in best]))
    return result


def _examples(run: RunRecords, text: str) -> Examples:
    """The examples of a run; those that its weights cannot make are listed as missing."""
    result: Examples = {}
    try:
        model = load(run.folder)
    except InputError as error:
        run.missing.append(f'no masked words, attention or nearest words: {error}')
        return result
    model.note = run.missing.append
    for key, make in (
        ('masked words', masked_words), ('attention', heads), ('nearest words', neighbours),
    ):
        try:
            result[key] = make(model, text)
        except InputError as error:
            run.missing.append(f'no {key}: {error}')
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser('bert_jax.tools.report', __doc__)
    parser.add_argument('runs', metavar='RUN', nargs='+', help='run directories')
    parser.add_argument('--output', required=True, help='the page, a new file')
    parser.add_argument('--text', default=_TEXT, help='the sentence of the examples')
    with error_boundary():
        options = parser.parse_args(arguments)
    folders, text = options.runs, options.text
    with error_boundary(writing=options.output):
        check_new_file(options.output, '--output')
        if MASK in text:
            raise InputError(f'--text has {MASK}: write it without, each word is masked in turn')
        if not 0 < (words := len(_WORD.findall(text))) <= _MOST_WORDS:
            raise InputError(
                f'--text has {words} words: give one sentence, of at most {_MOST_WORDS}')
        paths = [os.path.abspath(folder) for folder in folders]
        if twice := [folder for i, folder in enumerate(folders) if paths[i] in paths[:i]]:
            raise InputError(f'{twice[0]} is named twice: name each run once')
        above = os.path.commonpath([os.path.dirname(path) for path in paths])
        runs = [RunRecords(as_path(folder), os.path.relpath(paths[i], above), i)
                for i, folder in enumerate(folders)]
        write_whole(options.output, page(runs, [_examples(run, text) for run in runs], text))
        for run in runs:
            print(f'{run.name}: {run.state}' + ''.join(f'; {line}' for line in run.missing))
        print(f'written: {options.output}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
