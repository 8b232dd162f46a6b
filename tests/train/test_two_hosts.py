"""What two processes share: checkpoints, which neither restores if one cannot read them, and a
batch whose examples are compared with each other.

    python -m tests.train.test_two_hosts FOLDER

is one of the processes: it prints what it found.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorstore
from flax.traverse_util import flatten_dict

from bert_jax import sharding
from bert_jax.config.bert_config import BertConfig
from bert_jax.heads.pretraining import Pretraining
from bert_jax.heads.retrieval import Retrieval
from bert_jax.kernels.dropout import dropout_keys
from bert_jax.model.layers import ModelConfig
from bert_jax.rows.packing import Plan, Units, packed_batch
from bert_jax.rows.sequences import Sequences
from bert_jax.run.checkpoint import Checkpoints
from bert_jax.run.resume_checks import check_shared
from bert_jax.runtime import connecting, hosts, shared_folders
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import Layout, local_rows, make_mesh, to_global
from bert_jax.step.gradients import global_gradient
from bert_jax.step.step import abstract_state
from bert_jax.weights.parameters import Weights, from_tree
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
    def place(x):
        whole = numbers(x)
        return jax.make_array_from_callback(x.shape, x.sharding, lambda index: whole[index])

    return jax.tree.map(place, abstract)


def has_shards_of(whole, x):
    """Whether this process's shards of an array are those of a whole one."""
    return all(np.array_equal(shard.data, whole[shard.index]) for shard in x.addressable_shards)


def abstract_toy(mesh):
    return abstract_state(Toy(), ADAM, mesh)


def at_step(state, step):
    return state.replace(step=state.step * 0 + step)


def save_steps(folder):
    """Saves steps 1, 2 and 3 of a state, and returns the state."""
    state = placed(abstract_toy(make_mesh(*MESHES['data'])))
    checkpoints = Checkpoints(folder, 9)
    for step in (1, 2, 3):
        checkpoints.save(step, at_step(state, step))
    checkpoints.close()
    return state


def restore_on(mesh, checkpoints):
    """What this process finds when the newest checkpoint is restored on a mesh."""
    with mock.patch('tensorstore.open', side_effect=tensorstore.open) as load:
        restored = checkpoints.restore(abstract_toy(mesh))
    params_and_moments = jax.tree.leaves((restored.params, restored.opt_state[0].mu))
    return {
        'same': all(has_shards_of(numbers(x), x) for x in params_and_moments),
        'step': int(restored.step),
        'reads': load.called,
    }


def restore_after_damage(folder, checkpoints):
    """The step that is restored after damage to step 3, and what is in the folder then."""
    if hosts.first():
        (folder / '3' / 'default' / 'manifest.ocdbt').unlink()
    hosts.barrier('damaged')
    restored = checkpoints.restore(abstract_toy(make_mesh(*MESHES['data'])))
    hosts.barrier('restored')
    return {
        'taken': int(restored.step),
        'left': sorted(path.name for path in folder.iterdir()),
    }


def save_and_restore(folder):
    """What this process finds in checkpoints that both save, restore, damage and save again."""
    state = save_steps(folder)
    checkpoints = Checkpoints(folder, 9)
    found = {}
    for name, axes in MESHES.items():
        found[name] = restore_on(make_mesh(*axes), checkpoints)
    found |= restore_after_damage(folder, checkpoints)
    checkpoints.save(3, at_step(state, 3))
    checkpoints.close()
    return found


