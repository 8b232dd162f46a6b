"""Prints a page of what `gpu.sh` measured, Markdown tables.

    python benchmarks/gpu_page.py FOLDER
"""

import json
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PROGRAMS = {'ours': 'bert_jax', 'pytorch': 'PyTorch, compiled, head where masked'}
# Goals for bert_jax: sequences/s on one H100 in bfloat16 with full dropout.
GOALS = {('base', 128): 5600, ('large', 128): 1950, ('base', 512): 1200, ('large', 512): 420}
ROOT = Path(__file__).parents[1]
LOSS_STEPS = (1, 10, 100, 300)  # whose losses are shown


Shape = tuple[str, int, int]  # model, length, rows


def read(folder: Path) -> tuple[dict[Shape, dict[str, float]], list[str]]:
    """(Sequences/s by program for each shape, lines on hardware and versions)."""
    found: dict[Shape, dict[str, float]] = {}
    device = 'hardware unknown: bert_jax was not measured'
    versions = {}
    for path in sorted(folder.glob('*.json')):
        match = re.fullmatch(r'(\w+)-(\d+)-(\d+)-(\w+)\.json', path.name)
        if not match or match[4] not in PROGRAMS:
            continue
        model, length, rows, program = match.groups()
        record = json.loads(path.read_text())
        rates = found.setdefault((model, int(length), int(rows)), {})
        if program == 'ours':
            rates['ours'] = our_rate(record)
            device = f"{record['hardware']['device_kind']}, {record['date'][:10]}"
        else:
            rates[program] = record.get('sequences_per_second')
        versions[program] = ', '.join(
            f'{package} {version}' for package, version in record['versions'].items())
    lines = [device]
    for program, packages in versions.items():
        lines.append(f'{PROGRAMS[program]}: {packages}')
    return found, lines


def our_rate(record: dict[str, Any]) -> float:
    """The median sequences/s of tools.bench."""
    (step,) = record['results']
    return next(
        figure['median'] for figure in step['figures'] if figure['unit'] == 'sequences/s')


def page(folder: Path) -> str:
    """The page, in Markdown."""
    found, notes = read(folder)
    headings = ' | '.join(PROGRAMS.values())
    lines = [
        '# bert_jax on a GPU', '',
        'Pre-training steps (dropout, masked LM and next sentence, clipping, AdamW; bfloat16 with '
        'float32 parameters) on random full rows, sequences/s, in brackets how many times as fast '
        'bert_jax is. Each program ran alone, by `benchmarks/gpu.sh`; the kernels that take '
        'longest are in the `.txt` files beside this page.', '',
        f'| rows | {headings} | goal on an H100 |',
        '|---' * (len(PROGRAMS) + 2) + '|',
    ]
    for model, length, rows in sorted(found, key=lambda shape: (shape[1], shape[0])):
        rates = found[model, length, rows]
        cells = ' | '.join(cell(rates, program) for program in PROGRAMS)
        goal = f'{GOALS[model, length]:,}' if (model, length) in GOALS else ''
        lines.append(f'| {model}, {rows} of {length} | {cells} | {goal} |')
    lines.extend(['', *vector_lines(folder), *run_lines(folder), *flag_lines(folder)])
    lines.extend(f'- {note}' for note in notes)
    return '\n'.join(lines)


def cell(rates: dict[str, float], program: str) -> str:
    """A program's rate and how many times as fast ours is."""
    if program not in rates:
        return 'not measured'
    rate = f'{rates[program]:,.0f}'
    if program == 'ours' or 'ours' not in rates:
        return rate
    return f"{rate} ({rates['ours'] / rates[program]:.2f})"


def vector_lines(folder: Path) -> list[str]:
    """A table of sentences/s, if they were measured."""
    rows = []
    for program, title in PROGRAMS.items():
        path = folder / f'vectors-{program}.json'
        if not path.exists():
            continue
        record = json.loads(path.read_text())
        for order, rates in record['sentences_per_second'].items():
            rows.append(
                f"| {title.partition(',')[0]}, {order} | {statistics.median(rates):,.0f} |")
    if not rows:
        return []
    return ['| vectors of sentences | sentences/s |', '|---|---|', *rows, '']


def run_lines(folder: Path) -> list[str]:
    """A table of runs from text to result beside those of CPUs, if there are any."""
    rows = [*loss_rows(folder, 'quickstart'), *loss_rows(folder, 'synthetic')]
    accuracies = []
    for path in sorted(folder.glob('run-quickstart-*.json')):
        accuracies.append(json.loads(path.read_text())['eval/mlm_accuracy'])
    if accuracies:
        stored = json.loads((ROOT / 'docs' / 'quickstart.json').read_text())
        of_cpus = [run['mlm_accuracy'] for run in stored['runs']]
        rows.append(f'| quickstart, masked words found at its end | {listed(accuracies)} | '
                    f"{listed(of_cpus)}, {stored['date']} |")
    if not rows:
        return []
    return ['| runs of seeds 0, 1, ... | here | CPUs, seeds 0, 1, 2 |', '|---|---|---|', *rows, '']


def loss_rows(folder: Path, recipe: str) -> list[str]:
    """The losses of a recipe's runs, seeds 0, 1, ..., and those of its shipped reference."""
    runs = [checked_steps(path) for path in sorted(folder.glob(f'run-{recipe}-*/metrics.jsonl'))]
    if not runs:
        return []
    path = ROOT / 'bert_jax' / 'watch' / 'references' / f'{recipe}.json'
    reference = json.loads(path.read_text())
    rows = []
    for index, step in enumerate(reference['steps']):
        here = [run[step]['check/loss'] for run in runs if step in run]
        if step in LOSS_STEPS and here:
            of_cpus = [losses[index] for losses in reference['check/loss']]
            rows.append(f'| {recipe}, loss at {step} | {listed(here)} | {listed(of_cpus)} |')
    of_cpu = reference['check/batch'][0][0]
    has_same_rows = 1 in runs[0] and runs[0][1]['check/batch'] == of_cpu
    rows.append(f"| {recipe}, rows | {'those of the CPUs' if has_same_rows else 'others'} | |")
    return rows


def checked_steps(path: Path) -> dict[int, dict[str, float]]:
    """The records of checked steps in a `metrics.jsonl`, by step."""
    result = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if 'check/loss' in record:
            result[record['step']] = record
    return result


def listed(numbers: Iterable[float]) -> str:
    """Numbers as text."""
    return ', '.join(f'{number:.3f}' for number in numbers)


def flag_lines(folder: Path) -> list[str]:
    """A table of the step's sequences/s with flags of XLA, if they were measured."""
    rows = []
    for path in sorted(folder.glob('flag-*.json')):
        flag = path.name.removeprefix('flag-').removesuffix('.json')
        rows.append(f'| `--{flag}` | {our_rate(json.loads(path.read_text())):,.0f} |')
    if not rows:
        return []
    return ['| the step of Base at 128, with a flag of XLA | sequences/s |', '|---|---|', *rows, '']


if __name__ == '__main__':
    print(page(Path(sys.argv[1])))
