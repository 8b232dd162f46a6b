"""ModernBERT's recipe, tiny: a phase with another rotary base, resumed, on several devices."""

import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from bert_jax.config import ConfigDict
from bert_jax.foreign import load_weights
from bert_jax.run_setup import open_run
from bert_jax.runtime.errors import Stopped
from bert_jax.train.experiment import train_run
from bert_jax.watch import metrics_log
from tests.configs import load
from tests.numpy_kernels import kernels_of_numpy  # noqa: F401
from tests.shared_steps import shared_steps
from tests.tiny_runs import documents, first_devices, one_device, saved

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('kernels_of_numpy')]

STEPS = (5, 4)  # at the short length, and at the long one with another base


@dataclasses.dataclass
class Runs:
    """Runs on one text.

    Attributes:
      folder: of the text and of what is made of it.
      whole: the folder of a run that nothing interrupted, on one device.
      scores: its result.
    """

    folder: Path
    whole: Path
    scores: dict[str, float]

    def config(self, **of_long_phase: Any) -> ConfigDict:
        return tiny_config(self.folder, **of_long_phase)


def tiny_config(folder, **of_long_phase):
    """The recipe with two short phases, the second of which has these fields too."""
    config = load('modern_pretrain:tiny')
    short, long = config.phases[1], config.phases[-1]
    config.update_from_flattened_dict({
        'model.num_layers': 2,  # of which the first attends to all tokens
        'model.hidden_size': 32, 'model.num_heads': 2, 'model.intermediate_size': 48,
        'model.initializer_range': 0.3,  # so that attention, and with it the base, matters
        'data.source': f'{folder}/text.txt', 'data.dir': f'{folder}/cache',
        'data.local_dir': f'{folder}/cache', 'data.vocab_size': 300, 'data.held_out': 0.2,
        'train.log_every': 1, 'train.save_every': 0, 'train.keep_checkpoints': 9,
        'train.eval_every': 0,
        'phases': (dict(short, steps=STEPS[0]), dict(long, steps=STEPS[1], **of_long_phase)),
    })
    return config


def run(config, workdir, stop_at=None):
    """Trains on all devices that jax shows; the result."""
    workdir.mkdir(exist_ok=True)
    with shared_steps(), mock.patch.object(metrics_log, 'curves', lambda *_: None):
        return train_run(open_run(config, [workdir]), workdir, lambda step: step == stop_at)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp('modern')
    (folder / 'text.txt').write_text(documents(300))
    with one_device():
        scores = run(tiny_config(folder), folder / 'whole')
    return Runs(folder, folder / 'whole', scores)


def test_a_run_that_was_stopped_between_and_in_phases_ends_as_one_that_was_not(runs, tmp_path):
    with one_device():
        for stop_at, base in ((STEPS[0], 1e4), (STEPS[0] + 2, 1.6e5)):
            with pytest.raises(Stopped):
                run(runs.config(), tmp_path, stop_at)
            assert saved(tmp_path)[0] == stop_at
            assert load_weights(tmp_path).model['rotary_base'] == base, 'that of the phase'
        assert run(runs.config(), tmp_path) == runs.scores
    jax.tree.map(np.testing.assert_array_equal, saved(tmp_path), saved(runs.whole))
    assert load_weights(tmp_path).model['rotary_base'] == 1.6e5


def test_two_devices_train_as_one(runs, tmp_path):
    """After the first phase, whose step there would be another program to compile."""
    with one_device(), pytest.raises(Stopped):
        run(runs.config(), tmp_path, STEPS[0])
    with first_devices(2):
        assert run(runs.config(), tmp_path) == pytest.approx(runs.scores, rel=1e-4)


def test_the_second_phase_trains_and_evaluates_with_its_own_base(runs, tmp_path):
    with one_device():
        other = run(runs.config(rotary_base=10.0), tmp_path)
    assert other['eval/mlm_loss'] != pytest.approx(runs.scores['eval/mlm_loss'], rel=1e-4)
