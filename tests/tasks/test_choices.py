"""Multiple choice: SWAG's CSV, JSON lines and CODAH's TSV give the same kind of examples."""

import json

import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.tasks.choices import (
    ChoiceExamples,
    choice_sequences,
    part,
    read_choices,
    read_swag,
    read_swag_file,
)

CLS, SEP = 1, 2
HEADER = (
    ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n'
)
CSV = HEADER + (
    '4,v,18313,"Students sit. She","Students sit.",She,gold,"nods, ""yes"".",turns.,walks.,runs.,'
    '2\n'
    '9,v,3416,A dog. It,A dog.,It,gen,a.,b.,c.,"d\nd.",0\n'
)
CODAH = (
    'o\tI am hungry. I am\tfull.\tsaying "go".\tglad.\tsad.\t3\n'
    '\tHe sat.  He\ta.\tb.\tc.\td.\t0\n'
)


def put(folder, name, content):
    path = folder / name
    path.write_text(content, encoding='utf-8', newline='')
    return str(path)


def test_csv(tmp_path):
    examples = read_swag_file(put(tmp_path, 'train.csv', CSV))
    assert examples.context == ['Students sit.', 'A dog.']
    assert examples.endings == [
        ['She nods, "yes".', 'She turns.', 'She walks.', 'She runs.'],
        ['It a.', 'It b.', 'It c.', 'It d\nd.'],
    ]
    assert examples.labels.tolist() == [2, 0] and examples.labels.dtype == np.int32
    assert examples.ids == ['4', '9']


def test_csv_without_labels(tmp_path):
    content = '\n'.join(line.rpartition(',')[0] for line in CSV.splitlines()[:2]) + '\n'
    path = put(tmp_path, 'test.csv', content)
    examples = read_swag(str(tmp_path), 'test')
    assert len(examples) == 1 and examples.labels is None
    with pytest.raises(InputError, match=f"{path} has no column 'label'"):
        read_swag_file(path)


@pytest.mark.parametrize(('name', 'choices', 'rows'), [
    ('own.csv', ['a', 'b', 'c'], 'q,a,b,c,y\nWho?,me,you,"it, there",c\nWhy?,so,no,all,a\n'),
    ('own.tsv', ['a', 'b', 'c'], 'q\ty\tc\tb\ta\nWho?\t2\tit, there\tyou\tme\n'
                                 'Why?\t0\tall\tno\tso\n'),
    ('own.jsonl', ['all'], '{"q": "Who?", "all": ["me", "you", "it, there"], "y": 2}\n'
                           '{"q": "Why?", "all": ["so", "no", "all"], "y": 0}\n'),
])
def test_your_own_columns(name, choices, rows, tmp_path):
    how = {'text': 'q', 'choices': choices, 'label': 'y'}
    examples = read_choices(put(tmp_path, name, rows), **how)
    assert examples.context == ['Who?', 'Why?'] and examples.num_choices == 3
    assert examples.endings == [['me', 'you', 'it, there'], ['so', 'no', 'all']]
    assert examples.labels.tolist() == [2, 0] and examples.ids == ['0', '1']
    with pytest.raises(InputError, match="unknown label '7'; known are 0, 1, 2"):
        read_choices(put(tmp_path, name, rows.replace(',c\n', ',7\n').replace(
            '"y": 2', '"y": 7').replace('Who?\t2', 'Who?\t7').replace(',a\n', ',0\n')), **how)
    if name == 'own.jsonl':
        with pytest.raises(InputError, match='line 2: choices: 2, where 3 are wanted'):
            read_choices(put(tmp_path, name, rows.replace(', "all"]', ']')), **how, max_malformed=0)


def test_columns_called_by_numbers(tmp_path):
    """A number is the name of a column there, also in a file where all labels could be places."""
    content = 'q,1,2,3,y\nWho?,me,you,it,1\nWhy?,so,no,all,2\n'
    how = {'text': 'q', 'choices': ('1', '2', '3'), 'label': 'y'}
    assert read_choices(put(tmp_path, 'own.csv', content), **how).labels.tolist() == [0, 1]
    with pytest.raises(InputError, match="unknown label '0'; known are 1, 2, 3"):
        read_choices(put(tmp_path, 'places.csv', content.replace('it,1', 'it,0')), **how)


def test_json_lines(tmp_path):
    records = [
        {'startphrase': 'He sat. He', 'choices': ['a', 'b', 'c', 'd'], 'answer': 1},
        {'startphrase': 'She', 'choices': ['e', 'f', 'g', 'h'], 'answer': 3},
    ]
    path = put(tmp_path, 'x.jsonl', '\n'.join(json.dumps(r) for r in records))
    examples = read_swag_file(path)
    assert examples.context == ['He sat. He', 'She']
    assert examples.endings == [['a', 'b', 'c', 'd'], ['e', 'f', 'g', 'h']]
    assert examples.labels.tolist() == [1, 3] and examples.ids == ['0', '1']
    assert read_swag_file(path, labelled=False).labels is None


def test_codah(tmp_path):
    examples = read_swag_file(put(tmp_path, 'full_data.tsv', CODAH))
    assert examples.context == ['I am hungry. I am', 'He sat.  He']
    assert examples.endings[0] == ['full.', 'saying "go".', 'glad.', 'sad.']
    assert examples.labels.tolist() == [3, 0]


