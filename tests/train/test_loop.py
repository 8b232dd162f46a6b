"""The training loop: what is due when, stopping, divergence, phases, resuming."""

import dataclasses
import sys
import time
import types
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.runtime import files
from bert_jax.runtime.errors import Diverged, InputError, Stopped
from bert_jax.runtime.pauses import interruptible, pause
from bert_jax.step.step import StepInputs, evaluate, make_init
from bert_jax.train.outputs import RunOutputs
from bert_jax.train.phase import Phase, PhaseSteps
from bert_jax.train.trainer import Control, Intervals, Trainer
from bert_jax.train.watchers import Watchers
from bert_jax.watch.alarms import Alarm
from bert_jax.watch.goodput import Goodput
from bert_jax.watch.metrics_log import MetricsLog
from bert_jax.watch.profile import Profile
from bert_jax.watch.slowest import SlowestHosts
from tests.train.toy import Toy, batch, mesh, sgd_step

MESH = mesh()
FLOPS_PER_SEQUENCE = 600.0
ONLY_AT_THE_END = Intervals()
EVALUATION_BATCHES = 2


class EventLog(MetricsLog):
    """A report without files that notes when it is written to."""

    def __init__(self, events):
        super().__init__(None, False, 0)
        self.events = events
        self.written = {}

    def write(self, step, metrics):
        kinds = {'eval': 'eval', 'train': 'log', 'check': 'check', 'gate': 'warning'}
        kind = kinds[next(iter(metrics)).partition('/')[0]]
        if kind in ('eval', 'log'):
            self.events.append((kind, step))
        self.written[kind, step] = metrics
        self.records.append({'step': step, **metrics})

    def draw(self, least_age=0.0):
        pass


class EventCheckpoints:
    """Checkpoints in memory that note when they are saved."""

    def __init__(self, events):
        self.events = events
        self.saved = {}

    def save(self, step, state):
        self.events.append(('save', step))
        self.saved[step] = jax.device_get(state)

    def set_aside(self, step):
        self.events.append(('aside', step))
        good = [saved for saved in self.saved if saved != step]
        return f'step {max(good, default=None)} is kept'

    def check(self):
        pass

    finish = check


@dataclasses.dataclass
class Run:
    """What a run of the loop did: see `run_of`."""

    events: list[tuple[str, int]]  # (kind, step), in order
    report: EventLog
    checkpoints: EventCheckpoints
    asked: list[tuple[int, int]]  # (phase, first step) of the batches that were asked for
    evaluated: list[int]  # phases whose rows were evaluated
    error: Exception | None = None
    state: Any = None
    metrics: Any = None

    def steps(self, kind):
        return [step for event, step in self.events if event == kind]


@pytest.fixture(scope='module')
def toy():
    """The toy task with its train step and the state to start from, made once."""
    optimizer, step = sgd_step(MESH)
    fresh = jax.device_get(make_init(Toy(), optimizer, MESH)(0))
    steps = PhaseSteps(Toy(), lambda state, inputs, batch: step(state, batch), None)
    return types.SimpleNamespace(head=Toy(), steps=steps, fresh=fresh)


@dataclasses.dataclass
class ToyRows:
    """The rows of a phase, which note for the run that they are asked for.

    Attributes:
      run: receives the notes.
      number: of the phase.
      start, num_steps: of the phase in the run.
      size: of its batches.
      bad_batch: index of a batch that has a NaN, or None.
      score: of every evaluation; None: measured.
    """

    run: Run
    number: int
    start: int
    num_steps: int
    size: int
    bad_batch: int | None
    score: float | None
    flops_per_sequence = FLOPS_PER_SEQUENCE

    @property
    def name(self):
        return f'phase {self.number}'

    def batches(self, first_step):
        self.run.asked.append((self.number, first_step))
        for step in range(first_step, self.num_steps):
            rows = batch(self.start + step, self.size)
            if self.start + step == self.bad_batch:
                rows['y'][0, 0] = np.nan
            yield jax.device_put(rows)

    def scores(self, steps, params):
        for _ in range(EVALUATION_BATCHES):
            pause()
        self.run.evaluated.append(self.number)
        measured = float(np.square(params['dense']['kernel']).sum())
        return {'mse': measured if self.score is None else self.score}


