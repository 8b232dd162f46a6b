"""Runs as functions: what they return is what the commands print."""

import json
from unittest import mock

import pytest

import bert_jax
from bert_jax.config import finetuning_config
from bert_jax.watch import metrics_log
from tests.conftest import RECORDED
from tests.numpy_kernels import kernels_of_numpy  # noqa: F401
from tests.shared_steps import shared_steps
from tests.tiny_runs import one_device, write_table

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('kernels_of_numpy')]


@pytest.fixture
def changes(tmp_path):
    """Fields of a run of two steps on a few texts of one-letter words."""
    rows = [('a b c', 'one'), ('c b', 'two')] * 8
    write_table(tmp_path / 'train.tsv', ('text', 'label'), *rows)
    write_table(tmp_path / 'dev.tsv', ('text', 'label'), *rows[:6])
    return {
        'init_checkpoint': RECORDED / 'base', 'data.source': tmp_path / 'train.tsv',
        'data.eval_source': tmp_path / 'dev.tsv', 'data.max_seq_length': 8,
        'data.dir': tmp_path / 'data', 'train.steps': 2, 'train.batch_size': 8,
        'train.eval_every': 0, 'train.save_every': 0}


def test_a_run_and_its_scores(changes, tmp_path, capsys):
    no_curves = mock.patch.object(metrics_log, 'curves', lambda *_: None)  # they take a second
    with one_device(), shared_steps(), no_curves:
        result = bert_jax.train_run('classification', tmp_path / 'run', changes)
        scores = bert_jax.evaluate_run(tmp_path / 'run', tmp_path / 'scores')
        again = bert_jax.train_run('classification', tmp_path / 'run', changes)
    assert result['step'] == 2
    assert scores['eval/accuracy'] == result['eval/accuracy'] == again['eval/accuracy']
    written = json.loads((tmp_path / 'scores' / 'result.json').read_text())
    assert written['eval/accuracy'] == scores['eval/accuracy']
    bert = bert_jax.from_pretrained(tmp_path / 'run')
    assert (bert.module.head, bert.labels) == ('classification', ('one', 'two'))


def test_mistakes_are_raised_and_a_config_stays_as_it_is(changes, tmp_path):
    config = finetuning_config('classification')
    before = config.to_json_best_effort()
    for mistake, message in (
            ({'data.sorce': 'x'}, 'data.sorce is not a field'),
            ({'data.source': 'missing.csv'}, 'missing.csv'),
            ({'data.source': None}, 'data.source=None is no value'),
            ({'data': {}}, 'config.data is not a field')):
        with pytest.raises(bert_jax.InputError, match=message):
            bert_jax.train_run(config, tmp_path / 'run', {**changes, **mistake})
    assert config.to_json_best_effort() == before
    with pytest.raises(bert_jax.InputError, match='does not say its task'):
        bert_jax.evaluate_run(RECORDED / 'base', tmp_path / 'scores')
    with pytest.raises(bert_jax.InputError, match="bse does not exist: did you mean '.*/base'"):
        bert_jax.evaluate_run(RECORDED / 'bse', tmp_path / 'scores')
    with pytest.raises(bert_jax.InputError, match='names no run'):
        bert_jax.evaluate_run([], tmp_path / 'scores')
    with pytest.raises(bert_jax.InputError, match='must map fields to values'):
        bert_jax.train_run(config, tmp_path / 'run', ['train.steps=1'])
