"""The mesh, which axes split what, and rows of a global batch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from bert_jax.model.layers import BertConfig
from bert_jax.sharding import MESH_AXES, Layout, local_rows, make_mesh, to_global
from bert_jax.tasks.pretrain import Pretraining
from bert_jax.train.state import abstract_state


def one_device():
    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), MESH_AXES)


@pytest.mark.parametrize('axes', [(8, 1, 1), (2, 2, 2), (1, 8, 1), (4, 1, 2)])
def test_a_mesh_has_auto_axes_and_takes_every_device(axes):
    mesh = make_mesh(*axes)
    assert tuple(mesh.shape.items()) == tuple(zip(MESH_AXES, axes))
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert set(mesh.devices.flat) == set(jax.devices())


@pytest.mark.parametrize('scan', [False, True])
def test_parameters_and_moments_are_split_as_the_rules_say(scan):
    task = Pretraining(BertConfig(vocab_size=300, num_layers=2, hidden_size=32, num_heads=4,
                                  intermediate_size=64, scan_layers=scan))
    state = abstract_state(task, optax.adam(1e-3), make_mesh(2, 2, 2))
    layers, prefix = ('layer', (None,)) if scan else ('layer_1', ())
    expected = {
        ('embeddings', 'word_embeddings'): ('tensor', 'fsdp'),
        ('embeddings', 'position_embeddings'): (None, 'fsdp'),
        ('embeddings', 'LayerNorm', 'scale'): (None,),
        ('encoder', layers, 'attention', 'self', 'qkv', 'kernel'):
            (*prefix, 'fsdp', None, 'tensor', None),
        ('encoder', layers, 'attention', 'self', 'qkv', 'bias'): (*prefix, None, 'tensor', None),
        ('encoder', layers, 'attention', 'output', 'dense', 'kernel'):
            (*prefix, 'tensor', None, 'fsdp'),
        ('encoder', layers, 'attention', 'output', 'dense', 'bias'): (*prefix, None),
        ('encoder', layers, 'intermediate', 'dense', 'kernel'): (*prefix, 'fsdp', 'tensor'),
        ('encoder', layers, 'intermediate', 'dense', 'bias'): (*prefix, 'tensor'),
        ('encoder', layers, 'output', 'dense', 'kernel'): (*prefix, 'tensor', 'fsdp'),
        ('encoder', layers, 'output', 'LayerNorm', 'bias'): (*prefix, None),
        ('pooler', 'dense', 'kernel'): ('fsdp', None),
    }
    for tree in (state.params, state.opt_state[0].mu, state.opt_state[0].nu):
        for path, axes in expected.items():
            leaf = tree['bert']
            for key in path:
                leaf = leaf[key]
            spec = tuple(leaf.sharding.spec)
            assert spec + (None,) * (len(axes) - len(spec)) == axes, path
    assert state.step.sharding.spec == state.opt_state[0].count.sharding.spec == P()


def test_a_layout_without_a_mesh_or_with_one_device_does_nothing():
    x = jnp.ones((8, 4))
    for layout in (Layout(), Layout(one_device())):
        assert layout(x, 'batch', None) is x
        assert layout.batch_shards == 1


@pytest.mark.parametrize('axes, shape, shards', [
    ((8, 1, 1), (2, 8), 8), ((2, 2, 2), (4, 4), 4), ((1, 1, 8), (16, 1), 1),
])
def test_a_layout_splits_batch_and_heads(axes, shape, shards):
    layout = Layout(make_mesh(*axes))
    x = jax.jit(lambda x: layout(x, 'batch', 'heads'))(jnp.ones((16, 8)))
    assert x.addressable_shards[0].data.shape == shape
    assert layout.batch_shards == shards


@pytest.mark.parametrize('axes', [(8, 1, 1), (2, 2, 2), (1, 8, 1), (1, 1, 8), (1, 1, 1)])
def test_rows_become_a_global_batch_in_their_order(axes):
    mesh = one_device() if axes == (1, 1, 1) else make_mesh(*axes)
    rows = local_rows(mesh, 16)
    assert rows == range(16)  # one process needs them all
    batch = {'ids': np.arange(48).reshape(16, 3), 'labels': np.arange(16)}
    on_mesh = to_global(mesh, batch, 16, rows)
    for name, x in batch.items():
        np.testing.assert_array_equal(on_mesh[name], x)
        size = 16 // (axes[0] * axes[1])
        for shard in on_mesh[name].addressable_shards:
            assert shard.data.shape[0] == size
            np.testing.assert_array_equal(shard.data, x[shard.index])


class _Rows:
    """A sharding of which this process holds only some rows."""

    def __init__(self, *slices):
        self._slices = slices

    def addressable_devices_indices_map(self, shape):
        return {i: (part,) for i, part in enumerate(self._slices)}


@pytest.mark.parametrize('slices, rows', [
    ([slice(4, 6), slice(6, 8)], range(4, 8)),
    ([slice(6, 8), slice(4, 6), slice(4, 6)], range(4, 8)),  # any order, and replicas
    ([slice(None)], range(16)),
    ([slice(0, 4), slice(8, 12)], None),
])
def test_a_process_takes_the_one_run_of_rows_that_its_devices_hold(monkeypatch, slices, rows):
    monkeypatch.setattr('bert_jax.sharding.batch_sharding', lambda mesh: _Rows(*slices))
    if rows is None:
        with pytest.raises(NotImplementedError, match='not contiguous'):
            local_rows(None, 16)
    else:
        assert local_rows(None, 16) == rows
