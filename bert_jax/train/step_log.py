"""The log line and the record of the steps since the last one."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.model.trainable import Trainable
from bert_jax.train.phase import Phase
from bert_jax.watch.metrics_log import duration, short_number

PER_STEP_METRICS = ('loss', 'grad_norm', 'learning_rate')  # the others are sums over the batch


def log_metrics(
    phase: Phase, steps: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, float]],
    peak_flops: float,
) -> dict[str, float]:
    """Mean metrics of the steps of a log line, and their speed.

    Args:
      phase: of the steps; its head makes metrics of sums.
      steps: metrics of each step.
      times: seconds by cause at the last log line (or after a run's first step, which compiles),
        after each step since, and now.
      peak_flops: of all devices together; 0: unknown.
    """
    sums = {}
    for name in steps[0]:
        if name not in PER_STEP_METRICS:
            sums[name] = float(sum(np.float64(step[name]) for step in steps))
    metrics = {
        'loss': float(np.mean([step['loss'] for step in steps])),
        **phase.steps.head.score(sums),
        'grad_norm': float(np.mean([step['grad_norm'] for step in steps])),
        'learning_rate': float(steps[-1]['learning_rate']),
    }
    tokens = sum(float(step.get('tokens', 0)) for step in steps) / len(steps)
    return metrics | _speed(times, tokens, phase, peak_flops)


def _speed(
    times: Sequence[Mapping[str, float]], tokens_per_step: float, phase: Phase, peak_flops: float
) -> dict[str, float]:
    """Speed between the first and the last of `times`; empty if no step lies between them."""
    busy = [seconds['step'] + seconds['data'] for seconds in times]
    each = np.diff(busy[:-1])  # what follows the last step is no step
    if not len(each):
        return {}
    seconds = max(busy[-1] - busy[0], 1e-9)
    sequences = len(each) / seconds * phase.batch_size
    speed = {
        'sequences_per_second': sequences,
        'tokens_per_second': tokens_per_step * len(each) / seconds,
        'data_wait': (times[-1]['data'] - times[0]['data']) / seconds,
        'step_seconds': seconds / len(each),
        # The first two steps after a log line are only dispatched, not waited for.
        'step_seconds_deviation': float(np.std(each[2:])) if len(each) > 2 else 0.0,
    }
    if peak_flops:
        speed['mfu'] = sequences * phase.rows.flops_per_sequence / peak_flops
    return speed


def log_line(head: Trainable, metrics: Mapping[str, float], steps_left: int) -> str:
    """The log line for a record, without the step."""
    parts = [f"loss {metrics['loss']:.4f}"]
    for name, title in head.shown.items():
        if name in metrics:
            form = '.1%' if name.endswith('accuracy') else '.4f'
            parts.append(f'{title} {metrics[name]:{form}}')
    parts.append(f"lr {metrics['learning_rate']:.2e}")
    # Where only the first step was done, another host's speed may be known, but not this one's.
    if 'sequences_per_second' in metrics:
        parts.append(f"{short_number(metrics['sequences_per_second'])} seq/s")
        parts.append(f"{short_number(metrics['tokens_per_second'])} tok/s")
        if 'mfu' in metrics:
            parts.append(f"mfu {metrics['mfu']:.1%}")
        parts.append(f"wait {metrics['data_wait']:.0%}{_of_host('data_wait', metrics)}")
        if 'step_seconds_host' in metrics:
            step = f"step {metrics['step_seconds']:.3g} s"
            parts.append(step + _of_host('step_seconds', metrics))
        if 'save_seconds' in metrics:
            save = f"save {metrics['save_seconds']:.2g} s"
            parts.append(save + _of_host('save_seconds', metrics))
        parts.append(f"eta {duration(math.ceil(steps_left * metrics['step_seconds']))}")
    return '  '.join(parts)


def _of_host(name: str, metrics: Mapping[str, float]) -> str:
    """' (host N)' for the host that a metric comes from; '' if the metrics name none."""
    host = metrics.get(f'{name}_host')
    return '' if host is None else f' (host {host})'
