"""Fits what recipes reach over their FLOPs, from the tables of tools.paper.

    python -m benchmarks.curves runs/paper-tiny/figure_loo.json runs/paper-between/table_b.json \\
        --held-out=between --output=curves.png

For each recipe (the NAME of configs/efficient_pretrain.py without its share, rate and scale; rows
of several sizes belong together) a power law, distance = a * FLOPs ** -b, by least squares of the
logarithms over all seeds. The distance is the masked-word loss in nats (the logarithm of the
column `ppl`), or what a score lacks of 100. Printed: b, the standard deviation of the residuals,
and at --at FLOPs the prediction with the interval in which one further run lies at 95 % (Student's
t). Nothing says that a law holds beyond its points: --held-out leaves the tables of a scale out of
the fit and shows how far they lie from its prediction.
"""

import argparse
import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Point(NamedTuple):
    """A run: its scale, recipe, FLOPs and distance from the best there could be."""

    scale: str
    recipe: str
    flops: float
    distance: float


class Law(NamedTuple):
    """A line through logarithms, with what its intervals need.

    Attributes:
      slope, height: of log distance over log FLOPs, the height at `center`.
      center: the mean of log FLOPs.
      spread: sum of squares of log FLOPs around it.
      deviation: of the residuals.
      num: of points.
    """

    slope: float
    height: float
    center: float
    spread: float
    deviation: float
    num: int

    def at(self, flops: float) -> tuple[float, float, float]:
        """(Prediction, low, high) of one run's distance, at 95 %; needs three points."""
        from scipy import stats

        x = math.log(flops) - self.center
        middle = self.height + self.slope * x
        error = self.deviation * math.sqrt(1 + 1 / self.num + x**2 / self.spread)
        reach = error * stats.t.ppf(0.975, self.num - 2)
        return tuple(math.exp(y) for y in (middle, middle - reach, middle + reach))


def points(record: dict[str, Any], column: str) -> list[Point]:
    """The runs of a table, one a seed; rows without pre-training are left out."""
    result = []
    for row, flops in record['flops'].items():
        parts = record['cells'].get('ppl', {}).get(row, {}).get('parts')
        cell = record['cells'].get(column, {}).get(row, {})
        if not parts or not flops:
            continue
        name = record['parts'][parts[0]].partition('.py:')[2]
        recipe = re.sub(r'[@/,].*', '', name).replace('none', 'paper')
        result += [
            Point(record['scale'], recipe, flops, math.log(x) if column == 'ppl' else 100 - x)
            for x in cell.get('values', ())]
    return result


def fit(flops: Sequence[float], distances: Sequence[float]) -> Law:
    """The power law of least squares; of three points or more, at two FLOPs or more."""
    x, y = np.log(flops), np.log(distances)
    slope, height = np.polyfit(x - x.mean(), y, 1)
    residuals = y - height - slope * (x - x.mean())
    deviation = math.sqrt(float(residuals @ residuals) / (len(x) - 2))
    return Law(float(slope), float(height), float(x.mean()), float(((x - x.mean())**2).sum()),
               deviation, len(x))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('tables', nargs='+', metavar='TABLE.json', help='of tools.paper')
    parser.add_argument('--columns', default='ppl,mean', help='of the tables (ppl,mean)')
    parser.add_argument('--recipes', default='paper,five', help='to fit (paper,five)')
    parser.add_argument('--held-out', default='', metavar='SCALE', help='not fitted, only compared')
    parser.add_argument('--at', type=float, default=0, metavar='FLOPS', help='to predict')
    parser.add_argument('--output', help='a .png of points and curves')
    args = parser.parse_args()
    records = []
    for path in args.tables:
        with open(path, encoding='utf-8') as file:
            records.append(json.load(file))
    columns = args.columns.split(',')
    panels = {column: [x for one in records for x in points(one, column)] for column in columns}
    laws: dict[tuple[str, str], Law] = {}
    print('| | recipe | runs | b | residuals | at | predicted (95 %) | seen |')
    print('|---|---|---|---|---|---|---|---|')
    for column, recipe in ((c, r) for c in columns for r in args.recipes.split(',')):
        ours = [x for x in panels[column] if x.recipe == recipe]
        used = [x for x in ours if x.scale != args.held_out]
        if len(used) < 3 or len({x.flops for x in used}) < 2:
            print(f'| {column} | {recipe} | {len(used)} | too few |||||')
            continue
        law = laws[column, recipe] = fit([x.flops for x in used], [x.distance for x in used])
        shown = (lambda y: f'{y:.2f}') if column == 'ppl' else (lambda y: f'{100 - y:.1f}')
        held = sorted({x.flops for x in ours if x.scale == args.held_out})
        for flops in held + [args.at] * bool(args.at) or [max(x.flops for x in used)]:
            middle, *ends = map(shown, law.at(flops))
            low, high = sorted(ends, key=float)
            seen = ', '.join(shown(x.distance) for x in ours if x.flops == flops)
            print(f'| {column} | {recipe} | {law.num} | {-law.slope:.3f} | {law.deviation:.1%} | '
                  f'{flops:.1e} | {middle} ({low} to {high}) | {seen} |')
    if args.output:
        draw(args.output, panels, laws, args.held_out)


def draw(
    output: str, panels: dict[str, list[Point]], laws: dict[tuple[str, str], Law], held_out: str
) -> None:
    """A panel for each column: runs as marks by scale, hollow where held out; laws as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(panels), 4))
    scales = dict.fromkeys(x.scale for found in panels.values() for x in found)
    marks = dict(zip(scales, 'osD^v', strict=False))
    for axis, (column, found) in zip(figure.subplots(1, len(panels), squeeze=False)[0],
                                     panels.items(), strict=True):
        recipes = [recipe for of, recipe in laws if of == column]
        for number, recipe in enumerate(recipes):
            ours = [x for x in found if x.recipe == recipe]
            grid = np.geomspace(min(x.flops for x in ours), max(x.flops for x in ours), 20)
            value = (lambda y: y) if column == 'ppl' else (lambda y: 100 - y)
            axis.plot(grid, [value(laws[column, recipe].at(x)[0]) for x in grid], f'C{number}-',
                      linewidth=1, label=recipe)
            for x in ours:
                axis.plot(x.flops, value(x.distance), f'C{number}{marks[x.scale]}', markersize=5,
                          fillstyle='none' if x.scale == held_out else 'full')
        for scale, mark in marks.items():
            axis.plot([], [], f'k{mark}', markersize=4, label=scale)
        axis.set_xscale('log')
        axis.set_xlabel('FLOPs of pre-training')
        axis.set_title('masked-word loss, nats' if column == 'ppl' else column, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(output, dpi=110)


if __name__ == '__main__':
    main()
