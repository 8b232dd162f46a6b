"""Fits what recipes reach over their FLOPs or sequences, from the tables of tools.paper.

    python -m benchmarks.curves runs/paper-tiny/figure_loo.json runs/paper-between/table_b.json \\
        --held-out=between --output=curves.png

It fits a power law, distance = a * FLOPs ** -b, to each recipe (the NAME in
configs/efficient_pretrain.py without its share, rate and scale; rows of several sizes belong
together), by least squares of the logarithms over all seeds. Of a table's rows that differ only in
their learning rate, the one with the lowest loss counts. With --over=sequences, the law is of the
sequences that pre-training saw, read from the run directories beside the tables. The distance is
the masked-word loss in nats (the logarithm of the column `ppl`), or 100 minus a score. It prints b,
the standard deviation of the residuals, and at --at FLOPs (or sequences) the prediction with the
interval in which one further run lies at 95 % (Student's t). A law need not hold beyond its points:
--held-out leaves the tables of a scale out of the fit and shows how far they lie from its
prediction.
"""

import argparse
import json
import math
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Point(NamedTuple):
    """A run: its scale, recipe, FLOPs or sequences, and distance from a perfect loss or score."""

    scale: str
    recipe: str
    cost: float
    distance: float


class Law(NamedTuple):
    """A line through logarithms, with what its intervals need.

    Attributes:
      slope, height: of log distance over log cost, the height at `center`.
      center: the mean of log cost.
      spread: sum of the squared deviations of log cost from it.
      deviation: standard deviation of the residuals.
      num: number of points.
    """

    slope: float
    height: float
    center: float
    spread: float
    deviation: float
    num: int

    def at(self, cost: float) -> tuple[float, float, float]:
        """(Prediction, low, high) of one run's distance, at 95 %; needs three points."""
        from scipy import stats

        x = math.log(cost) - self.center
        middle = self.height + self.slope * x
        error = self.deviation * math.sqrt(1 + 1 / self.num + x**2 / self.spread)
        reach = error * stats.t.ppf(0.975, self.num - 2)
        return tuple(math.exp(y) for y in (middle, middle - reach, middle + reach))


def sequences(part: pathlib.Path) -> float:
    """How many sequences each run of a part saw, from the config of one of them."""
    config = next(part.glob('runs/*/config.json'), None)
    if config is None:
        raise SystemExit(f'error: {part} holds no run: --over=sequences reads the folder `parts` '
                         'beside each table, as tools.paper leaves it')
    fields = json.loads(config.read_text(encoding='utf-8'))
    return float(sum(
        phase['steps'] * phase.get('batch_size', fields['train']['batch_size'])
        for phase in fields['phases']))


def points(record: dict[str, Any], column: str, parts_of: pathlib.Path | None = None
           ) -> list[Point]:
    """The runs of a table, one per value of a cell; rows without pre-training are left out.

    Costs are FLOPs or, if `parts_of`, the folder of the table's parts, is given, sequences.
    """
    best: dict[tuple[str, float], tuple[float, list[Point]]] = {}
    for row, flops in record['flops'].items():
        losses = record['cells'].get('ppl', {}).get(row, {})
        parts = losses.get('parts')
        cell = record['cells'].get(column, {}).get(row, {})
        if not parts or not flops or not losses.get('values') or not cell.get('values'):
            continue
        name = record['parts'][parts[0]].partition('.py:')[2]
        recipe = re.sub(r'[@/,].*', '', name).replace('none', 'paper')
        cost = sequences(parts_of / parts[0]) if parts_of else flops
        loss = sum(losses['values']) / len(losses['values'])
        found = [
            Point(record['scale'], recipe, cost, math.log(x) if column == 'ppl' else 100 - x)
            for x in cell['values']]
        # A recipe's FLOPs may differ in the last digits between rates, but by less than a percent.
        place = recipe, round(10 * math.log(flops))
        if place not in best or loss < best[place][0]:
            best[place] = loss, found
    return [point for _, found in best.values() for point in found]


