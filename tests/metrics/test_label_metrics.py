"""GLUE's metrics equal values worked out by hand, scikit-learn's and SciPy's."""

import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bert_jax.metrics.labels import (
    GLUE_METRICS,
    METRICS,
    accuracy,
    check_metrics,
    f1,
    matthews,
    pearson,
    spearman,
)
from bert_jax.runtime.errors import InputError

# 2 true positives, 1 false positive, 1 false negative, 4 true negatives.
PREDICTIONS = np.array([1, 1, 1, 0, 0, 0, 0, 0])
LABELS = np.array([1, 1, 0, 1, 0, 0, 0, 0])


def both(elements, dtype):
    """Two arrays of one length."""
    return st.integers(2, 40).flatmap(lambda n: st.tuples(
        hnp.arrays(dtype, n, elements=elements), hnp.arrays(dtype, n, elements=elements)
    ))


@pytest.mark.parametrize('metric, want', [
    (accuracy, 6 / 8),
    (f1, 2 / 3),
    (matthews, (2 * 4 - 1 * 1) / np.sqrt(3 * 3 * 5 * 5)),
])
def test_counted_by_hand(metric, want):
    assert metric(PREDICTIONS, LABELS) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize('metric, predictions, labels, want', [
    (pearson, [1, 2, 3], [2, 4, 6], 1.0),
    (pearson, [1, 2, 3], [3, 2, 1], -1.0),
    (pearson, [1, 2, 3, 4], [1, 3, 2, 4], 0.8),
    (spearman, [1, 2, 3], [1, 10, 11], 1.0),
    (spearman, [1, 2, 2, 3], [1, 2, 3, 4], 4.5 / np.sqrt(4.5 * 5)),  # ranks 1, 2.5, 2.5, 4
])
def test_correlations_by_hand(metric, predictions, labels, want):
    assert metric(np.array(predictions), np.array(labels)) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize('metric, predictions, labels', [
    (f1, [0, 0], [0, 0]),
    (f1, [0, 0], [1, 1]),
    (matthews, [1, 1, 1], [1, 0, 1]),  # a model that always says the same
    (matthews, [1, 0, 1], [1, 1, 1]),
    (matthews, [1, 1], [1, 1]),
    (pearson, [2.0, 2.0, 2.0], [1.0, 2.0, 3.0]),
    (spearman, [2.0, 2.0, 2.0], [1.0, 2.0, 3.0]),
    (pearson, [np.nan, 1.0, 2.0], [1.0, 2.0, 3.0]),
    (spearman, [np.inf, 1.0, 2.0], [1.0, 2.0, 3.0]),
])
def test_what_is_undefined_is_zero(metric, predictions, labels):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert metric(np.array(predictions), np.array(labels)) == 0.0


@pytest.mark.filterwarnings('ignore:A single label')
@settings(deadline=None, max_examples=50)
@given(both(st.integers(0, 1), np.int32))
def test_two_labels_as_scikit_learn(arrays):
    sklearn = pytest.importorskip('sklearn.metrics', reason='compared with scikit-learn')
    predictions, labels = arrays
    assert accuracy(predictions, labels) == sklearn.accuracy_score(labels, predictions)
    assert f1(predictions, labels) == pytest.approx(
        sklearn.f1_score(labels, predictions, zero_division=0), abs=1e-12
    )
    assert matthews(predictions, labels) == pytest.approx(
        sklearn.matthews_corrcoef(labels, predictions), abs=1e-12
    )


@pytest.mark.filterwarnings('ignore:A single label')
@settings(deadline=None, max_examples=50)
@given(both(st.integers(0, 3), np.int32))
def test_matthews_of_more_labels_as_scikit_learn(arrays):
    sklearn = pytest.importorskip('sklearn.metrics', reason='compared with scikit-learn')
    predictions, labels = arrays
    assert matthews(predictions, labels) == pytest.approx(
        sklearn.matthews_corrcoef(labels, predictions), abs=1e-12
    )


