"""What a run records about itself when it starts."""

import dataclasses
import shutil

import jax
import pytest

from bert_jax.completion import complete
from bert_jax.config import default_config
from bert_jax.foreign import load_weights
from bert_jax.run.model import read_description, write_run
from bert_jax.run_setup import open_mesh
from bert_jax.runtime.errors import InputError
from bert_jax.train import describing, experiment
from bert_jax.train.program import build_program
from tests.opening import open_task
from tests.predict import tiny


@pytest.fixture
def start(tmp_path):
    """A run directory with a checkpoint of step 0."""
    write_run(tmp_path / 'start', tiny.pretraining_weights(tmp_path))
    return tmp_path / 'start'


def save_again(run, step):
    """Gives a run a checkpoint of a later step."""
    shutil.copytree(run / 'checkpoints' / '0', run / 'checkpoints' / str(step))


def program_of(init_checkpoint, weights):
    """The program of a run that starts from a checkpoint, or resumes."""
    config = default_config('synthetic')
    config.update_from_flattened_dict({
        'init_checkpoint': str(init_checkpoint), 'model.name': '', 'train.steps': 1,
        'train.batch_size': 8, 'train.eval_batch_size': 8, 'data.max_seq_length': 16})
    config = complete(config, weights)
    mesh = open_mesh(config, jax.devices()[:1])
    return build_program(config, mesh, open_task(config), weights)


def described(init_checkpoint, weights):
    """The description of such a run."""
    return describing.describe(program_of(init_checkpoint, weights))


def test_a_run_records_the_save_whose_parameters_it_loaded(start):
    before = described(start, load_weights(start))
    weights = load_weights(start)
    save_again(start, step=7)  # the run that it starts from trains on
    after = described(start, weights)
    assert after['init_step'] == 0
    assert after['init_saved'] == before['init_saved']


def test_the_step_is_recorded_although_its_checkpoint_is_deleted(start):
    weights = load_weights(start)
    save_again(start, step=7)
    shutil.rmtree(start / 'checkpoints' / '0')
    assert described(start, weights)['init_step'] == 0


def test_a_run_that_resumes_looks_at_what_it_would_start_from_now(start):
    save_again(start, step=7)
    assert described(start, read_description(start))['init_step'] == 7


def test_a_run_that_ends_before_its_first_step_closes_its_records(start, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(
        experiment.MetricsLog, 'close', lambda report: closed.append(report.folder))

    def too_large(compiler):
        raise InputError('phase 1 does not fit')

    monkeypatch.setattr(experiment.StepCompiler, 'wait_for_first_phase', too_large)
    program = dataclasses.replace(program_of(start, load_weights(start)), init_weights=None)
    with pytest.raises(InputError, match='does not fit'):
        experiment.train_run(program, tmp_path / 'run', lambda step: False)
    assert closed == [tmp_path / 'run']
