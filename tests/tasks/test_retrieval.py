"""The losses of retrieval and the rankings of the held-out rows, where texts recur.

Expected values are loops over texts, in which a rival that is equal to a text or its partner is
left out, as sentence-transformers' batches without duplicates have none.
"""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from ml_collections import ConfigDict

from bert_jax.heads import retrieval as heads
from bert_jax.model.layers import ModelConfig
from bert_jax.tasks import retrieval
from bert_jax.tasks.ranking import check_names, mean_metrics, nearest
from bert_jax.tasks.texts import TextColumns, TextExamples, read_texts
from tests.refusals import refused
from tests.tiny_runs import write_table

CONFIG = ModelConfig(vocab_size=100, num_layers=1, hidden_size=8, num_heads=2, intermediate_size=16)
PAIRS = heads.Retrieval(CONFIG)

ROWS = {
    'partners recur': [('q1', 'yes'), ('q2', 'no'), ('q3', 'yes'), ('q4', 'no'), ('q5', 'yes')],
    'a text has two partners': [('q1', 'a'), ('q1', 'b'), ('q2', 'c')],
    'pairs in both orders': [('a', 'b'), ('b', 'a'), ('c', 'd')],
    'a text is its own partner': [('a', 'a'), ('b', 'c'), ('a', 'd')],
    'a hard negative is the partner of another': [('q1', 'a', 'b'), ('q2', 'b', 'c')],
    'a hard negative is the partner': [('q1', 'a', 'a'), ('q2', 'b', 'q2'), ('q3', 'c', 'd')],
    'an answer is the partner of another, too': [('q1', 'a'), ('q1', 'b'), ('q2', 'b')],
    'a hard negative is a right answer': [('q1', 'a', 'b'), ('q1', 'b', 'c'), ('q2', 'd', 'a')],
    'nothing recurs': [('a', 'b', 'c'), ('d', 'e', 'f'), ('g', 'h', 'i')],
}


def ids_of(rows):
    texts = sorted({text for row in rows for text in row})
    return np.array([[texts.index(text) for text in row] for row in rows], np.int32)


def vectors_of(rows, seed=0):
    """Vectors [n, T, 8] of length 1, equal for equal texts."""
    ids = ids_of(rows)
    table = np.random.default_rng(seed).normal(size=(ids.max() + 1, 8))
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    return table[ids].astype(np.float32)


def right_answers(rows, number):
    """The partners of all texts that are equal to that of a row."""
    return {row[1] for row in rows if row[0] == rows[number][0]}


def expected_loss(rows, vectors, number):
    """Cross-entropy of a row's partner among the rivals that are neither right nor the text."""
    scores = [vectors[number, 0] @ vectors[number, 1]]
    no_rivals = right_answers(rows, number) | {rows[number][0]}
    for other, row in enumerate(rows):
        for column, text in enumerate(row[1:], 1):
            if text not in no_rivals:
                scores.append(vectors[number, 0] @ vectors[other, column])
    scores = np.array(scores, np.float64) / 0.05
    return scipy.special.logsumexp(scores) - scores[0]


def padded(array):
    """An array of all rows of a batch with six places, of which the last are empty."""
    return np.pad(array, [(0, 6 - len(array)), *[(0, 0)] * (array.ndim - 1)])


def batch_of(rows):
    weights = padded(np.ones(len(rows), np.float32))
    return {'text_ids': padded(ids_of(rows)), 'unit_weights': weights}


def outputs_of(vectors):
    return {'logits': padded(vectors).reshape(-1, vectors.shape[-1])}


def head_of(rows, **fields):
    return dataclasses.replace(PAIRS, num_texts=len(rows[0]), **fields)


@functools.cache
def losses_of(head):
    """The losses of a head as one program; operation by operation, they are fifty."""
    return jax.jit(head.losses)


@pytest.mark.parametrize('name', ROWS)
def test_equal_texts_are_no_rivals_in_the_loss(name):
    rows = ROWS[name]
    vectors = vectors_of(rows)
    losses, _ = losses_of(head_of(rows))(outputs_of(vectors), batch_of(rows))
    expected = [expected_loss(rows, vectors, number) for number in range(len(rows))]
    np.testing.assert_allclose(losses[: len(rows)], expected, rtol=1e-4, atol=1e-5)
    assert np.isfinite(losses).all()


