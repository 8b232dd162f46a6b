"""The probe of pre-training: its logistic regression, and the texts that it takes."""

import types

import numpy as np
import pytest

from bert_jax.tasks.pretrain import Probe, fit
from tests.tasks.test_packing_changes_nothing import CONFIG


def blobs(num, seed=0, labels=3, width=20):
    """Texts' features, some of which tell the label."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, labels, num).astype(np.int32)
    x = rng.normal(0, 1, (num, width))
    x[np.arange(num), y] += 2.0
    return 100 + 7 * x, y


def test_it_is_logistic_regression():
    linear_model = pytest.importorskip(
        'sklearn.linear_model', reason='the extra [parity] is not installed')
    (x, y), (x_new, y_new) = blobs(300), blobs(500, seed=1)
    z, z_new = ((a - x.mean(0)) / x.std(0) for a in (x, x_new))
    # scikit-learn weighs the losses' sum, and here it is the ridge that grows with the texts.
    theirs = linear_model.LogisticRegression(C=1 / (0.01 * len(x)), tol=1e-8).fit(z, y)
    ours = fit(x, y)(x_new)
    assert np.mean(ours == theirs.predict(z_new)) > 0.995
    assert np.mean(ours == y_new) > 0.75


def test_features_that_say_nothing():
    x, y = blobs(400, labels=2)
    shuffled = np.random.default_rng(1).permutation(y)
    assert np.mean(fit(x[:200], shuffled[:200])(x[200:]) == shuffled[200:]) < 0.6
    fit(np.ones((10, 4)), y[:10])(np.ones((1, 4)))  # no deviation at all


@pytest.mark.parametrize('told', [True, False])
def test_texts_are_scored_by_others(told):
    """More features than texts: any labels can be fitted, and only true ones carry over."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 120).astype(np.int32)
    x = rng.normal(0, 1, (120, 200))
    x[:, :20] += 3 * told * labels[:, None]
    engine = types.SimpleNamespace(outputs=lambda function, params, units: {'vectors': x})
    score = Probe(None, labels).scorer(engine, CONFIG)
    found = score(None)['probe_accuracy']
    assert found > 0.9 if told else found < 0.7
    assert np.mean(fit(x, labels)(x) == labels) == 1.0
