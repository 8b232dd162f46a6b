"""Whole runs with tokenizers that are trained by them: resumed, predicted with, converted."""

import json

import numpy as np
import pytest

from bert_jax.foreign import load_weights
from bert_jax.text.kinds import load_tokenizer
from tests.programs import run_program
from tests.tiny_runs import TINY, documents

pytestmark = pytest.mark.slow


def python(*arguments):
    """The standard output of a command that must succeed."""
    ended = run_program(*arguments)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return ended.stdout


@pytest.fixture(params=['bpe', 'unigram'])
def run(request, tmp_path):
    """The kind, the directory of a run of 4 steps, and the flags of one that goes on to 8."""
    text = tmp_path / 'text.txt'
    text.write_text(documents(60))
    flags = (*TINY, f'--config.data.source={text}', f'--config.data.dir={tmp_path}/data',
             f'--config.data.tokenizer={request.param}', '--config.data.masking=words',
             '--config.data.lowercase=False', f'--workdir={tmp_path}/run')
    python('-m', 'bert_jax.main', *flags, '--config.train.steps=4')
    return request.param, tmp_path / 'run', flags


def test_a_run_with_a_tokenizer_of_its_own(run, tmp_path):
    kind, workdir, flags = run
    weights = load_weights(workdir)
    assert weights.vocab_file.name == 'tokenizer.json'
    tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)
    assert tokenizer.algorithm == kind
    assert weights.model['vocab_size'] == len(tokenizer.vocab)

    output = python('-m', 'bert_jax.main', *flags, '--config.train.steps=8')
    assert 'resum' in output
    losses = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
    assert losses[-1]['step'] == 8

    answer = python('-m', 'bert_jax.predict', 'fill-mask', '--model', workdir, 'Bal [MASK] bam.')
    assert len(json.loads(answer.splitlines()[0])['predictions']) == 5

    python('-m', 'bert_jax.convert', workdir, tmp_path / 'folder', '--to', 'huggingface')
    folder = load_weights(tmp_path / 'folder')
    again = load_tokenizer(folder.vocab_file, folder.lowercase)
    text = 'Bal fum gis. Kor [MASK]'
    assert again.encode(text) == tokenizer.encode(text)
    for name, array in load_weights(workdir).params.items():
        np.testing.assert_array_equal(folder.params[name], array, err_msg=name)

    ended = run_program(
        '-m', 'bert_jax.main', *TINY, f'--config.data.vocab_file={weights.vocab_file}',
        '--config.data.tokenizer=kmer:6', f'--workdir={tmp_path}/other', flags[len(TINY)])
    assert ended.returncode == 2 and f'is of the kind {kind}' in ended.stderr
