"""Compiles the steps of a program: how much memory they need, and whether they fit."""

import concurrent.futures
import contextlib
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from bert_jax.runtime.chips import find_chip
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import read_system
from bert_jax.sharding import Layout
from bert_jax.train.program import Program, steps_with_shapes

# XLA's messages for a program that is too large: on TPUs "Used 25.02G of 15.75G hbm" (the total) or
# "required for HLO temporaries (37.12G) exceeds available HBM (15.75G)", on GPUs "trying to
# allocate 3.5GiB".
_TOO_BIG = re.compile(
    r'RESOURCE_EXHAUSTED.*(Used|HLO temporaries|allocate) \(?([\d.]+)([KMGT]?)i?B?', re.DOTALL)


class Memory(NamedTuple):
    """Memory of one device while a compiled step runs, in bytes.

    Attributes:
      arguments: state and batch.
      outputs: results that do not reuse a donated argument.
      temporaries: intermediate values.
      code: the program.
    """

    arguments: int
    outputs: int
    temporaries: int
    code: int = 0


def compile_step(
    jitted: Any, *arguments: Any, compiler_options: dict[str, Any] | None = None
) -> tuple[Any | None, Memory]:
    """Compiles a jitted step for arguments given as shapes with shardings; later calls use it.

    Args:
      jitted: the step.
      arguments: of the step.
      compiler_options: XLA's flags, other than those of the environment.

    Returns:
      (The compiled program, or None if the compiler finds it too big; the memory that it needs.)
    """
    try:
        program = jitted.lower(*arguments).compile(compiler_options)
    except jax.errors.JaxRuntimeError as error:
        match = _TOO_BIG.search(str(error))
        if match is None:
            raise
        return None, _memory_of_message(match, device_bytes(arguments))
    result = program.memory_analysis()
    return program, Memory(
        arguments=result.argument_size_in_bytes,
        outputs=result.output_size_in_bytes - result.alias_size_in_bytes,
        temporaries=result.temp_size_in_bytes,
        code=result.generated_code_size_in_bytes)


def _memory_of_message(message: re.Match[str], arguments: int) -> Memory:
    """The memory that a match of `_TOO_BIG` reports; the program's arguments take so many bytes."""
    kind, number, unit = message.groups()
    reported = int(float(number) * 1024 ** ' KMGT'.index(unit or ' '))
    includes_arguments = kind == 'Used'
    temporaries = reported - arguments if includes_arguments else reported
    return Memory(arguments=arguments, outputs=0, temporaries=temporaries)


def device_bytes(tree: Any) -> int:
    """Bytes of one device's share of arrays, or of shapes with shardings."""
    total = 0
    for x in jax.tree.leaves(tree):
        total += math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    return total


def device_memory(device: jax.Device, num_local: int) -> int:
    """Bytes that a program can use on a device.

    If the device does not report them and is of no known kind (a CPU): its share, 1 / `num_local`,
    of the memory of this machine or container.
    """
    # Devices of a topology, which need not exist, raise these errors.
    with contextlib.suppress(jax.errors.JaxRuntimeError, NotImplementedError):
        reported = device.memory_stats() or {}
        if reported.get('bytes_limit'):
            return int(reported['bytes_limit'])
    of_kind = find_chip(device.device_kind).memory_bytes
    if of_kind:
        return of_kind
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    of_container = read_system('/sys/fs/cgroup/memory.max')
    if of_container.isdigit():  # otherwise it is 'max', or the file is missing
        memory = min(memory, int(of_container))
    return memory // num_local


