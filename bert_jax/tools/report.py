"""Compares runs on one HTML page that needs no other file.

    python -m bert_jax.tools.report RUN [RUN ...] --output=report.html
    python -m bert_jax.tools.report --board RUN [RUN ...] --output=board.md

The page first says how far the score of each run is from the first run's, and whether the
difference may be chance or why the two cannot be compared. Runs that differ only in their seed form
a group: one column, one curve. Then come settings that differ, warnings, results, curves over
steps, tokens and FLOPs, and, from the weights of each group's first run, masked words and attention
of a sentence. A run that is going on, was killed or has no checkpoint is shown as far as it got,
and the page lists what is missing.

With --board it writes a Markdown table with a row for each recipe of pre-training: its cost, and
the scores of the given runs that started from it. The table says how rows are made.

Exit status: 0 done, 2 bad input.
"""

import base64
import bisect
import dataclasses
import functools
import itertools
import json
import math
import os
import re
import statistics
import string
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config.command_line import Parser
from bert_jax.config.fields import WITHOUT_A_SAY
from bert_jax.config.phases import PHASE_ROWS
from bert_jax.heads import HEADS
from bert_jax.heads.pretraining import Pretraining
from bert_jax.heads.tokens import Tagging
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.predict import load
from bert_jax.predict.commands import Model
from bert_jax.runtime.chips import find_chip
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, check_new_file, read_json, write_whole
from bert_jax.runtime.lease import holder
from bert_jax.runtime.process import error_boundary
from bert_jax.sharding import Layout
from bert_jax.tasks.pretrain import step_flops
from bert_jax.text.vocab import MASK
from bert_jax.tools.sweep import markdown
from bert_jax.train.gates import MEANINGS
from bert_jax.train.report import count, duration, read_records
from bert_jax.train.step import parameters_of
from bert_jax.train.workdirs import read_run_fields
from bert_jax.weights.run_directory import read_description, saved_steps

Words = list[tuple[str, list[tuple[str, float]]]]  # words, each with guesses and probabilities
Examples = dict[str, Any]  # `masked words` and `attention`, if the weights can make them
_TEXT = 'The old town lies on the river, and the king lived in the castle for many years.'
_TOP = 4
_MOST_WORDS = 30  # attention over more is illegible, and a large model would make a large page
_WORD = re.compile(r'\w+')
_AXES = ('steps', 'tokens', 'FLOPs')
_NUM_COLOURS, _DASHES = 8, ('', '7 3', '2 3', '9 3 2 3')  # as in report.css and report.js
_NOT_DRAWN = ('mlm_perplexity', 'standard_mlm_perplexity', 'lm_perplexity',  # follow from others
              'nsp_majority', 'sequences_per_second', 'step_seconds', 'step_seconds_deviation')
# Fields that do not affect the result, and those that follow from others.
_BESIDE = (*WITHOUT_A_SAY, 'made.', 'inference.', 'labels', 'head', 'metric', 'guessing.',
           'train.verify_every', 'train.eval_batch_size')
# Digests, and what `phases` says.
_NOT_SHOWN = (*_BESIDE, 'identity.', 'vocabulary', 'train.steps', 'train.batch_size',
              'train.packed_rows', 'data.max_seq_length', 'data.max_predictions_per_seq')
# What scores of pre-training depend on, besides the model and the text.
_HELD_OUT_ROWS = ('vocabulary', 'length of the last rows', 'train.max_eval_examples',
                  'data.next_sentence', 'data.random_next_prob', 'data.short_seq_prob',
                  'data.split_long_sentences')
_MASKING = ('data.masking', 'data.masked_lm_prob', 'data.mask_rate', 'data.random_rate')
_STANDARD = 'standard_'  # prefix of metrics under BERT's masking, in runs that mask differently


