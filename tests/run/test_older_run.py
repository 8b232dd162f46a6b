"""A run directory of an older version resumes as if the version had not changed.

`run_at_step_3.zip` was written on 29 November 2026, before the package was divided into a spine and
three doors (jax 0.10.2), by `python -m bert_jax.main` with the flags in its config.json. What
followed there is below.
"""

import unicodedata
import zipfile

import numpy as np
import pytest

from bert_jax import convert
from tests.conftest import ROOT
from tests.in_process import recorded, run
from tests.tiny_runs import TINY, documents

SIZES = (
    'hidden_size=8', 'num_heads=1', 'intermediate_size=16', 'max_position_embeddings=32')
UNICODE = '14.0.0'  # of the Python that wrote it, 3.11
CONTENT = '91a6c4aca94b972a'
# Of steps 4 to 6.
BATCHES = [203013346332654, 243133026735253, 45867671714740]
LOSSES = [6.227363586425781, 6.194127559661865, 6.20162296295166]
RESULT = {
    'step': 6, 'eval/mlm_loss': 5.4944821621509305, 'eval/mlm_accuracy': 0.014184397163120567,
    'eval/nsp_loss': 0.6809764862060547, 'eval/nsp_accuracy': 0.8}


@pytest.fixture
def older_run(tmp_path, monkeypatch):
    """The folder of the run, beside its text; both are named from here."""
    with zipfile.ZipFile(ROOT / 'tests' / 'fixtures' / 'run_at_step_3.zip') as archive:
        archive.extractall(tmp_path / 'run')
    (tmp_path / 'text.txt').write_text(documents(40))
    monkeypatch.chdir(tmp_path)
    return tmp_path / 'run'


def resumed():
    flags = [f'--config.model.{size}' for size in SIZES]
    return run(
        'tiny_pretrain.py', *TINY[1:], *flags, '--config.train.steps=6',
        '--config.train.save_every=3', '--config.train.log_every=1', '--config.train.loggers=',
        '--config.data.source=text.txt', '--config.data.dir=data',
        '--config.data.local_dir=local', workdir='run')


def test_it_goes_on_with_the_same_rows_and_losses(older_run):
    ended = resumed()
    assert 'the run goes on with other code' in ended.said
    # The text is read by other rules, which may have changed its documents; here they have not.
    assert f'was trained on other data so far: content of text.txt was {CONTENT}' in ended.said
    if unicodedata.unidata_version == UNICODE:  # else letters may be others, and a warning says so
        assert ended.said.count('warning') == 1
    assert recorded(older_run, 'check/batch')[3:] == BATCHES
    np.testing.assert_allclose(recorded(older_run, 'check/loss')[3:], LOSSES, rtol=1e-5)
    for name, value in RESULT.items():
        assert ended.result[name] == pytest.approx(value, rel=1e-5), name


def test_its_model_is_converted(older_run):
    convert.main(['run', 'converted', '--to', 'huggingface'])
    assert (older_run.parent / 'converted' / 'model.safetensors').exists()
