"""Sources: what is read from each format, what cannot be read, and digests of their files."""

import bz2
import dataclasses
import gzip
import hashlib
import json
import lzma
import os
import time

import pytest

from bert_jax.corpus import digests, python_docs, text_formats
from bert_jax.corpus.sources import open_source, sample_texts
from bert_jax.rows.tfds import tfds_records
from tests.refusals import refused

WIKI = (
    '<doc id="1" url="u" title="A">\nA\n\nFirst one. Second.\nThird.\n</doc>\n'
    '<doc id="2" url="u" title="Empty">\nEmpty\n\n</doc>\n'
    '<doc id="3" url="u" title="B">\nB\n\nÄther.\n\n</doc>\n')


def _texts(spec, split=None, folder=''):
    source = open_source(str(spec), str(folder))
    documents = [document for unit in source.units for document in source.read(unit)]
    assert split is None or {document.split for document in documents} == {split}
    return [document.text.decode() for document in documents]


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file and the documents that it holds; `split`: whether they are to be split."""

    name: str
    content: str
    documents: list
    prefix: str = ''
    split: bool = True


FILES = [
    TextFile(
        'plain.txt', 'One. Two.\nThree.\n\nNew.\n \t\nLast',
        ['One. Two.\nThree.', 'New.', 'Last']),
    TextFile('leading.txt', '\n\n\nOne.\n\n\n\nTwo.\n\n', ['One.', 'Two.']),
    TextFile('crlf.txt', '\ufeffOne.\r\nTwo.\r\n\r\nNew.\r\n', ['One.\nTwo.', 'New.']),
    TextFile(
        'white.txt',
        'One.\n\u00a0\n\u3000 \nTwo.\n\f\nThree.\n\t\u2003\nFour.\u00a0\nFive.\n\u00a0',
        ['One.', 'Two.', 'Three.', 'Four.\u00a0\nFive.']),
    TextFile('crcrlf.txt', 'One.\r\r\nTwo.\r\r\n\r\r\nNew.\r\r\n', ['One.\r\nTwo.', 'New.']),
    TextFile('cr_in_a_line.txt', 'One.\rTwo.\rThree.\n', ['One.\rTwo.\rThree.']),
    TextFile('cr_in_the_only_line.txt', 'One.\rTwo.', ['One.\rTwo.']),
    TextFile('json', '{"a": 1}\n', ['{"a": 1}'], prefix='text:'),
    TextFile(
        'sentences.txt', 'One.\nTwo.\n\nNew.\n', ['One.\nTwo.', 'New.'], prefix='lines:',
        split=False),
    TextFile('wiki_00', WIKI, ['First one. Second.\nThird.', 'Äther.']),
    TextFile(
        'wiki_01', '\n' + WIKI.replace('\n', '\r\n'), ['First one. Second.\nThird.', 'Äther.'],
        prefix='wikiextractor:'),
    TextFile(
        'as_text', WIKI.split('\n\n')[0], ['<doc id="1" url="u" title="A">\nA'], prefix='text:'),
    TextFile(
        'valid.raw',
        ' \n = A = \n \n One . \n Two . \n \n = = B = = \n \n Three . \n = C = \n = D = \n x',
        ['One . \n Two . \n \n \n Three .', 'x']),
    TextFile(
        'stripped.raw', '= A =\n\nOne .\n\n= = B = =\n\nThree .\n= C =\nx',
        ['One .\n\n\nThree .', 'x']),
    TextFile(
        'rows.jsonl', '{"id": 1, "text": "One.\\nTwo."}\n\n{"text": ""}\n{"text": "\\u00c4"}',
        ['One.\nTwo.', 'Ä']),
    TextFile('rows.csv', 'id,text\n1,"One.\nTwo."\n2,\n3, Ä\n', ['One.\nTwo.', 'Ä']),
    TextFile('cells.tsv', 'text\tid\nOne.\t1\n', ['One.']),
]
_each_file = pytest.mark.parametrize('file', FILES, ids=lambda file: file.name)


@_each_file
@pytest.mark.parametrize(('ending', 'compress'), [
    pytest.param('', bytes, id='plain'),
    pytest.param('.gz', gzip.compress, id='gz'),
    pytest.param('.bz2', bz2.compress, id='bz2'),
])
def test_files_are_read_in_their_formats(tmp_path, file, ending, compress):
    path = tmp_path / (file.name + ending)
    path.write_bytes(compress(file.content.encode()))
    assert _texts(f'{file.prefix}{path}', file.split) == file.documents


@_each_file
@pytest.mark.parametrize('block_bytes', [1, 2, 3, 7, 64])
def test_a_block_may_end_anywhere(tmp_path, monkeypatch, file, block_bytes):
    """Inside a mark, a character, a line end or a blank line."""
    monkeypatch.setattr(text_formats, '_BLOCK_BYTES', block_bytes)
    path = tmp_path / file.name
    path.write_bytes(file.content.encode())
    assert _texts(f'{file.prefix}{path}', file.split) == file.documents


CELLS = {
    'at line ends': ('aa\nbb\ncc\ndd', ['aa\nbb', 'cc\ndd']),
    'as long as may be': ('aaaa\nbb', ['aaaa\nbb']),
    'a piece as long as may be': ('aaaa\nbb\nc', ['aaaa\nbb', 'c']),
    'blank lines': ('aa\n\n\n\nbb\ncc', ['aa', 'bb\ncc']),
    'a longer line': ('a' * 9 + '\nbb\ncc', ['a' * 9, 'bb\ncc']),
    'a longer line at the end': ('bb\n' + 'a' * 9, ['bb', 'a' * 9]),
    'two bytes a character': ('ää\nää\nä', ['ää', 'ää\nä']),
}


@pytest.mark.parametrize(('cell', 'documents'), CELLS.values(), ids=CELLS)
@pytest.mark.parametrize('ending', ['.jsonl', '.csv'])
def test_a_long_cell_is_cut_at_line_ends(tmp_path, monkeypatch, cell, documents, ending):
    monkeypatch.setattr(text_formats, '_MAX_DOCUMENT_BYTES', 7)
    path = tmp_path / f'cells{ending}'
    if ending == '.jsonl':
        path.write_text(json.dumps({'text': cell}) + '\n{"text": "next"}\n')
    else:
        path.write_text(f'text,id\n"{cell}",1\nnext,2\n')
    assert _texts(path, split=True) == [*documents, 'next']


def test_a_line_of_a_cell_has_the_longest_length_of_text(tmp_path, monkeypatch):
    monkeypatch.setattr(text_formats, '_MAX_DOCUMENT_BYTES', 7)
    monkeypatch.setattr(text_formats, 'LONGEST_LINE', 8)
    path = tmp_path / 'cells.tsv'
    path.write_text('text\tid\nfine\t1\n' + 'a' * 9 + '\t2\n')
    with refused('cells.tsv, line 3', 'a line of text is longer than'):
        _texts(path)


@pytest.mark.parametrize(('name', 'words'), [
    pytest.param('*.txt', ['no file matches'], id='no file'),
    pytest.param('', ['is a directory'], id='directory'),
])
def test_text_that_is_no_file_is_refused(tmp_path, name, words):
    with refused(*words):
        _texts(tmp_path / name)


def test_documentation_other_than_pythons_is_refused(tmp_path):
    with refused('docs:python'):
        _texts(f'docs:{tmp_path}/')


@pytest.mark.parametrize(('name', 'content', 'words'), [
    ('empty.txt', b'', ['is empty']),
    ('image.txt', b'Some text.\n\x89PNG\0\0', ['byte 15 is 0x00']),
    ('utf16.txt', 'Text.\n'.encode('utf-16'), ['UTF-16', 'iconv -f UTF-16']),
    ('utf16.zh', '\ufeff文\n'.encode('utf-16-be'), ['UTF-16', 'iconv -f UTF-16']),
    ('cr.txt', b'One.\rTwo.\r', ['end with CR only']),
    ('cr_but_one.txt', b'One.\rTwo.\r' * 20 + b'\n', ['end with CR only']),
    ('wiki_00', b'{"id": "1", "text": "A"}\n', ['begins like JSON', 'jsonl:', 'text:']),
    ('list', b'[\n  {"text": "A"}]\n', ['begins like JSON']),
    ('dump.xml', b'<mediawiki xmlns="x" version="0.10">\n', ['MediaWiki dump', 'wikidump:']),
    ('page.txt', b'\n<!DOCTYPE html>\n<html>', ['XML or HTML']),
    ('page.rtf', b'{\\rtf1\\ansi A}', ['RTF']),
    ('latin.txt', b'Fine.\nNa\xefve.\n', ['byte 8 is 0xef', 'iconv']),
    ('bom.txt', b'\xef\xbb\xbfa\r\nb\r\n\xff\n', ['byte 9 is 0xff']),
    ('cut.txt.gz', gzip.compress(b'Some text.\n' * 1000, mtime=0)[:40], ['cut short']),
    ('not.txt.gz', b'Some text.\n', ['gzip']),
    ('type.jsonl', b'[1]\n', ['type.jsonl, line 1', 'not a JSON object']),
    ('row.jsonl', b'{"body": "a"}\n{"text": "a"}\n', ['line 1', "no field 'text'"]),
    ('other.jsonl', b'{"body": "a"}\n', ["no column 'text' in any row", 'config.data.text']),
    ('list.jsonl', b'{"text": ["a"]}\n', ['line 1', 'text is no text']),
    ('other.csv', b'body\na\n', ["no column 'text'", 'config.data.text']),
    ('open', b'<doc id="7" title="T">\nT\n\nText.\n', ['id="7"', '</doc>']),
    ('nested', b'<doc id="7">\nT\n\nText.\n<doc id="8">\nU\n</doc>\n', ['id="7"', '</doc>']),
    ('stray', b'<doc id="7">\nT\n\na\n</doc>\nStray.\n', ['byte 25', 'Stray.']),
    ('lfs.txt', b'version https://git-lfs.github.com/spec/v1\n', ['Git LFS', 'lfs pull']),
    ('text.xz', lzma.compress(b'Text.\n'), ['compressed by xz', 'xz -d']),
    ('text.zst', b'\x28\xb5\x2f\xfd\x24\0', ['compressed by zstd', 'zstd -d']),
    ('text.zip', b'PK\x03\x04\x14\0\0\0', ['is a .zip archive', 'unpack']),
])
def test_faults_are_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with refused(name, *words):
        _texts(tmp_path / name)


def test_the_fault_of_a_format_that_was_named_is_named(tmp_path):
    (tmp_path / 'forced').write_bytes(b'Text.\n')
    with refused('forced', 'byte 0', 'Text.'):
        _texts(f"wikiextractor:{tmp_path / 'forced'}")


@pytest.mark.parametrize(('pattern', 'words'), [
    ('{0}/a.txt,{0}/b.txt', ['several files are a list', 'config.data.source=[']),
    ('{0}/a.txt,{0}/c.txt', ['no file matches']),
    ('{0}/[old] text/*.txt', ['no file matches', 'write [[] for the bracket of a name']),
])
def test_what_a_pattern_without_a_match_may_mean(tmp_path, pattern, words):
    for name in ('a.txt', 'b.txt', '[old] text/a.txt'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('Some text.')
    with refused(*words):
        _texts(pattern.format(tmp_path))
    assert _texts(f'{tmp_path}/[[]old] text/*.txt') == ['Some text.']


@pytest.fixture
def parquet_texts(tmp_path):
    """Texts in `a.parquet`, and likewise in its column `body` in `c.parquet`."""
    pyarrow = pytest.importorskip('pyarrow', reason='Parquet needs it')
    from pyarrow import parquet

    texts = ['One.\r\nTwo.', '', None, 'Ärger im Büro.', *(f'Text {i}.' for i in range(2000))]
    table = pyarrow.table({'id': range(len(texts)), 'text': texts})
    parquet.write_table(table, tmp_path / 'a.parquet', row_group_size=300)
    parquet.write_table(table.rename_columns(['id', 'body']), tmp_path / 'c.parquet')
    return ['One.\nTwo.', *(text for text in texts[1:] if text)]


def test_each_parquet_row_is_a_document(tmp_path, parquet_texts):
    assert _texts(tmp_path / 'a.parquet') == parquet_texts
    (tmp_path / 'b').write_bytes((tmp_path / 'a.parquet').read_bytes())
    assert _texts(f"parquet:{tmp_path / 'b'}") == parquet_texts


def test_the_column_of_the_text_can_be_named(tmp_path, parquet_texts):
    path = str(tmp_path / 'c.parquet')
    body = open_source(path, column='body')
    documents = [document.text.decode() for document in body.read(body.units[0])]
    assert documents == parquet_texts
    assert body.fingerprint() != open_source(path).fingerprint()
    with refused("no column 'text' in its header; it has: id, body"):
        _texts(path)


def test_a_parquet_file_that_is_cut_short_is_refused(tmp_path, parquet_texts):
    (tmp_path / 'd.parquet').write_bytes((tmp_path / 'a.parquet').read_bytes()[:-100])
    with refused('cannot be read as Parquet'):
        _texts(tmp_path / 'd.parquet')


def test_sample_takes_from_every_file(tmp_path):
    for i in range(4):
        (tmp_path / f'{i}.txt').write_text(f'Text of {i}.\n\n' * 1000)
    texts = list(sample_texts(open_source(f'{tmp_path}/*.txt'), 1000))
    assert {text[8] for text in texts} == set('0123')
    assert 1000 <= sum(map(len, texts)) < 1100


MEAN = 'The mean of all values along an axis.'


@pytest.mark.parametrize(('docstring', 'paragraphs'), [
    ('All values along an axis,\n    over two lines with ``code`` and :class:`~a.b.Thing` in it.',
     ['All values along an axis, over two lines with code and a.b.Thing in it.']),
    ('Parameters\n    ----------\n    x : array_like\n        The values whose mean is wanted.',
     ['The values whose mean is wanted.']),
    ('Args:\n      values: The numbers to be averaged, which may\n        be of any type.\n'
     '      axis: The dimension to reduce, or None.',
     ['values: The numbers to be averaged, which may be of any type.',
      'axis: The dimension to reduce, or None.']),
    ('>>> mean([1, 2, 3])  # this text is an example of code\n    2.0', []),
    ('```\n    fenced code looks like some words in a row\n    ```', []),
    ('.. code-block:: python\n\n        this is code although it looks like prose', []),
    ('.. note::\n        This is a note, and a note is prose.',
     ['This is a note, and a note is prose.']),
    ('====  ====\n    some  table\n    ====  ====', []),
])
def test_docstrings_become_prose(tmp_path, docstring, paragraphs):
    path = tmp_path / 'module.py'
    path.write_text(f'"""{MEAN}"""\ndef mean(x):\n    """\n    {docstring}\n    """\n')
    assert python_docs.file_paragraphs(str(path)) == [MEAN, *paragraphs]


def test_python_docs_repeat_nothing():
    files = [file for file in python_docs.source_files()
             if file.name.startswith(('python/json', 'python/email'))]
    texts = list(python_docs.documents(files, num_processes=2))
    assert texts == list(python_docs.documents(files + files, num_processes=1))
    paragraphs = [paragraph.lower() for text in texts for paragraph in text.split('\n')]
    assert len(paragraphs) == len(set(paragraphs))
    assert sum(map(len, texts)) > 200_000


def test_tfds(tmp_path):
    tfds = pytest.importorskip('tensorflow_datasets')
    import tensorflow as tf

    texts = {f'Document {i}.\nIts second paragraph.' for i in range(20)}
    feature = tfds.features.Text()
    tfds.dataset_builders.store_as_tfds_dataset(
        'small_texts', '1.0.0', data_dir=tmp_path,
        features=tfds.features.FeaturesDict({'id': feature, 'text': feature}),
        split_datasets={'train': tf.data.Dataset.from_tensor_slices(
            {'id': ['x'] * 20, 'text': sorted(texts)})})
    assert set(_texts('tfds:small_texts:train', folder=tmp_path)) == texts
    source = open_source('tfds:small_texts:train', str(tmp_path))
    assert set(sample_texts(source, 1 << 20)) == texts  # by threads
    records = tfds_records('small_texts', 'train', str(tmp_path))
    assert {(r['id'], r['text'].decode()) for r in records} == {(b'x', t) for t in texts}
    with refused("no split 'dev'"):
        open_source('tfds:small_texts:dev', str(tmp_path))
    with refused('no_such_set/1', tmp_path, '--config.data.tfds_dir'):  # without a network
        open_source('tfds:no_such_set/1', str(tmp_path))


@pytest.fixture(autouse=True)
def remembered(tmp_path, monkeypatch):
    path = tmp_path / 'cache'
    monkeypatch.setattr(digests, '_REMEMBERED', str(path))
    return path


def _write(path, content, age=100.0):
    path.write_bytes(content)
    os.utime(path, (time.time() - age,) * 2)


def _md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_a_digest_follows_the_content_and_a_file_is_hashed_only_once(tmp_path):
    paths = [tmp_path / 'a', tmp_path / 'b']
    for path in paths:
        _write(path, path.name.encode() * 10_000_000)
    expected = [_md5(path) for path in paths]
    assert digests.digests(paths) == expected
    assert digests.digests(paths[::-1]) == expected[::-1]
    state = os.stat(paths[0])
    paths[0].write_bytes(b'x' * 10_000_000)
    os.utime(paths[0], ns=(state.st_atime_ns, state.st_mtime_ns))
    assert digests.digests(paths) == expected  # size and time are the same, so it is not read again
    _write(paths[0], b'x' * 10_000_000, age=50)
    assert digests.digests(paths) == [_md5(paths[0]), expected[1]] != expected


def _count_hashed(monkeypatch):
    """A list of the files that are hashed from now on."""
    hashed = []
    hash_file = digests._hash

    def hash_and_note(name):
        hashed.append(name)
        return hash_file(name)

    monkeypatch.setattr(digests, '_hash', hash_and_note)
    return hashed


def test_no_file_of_a_large_corpus_is_hashed_twice(tmp_path, monkeypatch):
    paths = [tmp_path / f'{index % 7}' / f'{index}.txt' for index in range(2000)]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        _write(path, path.name.encode())
    expected = [_md5(path) for path in paths]
    hashed = _count_hashed(monkeypatch)
    assert digests.digests(paths) == expected
    assert len(hashed) == len(paths)
    assert digests.digests(paths) == expected
    assert len(hashed) == len(paths)
    _write(paths[5], b'new', age=50)
    assert digests.digests(paths)[5] == _md5(paths[5])
    assert len(hashed) == len(paths) + 1


def test_a_corpus_does_not_displace_the_digests_of_another_until_it_is_old_or_too_large(
    tmp_path, monkeypatch, remembered
):
    for name in ('a', 'b', 'c'):
        (tmp_path / name).mkdir()
        _write(tmp_path / name / 'x', name.encode())
    hashed = _count_hashed(monkeypatch)
    digests.digests([tmp_path / 'a' / 'x'])
    digests.digests([tmp_path / 'b' / 'x'])
    [first, second] = remembered.iterdir()
    digests.digests([tmp_path / 'a' / 'x'])
    assert len(hashed) == 2
    os.utime(first, (time.time() - 100 * 86_400,) * 2)
    digests.digests([tmp_path / 'c' / 'x'])
    assert not first.exists() and second.exists()
    monkeypatch.setattr(digests, '_MAX_REMEMBERED_BYTES', 1)
    _write(tmp_path / 'c' / 'x', b'new')
    digests.digests([tmp_path / 'c' / 'x'])
    assert not list(remembered.iterdir())


def test_deleted_files_are_forgotten(tmp_path, remembered):
    paths = [tmp_path / 'text' / str(index) for index in range(100)]
    (tmp_path / 'text').mkdir()
    for path in paths:
        _write(path, b'x')
    digests.digests(paths)
    [kept] = remembered.iterdir()
    size = kept.stat().st_size
    for path in paths[:90]:
        path.unlink()
    _write(paths[99], b'y')
    digests.digests(paths[90:])
    assert kept.stat().st_size < size / 5


def test_the_digest_of_a_file_changed_just_now_is_not_remembered(tmp_path):
    for content in (b'1', b'2'):
        _write(tmp_path / 'a', content, age=0)  # both versions may have the same file time
        assert digests.digests([tmp_path / 'a']) == [_md5(tmp_path / 'a')]


@pytest.mark.parametrize('content', ['', '{', '[1]', '{"/a": 1}', '{"/a": [1, 2]}', '\x00'])
def test_a_damaged_digest_cache_is_ignored(tmp_path, remembered, content):
    _write(tmp_path / 'a', b'1')
    digests.digests([tmp_path / 'a'])
    [path] = remembered.iterdir()
    path.write_text(content)
    for _ in range(2):
        assert digests.digests([tmp_path / 'a']) == [_md5(tmp_path / 'a')]
    with pytest.raises(FileNotFoundError):
        digests.digests([tmp_path / 'none'])


# From before lines of any white space were blank: of a source, and of its one unit.
@pytest.mark.parametrize(('prefix', 'name', 'of_source', 'of_unit', 'is_kept'), [
    ('', 'a.txt', 'dae8b4b5835954b4', 'b0572db4b635c799', False),
    ('', 'text.fa', '63a53fa9bf68c58b', 'd7795c89176c178d', False),
    ('text:', 'a.txt', '966e84fc09a31c7f', 'bfa9f2988520d15e', False),
    ('lines:', 'a.txt', '4b53d52d9305de41', '1ecb64d4cd637f08', False),
    ('wikitext:', 'a.txt', 'b98e7acf2c89a88b', 'c05dc186817110b4', False),
    ('wikiextractor:', 'a.txt', '62d0d0afe15d052f', '34e778babff5161a', True),
    ('jsonl:', 'a.txt', 'c9049aa86372c231', '4bfbc2e2947b3d3f', True),
    ('', 'a.csv', '748eab4a5d0d5f3b', '5deee7f26ba2eb79', True),
    ('', 'a.jsonl', 'd7f9f7aecf20e1cd', '86be8f52bf98e0d8', True),
])
def test_the_digests_of_older_stores_are_kept_where_the_reading_has_not_changed(
        prefix, name, of_source, of_unit, is_kept, tmp_path):
    """With another one, a store is made anew, and a run says that it goes on with other data."""
    (tmp_path / name).write_text('Ein Satz. Noch einer.\n\nDer zweite Text.\n')
    source = open_source(f'{prefix}{tmp_path / name}')
    assert (source.fingerprint() == of_source) == is_kept
    assert (source.contents() == (of_unit,)) == is_kept


def test_a_fingerprint_depends_on_content_and_format_not_on_paths_or_times(tmp_path):
    for folder in ('here', 'there'):
        (tmp_path / folder).mkdir()
        _write(tmp_path / folder / 'a.txt', b'One.\n', age=len(folder))
        _write(tmp_path / folder / 'b.txt', b'Two.\n')

    def fingerprint(spec):
        return open_source(spec.format(tmp_path)).fingerprint()

    here = fingerprint('{}/here/*')
    assert here == fingerprint('{}/there/*') != fingerprint('lines:{}/there/*')
    _write(tmp_path / 'there' / 'b.txt', b'Too.\n')
    assert here != fingerprint('{}/there/*')
    _write(tmp_path / 'there' / 'b.txt', b'One.\n')  # the same files in another order
    _write(tmp_path / 'there' / 'a.txt', b'Two.\n')
    assert here != fingerprint('{}/there/*')
    (tmp_path / 'here' / 'a.txt').rename(tmp_path / 'here' / 'a.jsonl')  # is read as another format
    assert here != fingerprint('{}/here/*')
