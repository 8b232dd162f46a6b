"""Odd tables are read or refused alike for training, evaluation and prediction."""

import bz2
import codecs
import gzip
import json
import lzma

import pytest

from bert_jax.predict.inputs import Form, open_source
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.labels import LabelParser
from bert_jax.tasks.texts import read_texts
from tests.predict import tiny
from tests.tasks.files import put

ROWS = [('one text', 'a'), ('another', 'b'), ('a third, with a comma', 'a'), ('fourth', 'b')]
TEXTS = [text for text, _ in ROWS]
CSV = 'text,label\n' + ''.join(f'"{text}",{label}\n' for text, label in ROWS)
TSV = 'text\tlabel\n' + ''.join(f'{text}\t{label}\n' for text, label in ROWS)
OBJECTS = [{'text': text, 'label': label} for text, label in ROWS]
LINES = ''.join(json.dumps(row) + '\n' for row in OBJECTS)
SEMICOLONS = 'text;label\n' + ''.join(f'"{text}";{label}\n' for text, label in ROWS)
LONG = 'x' * 200_000
ODD = 'a\u2028b\x0bc\x85d\x1ce'  # `str.splitlines` would split it
OPEN = 'text,label\n' + ''.join(f'text {i},{"ab"[i % 2]}\n' for i in range(31)) + '"open,a\n' + (
    ''.join(f'text {i},{"ab"[i % 2]}\n' for i in range(29)))

