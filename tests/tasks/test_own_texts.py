"""Classification and regression of the user's texts: labels, weights, windows, files."""

import csv

import numpy as np
import pytest

from bert_jax.data import table
from bert_jax.runtime.errors import InputError
from bert_jax.tasks import texts
from bert_jax.tasks.labelled import ScoredModel
from bert_jax.tasks.opening import open_task
from bert_jax.tasks.own_texts import class_weights
from tests.tasks.files import put
from tests.tasks.opened import WORDS, config_of, opened, parquet

pytestmark = pytest.mark.usefixtures('vocabulary')

CSV = ['text,label', *(f'"{WORDS[i % 10]}, {WORDS[i % 7]}",{("good", "bad", "so so")[i % 3]}'
                       for i in range(60))]


def test_labels_come_from_the_data_and_a_share_is_held_out(tmp_path, capsys):
    source = put(tmp_path, 'own.csv', CSV)
    task = opened('classification', source, tmp_path, held_out=0.25)
    assert task.labels == ('bad', 'good', 'so so') and task.head == 'classification'
    assert task.metric == 'accuracy' and task.arguments == {'num_outputs': 3}
    assert len(task.train) + len(task.evaluated[0].units) == 60
    said = capsys.readouterr().out
    assert 'labels: bad' in said and 'held out of training' in said and 'are cut at' in said
    assert f'scored: {len(task.evaluated[0].units)} of 60 examples of {source} (' in said


RECORDED_NAMES = {'_type': 'ClassLabel', 'names': ['yes', 'maybe', 'no']}


@pytest.mark.parametrize(('feature', 'multi_label', 'label', 'ids'), [
    (RECORDED_NAMES, False, [2, 0, 2, -1], [2, 0, 2]),  # -1: unlabelled
    ({'_type': 'List', 'feature': RECORDED_NAMES}, True, [[2, 0], [], [1]],
     [[1, 0, 1], [0, 0, 0], [0, 1, 0]]),
])
def test_labels_that_are_numbers_get_their_names(feature, multi_label, label, ids, tmp_path):
    own = {'own': {'multi_label': multi_label}, 'eval_source': True, 'max_malformed': 0.5}
    columns = {'text': WORDS[: len(label)], 'label': label}
    recorded = parquet(tmp_path / 'a.parquet', {'label': feature}, **columns)
    task = opened('classification', recorded, tmp_path, **own)
    assert task.labels == ('yes', 'maybe', 'no')
    assert task.train.labels['labels'].tolist() == ids
    plain = parquet(tmp_path / 'b.parquet', **columns)
    assert opened('classification', plain, tmp_path, label_names='x,y,z', **own).labels == (
        'x', 'y', 'z')


@pytest.mark.parametrize('feature', [
    None, 3, [], [3], {}, {'feature': 'x'}, {'_type': 'Value'}, {'_type': 'ClassLabel', 'names': 3},
    {'_type': 'ClassLabel', 'names': ['a', 1]}], ids=str)
def test_what_another_program_recorded_of_a_column_names_no_labels(feature, tmp_path):
    recorded = parquet(tmp_path / 'a.parquet', {'label': feature}, label=[0, 1])
    assert table.class_names(recorded, 'label') == []


def test_labels_may_be_numbers_with_names_and_other_names(tmp_path):
    source = put(tmp_path, 'c.csv', 'text,label\nthe,1\njohn,other\nan,0\n')
    task = opened('classification', source, tmp_path, label_names='x,y', eval_source=True)
    assert task.labels == ('x', 'y', 'other') and task.train.labels['labels'].tolist() == [1, 2, 0]


def test_labels_that_differ_only_in_case_are_those_of_the_model(tmp_path, capsys):
    rows = ['text,label', 'john,NO', 'was,yes', 'born,Maybe']
    config = config_of('classification', put(tmp_path, 'own.csv', rows), tmp_path, eval_source=True)
    task = open_task(config, ScoredModel(('yes', 'no', 'maybe')))
    assert task.evaluated[0].units.labels['labels'].tolist() == [1, 0, 2]
    said = capsys.readouterr().out
    assert 'differ only in case are one: Maybe is maybe, NO is no' in said


