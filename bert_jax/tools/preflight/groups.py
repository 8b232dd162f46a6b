"""Which devices exchange messages, as a compiled program writes it."""

import functools
import math
import re

import numpy as np

from bert_jax.tools.preflight.links import Groups

# replica_groups={{0,1},{2,3}} and source_target_pairs={{0,1},{1,2}}
_LISTED = re.compile(r'(?:replica_groups|source_target_pairs)=\{(\{.*?\})\}')
# replica_groups=[2,4]<=[2,2,2]T(1,0,2): 0 to 7 as an array of 2x2x2, transposed, then in two rows
_COUNTED = re.compile(
    r'replica_groups=\[(?P<shape>[\d,]+)\]<=\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?')
# replica_groups=mesh['x'=4,'y'=4], device_ids=([4,4]T(1,0)) {'y'}: along the axis y of such a mesh
_ALONG_AXES = re.compile(
    r'replica_groups=mesh\[(?P<mesh>[^]]*)\](?:, device_ids=\(\[(?P<dims>[\d,]+)\]'
    r'(?:T\((?P<order>[\d,]+)\))?\))? \{(?P<axes>[^}]*)\}')
_AXIS = re.compile(r"'([^']+)'(?:=(\d+))?")


@functools.lru_cache(1 << 10)
def read_groups(attributes: str) -> Groups:
    """The numbers of the devices that exchange; pairs of source and target for a permutation.

    Args:
      attributes: of an instruction.

    Returns:
      Groups; () if all devices are one.
    """
    listed = _LISTED.search(attributes)
    if listed:
        groups = re.findall(r'\{([\d,]*)\}', listed[1])
        return tuple(_numbers(group) for group in groups)
    counted = _COUNTED.search(attributes)
    if counted:
        devices = _devices(counted['dims'], counted['order'])
        return _rows(devices.reshape(_numbers(counted['shape'])))
    along = _ALONG_AXES.search(attributes)
    if along:
        return _groups_along(along)
    return ()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(','))


def _devices(dims: str, order: str | None) -> np.ndarray:
    """The numbers from 0 as an array of these dims, transposed if an order is given."""
    sizes = _numbers(dims)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    return devices.transpose(_numbers(order)) if order else devices


def _rows(devices: np.ndarray) -> Groups:
    return tuple(map(tuple, devices.tolist()))


def _groups_along(match: re.Match[str]) -> Groups:
    """The groups of a match of `_ALONG_AXES`."""
    sizes = {name: int(size) for name, size in _AXIS.findall(match['mesh'])}
    shape = tuple(sizes.values())
    if match['dims']:
        devices = _devices(match['dims'], match['order']).reshape(shape)
    else:
        devices = np.arange(math.prod(shape)).reshape(shape)
    names = list(sizes)
    along = [names.index(name) for name, _ in _AXIS.findall(match['axes'])]
    others = [number for number in range(len(names)) if number not in along]
    grouped = devices.transpose(others + along)
    group_size = math.prod(grouped.shape[len(others):])
    return _rows(grouped.reshape(-1, group_size))
