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


class Prediction(NamedTuple):
    """What is predicted of one run, and the ends of its interval."""

    middle: float
    low: float
    high: float


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

    def at(self, cost: float) -> Prediction:
        """The distance of one run, with its 95 % interval; needs three points."""
        from scipy import stats

        x = math.log(cost) - self.center
        middle = self.height + self.slope * x
        error = self.deviation * math.sqrt(1 + 1 / self.num + x**2 / self.spread)
        reach = error * stats.t.ppf(0.975, self.num - 2)
        return Prediction(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


class Column(NamedTuple):
    """A column of the tables: masked-word perplexities, `ppl`, or scores of 100 at most."""

    name: str

    @property
    def is_loss(self) -> bool:
        """Whether it is shown as a loss in nats."""
        return self.name == 'ppl'

    def distance(self, cell: float) -> float:
        """How far a cell's value is from a perfect one."""
        return math.log(cell) if self.is_loss else 100 - cell

    def value(self, distance: float) -> float:
        """The loss or the score at a distance."""
        return distance if self.is_loss else 100 - distance

    def text(self, distance: float) -> str:
        """The loss or the score at a distance, in digits."""
        return f'{self.value(distance):.2f}' if self.is_loss else f'{self.value(distance):.1f}'


def sequences(part: pathlib.Path) -> float:
    """How many sequences each run of a part saw, from the config of one of them."""
    config = next(part.glob('runs/*/config.json'), None)
    if config is None:
        raise SystemExit(f'error: {part} holds no run: --over=sequences reads the folder `parts` '
                         'beside each table, as tools.paper leaves it')
    fields = json.loads(config.read_text(encoding='utf-8'))
    batch_size = fields['train']['batch_size']
    return float(sum(
        phase['steps'] * phase.get('batch_size', batch_size) for phase in fields['phases']))


def points(record: dict[str, Any], column: str, parts_of: pathlib.Path | None = None
           ) -> list[Point]:
    """The runs of a table, one per value of a cell; rows without pre-training are left out.

    Costs are FLOPs or, if `parts_of`, the folder of the table's parts, is given, sequences.
    """
    best: dict[tuple[str, float], tuple[float, list[Point]]] = {}
    for row, flops in record['flops'].items():
        perplexities = record['cells'].get('ppl', {}).get(row, {})
        cell = record['cells'].get(column, {}).get(row, {})
        parts = perplexities.get('parts')
        if not parts or not flops or not perplexities.get('values') or not cell.get('values'):
            continue
        recipe = recipe_of(record['parts'][parts[0]])
        cost = sequences(parts_of / parts[0]) if parts_of else flops
        distances = map(Column(column).distance, cell['values'])
        found = [Point(record['scale'], recipe, cost, distance) for distance in distances]
        mean = sum(perplexities['values']) / len(perplexities['values'])
        # A recipe's FLOPs may differ in the last digits between rates, but by less than a percent.
        size = (recipe, round(10 * math.log(flops)))
        if size not in best or mean < best[size][0]:
            best[size] = mean, found
    result = []
    for _, found in best.values():
        result.extend(found)
    return result


def recipe_of(title: str) -> str:
    """The recipe of a part, whose title ends with .py:NAME/SHARE@RATE,SCALE."""
    named = title.partition('.py:')[2]
    return re.sub(r'[@/,].*', '', named).replace('none', 'paper')


def fit(costs: Sequence[float], distances: Sequence[float]) -> Law:
    """Fits a power law by least squares; needs three or more points, at two or more costs."""
    x = np.log(costs)
    y = np.log(distances)
    center = x.mean()
    slope, height = np.polyfit(x - center, y, 1)
    residuals = y - height - slope * (x - center)
    deviation = math.sqrt(float(residuals @ residuals) / (len(x) - 2))
    spread = ((x - center)**2).sum()
    return Law(
        float(slope), float(height), float(center), float(spread), deviation, len(x))


def print_law(column: Column, recipe: str, ours: Sequence[Point], held_out: str, at: float
              ) -> Law | None:
    """Fits and prints the law of a recipe, a line for each cost; None if there are too few points.

    Args:
      column: of the tables.
      recipe: its name.
      ours: its points.
      held_out: the scale that is not fitted.
      at: the cost of a further prediction; 0: none.
    """
    used = [point for point in ours if point.scale != held_out]
    costs = [point.cost for point in used]
    if len(used) < 3 or len(set(costs)) < 2:
        print(f'| {column.name} | {recipe} | {len(used)} | too few |||||')
        return None
    law = fit(costs, [point.distance for point in used])
    shown = sorted({point.cost for point in ours if point.scale == held_out})
    if at:
        shown.append(at)
    for cost in shown or [max(costs)]:
        prediction = law.at(cost)
        ends = [column.text(prediction.low), column.text(prediction.high)]
        low, high = sorted(ends, key=float)
        seen = ', '.join(column.text(point.distance) for point in ours if point.cost == cost)
        print(f'| {column.name} | {recipe} | {law.num} | {-law.slope:.3f} | {law.deviation:.1%} | '
              f'{cost:.2e} | {column.text(prediction.middle)} ({low} to {high}) | {seen} |')
    return law


def parse_arguments() -> argparse.Namespace:
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
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    panels: dict[str, list[Point]] = {column: [] for column in args.columns.split(',')}
    for path in args.tables:
        record = json.loads(path.read_text(encoding='utf-8'))
        parts_of = path.parent / 'parts' if args.over == 'sequences' else None
        for column, found in panels.items():
            found.extend(points(record, column, parts_of))
    laws: dict[tuple[str, str], Law] = {}
    print('| | recipe | runs | b | residuals | at | predicted (95 %) | seen |')
    print('|---|---|---|---|---|---|---|---|')
    for column, found in panels.items():
        for recipe in args.recipes.split(','):
            ours = [point for point in found if point.recipe == recipe]
            law = print_law(Column(column), recipe, ours, args.held_out, args.at)
            if law:
                laws[column, recipe] = law
    if args.output:
        draw(args.output, panels, laws, args.held_out, args.over)


def draw(
    output: str, panels: dict[str, list[Point]], laws: dict[tuple[str, str], Law], held_out: str,
    over: str,
) -> None:
    """Draws a panel for each column: runs as marks by scale, hollow if held out; laws as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(panels), 4))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    scales: dict[str, None] = {}
    for found in panels.values():
        scales |= dict.fromkeys(point.scale for point in found)
    marks = dict(zip(scales, 'osD^v', strict=False))
    for axis, (name, found) in zip(axes, panels.items(), strict=True):
        recipes = [recipe for column, recipe in laws if column == name]
        for number, recipe in enumerate(recipes):
            ours = [point for point in found if point.recipe == recipe]
            draw_recipe(axis, Column(name), recipe, laws[name, recipe], ours,
                        marks=marks, color=f'C{number}', held_out=held_out)
        for scale, mark in marks.items():
            axis.plot([], [], f'k{mark}', markersize=4, label=scale)
        axis.set_xscale('log')
        axis.set_xlabel({'flops': 'FLOPs'}.get(over, over) + ' of pre-training')
        axis.set_title('masked-word loss, nats' if name == 'ppl' else name, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(output, dpi=110)


def draw_recipe(
    axis: Any, column: Column, recipe: str, law: Law, ours: Sequence[Point], *,
    marks: dict[str, str], color: str, held_out: str,
) -> None:
    """Draws a recipe's law as a line and its runs as marks."""
    costs = [point.cost for point in ours]
    grid = np.geomspace(min(costs), max(costs), 20)
    line = [column.value(law.at(cost).middle) for cost in grid]
    axis.plot(grid, line, f'{color}-', linewidth=1, label=recipe)
    for point in ours:
        fill = 'none' if point.scale == held_out else 'full'
        axis.plot(point.cost, column.value(point.distance), f'{color}{marks[point.scale]}',
                  markersize=5, fillstyle=fill)


if __name__ == '__main__':
    main()
