"""Checkpoints of a sharded state: other meshes, other models, damage; the best evaluation's."""

import contextlib
import dataclasses
import errno
import re
import resource
import shutil
import threading
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from etils.epath.gpath import _GPath

from bert_jax.run import checkpoint
from bert_jax.run.checkpoint import Best, Checkpoints, Damaged, OtherOptimizer, read
from bert_jax.runtime import files
from bert_jax.runtime.errors import Diverged, InputError, SaveFailed
from bert_jax.runtime.pauses import Interrupted, interruptible
from bert_jax.step import optimizers
from bert_jax.step.step import abstract_state, make_init
from tests.conftest import wait_until
from tests.train.toy import Toy, mesh

ADAM = optax.adam(1e-3)


class MeanOfOlder(NamedTuple):
    """The state of a mean that does not say how many weights it is of."""

    step: Any
    mean: Any


def numbered(task):
    """A state on eight devices, with different numbers within each array."""
    def add_numbers(x):
        return x + np.arange(x.size).reshape(x.shape).astype(x.dtype)

    fresh = make_init(task, ADAM, mesh(8))(0)
    return jax.tree.map(add_numbers, fresh)


@pytest.fixture(scope='module')
def state():
    return numbered(Toy())


def abstract(axes=(8, 1, 1), task=None, optimizer=ADAM):
    return abstract_state(task or Toy(), optimizer, mesh(*axes))


def assert_like(found, target):
    """Asserts that shapes, dtypes and shardings are those of an abstract tree."""
    for x, expected in zip(jax.tree.leaves(found), jax.tree.leaves(target), strict=True):
        assert x.shape == expected.shape
        assert x.dtype == expected.dtype
        assert x.sharding.is_equivalent_to(expected.sharding, x.ndim)


def names_in(folder):
    return {path.name for path in folder.iterdir()}


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
    target = abstract(axes)
    found = restore(saved, target)
    assert found.step == 3
    assert_equal(found.replace(step=state.step), state)
    assert_like(found, target)


@pytest.mark.parametrize(('least', 'cuts'), [(None, False), (1, True)])
def test_only_of_large_arrays_each_device_saves_a_part(tmp_path, state, monkeypatch, least, cuts):
    """Small ones would take a program for each shape, and the first save seconds."""
    if least is not None:
        monkeypatch.setattr(checkpoint, '_LEAST_PART', least)
    with mock.patch.object(jax.lax, 'slice_in_dim', wraps=jax.lax.slice_in_dim) as cut:
        save(tmp_path, state, [1])
    assert bool(cut.call_count) == cuts
    assert_equal(restore(tmp_path, abstract()).params, state.params)


def test_a_run_that_keeps_one_has_one_at_its_end(tmp_path, state):
    save(tmp_path, state, [1, 2, 3], keep=1)
    with contextlib.closing(Checkpoints(tmp_path, 1)) as checkpoints:
        checkpoints.finish()
    assert names_in(tmp_path) == {'3'}


def test_a_run_that_keeps_one_keeps_the_one_before_until_its_end(tmp_path, state):
    """The step after the newest checkpoint may show that it was no good."""
    save(tmp_path, state, [3], keep=1)
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(4, state)
    assert checkpoints.set_aside(4) == 'the last good checkpoint, of step 3, is kept'
    assert checkpoints.set_aside(5) == 'the last good checkpoint, of step 3, is kept'
    assert checkpoints.set_aside(3) == 'there is no good checkpoint'
    checkpoints.close()
    assert names_in(tmp_path) == {'3.diverged', '4.diverged'}
    assert restore(tmp_path, abstract()) is None


@dataclasses.dataclass
class KeptCase:
    """A run that keeps two checkpoints, which are due every `every` steps; 0: only at the end."""

    every: int
    saves: list[int]
    while_training: list[int]
    at_the_end: list[int]


