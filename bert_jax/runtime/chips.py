"""Accelerator chips: the peaks and memory of what jax calls a device."""

import dataclasses

_GIB = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """An accelerator chip; 0 means unknown.

    Figures are of one jax device, which is a whole chip unless `num_devices` says otherwise.

    Attributes:
      name: its name in a topology, such as v5e.
      kinds: parts of jax's `device_kind`, in lower case, that identify it.
      num_devices: jax devices that the chip has.
      peak_flops: FLOP/s in bfloat16, as published.
      cycle_flops: FLOPs a cycle, in the cycles of the compiler's `estimated_cycles`.
      memory_bytes: limit of a program on a TPU (its memory less the compiler's reserve); all memory
        of a GPU, of which jax takes a part.
      bandwidth: bytes/s of that memory.
      compiler_flops: FLOP/s that the compiler counts with, if that is not `peak_flops`.
    """

    name: str
    kinds: tuple[str, ...]
    num_devices: int = 1
    peak_flops: float = 0.0
    cycle_flops: int = 0
    memory_bytes: int = 0
    bandwidth: float = 0.0
    compiler_flops: float = 0.0

    @property
    def clock(self) -> float:
        """Cycles/s."""
        return (self.compiler_flops or self.peak_flops) / self.cycle_flops


# TPUs: peaks and bandwidth from Google's Cloud TPU documentation (links: tools/preflight/links.py);
# 123e12 is the commonly cited peak of v3. FLOPs a cycle: matrix units x their size, at clocks of
# 1.05 (v4), 1.5 (v5e) and 1.75 GHz (v5p, v6e). memory_bytes: "available HBM" in the compiler's own
# message (libtpu 0.0.42.1). GPUs: peaks from NVIDIA's data sheets, without sparsity
# (B200: an eighth of that of a HGX B200); memory and bandwidth from OpenXLA's descriptions of the
# cards (tools/preflight/cards.py says where).
#
# Each core of a v2, v3 or TPU7x is a device: figures are half of the chip's. Google publishes
# 2,307 TFLOP/s, 192 GiB and 7,380 GB/s for a TPU7x. Its published peak needs 2.2 GHz, but the
# compiler counts with 1.9 GHz (`optimal_seconds` of its cost analysis), and so do measurements:
# 956 TFLOP/s a device for a product of 32,768 x 32,768 matrices (Google's
# github.com/AI-Hypercomputer/accelerator-microbenchmarks, Ironwood_Microbenchmarks_readme.md).
CHIPS = (
    Chip(name='tpu7x', kinds=('tpu7x',), num_devices=2, peak_flops=1153.5e12, cycle_flops=524_288,
         memory_bytes=int(94.75 * _GIB), bandwidth=3.69e12, compiler_flops=996e12),
    Chip(name='v6e', kinds=('v6 lite', 'v6e'), peak_flops=918e12, cycle_flops=524_288,
         memory_bytes=int(31.25 * _GIB), bandwidth=1.64e12),
    Chip(name='v5e', kinds=('v5 lite', 'v5e'), peak_flops=197e12, cycle_flops=131_072,
         memory_bytes=int(15.75 * _GIB), bandwidth=0.819e12),
    Chip(name='v5p', kinds=('v5p', 'v5'), peak_flops=459e12, cycle_flops=262_144,
         memory_bytes=int(95.74 * _GIB), bandwidth=2.765e12),
    Chip(name='v4', kinds=('v4',), peak_flops=275e12, cycle_flops=262_144,
         memory_bytes=int(30.75 * _GIB), bandwidth=1.23e12),
    Chip(name='v3', kinds=('v3',), num_devices=2, peak_flops=61.5e12),
    Chip(name='v2', kinds=('v2',), num_devices=2, peak_flops=23e12),
    Chip(name='b200', kinds=('b200',), peak_flops=2250e12, memory_bytes=191_514_411_008,
         bandwidth=7.672e12),
    Chip(name='h200', kinds=('h200',), peak_flops=989e12, memory_bytes=151_397_597_184,
         bandwidth=4.8e12),
    Chip(name='h100', kinds=('h100',), peak_flops=989e12, memory_bytes=84_942_979_072,
         bandwidth=3.352e12),
    Chip(name='a100-40gb', kinds=('a100-sxm4-40gb', 'a100-pcie-40gb'), peak_flops=312e12,
         memory_bytes=42_331_013_120, bandwidth=1.555e12),
    Chip(name='a100', kinds=('a100',), peak_flops=312e12, memory_bytes=85_100_068_864,
         bandwidth=2.039e12),
)
UNKNOWN = Chip(name='', kinds=())


def find_chip(device_kind: str) -> Chip:
    """The chip of a jax `device_kind`; `UNKNOWN` for CPUs and others."""
    kind = device_kind.lower()
    for chip in CHIPS:
        if any(part in kind for part in chip.kinds):
            return chip
    return UNKNOWN
