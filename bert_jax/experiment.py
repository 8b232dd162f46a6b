"""The one place that turns a config into mesh, task, data, state and steps, and runs them."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.data.dataset import Data, SyntheticData, TextData, TextOptions
from bert_jax.data.masking import MaskingRates
from bert_jax.data.pretrain import Recipe
from bert_jax.errors import InputError
from bert_jax.model.flops import peak_flops
from bert_jax.model.layers import BertConfig
from bert_jax.optim import ScheduleSegment, make_optimizer, make_schedule
from bert_jax.sharding import Layout, Mesh, local_rows, make_mesh, to_global
from bert_jax.tasks.base import Task
from bert_jax.tasks.pretrain import Pretraining
from bert_jax.train.checkpoint import Checkpoints
from bert_jax.train.evaluate import evaluate
from bert_jax.train.loop import Cadence, Phase, train
from bert_jax.train.report import Report, count
from bert_jax.train.run_directory import check_run_directory, describe_run
from bert_jax.train.state import abstract_state, init_state, num_params
from bert_jax.train.step import TrainStep, make_eval_step, make_train_step
from bert_jax.validation import check_vocabulary, mesh_data, validate

_TASKS = ('pretrain', 'synthetic')


def say(line: str) -> None:
    """Prints on the first process only."""
    if jax.process_index() == 0:
        print(line, flush=True)


def run(config: ConfigDict, workdir: Path, should_stop: Callable[[int], bool]) -> dict[str, float]:
    """Trains (or goes on training) a run and evaluates it.

    Args:
      config: as read from the config file and the command line.
      workdir: the run directory; a run found there goes on from its newest checkpoint.
      should_stop: polled with the step; true means save and leave.

    Returns:
      The final held-out metrics, with `step`.

    Raises:
      InputError: bad configuration or data.
      train.loop.Diverged, train.loop.Stopped: see there.
    """
    if config.task not in _TASKS:
        raise InputError(
            f'config.task={config.task!r} is unknown: {config_lib.nearest(config.task, _TASKS)}'
        )
    validate(config, jax.device_count())
    mesh = make_mesh(
        mesh_data(config, jax.device_count()), config.mesh.fsdp, config.mesh.tensor
    )
    say(f'devices: {jax.device_count()} x {jax.devices()[0].device_kind}, mesh '
        + ' x '.join(f'{name} {size}' for name, size in mesh.shape.items()))

    data = open_data(config)
    num_examples = examples_an_epoch(config, data)
    phases = config_lib.phases(config, num_examples)
    total = sum(phase['steps'] for phase in phases)
    program = build_program(config, mesh, data.vocab_size, phases)
    task, optimizer = program.task, program.optimizer
    resolved = resolve(config, phases, data.vocab_size)
    check_run_directory(workdir, resolved, data.vocab_path)

    checkpoints = Checkpoints(workdir / 'checkpoints', config.train.keep_checkpoints)
    abstract = abstract_state(task, optimizer, mesh)
    state = checkpoints.restore(abstract)
    if state is None:
        state = init_state(task, optimizer, mesh, config.seed)
        if config.init_checkpoint:
            state = dataclasses.replace(
                state, params=warm_start(Path(config.init_checkpoint), abstract)
            )
    else:
        say(f'resuming at step {int(state.step):,} from {workdir}')
    describe_run(workdir, resolved, data.vocab_path)
    start = int(state.step)
    say(f'model {config.model.name}: {count(num_params(state))} parameters; {total:,} steps')

    eval_step = make_eval_step(task, mesh)
    runs = []
    first = 0
    for phase in phases:
        runs.append(_phase(config, data, phase, first, mesh, task, eval_step))
        first += phase['steps']

    def steps_of(field: str) -> int:
        return config_lib.parse_duration(
            config_lib.get_field(config, field), field, batch_size=phases[0]['batch_size'],
            num_examples=num_examples, total=total,
        )

    peak = peak_flops(jax.devices()[0].device_kind)
    report = Report(workdir, jax.process_index() == 0, start)
    try:
        state, metrics = train(
            task, state, program.train_step, runs,
            Cadence(
                steps_of('train.log_every'), steps_of('train.eval_every'),
                steps_of('train.save_every'),
            ),
            checkpoints, report,
            peak_flops=peak * jax.device_count() if peak else None, should_stop=should_stop,
        )
    finally:
        checkpoints.close()
        report.draw()
        report.close()
    return {'step': int(state.step), **{f'eval/{k}': v for k, v in metrics.items()}}


@dataclasses.dataclass(frozen=True)
class Program:
    """What is computed: task, optimizer and the jitted train step."""

    task: Task
    optimizer: optax.GradientTransformation
    train_step: TrainStep


def build_program(
    config: ConfigDict, mesh: Mesh, vocab_size: int, phases: list[dict[str, Any]]
) -> Program:
    """The program of a config on a mesh; nothing is run or allocated.

    Args:
      config: a validated config.
      mesh: where it will run.
      vocab_size: of the vocabulary, unpadded.
      phases: from `config.phases`.
    """
    task = Pretraining(
        model_config(config, vocab_size, mesh), next_sentence=config.data.next_sentence
    )
    schedule = make_schedule(schedule_segments(config, phases), config.optimizer.decay_power)
    optimizer = make_optimizer(
        config.optimizer.name, schedule, weight_decay=config.optimizer.weight_decay,
        b1=config.optimizer.b1, b2=config.optimizer.b2, eps=config.optimizer.eps,
    )
    train_step = make_train_step(
        task, optimizer, schedule, mesh, seed=config.seed, clip_norm=config.optimizer.clip_norm,
        accumulation_steps=config.train.accumulation_steps,
    )
    return Program(task, optimizer, train_step)


def warm_start(run_directory: Path, abstract: Any) -> Any:
    """Parameters of another run; its optimizer moments and step are left behind.

    Raises:
      InputError: not a run directory, or one of another model.
    """
    directory = run_directory / 'checkpoints'
    if not directory.is_dir():
        raise InputError(
            f'config.init_checkpoint={str(run_directory)!r} is not a run directory: it has no '
            'checkpoints/'
        )
    checkpoints = Checkpoints(directory, keep=None)
    try:
        params = checkpoints.restore_params(abstract)
        say(f'parameters from step {checkpoints.latest_step():,} of {run_directory}')
    finally:
        checkpoints.close()
    return params


def _phase(
    config: ConfigDict, data: Data, phase: dict[str, Any], first: int, mesh: Mesh, task: Task,
    eval_step: Any,
) -> Phase:
    batch_size, length = phase['batch_size'], phase['max_seq_length']
    slots = phase['max_predictions_per_seq']
    # Made when first asked for: planning the epochs of a phase that is over would be wasted.
    examples = functools.cache(lambda: data.training(length, slots))
    held_out = functools.cache(lambda: data.held_out(length, slots))

    def batches(first_step: int) -> Iterator[Any]:
        local = local_rows(mesh, batch_size)
        for batch in data.train_batches(
            examples(), batch_size=batch_size, local=local, first_step=first_step,
            num_steps=phase['steps'] - first_step,
        ):
            yield to_global(mesh, batch, batch_size, local)

    def evaluate_phase(params: Any) -> dict[str, float]:
        size = config.train.eval_batch_size
        local = local_rows(mesh, size)
        rows = held_out()
        num = rows.num_frozen
        if config.train.max_eval_examples:
            num = min(num, config.train.max_eval_examples)
        return evaluate(task, eval_step, params, (
            to_global(mesh, batch, size, local)
            for batch in data.eval_batches(rows, batch_size=size, local=local, num_examples=num)
        ))

    return Phase(
        start=first, steps=phase['steps'], batch_size=batch_size, batches=batches,
        evaluate=evaluate_phase, flops_per_row=task.flops(length, slots),
        name=f'length {length}, batch {batch_size}',
    )


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
            warmup = config_lib.parse_duration(
                config.optimizer.warmup, 'optimizer.warmup', batch_size=phases[i]['batch_size'],
                num_examples=None, total=steps,
            )
        else:
            rate, warmup = phases[i]['learning_rate'], phases[i]['warmup']
        segments.append(ScheduleSegment(starts[i], steps, rate, warmup))
    return segments


def model_config(config: ConfigDict, vocab_size: int, mesh: Mesh) -> BertConfig:
    """What the model is, from the config and the vocabulary's size."""
    m = config.model
    if m.vocab_size and m.vocab_size < vocab_size:
        raise InputError(
            f'config.model.vocab_size={m.vocab_size} is less than the vocabulary has '
            f'({vocab_size}): leave it 0 to take its size'
        )
    check_vocabulary(m.vocab_size or vocab_size, mesh.shape['tensor'])
    on_cpu = mesh.devices.flat[0].platform == 'cpu'
    dtype = m.dtype
    if dtype == 'auto':
        dtype = 'float32' if on_cpu else 'bfloat16'
    return BertConfig(
        vocab_size=m.vocab_size or vocab_size,
        **config_lib.model_sizes(config),
        max_position_embeddings=m.max_position_embeddings,
        type_vocab_size=m.type_vocab_size,
        hidden_act=m.hidden_act,
        layer_norm_eps=m.layer_norm_eps,
        initializer_range=m.initializer_range,
        hidden_dropout=m.hidden_dropout,
        attention_dropout=m.attention_dropout,
        dtype=dtype,
        scan_layers=m.scan_layers,
        remat=m.remat,
        mlm_chunk_bytes=16 << 20 if on_cpu else 1 << 30,  # a CPU has little cache
        layout=Layout(mesh),
    )


