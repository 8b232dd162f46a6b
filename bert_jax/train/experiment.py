"""A run from its program to its result: restores or initialises the state, trains, and writes."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from bert_jax.config.durations import parse_duration
from bert_jax.config.fields import flat_fields
from bert_jax.run import resume_checks
from bert_jax.run.checkpoint import Best, Checkpoints, OtherOptimizer
from bert_jax.run.description import describe_run, read_config
from bert_jax.run.layout import BEST, CHECKPOINTS
from bert_jax.runtime import files, hosts
from bert_jax.runtime.chips import find_chip
from bert_jax.runtime.errors import SaveFailed, Stopped, counted
from bert_jax.runtime.folder_lock import TakenOver
from bert_jax.runtime.hosts import say
from bert_jax.runtime.pauses import Interrupted, interruptible
from bert_jax.runtime.process import STARTED
from bert_jax.runtime.stopping import Guard
from bert_jax.step import optimizers
from bert_jax.step.step import TrainState, num_unpadded
from bert_jax.train.compiling import StepCompiler
from bert_jax.train.describing import adapter_base, check_start, describe, traced_steps
from bert_jax.train.outputs import RunOutputs
from bert_jax.train.phase import Phase
from bert_jax.train.program import Program, make_phases, mean_of, step_inputs
from bert_jax.train.trainer import Control, Intervals, Trainer
from bert_jax.train.watchers import Watchers
from bert_jax.watch.alarms import Alarms
from bert_jax.watch.goodput import Goodput
from bert_jax.watch.loggers import logger_names
from bert_jax.watch.metrics_log import MetricsLog, short_number
from bert_jax.watch.profile import Profile
from bert_jax.watch.reference import Comparison, compared_fields, reference_of
from bert_jax.watch.slowest import SlowestHosts
from bert_jax.watch.verify import make_verify
from bert_jax.weights.warm_start import warm_start

# A plateau is looked for after a quarter of training, but within these numbers of steps.
_LEAST_STEPS_TO_PLATEAU = 1_000
_MOST_STEPS_TO_PLATEAU = 20_000


def train_run(
    program: Program, workdir: files.Path, should_stop: Callable[[int], bool], *,
    check_lock: Callable[[], None] = lambda: None, began: float = STARTED,
    guard: Guard | None = None,
    on_evaluation: Callable[[int, Mapping[str, float]], None] | None = None,
) -> dict[str, float]:
    """Trains a run from its start or its newest checkpoint, and evaluates it.

    Args:
      program: from `run_setup.open_run`.
      workdir: the run directory.
      should_stop: polled with the step; True: save and stop.
      check_lock: raises TakenOver if another process has taken the run directory over.
      began: start of the run, in seconds since the epoch.
      guard: ends a run that hangs, and knows what the hosts report.
      on_evaluation: receives the step and the scores of each evaluation; raises Pruned to end the
        run.

    Returns:
      The final held-out metrics as `eval/...`, with `step`. If the run keeps its best evaluation:
      the step and metrics of that one, and the final metrics as `last/...`.

    Raises:
      InputError: bad configuration or data; TakenOver: another process goes on with the run.
      SaveFailed: a checkpoint cannot be written.
      Diverged, Stopped: see `Trainer.run`. Pruned: by `on_evaluation`.
    """
    description = describe(program)
    of_adapter = adapter_base(program, workdir)  # config.json has it before the run writes its own
    init_weights = program.init_weights
    program = dataclasses.replace(program, init_weights=None)
    checkpoints = _open(program, workdir, description)
    if of_adapter:  # after the checks: it is no setting, so that no change of it is one of the run
        description['adapter_base'] = of_adapter
    # The steps are compiled while the state is restored or initialised, which takes as long.
    with contextlib.closing(StepCompiler(program, checkpoints.latest_step() or 0)) as compiler:
        state = _restore_or_init(program, checkpoints, init_weights, workdir)
        init_weights = None  # frees its memory, unless the caller keeps it for the next run
        outputs = _open_outputs(program, description, workdir, checkpoints, int(state.step), began)
        with _closing_on_error(outputs.report):
            if guard is not None:
                guard.watch(
                    lambda: outputs.goodput.cause, workdir, outputs.fault,
                    outputs.goodput.of_this_process)
            with outputs.goodput.during('compile'):
                compiler.wait_for_first_phase()
            phases = make_phases(program)
            _announce(program, state, phases, description, workdir)
            compiler.compile_other_phases(_steps_of(program, 'train.eval_every'))
            watchers = _watchers(
                program, description, workdir, outputs, int(state.step), guard, on_evaluation)
        with _closing(outputs, watchers):
            control = _control(compiler, should_stop, check_lock, guard)
            trainer = _make_trainer(program, state, phases, outputs, watchers, control)
            scores = trainer.run()
            return _finish(trainer, scores, program, description, workdir)


def _open(
    program: Program, workdir: files.Path, description: dict[str, Any]
) -> Checkpoints:
    """Opens the checkpoints of a run that can start or resume in its directory."""
    check_start(program, workdir, description)
    return Checkpoints(
        workdir / CHECKPOINTS, program.config.train.keep_checkpoints,
        _steps_of(program, 'train.save_every'))


@contextlib.contextmanager
def _closing_on_error(report: MetricsLog) -> Iterator[None]:
    """Closes the records and loggers of a run that ends before its first step."""
    try:
        yield
    except BaseException:
        report.close()
        raise


@contextlib.contextmanager
def _closing(outputs: RunOutputs, watchers: Watchers) -> Iterator[None]:
    """Finishes what the run writes and who watches it, however the `with` block ends."""
    try:
        yield
    except Interrupted:
        _close(outputs, watchers)
        raise Stopped('stopped after the last step; the state is saved, and started again the run '
                      'writes its results') from None
    except TakenOver:
        raise  # another process writes now
    except SaveFailed as error:
        outputs.checkpoints.note(error)  # so that the watchdog limits what follows
        watchers.close()  # other hosts will not finish what was being saved
        outputs.close_records()
        raise
    except BaseException:
        _close(outputs, watchers)
        raise
    _close(outputs, watchers)


def _close(outputs: RunOutputs, watchers: Watchers) -> None:
    """Finishes saves, writes the rest, and says how the time was used."""
    try:
        outputs.finish_saves()
    finally:
        watchers.close()
        outputs.close_records()


def _control(
    compiler: StepCompiler, should_stop: Callable[[int], bool], check_lock: Callable[[], None],
    guard: Guard | None,
) -> Control:
    """What the trainer asks; a step that does not fit ends the run, too."""
    def stop_or_fail(step: int) -> bool:
        compiler.check()
        return should_stop(step)

    def should_leave(is_over: bool) -> bool:
        return guard is not None and guard.should_leave(is_over)

    return Control(stop_or_fail, should_leave, check_lock)


def _steps_of(program: Program, field: str) -> int:
    """The duration in a config field, in steps."""
    return parse_duration(
        flat_fields(program.config)[field], field, batch_size=program.phases[0]['batch_size'],
        num_examples=program.task.num_examples, total=program.num_steps)


def _restore_or_init(
    program: Program, checkpoints: Checkpoints, init_weights: Any, workdir: files.Path
) -> TrainState:
    """The state of the newest checkpoint, or else a fresh one, with `init_weights` if given.

    Raises:
      InputError: the run cannot go on with the config's optimizer.
    """
    try:
        state = checkpoints.restore(
            program.state, {'num_averaged': functools.partial(_num_averaged, program, workdir)})
    except OtherOptimizer:
        resume_checks.refuse_other_optimizer(workdir, flat_fields(program.config))
        raise
    if state is not None:
        optimizers.check_mean(state.opt_state, *_mean_of(program))
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


def _mean_of(program: Program) -> tuple[int, int]:
    return mean_of(program.config.optimizer.average, program.phases, program.task.num_examples)


def _num_averaged(program: Program, workdir: files.Path, step: int) -> int:
    """How many steps' weights the mean averages, for an older checkpoint that does not hold it."""
    run = read_config(workdir)
    mean = mean_of(run['optimizer']['average'], run['phases'], program.task.num_examples)
    return optimizers.num_averaged_by(step, *mean)


