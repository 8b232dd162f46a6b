"""A large file of plain text is read in ranges, whose documents are those of the whole file."""

import gzip
import random

import pytest

from bert_jax.corpus import text_formats
from bert_jax.corpus.sources import open_source, sample_texts
from bert_jax.corpus.text_batches import text_batches
from tests.refusals import refused

# Pieces of text, of which any may come after any.
PIECES = [
    'a', 'Some text.', 'é', '€', '𐍈𐍈', ' ', '\t', '\v', '\f', '\r', '\n', '\r\n', '\r\r\n', '\n\n',
    '\n\r\n', '\r\n\r\n', '\n \n', '\n\t\r\n', '\n\f\n', '\n\n\f\n', '\n\n\n\n', '\n   \n\t\n',
    '\n\n  x', 'x  \n\n', '\u00a0', '\n\u3000\n', '\n \u2003\r\n',
]


@pytest.fixture
def ranged(monkeypatch):
    """Sets how many bytes a range has; files of more are read in ranges."""
    def set_size(num_bytes):
        monkeypatch.setattr(text_formats, '_LARGE_BYTES', num_bytes)
        monkeypatch.setattr(text_formats, '_RANGE_BYTES', num_bytes)

    return set_size


def documents_by_unit(spec):
    source = open_source(str(spec))
    return [list(source.read(unit)) for unit in source.units]


def documents(spec):
    return [document for unit in documents_by_unit(spec) for document in unit]


def random_text(rng):
    common = rng.sample(PIECES, rng.randint(1, 6))
    text = ''.join(rng.choice(common) for _ in range(rng.randint(1, 60)))
    if b'\r' in text.encode().partition(b'\n')[0].rstrip():  # refused, as if all lines ended so
        text = 'x\n' + text
    return ('\ufeff' if rng.random() < 0.2 else '') + text + '.'


