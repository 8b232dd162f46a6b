"""Checkpoints of a run of two processes: what one of them cannot read, neither restores.

    python -m tests.train.test_two_hosts FOLDER

is one of the processes: it prints what it found.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import optax
import pytest
import tensorstore
from flax.traverse_util import flatten_dict

from bert_jax import sharding
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import make_mesh
from bert_jax.train.checkpoint import Checkpoints
from bert_jax.train.step import abstract_state
from bert_jax.train.workdirs import check_shared
from bert_jax.weights.formats import Weights, from_tree
from bert_jax.weights.warm_start import warm_start
from tests.conftest import ROOT, xla_flags
from tests.train.toy import Toy, mesh

pytestmark = pytest.mark.slow

ADAM = optax.adam(1e-3)
POSITIONS = 'bert/embeddings/position_embeddings'
MESHES = {'data': (8, 1, 1), 'both': (2, 4, 1), 'fsdp': (1, 8, 1)}


def numbers(x):
    """Random values that depend only on the shape."""
    return np.random.default_rng(sum(x.shape)).standard_normal(x.shape).astype(x.dtype)


def placed(abstract):
    """An array of `numbers` for each abstract array, with its sharding."""
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, x.sharding, lambda i: numbers(x)[i]),
        abstract,
    )


def same(x, whole):
    """Whether this process's shards of an array are those of a whole one."""
    return all(np.array_equal(shard.data, whole[shard.index]) for shard in x.addressable_shards)


def checkpoints(folder):
    found = {}
    def abstract(mesh):
        return abstract_state(Toy(), ADAM, make_mesh(*MESHES[mesh]))

    state = placed(abstract('data'))
    run = Checkpoints(folder / 'checkpoints', 9)
    for step in (1, 2, 3):
        run.save(step, state.replace(step=state.step * 0 + step))
    run.close()

    run = Checkpoints(folder / 'checkpoints', 9)
    for axes in MESHES:
        with mock.patch('tensorstore.open', side_effect=tensorstore.open) as load:
            restored = run.restore(abstract(axes))
        params_and_moments = jax.tree.leaves((restored.params, restored.opt_state[0].mu))
        found[axes] = {
            'same': all(same(x, numbers(x)) for x in params_and_moments),
            'step': int(restored.step), 'reads': load.called,
        }

    if hosts.first():
        (folder / 'checkpoints' / '3' / 'default' / 'manifest.ocdbt').unlink()
    hosts.barrier('damaged')
    found['taken'] = int(run.restore(abstract('data')).step)
    hosts.barrier('restored')
    found['left'] = sorted(path.name for path in (folder / 'checkpoints').iterdir())
    run.save(3, state.replace(step=state.step * 0 + 3))
    run.close()
    return found


def warm(mesh):
    """Warm-starts parameters that are split over the hosts from ones with fewer positions."""
    bert = ModelConfig(vocab_size=300, num_layers=1, hidden_size=32, num_heads=4,
                      intermediate_size=64, max_position_embeddings=64)
    fresh = placed(abstract_state(Pretraining(bert), ADAM, mesh).params)
    published = jax.tree.map(lambda x: numbers(x) + 1, fresh)
    params = from_tree(published, 300)
    params[POSITIONS] = params[POSITIONS][:40]
    these = Weights(params, vars(bert), 'pretraining', (), None, True, (), 'these')
    started = flatten_dict(
        warm_start(these, fresh, bert, head='pretraining', labels=(), vocab_file=None), sep='/')
    expected = flatten_dict(published, sep='/')
    for name in ('bert/embeddings/word_embeddings', 'cls/predictions/output_bias'):
        expected[name][300:] = 0  # rows of padding
    expected[POSITIONS][40:] = expected[POSITIONS][:24]  # the table repeats
    wrong = [name for name, x in expected.items() if not same(started[name], x)]
    return {'wrong': wrong, 'split': not started[POSITIONS].is_fully_addressable}


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """(folder, what each process found)."""
    folder = tmp_path_factory.mktemp('run')
    ended = subprocess.run(
        [ROOT / 'launch' / 'local_hosts.sh', '2', sys.executable, '-m',
         'tests.train.test_two_hosts', folder],
        cwd=ROOT, text=True, capture_output=True, timeout=120,
        env=os.environ | {'XLA_FLAGS': xla_flags(4)})
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = [json.loads(line.removeprefix('found ')) for out in (ended.stdout, ended.stderr)
             for line in out.splitlines() if line.startswith('found ')]
    assert len(found) == 2
    return folder, found


def test_a_run_directory_that_hosts_do_not_share_is_refused_on_all(run):
    for found in run[1]:
        assert 'not the same folder on all hosts (host 1 does not see' in found['own']


@pytest.mark.parametrize('name, readers', [('data', [0]), ('both', [0]), ('fsdp', [0, 1])])
def test_one_replica_reads_and_all_have_the_state(run, name, readers):
    for host, found in enumerate(run[1]):
        assert found[name] == {'same': True, 'step': 3, 'reads': host in readers}


def test_damage_is_moved_aside_once_and_both_take_the_one_before(run):
    for found in run[1]:
        assert found['taken'] == 2
        assert found['left'] == ['1', '2', '3.unreadable']


def test_one_process_goes_on_from_what_two_saved(run):
    for axes in ((1, 1, 1), (2, 2, 2)):
        checkpoints = Checkpoints(run[0] / 'checkpoints', 9)
        found = checkpoints.restore(abstract_state(Toy(), ADAM, mesh(*axes)))
        checkpoints.close()
        assert found.step == 3
        for x in jax.tree.leaves((found.params, found.opt_state[0].nu)):
            np.testing.assert_array_equal(x, numbers(x))


def test_published_parameters_fill_the_shards_of_each_host(run):
    for found in run[1]:
        assert found['warm'] == {'wrong': [], 'split': True}


def main(folder):
    sharding.LEAST_SPLIT = 1
    hosts.connect()
    own = folder / f'host{hosts.index()}'
    own.mkdir()
    check_shared(folder)
    with pytest.raises(InputError) as fault:
        check_shared(own, seconds=1.0)
    found = {'own': str(fault.value), 'warm': warm(make_mesh(*MESHES['fsdp'])),
             **checkpoints(folder)}
    print('found ' + json.dumps(found), flush=True)


if __name__ == '__main__':
    main(Path(sys.argv[1]))
