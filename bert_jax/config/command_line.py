"""The command line of all commands: a config file with overrides; errors in one line.

    --config=FILE.py or --config=FILE.py:ARG, then --config.FIELD=VALUE for any field

The project's own configs are known by name from any folder: --config=glue:mrpc.
"""

import argparse
import ast
import glob
import hashlib
import logging as std_logging
import os
import sys
import traceback
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from bert_jax import config as config_lib  # first: it reports a missing ml_collections

# isort: split
from absl import flags, logging
from ml_collections import config_flags

from bert_jax.config import fields
from bert_jax.config.fields import FIELDS, flat_fields
from bert_jax.config.phases import PHASE_FIELDS, check_phases
from bert_jax.config.suggestions import suggest_field
from bert_jax.runtime.errors import InputError, nearest, shortened, tell_once, visible
from bert_jax.runtime.files import check_ends, check_size

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # commands load TensorFlow and jax after this

_OLD_CONFIGS = {'boolq.py': 'superglue.py:boolq'}  # the project's, by the names that they had
_MOST_MIB = 1  # of a config file; Python takes hundreds of bytes to compile one
_HELP = {'--help', '-help', '-h'}


def parse_command(
    argv: Sequence[str], description: str, flag_values: flags.FlagValues | None = None,
    config: config_lib.ConfigDict | None = None,
) -> tuple[config_lib.ConfigDict, str]:
    """The config that a command line gives, and its file, FILE.py[:ARG].

    Args:
      argv: name and arguments of the program.
      description: printed for --help, with the flags, and the docstring and fields of --config.
      flag_values: defines the command's own flags, which are parsed too.
      config: takes the place of --config.

    Raises:
      InputError: an unknown flag or field, an invalid value, or no config.
      SystemExit: after --help.
    """
    if std_logging.getLogger('absl').level < std_logging.ERROR:
        logging.set_verbosity(logging.ERROR)  # libraries log a great deal at lower levels
    file, arguments = _split_off_config(argv)
    if file:
        config = load_config(file)
    values = flags.FlagValues() if flag_values is None else flag_values
    if not _HELP.isdisjoint(argv):
        _print_help(description, file, config, values)
        sys.exit(0)
    if config is None:
        raise InputError(
            '--config is missing: name a config file, such as --config=configs/tiny_pretrain.py')
    names = flat_fields(config).keys()
    flag = _parse_fields(config, arguments, values)
    changed = sorted(names ^ flat_fields(flag.value).keys())
    if changed:
        raise InputError(f'the flags leave config.{changed[0]} without a value: set each field by '
                         'its whole name, --config.FIELD=VALUE, to a value that is no {...}')
    _check_held_out(flag)
    check_phases(flag.value.phases)
    _check_phases_take_overrides(flag)
    return flag.value, file


def _split_off_config(argv: Sequence[str]) -> tuple[str, list[str]]:
    """(The file of the last --config or '', all other arguments)."""
    file = ''
    others = []
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition('=')
        if name not in ('--config', '-config'):
            others.append(argument)
        elif equals:
            file = config_file(value)
        else:
            file = config_file(next(arguments, ''))
    return file, others


def _parse_fields(
    config: config_lib.ConfigDict, arguments: Sequence[str], values: flags.FlagValues
) -> Any:
    """Parses the arguments into `values`; returns the flag of the config, with the overrides.

    Raises:
      InputError: an unknown flag or field, or a value of another type.
    """
    try:
        config_flags.DEFINE_config_dict(
            'config', config, flag_values=values, sys_argv=list(arguments))
        unexpected = values(arguments)[1:]
    except (AttributeError, LookupError, TypeError, ValueError, OSError, flags.Error) as error:
        raise InputError(_explain(error, arguments, flat_fields(config).keys())) from error
    if unexpected:
        raise InputError(
            f'unexpected argument {unexpected[0]!r}: fields are set with --config.FIELD=VALUE')
    return values['config']


