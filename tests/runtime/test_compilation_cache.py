"""jax's cache of compiled programs in a folder of ours."""

import os
import threading
import warnings

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bert_jax import predict
from bert_jax.model import flops
from bert_jax.runtime import files
from bert_jax.runtime.compilation_cache import keep_compiled, shrink
from tests.conftest import RECORDED

EVENTS: list[str] = []
MAIN = threading.get_ident()


def note(event, **_):
    """Notes what jax does in the tests' thread; one of an earlier test may compile, too."""
    if threading.get_ident() == MAIN:
        EVENTS.append(event)


jax.monitoring.register_event_listener(note)


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
        keep_compiled(folder)
        EVENTS.clear()
        assert jax.jit(lambda x: 17 * x + 1)(2) == 35
        hits.append(EVENTS.count('/jax/compilation_cache/cache_hits'))
    assert hits[0] == 0 and hits[1] >= 1
    platform, = files.children(folder)
    assert platform.name.startswith('cpu-') and files.children(platform)


@pytest.mark.parametrize('num_bytes', [0, 100])
def test_half_a_program_is_kept_anew(cache, tmp_path, num_bytes, monkeypatch, capsys):
    monkeypatch.setattr(warnings, 'showwarning', lambda *_, **__: pytest.fail('not ours'))

    def start():
        jax.clear_caches()
        compilation_cache.reset_cache()
        jax.config.update('jax_compilation_cache_dir', None)
        with warnings.catch_warnings():
            keep_compiled(tmp_path)
            assert jax.jit(nineteenfold)(2) == 38
        [kept] = tmp_path.glob('cpu-*/jit_nineteenfold*-cache')
        return kept

    def nineteenfold(x):
        return 19 * x

    kept = start()
    content = kept.read_bytes()
    kept.write_bytes(content[:num_bytes])
    assert start().read_bytes() != content[:num_bytes]
    assert 'note: jit_nineteenfold is compiled again' in capsys.readouterr().err
    start()
    assert 'compiled again' not in capsys.readouterr().err


def test_a_cache_folder_from_the_environment_is_kept(cache, tmp_path):
    jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'mine'))
    keep_compiled(tmp_path / 'data')
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'mine')


def test_a_call_asks_for_one_program_which_the_next_process_finds(
    cache, tmp_path, monkeypatch
):
    requests = []
    hits = []
    # The first one also computes what no later call of a process does.
    for home in ('of another', 'own', 'own'):
        monkeypatch.setenv('HOME', str(tmp_path / home))
        jax.clear_caches()
        flops._matrices.cache_clear()  # as in a new process
        compilation_cache.reset_cache()
        jax.config.update('jax_compilation_cache_dir', None)
        model = predict.load(RECORDED / 'base')
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
        EVENTS.clear()
        model.vectors(['a bad cab'])
        requests.append(EVENTS.count('/jax/compilation_cache/compile_requests_use_cache'))
        hits.append(EVENTS.count('/jax/compilation_cache/cache_hits'))
    assert requests[0] <= 2 and requests[1:] == [1, 1]
    assert hits[1:] == [0, 1]


def test_shrinking_a_folder_deletes_the_oldest_files(tmp_path):
    folder = files.as_path(tmp_path)
    for number in range(4):
        path = tmp_path / f'{number}-cache'
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + number, 1000 + number))
    for _ in range(2):
        shrink(folder, 250)
        assert [path.name for path in files.children(folder)] == ['2-cache', '3-cache']
