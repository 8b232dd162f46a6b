"""Prints a page of what `gpu.sh` measured, a Markdown table.

    python benchmarks/gpu_page.py FOLDER
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

PROGRAMS = {
    'ours': 'bert_jax', 'stock': 'PyTorch', 'compiled': 'PyTorch, compiled',
    'tuned': 'PyTorch, compiled, head where masked', 'flax': "Hugging Face's last Flax",
    'keras': 'KerasHub on jax',
}
# Goals for bert_jax: sequences/s on one H200 in bfloat16 with full dropout.
GOALS = {('base', 128): 8500, ('large', 128): 2670, ('base', 512): 1800, ('large', 512): 580}


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
    measured: set[str] = set().union(*found.values())
    programs = [program for program in PROGRAMS if program in measured]
    headings = ' | '.join(PROGRAMS[program] for program in programs)
    lines = [
        '# The train step on a GPU', '',
        'Pre-training steps (dropout, masked LM and next sentence, clipping, AdamW; bfloat16 with '
        'float32 parameters) on random full rows, sequences/s, in brackets how many times as fast '
        'bert_jax is. Each program ran alone, by `benchmarks/gpu.sh`.', '',
        f'| rows | {headings} | goal |',
        '|---' * (len(programs) + 2) + '|',
    ]
    for model, length, rows in sorted(found, key=lambda shape: (shape[1], shape[0])):
        rates = found[model, length, rows]
        cells = ' | '.join(cell(rates, program) for program in programs)
        goal = f'{GOALS[model, length]:,}' if (model, length) in GOALS else ''
        lines.append(f'| {model}, {rows} of {length} | {cells} | {goal} |')
    lines.append('')
    lines.extend(f'- {note}' for note in notes)
    return '\n'.join(lines)


def cell(rates: dict[str, float], program: str) -> str:
    """A program's rate and how many times as fast ours is."""
    if program not in rates:
        return 'left out'
    rate = f'{rates[program]:,.0f}'
    if program == 'ours' or 'ours' not in rates:
        return rate
    return f"{rate} ({rates['ours'] / rates[program]:.2f})"


if __name__ == '__main__':
    print(page(Path(sys.argv[1])))
