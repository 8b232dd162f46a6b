"""Classification and regression of the user's texts: labels, weights, windows, files."""

import csv
import io

import numpy as np
import pytest

from bert_jax.config import data_config_of
from bert_jax.rows import table
from bert_jax.runtime.errors import InputError
from bert_jax.tasks import texts
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.labels import as_known, nearest_label, warn_of_rare
from bert_jax.tasks.own_texts import class_weights
from tests.opening import open_task
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


def test_hosts_with_other_training_examples_are_told_apart(tmp_path):
    scored = put(tmp_path, 'scored.csv', CSV)
    identities = []
    for word in ('john', 'smith'):
        source = put(tmp_path, f'{word}.csv', [*CSV, f'{word},good'])
        identities.append(opened('classification', source, tmp_path, eval_source=scored).identity())
    first, second = identities
    differing = [name for name in first if first[name] != second[name]]
    assert differing == ['training examples'] and len(first) == 3


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


# A space without width; how an accent is encoded; both, and the case.
LOOK_THE_SAME = [
    ('pos', 'pos\u200b'), ('caf\u00e9', 'cafe\u0301'), ('caf\u00e9', 'CAFE\u0301\u00a0\u200b')]


@pytest.mark.parametrize(('name', 'other'), LOOK_THE_SAME)
def test_labels_that_look_the_same_are_those_of_the_model(name, other, tmp_path, capsys):
    source = put(tmp_path, 'own.csv', ['text,label', f'john,{other}', 'was,x'])
    config = config_of('classification', source, tmp_path, eval_source=True)
    task = open_task(config, ScoredModel((name, 'x')))
    assert task.evaluated[0].units.labels['labels'].tolist() == [0, 1]
    assert f'look the same are one: {ascii(other.strip())} is {ascii(name)}' in (
        capsys.readouterr().out)


@pytest.mark.parametrize(('name', 'other'), LOOK_THE_SAME)
def test_labels_that_look_the_same_stay_apart_in_training(name, other, tmp_path, capsys):
    source = put(tmp_path, 'own.csv', ['text,label', f'john,{name}', f'was,{other}'])
    assert len(opened('classification', source, tmp_path, eval_source=True).labels) == 2
    said = capsys.readouterr().out
    assert 'look the same, and are apart' in said and ascii(name) in said


@pytest.mark.parametrize(('name', 'other'), [
    ('\u0645\u06cc\u0631\u0648\u062f', '\u0645\u06cc\u200c\u0631\u0648\u062f'),  # letters apart
    ('\U0001f469\U0001f4bb', '\U0001f469\u200d\U0001f4bb'),  # two emoji and one
    ('\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f',  # flags: England
     '\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f'),  # and Scotland
])
def test_labels_that_differ_in_what_is_seen_are_others(name, other, capsys):
    assert as_known([other], [name, 'x']) == {}
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize(('train', 'dev', 'labels'), [
    ('john B-PER\nsmith B-PER\u200b\nwas O\n', 'john B-PER\n', ()),
    ('john B-PER\nwas O\n', 'john B-PER\u200b\nsmith B-PER\n', ()),
    ('', 'john B-PER\u200b\nsmith B-PER\nwas O\n', ('B-PER', 'O')),
    ('', 'john B-PER\u200b\nwas O\nsmith B-LOC\n', ('B-PER', 'B-LOC', 'O')),
], ids=['training', 'training and evaluation', 'a file and a model', 'a model alone has one'])
def test_tags_that_look_the_same_are_said(train, dev, labels, tmp_path, capsys):
    evaluated = put(tmp_path, 'dev.txt', dev)
    if train:
        opened('tagging', put(tmp_path, 'own.txt', train), tmp_path, eval_source=evaluated)
    else:
        config = config_of('tagging', evaluated, tmp_path, eval_source=True)
        open_task(config, ScoredModel(labels))
    said = capsys.readouterr().out
    assert said.count(r"the tags 'B-PER' and 'B-PER\u200b' look the same") == 1


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
        'bad,0,0,0,0,,0,0,0\ngood,1,1,1,1,1,0,1,0\nso so,0,0,0,0,,0,0,0\n')
    said = capsys.readouterr().out
    assert 'awful occur only in evaluation' in said
    assert 'the label bad, so so: its ROC-AUC is undefined, and empty in dev_classes.csv' in said


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
    assert task.inference == {
        'windows': 'max', 'max_seq_length': 8, 'num_texts': 1, 'token_types': 'template',
        'truncation': 'google'}
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
    ('tagging', {'sentence': ['the'], 'ner_tags': ['B-X']}),
    ('tagging', {'words': ['the'], 'labels': ['B-X'], 'id': 3}),
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
    ('tagging', {'words': ['the'], 'ner_tags': ['B-X'], 'pos_tags': ['D']}, 'words', 'tags'),
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


