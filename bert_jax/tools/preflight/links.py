"""Links between the chips of a slice, and how long messages take on them.

A chip has two links on each axis of its slice, one to each neighbour, and a link carries bytes both
ways at once. An axis that wraps around is a ring. Any other is a line, whose first and last chips
have one link. A message takes as long as its most loaded link:

- all-gather: each of the n chips of a group receives (n - 1) / n of the result. On a ring it comes
  through two links, on a line the chip at the end has one. A group that is part of an axis is a
  line. Groups that lie interleaved on an axis share its links.
- reduce-scatter takes the time of the all-gather back, and all-reduce that of both.
- Several axes: the compiler splits such a message into parts that it calls colors. Each goes along
  one axis after the other, each in another order, so that all axes are busy at once. If the text
  has fewer colors than axes, some links idle. An algorithm whose name begins with 1D is one ring
  through all chips of the group.
- all-to-all and collective-permute: a piece goes the shortest way along one axis after the other.
  The busiest links of an all-to-all are in the middle of a line, and all equal on a ring.
- Devices of one chip share its links. What one of them has, the other need not receive again.

The way of a first byte to the farthest chip is added, a microsecond a link. The time in which chips
agree on a start is left out, and so are twisted tori, which make all-to-all faster: libtpu opens
none by its name.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# The share of a link's bandwidth that large messages reach: 0.89 on TPU7x and 0.86 on v5e, measured
# (docs/preflight.md). "How to Scale Your Model" gives each chip 0.9 of Google's figure.
_REACHED = 0.9

_LATENCY = 1e-6  # seconds a link, "typically around" in the same book, part 3

_LONGEST_LINE = 15  # v5e and v6e: only a whole pod's axis of 16 wraps around
_CUBE = 4  # v4, v5p and TPU7x: optical switches close the axes of slices of whole 4 x 4 x 4 cubes

Groups = tuple[tuple[int, ...], ...]


class Leg(NamedTuple):
    """A part of a color's way: along one dim of the compiler's torus, past so many chips."""

    dim: int
    size: int


Orders = tuple[tuple[Leg, ...], ...]


def _wraps_in_pods(shape: Sequence[int]) -> tuple[bool, ...]:
    return tuple(size > _LONGEST_LINE for size in shape)


def _wraps_in_cubes(shape: Sequence[int]) -> tuple[bool, ...]:
    whole_cubes = all(size % _CUBE == 0 for size in shape)
    return (whole_cubes,) * len(shape)


class ChipLinks(NamedTuple):
    """The links of a kind of chip.

    Attributes:
      num_axes: of a slice; a chip has two links on each.
      bandwidth: bytes/s of one link in one direction, as published.
      wraps: for a slice's shape, which axes wrap around.
    """

    num_axes: int
    bandwidth: float
    wraps: Callable[[Sequence[int]], tuple[bool, ...]]


# Google's documentation (docs.cloud.google.com/tpu/docs/v5e, v5p, v6e, tpu7x) gives all links of a
# chip together, both ways: 400 GB/s for v5e, 800 for v6e, 1,200 for v5p and TPU7x. For v4, "TPU v4:
# An Optically Reconfigurable Supercomputer" (Jouppi et al., 2023) has six links of 50 GB/s. Where
# axes wrap around: "How to Scale Your Model", part 2 (jax-ml.github.io/scaling-book/tpus), and
# Google's page on v5p.
LINKS = {
    'v4': ChipLinks(num_axes=3, bandwidth=50e9, wraps=_wraps_in_cubes),
    'v5e': ChipLinks(num_axes=2, bandwidth=50e9, wraps=_wraps_in_pods),
    'v5p': ChipLinks(num_axes=3, bandwidth=100e9, wraps=_wraps_in_cubes),
    'v6e': ChipLinks(num_axes=2, bandwidth=100e9, wraps=_wraps_in_pods),
    'tpu7x': ChipLinks(num_axes=3, bandwidth=100e9, wraps=_wraps_in_cubes),
}


class _Path(NamedTuple):
    """The way of a group along an axis, or of one ring along several.

    Attributes:
      axis: its number; -1 for several.
      size: chips of the group along it.
      rate: bytes/s that the chip with the fewest links receives.
      links: from a chip to the farthest.
    """

    axis: int
    size: int
    rate: float
    links: int


@dataclasses.dataclass(frozen=True)
class Network:
    """The chips of a mesh and the links between them.

    Attributes:
      places: the chip of each device, by its coordinates, in the order in which a program numbers
        devices.
      shape: chips along each axis.
      wraps: which axes wrap around.
      bandwidth: bytes/s that a link carries in one direction.
      latency: seconds of a first byte on a link.
    """

    places: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    wraps: tuple[bool, ...]
    bandwidth: float
    latency: float

    def seconds(self, kind: str, size: int, groups: Groups, orders: Orders = ()) -> float:
        """How long a message takes if nothing else uses the links.

        Args:
          kind: one of the compiler's collectives.
          size: bytes of what a device has at the end (all-gather) or at the start (all others).
          groups: numbers of the devices that exchange; (source, target) for collective-permute;
            () for all devices.
          orders: the legs of each color, for an array that is scattered; () if unknown.
        """
        if kind == 'collective-permute':
            return self._permute_seconds(size, groups)
        if kind in ('all-to-all', 'ragged-all-to-all'):
            return max(self._exchange_seconds(size, group) for group in self._groups(groups))
        one_way = max(self._gather_seconds(size, group, orders) for group in self._groups(groups))
        return 2 * one_way if kind == 'all-reduce' else one_way

    def axes(self, groups: Groups) -> frozenset[int]:
        """Numbers of the axes whose links a message between these devices uses."""
        result = set()
        for group in self._groups(groups):
            for axis, coordinates in enumerate(zip(*self._chips(group), strict=True)):
                if len(set(coordinates)) > 1:
                    result.add(axis)
        return frozenset(result)

    def _groups(self, groups: Groups) -> Groups:
        """Groups, or all devices as one."""
        return groups or (tuple(range(len(self.places))),)

    def _chips(self, group: Sequence[int]) -> list[tuple[int, ...]]:
        """The chips of a group's devices, each once."""
        return sorted({self.places[device] for device in group})

    @functools.cached_property
    def _devices_per_chip(self) -> int:
        return len(self.places) // len(set(self.places))

    def _gather_seconds(self, size: int, group: Sequence[int], orders: Orders) -> float:
        """Seconds of an all-gather whose result has `size` bytes.

        The parts are followed backwards, from the whole array to a chip's share.
        """
        chips = self._chips(group)
        paths = self._paths(chips)
        if not paths:
            return 0.0
        devices_of_group = len(group) // len(chips)
        messages_on_links = self._devices_per_chip / devices_of_group
        colors = self._colors(paths, orders, len(chips))
        sizes = [size / len(colors)] * len(colors)
        seconds = 0.0
        for phase in range(len(colors[0])):
            loads: dict[_Path, float] = collections.defaultdict(float)
            for number, color in enumerate(colors):
                path = color[phase]
                loads[path] += sizes[number] * (path.size - 1) / path.size
                sizes[number] /= path.size
            seconds += messages_on_links * max(load / path.rate for path, load in loads.items())
            seconds += self.latency * max(path.links for path in loads)
        return seconds

    def _exchange_seconds(self, size: int, group: Sequence[int]) -> float:
        """Seconds of an all-to-all in which each device sends `size` bytes in equal pieces."""
        seconds = 0.0
        num_links = 0
        for path in self._paths(self._chips(group)):
            # Pieces that cross the middle of a line, or half of those that cross a ring in two.
            crossing = path.size * path.size // 4 * size / path.size
            seconds = max(seconds, self._devices_per_chip * crossing / path.rate)
            num_links += path.links
        return seconds + self.latency * num_links

    def _permute_seconds(self, size: int, pairs: Groups) -> float:
        """Seconds in which each source sends `size` bytes to its target."""
        loads: dict[tuple[tuple[int, ...], int, int], int] = collections.Counter()
        most_links = 0
        for source, target in pairs:
            place = list(self.places[source])
            num_links = 0
            for axis, goal in enumerate(self.places[target]):
                step, distance = self._shortest_way(axis, place[axis], goal)
                num_links += distance
                for _ in range(distance):
                    loads[tuple(place), axis, step] += size
                    place[axis] = (place[axis] + step) % self.shape[axis]
            most_links = max(most_links, num_links)
        return max(loads.values(), default=0) / self.bandwidth + self.latency * most_links

    def _shortest_way(self, axis: int, start: int, goal: int) -> tuple[int, int]:
        """(1 or -1, number of links) of the way along an axis."""
        ahead = goal - start
        if self.wraps[axis]:
            ahead %= self.shape[axis]
            if ahead > self.shape[axis] // 2:
                ahead -= self.shape[axis]
        return (1 if ahead > 0 else -1), abs(ahead)

    def _paths(self, chips: Sequence[tuple[int, ...]]) -> list[_Path]:
        """The ways along the axes that chips cover; a line if they fill no box."""
        paths = []
        for axis, coordinates in enumerate(zip(*chips, strict=True)):
            on_axis = sorted(set(coordinates))
            if len(on_axis) > 1:
                paths.append(self._path(axis, on_axis))
        if math.prod(path.size for path in paths) != len(chips):
            return [_Path(-1, len(chips), rate=self.bandwidth, links=len(chips) - 1)]
        return paths

    def _path(self, axis: int, coordinates: Sequence[int]) -> _Path:
        """The way along an axis of chips at these coordinates.

        Between two chips of a group that are not neighbours are those of others, which use the same
        links at the same time.
        """
        size = len(coordinates)
        num_interleaved = max(
            after - before
            for before, after in zip(coordinates[:-1], coordinates[1:], strict=True))
        is_ring = self.wraps[axis] and size * num_interleaved == self.shape[axis]
        if is_ring:
            return _Path(
                axis, size, rate=2 * self.bandwidth / num_interleaved, links=self.shape[axis] // 2)
        return _Path(
            axis, size, rate=self.bandwidth / num_interleaved,
            links=coordinates[-1] - coordinates[0])

    def _colors(
        self, paths: Sequence[_Path], orders: Orders, num_chips: int
    ) -> list[list[_Path]]:
        """The ways of each color of a message; each axis first in one color if `orders` is ()."""
        if len(paths) > 1 and orders and orders[0] == (Leg(0, num_chips),):
            # A link carries what it would of a group on one axis, but each chip has two of them.
            slowest = min(self.bandwidth, *(path.rate for path in paths))
            return [[_Path(-1, num_chips, rate=2 * slowest, links=num_chips // 2)]]
        if orders:
            path_of = _match(orders, paths)
            if path_of:
                colors = []
                for order in orders:
                    colors.append([path_of[leg] for leg in order])
                return colors
        return [[*paths[first:], *paths[:first]] for first in range(len(paths))]


def _match(orders: Orders, paths: Sequence[_Path]) -> dict[Leg, _Path]:
    """The path of each leg, by size: the compiler numbers dims its own way; {} if they differ.

    Paths of equal size are equally fast, so it does not matter which of them a leg gets.
    """
    left = list(paths)
    result: dict[Leg, _Path] = {}
    for leg in sorted(set(itertools.chain(*orders))):
        fitting = [path for path in left if path.size == leg.size]
        if not fitting:
            return {}
        result[leg] = fitting[0]
        left.remove(fitting[0])
    return {} if left else result


def open_network(chip: str, devices: Sequence[Any]) -> Network:
    """The network of devices, such as a topology's, in the order of a program's mesh.

    Args:
      chip: a key of `LINKS`.
      devices: with coordinates; the chips of a whole slice.
    """
    links = LINKS[chip]
    places = tuple(tuple(device.coords[:links.num_axes]) for device in devices)
    shape = tuple(1 + max(coordinates) for coordinates in zip(*places, strict=True))
    return Network(
        places, shape, links.wraps(shape), bandwidth=_REACHED * links.bandwidth, latency=_LATENCY)
