"""The training loop: what is due when, stopping, divergence, phases, resuming."""

import time
import types

import jax
import numpy as np
import pytest
from toy import Toy, batch, mesh, sgd_step

from bert_jax.runtime import files
from bert_jax.runtime.errors import Diverged, Stopped
from bert_jax.train.goodput import Goodput
from bert_jax.train.profile import Profile
from bert_jax.train.report import Report
from bert_jax.train.step import make_init
from bert_jax.train.task import Phase
from bert_jax.train.trainer import Intervals, Trainer

MESH = mesh()


class Records(Report):
    """A report without files that also stands in for Checkpoints; records the order of events."""

    def __init__(self):
        super().__init__(None, False, 0)
        self.events, self.saved, self.written = [], {}, {}

    def write(self, step, metrics):
        kind = 'eval' if any(name.startswith('eval/') for name in metrics) else 'log'
        self.events.append((kind, step))
        self.written[kind, step] = metrics
        self.records.append({'step': step, **metrics})

    def draw(self, **_):
        pass

    check = finish = draw

    def set_aside(self, step):
        self.events.append(('aside', step))
        return f'step {max([s for s in self.saved if s != step], default=None)} is kept'

    def save(self, step, state):
        self.events.append(('save', step))
        self.saved[step] = jax.device_get(state)

    def steps(self, kind):
        return [step for event, step in self.events if event == kind]


@pytest.fixture(scope='module')
def trainer():
    """(task, train step, the state to start from), made once."""
    optimizer, step = sgd_step(MESH)
    return Toy(), step, jax.device_get(make_init(Toy(), optimizer, MESH)(0))


def run_of(trainer, every=(0, 0, 0), steps=(10,), state=None, stop_at=None, bad=None, goodput=None,
           profile=None, score=None, records=None, **options):
    """Trains over phases of these numbers of steps; the batch of index `bad` has a NaN."""
    task, step, fresh = trainer
    run = types.SimpleNamespace(records=records or Records(), asked=[], evaluated=[], error=None)

    def phase(number, start, end):
        size = 8 * (number + 1)

        def batches(first):
            run.asked.append((number, first))
            for i in range(start + first, end):
                rows = batch(i, size)
                if i == bad:
                    rows['y'][0, 0] = np.nan
                yield jax.device_put(rows)

        def evaluate(params):
            run.evaluated.append(number)
            measured = float(np.square(params['dense']['kernel']).sum())
            return {'mse': measured if score is None else score}

        return Phase(start, end, size, batches, evaluate, 600.0, f'phase {number}')

    try:
        trainer = Trainer(
            head=task, train_step=step,
            state=jax.device_put(fresh if state is None else state),
            phases=[phase(i, sum(steps[:i]), sum(steps[: i + 1])) for i in range(len(steps))],
            intervals=Intervals(*every), checkpoints=run.records, report=run.records,
            goodput=goodput or Goodput('', False, 0, time.time()),
            profile=profile or Profile(None, ''),
            should_stop=lambda step: step == stop_at, **options)
        run.metrics = trainer.run()
        run.state = trainer.state
    except (Diverged, Stopped) as error:
        run.error = error
    return run


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


@pytest.mark.parametrize('every, steps, log, evaluate, save', [
    ((3, 4, 5), 10, [3, 6, 9, 10], [4, 8, 10], [5, 10]), ((100,) * 3, 10, [10], [10], [10]),
    ((0, 20, 0), 40, [40], [20, 40], [40]),
    ((0, 20, 0), 41, [41], [20, 41], [41]),  # none just before the last step
    ((0, 20, 0), 42, [42], [20, 40, 42], [42]),
])
def test_log_evaluation_and_checkpoint_are_at_their_steps_and_all_at_the_last(
    trainer, every, steps, log, evaluate, save
):
    records = run_of(trainer, every, (steps,)).records
    assert [records.steps(kind) for kind in ('log', 'eval', 'save')] == [log, evaluate, save]
    assert [kind for kind, step in records.events if step == steps] == ['log', 'save', 'eval']


