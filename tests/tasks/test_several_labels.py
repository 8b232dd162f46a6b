"""Any number of labels an example: how cells hold them is found, and refused if it is unclear."""

import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from tests.tasks.files import put
from tests.tasks.opened import WORDS, opened

pytestmark = pytest.mark.usefixtures('vocabulary')


@pytest.mark.parametrize('label, none', [
    (['a', 'b'], []), ('a,b', ''), ('["a", "b"]', None), ('["a", "b"]', '')])
def test_several_labels_an_example(label, none, tmp_path):
    source = put(tmp_path, 'own.jsonl', [
        {'body': 'the leader', 'kinds': label}, {'body': 'john', 'kinds': 'b'},
        {'body': 'smith', 'kinds': none}])
    task = opened('classification', source, tmp_path, own={'multi_label': True},
                  eval_source=True, text='body', label='kinds')
    assert task.head == 'multi_label' and task.labels == ('a', 'b')
    marks = np.array([[1, 1], [0, 1], [0, 0]], np.float32)
    np.testing.assert_array_equal(task.train.labels['labels'], marks)
    # Of no label, which is right for the last.
    assert task.majority_baseline == {
        'micro_f1': 0.0, 'macro_f1': 0.0, 'accuracy': pytest.approx(1 / 3)}
    scores, files = task.evaluated[0].results({'logits': marks - 0.5})
    assert scores == {'micro_f1': 1.0, 'macro_f1': 1.0, 'accuracy': 1.0,
                      'loss': pytest.approx(np.log1p(np.exp(-0.5)))}
    assert files['dev_predictions.tsv'] == 'index\tprediction\n0\ta,b\n1\tb\n2\t\n'
    assert files['dev_classes.csv'].endswith('\na,1,1,1,1,1\nb,2,1,1,1,1\n')


@pytest.mark.parametrize(('cells', 'labels', 'said'), [
    (['delivery|price', 'price', 'delivery'], ('delivery', 'price'), "separated by '|'"),
    (['delivery; price', 'price', ''], ('delivery', 'price'), "separated by ';'"),
    (['food, drink|price', 'food, drink', 'price'], ('food, drink', 'price'), "separated by '|'"),
    (['price/delivery', 'price', 'delivery'], ('delivery', 'price'), "separated by '/'"),
    (['price delivery', 'price', 'delivery'], ('delivery', 'price'), "separated by ' '"),
    (['read/write', 'price', 'so so'], ('price', 'read/write', 'so so'), ''),
    (['C++', 'C', 'C#'], ('C', 'C#', 'C++'), ''),
    (['en/tea', 'en/ale', 'de/tea', 'de/ale'], ('de/ale', 'de/tea', 'en/ale', 'en/tea'),
     "'/' recurs inside labels, such as 'de/ale': if it separates them, set"),
    (["['delivery', 'price']", "['price']", '[]'], ('delivery', 'price'), ''),
    (["['delivery' 'price']", "['price']", '[]'], ('delivery', 'price'), ''),
    (["array(['delivery', 'price'], dtype=object)", "array(['price'], dtype=object)", '[]'],
     ('delivery', 'price'), ''),
    (['["delivery", "price"]', 'price', ''], ('delivery', 'price'), ''),
])
def test_how_a_cell_holds_several_labels_is_found_and_said(cells, labels, said, tmp_path, capsys):
    """In the first two rows of each table the labels are all that occur, then one of them."""
    rows = [{'text': word, 'label': cell} for word, cell in zip(WORDS, cells)]
    task = opened('classification', put(tmp_path, 'own.jsonl', rows), tmp_path,
                  own={'multi_label': True}, eval_source=True)
    assert task.labels == labels
    if len(labels) == 2:
        assert task.train.labels['labels'][0].tolist() == [1, 1]
        assert task.train.labels['labels'][1].sum() == 1
    out = capsys.readouterr().out
    assert said in out and ('separated by' in out) == ('separated by' in said)


