"""The mesh, what its axes split, and the rows of a global batch on each host."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from bert_jax import sharding
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import Layout, arrange_devices, local_rows, make_mesh, to_global
from bert_jax.train.step import abstract_state
from tests.train import toy


def test_parameters_and_moments_are_split_as_the_rules_say():
    task = Pretraining(ModelConfig(vocab_size=300, num_layers=3, hidden_size=128, num_heads=4,
                                  intermediate_size=256))
    state = abstract_state(task, optax.adam(1e-3), make_mesh(2, 2, 2))
    layer = ('encoder', 'layer_1')
    both = ('fsdp', 'data')
    expected = {
        ('embeddings', 'word_embeddings'): ((*both, 'tensor'), None),
        ('embeddings', 'position_embeddings'): (both, None),
        ('embeddings', 'token_type_embeddings'): (None, None),  # small
        ('embeddings', 'LayerNorm', 'scale'): (None,),
        (*layer, 'attention', 'self', 'qkv', 'kernel'): (both, None, 'tensor', None),
        (*layer, 'attention', 'self', 'qkv', 'bias'): (None, 'tensor', None),
        # Two axes split the 4 heads, the third axis their dims.
        (*layer, 'attention', 'output', 'dense', 'kernel'): (('fsdp', 'tensor'), 'data', None),
        (*layer, 'intermediate', 'dense', 'kernel'): (both, 'tensor'),
        (*layer, 'intermediate', 'dense', 'bias'): ('tensor',),
        (*layer, 'output', 'dense', 'kernel'): ((*both, 'tensor'), None),
        ('pooler', 'dense', 'kernel'): (both, None)}
    for tree in (state.params, state.opt_state[0].mu, state.opt_state[0].nu):
        for path, axes in expected.items():
            spec = tuple(functools.reduce(lambda x, key: x[key], path, tree['bert']).sharding.spec)
            assert spec + (None,) * (len(axes) - len(spec)) == axes, path
    assert state.step.sharding.spec == state.opt_state[0].count.sharding.spec == P()


@pytest.mark.parametrize('layout, shape, shards', [
    (Layout(), (16, 8), 1), (Layout(toy.mesh()), (16, 8), 1),
    (Layout(make_mesh(8, 1, 1)), (2, 8), 8), (Layout(make_mesh(2, 2, 2)), (4, 4), 4),
    (Layout(make_mesh(1, 1, 8)), (16, 1), 1)])
def test_a_layout_splits_batch_and_heads(layout, shape, shards):
    x = jax.jit(lambda x: layout(x, 'batch', 'heads'))(jnp.ones((16, 8)))
    assert x.addressable_shards[0].data.shape == shape
    assert layout.batch_shards == shards


# Slices of 8 to 1,024 chips, as Google Cloud offers them.
SLICES = {
    ('TPU v4', 'TPU v5'): '2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16',
    ('TPU v5 lite', 'TPU v6 lite'): '2x4 4x4 4x8 8x8 8x16 16x16'}


@dataclasses.dataclass(frozen=True)
class Chip:
    """A device as a TPU runtime describes it."""

    id: int
    process_index: int
    coords: tuple[int, int, int]
    slice_index: int
    device_kind: str
    platform: str = 'tpu'
    core_on_chip: int = 0


def slices_of(kind: str, topology: str, num_slices: int = 1) -> list[Chip]:
    """The chips of slices in jax's order: host by host, with 2 x 2 of them each."""
    x, y, z = (*map(int, topology.split('x')), 1)[:3]
    chips = []
    for number in range(num_slices):
        for k, j, i in np.ndindex(z, y // 2, x // 2):
            process = ((number * z + k) * (y // 2) + j) * (x // 2) + i
            for dj, di in np.ndindex(2, 2):
                at = (2 * i + di, 2 * j + dj, k)
                index = at[0] + x * (at[1] + y * at[2])
                chips.append(Chip(index + 100_000 * number, process, at, number, kind))
    return chips


@pytest.mark.parametrize('kind, topology', [
    (kind, topology) for kinds, topologies in SLICES.items() for kind in kinds
    for topology in topologies.split()])
def test_every_slice_takes_every_mesh_and_hosts_share_out_the_rows(kind, topology):
    for num_slices in (1, 2):
        chips = slices_of(kind, topology, num_slices)
        for f, t in ((1, 1), (4, 1), (8, 1), (len(chips), 1), (1, 2), (1, 4), (4, 2), (2, 4)):
            shape = len(chips) // (f * t), f, t
            if shape[0] % num_slices:
                with pytest.raises(InputError, match='cannot be split over 2 slices'):
                    arrange_devices(shape, chips)
                continue
            devices = arrange_devices(shape, chips)
            assert devices.shape == shape
            assert {d.id for d in devices.flat} == {d.id for d in chips}
            # Only the data axis crosses the slow network between slices.
            parts = np.array([d.slice_index for d in devices.flat]).reshape(shape)
            assert (parts == parts[:, :1, :1]).all()
            batch = 2 * shape[0] * shape[1]
            wanted = [set() for _ in range(len(chips) // 4)]
            for (i, j, _), device in np.ndenumerate(devices):
                block = 2 * (i * shape[1] + j)
                wanted[device.process_index] |= {block, block + 1}
            for process in range(0, len(wanted), max(1, len(wanted) // 32)):
                rows = local_rows(types.SimpleNamespace(devices=devices), batch, process)
                assert rows.tolist() == sorted(wanted[process])
            # A row is on several hosts only where its heads are split over them.
            copies = np.bincount([row for rows in wanted for row in rows], minlength=batch)
            assert copies.min() >= 1 and copies.max() <= shape[2]


@pytest.mark.parametrize('kind, topology, num_slices, asked, sizes', [
    # Both are -1: fsdp spans an axis of the torus.
    ('TPU v5 lite', '4x4', 1, (-1, -1, 1), (4, 4, 1)),
    ('TPU v5 lite', '16x16', 2, (-1, -1, 1), (32, 16, 1)),
    ('TPU v5 lite', '4x8', 1, (-1, -1, 2), (2, 8, 2)),
    ('TPU v5 lite', '2x2', 1, (-1, -1, 1), (1, 4, 1)),
    ('TPU v4', '4x4x4', 1, (-1, -1, 1), (16, 4, 1)),
    # One is -1, or none.
    ('TPU v4', '4x4x4', 1, (-1, 8, 2), (4, 8, 2)),
    ('TPU v4', '4x4x4', 1, (2, 32, 1), (2, 32, 1))])
def test_axes_of_minus_one_take_what_is_left(kind, topology, num_slices, asked, sizes):
    assert sharding.mesh_sizes(*asked, slices_of(kind, topology, num_slices)) == sizes


@pytest.mark.extras
@pytest.mark.parametrize('kind, name', [
    ('TPU v4', 'v4:4x4x4'), ('TPU v5', 'v5p:2x2x4'), ('TPU v5 lite', 'v5e:8x16'),
    ('TPU v6 lite', 'v6e:16x16')])
def test_the_chips_of_these_tests_are_those_of_the_compiler_s_topologies(monkeypatch, kind, name):
    pytest.importorskip('libtpu', reason='libtpu (the extra `tpu`) is not installed')
    for key, value in {'TPU_SKIP_MDS_QUERY': '1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1'}.items():
        monkeypatch.setenv(key, value)
    from jax.experimental import topologies

    options = {'chip_config_name': 'megacore'} if kind == 'TPU v4' else {}
    real = topologies.get_topology_desc(platform='tpu', topology_name=name, **options).devices
    fake = slices_of(kind, name.partition(':')[2])
    for ours, theirs in zip(fake, real, strict=True):
        for name in ('id', 'process_index', 'device_kind', 'core_on_chip'):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert ours.coords == tuple(theirs.coords)


def test_rows_of_a_host_need_not_be_contiguous(monkeypatch):
    """What `to_global` hands to the devices that hold the second and the seventh part."""
    rows = np.array([2, 3, 12, 13])
    monkeypatch.setattr(jax, 'make_array_from_callback', lambda shape, _, shard: [
        shard((slice(start, start + 2),)).tolist() for start in (2, 12)])
    assert to_global(make_mesh(8, 1, 1), {'x': 10 * rows}, 16, rows) == {
        'x': [[20, 30], [120, 130]]}
