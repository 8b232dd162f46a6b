"""Metrics equal scikit-learn's and SciPy's; a metric that does not suit the head is refused."""

import math

import numpy as np
import pytest

from bert_jax.heads.classification import Classification, MultiLabel
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.metrics import METRICS, check_metrics, of_each_class


@pytest.mark.parametrize('metric, predictions, labels', [
    ('f1', [0, 0], [0, 0]), ('f1', [0, 0], [1, 1]), ('macro_f1', [0, 0], [1, 1]),
    ('matthews', [1, 1, 1], [1, 0, 1]),  # a model that always predicts the same
    ('matthews', [1, 0, 1], [1, 1, 1]), ('matthews', [1, 1], [1, 1]),
])
@pytest.mark.filterwarnings('error')
def test_what_scikit_learn_gives_as_zero_is_zero(metric, predictions, labels):
    found = METRICS[metric].compute(np.array(predictions), np.array(labels))
    assert found == 0 and type(found) is float


@pytest.mark.parametrize('metric', ['pearson', 'spearman'])
@pytest.mark.parametrize('predictions, labels', [
    ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]),
    ([np.nan, 1.0, 2.0], [1.0, 2.0, 3.0]), ([np.inf, 1.0, 2.0], [1.0, 2.0, 3.0]),
    ([1.0], [1.0]),
])
@pytest.mark.filterwarnings('error')
def test_a_correlation_that_scipy_gives_as_nan_is_nan(metric, predictions, labels):
    assert math.isnan(METRICS[metric].compute(np.array(predictions), np.array(labels)))


def reference(name):
    """The metric of scikit-learn or SciPy, as a function of (labels, predictions)."""
    sklearn = pytest.importorskip('sklearn.metrics', reason='compared with scikit-learn')
    stats = pytest.importorskip('scipy.stats', reason='compared with SciPy')

    def f1_score(average):
        return lambda y, x: sklearn.f1_score(y, x, average=average, zero_division=0)

    return {
        'accuracy': sklearn.accuracy_score, 'f1': f1_score('binary'),
        'macro_f1': f1_score('macro'), 'micro_f1': f1_score('micro'),
        'matthews': sklearn.matthews_corrcoef,
        'pearson': lambda y, x: stats.pearsonr(y, x)[0],
        'spearman': lambda y, x: stats.spearmanr(y, x)[0],
    }[name]


def random_case(rng, head, num_classes):
    """Predictions and labels of 2 to 40 examples."""
    n = int(rng.integers(2, 41))
    if head == 'regression':  # few values, so many ties: the hard case for ranks
        x, y = (rng.integers(0, 6, n) + rng.choice([0, 0, rng.random()], n) for _ in 'xy')
        return np.append(x, [0, 9]), np.append(y, [9, 0])  # neither side is constant
    if head == 'multi_label':
        return tuple((rng.random((n, num_classes)) < rng.random()).astype(np.float32) for _ in 'xy')
    return tuple(rng.integers(0, num_classes, n).astype(np.int32) for _ in 'xy')


@pytest.mark.filterwarnings('ignore')
@pytest.mark.extras
@pytest.mark.parametrize(('name', 'head', 'num_classes'), [
    (name, head, num_classes) for name, metric in METRICS.items()
    for head, numbers in (('classification', (2, 3, 7)), ('multi_label', (2, 3, 7)),
                          ('regression', (0,)))
    for num_classes in numbers
    if head in metric.heads and metric.labels in (None, num_classes)])
def test_metrics_equal_scikit_learn_and_scipy_in_200_random_cases(name, head, num_classes):
    theirs, rng = reference(name), np.random.default_rng(0)
    for case in range(200):
        predictions, labels = random_case(rng, head, num_classes)
        ours = METRICS[name].compute(predictions, labels)
        assert ours == pytest.approx(theirs(labels, predictions), abs=1e-9), case


