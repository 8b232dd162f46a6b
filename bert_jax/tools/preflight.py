"""Predicts whether a pre-training run fits a TPU slice, how long it takes and where the time goes.

    python -m bert_jax.tools.preflight --config=configs/base_pretrain.py \\
        --topology=v5e:2x2,v5e:4x4,v4:2x2x4 --price=v5e=1.2,v4=3.22
    python -m bert_jax.tools.preflight --config=configs/large_pretrain.py:lamb \\
        --topology=v5e:16x16 --json=after.json --config.train.accumulation_steps=16
    python -m bert_jax.tools.preflight --config=configs/base_pretrain.py --topology=v5e:16x16 --best

For each slice it prints a line that begins with the verdict, and below it what to change if a phase
does not fit or is far from the chips' peak. --verbose also prints memory, cycles and messages by
kind. It needs no TPU and no data: the TPU compiler (libtpu, in the extra [tpu]) compiles the train
and evaluation steps of bert_jax.main from shapes, in a few minutes per phase. Topologies are given
in chips: v4 and v5p (three dims, v4:4x4x4), v5e and v6e (two dims, v6e:16x16). The vocabulary's
size is model.vocab_size, or that of config.data.vocab_file, or data.vocab_size.

Cycles come from the compiler's estimates and schedules and are not measured on a chip: use them to
compare programs.
Exit status: 0 all phases fit on all slices (--best: on one mesh), 1 one does not, 2 bad flags
or configuration.
"""

import collections
import datetime
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from bert_jax.config import ConfigDict
from bert_jax.config.command_line import parse_command
from bert_jax.config.fields import PRETRAINING
from bert_jax.run_setup import open_mesh
from bert_jax.runtime.chips import Chip, find_chip
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import check_new_file, write_whole
from bert_jax.runtime.hosts import say
from bert_jax.runtime.process import error_boundary
from bert_jax.runtime.provenance import versions
from bert_jax.sharding import Mesh, make_mesh
from bert_jax.tasks.pretrain import PretrainTask, step_flops
from bert_jax.text import load_tokenizer
from bert_jax.text.training import add_words
from bert_jax.tools import preflight_hlo as hlo
from bert_jax.train import program as programs
from bert_jax.train.memory import compile_step, device_bytes
from bert_jax.train.program import Program
from bert_jax.validation import complete, validate
from bert_jax.weights import load_weights

Record = dict[str, Any]
_HOW_FAR_OFF = (
    "Bytes are the compiler's own. Hours are not confirmed by a chip: the lower are by its final "
    'schedules, where messages overlap computation as they do there, the higher by its estimates, '
    'with no overlap. Evaluation, saving and waiting for data come on top.')


def measure_phase(
    program: Program, number: int, chip: Chip, folder: str, seen: dict[str, Any]
) -> Record:
    """Compiles the steps of a phase and reads memory, cycles and messages, as plain values.

    Args:
      program: of the run.
      number: of the phase, from 0.
      chip: the kind of chip.
      folder: where the compiler writes schedules (`preflight_hlo.write_schedules`).
      seen: schedules of earlier phases, by the text of their train steps: a step that equals one of
        them is not compiled again, so it has none. This phase's are added.
    """
    phase, mesh = program.phases[number], program.mesh
    parts = program.config.train.accumulation_steps
    rows = phase['packed_rows'] or phase['batch_size']
    name = f"phase {number + 1} (length {phase['max_seq_length']}, batch {phase['batch_size']:,})"
    started, results, written = time.monotonic(), {}, {}
    for step_name, (step, arguments) in programs.phase_calls(program, phase).items():
        say(f'compiling {step_name} of {name} for {mesh.size} {chip.name} chips ...')
        results[step_name] = compile_step(step, *arguments)
        written[step_name] = hlo.read_schedules(folder)
        say(f'  done, {time.monotonic() - started:.0f} s')
    (compiled, memory), (_, evaluation) = results['train'], results['evaluation']
    params, moments = device_bytes(program.state.params), device_bytes(program.state.opt_state)
    # The optimizer's state stays in memory during evaluation.
    needed = sum(memory), sum(evaluation) + moments
    rows_at_once = rows / (mesh.shape['data'] * mesh.shape['fsdp'] * parts)
    # `largest_rows_at_once` is a lower bound: temporaries other than accumulated gradients are all
    # taken to grow with the rows.
    gradients = params if parts > 1 else 0  # accumulated
    batch = memory.arguments - params - moments
    growing = max(memory.temporaries - gradients, 1) + batch
    fixed = sum(memory) - growing
    flops = step_flops(program.head.config, phase) / phase['batch_size']
    record = phase | {
        'name': name, 'accumulation_steps': parts, 'rows_per_chip': rows / mesh.size,
        'rows_at_once': rows_at_once,
        'floor_cycles_per_sequence': flops / chip.cycle_flops,
        'cycles_per_sequence': None, 'collectives': [],
        'bytes_per_chip': sum(memory), 'bytes_limit': chip.memory_bytes,
        'bytes': {
            'parameters': params, 'optimizer': moments, 'batch': batch,
            'temporaries': memory.temporaries, 'results': memory.outputs, 'code': memory.code,
        },
        'evaluation_bytes_per_chip': needed[1],
        'fits': compiled is not None and max(needed) <= chip.memory_bytes,
        'largest_rows_at_once': max(
            0, int(rows_at_once * (chip.memory_bytes - fixed) / growing)),
    }
    if compiled is not None:
        text = compiled.as_text()
        if not (schedules := seen.setdefault(text, written['train'])):
            say('  the compiler wrote no schedules: all cycles are its estimates')
        record |= _times(hlo.CompiledText(text), schedules, phase, mesh.size, chip, flops)
    return record