class RunRecords:
    """A run without its weights, whether it is finished, going on, or was killed.

    Attributes:
      name: its name on the page.
      folder: its directory.
      fields: of its config.json, by dotted name.
      records: of its metrics.jsonl, in order.
      evaluations: the records that have metrics of held-out data.
      metric: the metric that chooses the best evaluation.
      keeps_best: whether it keeps the weights of the best evaluation.
      scores: metrics of the best evaluation if it keeps that, else of the last; and its `step`.
      finished: whether it did all its steps.
      state: how far it is, in words.
      missing: what the page cannot show of it, and why.
      seconds: so far, by what they were spent on.
      num_params: number of parameters; 0 if its weights were not read.
    """

    def __init__(self, folder: Path, name: str):
        """Reads the directory of a run.

        Raises:
          InputError: it is no run directory, or a file in it is damaged.
        """
        self.name, self.folder, self.num_params = name, folder, 0
        self.records = read_records(folder / 'metrics.jsonl')
        self.fields: dict[str, Any] = read_run_fields(folder)
        self.evaluations = [r for r in self.records if any(name.startswith('eval/') for name in r)]
        self.metric = str(self.fields.get('metric', ''))
        metric = f'eval/{self.metric}'
        self.keeps_best = bool(self.evaluations and saved_steps(folder / 'best')) and all(
            metric in record for record in self.evaluations)
        chosen = (max(self.evaluations, key=lambda r: r[metric]) if self.keeps_best
                  else self.evaluations[-1] if self.evaluations else {})
        self.scores = {name.removeprefix('eval/'): value for name, value in chosen.items()}
        self.missing = [] if self.evaluations else ['no evaluation so far: no results']
        timed = [record for record in self.records if 'time/step' in record]
        self.seconds = {name.removeprefix('time/'): value for name, value in timed[-1].items()
                        if name.startswith('time/') and value > 0} if timed else {}
        step = max((r['step'] for r in self.records), default=0)
        total, seconds = self.fields.get('train.steps', 0), sum(self.seconds.values())
        took = f' in {duration(seconds)}' if seconds else ''
        self.finished = 0 < total <= step
        if self.finished:
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

    def work_at(self, step: float) -> tuple[float, float]:
        """(Tokens without padding, training FLOPs) up to a step."""
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


class Group(NamedTuple):
    """Runs that differ only in their seed.

    Attributes:
      name: what the runs' names have in common, or all of them.
      label: the name in HTML, with a sample of the group's line in the curves.
      runs: at least one.
    """

    name: str
    label: str
    runs: Sequence[RunRecords]

    def scores(self, name: str) -> list[float]:
        return [run.scores[name] for run in self.runs if name in run.scores]

    def curves(self) -> dict[str, list[list[float]]]:
        """The points of every `train/...` and `eval/...`, at the steps that all its runs have.

        A point is (step, tokens, FLOPs so far, mean, lowest and highest value).
        """
        result: dict[str, list[list[float]]] = {}
        first, *others = ({(name, point[0]): point for name, points in run.curves().items()
                           for point in points} for run in self.runs)
        for key in first:
            if all(key in other for other in others):
                *place, values = zip(*(of_run[key] for of_run in (first, *others)), strict=True)
                result.setdefault(key[0], []).append([
                    *map(statistics.fmean, (*place, values)), min(values), max(values)])
        return result

    def phases(self) -> list[tuple[float, float, float, int]]:
        """(Steps, tokens, FLOPs, length of rows) where each phase but the first begins."""
        run, phases = self.runs[0], self.runs[0].fields.get('phases') or ()
        ends = itertools.accumulate(phase['steps'] for phase in phases)
        return [(end, *run.work_at(end), phase['max_seq_length'])
                for end, phase in zip(ends, phases[1:], strict=False)]

    def results(self) -> dict[str, str]:
        """What was trained, and its scores with their deviation over the seeds, as text by name."""
        run, result = self.runs[0], {}
        if run.num_params:
            result['parameters'] = count(run.num_params)
        if run.scores:
            tokens, flops = run.work_at(run.scores['step'])
            steps = ' or '.join(f'{step:,.0f}' for step in sorted({*self.scores('step')}))
            result |= {'evaluation': f"{'best' if run.keeps_best else 'last'}, step {steps}",
                       'tokens': count(tokens), 'FLOPs': f'{flops:.2e}'}
        result |= {name: _spread(self.scores(name)) for name in run.scores if name != 'step'}
        for name, form in (('tokens_per_second', count), ('mfu', '{:.1%}'.format)):
            if values := [r[f'train/{name}'] for one in self.runs for r in one.records
                          if f'train/{name}' in r]:
                result[name] = form(statistics.median(values))
        return result

    def settings(self) -> dict[str, str]:
        """The settings that the page compares, as HTML by name."""
        first = self.runs[0]
        values = [run.fields | {'phases': ', '.join(
            f"{p['steps']:,} steps of {p['batch_size']} rows of {p['max_seq_length']}"
            + ''.join(f', {name} {p[name]}' for name in PHASE_ROWS if name in p)
            for p in run.fields.get('phases') or ())} for run in self.runs]
        return {name: ', '.join(dict.fromkeys(escape(str(x[name])) for x in values))
                for name in values[0] if not _is_among(_NOT_SHOWN, name, first)}


