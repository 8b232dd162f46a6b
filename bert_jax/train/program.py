"""The program of a config (mesh, model, task, optimizer, steps) and its memory use.

To build it, nothing is run or allocated, except to check a chip's fused attention
(`model.attention.resolve_backend`). `experiment.train_run` trains with it; `tools.preflight`
compiles it for machines that need not exist.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.config.bert_config import COMPUTATION
from bert_jax.config.phases import parse_duration
from bert_jax.config.phases import phases as phases_of
from bert_jax.heads.base import Head
from bert_jax.model.attention import resolve_backend
from bert_jax.model.layers import ModelConfig, Names
from bert_jax.runtime.chips import find_chip
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import read_system
from bert_jax.sharding import Layout, Mesh, check_vocabulary
from bert_jax.train import optimizers, step
from bert_jax.train.task import Task

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


def compile_step(jitted: Any, *arguments: Any) -> tuple[Any | None, Memory]:
    """Compiles a jitted step for arguments given as shapes with shardings; later calls use it.

    Returns:
      (The compiled program, or None if the compiler finds it too big; the memory that it needs.)
    """
    try:
        program = jitted.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        match = _TOO_BIG.search(str(error))
        if match is None:
            raise
        given = device_bytes(arguments)
        wanted = int(float(match[2]) * 1024 ** ' KMGT'.index(match[3] or ' '))
        return None, Memory(given, 0, wanted - given * (match[1] == 'Used'))
    result = program.memory_analysis()
    return program, Memory(
        result.argument_size_in_bytes,
        result.output_size_in_bytes - result.alias_size_in_bytes,
        result.temp_size_in_bytes, result.generated_code_size_in_bytes)


def device_bytes(tree: Any) -> int:
    """Bytes of one device's share of arrays, or of shapes with shardings."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def device_memory(device: jax.Device, num_local: int) -> int:
    """Bytes that a program can use on a device.

    If the device does not report them and is of no known kind (a CPU): its share, 1 / `num_local`,
    of the memory of this machine or container.
    """
    # Devices of a topology, which need not exist, raise these errors.
    with contextlib.suppress(jax.errors.JaxRuntimeError, NotImplementedError):
        if limit := (device.memory_stats() or {}).get('bytes_limit'):
            return int(limit)
    if memory := find_chip(device.device_kind).memory_bytes:
        return memory
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    of_container = read_system('/sys/fs/cgroup/memory.max')
    if of_container.isdigit():  # otherwise it is 'max', or the file is missing
        memory = min(memory, int(of_container))
    return memory // num_local


@dataclasses.dataclass(frozen=True)
class Program:
    """The program of a run.

    Attributes:
      config: completed.
      task: the task.
      mesh: the devices; they may be a topology's, which only the compiler knows.
      phases: from `config.phases`.
      head: the head with its loss.
      state: shapes, dtypes and shardings.
      train_step: takes the state, the numbers from `step_inputs`, and a batch.
      eval_step: takes parameters and a batch.
      init: makes a fresh state from a seed.
      init_weights: the weights of `init_checkpoint`, or only their description.
    """

    config: ConfigDict
    task: Task
    mesh: Mesh
    phases: list[dict[str, Any]]
    head: Head
    state: step.TrainState
    train_step: Callable[..., Any]
    eval_step: step.EvalStep
    init: Callable[[int], step.TrainState]
    init_weights: Any = None

    @property
    def phase_ends(self) -> list[int]:
        """The last step of each phase."""
        return list(itertools.accumulate(phase['steps'] for phase in self.phases))

    @property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return self.phase_ends[-1]


def build_program(
    config: ConfigDict, mesh: Mesh, task: Task, init_weights: Any = None
) -> Program:
    """The program of a completed config on a mesh; nothing of it is run or allocated.

    Raises:
      InputError: a field of the config does not suit the task or the model.
    """
    phases = phases_of(config, task.num_examples)
    head = task.make_head(model_config(config, task.vocab_size, mesh))
    segments = schedule_segments(config, phases)
    o, total = config.optimizer, sum(phase['steps'] for phase in phases)
    averaged = parse_duration(o.average, 'optimizer.average', num_examples=task.num_examples,
                              total=total, batch_size=phases[0]['batch_size'])
    parameters = step.parameters_of(head)
    frozen = set[Names]().union(
        *(optimizers.frozen_parameters(pattern, parameters) for pattern in (o.frozen, task.frozen)))

    def optimizer_of(rates: Any) -> tuple[optax.GradientTransformation, optimizers.Schedule]:
        schedule = optimizers.make_schedule([
            segment._replace(learning_rate=rates[i]) for i, segment in enumerate(segments)
        ], o.decay_power, o.decay)
        return optimizers.make_optimizer(
            o.name, schedule, parameters, weight_decay=o.weight_decay,
            b1=o.b1, b2=o.b2, eps=o.eps, layer_decay=o.layer_decay, frozen=frozen, mesh=mesh,
            arguments=optimizers.optimizer_arguments(o.name, o.arguments),
            mean_of=(min(averaged, total), total)), schedule

    optimizer, _ = optimizer_of([segment.learning_rate for segment in segments])
    state = step.abstract_state(head, optimizer, mesh)
    train_step = step.make_train_step(
        head, optimizer_of, state, mesh, clip_norm=o.clip_norm, frozen=frozen,
        accumulation_steps=config.train.accumulation_steps)
    return Program(
        config, task, mesh, phases, head, state, train_step,
        step.make_eval_step(head, mesh), step.make_init(head, optimizer, mesh), init_weights)


