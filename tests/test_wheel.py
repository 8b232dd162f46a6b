"""The built wheel, installed in a folder of its own, brings the configs and the command."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow
PIP = [sys.executable, '-m', 'pip', '--disable-pip-version-check']


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
    """(folder that the wheel is installed in, environment of programs that use it)."""
    pytest.importorskip('setuptools')
    folder = tmp_path_factory.mktemp('wheel')
    for part in ('bert_jax', 'configs'):  # a build leaves files beside the sources
        shutil.copytree(ROOT / part, folder / 'source' / part)
    for part in ('setup.py', 'README.md'):
        shutil.copy(ROOT / part, folder / 'source' / part)
    for command in (['wheel', '--no-build-isolation', '--no-deps', '-w', folder,
                     folder / 'source'],
                    ['install', '--no-deps', '--no-index', '--find-links', folder,
                     '--target', folder / 'site', 'bert-jax']):
        subprocess.run([*PIP, *command], check=True, capture_output=True, cwd=folder)
    return folder, os.environ | {'PYTHONPATH': str(folder / 'site')}


def run(installed, *arguments):
    """(exit status, what it said)."""
    folder, environment = installed
    process = subprocess.run(
        [sys.executable, folder / 'site' / 'bin' / 'bert-jax', *arguments], cwd=folder,
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    return process.returncode, process.stdout


def test_a_config_by_name_trains_from_any_folder(installed):
    status, said = run(
        installed, 'train', '--config=quickstart', '--config.task=synthetic', '--config.phases=()',
        '--config.train.steps=3', '--config.train.batch_size=8', '--config.train.eval_batch_size=8',
        '--config.train.max_eval_examples=8', '--config.model.num_layers=1',
        '--config.data.vocab_size=100', '--config.data.max_seq_length=32')
    assert status == 0 and '"step": 3' in said, said[-2000:]
    assert (installed[0] / 'runs' / 'quickstart' / 'config.json').exists()


@pytest.mark.parametrize('arguments, status, words', [
    (['train', '--config=glue:mrpc'], 2, 'init_checkpoint'),
    (['train', '--config=configs/glue.py:mrpc'], 2, 'init_checkpoint'),
    (['train', '--config=glu:mrpc'], 2, "No such file or directory: did you mean 'glue.py'?"),
    (['predict', '--help'], 0, 'fill-mask'),
    (['paper', '8', '--list'], 0, 'pre-training 80/0/20: 2 of 2 runs left'),
    ([], 0, 'bert-jax COMMAND ...: the'), (['tarin'], 2, "did you mean 'train'?"),
])
def test_commands_by_name(installed, arguments, status, words):
    found, said = run(installed, *arguments)
    assert found == status and words in said, said
