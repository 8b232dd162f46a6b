"""What benchmarks measured: figures with their spread, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.runtime.errors import InputError

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'tensorflow', 'tensorflow-text')


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured quantity.

    Attributes:
      name: what was measured.
      values: one a repeat.
      unit: of the values.
      goal: what this project aims at, for orientation; empty: nothing.
    """

    name: str
    values: Sequence[float]
    unit: str
    goal: str = ''

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclasses.dataclass(frozen=True)
class Result:
    """The figures of one benchmark and what they were measured on."""

    benchmark: str
    settings: Mapping[str, Any]
    figures: Sequence[Figure]


def table(results: Sequence[Result]) -> str:
    """Benchmark, figure, median, spread, unit and goal in columns."""
    rows = [('benchmark', 'figure', 'median', 'min - max', 'unit', 'goal')]
    for result in results:
        for figure in result.figures:
            low, high = _number(min(figure.values)), _number(max(figure.values))
            spread = f'{low} - {high}' if len(figure.values) > 1 else ''
            rows.append((
                result.benchmark, figure.name, _number(figure.median), spread, figure.unit,
                figure.goal,
            ))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rows.insert(1, tuple('-' * width for width in widths))  # type: ignore[arg-type]
    numbers = (2, 3)
    return '\n'.join(
        '  '.join(
            cell.rjust(width) if i in numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def record(results: Sequence[Result], seed: int, command: Sequence[str]) -> dict[str, Any]:
    """Everything about a run of the benchmarks, for JSON."""
    return {
        'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
        'seed': seed,
        'command': list(command),
        'hardware': hardware(),
        'versions': {'python': platform.python_version()} | {
            name: version for name in _PACKAGES if (version := _version(name))
        },
        'results': [
            {
                'benchmark': result.benchmark,
                'settings': dict(result.settings),
                'figures': [
                    {
                        'name': figure.name, 'unit': figure.unit, 'goal': figure.goal,
                        'median': figure.median, 'min': min(figure.values),
                        'max': max(figure.values), 'values': list(figure.values),
                    }
                    for figure in result.figures
                ],
            }
            for result in results
        ],
    }


def hardware() -> dict[str, Any]:
    """The processor, how many of its cores may be used, and jax's devices."""
    import jax  # late: it takes hold of the accelerator, which child processes may need before

    return {
        'cpu': _cpu_model(),
        'cores': num_cores(),
        'device_kind': jax.devices()[0].device_kind,
        'num_devices': jax.device_count(),
    }


def num_cores() -> int:
    """Cores this process may run on (all of them, unless it was pinned)."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def last_line(text: str) -> str:
    """The last line that says something: of a failed program's standard error, its reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ''


def check_ended_well(status: int, stderr: str, what: str) -> None:
    """Refuses the result of a child process that failed.

    Raises:
      InputError: it ended with a fault of the user's.
      RuntimeError: it ended with any other.
    """
    if status == 2:
        raise InputError(last_line(stderr).removeprefix('error: ') or f'{what} ended with status 2')
    if status:
        raise RuntimeError(f'{what} ended with status {status}:\n{stderr[-4000:]}')


def _number(value: float) -> str:
    """Four digits that mean something: 0.1234, 12.34, 123,456."""
    if abs(value) >= 1000:
        return f'{value:,.0f}'
    return f'{value:.4g}'


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ''


def _cpu_model() -> str:
    path = Path('/proc/cpuinfo')
    if path.exists():
        for line in path.read_text(errors='replace').splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()