def resolve(config: ConfigDict, phases: list[dict[str, Any]], vocab_size: int) -> dict[str, Any]:
    """The config as plain values with everything filled in, as written to `config.json`."""
    resolved = json.loads(config.to_json_best_effort())
    resolved['model'] |= config_lib.model_sizes(config)
    resolved['model']['vocab_size'] = config.model.vocab_size or vocab_size
    resolved['phases'] = phases
    resolved['train']['steps'] = sum(phase['steps'] for phase in phases)
    return resolved


def weighted_sources(source: Any) -> list[tuple[str, float]]:
    """`data.source` as (source, weight) pairs.

    Raises:
      InputError: it is neither a string nor a list of (source, weight).
    """
    if isinstance(source, str) and source:
        return [(source, 1.0)]
    pairs = []
    for item in source if isinstance(source, (list, tuple)) else [None]:
        if isinstance(item, str):
            item = (item, 1.0)
        if not (isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str)
                and isinstance(item[1], (int, float)) and item[1] > 0):
            raise InputError(
                f"config.data.source={source!r}: write a source, or a list of (source, weight) "
                "such as [('wiki.txt', 3), ('books.txt', 1)] with weights above 0"
            )
        pairs.append((item[0], float(item[1])))
    if not pairs:
        raise InputError('config.data.source is empty: name a source, such as a glob of text files')
    return pairs


