"""Accelerator chips: their peaks and memory."""

import dataclasses

_GIB = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """An accelerator chip; 0 means unknown.

    Attributes:
      name: its name in a topology, such as v5e.
      kinds: parts of jax's `device_kind`, in lower case, that identify it.
      peak_flops: FLOP/s in bfloat16.
      cycle_flops: FLOPs a cycle, in the cycles of the compiler's `estimated_cycles`.
      memory_bytes: limit of a program (the chip's memory less the compiler's reserve).
      bandwidth: bytes/s of that memory.
    """

    name: str
    kinds: tuple[str, ...]
    peak_flops: float = 0.0
    cycle_flops: int = 0
    memory_bytes: int = 0
    bandwidth: float = 0.0

    @property
    def clock(self) -> float:
        """Cycles/s."""
        return self.peak_flops / self.cycle_flops


# TPUs: peaks and bandwidth from Google's Cloud TPU documentation (links: tools/preflight/links.py);
# 123e12 is the commonly cited peak of v3. FLOPs a cycle: matrix units x their size, at clocks of
# 1.05 (v4), 1.5 (v5e) and 1.75 GHz (v5p, v6e). memory_bytes: "available HBM" in the compiler's own
# message (libtpu 0.0.42.1). GPUs: NVIDIA's data sheets; jax reports the memory of a GPU.
CHIPS = (
    Chip(name='v6e', kinds=('v6 lite', 'v6e'), peak_flops=918e12, cycle_flops=524_288,
         memory_bytes=int(31.25 * _GIB), bandwidth=1.64e12),
    Chip(name='v5e', kinds=('v5 lite', 'v5e'), peak_flops=197e12, cycle_flops=131_072,
         memory_bytes=int(15.75 * _GIB), bandwidth=0.819e12),
    Chip(name='v5p', kinds=('v5p', 'v5'), peak_flops=459e12, cycle_flops=262_144,
         memory_bytes=int(95.74 * _GIB), bandwidth=2.765e12),
    Chip(name='v4', kinds=('v4',), peak_flops=275e12, cycle_flops=262_144,
         memory_bytes=int(30.75 * _GIB), bandwidth=1.23e12),
    Chip(name='v3', kinds=('v3',), peak_flops=123e12),
    Chip(name='v2', kinds=('v2',), peak_flops=46e12),
    Chip(name='H200', kinds=('h200',), peak_flops=989e12, bandwidth=4.8e12),
    Chip(name='H100', kinds=('h100',), peak_flops=989e12, bandwidth=3.35e12),
    Chip(name='A100', kinds=('a100',), peak_flops=312e12, bandwidth=2.0e12),
)
UNKNOWN = Chip(name='', kinds=())


def find_chip(device_kind: str) -> Chip:
    """The chip of a jax `device_kind`; `UNKNOWN` for CPUs and others."""
    kind = device_kind.lower()
    for chip in CHIPS:
        if any(part in kind for part in chip.kinds):
            return chip
    return UNKNOWN