def _open_outputs(
    program: Program, description: dict[str, Any], workdir: files.Path, checkpoints: Checkpoints,
    start: int, began: float,
) -> RunOutputs:
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
    report = MetricsLog(
        workdir, hosts.first(), start, phases=program.phase_ends,
        guessing=program.task.majority_baseline)
    loggers = logger_names(program.config.train.loggers)
    report.open_loggers(loggers, flat_fields(description))
    goodput = Goodput(workdir, hosts.first(), start, began, folder=report.folder)
    best = None
    if program.task.keeps_best:
        best = Best(workdir / BEST, program.task.metric)
        if best.step():
            best.restore(program.state.params)  # fails now rather than after the training
    return RunOutputs(checkpoints, best, report, goodput)


def _watchers(
    program: Program, description: dict[str, Any], workdir: files.Path, outputs: RunOutputs,
    start: int, guard: Guard | None,
    on_evaluation: Callable[[int, Mapping[str, float]], None] | None,
) -> Watchers:
    """Who watches a run that starts at a step; `guard` knows what the hosts report."""
    return Watchers(
        report=outputs.report,
        goodput=outputs.goodput,
        profile=Profile(traced_steps(program), workdir),
        slowest=SlowestHosts(None if guard is None else guard.reports, outputs.goodput),
        alarms=_alarms(program, start),
        reference=_comparison(program, description),
        verify=make_verify(
            program.head, program.mesh, seed=program.config.seed,
            accumulation_steps=program.config.train.accumulation_steps),
        verify_every=_steps_of(program, 'train.verify_every'),
        on_evaluation=on_evaluation)


