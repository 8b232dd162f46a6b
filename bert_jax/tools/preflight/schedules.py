"""The TPU compiler's final schedules: how many bundles a kernel issues, and for which unit."""

import collections
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

# The files that libtpu writes: 1795574845998232302-fusion.12-02-final_bundles.txt
_BUNDLES = 'bundles'
_UTILIZATION = 'hlo-static-per-bundle-utilization'
_FILE_NAME = re.compile(
    rf'\d+-(?P<instruction>.+)-\d+-final_(?P<stage>{_BUNDLES}|{_UTILIZATION})\.txt')
# A bundle's address, marks, and a `>` for each loop that it is in.
_BUNDLE = re.compile(r'\s*(?:0x)?[0-9a-f]+\s+(?:[A-Z]{2}:?\s*)*:?\s*(?P<loops>(?:>\s*)*)\{')


class Schedule(NamedTuple):
    """The final schedule of an instruction, of which a core issues one bundle per cycle.

    Attributes:
      bundles: their number outside loops, in an iteration of the loop, and in loops within that.
      unit: the unit with the highest utilization, by libtpu's name: MXU, VALU, ...
    """

    bundles: tuple[int, int, int]
    unit: str = ''


def write_schedules(folder: str) -> None:
    """Makes libtpu, unless it is loaded already, write to `folder` what `take_schedules` reads."""
    stages = f'final_{_BUNDLES}|final_{_UTILIZATION}'
    os.environ['LIBTPU_INIT_ARGS'] = (
        f"{os.environ.get('LIBTPU_INIT_ARGS', '')} --xla_jf_dump_to={folder} "
        f'--xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=({stages})')


def take_schedules(folder: str) -> dict[str, Schedule]:
    """Schedules of what was compiled since the last call, by instruction; deletes the files."""
    bundles: dict[str, tuple[int, int, int]] = {}
    units: dict[str, str] = {}
    for entry in os.scandir(folder):
        match = _FILE_NAME.fullmatch(entry.name)
        if match:
            with open(entry.path, encoding='utf-8', errors='replace') as file:
                if match['stage'] == _BUNDLES:
                    bundles[match['instruction']] = _count_bundles(file)
                else:
                    units[match['instruction']] = _fullest_unit(file)
        if entry.is_file():
            os.remove(entry.path)
    schedules = {}
    for instruction, counts in bundles.items():
        if any(counts):
            schedules[instruction] = Schedule(counts, units.get(instruction, ''))
    return schedules


def _count_bundles(lines: Iterable[str]) -> tuple[int, int, int]:
    """Bundles of a schedule outside loops, in its loop, and in loops within that."""
    depths = collections.Counter[int]()
    for line in lines:
        match = _BUNDLE.match(line)
        if match:
            depths[match['loops'].count('>')] += 1
    outside = depths[0]
    in_loop = depths[1]
    return outside, in_loop, depths.total() - outside - in_loop


def _fullest_unit(lines: Iterable[str]) -> str:
    """The unit with the highest utilization.

    Args:
      lines: a table. Its first row names the units; the second has the places of each in a bundle;
        the others have the places that are taken, a row for each bundle.
    """
    table = []
    for line in lines:
        cells = re.findall(r'\w[\w:]*', line)
        if cells and not line.startswith('=='):
            table.append(cells)
    if not table:  # the disk was full
        return '?'
    names, places, *bundles = table
    if not bundles:
        return names[0]
    taken = [sum(map(int, column)) for column in zip(*bundles)]
    units = zip(names, taken, map(int, places))
    name, _, _ = max(units, key=lambda unit: unit[1] / unit[2])
    return name
