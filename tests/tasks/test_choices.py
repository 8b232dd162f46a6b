"""Multiple choice: SWAG's CSV, JSON lines and CODAH's TSV give the same kind of examples."""

import numpy as np
import pytest

from bert_jax.rows.sequences import joined
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.choices import (
    ChoiceColumns,
    choice_units,
    read_choices,
    read_swag,
    read_swag_file,
)
from bert_jax.tasks.handles import ScoredModel
from bert_jax.text.frames import berts_frame
from tests.opening import open_task
from tests.tasks.files import put
from tests.tasks.opened import WORDS, config_of, opened

CLS, SEP = 1, 2
HEADER = (
    ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n'
)
CSV = HEADER + (
    '4,v,18313,"Students sit. She","Students sit.",She,gold,"nods, ""yes"".",turns.,walks.,runs.,'
    '2\n'
    '9,v,3416,A dog. It,A dog.,It,gen,a.,b.,c.,"d\nd.",0\n')
CODAH = (
    'o\tI am hungry. I am\tfull.\tsaying "go".\tglad.\tsad.\t3\n'
    '\tHe sat.  He\ta.\tb.\tc.\td.\t0\n')
JSON = [{'startphrase': 'He sat. He', 'choices': ['a', 'b', 'c', 'd'], 'answer': 1},
        {'startphrase': 'She', 'choices': ['e', 'f', 'g', 'h'], 'answer': 3}]


def questions(examples):
    """The contexts, and the endings of each question."""
    context, *endings = examples.texts
    return list(context), list(map(list, zip(*endings)))


@pytest.mark.parametrize(('name', 'content', 'context', 'endings', 'labels', 'ids'), [
    ('train.csv', CSV, ['Students sit.', 'A dog.'],
     [['She nods, "yes".', 'She turns.', 'She walks.', 'She runs.'],
      ['It a.', 'It b.', 'It c.', 'It d\nd.']], [2, 0], ['4', '9']),
    ('x.jsonl', JSON, ['He sat. He', 'She'],
     [['a', 'b', 'c', 'd'], ['e', 'f', 'g', 'h']], [1, 3], ['0', '1']),
    ('full_data.tsv', CODAH, ['I am hungry. I am', 'He sat.  He'],
     [['full.', 'saying "go".', 'glad.', 'sad.'], ['a.', 'b.', 'c.', 'd.']], [3, 0], ['0', '1']),
])
def test_csv_json_lines_and_tsv_are_read(tmp_path, name, content, context, endings, labels, ids):
    examples = read_swag_file(put(tmp_path, name, content))
    assert questions(examples) == (context, endings) and examples.ids == ids
    assert examples.labels.tolist() == labels and examples.labels.dtype == np.int32


@pytest.mark.parametrize(('name', 'choices', 'rows'), [
    ('own.csv', ['a', 'b', 'c'], 'q,a,b,c,y\nWho?,me,you,"it, there",c\nWhy?,so,no,all,a\n'),
    ('own.jsonl', ['all'], '{"q": "Who?", "all": ["me", "you", "it, there"], "y": 2}\n'
                           '{"q": "Why?", "all": ["so", "no", "all"], "y": 0}\n'),
])
def test_choices_are_read_from_columns_that_are_named(name, choices, rows, tmp_path):
    columns = ChoiceColumns(text='q', choices=choices, label='y')
    examples = read_choices(put(tmp_path, name, rows), columns)
    assert questions(examples) == (
        ['Who?', 'Why?'], [['me', 'you', 'it, there'], ['so', 'no', 'all']])
    assert examples.labels.tolist() == [2, 0] and examples.ids == ['0', '1']


def test_if_columns_are_named_by_numbers_labels_are_names_not_indices(tmp_path):
    """They are never indices, even in a file where every label could be an index."""
    content = 'q,1,2,3,y\nWho?,me,you,it,1\nWhy?,so,no,all,2\n'
    columns = ChoiceColumns(text='q', choices=('1', '2', '3'), label='y')
    assert read_choices(put(tmp_path, 'own.csv', content), columns).labels.tolist() == [0, 1]
    with pytest.raises(InputError, match="unknown label '0'; known are 1, 2, 3"):
        read_choices(put(tmp_path, 'places.csv', content.replace('it,1', 'it,0')), columns)


