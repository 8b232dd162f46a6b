"""A run from its program to its result: restores or initialises the state, trains, and writes."""

import concurrent.futures
import dataclasses
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.config.durations import parse_duration, parse_trace
from bert_jax.config.fields import field_of, flat_fields
from bert_jax.runtime import files, hosts
from bert_jax.runtime.chips import find_chip
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hosts import say
from bert_jax.runtime.process import STARTED
from bert_jax.runtime.provenance import made_by, versions
from bert_jax.train import workdirs
from bert_jax.train.checkpoint import Best, Checkpoints
from bert_jax.train.gates import Gates
from bert_jax.train.goodput import Goodput
from bert_jax.train.memory import check_memory
from bert_jax.train.profile import Profile
from bert_jax.train.program import PhaseSteps, Program, step_inputs
from bert_jax.train.reference import Comparison, compared_fields, read_reference
from bert_jax.train.report import Report, count
from bert_jax.train.step import TrainState, TrainStep, num_params, num_unpadded
from bert_jax.train.task import Phase
from bert_jax.train.trainer import Intervals, Trainer
from bert_jax.train.verify import make_verify
from bert_jax.weights.run_directory import describe_run, step_to_read
from bert_jax.weights.warm_start import warm_start

# The plateau gate arms after a quarter of training, but within these numbers of steps.
_LEAST_STEPS_TO_PLATEAU = 1_000
_MOST_STEPS_TO_PLATEAU = 20_000


def train_run(
    program: Program, workdir: files.Path, should_stop: Callable[[int], bool], *,
    began: float = STARTED, watch: Callable[[Callable[[], str], files.Path], None] | None = None,
) -> dict[str, float]:
    """Trains a run from its start or its newest checkpoint, and evaluates it.

    Args:
      program: from `run_setup.open_run`.
      workdir: the run directory.
      should_stop: polled with the step; True: save and stop.
      began: start of the run, in seconds since the epoch.
      watch: `Guard.watch`, to end a run that hangs.

    Returns:
      The final held-out metrics as `eval/...`, with `step`. If the run keeps its best evaluation:
      the step and metrics of that one, and the final metrics as `last/...`.

    Raises:
      InputError: bad configuration or data.
      Diverged, Stopped: see `Trainer.run`.
    """
    description = describe(program)
    init_weights = program.init_weights
    program = dataclasses.replace(program, init_weights=None)
    check_start(program, workdir, description)

    checkpoints = Checkpoints(
        workdir / 'checkpoints', program.config.train.keep_checkpoints,
        _steps_of(program, 'train.save_every'))
    # Compiles while the state is restored or initialised, which takes about as long.
    compiler = StepCompiler(program, checkpoints.latest_step() or 0)
    state = _restore_or_init(program, checkpoints, init_weights, workdir)
    init_weights = None  # frees its memory, unless the caller keeps it for the next run
    outputs = RunOutputs.open(program, description, workdir, checkpoints, int(state.step), began)
    if watch is not None:
        watch(lambda: outputs.goodput.cause, workdir)
    with outputs.goodput.during('compile'):
        compiler.wait_for_first_phase()
    phases = _phases(program)
    _announce(program, state, phases, description, workdir)
    compiler.compile_other_phases()

    def stop_or_fail(step: int) -> bool:
        compiler.check()
        return should_stop(step)

    try:
        trainer = _make_trainer(
            program, state, phases, outputs, _comparison(program, description), stop_or_fail)
        metrics = trainer.run()
        if outputs.best is None:
            return {'step': trainer.step, **_prefixed('eval', metrics)}
        return _finish_best(program, outputs.best, metrics, description, workdir)
    finally:
        compiler.close()
        outputs.close()


def describe(program: Program) -> dict[str, Any]:
    """What `config.json` says of a run, before it is compared with the run in the directory."""
    config, task = program.config, program.task
    description = resolve(config, program.phases, task.vocab_size)
    description |= {
        'head': task.head, 'labels': list(task.labels), 'metric': task.metric,
        'inference': dict(task.inference), 'identity': task.identity(),
    }
    if program.own_file is not None:
        description['config_file'] = program.own_file.record()
    description |= _init_checkpoint_record(config.init_checkpoint, program.init_weights)
    # What was resolved, which must be the same on all hosts.
    description['model']['attention'] = program.head.config.attention
    return description


def resolve(config: ConfigDict, phases: list[dict[str, Any]], vocab_size: int) -> dict[str, Any]:
    """The config as plain values with everything filled in."""
    resolved = json.loads(config.to_json_best_effort())
    resolved['model'] |= config_lib.model_sizes(config)
    resolved['model']['vocab_size'] = config.model.vocab_size or vocab_size
    resolved['phases'] = phases
    resolved['train']['steps'] = sum(phase['steps'] for phase in phases)
    return resolved