# Few distinct values: ties are what ranks go wrong on.
@settings(deadline=None, max_examples=50)
@given(both(st.one_of(st.integers(0, 5).map(float), st.floats(-5, 5, width=32)), np.float32))
def test_correlations_as_scipy(arrays):
    stats = pytest.importorskip('scipy.stats', reason='compared with SciPy')
    predictions, labels = arrays
    # Nearly constant values: SciPy warns that its own result is inexact.
    assume(np.std(predictions) > 1e-3 and np.std(labels) > 1e-3)
    x, y = predictions.astype(np.float64), labels.astype(np.float64)
    assert pearson(predictions, labels) == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-9)
    assert spearman(predictions, labels) == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-9)


def test_matthews_of_many_examples():
    """Products of counts outgrow 32 bits."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400_000).astype(np.int32)
    predictions = np.where(rng.random(400_000) < 0.1, 1 - labels, labels)
    assert matthews(predictions, labels) == pytest.approx(
        np.corrcoef(predictions, labels)[0, 1], abs=1e-9
    )


@pytest.mark.parametrize('task, want', [
    ('cola', {'matthews'}),
    ('sst2', {'accuracy'}),
    ('mrpc', {'accuracy', 'f1'}),
    ('qqp', {'accuracy', 'f1'}),
    ('stsb', {'pearson', 'spearman'}),
    ('mnli', {'accuracy'}),
    ('ax', {'matthews'}),
])
def test_metrics_of_tasks(task, want):
    assert set(GLUE_METRICS[task]) == want
    scores = [METRICS[name].compute(PREDICTIONS, LABELS) for name in want]
    assert all(type(score) is float and -1 <= score <= 1 for score in scores)


def test_main_metrics_are_those_of_the_paper():
    assert GLUE_METRICS['mrpc'][0] == GLUE_METRICS['qqp'][0] == 'f1'
    assert GLUE_METRICS['stsb'][0] == 'spearman'


# What scikit-learn and SciPy call each metric, by kind of head and number of labels.
HEADS = [('classification', 2), ('classification', 3), ('classification', 7), ('multi_label', 2),
         ('multi_label', 4), ('token_classification', 5), ('regression', 0)]


def theirs(name, head, gold, predicted):
    from scipy import stats
    from sklearn import metrics

    if head == 'regression':
        return getattr(stats, f'{name}r')(predicted, gold).statistic
    if name in ('accuracy', 'matthews'):
        function = metrics.accuracy_score if name == 'accuracy' else metrics.matthews_corrcoef
        return function(gold, predicted)
    average = {'f1': 'binary', 'macro_f1': 'macro', 'micro_f1': 'micro'}[name]
    return metrics.f1_score(gold, predicted, average=average, zero_division=0)


@pytest.mark.parametrize(('head', 'num_labels'), HEADS)
@pytest.mark.parametrize('name', METRICS)
def test_a_metric_is_what_scikit_learn_calls_so_or_refused(name, head, num_labels):
    pytest.importorskip('sklearn')
    try:
        check_metrics([name], head, num_labels or None, 'config.x.metrics')
    except InputError as error:
        assert 'choose from ' in str(error) and str(error).startswith('config.x.metrics=')
        offered = str(error).rpartition('choose from ')[2].split(', ')
        check_metrics(offered, head, num_labels or None)
        return
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(3, 60))
        if head == 'regression':
            gold, predicted = rng.normal(size=(2, n)).round(1)
        elif head == 'multi_label':
            gold, predicted = (rng.random((2, n, num_labels)) < rng.random()).astype(int)
        else:
            gold, predicted = rng.integers(0, num_labels, (2, n))
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            wanted = theirs(name, head, gold, predicted)
        if np.isnan(wanted):  # constant: ours is 0, so that runs can be compared
            wanted = 0
        assert METRICS[name].compute(predicted, gold) == pytest.approx(wanted, abs=1e-9)