@pytest.mark.parametrize(('labels', 'is_said', 'is_refused'), [
    ([1, 2, 3, 1], False, False),  # nothing improbable
    ([1, 2, 3] * 6, True, False),
    ([1, 2, 3] * 40, True, True),
    ([3] * 120, True, False),  # one choice may always be right
    ([1, 2, 3, 0] * 30, False, False),
    (['b', 'c'] * 60, False, False),
    (['b'] * 4, False, False),
])
def test_labels_that_may_count_from_1_are_said_or_refused(
    labels, is_said, is_refused, tmp_path, capsys
):
    rows = [f'q{i},v,w,x,y,{label}\n' for i, label in enumerate(labels)]
    path = put(tmp_path, 'own.csv', 'q,a,b,c,d,label\n' + ''.join(rows))
    columns = ChoiceColumns(text='q', choices=list('abcd'), label='label')
    said = f'{path}: none of its {len(labels)} labels is 0, which stands for the first choice'
    if is_refused:
        with pytest.raises(InputError, match=f'^{said}: if they count from 1'):
            read_choices(path, columns)
        return
    numbers = [label if isinstance(label, int) else 'abcd'.index(label) for label in labels]
    assert read_choices(path, columns).labels.tolist() == numbers
    assert (said in capsys.readouterr().out) == is_said


def test_labels_of_choices_in_a_list_are_only_warned_of(tmp_path, capsys):
    rows = [{'q': f'q{i}', 'all': ['v', 'w', 'x'], 'y': i % 2 + 1} for i in range(120)]
    columns = ChoiceColumns(text='q', choices=('all',), label='y')
    examples = read_choices(put(tmp_path, 'own.jsonl', rows), columns)
    assert examples.labels.tolist() == [1, 2] * 60
    assert 'none of its 120 labels is 0' in capsys.readouterr().out


@pytest.mark.parametrize(('name', 'content', 'message'), [
    ('a.tsv', CODAH + 'o\tp\ta\tb\tc\td\t4\n', "line 3: unknown label '4'; known are 0, 1, 2, 3"),
    ('a.tsv', 'o\tp\ta\tb\tc\t1\n', '1 of 1 rows are malformed .*line 1: columns: 6, where 7'),
    ('a.tsv', CODAH + 'o\tp\ta\tb\tc\td\t\n' * 2, '2 of 4 rows .*line 3: its label is empty'),
    ('a.csv', CSV.replace('9,', '4,'), "line 3: id '4' stands in line 2 already"),
    ('a.csv', CSV.replace('sent2', 'sent3'), "has no column 'sent2' in its header"),
    ('a.jsonl', [*JSON, *[{**JSON[0], 'choices': ['a', 'b', 'c']}] * 2],
     'line 3: choices: 3, where 4 are wanted'),
])
def test_faulty_files(tmp_path, name, content, message):
    path = put(tmp_path, name, content)
    with pytest.raises(InputError, match=message) as error:
        read_swag_file(path)
    assert str(error.value).startswith(path) and '\n' not in str(error.value)


def test_folder_with_splits(tmp_path):
    put(tmp_path, 'train.csv', CSV)
    with pytest.raises(InputError, match='has none of val.csv'):
        read_swag(str(tmp_path), 'dev')
    put(tmp_path, 'val.csv', HEADER + '7,v,1,A It,A,It,g,a,b,c,d,3\n')
    put(tmp_path, 'all.csv', CSV)
    assert read_swag(str(tmp_path), 'train').ids == ['4', '9']
    assert read_swag(str(tmp_path), 'dev').ids == ['7']
    with pytest.raises(InputError, match=f'no folder {tmp_path}/no'):
        read_swag(str(tmp_path / 'no'), 'train')


