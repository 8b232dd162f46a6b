"""Runs of retrieval: trained, scored over a corpus, mined, and read back by others."""

import json
import random
import re
import shutil

import numpy as np
import pytest

from bert_jax import convert
from bert_jax.completion import complete
from bert_jax.config import finetuning_config
from bert_jax.foreign import load_weights
from bert_jax.loading import load
from bert_jax.run.description import read_run_fields
from bert_jax.tasks.ranking import mean_metrics
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from bert_jax.tools import mine
from tests.conftest import ROOT
from tests.in_process import evaluate, run, run_first_steps
from tests.refusals import refused
from tests.shared_steps import shared_steps
from tests.tiny_runs import WORDS, one_device, write_table

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('kernels_of_numpy')]

PROMPTS = {'query': 'query: ', 'document': 'passage: '}
HALF = len(WORDS) // 2


def pairs_of_synonyms(rng, count):
    """Texts of words of the first half of WORDS, with those in the same places of the other."""
    rows = []
    for _ in range(count):
        words = rng.choices(range(HALF), k=4)
        texts = (' '.join(WORDS[start + word] for word in words) for start in (0, HALF))
        rows.append(tuple(texts))
    return rows


class Trained:
    """A run with prompts, the judged texts that it is scored on, and flags of others like it."""

    def __init__(self, folder):
        rng = random.Random(3)
        write_vocab(folder / 'vocab.txt', (*SPECIAL_TOKENS, 'query', 'passage', ':', *WORDS))
        self.pairs = pairs_of_synonyms(rng, 400)
        write_table(folder / 'pairs.tsv', ('query', 'positive'), *self.pairs)
        self.judged = pairs_of_synonyms(rng, 40)
        self.documents = [(f'd{i}', WORDS[0], text) for i, (_, text) in enumerate(self.judged)]
        write_table(folder / 'corpus.tsv', ('_id', 'title', 'text'), *self.documents)
        queries = [(f'q{i}', text) for i, (text, _) in enumerate(self.judged)]
        write_table(folder / 'queries.tsv', ('_id', 'text'), *queries)
        judgements = [(f'q{i}', f'd{i}', 2) for i in range(40)]
        judgements += [(f'q{i}', f'd{i + 1}', 1) for i in range(0, 30, 3)]
        write_table(folder / 'qrels.tsv', ('query-id', 'corpus-id', 'score'), *judgements)
        self.relevant = [{} for _ in queries]
        for query, document, gain in judgements:
            self.relevant[int(query[1:])][int(document[1:])] = gain
        self.folder = folder
        self.flags = (
            f'--config.data.source={folder}/pairs.tsv', '--config.data.max_seq_length=32',
            f'--config.data.vocab_file={folder}/vocab.txt', '--config.init_checkpoint=',
            '--config.model.name=L-1_H-32_A-2', '--config.model.max_position_embeddings=48',
            '--config.data.lowercase=True', '--config.train.batch_size=32',
            '--config.optimizer.learning_rate=3e-3')
        self.judged_flags = tuple(
            f'--config.retrieval.{name}={folder}/{name}.tsv'
            for name in ('corpus', 'queries', 'qrels'))
        ended = run(
            'retrieval.py', *self.flags, *self.judged_flags, '--config.train.steps=40',
            '--config.retrieval.query_prompt=query: ', '--config.retrieval.dims=0.5',
            '--config.retrieval.document_prompt=passage: ', '--config.retrieval.symmetric=True',
            '--config.retrieval.learn_temperature=True', workdir=folder / 'run')
        self.result = ended.result
        self.said = ended.said


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp('retrieval'))


def texts_of(trained):
    return {'query': [query for query, _ in trained.judged],
            'document': [f'{title} {text}' for _, title, text in trained.documents]}


def vectors_with_prompts(model, trained):
    return {name: model.vectors(texts, prompt=name) for name, texts in texts_of(trained).items()}