def run_of(
    toy, intervals=ONLY_AT_THE_END, phases=(10,), *, state=None, stop_at=None,
    bad_batch=None, score=None, goodput=None, profile=None, events=None, report=None,
    should_stop=None, should_leave=lambda is_over: False, check_lock=lambda: None, best=None,
    verify=None, verify_every=0, reference=None, **options,
):
    """Trains over phases of these numbers of steps.

    Args:
      toy: the fixture.
      intervals: of the loop.
      phases: numbers of steps.
      state: to start from; default: a fresh one.
      stop_at: the step at which a stop is asked for.
      bad_batch: index of a batch that has a NaN.
      score: of every evaluation; default: measured.
      goodput, profile, report: default: without files.
      events: list that receives (kind, step).
      should_stop, should_leave, check_lock: of its control; default: a stop at `stop_at`.
      best: keeps the best parameters.
      verify, verify_every, reference: of the watchers.
      options: of the trainer.
    """
    events = [] if events is None else events
    report = report or EventLog(events)
    goodput = goodput or Goodput('', False, 0, time.time())
    run = Run(events, report, EventCheckpoints(events), asked=[], evaluated=[])

    def phase(number):
        start = sum(phases[:number])
        size = 8 * (number + 1)
        rows = ToyRows(run, number, start, phases[number], size, bad_batch, score)
        return Phase(start, start + phases[number], size, rows, toy.steps)

    trainer = Trainer(
        state=jax.device_put(toy.fresh if state is None else state),
        inputs=StepInputs(0, None),
        phases=[phase(number) for number in range(len(phases))],
        intervals=intervals,
        outputs=RunOutputs(run.checkpoints, best, report, goodput),
        watchers=Watchers(
            report, goodput, profile or Profile(None, ''), SlowestHosts(None, goodput),
            reference=reference, verify=verify, verify_every=verify_every),
        control=Control(
            should_stop or (lambda step: step == stop_at), should_leave, check_lock),
        **options)
    try:
        run.metrics = trainer.run()
        run.state = trainer.state
    except (Diverged, Stopped) as error:
        run.error = error
    return run


def at_step(toy, step):
    return toy.fresh.replace(step=np.int32(step))


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


@dataclasses.dataclass
class DueCase:
    """Intervals of a run, and the steps at which it then logs, evaluates and saves."""

    intervals: Intervals
    steps: int
    log: list[int]
    evaluate: list[int]
    save: list[int]


RARE = Intervals(evaluate=20)


@pytest.mark.parametrize('case', [
    DueCase(Intervals(3, 4, 5), 10, log=[3, 6, 9, 10], evaluate=[4, 8, 10], save=[5, 10]),
    DueCase(Intervals(100, 100, 100), 10, log=[10], evaluate=[10], save=[10]),
    DueCase(RARE, 40, log=[40], evaluate=[20, 40], save=[40]),
    # None just before the last step.
    DueCase(RARE, 41, log=[41], evaluate=[20, 41], save=[41]),
    DueCase(RARE, 42, log=[42], evaluate=[20, 40, 42], save=[42]),
])
def test_log_evaluation_and_checkpoint_are_at_their_steps_and_all_at_the_last(toy, case):
    run = run_of(toy, case.intervals, (case.steps,))
    assert run.steps('log') == case.log
    assert run.steps('eval') == case.evaluate
    assert run.steps('save') == case.save
    assert [kind for kind, step in run.events if step == case.steps] == ['log', 'save', 'eval']


def test_intervals_do_not_change_the_result_by_a_bit(toy):
    first = run_of(toy)
    for intervals in (Intervals(1, 1, 1), Intervals(3, 2, 7)):
        run = run_of(toy, intervals)
        assert_same(run.state, first.state)
        assert run.metrics == first.metrics
    assert first.state.step == 10