def test_intervals_do_not_change_the_result_by_a_bit(trainer):
    runs = [run_of(trainer, every) for every in ((0, 0, 0), (1, 1, 1), (3, 2, 7))]
    for run in runs[1:]:
        same(run.state, runs[0].state)
        assert run.metrics == runs[0].metrics
    assert runs[0].state.step == 10


def test_a_run_saves_as_time_passes_and_goes_on_from_there_with_the_same_bits(trainer):
    whole = run_of(trainer)
    killed = run_of(trainer, (3, 0, 0), save_seconds=1e-9, bad=7)  # every step takes longer
    assert killed.records.steps('save') == [1, 2, 3, 4, 5, 6, 7]
    assert run_of(trainer, save_seconds=3600.0).records.steps('save') == [10]
    resumed = run_of(trainer, state=killed.records.saved[5])
    same(resumed.state, whole.state)
    assert resumed.metrics == whole.metrics


def test_a_log_line_has_the_means_and_the_speed_since_the_last_one(trainer):
    each = run_of(trainer, (1, 0, 0), peak_flops=1e9).records.written
    some = run_of(trainer, (4, 0, 0)).records.written
    losses = [each['log', step]['train/loss'] for step in range(1, 11)]
    assert len(set(losses)) == 10
    for step, window in ((4, losses[:4]), (8, losses[4:8]), (10, losses[8:])):
        record = some['log', step]
        assert record['train/loss'] == pytest.approx(np.mean(window), rel=1e-6)
        assert record['train/learning_rate'] == each['log', step]['train/learning_rate']
    # Scores come from sums over the steps, not from means of means.
    weights = [batch(step)['weights'].sum() for step in range(4)]
    assert some['log', 4]['train/mse'] == pytest.approx(
        np.dot(losses[:4], weights) / sum(weights), rel=1e-5)
    assert 'train/sequences_per_second' not in each['log', 1]  # it compiled
    assert 'train/mfu' not in some['log', 10]
    for record in (each['log', step] for step in range(2, 11)):
        speed = record['train/sequences_per_second']
        assert record['train/tokens_per_second'] == pytest.approx(3 * speed)
        assert record['train/mfu'] == pytest.approx(speed * 600 / 1e9)
        assert record['train/step_seconds'] == pytest.approx(8 / speed)
        assert 0 <= record['train/data_wait'] <= 1


@pytest.mark.parametrize('bad, every, steps, saved, logged', [
    (5, (0, 1, 2), (10,), [2, 4], []), (5, (1, 0, 1), (10,), [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]),
    (4, (0, 0, 4), (10,), [4], []), (0, (0, 0, 0), (10,), [], []), (6, (1, 0, 0), (4, 6), [], None),
])
def test_divergence_is_of_the_first_bad_step_and_nothing_is_saved_after_it(
    trainer, bad, every, steps, saved, logged
):
    """A checkpoint is no good either if the step after it diverges. Steps count updates done."""
    run = run_of(trainer, every, steps, bad=bad)
    assert isinstance(run.error, Diverged)
    assert str(run.error).startswith(f'step {bad + 1}: loss nan')
    assert ('No step was done before' in str(run.error)) == (bad == 0)
    assert run.records.steps('save') == saved
    assert logged is None or run.records.steps('log') == logged
    for state in run.records.saved.values():
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
    assert run.records.events[-1] == ('aside', bad)
    assert str(run.error).endswith(f'step {max(set(saved) - {bad}, default=None)} is kept')


@pytest.mark.parametrize('score, every, step, events', [
    (np.nan, (0, 4, 2), 4, [('save', 2), ('aside', 4)]),
    # The last evaluation comes after the last save.
    (np.inf, (0, 0, 0), 10, [('log', 10), ('save', 10), ('aside', 10)]),
])
def test_an_evaluation_that_is_not_finite_is_divergence(trainer, score, every, step, events):
    run = run_of(trainer, every, score=score)
    assert str(run.error).startswith(f'step {step}: the evaluation gives mse {score}')
    assert run.records.events == events


