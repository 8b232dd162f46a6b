"""Labels and values that tables should not have: missing, no single value, none of Python's."""

import math

import pytest

from bert_jax.predict.inputs import SingleText, open_source
from bert_jax.rows.table import read_rows
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.labels import LabelFormat, LabelParser, NumericLabels
from bert_jax.tasks.texts import TextColumns, read_texts
from tests.tasks.files import put

pyarrow = pytest.importorskip('pyarrow')
parquet = pytest.importorskip('pyarrow.parquet')

COLUMNS = TextColumns(['text'], 'label')
TEXTS = ['one', 'two', 'three', 'four']


def write_parquet(folder, labels, texts=TEXTS):
    path = str(folder / 'a.parquet')
    parquet.write_table(pyarrow.table({'text': texts[: len(labels)], 'label': labels}), path)
    return path


def _named(value):
    return value.__name__ if callable(value) else repr(value)


def write_lines(folder, labels):
    rows = [{'text': text, 'label': label} for text, label in zip(TEXTS, labels)]
    return put(folder, 'a.jsonl', rows)


def write_csv(folder, labels):
    cells = ['' if label is None or label != label else label for label in labels]
    return put(folder, 'a.csv', ['text,label', *map('{},{}'.format, TEXTS, cells)])


WRITERS = [write_parquet, write_lines, write_csv]


@pytest.mark.parametrize('write', WRITERS)
@pytest.mark.parametrize('labels', [
    [1.5, 2.5, None, None], [1.5, 2.5, math.nan, math.nan], ['a', 'b', None, None],
    ['a', 'b', '', ' ']], ids=str)
def test_a_row_without_a_label_is_left_out_with_a_count(write, labels, tmp_path, capsys):
    """As one without a text is, however many there are; for numbers and names alike."""
    path = write(tmp_path, labels)
    parsers = [LabelParser()]
    if isinstance(labels[0], float):
        parsers.append(NumericLabels())
    for parser in parsers:
        examples = read_texts(path, COLUMNS, parser, max_malformed=0, keep_empty=False)
        assert examples.texts == [TEXTS[:2]]
        assert len(set(examples.labels.tolist())) == 2
        assert f'{path}: 2 of 4 rows have no label; left out' in capsys.readouterr().out
    assert parsers[0].names == tuple(map(str, labels[:2]))


@pytest.mark.parametrize('write', WRITERS)
def test_a_table_without_labels_is_refused(write, tmp_path):
    path = write(tmp_path, [None, None])
    with pytest.raises(InputError, match='all . rows with a text have no label: is config.data.l'):
        read_texts(path, COLUMNS, LabelParser(), keep_empty=False)


@pytest.mark.parametrize('parser', [LabelParser, NumericLabels])
@pytest.mark.parametrize('write, label', [
    (write_parquet, ['a']), (write_parquet, {'x': 1}), (write_parquet, b'a'),
    (write_lines, []), (write_lines, {})], ids=_named)
def test_what_is_no_single_value_is_no_label(parser, write, label, tmp_path):
    path = write(tmp_path, [label, label])
    with pytest.raises(InputError, match='line 1: (its label is|a list of labels)'):
        read_texts(path, COLUMNS, parser(), keep_empty=False)


@pytest.mark.parametrize('labels, names, ids', [
    (['1', '1.0', '0', '0.0'], ('0', '1'), [1, 1, 0, 0]),
    (['1.0', '1.00', '2.50', '2.5'], ('1.0', '2.5'), [0, 0, 1, 1]),
    (['1.0', '0.0', '1.0', '0.0'], ('0.0', '1.0'), [1, 0, 1, 0]),
    (['007', '7', '7.0', '07'], ('007', '07', '7'), [0, 2, 2, 1]),
])
@pytest.mark.parametrize('write', [write_lines, write_csv])
def test_the_same_number_is_one_label(write, labels, names, ids, tmp_path, capsys):
    parser = LabelParser()
    examples = read_texts(write(tmp_path, labels), COLUMNS, parser)
    assert (parser.names, examples.labels.tolist()) == (names, ids)
    is_said = 'labels that are the same number are one' in capsys.readouterr().out
    assert is_said == (len(set(labels)) > len(names))


def test_the_same_number_is_one_label_in_two_files(tmp_path, capsys):
    parser = LabelParser()
    read_texts(write_lines(tmp_path, ['1', '0', '1', '0']), COLUMNS, parser)
    examples = read_texts(write_csv(tmp_path, ['1.0', '0.0', '0.0', '0.0']), COLUMNS, parser)
    assert examples.labels.tolist() == [1, 0, 0, 0]
    assert not parser.unseen
    assert 'are one: 0.0 is 0, 1.0 is 1' in capsys.readouterr().out