def _times(
    text: hlo.CompiledText, schedules: dict[str, hlo.Schedule], phase: Record, chips: int,
    chip: Chip, formula: float,
) -> Record:
    """Cycles, messages and time of a compiled train step.

    Args:
      text: of the step.
      schedules: of its instructions, by name.
      phase: of the run.
      chips: number of chips.
      chip: their kind.
      formula: FLOPs of a sequence, by the formula.
    """
    per_sequence, schedules = chips / phase['batch_size'], text.schedules(schedules)
    scopes: dict[tuple[str, str], Record] = {}
    waits: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(
        collections.Counter)
    taken = {}  # seconds, by instruction
    for instruction, estimate in text.timed():
        by_schedule, unit = scheduled_cycles(
            text, instruction, estimate, schedules.get(instruction.name), chip)
        taken[instruction.name] = by_schedule / chip.clock
        key = hlo.scope_of(instruction.op_name)
        scope = scopes.setdefault(key, {'scope': key[0], 'pass': key[1], 'cycles_per_sequence': 0.0,
                                        'scheduled_cycles_per_sequence': 0.0})
        times = instruction.times * per_sequence
        scope['cycles_per_sequence'] += times * (by_schedule if estimate is None else estimate)
        scope['scheduled_cycles_per_sequence'] += times * by_schedule
        waits[key][unit] += times * by_schedule
        scope['waits_for'] = waits[key].most_common(1)[0][0]
    ordered = sorted(scopes.values(), key=lambda scope: -scope['cycles_per_sequence'])
    cycles, scheduled = (sum(scope[of] for scope in ordered) for of in (
        'cycles_per_sequence', 'scheduled_cycles_per_sequence'))
    collectives = text.collectives()
    clock = per_sequence * chip.clock  # cycles per sequence / clock: seconds of a step
    seconds = {'compute': cycles / clock, 'scheduled': scheduled / clock,
               'waiting': text.waiting(taken, chip.links),
               'collectives': text.waiting({}, chip.links)}  # as if nothing ran meanwhile
    step = seconds['compute'] + seconds['collectives']
    hours = phase['steps'] * step / 3600
    return {
        'cycles_per_sequence': cycles, 'scheduled_cycles_per_sequence': scheduled,
        'scopes': ordered, 'collectives': collectives,
        'collective_bytes': sum(c['bytes'] for c in collectives),
        'seconds': seconds, 'step_seconds': step,
        'sequences_per_second': phase['batch_size'] / step,
        'mfu': formula / (per_sequence * chip.peak_flops * step),
        'hours': hours, 'chip_hours': hours * chips,
    }


def scheduled_cycles(
    text: hlo.CompiledText, instruction: hlo.Instruction, estimate: int | None,
    schedule: hlo.Schedule | None, chip: Chip,
) -> tuple[float, str]:
    """(Cycles of an instruction by its schedule and its bytes, the resource it waits for most).

    A core issues a bundle per cycle while the bytes of other iterations of the loop move: the
    longer of the two times counts, plus one iteration of the shorter. A matrix product takes at
    least its FLOPs at the peak rate: a v5e issues them up to a fifth faster than it computes them.
    Without a schedule, or if it has inner loops of unknown length, the compiler's `estimate`
    counts. (A loop within the attention kernel, for scores that float32's exponents cannot hold, is
    ignored.) With neither a schedule nor an estimate, the bytes count.
    """
    moved = text.bytes_moved(instruction) / chip.bandwidth * chip.clock
    if schedule is None or (schedule.bundles[2] and estimate is not None):
        return (moved, 'memory') if estimate is None else (estimate, '?')
    trips = text.trips(instruction, hlo.num_cores(chip.name))
    issued = schedule.bundles[0] + schedule.bundles[1] * trips
    computed = min(text.product(instruction) / chip.cycle_flops, estimate or 0)
    busy, unit = max((issued, schedule.unit), (computed, 'MXU'), key=lambda pair: pair[0])
    return max(busy, moved) + min(busy, moved) / trips, 'memory' if moved > busy else unit


