"""Slices and hosts that need not exist: their devices, for the compiler only."""

import importlib.metadata
import importlib.util
import re
from typing import Any, NamedTuple

from bert_jax.runtime.errors import InputError, install
from bert_jax.runtime.packages import quiet_stderr
from bert_jax.tools.preflight.cards import CARDS, MOST_CARDS, is_card, open_cards


class SliceLimits(NamedTuple):
    """The limits of a chip's slices: up to v6e, libtpu aborts beyond the longest dim."""

    num_dims: int
    longest_dim: int


_LIMITS = {
    'v4': SliceLimits(num_dims=3, longest_dim=16),
    'v5p': SliceLimits(num_dims=3, longest_dim=24),
    'v5e': SliceLimits(num_dims=2, longest_dim=16),
    'v6e': SliceLimits(num_dims=2, longest_dim=16),
    'tpu7x': SliceLimits(num_dims=3, longest_dim=36),  # a pod of 9,216 chips is 16x16x36
}
_MEGACORE = ('v4', 'v5p')  # chips with two cores, which are one device in jax


def num_cores(chip: str) -> int:
    """The cores that share the work of a device."""
    return 2 if chip in _MEGACORE else 1


def known_topologies() -> str:
    """The slices and hosts that can be named, in words."""
    slices = []
    for chip, limits in _LIMITS.items():
        slices.append(f"{chip}:{'x'.join('4' * limits.num_dims)}")
    return (f"slices of TPUs, counted in chips ({', '.join(slices)}, ...), or the GPUs of a host, "
            f"1 to {MOST_CARDS} ({', '.join(f'{card}:{MOST_CARDS}' for card in CARDS)})")


def open_topology(name: str) -> list[Any]:
    """The devices of a slice or host, which need not exist; they are for the compiler only.

    Raises:
      InputError: there is no such slice or host, or no compiler for it.
    """
    if is_card(name.partition(':')[0]):
        return open_cards(name)
    chip, sizes = _parse_topology(name)
    _check_libtpu()
    from jax.experimental import topologies

    options: dict[str, Any] = {}
    if chip in _MEGACORE:
        options['chip_config_name'] = 'megacore'
    if max(sizes) == 1:
        options['chips_per_host_bounds'] = (1, 1, 1)
    try:
        with quiet_stderr():  # libtpu reports that the environment of a TPU VM is missing
            topology = topologies.get_topology_desc(
                platform='tpu', topology_name=name, **options)
            return list(topology.devices)
    except Exception as error:  # of many types
        raise InputError(f'--topology={name!r}: {error}') from error


def _check_libtpu() -> None:
    """Refuses a libtpu that is older than this jax asks for.

    A program that they compile for a topology may crash: jaxlib 0.7.2 calls what libtpu 0.0.17,
    which Kaggle's image has, does not know.
    """
    if importlib.util.find_spec('libtpu') is None:
        raise InputError(f"libtpu is not installed: {install('tpu')}")
    try:
        installed = importlib.metadata.version('libtpu')
    except importlib.metadata.PackageNotFoundError:  # installed under another name
        return
    for requirement in importlib.metadata.requires('jax') or []:
        match = re.match(r'libtpu==([\d.]*\d)', requirement)
        if match and _numbers(installed) < _numbers(match[1]):
            jax_version = importlib.metadata.version('jax')
            raise InputError(
                f'libtpu {installed} is too old to compile for a topology with jax {jax_version}: '
                f"{install('tpu')}")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r'\d+', version)]


def _parse_topology(name: str) -> tuple[str, list[int]]:
    """(Kind of chip, chips along each dim) of a slice's name, such as v5e:16x16."""
    chip, _, shape = name.partition(':')
    if chip not in _LIMITS or not re.fullmatch(r'[1-9]\d*(x[1-9]\d*)*', shape):
        raise InputError(
            f'--topology={name!r} is no slice and no host: write one of {", ".join(_LIMITS)} and '
            'its shape in chips, such as v5e:16x16 or v4:4x4x4, or one of '
            f'{", ".join(CARDS)} and the cards of a host, such as h100:8')
    sizes = [int(size) for size in shape.split('x')]
    limits = _LIMITS[chip]
    if len(sizes) != limits.num_dims or max(sizes) > limits.longest_dim:
        raise InputError(
            f'--topology={name!r}: a slice of {chip} has {limits.num_dims} dims of at most '
            f'{limits.longest_dim} chips')
    return chip, sizes
