"""What computed a result: the program's commit and command, package versions, the machine."""

import contextlib
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys

from bert_jax.runtime import files


def versions() -> dict[str, str]:
    """The versions of this package and of the packages that compute, by name."""
    known = {}
    for name in ('bert-jax', 'jax', 'jaxlib', 'libtpu', 'flax', 'optax'):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[name] = importlib.metadata.version(name)
    return known


def made_by() -> dict[str, str]:
    """The commit of this package ('' outside its repository) and the running command."""
    return {'commit': _commit(), 'command': shlex.join(_command())}


def _commit() -> str:
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    if not os.path.exists(os.path.join(root, '.git')) or not shutil.which('git'):
        return ''
    git = ['git', '-C', root, 'describe', '--always', '--dirty', '--exclude=*']
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()


def _command() -> list[str]:
    """The words of the running command; modules run by `python -m` are written that way."""
    module = getattr(sys.modules['__main__'].__spec__, 'name', '')
    if module:
        return ['python', '-m', module, *sys.argv[1:]]
    return sys.argv


def processor() -> str:
    """The processor's model, or at least its architecture."""
    model = re.search(r'^model name\s*:(.*)', files.read_system('/proc/cpuinfo'), re.MULTILINE)
    return model[1].strip() if model else platform.machine()


def hardware() -> str:
    """The devices that jax computes on: accelerators, or the processor's cores."""
    import jax

    if jax.default_backend() != 'cpu':
        return f'{jax.device_count()} x {jax.devices()[0].device_kind}'
    return f'{os.cpu_count()} cores of {processor()}'
