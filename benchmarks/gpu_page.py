"""Prints a page of what `gpu.sh` measured, Markdown tables.

    python benchmarks/gpu_page.py FOLDER
"""

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

PROGRAMS = {'ours': 'bert_jax', 'pytorch': 'PyTorch, compiled, head where masked'}
# Goals for bert_jax: sequences/s on one H100 in bfloat16 with full dropout.
GOALS = {('base', 128): 5600, ('large', 128): 1950, ('base', 512): 1200, ('large', 512): 420}


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
    lines.extend(['', *vector_lines(folder)])
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


if __name__ == '__main__':
    print(page(Path(sys.argv[1])))
