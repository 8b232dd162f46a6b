"""What host 0 concludes from reports, with times that the tests choose."""

import dataclasses

import pytest

from bert_jax.runtime.host_failures import Failure, HostState, Judge, StepTimes, Verdict

TRAINING = HostState(beat=1, step=7)
COMPILING = HostState(beat=1, step=None)


def beating(report, now):
    """A host's report with a heartbeat of its own."""
    return dataclasses.replace(report, beat=int(now))


def test_nothing_is_decided_while_all_hosts_train():
    assert Judge().judge({0: TRAINING, 1: TRAINING}, now=0.0) == Verdict()


@pytest.mark.parametrize('report, limit', [
    pytest.param(TRAINING, 30, id='training'),
    pytest.param(COMPILING, 300, id='compiling before its first step, it is given more time'),
    pytest.param(HostState(), 300, id='it never said anything'),
])
def test_a_silent_host_counts_as_dead_after_a_while(report, limit):
    judge = Judge()
    judge.judge({0: beating(TRAINING, 0), 1: report}, now=0.0)
    verdict = judge.judge({0: beating(TRAINING, limit), 1: report}, now=limit)
    assert verdict.failure is None
    verdict = judge.judge({0: beating(TRAINING, limit + 1), 1: report}, now=limit + 1.0)
    assert verdict.failed_host == 1
    message = f'has not been heard of for {limit + 1} seconds'
    assert verdict.failure == Failure(message, status=1)


def test_a_host_whose_heart_beats_is_alive_however_long_it_takes():
    judge = Judge()
    for now in range(0, 3600, 29):
        verdict = judge.judge({0: beating(COMPILING, now)}, now=now)
        assert verdict.failure is None


def test_the_first_failure_that_a_host_reports_stays():
    judge = Judge()
    failed = dataclasses.replace(TRAINING, failure=Failure('the disk is full', status=2))
    judge.judge({0: TRAINING, 1: failed, 2: TRAINING}, now=0.0)
    later = dataclasses.replace(TRAINING, failure=Failure('another', status=1))
    verdict = judge.judge({0: later, 1: failed, 2: TRAINING}, now=1.0)
    assert (verdict.failed_host, verdict.failure) == (1, Failure('the disk is full', status=2))
    assert not verdict.hangs


def test_hosts_stop_at_the_first_poll_that_all_can_stop_at():
    judge = Judge()
    signalled = dataclasses.replace(TRAINING, was_signalled=True)
    verdict = judge.judge({0: TRAINING, 1: signalled}, now=0.0)
    assert verdict.must_stop and verdict.stop_poll is None
    at_8 = dataclasses.replace(signalled, earliest_stop=8)
    verdict = judge.judge({0: TRAINING, 1: at_8}, now=1.0)
    assert verdict.stop_poll is None
    at_9 = dataclasses.replace(TRAINING, earliest_stop=9)
    verdict = judge.judge({0: at_9, 1: at_8}, now=2.0)
    assert verdict.stop_poll == 9
    assert verdict.failure is None


@pytest.mark.parametrize('usual, limit', [
    pytest.param(1.0, 600.0, id='quick steps'),
    pytest.param(50.0, 1000.0, id='slow steps: the time of 20'),
])
def test_a_run_hangs_if_no_host_finishes_a_step(usual, limit):
    ahead = HostState(beat=1, step=8, still_seconds=limit, usual_seconds=usual)
    behind = HostState(beat=1, step=7, still_seconds=limit + 100, usual_seconds=0.1)
    assert Judge().judge({0: ahead, 1: behind}, now=0.0).failure is None
    ahead.still_seconds += 1
    verdict = Judge().judge({0: ahead, 1: behind}, now=0.0, folder='runs/x')
    assert verdict.hangs
    assert verdict.failed_host == 1
    assert verdict.failure.status == 1
    assert verdict.failure.message.startswith(
        f'at step 7 no step was finished for {limit + 1:.0f} s (usually {usual:.2g} s; ')
    assert 'runs/x/stacks-HOST.txt' in verdict.failure.message


STEP, DATA, SAVE = 'step', 'data', 'save'


@pytest.mark.parametrize('steps, causes, blamed, doings', [
    pytest.param([7, 7], [STEP, DATA], 1,
                 'host 1 waiting for data after step 7, host 0 in a step after step 7',
                 id='of two, the one that is not in the step'),
    pytest.param([7, 7, 7, 7], [STEP, STEP, DATA, STEP], 2,
                 'host 2 waiting for data after step 7, hosts 0, 1, 3 in a step after step 7',
                 id='the one that differs'),
    pytest.param([7, 7, 7], [SAVE, STEP, SAVE], 1,
                 'host 1 in a step after step 7, hosts 0, 2 saving after step 7',
                 id='also where the others do not wait in a step'),
    pytest.param([8, 7, 8], [STEP, STEP, STEP], 1, 'hosts 0-2 in a step after step 7 to 8',
                 id='the one that is behind'),
    pytest.param([8, 9, 8], [STEP, DATA, STEP], 1,
                 'host 1 waiting for data after step 9, hosts 0, 2 in a step after step 8',
                 id='rather the one that differs'),
    pytest.param([7, 7, 7], [STEP, STEP, STEP], None, 'hosts 0-2 in a step after step 7',
                 id='none, where all are alike'),
    pytest.param([7], [STEP], 0, 'host 0 in a step after step 7', id='of one host, this one'),
])
def test_a_hang_names_the_host_that_the_others_wait_for(steps, causes, blamed, doings):
    reports = {
        host: HostState(beat=1, step=step, still_seconds=601, usual_seconds=1.0, cause=cause)
        for host, (step, cause) in enumerate(zip(steps, causes))}
    verdict = Judge().judge(reports, now=0.0)
    assert verdict.hangs and verdict.failed_host == blamed
    assert f'; {doings}): ' in verdict.failure.message


def test_the_usual_time_of_steps_is_their_median():
    times = StepTimes(now=0.0)
    for now in (1.0, 2.0, 3.0, 50.0):
        times.finish(now)
    assert times.usual == 1.0
    assert times.still(now=60.0) == 10.0
    times.begin(now=60.0)
    assert times.still(now=61.0) == 1.0
    assert times.usual == 1.0, 'what has no time limit is no step'


@pytest.mark.parametrize('written', [
    HostState(),
    HostState(beat=3, step=7, was_signalled=True, earliest_stop=8, still_seconds=0.5, cause='data',
           failure=Failure('the disk is full', status=2)),
    Verdict(),
    Verdict(failed_host=1, failure=Failure('x', status=1), hangs=True, must_stop=True, stop_poll=9),
])
def test_reports_and_verdicts_are_read_as_they_were_written(written):
    assert type(written).from_json(written.to_json()) == written