def fit(costs: Sequence[float], distances: Sequence[float]) -> Law:
    """Fits a power law by least squares; needs three or more points, at two or more costs."""
    x, y = np.log(costs), np.log(distances)
    slope, height = np.polyfit(x - x.mean(), y, 1)
    residuals = y - height - slope * (x - x.mean())
    deviation = math.sqrt(float(residuals @ residuals) / (len(x) - 2))
    return Law(float(slope), float(height), float(x.mean()), float(((x - x.mean())**2).sum()),
               deviation, len(x))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('tables', nargs='+', type=pathlib.Path,
                        metavar='TABLE.json', help='of tools.paper')
    parser.add_argument('--columns', default='ppl,mean', help='of the tables (ppl,mean)')
    parser.add_argument('--recipes', default='paper,five', help='to fit (paper,five)')
    parser.add_argument('--over', choices=('flops', 'sequences'), default='flops',
                        help='what the law is of (flops)')
    parser.add_argument('--held-out', default='', metavar='SCALE', help='not fitted, only compared')
    parser.add_argument('--at', type=float, default=0, metavar='COST',
                        help='FLOPs or sequences to predict at')
    parser.add_argument('--output', help='a .png of points and curves')
    args = parser.parse_args()
    tables = [
        (json.loads(path.read_text(encoding='utf-8')),
         path.parent / 'parts' if args.over == 'sequences' else None) for path in args.tables]
    columns = args.columns.split(',')
    panels = {column: [x for one in tables for x in points(one[0], column, one[1])]
              for column in columns}
    laws: dict[tuple[str, str], Law] = {}
    print('| | recipe | runs | b | residuals | at | predicted (95 %) | seen |')
    print('|---|---|---|---|---|---|---|---|')
    for column, recipe in ((c, r) for c in columns for r in args.recipes.split(',')):
        ours = [x for x in panels[column] if x.recipe == recipe]
        used = [x for x in ours if x.scale != args.held_out]
        if len(used) < 3 or len({x.cost for x in used}) < 2:
            print(f'| {column} | {recipe} | {len(used)} | too few |||||')
            continue
        law = laws[column, recipe] = fit([x.cost for x in used], [x.distance for x in used])
        shown = (lambda y: f'{y:.2f}') if column == 'ppl' else (lambda y: f'{100 - y:.1f}')
        held = sorted({x.cost for x in ours if x.scale == args.held_out})
        for cost in held + [args.at] * bool(args.at) or [max(x.cost for x in used)]:
            middle, *ends = map(shown, law.at(cost))
            low, high = sorted(ends, key=float)
            seen = ', '.join(shown(x.distance) for x in ours if x.cost == cost)
            print(f'| {column} | {recipe} | {law.num} | {-law.slope:.3f} | {law.deviation:.1%} | '
                  f'{cost:.2e} | {middle} ({low} to {high}) | {seen} |')
    if args.output:
        draw(args.output, panels, laws, args.held_out, args.over)


def draw(
    output: str, panels: dict[str, list[Point]], laws: dict[tuple[str, str], Law], held_out: str,
    over: str,
) -> None:
    """Draws a panel for each column: runs as marks by scale, hollow if held out; laws as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(panels), 4))
    scales = dict.fromkeys(x.scale for found in panels.values() for x in found)
    marks = dict(zip(scales, 'osD^v', strict=False))
    for axis, (column, found) in zip(figure.subplots(1, len(panels), squeeze=False)[0],
                                     panels.items(), strict=True):
        recipes = [recipe for of, recipe in laws if of == column]
        for number, recipe in enumerate(recipes):
            ours = [x for x in found if x.recipe == recipe]
            grid = np.geomspace(min(x.cost for x in ours), max(x.cost for x in ours), 20)
            value = (lambda y: y) if column == 'ppl' else (lambda y: 100 - y)
            axis.plot(grid, [value(laws[column, recipe].at(x)[0]) for x in grid], f'C{number}-',
                      linewidth=1, label=recipe)
            for x in ours:
                axis.plot(x.cost, value(x.distance), f'C{number}{marks[x.scale]}', markersize=5,
                          fillstyle='none' if x.scale == held_out else 'full')
        for scale, mark in marks.items():
            axis.plot([], [], f'k{mark}', markersize=4, label=scale)
        axis.set_xscale('log')
        axis.set_xlabel({'flops': 'FLOPs'}.get(over, over) + ' of pre-training')
        axis.set_title('masked-word loss, nats' if column == 'ppl' else column, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(output, dpi=110)


if __name__ == '__main__':
    main()
