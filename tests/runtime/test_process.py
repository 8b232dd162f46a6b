"""One process: packages that it lacks or does not need, its errors, chip and compiled programs."""

import errno
import importlib.util
import os
import sys

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bert_jax.runtime import files, process
from bert_jax.runtime.errors import InputError, Unavailable
from bert_jax.runtime.process import answer, find_chip, loading_tensorflow
from tests.conftest import run_python


def test_missing_tensorflow_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorflow_text', None)  # importing it fails
    told = r'^reading needs tensorflow_text, which is not installed: .* --no-deps .*text==2'
    with pytest.raises(InputError, match=told), loading_tensorflow('reading'):
        import tensorflow_text  # noqa: F401


def test_any_other_missing_module_is_raised_unchanged():
    with pytest.raises(ModuleNotFoundError, match='no_such_module'), loading_tensorflow('reading'):
        import no_such_module  # noqa: F401


@pytest.mark.parametrize('fault, status, words', [
    (OSError('Forbidden: b/x/o\nrefused'), 1, 'a bucket refuses or is away (Forbidden: b/x/o)'),
    (type('HttpError', (Exception,), {'__module__': 'gcsfs.retry'})('later, 503'), 1,
     'is away (later, 503)'),
    (ValueError('UNAVAILABLE: Error writing "x/manifest"'), 1, 'goes on from its last checkpoint'),
    (Unavailable('gs://x cannot be reached'), 1, 'gs://x cannot be reached'),
    (ValueError('7 is no rate'), 1, 'this may be a fault of bert_jax'),
    (InputError('no such file'), 2, 'no such file'),
    (KeyboardInterrupt(), 130, 'stopped'),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), '/x'), 1, 'the disk of /x is full'),
    (PermissionError(errno.EACCES, 'Permission denied', '/x'), 2, '/x: Permission denied: check'),
    (OSError(errno.EIO, 'Input/output error', '/x'), 1, 'the disk or network that it is on fails'),
    (MemoryError(), 1, 'out of memory (MemoryError)'),
    (RuntimeError('RESOURCE_EXHAUSTED: 9 GB\nof 8'), 1, 'out of memory (RESOURCE_EXHAUSTED: 9 GB)'),
    (RuntimeError("Unable to initialize backend 'tpu'"), 2, 'set JAX_PLATFORMS=cpu'),
    (UnicodeDecodeError('ascii', b'x', 0, 1, 'no'), 2, 'set PYTHONUTF8=1'),
])
def test_an_error_is_one_line_and_a_status(tmp_path, fault, status, words):
    line, found = answer(fault, log_folder=files.as_path(tmp_path))
    assert found == status and words in line and '\n' not in line


def test_a_device_that_does_not_start_is_bad_input_only_with_jax_platforms(monkeypatch):
    monkeypatch.delenv('JAX_PLATFORMS', raising=False)
    line, status = answer(RuntimeError("Unable to initialize backend 'tpu': UNAVAILABLE: busy"))
    assert status == 1 and 'JAX_PLATFORMS' not in line


@pytest.mark.parametrize('command', ['main', 'tools.preflight'])
def test_a_command_says_which_required_package_is_missing(command):
    code = (f'import runpy, sys; sys.modules["ml_collections"] = None; '
            f'runpy.run_module("bert_jax.{command}", run_name="__main__")')
    ended = run_python('-c', code)
    assert ended.returncode == 1
    assert ended.stderr.startswith('error: ml_collections is not installed: python -m pip ')
    assert ended.stderr.count('\n') == 1


@pytest.mark.parametrize('package, code, after', [
    ('torch', """
from pathlib import Path
from bert_jax.train.report import tensorboard
logger = tensorboard(Path(sys.argv[1]), 0)
logger.write(1, {'train/loss': 1.0})
logger.close()
""", ''),
    # Code that asks TensorFlow for Keras still gets it.
    ('keras', """
from bert_jax.runtime.process import loading_tensorflow
with loading_tensorflow('reading'):
    import tensorflow as tf
    import bert_jax.data.records
    import bert_jax.data.tokenize
""", 'tf.keras.layers.Dense'),
])
def test_a_run_does_not_load_what_it_does_not_use(tmp_path, package, code, after):
    assert importlib.util.find_spec(package) or pytest.skip(f'{package} is not installed')
    code = f'import sys\n{code}\nassert {package!r} not in sys.modules\n{after}'
    ended = run_python('-c', code, tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_without_a_tpu_none_is_looked_for(monkeypatch):
    """libtpu, where it is installed, would print errors."""
    code = 'from bert_jax.runtime import hosts; import jax; jax.devices()'
    monkeypatch.delenv('JAX_PLATFORMS')
    ended = run_python('-c', code)
    assert ended.returncode == 0 and 'TPU' not in ended.stderr, ended.stderr


@pytest.mark.parametrize('kind, name, peak', [
    ('TPU v3', 'v3', 123e12), ('TPU v4', 'v4', 275e12), ('TPU v5 lite', 'v5e', 197e12),
    ('TPU v5', 'v5p', 459e12), ('TPU v5p', 'v5p', 459e12), ('TPU v6 lite', 'v6e', 918e12),
    ('NVIDIA H100 80GB HBM3', 'H100', 989e12), ('cpu', '', 0), ('Tesla T4', '', 0),
])
def test_a_chip_is_found_by_its_device_kind(kind, name, peak):
    chip = find_chip(kind)
    assert (chip.name, chip.peak_flops) == (name, peak)
    if chip.memory_bytes:
        assert chip.bandwidth and chip.links and 1.0e9 < chip.clock < 1.8e9


EVENTS: list[str] = []
jax.monitoring.register_event_listener(lambda event, **_: EVENTS.append(event))


@pytest.fixture
def cache():
    """jax without a compilation cache, as at a start; quick compilations are worth keeping too."""
    fields = ('jax_compilation_cache_dir', 'jax_persistent_cache_min_compile_time_secs',
              'jax_persistent_cache_enable_xla_caches')
    before = {name: getattr(jax.config, name) for name in fields}
    jax.config.update('jax_compilation_cache_dir', None)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_a_second_start_reuses_what_the_first_compiled(cache, folder):
    hits = []
    for _ in range(2):
        jax.clear_caches()
        compilation_cache.reset_cache()
        jax.config.update('jax_compilation_cache_dir', None)
        process.keep_compiled(folder)
        EVENTS.clear()
        assert jax.jit(lambda x: 17 * x + 1)(2) == 35
        hits.append(EVENTS.count('/jax/compilation_cache/cache_hits'))
    assert hits[0] == 0 and hits[1] >= 1
    platform, = files.children(folder)
    assert platform.name.startswith('cpu-') and files.children(platform)


def test_a_cache_folder_from_the_environment_is_kept(cache, tmp_path):
    jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'mine'))
    process.keep_compiled(tmp_path / 'data')
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'mine')


def test_shrinking_a_folder_deletes_the_oldest_files(tmp_path):
    folder = files.as_path(tmp_path)
    for number in range(4):
        path = tmp_path / f'{number}-cache'
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + number, 1000 + number))
    for _ in range(2):
        process.shrink(folder, 250)
        assert [path.name for path in files.children(folder)] == ['2-cache', '3-cache']