def test_a_run_saves_as_time_passes_and_goes_on_from_there_with_the_same_bits(toy):
    whole = run_of(toy)
    every_step_is_late = run_of(toy, Intervals(log=3, save_seconds=1e-9), bad_batch=7)
    assert every_step_is_late.steps('save') == [1, 2, 3, 4, 5, 6, 7]
    assert run_of(toy, Intervals(save_seconds=3600.0)).steps('save') == [10]
    resumed = run_of(toy, state=every_step_is_late.checkpoints.saved[5])
    assert_same(resumed.state, whole.state)
    assert resumed.metrics == whole.metrics


def test_a_log_line_has_the_means_since_the_last_one(toy):
    each = run_of(toy, Intervals(log=1)).report.written
    some = run_of(toy, Intervals(log=4)).report.written
    losses = [each['log', step]['train/loss'] for step in range(1, 11)]
    assert len(set(losses)) == 10
    for step, window in ((4, losses[:4]), (8, losses[4:8]), (10, losses[8:])):
        record = some['log', step]
        assert record['train/loss'] == pytest.approx(np.mean(window), rel=1e-6)
        assert record['train/learning_rate'] == each['log', step]['train/learning_rate']


def checks(run):
    """The records of checked steps, by step."""
    return {step: metrics for (kind, step), metrics in run.report.written.items()
            if kind == 'check'}


def test_checked_steps_are_recorded_whatever_is_logged_and_where_a_run_resumes(toy):
    each = run_of(toy, Intervals(log=1), (20,))
    records = checks(each)
    assert list(records) == [*range(1, 11), 20]
    assert len({record['check/batch'] for record in records.values()}) == 11
    losses = [each.report.written['log', step]['train/loss'] for step in range(1, 21)]
    assert records[20]['check/loss'] == pytest.approx(np.mean(losses[10:]), rel=1e-6)
    rarely = run_of(toy, Intervals(log=7, save=10), (10, 10))
    assert list(checks(rarely)) == [*range(1, 11), 20]
    assert checks(run_of(toy, Intervals(log=7, save=10), (20,))) == records
    half = run_of(toy, Intervals(save=10), (20,), stop_at=10)
    resumed = run_of(toy, Intervals(log=7), (20,), state=half.checkpoints.saved[10])
    assert checks(half) | checks(resumed) == records


def test_a_run_that_leaves_its_reference_is_warned(toy):
    alarms = types.SimpleNamespace(
        alarms=lambda step, record: [Alarm('reference', step, record['check/loss'], 'it leaves')
                                     for _ in range(step == 4)])
    run = run_of(toy, Intervals(log=5), reference=alarms)
    assert [key for key in run.report.written if key[0] == 'warning'] == [('warning', 4)]
    assert run.report.written['warning', 4] == {
        'gate/reference': run.report.written['check', 4]['check/loss']}


def test_scores_of_a_log_line_come_from_sums_not_from_means_of_means(toy):
    each = run_of(toy, Intervals(log=1)).report.written
    some = run_of(toy, Intervals(log=4)).report.written
    losses = [each['log', step]['train/loss'] for step in range(1, 5)]
    weights = [batch(step)['weights'].sum() for step in range(4)]
    expected = np.dot(losses, weights) / sum(weights)
    assert some['log', 4]['train/mse'] == pytest.approx(expected, rel=1e-5)


def test_a_log_line_has_the_speed_since_the_last_one(toy):
    written = run_of(toy, Intervals(log=1), peak_flops=1e9).report.written
    assert 'train/sequences_per_second' not in written['log', 1]  # it compiled
    for step in range(2, 11):
        record = written['log', step]
        speed = record['train/sequences_per_second']
        assert record['train/tokens_per_second'] == pytest.approx(3 * speed)
        assert record['train/mfu'] == pytest.approx(speed * FLOPS_PER_SEQUENCE / 1e9)
        assert record['train/step_seconds'] == pytest.approx(8 / speed)
        assert 0 <= record['train/data_wait'] <= 1
    without_peak = run_of(toy, Intervals(log=4)).report.written
    assert 'train/mfu' not in without_peak['log', 10]


