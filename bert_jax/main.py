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
import signal
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # before anything loads TensorFlow

from absl import app, flags, logging
from ml_collections import config_flags

from bert_jax import config as config_lib
from bert_jax.errors import InputError
from bert_jax.process import use_huge_pages
from bert_jax.validation import validate

_CONFIG = config_flags.DEFINE_config_file('config', None, 'Config file, as FILE.py or FILE.py:ARG.')
_WORKDIR = flags.DEFINE_string('workdir', None, 'Run directory; default: runs/NAME of the config.')


def _parse_flags(argv: list[str]) -> list[str]:
    """absl's parsing, with faults told in one line (exit status 2)."""
    try:
        return flags.FLAGS(argv)
    except (AttributeError, KeyError, TypeError, ValueError, OSError, flags.Error) as error:
        known = config_lib.fields(config_lib.default_config())
        for argument in argv[1:]:
            name, _, _ = argument.lstrip('-').partition('=')
            path = name.removeprefix('config.').partition('[')[0]
            if name.startswith('config.') and path not in known:
                _fail(f'--{name} is not a field: {config_lib.nearest(path, known)}')
        _fail(' '.join(str(error).split()))
        raise AssertionError from error  # not reached


def _fail(message: str, status: int = 2) -> None:
    print(f'error: {message}', file=sys.stderr, flush=True)
    sys.exit(status)


def _workdir() -> Path:
    if _WORKDIR.value:
        return Path(_WORKDIR.value)
    flag: Any = flags.FLAGS['config']
    name, _, argument = flag.config_filename.partition(':')
    workdir = Path('runs') / (Path(name).stem + (f'-{argument}' if argument else ''))
    print(f'run directory: {workdir}', flush=True)
    return workdir


def _connect_hosts() -> None:
    """Joins the other hosts of a pod slice, or of an explicit cluster of processes.

    Processes elsewhere are told with JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID.
    """
    import jax

    if 'JAX_NUM_PROCESSES' in os.environ:
        jax.distributed.initialize(
            num_processes=int(os.environ['JAX_NUM_PROCESSES']),
            process_id=int(os.environ['JAX_PROCESS_ID']),
        )
    elif ',' in os.environ.get('TPU_WORKER_HOSTNAMES', ''):
        jax.distributed.initialize()


def _stop_on_signal():  # type: ignore[no-untyped-def]
    """A function that says whether SIGTERM or Ctrl-C has come, alike on all hosts."""
    import jax

    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        return multihost_utils.reached_preemption_sync_point
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        del frame
        received.append(number)
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return lambda step: bool(received)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        _fail(f'unexpected argument {argv[1]!r}: fields are set with --config.FIELD=VALUE')
    if _CONFIG.value is None:
        _fail('--config is missing: name a config file, such as --config=configs/tiny_pretrain.py')
    if not flags.FLAGS['verbosity'].present:
        logging.set_verbosity(logging.ERROR)  # libraries tell a great deal at the lower levels
    workdir = _workdir()
    try:
        validate(_CONFIG.value)
        _connect_hosts()
        from bert_jax import experiment
        from bert_jax.train.loop import Diverged, Stopped

        try:
            result = experiment.run(_CONFIG.value, workdir, _stop_on_signal())
        except Diverged as error:
            _fail(str(error), 1)
        except Stopped as error:
            _fail(str(error), 143)
    except InputError as error:
        _fail(' '.join(str(error).split()))
    except Exception as error:
        # Libraries wrap it in many types; what was saved before stays good.
        if 'No space left on device' in str(error) or getattr(error, 'errno', None) == errno.ENOSPC:
            _fail(f'the disk of {workdir} is full: free some space and start again, the run goes '
                  'on from its last checkpoint', 1)
        raise
    experiment.say('result ' + json.dumps(result))


if __name__ == '__main__':
    use_huge_pages()
    app.run(main, flags_parser=_parse_flags)
