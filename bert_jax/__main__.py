"""bert-jax COMMAND ...: the commands under one name, also as `python -m bert_jax COMMAND ...`.

  train      pre-trains or fine-tunes, as a config says
  predict    fills masks, classifies, answers, tags, makes vectors, exports
  evaluate   scores a run, or an ensemble, on labelled data
  convert    converts weights from and to Hugging Face and TensorFlow 1
  sweep      runs a grid of settings and picks the best on the dev set
  look       says what a text holds and how vocabularies would split it
  prepare    makes a run's vocabulary and token store before the run
  preflight  tells whether a run fits a TPU slice, and how long it takes
  report     compares runs on one HTML page
  paper      reproduces a table of the paper
  bench      measures training steps on this machine

`bert-jax COMMAND --help` says more.
"""

import runpy
import sys

from bert_jax.runtime.errors import nearest, tell

COMMANDS = {
    'train': 'bert_jax.main',
    'predict': 'bert_jax.predict',
    'evaluate': 'bert_jax.evaluate',
    'convert': 'bert_jax.convert',
    'sweep': 'bert_jax.tools.sweep',
    'look': 'bert_jax.tools.look',
    'prepare': 'bert_jax.tools.prepare',
    'preflight': 'bert_jax.tools.preflight',
    'report': 'bert_jax.tools.report',
    'paper': 'bert_jax.tools.paper',
    'bench': 'bert_jax.tools.bench',
}


def main() -> None:
    """Runs the command (see the top of this file)."""
    command = sys.argv[1] if len(sys.argv) > 1 else '--help'
    if command in ('-h', '--help'):
        print(__doc__, end='', flush=True)
    elif command not in COMMANDS:
        tell(f'error: bert-jax has no command {command!r}: {nearest(command, COMMANDS)}')
        sys.exit(2)
    else:
        sys.argv[:2] = [f'bert-jax {command}']
        runpy.run_module(COMMANDS[command], run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    main()
