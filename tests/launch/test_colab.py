"""launch/colab.ipynb, run from top to bottom, and the versions of Colab's image.

BERT_JAX_COLAB_PYTHON names an interpreter that has the packages of colab_image.txt and of the extra
[data]; without it the notebook runs with the present interpreter.
"""

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import ROOT, xla_flags
from tests.programs import python
from tests.tiny_runs import documents, sentence, write_table

pytestmark = pytest.mark.slow

nbformat = pytest.importorskip('nbformat')
NOTEBOOK = ROOT / 'launch' / 'colab.ipynb'
IMAGE = Path(__file__).with_name('colab_image.txt')


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, 4)


def test_the_notebook_is_clean_and_defines_nothing(notebook):
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == 'code':
            assert not cell.outputs and cell.execution_count is None, cell.id
            assert not re.search(r'(?m)^\s*(def|class)\b|\blambda\b', cell.source), cell.id


def test_requirements_leave_colabs_packages_alone():
    metadata = subprocess.check_output(
        [sys.executable, '-c', 'import json, setuptools; from distutils.core import run_setup; '
         'setup = run_setup("setup.py", stop_after="init"); print(json.dumps('
         '[setup.install_requires, setup.python_requires]))'], cwd=ROOT, text=True)
    from packaging.requirements import Requirement, SpecifierSet

    requires, python = json.loads(metadata.splitlines()[-1])
    image = dict(re.findall(r'(?m)^([\w-]+)==(\S+)$', IMAGE.read_text()))
    assert '3.13' in SpecifierSet(python)
    found = [r for r in map(Requirement, requires) if r.name in image]
    assert len(found) > 5
    for requirement in found:
        assert image[requirement.name] in requirement.specifier, requirement


