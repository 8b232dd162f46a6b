"""Standard streams that are closed or full, in processes of their own."""

import os
import re
import subprocess

import pytest

from tests.conftest import ROOT, xla_flags
from tests.programs import python
from tests.tiny_runs import TINY

_MODEL = 'tests/fixtures/huggingface/pretraining'


@pytest.mark.slow
@pytest.mark.parametrize('command, status, says', [
    (f'predict features --model {_MODEL} <&-', 2, 'standard input is closed'),
    (f'predict features --model {_MODEL} a >&-', 2, 'standard output is closed'),
    (f'convert {_MODEL} {{folder}}/new --to bert_jax >&- 2>&-', 2, ''),
    (f'convert {_MODEL} {{folder}}/new --to bert_jax | true', 0, ''),
    (f'convert {_MODEL} {{folder}}/new --to bert_jax >/dev/full', 1, 'standard output is full'),
], ids=lambda value: value.partition(' --model')[0] if isinstance(value, str) else '')
def test_a_standard_stream_that_cannot_be_used_is_told_in_one_line(
    command, status, says, tmp_path, monkeypatch
):
    if '/dev/full' in command and not os.path.exists('/dev/full'):
        pytest.skip('there is no /dev/full here')
    monkeypatch.delenv('PYTHONUNBUFFERED', raising=False)
    line = f'{" ".join(python())} -m bert_jax.{command}'.replace('{folder}', str(tmp_path))
    ended = subprocess.run(
        line, shell=True, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, timeout=600,
        text=True)
    assert ended.returncode == status, ended.stderr
    assert 'Traceback' not in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.startswith('error:')]
    assert len(lines) == bool(says), ended.stderr
    assert re.search(says, '\n'.join(lines)), ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_outlives_the_reader_of_its_output(tmp_path, monkeypatch):
    monkeypatch.setenv('XLA_FLAGS', xla_flags(1))
    flags = (*TINY, '--config.task=synthetic',
             '--config.train.steps=4', '--config.train.max_eval_examples=16',
             f'--config.data.dir={tmp_path}/cache', f'--workdir={tmp_path}/run')
    command = f'{" ".join(python())} -m bert_jax.main {" ".join(flags)} | head -1'
    ended = subprocess.run(
        ['bash', '-c', f'{command}; exit ${{PIPESTATUS[0]}}'], cwd=ROOT, timeout=600,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding='utf-8')
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count('standard output takes nothing any more') == 1
    assert (tmp_path / 'run' / 'checkpoints' / '4').exists()
