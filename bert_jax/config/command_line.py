"""The command line of all commands: a config file with overrides; errors in one line.

    --config=FILE.py or --config=FILE.py:ARG, then --config.FIELD=VALUE for any field

The project's own configs are known by name from any folder: --config=glue:mrpc.
"""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable
from typing import Any

from bert_jax import config as config_lib  # first: it reports a missing ml_collections

# isort: split
from absl import flags
from ml_collections import config_flags

from bert_jax.config.phases import PHASE_FIELDS, check_phases
from bert_jax.runtime.errors import InputError, nearest

_FAULTS = (AttributeError, LookupError, TypeError, ValueError, OSError, flags.Error)


def config_file(named: str) -> str:
    """FILE.py[:ARG]; if there is no such file, the package's config of that name.

    Both `glue:mrpc` and `configs/glue.py:mrpc` work.
    """
    path, colon, argument = named.partition(':')
    if not os.path.exists(path):
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        name = path.removeprefix('configs/').removesuffix('.py') + '.py'
        for folder in (package, os.path.dirname(package)):  # installed, or a checkout
            if os.path.isfile(file := os.path.join(folder, 'configs', name)):
                return file + colon + argument
    return named


def define_config(flag_values: flags.FlagValues, argv: list[str]) -> Any:
    """Defines --config, and makes its value in `argv` the path of a file."""
    for i, argument in enumerate(argv):
        flag, equals, value = argument.partition('=')
        if flag in ('--config', '-config') and equals:
            argv[i] = f'{flag}={config_file(value)}'
        elif flag in ('--config', '-config') and i + 1 < len(argv):
            argv[i + 1] = config_file(argv[i + 1])
    return config_flags.DEFINE_config_file(
        'config', None, 'Config file, as FILE.py or FILE.py:ARG.', flag_values=flag_values,
        sys_argv=argv,
    )


def define_overrides(
    config: config_lib.ConfigDict, flag_values: flags.FlagValues, argv: list[str]
) -> None:
    """Defines --config.FIELD for an existing config.

    Raises:
      InputError: an unknown field or an invalid value.
    """
    try:
        config_flags.DEFINE_config_dict('config', config, flag_values=flag_values, sys_argv=argv)
    except _FAULTS as error:
        raise _in_one_line(argv, error) from error


def parse_flags(argv: list[str], flag_values: flags.FlagValues) -> list[str]:
    """Parses flags with absl, and reports errors in one line.

    Raises:
      InputError: an unknown flag or an invalid value.
    """
    _check_config_file(argv)
    try:
        rest = flag_values(argv)
    except _FAULTS as error:
        raise _in_one_line(argv, error) from error
    flag: Any = flag_values['config']
    if flag.value is not None:
        _check_overrides(flag.value, flag.override_values)
    return rest


def _check_config_file(argv: list[str]) -> None:
    """Runs the config file before absl does, for messages that name its line or field.

    Raises:
      InputError: no such file, not a config file, or its result is not a config.
    """
    named = next((value for argument, following in zip(argv, [*argv[1:], ''], strict=True)
                  for flag, equals, value in [argument.partition('=')]
                  if flag.lstrip('-') == 'config' and flag.startswith('-')
                  for value in [value if equals else following]), None)
    if named is None:
        return
    path, colon, argument = named.partition(':')
    make = _defined_in(path).get('get_config')
    if not callable(make):
        raise InputError(f'{path} defines no function get_config(): take a file of configs/ as an '
                         'example')
    arguments = (argument,) if colon else ()
    try:
        inspect.signature(make).bind(*arguments)
    except TypeError:
        raise InputError(
            f'{path} takes no argument, and {argument!r} is given: --config={path}' if colon else
            f'{path} needs an argument: --config={path}:ARGUMENT'
        ) from None
    config = _in_config_file(path, lambda: make(*arguments))
    if not isinstance(config, config_lib.ConfigDict):
        raise InputError(
            f'{path}: get_config() gives {type(config).__name__}: it is to start from '
            'bert_jax.config.default_config(), change it and return it'
        )
    task = config.get('task')
    start = config_lib.default_config(task if isinstance(task, str) else 'pretrain')
    there, wanted = config_lib.fields(config), config_lib.fields(start)
    for name in (*wanted, *there):
        if name not in wanted:
            raise InputError(
                f'{path}: {name} is not a field: {nearest(name, wanted)}')
        if name not in there:
            raise InputError(
                f'{path}: get_config() gives a config without {name}: it is to start from '
                'bert_jax.config.default_config()'
            )


