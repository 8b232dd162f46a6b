"""The losses of groups of documents, and how a table becomes groups.

Expected values are loops over documents, and those of sentence-transformers.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats
from ml_collections import ConfigDict

from bert_jax.heads.reranking import LOSSES
from bert_jax.kernels.dropout import dropout_keys
from bert_jax.model.layers import ModelConfig
from bert_jax.rows.packing import Plan, Planner, Units, packed_batch
from bert_jax.rows.sequences import Sequences
from bert_jax.sharding import Layout, make_mesh, to_global
from bert_jax.step.gradients import global_gradient
from bert_jax.step.step import abstract_state
from bert_jax.tasks import reranking
from bert_jax.tasks.ranking import mean_metrics, ranked
from tests.refusals import refused
from tests.tiny_models import assert_close, random_like
from tests.tiny_runs import write_table

CONFIG = ModelConfig(
    vocab_size=50, num_layers=1, hidden_size=16, num_heads=2, intermediate_size=16,
    max_position_embeddings=16, hidden_dropout=0.2, attention_dropout=0.2)
STILL = dataclasses.replace(CONFIG, hidden_dropout=0.0, attention_dropout=0.0)
# The gains of the documents of some queries.
GROUPS = {
    'one is relevant': [[1, 0, 0, 0], [1, 0, 0, 0]],
    'some are relevant, of groups of all sizes': [[1, 1, 0, 0, 0], [1, 0], [1, 1, 1, 0]],
    'gains are graded': [[3, 1, 1, 0], [2, 0], [3, 3, 2, 1, 0]],
}
BINARY = ['one is relevant', 'some are relevant, of groups of all sizes']
CASES = [(loss, name) for name in GROUPS for loss in LOSSES
         if loss != 'binary' or name in BINARY]


def batch_of(gains):
    """A row of the groups, and a row with a place that is empty, as a task makes them."""
    num_places = max(map(len, gains))
    padded = np.zeros((1, len(gains) + 1, num_places), np.float32)
    is_document = np.zeros(padded.shape, bool)
    for i, of_group in enumerate(gains):
        padded[0, i, : len(of_group)] = of_group
        is_document[0, i, : len(of_group)] = True
    return {'gains': padded, 'is_document': is_document}


def scores_of(gains, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=len(of_group)).astype(np.float32) for of_group in gains]


def compute(loss, gains, scores):
    """(Loss, gradients in the scores of the groups) of the head."""
    head = LOSSES[loss](CONFIG, num_documents=max(map(len, gains)))
    batch = batch_of(gains)
    terms = head.count_terms(batch['gains'][0], batch['is_document'][0])
    terms[-1] = 0  # no group is there
    batch['num_terms'] = terms[None]
    padded = np.full(batch['gains'].shape, 7.0, np.float32)  # of empty places, whatever it is
    padded[batch['is_document']] = np.concatenate(scores)

    def loss_of(logits):
        outputs = {'logits': logits.reshape(1, -1, 1)}
        losses, right = head.losses(outputs, batch)
        weights = batch['num_terms']
        assert losses.shape == right.shape == weights.shape
        return jnp.sum(losses * weights) / head.totals(batch)['units']

    value, gradient = jax.jit(jax.value_and_grad(loss_of))(padded)
    assert np.isfinite(gradient).all()
    assert not np.any(gradient[~batch['is_document']])
    ends = np.cumsum(list(map(len, gains)))[:-1]
    return float(value), np.split(np.array(gradient)[batch['is_document']], ends)


def softplus(x):
    return np.logaddexp(0, x)


def pairs_of(gains, scores):
    """The losses of all pairs."""
    return [softplus(scores[j] - scores[i]) for i in range(len(gains)) for j in range(len(gains))
            if gains[i] > gains[j]]


def weighted_pairs(gains, scores):
    """Those of LambdaLoss, from its paper: what the pair's ranks change of the nDCG."""
    ranks = scipy.stats.rankdata(-scores)
    worth = 2.0 ** np.array(gains) - 1
    worth /= np.sum(np.sort(worth)[::-1] / np.log2(1 + np.arange(1, len(gains) + 1)))
    losses = []
    for i in range(len(gains)):
        for j in range(len(gains)):
            if gains[i] > gains[j]:
                distance = abs(ranks[i] - ranks[j])
                steps = 1 / np.log2(1 + distance) - 1 / np.log2(2 + distance)
                swap = abs(1 / np.log2(1 + ranks[i]) - 1 / np.log2(1 + ranks[j]))
                factor = (10 * steps + swap) * (worth[i] - worth[j])
                losses.append(factor * softplus(scores[j] - scores[i]))
    return losses


