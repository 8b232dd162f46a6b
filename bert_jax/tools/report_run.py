"""What a run directory says of its run, as far as there is something: for `tools.report`."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.heads import HEADS
from bert_jax.heads.tagging import Tagging
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.runtime.lease import holder
from bert_jax.tasks.pretrain import whole_step_flops
from bert_jax.train.report import count, duration, read_records
from bert_jax.train.run_directory import read_run_fields
from bert_jax.weights.run_directory import read_description, whole_steps

Record = Mapping[str, Any]
Point = tuple[float, float, float, float]  # step, tokens and FLOPs so far, value


@dataclasses.dataclass(frozen=True)
class RunRecords:
    """What is known of a run without its weights.

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
        found: dict[str, list[Point]] = {}
        for record in self.records:
            step = record['step']
            place = (step, float(np.interp(step, steps, tokens)),
                     float(np.interp(step, steps, flops)))
            for name, value in record.items():
                if name.startswith(('train/', 'eval/')):
                    found.setdefault(name, []).append((*place, value))
        return found

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
        found, end = [], 0
        for phase in self.fields.get('phases') or ():
            end += phase['steps']
            found.append(dict(phase, end=end))
        return found

    def gates(self) -> dict[str, list[int]]:
        """The steps at which each gate has spoken."""
        found: dict[str, list[int]] = {}
        for record in self.records:
            for name in record:
                if name.startswith('gate/'):
                    found.setdefault(name.removeprefix('gate/'), []).append(record['step'])
        return found

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
        """What the time went into, as the last record that says so has it."""
        return _seconds(self.records)


def read_run(folder: Path, name: str) -> RunRecords:
    """What a run directory says, of a run that is over, going on, or was killed.

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
    found = {}
    for name in names:
        values = [repr(run.fields[name]) if name in run.fields else '' for run in runs]
        if len(set(values)) > 1:
            found[name] = values
    return found
