"""Sequences in stores and rows: tokens of a store are those of the records, in any build."""

import pickle
import random
import re

import numpy as np
import pytest

from bert_jax.corpus.fasta import DOCUMENT_LETTERS, LINE_LETTERS
from bert_jax.corpus.sources import open_source
from bert_jax.corpus.store_building import build_store
from bert_jax.rows.pairs import RowOptions
from bert_jax.rows.text_rows import WholeTextRows
from bert_jax.text.kmers import KmerTokenizer, kmer_tokens
from bert_jax.text.letters import LetterTokenizer, letter_tokens, sequence_vocab
from tests.corpus.store_worker import work_without_tensorflow
from tests.corpus.test_store_building import content, whole
from tests.refusals import refused
from tests.rows import stores

TOKENIZERS = {
    'letters': LetterTokenizer(sequence_vocab(letter_tokens('ACGTN'), 'letters')),
    'kmers': KmerTokenizer(sequence_vocab(kmer_tokens(6), 'k-mers')),
}
LETTERS = 5 * DOCUMENT_LETTERS + 1234
both = pytest.mark.parametrize('name', TOKENIZERS)


@pytest.fixture(scope='module')
def genome(tmp_path_factory):
    """Two files: a long record in lines, and three short ones."""
    folder = tmp_path_factory.mktemp('genome')
    draw = random.Random(0)
    long = ''.join(draw.choices('ACGTacgt', k=LETTERS))
    (folder / 'a.fa').write_text('>a\n' + '\n'.join(re.findall('.{1,70}', long)))
    short = [''.join(draw.choices('ACGTN', k=size)) for size in (5, 600, 8000)]
    (folder / 'b.fa').write_text(''.join(f'>{len(text)}\n{text}\n' for text in short))
    return folder, [long.upper(), *short]


def build(folder, name, cache, **options):
    return build_store(
        open_source(f'fasta:{folder}/*.fa'), TOKENIZERS[name], cache, progress=False, **options)


@both
def test_a_store_has_the_letters_of_the_records(genome, tmp_path, name):
    folder, records = genome
    text = whole(build(folder, name, tmp_path))
    tokenizer = TOKENIZERS[name]
    assert ''.join(map(tokenizer.shown, text.tokens.tolist())) == ''.join(records)
    assert len(text.document_offsets) - 1 == 6 + 3
    lines = np.split(text.tokens, text.sentence_offsets[1:-1])
    letters = [sum(len(tokenizer.shown(i)) for i in line) for line in lines]
    assert letters == [*[LINE_LETTERS] * 50, 1234, 5, 600, LINE_LETTERS, 8000 - LINE_LETTERS]
    if name == 'kmers':
        assert len(lines[0]) == LINE_LETTERS / 6
        assert len(lines[50]) == 1234 // 6 + 1234 % 6


@both
def test_a_tokenizer_goes_to_another_process(name):
    tokenizer = pickle.loads(pickle.dumps(TOKENIZERS[name]))
    text = 'ACGTNACGTTGA' * 9
    assert tokenizer.encode(text) == TOKENIZERS[name].encode(text)


@pytest.mark.slow
def test_parts_of_several_processes_give_the_same_store(genome, tmp_path, monkeypatch):
    name = 'kmers'
    folder, _ = genome
    monkeypatch.setattr('bert_jax.corpus.store_building._work', work_without_tensorflow)
    monkeypatch.setattr('bert_jax.corpus.store_building._SHARE_BYTES', 1)
    alone = build(folder, name, tmp_path / 'alone')
    together = build(folder, name, tmp_path / 'together', num_processes=2)
    assert len(alone.manifest['parts']) == 2
    assert content(together.path) == content(alone.path)


@both
@pytest.mark.parametrize('masking', ['pieces', 'spans', 'words'])
def test_rows_hold_runs_of_the_text_that_fill_them(genome, tmp_path, name, masking):
    folder, records = genome
    text = whole(build(folder, name, tmp_path))
    training, held_out = text.split_held_out(0.2, 2, 'genome')
    assert len(training) + len(held_out) == 9
    tokenizer = TOKENIZERS[name]
    options = RowOptions(
        max_seq_length=64, max_predictions_per_seq=10, short_seq_prob=0.0, next_sentence=False,
        masking=masking)
    examples = WholeTextRows(text, training, options, tokenizer.vocab, seed=0)
    batch = examples.rows(np.arange(300))
    assert (batch['masked_lm_weights'].sum(axis=1) > 0).all()
    lengths = batch['sequence_ids'].sum(axis=1)
    assert np.median(lengths) > 55
    for ids, length in zip(stores.restored(batch), lengths, strict=True):
        letters = ''.join(map(tokenizer.shown, ids[1 : length - 1].tolist()))
        assert any(letters in record for record in records)


def test_a_genome_of_one_document_cannot_be_split(tmp_path):
    (tmp_path / 'phage.fa').write_text('>phage\n' + 'ACGT' * 1000)
    text = whole(build(tmp_path, 'letters', tmp_path))
    with refused('1 different documents', 'data.eval_source'):
        text.split_held_out(0.1, 2, 'phage')