def _init_checkpoint_record(init_checkpoint: str, weights: Any) -> dict[str, int]:
    """Which save of a run a run starts from: that run may train on, or be made anew.

    Args:
      init_checkpoint: of the config.
      weights: of `init_checkpoint`. A run that resumes has none, or their description. For it, the
        record is of the save that would be read now, to be compared with the run's own record.
    """
    if not init_checkpoint:
        return {}
    if weights is not None and weights.params:
        step_dir = weights.step_dir
    else:
        step_dir = step_to_read(files.as_path(init_checkpoint))
    if step_dir is None:
        return {}
    record = {'init_step': int(step_dir.name)}
    manifest = step_dir / 'default' / 'manifest.ocdbt'  # differs for each save
    if manifest.exists():
        record['init_saved'] = zlib.crc32(manifest.read_bytes())
    return record


def check_start(program: Program, workdir: files.Path, description: dict[str, Any]) -> None:
    """Checks that all hosts have the same run, and that it can start or resume in its directory.

    Settings that come too late for the run in the directory are reset in `description`.

    Raises:
      InputError: it cannot.
    """
    _traced_steps(program)  # refuses a trace beyond the end
    facts = {f'version of {name}': version for name, version in versions().items()}
    for name, value in flat_fields(description).items():
        field = field_of(name)
        is_free_path = field.allowed == 'path' and field.is_silent(program.config.task)
        if not is_free_path:  # what is there is the same, and `identity` compares it
            facts[name] = value
    hosts.agree('the run', facts)
    task = program.task
    workdirs.check_resumable(workdir, description, task.vocab_path, comparable=task.keeps_best)
    workdirs.check_shared(workdir)


def _steps_of(program: Program, field: str) -> int:
    """The duration in a config field, in steps."""
    return parse_duration(
        flat_fields(program.config)[field], field, batch_size=program.phases[0]['batch_size'],
        num_examples=program.task.num_examples, total=program.num_steps)