@pytest.mark.parametrize('name, content, message', [
    ('a.tsv', CODAH + 'o\tp\ta\tb\tc\td\t4\n', "line 3: unknown label '4'; known are 0, 1, 2, 3"),
    ('a.tsv', 'o\tp\ta\tb\tc\t1\n', '1 of 1 rows are malformed .*line 1: columns: 6, where 7'),
    ('a.tsv', CODAH + 'o\tp\ta\tb\tc\td\t\n' * 2, '2 of 4 rows .*line 3: its label is empty'),
    ('a.csv', CSV.replace('9,', '4,'), "line 3: id '4' stands in line 2 already"),
    ('a.csv', CSV.replace('sent2', 'sent3'), "has no column 'sent2' in its header"),
    ('a.csv', CSV + '"', 'line 5 is not CSV'),
    ('a.jsonl', '{"startphrase": "A", "choices": ["a", "b", "c"], "answer": 0}\n',
     'line 1: there are not 4 endings'),
    ('a.jsonl', '{"startphrase": "A", "choices": ["a", "b", "c", 4], "answer": 0}\n',
     'line 1: a text is not a string'),
    ('a.jsonl', '{"startphrase": "A", "answer": 0}\n', "line 1: no field 'choices'"),
])
def test_faulty_files(tmp_path, name, content, message):
    path = put(tmp_path, name, content)
    with pytest.raises(InputError, match=message) as error:
        read_swag_file(path)
    assert str(error.value).startswith(path) and '\n' not in str(error.value)


def test_folder_with_splits(tmp_path):
    put(tmp_path, 'train.csv', CSV)
    put(tmp_path, 'val.csv', HEADER + '7,v,1,A It,A,It,g,a,b,c,d,3\n')
    assert read_swag(str(tmp_path), 'train').ids == ['4', '9']
    assert read_swag(str(tmp_path), 'dev').ids == ['7']
    with pytest.raises(InputError, match='has none of test.csv'):
        read_swag(str(tmp_path), 'test')
    with pytest.raises(InputError, match="'val' is no split; they are train, dev, test"):
        read_swag(str(tmp_path), 'val')
    with pytest.raises(InputError, match=f'no folder {tmp_path}/no'):
        read_swag(str(tmp_path / 'no'), 'train')


def many(n):
    """Questions over n contexts, two each."""
    context = [f'context {i}' for i in range(n) for _ in range(2)]
    return ChoiceExamples(
        context, [[f'{i}', 'b', 'c', 'd'] for i in range(2 * n)],
        np.arange(2 * n, dtype=np.int32) % 4, [str(i) for i in range(2 * n)], 'made',
    )


def test_parts():
    whole = many(2000)
    train, dev = part(whole, 'train'), part(whole, 'dev')
    assert sorted(train.ids + dev.ids, key=int) == whole.ids
    assert not set(train.context) & set(dev.context)
    assert 0.17 < len(dev) / len(whole) < 0.23
    for examples in (train, dev):
        assert examples.labels.tolist() == [int(i) % 4 for i in examples.ids]
        assert [endings[0] for endings in examples.endings] == examples.ids
    # A question stays where it is when others go.
    assert part(many(500), 'dev').ids == [i for i in dev.ids if int(i) < 1000]
    assert len(part(whole, 'dev', 0.0)) == 0


def test_one_file_is_divided(tmp_path):
    rows = ''.join(f'o\tprompt {i}\ta\tb\tc\td\t0\n' for i in range(100))
    path = put(tmp_path, 'full_data.tsv', rows)
    put(tmp_path, 'README.md', 'text')
    whole = read_swag_file(path)
    for source in (path, str(tmp_path)):
        for split in ('train', 'dev'):
            assert read_swag(source, split).ids == part(whole, split).ids != []
        with pytest.raises(InputError, match="no 'test'"):
            read_swag(source, 'test')


def test_an_empty_part(tmp_path):
    path = put(tmp_path, 'a.tsv', 'o\tprompt 0\ta\tb\tc\td\t0\n')
    refused = 0
    for split in ('train', 'dev'):
        try:
            assert len(read_swag(path, split)) == 1
        except InputError as error:
            assert str(error).startswith(f'{path} is too small to be divided: no question is ')
            refused += 1
    assert refused == 1


def test_sequences(tmp_path):
    def encode(texts):
        ids = [[10 + len(word) for word in text.split()] for text in texts]
        return np.array([i for t in ids for i in t], np.int32), np.array([len(t) for t in ids])

    examples = read_swag_file(put(tmp_path, 'train.csv', CSV))
    sequences = choice_sequences(examples, encode, 20, CLS, SEP)
    rows = [row.tolist() for row in np.split(sequences.ids, sequences.offsets[1:-1])]
    assert len(sequences) == 8
    # Students sit. | She turns.
    assert rows[1] == [CLS, 18, 14, SEP, 13, 16, SEP]
    assert [row[1:3] for row in rows] == [[18, 14]] * 4 + [[11, 14]] * 4  # A dog.
    assert sequences.first_lengths.tolist() == [4] * 8
    codah = read_swag_file(put(tmp_path, 'a.tsv', CODAH))
    first = choice_sequences(codah, encode, 20, CLS, SEP).ids[:8].tolist()
    assert first == [CLS, 11, 12, 17, 11, 12, SEP, 15]  # I am hungry. I am | full.


@pytest.mark.parametrize('name, counts, dev', [
    ('swag.subset-500.jsonl', [123, 109, 144, 124], 95),
    ('codah_full_data.tsv', [689, 684, 697, 706], 598),
])
def test_real_files(shared_data, name, counts, dev):
    path = str(shared_data / 'swag' / name)
    assert np.bincount(read_swag_file(path).labels).tolist() == counts
    assert len(read_swag(path, 'dev')) == dev
    assert len(read_swag(path, 'train')) == sum(counts) - dev
