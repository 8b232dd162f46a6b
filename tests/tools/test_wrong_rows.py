"""tools.look RUN --errors: what it says of the tables that tasks on texts write."""

import json

import numpy as np
import pytest

from bert_jax.tasks.texts import TextExamples, TextHead, TextSet
from bert_jax.tools import look

LONG = 'one two three four five six seven eight nine ten'
ONE_LABEL = [  # text, label, probability of 'good'
    ('a fine film', 'good', 0.9),
    ('dull', 'bad', 0.75),
    ('A  fine, film!', 'bad', 0.8),
    (f'{LONG} or more', 'good', 0.1),
    (f'more or {LONG}', 'good', 0.6),
    (f'{LONG} or', 'bad', 0.01),
    ('=1+1', 'good', 0.7),
    ('a fine play', 'bad', 0.2),
]


class Told:
    """A head whose logits are given, with windows that are the texts."""

    def __init__(self, name, labels, texts, truth, logits):
        self.head = TextHead(name, labels, ['accuracy' if labels else 'pearson'])
        self.texts, self.truth, self.logits = texts, truth, np.float32(logits)

    def write(self, folder, split='dev', id_column='', ids=None):
        ids = ids or [str(i) for i in range(len(self.texts))]
        examples = TextExamples([self.texts], self.truth, ids, 'own.csv')
        windows = type('Windows', (), {'combined_logits': lambda _, kind, logits: logits})()
        text_set = TextSet(split, examples, windows, self.head, id_column)
        _, files = text_set.results({'logits': self.logits})
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content)


def one_label(rows=ONE_LABEL):
    texts, labels, shares = zip(*rows, strict=True)
    truth = np.array([['bad', 'good'].index(label) for label in labels])
    logits = [[0, np.log(share / (1 - share))] for share in shares]
    return Told('classification', ['bad', 'good'], texts, truth, logits)


def said_of(capsys, folder, *flags):
    look.main(['look', str(folder), '--errors', *flags])
    return capsys.readouterr().out


def record_of(capsys, folder, *flags):
    return json.loads(said_of(capsys, folder, '--json', *flags))


def test_the_wrongest_rows_come_first_with_their_texts(tmp_path, capsys):
    one_label().write(tmp_path)
    found = record_of(capsys, tmp_path)
    assert (found['rows'], found['wrong']) == (8, 3)
    assert [row['id'] for row in found['wrongest']] == ['3', '2', '1']
    assert found['wrongest'][0]['text'] == f'{LONG} or more'
    assert found['wrongest'][0]['probability'] == pytest.approx(0.1)
    assert found['wrongest'][1]['probabilities'] == {'bad': 0.2, 'good': 0.8}
    assert found['confusions'] == [
        {'label': 'bad', 'prediction': 'good', 'rows': 2},
        {'label': 'good', 'prediction': 'bad', 'rows': 1}]


def test_nearly_equal_texts_with_different_labels_are_pairs(tmp_path, capsys):
    one_label().write(tmp_path)
    pairs = record_of(capsys, tmp_path)['contradictions']
    # Marks and case do not count; of many words their order and one of them do not.
    assert [[row['id'] for row in pair] for pair in pairs] == [['0', '2'], ['3', '5']]


def test_wrong_rows_by_length(tmp_path, capsys):
    one_label().write(tmp_path)
    groups = record_of(capsys, tmp_path)['by_length']
    assert [group['name'] for group in groups] == ['4 to 4', '11 to 11', '14 to 51', '56 to 56']
    assert [group['rows'] for group in groups] == [2, 2, 2, 2]
    assert [group['wrong'] for group in groups] == [0.5, 0, 0.5, 0.5]


def test_tables_on_the_terminal(tmp_path, capsys):
    one_label().write(tmp_path)
    lines = said_of(capsys, tmp_path, '--most=2').splitlines()
    assert lines[0].startswith('3 of 8 rows wrong (37.5%); those whose label has the least')
    assert lines[1].split() == ['row', 'label', 'probability', 'prediction', 'text']
    assert lines[2].split()[:4] == ['3', 'good', '0.1', 'bad']
    assert lines[3].split()[:4] == ['2', 'bad', '0.2', 'good']
    assert lines[4] == 'what is taken for what:'
    assert lines[8].startswith('2 pairs of nearly equal texts with different labels')


