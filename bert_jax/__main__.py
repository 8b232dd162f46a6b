"""The commands by one name: `bert-jax train ...`, or `python -m bert_jax train ...`."""

from __future__ import annotations

import runpy
import sys

COMMANDS = {
    'train': 'bert_jax.main', 'predict': 'bert_jax.predict', 'evaluate': 'bert_jax.evaluate',
    'convert': 'bert_jax.convert', 'sweep': 'bert_jax.tools.sweep',
    'prepare': 'bert_jax.tools.prepare', 'preflight': 'bert_jax.tools.preflight',
    'report': 'bert_jax.tools.report', 'paper': 'bert_jax.tools.paper',
}


def main() -> None:
    command = sys.argv[1] if len(sys.argv) > 1 else ''
    if command not in COMMANDS:
        asked = command in ('', '-h', '--help')
        print(f"usage: bert-jax {{{','.join(COMMANDS)}}} ..., each with --help", flush=True)
        sys.exit(0 if asked else 2)
    sys.argv[:2] = [f'bert-jax {command}']
    runpy.run_module(COMMANDS[command], run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    main()
