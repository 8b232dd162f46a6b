"""How much of the package a run passes: its files, functions and classes.

    python -m tests.road text|csv|predict

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

from tests.tiny_runs import documents, sentence

ROOT = Path(__file__).resolve().parent.parent
TINY = ('--config.model.num_layers=1', '--config.model.hidden_size=32',
        '--config.model.num_heads=2', '--config.data.max_seq_length=32')


def commands(road: str, folder: Path) -> list[tuple[str, ...]]:
    """The commands of a road; the last is the one that counts."""
    (folder / 'text.txt').write_text(documents(60))
    rows = [f'{sentence(random.Random(i))},{"yes" if i % 3 else "no"}\n' for i in range(40)]
    (folder / 'rows.csv').write_text('text,label\n' + ''.join(rows))
    pretrain = (
        'bert_jax.main', f'--config={ROOT}/configs/tiny_pretrain.py', *TINY,
        f'--config.data.source={folder}/text.txt', '--config.data.vocab_size=120',
        '--config.data.max_predictions_per_seq=5', '--config.train.steps=2',
        '--config.train.batch_size=8', '--config.train.eval_every=0',
        f'--config.data.dir={folder}/data', f'--workdir={folder}/pretrained')
    tune = (
        'bert_jax.main', f'--config={ROOT}/configs/classification.py',
        f'--config.data.source={folder}/rows.csv', '--config.data.text=text',
        '--config.data.label=label', f'--config.init_checkpoint={folder}/pretrained',
        '--config.data.max_seq_length=32', '--config.train.steps=1', '--config.train.batch_size=8',
        f'--config.data.dir={folder}/data', f'--workdir={folder}/tuned')
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
    classes = {(file, name.split('.<locals>')[0].rpartition('.')[0]) for file, name in functions}
    classes = {(file, name) for file, name in classes if name}
    files = {file for file, _ in functions}
    print(f'{road}: {len(files)} files, {len(functions)} functions, {len(classes)} classes')


if __name__ == '__main__':
    main(sys.argv[1])
