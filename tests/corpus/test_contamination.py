"""Which documents hold texts of evaluation files, and how much of each file is in a text."""

import gzip
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.corpus import document_blocks
from bert_jax.corpus.contamination import Evaluated, fingerprint_of
from bert_jax.runtime.errors import InputError
from bert_jax.text.letters import LetterTokenizer, letter_tokens, sequence_vocab
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

WORDS = [f'{first}{second}' for first in 'abcdefghij' for second in 'klmnopqrst']
LONG = ' '.join(WORDS[:20])
OTHER = ' '.join(WORDS[40:60])
SHORT = ' '.join(WORDS[80:89])
TOO_SHORT = ' '.join(WORDS[90:97])


@pytest.fixture(name='tokenizer', scope='module')
def _tokenizer():
    """A tokenizer that knows the first words whole and splits the others into letters."""
    letters = [*map(chr, range(ord('a'), ord('z') + 1)), *map(chr, range(ord('A'), ord('Z') + 1))]
    pieces = [*SPECIAL_TOKENS, *'.,"!?', *letters, *(f'##{letter}' for letter in letters)]
    return WordPieceTokenizer(Vocab.from_tokens([*pieces, *WORDS[:50]]), lowercase=False)


def _found(evaluated, tokenizer, texts):
    tokens, counts = tokenizer.encode_joined(texts)
    return evaluated.found(tokens.astype(np.uint16), np.concatenate([[0], np.cumsum(counts)]))


def _part_of(text, begin, end):
    return ' '.join(text.split()[begin:end])


@pytest.mark.parametrize(('text', 'is_found'), [
    pytest.param(LONG, True, id='the text'),
    pytest.param(_part_of(LONG, 3, 16), True, id='13 of its words'),
    pytest.param(_part_of(LONG, 3, 15), False, id='12 of its words'),
    pytest.param(f'{OTHER[:20]} {LONG} {OTHER[:20]}', True, id='amid others'),
    pytest.param(_part_of(LONG, 0, 12) + ' zz ' + _part_of(LONG, 12, 20), False, id='one between'),
    pytest.param(LONG.upper(), True, id='capitals, in other pieces'),
    pytest.param(LONG.replace(' ', ', ') + '!', True, id='punctuation'),
    pytest.param(LONG.replace(' ', '\n'), True, id='lines'),
    pytest.param(LONG.replace(' ', ''), False, id='no spaces'),
    pytest.param(' '.join(reversed(LONG.split())), False, id='another order'),
    pytest.param(OTHER, False, id='other words'),
    pytest.param(SHORT, True, id='a text of 9 words'),
    pytest.param(f'zz {SHORT} zz', True, id='a text of 9 words amid others'),
    pytest.param(_part_of(SHORT, 0, 8), False, id='8 of 9 words'),
    pytest.param(TOO_SHORT, False, id='a text of 7 words'),
    pytest.param('', False, id='nothing'),
])
def test_what_is_found(tmp_path, tokenizer, text, is_found):
    path = tmp_path / 'eval.txt'
    path.write_text(f'{LONG}\n{SHORT}\n{TOO_SHORT}\n')
    evaluated = Evaluated.open(str(path), tokenizer)
    found = _found(evaluated, tokenizer, ['zz', text, 'zz'])
    assert found.documents.tolist() == [1] * is_found
    counts, = evaluated.counts([found])
    assert counts == (str(path), 2, int(is_found), int(is_found))


def test_a_run_of_words_is_in_one_document(tmp_path, tokenizer):
    path = tmp_path / 'eval.txt'
    path.write_text(LONG)
    evaluated = Evaluated.open(str(path), tokenizer)
    halves = [_part_of(LONG, 0, 10), _part_of(LONG, 10, 20)]
    assert not len(_found(evaluated, tokenizer, halves).documents)
    assert len(_found(evaluated, tokenizer, [' '.join(halves)]).documents)


