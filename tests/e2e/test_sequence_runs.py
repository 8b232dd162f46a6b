"""DNA as letters and as k-mers, from FASTA to predictions: every step by the same commands as text.

They run in this process, on one of its devices, as those of test_downstream_runs.py do.
"""

import csv
import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest

from bert_jax import convert
from bert_jax.loading import load
from bert_jax.runtime.errors import Stopped
from bert_jax.text.kinds import load_tokenizer
from tests.e2e.test_downstream_runs import run
from tests.shared_steps import shared_steps
from tests.tiny_runs import one_device

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('kernels_of_numpy')]

MOTIF = 'TATAATGCAT'
TOKENIZERS = {'letters:ACGTN': 'vocab.letters', 'kmer:3': 'vocab.kmers'}
SHORT = (
    '--config.data.max_seq_length=48', '--config.train.batch_size=8', '--config.train.log_every=2',
    '--config.optimizer.learning_rate=1e-3')


def bases(draw, num):
    return ''.join(draw.choices('ACGT', k=num))


@dataclasses.dataclass
class Pretrained:
    """A tiny model of DNA.

    Attributes:
      workdir: of its run, which stopped after two of four steps and was resumed.
      said: what the run printed when it was resumed.
      tokenizer: that was named.
      file_name: of its vocabulary.
    """

    workdir: Path
    said: str
    tokenizer: str
    file_name: str


@pytest.fixture(scope='module', params=TOKENIZERS)
def pretrained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp('dna')
    draw = random.Random(0)
    records = [f'>contig {i}\n{bases(draw, 400)}\nNNNN{bases(draw, 77)}\n' for i in range(40)]
    (folder / 'genome.fa').write_text(''.join(records))
    arguments = [
        f'dna_pretrain.py:{request.param}', *SHORT, '--config.model.num_layers=1',
        '--config.model.hidden_size=32', '--config.model.num_heads=2',
        f'--config.data.source={folder}/genome.fa',
        f'--config.data.dir={folder}/cache', '--config.data.held_out=0.2',
        '--config.train.steps=4', '--config.train.eval_every=0',
        '--config.optimizer.name=bert_adamw']  # compiled sooner than the recipe's Muon
    with pytest.raises(Stopped):
        run(*arguments, workdir=folder / 'run', stop_at=2)
    ended = run(*arguments, workdir=folder / 'run')
    assert np.isfinite(ended.result['eval/mlm_loss'])
    return Pretrained(folder / 'run', ended.said, request.param, TOKENIZERS[request.param])


def test_a_run_is_resumed_and_keeps_its_vocabulary(pretrained):
    assert 'resuming at step 2' in pretrained.said
    tokenizer = load_tokenizer(pretrained.workdir / pretrained.file_name, lowercase=True)
    assert tokenizer.encode('ACGNacg') == tokenizer.encode('acgnACG')
    assert not (pretrained.workdir / 'vocab.txt').exists()


def test_predictions_fill_in_letters_and_an_export_gives_the_same(pretrained, tmp_path):
    convert.main([str(pretrained.workdir), str(tmp_path / 'folder'), '--to', 'huggingface'])
    texts = ['ACGTAC[MASK]ACGTAC', 'acg[MASK]']
    with one_device(), shared_steps():
        own, exported = load(pretrained.workdir), load(tmp_path / 'folder')
        found = list(zip(own.fill_mask(texts), exported.fill_mask(texts), strict=True))
        vectors = [model.vectors(['ACGTACGTAC']) for model in (own, exported)]
    for first, second in found:
        tokens = [prediction['token'] for prediction in first['predictions']]
        assert tokens == [prediction['token'] for prediction in second['predictions']]
        best = first['predictions'][0]
        assert best['sequence'] == first['text'].replace('[MASK]', best['token'])
    np.testing.assert_allclose(*vectors, rtol=1e-5)


def test_sequences_with_labels_are_classified(pretrained, tmp_path):
    draw = random.Random(1)
    with open(tmp_path / 'train.csv', 'w', newline='') as file:
        table = csv.writer(file)
        table.writerow(['sequence', 'label'])
        for i in range(60):
            motif = MOTIF if i % 2 else bases(draw, len(MOTIF))
            table.writerow([bases(draw, 60) + motif + bases(draw, 60), 'yes' if i % 2 else 'no'])
    ended = run(
        'classification.py', f'--config.init_checkpoint={pretrained.workdir}', *SHORT,
        f'--config.data.source={tmp_path}/train.csv', '--config.data.text=sequence',
        '--config.train.steps=4', workdir=tmp_path / 'run')
    assert 'eval/accuracy' in ended.result
    assert (tmp_path / 'run' / pretrained.file_name).exists()
    with one_device(), shared_steps():
        result, = load(tmp_path / 'run').classify([bases(draw, 40)])
    assert result['label'] in ('yes', 'no')


def test_each_letter_can_have_a_tag(pretrained, tmp_path):
    draw = random.Random(2)
    sequences = [bases(draw, 20) for _ in range(40)]
    lines = ['\n'.join(f"{base} {'GC' if base in 'GC' else 'AT'}" for base in sequence)
             for sequence in sequences]
    (tmp_path / 'train.txt').write_text('\n\n'.join(lines))
    run('tagging.py', f'--config.init_checkpoint={pretrained.workdir}', *SHORT,
        f'--config.data.source={tmp_path}/train.txt', '--config.train.steps=4',
        workdir=tmp_path / 'run')
    with one_device(), shared_steps():
        result, = load(tmp_path / 'run').tag([' '.join('ACGTACG')])
    assert len(result['tags']) == 7