@dataclasses.dataclass
class DivergenceCase:
    """A run whose batch `bad_batch` has a NaN, and what is saved and logged of it."""

    bad_batch: int
    intervals: Intervals
    phases: tuple[int, ...] = (10,)
    saved: list[int] = dataclasses.field(default_factory=list)
    logged: list[int] | None = None  # None: not looked at


@pytest.mark.parametrize('case', [
    DivergenceCase(5, Intervals(evaluate=1, save=2), saved=[2, 4], logged=[]),
    DivergenceCase(5, Intervals(log=1, save=1), saved=[1, 2, 3, 4, 5], logged=[1, 2, 3, 4, 5]),
    DivergenceCase(4, Intervals(save=4), saved=[4], logged=[]),
    DivergenceCase(0, Intervals(), saved=[], logged=[]),
    DivergenceCase(6, Intervals(log=1), phases=(4, 6), saved=[]),
])
def test_divergence_is_of_the_first_bad_step_and_nothing_is_saved_after_it(toy, case):
    """A checkpoint is no good either if the step after it diverges. Steps count updates done."""
    run = run_of(toy, case.intervals, case.phases, bad_batch=case.bad_batch)
    assert isinstance(run.error, Diverged)
    message = str(run.error)
    assert message.startswith(f'step {case.bad_batch + 1}: loss nan')
    assert ('No step was done before' in message) == (case.bad_batch == 0)
    assert run.steps('save') == case.saved
    if case.logged is not None:
        assert run.steps('log') == case.logged
    for state in run.checkpoints.saved.values():
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
    assert run.events[-1] == ('aside', case.bad_batch)
    good = set(case.saved) - {case.bad_batch}
    assert message.endswith(f'step {max(good, default=None)} is kept')


def test_an_evaluation_that_is_not_finite_is_divergence(toy):
    run = run_of(toy, Intervals(evaluate=4, save=2), score=np.nan)
    assert str(run.error).startswith('step 4: the evaluation gives mse nan')
    assert run.events == [('save', 2), ('aside', 4)]


def test_the_last_evaluation_comes_after_the_last_save(toy):
    run = run_of(toy, score=np.inf)
    assert str(run.error).startswith('step 10: the evaluation gives mse inf')
    assert run.events == [('log', 10), ('save', 10), ('aside', 10)]


@pytest.mark.parametrize('at', [1, 4, 6, 9])  # 6: the end of the first phase
def test_stopping_saves_and_a_second_run_goes_on_to_the_same_end(toy, at):
    whole = run_of(toy, phases=(6, 4))
    save_is_due_anyway = Intervals(save=at)
    first = run_of(toy, save_is_due_anyway, phases=(6, 4), stop_at=at)
    assert isinstance(first.error, Stopped)
    assert str(at) in str(first.error)
    assert first.steps('save') == [at]
    assert first.steps('log')[-1:] == [at]
    second = run_of(toy, phases=(6, 4), state=first.checkpoints.saved[at])
    assert_same(second.state, whole.state)
    assert second.metrics == whole.metrics
    assert second.steps('log')[0] > at


class Polls:
    """Asks a run to stop at its poll of a number; then it notes what happens until the run ends."""

    def __init__(self, events, stop_at=None):
        self.events = events
        self.stop_at = stop_at
        self.number = 0
        self.afterwards = None

    def __call__(self, step):
        assert self.afterwards is None, 'it asks again'
        self.number += 1
        if self.number != self.stop_at:
            return False
        self.afterwards = len(self.events)
        return True


def polled_run(toy, stop_at=None, **options):
    """A run of phases of 1 and 2 steps with evaluations, saves and checks; and its polls."""
    events = []
    polls = Polls(events, stop_at)

    def verify(state, batch):
        pause()
        events.append(('verify', int(state.step) + 1))
        pause()

    due = Intervals(log=1, evaluate=2, save=1)
    return run_of(
        toy, due, (1, 2), events=events, should_stop=polls, verify=verify,
        verify_every=3, **options), polls


