"""Checkpoints of a sharded state: other meshes, other models, damage; the best evaluation's."""

import contextlib
import errno
import re
import shutil
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from toy import Toy, mesh

from bert_jax.runtime import files
from bert_jax.runtime.errors import Diverged, InputError
from bert_jax.train.checkpoint import Best, Checkpoints, Damaged, read
from bert_jax.train.step import abstract_state, make_init

ADAM = optax.adam(1e-3)


def numbered(task):
    """A state on eight devices, with different numbers within each array."""
    fresh = make_init(task, ADAM, mesh(8))(0)
    return jax.tree.map(lambda x: x + np.arange(x.size).reshape(x.shape).astype(x.dtype), fresh)


@pytest.fixture(scope='module')
def state():
    return numbered(Toy())


def abstract(axes=(8, 1, 1), task=None, optimizer=ADAM):
    return abstract_state(task or Toy(), optimizer, mesh(*axes))


def assert_as(found, target):
    """Asserts that shapes, dtypes and shardings are those of an abstract tree."""
    for x, a in zip(jax.tree.leaves(found), jax.tree.leaves(target), strict=True):
        assert (x.shape, x.dtype) == (a.shape, a.dtype)
        assert x.sharding.is_equivalent_to(a.sharding, x.ndim)


def save(directory, state, steps, keep=10):
    with contextlib.closing(Checkpoints(directory, keep)) as checkpoints:
        for step in steps:
            checkpoints.save(step, state.replace(step=state.step + step))


def restore(directory, target):
    with contextlib.closing(Checkpoints(directory, 10)) as checkpoints:
        return checkpoints.restore(target)


def assert_equal(found, state):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(state))


@pytest.fixture(scope='module')
def saved(state, tmp_path_factory):
    """A folder with checkpoints 1, 2, 3."""
    folder = tmp_path_factory.mktemp('saved')
    save(folder, state, [1, 2, 3])
    return folder


@pytest.mark.parametrize('axes', [(8, 1, 1), (2, 2, 2), (1, 8, 1), (1, 1, 1)])
def test_a_state_comes_back_on_any_mesh(saved, state, axes):
    found = restore(saved, target := abstract(axes))
    assert found.step == 3
    assert_equal(found.replace(step=state.step), state)
    assert_as(found, target)


def test_a_run_that_keeps_one_keeps_the_one_before_until_its_end(tmp_path, state):
    save(tmp_path, state, [1, 2, 3], keep=1)
    with contextlib.closing(Checkpoints(tmp_path, 1)) as checkpoints:
        checkpoints.finish()
    assert [path.name for path in tmp_path.iterdir()] == ['3']
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(4, state)
    assert checkpoints.set_aside(4) == 'the last good checkpoint, of step 3, is kept'
    assert checkpoints.set_aside(5) == 'the last good checkpoint, of step 3, is kept'
    assert checkpoints.set_aside(3) == 'there is no good checkpoint'
    checkpoints.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ['3.diverged', '4.diverged']
    assert restore(tmp_path, abstract()) is None


@pytest.mark.parametrize('every, steps, training, ended', [
    (10, [10, 20, 23, 26, 30, 33], [20, 30, 33], [30, 33]),  # the newest two that were due, and 33
    (10, [3, 6, 9], [6, 9], [9]), (0, [3, 6, 9, 57], [9, 57], [57]),
    (10, [10, 20, 30], [20, 30], [20, 30]),
])
def test_checkpoints_between_those_that_are_due_push_none_out(
    tmp_path, state, every, steps, training, ended
):
    checkpoints = Checkpoints(tmp_path, 2, every)
    for expected in (training, ended):
        for step in steps:
            checkpoints.save(step, state)
        if expected is ended:
            checkpoints.finish()
        checkpoints.close()
        assert sorted(int(path.name) for path in tmp_path.iterdir()) == expected
        checkpoints, steps = Checkpoints(tmp_path, 2, every), []
    checkpoints.close()