# name -> (file, content, the texts that are read, or what the one message says)
GOOD = {
    'csv': ('a.csv', CSV, TEXTS),
    'tsv': ('a.tsv', TSV, TEXTS),
    'json lines': ('a.jsonl', LINES, TEXTS),
    'json list': ('a.json', json.dumps(OBJECTS), TEXTS),
    'json list over several lines': ('a.json', json.dumps(OBJECTS, indent=2), TEXTS),
    **{f'upper-case ending, {file}': (file, content, TEXTS)
       for file, content in (('a.CSV', CSV), ('a.Tsv', TSV), ('a.JSONL', LINES))},
    **{f'gzip, {file}': (file, content, TEXTS) for file, content in (
        ('a.CSV.GZ', CSV), ('a.tsv.gz', TSV), ('a.json.gz', json.dumps(OBJECTS)))},
    **{f'{what}, {file}': (file, change(content), TEXTS)
       for file, content in (('a.csv', CSV), ('a.tsv', TSV), ('a.jsonl', LINES))
       for what, change in {
           'CRLF': lambda text: text.replace('\n', '\r\n'),
           'BOM': lambda text: codecs.BOM_UTF8 + text.encode(),
           'no line end at the end': lambda text: text[:-1],
           'blank lines': lambda text: text.replace('\n', '\n\n'),
       }.items()},
    'spaces in the header': ('a.csv', CSV.replace('text,label', ' text , label '), TEXTS),
    'further columns': ('a.csv', 'id,text,label,\n1,x,a,\n2,y,b,\n', ['x', 'y']),
    'other line ends of Unicode': ('a.tsv', f'text\tlabel\n{ODD}\ta\nz\tb\n', [ODD, 'z']),
    'a line end in quotes': ('a.csv', 'text,label\n"x\ny",a\nz,b\n', ['x\ny', 'z']),
    'a quote within a cell': ('a.csv', 'text,label\n5" pipe,a\nz,b\n', ['5" pipe', 'z']),
    'quotes in tsv are characters': ('a.tsv', 'text\tlabel\n"x\ta\ny"\tb\n', ['"x', 'y"']),
    'a long cell, csv': ('a.csv', f'text,label\n{LONG},a\nz,b\n', [LONG, 'z']),
    'a long cell, json': (
        'a.jsonl', json.dumps({'text': LONG, 'label': 'a'}) + '\n' + LINES, [LONG, *TEXTS]),
    'an odd ending is tsv': ('a.data', TSV, TEXTS),
    **{f'csv with {name}': ('a.csv', SEMICOLONS.replace(';', separator), TEXTS)
       for name, separator in (('semicolons', ';'), ('TABs', '\t'), ('bars', '|'))},
    'quoted names': ('a.csv', SEMICOLONS.replace('text;label', '"text";"label"'), TEXTS),
    'semicolons after blank lines': ('a.csv', '\n\r\n' + SEMICOLONS, TEXTS),
    "Excel's line": ('a.csv', 'sep=;\n' + SEMICOLONS, TEXTS),
    'commas in the names': ('a.csv', 'text;"one, two";label\nx;y;a\nz;w;b\n', ['x', 'z']),
    'tsv with commas': ('a.tsv', CSV, TEXTS),
}
BAD = {
    'an unclosed quote': ('a.csv', OPEN, 'line 33 is not CSV'),
    'a doubled column': ('a.csv', 'text,text,label\nx,y,a\nz,w,b\n', "two columns 'text'"),
    **{f'CR line ends, {file}': (file, content.replace('\n', '\r'), 'end with CR only')
       for file, content in (('a.csv', CSV), ('a.tsv', TSV))},
    'UTF-16': ('a.csv', CSV.encode('utf-16'), 'or UTF-16'),
    'Latin-1': ('a.csv', 'text,label\nété,a\n'.encode('latin-1'), 'line 2 is not UTF-8'),
    **{f'{what}, {file}': (file, content, message) for file in ('a.csv', 'a.jsonl')
       for what, content, message in (
        ('gzip without its ending', gzip.compress(CSV.encode(), mtime=0), 'is compressed by gzip'),
        ('bzip2', bz2.compress(CSV.encode()), 'is compressed by bzip2: let its name end in .bz2'),
        ('xz', lzma.compress(CSV.encode()), r'is compressed by xz: decompress it \(xz -d\)'),
        ('zstd', b'\x28\xb5\x2f\xfd\x24\0', r'is compressed by zstd: decompress it'),
        ('a zip file', b'PK\x03\x04\x14\0\0\0', r'is a \.zip archive .*: unpack it'))},
    'half of a surrogate pair': (
        'a.jsonl', '{"text": "\\ud800", "label": "a"}\n', 'surrogate'),
    'gzip that is none': ('a.csv.gz', CSV.encode(), 'is cut short or damaged'),
    'another case of letters': (
        'a.csv', CSV.replace('text,', 'Text,'), "did you mean 'Text'.*config.data.text"),
    'another name': ('a.csv', CSV.replace('text,', 'sentence,'), "no column 'text'.*it has: sent"),
    'semicolons, another name': (
        'a.csv', SEMICOLONS.replace('text;', 'body;'), "no column 'text'.*it has: body, label:"),
    'a lone CR in a row': (
        'a.csv', CSV.replace('"another"', 'ano\rther'), 'line 3 holds a lone CR'),
    'CR line ends and a line feed at the end': (
        'a.csv', CSV.replace('\n', '\r') + '\n', 'end with CR only'),
    'no object has the field': (
        'a.jsonl', LINES.replace('"text"', '"words"'),
        "no column 'text' in any row.*config.data.text"),
    **{f'empty, {file}': (file, '', 'holds no rows')
       for file in ('a.csv', 'a.tsv', 'a.jsonl')},
    'a header alone': ('a.csv', 'text,label\n', 'holds no rows'),
    'a json list that is cut': ('a.json', json.dumps(OBJECTS)[:-9], 'no list of JSON objects'),
}


def trained(path, known=()):
    (texts,) = read_texts(path, ['text'], 'label', LabelParser(known)).texts
    return texts


def predicted(path):
    found = list(open_source([], path, ['text']).texts(Form()))
    for text in found:
        if isinstance(text, InputError):
            raise text
    return found


@pytest.mark.parametrize('name', GOOD)
def test_a_table_is_read_alike(name, tmp_path):
    file, content, texts = GOOD[name]
    path = put(tmp_path, file, content)
    assert trained(path) == trained(path, ['a']) == texts
    if file != 'a.data':  # which prediction reads as lines of text
        assert predicted(path) == texts


@pytest.mark.parametrize('name', BAD)
def test_a_table_is_refused_alike(name, tmp_path):
    file, content, message = BAD[name]
    path = put(tmp_path, file, content)
    for read in (trained, predicted):
        with pytest.raises(InputError, match=message) as error:
            read(path)
        assert str(error.value).startswith(path) and '\n' not in str(error.value)


