"""The config files that docs/tasks.md shows work as they stand, and score what the page says."""

import re
from unittest import mock

import numpy as np
import pytest

from bert_jax.config.command_line import load_config
from bert_jax.tasks.metrics import METRICS
from bert_jax.tasks.opening import TASKS
from bert_jax.validation import check_used, validate
from tests.conftest import ROOT
from tests.opening import open_task
from tests.tasks.files import put

WORDS = ['the', 'leader', 'was', 'john', 'smith', 'born', 'in', 'antwerp', 'who', 'when']
SHOWN = [code for code in re.findall(
    r'```python\n(.*?)```', (ROOT / 'docs/tasks.md').read_text(encoding='utf-8'), re.DOTALL)
    if 'def get_config' in code]


@pytest.fixture(autouse=True)
def own_tasks_and_metrics():
    """Removes what the config files add, after the test."""
    with mock.patch.dict(TASKS), mock.patch.dict(METRICS):
        yield


def opened(code, folder, **data):
    """The task of a config file on a table of 990 rows, each with other texts."""
    put(folder, 'vocab.txt', '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]))
    rows = [' '.join(WORDS[int(digit)] for digit in f'{i:03}') for i in range(990)]
    source = put(folder, 'own.csv', ['text,title,body,label', *(
        f'{row},{row},the body,{"no" if i % 3 else "yes"}' for i, row in enumerate(rows))])
    config = load_config(put(folder, 'mine.py', code))
    config.model.name, config.init_checkpoint = 'tiny', ''
    config.data.update({'source': source, 'vocab_file': str(folder / 'vocab.txt'),
                        'lowercase': True, 'max_seq_length': 32} | data)
    check_used(config)
    validate(config)
    return open_task(config)


def test_the_page_shows_a_metric_and_a_task():
    assert len(SHOWN) == 2


@pytest.mark.parametrize('code', SHOWN)
def test_a_tenth_of_the_rows_is_scored(code, tmp_path):
    task = opened(code, tmp_path)
    (dev,) = task.evaluated
    assert 0.07 < len(dev.units) / 990 < 0.13
    assert len(task.train) + len(dev.units) == 990
    truth = dev.units.labels['labels']
    scores, _ = dev.results({'logits': np.eye(2)[truth]})
    assert scores[task.metric] == 1
    if task.metric == 'f2':  # of answering yes always: precision p, recall 1
        share = np.mean(truth == 1)
        scores, _ = dev.results({'logits': np.eye(2)[np.ones_like(truth)]})
        assert scores['f2'] == pytest.approx(5 * share / (4 * share + 1))


def test_a_task_of_ones_own_may_read_any_field_of_downstream_tasks(tmp_path):
    task = opened(SHOWN[1], tmp_path, held_out=0.3)
    assert 0.25 < len(task.evaluated[0].units) / 990 < 0.35
