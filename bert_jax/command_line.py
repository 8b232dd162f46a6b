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
from bert_jax.phases import PHASE_FIELDS

_FAULTS = (AttributeError, LookupError, TypeError, ValueError, OSError, flags.Error)


def define_config(flag_values: flags.FlagValues, argv: list[str] | None = None) -> Any:
    """Defines --config; `argv` where it is not the program's own."""
    return config_flags.DEFINE_config_file(
        'config', None, 'Config file, as FILE.py or FILE.py:ARG.', flag_values=flag_values,
        sys_argv=argv,
    )


def define_overrides(
    config: config_lib.ConfigDict, flag_values: flags.FlagValues, argv: list[str]
) -> None:
    """Defines --config.FIELD for a config that is there already.

    Raises:
      InputError: a field that is unknown or a value that cannot be.
    """
    try:
        config_flags.DEFINE_config_dict('config', config, flag_values=flag_values, sys_argv=argv)
    except _FAULTS as error:
        raise _in_one_line(argv, error) from error


def parse_flags(argv: list[str], flag_values: flags.FlagValues) -> list[str]:
    """absl's parsing, with faults told in one line.

    Raises:
      InputError: a flag that is unknown or cannot be read.
    """
    try:
        rest = flag_values(argv)
    except _FAULTS as error:
        raise _in_one_line(argv, error) from error
    flag: Any = flag_values['config']
    if flag.value is not None:
        _check_overrides(flag.value, flag.override_values)
    return rest


def _in_one_line(argv: list[str], error: Exception) -> InputError:
    known = config_lib.all_fields()
    for argument in argv[1:]:
        name, _, _ = argument.lstrip('-').partition('=')
        path = name.removeprefix('config.').partition('[')[0]
        if name.startswith('config.') and path not in known:
            return InputError(f'--{name} is not a field: {config_lib.nearest(path, known)}')
        if isinstance(error, LookupError) and name.startswith('config.phases['):
            return InputError(
                f'--{name}: the config has no such phase, or the phase does not say this: set '
                "the field for the whole run, or write all phases, --config.phases='(...)'"
            )
    return InputError(' '.join(str(error).split()))


def _check_overrides(config: config_lib.ConfigDict, overrides: dict[str, Any]) -> None:
    """Refuses what was set for the whole run where every phase says its own.

    Args:
      config: a whole config.
      overrides: what the command line has set in it, by dotted name.

    Raises:
      InputError: a field that no phase uses.
    """
    parts = [dict(phase) for phase in config.phases]
    # A rate and its warm-up go on from phase to phase until one has its own rate.
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


def fail(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line on standard error."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    sys.exit(status)