def test_a_separator_is_said_once(tmp_path, capsys):
    path = put(tmp_path, 'a.csv', SEMICOLONS)
    assert trained(path) == predicted(path) == TEXTS
    assert capsys.readouterr().err == (
        f'{path}: its cells are separated by a semicolon, as its header shows\n')


@pytest.mark.parametrize('text', ['', ' ', '\t\u00a0', '\u200b', '\ufeff\ufffd'])
def test_an_empty_text_is_left_out_with_a_count_and_refused_by_prediction(text, tmp_path, capsys):
    rows = [*OBJECTS, {'text': text, 'label': 'a'}]
    path = put(tmp_path, 'a.jsonl', rows)
    for _ in range(2):  # training, then evaluation
        examples = read_texts(path, ['text'], 'label', LabelParser(), keep_empty=False)
        assert examples.texts[0] == TEXTS and examples.ids == ['0', '1', '2', '3']
        assert f'{path}: 1 of 5 rows have an empty text; left out' in capsys.readouterr().out
    model, _ = tiny.recorded('classification')
    assert [('error' in x) for x in model.classify([row['text'] for row in rows])] == [
        *[False] * 4, True]
    with pytest.raises(InputError, match='all 2 rows have an empty text: is config.data.text'):
        read_texts(put(tmp_path, 'b.jsonl', rows[-1:] * 2), ['text'], 'label', LabelParser(),
                   keep_empty=False)


ROWS_OUT = {
    'a row with another number of columns': ('a.csv', CSV + 'x,y,a\n', 'line 6: columns: 3'),
    'a line that is no json': ('a.jsonl', LINES + '{\n', 'line 5: not JSON'),
    'a field that is there twice': (
        'a.jsonl', LINES + '{"text": "x", "text": "y", "label": "a"}\n', "'text' is there twice"),
    'a null for a text': (
        'a.jsonl', LINES + '{"text": null, "label": "a"}\n', 'a text is not a string'),
}


@pytest.mark.parametrize('name', ROWS_OUT)
def test_a_row_that_cannot_be_used_is_left_out_and_reported(name, tmp_path, capsys):
    file, content, message = ROWS_OUT[name]
    path = put(tmp_path, file, content)
    assert trained(path) == TEXTS
    assert message in capsys.readouterr().err
    *good, bad = open_source([], path, ['text']).texts(Form())
    assert good == TEXTS and isinstance(bad, InputError) and message in str(bad)


def test_predict_checks_a_table_before_it_computes_anything(tmp_path):
    for file, content, message in (BAD['an unclosed quote'], BAD['a header alone']):
        with pytest.raises(InputError, match=message):
            open_source([], put(tmp_path, file, content), ['text'])


@pytest.mark.parametrize('file', ['a.csv', 'a.TSV', 'a.jsonl', 'a.csv.gz', 'a.json'])
def test_predictions_of_a_table_need_the_name_of_its_column(file, tmp_path):
    with pytest.raises(InputError, match='--text=COLUMN'):
        open_source([], put(tmp_path, file, CSV))


def test_ids_are_row_numbers_or_come_from_the_column_that_the_user_names(tmp_path):
    path = put(tmp_path, 'a.csv', 'text,label,name\n"x\ny",a,p\n\nbad\nz,b,q\n')
    for column, ids in (('', ['0', '2']), ('name', ['p', 'q'])):
        found = read_texts(path, ['text'], 'label', LabelParser(), id_column=column, needs_ids=True)
        assert found.ids == ids
    with pytest.raises(InputError, match="no column 'nam'"):
        read_texts(path, ['text'], 'label', None, id_column='nam', needs_ids=True)


@pytest.mark.parametrize(('labels', 'order'), [
    (['10', '9', 'nan'], ('10', '9', 'nan')), (['NaN', '2', '1'], ('1', '2', 'NaN')),
    (['1.0', '1', '2'], ('1', '1.0', '2')), (['10', '9'], ('9', '10')),
    (['inf', '1', '-inf'], ('-inf', '1', 'inf')),
])
def test_the_order_of_labels_does_not_depend_on_the_order_of_rows(labels, order, tmp_path):
    for some in (labels, labels[::-1]):
        names = LabelParser()
        path = put(tmp_path, 'a.csv', 'text,label\n' + ''.join(f'x,{name}\n' for name in some))
        read_texts(path, ['text'], 'label', names)
        assert names.names == order