def _announce(
    program: Program, state: TrainState, phases: Sequence[Phase], description: dict[str, Any],
    workdir: files.Path,
) -> None:
    """Writes `config.json`, checks that all hosts start from one step, and says what is trained."""
    # For reports only: a change of these does not make it another run.
    description['guessing'] = dict(program.task.majority_baseline)
    description['parameters'] = num_unpadded(program.head)
    description['step_flops'] = [
        phase.rows.flops_per_sequence * phase.batch_size for phase in phases]
    if hosts.first():
        describe_run(workdir, description, program.task.vocab_path, program.own_file)
    hosts.agree('the step to start from', {'step': int(state.step)})
    name = f'model {program.config.model.name}'.rstrip()  # none: it is that of init_checkpoint
    num_trained = num_unpadded(program.head, without=program.frozen)
    of_them = f', of which {num_trained:,} are trained' if program.frozen else ''
    say(f'{name}: {short_number(num_unpadded(program.head))} parameters{of_them}; '
        f"{counted(program.num_steps, 'step')}")


def _alarms(program: Program, start: int) -> Alarms | None:
    """The early warnings of a run that starts at a step, if its task has any."""
    if program.task.make_alarms is None:
        return None
    plateau = min(program.num_steps // 4, _MOST_STEPS_TO_PLATEAU)
    settled = max(plateau, _LEAST_STEPS_TO_PLATEAU, _steps_of(program, 'optimizer.warmup'))
    fresh = start == 0 and not program.config.init_checkpoint
    return program.task.make_alarms(program.head, program.phases, fresh=fresh, settled=settled)


def _comparison(program: Program, description: dict[str, Any]) -> Comparison | None:
    """The comparison with `train.reference`, if the run has one."""
    reference = reference_of(program.config.train.reference)
    if reference is None:
        return None
    return Comparison(reference, compared_fields(flat_fields(description)))


def _make_trainer(
    program: Program, state: TrainState, phases: Sequence[Phase], outputs: RunOutputs,
    watchers: Watchers, control: Control,
) -> Trainer:
    """The trainer of a run that starts from a state."""
    train = program.config.train
    chip = find_chip(jax.devices()[0].device_kind)
    return Trainer(
        state=state,
        inputs=step_inputs(program),
        phases=phases,
        intervals=Intervals(
            log=_steps_of(program, 'train.log_every'),
            evaluate=_steps_of(program, 'train.eval_every'),
            save=_steps_of(program, 'train.save_every'),
            save_seconds=60 * train.save_minutes),
        outputs=outputs,
        watchers=watchers,
        control=control,
        patience=train.patience,
        peak_flops=chip.peak_flops * jax.device_count())


def _finish(
    trainer: Trainer, scores: dict[str, float], program: Program, description: dict[str, Any],
    workdir: files.Path,
) -> dict[str, float]:
    """The result of a trained run, from the scores of its last evaluation."""
    best = trainer.outputs.best
    if best is None:
        return {'step': trainer.step, **_prefixed('eval', scores)}
    control = trainer.control
    with interruptible(lambda: control.should_stop(trainer.step), control.should_leave):
        return _finish_best(program, best, scores, description, workdir)


def _finish_best(
    program: Program, best: Best, last_metrics: dict[str, float], description: dict[str, Any],
    workdir: files.Path,
) -> dict[str, float]:
    """Writes the results of the best evaluation, and returns its step and metrics."""
    step, params = best.restore(program.state.params)
    recorded = best.metrics() or {}
    metrics = {name: value for name, value in recorded.items() if value is not None}
    if program.task.write_results is not None:
        description['inference'] |= program.task.write_results(
            program.head, program.mesh, params, metrics, workdir)
    if hosts.first():
        describe_run(workdir, description, program.task.vocab_path, program.own_file)
    return {'step': step, **_prefixed('last', last_metrics), **_prefixed('eval', metrics)}


def _prefixed(kind: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f'{kind}/{name}': value for name, value in metrics.items()}