def test_characters_that_long_words_lose_are_said(tmp_path, capsys):
    """1 piece of 46, and 62 % of the characters."""
    words = ['the leader was born in antwerp'] * 7
    rows = [' '.join([*words, 'x' * 300]) + f',{i % 2}' for i in range(4)]
    opened('classification', put(tmp_path, 'own.csv', ['text,label', *rows]), tmp_path,
           max_seq_length=64, eval_source=True)
    assert '63.2 % of its characters are in words that are one [UNK] each' in (
        capsys.readouterr().out)


def test_a_column_that_somebody_names_is_read_or_refused(tmp_path):
    """It never stands for another, even where its name is a usual one."""
    source = put(tmp_path, 'own.csv', ['text,label', 'the,1', 'john,2'])
    other = put(tmp_path, 'other.csv', ['sentence,sentiment', 'the,1', 'john,2'])
    for task in ('classification', 'regression'):
        for path, fields, message in (
            (source, {'text': 'sentence'}, "no column 'sentence'.*it has: text, label"),
            (source, {'text': 'texts'}, "no column 'texts'.*did you mean 'text'"),
            (source, {'label': 'category'}, "no column 'category'.*it has: text, label"),
            (other, {'text': 'text'}, "no column 'text'"),
            (other, {'label': 'label'}, "no column 'label'"),
        ):
            with pytest.raises(InputError, match=message):
                opened(task, path, tmp_path, eval_source=True, **fields)


def test_a_run_of_an_older_version_has_the_columns_that_nobody_named():
    """They were recorded as if somebody had."""
    config = data_config_of({'task': 'tagging', 'data.text': 'tokens', 'data.label': 'upos'})
    assert (config.data.text, config.data.label) == (None, 'upos')
    assert data_config_of({'task': 'classification', 'data.text': 'text'}).data.text is None


def test_labels_that_are_perhaps_misspelt_or_too_few_are_warned_of(capsys):
    warn_of_rare({'positive': 20, 'postive': 1, 'neutral': 3, 'negative': 21})
    assert capsys.readouterr().out == (
        "warning: 'postive' (1 row) is close to 'positive' (20 rows), and is trained as another "
        'label: if it is misspelt, correct it\n'
        'warning: labels with fewer than 5 rows to train on: postive 1, neutral 3\n')
    warn_of_rare({'a': 5, 'b': 5})
    assert not capsys.readouterr().out
    warn_of_rare({f'label {i}': 1 for i in range(5000)} | {'label': 9})
    said = capsys.readouterr().out
    assert 'and 4,990 further' in said and len(said) < 4000


@pytest.mark.parametrize('name, others', [
    ('2', ['1', '10']), ('yep', ['yes']), ('Good', ['good']), ('sports', ['politics'])])
def test_short_labels_numbers_and_other_words_are_not_misspelt(name, others):
    assert not nearest_label(name, others)


def test_a_label_of_evaluation_alone_has_the_near_one(tmp_path, capsys):
    source = put(tmp_path, 'own.csv', ['text,label', 'the,positive', 'john,negative'])
    dev = put(tmp_path, 'dev.csv', ['text,label', 'the,postive', 'john,negative'])
    opened('classification', source, tmp_path, eval_source=dev)
    assert 'postive (near positive) occur only in evaluation' in capsys.readouterr().out