def test_rows_with_any_number_of_labels(tmp_path, capsys):
    truth = np.float32([[1, 1], [0, 0], [1, 0]])
    several = Told('multi_label', ['a,b', 'c'], ['x', 'y', 'z'], truth, [[2, 2], [-1, 3], [1, 1]])
    several.write(tmp_path)
    found = record_of(capsys, tmp_path)
    assert [row['id'] for row in found['wrongest']] == ['1', '2']
    sigmoid = 1 / (1 + np.exp(-np.array([1, -3])))
    assert found['wrongest'][0]['probability'] == pytest.approx(float(sigmoid.prod()), rel=1e-4)
    assert found['confusions'][0] == {'label': '[]', 'prediction': '["c"]', 'rows': 1}


def test_numbers_have_distances(tmp_path, capsys):
    texts = ['one', 'two', 'Two!', 'three']
    numbers = Told('regression', [], texts, np.float32([1, 2, 9, 3]), [[1.5], [2], [5], [3.25]])
    numbers.write(tmp_path)
    found = record_of(capsys, tmp_path)
    assert [row['distance'] for row in found['wrongest']] == pytest.approx([4, 0.5, 0.25, 0])
    assert [[row['id'] for row in pair] for pair in found['contradictions']] == [['1', '2']]
    assert 'those whose numbers are missed by most' in said_of(capsys, tmp_path)


def test_a_label_that_the_model_lacks_has_no_probability(tmp_path, capsys):
    told = one_label(ONE_LABEL[:2])
    told.truth[0] = 2
    told.write(tmp_path)
    worst = record_of(capsys, tmp_path)['wrongest'][0]
    assert worst['label'] == '(not in training)'
    assert worst['probability'] == pytest.approx(0, abs=1e-200)


def test_sets_are_compared(tmp_path, capsys):
    one_label(ONE_LABEL[:2]).write(tmp_path)
    one_label(ONE_LABEL[2:]).write(tmp_path, split='dev_mm')
    assert record_of(capsys, tmp_path)['by_set'] == [
        {'name': 'dev', 'rows': 2, 'wrong': 0.5}, {'name': 'dev_mm', 'rows': 6, 'wrong': 2 / 6}]


@pytest.mark.parametrize('id_column', ['', 'key'])
def test_a_column_of_the_scored_file_makes_groups(id_column, tmp_path, capsys):
    source = tmp_path / 'own.csv'
    keys = [f'k{i}' for i in range(8)]
    source.write_text('key,text,from\n' + ''.join(
        f'{key},x,{["web", "book"][key > "k2"]}\n' for key in keys))
    ids = keys if id_column else None
    one_label().write(tmp_path / 'evaluated', id_column=id_column, ids=ids)
    (tmp_path / 'evaluated' / 'result.json').write_text(json.dumps({'source': str(source)}))
    assert record_of(capsys, tmp_path / 'evaluated', '--by=from')['by_column'] == [
        {'name': 'web', 'rows': 3, 'wrong': 2 / 3}, {'name': 'book', 'rows': 5, 'wrong': 0.2}]


def refused(capsys, folder, *flags):
    with pytest.raises(SystemExit) as stopped:
        look.main(['look', str(folder), '--errors', *flags])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(('source', 'says'), [
    ('text,from\n' + 8 * 'x,web\n', "has no column 'by'"),
    ('text,by\n' + 7 * 'x,web\n', 'has no row 7, which was scored'),
    ('index,by\n' + ''.join(f'{i},web\n' for i in range(8)), "has a column 'index'"),
    (None, 'is none that is here'),
])
def test_a_column_that_cannot_be_matched_is_refused(source, says, tmp_path, capsys):
    file = tmp_path / 'own.csv'
    if source is not None:
        file.write_text(source)
    one_label().write(tmp_path / 'evaluated')
    (tmp_path / 'evaluated' / 'result.json').write_text(json.dumps({'source': str(file)}))
    assert says in refused(capsys, tmp_path / 'evaluated', '--by=by')


@pytest.mark.parametrize(('content', 'says'), [
    (None, 'holds no scored rows'),
    ('', 'is not as bert_jax wrote it'),
    ('index,text,label,prediction,probability of a\n0,x,a\n', 'is not as bert_jax wrote it'),
    ('index,text,label,prediction,probability of a\n0,x,a,a,much\n', "'much'"),
    ('index,text,label,prediction\n0,"x,a,1\n', 'unexpected end of data'),
    ('index,text,label,prediction\n0,x,good,1\n', "'good'"),
    ('index,text,label,prediction,"probability of a, b",probability of c\n0,x,c,c,1,1\n',
     'is not as bert_jax wrote it'),
])
def test_a_folder_without_scored_rows_or_with_damaged_ones_is_refused(
        content, says, tmp_path, capsys):
    if content is not None:
        (tmp_path / 'dev_examples.csv').write_text(content)
    assert says in refused(capsys, tmp_path)