def test_a_corpus_is_ranked_as_the_vectors_of_predict_rank_it(trained):
    with one_device(), shared_steps():
        model = load(trained.folder / 'run')
        vectors = vectors_with_prompts(model, trained)
        plain = model.vectors([PROMPTS['query'] + text for text, _ in trained.judged])
    np.testing.assert_allclose(vectors['query'], plain, atol=1e-6)
    ranking = np.argsort(-vectors['query'] @ vectors['document'].T, axis=1)
    expected = mean_metrics(['ndcg_at_10', 'mrr_at_10'], ranking, trained.relevant)
    for name, value in expected.items():
        assert trained.result[f'eval/{name}'] == pytest.approx(value, abs=1e-5)
    assert 'eval/ndcg_at_10_16' in trained.result
    assert '40 documents are ranked for 40 queries' in trained.said
    (first, *_) = (trained.folder / 'run' / 'dev_rankings.trec').read_text().splitlines()
    assert first.split()[:4] == ['q0', 'Q0', f'd{ranking[0, 0]}', '1']


def test_a_run_has_learned_and_is_scored_again_without_more(trained, tmp_path):
    assert trained.result['eval/ndcg_at_10'] > 0.5  # by chance 0.1
    again = evaluate(trained.folder / 'run', workdir=tmp_path)
    assert again.result['eval/ndcg_at_10'] == pytest.approx(
        trained.result['eval/ndcg_at_10'], abs=1e-6)


def test_a_run_is_scored_with_its_prompts_by_another_config(trained, tmp_path):
    again = evaluate(
        trained.folder / 'run', f'--config={ROOT}/configs/retrieval.py', *trained.judged_flags,
        '--config.data.max_seq_length=32', workdir=tmp_path)
    assert "config.retrieval.query_prompt='query: '" in again.said
    assert again.result['eval/ndcg_at_10'] == pytest.approx(
        trained.result['eval/ndcg_at_10'], abs=1e-6)


@pytest.fixture(scope='module')
def converted(trained):
    convert.main([str(trained.folder / 'run'), str(trained.folder / 'hf'), '--to', 'huggingface'])
    return trained.folder / 'hf'


def test_prompts_are_in_the_converted_folder(trained, converted):
    written = json.loads((converted / 'config_sentence_transformers.json').read_text())
    assert written['prompts'] == PROMPTS
    with one_device(), shared_steps():
        here = vectors_with_prompts(load(trained.folder / 'run'), trained)
        there = vectors_with_prompts(load(converted), trained)
    for name in PROMPTS:
        np.testing.assert_allclose(there[name], here[name], atol=1e-6)


def sentence_folder(folder, converted, **files):
    """A folder as sentence-transformers writes it, without this project's key in config.json."""
    shutil.copytree(converted, folder)
    config = json.loads((folder / 'config.json').read_text())
    del config['bert_jax_inference']
    (folder / 'config.json').write_text(json.dumps(config))
    for name, content in files.items():
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    return folder


def started_from(trained, folder, workdir, *flags):
    """What a run said that starts from a folder, after a step, and its settings of retrieval."""
    said = run_first_steps(
        'retrieval.py', *trained.flags, f'--config.init_checkpoint={folder}',
        '--config.model.name=', '--config.data.vocab_file=', *flags, workdir=workdir, num_steps=1)
    fields = read_run_fields(workdir)
    names = ('query_prompt', 'document_prompt', 'pool')
    return said, {name: fields[f'retrieval.{name}'] for name in names}