ROWS = [{'text': LONG, 'label': 1, 'more': ['zz', {'deep': OTHER}]}, {'text': SHORT, 'label': 0}]


def _write(path):
    if path.suffix == '.parquet':
        pq.write_table(pa.Table.from_pylist([{**row, 'more': OTHER} for row in ROWS]), path)
    elif path.suffix == '.jsonl':
        path.write_text('\n'.join(map(json.dumps, ROWS)))
    elif path.suffix == '.csv':
        path.write_text(f'label,text\n1,"{LONG}"\n0,"{SHORT}"\n,"{OTHER}"\n')
    elif path.suffix == '.gz':
        path.write_bytes(gzip.compress(f'1\t{LONG}\n2\t{SHORT}\n3\t{OTHER}\n'.encode()))
    else:
        path.write_text(f'{LONG}\n\n{SHORT}\n{OTHER}\n{OTHER}\n')
    return str(path)


@pytest.mark.parametrize('name', ['a.txt', 'a.csv', 'a.tsv.gz', 'a.jsonl', 'a.parquet'])
def test_all_texts_of_files_are_read(tmp_path, tokenizer, name):
    evaluated = Evaluated.open(_write(tmp_path / name), tokenizer)
    found = _found(evaluated, tokenizer, ['zz', SHORT, f'{LONG} {OTHER}', OTHER])
    assert found.documents.tolist() == [1, 2, 3]
    counts, = evaluated.counts([found])
    assert counts[1:] == (3, 3, 3)


def test_counts_of_several_files_and_parts(tmp_path, tokenizer, monkeypatch):
    first = tmp_path / 'first.txt'
    first.write_text(f'{LONG}\n{OTHER}\n')
    second = tmp_path / 'second.txt'
    second.write_text(f'{SHORT}\n{OTHER}\n')
    evaluated = Evaluated.open(f'{first}, {second}', tokenizer)
    evaluated = pickle.loads(pickle.dumps(evaluated))
    texts = [OTHER, 'zz zz', f'{OTHER} {SHORT}', *['zz'] * 30, OTHER]
    whole = _found(evaluated, tokenizer, texts)
    assert whole.documents.tolist() == [0, 0, 2, 2, 33, 33]
    assert whole.files.tolist() == [0, 1, 0, 1, 0, 1]
    expected = [(str(first), 2, 1, 3), (str(second), 2, 2, 3)]
    assert evaluated.counts([whole]) == expected
    parts = [_found(evaluated, tokenizer, part) for part in (texts[:1], texts[1:2], texts[2:])]
    assert evaluated.counts(parts) == expected
    monkeypatch.setattr(document_blocks, '_TOKENS_AT_ONCE', 5)
    for array, same in zip(_found(evaluated, tokenizer, texts), whole, strict=True):
        np.testing.assert_array_equal(array, same)


def test_the_fingerprint_follows_the_content(tmp_path):
    fingerprints = []
    for folder, content in (('a', LONG), ('b', LONG), ('c', OTHER)):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / 'eval.txt'
        path.write_text(content)
        fingerprints.append(fingerprint_of(str(path)))
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


@pytest.mark.parametrize(('content', 'named', 'message'), [
    pytest.param(None, 'none.csv', 'no file matches', id='missing'),
    pytest.param('too short', 'a.txt', 'no text of 8 words', id='nothing to look for'),
    pytest.param('{"a"', 'a.jsonl', 'line 1: not JSON', id='malformed'),
])
def test_bad_files(tmp_path, tokenizer, content, named, message):
    path = tmp_path / named
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message) as error:
        Evaluated.open(str(path), tokenizer)
    assert named in str(error.value)


def test_letters_are_no_words(tmp_path):
    tokenizer = LetterTokenizer(sequence_vocab(letter_tokens(), 'letters'))
    with pytest.raises(InputError, match='letters'):
        Evaluated.open(str(tmp_path / 'a.txt'), tokenizer)
