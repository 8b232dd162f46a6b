"""The program of a config (mesh, model, task, optimizer, steps) and its memory use.

Building it runs and allocates nothing. `experiment.train_run` trains with it; `tools.preflight`
compiles it for machines that need not exist.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.config.bert_config import COMPUTATION
from bert_jax.config.phases import parse_duration
from bert_jax.config.phases import phases as phases_of
from bert_jax.config.validation import check_vocabulary, validate
from bert_jax.heads.base import Head
from bert_jax.model.attention import settled
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.process import find_chip
from bert_jax.tasks.labelled import Task
from bert_jax.train.optimizers import (
    Schedule,
    ScheduleSegment,
    make_optimizer,
    make_schedule,
    optimizer_arguments,
)
from bert_jax.train.sharding import Layout, Mesh, make_mesh, mesh_sizes
from bert_jax.train.step import (
    Numbers,
    TrainState,
    abstract_state,
    make_eval_step,
    make_init,
    make_train_step,
    parameters_of,
)

_UNITS = {'': 1, 'B': 1, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}
# XLA's messages for a program that is too large: "Used 25.02G of 15.75G hbm" or "required for HLO
# temporaries (37.12G) exceeds available HBM (15.75G)" on TPUs, "trying to allocate 3.5GiB" on GPUs.
_TOO_BIG = (
    (re.compile(r'Used ([\d.]+)([KMGT]?)i?B? of'), False),
    (re.compile(r'required for HLO temporaries \(([\d.]+)([KMGT]?)i?B?\)'), True),
    (re.compile(r'allocate ([\d.]+)([KMGT]?)i?B?'), True),
)


@dataclasses.dataclass(frozen=True)
class Memory:
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

    @property
    def total(self) -> int:
        return self.arguments + self.outputs + self.temporaries + self.code


class CompiledStep:
    """A jitted step that can be compiled ahead, and whose memory is then known.

    A call takes the program that was compiled, or is being compiled in another thread, for its
    batch shapes; jit compiles any other. The batch is the last argument.
    """

    def __init__(self, step: Callable[..., Any]):
        self._step: Any = step
        self._programs: dict[Any, Any] = {}
        self._compiling = threading.Lock()

    def compile(self, *arguments: Any) -> tuple[Any | None, Memory]:
        """Compiles the step for arguments given as shapes with shardings.

        Returns:
          The compiled program, or None where the compiler finds it too big; and the memory.
        """
        key = _shapes(arguments[-1])
        try:
            with self._compiling:
                if key not in self._programs:
                    self._programs[key] = self._step.lower(*arguments).compile()
        except jax.errors.JaxRuntimeError as error:
            temporaries = _bytes_wanted(str(error), device_bytes(arguments))
            if temporaries is None:
                raise
            return None, Memory(device_bytes(arguments), 0, temporaries)
        program = self._programs[key]
        result = program.memory_analysis()
        return program, Memory(
            result.argument_size_in_bytes,
            result.output_size_in_bytes - result.alias_size_in_bytes,
            result.temp_size_in_bytes, result.generated_code_size_in_bytes,
        )

    def __call__(self, *arguments: Any) -> Any:
        key = _shapes(arguments[-1])
        if key not in self._programs:
            with self._compiling:  # it may be just this one
                pass
        return self._programs.get(key, self._step)(*arguments)


def _shapes(batch: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((name, batch[name].shape) for name in sorted(batch))


def _bytes_wanted(message: str, arguments: int) -> int | None:
    """Bytes of temporaries in an out-of-memory message of the compiler; None for other messages."""
    if 'RESOURCE_EXHAUSTED' not in message:
        return None
    for pattern, temporaries_alone in _TOO_BIG:
        if match := pattern.search(message):
            wanted = int(float(match[1]) * _UNITS[match[2]])
            return wanted if temporaries_alone else max(0, wanted - arguments)
    return None


def device_bytes(tree: Any) -> int:
    """Bytes of one device's share of arrays, or of shapes with shardings."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def host_memory() -> int:
    """Memory limit of this process in bytes: the machine's, or its container's."""
    result = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    with contextlib.suppress(OSError, ValueError), open('/sys/fs/cgroup/memory.max') as file:
        result = min(result, int(file.read()))  # 'max': no limit
    return result


def device_memory(device: jax.Device) -> int | None:
    """Bytes that a program can use on a device; None if unknown (CPUs)."""
    try:
        limit = (device.memory_stats() or {}).get('bytes_limit')
    except (jax.errors.JaxRuntimeError, NotImplementedError):  # of a topology
        limit = None
    if limit:
        return int(limit)
    chip = find_chip(device.device_kind)
    return chip.memory_bytes or None if chip else None


