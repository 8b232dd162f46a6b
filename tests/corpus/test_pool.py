"""The processes of a pool end with the block, and with their parent however it ends."""

import multiprocessing
import os
import sys
import time

import pytest

from bert_jax.corpus.pool import process_pool
from tests.conftest import run_python

PARENT = """
import os, sys, time
from bert_jax.corpus.pool import process_pool
with process_pool(2) as pool:
    pool.submit(os.getpid).result()
    pool.submit(time.sleep, 1000)
    pool.submit(time.sleep, 1000)
    os.kill(os.getpid(), 9)
"""


def test_processes_end_with_a_killed_parent():
    # Returns only when the last process that holds standard output has ended.
    process = run_python('-c', PARENT)
    assert process.returncode == -9, process.stderr


def test_tasks_that_still_run_at_the_end_of_the_block_are_abandoned():
    before = multiprocessing.active_children()
    started = time.monotonic()
    with pytest.raises(KeyError), process_pool(1) as pool:
        pool.submit(os.getpid).result()
        pool.submit(time.sleep, 1000)
        raise KeyError
    assert time.monotonic() - started < 60
    assert set(multiprocessing.active_children()) <= set(before)


def test_workers_do_not_run_the_script_again(tmp_path):
    """So a script needs no `if __name__ == '__main__'`, and a process starts quickly."""
    script = tmp_path / 'script.py'
    script.write_text('print("once")\nimport os\n'
                      'from bert_jax.corpus.pool import process_pool\n'
                      'with process_pool(1) as pool: pool.submit(os.getpid).result()\n')
    process = run_python(script, PYTHONPATH=os.pathsep.join(sys.path))
    assert (process.returncode, process.stdout) == (0, 'once\n'), process.stderr