@pytest.mark.parametrize('part', ['params', 'opt_state'])
def test_a_state_that_is_not_finite_is_not_saved(tmp_path, state, part):
    def poisoned(x):
        return x.at[(0,) * x.ndim].set(np.nan) if x.dtype == np.float32 else x

    bad = state.replace(**{part: jax.tree.map(poisoned, getattr(state, part))})
    with pytest.raises(Diverged, match=f'step 7: {part}/.* is not finite'):
        save(tmp_path, bad, [7])
    assert not list(tmp_path.iterdir())


def test_the_newest_checkpoints_are_kept_and_the_newest_is_restored(tmp_path, state):
    assert restore(tmp_path, abstract()) is None
    save(tmp_path, state, [1, 2, 10, 30, 30], keep=2)
    save(tmp_path, state, [30])  # a second time, which does nothing
    shutil.copytree(tmp_path / '30', tmp_path / '70.orbax-checkpoint-tmp')  # of a killed process
    assert restore(tmp_path, abstract()).step == 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ['10', '30']


@pytest.mark.parametrize('task, optimizer, named', [
    (Toy(width=32), ADAM, r'params/dense/bias is \[16\] there and \[32\] in the config'),
    (Toy(), optax.sgd(1e-3), 'opt_state/.* there and missing in'),
    (Toy(), optax.chain(ADAM, optax.trace(0.9)), 'opt_state/.* is missing there and'),
])
def test_another_model_or_optimizer_is_refused_with_the_name_of_an_array(
    saved, task, optimizer, named
):
    with pytest.raises(InputError, match=f'{saved}/3 is of another .*: {named}'):
        restore(saved, abstract(task=task, optimizer=optimizer))
    assert (saved / '3').is_dir()  # it is not damaged, and stays


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(bytes(content))


@pytest.fixture
def copied(saved, tmp_path):
    """A folder of its own with checkpoints 2, 3."""
    for step in '23':
        shutil.copytree(saved / step, tmp_path / step)
    return tmp_path


@pytest.mark.parametrize('damage', [cut, flip, Path.unlink])
def test_damage_in_any_file_is_found_or_does_no_harm(tmp_path, damage):
    large = Toy(width=512)  # small arrays lie within OCDBT's own index, which has checksums
    state = numbered(large)
    save(tmp_path, state, [3])
    whole = tmp_path / '3'
    files = [path.relative_to(whole) for path in whole.rglob('*') if path.is_file()]
    found = set()
    for file in files:
        copy = tmp_path / file.as_posix().replace('/', '-')
        shutil.copytree(whole, copy)
        damage(copy / file)
        try:
            tree = read(copy, vars(abstract(task=large)))
        except Damaged:
            found.add(file.as_posix())
            continue
        assert_equal(tree, vars(state.replace(step=state.step + 3)))
    arrays = max(files, key=lambda file: (whole / file).stat().st_size).as_posix()
    assert found >= {'default/_METADATA', 'default/manifest.ocdbt', arrays}


def test_a_damaged_checkpoint_is_moved_aside_and_the_one_before_restored(tmp_path, state, capsys):
    save(tmp_path, state, [1, 2])
    (tmp_path / '3').mkdir()
    cut(tmp_path / '2' / 'default' / 'manifest.ocdbt')
    assert restore(tmp_path, abstract()).step == 1
    assert {path.name for path in tmp_path.iterdir()} == {'1', '2.unreadable', '3.unreadable'}
    warnings = capsys.readouterr().out.splitlines()
    assert [re.search(r'/([0-9]) cannot be read', line)[1] for line in warnings] == ['3', '2']
    # The step can be saved again and is then restored; if it is damaged again, both are set aside.
    save(tmp_path, state, [3])
    assert restore(tmp_path, abstract()).step == 3
    (tmp_path / '3' / 'default' / '_METADATA').unlink()
    assert restore(tmp_path, abstract()).step == 1
    assert (tmp_path / '3.unreadable-2').is_dir()


