"""GPUs that need not exist: the cards of a host, for the compiler only, and their links."""

import dataclasses
import importlib.util
import os
import re
from typing import Any

from bert_jax.runtime.chips import Chip, find_chip
from bert_jax.runtime.errors import InputError, install
from bert_jax.runtime.packages import quiet_stderr
from bert_jax.tools.preflight.links import Groups, Orders

MOST_CARDS = 8  # of a host whose cards all reach each other by NVLink

# The plugin tunes products by running them and chooses between Triton and cuBLAS; without a card it
# can do neither.
COMPILER_OPTIONS = {'xla_gpu_autotune_level': 0, 'xla_gpu_enable_triton_gemm': False}

# What jax takes of a card's memory unless one of these variables says otherwise
# (docs.jax.dev/en/latest/gpu_memory_allocation.html).
_MEMORY_SHARE = 0.75
MEMORY_SHARE_VARIABLES = ('XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """A kind of GPU, as the compiler sees it and as it computes.

    Attributes:
      description: what jax calls its `device_kind`.
      capability: CUDA's compute capability.
      cores: streaming multiprocessors.
      fpus_per_core: float32 units of each.
      clock_ghz: of them.
      shared_memory: bytes of a core, and those that a block can ask for.
      l2_bytes: of the cache that all cores share.
      link_bandwidth: bytes/s that it sends to all others of its host.
    """

    description: str
    capability: int
    cores: int
    fpus_per_core: int
    clock_ghz: float
    shared_memory: tuple[int, int]
    l2_bytes: int
    link_bandwidth: float


_HOPPER_MEMORY = (233_472, 232_448)
_AMPERE_MEMORY = (167_936, 166_912)

# Numbers of OpenXLA's target descriptions (github.com/openxla/xla, in
# xla/backends/gpu/target_config/specs: a100_sxm_40, a100_sxm_80, h100_sxm, h200 and b200), as the
# memory in runtime/chips.py, but for the links: half of the NVLink bandwidth in NVIDIA's data
# sheets, which counts both directions.
CARDS = {
    'a100-40gb': Card(
        description='NVIDIA A100-SXM4-40GB', capability=8, cores=108, fpus_per_core=64,
        clock_ghz=1.41, shared_memory=_AMPERE_MEMORY, l2_bytes=41_943_040,
        link_bandwidth=300e9),
    'a100': Card(
        description='NVIDIA A100-SXM4-80GB', capability=8, cores=108, fpus_per_core=64,
        clock_ghz=1.41, shared_memory=_AMPERE_MEMORY, l2_bytes=41_943_040,
        link_bandwidth=300e9),
    'h100': Card(
        description='NVIDIA H100 80GB HBM3', capability=9, cores=132, fpus_per_core=128,
        clock_ghz=1.98, shared_memory=_HOPPER_MEMORY, l2_bytes=52_428_800,
        link_bandwidth=450e9),
    'h200': Card(
        description='NVIDIA H200 141GB HBM3e', capability=9, cores=132, fpus_per_core=128,
        clock_ghz=1.98, shared_memory=_HOPPER_MEMORY, l2_bytes=52_428_800,
        link_bandwidth=450e9),
    'b200': Card(
        description='NVIDIA B200', capability=10, cores=148, fpus_per_core=128,
        clock_ghz=1.965, shared_memory=_HOPPER_MEMORY, l2_bytes=132_644_864, link_bandwidth=900e9),
}

# The compiler's description of a card. What all of them have in common is written out.
_TARGET = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared_memory[0]}
  shared_memory_per_block_optin: {shared_memory[1]}
  threads_per_core_limit: 2048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  core_count: {cores}
  fpus_per_core: {fpus_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  memory_bandwidth: {bandwidth:.0f}
  l2_cache_size: {l2_bytes}
  clock_rate_ghz: {clock_ghz}
  device_memory_size: {memory_bytes}
  cuda_compute_capability {{ major: {capability} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{description}"
"""


def is_card(chip: str) -> bool:
    """Whether this kind of chip is a GPU that preflight knows."""
    return chip in CARDS


def open_cards(name: str) -> list[Any]:
    """The devices of a host with so many cards, such as h100:8, for the compiler only.

    Raises:
      InputError: there is no such host, or the CUDA plugin of jax is missing or fails.
    """
    kind, num_cards = _parse(name)
    _check_plugin(name)
    from jax.experimental import topologies

    card = CARDS[kind]
    chip = find_chip(card.description)
    target = _TARGET.format(
        **dataclasses.asdict(card), memory_bytes=chip.memory_bytes, bandwidth=chip.bandwidth)
    try:
        with quiet_stderr():  # the plugin reports that there is no driver
            topology = topologies.get_topology_desc(
                platform='cuda', topology_name=kind, topology=f'1x1x{num_cards}',
                target_config=target)
            return list(topology.devices)
    except Exception as error:  # of many types
        raise InputError(f'--topology={name!r}: {error}') from error


def _parse(name: str) -> tuple[str, int]:
    """(Kind of card, number of cards) of a topology's name."""
    kind, _, count = name.partition(':')
    if not re.fullmatch(r'\d', count) or not 1 <= int(count) <= MOST_CARDS:
        raise InputError(
            f'--topology={name!r}: write how many cards of one host, 1 to {MOST_CARDS}, such as '
            f'{kind}:1 or {kind}:{MOST_CARDS}')
    return kind, int(count)


def _check_plugin(name: str) -> None:
    for plugin in ('jax_plugins.xla_cuda13', 'jax_plugins.xla_cuda12'):
        if _is_installed(plugin):
            return
    raise InputError(
        f"--topology={name!r} needs jax's CUDA plugin (no GPU and no driver): {install('cuda')}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in is missing
        return False


def memory_limit(chip: Chip) -> int:
    """Bytes of a card that a program can use: the part that jax takes."""
    share = _MEMORY_SHARE
    for variable in MEMORY_SHARE_VARIABLES:
        stated = os.environ.get(variable, '')
        if stated:
            try:
                share = float(stated)
            except ValueError:
                raise InputError(
                    f'{variable}={stated}: write the share of memory as a number, such as 0.9'
                ) from None
    return int(share * chip.memory_bytes)


# "With the protocol overhead (~20%) NCCL can get an effective NVLink bandwidth of 370 GB/s" of an
# H100's 450, says its maintainer (github.com/NVIDIA/nccl-tests/issues/212). All-reduces that the
# switch adds up are faster.
_REACHED = 370 / 450
_LATENCY = 20e-6  # seconds a message; a guess


@dataclasses.dataclass(frozen=True)
class Switch:
    """The cards of a host, each with a link to a switch that passes on all that they send.

    Attributes:
      num_cards: of the host.
      bandwidth: bytes/s that a link carries in one direction.
      latency: seconds of a message.
    """

    num_cards: int
    bandwidth: float
    latency: float

    @property
    def shape(self) -> tuple[int]:
        """The cards, along the only axis."""
        return (self.num_cards,)

    def seconds(self, kind: str, size: int, groups: Groups, orders: Orders = ()) -> float:
        """How long a message takes if nothing else uses the links; as `links.Network.seconds`.

        In a ring each card sends all parts of the array but one.
        """
        num_cards = len(groups[0]) if groups else self.num_cards
        if kind != 'collective-permute':
            size = size * (num_cards - 1) // num_cards
        one_way = size / self.bandwidth
        return self.latency + (2 * one_way if kind == 'all-reduce' else one_way)

    def axes(self, groups: Groups) -> frozenset[int]:
        """The only axis, whose links every message uses."""
        return frozenset({0})


def open_switch(chip: str, num_cards: int) -> Switch:
    """The switch between the cards of a host, of a kind in `CARDS`."""
    return Switch(
        num_cards, bandwidth=_REACHED * CARDS[chip].link_bandwidth, latency=_LATENCY)
