"""Odd tables are read or refused alike for training, evaluation and prediction."""

import bz2
import codecs
import csv
import dataclasses
import gzip
import json
import lzma
from collections.abc import Sequence

import pytest

from bert_jax.predict.inputs import SingleText, open_source
from bert_jax.rows import table
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.labels import LabelParser
from bert_jax.tasks.texts import TextColumns, read_texts
from tests.predict import tiny
from tests.refusals import refused
from tests.tasks.files import put

ROWS = [('one text', 'a'), ('another', 'b'), ('a third, with a comma', 'a'), ('fourth', 'b')]
TEXTS = [text for text, _ in ROWS]
COLUMNS = TextColumns(['text'], 'label')
CSV = 'text,label\n' + ''.join(f'"{text}",{label}\n' for text, label in ROWS)
TSV = 'text\tlabel\n' + ''.join(f'{text}\t{label}\n' for text, label in ROWS)
OBJECTS = [{'text': text, 'label': label} for text, label in ROWS]
LINES = ''.join(json.dumps(row) + '\n' for row in OBJECTS)
SEMICOLONS = 'text;label\n' + ''.join(f'"{text}";{label}\n' for text, label in ROWS)
LONG = 'x' * 200_000
ODD = 'a\u2028b\x0bc\x85d\x1ce'  # `str.splitlines` would split it


def numbered_rows(count):
    return ''.join(f'text {i},{"ab"[i % 2]}\n' for i in range(count))


OPEN = 'text,label\n' + numbered_rows(31) + '"open,a\n' + numbered_rows(29)


@dataclasses.dataclass(frozen=True)
class Good:
    """A table and the texts that are read from it."""

    file: str
    content: str | bytes
    texts: Sequence[str] = dataclasses.field(default_factory=lambda: TEXTS)


@dataclasses.dataclass(frozen=True)
class Bad:
    """A table that is refused, and what the one message says."""

    file: str
    content: str | bytes
    message: str


GOOD = {
    'csv': Good('a.csv', CSV),
    'tsv': Good('a.tsv', TSV),
    'json lines': Good('a.jsonl', LINES),
    'json list': Good('a.json', json.dumps(OBJECTS)),
    'json list over several lines': Good('a.json', json.dumps(OBJECTS, indent=2)),
    'another name of json lines': Good('a.ndjson', LINES),
    'a third name of json lines': Good('a.jsonlines.gz', LINES),
    'a column with the name of a gene': Good(
        'a.tsv', 'PAR1\ttext\tlabel\n1\tx\ta\n2\ty\tb\n', ['x', 'y']),
    'two marks': Good('a.csv', codecs.BOM_UTF8 * 2 + CSV.encode()),
    'upper-case ending, csv': Good('a.CSV', CSV),
    'upper-case ending, tsv': Good('a.Tsv', TSV),
    'upper-case ending, json lines': Good('a.JSONL', LINES),
    'gzip, csv': Good('a.CSV.GZ', CSV),
    'gzip, tsv': Good('a.tsv.gz', TSV),
    'gzip, json': Good('a.json.gz', json.dumps(OBJECTS)),
    'spaces in the header': Good('a.csv', CSV.replace('text,label', ' text , label ')),
    'further columns': Good('a.csv', 'id,text,label,\n1,x,a,\n2,y,b,\n', ['x', 'y']),
    'other line ends of Unicode': Good('a.tsv', f'text\tlabel\n{ODD}\ta\nz\tb\n', [ODD, 'z']),
    'a CR in quotes of the first line': Good(
        'a.csv', '"o\rther",text,label\n1,x,a\n2,y,b\n', ['x', 'y']),
    'a line end in quotes': Good('a.csv', 'text,label\n"x\ny",a\nz,b\n', ['x\ny', 'z']),
    'a quote within a cell': Good('a.csv', 'text,label\n5" pipe,a\nz,b\n', ['5" pipe', 'z']),
    'quotes in tsv are characters': Good(
        'a.tsv', 'text\tlabel\n"x\ta\ny"\tb\n', ['"x', 'y"']),
    'a long cell, csv': Good('a.csv', f'text,label\n{LONG},a\nz,b\n', [LONG, 'z']),
    'a long cell, json': Good(
        'a.jsonl', json.dumps({'text': LONG, 'label': 'a'}) + '\n' + LINES, [LONG, *TEXTS]),
    'an odd ending is tsv': Good('a.data', TSV),
    'csv with semicolons': Good('a.csv', SEMICOLONS),
    'csv with TABs': Good('a.csv', SEMICOLONS.replace(';', '\t')),
    'csv with bars': Good('a.csv', SEMICOLONS.replace(';', '|')),
    'quoted names': Good('a.csv', SEMICOLONS.replace('text;label', '"text";"label"')),
    'semicolons after blank lines': Good('a.csv', '\n\r\n' + SEMICOLONS),
    "Excel's line": Good('a.csv', 'sep=;\n' + SEMICOLONS),
    'commas in the names': Good(
        'a.csv', 'text;"one, two";label\nx;y;a\nz;w;b\n', ['x', 'z']),
    'tsv with commas': Good('a.tsv', CSV),
}
for file, content in (('a.csv', CSV), ('a.tsv', TSV), ('a.jsonl', LINES)):
    GOOD |= {
        f'CRLF, {file}': Good(file, content.replace('\n', '\r\n')),
        f'BOM, {file}': Good(file, codecs.BOM_UTF8 + content.encode()),
        f'BOM within, {file}': Good(file, content.replace('\n', '\n\ufeff')),
        f'no line end at the end, {file}': Good(file, content[:-1]),
        f'blank lines, {file}': Good(file, content.replace('\n', '\n\n')),
    }

