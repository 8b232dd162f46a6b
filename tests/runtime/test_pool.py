"""The processes of a pool end with the block, and with their parent however it ends."""

import os
import subprocess
import sys
import time

import pytest

from bert_jax.runtime.process import process_pool

PARENT = """
import os, sys, time
from bert_jax.runtime.process import process_pool
with process_pool(2) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 1000)
    pool.submit(time.sleep, 1000)
    time.sleep(1)
    os.kill(os.getpid(), 9)
"""


def _runs(pid):
    try:
        with open(f'/proc/{pid}/stat') as file:
            return file.read().rpartition(')')[2].split()[0] != 'Z'
    except FileNotFoundError:
        return False


def _wait_for_the_end_of(pid):
    deadline = time.monotonic() + 60
    while _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != 'linux', reason='looks into /proc')
def test_processes_end_with_a_killed_parent():
    process = subprocess.run([sys.executable, '-c', PARENT], capture_output=True, text=True)
    assert process.returncode == -9, process.stderr
    _wait_for_the_end_of(int(process.stdout))


def test_what_is_going_on_at_the_end_of_the_block_is_given_up():
    started = time.monotonic()
    with pytest.raises(KeyError), process_pool(1) as pool:
        pid = pool.submit(os.getpid).result()
        pool.submit(time.sleep, 1000)
        raise KeyError
    assert time.monotonic() - started < 60
    _wait_for_the_end_of(pid)


def test_the_program_that_runs_is_not_loaded_again(tmp_path):
    """So a script needs no `if __name__ == '__main__'`, and a process starts quickly."""
    script = tmp_path / 'script.py'
    script.write_text('print("once")\nimport os\n'
                      'from bert_jax.runtime.process import process_pool\n'
                      'with process_pool(1) as pool: pool.submit(os.getpid).result()\n')
    process = subprocess.run([sys.executable, script], capture_output=True, text=True,
                             env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)})
    assert (process.returncode, process.stdout) == (0, 'once\n'), process.stderr
