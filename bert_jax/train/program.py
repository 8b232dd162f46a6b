"""The program of a config: mesh, model, task, optimizer and steps.

To build it, nothing is run or allocated, except to check a chip's fused attention
(`model.attention_check`). `experiment.train_run` trains with it; `tools.preflight` compiles it for
machines that need not exist.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.config.adapters import AdapterOptions
from bert_jax.config.bert_config import COMPUTATION
from bert_jax.config.durations import parse_duration
from bert_jax.config.phases import model_options
from bert_jax.config.phases import phases as phases_of
from bert_jax.heads.base import Head
from bert_jax.model.attention_check import config_on_chip
from bert_jax.model.layers import ModelConfig, Names
from bert_jax.run.description import OwnFile
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import Layout, Mesh, check_vocabulary
from bert_jax.step import optimizers, step
from bert_jax.step.schedules import Schedule, ScheduleSegment, make_schedule
from bert_jax.train.phase import Phase, PhaseSteps
from bert_jax.train.task import Task


@dataclasses.dataclass(frozen=True)
class Program:
    """The program of a run.

    Attributes:
      config: completed.
      task: the task.
      mesh: the devices; they may be a topology's, which only the compiler knows.
      phases: from `config.phases`.
      head: the head with its loss.
      frozen: the paths of the parameters that are never trained.
      state: shapes, dtypes and shardings.
      steps: of each phase.
      init: makes a fresh state from a seed.
      init_weights: the weights of `init_checkpoint`, or only their description.
      own_file: defines the head or the task, if the package does not.
    """

    config: ConfigDict
    task: Task
    mesh: Mesh
    phases: list[dict[str, Any]]
    head: Head
    frozen: Collection[Names]
    state: step.TrainState
    steps: tuple[PhaseSteps, ...]
    init: Callable[[int], step.TrainState]
    init_weights: Any = None
    own_file: OwnFile | None = None

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
    """The program of a completed config on a mesh. Only the check of fused attention runs anything.

    Raises:
      InputError: a field of the config does not suit the task or the model.
    """
    phases = phases_of(config, task.num_examples)
    head = task.make_head(model_config(config, task.vocab_size, mesh))
    parameters = step.parameters_of(head)
    segments = schedule_segments(config, phases)
    frozen = _frozen(config, task, parameters)
    make_optimizer = _optimizer_maker(
        config, phases, segments, parameters, frozen, mesh, task.num_examples)
    optimizer, _ = make_optimizer([segment.learning_rate for segment in segments])
    state = step.abstract_state(head, optimizer, mesh)

    message_dtype = config.mesh.message_dtype
    if message_dtype == 'auto':
        message_dtype = head.config.dtype

    @functools.cache
    def steps_of(head: Head) -> PhaseSteps:
        train = step.make_train_step(
            head, make_optimizer, state, mesh, clip_norm=config.optimizer.clip_norm,
            frozen=frozen, accumulation_steps=config.train.accumulation_steps,
            message_dtype=message_dtype, async_sums=config.mesh.async_sums)
        return PhaseSteps(head, train, step.make_eval_step(head, mesh))

    return Program(
        config=config, task=task, mesh=mesh, phases=phases, head=head,
        frozen=frozen, state=state,
        steps=tuple(steps_of(_head_of(phase, head)) for phase in phases),
        init=step.make_init(head, optimizer, mesh),
        init_weights=init_weights)


def _head_of(phase: dict[str, Any], head: Head) -> Head:
    """The head with the options that a phase states for its model."""
    stated = model_options(phase)
    if not stated:
        return head
    return dataclasses.replace(head, config=dataclasses.replace(head.config, **stated))


def _frozen(config: ConfigDict, task: Task, parameters: optimizers.Parameters) -> set[Names]:
    """The parameters that are never trained: those of the config, and those of the task.

    Raises:
      InputError: the task freezes what an adapter would change.
    """
    frozen = optimizers.frozen_parameters(config.optimizer.frozen, parameters)
    adapter = adapter_of(config)
    if adapter.is_on and task.frozen:
        raise InputError(f'config.adapter.kind={adapter.kind!r} trains the encoder, which '
                         f'config.task={config.task!r} keeps as it is because its head reads '
                         'features: leave the adapter out, or the features')
    frozen |= optimizers.frozen_beside(adapter, parameters)
    return frozen | optimizers.frozen_parameters(
        task.frozen, parameters, f'{type(task).__name__}.frozen')


def _optimizer_maker(
    config: ConfigDict, phases: list[dict[str, Any]],
    segments: Sequence[ScheduleSegment], parameters: optimizers.Parameters,
    frozen: set[Names], mesh: Mesh, num_examples: int | None,
) -> Callable[[Any], tuple[optax.GradientTransformation, Schedule]]:
    """A function from the learning rates of `segments`, perhaps traced, to (optimizer, schedule).

    The rates are arguments of the train step, so runs that differ in them share one compiled step.
    """
    section = config.optimizer
    options = config_lib.options_of(optimizers.OptimizerOptions, section)
    mean = mean_of(section.average, phases, num_examples)

    def make(rates: Any) -> tuple[optax.GradientTransformation, Schedule]:
        with_rates = [segment._replace(learning_rate=rates[i])
                      for i, segment in enumerate(segments)]
        schedule = make_schedule(with_rates, section.decay_power, section.decay)
        optimizer = optimizers.make_optimizer(
            options, schedule, parameters, frozen=frozen, mesh=mesh, mean_of=mean)
        return optimizer, schedule

    return make


def mean_of(
    average: int | str, phases: Sequence[Mapping[str, Any]], num_examples: int | None
) -> tuple[int, int]:
    """The numbers of steps of the mean that a run ends with, and of the whole run.

    Args:
      average: `optimizer.average`.
      phases: of the run.
      num_examples: see `Task`.
    """
    num_steps = sum(phase['steps'] for phase in phases)
    averaged = parse_duration(
        average, 'optimizer.average', num_examples=num_examples, total=num_steps,
        batch_size=phases[0]['batch_size'])
    return min(averaged, num_steps), num_steps


def make_phases(program: Program) -> list[Phase]:
    """The phases of a run, with their rows."""
    starts = [0, *program.phase_ends]
    result: list[Phase] = []
    for number, steps in enumerate(program.steps):
        rows = program.task.rows(steps.head, program.phases, number, program.mesh)
        batch_size = program.phases[number]['batch_size']
        result.append(Phase(starts[number], starts[number + 1], batch_size, rows, steps))
    return result


def step_inputs(program: Program) -> step.StepInputs:
    """The train step's arguments other than state and batch, on the devices."""
    return jax.device_put(_host_step_inputs(program), NamedSharding(program.mesh, PartitionSpec()))


