"""Ways in which a file is damaged: by a disk, a copy that was cut off, an editor."""

from __future__ import annotations

import collections
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _flipped(rng: random.Random, data: bytearray, _: list[Path]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _cut(rng: random.Random, data: bytearray, _: list[Path]) -> bytes:
    return data[:rng.randrange(len(data))]


def _zeroed(rng: random.Random, data: bytearray, _: list[Path]) -> bytes:
    start = rng.randrange(len(data))
    end = rng.choice((len(data), min(len(data), start + rng.randint(1, 512))))
    data[start:end] = bytes(end - start)
    return data


def _overwritten(rng: random.Random, data: bytearray, _: list[Path]) -> bytes:
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.randint(1, 4096))
    data[start:end] = rng.randbytes(end - start)
    return data


def _swapped(rng: random.Random, data: bytearray, others: list[Path]) -> bytes:
    return rng.choice(others).read_bytes()


_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 0.3, 1e-3, 10**9, 10**30, 1e300, '', 'x', '3', [], {}, [1],
    {'a': 1}, float('nan'), '../..')


def _replaced(rng: random.Random, data: bytearray, _: list[Path]) -> bytes:
    """One value of a JSON file, or of a line of one."""
    lines = data.split(b'\n') if b'\n{' in data else [data]
    number = rng.randrange(len([line for line in lines if line.strip()]))
    tree = {'': json.loads(lines[number])}
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, value in (node.items() if isinstance(node, dict) else enumerate(node)):
            places.append((node, key))
            if isinstance(value, (dict, list)):
                walk(value)

    walk(tree)
    node, key = rng.choice(places)
    value = node[key]
    if rng.random() < 0.1 and isinstance(node, dict) and node is not tree:
        del node[key]
    elif isinstance(value, (int, float)) and rng.random() < 0.5:
        node[key] = value * 2 + 1
    else:
        node[key] = rng.choice(_VALUES)
    lines[number] = json.dumps(tree.get('')).encode()
    return b'\n'.join(lines)


_DAMAGES = (_flipped, _cut, _zeroed, _overwritten, _swapped)


def _is_json(data: bytes) -> bool:
    try:
        return all(isinstance(json.loads(line), (dict, list)) for line in (
            data.splitlines() if b'\n{' in data else [data]))
    except ValueError:
        return False


def damage(rng: random.Random, folder: Path) -> tuple[str, str]:
    """Damages one file; (its path in the folder, how)."""
    paths = sorted(p for p in folder.rglob('*') if p.is_file() and p.stat().st_size
                   and not p.name.startswith('events.out.') and p.suffix not in ('.png', '.lock'))
    # Files are as likely as folders are: a checkpoint has many that are small.
    by_kind = collections.defaultdict(list)
    for path in paths:
        by_kind[re.sub(r'[0-9a-f]{16,}|\d+', '#', str(path.relative_to(folder)))].append(path)
    path = rng.choice(by_kind[rng.choice(sorted(by_kind))])
    before = path.read_bytes()
    kinds: tuple[Callable[..., bytes], ...] = _DAMAGES
    if _is_json(before):
        kinds = (_replaced, _replaced, *_DAMAGES)
    kind = rng.choice(kinds)
    after = before
    while after == before:
        after = bytes(kind(rng, bytearray(before), [p for p in paths if p != path]))
    path.unlink()
    path.write_bytes(after)
    return str(path.relative_to(folder)), kind.__name__[1:]
