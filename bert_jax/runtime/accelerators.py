"""The accelerators of this machine, found without starting jax."""

import glob
import importlib.util
import os
import re

import jax

from bert_jax.runtime.errors import InputError, install
from bert_jax.runtime.files import read_system

_GOOGLE = '0x1ae0'  # as a vendor of PCI devices
# Its PCI devices that are TPUs: v2 and v3, one without a public name, v4, v5p, v5e, v6e and 7x, as
# in jax/_src/hardware_utils.py of jax 0.10, and 8t and 8i, as in later copies of that file.
# launch/platform.sh has the same numbers, for machines where nothing is installed yet.
TPU_DEVICES = (
    '0x0027', '0x0056', '0x005e', '0x0062', '0x0063', '0x006f', '0x0076', '0x007c', '0x0083')
VIRTUAL_DEVICES_FLAG = '--xla_force_host_platform_device_count'  # of XLA_FLAGS


def check_accelerators() -> None:
    """Refuses to train on the CPU of a machine whose accelerator jax does not see.

    Raises:
      InputError: there is such an accelerator, and JAX_PLATFORMS is not set.
    """
    if os.environ.get('JAX_PLATFORMS') or jax.default_backend() != 'cpu':
        return
    kind, _ = visible_chips()
    if kind == 'cpu':
        return
    name = {'tpu': 'a TPU', 'gpu': 'an NVIDIA GPU'}[kind]
    extra = {'tpu': 'tpu', 'gpu': 'cuda'}[kind]
    raise InputError(
        f'this machine has {name} and jax {jax.__version__} uses the CPU: {install(extra)}, or set '
        'JAX_PLATFORMS=cpu to train on the CPU')


def visible_chips() -> tuple[str, list[str]]:
    """('tpu', 'gpu' or 'cpu', names of the chips that the environment leaves visible).

    The chips of a CPU are the virtual devices of XLA_FLAGS.
    """
    if os.environ.get('JAX_PLATFORMS') != 'cpu':
        num_tpus = _num_tpus()
        if num_tpus:
            return 'tpu', _visible('TPU_VISIBLE_CHIPS', num_tpus)
        num_gpus = len(glob.glob('/dev/nvidia[0-9]*'))
        are_hidden = os.environ.get('CUDA_VISIBLE_DEVICES') in ('', '-1')
        if num_gpus and not are_hidden:
            return 'gpu', _visible('CUDA_VISIBLE_DEVICES', num_gpus)
    virtual = re.search(VIRTUAL_DEVICES_FLAG + '=([0-9]+)', os.environ.get('XLA_FLAGS', ''))
    return 'cpu', _numbered(int(virtual[1]) if virtual else 1)


def _num_tpus() -> int:
    """The number of TPU chips on this machine's PCI bus."""
    num = 0
    for path in glob.glob('/sys/bus/pci/devices/*'):
        if read_system(f'{path}/vendor') == _GOOGLE:
            num += read_system(f'{path}/device') in TPU_DEVICES
    return num


def _visible(variable: str, num: int) -> list[str]:
    """The names of the chips in an environment variable; all `num` where it is not set."""
    names = os.environ.get(variable, '')
    return names.split(',') if names else _numbered(num)


def _numbered(num: int) -> list[str]:
    return [str(i) for i in range(num)]


def skip_absent_tpu() -> None:
    """Keeps jax from looking for a TPU where there is none.

    It would load an installed libtpu, which prints errors then.
    """
    if getattr(jax.config, 'jax_platforms', None) or not importlib.util.find_spec('libtpu'):
        return
    kind, _ = visible_chips()
    has_device = glob.glob('/dev/accel*') or glob.glob('/dev/vfio/*')
    if kind == 'cpu' and not has_device:
        jax.config.update('jax_platforms', 'cpu')
