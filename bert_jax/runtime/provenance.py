"""The origin of a result: the program's commit, code and command, package versions, the machine."""

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bert_jax.runtime import files
from bert_jax.runtime.hashing import digest

_PACKAGE = Path(__file__).resolve().parents[1]
_PYTHON = Path(sysconfig.get_path('stdlib')).resolve()
# Packages that compute.
_COMPUTING = ('bert-jax', 'jax', 'jaxlib', 'libtpu', 'flax', 'optax')
# Modules that Python itself imports when it starts, and the command.
_OF_PYTHON = ('__main__', 'sitecustomize', 'usercustomize')
_INSTALLED = {'site-packages', 'dist-packages'}  # folders of packages
_SHOWN_DIGITS = 12  # of a digest
_PASSWORD = re.compile('(://[^:/@]*):[^@]*@')  # of a URL, such as that of a sweep's database


def versions() -> dict[str, str]:
    """The versions of this package and of the packages that compute, by name."""
    return versions_of(_COMPUTING)


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """The versions of those of these packages that are installed, by name."""
    known = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[name] = importlib.metadata.version(name)
    return known


def made_by() -> dict[str, Any]:
    """The record of the program for config.json.

    These are the commit of this package ('' outside its repository and its archives), a digest of
    its files, the versions of what computes, and the running command, without passwords of URLs.
    """
    return {
        'commit': _commit(),
        'code': digest(json.dumps(package_files()).encode()),
        'versions': versions(),
        'command': shlex.join(_command()),
    }


def other_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In which code and versions two programs differ, for a message; '' where they do not.

    Args:
      before, now: of `made_by`; older versions recorded less.
    """
    parts = []
    if before.get('code') and before['code'] != now['code']:
        parts.append(f'{_named_code(before)} so far, now {_named_code(now)}')
    elif not before.get('code') and before.get('commit') and before['commit'] != now['commit']:
        parts.append(f"commit {before['commit']} so far, now {_named_code(now)}")
    versions_before = before.get('versions') or {}
    for name in sorted(versions_before.keys() | now['versions'].keys()):
        was, is_now = versions_before.get(name), now['versions'].get(name)
        if versions_before and was != is_now:
            parts.append(f"{name} {was or 'not installed'} so far, now {is_now or 'not installed'}")
    return '; '.join(parts)


def _named_code(made: Mapping[str, Any]) -> str:
    """The commit and the digest of a program's files."""
    code = f"code {made['code'][:_SHOWN_DIGITS]}"
    return f"commit {made['commit']} ({code})" if made.get('commit') else code


@functools.cache
def package_files() -> dict[str, str]:
    """Digests of the files of this package, by their paths from the folder that it is in."""
    return {
        path.relative_to(_PACKAGE.parent).as_posix(): digest(path.read_bytes())
        for path in sorted(_PACKAGE.rglob('*.py'))}


def own_files() -> dict[str, str]:
    """Digests of config files and of what they import that is not installed, by name."""
    digests = {}
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, '__dict__', {}).get('__file__')  # which imports no lazy module
        if name in _OF_PYTHON or not (isinstance(path, str) and path.endswith('.py')):
            continue
        if _is_installed(path):
            continue
        file = Path(path).resolve()
        if file.exists():
            # Not by its whole path, which may be another on each host.
            digests[f'{file.parent.name}/{file.name}'] = digest(file.read_bytes())
    return digests


@functools.cache  # of thousands of modules
def _is_installed(path: str) -> bool:
    """Whether a module's file is Python's, this package's or an installed package's."""
    file = Path(path).resolve()
    return bool({_PYTHON, _PACKAGE} & set(file.parents) or _INSTALLED & set(file.parts))


def _commit() -> str:
    """The commit in the repository, with '-dirty' if files differ from it, or of an archive."""
    root = str(_PACKAGE.parent)
    if not os.path.exists(os.path.join(root, '.git')):
        return _archived_commit()
    if not shutil.which('git'):
        return ''
    git = ['git', '-C', root, 'describe', '--always', '--dirty', '--exclude=*']
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()


def _archived_commit() -> str:
    """The commit that `git archive` put into `commit.txt`; '' if the files come from elsewhere."""
    with contextlib.suppress(OSError):
        commit = (_PACKAGE / 'commit.txt').read_text().strip()
        if re.fullmatch('[0-9a-f]{7,64}', commit):
            return commit
    return ''


def _command() -> list[str]:
    """The words of the running command, with `***` for passwords of URLs.

    Modules run by `python -m` are written that way.
    """
    module = getattr(sys.modules['__main__'].__spec__, 'name', '')
    words = [_PASSWORD.sub(r'\1:***@', word) for word in sys.argv]
    return ['python', '-m', module, *words[1:]] if module else words


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