def _explain(error: Exception, arguments: Sequence[str], names: Collection[str]) -> str:
    """The message for wrong arguments, with the field that may be meant.

    Args:
      error: in parsing them.
      arguments: of the command.
      names: of the fields that the config has.
    """
    message = ' '.join(str(error).split())
    for argument in reversed(arguments):
        name = argument.lstrip('-').partition('=')[0]
        path = name.removeprefix('config.').partition('[')[0]
        if name.startswith('config.') and path not in FIELDS:
            return f'--{name} is not a field: {suggest_field(path)}'
        section, dot, _ = path.partition('.')
        has_section = any(field.startswith(section + dot) for field in names)
        if name.startswith('config.') and dot and not has_section:
            return (f'--{name} is a field of other tasks, which this config does not have: leave '
                    'it out')
        if isinstance(error, flags.UnrecognizedFlagError) and name == error.flagname:
            return f'{message} Fields are set with --config.FIELD=VALUE: {suggest_field(name)}'
        if isinstance(error, LookupError) and name.startswith('config.phases['):
            return (
                f'--{name}: the config has no such phase, or the phase does not say this: set the '
                "field for the whole run, or write all phases, --config.phases='(...)'")
    return message


def _check_held_out(flag: Any) -> None:
    """Refuses to set the held-out share of a source if another file is scored."""
    eval_source = flag.value.data.eval_source
    if 'data.held_out' in flag.override_values and eval_source:
        raise InputError(
            '--config.data.held_out would change nothing, because what is scored is '
            f'config.data.eval_source={eval_source}: leave one out')


def _check_phases_take_overrides(flag: Any) -> None:
    """Refuses to set a field of the run for which all phases state their own."""
    phases = [dict(phase) for phase in flag.value.phases]
    for name, path in PHASE_FIELDS.items():
        if path not in flag.override_values:
            continue
        readers = _phases_that_read(name, phases)
        if readers and all(name in phase for phase in readers):
            raise InputError(
                f'--config.{path}={flag.override_values[path]} would change nothing, because the '
                f"phases of this config say their own {name}: set '--config.phases[0].{name}=...' "
                'and so on')


def _phases_that_read(name: str, phases: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The phases that would take a field from the run if they did not state it."""
    if name in ('steps', 'source'):  # the run's has another meaning: the sum, and the list
        return ()
    # A rate and its warm-up carry over to the next phases until one has its own rate.
    if name == 'learning_rate':
        return phases[:1]
    if name == 'warmup':
        return [phase for i, phase in enumerate(phases) if i == 0 or 'learning_rate' in phase]
    return phases


def _print_help(
    description: str, file: str, config: config_lib.ConfigDict | None, values: flags.FlagValues
) -> None:
    """Prints the command's description and flags, its config's docstring and fields with values."""
    print(description)
    if file:
        with open(file.partition(':')[0], encoding='utf-8-sig') as code:
            print(ast.get_docstring(ast.parse(code.read())) or '', end='\n\n')
    print('Flags:\n  --config  A config file, FILE.py or FILE.py:ARGUMENT.')
    for name in sorted(set(values) - set(flags.FLAGS)):  # without absl's own
        print(f'  --{name}  {values[name].help}')
    print(f'\nFields (what they mean: {fields.__file__}):')
    if config is None:
        print('  --config=FILE --help lists those of a config')
    for path, value in flat_fields(config or {}).items():
        print(f'  --config.{path}={value!r}')


class Parser(argparse.ArgumentParser):
    """Flags of a command that is not about one config; errors are one line."""

    def __init__(self, prog: str, description: str | None, **more: Any):
        """Makes the parser.

        Args:
          prog: what is typed before the flags.
          description: the command's docstring.
          **more: arguments that argparse passes to the parsers of subcommands.
        """
        super().__init__(prog, description=description, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter, **more)

    def error(self, message: str) -> NoReturn:
        said = shortened(visible(' '.join(message.split())))
        self.exit(2, f'error: {said} (see {self.prog} --help)\n')


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: a whole number of at least `least`."""
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f'{text} is less than {least}')
        return int(text)

    return number