def test_if_no_checkpoint_can_be_read_none_is_moved_and_the_run_is_refused(copied):
    for step in '23':
        cut(copied / step / 'default' / '_METADATA')
    with pytest.raises(InputError, match=r'no checkpoint that can be read \(step 3: .*--workdir'):
        restore(copied, abstract())
    assert {path.name for path in copied.iterdir()} == {'2', '3'}


@pytest.mark.parametrize('fault', [
    MemoryError('no more'), PermissionError(13, 'Permission denied'), TimeoutError('slow'),
    RuntimeError('RESOURCE_EXHAUSTED'), ValueError('UNAVAILABLE: Error opening "zarr" driver'),
], ids=str)
@pytest.mark.parametrize('calls', [
    ['tensorstore.open'], ['etils.epath.Path.read_text', 'etils.epath.gpath._GPath.open'],
], ids=['arrays', 'description'])
def test_an_error_other_than_damage_is_raised_and_nothing_is_moved(
    copied, monkeypatch, calls, fault
):
    for call in calls:
        monkeypatch.setattr(call, mock.Mock(side_effect=fault))
    with pytest.raises(type(fault), match=re.escape(str(fault))):
        restore(copied, abstract())
    assert {path.name for path in copied.iterdir()} == {'2', '3'}


def test_a_damaged_checkpoint_in_a_bucket_is_moved_aside_and_saved_again(bucket, state):
    save(f'{bucket}/run', state, [1, 2, 3], keep=2)
    folder = files.as_path(f'{bucket}/run')
    (folder / '3' / 'default' / 'manifest.ocdbt').unlink()
    assert restore(f'{bucket}/run', abstract((1, 1, 1))).step == 2
    assert {path.name for path in folder.iterdir()} == {'2', '3.unreadable'}
    save(f'{bucket}/run', state, [3])
    found = restore(f'{bucket}/run', abstract())
    assert found.step == 3
    assert_equal(found.params, state.params)


def test_a_failed_save_raises_its_cause_and_keeps_the_checkpoint_before(tmp_path, state):
    save(tmp_path, state, [1])
    full = OSError(errno.ENOSPC, 'No space left on device')
    with mock.patch('etils.epath.gpath._GPath.rename', side_effect=full), \
            pytest.raises(OSError, match='No space left on device'):
        save(tmp_path, state, [2])
    assert restore(tmp_path, abstract()).step == 1


def test_a_checkpoint_without_checksums_is_read(tmp_path, state):
    """Earlier versions saved none."""
    manager = ocp.CheckpointManager(tmp_path)
    manager.save(5, args=ocp.args.StandardSave(state))
    manager.close()
    assert_equal(restore(tmp_path, abstract()), state)


def params_of(value):
    return jax.tree.map(
        lambda x: jax.device_put(np.full(x.shape, value, np.float32), x.sharding),
        abstract().params)


@pytest.mark.parametrize('scores,step', [([0.1, 0.5, 0.3], 2), ([0.5, 0.5], 1), ([-1.0, 0.0], 2)])
def test_the_highest_score_is_kept_and_the_first_of_equals(tmp_path, scores, step):
    for number, score in enumerate(scores, 1):
        best = Best(tmp_path, 'f1')  # opened anew each time, as after a restart
        best.offer(number, {'f1': score, 'loss': float(number)}, params_of(number))
        best.close()
    best = Best(tmp_path, 'f1')
    found, params = best.restore(abstract((2, 2, 2)).params)
    assert found == step
    assert best.metrics() == {'f1': scores[step - 1], 'loss': float(step)}
    assert all((np.asarray(x) == step).all() for x in jax.tree.leaves(params))
    best.close()
    assert [path.name for path in tmp_path.iterdir() if path.name.isdigit()] == [str(step)]