_MOST_STEPS = 2**31 - 1  # the state counts them in 32 bits


def open_mesh(config: ConfigDict, devices: Sequence[Any]) -> Mesh:
    """The mesh of a completed config on these devices.

    Raises:
      InputError: the config cannot work, or not on so many devices.
    """
    validate(config, len(devices))
    m = config.mesh
    return make_mesh(*mesh_sizes(m.data, m.fsdp, m.tensor, devices), devices)


@dataclasses.dataclass(frozen=True)
class Program:
    """The program of a run.

    Attributes:
      task: the task.
      mesh: the devices; they may be a topology's, which only the compiler knows.
      phases: from `config.phases`.
      bert: the model's config.
      objective: the head with its loss.
      optimizer: in `train_step`.
      state: shapes and shardings.
      accumulation_steps: parts that a batch is split into.
      num_segments: of the learning rate's schedule.
      train_step: takes the state, `numbers_of` a config on the devices, and a batch.
      eval_step: takes parameters and a batch.
      init: a fresh state from a seed.
    """

    task: Task
    mesh: Mesh
    phases: list[dict[str, Any]]
    bert: ModelConfig
    objective: Head
    optimizer: optax.GradientTransformation
    state: TrainState
    accumulation_steps: int
    num_segments: int
    train_step: CompiledStep
    eval_step: CompiledStep
    init: Callable[[int], TrainState]


def build_program(config: ConfigDict, mesh: Mesh, task: Task) -> Program:
    """The program of a completed config on a mesh; nothing is run or allocated."""
    phases = phases_of(config, task.num_examples)
    if sum(phase['steps'] for phase in phases) > _MOST_STEPS:
        raise InputError(f"config.train.steps={config.train.steps!r} is {phases[-1]['steps']:,} "
                         f'steps: {_MOST_STEPS:,} at most are counted')
    bert = model_config(config, task.vocab_size, mesh)
    objective = task.objective(bert)
    segments = schedule_segments(config, phases)
    o = config.optimizer

    def schedule_of(rates: Any) -> Schedule:
        return make_schedule([
            dataclasses.replace(segment, learning_rate=rates[i])
            for i, segment in enumerate(segments)
        ], o.decay_power, o.decay_from, o.decay)

    def optimizer_of(schedule: Schedule) -> optax.GradientTransformation:
        return make_optimizer(
            o.name, schedule, parameters_of(objective), weight_decay=o.weight_decay,
            b1=o.b1, b2=o.b2, eps=o.eps, layer_decay=o.layer_decay, frozen=task.frozen, mesh=mesh,
            arguments=optimizer_arguments(o.name, o.arguments),
        )

    rates = [segment.learning_rate for segment in segments]
    optimizer = optimizer_of(schedule_of(rates))
    train_step = make_train_step(
        objective, optimizer_of, schedule_of, mesh, learning_rates=rates,
        clip_norm=o.clip_norm, accumulation_steps=config.train.accumulation_steps)
    return Program(
        task, mesh, phases, bert, objective, optimizer, abstract_state(objective, optimizer, mesh),
        config.train.accumulation_steps, len(segments), CompiledStep(train_step),
        CompiledStep(make_eval_step(objective, mesh)), make_init(objective, optimizer, mesh),
    )


def numbers_of(program: Program, config: ConfigDict) -> Numbers:
    """The arguments of a run's train step beside state and batch, on the devices.

    Args:
      program: of the run, or of one that differs in seed and learning rates only.
      config: of the run.
    """
    rates = [segment.learning_rate for segment in schedule_segments(config, program.phases)]
    return jax.device_put(
        Numbers(np.uint32(config.seed), np.array(rates, np.float32)),
        NamedSharding(program.mesh, PartitionSpec()))


Call = tuple[CompiledStep, tuple[Any, ...]]  # a step, and its arguments as shapes


def phase_calls(program: Program, phase: dict[str, Any]) -> dict[str, Call]:
    """The `train` and `evaluation` steps of a phase with the shapes of their arguments.

    Empty for tasks that pack rows into varying shapes.
    """
    replicated = NamedSharding(program.mesh, PartitionSpec())
    numbers = Numbers(
        jax.ShapeDtypeStruct((), jnp.uint32, sharding=replicated),
        jax.ShapeDtypeStruct((program.num_segments,), jnp.float32, sharding=replicated))
    steps = {'train': (program.train_step, (program.state, numbers)),
             'evaluation': (program.eval_step, (program.state.params,))}
    return {name: (steps[name][0], (*steps[name][1], batch))
            for name, batch in program.task.batch_shapes(phase, program.mesh).items()}