@pytest.mark.extras
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(('head', 'num_classes'), [('classification', 4), ('multi_label', 3)])
def test_scores_of_each_class_equal_scikit_learn(head, num_classes):
    sklearn, rng = pytest.importorskip('sklearn.metrics'), np.random.default_rng(0)
    for _ in range(50):
        predictions, labels = random_case(rng, head, num_classes)
        scores = rng.integers(0, 5, (len(labels), num_classes)) / 4  # with ties
        rows = np.array(of_each_class(predictions, labels, scores))
        wanted = sklearn.precision_recall_fscore_support(
            labels, predictions, labels=range(num_classes), zero_division=0)
        np.testing.assert_allclose(rows[:, [1, 2, 3, 0]].T, wanted)
        for row, score, true in zip(rows, scores.T, (
                labels if labels.ndim == 2 else labels[:, None] == range(num_classes)).T):
            area = sklearn.roc_auc_score(true, score)
            assert row[4] == pytest.approx(area, nan_ok=True)


def test_matthews_of_many_examples():
    """Products of counts outgrow 32 bits."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400_000).astype(np.int32)
    predictions = np.where(rng.random(400_000) < 0.1, 1 - labels, labels)
    assert METRICS['matthews'].compute(predictions, labels) == pytest.approx(
        np.corrcoef(predictions, labels)[0, 1], abs=1e-9)


@pytest.mark.parametrize(('name', 'head', 'num_labels', 'fit'), [
    ('f1', 'classification', 3, 'accuracy, macro_f1, micro_f1, matthews'),
    ('accuracy', 'regression', None, 'pearson, spearman'),
    ('matthews', 'multi_label', 2, 'accuracy, macro_f1, micro_f1'),
    ('pearson', 'classification', 2, 'accuracy, f1, macro_f1, micro_f1, matthews'),
    ('auc', 'classification', 2, 'accuracy, f1, macro_f1, micro_f1, matthews'),
])
def test_a_metric_that_does_not_suit_is_refused_with_those_that_do(name, head, num_labels, fit):
    says = f"^config.x.metrics='{name}': '{name}' is no metric .*: choose from {fit}"
    with pytest.raises(InputError, match=says + '$'):
        check_metrics([name], head, num_labels, 'config.x.metrics')
    assert check_metrics(fit.split(', '), head, num_labels) == tuple(fit.split(', '))


@pytest.mark.extras
@pytest.mark.parametrize(('weights', 'smoothing'), [((), 0.1), ((0.5, 2.0, 1.0), 0.0)])
def test_classification_losses_equal_torch(weights, smoothing):
    torch = pytest.importorskip('torch')
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 3)).astype(np.float32)
    labels = rng.integers(0, 3, 8)
    wanted = torch.nn.functional.cross_entropy(
        torch.tensor(logits), torch.tensor(labels), torch.tensor(weights) if weights else None,
        reduction='none', label_smoothing=smoothing)
    bert = ModelConfig(vocab_size=8, num_layers=1, hidden_size=8, num_heads=1, intermediate_size=8)
    losses, _ = Classification(bert, 3, weights, smoothing).losses(
        {'logits': logits[None]}, {'labels': labels[None]})
    np.testing.assert_allclose(losses[0], wanted, rtol=1e-5)


@pytest.mark.extras
def test_losses_of_several_labels_equal_torch():
    torch = pytest.importorskip('torch')
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 3)).astype(np.float32)
    labels = rng.integers(0, 2, (8, 3)).astype(np.float32)
    bert = ModelConfig(vocab_size=8, num_layers=1, hidden_size=8, num_heads=1, intermediate_size=8)
    for weights in ((), (0.5, 2.0, 1.0)):
        wanted = torch.nn.functional.binary_cross_entropy_with_logits(
            torch.tensor(logits), torch.tensor(labels), reduction='none',
            pos_weight=torch.tensor(weights) if weights else None).mean(-1)
        losses, _ = MultiLabel(bert, 3, weights).losses(
            {'logits': logits[None]}, {'labels': labels[None]})
        np.testing.assert_allclose(losses[0], wanted, rtol=1e-5)