def test_stopping_saves_and_a_second_run_goes_on_to_the_same_end(trainer):
    whole = run_of(trainer, steps=(6, 4))
    for at in (1, 4, 6, 9):  # at the end of the first phase too
        first = run_of(trainer, (0, 0, at), steps=(6, 4), stop_at=at)  # where a save is due anyway
        assert isinstance(first.error, Stopped) and str(at) in str(first.error)
        assert first.records.steps('save') == first.records.steps('log')[-1:] == [at]
        second = run_of(trainer, steps=(6, 4), state=first.records.saved[at])
        same(second.state, whole.state)
        assert second.metrics == whole.metrics
        assert second.records.steps('log')[0] > at


def test_a_run_ends_when_evaluations_do_not_get_better(trainer):
    best = types.SimpleNamespace(offer=lambda *offered: None, step=lambda: 2)  # the first is best
    run = run_of(trainer, (0, 2, 0), best=best, patience=2)
    assert run.records.steps('eval') == [2, 4, 6] and run.state.step == 6
    assert run.records.steps('save') == [6]
    again = run_of(trainer, (0, 2, 0), best=best, patience=2, records=run.records, state=run.state)
    assert again.asked == [] and again.state.step == 6  # it does not train on


@pytest.mark.parametrize('at, asked, logged, evaluated', [
    (0, [(0, 0), (1, 0)], [4, 6, 8, 10], [0, 1]),  # a log line at the end of a phase as well
    (2, [(0, 2), (1, 0)], [4, 6, 8, 10], [0, 1]), (6, [(1, 0)], [8, 10], [1]),
    (8, [(1, 2)], [10], [1]), (10, [], [], [1]),  # also where nothing is left to train
])
def test_phases_have_their_own_batches_and_a_resumed_run_those_from_its_place_on(
    trainer, at, asked, logged, evaluated
):
    run = run_of(trainer, (4, 5, 0), (6, 4), trainer[-1].replace(step=np.int32(at)))
    assert (run.asked, run.evaluated) == (asked, evaluated)
    assert run.records.steps('log') == logged and run.state.step == 10 and 'mse' in run.metrics


def test_the_time_of_a_run_is_split_by_cause(trainer, tmp_path):
    """The clock ticks when it is read, so each part of the loop takes time; seconds count once."""
    ticks = iter(range(1, 100_000))
    goodput = Goodput(tmp_path, True, 0, 0.0, clock=lambda: float(next(ticks)))
    run = run_of(trainer, (2, 4, 5), steps=(6, 4), goodput=goodput)
    seconds = goodput.now()
    assert [cause for cause, spent in seconds.items() if not spent] == ['lost']
    assert sum(seconds.values()) == next(ticks) - 1
    records = [run.records.written['log', step] for step in run.records.steps('log')]
    for record in records:
        total = sum(value for name, value in record.items() if name.startswith('time/'))
        assert record['train/goodput'] == pytest.approx(record['time/step'] / total)
    assert [r['time/save'] > 0 for r in records] == [False, False, True, True, True]


@pytest.mark.parametrize(('folder', 'at', 'stop_at', 'traced'), [
    ('{disk}', 0, None, True), ('{disk}', 3, None, True), ('{disk}', 6, None, False),
    ('{disk}', 0, 3, True), ('{bucket}/run', 0, None, True)])
def test_profile_writes_a_trace(trainer, tmp_path, bucket, folder, at, stop_at, traced):
    fresh, workdir = trainer[-1], files.as_path(folder.format(disk=tmp_path, bucket=bucket))
    profile = Profile((2, 4), workdir)
    run_of(trainer, (0, 0, 0), (8,), fresh.replace(step=np.int32(at)), stop_at, profile=profile)
    profile.close()  # ends the trace of a run that was stopped
    traces = list(workdir.glob('plugins/profile/*/*.xplane.pb'))
    assert len(traces) == traced
    # The steps are in it by number.
    assert not traced or b'step_num' in traces[0].read_bytes()