def test_the_separator_can_be_named_and_must_be_where_several_are_possible(tmp_path):
    source = put(tmp_path, 'own.tsv', 'text\tlabel\nthe\ta|b\njohn\ta,b\n')
    with pytest.raises(InputError, match="',' and '|' occur inside labels, .*separator"):
        opened('classification', source, tmp_path, own={'multi_label': True}, eval_source=True)
    task = opened('classification', source, tmp_path, eval_source=True,
                  own={'multi_label': True, 'separator': '|'})
    assert task.labels == ('a', 'a,b', 'b')


@pytest.mark.parametrize(('one', 'many'), [
    ([0, 0, 0, 1], [0, 1, 1, 1]), ([0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]),
    ([False, False, False, True], [False, True, True, True]),
    ('[0, 0, 0, 1]', '[0, 1, 1, 1]'), ('[0 0 0 1]', '[0 1 1 1]'), ('0,0,0,1', '0,1,1,1'),
    ('[0., 0., 0., 1.]', '[0.0, 1.0, 1.0, 1.0]'),
    ('tensor([0, 0, 0, 1])', 'tensor([0, 1, 1, 1], dtype=int8)'),
    ('[False, False, False, True]', '[False, True, True, True]'),
])
def test_places_of_0_and_1_are_labels_by_name_or_refused(one, many, tmp_path, capsys):
    source = put(tmp_path, 'own.jsonl', [
        {'text': 'the', 'label': one}, {'text': 'leader', 'label': many},
        {'text': 'was', 'label': many}])
    several = {'own': {'multi_label': True}, 'eval_source': True}
    task = opened('classification', source, tmp_path, label_names='hotel,food,train,staff',
                  **several)
    assert task.labels == ('hotel', 'food', 'train', 'staff')
    assert task.train.labels['labels'].tolist() == [[0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    assert 'places of 0 and 1 (multi-hot)' in capsys.readouterr().out
    for names in ('', 'hotel,food,train'):
        with pytest.raises(InputError, match='lists of 4 places of 0 and 1 .*label_names='):
            opened('classification', source, tmp_path, label_names=names, **several)
    if one != '0,0,0,1':  # of which every text may be one label
        with pytest.raises(InputError, match='multi_label=True'):
            opened('classification', source, tmp_path, eval_source=True)


def test_lists_of_label_numbers_are_no_places_of_0_and_1(tmp_path):
    source = put(tmp_path, 'own.jsonl', [
        {'text': word, 'label': label} for word, label in zip(WORDS, ([0], [1], [0, 1], []))])
    task = opened('classification', source, tmp_path, own={'multi_label': True},
                  eval_source=True, label_names='hotel,food')
    assert task.train.labels['labels'].tolist() == [[1, 0], [0, 1], [1, 1], [0, 0]]


def test_several_labels_in_columns_of_their_own(tmp_path):
    source = put(tmp_path, 'own.csv', 'text,b,a\nthe leader,1,true\njohn,0.0,False\nsmith,,1.0\n')
    own = {'own': {'multi_label': True}, 'eval_source': True, 'label': 'b, a'}
    task = opened('classification', source, tmp_path, **own)
    assert task.labels == ('b', 'a')
    assert task.train.labels['labels'].tolist() == [[1, 1], [0, 0], [0, 1]]
    source = put(tmp_path, 'own.csv', 'text,b,a\nthe leader,1,2\n')
    with pytest.raises(InputError, match="line 2: 'a' is '2', where 0 or 1 is wanted"):
        opened('classification', source, tmp_path, **own)


def test_one_of_several_labels_that_occurs_only_in_evaluation_is_never_predicted(tmp_path):
    source = put(tmp_path, 'train.csv', 'text,label\nthe leader,a\njohn,b\n')
    dev = put(tmp_path, 'dev.csv', 'text,label\nthe leader,new\njohn,"a,other"\n')
    task = opened('classification', source, tmp_path, own={'multi_label': True}, eval_source=dev)
    logits = np.array([[-1, -1], [1, -1]], np.float32)  # nothing, and 'a'
    scores, _ = task.evaluated[0].results({'logits': logits})
    assert scores.pop('loss') == pytest.approx(
        np.mean(np.log1p(np.exp([-1, -1, -1, -1]))))  # over the labels that the model has
    assert scores == {'accuracy': 0, 'micro_f1': 2 / 4, 'macro_f1': 1 / 4}