def test_one_file_is_split_by_context_into_train_and_dev(tmp_path):
    def divided(num_contexts, source=None):
        """(train, dev) of two questions a context; label and first ending identify a question."""
        path = put(tmp_path, 'full_data.tsv', ''.join(
            f'o\tcontext {i // 2}\t{i}\tb\tc\td\t{i % 4}\n' for i in range(2 * num_contexts)))
        return [read_swag(source or path, split) for split in ('train', 'dev')]

    put(tmp_path, 'README.md', 'text')
    train, dev = divided(1000)
    assert sorted(train.ids + dev.ids, key=int) == [str(i) for i in range(2000)]
    assert not set(train.texts[0]) & set(dev.texts[0])
    assert 0.17 < len(dev) / 2000 < 0.23
    for examples in (train, dev):
        assert examples.labels.tolist() == [int(i) % 4 for i in examples.ids]
        assert list(examples.texts[1]) == examples.ids
    assert divided(1000, str(tmp_path))[1].ids == dev.ids
    # A question stays in its split when others are removed.
    assert divided(250)[1].ids == [i for i in dev.ids if int(i) < 500]
    with pytest.raises(InputError, match=r'full_data\.tsv has 2 examples, of which'):
        divided(1)


def test_each_choice_is_a_sequence_of_context_and_ending(tmp_path):
    def encode(texts):
        return joined([[10 + len(word) for word in text.split()] for text in texts])

    units = choice_units(read_swag_file(put(tmp_path, 'train.csv', CSV)), encode, max_length=20,
                         frame=berts_frame(CLS, SEP))
    assert len(units) == 2 and units.labels['labels'].tolist() == [2, 0]
    sequences = units.sequences
    rows = [row.tolist() for row in np.split(sequences.ids, sequences.offsets[1:-1])]
    # Students sit. | She turns.
    assert rows[1] == [CLS, 18, 14, SEP, 13, 16, SEP]
    assert [row[1:3] for row in rows] == [[18, 14]] * 4 + [[11, 14]] * 4  # A dog.
    assert sequences.first_lengths.tolist() == [4] * 8


@pytest.mark.parametrize(('name', 'counts', 'dev'), [
    ('swag.subset-500.jsonl', [123, 109, 144, 124], 95),
    ('codah_full_data.tsv', [689, 684, 697, 706], 598),
])
def test_real_files(shared_data, name, counts, dev):
    path = str(shared_data / 'swag' / name)
    assert np.bincount(read_swag_file(path).labels).tolist() == counts
    assert len(read_swag(path, 'dev')) == dev
    assert len(read_swag(path, 'train')) == sum(counts) - dev


@pytest.mark.usefixtures('vocabulary')
def test_your_own_choices(tmp_path):
    rows = [f"{word},{WORDS[i - 1]},{WORDS[i - 2]},{'ab'[i % 2]}" for i, word in enumerate(WORDS)]
    source = put(tmp_path, 'own.csv', ['q,a,b,y', *rows])
    config = config_of('multiple_choice', source, tmp_path, text='q', choices='a, b', label='y',
                       held_out=0.3)
    task = open_task(config)
    assert task.head == 'multiple_choice' and task.arguments == {'num_outputs': 2}
    (dev,) = task.evaluated
    assert len(task.train) + len(dev.units) == 10 and dev.units.choices == 2
    scores, _ = dev.results({'logits': np.eye(2)[dev.units.labels['labels']]})
    assert scores == {'accuracy': 1, 'loss': pytest.approx(np.log1p(np.exp(-1)))}
    only = open_task(config, ScoredModel())
    assert only.train is None and only.evaluated[0].units.digest() == dev.units.digest()


@pytest.mark.usefixtures('vocabulary')
def test_choices_need_the_names_of_their_columns(tmp_path):
    source = put(tmp_path, 'own.csv', ['q,a,b,y', 'the,leader,was,a'])
    with pytest.raises(InputError, match='name the columns of the choices'):
        opened('multiple_choice', source, tmp_path, text='q', choices='', label='y')


@pytest.mark.usefixtures('vocabulary')
def test_a_choice_without_words_is_left_out(tmp_path, capsys):
    source = put(tmp_path, 'own.csv', 'text,a,b,label\nthe,john,smith,a\njohn,,the,b\n,a,b,b\n')
    task = opened('multiple_choice', source, tmp_path, choices='a,b', eval_source=True)
    assert len(task.train) == 1 == len(task.evaluated[0].units)
    assert f'{source}: 2 of 3 rows have an empty text; left out' in capsys.readouterr().out
