"""FASTA files: equal to a plain reader's, whatever the blocks; faults with their lines."""

import bz2
import gzip
import random
import re

import pytest

from bert_jax.corpus import fasta
from bert_jax.corpus.fasta import DOCUMENT_LETTERS, LINE_LETTERS
from bert_jax.corpus.sources import open_source
from tests.refusals import refused


def texts_of(spec):
    source = open_source(str(spec))
    documents = [document for unit in source.units for document in source.read(unit)]
    assert not any(document.split for document in documents)
    return [document.text.decode() for document in documents]


def read_plainly(content):
    """The documents of a whole file in memory."""
    documents = []
    for record in re.split('(?m)^>', content)[1:]:
        _, _, lines = record.partition('\n')
        letters = re.sub(r'\s', '', lines).upper().rstrip('*')
        for part in re.split('N{100,}', letters):
            for begin in range(0, len(part), DOCUMENT_LETTERS):
                document = part[begin : begin + DOCUMENT_LETTERS]
                documents.append('\n'.join(re.findall(f'.{{1,{LINE_LETTERS}}}', document)))
    return documents


def random_record(draw, num_letters):
    """A record with gaps, lines of random lengths, blank ones, and other white space."""
    letters = []
    while len(letters) < num_letters:
        if draw.random() < 0.05:
            letters += draw.choice('Nn') * draw.choice([1, 5, 99, 100, 101, 300])
        letters += draw.choices('ACGTacgtNRk', k=draw.randrange(1, 200))
    if draw.random() < 0.3:
        letters += '*' * draw.randrange(1, 3)
    lines = []
    at = 0
    while at < len(letters):
        width = draw.choice([1, 60, 70, 1000])
        lines.append(''.join(letters[at : at + width]) + draw.choice(['', '', ' ', '\t']))
        at += width
    end = draw.choice(['\n', '\r\n', '\n\n'])
    return f'>{draw.choice(["", "name", "a > b * 7"])}{end}{end.join(lines)}'


@pytest.mark.parametrize('block_bytes', [1, 2, 7, 64, 1000, 1 << 20])
def test_documents_equal_those_of_a_plain_reader_whatever_the_blocks(
        tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(fasta, '_BLOCK_BYTES', block_bytes)
    draw = random.Random(block_bytes)
    for case in range(20):
        sizes = [draw.choice([1, 3, 500, 3000]) for _ in range(5)]
        content = '\n'.join(random_record(draw, size) for size in sizes) + draw.choice(['', '\n'])
        path = tmp_path / f'{case}.fa'
        path.write_bytes(content.encode())
        assert texts_of(path) == [text for text in read_plainly(content) if text]


def test_long_records_become_documents_of_lines_in_constant_memory(tmp_path, monkeypatch):
    draw = random.Random(0)
    letters = ''.join(draw.choices('ACGT', k=2 * DOCUMENT_LETTERS + 7000))
    content = f'>chromosome 1\n{letters}\n>short\nACG'  # on one line
    path = tmp_path / 'one.fna'
    path.write_text(content)
    documents = texts_of(path)
    assert documents == read_plainly(content)
    assert [len(text.split('\n')) for text in documents] == [10, 10, 2, 1]
    assert ''.join(documents).replace('\n', '') == letters + 'ACG'

    monkeypatch.setattr(fasta, '_BLOCK_BYTES', 1000)
    reader = fasta._Reader('one.fna')
    for at in range(0, len(content), 1000):
        list(reader.read(content[at : at + 1000].encode()))
        if reader._record:
            assert len(reader._record._letters) <= DOCUMENT_LETTERS + 1000


def test_all_spellings_and_names_give_the_same_documents(tmp_path):
    content = b'>a\nACGT\n>b\nMKV*\n'
    names = ('x.fa', 'x.FASTA', 'x.fna', 'x.faa', 'x.fas', 'x.ffn', 'x.frn')
    for name in names:
        (tmp_path / name).write_bytes(content)
        assert texts_of(tmp_path / name) == ['ACGT', 'MKV']
    (tmp_path / 'y.fa.gz').write_bytes(gzip.compress(content))
    assert texts_of(tmp_path / 'y.fa.gz') == ['ACGT', 'MKV']
    (tmp_path / 'y.fasta.bz2').write_bytes(bz2.compress(content))
    assert texts_of(tmp_path / 'y.fasta.bz2') == ['ACGT', 'MKV']
    (tmp_path / 'other').write_bytes(b'\xef\xbb\xbf' + content.replace(b'\n', b'\r\n'))
    assert texts_of(f"fasta:{tmp_path / 'other'}") == ['ACGT', 'MKV']


def test_text_in_persian_stays_text_and_the_digest_tells(tmp_path):
    (tmp_path / 'wiki.fa').write_text('متن فارسی.')
    source = open_source(str(tmp_path / 'wiki.fa'))
    assert [document.split for document in source.read(source.units[0])] == [True]
    (tmp_path / 'x.fa').write_text('>a\nACGT\n')
    digests = {open_source(spec.format(tmp_path)).fingerprint()
               for spec in ('{}/x.fa', 'fasta:{}/x.fa', 'text:{}/x.fa')}
    assert len(digests) == 3


def test_gaps_separate_documents_and_short_runs_of_n_stay(tmp_path):
    short, gap = 'N' * 99, 'n' * 50 + '\n' + 'N' * 50
    (tmp_path / 'x.fa').write_text(f'>a\n{gap}ACGT{short}ACGT\n{gap}TTT{gap}\n>b\n{gap}\n>c\nA')
    assert texts_of(tmp_path / 'x.fa') == [f'ACGT{short}ACGT', 'TTT', 'A']


@pytest.mark.parametrize(('content', 'words'), [
    (b'ACGT\n', ['line 1', "'ACGT' is no header", "'>NAME'"]),
    (b'\n\n  ACGT\n', ['line 3', "'ACGT'"]),
    (b'@read1\nACGT\n+\nIIII\n', ['line 1', "'@read1'", 'FASTQ', 'seqtk seq -a']),
    (b'\x89PNG\r\n\x1a\n\0\0', ['line 1', 'PNG', 'is no header']),
    (b'>a\nAC\nGT7A\n', ['line 3', "'7' in a sequence", 'correct the line']),
    (b'>a\nACGT\n>b\n\nACG-T\n', ['line 5', "'-'", 'gap of an alignment']),
    (b'>a\nACGT\n>b\nAC>GT\n', ['line 4', "'>' in a sequence"]),
    (b'>a\nAC\nG\xc3\xa9T\n', ['line 3', 'byte 0xc3']),
    (b'>a\nAC\0\n', ['line 2', "'\\x00'"]),
    (b'>a\nACGT\n>b second\n\n>c\nACGT\n', ['line 3', "'b second' has no sequence"]),
    (b'>a\nACGT\n>b', ['line 3', "'b' has no sequence", 'cut short']),
    (b'>a\rACGT\r', ['line 1', 'has no sequence']),
    (b'\n \n', ['is empty']),
    (b'>' + b'A' * (2 << 20), ['line 1', 'header is longer']),
])
def test_faults_are_named(tmp_path, monkeypatch, content, words):
    (tmp_path / 'wrong.fa').write_bytes(content)
    with refused('wrong.fa', *words):
        texts_of(f"fasta:{tmp_path / 'wrong.fa'}")
    monkeypatch.setattr(fasta, '_BLOCK_BYTES', 2000 if len(content) > 2000 else 1)
    with refused('wrong.fa', words[0]):  # the same line
        texts_of(f"fasta:{tmp_path / 'wrong.fa'}")
