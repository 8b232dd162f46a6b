"""Compiles the train steps in cycles.json for TPUs again and compares their cycles.

    pip install '.[tpu]'; python benchmarks/cycles.py [--update]

Needs no TPU: tools.preflight compiles them, which takes minutes for each program. Exit status: 0 if
no step takes over 2 % more cycles per sequence than stored, 1 otherwise. --update stores the new
figures, with date and versions.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STORED = Path(__file__).with_suffix('.json')
MOST = 1.02  # times the stored cycles
NUM_CHIPS = 4
PREDICTION_SLOTS = {128: 20, 512: 80}  # by length


def measure(program: dict[str, Any]) -> dict[str, Any]:
    """The record of tools.preflight on four chips, with a phase for each (length, rows a chip)."""
    phases = []
    for length, rows in program['shapes']:
        phases.append({
            'steps': 10, 'max_seq_length': length, 'batch_size': NUM_CHIPS * rows,
            'max_predictions_per_seq': PREDICTION_SLOTS[length]})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'preflight.json'
        command = [
            sys.executable, '-m', 'bert_jax.tools.preflight',
            f"--config=configs/{program['model']}_pretrain.py", f"--topology={program['topology']}",
            f'--config.phases={tuple(phases)!r}', f'--json={path}',
        ]
        subprocess.run(command, check=True)
        result: dict[str, Any] = json.loads(path.read_text())
        return result


def compare(program: dict[str, Any], cycles: list[float]) -> tuple[list[str], bool]:
    """(A line for each shape, whether none takes over 2 % more than stored)."""
    lines = []
    is_good = True
    for (length, rows), now, before in zip(
            program['shapes'], cycles, program['cycles'], strict=True):
        change = 100 * (now / before - 1)
        lines.append(f"{program['model']} {length} at {rows} a chip, {program['topology']}: "
                     f'{now / 1e3:,.0f} thousand cycles a sequence ({change:+.1f} %)')
        if now > MOST * before:
            is_good = False
    return lines, is_good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--update', action='store_true')
    update = parser.parse_args().update
    stored = json.loads(STORED.read_text())
    all_good = True
    for program in stored['programs']:
        record = measure(program)
        cycles = [phase['cycles_per_sequence'] for phase in record['phases']]
        lines, is_good = compare(program, cycles)
        print('\n'.join(lines), flush=True)
        all_good = all_good and is_good
        program['cycles'] = cycles
        stored['date'] = record['date']
        stored['versions'] = record['versions']
    if update:
        STORED.write_text(json.dumps(stored, indent=1) + '\n')
    return 0 if all_good or update else 1


if __name__ == '__main__':
    sys.exit(main())
