"""The mesh, what its axes split, and the rows of a global batch on each host."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict
from jax.sharding import PartitionSpec as P

from bert_jax import sharding
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import Layout, arrange_devices, local_rows, make_mesh, to_global
from bert_jax.step.step import abstract_state
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
        leaves = flatten_dict(tree['bert'])
        for path, axes in expected.items():
            spec = tuple(leaves[path].sharding.spec)
            num_left_out = len(axes) - len(spec)
            assert spec + (None,) * num_left_out == axes, path
    assert state.step.sharding.spec == state.opt_state[0].count.sharding.spec == P()


@pytest.mark.parametrize('layout, shape, shards', [
    pytest.param(Layout(), (16, 8), 1, id='no mesh'),
    pytest.param(Layout(toy.mesh()), (16, 8), 1, id='one device'),
    pytest.param(Layout(make_mesh(8, 1, 1)), (2, 8), 8, id='data'),
    pytest.param(Layout(make_mesh(2, 2, 2)), (4, 4), 4, id='all axes'),
    pytest.param(Layout(make_mesh(1, 1, 8)), (16, 1), 1, id='tensor'),
])
def test_a_layout_splits_batch_and_heads(layout, shape, shards):
    x = jax.jit(lambda x: layout(x, 'batch', 'heads'))(jnp.ones((16, 8)))
    assert x.addressable_shards[0].data.shape == shape
    assert layout.batch_shards == shards


# Slices of 8 to 1,024 chips, as Google Cloud offers them.
CUBES = ('2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8', '8x8x16')
SQUARES = ('2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
TOPOLOGIES = {
    'TPU v4': CUBES, 'TPU v5': CUBES, 'TPU v5 lite': SQUARES, 'TPU v6 lite': SQUARES,
    'TPU7x': CUBES}


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
    """The devices of slices in jax's order: host by host, with 2 x 2 chips each."""
    cores = 2 if kind == 'TPU7x' else 1
    x, y, z = (*map(int, topology.split('x')), 1)[:3]
    chips = []
    for number in range(num_slices):
        for k, j, i in np.ndindex(z, y // 2, x // 2):
            process = ((number * z + k) * (y // 2) + j) * (x // 2) + i
            for dj, di in np.ndindex(2, 2):
                at = (2 * i + di, 2 * j + dj, k)
                index = at[0] + x * (at[1] + y * at[2])
                for core in range(cores):
                    id_ = cores * index + core + 100_000 * number
                    chips.append(Chip(id_, process, at, number, kind, core_on_chip=core))
    return chips


def shapes_of(num_chips: int) -> list[tuple[int, int, int]]:
    """Sizes of data, fsdp and tensor for a number of chips."""
    fsdp_and_tensor = [(1, 1), (4, 1), (8, 1), (num_chips, 1), (1, 2), (1, 4), (4, 2), (2, 4)]
    return [(num_chips // (fsdp * tensor), fsdp, tensor) for fsdp, tensor in fsdp_and_tensor]


def rows_by_process(devices: np.ndarray, num_processes: int) -> list[set[int]]:
    """The rows that each process needs of a batch with two for each part of it."""
    rows: list[set[int]] = [set() for _ in range(num_processes)]
    for (i, j, _), device in np.ndenumerate(devices):
        part = i * devices.shape[1] + j
        rows[device.process_index] |= {2 * part, 2 * part + 1}
    return rows


EVERY_SLICE = pytest.mark.parametrize('kind, topology', [
    (kind, topology) for kind, topologies in TOPOLOGIES.items() for topology in topologies])


@EVERY_SLICE
@pytest.mark.parametrize('num_slices', [1, 2])
def test_the_chips_of_every_slice_fill_every_mesh(kind, topology, num_slices):
    chips = slices_of(kind, topology, num_slices)
    for shape in shapes_of(len(chips)):
        if shape[0] % num_slices:
            with pytest.raises(InputError, match='cannot be split over 2 slices'):
                arrange_devices(shape, chips)
            continue
        devices = arrange_devices(shape, chips)
        assert devices.shape == shape
        assert {device.id for device in devices.flat} == {chip.id for chip in chips}
        # Only the data axis crosses the slow network between slices.
        slices = np.array([device.slice_index for device in devices.flat]).reshape(shape)
        assert (slices == slices[:, :1, :1]).all()


@EVERY_SLICE
@pytest.mark.parametrize('num_slices', [1, 2])
def test_hosts_share_out_the_rows_of_a_batch(kind, topology, num_slices):
    chips = slices_of(kind, topology, num_slices)
    num_processes = len(chips) // 4
    for shape in shapes_of(len(chips)):
        if shape[0] % num_slices:
            continue
        devices = arrange_devices(shape, chips)
        batch_size = 2 * shape[0] * shape[1]
        expected = rows_by_process(devices, num_processes)
        for process in range(0, num_processes, max(1, num_processes // 32)):
            rows = local_rows(types.SimpleNamespace(devices=devices), batch_size, process)
            assert rows.tolist() == sorted(expected[process])
        # A row is on several hosts only where its heads are split over them.
        copies = np.bincount([row for rows in expected for row in rows], minlength=batch_size)
        assert copies.min() >= 1 and copies.max() <= shape[2]


V5E_4X4 = slices_of('TPU v5 lite', '4x4')
V4_CUBE = slices_of('TPU v4', '4x4x4')


@pytest.mark.parametrize('chips, tensor, sizes', [
    pytest.param(V5E_4X4, 1, (2, 8, 1), id='lines'),
    pytest.param(slices_of('TPU v6 lite', '8x8'), 1, (2, 32, 1), id='longer lines'),
    pytest.param(slices_of('TPU v5 lite', '4x4', 2), 1, (4, 8, 1), id='two slices of lines'),
    pytest.param(slices_of('TPU v5 lite', '8x16'), 1, (8, 16, 1), id='a ring and a line'),
    pytest.param(slices_of('TPU v5 lite', '16x16', 2), 1, (32, 16, 1), id='two slices'),
    pytest.param(slices_of('TPU v5 lite', '4x8'), 2, (2, 8, 2), id='tensor axis'),
    pytest.param(slices_of('TPU v5 lite', '2x2'), 1, (1, 4, 1), id='square of neighbours'),
    pytest.param(V4_CUBE, 1, (16, 4, 1), id='cube'),
    pytest.param(slices_of('TPU7x', '2x2x1'), 1, (1, 8, 1), id='two devices a chip'),
    pytest.param(slices_of('TPU7x', '4x4x4'), 1, (16, 8, 1), id='a ring of them'),
])
def test_fsdp_spans_a_ring_or_half_of_a_slice_if_neither_size_is_given(chips, tensor, sizes):
    assert sharding.mesh_sizes(-1, -1, tensor, chips) == sizes


@pytest.mark.parametrize('tensor, sizes', [(1, (4, 8, 1)), (2, (4, 4, 2)), (8, (4, 1, 8))])
def test_fsdp_spans_the_gpus_of_a_host(tensor, sizes):
    gpus = [types.SimpleNamespace(platform='gpu', process_index=i // 8) for i in range(32)]
    assert sharding.mesh_sizes(-1, -1, tensor, gpus) == sizes


def test_an_axis_of_minus_one_takes_what_is_left():
    assert sharding.mesh_sizes(-1, 8, 2, V4_CUBE) == (4, 8, 2)
    assert sharding.mesh_sizes(2, -1, 1, V4_CUBE) == (2, 32, 1)


def test_sizes_that_are_given_stay():
    assert sharding.mesh_sizes(2, 32, 1, V4_CUBE) == (2, 32, 1)


@pytest.mark.extras
@pytest.mark.parametrize('kind, name', [
    ('TPU v4', 'v4:4x4x4'), ('TPU v5', 'v5p:2x2x4'), ('TPU v5 lite', 'v5e:8x16'),
    ('TPU v6 lite', 'v6e:16x16'), ('TPU7x', 'tpu7x:4x4x4')])
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

    def make_array(shape, sharding, shard):
        return [shard((slice(start, start + 2),)).tolist() for start in (2, 12)]

    monkeypatch.setattr(jax, 'make_array_from_callback', make_array)
    assert to_global(make_mesh(8, 1, 1), {'x': 10 * rows}, 16, rows) == {
        'x': [[20, 30], [120, 130]]}
