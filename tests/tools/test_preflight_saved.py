"""Compiled phases in files."""

import dataclasses
import gzip

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.tools.preflight.saved import CompiledPhase, Programs
from bert_jax.tools.preflight.schedules import Schedule
from bert_jax.train.compiling import Memory

RUN = {'max_seq_length': 128, 'batch_size': 256}
PHASE = CompiledPhase(
    text='ENTRY %main', train_memory=Memory(1, 2, 3, 4), evaluation_memory=Memory(5, 6, 7),
    schedules={'fusion.1': Schedule((3, 5, 0), 'MXU')}, versions={'jax': '0.10.2'},
    date='2026-11-27')


@pytest.fixture
def programs(tmp_path):
    """Reads from a folder with PHASE."""
    folder = str(tmp_path / 'new' / 'folder')
    Programs(folder, reads=False).write('phase1', RUN, PHASE)
    return Programs(folder, reads=True)


def test_a_phase_is_read_as_it_was_written(programs):
    assert programs.read('phase1', RUN) == PHASE


def test_a_phase_without_evaluation_is_read_as_it_was_written(tmp_path):
    phase = dataclasses.replace(PHASE, evaluation_memory=None)
    Programs(str(tmp_path), reads=False).write('phase1', RUN, phase)
    assert Programs(str(tmp_path), reads=True).read('phase1', RUN) == phase


def test_a_phase_of_another_run_is_refused(programs):
    with pytest.raises(InputError, match='compiled for {.*256}, not for {.*512}: compile again'):
        programs.read('phase1', RUN | {'batch_size': 512})


@pytest.mark.parametrize('content', ['', '[]', '{}', '{"run": {}, "schedules": []}', 'no JSON'])
def test_a_file_of_something_else_is_refused(programs, tmp_path, content):
    path = tmp_path / 'new' / 'folder' / 'phase1.json.gz'
    path.write_bytes(gzip.compress(content.encode()))
    with pytest.raises(InputError, match='phase1.json.gz holds no compiled phase'):
        programs.read('phase1', RUN)


def test_a_missing_file_is_named(programs):
    with pytest.raises(InputError, match='phase2'):
        programs.read('phase2', RUN)
