"""The training loop: what is due when, stopping, divergence, phases, resuming."""

import time

import jax
import numpy as np
import pytest
from toy import Toy, batch, mesh, sgd_step

from bert_jax.runtime.errors import Diverged, Stopped
from bert_jax.train.loop import Cadence, Phase, train
from bert_jax.train.report import Goodput, Profile
from bert_jax.train.step import init_state

MESH = mesh()


class Records:
    """Stands in for Report and Checkpoints; notes the order of what happens."""

    def __init__(self):
        self.events, self.saved, self.written, self.said = [], {}, {}, []

    def write(self, step, metrics):
        kind = 'eval' if any(name.startswith('eval/') for name in metrics) else 'log'
        self.events.append((kind, step))
        self.written[kind, step] = metrics

    def say(self, line):
        self.said.append(line)

    def draw(self):
        pass

    flush = check = draw

    def has_evaluation(self, step):
        return ('eval', step) in self.written

    def evaluations_since(self, step):
        return sum(evaluated > step for evaluated in self.steps('eval'))

    def set_aside(self, step):
        self.events.append(('aside', step))
        return f'step {max([s for s in self.saved if s != step], default=None)} is kept'

    def finish(self):
        self.events.append(('finish', None))

    def save(self, step, state):
        self.events.append(('save', step))
        self.saved[step] = jax.device_get(state)

    def steps(self, kind):
        return [step for event, step in self.events if event == kind]


@pytest.fixture(scope='module')
def trainer():
    """(task, train step, the state to start from), made once."""
    optimizer, step = sgd_step(Toy(), MESH)
    return Toy(), step, jax.device_get(init_state(Toy(), optimizer, MESH, 0))


class Run:
    """One call of `train` over phases of so many steps; `bad` is a batch with NaN."""

    def __init__(self, trainer, cadence=(0, 0, 0), steps=(10,), state=None, stop_at=None,
                 bad=None, peak_flops=None, goodput=None, profile=None, score=None, best=None,
                 records=None):
        task, step, fresh = trainer
        self.score = score
        self.records, self.asked, self.evaluated = records or Records(), [], []
        phases = [self.phase(i, sum(steps[:i]), count, bad) for i, count in enumerate(steps)]
        self.error = None
        try:
            self.state, self.metrics = train(
                task, step, jax.device_put(fresh if state is None else state), phases,
                Cadence(*cadence), self.records, self.records,
                goodput or Goodput('', False, 0, time.time()),
                profile or Profile(None, '', False), best, peak_flops=peak_flops,
                should_stop=lambda step: step == stop_at,
            )
        except (Diverged, Stopped) as error:
            self.error = error

    def phase(self, number, start, steps, bad):
        size = 8 * (number + 1)

        def batches(first):
            self.asked.append((number, first))
            for i in range(start + first, start + steps):
                rows = batch(i, size)
                if i == bad:
                    rows['y'][0, 0] = np.nan
                yield jax.device_put(rows)

        def evaluate(params):
            self.evaluated.append(number)
            measured = float(np.square(params['dense']['kernel']).sum())
            return {'mse': measured if self.score is None else self.score}

        return Phase(start, steps, size, batches, evaluate, 600.0, f'phase {number}')


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


@pytest.mark.parametrize('cadence, steps, log, evaluate, save', [
    ((3, 4, 5), 10, [3, 6, 9, 10], [4, 8, 10], [5, 10]),
    ((1, 5, 2), 10, list(range(1, 11)), [5, 10], [2, 4, 6, 8, 10]),
    ((100, 100, 100), 10, [10], [10], [10]),
    ((0, 0, 0), 10, [10], [10], [10]),
    ((0, 20, 0), 40, [40], [20, 40], [40]),
    ((0, 20, 0), 41, [41], [20, 41], [41]),  # no evaluation just before the last
    ((0, 20, 0), 42, [42], [20, 40, 42], [42]),
])
def test_log_evaluation_and_checkpoint_are_at_their_steps_and_all_at_the_last(
    trainer, cadence, steps, log, evaluate, save
):
    records = Run(trainer, cadence, (steps,)).records
    assert [records.steps(kind) for kind in ('log', 'eval', 'save')] == [log, evaluate, save]
    assert [kind for kind, step in records.events if step == steps] == ['log', 'save', 'eval']


def test_cadence_does_not_change_the_result_by_a_bit(trainer):
    runs = [Run(trainer, cadence) for cadence in ((0, 0, 0), (1, 1, 1), (3, 2, 7))]
    for run in runs[1:]:
        same(run.state, runs[0].state)
        assert run.metrics == runs[0].metrics
    assert runs[0].state.step == 10