def _own_configs() -> str:
    """The folder of the project's configs: in the installed package, or beside it in a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, 'configs')
    if os.path.isdir(installed):
        return installed
    return os.path.join(package, '..', 'configs')


def config_file(named: str) -> str:
    """FILE.py[:ARG]; if there is no such file, the project's config of that name.

    Both `glue:mrpc` and `configs/glue.py:mrpc` work.
    """
    path, colon, argument = named.partition(':')
    name = path.removeprefix('configs/').removesuffix('.py') + '.py'
    if name in _OLD_CONFIGS and not os.path.isfile(path):
        tell_once(f'note: configs/{name} is configs/{_OLD_CONFIGS[name]} now')
        return config_file(_OLD_CONFIGS[name])
    own = os.path.normpath(os.path.join(_own_configs(), name))
    if os.path.isfile(path) or not os.path.isfile(own):
        return named
    return f'{own}{colon}{argument}'


def run_name(file: str) -> str:
    """The default name of the run directory for a config, FILE.py[:ARG]."""
    path, _, argument = file.partition(':')
    name = os.path.basename(path).removesuffix('.py')
    return f'{name}-{argument}'.rstrip('-').replace('/', '-')


def load_config(named: str) -> config_lib.ConfigDict:
    """The result of get_config() of FILE.py[:ARG].

    Raises:
      InputError: no such file, an exception in its code (with the line), or a result whose fields
        are not those of `default_config`.
    """
    path, colon, argument = named.partition(':')
    code = _compile(path)
    try:
        config = _call_get_config(code, path, [argument] if colon else [])
        _check_fields(config)
    except (Exception, SystemExit) as error:
        what = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
        message = ' '.join(str(error).split())
        place = f'--config={named}{_line_in(path, error)}'
        raise InputError(f'{place}: {what}{message}') from None
    return config


def _compile(path: str) -> types.CodeType:
    """The code of a config file.

    Raises:
      InputError: there is no such file, or it is not valid Python, without end or too large.
    """
    try:
        check_ends(path)
        if os.path.isfile(path) and not path.endswith('.py'):
            raise SyntaxError('a config file is called NAME.py')
        check_size(path, _MOST_MIB)
        with open(path, encoding='utf-8-sig') as file:  # editors of Windows write the mark
            return compile(file.read(), path, 'exec')
    except InputError:  # which is a ValueError
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f'--config={path} is not valid Python: {error}') from None
    except OSError as error:
        known = sorted(_configs_near(path))
        raise InputError(f'--config={path}: {error.strerror}: {nearest(path, known)}') from None


def _configs_near(path: str) -> list[str]:
    """The config files in the folder of a path; without folder or files, also the project's."""
    folder = os.path.dirname(path)
    found = glob.glob(os.path.join(folder, '*.py'))
    if not folder or not found:
        found += map(os.path.basename, glob.glob(os.path.join(_own_configs(), '*.py')))
    return found


def _call_get_config(code: types.CodeType, path: str, arguments: Sequence[str]) -> Any:
    """The result of get_config() of a config file."""
    module = _module(code, path)
    if not callable(getattr(module, 'get_config', None)):
        raise InputError(
            'it defines no function get_config(): take a file of configs/ as an example')
    return module.get_config(*arguments)


def _module(code: types.CodeType, path: str) -> Any:
    """Runs the code of a config file; the module that it makes."""
    # A name of its own for each file, by which its classes lead to it (`tasks.opening.own_file`).
    file = os.path.abspath(path)
    of_file = hashlib.blake2b(file.encode(), digest_size=4).hexdigest()
    module: Any = types.ModuleType(f'config_file_{of_file}')
    module.__file__ = file
    sys.modules[module.__name__] = module  # where dataclasses look for the names in annotations
    exec(code, vars(module))
    return module


def _check_fields(config: Any) -> None:
    """Refuses a result of get_config() that is no config, or has other fields than its task."""
    given = flat_fields(config) if isinstance(config, config_lib.ConfigDict) else {}
    wanted = flat_fields(config_lib.default_config(given.get('task', 'pretrain')))
    others = sorted(wanted.keys() ^ given.keys())
    if others:
        raise InputError(
            f'get_config() has other fields ({", ".join(others[:3])}): it is to start from '
            'bert_jax.config.default_config(), change it and return it')


def _line_in(path: str, error: BaseException) -> str:
    """The line of a config file in which an error was raised, as ', line 7', or ''."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == path]
    if not lines:
        return ''
    return f', line {lines[-1]}'