def test_labels_that_share_nothing_are_refused_with_what_helps(tmp_path):
    source = put(tmp_path, 'own.csv', ['text,label', 'the,yes', 'john,no'])
    dev = put(tmp_path, 'dev.csv', ['text,label', 'the,wahr', 'john,falsch'])
    with pytest.raises(InputError, match='the training file no, yes: .*write the labels of both f'):
        opened('classification', source, tmp_path, eval_source=dev)
    config = config_of('classification', dev, tmp_path, eval_source=True)
    with pytest.raises(InputError, match='the model no, yes: .*--labels_by_position'):
        open_task(config, ScoredModel(('no', 'yes')))


def test_that_most_texts_are_cut_is_a_warning(tmp_path, capsys):
    source = put(tmp_path, 'own.csv', [
        'text,label', *(f'{" ".join(WORDS)},{label}' for label in 'ab')])
    opened('classification', source, tmp_path, eval_source=True, max_seq_length=8)
    assert 'warning: all 2 texts are cut at config.data.max_seq_length=8' in capsys.readouterr().out
    opened('classification', source, tmp_path, eval_source=True)
    assert 'warning: all' not in capsys.readouterr().out


def test_an_evaluation_says_once_that_all_predictions_are_alike(tmp_path, capsys):
    """The files of its predictions, which are written later, say nothing."""
    task = opened('classification', put(tmp_path, 'own.csv', CSV), tmp_path, eval_source=True)
    capsys.readouterr()
    outputs = [{'logits': np.tile(np.float32([0, 1, 0]), (60, 1))}]
    metrics, _ = task.evaluation(outputs)
    assert metrics['accuracy'] == pytest.approx(1 / 3)
    assert capsys.readouterr().out == "warning: all predictions are 'good'\n"
    task.results(outputs)
    outputs[0]['logits'][7] = [1, 0, 0]
    task.evaluation(outputs)
    assert not capsys.readouterr().out


def test_a_correlation_with_a_constant_is_undefined_and_not_recorded(tmp_path, capsys):
    source = put(tmp_path, 'own.csv', ['text,label', 'the,1', 'john,2', 'was,4'])
    task = opened('regression', source, tmp_path, eval_source=True)
    assert task.majority_baseline == {'spearman': 0.0, 'pearson': 0.0}
    metrics, _ = task.evaluation([{'logits': np.ones((3, 1), np.float32)}])
    assert metrics.keys() == {'loss'}
    assert 'note: pearson, spearman: undefined' in capsys.readouterr().out


def test_class_weights_of_several_labels(tmp_path):
    rows = [{'text': word, 'label': label} for word, label in zip(
        WORDS, [['a'], ['a', 'b'], ['a'], [], ['c'], ['c'], [], []])]
    source = put(tmp_path, 'own.jsonl', rows)

    def weights(given):
        task = opened('classification', source, tmp_path, eval_source=True,
                      own={'class_weights': given, 'multi_label': True})
        return task.arguments.get('class_weights')

    assert weights('b=2.5') == (1.0, 2.5, 1.0)
    assert weights('balanced') == pytest.approx((5 / 3, 7.0, 3.0))
    with pytest.raises(InputError, match='label_smoothing=0.1 is for one label'):
        opened('classification', source, tmp_path, eval_source=True,
               own={'label_smoothing': 0.1, 'multi_label': True})


def test_what_the_table_of_examples_does_to_texts(tmp_path):
    """As docs/own_data.md says."""
    content = 'text,label\n"the\r\nleader",a\n"=1+1",b\n"the\tleader",a\n"the leader",b\n'
    dev = put(tmp_path, 'dev.csv', content)
    (dev,) = opened('classification', dev, tmp_path, eval_source=True).evaluated
    _, files = dev.results({'logits': np.zeros((4, 2), np.float32)})
    rows = list(csv.reader(io.StringIO(files['dev_examples.csv'], newline='')))
    assert [row[1] for row in rows[1:4]] == ['the\nleader', "'=1+1", 'the\tleader']
    assert '\r' not in files['dev_examples.csv']
