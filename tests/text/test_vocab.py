"""Vocabulary files: ids, special tokens, and one clear line for each thing that can be wrong."""

import pickle

import numpy as np
import pytest

from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.vocab_files import read_vocab, write_vocab
from tests.refusals import refused


def special_ids(vocab):
    return vocab.pad_id, vocab.unk_id, vocab.cls_id, vocab.sep_id, vocab.mask_id


def test_ids_follow_lines(tmp_path):
    # A line of white space takes an id, as in Google's load_vocab, though no text can match it.
    path = tmp_path / 'vocab.txt'
    lines = ['[UNK]', '[CLS]', '[SEP]', '[PAD]', '[MASK]']
    lines += ['\r', 'a\u3000', 'a', '##a', '##', 'b']
    for content in ('\n'.join(lines), '\n'.join([*lines, '']), '\r\n'.join([*lines, ''])):
        path.write_bytes(content.encode())
        vocab = read_vocab(path)
        assert len(vocab) == 11 and special_ids(vocab) == (3, 0, 1, 2, 4)
        assert vocab.index['a'] == 7 and vocab.index['b'] == 10
        assert '##a' in vocab.index and 'c' not in vocab.index
        np.testing.assert_array_equal(np.flatnonzero(vocab.is_continuation), [8])
        assert vocab.is_continuation.dtype == np.bool_


def test_write_then_read(tmp_path):
    tokens = [*SPECIAL_TOKENS, 'é', '##\u2028x']
    write_vocab(tmp_path / 'new.txt', tokens)
    vocab = read_vocab(tmp_path / 'new.txt')
    for same in (vocab, pickle.loads(pickle.dumps(vocab))):
        assert same.tokens == tuple(tokens) and special_ids(same) == (0, 1, 2, 3, 4)
        assert same.index['é'] == 5 and same.fingerprint == Vocab.from_tokens(tokens).fingerprint


SPECIAL_LINES = '\n'.join(SPECIAL_TOKENS).encode() + b'\n'


@pytest.mark.parametrize(('data', 'words'), [
    (None, ['No such file']), (b'\n\n', ['empty']),
    (SPECIAL_LINES.replace(b'[MASK]\n', b''), ['[MASK]', 'missing']),
    (SPECIAL_LINES.replace(b'\n', b'\r'), ['line 1', 'lone CR']),
    (SPECIAL_LINES + SPECIAL_LINES.replace(b'\n', b'\r'), ['line 6', 'lone CR']),
    (SPECIAL_LINES + b'caf\xe9\n', ['line 6', '0xe9', 'offset 34', 'UTF-8']),
])
def test_bad_files_are_named(tmp_path, data, words):
    path = tmp_path / 'vocab.txt'
    if data is not None:
        path.write_bytes(data)
    with refused(path, *words):
        read_vocab(path)
    with refused('directory'):
        read_vocab(tmp_path)


def test_repeated_and_empty_lines_keep_their_ids_and_the_later_one_wins(tmp_path, capsys):
    path = tmp_path / 'vocab.txt'
    path.write_bytes(SPECIAL_LINES + b'a\n\nb\n\na\nc\n')
    for _ in range(2):
        vocab = read_vocab(path)
    assert vocab.tokens[5:] == ('a', '', 'b', '', 'a', 'c') and vocab.repeated == (5, 6)
    assert [vocab.index[token] for token in 'abc'] == [9, 7, 10]
    assert len(set(vocab.distinct_tokens)) == len(vocab)
    (note,) = capsys.readouterr().err.splitlines()  # said once
    assert f"{path}: repeated or empty lines (2 of them, such as line 6, 'a', again in" in note
    write_vocab(tmp_path / 'again.txt', vocab.tokens)
    assert (tmp_path / 'again.txt').read_bytes() == path.read_bytes()


@pytest.mark.parametrize(('words', 'is_cased'), [
    (['US', 'us', 'and', '##s'], True), (['us', 'and', '##s'], False), (['[CLS]', '[E1]'], None),
    (['中', '1', '.'], None), ([*(f'a{i}' for i in range(200)), 'COVID'], False),
])
def test_capitals_tell_whether_a_vocabulary_is_cased(words, is_cased):
    assert Vocab.from_tokens(dict.fromkeys([*SPECIAL_TOKENS, *words])).is_cased is is_cased