def _defined_in(path: str) -> dict[str, Any]:
    """The globals of a config file."""
    if not os.path.exists(path):
        folder = os.path.dirname(path) or '.'
        near = [os.path.join(folder, name) for name in sorted(os.listdir(folder))
                if name.endswith('.py')] if os.path.isdir(folder) else []
        raise InputError(
            f'--config={path}: no such file'
            + (f': {nearest(path, near)}' if near else '')
        )
    if os.path.isdir(path):
        raise InputError(f'--config={path} is a directory: name a file in it')
    if not path.endswith('.py'):
        raise InputError(f'--config={path} is no Python file: a config file is called NAME.py')
    try:
        with open(path, encoding='utf-8') as file:
            code = compile(file.read(), path, 'exec')
    except SyntaxError as error:
        raise InputError(
            f'--config={path} is no Python: line {error.lineno}: {error.msg}') from None
    except (UnicodeDecodeError, ValueError):
        raise InputError(f'--config={path} is no Python file, but binary') from None
    except OSError as error:
        raise InputError(f'--config={path}: {error.strerror or error}') from None
    defined: dict[str, Any] = {'__name__': 'config', '__file__': path}
    _in_config_file(path, lambda: exec(code, defined))
    return defined


def _in_config_file(path: str, act: Callable[[], Any]) -> Any:
    """Runs code of a config file and returns its result; errors name the file's line."""
    try:
        return act()
    except InputError as error:
        raise InputError(str(error) if path in str(error) else f'{path}: {error}') from None
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == path]
        message = ' '.join(str(error).split())
        if isinstance(error, ValueError) and path in message:  # it names the file
            raise InputError(message) from None
        where = f', line {lines[-1]}' if lines else ''
        raise InputError(f'--config={path}{where}: {type(error).__name__}: {message}') from None


def _in_one_line(argv: list[str], error: Exception) -> InputError:
    known = config_lib.all_fields()
    for argument in argv[1:]:
        name, _, _ = argument.lstrip('-').partition('=')
        path = name.removeprefix('config.').partition('[')[0]
        if name.startswith('config.') and path not in known:
            return InputError(f'--{name} is not a field: {nearest(path, known)}')
        if isinstance(error, LookupError) and name.startswith('config.phases['):
            return InputError(
                f'--{name}: the config has no such phase, or the phase does not say this: set '
                "the field for the whole run, or write all phases, --config.phases='(...)'"
            )
    return InputError(' '.join(str(error).split()))


def _check_overrides(config: config_lib.ConfigDict, overrides: dict[str, Any]) -> None:
    """Refuses overrides of fields that every phase sets itself.

    Args:
      config: a whole config.
      overrides: fields set on the command line, by dotted name.

    Raises:
      InputError: no phase uses the field.
    """
    check_phases(config.phases)
    parts = [dict(phase) for phase in config.phases]
    # A rate and its warm-up carry over to the next phases until one has its own rate.
    schedules = [part for i, part in enumerate(parts) if i == 0 or 'learning_rate' in part]
    users = {'steps': [], 'learning_rate': parts[:1], 'warmup': schedules}
    for field, path in PHASE_FIELDS.items():
        asked = users.get(field, parts)
        if path in overrides and asked and all(field in part for part in asked):
            raise InputError(
                f'--config.{path}={overrides[path]} would change nothing, because the phases of '
                f"this config say their own {field}: set '--config.phases[0].{field}=...' "
                'and so on'
            )
