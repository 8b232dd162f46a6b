"""Times of messages on the links of small slices, computed by hand."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from bert_jax.tools.preflight.groups import read_groups
from bert_jax.tools.preflight.links import LINKS, Leg, Network, open_network


def network(*shape, wraps):
    """Chips numbered row by row, whose links carry 1 byte/s in a direction."""
    places = tuple(itertools.product(*[range(size) for size in shape]))
    return Network(places, shape, (wraps,) * len(shape), bandwidth=1.0, latency=0.0)


MESH = network(4, 4, wraps=False)
TORUS = network(16, 16, wraps=True)
CUBE = network(4, 4, 4, wraps=True)
FIRST_ROW = ((0, 1, 2, 3),)
ROWS = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
WHOLE_ROW = (tuple(range(16)),)
TWO_COLORS = ((Leg(0, 4), Leg(1, 4)), (Leg(1, 4), Leg(0, 4)))


@dataclasses.dataclass(kw_only=True)
class MessageCase:
    """A message of 16 bytes: where, what, between whom, by which strategy, and its seconds."""

    network: Network
    kind: str
    groups: tuple = ()
    orders: tuple = ()
    seconds: float


@pytest.mark.parametrize('case', [
    pytest.param(MessageCase(
        network=MESH, kind='all-gather', groups=ROWS, seconds=12),
        id='the chip at the end of a line receives 12 bytes through one link'),
    pytest.param(MessageCase(
        network=MESH, kind='all-gather', groups=COLUMNS, seconds=12), id='along the other axis'),
    pytest.param(MessageCase(
        network=MESH, kind='reduce-scatter', groups=ROWS, seconds=12), id='or sends 12'),
    pytest.param(MessageCase(
        network=MESH, kind='all-reduce', groups=ROWS, seconds=24), id='or both'),
    pytest.param(MessageCase(
        network=MESH, kind='all-gather', orders=TWO_COLORS, seconds=15 / 2),
        id='the chip at a corner receives 15 bytes through two links'),
    pytest.param(MessageCase(
        network=MESH, kind='all-gather', seconds=15 / 2), id='and where no strategy is told'),
    pytest.param(MessageCase(
        network=MESH, kind='all-gather', orders=TWO_COLORS[:1], seconds=12 + 3),
        id='one color uses one axis after the other: 3/4 of 16 bytes, then of 4'),
    pytest.param(MessageCase(
        network=MESH, kind='all-gather', orders=((Leg(0, 16),),), seconds=15 / 2),
        id='a ring through all chips of a mesh has two links everywhere'),
    pytest.param(MessageCase(
        network=MESH, kind='all-to-all', groups=ROWS, seconds=16),
        id='two chips send half of their 16 bytes through the middle of a line'),
    pytest.param(MessageCase(
        network=MESH, kind='collective-permute', groups=((0, 1), (1, 2), (2, 3)), seconds=16),
        id='to the neighbour'),
    pytest.param(MessageCase(
        network=MESH, kind='collective-permute', groups=((0, 3), (1, 2), (3, 0)), seconds=32),
        id='two ways share a link, and the way back does not'),
    pytest.param(MessageCase(
        network=MESH, kind='collective-permute', groups=((5, 5),), seconds=0), id='to itself'),
    pytest.param(MessageCase(
        network=TORUS, kind='all-gather', groups=WHOLE_ROW, seconds=15 / 2),
        id='a ring of 16 brings 15 bytes through two links'),
    pytest.param(MessageCase(
        network=TORUS, kind='all-gather', groups=((0, 1, 2, 3),), seconds=12),
        id='a part of a ring is a line'),
    pytest.param(MessageCase(
        network=TORUS, kind='all-gather', groups=((0, 4, 8, 12),), seconds=12 / (2 / 4)),
        id='four interleaved groups share the two links'),
    pytest.param(MessageCase(
        network=TORUS, kind='all-reduce', seconds=2 * 16 * (255 / 256) / 4), id='four links'),
    pytest.param(MessageCase(
        network=TORUS, kind='all-gather', orders=((Leg(0, 256),),), seconds=16 * (255 / 256) / 2),
        id='a ring through all chips of a torus leaves two of four links idle'),
    pytest.param(MessageCase(
        network=TORUS, kind='all-to-all', groups=WHOLE_ROW, seconds=32),
        id='a quarter of the 16 x 16 bytes of an array passes each end of a chip'),
    pytest.param(MessageCase(
        network=TORUS, kind='collective-permute', groups=((0, 15), (15, 0), (1, 9)), seconds=16),
        id='around the ring'),
    pytest.param(MessageCase(
        network=CUBE, kind='all-gather', groups=((0, 1, 2, 3),), seconds=12 / 2),
        id='an axis of a cube is a ring'),
    pytest.param(MessageCase(
        network=CUBE, kind='all-reduce', seconds=2 * 16 * (63 / 64) / 6), id='six links'),
    pytest.param(MessageCase(
        network=CUBE, kind='all-to-all', seconds=8), id='all-to-all in a cube'),
    pytest.param(MessageCase(
        network=CUBE, kind='all-gather', groups=((0, 1, 4),), seconds=16 * 2 / 3),
        id='chips that fill no box are a line'),
])
def test_the_busiest_link_decides(case):
    seconds = case.network.seconds(case.kind, 16, case.groups, case.orders)
    assert seconds == pytest.approx(case.seconds)


def test_axes_of_unequal_length():
    """v5e 8x16 by the compiler's "StrategyND{colors:2 phases:2 cores:{16 8},{8 16} ..."."""
    slice_8x16 = Network(
        tuple(itertools.product(range(8), range(16))), (8, 16), (False, True), bandwidth=1.0,
        latency=0.0)
    orders = ((Leg(0, 16), Leg(1, 8)), (Leg(1, 8), Leg(0, 16)))
    first_phase = max(64 * (15 / 16) / 2, 64 * (7 / 8))
    second_phase = max(4 * (7 / 8), 8 * (15 / 16) / 2)
    seconds = slice_8x16.seconds('reduce-scatter', 128, (), orders)
    assert seconds == pytest.approx(first_phase + second_phase)


