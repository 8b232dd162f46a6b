"""Whether all hosts of a run compute with the same code: files, packages, settings of jax."""

import os
import platform
from collections.abc import Mapping

import jax

from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError, named_hosts
from bert_jax.runtime.provenance import own_files, package_files, versions, versions_of

# Packages that make rows, save states or compute on GPUs, beside those of `versions`.
_PACKAGES = (
    'jax-cuda12-plugin', 'jax-cuda13-plugin', 'ml-dtypes', 'numpy', 'orbax-checkpoint',
    'tensorflow', 'tensorflow-cpu', 'tensorflow-text', 'tensorstore', 'tokenizers')
# Of jax.config: they change what programs compute.
_SETTINGS = ('jax_enable_x64', 'jax_default_matmul_precision', 'jax_default_prng_impl',
             'jax_threefry_partitionable', 'jax_numpy_dtype_promotion')
# Environment variables with flags of compilers, and beginnings of flags that may differ.
_COMPILER_FLAGS = ('XLA_FLAGS', 'LIBTPU_INIT_ARGS')
_FREE_FLAGS = ('--xla_dump', '--xla_force_host_platform_device_count')
_OF_USER = 'own: '  # begins the names of files outside the package
_MOST_NAMED = 4  # differences of a host in a message


def check_same_code() -> None:
    """Compares the code of all hosts, which all call it once they have joined.

    Raises:
      InputError: on all hosts, with the hosts that differ from host 0, and in what.
    """
    if hosts.count() == 1:
        return
    ours = _code_here()
    theirs = hosts.share_json('code', lambda: ours)
    by_difference: dict[str, list[int]] = {}
    for host, line in enumerate(hosts.exchange('code', _differences(theirs, ours))):
        if line:
            by_difference.setdefault(line, []).append(host)
    if by_difference:
        lines = [f'{named_hosts(numbers)}: {line}' for line, numbers in by_difference.items()]
        raise InputError(
            f"hosts have other code than host 0 ({'; '.join(lines)}): install and set the same on "
            'all')


def _code_here() -> dict[str, str]:
    """Digests of files, versions of packages, and settings, by name."""
    major, minor, _ = platform.python_version_tuple()
    of_user = {_OF_USER + name: digest for name, digest in own_files().items()}
    return {
        **package_files(), **of_user, **versions(), **versions_of(_PACKAGES),
        'Python': f'{major}.{minor}', **_settings(),
    }


def _settings() -> dict[str, str]:
    """The settings that change the programs that jax makes of the same code, by name."""
    settings = {name: str(getattr(jax.config, name)) for name in _SETTINGS}
    for variable in _COMPILER_FLAGS:
        flags = os.environ.get(variable, '').split()
        compared = sorted(flag for flag in flags if not flag.startswith(_FREE_FLAGS))
        settings[variable] = ' '.join(compared) or 'without flags'
    return settings


def _differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """The differences of this host from host 0, in words; '' if there are none."""
    found = []
    for name in sorted(theirs.keys() | ours.keys()):
        on_first, here = theirs.get(name), ours.get(name)
        is_of_user = name.startswith(_OF_USER)  # host 0 may import more, to draw its curves, say
        if on_first == here or (is_of_user and None in (on_first, here)):
            continue
        if on_first is None:
            found.append(f'{name} is only there')
        elif here is None:
            found.append(f'{name} is missing')
        elif name.endswith('.py'):
            found.append(name.removeprefix(_OF_USER))
        else:
            found.append(f'{name} {here} instead of {on_first}')
    named = ', '.join(found[:_MOST_NAMED])
    if len(found) > _MOST_NAMED:
        named += f' and {len(found) - _MOST_NAMED} more'
    return named