BAD = {
    'an unclosed quote': Bad('a.csv', OPEN, 'line 33 is not CSV'),
    'a doubled column': Bad('a.csv', 'text,text,label\nx,y,a\nz,w,b\n', "two columns 'text'"),
    'CR line ends, csv': Bad('a.csv', CSV.replace('\n', '\r'), 'end with CR only'),
    'CR line ends, tsv': Bad('a.tsv', TSV.replace('\n', '\r'), 'end with CR only'),
    'UTF-16': Bad('a.csv', CSV.encode('utf-16'), 'or UTF-16'),
    'UTF-16 of Windows': Bad(
        'a.csv', CSV.replace('\n', '\r\n').encode('utf-16'), 'or UTF-16'),
    'Git LFS': Bad(
        'a.csv', 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n',
        r'is a pointer of Git LFS .*: download the file \(git lfs pull\)'),
    'Arrow': Bad('a.csv', b'ARROW1\0\0\x10\0', 'is an Arrow file: write its table as Parquet'),
    'Latin-1': Bad('a.csv', 'text,label\nété,a\n'.encode('latin-1'), 'line 2 is not UTF-8'),
    'half of a surrogate pair': Bad(
        'a.jsonl', '{"text": "\\ud800", "label": "a"}\n', 'surrogate'),
    'gzip that is none': Bad('a.csv.gz', CSV.encode(), 'is cut short or damaged'),
    'another case of letters': Bad(
        'a.csv', CSV.replace('text,', 'Text,'), "did you mean 'Text'.*config.data.text"),
    'another name': Bad(
        'a.csv', CSV.replace('text,', 'sentence,'), "no column 'text'.*it has: sent"),
    'semicolons, another name': Bad(
        'a.csv', SEMICOLONS.replace('text;', 'body;'), "no column 'text'.*it has: body, label:"),
    'a lone CR in a row': Bad(
        'a.csv', CSV.replace('"another"', 'ano\rther'), 'line 3 holds a lone CR'),
    'a lone CR in the first line': Bad(
        'a.csv', CSV.replace('label', 'label,o\rther', 1), 'line 1 holds a lone CR'),
    'CR line ends and a line feed at the end': Bad(
        'a.csv', CSV.replace('\n', '\r') + '\n', 'end with CR only'),
    'CR line ends and a blank line': Bad(
        'a.tsv', TSV.replace('\n', '\r') + '\n\n', 'end with CR only'),
    'CR line ends and a line feed within, tsv': Bad(
        'a.tsv', TSV.replace('\n', '\r').replace('b\r', 'b\n', 1), 'line 1 holds a lone CR'),
    'CR line ends behind the header, tsv': Bad(
        'a.tsv', TSV.replace('\n', '\r').replace('\r', '\n', 1),
        'line 2: columns: 5.*holds a lone CR.*convert the file'),
    'a CR in the first line, tsv': Bad(
        'a.tsv', 'o\rther\ttext\tlabel\n1\tx\ta\n2\ty\tb\n', 'line 1 holds a lone CR'),
    'CR line ends but for those of pairs of lines, tsv': Bad(  # alike many cells in each line
        'a.tsv', 'text\tlabel\rx\ta\ny\tb\rz\ta\n', 'line 1 holds a lone CR'),
    'CR line ends and a line feed within, csv': Bad(
        'a.csv', CSV.replace('\n', '\r').replace('b\r', 'b\n', 1), 'line 1 holds a lone CR'),
    'CR line ends and a line feed within, json lines': Bad(
        'a.jsonl', LINES.replace('\n', '\r').replace('\r', '\n', 2).replace('\n', '\r', 1),
        'line 1: not JSON.*holds a lone CR.*convert the file'),
    'another name, and a CR in quotes': Bad(
        'a.csv', CSV.replace('text,', '"te\rxt",'), "no column 'text'.*it has: te"),
    'no object has the field': Bad(
        'a.jsonl', LINES.replace('"text"', '"words"'),
        "no column 'text' in any row.*config.data.text"),
    'json of another name': Bad('a.tsv', LINES, 'begins like JSON, .*let it end in .jsonl'),
    'json of another name, csv': Bad('a.csv', LINES, 'begins like JSON, '),
    'a json list of another name': Bad('a.data.csv', json.dumps(OBJECTS), 'begins like JSON, '),
    'json objects over several lines': Bad(
        'a.json', '\n'.join(json.dumps(row, indent=1) for row in OBJECTS),
        'line 1: not JSON.*the line ends within an object: write each object on a line'),
    'json lines with commas': Bad(
        'a.jsonl', LINES.replace('\n', ',\n'), 'line 1: not JSON.*a comma stands behind the obj'),
    'json of columns': Bad(
        'a.json', json.dumps({'text': dict(enumerate(TEXTS)), 'label': dict(enumerate(TEXTS))}),
        "line 1: a text is not a string, but {'0': 'one text', '1'"),
    'Parquet': Bad('a.csv', b'PAR1\x15\0', 'is a Parquet file: let its name end in .parquet'),
    'empty, csv': Bad('a.csv', '', 'holds no rows'),
    'empty, tsv': Bad('a.tsv', '', 'holds no rows'),
    'empty, json lines': Bad('a.jsonl', '', 'holds no rows'),
    'a header alone': Bad('a.csv', 'text,label\n', 'holds no rows'),
    'a json list that is cut': Bad(
        'a.json', json.dumps(OBJECTS)[:-9], 'no list of JSON objects'),
}
for encoding in ('UTF-16LE', 'UTF-16BE', 'UTF-32LE', 'UTF-32BE', 'UTF-32'):
    BAD[encoding] = Bad(
        'a.csv', CSV.encode(encoding), rf'or {encoding}: convert it \(iconv -f {encoding} -t')
