"""The sdist, from which pip installs a wheel in a folder of its own, is the whole package."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, xla_flags
from tests.programs import python

pytestmark = pytest.mark.slow
PIP = [sys.executable, '-m', 'pip', '--disable-pip-version-check']
BUILD_SDIST = """
import sys
from setuptools import build_meta
build_meta.__legacy__.build_sdist(sys.argv[1])
"""
# Python does the same with the name of a file; this can be a fork, which starts sooner.
RUN_FILE = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name='__main__')
"""


@dataclasses.dataclass
class Installed:
    """The wheel, installed in folder / 'site' without its requirements."""

    folder: Path

    def run(self, *arguments, is_fork=True):
        """(exit status, what it said) of the command, run in the folder."""
        launcher = [*python(), '-c', RUN_FILE] if is_fork else [sys.executable]
        site = self.folder / 'site'
        environment = {'PYTHONPATH': str(site), 'XLA_FLAGS': xla_flags(1)}
        process = subprocess.run(
            [*launcher, site / 'bin' / 'bert-jax', *arguments],
            cwd=self.folder, env=os.environ | environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
        return process.returncode, process.stdout


def copy_sources(target):
    """Copies what an sdist is built from: a build leaves files beside the sources."""
    for folder in ('bert_jax', 'configs'):
        shutil.copytree(ROOT / folder, target / folder)
    for file in ('setup.py', 'README.md'):
        shutil.copy(ROOT / file, target / file)


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
    pytest.importorskip('setuptools')
    folder = tmp_path_factory.mktemp('wheel')
    copy_sources(folder / 'source')
    subprocess.run(
        [sys.executable, '-c', BUILD_SDIST, folder], check=True, capture_output=True,
        cwd=folder / 'source')
    sdist, = folder.glob('bert*.tar.gz')
    # What the tests run writes its own bytecode.
    subprocess.run(
        [*PIP, 'install', '--no-build-isolation', '--no-deps', '--no-index', '--no-compile',
         '--target', folder / 'site', sdist], check=True, capture_output=True, cwd=folder)
    return Installed(folder)


def files_of(package):
    """The files of a package, by their paths in it."""
    files = set()
    for path in package.rglob('*'):
        if path.is_file() and path.suffix != '.pyc':
            files.add(path.relative_to(package))
    return files


def test_every_file_of_the_package_is_installed(installed):
    package = installed.folder / 'site' / 'bert_jax'
    assert files_of(ROOT / 'bert_jax') <= files_of(package)


def test_the_citation_has_the_version_of_the_package():
    version = re.search(r"version='(.+)'", (ROOT / 'setup.py').read_text())[1]
    assert yaml.safe_load((ROOT / 'CITATION.cff').read_text())['version'] == version


def test_a_config_by_name_trains_from_any_folder(installed):
    status, said = installed.run(
        'train', '--config=quickstart', '--config.task=synthetic', '--config.phases=()',
        '--config.train.steps=3', '--config.train.batch_size=8', '--config.train.eval_batch_size=8',
        '--config.train.max_eval_examples=8', '--config.model.num_layers=1',
        '--config.data.vocab_size=100', '--config.data.max_seq_length=32', is_fork=False)
    assert status == 0, said[-2000:]
    assert '"step": 3' in said
    assert (installed.folder / 'runs' / 'quickstart' / 'config.json').exists()


@pytest.mark.parametrize('arguments, message', [
    (['train', '--config=glue:mrpc'], 'init_checkpoint'),
    (['train', '--config=configs/glue.py:mrpc'], 'init_checkpoint'),
    (['train', '--config=glu:mrpc'], "No such file or directory: did you mean 'glue.py'?"),
    (['tarin'], "did you mean 'train'?"),
])
def test_a_command_that_is_wrong_is_refused(installed, arguments, message):
    status, said = installed.run(*arguments)
    assert status == 2, said
    assert message in said


@pytest.mark.parametrize('arguments, output', [
    (['predict', '--help'], 'fill-mask'),
    (['paper', '8', '--list'], 'pre-training 80/0/20: 2 of 2 runs left'),
    ([], 'bert-jax COMMAND ...: the'),
])
def test_commands_by_name(installed, arguments, output):
    status, said = installed.run(*arguments)
    assert status == 0, said
    assert output in said
