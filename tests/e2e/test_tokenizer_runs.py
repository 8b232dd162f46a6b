"""Whole runs with tokenizers that are trained by them: resumed, predicted with, converted."""

import contextlib

import numpy as np
import pytest

from bert_jax import convert
from bert_jax.foreign import load_weights
from bert_jax.loading import load
from bert_jax.runtime.errors import Stopped
from bert_jax.text.kinds import load_tokenizer
from tests.in_process import recorded, run
from tests.refusals import refused
from tests.shared_steps import shared_steps
from tests.tiny_runs import TINY, documents, one_device

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('kernels_of_numpy')]


@pytest.mark.parametrize(('kind', 'steps'), [('bpe', 4), ('unigram', 8)])
def test_a_run_with_a_tokenizer_of_its_own(kind, steps, tmp_path):
    """One that has ended goes on with more steps; the other, stopped in its fourth, as it was."""
    text = tmp_path / 'text.txt'
    text.write_text(documents(60))
    flags = (*TINY[1:], f'--config.data.source={text}', f'--config.data.dir={tmp_path}/data')
    own = (*flags, f'--config.data.tokenizer={kind}', '--config.data.masking=words',
           '--config.data.lowercase=False')
    workdir = tmp_path / 'run'
    with contextlib.suppress(Stopped):
        run('tiny_pretrain.py', *own, f'--config.train.steps={steps}', workdir=workdir, stop_at=4)
    weights = load_weights(workdir)
    assert weights.vocab_file.name == 'tokenizer.json'
    tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)
    assert tokenizer.algorithm == kind
    assert weights.model['vocab_size'] == len(tokenizer.vocab)

    resumed = run('tiny_pretrain.py', *own, '--config.train.steps=8', workdir=workdir)
    assert 'resuming at step 4' in resumed.said
    assert resumed.result['step'] == recorded(workdir, 'step')[-1] == 8

    with one_device(), shared_steps():
        (answer,) = load(workdir).fill_mask(['Bal [MASK] bam.'])
    assert len(answer['predictions']) == 5

    convert.main([str(workdir), str(tmp_path / 'folder'), '--to', 'huggingface'])
    folder = load_weights(tmp_path / 'folder')
    again = load_tokenizer(folder.vocab_file, folder.lowercase)
    text = 'Bal fum gis. Kor [MASK]'
    assert again.encode(text) == tokenizer.encode(text)
    for name, array in load_weights(workdir).params.items():
        np.testing.assert_array_equal(folder.params[name], array, err_msg=name)

    with refused(f'is of the kind {kind}'):
        run('tiny_pretrain.py', *flags, f'--config.data.vocab_file={weights.vocab_file}',
            '--config.data.tokenizer=kmer:6', workdir=tmp_path / 'other')
