"""Compiles the train steps in cycles.json again and compares what they take.

    pip install '.[tpu,cuda]'; python benchmarks/cycles.py [--update]

Needs no TPU and no GPU: tools.preflight compiles them, which takes minutes for each program. Of
TPUs it compares cycles per sequence; of GPUs, of which the compiler tells no cycles, the bytes that
a step's kernels move and the number of kernels. A program whose compiler is not installed is left
out, and the line says what to install. Exit status: 0 if something was compared and nothing is more
than 2 % above what is stored, 1 otherwise. --update stores the new figures, with date and versions.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STORED = Path(__file__).with_suffix('.json')
MOST = 1.02  # times what is stored
PREDICTION_SLOTS = {128: 20, 512: 80}  # by length
# What is compared, by its name in preflight's record: what a line says of it, and its unit there.
FIGURES = {
    'cycles_per_sequence': ('thousand cycles a sequence', 1e3),
    'bytes_moved': ('GB a step', 1e9),
    'kernels': ('kernels a step', 1),
}


def measure(program: dict[str, Any]) -> dict[str, Any] | None:
    """The record of tools.preflight, with a phase for each (length, rows a chip).

    None if the compiler is not installed, or refuses; preflight has said why.
    """
    phases = []
    for length, rows in program['shapes']:
        phases.append({
            'steps': 10, 'max_seq_length': length, 'batch_size': program['chips'] * rows,
            'max_predictions_per_seq': PREDICTION_SLOTS[length]})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'preflight.json'
        command = [
            sys.executable, '-m', 'bert_jax.tools.preflight',
            f"--config=configs/{program['model']}_pretrain.py", f"--topology={program['topology']}",
            f'--config.phases={tuple(phases)!r}', f'--json={path}',
        ]
        process = subprocess.run(command)
        if process.returncode == 2:
            return None
        process.check_returncode()
        result: dict[str, Any] = json.loads(path.read_text())
        return result


def compare(
    program: dict[str, Any], measured: dict[str, list[float]]
) -> tuple[list[str], bool]:
    """(A line for each shape and figure, whether none is over 2 % more than stored)."""
    lines = []
    is_good = True
    for name, values in measured.items():
        what, unit = FIGURES[name]
        for (length, rows), now, before in zip(
                program['shapes'], values, program['figures'][name], strict=True):
            change = 100 * (now / before - 1)
            lines.append(f"{program['model']} {length} at {rows} a chip, {program['topology']}: "
                         f'{now / unit:,.0f} {what} ({change:+.1f} %)')
            if now > MOST * before:
                is_good = False
    return lines, is_good


def figures_of(program: dict[str, Any], record: dict[str, Any]) -> dict[str, list[float]]:
    """The figures that are stored of a program, by name, for each of its shapes."""
    return {
        name: [phase[name] for phase in record['phases']] for name in program['figures']}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--update', action='store_true')
    update = parser.parse_args().update
    stored = json.loads(STORED.read_text())
    all_good = True
    num_compared = 0
    for program in stored['programs']:
        record = measure(program)
        if record is None:
            print(f"{program['model']}, {program['topology']}: left out", flush=True)
            continue
        measured = figures_of(program, record)
        lines, is_good = compare(program, measured)
        print('\n'.join(lines), flush=True)
        num_compared += 1
        all_good = all_good and is_good
        program |= {
            'figures': measured, 'date': record['date'], 'versions': record['versions']}
    if update:
        rows = [json.dumps(program) for program in stored['programs']]
        STORED.write_text('{"programs": [\n ' + ',\n '.join(rows) + '\n]}\n')
    return 0 if num_compared and (all_good or update) else 1


if __name__ == '__main__':
    sys.exit(main())