def _gb(size: float) -> str:
    return f'{size / 1e9:.2f}'


def _summary(p: Record) -> dict[str, str]:
    """A phase's column of the first table, by row title."""
    result = {
        'steps': f"{p['steps']:,}",
        'batch x length': f"{p['batch_size']:,} x {p['max_seq_length']}",
        'rows a chip, in parts': f"{p['rows_per_chip']:g}, {p['accumulation_steps']}",
        **{f'GB a chip: {kind}': _gb(size) for kind, size in p['bytes'].items()},
        '  all': _gb(p['bytes_per_chip']),
        '  in evaluation': _gb(p['evaluation_bytes_per_chip']),
        '  there are': _gb(p['bytes_limit']),
        'rows at once, and at most about': f"{p['rows_at_once']:g}, {p['largest_rows_at_once']}",
    }
    if p['cycles_per_sequence'] is None:
        return result
    return result | {
        'kcycles a sequence': f"{p['cycles_per_sequence'] / 1e3:,.0f}",
        '  by the schedule': f"{p['scheduled_cycles_per_sequence'] / 1e3:,.0f}",
        '  at the peak': f"{p['floor_cycles_per_sequence'] / 1e3:,.0f}",
        'MB of messages a step': f"{p['collective_bytes'] / 1e6:,.0f}",
        'ms a step: compute': f"{1e3 * p['seconds']['compute']:,.1f}",
        '  messages': f"{1e3 * p['seconds']['collectives']:,.1f}",
        '  by the schedule, compute': f"{1e3 * p['seconds']['scheduled']:,.1f}",
        '  and waiting for messages': f"{1e3 * p['seconds']['waiting']:,.1f}",
        'hours': f"{p['hours']:,.1f}",
    }


def tables(record: Record) -> str:
    """A whole record as text tables."""
    phases = record['phases']
    mesh = ' x '.join(f'{axis} {size}' for axis, size in record['mesh'].items())
    known = ', '.join(map(' '.join, record['versions'].items()))
    columns = [_summary(phase) for phase in phases]
    rows = [['', *(phase['name'].split(' (')[0] for phase in phases)]]
    rows += [[title, *(column.get(title, '-') for column in columns)]
             for title in max(columns, key=len)]
    parts = [f"{record['config']} on {record['topology']}: {record['chips']} {record['chip']} "
             f"chips, mesh {mesh}\n{known}; {record['date']}", grid(rows)]
    for phase in phases:
        if phase['cycles_per_sequence'] is not None:
            messages = [
                [c['kind'], c['largest'], f"{c['count']:,}", f"{c['bytes'] / 1e6:,.1f}", c['scope']]
                for c in phase['collectives']]
            scopes = [
                [e['scope'], e['pass'], f"{e['cycles_per_sequence'] / 1e3:,.1f}",
                 f"{100 * e['cycles_per_sequence'] / max(phase['cycles_per_sequence'], 1):.1f}",
                 f"{e['scheduled_cycles_per_sequence'] / 1e3:,.1f}", e['waits_for']]
                for e in phase['scopes']]
            parts += [f"{phase['name']}, {what}\n" + grid([heading, *rows])
                      for what, heading, rows in (
                ('by part', ['', 'pass', 'kcycles a sequence', '%', 'by schedule', 'waits for'],
                 scopes),
                ('messages a step and chip', ['', 'largest array', 'count', 'MB', 'of'], messages))]
    return '\n\n'.join(parts)