def _is_among(prefixes: tuple[str, ...], name: str, run: RunRecords) -> bool:
    """Whether a field of a run begins with one of these.

    `train.eval_every` does not where the result is the best of the evaluations: their interval
    affects it.
    """
    return name.startswith(prefixes) and not (run.keeps_best and name == 'train.eval_every')


def grouped(runs: Iterable[RunRecords]) -> list[Group]:
    """Groups finished runs by all fields that affect the result, except the seed.

    A run that is not finished is a group by itself.
    """
    found: dict[str, list[RunRecords]] = {}
    for run in runs:
        fields = {name: value for name, value in run.fields.items()
                  if name != 'seed' and not _is_among(_BESIDE, name, run)}
        unfinished = '' if run.finished else run.name
        found.setdefault(f'{sorted(fields.items())} {unfinished}', []).append(run)
    result: list[Group] = []
    for i, of_group in enumerate(found.values()):
        names = [run.name for run in of_group]
        name = re.sub(r'[\W_]*(seed)?[\W_]*$', '', os.path.commonprefix(names))
        if len(names) == 1 or not name or name in {group.name for group in result}:
            name = ', '.join(names)
        result.append(Group(name, (
            '<svg class="key" viewBox="0 0 24 10" aria-hidden="true"><line x1="0" x2="24" y1="5" '
            f'y2="5" stroke="var(--run{i % _NUM_COLOURS})" '
            f'stroke-dasharray="{_DASHES[i // 2 % 4]}"/></svg>\u2060{escape(name)}'), of_group))
    return result


def intervals(samples: Sequence[Sequence[float]]) -> list[float]:
    """Half widths of the 95 % intervals of each sample's mean minus the first one's.

    Student's t with the deviation pooled over all samples, as the two seeds of one estimate it
    badly, and Bonferroni's correction for the number of differences. NaN if no sample has two
    values, or there is only one sample.
    """
    from scipy import stats

    freedom = sum(map(len, samples)) - len(samples)
    if not freedom or len(samples) < 2:
        return [math.nan] * len(samples)
    squares = sum((len(x) - 1) * statistics.variance(x) for x in samples if len(x) > 1)
    width = stats.t.ppf(1 - 0.025 / (len(samples) - 1), freedom) * math.sqrt(squares / freedom)
    return [float(width) * math.sqrt(1 / len(x) + 1 / len(samples[0])) for x in samples]


def incomparable(run: RunRecords, first: RunRecords) -> str:
    """Why the scores of two runs cannot be compared; '' if they can."""
    if not (run.finished and run.scores):
        return run.state
    a, b = ({**r.fields, 'metric': r.metric.removeprefix(_STANDARD), 'length of the last rows':
            (r.fields.get('phases') or [{}])[-1].get('max_seq_length')} for r in (run, first))
    rows = () if a.get('task') != 'pretrain' else _HELD_OUT_ROWS if any(
        r.metric.startswith(_STANDARD) for r in (run, first)) else (*_HELD_OUT_ROWS, *_MASKING)
    source = 'data.eval_source' if b.get('data.eval_source') else 'data.source'
    for what, names in (('another ', ('task', 'metric', source)),
                        ('its held-out rows have another ', rows)):
        if others := [name for name in names if a.get(name) != b.get(name)]:
            return what + ', '.join(others)
    return ''