def test_a_symmetric_loss_is_half_that_of_the_documents():
    rows = ROWS['partners recur']
    vectors = vectors_of(rows)
    losses, _ = losses_of(head_of(rows, symmetric=True))(outputs_of(vectors), batch_of(rows))
    turned = [row[::-1] for row in rows]
    expected = [
        (expected_loss(rows, vectors, i) + expected_loss(turned, vectors[:, ::-1], i)) / 2
        for i in range(len(rows))]
    np.testing.assert_allclose(losses[: len(rows)], expected, rtol=1e-4, atol=1e-5)


def test_a_loss_is_the_mean_over_cut_vectors():
    rows = ROWS['nothing recurs']
    vectors = vectors_of(rows)
    losses, _ = losses_of(head_of(rows, columns=(8, 3)))(outputs_of(vectors), batch_of(rows))
    cut = retrieval.cut_and_scaled(vectors, 3)
    expected = [
        (expected_loss(rows, vectors, i) + expected_loss(rows, cut, i)) / 2
        for i in range(len(rows))]
    np.testing.assert_allclose(losses[: len(rows)], expected, rtol=1e-4, atol=1e-5)


def test_a_learned_temperature_has_a_gradient():
    rows = ROWS['partners recur']
    head = head_of(rows, learn_temperature=True)

    def loss(log_scale, head=head):
        outputs = outputs_of(vectors_of(rows))
        outputs['log_scale'] = jnp.full(len(outputs['logits']), log_scale)
        losses, _ = head.losses(outputs, batch_of(rows))
        return jnp.sum(losses * batch_of(rows)['unit_weights'])

    @jax.jit
    def compute(at):
        fixed = loss(at, dataclasses.replace(head, learn_temperature=False))
        return fixed, *jax.value_and_grad(loss)(at)

    at = float(-np.log(0.05))
    step = 1e-2
    (fixed, value, gradient), (_, above, _), (_, below, _) = [
        map(float, compute(x)) for x in (at, at + step, at - step)]
    assert value == pytest.approx(fixed)
    assert gradient == pytest.approx((above - below) / (2 * step), rel=1e-2)
    params = jax.eval_shape(head.init, jax.random.key(0))
    assert set(params) == {'bert', 'log_scale'}
    assert not params['log_scale'].decays


def test_scores_are_computed_a_block_at_a_time_with_the_same_gradient():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 2, 8)).astype(np.float32)
    batch = {'text_ids': rng.integers(0, 40, (50, 2)), 'unit_weights': np.ones(50, np.float32)}

    def loss(vectors):
        return jnp.sum(PAIRS.losses({'logits': vectors.reshape(-1, 8)}, batch)[0])

    whole = jax.jit(jax.value_and_grad(loss))(vectors)
    with mock.patch.object(heads, '_QUERIES_AT_ONCE', 16):
        blocks = jax.jit(jax.value_and_grad(loss))(vectors)
    jax.tree.map(lambda *x: np.testing.assert_allclose(*x, rtol=1e-5, atol=1e-5), whole, blocks)


