"""Claims on folders: of simultaneous attempts one succeeds, and a dead holder's claim expires."""

import json
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bert_jax.runtime import folder_lock
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.folder_lock import Claim, claimed


class Clock:
    """The time of those who wait for a claim: it passes while they sleep."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(folder_lock, 'time', clock)
    return clock


def has_waited(clock):
    """Whether as long has passed as a claim without a beat lives, and little more."""
    return folder_lock.SECONDS < clock.now < folder_lock.SECONDS + 1


@pytest.fixture
def claim_on():
    """Makes claims that beat no longer than the test."""
    made = []

    def make(folder):
        made.append(Claim(folder))
        return made[-1]

    yield make
    for claim in made:
        claim.release()


def elsewhere(monkeypatch, name='another'):
    """From here on, this process makes claims as if on another machine."""
    monkeypatch.setattr(folder_lock, '_machine', lambda: name)


@pytest.mark.parametrize('repetition', range(8))
def test_of_simultaneous_attempts_exactly_one_succeeds(folder, claim_on, repetition):
    claims = [claim_on(folder) for _ in range(6)]
    barrier = threading.Barrier(len(claims))

    def attempt(claim):
        barrier.wait()
        return claim.attempt()

    with ThreadPoolExecutor(len(claims)) as pool:
        assert sum(pool.map(attempt, claims)) == 1
    for claim in claims:
        claim.release()
    assert claim_on(folder).attempt(), 'given back, it is free'


def test_a_holder_at_work_is_named_at_once(folder, clock):
    with claimed(folder, 'run'):
        says = f'process {os.getpid()} on .* is at work on this run'
        with pytest.raises(InputError, match=says), claimed(folder, 'run'):
            pass
        assert clock.now == 0
    with claimed(folder, 'run'):
        pass


def test_a_live_holder_on_another_machine_is_known_by_its_beat(folder, monkeypatch):
    monkeypatch.setattr(folder_lock, 'BEAT_SECONDS', 0.05)
    with claimed(folder, 'run'):
        elsewhere(monkeypatch)
        with pytest.raises(InputError, match='is at work'), claimed(folder, 'run'):
            pass


def test_the_claim_of_a_dead_machine_expires(folder, claim_on, clock, monkeypatch, capsys):
    monkeypatch.setattr(folder_lock, 'BEAT_SECONDS', 1e6)  # as if its process had been killed
    assert claim_on(folder).attempt()
    elsewhere(monkeypatch)
    with claimed(folder, 'run'):
        assert has_waited(clock)
    assert 'waiting up to' in capsys.readouterr().err


def test_dead_holders_of_many_pieces_are_waited_for_at_once(tmp_path, clock, capsys):
    pieces = {f'piece {number}': str(number) for number in range(8)}
    for piece in pieces.values():
        content = folder_lock.new_claim() | {'machine': 'another'}
        (tmp_path / f'.{piece}-claim-1').write_text(json.dumps(content))
    folder_lock.wait_for_holders(tmp_path, pieces)
    assert has_waited(clock)
    said = capsys.readouterr().err
    assert all(f'still at work on this {what}\n' in said for what in pieces)


def test_a_process_suspended_for_too_long_learns_that_it_lost_the_claim(
        folder, claim_on, clock, monkeypatch):
    monkeypatch.setattr(folder_lock, 'BEAT_SECONDS', 0.05)
    suspended = claim_on(folder)
    beat = Claim._beat
    with monkeypatch.context() as patch:
        patch.setattr(Claim, '_beat', lambda self: None)
        assert suspended.attempt()
    elsewhere(monkeypatch)
    with claimed(folder, 'run'):
        pass  # another process takes it, finishes and releases it
    beat(suspended)
    with pytest.raises(InputError, match='taken by another process'):
        suspended.check()
    with claimed(folder, 'run'):
        suspended.release()
        assert not claim_on(folder).attempt(), 'the new holder keeps it'


def test_a_holder_that_seemed_dead_may_give_the_folder_back_meanwhile(
        folder, claim_on, monkeypatch):
    assert claim_on(folder).attempt()
    (before,) = folder.iterdir()
    elsewhere(monkeypatch)
    monkeypatch.setattr(folder_lock, 'SECONDS', -1.0)  # it seems dead at once
    write = folder_lock.write_new

    def write_when_it_gives_back(path, content):
        before.unlink()
        return write(path, content)

    monkeypatch.setattr(folder_lock, 'write_new', write_when_it_gives_back)
    assert claim_on(folder).attempt()
    assert len(list(folder.iterdir())) == 1


def test_a_claim_is_held_even_if_the_reply_to_it_is_lost(
        bucket, claim_on, bucket_name, bucket_server):
    bucket_server.lost.append(f'POST .*/upload/.*/b/{bucket_name}/')
    with claimed(bucket, 'run') as claim:
        assert not bucket_server.lost
        claim.check()
        assert not claim_on(bucket).attempt()


def _hold(folder, ready):
    assert Claim(folder).attempt()
    ready.set()
    signal.pause()


def test_the_claim_of_a_killed_process_of_this_machine_is_dead_at_once(tmp_path, claim_on, clock):
    context = multiprocessing.get_context('fork')
    ready = context.Event()
    process = context.Process(target=_hold, args=(str(tmp_path), ready))
    process.start()
    assert ready.wait(300)
    assert not claim_on(tmp_path).attempt()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with claimed(tmp_path, 'run'):
        assert clock.now == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('content', ['', '{', '[]', '{"pid": "x"}', '\0', json.dumps({'pid': -1})])
def test_a_malformed_claim_expires_too(tmp_path, clock, content):
    (tmp_path / '.claim-7').write_text(content)
    with claimed(tmp_path, 'run'):
        assert [path.name for path in tmp_path.iterdir()] == ['.claim-8']
