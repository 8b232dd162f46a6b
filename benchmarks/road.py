"""How much of the package a run passes: its files, functions and classes.

    python -m benchmarks.road text|csv|predict

text: from a text file to two pre-training steps. csv: from a CSV to one fine-tuning step. predict:
from a CSV to predictions with a tiny trained run. A function is passed when it is called
(comprehensions, lambdas and the bodies of modules and classes are none), a class when one of its
methods is.
"""

import inspect
import random
import runpy
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tests.tiny_runs import TINY, documents, sentence

ROOT = Path(__file__).resolve().parent.parent


def commands(road: str, folder: Path) -> list[tuple[str, ...]]:
    """The commands of a road; the last is the one that counts."""
    (folder / 'text.txt').write_text(documents(60))
    rows = [f'{sentence(random.Random(i))},{"yes" if i % 3 else "no"}\n' for i in range(40)]
    (folder / 'rows.csv').write_text('text,label\n' + ''.join(rows))
    places = (f'--config.data.dir={folder}/data', '--config.train.batch_size=8')
    pretrain = (
        'bert_jax.main', f'--config={ROOT}/configs/tiny_pretrain.py', *TINY[1:], *places,
        f'--config.data.source={folder}/text.txt', '--config.train.steps=2',
        f'--workdir={folder}/pretrained')
    tune = (
        'bert_jax.main', f'--config={ROOT}/configs/classification.py', *places,
        f'--config.data.source={folder}/rows.csv', f'--config.init_checkpoint={folder}/pretrained',
        '--config.data.max_seq_length=32', '--config.train.steps=1', f'--workdir={folder}/tuned')
    predict = ('bert_jax.predict', 'classify', '--model', f'{folder}/tuned', '--input',
               f'{folder}/rows.csv', '--text', 'text')
    return {'text': [pretrain], 'csv': [pretrain, tune], 'predict': [pretrain, tune, predict]}[road]


def main(road: str) -> None:
    passed: set[tuple[str, str]] = set()
    package = f'{ROOT}/bert_jax/'

    def count(frame, event, argument):
        code = frame.f_code
        if event == 'call' and code.co_filename.startswith(package) and (
                code.co_flags & inspect.CO_OPTIMIZED):
            passed.add((code.co_filename, code.co_qualname))

    with tempfile.TemporaryDirectory() as name:
        *before, last = commands(road, Path(name))
        for command in before:  # in processes of their own: caches of this one stay empty
            subprocess.run([sys.executable, '-m', *command], check=True)
        sys.argv = list(last)
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            runpy.run_module(last[0], run_name='__main__')
        except SystemExit as end:
            assert not end.code, end.code
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    functions = {(file, name) for file, name in passed if '<' not in name.split('.')[-1]}
    files = {file for file, _ in functions}
    classes = {(file, name.split('.<locals>')[0].rpartition('.')[0]) for file, name in functions}
    classes -= {(file, '') for file in files}
    print(f'{road}: {len(files)} files, {len(functions)} functions, {len(classes)} classes')


if __name__ == '__main__':
    main(sys.argv[1])
