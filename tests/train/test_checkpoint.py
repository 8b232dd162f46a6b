"""Checkpoints: round trip, other meshes, other models, damage."""

import shutil

import jax
import numpy as np
import optax
import pytest
from toy import Toy, mesh

from bert_jax.errors import InputError
from bert_jax.train.checkpoint import Checkpoints
from bert_jax.train.state import abstract_state, init_state

ADAM = optax.adam(1e-3)


@pytest.fixture(scope='module')
def state():
    """A state whose every number is different, on eight devices."""
    fresh = init_state(Toy(), ADAM, mesh(8), 0)
    return jax.tree.map(lambda x: x + np.arange(x.size).reshape(x.shape).astype(x.dtype), fresh)


def abstract(axes=(8, 1, 1), task=None, optimizer=ADAM):
    return abstract_state(task or Toy(), optimizer, mesh(*axes))


def save(directory, state, steps, keep=10):
    checkpoints = Checkpoints(directory, keep)
    for step in steps:
        checkpoints.save(step, state.replace(step=state.step + step))
    checkpoints.close()


def restore(directory, target):
    checkpoints = Checkpoints(directory, 10)
    try:
        return checkpoints.restore(target)
    finally:
        checkpoints.close()


@pytest.mark.parametrize('axes', [(8, 1, 1), (2, 2, 2), (1, 8, 1), (1, 1, 1)])
def test_a_state_comes_back_on_any_mesh(tmp_path, state, axes):
    save(tmp_path, state, [5])
    target = abstract(axes)
    found = restore(tmp_path, target)
    assert found.step == 5
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found.replace(step=state.step)),
                 jax.device_get(state))
    for x, a in zip(jax.tree.leaves(found), jax.tree.leaves(target), strict=True):
        assert x.dtype == a.dtype and x.sharding.is_equivalent_to(a.sharding, x.ndim)


def test_without_checkpoints_there_is_nothing_to_restore(tmp_path):
    assert restore(tmp_path, abstract()) is None


def test_the_newest_are_kept_and_the_newest_is_taken(tmp_path, state):
    save(tmp_path, state, [1, 2, 10, 30], keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['10', '30']
    assert restore(tmp_path, abstract()).step == 30


def test_saving_a_step_again_is_no_error(tmp_path, state):
    save(tmp_path, state, [3, 3])
    save(tmp_path, state, [3])
    assert restore(tmp_path, abstract()).step == 3


@pytest.mark.parametrize('task, optimizer, named', [
    (Toy(width=32), ADAM, 'params/dense/bias is [16] there and [32] in the config'),
    (Toy(), optax.sgd(1e-3), 'it also has opt_state'),
    (Toy(), optax.chain(ADAM, optax.trace(0.9)), 'it has no opt_state'),
])
def test_another_model_or_optimizer_is_one_line_that_names_the_array(
    tmp_path, state, task, optimizer, named
):
    save(tmp_path, state, [4])
    with pytest.raises(InputError) as error:
        restore(tmp_path, abstract(task=task, optimizer=optimizer))
    message = str(error.value)
    assert named in message and str(tmp_path / '4') in message and '\n' not in message
    assert (tmp_path / '4').is_dir()  # it is not damaged, and stays


def cut_the_arrays(path):
    for file in (path / 'default' / 'd').iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty_every_file(path):
    for file in path.rglob('*'):
        if file.is_file():
            file.write_bytes(b'')


def lose_the_metadata(path):
    (path / 'default' / '_METADATA').unlink()


def lose_everything(path):
    shutil.rmtree(path)
    path.mkdir()


DAMAGES = [cut_the_arrays, empty_every_file, lose_the_metadata, lose_everything]


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_checkpoint_is_moved_aside_and_the_one_before_is_taken(
    tmp_path, state, damage, capsys
):
    save(tmp_path, state, [1, 2, 3])
    damage(tmp_path / '3')
    assert restore(tmp_path, abstract()).step == 2
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {'1', '2', '3.unreadable'}
    warning = capsys.readouterr().out
    assert '3 cannot be read' in warning and warning.count('\n') == 1
    # The step can be saved anew, and is what is taken next.
    save(tmp_path, state, [3])
    assert restore(tmp_path, abstract()).step == 3


def test_a_run_is_never_begun_again_silently_and_damage_is_kept(tmp_path, state):
    for _ in range(2):
        save(tmp_path, state, [3])
        cut_the_arrays(tmp_path / '3')
        with pytest.raises(InputError, match='no checkpoint that can be read'):
            restore(tmp_path, abstract())
    assert {path.name for path in tmp_path.iterdir()} == {'3.unreadable', '3.unreadable-2'}


def test_what_a_killed_process_was_writing_is_not_taken(tmp_path, state):
    save(tmp_path, state, [3])
    shutil.copytree(tmp_path / '3', tmp_path / '7.orbax-checkpoint-tmp')
    assert restore(tmp_path, abstract()).step == 3
