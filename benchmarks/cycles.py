"""Compiles the programs in cycles.json again and compares what they take.

They are train steps, and the attention kernels alone.

    pip install '.[tpu,cuda]'
    python -m benchmarks.cycles [--only=NAME,...] [--estimates] [--update]

Needs no TPU and no GPU: it compiles as tools.preflight does, as many programs at a time as there
are cores, a train step in minutes of a core and 4 GB, the kernels in half a minute. Of TPUs it
compares cycles per sequence, by the compiler's estimates and by its schedules; of GPUs, of which
the compiler tells no cycles, the bytes that a step's kernels move and the number of kernels. A
program whose compiler is not installed is left out, and the line says what to install.

With --estimates no schedules of train steps are written, which is most of the work for TPUs. Then
kernels in Pallas, of which there are no estimates, count in them with the time that their bytes
take. What the attention kernels compute is compared by `attention-...`: the bundles, one a cycle,
of their schedules.

A figure is too much if it is more than 2 % above what is stored, or more than 2 % above the best
that was ever stored without a reason in cycles.json, which the line repeats. So a program cannot
grow by small steps. Exit status: 1 if something is too much, a program of --only is left out or
nothing was compared, or a step does not fit its chip, 0 otherwise.

--update stores the new figures, with date and versions if none is left as it was, and keeps the
best; for what is more than
2 % above the best it takes --reason='WHY', and stores nothing of that program without one.
"""

import argparse
import concurrent.futures
import datetime
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

