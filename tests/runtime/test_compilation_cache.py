"""Compiled programs are kept: a second start takes them, and computes the same."""

import os
import time

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bert_jax.runtime import files
from bert_jax.runtime import process as ours
from bert_jax.train.step import init_state
from tests.train import toy

EVENTS: list[str] = []
jax.monitoring.register_event_listener(lambda event, **_: EVENTS.append(event))


@pytest.fixture
def cache():
    """jax as it is when a program starts, with every program worth keeping."""
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


def start_of_a_run(folder):
    """(parameters after two steps, programs taken from the cache), everything compiled anew."""
    jax.clear_caches()
    compilation_cache.reset_cache()
    jax.config.update('jax_compilation_cache_dir', None)
    ours.keep_compiled(folder)
    EVENTS.clear()
    optimizer, step = toy.sgd_step(toy.Toy(), toy.mesh(8))
    state = init_state(toy.Toy(), optimizer, toy.mesh(8), 0)
    for number in range(2):
        state, _ = step(state, toy.batch(number))
    return jax.device_get(state.params), EVENTS.count('/jax/compilation_cache/cache_hits')


@pytest.mark.parametrize('place', ['disk', 'bucket'])
def test_a_second_start_takes_what_the_first_compiled(cache, tmp_path, request, place):
    folder = tmp_path if place == 'disk' else request.getfixturevalue('bucket') + '/data'
    first, no_hits = start_of_a_run(folder)
    second, hits = start_of_a_run(folder)
    assert no_hits == 0 and hits >= 2
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert files.children(files.as_path(folder) / ours._platform())


def test_the_environment_goes_first(cache, tmp_path):
    jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'mine'))
    ours.keep_compiled(tmp_path / 'data')
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'mine')


@pytest.mark.parametrize('place', ['disk', 'bucket'])
def test_the_oldest_are_deleted_first(tmp_path, request, place):
    folder = files.as_path(tmp_path if place == 'disk' else request.getfixturevalue('bucket'))
    for number in range(4):
        path = folder / f'{number}-cache'
        path.write_bytes(bytes(100))
        if place == 'disk':
            os.utime(path, (1000 + number, 1000 + number))
        else:
            time.sleep(0.02)  # objects keep the moment of their upload
    ours._shrink(folder, 250)
    assert [path.name for path in files.children(folder)] == ['2-cache', '3-cache']
    ours._shrink(folder, 250)
    assert len(files.children(folder)) == 2