def test_a_number_with_a_point_has_the_name_of_its_index(tmp_path):
    parser = LabelParser(format=LabelFormat(numbered=('x', 'y')))
    for labels in ([1.0, 0.0, None, 1.0], ['01', '0', '', '1.']):
        examples = read_texts(write_parquet(tmp_path, labels), COLUMNS, parser, keep_empty=False)
        assert (parser.names, examples.labels.tolist()) == (('x', 'y'), [1, 0, 1])


def test_two_columns_of_one_name_are_refused_in_parquet_too(tmp_path):
    path = str(tmp_path / 'a.parquet')
    texts = pyarrow.array(TEXTS)
    parquet.write_table(
        pyarrow.Table.from_arrays([texts, texts, texts], names=['text', 'text', 'label']), path)
    for read in (lambda: read_texts(path, COLUMNS, LabelParser()),
                 lambda: list(open_source([], path, ['text']).texts(SingleText()))):
        with pytest.raises(InputError, match="two columns 'text'"):
            read()
    assert len(list(read_rows(path, ['label']))) == 4


def _cast(numbers, kind):
    return pyarrow.array(numbers, pyarrow.int64()).cast(kind, safe=False)


# A value that pyarrow has and Python has not, then one that both have.
BEYOND_PYTHON = {
    'a timestamp': _cast([10**12, 0], pyarrow.timestamp('s')),
    'a timestamp before Christ': _cast([-(10**17), 0], pyarrow.timestamp('ms')),
    'a date': pyarrow.array([10**7, 0], pyarrow.int32()).cast(pyarrow.date32()),
    'a date in milliseconds': _cast([86_400_000 * 10**8, 0], pyarrow.date64()),
    'a duration': _cast([2**60, 0], pyarrow.duration('s')),
}


@pytest.mark.parametrize('name', BEYOND_PYTHON)
def test_a_value_that_python_does_not_have_is_a_malformed_row(name, tmp_path, capsys):
    values = BEYOND_PYTHON[name]
    path = write_parquet(tmp_path, pyarrow.chunked_array([values, values[1:]]))
    first, *others = read_rows(path, ['text', 'label'])
    assert 'has no value in Python' in first.fault and '\n' not in first.fault
    assert [row.fault for row in others] == ['', '']
    examples = read_texts(path, COLUMNS, LabelParser(), max_malformed=0.5)
    assert examples.texts == [['two', 'three']]
    assert 'line 1: the ' in capsys.readouterr().err


@pytest.mark.parametrize('write', [write_lines, write_csv])
@pytest.mark.parametrize('parser, message', [
    (LabelParser(format=LabelFormat(numbered=('x', 'y'))), 'has no name in config.data.label_n'),
    (LabelParser(format=LabelFormat(numbered=('x', 'y'), several=True)), 'has no name in config'),
    (NumericLabels(), 'is not a number'),
])
def test_labels_of_thousands_of_digits_are_refused_in_one_line(write, parser, message, tmp_path):
    with pytest.raises(InputError, match=message) as error:
        read_texts(write(tmp_path, ['7' * 5000] * 2), COLUMNS, parser)
    assert '\n' not in str(error.value)


def test_a_number_has_no_underscores_which_python_reads(tmp_path):
    with pytest.raises(InputError, match="score '1_0' is not a number"):
        read_texts(write_lines(tmp_path, ['1_0', '2']), COLUMNS, NumericLabels())


def test_how_many_rows_are_malformed_is_said_as_the_field_has_it(tmp_path):
    path = put(tmp_path, 'a.csv', ['text,label', 'x,a', 'y,b', 'x,y,a', 'z,a', 'x,y,a', 'v,b'])
    with pytest.raises(InputError) as error:
        read_texts(path, COLUMNS, LabelParser())
    said = str(error.value)
    assert '2 of 6 rows are malformed (33.33%); the first is line 4' in said
    assert 'raise the share that may be, config.data.max_malformed=0.01, to 0.334' in said
    read_texts(path, COLUMNS, LabelParser(), max_malformed=0.334)


def test_a_file_that_is_not_there_is_named_with_the_one_that_is(tmp_path):
    put(tmp_path, 'tables/train.csv', ['text,label', 'x,a', 'y,b'])
    for missing in ('tables/trian.csv', 'table/train.csv'):
        with pytest.raises(InputError, match="did you mean '.*/tables/train.csv'"):
            read_texts(str(tmp_path / missing), COLUMNS, LabelParser())
    with pytest.raises(InputError, match='check the path'):
        read_texts(str(tmp_path / 'tables/other.csv'), COLUMNS, LabelParser())
