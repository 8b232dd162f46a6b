"""How a run of several processes begins and ends: small processes that open its session."""

import json
import os
import re
import shutil
import subprocess

import pytest

from tests.conftest import ROOT, xla_flags
from tests.programs import python
from tests.tiny_runs import TINY

pytestmark = pytest.mark.slow

# How each host begins, perhaps with other code or not at all.
START = """
import os, sys, time
if os.environ['JAX_PROCESS_ID'] == os.environ.get('ABSENT'):
    sys.exit()
code = os.environ.get(f'CODE_{os.environ["JAX_PROCESS_ID"]}')
sys.path[0] = code or os.getcwd()
if code:  # the fork has the modules of the repository
    for name in [name for name in sys.modules if name.partition('.')[0] == 'bert_jax']:
        del sys.modules[name]
from bert_jax.runtime import hosts, joining
tell = joining.tell
joining.tell = lambda line: tell(f'host {os.environ["JAX_PROCESS_ID"]}: {line}')
"""
# Opens the session of a run in the folder `run`, and does there what the test says.
SESSION = """
from bert_jax.runtime.errors import Diverged
from bert_jax.runtime.files import as_path
from bert_jax.train.session import run_session
with run_session(as_path(sys.argv[1])) as session:
    BODY
"""


def run_hosts(count, folder, body='pass', **environment):
    """(exit status, standard error) of hosts that run a body within their session."""
    status, _, errors = run_program(
        count, START + SESSION.replace('BODY', body), folder / 'run', **environment)
    return status, errors


def run_program(count, program, *arguments, **environment):
    """(exit status, standard output, standard error) of hosts that run a program."""
    process = subprocess.run(
        [ROOT / 'launch' / 'local_hosts.sh', str(count), *python(), '-c', program, *arguments],
        text=True, capture_output=True, timeout=400, cwd=ROOT,
        env=os.environ | {
            'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': xla_flags(1), 'LOCAL_HOSTS_GRACE': '120',
            **environment})
    return process.returncode, process.stdout, process.stderr


def test_hosts_with_other_code_are_refused_with_their_files(tmp_path):
    theirs = tmp_path / 'theirs'
    being_written = shutil.ignore_patterns('*.pyc.*')
    shutil.copytree(ROOT / 'bert_jax', theirs / 'bert_jax', ignore=being_written)
    with open(theirs / 'bert_jax/step/optimizers.py', 'a') as file:
        file.write('# another\n')
    (theirs / 'bert_jax/train/more.py').touch()
    status, errors = run_hosts(
        3, tmp_path, CODE_1=str(theirs), CODE_2=str(theirs))
    assert status == 2
    assert errors.count(
        'error: hosts have other code than host 0 (hosts 1, 2: bert_jax/step/optimizers.py, '
        'bert_jax/train/more.py is only there): install and set the same on all') == 3
    assert not (tmp_path / 'run').exists(), 'nothing is written'


# Once host 1 is there, host 0 finds that a minute has passed whenever it looks.
MINUTES_PASS = """
import itertools, types
greet = joining._Reception._greet
def greet_and_pass(*arguments):
    greet(*arguments)
    now = itertools.count(time.monotonic(), 60)
    joining.time = types.SimpleNamespace(monotonic=lambda: next(now), sleep=time.sleep)
joining._Reception._greet = greet_and_pass
joining._POLL_SECONDS = 0.02
"""


def test_hosts_that_do_not_come_are_named_while_the_others_wait_and_in_the_end(tmp_path):
    status, _, errors = run_program(
        3, START + MINUTES_PASS + SESSION.replace('BODY', 'pass'), tmp_path / 'run', ABSENT='2',
        BERT_JAX_JOIN_SECONDS='3600')
    assert status == 1
    told = re.findall(r'^host (\d): waiting for host 2 of 3, \d+ min$', errors, re.MULTILINE)
    assert set(told) == {'0', '1'}
    assert errors.count('error: host 2 of 3 did not come within 1 h 0 min: ') == 2


# Trains a tiny run, for whose data host 1 waits.
STARVES = """
from bert_jax import main
from bert_jax.step import step
from bert_jax.tasks.pretrain import PhaseRows
from bert_jax.watch import metrics_log
from tests.numpy_kernels import make_init_with_constants
step.make_init = make_init_with_constants
metrics_log.curves = lambda *_: None  # which takes a second
batches = PhaseRows.batches
def late(self, first_step):
    for batch in batches(self, first_step):
        time.sleep(0.15 if hosts.index() == 1 else 0)
        yield batch
PhaseRows.batches = late
main.main(['main', *sys.argv[1:]])
"""


def test_a_starved_host_is_seen(tmp_path):
    run = [*TINY, '--config.task=synthetic', '--config.train.steps=12',
           '--config.optimizer.name=bert_adamw',
           '--config.model.hidden_dropout=0', '--config.model.attention_dropout=0',
           f'--config.data.dir={tmp_path}', f'--workdir={tmp_path}/run']
    status, output, errors = run_program(2, START + STARVES, *run)
    assert status == 0, errors
    lines = [line for line in output.splitlines() if 'wait ' in line]
    assert len(lines) == 3 and all(re.search(r' wait \d\d+% \(host 1\) ', line) for line in lines)
    assert re.search(r'goodput .*data \d\d?\.\d% \(host 1\)', output)
    records = map(json.loads, (tmp_path / 'run/metrics.jsonl').read_text().splitlines())
    logged = [record for record in records if 'train/data_wait' in record]
    assert len(logged) == 3 and {record['train/data_wait_host'] for record in logged} == {1}
    assert all(record['train/data_wait'] > 0.1 for record in logged)
    assert json.loads((tmp_path / 'run/goodput.json').read_text())['slowest_host']['data'] == 1


def test_a_run_that_diverges_ends_with_status_3_on_all_hosts(tmp_path):
    status, errors = run_hosts(2, tmp_path, "raise Diverged('step 7: loss nan', 7)")
    assert status == 3
    assert errors.count('error: step 7: loss nan') == 2