BAD['UTF-32BE with its mark'] = Bad(
    'a.csv', codecs.BOM_UTF32_BE + CSV.encode('UTF-32BE'), r'iconv -f UTF-32 -t')
for mark, encoding in ((codecs.BOM_UTF16_LE, 'UTF-16LE'), (codecs.BOM_UTF16_BE, 'UTF-16BE')):
    for letter in '文不':  # the latter, U+4E0D, has the byte of CR
        BAD[f'{encoding} with its mark and {letter}'] = Bad(
            'a.csv', mark + f'{letter}\n好\n'.encode(encoding),
            r'UTF-16.*: convert it \(iconv -f UTF-16 -t')
for file in ('a.csv', 'a.jsonl'):
    BAD |= {
        f'gzip without its ending, {file}': Bad(
            file, gzip.compress(CSV.encode(), mtime=0), 'is compressed by gzip'),
        f'bzip2, {file}': Bad(
            file, bz2.compress(CSV.encode()),
            'is compressed by bzip2: let its name end in .bz2'),
        f'xz, {file}': Bad(
            file, lzma.compress(CSV.encode()), r'is compressed by xz: decompress it \(xz -d\)'),
        f'zstd, {file}': Bad(
            file, b'\x28\xb5\x2f\xfd\x24\0', r'is compressed by zstd: decompress it'),
        f'a zip file, {file}': Bad(
            file, b'PK\x03\x04\x14\0\0\0', r'is a \.zip archive .*: unpack it'),
    }


