"""SuperGLUE's tasks, from files with the benchmark's fields and from numbered labels."""

import json

import pytest

from bert_jax.tasks.superglue import SUPERGLUE_TASKS, read_superglue
from tests.refusals import refused

# A row of each task, its texts here, and the id of its label.
ROWS = {
    'boolq': ({'question': 'is it', 'passage': 'It is.', 'label': True}, ['is it', 'It is.'], 1),
    'cb': ({'premise': 'a', 'hypothesis': 'b', 'label': 'neutral'}, ['a', 'b'], 2),
    'copa': ({'premise': 'He fell.', 'question': 'cause', 'choice1': 'Ice.', 'choice2': 'Tea.',
              'label': 0}, ['He fell. What was the cause of this?', 'Ice.', 'Tea.'], 0),
    'rte': ({'premise': 'a', 'hypothesis': 'b', 'label': 'not_entailment'}, ['a', 'b'], 1),
    'wic': ({'word': 'bank', 'sentence1': 'A bank.', 'sentence2': 'Two banks.', 'start1': 2,
             'label': False}, ['bank: A bank.', 'Two banks.'], 0),
}


def test_every_task_has_a_row():
    assert ROWS.keys() == SUPERGLUE_TASKS.keys()


@pytest.mark.parametrize('name', ROWS)
@pytest.mark.parametrize('is_numbered', [False, True])
def test_rows_are_read(tmp_path, name, is_numbered):
    row, texts, label = ROWS[name]
    file = tmp_path / 'train.jsonl'
    file.write_text(json.dumps({**row, 'idx': 7, **({'label': label} if is_numbered else {})}))
    found = read_superglue(name, str(file))
    assert [column[0] for column in found.texts] == texts
    assert found.labels.tolist() == [label]
    assert found.ids == ['7']


@pytest.mark.parametrize(('name', 'change', 'words'), [
    ('cb', {'label': 'maybe'}, ["unknown label 'maybe'", 'entailment']),
    ('wic', {'label': 2}, ['label 2']),
    ('copa', {'question': 'why'}, ["'why' is neither cause nor effect"]),
])
def test_what_no_task_has_is_refused(tmp_path, name, change, words):
    file = tmp_path / 'train.jsonl'
    file.write_text(json.dumps({**ROWS[name][0], 'idx': 0, **change}))
    with refused(*words):
        read_superglue(name, str(file), max_malformed=0)
