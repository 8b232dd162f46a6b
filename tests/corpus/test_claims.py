"""Claims on pieces of work: who may work on what, and when a claim counts as a dead worker's."""

import json
import time

import pytest

from bert_jax.corpus.claims import Claims
from bert_jax.runtime import files, folder_lock


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(folder_lock, 'SECONDS', 0.4)
    monkeypatch.setattr(folder_lock, 'BEAT_SECONDS', 0.05)


def _may(claims, piece):
    with claims.held(piece) as is_ours:
        return is_ours


def test_a_piece_belongs_to_one_worker_at_a_time(folder):
    one = Claims(folder)
    other = Claims(folder)
    assert one.worker != other.worker
    with one.held('a') as is_ours:
        assert is_ours
        assert not _may(other, 'a')
        assert _may(other, 'b')
    assert _may(other, 'a')
    assert not files.children(folder)


@pytest.mark.parametrize('machine', ['this', 'another'])
def test_a_worker_that_works_keeps_its_piece(tmp_path, monkeypatch, machine):
    one = Claims(tmp_path)
    if machine == 'another':
        one._content['machine'] = 'another'
    other = Claims(tmp_path)
    with one.held('a'):
        end = time.monotonic() + 3 * folder_lock.SECONDS
        while time.monotonic() < end:
            assert not _may(other, 'a')
            time.sleep(0.02)


def test_a_piece_is_given_back_where_the_work_fails(tmp_path):
    with pytest.raises(KeyError), Claims(tmp_path).held('a'):
        raise KeyError
    assert _may(Claims(tmp_path), 'a')


def test_the_piece_of_a_process_of_this_machine_that_has_ended_is_free_at_once(tmp_path):
    (tmp_path / 'a.claim').write_text(json.dumps(folder_lock.new_claim() | {'pid': 2**22 + 1}))
    assert _may(Claims(tmp_path), 'a')


@pytest.mark.parametrize('left', [
    pytest.param('{"token": "x", "machine": "another", "beat": 3}', id='of another machine'),
    pytest.param('', id='just begun'),
])
def test_a_claim_that_does_not_change_is_free_after_a_while(tmp_path, left):
    (tmp_path / 'a.claim').write_text(left)
    claims = Claims(tmp_path)
    begun = time.monotonic()
    while not _may(claims, 'a'):
        time.sleep(0.02)
    assert folder_lock.SECONDS <= time.monotonic() - begun < 10 * folder_lock.SECONDS