def test_labels_that_differ_only_in_case_stay_apart_in_training(tmp_path, capsys):
    source = put(tmp_path, 'two.csv', ['text,label', 'john,NO', 'was,no', 'born,yes'])
    assert opened('classification', source, tmp_path, eval_source=True).labels == (
        'NO', 'no', 'yes')
    assert 'warning: the labels NO and no differ only in case' in capsys.readouterr().out


def test_a_label_that_occurs_only_in_evaluation_counts_as_a_wrong_prediction(tmp_path, capsys):
    source = put(tmp_path, 'train.csv', CSV)
    dev = put(tmp_path, 'dev.csv', 'text,label\nthe leader,good\njohn,awful\n')
    (dev,) = opened('classification', source, tmp_path, eval_source=dev).evaluated
    scores, files = dev.results({'logits': np.float32([[0, 1, 0], [0, 0, -9999]])})
    assert scores['accuracy'] == 0.5
    assert files['dev_examples.csv'] == (
        'index,text,label,prediction,probability of bad,probability of good,probability of so so\n'
        '0,the leader,good,good,0.211942,0.576117,0.211942\n'
        '1,john,(not in training),bad,0.5,0.5,0\n')
    assert files['dev_classes.csv'] == (
        'label,count,precision,recall,f1,roc_auc,predicted bad,predicted good,predicted so so\n'
        'bad,0,0,0,0,0,0,0,0\ngood,1,1,1,1,1,0,1,0\nso so,0,0,0,0,0,0,0,0\n')
    assert 'awful occur only in evaluation' in capsys.readouterr().out


def test_texts_in_tables_for_people_are_no_formulas_and_move_no_cursor(tmp_path):
    rows = [f'"{text}",good' for text in ('=1+1', ' @a', '-2.5', 'a\x1b[31m')]
    dev = put(tmp_path, 'dev.csv', ['text,label', *rows])
    (dev,) = opened(
        'classification', put(tmp_path, 'train.csv', CSV), tmp_path, eval_source=dev).evaluated
    _, files = dev.results({'logits': np.zeros((4, 3), np.float32)})
    texts = [row[1] for row in csv.reader(files['dev_examples.csv'].splitlines())][1:]
    assert texts == ["'=1+1", "' @a", '-2.5', 'a\\x1b[31m']


def test_labels_that_look_like_scores_of_a_regression_get_a_warning(tmp_path, capsys):
    source = put(tmp_path, 'own.csv', 'text,label\nthe leader,0.5\njohn,1.25\nsmith,3.0\n')
    opened('classification', source, tmp_path, eval_source=True)
    assert 'configs/regression.py predicts numbers' in capsys.readouterr().out


WEIGHTED_ROWS = ['text,label', 'the,bad', 'leader,bad', 'was,bad', 'john,good']


@pytest.mark.parametrize(('given', 'weights'), [
    ('', ()), ('balanced', (2 / 3, 2.0)), ('bad=3, good=0.5', (3.0, 0.5)), ('good=2', (1.0, 2.0)),
])
def test_class_weights(given, weights, tmp_path):
    task = opened('classification', put(tmp_path, 'own.csv', WEIGHTED_ROWS), tmp_path,
                  own={'class_weights': given}, eval_source=True)
    assert task.arguments.get('class_weights', ()) == pytest.approx(weights)


@pytest.mark.parametrize(('given', 'message'), [
    ('best=2', 'labels are bad, good'), ('good', 'LABEL=NUMBER'), ('good=-1', 'LABEL=NUMBER'),
])
def test_bad_class_weights_are_refused(given, message, tmp_path):
    with pytest.raises(InputError, match=message):
        opened('classification', put(tmp_path, 'own.csv', WEIGHTED_ROWS), tmp_path,
               own={'class_weights': given}, eval_source=True)


def test_balanced_weights_are_of_the_classes_that_are_trained():
    """The middle one has held-out rows only; the others weigh as if it did not exist."""
    weights = class_weights('balanced', ('bad', 'best', 'good'), np.array([3, 0, 2]))
    assert weights == pytest.approx((5 / 6, 1.0, 5 / 4))