def phases_left(program: Program, start: int) -> list[int]:
    """Indices of the phases that are not finished at a step."""
    ends = np.cumsum([phase['steps'] for phase in program.phases])
    return [number for number, end in enumerate(ends) if end > start]


def compile_training(program: Program, numbers: Sequence[int]) -> None:
    """Compiles the training step of these phases."""
    for number in numbers:
        if call := phase_calls(program, program.phases[number]).get('train'):
            step, arguments = call
            step.compile(*arguments)


def check_memory(program: Program, numbers: Sequence[int]) -> int:
    """Compiles the steps of these phases, for the run to use, and checks that they fit.

    On CPUs, which share the machine's memory, only steps that may be too large are compiled.

    Returns:
      Bytes of a device that the largest needs; 0 if nothing was compiled.

    Raises:
      InputError: a step does not fit.
    """
    limit = device_memory(program.mesh.local_devices[0])
    on_host = limit is None
    if limit is None:
        limit = host_memory() // len(program.mesh.local_devices)
    largest = 0
    for number in numbers:
        phase = program.phases[number]
        for name, (step, arguments) in phase_calls(program, phase).items():
            if on_host and _activations(program.bert, arguments[-1], name) < limit / 16:
                continue
            _, memory = step.compile(*arguments)
            needed = memory.total
            if name == 'evaluation':  # the optimizer's state stays in memory
                needed += device_bytes(program.state.opt_state)
            largest = max(largest, needed)
            if needed > limit:
                raise InputError(
                    f"phase {number + 1} (length {phase['max_seq_length']}, batch "
                    f"{phase['batch_size']}): {name} needs {needed / 1e9:.1f} GB a device, of "
                    f'which there are {limit / 1e9:.1f}: '
                    + ('lower config.train.eval_batch_size' if name == 'evaluation' else
                       'raise config.train.accumulation_steps, lower the batch size or set '
                       "config.model.remat='full'")
                    + '; bert_jax.tools.preflight measures such changes without the devices'
                )
    return largest


def _activations(bert: ModelConfig, batch: Any, name: str) -> int:
    """Estimated bytes of a batch's activations on a device; in training, of all layers."""
    ids = batch['input_ids']
    rows, length = ids.sharding.shard_shape(ids.shape)
    a_token = 8 * bert.hidden_size + 2 * bert.intermediate_size + length * bert.num_heads
    return 4 * rows * length * a_token * (bert.num_layers if name == 'train' else 1)


def schedule_segments(config: ConfigDict, phases: list[dict[str, Any]]) -> list[ScheduleSegment]:
    """Segments of the schedule: a phase with its own learning rate begins a new one."""
    starts = np.concatenate([[0], np.cumsum([p['steps'] for p in phases])]).tolist()
    with_rate = [i for i, phase in enumerate(phases) if phase['learning_rate'] is not None]
    segments = []
    for i in ([] if 0 in with_rate else [0]) + with_rate:
        end = starts[min((j for j in with_rate if j > i), default=len(phases))]
        steps = end - starts[i]
        if phases[i]['learning_rate'] is None:
            rate = config.optimizer.learning_rate
            warmup = parse_duration(
                config.optimizer.warmup, 'optimizer.warmup', batch_size=phases[i]['batch_size'],
                num_examples=None, total=steps,
            )
        else:
            rate, warmup = phases[i]['learning_rate'], phases[i]['warmup']
        segments.append(ScheduleSegment(starts[i], steps, rate, warmup))
    return segments


def model_config(config: ConfigDict, vocab_size: int, mesh: Mesh) -> ModelConfig:
    """The model's config, from the run's config and the vocabulary's size."""
    m = config.model
    if m.vocab_size and m.vocab_size < vocab_size:
        raise InputError(
            f'config.model.vocab_size={m.vocab_size} is less than the vocabulary has '
            f'({vocab_size}): leave it 0 to take its size'
        )
    check_vocabulary(m.vocab_size or vocab_size, mesh.shape['tensor'])
    computation = {name: m[name] for name in COMPUTATION}
    computation['attention'] = settled(m.attention)
    if m.dtype == 'auto':
        computation['dtype'] = 'float32' if Layout(mesh).on_cpu else 'bfloat16'
    return ModelConfig(
        **config_lib.model_fields(config, vocab_size), **computation, layout=Layout(mesh)
    )