@pytest.mark.parametrize('case', [
    # The newest two that were due, and 33.
    KeptCase(10, [10, 20, 23, 26, 30, 33], while_training=[20, 30, 33], at_the_end=[30, 33]),
    KeptCase(10, [3, 6, 9], while_training=[6, 9], at_the_end=[9]),
    KeptCase(0, [3, 6, 9, 57], while_training=[9, 57], at_the_end=[57]),
    KeptCase(10, [10, 20, 30], while_training=[20, 30], at_the_end=[20, 30]),
    KeptCase(1, [1, 2, 3], while_training=[2, 3], at_the_end=[2, 3]),
])
def test_checkpoints_between_those_that_are_due_push_none_out(tmp_path, state, case):
    with contextlib.closing(Checkpoints(tmp_path, 2, case.every)) as checkpoints:
        for step in case.saves:
            checkpoints.save(step, state)
    assert names_in(tmp_path) == set(map(str, case.while_training))
    with contextlib.closing(Checkpoints(tmp_path, 2, case.every)) as checkpoints:
        checkpoints.finish()
    assert names_in(tmp_path) == set(map(str, case.at_the_end))
    Checkpoints(tmp_path, 2, case.every).close()
    assert names_in(tmp_path) == set(map(str, case.at_the_end))


@pytest.mark.parametrize('part', ['params', 'opt_state'])
def test_a_state_that_is_not_finite_is_not_saved(tmp_path, state, part):
    def poisoned(x):
        if x.dtype != np.float32:
            return x
        first = (0,) * x.ndim
        return x.at[first].set(np.nan)

    bad = state.replace(**{part: jax.tree.map(poisoned, getattr(state, part))})
    with pytest.raises(Diverged, match=f'step 7: {part}/.* is not finite'):
        save(tmp_path, bad, [7])
    assert not list(tmp_path.iterdir())


def test_nothing_is_restored_from_an_empty_folder(tmp_path):
    assert restore(tmp_path, abstract()) is None


def test_the_newest_checkpoints_are_kept_and_the_newest_is_restored(tmp_path, state):
    save(tmp_path, state, [1, 2, 10, 30], keep=2)
    assert restore(tmp_path, abstract()).step == 30
    assert names_in(tmp_path) == {'10', '30'}


def test_a_step_saved_a_second_time_does_nothing(tmp_path, state):
    save(tmp_path, state, [10, 30, 30], keep=2)
    save(tmp_path, state, [30])
    assert restore(tmp_path, abstract()).step == 30
    assert names_in(tmp_path) == {'10', '30'}


def test_what_a_killed_process_was_saving_is_removed(tmp_path, state):
    save(tmp_path, state, [30])
    shutil.copytree(tmp_path / '30', tmp_path / '70.orbax-checkpoint-tmp')
    assert restore(tmp_path, abstract()).step == 30
    assert names_in(tmp_path) == {'30'}


@pytest.mark.parametrize('task, optimizer, named', [
    pytest.param(
        Toy(width=32), ADAM, r'params/dense/bias is \[16\] there and \[32\] in the config',
        id='other shape'),
    pytest.param(
        Toy(), optax.sgd(1e-3), 'opt_state/.* there and missing in', id='fewer arrays'),
    pytest.param(
        Toy(), optax.chain(ADAM, optax.trace(0.9)), 'opt_state/.* is missing there and',
        id='more arrays'),
])
def test_another_model_or_optimizer_is_refused_with_the_name_of_an_array(
    saved, task, optimizer, named
):
    with pytest.raises(InputError, match=f'{saved}/3 is of another .*: {named}'):
        restore(saved, abstract(task=task, optimizer=optimizer))
    assert (saved / '3').is_dir()  # it is not damaged, and stays


def test_a_scalar_that_an_older_checkpoint_lacks_is_given(tmp_path):
    mean = optimizers.end_with_mean(3, 9)
    new = make_init(Toy(), mean, mesh(8))(0)
    older = new.replace(opt_state=MeanOfOlder(new.opt_state.step, new.opt_state.mean))
    save(tmp_path, older, [7])
    target = abstract(optimizer=mean)
    with contextlib.closing(Checkpoints(tmp_path, 10)) as checkpoints:
        found = checkpoints.restore(target, {'num_averaged': lambda step: step - 6})
        with pytest.raises(OtherOptimizer, match='opt_state/num_averaged is missing there'):
            checkpoints.restore(target)
    assert_like(found, target)
    assert found.opt_state.num_averaged == 1
    assert_equal(found.params, new.params)


def cut_in_half(file):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(bytes(content))


@pytest.fixture
def copied(saved, tmp_path):
    """A folder of its own with checkpoints 2, 3."""
    for step in '23':
        shutil.copytree(saved / step, tmp_path / step)
    return tmp_path


def files_in(folder):
    return [path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()]


def is_damage_found(checkpoint, target, expected):
    """Whether reading a checkpoint finds damage; otherwise asserts that it reads what was saved."""
    try:
        tree = read(checkpoint, target)
    except Damaged:
        return True
    assert_equal(tree, expected)
    return False