def check_memory(
    program: Program, numbers: Sequence[int], names: Sequence[str] = ('train', 'evaluation')
) -> None:
    """Compiles the steps of these phases, for the run to use, and checks that they fit in memory.

    Args:
      program: of the run.
      numbers: of the phases, from 0.
      names: of the steps to check.

    Raises:
      InputError: a step does not fit.
    """
    devices = program.mesh.local_devices
    limit = device_memory(devices[0], len(devices))
    for number in numbers:
        phase = program.phases[number]
        calls = steps_with_shapes(program, number)
        for name in names:
            if name not in calls:
                continue
            jitted, arguments = calls[name]
            _, memory = compile_step(jitted, *arguments)
            needed = sum(memory)
            if name == 'evaluation':  # the optimizer's state stays in memory
                needed += device_bytes(program.state.opt_state)
            if needed > limit:
                raise InputError(
                    f"phase {number + 1} (length {phase['max_seq_length']}, batch "
                    f"{phase['batch_size']}): {name} needs {needed / 1e9:.1f} GB on a device that "
                    f'has {limit / 1e9:.1f} GB: '
                    f'{_remedy(program, phase, name, needed, limit)}; '
                    'bert_jax.tools.preflight measures such changes without the devices')


def _remedy(
    program: Program, phase: dict[str, Any], name: str, needed: int, limit: int
) -> str:
    """How to make a step that needs more than `limit` bytes fit, for a message."""
    if name == 'evaluation':
        return 'lower config.train.eval_batch_size'
    batch_size = phase['batch_size']
    parts_now = program.config.train.accumulation_steps
    parts, about = _parts_that_fit(program, phase, needed, limit)
    if not parts:
        return ('no config.train.accumulation_steps is enough: take a smaller model, or try '
                "config.model.remat='full'")
    return (
        f'config.train.accumulation_steps={parts} needs about {about / 1e9:.1f} and gives the '
        f'same result; or take a batch of {batch_size * parts_now // parts}, or set '
        "config.model.remat='full'")


def _parts_that_fit(
    program: Program, phase: dict[str, Any], needed: int, limit: int
) -> tuple[int, float]:
    """Into how many parts to split the batch, and about how many bytes that needs; 0: none fit."""
    rows = phase['packed_rows'] or phase['batch_size']
    parts_now = program.config.train.accumulation_steps
    shards = Layout(program.mesh).batch_shards
    fixed = device_bytes(program.state) + device_bytes(program.state.params)  # with the gradients
    for parts in range(parts_now + 1, rows // shards + 1):
        about = fixed + (needed - fixed) * parts_now / parts
        if rows % (shards * parts) == 0 and about <= limit:
            return parts, about
    return 0, 0.0


class StepCompiler:
    """Compiles the steps of the phases that are left, and checks that they fit in memory.

    It works in a thread: the steps of later phases are compiled while the first one is trained.
    """

    def __init__(self, program: Program, steps_done: int):
        """Starts to compile the train step of the first phase that is left."""
        self._program = program
        self._steps_done = steps_done
        self._phases = [i for i, end in enumerate(program.phase_ends) if end > steps_done]
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._first = self._thread.submit(check_memory, program, self._phases[:1], ['train'])
        self._others: concurrent.futures.Future[None] | None = None

    def wait_for_first_phase(self) -> None:
        """Raises InputError if the train step of the first phase does not fit."""
        self._first.result()

    def compile_other_phases(self, evaluate_every: int) -> None:
        """Starts to compile the other steps; the evaluation only of phases that evaluate.

        Args:
          evaluate_every: steps between evaluations; 0: there is one at the end.
        """
        self._others = self._thread.submit(self._compile_others, evaluate_every)

    def _compile_others(self, evaluate_every: int) -> None:
        """Compiles what is left; a `Trainer` evaluates after such multiples and at the end."""
        ends = [0, *self._program.phase_ends]
        for number in self._phases:
            begin, end = max(ends[number], self._steps_done), ends[number + 1]
            is_last = end == ends[-1]
            evaluates = evaluate_every > 0 and end // evaluate_every > begin // evaluate_every
            names = [] if number == self._phases[0] else ['train']
            if evaluates or is_last:
                names.append('evaluation')
            check_memory(self._program, [number], names)

    def check(self) -> None:
        """Raises InputError if a step that is compiled by now does not fit."""
        if self._others is not None and self._others.done():
            self._others.result()

    def close(self) -> None:
        """Ends the thread; what is being compiled is finished."""
        self._thread.shutdown(wait=False, cancel_futures=True)
