"""A phase of a program, compiled for its chips: what it takes, and what would make it fit."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import ConfigDict

from bert_jax.heads.pretraining import Pretraining
from bert_jax.runtime.chips import Chip
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.pretrain import PretrainTask, step_flops
from bert_jax.tools.preflight_hlo import CompiledText, Instruction, scope_of, short_name
from bert_jax.tools.preflight_kernel import attention_cycles
from bert_jax.train.compiled import Memory, device_bytes
from bert_jax.train.program import Program, build_program, open_mesh, phase_calls

Say = Callable[[str], None]
_BUFFERS = 10
_TRIES = 3  # compiled to find a change that fits


def plan(config: ConfigDict, devices: Any) -> Program:
    """The program of a completed config on a topology's devices."""
    return build_program(config, open_mesh(config, devices), PretrainTask(config))


def measure_phase(program: Program, number: int, chip: Chip, say: Say) -> dict[str, Any]:
    """Compiles the steps of a phase and reads what they take, as plain values."""
    phase, mesh = program.phases[number], program.mesh
    calls = phase_calls(program, phase)
    parts = program.accumulation_steps
    rows = phase['packed_rows'] or phase['batch_size']
    name = f"phase {number + 1} (length {phase['max_seq_length']}, batch {phase['batch_size']:,})"
    compiled, memory, seconds = _compile(program, calls, 'train', name, say)
    _, held_out, eval_seconds = _compile(program, calls, 'evaluation', name, say)
    flops = step_flops(Pretraining(program.bert), phase) / phase['batch_size']
    record = phase | {
        'name': name, 'accumulation_steps': parts, 'rows_per_chip': rows / mesh.size,
        'rows_at_once': rows / (mesh.shape['data'] * mesh.shape['fsdp'] * parts),
        'formula_flops_per_sequence': flops,
        'floor_cycles_per_sequence': flops / chip.cycle_flops,
        'cycles_per_sequence': None, 'collectives': [], 'compile_seconds': seconds + eval_seconds,
        **_sizes(program, memory, chip),
        'evaluation_bytes_per_chip': held_out.total + device_bytes(program.state.opt_state),
    }
    record['fits'] = (
        compiled is not None
        and max(record['bytes_per_chip'], record['evaluation_bytes_per_chip'])
        <= record['bytes_limit']
    )
    record['largest_rows_at_once'] = _largest_rows(record)
    if compiled is not None:
        rate = program.bert.attention_dropout
        record |= _times(CompiledText(compiled.as_text()), record, mesh.size, chip, rate)
        say(f"{name}: {record['cycles_per_sequence'] / 1e3:,.0f} thousand cycles a sequence")
    say(f"{name}: {record['bytes_per_chip'] / 1e9:.2f} GB a chip in training, "
        f"{record['evaluation_bytes_per_chip'] / 1e9:.2f} in evaluation, of "
        f"{chip.memory_bytes / 1e9:.2f}")
    return record


def _compile(
    program: Program, calls: dict[str, Any], name: str, what: str, say: Say
) -> tuple[Any | None, Memory, float]:
    step, arguments = calls[name]
    started = time.monotonic()
    with _ticking(f'compiling {name} of {what} for {program.mesh.size} chips', say):
        compiled, memory = step.compile(*arguments)
    return compiled, memory, time.monotonic() - started


@contextlib.contextmanager
def _ticking(line: str, say: Say) -> Iterator[None]:
    """Says what is being done, and every half minute for how long."""
    done, started = threading.Event(), time.monotonic()

    def tick() -> None:
        while not done.wait(30):
            say(f'{line}: {time.monotonic() - started:.0f} s')

    say(line)
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    say(f'{line}: done in {time.monotonic() - started:.0f} s')


def _sizes(program: Program, memory: Memory, chip: Chip) -> dict[str, Any]:
    params = device_bytes(program.state.params)
    moments = device_bytes(program.state.opt_state)
    return {
        'bytes_per_chip': memory.total, 'bytes_limit': chip.memory_bytes,
        'bytes': {
            'parameters': params, 'optimizer': moments,
            'batch': memory.arguments - params - moments,
            'temporaries': memory.temporaries, 'results': memory.outputs, 'code': memory.code,
        },
    }


def _largest_rows(record: dict[str, Any]) -> int:
    """Rows that a chip can compute at once, from those that it does: temporaries grow with them.

    On the careful side: what does not grow (gradients in one part) is taken to grow too.
    """
    sizes = record['bytes']
    gradients = sizes['parameters'] if record['accumulation_steps'] > 1 else 0  # added up
    growing = max(sizes['temporaries'] - gradients, 1) + sizes['batch']
    fixed = record['bytes_per_chip'] - growing
    return max(0, int(record['rows_at_once'] * (record['bytes_limit'] - fixed) / growing))


