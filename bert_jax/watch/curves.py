"""`curves.png`: how the metrics of a run went."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

Points = list[tuple[int, float]]  # (step, value)

# Shown in other panels, or not useful as a curve.
_NOT_DRAWN = ('mlm_perplexity', 'standard_mlm_perplexity', 'lm_perplexity', 'nsp_majority',
              'tokens_per_second', 'data_wait', 'goodput', 'step_seconds', 'step_seconds_deviation',
              'save_seconds', 'data_wait_host', 'step_seconds_host', 'save_seconds_host')
_STYLES = {'train': 'C0-', 'eval': 'C1o-'}
_MOST_COLUMNS = 3  # of large panels
_MOST_DRAWN = 1e30
# Inches.
_WIDTH = 12
_HEIGHT_OF_LARGE_PANELS = 3
_HEIGHT_OF_SMALL_PANELS = 1.8


def curves(
    records: Sequence[Mapping[str, Any]], phase_ends: Sequence[int], guessing: Mapping[str, float]
) -> Any:
    """A figure of the metrics of a run; None if there is nothing to draw.

    Metrics of evaluations have large panels, the others a row below. The y-axis leaves out the
    often steep first tenth. Dotted lines separate phases; dashed lines show guessing.

    Args:
      records: of metrics.jsonl.
      phase_ends: the last step of each phase.
      guessing: metrics of guessing.
    """
    series = _series(records)
    if not series:
        return None
    from matplotlib.figure import Figure

    large = [name for name in series if 'eval' in series[name]]
    if not large:
        large = list(series)[:1]
    small = [name for name in series if name not in large]
    num_rows = -(-len(large) // _MOST_COLUMNS)
    heights = (_HEIGHT_OF_LARGE_PANELS * num_rows, _HEIGHT_OF_SMALL_PANELS)
    figure = Figure(figsize=(_WIDTH, sum(heights)))
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)
    upper, lower = parts
    last = records[-1]['step']
    panels = _panels(upper, large, num_rows, heights[0])
    panels += _panels(lower, small, 1, heights[1])
    for name, axis in panels:
        _draw_panel(axis, name, series[name], phase_ends, scaled_from=last / 10)
        for end in phase_ends:
            if end < last:
                axis.axvline(end, color='gray', linestyle=':', linewidth=1)
        if name in guessing:
            axis.axhline(guessing[name], color='gray', linestyle='--', linewidth=1)
    lines, labels = upper.axes[0].get_legend_handles_labels()
    # Above the panels, where it hides no line.
    figure.legend(lines, labels, loc='upper right', bbox_to_anchor=(0.99, 1), ncols=len(lines),
                  fontsize=9, frameon=False, borderaxespad=0.2)
    return figure


def _panels(part: Any, names: Sequence[str], num_rows: int, height: float) -> list[tuple[str, Any]]:
    """Pairs (name, axes) for the metrics of a part of the figure, which is `height` inches high."""
    num_columns = -(-len(names) // num_rows)
    # Margins by hand: `layout='constrained'` takes as long as all the rest.
    part.subplots_adjust(0.05, 0.35 / height, 0.98, 1 - 0.3 / height, 0.05 * num_columns, 0.3)
    panels = []
    for place, name in enumerate(names, 1):
        panels.append((name, part.add_subplot(num_rows, num_columns, place)))
    return panels


def _series(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Points]]:
    """The points of each metric in training ('train') and in evaluation ('eval')."""
    series: dict[str, dict[str, Points]] = {}
    for record in records:
        for key, value in record.items():
            kind, _, name = key.partition('/')
            if kind in _STYLES and name not in _NOT_DRAWN and _can_be_drawn(value):
                points = series.setdefault(name, {}).setdefault(kind, [])
                points.append((record['step'], value))
    return series


def _can_be_drawn(value: Any) -> bool:
    """Whether a value of a record is a number that has a place on an axis."""
    return isinstance(value, int | float) and abs(value) <= _MOST_DRAWN


def _draw_panel(
    axis: Any, name: str, series: Mapping[str, Points], phase_ends: Sequence[int], *,
    scaled_from: float,
) -> None:
    """Draws a metric, a line for each phase; the y-axis is scaled to what is from a step on."""
    late: list[float] = []
    for kind, points in series.items():
        label = kind
        for part in _by_phase(points, phase_ends):
            steps, values = zip(*part, strict=True)
            axis.plot(steps, values, _STYLES[kind], label=label, markersize=3, linewidth=1)
            label = '_nolegend_'  # the legend names a kind once
        late += [value for step, value in points if step >= scaled_from]
    if late:
        margin = 0.05 * (max(late) - min(late))
        if margin:
            axis.set_ylim(min(late) - margin, max(late) + margin)
    axis.set_title(name.replace('_', ' '), fontsize=10)
    axis.grid(alpha=0.3)
    axis.tick_params(labelsize=9)
    axis.xaxis.set_major_formatter(lambda step, _: _short(step))


def _by_phase(points: Points, phase_ends: Sequence[int]) -> list[Points]:
    """The points of each phase that has any; the last step of a phase belongs to it."""
    parts: list[Points] = []
    for first, end in itertools.pairwise([-1, *phase_ends, math.inf]):
        part = [point for point in points if first < point[0] <= end]
        if part:
            parts.append(part)
    return parts


def _short(step: float) -> str:
    """A step on an axis: 500, 20k, 1.5M."""
    if step >= 1e6:
        return f'{step / 1e6:g}M'
    if step >= 1e4:
        return f'{step / 1e3:g}k'
    return f'{step:g}'