EXPECTED = {
    'contrastive': lambda gains, scores: [
        -np.array(gains) @ scipy.special.log_softmax(scores) / np.sum(gains)],
    'listnet': lambda gains, scores: [
        -scipy.special.softmax(np.array(gains)) @ scipy.special.log_softmax(scores)],
    'ranknet': pairs_of,
    'lambda': weighted_pairs,
    'binary': lambda gains, scores: softplus(scores) - np.array(gains) * scores,
}


@pytest.mark.parametrize(('loss', 'name'), CASES)
def test_a_loss_is_the_mean_over_the_terms_of_all_groups(loss, name):
    gains = GROUPS[name]
    scores = scores_of(gains)
    terms = [EXPECTED[loss](*group) for group in zip(gains, scores, strict=True)]
    value, _ = compute(loss, gains, scores)
    assert value == pytest.approx(np.mean(np.concatenate(terms)), rel=1e-5)


@pytest.mark.extras
@pytest.mark.parametrize(('loss', 'name'), CASES)
def test_losses_and_gradients_are_those_of_sentence_transformers(loss, name):
    torch = pytest.importorskip('torch')
    theirs = pytest.importorskip('sentence_transformers.cross_encoder.losses')
    gains = GROUPS[name]
    scores = scores_of(gains)
    given = torch.tensor(np.concatenate(scores), requires_grad=True)
    labels = [torch.tensor(of_group, dtype=torch.float32) for of_group in gains]

    class Given:
        """Stands in for a model: the scores of all pairs, in their order."""

        num_labels = 1
        device = 'cpu'

        def preprocess(self, pairs, **options):
            return {'pair': torch.tensor([int(document) for _, document in pairs])}

        def __call__(self, features):
            return {'scores': given[features['pair']][:, None]}

    numbers = iter(range(len(given)))
    documents = [[str(next(numbers)) for _ in of_group] for of_group in gains]
    queries = ['q'] * len(gains)
    options = {'reduction_log': 'natural', 'mini_batch_size': 3}
    if loss == 'contrastive':  # the cross-entropy with shares of the gains
        padded = torch.nn.utils.rnn.pad_sequence
        logits = padded([given[torch.tensor(list(map(int, of_query)))] for of_query in documents],
                        batch_first=True, padding_value=-1e16)
        shares = padded([of_group / of_group.sum() for of_group in labels], batch_first=True)
        value = torch.nn.CrossEntropyLoss()(logits, shares)
    elif loss == 'binary':
        module = object.__new__(theirs.BinaryCrossEntropyLoss)
        torch.nn.Module.__init__(module)
        module.model, module.activation_fn = Given(), torch.nn.Identity()
        module.bce_with_logits_loss = torch.nn.BCEWithLogitsLoss()
        flat = [document for of_query in documents for document in of_query]
        value = module([['q'] * len(flat), flat], torch.cat(labels))
    else:
        module = {
            'listnet': lambda: theirs.ListNetLoss(Given(), mini_batch_size=3),
            'ranknet': lambda: theirs.RankNetLoss(Given(), **options),
            'lambda': lambda: theirs.LambdaLoss(Given(), **options)}[loss]()
        value = module([queries, documents], labels)
    value.backward()
    found, gradients = compute(loss, gains, scores)
    assert found == pytest.approx(value.item(), rel=1e-5)
    np.testing.assert_allclose(np.concatenate(gradients), given.grad.numpy(), atol=1e-6)