def step_inputs(program: Program) -> step.StepInputs:
    """The train step's arguments other than state and batch, on the devices."""
    return jax.device_put(_host_step_inputs(program), NamedSharding(program.mesh, PartitionSpec()))


def _host_step_inputs(program: Program) -> step.StepInputs:
    rates = [segment.learning_rate for segment in schedule_segments(program.config, program.phases)]
    return step.StepInputs(np.uint32(program.config.seed), np.array(rates, np.float32))


Call = tuple[Any, tuple[Any, ...]]  # a step, and its arguments as shapes


def phase_calls(program: Program, phase: dict[str, Any]) -> dict[str, Call]:
    """The `train` and `evaluation` steps of a phase with the shapes of their arguments.

    A labelled task, whose batches may have several shapes, has the largest here, and no
    `evaluation`.
    """
    replicated = NamedSharding(program.mesh, PartitionSpec())
    inputs = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated),
        _host_step_inputs(program))
    steps: dict[str, Call] = {
        'train': (program.train_step, (program.state, inputs)),
        'evaluation': (program.eval_step, (program.state.params,)),
    }
    shapes = program.task.batch_shapes(program.head.config, phase, program.mesh)
    return {name: (steps[name][0], (*steps[name][1], batch)) for name, batch in shapes.items()}


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
        calls = phase_calls(program, phase)
        for name in [name for name in names if name in calls]:
            jitted, arguments = calls[name]
            needed = sum(compile_step(jitted, *arguments)[1])
            if name == 'evaluation':  # the optimizer's state stays in memory
                needed += device_bytes(program.state.opt_state)
            if needed > limit:
                remedy = 'lower config.train.eval_batch_size' if name == 'evaluation' else (
                    _parts_that_fit(program, phase, needed, limit) + "config.model.remat='full'")
                raise InputError(
                    f"phase {number + 1} (length {phase['max_seq_length']}, batch "
                    f"{phase['batch_size']}): {name} needs {needed / 1e9:.1f} GB a device, of "
                    f'which there are {limit / 1e9:.1f}: {remedy}'
                    + '; bert_jax.tools.preflight measures such changes without the devices' * (
                        'evaluation' in calls))


def _parts_that_fit(program: Program, phase: dict[str, Any], needed: int, limit: int) -> str:
    """The remedy for a message: into how many parts to split the batch, if that is enough."""
    rows, now = phase['packed_rows'] or phase['batch_size'], program.config.train.accumulation_steps
    shards = Layout(program.mesh).batch_shards
    fixed = device_bytes(program.state) + device_bytes(program.state.params)  # with the gradients
    for parts in range(now + 1, rows // shards + 1):
        about = fixed + (needed - fixed) * now / parts
        if rows % (shards * parts) == 0 and about <= limit:
            batch = phase['batch_size'] * now // parts
            return (f'config.train.accumulation_steps={parts} needs about {about / 1e9:.1f} and '
                    f'gives the same result; or take a batch of {batch}, or set ')
    return 'no config.train.accumulation_steps is enough: take a smaller model, or try '


def schedule_segments(
    config: ConfigDict, phases: list[dict[str, Any]]
) -> list[optimizers.ScheduleSegment]:
    """Segments of the schedule; a phase with its own learning rate begins a new segment."""
    begins = [i for i, phase in enumerate(phases) if i == 0 or phase['learning_rate'] is not None]
    segments, start = [], 0
    for begin, end in itertools.pairwise([*begins, len(phases)]):
        steps = sum(phase['steps'] for phase in phases[begin:end])
        rate, warmup = phases[begin]['learning_rate'], phases[begin]['warmup']
        steps_of = functools.partial(parse_duration, num_examples=None, total=steps,
                                     batch_size=phases[begin]['batch_size'])
        if rate is None:
            rate = config.optimizer.learning_rate
            warmup = steps_of(config.optimizer.warmup, 'optimizer.warmup')
        decay_from = {'start': 0, 'peak': warmup}.get(config.optimizer.decay_from)
        if decay_from is None:
            decay_from = max(warmup, steps_of(config.optimizer.decay_from, 'optimizer.decay_from'))
        segments.append(optimizers.ScheduleSegment(start, steps, rate, warmup, decay_from))
        start += steps
    return segments


def model_config(config: ConfigDict, vocab_size: int, mesh: Mesh) -> ModelConfig:
    """The model's config, from the run's config and the vocabulary's size.

    Raises:
      InputError: `model.vocab_size` is too small, or the mesh cannot split it.
    """
    m = config.model
    if m.vocab_size and m.vocab_size < vocab_size:
        raise InputError(
            f'config.model.vocab_size={m.vocab_size} is less than the vocabulary has '
            f'({vocab_size}): leave it 0 to take its size')
    check_vocabulary(m.vocab_size or vocab_size, mesh.shape['tensor'])
    computation = {name: m[name] for name in COMPUTATION}
    computation['attention'] = resolve_backend(m.attention)
    if m.dtype == 'auto':
        computation['dtype'] = 'float32' if Layout(mesh).on_cpu else 'bfloat16'
    return ModelConfig(
        **config_lib.model_fields(config, vocab_size), **computation, layout=Layout(mesh))