def test_cosines_are_to_have_the_order_of_the_scores():
    """CoSENT, against a loop over pairs."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(5, 2, 8)).astype(np.float32)
    scores = np.array([1, 0, 3, 3, 2], np.float32)
    head = heads.ScoredPairs(CONFIG, temperature=0.1)
    losses, _ = losses_of(head)(outputs_of(vectors), {
        'labels': padded(scores), 'unit_weights': padded(np.ones(5, np.float32))})
    unit = retrieval.cut_and_scaled(vectors, 8)
    cosines = (unit[:, 0] * unit[:, 1]).sum(-1)
    wrong = [np.exp((cosines[i] - cosines[j]) / 0.1)
             for i in range(5) for j in range(5) if scores[i] < scores[j]]
    np.testing.assert_allclose(losses, np.log(1 + sum(wrong)), rtol=1e-5)


def test_an_empty_place_has_no_score():
    cosines, scores, weights = np.float32([[0.5, 0.1, 0.9], [-2, -1, 0], [1, 1, 0]])
    excess = heads._excess_over_higher(cosines, scores, weights)
    assert excess[0] == pytest.approx(0.4)  # over the second alone


@pytest.mark.extras
@pytest.mark.parametrize(('name', 'options', 'head'), [
    ('MultipleNegativesRankingLoss', {}, PAIRS),
    ('MultipleNegativesRankingLoss', {}, dataclasses.replace(PAIRS, num_texts=3)),
    ('MultipleNegativesRankingLoss',
     {'directions': ('query_to_doc', 'doc_to_query'), 'partition_mode': 'per_direction'},
     dataclasses.replace(PAIRS, symmetric=True)),
    ('CoSENTLoss', {}, heads.ScoredPairs(CONFIG)),
])
def test_losses_and_gradients_are_those_of_sentence_transformers(name, options, head):
    torch = pytest.importorskip('torch')
    losses = pytest.importorskip('sentence_transformers.sentence_transformer.losses')

    class Given(torch.nn.Module):
        """Stands in for a model: its features are the vectors."""

        def forward(self, features):
            return {'sentence_embedding': features['vectors']}

    rng = np.random.default_rng(4)
    num_texts = head.num_texts
    vectors = rng.normal(size=(12, num_texts, 8)).astype(np.float32)
    scores = rng.random(12).astype(np.float32)
    columns = [torch.tensor(vectors[:, i], requires_grad=True) for i in range(num_texts)]
    theirs = getattr(losses, name)(Given(), scale=20.0, **options)(
        [{'vectors': column} for column in columns], torch.tensor(scores))
    theirs.backward()

    def ours(vectors):
        found, _ = head.losses({'logits': vectors.reshape(-1, 8)}, {
            'text_ids': np.arange(12 * num_texts).reshape(12, num_texts), 'labels': scores,
            'unit_weights': np.ones(12, np.float32)})
        return jnp.mean(found)

    loss, gradient = jax.jit(jax.value_and_grad(ours))(vectors)
    np.testing.assert_allclose(loss, theirs.detach().numpy(), rtol=1e-5)
    expected = np.stack([column.grad.numpy() for column in columns], axis=1)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def results_of(rows, vectors, names):
    """Metrics and files of rows whose texts have these vectors [n, T, H]."""
    columns = list(map(list, zip(*rows, strict=True)))
    judged = retrieval._judged_rows(
        TextExamples(columns, None, list(map(str, columns[0])), 'x'), ids_of(rows))
    vector_of = {text: vectors[n, t] for n, row in enumerate(rows) for t, text in enumerate(row)}
    outputs = np.stack([vector_of[text] for text in [*judged.queries, *judged.documents]])
    return retrieval._ranking_results(judged, names, (8,), {'logits': outputs})


@pytest.mark.parametrize('name', ROWS)
def test_any_right_answer_is_found(name):
    rows = ROWS[name]
    candidates = {text for row in rows for text in row[1:]}
    for seed in range(5):
        vectors = vectors_of(rows, seed)
        vector_of = {
            text: vectors[n, t] for n, row in enumerate(rows) for t, text in enumerate(row)}
        found = {}
        for number, row in enumerate(rows):
            right = right_answers(rows, number)
            scores = {}
            for text in (candidates - {row[0]}) | right:
                scores[text] = vector_of[text] @ vectors[number, 0]
            found[row[0]] = max(scores, key=scores.__getitem__) in right
        metrics, _ = results_of(rows, vectors, ['accuracy_at_1'])
        assert metrics['accuracy_at_1'] == pytest.approx(np.mean(list(found.values())))


def test_metrics_of_a_ranking_by_hand():
    documents = np.array([[4, 2, 0], [1, 3, -1]])
    relevant = [{2: 2, 7: 1, 4: 0}, {5: 1}]
    names = ['ndcg_at_3', 'mrr_at_3', 'recall_at_2', 'accuracy_at_1', 'accuracy_at_3']
    found = mean_metrics(names, documents, relevant)
    best = 2 + 1 / np.log2(3)
    expected = [2 / np.log2(3) / best / 2, 0.25, 0.25, 0.0, 0.5]
    assert list(found.values()) == pytest.approx(expected)


def test_documents_that_are_not_ranked_are_in_the_best_ranking():
    """Three of six documents are found: 0.645 = (1 + 1/log2(3) + 1/2) / (sum of six discounts)."""
    found = mean_metrics(['ndcg_at_10', 'ndcg_at_3', 'recall_at_10'], np.array([[0, 1, 2]]), [
        dict.fromkeys(range(6), 1)])
    assert list(found.values()) == pytest.approx([0.64482, 1, 0.5], abs=1e-5)


def test_equal_scores_are_in_a_stated_order():
    vectors = np.eye(2, dtype=np.float32)[[0, 0, 1, 0]]
    found = nearest(vectors[:1], vectors, 3, last_first=np.array([2, 0, 3, 1]))
    assert found.documents.tolist() == [[0, 3, 1]]
    assert nearest(vectors[:1], vectors, 9).documents.tolist() == [[0, 1, 3, 2]]
    left_out = nearest(vectors[:1], vectors, 4, left_out=lambda some: np.ones((1, 4), bool))
    assert (left_out.documents == -1).all()


@pytest.mark.parametrize('name', ['ndcg', 'ndcg_at_0', 'accuracy', 'precision_at_1', ''])
def test_an_unknown_metric_is_refused(name):
    with refused('config.retrieval.metrics', 'ndcg_at_10'):
        check_names([name], 'config.retrieval.metrics')


@pytest.mark.extras
def test_metrics_are_those_of_pytrec_eval():
    """Of graded judgements, some of documents that are not there, and scores that are often equal.

    Some queries have no relevant documents.
    """
    pytrec_eval = pytest.importorskip('pytrec_eval')
    rng = np.random.default_rng(2)
    vectors = np.round(rng.normal(size=(90, 3))).astype(np.float32)
    vectors[:30, 2] = 0
    names = [f'd{i}' for i in range(60)]
    relevant = [
        {int(i): float(rng.integers(-1, 4)) for i in rng.choice(65, size=rng.integers(1, 30))}
        for _ in range(30)]
    last_first = np.argsort(np.argsort(np.array(names)))
    ranking = nearest(vectors[:30], vectors[30:], 60, last_first=last_first)
    wanted = {'ndcg_at_10': 'ndcg_cut_10', 'ndcg_at_3': 'ndcg_cut_3', 'recall_at_20': 'recall_20',
              'accuracy_at_5': 'success_5'}
    qrels = {f'q{n}': {f'd{i}': int(gain) for i, gain in of_query.items()}
             for n, of_query in enumerate(relevant)}
    scores = vectors[:30] @ vectors[30:].T
    run = {f'q{n}': dict(zip(names, map(float, row), strict=True)) for n, row in enumerate(scores)}
    evaluator = pytrec_eval.RelevanceEvaluator(
        qrels, {'ndcg_cut.3,10', 'recall.20', 'success.5', 'recip_rank'})
    theirs = evaluator.evaluate(run)
    assert len(theirs) == 30
    ours = mean_metrics([*wanted, 'mrr_at_10'], ranking.documents, relevant)
    for name, their_name in wanted.items():
        expected = np.mean([of_query[their_name] for of_query in theirs.values()])
        assert ours[name] == pytest.approx(expected, abs=1e-6), name
    first_ten = {
        f'q{n}': {names[i]: run[f'q{n}'][names[i]] for i in row[:10]}
        for n, row in enumerate(ranking.documents)}
    expected = [of_query['recip_rank'] for of_query in evaluator.evaluate(first_ten).values()]
    assert ours['mrr_at_10'] == pytest.approx(np.mean(expected), abs=1e-6)


def test_texts_of_the_same_tokens_are_equal():
    def encode(texts):
        words = [text.lower().split() for text in texts]
        return (np.array([hash(word) % 1000 for of_text in words for word in of_text]),
                np.array(list(map(len, words))))

    ids = retrieval.text_ids([['a b', 'c'], ['A b', 'a b c']], [encode, encode])
    assert ids[0, 0] == ids[0, 1]
    assert len(np.unique(ids)) == 3


def test_held_out_rows_are_equal_by_their_tokens():
    examples = TextExamples([['a', 'A'], ['b', 'c']], None, ['0', '1'], 'x')
    judged = retrieval._judged_rows(examples, np.array([[0, 1], [0, 2]]))
    assert judged.queries == ['a']
    assert judged.relevant == [{0: 1, 1: 1}]
    files = retrieval.tables_of(judged)
    assert files['dev_qrels.tsv'].splitlines()[1:] == ['q0\td0\t1', 'q0\td1\t1']


def judged_tables(folder, qrels, corpus=(('d1', 'x'), ('d2', 'y')), header=('_id', 'text')):
    config = ConfigDict({'data': {'max_malformed': 0.0}, 'retrieval': {}})
    for name, rows in {
            'corpus': [header, *corpus], 'queries': [('_id', 'text'), ('q1', 'x')],
            'qrels': [('query-id', 'corpus-id', 'score'), *qrels]}.items():
        write_table(folder / f'{name}.tsv', *rows)
        config.retrieval[name] = str(folder / f'{name}.tsv')
    return retrieval.judged_tables(config, 'retrieval')


def test_relevant_documents_that_are_not_there_count_as_not_found(tmp_path, capsys):
    judged = judged_tables(tmp_path, [('q1', 'd2', 1), ('q1', 'lost', 2), ('q9', 'd1', 1)])
    said = capsys.readouterr().out
    assert '2 judgements are of' in said
    assert "line 3: 'q1' with 'lost'" in said
    found = mean_metrics(['recall_at_2', 'ndcg_at_2'], np.array([[1, 0]]), judged.relevant)
    assert found['recall_at_2'] == 0.5
    assert found['ndcg_at_2'] == pytest.approx(1 / (2 + 1 / np.log2(3)))


def test_ambiguous_tables_are_refused(tmp_path):
    with refused('qrels.tsv, line 3', 'line 2 already'):
        judged_tables(tmp_path, [('q1', 'd1', 1), ('q1', 'd1', 0)])
    with refused('corpus.tsv has no column', 'have a header with _id and text'):
        judged_tables(tmp_path, [('q1', 'd2', 1)], header=('docno', 'text'))
    with refused('corpus.tsv, line 2', 'white space'):
        judged_tables(tmp_path, [('q1', 'd2', 1)], [('d 1', 'x'), ('d2', 'y')])


@pytest.mark.parametrize('dims', ['nan', 'inf', '1e400', '1.0', '1.5', '0', '-1', '0.01', '9', 'x'])
def test_dims_are_whole_numbers_or_shares(dims):
    with refused(f'config.retrieval.dims={dims!r}'):
        retrieval._num_columns(8, dims)


@pytest.mark.parametrize(('dims', 'num'), [('8', 8), ('1', 1), ('0.5', 4)])
def test_vectors_are_cut_to_a_number_or_a_share_of_columns(dims, num):
    assert retrieval._num_columns(8, dims) == num


@pytest.mark.parametrize(('data', 'section', 'field'), [
    ({}, {'least_score': 3.0}, 'config.retrieval.least_score'),
    ({'label': 'score'}, {'symmetric': True}, 'config.retrieval.symmetric'),
    ({'text': 'a', 'text_pair': 'a'}, {}, 'config.data.text'),
    ({}, {'metrics': 'ndcg@10'}, 'config.retrieval.metrics'),
])
def test_fields_without_effect_and_unknown_metrics_are_refused_before_any_row_is_read(
        data, section, field):
    config = ConfigDict({
        'data': {'label': '', 'text': 'text', 'text_pair': ''} | data,
        'retrieval': {'least_score': 0.0, 'symmetric': False, 'metrics': ''} | section})
    with refused(field):
        retrieval.open_retrieval(config)


def test_the_column_of_empty_negatives_is_named(tmp_path, capsys):
    write_table(tmp_path / 'x.tsv', ('q', 'd', 'wrong'), ('a', 'b', 'c'), ('a', 'b', ''))
    read_texts(
        str(tmp_path / 'x.tsv'), TextColumns(['q', 'd', 'wrong'], ''), None, keep_empty=False)
    assert '1 of 2 rows have an empty text in wrong; left out' in capsys.readouterr().out
