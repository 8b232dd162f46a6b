"""SuperGLUE's tasks, from files with the benchmark's fields and from numbered labels."""

import json
import random

import pytest

from bert_jax.tasks.superglue import SUPERGLUE_TASKS, read_superglue
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from tests.in_process import run
from tests.refusals import refused
from tests.tiny_runs import WORDS, sentence

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


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'metrics'), [
    ('cb', {'eval/accuracy', 'eval/macro_f1'}), ('copa', {'eval/accuracy'})])
def test_a_run_is_trained_on_train_and_scored_on_val(tmp_path, name, metrics):
    write_vocab(tmp_path / 'vocab.txt', (*SPECIAL_TOKENS, *WORDS))
    rng = random.Random(0)
    folder = tmp_path / SUPERGLUE_TASKS[name].folder
    folder.mkdir()
    for split, count in (('train', 24), ('val', 9)):
        lines = []
        for number in range(count):
            row = {field: sentence(rng) for field in SUPERGLUE_TASKS[name].fields}
            row |= {'question': 'effect', 'idx': number, 'label': number % 2}
            lines.append(json.dumps(row))
        (folder / f'{split}.jsonl').write_text('\n'.join(lines))
    ended = run(
        f'superglue.py:{name}', f'--config.data.source={tmp_path}', '--config.init_checkpoint=',
        f'--config.data.vocab_file={tmp_path}/vocab.txt', '--config.data.lowercase=True',
        '--config.model.name=L-1_H-32_A-2', '--config.data.max_seq_length=64',
        '--config.train.steps=2', workdir=tmp_path / 'run')
    assert metrics <= ended.result.keys()
    assert '24 training examples' in ended.said
    assert len((tmp_path / 'run' / 'dev_predictions.tsv').read_text().splitlines()) == 1 + 9