STORED = Path(__file__).with_suffix('.json')
MOST = 1.02  # times what is stored, and times the best
PREDICTION_SLOTS = {128: 20, 512: 80}  # by length
# What is compared, by its name in the record of preflight or `kernel_bundles`: what a line says of
# it, and its unit there.
FIGURES = {
    'cycles_without_schedules_per_sequence': (
        'thousand cycles a sequence, estimated, kernels by their bytes', 1e3),
    'cycles_per_sequence': ('thousand cycles a sequence, estimated', 1e3),
    'scheduled_cycles_per_sequence': ('thousand cycles a sequence, scheduled', 1e3),
    'bytes_moved': ('GB a step', 1e9),
    'kernels': ('kernels a step', 1),
    'forward_bundles_per_row_of_128': ('bundles a row of 128, forward kernel', 1),
    'backward_bundles_per_row_of_128': ('bundles a row of 128, backward kernel', 1),
    'forward_bundles_per_row_of_512': ('bundles a row of 512, forward kernel', 1),
    'backward_bundles_per_row_of_512': ('bundles a row of 512, backward kernel', 1),
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
    """What --only calls a program, such as base-128-v5e:2x2 or attention-v5e:2x2."""
    fields = 'model', 'length', 'topology'
    return '-'.join(str(program[field]) for field in fields if field in program)


def measure(program: dict[str, Any], with_schedules: bool) -> dict[str, Any] | None:
    """What a program takes, as tools.preflight says; compiles it in this process.

    None if the compiler is not installed, {} if a step does not fit or a schedule does not tell,
    which is printed.
    """
    from bert_jax.runtime.errors import InputError
    from bert_jax.runtime.provenance import versions
    from bert_jax.tools.preflight.schedules import write_schedules
    from bert_jax.tools.preflight.topology import open_topology

    is_attention = program['model'] == 'attention'
    with tempfile.TemporaryDirectory() as folder:
        if with_schedules or is_attention:
            write_schedules(folder)
        else:
            folder = ''
        try:
            devices = open_topology(program['topology'])
        except InputError as error:
            print(f'{name_of(program)}: {error}', flush=True)
            return None
        try:
            if is_attention:
                from benchmarks.kernel_bundles import measure_attention
                figures = measure_attention(devices[0], folder)
            else:
                figures = measure_step(program, devices, folder)
        except InputError as error:
            print(f'{name_of(program)}: {error}', flush=True)
            return {}
    return figures | {'date': datetime.date.today().isoformat(), 'versions': versions()}


def measure_step(program: dict[str, Any], devices: list[Any], folder: str) -> dict[str, Any]:
    """What a program's train step takes on devices, as `measure_train_step` says."""
    from bert_jax.config.command_line import load_config
    from bert_jax.run_setup import open_mesh
    from bert_jax.tools.preflight.measure import measure_train_step, without_data
    from bert_jax.validation import validate

    length = program['length']
    config = load_config(f"configs/{program['model']}_pretrain.py")
    config.phases = ({
        'steps': 10, 'max_seq_length': length, 'batch_size': program['chips'] * program['rows'],
        'max_predictions_per_seq': PREDICTION_SLOTS[length]},)
    validate(config)
    config = without_data(config)
    return measure_train_step(config, open_mesh(config, devices), folder)


def measure_all(
    programs: list[dict[str, Any]], with_schedules: bool
) -> Iterator[dict[str, Any] | None]:
    """`measure` of each, in a process of its own, in their order."""
    os.environ |= {'JAX_PLATFORMS': 'cpu', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
                   'TPU_SKIP_MDS_QUERY': '1'}
    with concurrent.futures.ProcessPoolExecutor(
        os.cpu_count(), multiprocessing.get_context('spawn'), max_tasks_per_child=1
    ) as pool:
        yield from pool.map(measure, programs, [with_schedules] * len(programs))


def figures_of(record: dict[str, Any]) -> dict[str, float]:
    """The figures of a record that are compared, by name."""
    return {name: round(record[name]) for name in FIGURES if name in record}


def compare(program: dict[str, Any], measured: dict[str, float]) -> Comparison:
    """Compares the figures of a program with what is stored, and with the best."""
    result = Comparison([], [], [])
    for name, now in measured.items():
        what, unit = FIGURES[name]
        rows = f', {program["rows"]} rows a chip' if 'rows' in program else ''
        line = f'{name_of(program)}{rows}: {now / unit:,.1f} {what}'
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
    """The program with new figures; the best stays, unless they are better.

    What was not measured, for want of schedules, stays as it is, and then so do date and versions.
    """
    best = dict(program['best'])
    for name, now in measured.items():
        if name not in best or now < best[name]['value']:
            best[name] = {'value': now, 'date': record['date']}
    reasons = {name: why for name, why in program['reasons'].items() if name not in measured}
    for name in compare(program, measured).above_best:
        reasons[name] = reason or program['reasons'][name]
    after = program | {
        'figures': program['figures'] | measured, 'best': best, 'reasons': reasons}
    if set(program['figures']) <= set(measured):
        after |= {'date': record['date'], 'versions': record['versions']}
    return after


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', help='names of programs, joined by commas', default='')
    parser.add_argument('--estimates', action='store_true')
    parser.add_argument('--update', action='store_true')
    parser.add_argument('--reason', help='why a program is slower than the best', default='')
    options = parser.parse_args()
    stored = json.loads(STORED.read_text())['programs']
    programs = {name_of(program): program for program in stored}
    only = options.only.split(',') if options.only else list(programs)
    unknown = set(only) - set(programs)
    if unknown:
        parser.error(f"--only={unknown.pop()}: choose from {', '.join(programs)}")
    all_good = True
    num_compared = 0
    records = measure_all([programs[name] for name in only], not options.estimates)
    for name, record in zip(only, records, strict=True):
        program = programs[name]
        if record is None:
            print(f'{name}: left out', flush=True)
            all_good = all_good and not options.only
            continue
        if not record:
            all_good = False
            continue
        measured = figures_of(record)
        comparison = compare(program, measured)
        print('\n'.join(comparison.lines), flush=True)
        num_compared += 1
        if options.update:
            needs_reason = set(comparison.above_best) - set(program['reasons'])
            if needs_reason and not options.reason:
                print(f"{name}: not stored: say with --reason why its "
                      f"{', '.join(sorted(needs_reason))} may be above the best", flush=True)
                all_good = False
                continue
            programs[name] = updated(program, measured, record, options.reason)
        else:
            all_good = all_good and comparison.is_good(program)
    if options.update:
        rows = [json.dumps(program) for program in programs.values()]
        STORED.write_text('{"programs": [\n ' + ',\n '.join(rows) + '\n]}\n')
    return 0 if num_compared and all_good else 1


if __name__ == '__main__':
    sys.exit(main())