@pytest.fixture
def clone(tmp_path):
    """A copy of the repository; beside it, text to pre-train on and a small SST-2.

    Its quickstart has one layer, rows of one length in all phases and AdamW: less to compile.
    """
    folder = tmp_path / 'clone'
    folder.mkdir()
    for name in ('bert_jax', 'configs', 'launch'):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('setup.py', 'pyproject.toml', 'README.md'):
        shutil.copy(ROOT / name, folder)
    quickstart = folder / 'configs' / 'quickstart.py'
    smaller = re.sub(r'max_seq_length=\d+', 'max_seq_length=64', quickstart.read_text())
    name = "    c.model.name = 'tiny'\n"
    smaller = smaller.replace("'muon'", "'bert_adamw'")
    quickstart.write_text(smaller.replace(name, f'{name}    c.model.num_layers = 1\n'))
    rng = random.Random(0)
    (tmp_path / 'text.txt').write_text(documents(200))
    for split, count in (('train', 96), ('dev', 32)):
        write_table(tmp_path / 'SST-2' / f'{split}.tsv', ('sentence', 'label'),
                    *((sentence(rng), i % 2) for i in range(count)))
    return folder


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """The site-packages into which the notebook installs, above those of the interpreter.

    What it installs is not downloaded. The kernel and its programs are forks of the tests' server,
    which has imported jax and TensorFlow; with BERT_JAX_COLAB_PYTHON they are that interpreter.
    """
    prefix = tmp_path / 'prefix'
    interpreter = os.environ.get('BERT_JAX_COLAB_PYTHON')
    if interpreter:
        subprocess.run([interpreter, '-m', 'venv', '--without-pip', prefix], check=True)
        packages = next(prefix.glob('lib/python3*/site-packages'))
        below = subprocess.check_output(
            [interpreter, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))'],
            text=True)
        (packages / 'below.pth').write_text(below)
    else:
        packages = Path(sysconfig.get_path('purelib', 'posix_prefix', {'base': str(prefix)}))
        monkeypatch.setenv('PIP_PREFIX', str(prefix))
        (prefix / 'bin').mkdir(parents=True)
        program = prefix / 'bin' / 'python'
        # A kernel's own variable, which would make them ordinary processes.
        program.write_text(f'#!/bin/sh\nunset MPLBACKEND\nexec {shlex.join(python())} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setattr(sys, 'executable', str(prefix / 'bin' / 'python'))  # the kernel's
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setenv('XLA_FLAGS', xla_flags(1))
    monkeypatch.setenv('PATH', f"{prefix / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    # In pip, 0 turns isolation off: no build tools are fetched.
    monkeypatch.setenv('PIP_NO_BUILD_ISOLATION', '0')
    return packages


def printed(cell):
    return ''.join(output.get('text', '') for output in cell.outputs)


def check_result(cell, max_step, metric):
    """Checks the result that a run prints at its end."""
    last = printed(cell).splitlines()[-1]
    result = json.loads(last.removeprefix('result '))
    assert result['step'] <= max_step
    assert 0 <= result[metric] <= 1


def set_parameters(notebook, **values):
    """Adds a cell behind the one with parameters that gives them other values."""
    parameters, = [
        i for i, cell in enumerate(notebook.cells)
        if 'parameters' in cell.metadata.get('tags', ())]
    lines = [f'{name} = {value!r}' for name, value in values.items()]
    notebook.cells.insert(parameters + 1, nbformat.v4.new_code_cell('\n'.join(lines)))


def test_the_notebook_runs_from_top_to_bottom(notebook, clone, packages, tmp_path):
    nbclient = pytest.importorskip('nbclient')
    pytest.importorskip('tensorflow_text')
    set_parameters(notebook, SOURCE=str(tmp_path / 'text.txt'), DATA=str(tmp_path),
                   PRETRAIN_STEPS=16, SWEEP_STEPS=2, FINETUNE_STEPS=4)
    cells = {cell.id: cell for cell in notebook.cells}
    again = nbformat.v4.new_code_cell(  # another run in the first one's folder
        cells['pretrain-run'].source.replace('.py ', '.py --config.model.num_layers=2 '),
        metadata={'tags': ['raises-exception']})
    notebook.cells.append(again)
    where = {'timeout': 300, 'resources': {'metadata': {'path': clone / 'launch'}}}
    nbclient.NotebookClient(notebook, **where).execute()

    if 'BERT_JAX_COLAB_PYTHON' in os.environ:
        assert 'jax 0.7.2' in printed(cells['devices'])
    assert [path.name.partition('-')[0] for path in packages.glob('*.dist-info')] == ['bert_jax']
    check_result(cells['pretrain-run'], max_step=16, metric='eval/mlm_accuracy')
    assert '2 runs, ' in printed(cells['sweep-run'])
    last = printed(cells['finetune-run']).splitlines()[-1]
    assert re.fullmatch(r'accuracy [01]\.\d+ at step [1-4]', last)
    for name in ('pretrain-curves', 'finetune-curves'):
        assert 'image/png' in cells[name].outputs[0]['data']
    assert re.fullmatch(r'(.* -> (\S+ \(0\.\d\d\)(, |\n)){3}){5}', printed(cells['fill-mask']))
    assert re.fullmatch(r'(.* -> [01] \([01]\.\d\d\)\n){4}', printed(cells['classify']))
    assert printed(cells['module']) == printed(cells['classify'])
    assert 'It did not finish' in again.outputs[-1].evalue
    assert 'holds a run with model.num_layers=1, the config says 2' in printed(again)


def test_pretraining_runs_on_kaggle_s_eight_devices(
    monkeypatch, notebook, clone, packages, tmp_path
):
    """From a data set with the repository, which is read-only; Kaggle's Dockerfile sets the rest.

    https://github.com/Kaggle/docker-python/blob/main/tpu/Dockerfile
    """
    nbclient = pytest.importorskip('nbclient')
    pytest.importorskip('tensorflow_text')
    environment = {
        'KAGGLE_KERNEL_RUN_TYPE': 'Interactive', 'TPU_PROCESS_ADDRESSES': 'local', 'ISTPUVM': '1',
        'XLA_FLAGS': xla_flags(8)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    working = tmp_path / 'working'
    working.mkdir()
    for path in clone.glob('*/'):
        path.chmod(0o555)
    set_parameters(notebook, REPO=str(clone), SOURCE=str(tmp_path / 'text.txt'), PRETRAIN_STEPS=8)
    left_out = (
        'packages', 'pretrain-curves', 'sweep-run', 'finetune-run', 'finetune-curves', 'fill-mask',
        'classify', 'module')
    notebook.cells = [cell for cell in notebook.cells if cell.id not in left_out]
    where = {'timeout': 300, 'resources': {'metadata': {'path': working}}}
    nbclient.NotebookClient(notebook, **where).execute()

    cells = {cell.id: cell for cell in notebook.cells}
    assert printed(cells['devices']).count('CpuDevice') == 8
    check_result(cells['pretrain-run'], max_step=8, metric='eval/mlm_accuracy')
    assert (working / 'bert_jax' / 'runs' / 'colab' / 'pretrain-8' / 'metrics.jsonl').exists()
