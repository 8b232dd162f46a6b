"""Metrics equal scikit-learn's and SciPy's; what is not defined for a head is refused."""

import numpy as np
import pytest

from bert_jax.heads.classification import Classification
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.metrics import METRICS, check_metrics


@pytest.mark.parametrize('metric, predictions, labels, want', [
    ('micro_f1', [1, 1, 2], [0, 1, 1], 1 / 3), ('pearson', [1, 2, 3], [3, 2, 1], -1.0),
    ('spearman', [1, 2, 2, 3], [1, 2, 3, 4], 4.5 / np.sqrt(4.5 * 5)),  # ranks 1, 2.5, 2.5, 4
    # Undefined: zero.
    ('f1', [0, 0], [0, 0], 0), ('f1', [0, 0], [1, 1], 0),
    ('matthews', [1, 1, 1], [1, 0, 1], 0),  # a model that always says the same
    ('matthews', [1, 0, 1], [1, 1, 1], 0), ('matthews', [1, 1], [1, 1], 0),
    *((metric, predictions, [1.0, 2.0, 3.0], 0) for metric in ('pearson', 'spearman')
      for predictions in ([2.0, 2.0, 2.0], [np.nan, 1.0, 2.0], [np.inf, 1.0, 2.0])),
])
@pytest.mark.filterwarnings('error')
def test_by_hand(metric, predictions, labels, want):
    found = METRICS[metric].compute(np.array(predictions), np.array(labels))
    assert found == pytest.approx(want, abs=1e-12) and type(found) is float


def reference(name):
    """The function of scikit-learn or SciPy, of labels and predictions."""
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
    if head == 'regression':  # few values: ties are what ranks go wrong on
        x, y = (rng.integers(0, 6, n) + rng.choice([0, 0, rng.random()], n) for _ in 'xy')
        return np.append(x, [0, 9]), np.append(y, [9, 0])  # neither side is constant
    if head == 'multi_label':
        return tuple((rng.random((n, num_classes)) < rng.random()).astype(np.float32)
                     for _ in 'xy')
    return tuple(rng.integers(0, num_classes, n).astype(np.int32) for _ in 'xy')


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(('name', 'head', 'num_classes'), [
    (name, head, num_classes) for name, metric in METRICS.items()
    for head, numbers in (('classification', (2, 3, 7)), ('multi_label', (2, 3, 7)),
                          ('regression', (0,)))
    for num_classes in numbers
    if head in metric.heads and metric.labels in (None, num_classes)])
def test_200_random_cases_as_scikit_learn(name, head, num_classes):
    theirs, rng = reference(name), np.random.default_rng(0)
    for case in range(200):
        predictions, labels = random_case(rng, head, num_classes)
        ours = METRICS[name].compute(predictions, labels)
        assert ours == pytest.approx(theirs(labels, predictions), abs=1e-9), case


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
def test_what_does_not_fit_is_refused_with_what_does(name, head, num_labels, fit):
    says = f"^config.x.metrics='{name}': '{name}' is no metric .*: choose from {fit}"
    with pytest.raises(InputError, match=says + '$'):
        check_metrics([name], head, num_labels, 'config.x.metrics')
    assert check_metrics(fit.split(', '), head, num_labels) == tuple(fit.split(', '))


@pytest.mark.parametrize('options', [
    {'label_smoothing': 0.1}, {'weight': (0.5, 2.0, 1.0)}, {},
], ids=['label smoothing', 'class weights', 'plain'])
def test_losses_are_torch_s(options):
    torch = pytest.importorskip('torch')
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 2, 3)).astype(np.float32)
    labels = rng.integers(0, 3, (4, 2))
    theirs = options | ({'weight': torch.tensor(options['weight'])} if 'weight' in options else {})
    wanted = torch.nn.functional.cross_entropy(
        torch.tensor(logits).reshape(-1, 3), torch.tensor(labels).reshape(-1), reduction='none',
        **theirs).reshape(4, 2)
    bert = ModelConfig(
        vocab_size=8, num_layers=1, hidden_size=8, num_heads=1, intermediate_size=8)
    head = Classification(
        bert, 3, options.get('weight', ()), options.get('label_smoothing', 0.0))
    losses, _ = head.losses({'logits': logits}, {'labels': labels})
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