@pytest.mark.parametrize('damage', [cut_in_half, flip_a_bit, Path.unlink])
def test_damage_in_any_file_is_found_or_does_no_harm(tmp_path, damage):
    large = Toy(width=512)  # small arrays lie within OCDBT's own index, which has checksums
    state = numbered(large)
    save(tmp_path, state, [3])
    checkpoint = tmp_path / '3'
    target = vars(abstract(task=large))
    expected = vars(state.replace(step=state.step + 3))
    all_files = files_in(checkpoint)
    found = set()
    for file in all_files:
        copy = tmp_path / file.replace('/', '-')
        shutil.copytree(checkpoint, copy)
        damage(copy / file)
        if is_damage_found(copy, target, expected):
            found.add(file)
    arrays = max(all_files, key=lambda file: (checkpoint / file).stat().st_size)
    assert found >= {'default/_METADATA', 'default/manifest.ocdbt', arrays}


@pytest.fixture
def second_damaged(tmp_path, state):
    """A folder of checkpoints 1; 2, which is damaged; and 3, which is empty."""
    save(tmp_path, state, [1, 2])
    cut_in_half(tmp_path / '2' / 'default' / 'manifest.ocdbt')
    (tmp_path / '3').mkdir()
    return tmp_path


def test_damaged_checkpoints_are_moved_aside_and_the_one_before_restored(second_damaged, capsys):
    assert restore(second_damaged, abstract()).step == 1
    assert names_in(second_damaged) == {'1', '2.unreadable', '3.unreadable'}
    warnings = capsys.readouterr().out.splitlines()
    steps = [re.search(r'/([0-9]) cannot be read', line)[1] for line in warnings]
    assert steps == ['3', '2']


def test_the_step_of_a_damaged_checkpoint_can_be_saved_again(second_damaged, state):
    restore(second_damaged, abstract())
    save(second_damaged, state, [3])
    assert restore(second_damaged, abstract()).step == 3


def test_a_checkpoint_damaged_again_is_set_aside_under_another_name(second_damaged, state):
    restore(second_damaged, abstract())
    save(second_damaged, state, [3])
    (second_damaged / '3' / 'default' / '_METADATA').unlink()
    assert restore(second_damaged, abstract()).step == 1
    assert {'3.unreadable', '3.unreadable-2'} <= names_in(second_damaged)


def test_if_no_checkpoint_can_be_read_none_is_moved_and_the_run_is_refused(copied):
    for step in '23':
        cut_in_half(copied / step / 'default' / '_METADATA')
    with pytest.raises(InputError, match=r'no checkpoint that can be read \(step 3: .*--workdir'):
        restore(copied, abstract())
    assert names_in(copied) == {'2', '3'}


@pytest.mark.parametrize('fault', [
    MemoryError('no more'),
    PermissionError(13, 'Permission denied'),
    TimeoutError('slow'),
    RuntimeError('RESOURCE_EXHAUSTED'),
    ValueError('UNAVAILABLE: Error opening "zarr" driver'),
], ids=str)
@pytest.mark.parametrize('calls', [
    pytest.param(['tensorstore.open'], id='arrays'),
    pytest.param(
        ['etils.epath.Path.read_text', 'etils.epath.gpath._GPath.open'], id='description'),
])
def test_an_error_other_than_damage_is_raised_and_nothing_is_moved(
    copied, monkeypatch, calls, fault
):
    for call in calls:
        monkeypatch.setattr(call, mock.Mock(side_effect=fault))
    with pytest.raises(type(fault), match=re.escape(str(fault))):
        restore(copied, abstract())
    assert names_in(copied) == {'2', '3'}


def test_a_damaged_checkpoint_in_a_bucket_is_moved_aside_and_saved_again(bucket, state):
    save(f'{bucket}/run', state, [1, 2, 3], keep=2)
    folder = files.as_path(f'{bucket}/run')
    (folder / '3' / 'default' / 'manifest.ocdbt').unlink()
    assert restore(f'{bucket}/run', abstract((1, 1, 1))).step == 2
    assert names_in(folder) == {'2', '3.unreadable'}
    save(f'{bucket}/run', state, [3])
    found = restore(f'{bucket}/run', abstract())
    assert found.step == 3
    assert_equal(found.params, state.params)


@contextlib.contextmanager
def full_disk(folder):
    full = OSError(errno.ENOSPC, 'No space left on device')
    with mock.patch('etils.epath.gpath._GPath.rename', side_effect=full):
        yield