def test_a_log_line_has_the_means_since_the_last_one(trainer):
    each = Run(trainer, (1, 0, 0)).records.written
    some = Run(trainer, (4, 0, 0)).records.written
    losses = [each['log', step]['train/loss'] for step in range(1, 11)]
    assert len(set(losses)) == 10
    for step, window in ((4, losses[:4]), (8, losses[4:8]), (10, losses[8:])):
        record = some['log', step]
        assert record['train/loss'] == pytest.approx(np.mean(window), rel=1e-6)
        assert record['train/learning_rate'] == each['log', step]['train/learning_rate']
    # Scores come from sums over the window, not from means of means.
    squares = rows = 0.0
    for step in range(4):
        weight = batch(step)['weights'].sum()
        squares, rows = squares + losses[step] * weight, rows + weight
    assert some['log', 4]['train/mse'] == pytest.approx(squares / rows, rel=1e-5)


def test_speed_is_counted_from_the_second_step_on(trainer):
    written = Run(trainer, (1, 0, 0), peak_flops=1e9).records.written
    assert 'train/sequences_per_second' not in written['log', 1]  # it compiled
    for step in range(2, 11):
        record = written['log', step]
        speed = record['train/sequences_per_second']
        assert record['train/tokens_per_second'] == pytest.approx(3 * speed)
        assert record['train/mfu'] == pytest.approx(speed * 600 / 1e9)
        assert 0 <= record['train/data_wait'] <= 1
    assert 'train/mfu' not in Run(trainer, (5, 0, 0)).records.written['log', 10]


@pytest.mark.parametrize('cadence, saved, logged', [
    ((0, 0, 2), [2, 4], []), ((0, 1, 2), [2, 4], []), ((1, 0, 1), [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]),
    ((0, 0, 0), [], []),
])
def test_divergence_saves_and_records_nothing_after_it(trainer, cadence, saved, logged):
    run = Run(trainer, cadence, bad=5)  # in the sixth step
    assert isinstance(run.error, Diverged)
    assert run.records.steps('save') == saved and run.records.steps('log') == logged
    for state in run.records.saved.values():
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


@pytest.mark.parametrize('bad, cadence, aside', [
    (5, (0, 0, 2), 5),  # found in the sixth step: of the fifth's parameters
    (4, (0, 0, 4), 4), (0, (0, 0, 0), 0),
])
def test_a_checkpoint_whose_next_step_diverges_is_no_good(trainer, bad, cadence, aside):
    run = Run(trainer, cadence, bad=bad)
    assert run.records.events[-1] == ('aside', aside)
    kept = max((step for step in run.records.saved if step != aside), default=None)
    assert str(run.error).endswith(f'step {kept} is kept')
    assert ('No step was done before' in str(run.error)) == (bad == 0)


@pytest.mark.parametrize('score', [np.nan, np.inf])
def test_an_evaluation_that_is_not_finite_is_divergence(trainer, score):
    run = Run(trainer, (0, 4, 2), score=score)
    assert str(run.error).startswith(f'step 4: the evaluation gives mse {score}')
    assert run.records.events == [('save', 2), ('aside', 4)]
    run = Run(trainer, score=score)  # the last evaluation comes after the last save
    assert run.records.events == [('log', 10), ('save', 10), ('aside', 10)]


@pytest.mark.parametrize('bad, steps', [(5, (10,)), (0, (10,)), (6, (4, 6))])
@pytest.mark.parametrize('log_every', [1, 0])
def test_divergence_names_the_step_whose_record_would_be_the_first_with_nan(
    trainer, bad, steps, log_every
):
    """As in the records: the step number counts the updates done, this one included."""
    run = Run(trainer, (log_every, 0, 0), steps=steps, bad=bad)
    assert str(run.error).startswith(f'step {bad + 1}: loss nan')


def test_stopping_saves_and_a_second_run_goes_on_to_the_same_end(trainer):
    whole = Run(trainer, steps=(6, 4))
    for at in (1, 4, 6, 9):  # at the end of the first phase too
        first = Run(trainer, steps=(6, 4), stop_at=at)
        assert isinstance(first.error, Stopped) and str(at) in str(first.error)
        assert first.records.steps('save') == first.records.steps('log')[-1:] == [at]
        second = Run(trainer, steps=(6, 4), state=first.records.saved[at])
        same(second.state, whole.state)
        assert second.metrics == whole.metrics
        assert second.records.steps('log')[0] > at


def test_a_stop_where_a_checkpoint_is_due_saves_once(trainer):
    assert Run(trainer, (0, 0, 3), stop_at=3).records.steps('save') == [3]