def trained(path, known=()):
    (texts,) = read_texts(path, COLUMNS, LabelParser(known)).texts
    return texts


def predicted(path):
    found = list(open_source([], path, ['text']).texts(SingleText()))
    for text in found:
        if isinstance(text, InputError):
            raise text
    return found


@pytest.mark.parametrize('name', GOOD)
def test_a_table_is_read_alike(name, tmp_path):
    table = GOOD[name]
    path = put(tmp_path, table.file, table.content)
    assert trained(path) == table.texts
    assert trained(path, ['a']) == table.texts
    if table.file != 'a.data':  # which prediction reads as lines of text
        assert predicted(path) == table.texts


@pytest.mark.parametrize('name', BAD)
def test_a_table_is_refused_alike(name, tmp_path):
    table = BAD[name]
    path = put(tmp_path, table.file, table.content)
    for read in (trained, predicted):
        with pytest.raises(InputError, match=table.message) as error:
            read(path)
        assert str(error.value).startswith(path)
        assert '\n' not in str(error.value)


def test_a_separator_is_said_once(tmp_path, capsys):
    path = put(tmp_path, 'a.csv', SEMICOLONS)
    assert trained(path) == predicted(path) == TEXTS
    assert capsys.readouterr().err == (
        f'{path}: its cells are separated by a semicolon, as its header shows\n')


_empty = pytest.mark.parametrize('text', ['', ' ', '\t\u00a0', '\u200b', '\ufeff\ufffd'])


@_empty
def test_an_empty_text_is_left_out_with_a_count(text, tmp_path, capsys):
    path = put(tmp_path, 'a.jsonl', [*OBJECTS, {'text': text, 'label': 'a'}])
    for _ in range(2):  # training, then evaluation
        examples = read_texts(path, COLUMNS, LabelParser(), keep_empty=False)
        assert examples.texts[0] == TEXTS
        assert examples.ids == ['0', '1', '2', '3']
        assert f'{path}: 1 of 5 rows have an empty text; left out' in capsys.readouterr().out


@_empty
def test_an_empty_text_is_refused_by_prediction(text):
    model, _ = tiny.recorded('classification')
    results = list(model.classify([*TEXTS, text]))
    assert ['error' in result for result in results] == [False, False, False, False, True]


@_empty
def test_a_table_of_empty_texts_is_refused(text, tmp_path):
    path = put(tmp_path, 'b.jsonl', [{'text': text, 'label': 'a'}] * 2)
    with pytest.raises(InputError, match='all 2 rows have an empty text: is config.data.text'):
        read_texts(path, COLUMNS, LabelParser(), keep_empty=False)


