"""What the commands share: a config file with overrides, and faults told in one line.

    --config=FILE.py or --config=FILE.py:ARG, then --config.FIELD=VALUE for any field
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from bert_jax import config as config_lib  # first: it says in a line what is not installed

# isort: split
from absl import flags
from ml_collections import config_flags

from bert_jax.errors import InputError


def define_config(flag_values: flags.FlagValues, argv: list[str] | None = None) -> Any:
    """Defines --config; `argv` where it is not the program's own."""
    return config_flags.DEFINE_config_file(
        'config', None, 'Config file, as FILE.py or FILE.py:ARG.', flag_values=flag_values,
        sys_argv=argv,
    )


def parse_flags(argv: list[str], flag_values: flags.FlagValues) -> list[str]:
    """absl's parsing, with faults told in one line.

    Raises:
      InputError: a flag that is unknown or cannot be read.
    """
    try:
        rest = flag_values(argv)
    except (AttributeError, LookupError, TypeError, ValueError, OSError, flags.Error) as error:
        known = config_lib.fields(config_lib.default_config())
        for argument in argv[1:]:
            name, _, _ = argument.lstrip('-').partition('=')
            path = name.removeprefix('config.').partition('[')[0]
            if name.startswith('config.') and path not in known:
                raise InputError(
                    f'--{name} is not a field: {config_lib.nearest(path, known)}'
                ) from error
            if isinstance(error, LookupError) and name.startswith('config.phases['):
                raise InputError(
                    f'--{name}: the config has no such phase, or the phase does not say this: set '
                    "the field for the whole run, or write all phases, --config.phases='(...)'"
                ) from error
        raise InputError(' '.join(str(error).split())) from error
    flag: Any = flag_values['config']
    if flag.value is not None:
        config_lib.check_overrides(flag.value, flag.override_values)
    return rest


def fail(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line on standard error."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    sys.exit(status)