@functools.cache
def units_of_groups():
    """24 groups of two to five documents with graded gains, of sequences of 3 to 7 tokens."""
    rng = np.random.default_rng(1)
    is_document = np.arange(5) < rng.integers(2, 6, 24)[:, None]
    gains = np.where(is_document, rng.integers(0, 4, is_document.shape), 0).astype(np.float32)
    lengths = rng.integers(3, 8, is_document.sum())
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(0, 50, offsets[-1]).astype(np.int32)
    pairs = Sequences.of_segments(ids, offsets, lengths // 2)
    return pairs, gains, is_document


def packed(loss, shards):
    """(The batch of these groups in rows of which each shard has as many, the number of rows)."""
    pairs, gains, is_document = units_of_groups()
    units = Units(reranking._with_empty(pairs, is_document), 5, labels={
        'gains': gains, 'is_document': is_document,
        'num_terms': LOSSES[loss].count_terms(gains, is_document)})
    plan = Planner(shards, lambda row_length: 1.0).steps(
        units.lengths, np.arange(24)[None], (64,))
    num_rows = int(plan.num_rows[0])
    return packed_batch(units, plan, 0, np.arange(num_rows)), num_rows


@functools.cache
def scores_of_single_pairs():
    """Whatever the loss is."""
    pairs, _, _ = units_of_groups()
    head = LOSSES['contrastive'](STILL, num_documents=5)
    units = Units(pairs)
    plan = Plan.row_each(units.lengths, np.arange(len(units))[None])
    batch = packed_batch(units, plan, 0, np.arange(len(units)))
    return np.asarray(jax.jit(head.outputs)(parameters(head), batch)['logits']).reshape(-1)


def parameters(head):
    return random_like(jax.eval_shape(head.init, jax.random.key(0)), scale=0.3)


def gradient(loss, num_devices, parts):
    """(gradient, loss) of the batch with dropout, on so many devices, in so many parts of each."""
    mesh = make_mesh(num_devices, 1, 1, jax.devices()[:num_devices])
    head = LOSSES[loss](dataclasses.replace(CONFIG, layout=Layout(mesh)), num_documents=5)
    shardings = jax.tree.map(
        lambda x: x.sharding, abstract_state(head, optax.sgd(1.0), mesh).params)
    batch, num_rows = packed(loss, shards=16)

    @jax.jit
    def of_batch(params, batch, keys):
        grads, value, _ = global_gradient(
            head, params, batch, keys, parts, mesh, shardings, 'float32')
        return grads, value

    batch = to_global(mesh, batch, num_rows, np.arange(num_rows))
    keys = dropout_keys(7, 3, np.arange(num_rows))
    return jax.device_get(of_batch(jax.device_put(parameters(head), shardings), batch, keys))


@pytest.mark.parametrize('loss', ['contrastive', 'lambda'])
def test_groups_stay_whole_on_many_devices_and_in_parts(loss):
    whole = gradient(loss, 1, 1)
    assert max(np.abs(x).max() for x in jax.tree.leaves(whole[0])) > 1e-3
    assert_close(gradient(loss, 8, 2), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('loss', LOSSES)
def test_packed_groups_have_the_scores_of_single_pairs(loss):
    """The loss of a packed batch is that of scores which each pair gets in a row of its own."""
    _, gains, is_document = units_of_groups()
    gains = gains / 3 if loss == 'binary' else gains
    head = LOSSES[loss](STILL, num_documents=5)
    scores = scores_of_single_pairs()
    ends = np.cumsum(is_document.sum(axis=1))[:-1]
    groups = [list(map(float, row[there])) for row, there in zip(gains, is_document, strict=True)]
    expected, _ = compute(loss, groups, np.split(scores, ends))
    batch, _ = packed(loss, shards=1)
    if loss == 'binary':
        batch['gains'] = batch['gains'] / 3
    value, sums = jax.jit(lambda params, batch: head.loss(params, batch, head.totals(batch), None))(
        parameters(head), batch)
    assert float(value) == pytest.approx(expected, rel=1e-5)
    sums = jax.device_get(sums)
    assert 0 <= head.score(sums)['accuracy'] <= 1


def test_an_empty_place_at_the_end_of_a_full_row_has_a_position_in_it():
    sequences = Sequences.of_segments(
        np.arange(8, dtype=np.int32), np.array([0, 5, 8, 8]), np.array([2, 1, 0]))
    units = Units(sequences, 3)
    batch = packed_batch(units, Plan.row_each(units.lengths, np.zeros((1, 1), int)), 0, np.zeros(1))
    assert batch['cls_positions'].tolist() == [[0, 5, 0]]


def queries_of(folder, *rows, **data):
    """The queries that a table has."""
    write_table(folder / 'x.tsv', *rows)
    loss = data.pop('loss', 'contrastive')
    config = ConfigDict({
        'data': {'text': None, 'text_pair': '', 'choices': '', 'label': None, 'id': '',
                 'max_malformed': 0.0} | data,
        'reranking': {'loss': loss}})
    return reranking._read_queries(config, str(folder / 'x.tsv'))


def test_rows_of_equal_queries_are_joined(tmp_path):
    found = queries_of(
        tmp_path, ('query', 'document', 'no', 'nor'), ('q', 'a', 'b', 'c'), ('r', 'b', 'a', 'c'),
        ('q', 'c', 'd', 'b'), choices='no,nor')
    assert found.texts == ['q', 'r']
    assert found.gains == [{'a': 1, 'b': 0, 'c': 1, 'd': 0}, {'b': 1, 'a': 0, 'c': 0}]
    found = queries_of(
        tmp_path, ('query', 'document', 'gain'), ('q', 'a', 2), ('q', 'b', 0), ('q', 'a', 3),
        label='gain')
    assert found.gains == [{'a': 3, 'b': 0}]


def test_groups_have_about_the_same_size_and_share_of_relevant_documents():
    gains = dict(zip('abcdefghi', [0, 0, 1, 0, 2, 0, 0, 0, 1], strict=True))
    groups = reranking._groups(gains, 4)
    assert [[gain for _, gain in group] for group in groups] == [[2, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert sorted(text for group in groups for text, _ in group) == sorted(gains)
    assert len(reranking._groups(gains, 9)) == 1


@pytest.mark.parametrize(('header', 'row', 'data', 'named'), [
    (('query', 'document'), ('q', 'a'), {}, 'config.data.choices'),
    (('query', 'document', 'no', 'gain'), ('q', 'a', 'b', 1), {'choices': 'no', 'label': 'gain'},
     'config.data.label'),
    (('query', 'document', 'gain'), ('q', 'a', 2), {'label': 'gain', 'loss': 'binary'},
     'config.reranking.loss'),
    (('query', 'document', 'gain'), ('q', 'a', -2), {'label': 'gain', 'loss': 'binary'},
     'config.reranking.loss'),
])
def test_tables_that_say_no_gains_are_refused(tmp_path, header, row, data, named):
    with refused(named.rpartition('.')[0], named.rpartition('.')[2]):
        queries_of(tmp_path, header, row, **data)


def judged_of(names):
    return reranking.Judged(
        ['x'] * 2, ['text'] * len(names), ['q0', 'q1'], names, [{0: 1.0}, {1: 1.0}])


def test_candidates_are_read_by_their_ids(tmp_path):
    file = tmp_path / 'found.trec'
    file.write_text('q1 Q0 d2 1 9.5 x\nq9 Q0 d1 1 3 x\n\nq1 Q0 d1 2 9 x\n')
    found = reranking._read_candidates(str(file), judged_of(['d1', 'd2', 'd3']))
    assert [of_query.tolist() for of_query in found] == [[], [1, 0]]


@pytest.mark.parametrize(('content', 'said'), [
    ('q1 d2 1\n', ('line 1', 'QUERY Q0 DOCUMENT')),
    ('q1 Q0 lost 1 9 x\n', ('line 1', "'lost'", 'config.reranking.corpus')),
    ('q1 Q0 d1 1 9 x\nq1 Q0 d1 2 8 x\n', ('line 2', 'already')),
    ('q1 Q0 d1 1 9 x\rq1 Q0 d2 2 8 x\nq2 Q0 d1 1 9 x\r', ('line 1', 'lone CR')),
    ('q9 Q0 d1 1 9 x\n', ('config.reranking.queries',)),
])
def test_rankings_that_do_not_fit_are_refused(tmp_path, content, said):
    (tmp_path / 'found.trec').write_bytes(content.encode())
    with refused(*said):
        reranking._read_candidates(str(tmp_path / 'found.trec'), judged_of(['d1', 'd2']))


@pytest.mark.extras
@pytest.mark.parametrize('most', [3, 24])  # candidates of a query: fewer than ranks, or more
def test_metrics_of_candidates_are_those_of_pytrec_eval(most):
    """Of candidates of which some are judged, with scores that are often equal."""
    pytrec_eval = pytest.importorskip('pytrec_eval')
    rng = np.random.default_rng(5)
    names = [f'd{i}' for i in range(30)]
    candidates = [rng.permutation(30)[: rng.integers(1, most + 1)] for _ in range(20)]
    scores = [np.round(rng.normal(size=len(of_query)), 1) for of_query in candidates]
    relevant = [
        {int(i): float(rng.integers(0, 4)) for i in rng.choice(30, rng.integers(1, 20))}
        for _ in candidates]
    ranking = ranked(candidates, scores, np.argsort(np.argsort(np.array(names))))
    ours = mean_metrics(['ndcg_at_10', 'mrr_at_10'], ranking.documents, relevant)
    evaluator = pytrec_eval.RelevanceEvaluator(
        {f'q{n}': {names[i]: int(gain) for i, gain in of_query.items()}
         for n, of_query in enumerate(relevant)}, {'ndcg_cut.10', 'recip_rank'})

    def mean_of(name, runs):
        found = evaluator.evaluate(runs)
        return np.mean([of_query[name] for of_query in found.values()])

    runs = {
        f'q{n}': {names[i]: float(score) for i, score in zip(*of_query, strict=True)}
        for n, of_query in enumerate(zip(candidates, scores, strict=True))}
    assert ours['ndcg_at_10'] == pytest.approx(mean_of('ndcg_cut_10', runs), abs=1e-6)
    first_ten = {
        f'q{n}': {names[i]: runs[f'q{n}'][names[i]] for i in row[:10] if i >= 0}
        for n, row in enumerate(ranking.documents)}
    assert ours['mrr_at_10'] == pytest.approx(mean_of('recip_rank', first_ten), abs=1e-6)