def _host_step_inputs(program: Program) -> step.StepInputs:
    rates = [segment.learning_rate for segment in schedule_segments(program.config, program.phases)]
    return step.StepInputs(np.uint32(program.config.seed), np.array(rates, np.float32))


Call = tuple[Any, tuple[Any, ...]]  # a step, and its arguments as shapes


def steps_with_shapes(program: Program, number: int) -> dict[str, Call]:
    """The `train` and `evaluation` steps of a phase with the shapes of their arguments.

    A labelled task, whose batches may have several shapes, has the largest here, and no
    `evaluation`.

    Args:
      program: of the run.
      number: of the phase, from 0.
    """
    replicated = NamedSharding(program.mesh, PartitionSpec())
    inputs = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated),
        _host_step_inputs(program))
    of_phase = program.steps[number]
    steps: dict[str, Call] = {
        'train': (of_phase.train, (program.state, inputs)),
        'evaluation': (of_phase.evaluation, (program.state.params,)),
    }
    shapes = program.task.batch_shapes(
        of_phase.head.config, program.phases[number], program.mesh)
    return {name: (steps[name][0], (*steps[name][1], batch)) for name, batch in shapes.items()}


def schedule_segments(
    config: ConfigDict, phases: list[dict[str, Any]]
) -> list[ScheduleSegment]:
    """Segments of the schedule; a phase with its own learning rate begins a new segment."""
    begins = [i for i, phase in enumerate(phases) if i == 0 or phase['learning_rate'] is not None]
    segments = []
    start = 0
    for begin, end in itertools.pairwise([*begins, len(phases)]):
        steps = sum(phase['steps'] for phase in phases[begin:end])
        segments.append(_segment(config, phases[begin], start, steps))
        start += steps
    return segments


def _segment(
    config: ConfigDict, first_phase: dict[str, Any], start: int, steps: int
) -> ScheduleSegment:
    """The segment of `steps` steps from step `start` on, which begins with this phase."""
    steps_of = functools.partial(
        parse_duration, num_examples=None, total=steps, batch_size=first_phase['batch_size'])
    rate = first_phase['learning_rate']
    warmup = first_phase['warmup']
    if rate is None:
        rate = config.optimizer.learning_rate
        warmup = steps_of(config.optimizer.warmup, 'optimizer.warmup')
    decay_from = first_phase.get('decay_from', config.optimizer.decay_from)
    if decay_from == 'start':
        decay_from = 0
    elif decay_from == 'peak':
        decay_from = warmup
    else:
        decay_from = max(warmup, steps_of(decay_from, 'optimizer.decay_from'))
    return ScheduleSegment(start, steps, rate, warmup, decay_from)


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
    fields = config_lib.model_fields(config, vocab_size)
    if m.dtype == 'auto':
        computation['dtype'] = 'float32' if Layout(mesh).on_cpu else 'bfloat16'
    return config_on_chip(
        fields, **computation, layout=Layout(mesh), adapter=adapter_of(config))


def adapter_of(config: ConfigDict) -> AdapterOptions:
    """The adapter that a config trains."""
    return config_lib.options_of(AdapterOptions, config.adapter)
