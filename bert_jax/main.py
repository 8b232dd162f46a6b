"""Trains BERT from a config file.

    python -m bert_jax.main --config=configs/tiny_pretrain.py
    python -m bert_jax.main --config=configs/large_pretrain.py:lamb --workdir=runs/large \\
        --config.data.source='wiki/*.txt.gz' --config.data.vocab_file=vocab.txt

Any field of bert_jax/config can be set with --config.FIELD=VALUE. The run directory (by default
runs/NAME of the config) receives config.json, vocab.txt, metrics.jsonl, checkpoints/, TensorBoard
events and curves.png; starting again in the same directory resumes. Exit status: 0 done, 2 bad
input or configuration, 143 stopped by SIGTERM with the state saved, 1 anything else.
"""

import json
import sys
from typing import Any

from absl import flags, logging

from bert_jax.config.command_line import parse_command, run_name
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import Diverged, InputError, Stopped
from bert_jax.runtime.files import as_path
from bert_jax.runtime.process import answer, error_boundary
from bert_jax.runtime.stopping import Guard
from bert_jax.validation import check_used, validate


def main(argv: list[str]) -> None:
    with error_boundary():
        f: Any = flags.FlagValues()
        f.append_flag_values(flags.FLAGS)  # absl's own, such as --verbosity
        flags.DEFINE_string('workdir', '', 'Run directory; default: runs/NAME.', flag_values=f)
        config, file = parse_command(argv, __doc__ or '', f)
        if not f['verbosity'].present:
            logging.set_verbosity(logging.FATAL)  # errors that end the run are printed in one line
        if not f.workdir:
            f.workdir = f'runs/{run_name(file)}' + '-debug' * config.debug
            print(f'run directory: {f.workdir}', flush=True)
        validate(config)
        check_used(config)
        workdir = as_path(f.workdir)
    guard = Guard()
    try:
        hosts.connect()
        guard.start()
        hosts.check_accelerators()
        from bert_jax.train.experiment import open_run, train_run
        from bert_jax.train.workdirs import opened

        with opened(workdir) as claim:
            def should_stop(step: int) -> bool:
                if claim is not None:
                    claim.check()
                return guard.should_stop(step)

            result = train_run(open_run(config, [workdir]), workdir, should_stop, watch=guard.watch)
        guard.finish()
    except (Stopped, Exception) as error:
        message, status = answer(error, workdir, workdir if hosts.first() else None)
        # Other errors may come from another host that ended, which makes collectives fail here.
        guard.fail(message, status, isinstance(error, (Stopped, InputError, Diverged)))
    with error_boundary():
        # The scores of the best evaluation if that is the result; those of the last are in
        # metrics.jsonl, as those of all are.
        hosts.say('result ' + json.dumps({
            name: value for name, value in result.items() if not name.startswith('last/')}))


if __name__ == '__main__':
    main(sys.argv)