def _spread(values: Sequence[float]) -> str:
    deviation = f' ± {statistics.stdev(values):.4f}' if len(values) > 1 else ''
    return f'{statistics.fmean(values):.4f}{deviation}' if values else ''


def _is_loss(name: str) -> bool:
    """Whether lower values of a metric are better."""
    return name.endswith(('loss', 'perplexity'))


def page(groups: Sequence[Group], examples: Sequence[Examples], text: str) -> str:
    """The whole HTML page, from groups of runs and the examples of each group's first run."""
    curves = [group.curves() for group in groups]
    guessing: dict[str, float] = {}
    for run in (run for group in reversed(groups) for run in group.runs):
        if share := run.scores.get('nsp_majority', 0.0):
            entropy = -sum(p * math.log(p) for p in (share, 1 - share) if p)
            guessing |= {'nsp_accuracy': share, 'nsp_loss': entropy}
        guessing |= {name.removeprefix('guessing.'): value for name, value in run.fields.items()
                     if name.startswith('guessing.')}
    sections = [
        ('short', 'In short', _in_short(groups, guessing)),
        ('settings', 'Settings that differ', _table(
            groups, [group.settings() for group in groups], differ=True)),
        ('gates', 'Warnings', _gates(groups)),
        ('results', 'Results', _table(groups, [group.results() for group in groups], best=True)),
        ('curves', 'Curves', '<p>' + ' '.join(group.label for group in groups) + '</p>\n'
         '<p class="note">Thin lines: training; thick ones with dots: held out; of several seeds '
         'their mean, shaded from the lowest to the highest. Where a vertical line stands, rows of '
         'that length begin. Steep beginnings are cut off. Tokens do not count padding; FLOPs are '
         'of training, by the formula of bert_jax/model/flops.py.</p>' if any(curves) else ''),
        ('masked', 'Masked words', _words(groups, [e.get('masked words') for e in examples])),
        ('attention', 'Attention', f'<p class="note">{escape(text)} Each token is a row; darker '
         'columns are tokens that it attends to more.</p>'
         if any(e.get('attention') for e in examples) else ''),
        ('runs', 'Runs', '<ul>' + ''.join(
            f"<li>{escape(run.name)}: {escape('; '.join([run.state, *run.missing]))}<br>"
            f'<span class="note">{escape(str(run.folder))}</span></li>'
            for group in groups for run in group.runs) + '</ul>'),
    ]
    sections = [section for section in sections if section[2]]
    data = {
        'runs': [group.name for group in groups], 'axes': _AXES, 'charts': _charts(curves),
        'phases': [group.phases() for group in groups],
        'guessing': {name.replace('_', ' '): value for name, value in guessing.items()},
        'attention': [e.get('attention') for e in examples],
    }
    html, style, script = (
        (as_path(__file__).parent / f'report.{ending}').read_text(encoding='utf-8')
        for ending in ('html', 'css', 'js'))
    return string.Template(html).substitute(
        title=escape(', '.join(group.name for group in groups)), style=style, script=script,
        links='\n'.join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections),
        sections='\n'.join(f'<section id="{name}">\n<h2>{title}</h2>\n{content}\n</section>'
                           for name, title, content in sections),
        # Without `<`, no string in the data can end the script element.
        data=json.dumps(data, allow_nan=False).replace('<', '\\u003c'))


