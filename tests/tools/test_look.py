"""tools.look: what it says of a text and of vocabularies for it."""

import random
import re

import pytest

from bert_jax.corpus.source import Document
from bert_jax.corpus.sources import shares_of
from bert_jax.tools import look
from tests.conftest import ROOT
from tests.small_hindi import article, write_dump


@pytest.fixture(scope='module')
def dump(tmp_path_factory):
    """A small Wikipedia, in which an article stands twice."""
    rng = random.Random(0)
    articles = [article(rng, 12) for _ in range(40)]
    file = tmp_path_factory.mktemp('dump') / 'hi.xml.bz2'
    write_dump(file, [*articles, articles[7]])
    return file


def said_of(dump, capsys, *arguments):
    look.main([
        'look', f'--config={ROOT}/configs/tiny_pretrain.py',
        f'--config.data.source=wikidump:{dump}', *arguments])
    return capsys.readouterr().out.splitlines()


def test_a_text_and_vocabularies_of_several_sizes(dump, capsys):
    said = said_of(dump, capsys, '--vocab_sizes=120,300', '--config.data.lowercase=False')
    assert '41 documents (1 repeat an earlier one), 492 sentences, ' in said[0]
    assert said[1].endswith('letters are Devanagari 100.0%; 0.0% of them are capitals')
    rows = [re.split(r' \| ', line.strip('| ')) for line in said[4:]]
    assert [row[0] for row in rows] == ['120', '300']
    assert float(rows[0][1]) > float(rows[1][1]) >= 1.0  # pieces a word
    assert {row[4] for row in rows} == {'0.00%'}


def test_a_named_vocabulary_is_compared_and_lost_vowels_are_warned_of(dump, capsys, tmp_path):
    english = tmp_path / 'vocab.txt'
    english.write_text('[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n')
    said = said_of(dump, capsys, '--vocab_sizes=300', f'--config.data.vocab_file={english}',
                   '--config.data.lowercase=True')
    assert re.match(r'warning: 1\d\.\d % of the characters of the text are vowels', said[2])
    assert said[5].startswith(f'| 6, {english} | ')
    assert float(said[5].split(' | ')[4].rstrip('%')) == 100


def test_it_says_where_only_beginnings_of_files_were_read(capsys, monkeypatch, tmp_path):
    (tmp_path / 'long.txt').write_text('one two.\n\n' * 20)
    (tmp_path / 'short.txt').write_text('one two.\n\n')
    both = f'--config.data.source={tmp_path}/*.txt'
    monkeypatch.setattr(look, '_SAMPLE_BYTES', 100)  # more than is read of both together
    assert ': the first 0.0 MB of text, 8 documents' in said_of(
        tmp_path, capsys, both, '--vocab_sizes=50')[0]
    monkeypatch.setattr(look, '_SAMPLE_BYTES', 1000)
    assert ': 0.0 MB of text, 21 documents' in said_of(
        tmp_path, capsys, both, '--vocab_sizes=50')[0]


@pytest.mark.parametrize(('sizes', 'weights', 'power', 'times'), [
    ((10, 30), (1, 1), 0.0, (3, 1)),
    ((10, 30), (1, 1), 1.0, (1, 1)),
    ((20, 20), (5, 1), 0.0, (5, 1)),
    ((20, 20), (5, 2), 0.0, (2.5, 1)),
])
def test_a_mixture_is_looked_at_in_its_shares(sizes, weights, power, times):
    samples = [[Document(b'%d%04d' % (source, number), False) for number in range(size)]
               for source, size in enumerate(sizes)]
    found = look._times(samples, shares_of([5 * size for size in sizes], weights, power))
    assert found == pytest.approx(times)
    measured, trained = [], []
    for documents, each in zip(samples, found, strict=True):
        look._divide(documents, each, measured, trained)
    assert not set(measured) & set(trained)
    for source, size in enumerate(sizes):
        taken = sum(text.startswith(str(source)) for text in measured + trained)
        assert taken == pytest.approx(times[source] * size)


def test_a_single_document_is_too_little(capsys, tmp_path):
    (tmp_path / 'one.txt').write_text('एक गाँव है।')
    with pytest.raises(SystemExit):
        said_of(tmp_path, capsys, f'--config.data.source={tmp_path}/one.txt')
    assert 'one document is too little' in capsys.readouterr().err


@pytest.mark.parametrize('arguments, says', [
    (['--vocab_sizes=8k'], '--vocab_sizes=8k is no number of pieces'),
    (['--vocab_sizes=9223372036854775807'], 'is no number of pieces'),
    (['--vocab_sizes=8,000'], '--vocab_sizes=000 is no number of pieces'),
    (['--config.data.tokenizer=letters'], 'not trained on text'),
    (['--config.data.source=tfrecord:there'], 'tfrecord:there holds tokens and no text'),
])
def test_what_cannot_be_looked_at_is_refused(dump, capsys, arguments, says):
    with pytest.raises(SystemExit) as stopped:
        said_of(dump, capsys, *arguments)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err