def grid(rows: Sequence[Sequence[str]]) -> str:
    """A text table with aligned columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ['  '.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
             for row in rows]
    return '\n'.join([lines[0], '-' * max(map(len, lines)), *lines[1:]])


def verdict(record: Record) -> str:
    """Whether the run fits and what it takes, in one line; then what to change, a line each."""
    name, phases = f"{record['topology']}: ", record['phases']
    lines = []
    if record['fits']:
        least = sum(p['steps'] * (p['seconds']['scheduled'] + p['seconds']['waiting'])
                    for p in phases) / 3600
        lines.append(
            f"{name}fits, {_gb(max(map(_needed, phases)))} GB of a chip's "
            f"{_gb(phases[0]['bytes_limit'])}; {min(least, record['hours']):,.1f} to "
            f"{record['hours']:,.1f} hours, {record['chip_hours']:,.0f} chip-hours"
            + (f", ${record['dollars']:,.0f}" if 'dollars' in record else '')
            + f"; {', '.join(format(phase['mfu'], '.0%') for phase in phases)} of the peak")
    for phase in phases:
        if not phase['fits']:
            lines.append(
                f"{name}{phase['name']} does not fit: it takes {_gb(_needed(phase))} GB of a "
                f"chip's {_gb(phase['bytes_limit'])}; {_remedy(phase)}")
        elif 'mfu' in phase and (advice := _advice(phase, record)):
            lines.append(f"  {phase['name']}: {advice}")
    return '\n'.join(lines)


def _needed(phase: Record) -> int:
    return max(phase['bytes_per_chip'], phase['evaluation_bytes_per_chip'])


def _advice(phase: Record, record: Record) -> str:
    """What may bring a phase nearer to the chips' peak; '' if nothing is known."""
    parts, rows, most = (
        phase[name] for name in ('accumulation_steps', 'rows_at_once', 'largest_rows_at_once'))
    if parts > 1 and most >= 2 * rows:
        return f'fewer parts fit: try --config.train.accumulation_steps={parts // 2}'
    if any(x['pass'] == 'forward again' for x in phase['scopes']):
        return 'layers are computed twice: try --config.model.remat=none'
    update = sum(x['cycles_per_sequence'] for x in phase['scopes'] if x['pass'] == 'update')
    step, seconds = phase['step_seconds'], phase['seconds']
    fixed = seconds['collectives'] + (
        seconds['compute'] * update / max(phase['cycles_per_sequence'], 1))
    # So many times the rows per chip, if they fit, that this is a fifth of a step or less.
    wanted = min(8 * fixed / max(step - fixed, 1e-9), most / max(rows, 1), record['chips'])
    times = 2 ** int(math.log2(max(wanted, 1)))
    if fixed < step / 5 or times == 1:
        return ''
    longer, chips = (fixed + times * (step - fixed)) / step, record['chips'] // times
    return (
        f'{fixed / step:.0%} of a step is messages and updates, the same for any rows; '
        f"{times * phase['rows_per_chip']:g} rows a chip fit, for about "
        f"{phase['mfu'] * times / longer:.0%} of the peak: {chips} of the chips take about "
        f"{phase['hours'] * longer:,.1f} hours and {phase['hours'] * longer * chips:,.0f} "
        f"chip-hours, or with --config.train.batch_size={times * phase['batch_size']}"
        + (', or try --config.mesh.tensor=1' if record['mesh']['tensor'] > 1 else ''))


def _remedy(phase: Record) -> str:
    """The setting that may make a phase fit and changes the run least."""
    if phase['bytes_per_chip'] <= phase['bytes_limit']:
        return 'lower config.train.eval_batch_size'
    rows, most = phase['rows_at_once'], phase['largest_rows_at_once']
    factor = 2 ** max(1, math.ceil(math.log2(rows / most))) if most else math.inf
    if factor <= rows:
        return f"try --config.train.accumulation_steps={phase['accumulation_steps'] * factor}"
    return 'try --config.model.remat=full, then --config.mesh.tensor=2'


def without_data(config: ConfigDict) -> ConfigDict:
    """A completed copy of a config that reads no data except the vocabulary, for its size.

    Raises:
      InputError: the task is not pre-training, or the number of steps depends on the data.
    """
    if config.task not in PRETRAINING:
        raise InputError(
            f'config.task={config.task!r}: only pre-training can be compiled ahead; the shapes of '
            'a downstream task depend on its data')
    steps = {'train.steps': config.train.steps} | {
        f'phases[{i}].steps': phase.get('steps', 0) for i, phase in enumerate(config.phases)}
    for name, value in steps.items():
        if 'epoch' in str(value):
            raise InputError(
                f'config.{name}={value!r} depends on the data, which is not read: write steps')
    published = load_weights(config.init_checkpoint) if config.init_checkpoint else None
    c = complete(config, published)
    with c.unlocked():
        if not c.model.vocab_size:
            c.model.vocab_size = c.data.vocab_size
            if c.data.vocab_file:
                tokens = list(load_tokenizer(c.data.vocab_file, c.data.lowercase).vocab.tokens)
                if c.data.add_tokens:
                    tokens, _ = add_words(c.data.vocab_file, c.data.add_tokens, c.data.lowercase)
                c.model.vocab_size = len(tokens)
        c.task, c.init_checkpoint = 'synthetic', ''
    return c


