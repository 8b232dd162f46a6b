"""A command with workers in real processes that leave out what takes long.

    python -m tests.tools.quickly sweep|paper ARGUMENTS

is `python -m bert_jax.tools.sweep` or `paper`, and so are the workers that it starts. They draw
nothing, read text without TensorFlow, and look ten times a second whether the runs of others have
ended.
"""

import sys
from unittest import mock

from bert_jax.corpus import tokenize
from bert_jax.tools import workers
from bert_jax.tools.paper import __main__ as paper
from bert_jax.tools.sweep import __main__ as sweep
from bert_jax.tools.sweep import training
from bert_jax.watch.metrics_log import MetricsLog

COMMANDS = {'paper': paper, 'sweep': sweep}


def main(name, argv):
    """Runs a command; its exit status."""
    def run_workers(module, argv, *others):
        assert module == f'bert_jax.tools.{name}'
        return workers.run_workers('tests.tools.quickly', [name, *argv], *others)

    command = COMMANDS[name]
    with (mock.patch.object(command, 'run_workers', run_workers),
          mock.patch.object(sweep, '_add_plots', lambda _: None),
          mock.patch.object(MetricsLog, 'draw', lambda *_, **__: None),
          mock.patch.object(tokenize, 'has_tensorflow', lambda: False),
          mock.patch.object(training, 'WAIT_SECONDS', 0.1)):
        return command.main(argv)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1], sys.argv[2:]))
