"""Workers in processes that are killed: the store is that of a single one, byte for byte."""

import os
import random
import signal
import subprocess
import time

import pytest

from bert_jax.runtime import files
from tests.conftest import ROOT
from tests.corpus.test_store_building import _random_texts, content
from tests.programs import python

pytestmark = pytest.mark.slow
SECONDS = 0.01  # a batch


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    """A pattern of twelve files of 35 documents, of 13 kB in all, in some 4 shares."""
    folder = tmp_path_factory.mktemp('text')
    for number in range(12):
        documents = _random_texts(35, seed=number)
        (folder / f'{number:02}.txt').write_text('\n\n'.join(documents))
    return f'{folder}/*.txt'


@pytest.fixture(scope='module')
def expected(text, tmp_path_factory):
    """The files of the store that one process makes on a disk."""
    folder = tmp_path_factory.mktemp('alone')
    command = [*python(), '-m', 'tests.corpus.store_worker', text, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    [store] = (folder / 'stores').iterdir()
    found = content(store)
    assert len([name for name in found if name.endswith('.npz')]) >= 10
    return found


class Worker:
    """A process that builds a store, in a group of its own."""

    def __init__(self, text, folder):
        command = [*python(), '-m', 'tests.corpus.store_worker', text, str(folder), str(SECONDS)]
        self._process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    def is_done(self):
        status = self._process.poll()
        assert status in (None, 0)
        return status == 0

    def kill(self):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self):
        assert self._process.wait(900) == 0


def _built(folder):
    [store] = files.children(folder / 'stores')
    return content(store)


def _has_begun(folder):
    """Whether a first part is in a folder."""
    for store in files.children(folder / 'stores'):
        if any(path.suffix == '.npz' for path in files.children(store)):
            return True
    return False


def test_a_worker_that_is_killed_again_and_again(tmp_path, text, expected):
    draw = random.Random(0)
    folder = files.as_path(tmp_path)
    for _ in range(3):
        worker = Worker(text, folder)
        while not _has_begun(folder) and not worker.is_done():
            time.sleep(0.05)
        time.sleep(draw.uniform(0.0, 0.5))
        worker.kill()
    Worker(text, folder).wait()
    assert _built(folder) == expected


@pytest.mark.parametrize('comes_back', [False, True])
def test_two_of_three_workers_are_killed(tmp_path, folder, text, expected, comes_back):
    draw = random.Random(comes_back)
    workers = [Worker(text, folder) for _ in range(3)]
    for number in range(2):
        while not _has_begun(folder) and not workers[number].is_done():
            time.sleep(0.05)
        time.sleep(draw.uniform(0.0, 0.5))
        workers[number].kill()
        if comes_back:
            workers[number] = Worker(text, folder)
    workers[2].wait()
    if comes_back:
        workers[0].wait()
        workers[1].wait()
    assert _built(folder) == expected