def main(argv: Sequence[str]) -> None:
    """Parses flags, compiles, prints the tables and writes the JSON."""
    # Nothing is computed here, so leave a TPU of this machine free.
    if not os.environ.get('JAX_PLATFORMS'):
        jax.config.update('jax_platforms', 'cpu')
    for name in ('TPU_SKIP_MDS_QUERY', 'ALLOW_MULTIPLE_LIBTPU_LOAD'):
        os.environ.setdefault(name, '1')
    f: Any = flags.FlagValues()
    flags.DEFINE_string('topology', '', 'Slices, such as v5e:4x4,v5e:16x16.', flag_values=f)
    flags.DEFINE_string('json', '', 'Also write everything to this file.', flag_values=f)
    flags.DEFINE_string('price', '', 'Dollars a chip-hour: 1.2, or v5e=1.2,v4=3.2.', flag_values=f)
    flags.DEFINE_boolean('best', False, 'Also try half, two and four times the mesh.fsdp of a run, '
                         'and print the fastest first.', flag_values=f)
    flags.DEFINE_boolean('verbose', False, 'Also print the tables.', flag_values=f)
    with error_boundary(), tempfile.TemporaryDirectory(prefix='bert_jax_') as folder:
        hlo.write_schedules(folder)
        config, file = parse_command(argv, __doc__ or '', f)
        if f.json:
            check_new_file(f.json, '--json', unless='topology')
        validate(config)
        config = without_data(config)
        slices = f.topology.split(',')
        chips = {name.partition(':')[0] for name in slices}
        # Read first: a wrong price is refused before anything is compiled.
        prices = {chip: _price(f.price, chip) for chip in chips}
        meshes = {}
        for name in slices:
            devices = hlo.open_topology(name)
            meshes[name] = open_mesh(config, devices)
            data, fsdp, tensor = meshes[name].shape.values()
            for size in (fsdp // 2, 2 * fsdp, 4 * fsdp) if f.best else ():
                if size and data * fsdp % size == 0:
                    shape = data * fsdp // size, size, tensor
                    also = f', config.mesh.data={shape[0]}' * (config.mesh.data != -1)
                    meshes[f'{name}, config.mesh.fsdp={size}{also}'] = make_mesh(*shape, devices)
        records = []
        for name, mesh in meshes.items():
            price = prices[name.partition(':')[0]]
            records.append({'config': file, 'arguments': list(argv[1:]), 'topology': name}
                           | _measure(config, mesh, folder))
            if price is not None and records[-1]['chip_hours']:
                records[-1]['dollars'] = records[-1]['chip_hours'] * price
        if f.best:
            records.sort(key=lambda r: (not r['fits'], r['hours'] or math.inf))
        (whole,) = records if len(records) == 1 else [{
            'topology': f.topology, 'slices': records,
            'fits': (any if f.best else all)(r['fits'] for r in records)}]
        if f.json:
            write_whole(f.json, json.dumps(whole, indent=1) + '\n')
        if f.verbose:
            say(''.join(f'\n{tables(record)}\n' for record in records))
        say('\n' + '\n'.join([*map(verdict, records), _HOW_FAR_OFF]))
    sys.exit(0 if whole['fits'] else 1)


def _measure(config: ConfigDict, mesh: Mesh, folder: str) -> Record:
    """A record without the fields that name the run."""
    program = programs.build_program(config, mesh, PretrainTask(config))
    chip = find_chip(mesh.devices.flat[0].device_kind)
    seen: dict[str, Any] = {}
    phases = [measure_phase(program, number, chip, folder, seen)
              for number in range(len(program.phases))]
    total = sum(phase.get('hours', math.nan) for phase in phases)
    hours = None if math.isnan(total) else total
    return {
        'chips': mesh.size, 'chip': chip.name, 'mesh': dict(mesh.shape),
        'versions': versions(), 'date': datetime.date.today().isoformat(),
        'phases': phases, 'fits': all(phase['fits'] for phase in phases),
        'hours': hours, 'chip_hours': hours and hours * mesh.size,
    }


def _price(prices: str, chip: str) -> float | None:
    """Dollars of a chip-hour of a kind of chip, from --price; None if no price is given."""
    by_chip = dict(part.rpartition('=')[::2] for part in prices.split(','))
    try:
        return float(by_chip.get(chip, by_chip.get('', 'missing'))) if prices else None
    except ValueError:
        raise InputError(f'--price={prices}: write dollars a chip-hour, such as 1.2 or '
                         f'{chip}=1.2') from None


if __name__ == '__main__':
    main(sys.argv)
