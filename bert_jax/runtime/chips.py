"""What is known of accelerator chips: speed and memory, each with its source.

Peaks are dense bf16 (not the sparse figure of NVIDIA's tables).
"""

from __future__ import annotations

import dataclasses

_GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Chip:
    """A chip; what is 0 is not known here.

    Attributes:
      name: as it is called in a topology, such as v5e.
      kinds: parts of jax's `device_kind` in lower case.
      peak_flops: FLOP/s.
      cycle_flops: FLOPs of a cycle, by the convention of the compiler's `estimated_cycles`.
      memory_bytes: what the compiler allows a program (the chip's memory less its reserve).
      bandwidth: bytes/s of that memory.
      links: bytes/s between chips, all links of a chip together, one direction.
    """

    name: str
    kinds: tuple[str, ...]
    peak_flops: float
    cycle_flops: int = 0
    memory_bytes: int = 0
    bandwidth: float = 0.0
    links: float = 0.0

    @property
    def clock(self) -> float:
        """Cycles/s."""
        return self.peak_flops / self.cycle_flops


# TPUs: peaks, bandwidth and links (Gbit/s there) from Google's Cloud TPU documentation; 123e12 is
# the commonly cited peak of v3. FLOPs a cycle: matrix units x their size, at clocks of 1.05 (v4),
# 1.5 (v5e) and 1.75 GHz (v5p, v6e). memory_bytes: "available HBM" in the compiler's own message
# (libtpu 0.0.42.1). GPUs: NVIDIA's data sheets; how much memory there is, a GPU says itself.
CHIPS = (
    Chip('v6e', ('v6 lite', 'v6e'), 918e12, 524_288, int(31.25 * _GIB), 1.64e12, 448e9),
    Chip('v5e', ('v5 lite', 'v5e'), 197e12, 131_072, int(15.75 * _GIB), 0.819e12, 200e9),
    Chip('v5p', ('v5p', 'v5'), 459e12, 262_144, int(95.74 * _GIB), 2.765e12, 600e9),
    Chip('v4', ('v4',), 275e12, 262_144, int(30.75 * _GIB), 1.23e12, 300e9),
    Chip('v3', ('v3',), 123e12),
    Chip('v2', ('v2',), 46e12),
    Chip('H200', ('h200',), 989e12, bandwidth=4.8e12),
    Chip('H100', ('h100',), 989e12, bandwidth=3.35e12),
    Chip('A100', ('a100',), 312e12, bandwidth=2.0e12),
)


def find_chip(device_kind: str) -> Chip | None:
    """The chip of a `device_kind` of jax, or None where it is not known (CPUs)."""
    kind = device_kind.lower()
    return next((chip for chip in CHIPS if any(part in kind for part in chip.kinds)), None)


def peak_flops(device_kind: str) -> float | None:
    """Peak bf16 FLOP/s of a chip, or None where it is not known (CPUs)."""
    chip = find_chip(device_kind)
    return chip.peak_flops if chip else None
