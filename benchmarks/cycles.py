"""Compiles the train steps in cycles.json again and compares what they take.

    pip install '.[tpu,cuda]'; python benchmarks/cycles.py [--only=NAME,...] [--update]

Needs no TPU and no GPU: tools.preflight compiles them, which takes minutes for each program. Of
TPUs it compares cycles per sequence, by the compiler's estimates and by its schedules; of GPUs, of
which the compiler tells no cycles, the bytes that a step's kernels move and the number of kernels.
A program whose compiler is not installed is left out, and the line says what to install.

A figure is too much if it is more than 2 % above what is stored, or more than 2 % above the best
that was ever stored without a reason in cycles.json, which the line repeats. So a program cannot
grow by small steps. Exit status: 0 if something was compared and nothing is too much, 1 otherwise.

--update stores the new figures, with date and versions, and keeps the best; for what is more than
2 % above the best it takes --reason='WHY', and stores nothing of that program without one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

STORED = Path(__file__).with_suffix('.json')
MOST = 1.02  # times what is stored, and times the best
PREDICTION_SLOTS = {128: 20, 512: 80}  # by length
# What is compared, by its name in preflight's record: what a line says of it, and its unit there.
FIGURES = {
    'cycles_per_sequence': ('thousand cycles a sequence, estimated', 1e3),
    'scheduled_cycles_per_sequence': ('thousand cycles a sequence, scheduled', 1e3),
    'bytes_moved': ('GB a step', 1e9),
    'kernels': ('kernels a step', 1),
}


class Comparison(NamedTuple):
    """What became of a program.

    Attributes:
      lines: one a figure, for people.
      above_stored: names of the figures that are more than 2 % above what is stored.
      above_best: names of those that are more than 2 % above the best.
    """

    lines: list[str]
    above_stored: list[str]
    above_best: list[str]

    def is_good(self, program: dict[str, Any]) -> bool:
        """Whether nothing grew, or only what has a reason."""
        without_reason = set(self.above_best) - set(program['reasons'])
        return not self.above_stored and not without_reason


def name_of(program: dict[str, Any]) -> str:
    """What --only calls a program, such as base-128-v5e:2x2."""
    return f"{program['model']}-{program['length']}-{program['topology']}"


def measure(program: dict[str, Any]) -> dict[str, Any] | None:
    """The record of tools.preflight.

    None if the compiler is not installed, or refuses; preflight has said why.
    """
    length = program['length']
    phase = {
        'steps': 10, 'max_seq_length': length, 'batch_size': program['chips'] * program['rows'],
        'max_predictions_per_seq': PREDICTION_SLOTS[length]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'preflight.json'
        command = [
            sys.executable, '-m', 'bert_jax.tools.preflight',
            f"--config=configs/{program['model']}_pretrain.py", f"--topology={program['topology']}",
            f'--config.phases={(phase,)!r}', f'--json={path}',
        ]
        process = subprocess.run(command)
        if process.returncode == 2:
            return None
        process.check_returncode()
        result: dict[str, Any] = json.loads(path.read_text())
        return result


def figures_of(record: dict[str, Any]) -> dict[str, float]:
    """The figures of a record that are compared, by name."""
    phase = record['phases'][0]
    return {name: round(phase[name]) for name in FIGURES if phase.get(name) is not None}


def compare(program: dict[str, Any], measured: dict[str, float]) -> Comparison:
    """Compares the figures of a program with what is stored, and with the best."""
    result = Comparison([], [], [])
    for name, now in measured.items():
        what, unit = FIGURES[name]
        line = f'{name_of(program)}, {program["rows"]} rows a chip: {now / unit:,.1f} {what}'
        if name not in program['figures']:
            result.lines.append(f'{line} (nothing is stored)')
            continue
        stored = program['figures'][name]
        best = program['best'][name]
        line += f' ({100 * (now / stored - 1):+.1f} %'
        if now > MOST * stored:
            result.above_stored.append(name)
        if now > MOST * best['value']:
            result.above_best.append(name)
            reason = program['reasons'].get(name, 'no reason is given in cycles.json')
            line += (f"; {100 * (now / best['value'] - 1):+.1f} % above the best, "
                     f"{best['value'] / unit:,.1f} on {best['date']}: {reason}")
        result.lines.append(f'{line})')
    return result


def updated(
    program: dict[str, Any], measured: dict[str, float], record: dict[str, Any], reason: str
) -> dict[str, Any]:
    """The program with new figures; the best stays, unless they are better."""
    date = record['date']
    best = {name: {'value': now, 'date': date} for name, now in measured.items()}
    for name, before in program['best'].items():
        if name in best and before['value'] <= best[name]['value']:
            best[name] = before
    reasons = {}
    for name in compare(program, measured).above_best:
        reasons[name] = reason or program['reasons'][name]
    return program | {
        'figures': measured, 'best': best, 'reasons': reasons, 'date': date,
        'versions': record['versions']}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', help='names of programs, joined by commas', default='')
    parser.add_argument('--update', action='store_true')
    parser.add_argument('--reason', help='why a program is slower than the best', default='')
    options = parser.parse_args()
    programs = json.loads(STORED.read_text())['programs']
    names = [name_of(program) for program in programs]
    only = options.only.split(',') if options.only else names
    unknown = set(only) - set(names)
    if unknown:
        parser.error(f"--only={unknown.pop()}: choose from {', '.join(names)}")
    all_good = True
    num_compared = 0
    for i, program in enumerate(programs):
        if name_of(program) not in only:
            continue
        record = measure(program)
        if record is None:
            print(f'{name_of(program)}: left out', flush=True)
            continue
        measured = figures_of(record)
        comparison = compare(program, measured)
        print('\n'.join(comparison.lines), flush=True)
        num_compared += 1
        if options.update:
            needs_reason = set(comparison.above_best) - set(program['reasons'])
            if needs_reason and not options.reason:
                print(f"{name_of(program)}: not stored: say with --reason why its "
                      f"{', '.join(sorted(needs_reason))} may be above the best", flush=True)
                all_good = False
                continue
            programs[i] = updated(program, measured, record, options.reason)
        else:
            all_good = all_good and comparison.is_good(program)
    if options.update:
        rows = [json.dumps(program) for program in programs]
        STORED.write_text('{"programs": [\n ' + ',\n '.join(rows) + '\n]}\n')
    return 0 if num_compared and all_good else 1


if __name__ == '__main__':
    sys.exit(main())
