"""Steps compiled before they are needed, and the memory that they take.

A run of several phases would otherwise find out after days that its last phase does not fit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bert_jax.runtime.chips import find_chip

_UNITS = {'': 1, 'B': 1, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}
# What XLA says of a program that is too big: "Used 25.02G of 15.75G hbm" or "required for HLO
# temporaries (37.12G) exceeds available HBM (15.75G)" on TPUs, "trying to allocate 3.5GiB" on GPUs.
_TOO_BIG = (
    (re.compile(r'Used ([\d.]+)([KMGT]?)i?B? of'), False),
    (re.compile(r'required for HLO temporaries \(([\d.]+)([KMGT]?)i?B?\)'), True),
    (re.compile(r'allocate ([\d.]+)([KMGT]?)i?B?'), True),
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device while a compiled step runs.

    Attributes:
      arguments: state and batch.
      outputs: results that take no argument's place.
      temporaries: everything in between.
      code: the program.
    """

    arguments: int
    outputs: int
    temporaries: int
    code: int = 0

    @property
    def total(self) -> int:
        return self.arguments + self.outputs + self.temporaries + self.code


class CompiledStep:
    """A jitted step whose programs can be compiled, and sized, before they are needed.

    A call with a batch of shapes that were compiled takes that program, any other is compiled by
    jit as ever. The batch is the last argument.
    """

    def __init__(self, step: Callable[..., Any]):
        self._step: Any = step
        self._programs: dict[Any, Any] = {}

    def compile(self, *arguments: Any) -> tuple[Any | None, Memory]:
        """Compiles the step for arguments given as shapes with shardings.

        Returns:
          The compiled program, or None where the compiler finds it too big; and the memory.
        """
        key = _shapes(arguments[-1])
        if key not in self._programs:
            try:
                self._programs[key] = self._step.lower(*arguments).compile()
            except jax.errors.JaxRuntimeError as error:
                temporaries = _bytes_wanted(str(error), device_bytes(arguments))
                if temporaries is None:
                    raise
                return None, Memory(device_bytes(arguments), 0, temporaries)
        program = self._programs[key]
        found = program.memory_analysis()
        return program, Memory(
            found.argument_size_in_bytes,
            found.output_size_in_bytes - found.alias_size_in_bytes,
            found.temp_size_in_bytes, found.generated_code_size_in_bytes,
        )

    def __call__(self, *arguments: Any) -> Any:
        return self._programs.get(_shapes(arguments[-1]), self._step)(*arguments)


def _shapes(batch: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((name, batch[name].shape) for name in sorted(batch))


def _bytes_wanted(message: str, arguments: int) -> int | None:
    """Bytes of temporaries in the compiler's message, or None where it is about something else."""
    if 'RESOURCE_EXHAUSTED' not in message:
        return None
    for pattern, temporaries_alone in _TOO_BIG:
        if match := pattern.search(message):
            wanted = int(float(match[1]) * _UNITS[match[2]])
            return wanted if temporaries_alone else max(0, wanted - arguments)
    return None


def device_bytes(tree: Any) -> int:
    """Bytes of one device's share of arrays, or of shapes with shardings."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def host_memory() -> int:
    """Bytes that this process can have: of the machine, or of its container."""
    found = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    with contextlib.suppress(OSError, ValueError), open('/sys/fs/cgroup/memory.max') as file:
        found = min(found, int(file.read()))  # 'max': no limit
    return found


def device_memory(device: jax.Device) -> int | None:
    """Bytes that a program can use on a device, or None where nobody says (CPUs)."""
    try:
        limit = (device.memory_stats() or {}).get('bytes_limit')
    except (jax.errors.JaxRuntimeError, NotImplementedError):  # it exists for the compiler only
        limit = None
    if limit:
        return int(limit)
    chip = find_chip(device.device_kind)
    return chip.memory_bytes or None if chip else None
