"""What careless hands find on a disk: a text, runs, published weights; words to name them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.abuse.commands import open_command
from tests.conftest import ROOT
from tests.tiny_runs import documents, write_cola

_TINY = (
    '--config=configs/tiny_pretrain.py', '--config.model.hidden_size=16',
    '--config.model.num_heads=2', '--config.model.num_layers=1', '--config.data.vocab_size=300',
    '--config.data.max_seq_length=16', '--config.data.max_predictions_per_seq=2',
    '--config.data.held_out=0.2', '--config.train.batch_size=8', '--config.train.steps=4',
    '--config.train.eval_batch_size=8', '--config.train.eval_every=0',
    '--config.train.save_every=2', '--config.train.log_every=1',
    '--config.train.max_eval_examples=8',
    '--config.optimizer.warmup=0', '--config.data.dir={folder}/cache',
    '--config.data.local_dir={folder}/cache',
)
MACROS = {
    '@text': (*_TINY, '--config.data.source={folder}/text.txt'),
    '@synthetic': (*_TINY, '--config.task=synthetic'),
    '@glue': (
        '--config=configs/glue.py:cola', '--config.init_checkpoint={folder}/run',
        '--config.data.source={folder}/glue', '--config.data.max_seq_length=16',
        '--config.train.batch_size=8', '--config.train.steps=2', '--config.train.eval_every=1',
        '--config.data.packing=False', '--config.data.dir={folder}/cache',
        '--config.data.local_dir={folder}/cache',
    ),
    '@csv': (
        '--config=configs/classification.py', '--config.init_checkpoint={folder}/run',
        '--config.data.source={folder}/t.csv', '--config.data.eval_source={folder}/t.csv',
        '--config.data.dir={folder}/cache', '--config.data.max_seq_length=16',
    ),
    '@sweep': ('--config=configs/tiny_pretrain.py', '--restarts=1'),
    '@features': ('features', '--model', '{folder}/hf_pretraining'),
    '@export': ('export', '--model', '{folder}/hf_pretraining'),
}


def expand(args: list[str], folder: Path, things: Path | None = None) -> list[str]:
    """With macros written out, {folder} filled in and {things}, what the folder is a copy of."""
    whole = [part for arg in args for part in MACROS.get(arg, (arg,))]
    return [part.replace('{folder}', str(folder)).replace('{things}', str(things))
            for part in whole]


def make(folder: Path) -> None:
    """Writes everything: text.txt, run, cola (a fine-tuned run), glue, hf_NAME, notes."""
    (folder / 'text.txt').write_text(documents(40))
    write_cola(folder / 'glue')
    for run, words in (('run', '@text'), ('cola', '@glue')):
        answer = open_command('main', *expand([words], folder), f'--workdir={folder}/{run}')
        assert answer.status == 0, answer.err
    for name in ('pretraining', 'classification', 'question_answering'):
        shutil.copytree(ROOT / 'tests/fixtures/huggingface' / name, folder / f'hf_{name}')
    (folder / 'notes').mkdir()
    (folder / 'notes' / 'important.txt').write_text('not to be lost\n')