def _times(
    text: CompiledText, record: dict[str, Any], chips: int, chip: Chip, attention_dropout: float
) -> dict[str, Any]:
    batch = record['batch_size']
    cycles = 0.0
    scopes: collections.Counter[tuple[str, str]] = collections.Counter()
    unknown: collections.Counter[tuple[str, str, int]] = collections.Counter()
    for instruction, estimate in text.timed():
        if estimate is None:
            estimate, how = kernel_cycles(text, instruction, chip, attention_dropout)
            of = short_name(instruction.op_name) or instruction.name
            unknown[of, how, estimate] += instruction.times
        cycles += instruction.times * estimate
        scopes[scope_of(instruction.op_name)] += instruction.times * estimate
    collectives = text.collectives()
    # An all-reduce sends everything twice. Nothing is taken to overlap.
    sent = sum(c['bytes'] * (2 if c['kind'] == 'all-reduce' else 1) for c in collectives)
    seconds = {'compute': cycles / chip.clock, 'collectives': sent / chip.links}
    step = sum(seconds.values())
    flops = (text.product_flops() + _attention_flops(text)) * chips / batch
    hours = record['steps'] * step / 3600
    return {
        'cycles_per_sequence': cycles * chips / batch,
        'scopes': [
            {'scope': scope, 'pass': pass_, 'cycles_per_sequence': total * chips / batch}
            for (scope, pass_), total in scopes.most_common()
        ],
        'without_estimate': [
            {'of': of, 'by': how, 'count': count, 'cycles': each}
            for (of, how, each), count in unknown.items()
        ],
        'flops_per_sequence': flops,
        'flops_ratio': flops / record['formula_flops_per_sequence'],
        'collectives': collectives,
        'collective_bytes': sum(c['bytes'] for c in collectives),
        'largest_buffers': text.largest_buffers(_BUFFERS),
        'seconds': seconds, 'step_seconds': step,
        'sequences_per_second': batch / step,
        'mfu': record['formula_flops_per_sequence'] * batch / (chips * chip.peak_flops * step),
        'hours': hours, 'chip_hours': hours * chips,
    }


def _attention_flops(text: CompiledText) -> int:
    """Of the products within the attention kernel: two forward and five backward."""
    flops = 0
    for instruction, estimate in text.timed():
        if estimate is None and (name := _attention_kernel(instruction)):
            rows, length, width = text.operand(instruction, 0).shape
            products = 2 if name == 'attention_forward' else 5
            flops += instruction.times * products * 2 * rows * length**2 * width // 3
    return flops


def _attention_kernel(instruction: Instruction) -> str:
    """Which of the attention kernels it is; '' for none."""
    return next((name for name in ('attention_forward', 'attention_backward')
                 if name in instruction.name or name in instruction.op_name), '')


def kernel_cycles(
    text: CompiledText, instruction: Instruction, chip: Chip, rate: float
) -> tuple[int, str]:
    """Cycles of what the compiler has no estimate of, and what they were counted by.

    Of the attention kernel by its schedule, or by its bytes over the memory's bandwidth where that
    is more; of anything else by its bytes, which is a floor.
    """
    moved = round(text.bytes_moved(instruction) / chip.bandwidth * chip.clock)
    name = _attention_kernel(instruction)
    if not name:
        return moved, 'bytes'
    rows, length, width = text.operand(instruction, 0).shape
    marks = text.operand(instruction, 3 if name == 'attention_forward' else 5).shape[1]
    found = attention_cycles(chip.name, rows, length, width // 3, rate if marks > 1 else 0.0)
    return max((moved, 'bytes'), (found[name], 'schedule'))


def smallest_change(
    config: ConfigDict, program: Program, record: dict[str, Any], number: int, say: Say
) -> dict[str, Any] | None:
    """Compiles changes, smallest first, until a phase fits; at most three of them.

    Returns:
      `settings` (config fields by name) and `bytes_per_chip`, or None where none fitted.
    """
    tried = 0
    for settings in _changes(config, program, record):
        changed = ConfigDict(config)
        with changed.unlocked():
            changed.update_from_flattened_dict(settings)
        try:
            other = plan(changed, list(program.mesh.devices.flat))
        except InputError:
            continue
        step, arguments = phase_calls(other, other.phases[number])['train']
        shown = ' '.join(f'--config.{name}={value}' for name, value in settings.items())
        with _ticking(f'compiling with {shown}', say):
            compiled, memory = step.compile(*arguments)
        if compiled is not None and memory.total <= record['bytes_limit']:
            return {'settings': settings, 'bytes_per_chip': memory.total}
        tried += 1
        if tried == _TRIES:
            return None
    return None


def _changes(
    config: ConfigDict, program: Program, record: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Settings that may fit: those that change no result first."""
    if record['evaluation_bytes_per_chip'] > record['bytes_limit']:
        yield {'train.eval_batch_size': max(program.mesh.size, config.train.eval_batch_size // 4)}
    parts, rows = record['accumulation_steps'], record['rows_at_once']
    for remat in (config.model.remat, 'full') if config.model.remat != 'full' else ('full',):
        given = {} if remat == config.model.remat else {'model.remat': remat}
        # Computed again, a layer keeps its input alone: well under an eighth of a row.
        room = record['largest_rows_at_once'] * (8 if given else 1)
        factor = 1
        while factor * 2 <= rows and rows / factor > max(room, 1):
            factor *= 2
        for more in (factor, factor * 2):
            if rows / more >= 1 and (given or more > 1):
                yield given | ({'train.accumulation_steps': parts * more} if more > 1 else {})
    for tensor in (2, 4, 8):
        if config.mesh.tensor * tensor <= program.mesh.size:
            yield {'mesh.tensor': config.mesh.tensor * tensor, 'model.remat': 'full'}