def open_data(config: ConfigDict) -> Data:
    """The data of the config's task."""
    d = config.data
    if config.task == 'synthetic':
        return SyntheticData(config.model.vocab_size or d.vocab_size, config.seed)
    return TextData(TextOptions(
        sources=tuple(weighted_sources(d.source)), eval_source=d.eval_source,
        held_out=d.held_out, vocab_file=d.vocab_file, vocab_size=d.vocab_size,
        lowercase=d.lowercase, cache_dir=Path(d.dir).expanduser(), tfds_dir=d.tfds_dir,
        recipe=Recipe(
            short_seq_prob=d.short_seq_prob, random_next_prob=d.random_next_prob,
            next_sentence=d.next_sentence, min_sentences=d.min_sentences,
            num_maskings=d.num_maskings,
            masking=MaskingRates(
                d.masked_lm_prob, d.mask_rate, d.random_rate, d.whole_word_mask
            ),
        ),
        max_positions=config.model.max_position_embeddings, seed=config.seed,
        progress=jax.process_index() == 0,
    ))


def examples_an_epoch(config: ConfigDict, data: Data) -> int | None:
    """Rows an epoch of the first phase, planned only where a duration asks for it."""
    t = config.train
    durations = [t.steps, t.eval_every, t.save_every, t.log_every, config.optimizer.warmup]
    durations += [phase.get('steps', '') for phase in config.phases]
    if not any('epoch' in str(value) for value in durations):
        return None
    first = dict(config.phases[0]) if config.phases else {}
    return data.training(
        first.get('max_seq_length', config.data.max_seq_length),
        first.get('max_predictions_per_seq', config.data.max_predictions_per_seq),
    ).num_examples