@pytest.mark.parametrize(('file', 'content', 'message'), [
    pytest.param('a.csv', CSV + 'x,y,a\n', 'line 6: columns: 3', id='another number of columns'),
    pytest.param('a.csv', CSV + 'text,label\n', 'line 6: the header again', id='a header again'),
    pytest.param('a.tsv', TSV + 'text\tlabel\n', 'line 6: the header again', id='as TSV'),
    pytest.param('a.jsonl', LINES + '{\n', 'line 5: not JSON', id='no json'),
    pytest.param(
        'a.jsonl', LINES + '{"text": "x", "text": "y", "label": "a"}\n',
        "'text' is there twice", id='a field twice'),
    pytest.param(
        'a.jsonl', LINES + '{"text": null, "label": "a"}\n', 'a text is not a string',
        id='a null for a text'),
])
def test_a_row_that_cannot_be_used_is_left_out_and_reported(
    file, content, message, tmp_path, capsys
):
    path = put(tmp_path, file, content)
    assert trained(path) == TEXTS
    assert message in capsys.readouterr().err
    *good, bad = open_source([], path, ['text']).texts(SingleText())
    assert good == TEXTS
    assert isinstance(bad, InputError)
    assert message in str(bad)


@pytest.mark.parametrize(('ending', 'content'), [('csv', CSV), ('tsv', TSV)], ids=['csv', 'tsv'])
def test_headers_again_are_left_out_with_one_note(ending, content, tmp_path, capsys):
    path = put(tmp_path, f'a.{ending}', content * 3)
    assert trained(path) == TEXTS * 3
    err = capsys.readouterr().err
    assert 'line 6: the header again, as in 1 more; left out' in err
    assert err.count('the header again') == 1
    found = list(open_source([], path, ['text']).texts(SingleText()))
    faults = [str(text) for text in found if isinstance(text, InputError)]
    assert [text for text in found if isinstance(text, str)] == TEXTS * 3
    assert len(faults) == 2 and all('the header again' in fault for fault in faults)


@pytest.mark.parametrize(('cell', 'label', 'is_told'), [
    ('"say ""so"""', 'b', True),
    ('"""', 'b', False),
    ('""""', 'b', True),
    ('"a text"', 'b', False),  # some texts are quotations
    ('"a text"', '"b"', True),
    ('"a" and "b"', 'b', False),
    ('""', 'b', False),
    ('12"" wide', 'b', False),
])
def test_quotes_in_tsv_that_look_like_a_program_s_are_told_once(
    tmp_path, capsys, cell, label, is_told
):
    path = tmp_path / 'a.tsv'
    path.write_text('text\tlabel\nx\ta\n' + f'{cell}\t{label}\n' * 2)
    assert table.read_table(str(path), ['text'], tuple).values == [('x',), (cell,), (cell,)]
    said = capsys.readouterr().err
    assert said.count('line 3: a cell stands in quotes') == said.count('\n') == is_told
    # The remedy.
    path = path.rename(tmp_path / 'a.csv')
    if is_told:
        text = next(csv.reader([cell], delimiter='\t'))[0]
        assert table.read_table(str(path), ['text'], tuple).values == [('x',), (text,), (text,)]


@pytest.mark.parametrize(('label', 'is_told'), [(' "a, b"', True), (' a', False), ('"a"', False)])
def test_a_space_before_quotes_is_told(label, is_told, tmp_path, capsys):
    path = put(tmp_path, 'a.csv', f'text;label\nx;a\ny;{label}\n')
    assert table.read_table(path, ['label'], tuple).values[1:] == [
        (label if is_told else label.strip('"'),)]
    assert ('line 3: a space stands before the quotes' in capsys.readouterr().err) == is_told


@pytest.mark.parametrize('row', [
    '"Hello, ","\nworld"', '"he said, ""no"", \nand, ""\nyes",b', '" ""a""","b"', '5 3, "',
    '"several\nlines, ""quoted"", "" , ""a"" \n x, ",b'])
