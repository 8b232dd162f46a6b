"""The built wheel, in a folder of its own: it brings the configs and its command."""

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
    folder, environment = installed
    return subprocess.run(
        [sys.executable, folder / 'site' / 'bin' / 'bert-jax', *arguments], cwd=folder,
        env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize('named', ['quickstart', 'configs/tiny_pretrain.py'])
def test_a_config_by_name_trains_from_any_folder(installed, named):
    process = run(installed, 'train', f'--config={named}', '--config.task=synthetic',
                  '--config.train.steps=3', '--config.model.num_layers=1',
                  '--config.data.vocab_size=100', '--config.train.eval_batch_size=32',
                  '--config.train.max_eval_examples=32')
    assert process.returncode == 0, process.stderr[-2000:]
    assert '"step": 3' in process.stdout.splitlines()[-1]
    name = named.split('/')[-1].removesuffix('.py')
    assert (installed[0] / 'runs' / name / 'config.json').exists()


def test_a_config_with_an_argument_and_a_file_of_one_s_own(installed):
    process = run(installed, 'train', '--config=glue:mrpc')
    assert process.returncode == 2 and 'init_checkpoint' in process.stderr
    process = run(installed, 'train', '--config=glu:mrpc')
    assert process.returncode == 2 and '--config=glu: No such file' in process.stderr


def test_commands_by_name(installed):
    assert 'fill-mask' in run(installed, 'predict', '--help').stdout
    assert run(installed).stdout.startswith('usage: bert-jax {train,predict,')
    assert run(installed, 'tarin').returncode == 2
    assert 'pre-training 80/0/20: 2 of 2 runs left' in run(installed, 'paper', '8', '--list').stdout