@pytest.mark.parametrize('prefix', ['', 'text:', 'lines:'])
@pytest.mark.parametrize('block_bytes', [1, 3, 1 << 20])
def test_ranges_have_the_documents_of_the_file(tmp_path, monkeypatch, ranged, prefix, block_bytes):
    monkeypatch.setattr(text_formats, '_BLOCK_BYTES', block_bytes)
    rng = random.Random(block_bytes)
    for trial in range(10):
        path = tmp_path / f'{trial}.txt'
        path.write_bytes(random_text(rng).encode())
        ranged(1 << 30)
        expected = documents(f'{prefix}{path}')
        fingerprint = open_source(f'{prefix}{path}').fingerprint()
        for range_bytes in rng.sample((1, 2, 3, 5, 8, 20), 2):
            ranged(range_bytes)
            assert documents(f'{prefix}{path}') == expected, path.read_bytes()
            source = open_source(f'{prefix}{path}')
            assert len(source.units) == -(-path.stat().st_size // range_bytes)
            assert source.fingerprint() == fingerprint


@pytest.mark.parametrize(('text', 'found'), [
    pytest.param('One.\n\nTwo.\n\nThree.\n', [['One.', 'Two.'], ['Three.'], []], id='documents'),
    pytest.param('123456\n\nTwo.', [['123456', 'Two.'], []], id='blank line ends a range'),
    pytest.param('1234567\n\nTwo.', [['1234567'], ['Two.']], id='blank line begins a range'),
    pytest.param('123456\n\n\n\nTwo.', [['123456'], ['Two.']], id='several blank lines'),
    pytest.param('1234567890123456789\n\nTwo.', [['1234567890123456789'], [], ['Two.'], []],
                 id='longer than two ranges'),
    pytest.param('No separator at all.', [['No separator at all.'], [], []], id='no separator'),
])
def test_a_document_belongs_to_the_range_of_the_blank_line_before_it(tmp_path, ranged, text, found):
    ranged(8)
    path = tmp_path / 'a.txt'
    path.write_text(text)
    texts = [[document.text.decode() for document in unit] for unit in documents_by_unit(path)]
    assert texts == found


def test_a_document_that_is_split_may_be_split_at_a_range(tmp_path, monkeypatch, ranged):
    monkeypatch.setattr(text_formats, '_MAX_DOCUMENT_BYTES', 100)
    monkeypatch.setattr(text_formats, '_BLOCK_BYTES', 10)
    path = tmp_path / 'a.txt'
    lines = [f'Line {number}.' for number in range(200)]
    path.write_text('\n'.join(lines))
    ranged(500)
    by_unit = documents_by_unit(path)
    assert all(by_unit)
    texts = [document.text.decode() for unit in by_unit for document in unit]
    assert '\n'.join(texts).split('\n') == lines
    assert max(map(len, texts)) < 130


@pytest.mark.parametrize('name', ['wiki_00', 'wiki.raw', 'genome.fa', 'rows.csv', 'rows.jsonl'])
def test_files_of_other_formats_are_not_split(tmp_path, ranged, name):
    content = {
        'wiki_00': '<doc id="1">\nA\n\n1\n\n1\n</doc>\n<doc id="2">\nB\n\n2\n</doc>\n',
        'wiki.raw': ' \n = A = \n \n One . \n \n Two . \n \n = B = \n \n Three . \n',
        'genome.fa': '>one\nACGT\n\nAC\n>two\nGGTT\n',
        'rows.csv': 'id,text\n1,"One.\n\nTwo."\n2,Three.\n',
        'rows.jsonl': '{"text": "One."}\n\n{"text": "Two."}\n',
    }[name]
    path = tmp_path / name
    path.write_text(content)
    expected = documents(path)
    assert len(expected) == 2
    ranged(8)
    assert documents_by_unit(path)[0] == documents(path) == expected


def test_a_compressed_file_is_not_split(tmp_path, ranged):
    ranged(8)
    for name in ('a.txt.gz', 'b.txt.GZ'):
        (tmp_path / name).write_bytes(gzip.compress(b'One.\n\nTwo.\n\nThree.\n'))
        assert len(documents_by_unit(tmp_path / name)) == 1


@pytest.mark.parametrize(('content', 'place'), [
    (b'One.\n\nTwo.\n\nThree.\n\nNa\xefve.\n\nFive.', 22),
    (b'One.\n\nTwo.\n\nThree.\n\nF\0ur.', 21),
    (b'\xef\xbb\xbfOne.\r\n\r\nTwo.\r\n\r\nThree.\r\n\r\n\xff', 29),
])
def test_a_fault_is_at_its_byte_of_the_file(tmp_path, ranged, content, place):
    path = tmp_path / 'a.txt'
    path.write_bytes(content)
    for range_bytes in (4, 8, 16, 1 << 30):
        ranged(range_bytes)
        with refused(f'{path} is not text in UTF-8: byte {place} is '):
            documents(path)


def test_a_line_that_is_too_long_is_refused(tmp_path, monkeypatch, ranged):
    monkeypatch.setattr(text_formats, 'LONGEST_LINE', 50)
    monkeypatch.setattr(text_formats, '_BLOCK_BYTES', 10)
    ranged(20)
    path = tmp_path / 'a.txt'
    path.write_text('One.\n\n' + 200 * 'x')
    for unit in open_source(str(path)).units[:3]:
        with refused(f'{path}: the line at byte', 'is longer than', 'is this text?'):
            list(open_source(str(path)).read(unit))
    path.write_text(50 * 'One.\r')
    with refused('is longer than', "CR (0x0D) ends its lines, convert it (tr '"):
        documents(path)


def test_ranges_of_an_object_are_read_where_they_are(bucket, ranged):
    from bert_jax.runtime import files

    texts = [f'Text number {number}.' for number in range(100)]
    files.write_whole(f'{bucket}/a.txt', '\n\n'.join(texts))
    ranged(200)
    by_unit = documents_by_unit(f'{bucket}/a.txt')
    assert len(by_unit) > 8 and all(by_unit)
    assert [document.text.decode() for unit in by_unit for document in unit] == texts


def test_batches_and_samples_go_through_ranges(tmp_path, ranged):
    texts = [f'Text number {number}.' for number in range(100)]
    path = tmp_path / 'a.txt'
    path.write_text('\n\n'.join(texts))
    ranged(200)
    source = open_source(str(path))
    [batch] = text_batches(source, range(len(source.units)))
    assert [text.decode() for text in batch.texts] == texts
    assert list(sample_texts(source, 1 << 20)) == texts
