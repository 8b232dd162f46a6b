"""The command line of all commands: a config file with overrides; errors in one line.

    --config=FILE.py or --config=FILE.py:ARG, then --config.FIELD=VALUE for any field

The project's own configs are known by name from any folder: --config=glue:mrpc.
"""

import argparse
import ast
import glob
import os
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from bert_jax import config as config_lib  # first: it reports a missing ml_collections

# isort: split
from absl import flags, logging
from ml_collections import config_flags

from bert_jax.config import fields
from bert_jax.config.fields import FIELDS, flat_fields, meant
from bert_jax.config.phases import PHASE_FIELDS, check_phases
from bert_jax.runtime.errors import InputError, nearest

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # commands load TensorFlow and jax after this


def parse_command(
    argv: Sequence[str], description: str, flag_values: flags.FlagValues | None = None,
    config: config_lib.ConfigDict | None = None,
) -> tuple[config_lib.ConfigDict, str]:
    """The config that a command line gives, and its file, FILE.py[:ARG].

    Args:
      argv: name and arguments of the program.
      description: printed for --help, with the docstring and the fields of --config.
      flag_values: defines the command's own flags, which are parsed too.
      config: takes the place of --config.

    Raises:
      InputError: an unknown flag or field, an invalid value, or no config.
      SystemExit: after --help.
    """
    logging.set_verbosity(logging.ERROR)  # libraries log a great deal at lower levels
    values = flags.FlagValues() if flag_values is None else flag_values
    file, rest, arguments = '', [], iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition('=')
        if name in ('--config', '-config'):
            file = config_file(value if equals else next(arguments, ''))
        else:
            rest.append(argument)
    if file:
        config = load_config(file)
    if {'--help', '-help', '-h'} & set(argv):
        _print_help(description, file, config)
        sys.exit(0)
    if config is None:
        raise InputError(
            '--config is missing: name a config file, such as --config=configs/tiny_pretrain.py')
    try:
        config_flags.DEFINE_config_dict('config', config, flag_values=values, sys_argv=rest)
        unexpected = values(rest)[1:]
    except (AttributeError, LookupError, TypeError, ValueError, OSError, flags.Error) as error:
        message = ' '.join(str(error).split())
        for argument in rest:
            name = argument.lstrip('-').partition('=')[0]
            path = name.removeprefix('config.').partition('[')[0]
            if name.startswith('config.') and path not in FIELDS:
                message = f'--{name} is not a field: {meant(path)}'
            elif isinstance(error, flags.UnrecognizedFlagError) and name == error.flagname:
                message += f' Fields are set with --config.FIELD=VALUE: {meant(name)}'
            elif name.startswith('config.phases[') and isinstance(error, LookupError):
                message = (
                    f'--{name}: the config has no such phase, or the phase does not say this: set '
                    "the field for the whole run, or write all phases, --config.phases='(...)'")
        raise InputError(message) from error
    if unexpected:
        raise InputError(
            f'unexpected argument {unexpected[0]!r}: fields are set with --config.FIELD=VALUE')
    flag: Any = values['config']
    if 'data.held_out' in flag.override_values and flag.value.data.eval_source:
        raise InputError('--config.data.held_out would change nothing, because what is scored is '
                         f'config.data.eval_source={flag.value.data.eval_source}: leave one out')
    check_phases(flag.value.phases)
    parts = [dict(phase) for phase in flag.value.phases]
    # A rate and its warm-up carry over to the next phases until one has its own rate.
    schedules = [part for i, part in enumerate(parts) if i == 0 or 'learning_rate' in part]
    users = {'steps': [], 'source': [], 'learning_rate': parts[:1], 'warmup': schedules}
    for field, path in PHASE_FIELDS.items():
        asked = users.get(field, parts)
        if path in flag.override_values and asked and all(field in part for part in asked):
            raise InputError(
                f'--config.{path}={flag.override_values[path]} would change nothing, because the '
                f"phases of this config say their own {field}: set '--config.phases[0].{field}="
                "...' and so on")
    return flag.value, file


def _print_help(description: str, file: str, config: config_lib.ConfigDict | None) -> None:
    """Prints the command's description, its config's docstring, and the fields and their values."""
    print(description)
    if file:
        with open(file.partition(':')[0], encoding='utf-8') as code:
            print(ast.get_docstring(ast.parse(code.read())) or '', end='\n\n')
    print(f'Fields, with --config=FILE (what they mean: {fields.__file__}):')
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
        self.exit(2, f'error: {" ".join(message.split())} (see {self.prog} --help)\n')


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
    return installed if os.path.isdir(installed) else os.path.join(package, '..', 'configs')


def config_file(named: str) -> str:
    """FILE.py[:ARG]; if there is no such file, the project's config of that name.

    Both `glue:mrpc` and `configs/glue.py:mrpc` work.
    """
    path, colon, argument = named.partition(':')
    name = path.removeprefix('configs/').removesuffix('.py') + '.py'
    own = os.path.normpath(os.path.join(_own_configs(), name))
    return own + colon + argument if not os.path.isfile(path) and os.path.isfile(own) else named


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
    try:
        if os.path.isfile(path) and not path.endswith('.py'):
            raise SyntaxError('a config file is called NAME.py')
        with open(path, encoding='utf-8') as file:
            code = compile(file.read(), path, 'exec')
    except (SyntaxError, ValueError) as error:
        raise InputError(f'--config={path} is not valid Python: {error}') from None
    except OSError as error:
        folder = os.path.dirname(path)
        near = glob.glob(os.path.join(folder, '*.py'))
        if not folder or not near:
            near += map(os.path.basename, glob.glob(os.path.join(_own_configs(), '*.py')))
        raise InputError(
            f'--config={path}: {error.strerror}: {nearest(path, sorted(near))}') from None
    module: Any = types.ModuleType('config_file')
    module.__file__ = path
    sys.modules[module.__name__] = module  # where dataclasses look for the names in annotations
    try:
        exec(code, vars(module))
        if not callable(getattr(module, 'get_config', None)):
            raise InputError('it defines no function get_config(): take a file of configs/ as an '
                             'example')
        config = module.get_config(*([argument] if colon else []))
        given = flat_fields(config) if isinstance(config, config_lib.ConfigDict) else {}
        wanted = flat_fields(config_lib.default_config(given.get('task', 'pretrain')))
        if other := wanted.keys() ^ given.keys():
            raise InputError(
                f'get_config() has other fields ({", ".join(sorted(other)[:3])}): it is to start '
                'from bert_jax.config.default_config(), change it and return it')
    except (Exception, SystemExit) as error:
        lines = [f', line {frame.lineno}' for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == path]
        what = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
        message = ' '.join(str(error).split())
        raise InputError(f"--config={named}{''.join(lines[-1:])}: {what}{message}") from None
    return config