def test_spaces_before_quotes_within_a_cell_are_text(row, tmp_path, capsys):
    table.read_table(put(tmp_path, 'a.csv', f'text,label\n{row}\n'), ['text'], tuple)
    assert capsys.readouterr().err == ''


def test_a_space_before_quotes_that_hold_the_separator_is_told(tmp_path, capsys):
    path = put(tmp_path, 'a.csv', CSV + 'y, "a, b"\n')
    assert trained(path) == TEXTS
    assert 'line 6: a space stands before the quotes' in capsys.readouterr().err


@pytest.mark.parametrize('name', ['an unclosed quote', 'a header alone'])
def test_predict_checks_a_table_before_it_computes_anything(name, tmp_path):
    table = BAD[name]
    path = put(tmp_path, table.file, table.content)
    with pytest.raises(InputError, match=table.message):
        open_source([], path, ['text'])


@pytest.mark.parametrize('file', ['a.csv', 'a.TSV', 'a.jsonl', 'a.csv.gz', 'a.json'])
def test_predictions_of_a_table_need_the_name_of_its_column(file, tmp_path):
    with pytest.raises(InputError, match='--text=COLUMN'):
        open_source([], put(tmp_path, file, CSV))


def test_ids_are_row_numbers_or_come_from_the_column_that_the_user_names(tmp_path):
    path = put(tmp_path, 'a.csv', 'text,label,name\n"x\ny",a,p\n\nbad\nz,b,q\n')
    for column, ids in (('', ['0', '2']), ('name', ['p', 'q'])):
        columns = TextColumns(['text'], 'label', id=column, needs_ids=True)
        found = read_texts(path, columns, LabelParser())
        assert found.ids == ids
    columns = TextColumns(['text'], 'label', id='nam', needs_ids=True)
    with pytest.raises(InputError, match="no column 'nam'"):
        read_texts(path, columns, None)


def test_a_null_is_no_id(tmp_path, capsys):
    rows = [{'text': text, 'label': 'ab'[i], 'id': i or None} for i, text in enumerate(['x', 'y'])]
    path = put(tmp_path, 'a.jsonl', rows)
    columns = TextColumns(['text'], 'label', id='id', needs_ids=True)
    assert read_texts(path, columns, LabelParser()).ids == ['1']
    assert f"{path}, line 1: 'id' is null: it has no id; left out" in capsys.readouterr().err
    columns = TextColumns(['text'], 'label', id='id')
    assert read_texts(path, columns, LabelParser()).ids == ['0', '1']


@pytest.mark.parametrize(('labels', 'order'), [
    (['10', '9', 'nan'], ('10', '9', 'nan')), (['NaN', '2', '1'], ('1', '2', 'NaN')),
    (['1.0', '1', '2'], ('1', '2')), (['10', '9'], ('9', '10')),
    (['inf', '1', '-inf'], ('-inf', '1', 'inf')),
])
@pytest.mark.parametrize('backwards', [False, True])
def test_the_order_of_labels_does_not_depend_on_the_order_of_rows(
    labels, order, backwards, tmp_path
):
    rows = [f'x,{label}\n' for label in labels]
    if backwards:
        rows.reverse()
    path = put(tmp_path, 'a.csv', 'text,label\n' + ''.join(rows))
    names = LabelParser()
    read_texts(path, COLUMNS, names)
    assert names.names == order


def test_json_that_is_one_line_may_be_longer_than_a_line_of_text(tmp_path, monkeypatch):
    monkeypatch.setattr(table, 'LONGEST_LINE', 50)
    listed = put(tmp_path, 'a.json', json.dumps(OBJECTS))
    assert [row.cells for row in table.read_rows(listed, ['text'])] == [[text] for text in TEXTS]
    long = put(tmp_path, 'a.csv', 'text,label\n' + 'x' * 100 + ',a\n')
    with refused('a.csv, line 2 is longer than'):
        list(table.read_rows(long, ['text']))