def test_a_run_starts_with_the_prompts_of_a_folder_of_others(trained, converted, tmp_path):
    folder = sentence_folder(
        tmp_path / 'theirs', converted,
        **{'1_Pooling/config.json': {
            'pooling_mode_cls_token': True, 'pooling_mode_mean_tokens': False}})
    said, settings = started_from(trained, folder, tmp_path / 'run')
    assert settings == {
        'query_prompt': PROMPTS['query'], 'document_prompt': PROMPTS['document'], 'pool': 'cls'}
    assert f"config.retrieval.document_prompt='passage: ', as in Hugging Face folder {folder}" in (
        said)
    _, settings = started_from(
        trained, folder, tmp_path / 'without', '--config.retrieval.query_prompt=',
        '--config.retrieval.pool=mean')
    assert settings == {
        'query_prompt': '', 'document_prompt': PROMPTS['document'], 'pool': 'mean'}
    with one_device(), shared_steps():
        model = load(tmp_path / 'without')
        np.testing.assert_array_equal(
            model.vectors([WORDS[0]], prompt='query'), model.vectors([WORDS[0]]))


@pytest.mark.parametrize(('pooling', 'words'), [
    ({'pooling_mode_lasttoken': True, 'pooling_mode_mean_tokens': False}, 'pools by lasttoken'),
    ({'pooling_mode_max_tokens': True, 'pooling_mode_mean_tokens': False}, 'the maximum over'),
    ({'include_prompt': False}, 'include_prompt'),
])
def test_a_pooling_that_is_not_trained_is_named(trained, converted, tmp_path, pooling, words):
    folder = sentence_folder(tmp_path / 'theirs', converted, **{'1_Pooling/config.json': pooling})
    with refused("config.retrieval.pool=''", words, 'name mean or cls'):
        started_from(trained, folder, tmp_path / 'run')


@pytest.mark.parametrize(('name', 'content', 'said'), [
    ('config_sentence_transformers.json', {'similarity_fn_name': 'dot'},
     "cosines are trained and scored here, where Hugging Face folder {folder} (BertModel) has "
     "similarity_fn_name='dot'"),
    ('config_sentence_transformers.json', {'truncate_dim': 16}, 'config.retrieval.dims=16'),
    ('config_sentence_transformers.json', {'truncate_dim': 99}, ''),
    ('sentence_bert_config.json', {'do_lower_case': True}, ''),  # as its tokenizer does
])
def test_what_a_run_does_not_do_to_vectors_is_said(
    trained, converted, tmp_path, capsys, name, content, said
):
    folder = sentence_folder(tmp_path / 'theirs', converted, **{name: content})
    complete(finetuning_config('retrieval'), load_weights(folder))
    notes = capsys.readouterr().out
    assert said.format(folder=folder) in notes
    assert said or not re.search('cosines|dims|lower', notes)


def test_texts_that_only_their_modules_lower_case_are_refused(trained, converted, tmp_path):
    files = {'sentence_bert_config.json': {'do_lower_case': True},
             'tokenizer_config.json': {'do_lower_case': False}}
    weights = load_weights(sentence_folder(tmp_path / 'theirs', converted, **files))
    with refused(weights.source, 'do_lower_case', 'lower-case those of the table'):
        complete(finetuning_config('retrieval'), weights)


@pytest.mark.extras
def test_sentence_transformers_makes_the_same_vectors_there_and_back(trained, converted):
    transformers = pytest.importorskip('sentence_transformers')
    theirs = transformers.SentenceTransformer(str(converted), device='cpu')
    texts = texts_of(trained)
    found = {'query': theirs.encode_query(texts['query']),
             'document': theirs.encode_document(texts['document'])}
    back = trained.folder / 'saved_by_them'
    theirs.save(str(back))
    with one_device(), shared_steps():
        ours = vectors_with_prompts(load(trained.folder / 'run'), trained)
        read_back = vectors_with_prompts(load(back), trained)
    for name in PROMPTS:
        np.testing.assert_allclose(found[name], ours[name], atol=1e-5)
        np.testing.assert_allclose(read_back[name], ours[name], atol=1e-5)
    similarity = theirs.similarity(found['query'], found['document']).numpy()
    np.testing.assert_allclose(similarity, ours['query'] @ ours['document'].T, atol=1e-5)


