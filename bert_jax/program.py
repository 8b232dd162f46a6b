"""What a config computes: mesh, model, task, optimizer and steps, none of it run or allocated.

`experiment.run` trains with it; `tools.preflight` compiles it for machines that are not here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import optax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.bert_config import COMPUTATION
from bert_jax.durations import parse_duration
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.model.layers import ModelConfig
from bert_jax.optim import ScheduleSegment, make_optimizer, make_schedule
from bert_jax.pretraining import PretrainingJob
from bert_jax.sharding import Layout, Mesh, make_mesh
from bert_jax.tasks.base import Task
from bert_jax.train.compiled import CompiledStep, device_bytes, device_memory
from bert_jax.train.loop import Phase
from bert_jax.train.state import TrainState, abstract_state
from bert_jax.train.step import make_train_step
from bert_jax.validation import check_vocabulary, mesh_data, validate


class Job(Protocol):
    """What differs between pre-training and a downstream task."""

    vocab_size: int
    vocab_path: Path | None
    head: str  # as `weights` names it
    labels: tuple[str, ...]
    metric: str  # of the evaluation, the higher the better; sweeps go by it
    frozen: str  # top-level part of the parameters that is not trained
    keeps_best: bool  # whether the parameters of the best evaluation are kept

    @property
    def num_examples(self) -> int | None:
        """Rows an epoch, or None where no duration asks for it."""

    def identity(self) -> dict[str, str]:
        """What all hosts must have read alike, by name: digests of content, and counts."""

    def task(self, bert: ModelConfig) -> Task:
        """The task on an encoder."""

    def phase(self, task: Any, phase: dict[str, Any], first: int, mesh: Mesh) -> Phase:
        """A phase of the run, from its description and first step."""

    def finish(self, params: Any, metrics: dict[str, float], workdir: Path) -> None:
        """Writes what else belongs into the run directory, of the best evaluation."""


def open_mesh(config: ConfigDict, devices: Sequence[Any]) -> Mesh:
    """The mesh of a completed config on these devices.

    Raises:
      InputError: the config cannot work, or not on so many devices.
    """
    validate(config, len(devices))
    return make_mesh(
        mesh_data(config, len(devices)), config.mesh.fsdp, config.mesh.tensor, devices
    )


@dataclasses.dataclass(frozen=True)
class Program:
    """What a run computes, before any of it is run.

    Attributes:
      job: its data and what is its own.
      mesh: where it runs; the devices may be a topology's, which only the compiler knows.
      phases: from `config.phases`.
      bert: the model.
      task: what is trained.
      optimizer: in `train_step`.
      state: shapes and shardings.
      accumulation_steps: parts that a batch is computed in.
      train_step: takes the state and a batch.
    """

    job: Job
    mesh: Mesh
    phases: list[dict[str, Any]]
    bert: ModelConfig
    task: Task
    optimizer: optax.GradientTransformation
    state: TrainState
    accumulation_steps: int
    train_step: CompiledStep


def build_program(config: ConfigDict, mesh: Mesh, job: Job) -> Program:
    """The program of a completed config on a mesh; nothing is run or allocated."""
    phases = config_lib.phases(config, job.num_examples)
    bert = model_config(config, job.vocab_size, mesh)
    task = job.task(bert)
    schedule = make_schedule(schedule_segments(config, phases), config.optimizer.decay_power)
    optimizer = make_optimizer(
        config.optimizer.name, schedule, weight_decay=config.optimizer.weight_decay,
        b1=config.optimizer.b1, b2=config.optimizer.b2, eps=config.optimizer.eps,
        frozen=job.frozen,
    )
    train_step = make_train_step(
        task, optimizer, schedule, mesh, seed=config.seed, clip_norm=config.optimizer.clip_norm,
        accumulation_steps=config.train.accumulation_steps,
    )
    return Program(
        job, mesh, phases, bert, task, optimizer, abstract_state(task, optimizer, mesh),
        config.train.accumulation_steps, CompiledStep(train_step),
    )


Call = tuple[CompiledStep, tuple[Any, ...]]  # a step, and its arguments as shapes


def phase_calls(program: Program, phase: dict[str, Any]) -> dict[str, Call]:
    """The steps of a phase of pre-training, `train` and `evaluation`, as they will be called.

    Empty for downstream tasks, whose rows are packed into many shapes as they come.
    """
    job = program.job
    if not isinstance(job, PretrainingJob):
        return {}
    batch, held_out = job.batch_shapes(phase, program.mesh)
    evaluation = job.eval_step(program.task, program.mesh)
    return {
        'train': (program.train_step, (program.state, batch)),
        'evaluation': (evaluation, (program.state.params, held_out)),
    }


def check_memory(program: Program, start: int) -> int:
    """Compiles the steps of all phases from `start` on, which the run then uses, and sizes them.

    Where a device does not say how much memory it has (CPUs), nothing is compiled ahead.

    Returns:
      Bytes of a device that the largest needs, or 0 where nothing was compiled.

    Raises:
      InputError: one does not fit.
    """
    limit = device_memory(program.mesh.local_devices[0])
    end = largest = 0
    if limit is None:
        return largest
    for number, phase in enumerate(program.phases):
        end += phase['steps']
        if end <= start:
            continue
        for name, (step, arguments) in phase_calls(program, phase).items():
            _, memory = step.compile(*arguments)
            needed = memory.total
            if name == 'evaluation':  # the optimizer's part stays where it is meanwhile
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
                    + '; bert_jax.tools.preflight tries such changes without the devices'
                )
    return largest


def schedule_segments(config: ConfigDict, phases: list[dict[str, Any]]) -> list[ScheduleSegment]:
    """One segment for the whole run, or one from each phase that names its learning rate on."""
    starts = np.concatenate([[0], np.cumsum([p['steps'] for p in phases])]).tolist()
    own = [i for i, phase in enumerate(phases) if phase['learning_rate'] is not None]
    segments = []
    for i in ([] if 0 in own else [0]) + own:
        end = starts[min((j for j in own if j > i), default=len(phases))]
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
    """What the model is, from the config and the vocabulary's size."""
    m = config.model
    if m.vocab_size and m.vocab_size < vocab_size:
        raise InputError(
            f'config.model.vocab_size={m.vocab_size} is less than the vocabulary has '
            f'({vocab_size}): leave it 0 to take its size'
        )
    check_vocabulary(m.vocab_size or vocab_size, mesh.shape['tensor'])
    computation = {name: m[name] for name in COMPUTATION}
    if m.dtype == 'auto':
        computation['dtype'] = 'float32' if Layout(mesh).on_cpu else 'bfloat16'
    return ModelConfig(
        **config_lib.model_fields(config, vocab_size), **computation, layout=Layout(mesh)
    )
