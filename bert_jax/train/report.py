"""What a run writes and prints: metrics.jsonl, TensorBoard events, curves.png, progress lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, in_bucket, open_whole, write_whole
from bert_jax.runtime.process import without
from bert_jax.train.gates import Alarm
from bert_jax.train.uploads import Uploads


def duration(seconds: float) -> str:
    """'1:02:03' or '2:03'."""
    minutes, secs = divmod(int(max(seconds, 0) + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}:{minutes:02}:{secs:02}' if hours else f'{minutes}:{secs:02}'


def count(number: float) -> str:
    """'950', '12.3k', '4.5M'."""
    for size, unit in ((1e9, 'G'), (1e6, 'M'), (1e4, 'k')):
        if number >= size:
            return f'{number / (1e3 if unit == "k" else size):.1f}{unit}'
    return f'{number:.0f}' if number >= 100 else f'{number:.3g}'


# Told in other panels, or of no interest as a curve.
_NOT_DRAWN = ('mlm_perplexity', 'lm_perplexity', 'tokens_per_second', 'data_wait')


def _record(line: bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl, or None where it is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    good = isinstance(record, dict) and type(record.get('step')) is int and all(
        type(value) in (int, float) for value in record.values())
    return record if good else None


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records in a metrics.jsonl, without the line that a killed process was writing.

    Raises:
      InputError: another line is none.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is None and number == len(lines):
            break
        if record is None:
            raise InputError(
                f'{path}, line {number} is no record of a step: put it right, or move the '
                'file away and the curves begin anew'
            )
        records.append(record)
    return records


class Report:
    """Writes the records of one run; on processes other than the first it does nothing.

    A run directory in a bucket gets them in batches: every half minute, at evaluations, and before
    each save, so that whoever starts from a checkpoint finds the records up to it.
    """

    def __init__(self, workdir: Path, active: bool, start_step: int):
        """Opens the records, cutting `metrics.jsonl` back to `start_step`.

        What a killed run wrote after the checkpoint that this one starts from will be written
        again.
        """
        self._active = active
        self._drawn = 0  # records
        self.records: list[dict[str, Any]] = []
        if not active:
            return
        path = workdir / 'metrics.jsonl'
        self.records = [r for r in read_records(path) if r['step'] <= start_step]
        self._uploads = Uploads(workdir) if in_bucket(workdir) else None
        self._folder = workdir if self._uploads is None else self._uploads.folder
        path = self._folder / path.name
        write_whole(path, ''.join(json.dumps(record) + '\n' for record in self.records))
        self.flush()
        self._file = path.open('a')
        with without('torch'), without('google.cloud.storage'):
            from tensorboardX import SummaryWriter

        self._events = SummaryWriter(str(self._folder), purge_step=start_step + 1, flush_secs=30)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds one record to metrics.jsonl and to the events."""
        if not self._active:
            return
        record = {'step': step, **{name: float(value) for name, value in metrics.items()}}
        self.records.append(record)
        self._file.write(json.dumps(record, allow_nan=False) + '\n')
        self._file.flush()
        for name, value in metrics.items():
            self._events.add_scalar(name, value, step)
        if self._uploads is not None:
            self._uploads.start()

    def has_evaluation(self, step: int) -> bool:
        """Whether the records have an evaluation of a step."""
        return any(record['step'] == step and any(name.startswith('eval/') for name in record)
                   for record in self.records)

    def flush(self) -> None:
        """Returns when all records are where they belong."""
        if self._active and self._uploads is not None:
            self._uploads.finish()

    def say(self, line: str) -> None:
        """Prints a line."""
        if self._active:
            print(line, flush=True)

    def tell(self, alarms: Sequence[Alarm]) -> None:
        """Writes what gates say as records, and prints it on standard error."""
        for alarm in alarms:
            self.write(alarm.step, {f'gate/{alarm.name}': alarm.value})
            if self._active:
                print(f'warning: {alarm.line}', file=sys.stderr, flush=True)

    def draw(self) -> None:
        """Draws `curves.png`, if there is more to draw than last time.

        It has one panel a metric, training and held-out together.
        """
        if not self._active or self._drawn == len(self.records):
            return
        self._drawn = len(self.records)
        import matplotlib

        matplotlib.use('Agg')
        from matplotlib import pyplot as plt

        recorded = [key.partition('/')[2] for record in self.records for key in record
                    if key.startswith(('train/', 'eval/'))]
        names = [name for name in dict.fromkeys(recorded) if name not in _NOT_DRAWN]
        if not names:
            return
        columns = min(4, len(names))
        rows = -(-len(names) // columns)
        figure, axes = plt.subplots(rows, columns, figsize=(4 * columns, 3 * rows), squeeze=False)
        for axis in axes.flat[len(names):]:
            axis.set_axis_off()
        for axis, name in zip(axes.flat, names, strict=False):
            for kind, style in (('train', '-'), ('eval', 'o-')):
                points = [(r['step'], r[f'{kind}/{name}']) for r in self.records
                          if f'{kind}/{name}' in r]
                if points:
                    axis.plot(*zip(*points, strict=True), style, label=kind, markersize=3,
                              linewidth=1)
            axis.set_title(name.replace('_', ' '), fontsize=10)
            axis.set_xlabel('step', fontsize=8)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
        figure.tight_layout()
        with open_whole(self._folder / 'curves.png') as file:
            figure.savefig(file, dpi=100, format='png')
        plt.close(figure)
        if self._uploads is not None:
            self._uploads.start(now=True)

    def close(self) -> None:
        if self._active:
            self._events.close()
            self._file.close()
            if self._uploads is not None:
                self._uploads.close()
