"""Test splits of benchmarks have -1 in place of labels: no task trains on it or scores it."""

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.tasks.glue import GLUE_TASKS
from bert_jax.tasks.labels import NumericLabels, check_labels_known
from bert_jax.tasks.superglue import SUPERGLUE_TASKS
from bert_jax.tasks.texts import TextColumns, read_texts
from tests.refusals import refused
from tests.tasks.files import put
from tests.tasks.opened import WORDS, opened, parquet
from tests.tasks.test_superglue import QUESTIONS
from tests.tasks.test_superglue import ROWS as OF_SUPERGLUE

CLASSES = {'_type': 'ClassLabel', 'names': ['no', 'yes']}
CHOICES = {'sent1': 'the leader', 'sent2': 'was', **{f'ending{i}': WORDS[i] for i in range(4)},
           'label': 1}
OF_SWAG = CHOICES | {'startphrase': 'the leader was', 'choices': WORDS[:4], 'answer': 1}
PAIR = {'text': 'the leader', 'text_pair': 'john smith'}
SECRET = 'stands for a secret label'


def rows_of_glue(task):
    """Rows of the hub's data set, with the label 1."""
    fields = task.fields or task.texts
    return [{field: f'{word} {field}' for field in fields} | {'label': 1, 'idx': i}
            for i, word in enumerate(WORDS)]


def hidden(row):
    """A row without what a test split keeps secret."""
    secret = {'answers': [], 'answer': -1, 'label': -1}
    if isinstance(row.get('answer'), str):  # of MultiRC: a text
        del secret['answer']
    return row | {name: value for name, value in secret.items() if name in row}


def repeated(row):
    """Rows like one; the idx of each, if it has parts, is its own."""
    rows = []
    for number in range(8):
        idx = row.get('idx', {})
        rows.append(row | {'idx': {part: number for part in idx} if idx else number})
    return rows


# By entry: task, rows with labels, and fields of the config.
ENTRIES = {
    **{name: (name, rows_of_glue(task), {}) for name, task in GLUE_TASKS.items() if name != 'ax'},
    **{name: (f'superglue_{name}', repeated(row | {'label': label}), {})
       for name, (row, _, label) in OF_SUPERGLUE.items()},
    **{name: (f'superglue_{name}', repeated(rows[0]), {})
       for name, (_, rows, *_) in QUESTIONS.items()},
    'swag': ('swag', repeated(OF_SWAG), {}),
    'own choices': ('multiple_choice', repeated(CHOICES), {
        'text': 'sent1', 'choices': 'ending0,ending1', 'label': 'label'}),
    'own labels': ('classification', [
        {'text': word, 'label': i % 2} for i, word in enumerate(WORDS)], {}),
    'own numbers': ('regression', [
        {'text': word, 'label': i} for i, word in enumerate(WORDS)], {}),
    'scored pairs': ('retrieval', [
        PAIR | {'text': word, 'label': i} for i, word in enumerate(WORDS)], {'label': 'label'}),
    'gains': ('reranking', [
        PAIR | {'text': word, 'label': i % 2} for i, word in enumerate(WORDS)], {'label': 'label'}),
}


def written(path, rows, is_parquet):
    """A file of rows: JSON lines, or Parquet with the names of classes."""
    if not is_parquet:
        return put(path.parent, f'{path.name}.jsonl', rows)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return parquet(f'{path}.parquet', {'label': CLASSES}, **columns)


def test_every_benchmark_has_an_entry():
    assert ENTRIES.keys() >= (GLUE_TASKS.keys() | SUPERGLUE_TASKS.keys()) - {'ax'}


@pytest.mark.parametrize('entry', ENTRIES)
@pytest.mark.parametrize('split', ['train', 'test'])
@pytest.mark.parametrize('is_parquet', [False, True])
def test_a_split_with_secret_labels_is_refused(vocabulary, tmp_path, entry, split, is_parquet):
    task, rows, fields = ENTRIES[entry]
    if is_parquet:
        pytest.importorskip('pyarrow')
    files = {}
    for name in ('train', 'test'):
        of_split = list(map(hidden, rows)) if name == split else rows
        files[name] = written(tmp_path / name, of_split, is_parquet)
    word = 'which test splits do not have' if entry == 'record' else SECRET
    if entry == 'own labels' and split == 'train' and not is_parquet:
        word = 'has one label, -1'
    with refused(word, files[split]):
        opened(task, files['train'], tmp_path, eval_source=files['test'], **fields)


@pytest.mark.parametrize('number', [1, 4])
def test_a_few_scores_may_all_be_of_that_number(vocabulary, tmp_path, number):
    """Such as sentiments from -1 to 1."""
    rows = [{'text': word, 'label': -1} for word in WORDS[:number]]
    path = put(tmp_path, 'rows.jsonl', rows)
    columns = TextColumns(texts=('text',), label='label')
    assert read_texts(path, columns, NumericLabels()).labels.tolist() == [-1] * number


@pytest.mark.parametrize(('there', 'is_said'), [
    (['-1'], True), (['-1', 'yes'], False), (['no', 'yes'], False), ([], False)])
def test_labels_are_called_secret_if_there_is_no_other(there, is_said):
    with pytest.raises(InputError, match='none is the same') as error:
        check_labels_known('dev.tsv', there, ['bad', 'good'])
    assert (SECRET in str(error.value)) == is_said