@pytest.mark.parametrize('groups, seconds', [
    pytest.param(((0, 2, 4, 6), (1, 3, 5, 7)), 2 * 12 / 2, id='each for itself'),
    pytest.param((), 12 / 2, id='both of a chip receive once'),
    pytest.param(((0, 1), (2, 3), (4, 5), (6, 7)), 0, id='within a chip'),
])
def test_two_devices_of_a_chip_share_its_links(groups, seconds):
    chips = itertools.product(range(2), range(2), range(1))
    places = tuple(chip for chip in chips for _ in range(2))
    tpu7x = Network(places, (2, 2, 1), (False,) * 3, bandwidth=1.0, latency=0.0)
    assert tpu7x.seconds('all-gather', 16, groups) == pytest.approx(seconds)


@pytest.mark.parametrize('slice_, kind, groups, links', [
    pytest.param(MESH, 'all-gather', ROWS, 3, id='to the other end of a line'),
    pytest.param(MESH, 'all-reduce', ROWS, 6, id='there and back'),
    pytest.param(MESH, 'all-gather', (), 6, id='one axis after the other'),
    pytest.param(TORUS, 'all-gather', WHOLE_ROW, 8, id='half of a ring'),
    pytest.param(CUBE, 'all-to-all', (), 6, id='half of three rings'),
    pytest.param(TORUS, 'collective-permute', ((0, 15), (1, 35)), 4, id='the longest way'),
])
def test_a_first_byte_goes_to_the_farthest_chip(slice_, kind, groups, links):
    late = dataclasses.replace(slice_, latency=100.0)
    empty = late.seconds(kind, 0, groups)
    assert empty == pytest.approx(100 * links)


@pytest.mark.parametrize('chip, shape, wraps', [
    ('v5e', (4, 4), (False, False)),
    ('v5e', (8, 16), (False, True)),
    ('v6e', (16, 16), (True, True)),
    ('v4', (4, 4, 4), (True, True, True)),
    ('v4', (2, 2, 4), (False, False, False)),
    ('v5p', (4, 4, 8), (True, True, True)),
    ('v5p', (2, 4, 4), (False, False, False)),
    ('tpu7x', (2, 2, 1), (False, False, False)),
])
def test_where_axes_wrap_around(chip, shape, wraps):
    coordinates = itertools.product(*[range(size) for size in shape])
    devices = []
    for place in coordinates:
        padded = [*place, 0][:3]  # jax gives a v5e three coordinates
        devices.append(SimpleNamespace(coords=padded))
    found = open_network(chip, devices)
    assert found.shape == shape
    assert found.wraps == wraps
    assert found.bandwidth < LINKS[chip].bandwidth


@pytest.mark.parametrize('attributes, groups', [
    (', channel_id=1, replica_groups={{0,4},{1,5}}, dimensions={0}', ((0, 4), (1, 5))),
    (', source_target_pairs={{0,1},{1,2}}', ((0, 1), (1, 2))),
    (', replica_groups=[2,2]<=[4]', ((0, 1), (2, 3))),
    (', replica_groups=[2,4]<=[2,2,2]T(1,0,2), x', ((0, 1, 4, 5), (2, 3, 6, 7))),
    (", replica_groups=mesh['a'=2,'b'=3] {'b'}, x", ((0, 1, 2), (3, 4, 5))),
    (", replica_groups=mesh['a'=2,'b'=3] {'a'}, x", ((0, 3), (1, 4), (2, 5))),
    (", replica_groups=mesh['a'=4,'b'=1], device_ids=([2,2]T(1,0)) {'a','b'}", ((0, 2, 1, 3),)),
    (', replica_groups={}, to_apply=%add', ()),
])
def test_who_exchanges_is_read_in_all_ways_of_writing_it(attributes, groups):
    assert read_groups(attributes) == groups