def measured(records):
    """What records say, but for times, in their order."""
    timed = ('time/', 'train/step_seconds', 'train/data_wait', 'train/goodput', 'per_second', 'mfu')
    return [{name: value for name, value in record.items()
             if not any(part in name for part in timed)} for record in records]


def test_a_run_that_is_stopped_at_any_poll_saves_at_once_and_ends_with_the_same_records(toy):
    """Polls are after steps, and between the batches of evaluations and of checks of devices."""
    whole, polls = polled_run(toy)
    num_polls = 3 + 2 * (EVALUATION_BATCHES + 1) + 2
    assert polls.number == num_polls
    for stop_at in range(1, num_polls + 1):
        first, polls = polled_run(toy, stop_at)
        assert isinstance(first.error, Stopped)
        done = first.events[polls.afterwards:]
        assert [kind for kind, _ in done if kind != 'log'] == ['save']
        assert len({step for _, step in done}) == 1
        step = first.steps('save')[-1]
        report = EventLog([])
        report.records = [*first.report.records]
        second, _ = polled_run(toy, state=first.checkpoints.saved[step], report=report)
        assert_same(second.state, whole.state)
        assert second.metrics == whole.metrics
        assert measured(report.records) == measured(whole.report.records), f'poll {stop_at}'


def test_a_run_that_was_taken_over_writes_nothing(toy):
    def ask():
        raise InputError('taken')

    with pytest.raises(InputError, match='taken'):
        run_of(toy, Intervals(save=2), check_lock=ask)
    offered = []
    best = types.SimpleNamespace(offer=lambda *kept: offered.append(kept), step=lambda: 0)
    events = []
    with pytest.raises(InputError, match='taken'):
        run_of(toy, Intervals(evaluate=2), check_lock=ask, best=best, events=events)
    assert not offered and ('save', 2) not in events


def test_an_evaluation_ends_between_the_batches_where_it_is_interrupted(toy):
    batches = [jax.device_put(batch(number)) for number in range(8)]
    computed = []

    def eval_step(params, rows):
        computed.append(rows)
        return {'squares': rows['y'].sum(), 'rows': rows['weights'].sum()}

    with pytest.raises(Stopped), interruptible(lambda: len(computed) == 2):
        evaluate(toy.head, eval_step, {}, batches)
    assert len(computed) == 2
    assert evaluate(toy.head, eval_step, {}, batches)  # elsewhere nothing asks


def test_a_run_ends_when_evaluations_do_not_get_better(toy):
    first_is_best = types.SimpleNamespace(offer=lambda *offered: None, step=lambda: 2)
    patient = {'best': first_is_best, 'patience': 2}
    run = run_of(toy, Intervals(evaluate=2), **patient)
    assert run.steps('eval') == [2, 4, 6]
    assert run.steps('save') == [6]
    assert run.state.step == 6
    again = run_of(
        toy, Intervals(evaluate=2), report=run.report, events=run.events, state=run.state,
        **patient)
    assert again.asked == []  # it does not train on
    assert again.state.step == 6


@dataclasses.dataclass
class ResumeCase:
    """A run of phases of 6 and 4 steps that resumes at a step, and what it then does."""

    at: int
    asked: list[tuple[int, int]]
    logged: list[int]  # at the end of a phase as well
    evaluated: list[int]