def start_from_published(mesh):
    """Warm-starts parameters that are split over the hosts from ones with fewer positions."""
    config = ModelConfig(
        vocab_size=300,
        num_layers=1,
        hidden_size=32,
        num_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    fresh = placed(abstract_state(Pretraining(config), ADAM, mesh).params)
    published = jax.tree.map(lambda x: numbers(x) + 1, fresh)
    model = {field.name: getattr(config, field.name) for field in dataclasses.fields(BertConfig)}
    params = from_tree(published, 300)
    params[POSITIONS] = params[POSITIONS][:40]
    weights = Weights(
        params=params, model=model, head='pretraining', labels=(), vocab_file=None,
        lowercase=True, unused=(), source='these')
    started = flatten_dict(
        warm_start(weights, fresh, config, head='pretraining', labels=(), vocab_file=None),
        sep='/')
    expected = flatten_dict(published, sep='/')
    for name in ('bert/embeddings/word_embeddings', 'cls/predictions/output_bias'):
        expected[name][300:] = 0  # rows of padding
    expected[POSITIONS][40:] = expected[POSITIONS][:24]  # the table repeats
    return {
        'wrong': [name for name, x in expected.items() if not has_shards_of(x, started[name])],
        'split': not started[POSITIONS].is_fully_addressable,
    }


def loss_of_pairs(mesh):
    """The loss, and norms of gradients, of 16 queries that find their documents in the batch."""
    config = ModelConfig(
        vocab_size=300, num_layers=1, hidden_size=32, num_heads=4, intermediate_size=64,
        max_position_embeddings=64, layout=Layout(mesh))
    head = Retrieval(config, temperature=1.0)
    abstract = abstract_state(head, ADAM, mesh).params
    tokens = np.random.default_rng(0).integers(0, 300, 32 * 5).astype(np.int32)
    sequences = Sequences.of_segments(tokens, np.arange(0, len(tokens) + 1, 5), np.full(32, 5))
    units = Units(sequences, 2, labels={'text_ids': np.arange(32, dtype=np.int32).reshape(16, 2)})
    plan = Plan.row_each(units.lengths, np.arange(16)[None])
    local = local_rows(mesh, 16)
    batch = to_global(mesh, packed_batch(units, plan, 0, local), 16, local)
    shardings = jax.tree.map(lambda x: x.sharding, abstract)

    @jax.jit
    def compute(params, batch):
        keys = dropout_keys(7, 3, np.arange(16))
        grads, loss, _ = global_gradient(head, params, batch, keys, 1, mesh, shardings, 'float32')
        embeddings = flatten_dict(grads['bert']['embeddings'], sep='/')
        return {'loss': loss, 'norms': jax.tree.map(jnp.linalg.norm, embeddings)}

    return jax.tree.map(float, compute(placed(abstract), batch))


FOUND = 'found '  # begins the line that a process prints


@dataclasses.dataclass
class Run:
    """A run of two processes: its folder, and what each of them found."""

    folder: Path
    found: list[dict[str, Any]]


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp('run')
    # Each orders its sets in another way; what is compiled and sent must not depend on it.
    process = ['bash', '-c', 'PYTHONHASHSEED=$JAX_PROCESS_ID exec "$0" "$@"',
               sys.executable, '-m', 'tests.train.test_two_hosts', folder]
    ended = subprocess.run(
        [ROOT / 'launch' / 'local_hosts.sh', '2', *process],
        cwd=ROOT, text=True, capture_output=True, timeout=600,
        env=os.environ | {'XLA_FLAGS': xla_flags(4)})
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = ended.stdout.splitlines() + ended.stderr.splitlines()
    found = [json.loads(line.removeprefix(FOUND)) for line in lines if line.startswith(FOUND)]
    assert len(found) == 2
    return Run(folder, found)


def test_a_run_directory_that_hosts_do_not_share_is_refused_on_all(run):
    for found in run.found:
        assert 'not the same folder on all hosts (host 1 does not see' in found['own']


@pytest.mark.parametrize('mesh_name, readers', [
    ('data', [0]),
    ('both', [0]),
    ('fsdp', [0, 1]),
])
def test_one_replica_reads_and_all_have_the_state(run, mesh_name, readers):
    for host, found in enumerate(run.found):
        assert found[mesh_name] == {'same': True, 'step': 3, 'reads': host in readers}


def test_damage_is_moved_aside_once_and_both_take_the_one_before(run):
    for found in run.found:
        assert found['taken'] == 2
        assert found['left'] == ['1', '2', '3.unreadable']


@pytest.mark.parametrize('axes', [(1, 1, 1), (2, 2, 2)], ids=str)
def test_one_process_goes_on_from_what_two_saved(run, axes):
    checkpoints = Checkpoints(run.folder / 'checkpoints', 9)
    restored = checkpoints.restore(abstract_toy(mesh(*axes)))
    checkpoints.close()
    assert restored.step == 3
    for x in jax.tree.leaves((restored.params, restored.opt_state[0].nu)):
        np.testing.assert_array_equal(x, numbers(x))


def test_published_parameters_fill_the_shards_of_each_host(run):
    for found in run.found:
        assert found['warm'] == {'wrong': [], 'split': True}


def test_a_query_finds_its_document_among_those_of_both(run):
    """The loss and the gradient are those of one device, with all other documents as rivals."""
    expected = loss_of_pairs(mesh(1, 1, 1))
    assert expected['loss'] > 1
    for found in run.found:
        for axes in ('data', 'fsdp'):
            assert found['pairs'][axes]['loss'] == pytest.approx(expected['loss'], rel=1e-5)
            assert found['pairs'][axes]['norms'] == pytest.approx(expected['norms'], rel=1e-4)


def main(folder):
    """Prints what one of the two processes finds."""
    sharding.LEAST_SPLIT = 1
    connecting.connect()
    own = folder / f'host{hosts.index()}'
    own.mkdir()
    check_shared(folder)
    shared_folders._PATIENCE_SECONDS = 0.1
    with pytest.raises(InputError) as fault:
        check_shared(own)
    found = {
        'own': str(fault.value),
        'warm': start_from_published(make_mesh(*MESHES['fsdp'])),
        'pairs': {name: loss_of_pairs(make_mesh(*MESHES[name])) for name in ('data', 'fsdp')},
        **save_and_restore(folder / 'checkpoints'),
    }
    print(FOUND + json.dumps(found), flush=True)


if __name__ == '__main__':
    main(Path(sys.argv[1]))
