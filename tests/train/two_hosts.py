"""What two processes do with checkpoints; each prints what it found. See test_two_hosts.py.

    two_hosts.py FOLDER
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from flax.traverse_util import flatten_dict

from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime import hosts
from bert_jax.train import checkpoint as restoring
from bert_jax.train import sharding
from bert_jax.train.checkpoint import Checkpoints
from bert_jax.train.run_directory import check_shared
from bert_jax.train.sharding import make_mesh
from bert_jax.train.step import abstract_state
from bert_jax.weights.formats import Weights, from_tree
from bert_jax.weights.warm_start import warm_start
from tests.train.toy import Toy

ADAM = optax.adam(1e-3)
POSITIONS = 'bert/embeddings/position_embeddings'
WORDS = 'bert/embeddings/word_embeddings'
MESHES = {'data': (8, 1, 1), 'both': (2, 4, 1), 'fsdp': (1, 8, 1)}


def numbers(x):
    """Values that follow from a shape."""
    return np.random.default_rng(sum(x.shape)).standard_normal(x.shape).astype(x.dtype)


def placed(abstract):
    """An array of `numbers` for each shape, laid out as it says."""
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, x.sharding, lambda i: numbers(x)[i]),
        abstract,
    )


def same(x, whole):
    """Whether this process's shards of an array are those of a whole one."""
    return all(np.array_equal(shard.data, whole[shard.index]) for shard in x.addressable_shards)


def fault_of(act):
    try:
        act()
    except Exception as error:
        return f'{type(error).__name__}: {error}'
    return ''


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
    loads = []
    load = restoring._load
    restoring._load = lambda *args: loads.append(0) or load(*args)
    for mesh in MESHES:
        loads.clear()
        restored = run.restore(abstract(mesh))
        params_and_moments = jax.tree.leaves((restored.params, restored.opt_state[0].mu))
        found[mesh] = {
            'same': all(same(x, numbers(x)) for x in params_and_moments),
            'step': int(restored.step), 'loads': len(loads),
        }

    def fail(*args):
        raise ConnectionError('reset')

    if hosts.index() == 1:
        restoring._load = fail
    found['fault'] = fault_of(lambda: run.restore(abstract('fsdp')))
    restoring._load = load
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
    """Published parameters with fewer positions, into parameters that are split over the hosts."""
    bert = ModelConfig(vocab_size=300, num_layers=1, hidden_size=32, num_heads=4,
                      intermediate_size=64, max_position_embeddings=64)
    fresh = placed(abstract_state(Pretraining(bert), ADAM, mesh).params)
    published = jax.tree.map(lambda x: numbers(x) + 1, fresh)
    params = from_tree(published, 300)
    params[POSITIONS] = params[POSITIONS][:40]
    these = Weights(params, vars(bert), 'pretraining', (), None, True, (), 'these')
    started = flatten_dict(
        warm_start(these, fresh, bert, head='pretraining', labels=(), vocab_file=None), sep='/')
    positions = started[POSITIONS]
    rows = np.arange(64)[:, None] < 40
    expected = flatten_dict(published, sep='/')
    expected[WORDS][300:] = 0  # rows of padding
    expected['cls/predictions/output_bias'][300:] = 0
    expected[POSITIONS] = np.where(rows, expected[POSITIONS], numbers(positions))
    wrong = [name for name, x in expected.items() if not same(started[name], x)]
    return {'wrong': wrong, 'split': not positions.is_fully_addressable}


def main(folder):
    sharding.LEAST_SPLIT = 1
    hosts.connect()
    own = folder / f'host{hosts.index()}'
    own.mkdir()
    found = {
        'shared': fault_of(lambda: check_shared(folder)),
        'own': fault_of(lambda: check_shared(own, seconds=1.0)),
    }
    found |= checkpoints(folder)
    found['warm'] = warm(make_mesh(*MESHES['fsdp']))
    print('found ' + json.dumps(found), flush=True)


if __name__ == '__main__':
    main(Path(sys.argv[1]))