class StepCompiler:
    """Compiles the steps of the phases that are left, and checks that they fit in memory.

    It works in a thread: the steps of later phases are compiled while the first one is trained.
    """

    def __init__(self, program: Program, steps_done: int):
        """Starts to compile the train step of the first phase that is left."""
        self._program = program
        self._phases = [i for i, end in enumerate(program.phase_ends) if end > steps_done]
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._first = self._thread.submit(check_memory, program, self._phases[:1], ['train'])
        self._others: concurrent.futures.Future[None] | None = None

    def wait_for_first_phase(self) -> None:
        """Raises InputError if the train step of the first phase does not fit."""
        self._first.result()

    def compile_other_phases(self) -> None:
        """Starts to compile the other steps."""
        self._others = self._thread.submit(check_memory, self._program, self._phases)

    def check(self) -> None:
        """Raises InputError if a step that is compiled by now does not fit."""
        if self._others is not None and self._others.done():
            self._others.result()

    def close(self) -> None:
        """Ends the thread; what is being compiled is finished."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _restore_or_init(
    program: Program, checkpoints: Checkpoints, init_weights: Any, workdir: files.Path
) -> TrainState:
    """The state of the newest checkpoint, or else a fresh one, with `init_weights` if given."""
    state = checkpoints.restore(program.state)
    if state is not None:
        say(f'resuming at step {int(state.step):,} from {workdir}')
        return state
    state = program.init(program.config.seed)
    if init_weights is None:
        return state
    task = program.task
    params = warm_start(
        init_weights, state.params, program.head.config, head=task.head, labels=task.labels,
        vocab_file=task.vocab_path)
    return dataclasses.replace(state, params=params)


@dataclasses.dataclass(frozen=True)
class RunOutputs:
    """What a run writes: its state, its best parameters, and how it went.

    Attributes:
      checkpoints: of the state.
      best: the parameters of the best evaluation; None if the task does not keep them.
      report: metrics.
      goodput: the use of time.
      profile: a trace of some steps.
    """

    checkpoints: Checkpoints
    best: Best | None
    report: Report
    goodput: Goodput
    profile: Profile

    @classmethod
    def open(
        cls, program: Program, description: dict[str, Any], workdir: files.Path,
        checkpoints: Checkpoints, start: int, began: float,
    ) -> Self:
        """Opens what a run writes besides its checkpoints.

        Args:
          program: of the run.
          description: of the run, as in config.json.
          workdir: the run directory.
          checkpoints: of the run.
          start: the step that training starts from.
          began: start of the run, in seconds since the epoch.

        Raises:
          InputError: earlier records or the best parameters cannot be read.
        """
        report = Report(workdir, hosts.first(), start)
        report.guessing = program.task.majority_baseline
        report.phases = program.phase_ends
        loggers = program.config.train.loggers.split(',')
        report.open_loggers(loggers, flat_fields(description))
        goodput = Goodput(workdir, hosts.first(), start, began, folder=report.folder)
        profile = Profile(_traced_steps(program), workdir)
        best = None
        if program.task.keeps_best:
            best = Best(workdir / 'best', program.task.metric)
            if best.step():
                best.restore(program.state.params)  # fails now rather than after the training
        return cls(checkpoints, best, report, goodput, profile)

    def close(self) -> None:
        """Writes the rest, and says how the time was used."""
        with self.goodput.during('save'):
            self.checkpoints.close()
            if self.best is not None:
                self.best.close()
        self.profile.close()
        self.goodput.write()
        say(self.goodput.line())
        self.report.draw()
        self.report.close()


def _traced_steps(program: Program) -> tuple[int, int] | None:
    """The first and the last step that this host traces, if any."""
    trace = parse_trace(program.config.train.profile, 'train.profile', program.num_steps)
    if trace is None:
        return None
    steps, traced_hosts = trace
    if max(traced_hosts) >= hosts.count():
        raise InputError(f'config.train.profile={program.config.train.profile!r}: there is no host '
                         f'{max(traced_hosts)}, the run has {hosts.count()}, counted from 0')
    return steps if hosts.index() in traced_hosts else None


def _announce(
    program: Program, state: TrainState, phases: Sequence[Phase], description: dict[str, Any],
    workdir: files.Path,
) -> None:
    """Writes `config.json`, checks that all hosts start from one step, and says what is trained."""
    # For whoever shows the results; another value is no other run.
    description['guessing'] = dict(program.task.majority_baseline)
    description['parameters'] = num_unpadded(program.head)
    description['step_flops'] = [phase.flops_per_sequence * phase.batch_size for phase in phases]
    description['made'] = made_by()
    if hosts.first():
        describe_run(workdir, description, program.task.vocab_path, program.own_file)
    hosts.agree('the step to start from', {'step': int(state.step)})
    name = program.config.model.name or 'as published'
    say(f'model {name}: {count(num_params(state))} parameters; {program.num_steps:,} steps')


def _gates(program: Program, start: int) -> Gates | None:
    """The early warnings of a run that starts at a step, if its task has any."""
    if program.task.make_gates is None:
        return None
    plateau = min(program.num_steps // 4, _MOST_STEPS_TO_PLATEAU)
    settled = max(plateau, _LEAST_STEPS_TO_PLATEAU, _steps_of(program, 'optimizer.warmup'))
    fresh = start == 0 and not program.config.init_checkpoint
    return program.task.make_gates(program.head, program.phases, fresh=fresh, settled=settled)


def _comparison(program: Program, description: dict[str, Any]) -> Comparison | None:
    """The comparison with `train.reference`, if the run has one."""
    named = program.config.train.reference
    if not named:
        return None
    return Comparison(read_reference(named), compared_fields(flat_fields(description)))


def _make_trainer(
    program: Program, state: TrainState, phases: Sequence[Phase], outputs: RunOutputs,
    reference: Comparison | None, should_stop: Callable[[int], bool],
) -> Trainer:
    """The trainer of a run that starts from a state."""
    train = program.config.train
    inputs = step_inputs(program)

    def train_step_of(steps: PhaseSteps) -> TrainStep:
        return lambda state, batch: steps.train(state, inputs, batch)

    chip = find_chip(jax.devices()[0].device_kind)
    return Trainer(
        head=program.head,
        state=state,
        phases=phases,
        train_steps=[train_step_of(steps) for steps in program.steps],
        intervals=Intervals(
            log=_steps_of(program, 'train.log_every'),
            evaluate=_steps_of(program, 'train.eval_every'),
            save=_steps_of(program, 'train.save_every'),
            verify=_steps_of(program, 'train.verify_every')),
        checkpoints=outputs.checkpoints,
        report=outputs.report,
        goodput=outputs.goodput,
        profile=outputs.profile,
        should_stop=should_stop,
        best=outputs.best,
        gates=_gates(program, int(state.step)),
        reference=reference,
        verify=make_verify(
            program.head, program.mesh, seed=program.config.seed,
            accumulation_steps=train.accumulation_steps),
        patience=train.patience,
        save_seconds=60 * train.save_minutes,
        peak_flops=chip.peak_flops * jax.device_count())


def _phases(program: Program) -> list[Phase]:
    """The phases of a run, with their batches."""
    return [
        program.task.phase(
            steps.head, steps.evaluation, program.phases, number, program.mesh)
        for number, steps in enumerate(program.steps)]


def _finish_best(
    program: Program, best: Best, last_metrics: dict[str, float], description: dict[str, Any],
    workdir: files.Path,
) -> dict[str, float]:
    """Writes the results of the best evaluation, and returns its step and metrics."""
    step, params = best.restore(program.state.params)
    metrics = best.metrics() or {}
    if program.task.write_results is not None:
        description['inference'] |= program.task.write_results(
            program.head, program.mesh, params, metrics, workdir)
    if hosts.first():
        describe_run(workdir, description, program.task.vocab_path, program.own_file)
    return {'step': step, **_prefixed('last', last_metrics), **_prefixed('eval', metrics)}


def _prefixed(kind: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f'{kind}/{name}': value for name, value in metrics.items()}
