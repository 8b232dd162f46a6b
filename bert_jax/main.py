"""Trains BERT from a config file.

    python -m bert_jax.main --config=configs/tiny_pretrain.py
    python -m bert_jax.main --config=configs/large_pretrain.py:lamb --workdir=runs/large \\
        --config.data.source='wiki/*.txt.gz' --config.data.vocab_file=vocab.txt

Any field of bert_jax/config can be set with --config.FIELD=VALUE. The run directory (by default
runs/NAME of the config) receives config.json, vocab.txt, metrics.jsonl, checkpoints/, TensorBoard
events and curves.png; starting again in the same directory resumes. Exit status: 0 done, 2 bad
input or configuration, 3 the run diverged, 130 stopped by Ctrl-C before the run began, 143 stopped
by SIGTERM with the state saved, 1 anything else.
"""

import json
import sys
from typing import Any

from absl import flags, logging

from bert_jax.config import ConfigDict  # it reports a missing ml_collections
from bert_jax.config.command_line import parse_command, run_name
from bert_jax.runtime.errors import show
from bert_jax.runtime.files import Path, as_path
from bert_jax.runtime.process import error_boundary


def main(argv: list[str]) -> None:
    """Runs the command (see the top of this file)."""
    with error_boundary():
        config, workdir = _parse(argv)
    with error_boundary():
        # Imported here because they load jax, for which --help should not wait.
        from bert_jax.runtime.hosts import say
        from bert_jax.train.session import run_session
        from bert_jax.validation import check_used, validate

        validate(config)
        check_used(config)
    with run_session(workdir) as session:
        # Within the session, so that a signal or an error during the import is handled by it.
        from bert_jax.run_setup import open_run
        from bert_jax.train.experiment import train_run

        result = train_run(
            open_run(config, [workdir]), workdir, session.should_stop,
            check_lock=session.check_lock, guard=session.guard)
    with error_boundary():
        # Prints the result's scores alone; `last/...` stays in metrics.jsonl.
        shown = {name: value for name, value in result.items() if not name.startswith('last/')}
        say('result ' + json.dumps(shown))


def _parse(argv: list[str]) -> tuple[ConfigDict, Path]:
    """The config and the run directory of a command line."""
    own_flags: Any = flags.FlagValues()
    own_flags.append_flag_values(flags.FLAGS)  # absl's own, such as --verbosity
    flags.DEFINE_string(
        'workdir', '', 'Run directory; default: runs/NAME.', flag_values=own_flags)
    config, file = parse_command(argv, __doc__ or '', own_flags)
    if not own_flags['verbosity'].present:
        logging.set_verbosity(logging.FATAL)  # errors that end the run are printed in one line
    workdir = own_flags.workdir
    if not workdir:
        workdir = f'runs/{run_name(file)}'
        if config.debug:
            workdir += '-debug'
        show(f'run directory: {workdir}')
    return config, as_path(workdir)


if __name__ == '__main__':
    main(sys.argv)
