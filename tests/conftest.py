"""Shared fixtures. Tests run on eight virtual CPU devices."""

import contextlib
import gc
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

# Most of the time goes into compiling models that are too small to be worth optimizing. The second
# flag halves it, and the third, one piece instead of many, saves a tenth of the rest; jax 0.11 does
# not have them. The user's flags apply too, except another number of
# devices. Processes that this one starts, and which may import this module, have theirs from it.
if 'BERT_JAX_TESTS' not in os.environ:
    os.environ['BERT_JAX_TESTS'] = str(os.getpid())  # of the first process of the tests
    _users_flags = os.environ.get('XLA_FLAGS', '').split()
    _flags = [flag for flag in _users_flags if 'device_count=' not in flag]
    _flags.append('--xla_force_host_platform_device_count=8')
    if version('jaxlib').startswith('0.10.'):
        _flags.append('--xla_cpu_use_fusion_emitters=false')
        _flags.append('--xla_cpu_parallel_codegen_split_count=1')
    os.environ['XLA_FLAGS'] = ' '.join(_flags)
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ['HF_HUB_OFFLINE'] = '1'  # the hub is tested with a stand-in
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('GLIBC_TUNABLES', 'glibc.malloc.hugetlb=1')  # as the launch scripts do
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    # Tests start many whole runs, which share their compiled programs in this folder. It is deleted
    # with this process; the processes that it starts (pytest-xdist's too) inherit it.
    _COMPILED = tempfile.TemporaryDirectory(prefix='bert_jax_compiled_')
    os.environ['JAX_COMPILATION_CACHE_DIR'] = _COMPILED.name
    os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.3')
if os.environ.pop('PYTHONDONTWRITEBYTECODE', ''):
    # As images of containers often have it. Each process that a test starts would compile what it
    # imports of this repository, which takes some seconds.
    sys.dont_write_bytecode = False

import pytest

from bert_jax.runtime import files  # before etils, for which it sets the environment
from tests.quick import (  # noqa: F401
    count_seconds,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
)

# An eighth of the time would go into looking for garbage in what packages have imported.
gc.set_threshold(100_000, 50, 100)
# Half of the time of tests that write many files would go into waiting for the disk. No test ends
# with a power failure; one that is about flushing counts the calls. What is no open file still
# raises OSError.
os.fsync = lambda file: os.fstat(file if isinstance(file, int) else file.fileno())
ROOT = Path(__file__).resolve().parent.parent
# Models of transformers, with their recorded outputs, a folder each.
RECORDED = ROOT / 'tests' / 'fixtures' / 'huggingface'


def pytest_configure(config):
    count_seconds(config)


def pytest_collection_finish():
    """Modules and tests stay until the end."""
    gc.collect()
    gc.freeze()


def _most_memory() -> int:
    """The most memory that this process has had so far, in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


_memory_at_last = _most_memory()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Drops compiled programs after a file with which memory has grown; else it would be 6 GB."""
    global _memory_at_last
    ends_file = nextitem is None or nextitem.path != item.path
    if ends_file and _most_memory() > _memory_at_last + 200_000 and 'jax' in sys.modules:
        sys.modules['jax'].clear_caches()
        gc.collect()
        _memory_at_last = _most_memory()


_STORE_NOTHING = frozenset({'answers', 'api', 'kernels', 'model', 'step', 'tasks'})


@contextlib.contextmanager
def storing_no_programs() -> Iterator[None]:
    """For what no other process compiles: to store a program takes a tenth of compiling it."""
    import jax

    least = 'jax_persistent_cache_min_compile_time_secs'
    before = getattr(jax.config, least)
    jax.config.update(least, float('inf'))
    try:
        yield
    finally:
        jax.config.update(least, before)


@pytest.fixture(scope='module', autouse=True)
def stored_programs(request):
    """Compiled programs are stored for other processes, but not those of some folders."""
    if request.path.parent.name in _STORE_NOTHING and 'jax' in sys.modules:
        with storing_no_programs():
            yield
    else:
        yield


def xla_flags(devices: int) -> str:
    """XLA_FLAGS for a process with this many virtual devices."""
    return re.sub(r'count=\d+', f'count={devices}', os.environ['XLA_FLAGS'])


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> None:
    """Returns when the condition holds; fails if it does not hold within `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, 'it did not happen'
        time.sleep(0.02)


def run_python(*arguments: object, stdin: str = '', **environment: str):
    """Runs Python in the repository's root; the completed process, with its output as text."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, input=stdin, capture_output=True,
        encoding='utf-8', timeout=900)


def check_golden(file, lines):
    """Compares lines with a file of tests/golden, which UPDATE_GOLDEN=1 rewrites."""
    golden = ROOT / 'tests' / 'golden' / file
    text = '\n'.join(lines) + '\n'
    if os.environ.get('UPDATE_GOLDEN'):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.fixture(scope='session')
def shared_data() -> Path:
    """The folder of real data: $BERT_JAX_TEST_DATA, or `../shared/data` beside the repository."""
    beside = ROOT.parent / 'shared' / 'data'
    path = Path(os.environ.get('BERT_JAX_TEST_DATA') or beside)
    if not path.is_dir():
        pytest.skip(f'real data is not here ({path}); set BERT_JAX_TEST_DATA to its folder')
    return path


@pytest.fixture(scope='session')
def tokenized(shared_data) -> list[dict]:
    """Hard lines, each a `text` with the original program's tokens for each vocabulary."""
    with gzip.open(shared_data / 'tokenizer_reference' / 'tokens.jsonl.gz', 'rt') as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope='session')
def bucket_server():
    """An object store on loopback; the environment sends this process and its children there."""
    for package in ('gcsfs', 'gcp_storage_emulator'):
        pytest.importorskip(package, reason=f'buckets need {package}, which is not installed')
    from tests.bucket_server import BucketServer

    server = BucketServer()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def bucket(bucket_server) -> str:
    """gs://NAME of a new, empty bucket."""
    return bucket_server.make_bucket(f'test-{len(bucket_server.storage.buckets)}')


@pytest.fixture
def bucket_name(bucket) -> str:
    """The name of that bucket, as requests have it."""
    return bucket.removeprefix('gs://')


@pytest.fixture(params=['disk', 'bucket'])
def folder(request, tmp_path):
    """A folder on a disk, which exists, and then one in a bucket, where none need be made."""
    if request.param == 'disk':
        return files.as_path(tmp_path)
    return files.as_path(request.getfixturevalue('bucket')) / 'folder'
