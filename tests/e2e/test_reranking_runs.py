"""Runs of reranking: mined and graded tables, another search's candidates, and others' readers."""

import json
import random

import numpy as np
import pytest

from bert_jax import convert
from bert_jax.loading import load
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from tests.in_process import evaluate, run
from tests.tiny_runs import WORDS, one_device, write_table

pytestmark = pytest.mark.slow


def documents_of(rng):
    """Three documents, of words that tell their gains: a model of a few steps learns no more."""
    return [' '.join(rng.choices(WORDS[begin : begin + 20], k=4)) for begin in (80, 100, 120)]


class Trained:
    """A run on a table of graded gains, and what it said."""

    def __init__(self, folder):
        rng = random.Random(3)
        write_vocab(folder / 'vocab.txt', (*SPECIAL_TOKENS, *WORDS))
        self.queries = [' '.join(rng.sample(WORDS[:75], 2)) for _ in range(240)]
        self.documents = [documents_of(rng) for _ in self.queries]
        rows = [
            (query, document, gain)
            for query, texts in zip(self.queries, self.documents, strict=True)
            for document, gain in zip(texts, (2, 1, 0), strict=True)]
        write_table(folder / 'graded.tsv', ('query', 'document', 'gain'), *rows)
        self.folder = folder
        self.flags = (
            f'--config.data.vocab_file={folder}/vocab.txt', '--config.init_checkpoint=',
            '--config.model.name=L-1_H-32_A-2', '--config.model.max_position_embeddings=24',
            '--config.data.max_seq_length=16', '--config.data.lowercase=True',
            '--config.train.batch_size=32', '--config.optimizer.learning_rate=1e-2',
            '--config.train.eval_every=0')
        ended = run(
            'reranking.py', *self.flags, f'--config.data.source={folder}/graded.tsv',
            '--config.data.label=gain', '--config.reranking.loss=lambda',
            '--config.train.steps=60', workdir=folder / 'run')
        self.result = ended.result
        self.said = ended.said


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp('reranking'))


@pytest.fixture(scope='module')
def model(trained):
    with one_device():
        return load(trained.folder / 'run')


def judged_texts(folder):
    """The texts of queries, and of documents, by id, and the gains of (query, document)."""
    def read(name):
        rows = map(json.loads, (folder / name).read_text().splitlines())
        return {row['_id']: row['text'] for row in rows}

    lines = (folder / 'dev_qrels.tsv').read_text().splitlines()[1:]
    gains = {(query, document): float(gain) for query, document, gain in map(str.split, lines)}
    return read('dev_queries.jsonl'), read('dev_corpus.jsonl'), gains


def test_held_out_documents_are_ranked_as_predict_ranks_them(trained, model):
    queries, corpus, gains = judged_texts(trained.folder / 'run')
    items = [
        (text, *[corpus[document] for of_query, document in gains if of_query == name])
        for name, text in queries.items()]
    ranked = model.rerank(items)
    assert [found['query'] for found in ranked] == list(queries.values())
    firsts = [found['ranking'][0]['text'] for found in ranked]
    assert trained.result['eval/ndcg_at_10'] > 0.95  # by chance 0.8
    accuracy = np.mean([text == item[1] for text, item in zip(firsts, items, strict=True)])
    assert trained.result['eval/accuracy_at_1'] >= accuracy > 0.8
    said = f'scored: {len(gains):,} documents are ranked for {len(queries)} queries'
    assert said in trained.said
    values = [result['value'] for result in model.classify([item[:2] for item in items])]
    scores = [max(entry['score'] for entry in found['ranking'] if entry['index'] == 0)
              for found in ranked]
    np.testing.assert_allclose(scores, values, atol=1e-5)
    lines = (trained.folder / 'run' / 'dev_rankings.trec').read_text().splitlines()
    written = [corpus[line.split()[2]] for line in lines if line.split()[3] == '1']
    assert written == firsts


def test_a_search_is_ranked_anew(trained, tmp_path, capsys):
    """The candidates of the run itself, in another order: they have the same ranking again."""
    folder = trained.folder / 'run'
    lines = (folder / 'dev_rankings.trec').read_text().splitlines(keepends=True)
    (tmp_path / 'found.trec').write_text(''.join(random.Random(0).sample(lines, len(lines))))
    judged = [f'--config.reranking.{name}={folder}/dev_{file}' for name, file in (
        ('corpus', 'corpus.jsonl'), ('queries', 'queries.jsonl'), ('qrels', 'qrels.tsv'))]
    flags = ['--config=configs/reranking.py', '--config.data.max_seq_length=16', *judged]
    again = evaluate(
        folder, *flags, f'--config.reranking.candidates={tmp_path}/found.trec',
        workdir=tmp_path / 'again')
    assert again.result['eval/ndcg_at_10'] == pytest.approx(
        trained.result['eval/ndcg_at_10'], abs=1e-6)
    with pytest.raises(SystemExit):
        evaluate(folder, *flags, workdir=tmp_path / 'none')
    assert "config.reranking.candidates=''" in capsys.readouterr().err


@pytest.fixture(scope='module')
def converted(trained):
    convert.main([str(trained.folder / 'run'), str(trained.folder / 'hf'), '--to', 'huggingface'])
    return trained.folder / 'hf'


@pytest.mark.extras
def test_a_cross_encoder_gives_the_same_scores_there_and_back(
    trained, model, converted, capsys
):
    transformers = pytest.importorskip('sentence_transformers')
    theirs = transformers.CrossEncoder(str(converted), device='cpu')
    long = ' '.join(WORDS[:30])  # is cut, and so is the query then
    items = [
        (query, *texts, long) for query, texts in zip(trained.queries[:20], trained.documents[:20])]
    items.append((long, long))
    expected = [
        [entry['score'] for entry in theirs.rank(query, list(texts))] for query, *texts in items]
    back = trained.folder / 'saved_by_them'
    theirs.save_pretrained(str(back))
    with one_device():
        for loaded in (model, load(converted), load(back)):
            for found, scores in zip(loaded.rerank(items), expected, strict=True):
                ours = [entry['score'] for entry in found['ranking']]
                np.testing.assert_allclose(ours, scores, atol=1e-5)
    assert 'not applied' not in capsys.readouterr().err
