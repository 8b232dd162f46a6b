"""Trains BERT from a config file.

    python -m bert_jax.main --config=configs/tiny_pretrain.py
    python -m bert_jax.main --config=configs/large_pretrain.py:lamb --workdir=runs/large \\
        --config.data.source='wiki/*.txt.gz' --config.data.vocab_file=vocab.txt

Any field of bert_jax/config.py can be set with --config.FIELD=VALUE. The run directory (by default
runs/NAME of the config) receives config.json, vocab.txt, metrics.jsonl, checkpoints/, TensorBoard
events and curves.png; starting again in it resumes. Exit status: 0 done, 2 bad input or
configuration, 143 stopped by SIGTERM with the state saved, 1 anything else.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # before anything loads TensorFlow

from absl import app, flags, logging

from bert_jax import hosts
from bert_jax.command_line import define_config, fail, parse_flags
from bert_jax.errors import Diverged, InputError, Stopped
from bert_jax.files import as_path
from bert_jax.process import use_huge_pages
from bert_jax.stopping import Guard
from bert_jax.validation import validate

_CONFIG = define_config(flags.FLAGS)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Run directory; default: runs/NAME of the config.')


def _parse_flags(argv: list[str]) -> list[str]:
    try:
        return parse_flags(argv, flags.FLAGS)
    except InputError as error:
        fail(str(error))


def _workdir() -> str:
    if _WORKDIR.value:
        return _WORKDIR.value
    flag: Any = flags.FLAGS['config']
    name, _, argument = flag.config_filename.partition(':')
    stem = os.path.basename(name).removesuffix('.py')
    workdir = f'runs/{stem}' + (f'-{argument}' if argument else '')
    print(f'run directory: {workdir}', flush=True)
    return workdir


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        fail(f'unexpected argument {argv[1]!r}: fields are set with --config.FIELD=VALUE')
    if _CONFIG.value is None:
        fail('--config is missing: name a config file, such as --config=configs/tiny_pretrain.py')
    if not flags.FLAGS['verbosity'].present:
        logging.set_verbosity(logging.ERROR)  # libraries tell a great deal at the lower levels
    workdir = _workdir()
    guard = Guard()
    try:
        validate(_CONFIG.value)
        hosts.connect()
        guard.start()
        hosts.check_accelerators()
        from bert_jax import experiment

        result = experiment.run(_CONFIG.value, as_path(workdir), guard.should_stop)
        guard.finish()
    except Stopped as stopped:
        sys.stderr.write(f'error: {stopped}\n')
        guard.stopped(str(stopped))
        sys.exit(143)
    except InputError as error:
        _end(guard, ' '.join(str(error).split()), 2)
    except Diverged as error:
        _end(guard, str(error), 1)
    except Exception as error:
        # Libraries wrap it in many types; what was saved before stays good.
        if 'No space left on device' in str(error) or getattr(error, 'errno', None) == errno.ENOSPC:
            _end(guard, f'the disk of {workdir} is full: free some space and start again, the run '
                 'goes on from its last checkpoint', 1)
        guard.await_verdict()  # a neighbour's end breaks what the devices were doing together
        traceback.print_exc()
        guard.fail(f'{type(error).__name__}: {error}', 1)
        sys.exit(1)
    hosts.say('result ' + json.dumps(result))


def _end(guard: Guard, message: str, status: int) -> None:
    sys.stderr.write(f'error: {message}\n')  # in one piece: other hosts write beside it
    guard.fail(message, status)
    sys.exit(status)


if __name__ == '__main__':
    use_huge_pages()
    app.run(main, flags_parser=_parse_flags)