@contextlib.contextmanager
def limited_files(folder):
    """As `ulimit -f` has it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def folder_that_is_gone(folder):
    aside = folder.with_name('aside')
    folder.rename(aside)
    folder.write_text('')  # root may write anywhere else
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


@pytest.mark.parametrize('broken, says', [
    (full_disk, r'the disk of .*checkpoints is full \(No space left on device\)'),
    (limited_files, 'File too large'),
    (folder_that_is_gone, 'checkpoints'),
])
def test_a_failed_save_names_its_cause_and_keeps_the_checkpoint_before(
    tmp_path, state, broken, says
):
    folder = tmp_path / 'checkpoints'
    save(folder, state, [1])
    says = f'the checkpoint of step 2 cannot be saved: .*{says}'
    with broken(folder), pytest.raises(SaveFailed, match=says):
        save(folder, state, [2])
    assert restore(folder, abstract()).step == 1


def test_a_save_that_fails_in_the_background_is_known_before_anybody_waits(tmp_path, state):
    """Its thread would wait for other hosts, for twenty minutes."""
    with full_disk(tmp_path):
        for opened in (Checkpoints(tmp_path / 'checkpoints', 2), Best(tmp_path / 'best', 'f1')):
            if isinstance(opened, Checkpoints):
                opened.save(1, state)
            else:
                with pytest.raises(SaveFailed):
                    opened.offer(1, {'f1': 0.5}, state.params)
            wait_until(lambda opened=opened: opened.fault() is not None, seconds=60)
            assert 'is full' in str(opened.fault())
            with pytest.raises(SaveFailed, match='of step 1 cannot be saved'):
                opened.close()


def test_a_stop_does_not_wait_until_the_best_parameters_are_written(tmp_path):
    """They are written beside the state, and the evaluation that is repeated finds them."""
    best = Best(tmp_path, 'f1')
    may_end = threading.Event()
    rename = _GPath.rename

    def wait_and_rename(path, target):
        assert may_end.wait(60)
        return rename(path, target)

    with mock.patch('etils.epath.gpath._GPath.rename', wait_and_rename):
        with pytest.raises(Interrupted), interruptible(lambda: True):
            best.offer(3, {'f1': 0.5}, params_of(3))
        may_end.set()
        best.close()
    again = Best(tmp_path, 'f1')
    assert again.step() == 3
    again.close()


def test_a_checkpoint_without_checksums_is_read(tmp_path, state):
    """Earlier versions saved none."""
    manager = ocp.CheckpointManager(tmp_path)
    manager.save(5, args=ocp.args.StandardSave(state))
    manager.close()
    assert_equal(restore(tmp_path, abstract()), state)


def params_of(value):
    """Parameters that all have this value."""
    def fill(x):
        return jax.device_put(np.full(x.shape, value, np.float32), x.sharding)

    return jax.tree.map(fill, abstract().params)


UNDEFINED = None


@pytest.mark.parametrize('scores, losses, best_step', [
    ([0.1, 0.5, 0.3], [3.0, 2.0, 1.0], 2),
    ([0.5, 0.5], [2.0, 2.0], 1),
    ([0.5, 0.5, 0.5], [320.0, 0.7, 0.8], 2),
    ([UNDEFINED, -1.0, UNDEFINED], [0.1, 2.0, 0.1], 2),
    ([UNDEFINED, UNDEFINED], [2.0, 1.0], 2),
], ids=str)
def test_the_highest_score_is_kept_and_of_equals_that_of_the_lowest_loss(
        tmp_path, scores, losses, best_step):
    for step, (score, loss) in enumerate(zip(scores, losses, strict=True), start=1):
        metrics = {'f1': score, 'loss': loss}
        if score is UNDEFINED:
            del metrics['f1']
        best = Best(tmp_path, 'f1')  # opened anew each time, as after a restart
        best.offer(step, metrics, params_of(step))
        best.close()
    best = Best(tmp_path, 'f1')
    found, params = best.restore(abstract((2, 2, 2)).params)
    assert found == best_step
    assert best.metrics() == {'f1': scores[best_step - 1], 'loss': losses[best_step - 1]}
    for x in jax.tree.leaves(params):
        assert (np.asarray(x) == best_step).all()
    best.close()
    steps = [path.name for path in tmp_path.iterdir() if path.name.isdigit()]
    assert steps == [str(best_step)]