class FirstIsBest:
    """Stands in for Best: no evaluation is better than the first."""

    def __init__(self):
        self.first = 0

    def offer(self, step, metrics, params):
        self.first = self.first or step

    def step(self):
        return self.first


def test_a_run_ends_when_evaluations_do_not_get_better(trainer):
    best = FirstIsBest()
    run = Run(trainer, (0, 2, 0, 0, 2), best=best)
    assert run.records.steps('eval') == [2, 4, 6] and run.state.step == 6
    assert run.records.steps('save') == [6]
    again = Run(trainer, (0, 2, 0, 0, 2), best=best, records=run.records, state=run.state)
    assert again.asked == [] and again.state.step == 6  # it does not train on


def test_phases_follow_each_other_with_their_own_batches(trainer):
    run = Run(trainer, (4, 5, 0), steps=(6, 4))
    assert run.asked == [(0, 0), (1, 0)]
    assert run.records.steps('log') == [4, 6, 8, 10]  # at the end of a phase as well
    assert run.records.steps('eval') == [5, 10] and run.evaluated == [0, 1]
    assert run.records.steps('save') == [10]
    assert [line for line in run.records.said if line.startswith('phase')] == [
        'phase phase 0: steps 0 to 6', 'phase phase 1: steps 6 to 10']


@pytest.mark.parametrize('at, asked', [
    (2, [(0, 2), (1, 0)]), (6, [(1, 0)]), (8, [(1, 2)]), (10, []),
])
def test_resuming_asks_for_batches_from_its_place_on(trainer, at, asked):
    fresh = trainer[-1]
    run = Run(trainer, steps=(6, 4), state=fresh.replace(step=fresh.step + np.int32(at)))
    assert run.asked == asked
    assert run.evaluated == [1] and 'mse' in run.metrics  # also where nothing is left to train
    assert run.state.step == 10


def test_the_time_of_a_run_is_split_by_cause(trainer, tmp_path):
    """A clock that ticks when it is read: every part of the loop is seen, and each second once."""
    ticks = iter(range(1, 100_000))
    goodput = Goodput(tmp_path, True, 0, 0.0, clock=lambda: float(next(ticks)))
    run = Run(trainer, (2, 4, 5), steps=(6, 4), goodput=goodput)
    seconds = goodput.now()
    assert all(seconds[cause] > 0 for cause in (
        'step', 'start', 'compile', 'data', 'evaluation', 'save'))
    assert seconds['lost'] == 0
    assert sum(seconds.values()) == next(ticks) - 1
    records = [run.records.written['log', step] for step in run.records.steps('log')]
    for record in records:
        causes = [value for name, value in record.items() if name.startswith('time/')]
        assert record['train/goodput'] == pytest.approx(record['time/step'] / sum(causes))
    assert [r['time/save'] > 0 for r in records] == [False, False, True, True, True]

    # It goes on from the checkpoint of step 5: steps 6 to 10 were for nothing.
    again = Goodput(tmp_path, True, 5, 0.0)
    assert again.seconds['lost'] > 0
    assert again.seconds['lost'] + again.seconds['step'] == pytest.approx(seconds['step'], abs=9)


@pytest.mark.parametrize(('at', 'traced'), [(0, True), (3, True), (6, False)])
def test_profile_writes_a_trace_for_tensorboard(trainer, tmp_path, at, traced):
    fresh = trainer[-1]
    state = fresh.replace(step=fresh.step + np.int32(at))
    profile = Profile((2, 4), tmp_path, True)
    run = Run(trainer, steps=(8,), state=state, profile=profile)
    assert profile.close() is None  # nothing is going on any more
    traces = list(tmp_path.glob('plugins/profile/*/*.xplane.pb'))
    assert len(traces) == traced
    assert [line for line in run.records.said if line.startswith('profile')] == (
        [f'profile: tensorboard --logdir {tmp_path}'] if traced else [])
    # The steps are in it by number.
    found = traces[0].read_bytes() if traced else b''
    assert (b'step_num' in found) == traced


@pytest.mark.parametrize('bucket', [False, True])
def test_a_trace_ends_with_a_run_that_is_stopped(trainer, tmp_path, monkeypatch, bucket):
    """Also where it is uploaded in the end, as into a bucket."""
    monkeypatch.setattr('bert_jax.train.report.in_bucket', lambda path: bucket)
    profile = Profile((2, 4), tmp_path, True)
    Run(trainer, steps=(8,), stop_at=3, profile=profile)
    assert profile.close()
    assert list(tmp_path.glob('plugins/profile/*/*.xplane.pb'))
