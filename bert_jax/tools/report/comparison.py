"""How far groups of runs are apart: whether that may be chance, or why they cannot be compared."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.config.fields import pretraining_kind
from bert_jax.tools.report.groups import Group
from bert_jax.tools.report.runs import RunRecords

# What scores of pre-training depend on, besides the model and the text.
_HELD_OUT_ROWS = ('vocabulary', 'length of the last rows', 'train.max_eval_examples',
                  'data.next_sentence', 'data.random_next_prob', 'data.short_seq_prob',
                  'data.split_long_sentences')
_MASKING = ('data.masking', 'data.masked_lm_prob', 'data.mask_rate', 'data.random_rate')
_STANDARD = 'standard_'  # prefix of metrics under BERT's masking, in runs that mask differently


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A group's score beside the first group's.

    Attributes:
      scores: of each run, the group's own metric.
      why_not: why the two cannot be compared; '' if they can.
      gain: its mean minus the first group's, if they can be compared.
      half_width: half the width of the 95 % interval of `gain`; NaN if it is not known.
    """

    scores: Sequence[float]
    why_not: str = ''
    gain: float = math.nan
    half_width: float = math.nan

    def verdict(self, metric: str) -> str:
        """Whether the group is better in a metric than the first, as far as the seeds tell."""
        if abs(self.gain) <= self.half_width:
            return 'within noise'
        is_lower = self.gain < 0
        if is_lower == is_loss(metric):
            return 'better'
        return 'worse'


def compare(groups: Sequence[Group]) -> list[Comparison]:
    """Compares each group with the first, whose own scores must be comparable."""
    result: list[Comparison] = []
    comparable: list[int] = []  # indices in `result`
    is_scored = bool(groups[0].scores(groups[0].runs[0].metric))
    for i, group in enumerate(groups):
        scores = group.scores(group.runs[0].metric)
        why_not = incomparable_groups(group, groups[0])
        if not why_not and not (is_scored and scores):
            why_not = f'no score eval/{group.runs[0].metric}'
        result.append(Comparison(scores, why_not))
        if not why_not:
            comparable.append(i)
    samples = [result[i].scores for i in comparable]
    for i, sample, half_width in zip(comparable, samples, intervals(samples), strict=True):
        gain = statistics.fmean(sample) - statistics.fmean(samples[0])
        result[i] = dataclasses.replace(result[i], gain=gain, half_width=half_width)
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
    squares = 0.0
    for sample in samples:
        if len(sample) > 1:
            squares += (len(sample) - 1) * statistics.variance(sample)
    quantile = stats.t.ppf(1 - 0.025 / (len(samples) - 1), freedom)
    width = float(quantile * math.sqrt(squares / freedom))
    half_widths: list[float] = []
    for sample in samples:
        half_widths.append(width * math.sqrt(1 / len(sample) + 1 / len(samples[0])))
    return half_widths


def incomparable_groups(group: Group, first: Group) -> str:
    """Why the scores of a group cannot be compared with another's; '' if they can."""
    for run in group.runs:
        why = incomparable(run, first.runs[0])
        if why:
            return why
    return ''


def incomparable(run: RunRecords, first: RunRecords) -> str:
    """Why the scores of two runs cannot be compared; '' if they can."""
    if not run.finished or not run.scores:
        return run.state
    source = 'data.source'
    if first.fields.get('data.eval_source'):
        source = 'data.eval_source'
    others = _differing(run, first, ('task', 'metric', source))
    if others:
        return f'another {", ".join(others)}'
    others = _differing(run, first, _held_out_fields(run, first))
    if others:
        return f'its held-out rows have another {", ".join(others)}'
    return ''


def _differing(run: RunRecords, first: RunRecords, names: Iterable[str]) -> list[str]:
    """The named fields in which two runs differ."""
    fields = _compared_fields(run)
    fields_of_first = _compared_fields(first)
    return [name for name in names if fields.get(name) != fields_of_first.get(name)]


def _compared_fields(run: RunRecords) -> Mapping[str, Any]:
    """The fields of a run, and what follows from them for its held-out rows."""
    phases = run.fields.get('phases') or [{}]
    return {
        **run.fields,
        'metric': run.metric.removeprefix(_STANDARD),
        'length of the last rows': phases[-1].get('max_seq_length')}


def _held_out_fields(run: RunRecords, first: RunRecords) -> tuple[str, ...]:
    """The fields that the held-out rows of pre-training depend on."""
    if pretraining_kind(run.fields.get('task', '')) != 'pretrain':
        return ()
    if run.metric.startswith(_STANDARD) or first.metric.startswith(_STANDARD):
        return _HELD_OUT_ROWS
    return (*_HELD_OUT_ROWS, *_MASKING)


def is_loss(name: str) -> bool:
    """Whether lower values of a metric are better."""
    return name.endswith(('loss', 'perplexity'))
