"""Prints a page of what `gpu.sh` measured, a Markdown table.

    python benchmarks/gpu_page.py FOLDER
"""

import json
import re
import sys
from pathlib import Path

PROGRAMS = {
    'ours': 'bert_jax', 'stock': 'PyTorch', 'compiled': 'PyTorch, compiled',
    'tuned': 'PyTorch, compiled, head where masked', 'flax': "Hugging Face's last Flax",
    'keras': 'KerasHub on jax',
}
# Goals for bert_jax: sequences/s on one H200 in bfloat16 with full dropout.
GOALS = {('base', 128): 8500, ('large', 128): 2670, ('base', 512): 1800, ('large', 512): 580}


def read(folder: Path) -> tuple[dict[tuple[str, int, int], dict[str, float]], list[str]]:
    """(Sequences/s by program for each (model, length, rows), lines on hardware and versions).

    Ours is the median of its measurements.
    """
    found: dict[tuple[str, int, int], dict[str, float]] = {}
    versions = {}
    for path in sorted(folder.glob('*.json')):
        match = re.fullmatch(r'(\w+)-(\d+)-(\d+)-(\w+)\.json', path.name)
        if not match or match[4] not in PROGRAMS:
            continue
        whole = json.loads(path.read_text())
        rate = whole.get('sequences_per_second')
        if match[4] == 'ours':
            (step,) = whole['results']
            rate = next(f['median'] for f in step['figures'] if f['unit'] == 'sequences/s')
            versions['device'] = f"{whole['hardware']['device_kind']}, {whole['date'][:10]}"
        found.setdefault((match[1], int(match[2]), int(match[3])), {})[match[4]] = rate
        versions[match[4]] = ', '.join(f'{k} {v}' for k, v in whole['versions'].items())
    lines = [versions.pop('device', 'hardware unknown: bert_jax was not measured')]
    return found, lines + [f'{PROGRAMS[name]}: {text}' for name, text in versions.items()]


def page(folder: Path) -> str:
    """The page, in Markdown."""
    found, notes = read(folder)
    names = [name for name in PROGRAMS if any(name in rates for rates in found.values())]
    lines = [
        '# The train step on a GPU', '',
        'Pre-training steps (dropout, masked LM and next sentence, clipping, AdamW; bfloat16 with '
        'float32 parameters) on random full rows, sequences/s, in brackets how many times as fast '
        'bert_jax is. Each program ran alone, by `benchmarks/gpu.sh`.', '',
        '| rows | ' + ' | '.join(PROGRAMS[name] for name in names) + ' | goal |',
        '|---' * (len(names) + 2) + '|',
    ]
    for (model, length, rows), rates in sorted(found.items(), key=lambda x: (x[0][1], x[0][0])):
        cells = []
        for name in names:
            if name not in rates:
                cells.append('left out')
                continue
            ratio = f" ({rates['ours'] / rates[name]:.2f})" if 'ours' in rates else ''
            cells.append(f'{rates[name]:,.0f}' + (ratio if name != 'ours' else ''))
        goal = f'{GOALS[model, length]:,}' if (model, length) in GOALS else ''
        lines.append(f'| {model}, {rows} of {length} | ' + ' | '.join(cells) + f' | {goal} |')
    return '\n'.join([*lines, '', *(f'- {note}' for note in notes)])


if __name__ == '__main__':
    print(page(Path(sys.argv[1])))