def test_long_texts_are_scored_by_their_windows(tmp_path):
    source = put(tmp_path, 'own.csv', ['text,label', 'john,good', ' '.join(WORDS) + ',bad'])
    task = opened('classification', source, tmp_path, own={'windows': 'max'}, eval_source=True,
                  max_seq_length=8)
    assert task.inference == {'windows': 'max', 'max_seq_length': 8, 'num_texts': 1}
    assert len(task.train) == 2
    (dev,) = task.evaluated
    assert len(dev.units) == 4  # one of the first text, three of the second: 6 of its 10 words each
    logits = np.array([[0, 1], [0, 1], [5, 0], [0, 1]], np.float32)  # one window is sure of 'bad'
    scores, files = dev.results({'logits': logits})
    assert task.labels == ('bad', 'good') and scores['accuracy'] == 1
    assert files['dev_predictions.tsv'] == 'index\tprediction\n0\tgood\n1\tbad\n'


def test_regression_on_pairs(tmp_path):
    source = put(tmp_path, 'own.tsv', [
        'a\tb\tgrade', *(f'the\t{word}\t{i / 4 - 1}' for i, word in enumerate(WORDS))])
    task = opened('regression', source, tmp_path, eval_source=True, text='a', text_pair='b',
                  label='grade')
    assert task.head == 'regression' and task.metric == 'spearman'
    assert task.majority_baseline == {'spearman': 0, 'pearson': 0}
    assert task.inference['num_texts'] == 2
    labels = task.train.labels['labels']
    assert labels.tolist() == [i / 4 - 1 for i in range(10)]
    assert task.results([{'logits': labels[:, None]}])[0]['pearson'] > 0.999
    assert all(n == 2 for n in task.train.sequences.first_lengths - 1)


def two_rows(tmp_path, fields):
    """A file with two rows of these fields, labelled a and b if the label is a."""
    other = {name: 'b' if value == 'a' else value for name, value in fields.items()}
    return put(tmp_path, 'own.jsonl', [fields, other])


@pytest.mark.parametrize(('task', 'fields'), [
    ('classification', {'sentence': 'the leader', 'sentiment': 'a'}),
    ('classification', {'Text': 'the leader', 'Label': 'a'}),
    ('regression', {'review': 'the leader', 'rating': 1}),
    ('tagging', {'tokens': ['the'], 'ner_tags': ['B-X']}),
    ('tagging', {'words': ['the'], 'tags': ['B-X'], 'id': 3}),
])
def test_columns_with_usual_names_are_read_and_said(task, fields, tmp_path, capsys):
    source = two_rows(tmp_path, fields)
    assert len(opened(task, source, tmp_path, eval_source=True).train) == 2
    said = capsys.readouterr().err
    text, label, *_ = fields
    assert f"its column '{text}' is read for config.data." in said
    assert f"its column '{label}' is read for config.data." in said
    with pytest.raises(InputError, match="no column 'sentences'"):  # a name that somebody chose
        opened(task, source, tmp_path, eval_source=True, text='sentences')


@pytest.mark.parametrize(('task', 'fields', 'read', 'lacking'), [
    ('tagging', {'tokens': ['the'], 'ner_tags': ['B-X'], 'pos_tags': ['D']}, 'tokens', 'label'),
    ('classification', {'sentence': 'the leader', 'body': 'john', 'label': 'a'}, '', 'text'),
    ('classification', {'sentence': 'the leader', 'kind': 'a'}, 'sentence', 'label'),
])
def test_a_column_is_refused_if_none_or_several_have_usual_names(
    task, fields, read, lacking, tmp_path, capsys
):
    source = two_rows(tmp_path, fields)
    with pytest.raises(InputError, match=f"no column '{lacking}'.*config.data.text"):
        opened(task, source, tmp_path, eval_source=True)
    if read:
        assert f"its column '{read}' is read for config.data." in capsys.readouterr().err
    with pytest.raises(InputError, match="no column 'sentences'"):  # a name that somebody chose
        opened(task, source, tmp_path, eval_source=True, text='sentences')


def test_no_cell_of_a_csv_is_a_formula_of_a_spreadsheet():
    rows = [['=1+1', '-0.5', '@SUM(A1)', '-x', 'a=b', 0.5]]
    assert texts._table(['=cmd', 'b'], rows) == (
        "'=cmd,b\n'=1+1,-0.5,'@SUM(A1),'-x,a=b,0.5\n")
    assert texts.predictions_table('', ['=7'], ['=cmd']) == 'index\tprediction\n=7\t=cmd\n'