def _grid(heading: Sequence[str], rows: Iterable[Sequence[str]], caption: str = '') -> str:
    """An HTML table; the first cell of each row is its heading."""
    head = ''.join(f'<th scope="col">{cell}</th>' if cell else '<td></td>' for cell in heading)
    body = ''.join(
        f'<tr><th scope="row">{first}</th>' + ''.join(f'<td>{cell}</td>' for cell in cells)
        + '</tr>\n' for first, *cells in rows)
    caption = f'<caption>{caption}</caption>' if caption else ''
    return (f'<div class="wide" tabindex="0"><table>{caption}<thead><tr>{head}</tr></thead>\n'
            f'<tbody>{body}</tbody></table></div>')


def _table(
    groups: Sequence[Group], values: Sequence[Mapping[str, str]], note: str = '', *,
    differ: bool = False, best: bool = False,
) -> str:
    """A table with a row for each name and a column for each group; '' if it has no rows.

    Args:
      groups: the columns.
      values: HTML by name, of each group.
      note: the caption.
      differ: whether to leave out rows whose cells are all equal.
      best: whether to make the best score of a row bold.
    """
    rows = []
    for name in dict.fromkeys(itertools.chain(*values)):
        cells = [of_group.get(name, '') for of_group in values]
        if differ and len(set(cells)) == 1:
            continue
        if best and len(scores := {statistics.fmean(x) for group in groups
                                   if (x := group.scores(name))}) > 1:
            top = (min if _is_loss(name) else max)(scores)
            cells = [f'<b>{cell}</b>' if (x := group.scores(name)) and statistics.fmean(x) == top
                     else cell for cell, group in zip(cells, groups, strict=True)]
        rows.append([escape(name).replace('_', ' ' if best else '_<wbr>'), *cells])
    return _grid(['', *(group.label for group in groups)], rows, note) if rows else ''


def _in_short(groups: Sequence[Group], guessing: Mapping[str, float]) -> str:
    """Each group's score, and how far it is from the first group's."""
    first, metric = groups[0], groups[0].runs[0].metric
    whys = [next(filter(None, (incomparable(run, first.runs[0]) for run in group.runs)), '')
            for group in groups]
    if whys[0]:
        return f'<p>{first.label}: {escape(whys[0])}; nothing is compared with it.</p>'
    scores = [group.scores(group.runs[0].metric) for group in groups]
    alike = [values for values, why in zip(scores, whys, strict=True) if not why]
    widths, rows = iter(intervals(alike)), []
    for group, values, why in zip(groups, scores, whys, strict=True):
        text = f'<b>not comparable</b>: {escape(why)}'
        if not why:
            width, gain = next(widths), statistics.fmean(values) - statistics.fmean(alike[0])
            verdict = 'within noise' if abs(gain) <= width else (
                'worse' if (gain < 0) != _is_loss(metric) else 'better')
            text = '' if group is first else f'{gain:+.4f}' if math.isnan(width) else (
                f'<b>{gain:+.4f}, {verdict}</b> ({gain - width:+.4f} to {gain + width:+.4f})')
        rows.append([group.label, str(len(group.runs)), _spread(values), text])
    if metric in guessing:
        rows.append(['guessing', '', f'{guessing[metric]:.4f}', ''])
    note = 'In brackets: where the difference lies, 95 % sure, by the deviation of all seeds.' if (
        any(len(values) > 1 for values in alike)) else (
        'What another seed alone changes is unknown: add runs with --config.seed=1, 2, ...')
    return _grid(['', 'seeds', escape(metric.replace('_', ' ')), f'minus {escape(first.name)}'],
                 rows) + f'<p class="note">{note}</p>'


def _gates(groups: Sequence[Group]) -> str:
    """The steps at which each gate warned."""
    found = [(run.name, gate, steps) for group in groups for run in group.runs for gate in MEANINGS
             if (steps := [r['step'] for r in run.records if f'gate/{gate}' in r])]
    return '<ul class="spoken">' + ''.join(
        f'<li>{escape(run)}, step {steps[0]:,}'
        f'{f" and {len(steps) - 1} more, to {steps[-1]:,}" * (len(steps) > 1)}: '
        f'<b>{gate}</b>, {escape(MEANINGS[gate])}</li>' for run, gate, steps in found
    ) + '</ul>' if found else ''