def test_negatives_are_near_and_no_answers(trained, tmp_path, capsys):
    rows = [*trained.pairs[:60], (trained.pairs[0][0], trained.pairs[1][1])]
    write_table(tmp_path / 'pairs.tsv', ('query', 'positive'), *rows)
    line = ['--model', str(trained.folder / 'run'), '--input', str(tmp_path / 'pairs.tsv'),
            '--text', 'query', '--text-pair', 'positive', '--negatives', '2',
            '--corpus', str(trained.folder / 'corpus.tsv')]
    with one_device(), shared_steps():
        mine.main([*line, '--output', str(tmp_path / 'mined.jsonl'), '--margin', '0.02'])
        model = load(trained.folder / 'run')
        mined = [json.loads(row) for row in (tmp_path / 'mined.jsonl').open()]
        assert f'{len(mined)} of 61 rows' in capsys.readouterr().out
        assert len(mined) > 10
        for row in mined[:5]:
            query = model.vectors([row['query']], prompt='query')[0]
            own, *others = (model.vectors(
                [row['positive'], row['negative_1'], row['negative_2']], prompt='document') @ query)
            assert own - 0.02 + 1e-5 >= others[0] >= others[1] - 1e-5
        right = {document for query, document in rows if query == rows[0][0]}
        assert len(right) == 2
        assert not any({row['negative_1'], row['negative_2']} & right
                       for row in mined if row['query'] == rows[0][0])
    with pytest.raises(SystemExit, match='2'), one_device():
        mine.main([*line, '--output', str(tmp_path / 'none.jsonl'), '--margin', '9'])
    assert '--margin=9' in capsys.readouterr().err
    assert not (tmp_path / 'none.jsonl').exists()


def test_texts_of_which_the_model_reads_the_same_are_no_negatives(trained, tmp_path):
    """What a long document has behind the model's length does not make it another one."""
    long = [' '.join([WORDS[HALF], *48 * [WORDS[HALF + 1]], end]) for end in WORDS[:3]]
    rows = [(WORDS[0], long[0]), (WORDS[0], long[1]), (WORDS[1], WORDS[HALF + 2])]
    with one_device(), shared_steps():
        model = load(trained.folder / 'run')
        found = mine.mined(model, rows, [long[2]], num=1, top_k=5, margin=-9)
        twice = mine.mined(model, rows[2:], long, num=2, top_k=5, margin=-9)
    assert [row[2] for row in found] == [WORDS[HALF + 2]] * 2 + found[2][2:]
    assert not twice  # the long documents are one negative


def test_pairs_with_scores_are_trained_to_have_their_order(trained, tmp_path):
    rng = random.Random(4)
    rows = []
    for first, second in pairs_of_synonyms(rng, 200):
        words = second.split()
        num_right = rng.randrange(5)
        rows.append((first, ' '.join(words[:num_right] + rng.choices(WORDS, k=4 - num_right)),
                     num_right))
    write_table(tmp_path / 'scores.tsv', ('sentence1', 'sentence2', 'score'), *rows)
    ended = run(
        'retrieval.py', *trained.flags, f'--config.data.source={tmp_path}/scores.tsv',
        '--config.data.label=score', '--config.train.steps=2', workdir=tmp_path / 'run')
    assert -1 < ended.result['eval/spearman'] < 1
    with refused('config.data.choices', 'config.data.label'):
        run('retrieval.py', *trained.flags, f'--config.data.source={tmp_path}/scores.tsv',
            '--config.data.label=score', '--config.data.choices=x', workdir=tmp_path / 'refused')


@pytest.mark.parametrize(('flags', 'words'), [
    (['--config.retrieval.metrics=f1'], ['config.retrieval.metrics', 'ndcg_at_K']),
    (['--config.retrieval.dims=999'], ['config.retrieval.dims', '32']),
    (['--config.retrieval.corpus=corpus.tsv'], ['config.retrieval.queries', 'all three']),
])
def test_what_does_not_go_together_is_refused(trained, tmp_path, flags, words):
    with refused(*words):
        run('retrieval.py', *trained.flags, *flags, '--config.train.steps=1', workdir=tmp_path)
