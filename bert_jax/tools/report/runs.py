"""The directory of a run without its weights: config, records, state, work so far."""

import bisect
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config.fields import pretraining_kind
from bert_jax.heads import HEADS
from bert_jax.heads.tokens import Tagging
from bert_jax.model.layers import ModelConfig
from bert_jax.run.description import read_run_fields
from bert_jax.run.layout import RECORDS, best_of
from bert_jax.run.model import read_description
from bert_jax.run.ranking import rank
from bert_jax.runtime.files import Path
from bert_jax.runtime.folder_lock import holder
from bert_jax.step.optimizers import update_flops
from bert_jax.tasks.pretrain import step_flops
from bert_jax.watch.metrics_log import duration, read_records


class Work(NamedTuple):
    """The work that a run has done up to a step.

    Attributes:
      step: the step.
      tokens: without padding.
      flops: of training.
    """

    step: float
    tokens: float
    flops: float


class Point(NamedTuple):
    """A point of a curve: a metric, and the run's step, tokens and FLOPs so far."""

    step: float
    tokens: float
    flops: float
    value: float


class RunRecords:
    """A run without its weights, whether it is finished, going on, or was killed.

    Attributes:
      name: its name on the page.
      folder: its directory.
      fields: of its config.json, by dotted name.
      records: of its metrics.jsonl, in order, without values that are not finite.
      evaluations: the records that have metrics of held-out data.
      metric: the metric that chooses the best evaluation.
      head: its name, in `heads.HEADS` or of a config file; '' in old runs, and without a head.
      keeps_best: whether it keeps the weights of the best evaluation.
      scores: metrics of the best evaluation if it keeps that, else of the last; and its `step`.
      finished: whether it did all its steps.
      state: how far it is, in words.
      missing: what the page cannot show of it, and why.
    """

    def __init__(self, folder: Path, name: str):
        """Reads the directory of a run.

        Raises:
          InputError: it is no run directory, or a file in it is damaged.
        """
        self.name = name
        self.folder = folder
        self.records: list[dict[str, Any]] = []  # without values that are not finite
        self.evaluations: list[dict[str, Any]] = []  # those of the records that have scores
        for record in read_records(folder / RECORDS):
            finite = {name: value for name, value in record.items() if math.isfinite(value)}
            self.records.append(finite)
            if any(name.startswith('eval/') for name in finite):
                self.evaluations.append(finite)
        self.fields: dict[str, Any] = read_run_fields(folder)
        self.metric = str(self.fields.get('metric', ''))
        self.head = str(self.fields.get('head') or '')
        self.keeps_best = self._has_best_weights()
        self.scores = self._chosen_scores()
        steps = [record['step'] for record in self.records]
        step = max(steps, default=0)
        self.finished = 0 < self.fields.get('train.steps', 0) <= step
        self.state = self._describe_state(step)
        self.missing: list[str] = []
        if not self.evaluations:
            self.missing.append('no evaluation so far: no results')

    def _has_best_weights(self) -> bool:
        if not self.evaluations or not best_of(self.folder):
            return False
        # An evaluation lacks the metric where it was undefined.
        return any(f'eval/{self.metric}' in record for record in self.evaluations)

    def _chosen_scores(self) -> dict[str, float]:
        if not self.evaluations:
            return {}
        chosen = self.evaluations[-1]
        if self.keeps_best:
            chosen = max(
                self.evaluations, key=lambda record: rank(record, f'eval/{self.metric}'))
        return {name.removeprefix('eval/'): value for name, value in chosen.items()}

    def _describe_state(self, step: int) -> str:
        """How far a run is that has recorded so many steps, in words."""
        seconds = _total_seconds(self.records)
        took = ''
        if seconds:
            took = f' in {duration(seconds)}'
        if self.finished:
            return f'finished: {step:,} steps{took}'
        progress = f'step {step:,}'
        total = self.fields.get('train.steps', 0)
        if total:
            progress += f' of {total:,}'
        process = holder(self.folder)
        if process:
            return f'{progress}{took}, going on ({process})'
        return f'{progress}{took}, stopped'

    def curves(self) -> dict[str, list[Point]]:
        """The points of every `train/...` and `eval/...`."""
        result: dict[str, list[Point]] = {}
        for record in self.records:
            step = record['step']
            tokens, flops = self.work_at(step)
            for name, value in record.items():
                if name.startswith(('train/', 'eval/')):
                    point = Point(step, tokens, flops, value)
                    result.setdefault(name, []).append(point)
        return result

    def work_at(self, step: float) -> tuple[float, float]:
        """(Tokens without padding, training FLOPs) up to a step."""
        steps, tokens, flops = zip(*self._work)
        return float(np.interp(step, steps, tokens)), float(np.interp(step, steps, flops))

    @functools.cached_property
    def _work(self) -> list[Work]:
        """The work up to each log line; only the beginning, for a run that records no phases."""
        result = [Work(0.0, 0.0, 0.0)]
        phases = self.fields.get('phases')
        if not phases:
            return result
        model = ModelConfig(**read_description(self.folder).model)
        share = 1.0  # of a row's length that is not padding
        for record in self.records:
            before = result[-1]
            if 'train/loss' not in record or record['step'] <= before.step:
                continue
            number = _phase_at(phases, record['step'])
            phase = {'packed_rows': 0, **phases[number]}
            rows = phase['batch_size']
            length = phase['max_seq_length']
            if record.get('train/sequences_per_second') and record.get('train/tokens_per_second'):
                share = (record['train/tokens_per_second']
                         / record['train/sequences_per_second'] / length)
            steps = record['step'] - before.step
            result.append(Work(
                step=record['step'],
                tokens=before.tokens + steps * rows * length * share,
                flops=before.flops + steps * self._flops_of_a_step(number, model, phase, share)))
        return result

    def _flops_of_a_step(
        self, number: int, model: ModelConfig, phase: Mapping[str, Any], share: float
    ) -> float:
        """Training FLOPs of a step.

        Args:
          number: of its phase, from 0.
          model: of the run.
          phase: of the step.
          share: of the length of its rows that is not padding.
        """
        is_pretraining = bool(pretraining_kind(self.fields.get('task', '')))
        optimizer = self.fields.get('optimizer.name', '') if is_pretraining else ''
        recorded = self.fields.get('step_flops')
        if recorded:  # older runs lack it
            return recorded[number] + update_flops(optimizer, model)
        if is_pretraining and self.head:
            return step_flops(HEADS[self.head](model), phase, optimizer)
        head = self.head or Tagging.name  # rows are packed
        features = self.fields.get('inference.features') or 'concat_last_four'
        trained = HEADS[head].of_model(model, 1, {'features': features})
        rows = phase['batch_size']
        length = phase['max_seq_length']
        return rows * length * share * trained.token_flops(length)


def _total_seconds(records: Sequence[Mapping[str, Any]]) -> float:
    """The seconds of a run so far, from the last record that has them by what they went into."""
    for record in reversed(records):
        if 'time/step' in record:
            return _sum_of_times(record)
    return 0


def _sum_of_times(record: Mapping[str, Any]) -> float:
    """The sum of a record's times that are known."""
    seconds = 0.0
    for name, value in record.items():
        if name.startswith('time/') and value > 0:
            seconds += value
    return seconds


def _phase_at(phases: Sequence[Mapping[str, Any]], step: int) -> int:
    """The number of the phase that a step belongs to, from 0."""
    ends = list(itertools.accumulate(phase['steps'] for phase in phases))
    return min(bisect.bisect_left(ends, step), len(phases) - 1)
