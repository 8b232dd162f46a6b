"""Runs with a tokenizer.json: pre-training, fine-tuning, resuming, evaluation, prediction."""

import csv
import json
import random
import shutil
from pathlib import Path

import pytest

from bert_jax.loading import load
from bert_jax.runtime.errors import Stopped
from tests.e2e.test_downstream_runs import NO_MODEL, UNPACKED, evaluate, run, squad_paragraph
from tests.shared_steps import shared_steps
from tests.tiny_runs import documents, one_device, sentence
from tests.tokenizer_files import write_tokenizer_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('kernels_of_numpy')]

# The tiny model's fields, without the size of a vocabulary that would be trained.
TINY_MODEL = [flag for flag in NO_MODEL if 'vocab_size' not in flag]


@pytest.fixture(scope='module', params=['roberta', 'camembert'])
def pretrained(request, tmp_path_factory):
    """The directory of a tiny model with a tokenizer of a kind, pre-trained for two steps."""
    folder = tmp_path_factory.mktemp('pretrained')
    (folder / 'text.txt').write_text(documents(40))
    vocab_file = write_tokenizer_of(420, request.param, folder / 'tokenizer')
    run('tiny_pretrain.py', *TINY_MODEL, f'--config.data.source={folder}/text.txt',
        f'--config.data.vocab_file={vocab_file}', f'--config.data.dir={folder}/cache',
        '--config.model.num_layers=1', '--config.model.hidden_size=32',
        '--config.model.num_heads=2', '--config.train.steps=2', workdir=folder / 'run')
    shutil.rmtree(folder / 'tokenizer')  # the run has its own
    return folder / 'run'


@pytest.fixture
def tune(pretrained, tmp_path):
    """A function that fine-tunes the pre-trained model for four steps."""
    def run_task(config, *flags, stop_at=None):
        return run(
            config, f'--config.init_checkpoint={pretrained}', *UNPACKED, '--config.train.steps=4',
            f'--config.data.dir={tmp_path}/cache', *flags, workdir=tmp_path / 'run',
            stop_at=stop_at)

    return run_task


def test_pairs_are_classified_resumed_and_predicted(tune, tmp_path):
    rng = random.Random(0)
    rows = [(sentence(rng), sentence(rng), 'xy'[i % 2]) for i in range(40)]
    source = tmp_path / 'own.csv'
    source.write_text('a,b,label\n' + ''.join([','.join(row) + '\n' for row in rows]))
    flags = ['--config.data.text=a', '--config.data.text_pair=b', f'--config.data.source={source}',
             f'--config.data.eval_source={source}']
    whole = tune('classification.py', *flags)
    shutil.move(tmp_path / 'run', tmp_path / 'whole')
    with pytest.raises(Stopped):
        tune('classification.py', *flags, stop_at=2)
    assert tune('classification.py', *flags).result == whole.result
    scored = evaluate(tmp_path / 'run', workdir=tmp_path / 'scored').result
    assert scored['eval/accuracy'] == whole.result['eval/accuracy']
    with (tmp_path / 'run' / 'dev_examples.csv').open(encoding='utf-8') as file:
        written = [row['prediction'] for row in csv.DictReader(file)]
    with one_device(), shared_steps():
        found = load(tmp_path / 'run').classify([row[:2] for row in rows])
    assert [result['label'] for result in found] == written


def test_words_are_tagged_as_the_run_tagged_them(tune, tmp_path):
    rng = random.Random(1)
    sentences = [sentence(rng).split() for _ in range(40)]
    blocks = []
    for words in sentences:
        blocks.append(''.join([f'{word} {"B-X" if "a" in word else "O"}\n' for word in words]))
    source = tmp_path / 'own.txt'
    source.write_text('\n'.join(blocks))
    tune('tagging.py', f'--config.data.source={source}', f'--config.data.eval_source={source}')
    predictions = (tmp_path / 'run' / 'dev_predictions.txt').read_text()
    written = []
    for block in predictions.strip().split('\n\n'):
        written.append([line.split()[2] for line in block.splitlines()])
    with one_device(), shared_steps():
        found = load(tmp_path / 'run').tag(sentences)
    assert [[tag['label'] for tag in result['tags']] for result in found] == written


@pytest.mark.parametrize('name', ['train-v2.0.json', 'own.json'])
def test_questions_are_answered_as_the_run_answered_them(name, tune, tmp_path):
    """Also on SQuAD's own files, where only WordPiece is aligned as in the original."""
    rng = random.Random(2)
    paragraphs = [squad_paragraph(rng, number) for number in range(4)]
    source = tmp_path / name
    source.write_text(json.dumps({'version': '2.0', 'data': [{'paragraphs': paragraphs}]}))
    tune('squad.py:v2', f'--config.data.source={source}', f'--config.data.eval_source={source}')
    written = json.loads((tmp_path / 'run' / 'predictions.json').read_text())
    questions = []
    for paragraph in paragraphs:
        questions += [(asked['question'], paragraph['context']) for asked in paragraph['qas']]
    with one_device(), shared_steps():
        found = load(Path(tmp_path / 'run')).answer(questions)
    assert [result['answer'] for result in found] == list(written.values())