def _charts(curves: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The charts, each with a metric's training and held-out points."""
    names = dict.fromkeys(name.partition('/')[2] for of_run in curves for name in of_run)
    return [{'title': name.replace('_', ' '), 'series': [
        {'run': i, 'held_out': split == 'eval', 'points': of_run[f'{split}/{name}']}
        for i, of_run in enumerate(curves) for split in ('train', 'eval')
        if f'{split}/{name}' in of_run]} for name in names if name not in _NOT_DRAWN]


def _words(groups: Sequence[Group], words: Sequence[Words | None]) -> str:
    """A table with a row for each masked word and a column for the guesses of each group."""
    known = [(group.label, of_group) for group, of_group in zip(groups, words, strict=True)
             if of_group]
    rows = [[escape(of_word[0][0]), *(' '.join(
        f'<span class="guess{" true" * (token.lower() == word.lower())}"><bdi>{escape(token)}</bdi>'
        f'&nbsp;{share:.1%}</span>' for token, share in guesses) for word, guesses in of_word)]
        for of_word in zip(*(of_group for _, of_group in known), strict=True)]
    return _grid(['', *(label for label, _ in known)], rows, 'Each word masked in turn, with the '
                 'likeliest pieces in its place.') if rows else ''


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
    """Attention probabilities in the form that the page draws.

    Returns:
      {'tokens', 'layers', 'heads', 'values': base64 of bytes [layers, heads, n, n], each a
      probability times 255}.
    """
    tokens, probabilities = attention(model, text)
    values = np.round(probabilities * 255).astype(np.uint8)
    return {'tokens': tokens, 'layers': values.shape[0], 'heads': values.shape[1],
            'values': base64.b64encode(values.tobytes()).decode()}


def _examples(run: RunRecords, text: str) -> Examples:
    """The examples of a run; those that its weights cannot make are listed in `run.missing`."""
    result: Examples = {}
    try:
        model = load(run.folder)
        model.note = run.missing.append
        run.num_params = sum(x.size for x in model.weights.params.values())
        result['attention'] = heads(model, text)
        # A single [MASK] replaces a word, so a word of several pieces cannot be guessed.
        words = list(_WORD.finditer(text))
        answers = model.fill_mask(
            [text[: word.start()] + MASK + text[word.end() :] for word in words], _TOP)
        result['masked words'] = [
            (word.group(), [(p['token'], p['probability']) for p in answer['predictions']])
            for word, answer in zip(words, answers, strict=True)]
    except InputError as error:
        run.missing.append(f"no {'masked words' if result else 'examples'}: {error}")
    return result


def _made(run: RunRecords) -> tuple[str, str]:
    """(The recipe of a run, by its config or as its table names it, the command that made it)."""
    command = str(run.fields.get('made.command', ''))
    part, named = run.folder.parent.parent, re.search(r'--config[= ]\S*?([^/\s]+\.py\S*)', command)
    for path in part.parent.parent.glob('*.json') if part.parent.name == 'parts' else ():
        table = read_json(path, 'delete it, it is written again')
        if title := table.get('parts', {}).get(part.name):
            scale = f",{table['scale']}" * bool(table['source'])  # names of a user's rows have it
            return title.removeprefix('pre-training ') + scale, command
    return named[1] if named else '', command


def _downstream(
    pretrained: Sequence[RunRecords], runs: Iterable[RunRecords]
) -> dict[str, dict[int, float]]:
    """Scores by task and number of the pre-training, with the settings that are best over all."""
    numbers = {os.path.abspath(run.folder): number for number, run in enumerate(pretrained)}
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    for run in (run for run in runs if run.fields.get('task') != 'pretrain'):
        number = numbers.get(os.path.abspath(run.fields.get('init_checkpoint') or '/'))
        if number is not None and run.finished and run.evaluations:
            settings = str(sorted(item for item in run.fields.items() if not item[0].startswith(
                ('seed', 'init_', 'data.vocab_file', *_BESIDE))))
            score, task = run.evaluations[-1][f'eval/{run.metric}'], str(run.fields['task'])
            found.setdefault(task, {}).setdefault(settings, {}).setdefault(number, []).append(
                score if task.startswith('squad') else 100 * score)
    best = {task: max(of_task.values(), key=lambda of: (
        sum(map(len, of.values())), statistics.fmean(itertools.chain(*of.values()))))
        for task, of_task in found.items()}
    return {task: {number: statistics.fmean(scores) for number, scores in of.items()}
            for task, of in best.items()}


def _with_interval(values: Sequence[float]) -> str:
    """The mean of the values, and half the width of Student's 95 % interval."""
    from scipy import stats

    if len(values) < 2:
        return ''.join(f'{value:.2f}' for value in values)
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f'{statistics.fmean(values):.2f} ± {half:.2f}'


def board(runs: Sequence[RunRecords]) -> str:
    """The Markdown of a board of recipes, from runs of pre-training and of fine-tuning.

    Raises:
      InputError: none of the runs is a finished pre-training.
    """
    text = tomllib.loads((as_path(__file__).parent / 'board.toml').read_text(encoding='utf-8'))
    groups = grouped(run for run in runs if run.finished and run.scores
                     and run.fields.get('task') == 'pretrain')
    if not groups:
        raise InputError('--board: none of the runs is a finished pre-training')
    found = [_downstream(group.runs, runs) for group in groups]
    tasks, rows = sorted(set(itertools.chain(*found))), []
    for group, scores in zip(groups, found, strict=True):
        run, (name, command) = group.runs[0], _made(group.runs[0])
        model = ModelConfig(**read_description(run.folder).model)
        size = sum(p.value.size for p in parameters_of(Pretraining(model)).values())
        size -= (model.padded_vocab_size - model.vocab_size) * (model.hidden_size + 1)
        flops, counted = run.work_at(run.fields['train.steps'])[1], run.folder / 'preflight.json'
        hours = (f"{read_json(counted, 'delete it')['chip_hours']:.3g}" if counted.exists() else
                 f"≈ {flops / text['share_of_peak'] / find_chip('v5e').peak_flops / 3600:.2g}")
        means = [statistics.fmean(scores[t][n] for t in tasks) for n in range(len(group.runs))
                 if tasks and all(n in scores.get(t, ()) for t in tasks)]
        rows.append((size, flops, [
            name or group.name, f'{model.num_layers}/{model.hidden_size}', count(size),
            f'{flops:.2g}', hours, *map(_with_interval, (
                group.scores('standard_mlm_loss') or group.scores('mlm_loss'), means,
                *([*scores.get(task, {}).values()] for task in tasks))),
            str(len(group.runs)), str(run.fields.get('made.commit', '')),
            f'`{command}`' * bool(command)]))
    published = [[name, row['model'], row['parameters'], *[''] * 4, *(
        str(row['scores'].get(task, '')) for task in tasks), '', '', row['source']]
        for name, row in text['published'].items()]
    return '\n'.join([text['text'], *markdown(
        [*text['columns'], *tasks, 'seeds', 'commit', 'repeated by'],
        [*(row for *_, row in sorted(rows)), *published]), ''])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command (see the top of this file) and returns its exit status."""
    parser = Parser('python -m bert_jax.tools.report', __doc__)
    parser.add_argument('runs', metavar='RUN', nargs='+', help='run directories')
    parser.add_argument('--output', required=True, help='the page, a new file')
    parser.add_argument('--board', action='store_true',
                        help='a Markdown table of recipes instead of the page')
    parser.add_argument('--text', default=_TEXT, help='the sentence of the examples')
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
        runs = [RunRecords(as_path(folder), os.path.relpath(paths[i], above))
                for i, folder in enumerate(folders)]
        groups = grouped(runs)
        write_whole(options.output, board(runs) if options.board else page(
            groups, [_examples(group.runs[0], text) for group in groups], text))
        for run in runs:
            print(f'{run.name}: {run.state}' + ''.join(f'; {line}' for line in run.missing))
        print(f'written: {options.output}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