@pytest.mark.parametrize('case', [
    ResumeCase(0, asked=[(0, 0), (1, 0)], logged=[4, 6, 8, 10], evaluated=[0, 1]),
    ResumeCase(2, asked=[(0, 2), (1, 0)], logged=[4, 6, 8, 10], evaluated=[0, 1]),
    ResumeCase(6, asked=[(1, 0)], logged=[8, 10], evaluated=[1]),
    ResumeCase(8, asked=[(1, 2)], logged=[10], evaluated=[1]),
    ResumeCase(10, asked=[], logged=[], evaluated=[1]),  # nothing is left to train
])
def test_phases_have_their_own_batches_and_a_resumed_run_those_from_its_place_on(toy, case):
    run = run_of(toy, Intervals(log=4, evaluate=5), (6, 4), state=at_step(toy, case.at))
    assert run.asked == case.asked
    assert run.evaluated == case.evaluated
    assert run.steps('log') == case.logged
    assert run.state.step == 10
    assert 'mse' in run.metrics


def test_the_time_of_a_run_is_split_by_cause(toy, tmp_path):
    """The clock ticks when it is read, so each part of the loop takes time; seconds count once."""
    ticks = iter(range(1, 100_000))
    goodput = Goodput(tmp_path, True, 0, 0.0, clock=lambda: float(next(ticks)))
    run = run_of(toy, Intervals(2, 4, 5), phases=(6, 4), goodput=goodput)
    seconds = goodput.now()
    assert [cause for cause, spent in seconds.items() if not spent] == ['lost']
    assert sum(seconds.values()) == next(ticks) - 1
    records = [run.report.written['log', step] for step in run.steps('log')]
    for record in records:
        total = sum(value for name, value in record.items() if name.startswith('time/'))
        assert record['train/goodput'] == pytest.approx(record['time/step'] / total)
    assert [record['time/save'] > 0 for record in records] == [False, False, True, True, True]
    assert len({record['time/start'] for record in records}) == 1  # a later phase does not start


@dataclasses.dataclass
class TraceCase:
    """A run of 8 steps, of which 2 to 4 are to be traced, and whether a trace is written."""

    traced: bool
    start: int = 0
    stop_at: int | None = None
    in_bucket: bool = False


@pytest.mark.parametrize('case', [
    TraceCase(traced=True),
    TraceCase(traced=True, start=3),
    TraceCase(traced=False, start=6),
    TraceCase(traced=True, stop_at=3),
    TraceCase(traced=True, in_bucket=True),
])
def test_profile_writes_a_trace(toy, tmp_path, bucket, case):
    workdir = files.as_path(f'{bucket}/run' if case.in_bucket else str(tmp_path))
    profile = Profile((2, 4), workdir)
    run_of(toy, phases=(8,), state=at_step(toy, case.start), stop_at=case.stop_at,
           profile=profile)
    profile.close()  # ends the trace of a run that was stopped
    traces = list(workdir.glob('plugins/profile/*/*.xplane.pb'))
    assert len(traces) == case.traced
    if case.traced:
        assert b'step_num' in traces[0].read_bytes()  # the steps are in it by number


def test_a_trace_leaves_tensorflow_s_function_where_it_is(tmp_path, monkeypatch):
    """jax 0.7 sets it as the flag that it was in TensorFlow 2.20."""
    def enabled():
        return False

    of_tensorflow = types.SimpleNamespace(enabled=enabled)
    monkeypatch.setitem(sys.modules, 'tensorflow.python.profiler.trace', of_tensorflow)
    for name, value in (('start_trace', True), ('stop_trace', False)):
        monkeypatch.setattr(
            jax.profiler, name, lambda *_, value=value: setattr(of_tensorflow, 'enabled', value))
    profile = Profile((0, 1), files.as_path(str(tmp_path)))
    profile.before(0, ())
    assert of_tensorflow.enabled is enabled
    profile.close()
    assert of_tensorflow.enabled is enabled


@pytest.mark.parametrize(('of_states', 'of_best', 'told'), [
    ('a', 'b', 'a'), ('a', None, 'a'), (None, 'b', 'b'), (None, None, None)])
def test_a_save_that_failed_is_told_whichever_it_was(of_states, of_best, told):
    def saves(fault):
        return types.SimpleNamespace(fault=lambda: fault)

    assert RunOutputs(saves(of_states), saves(of_best), None, None).fault() == told
    assert RunOutputs(saves(of_states), None, None, None).fault() == of_states
