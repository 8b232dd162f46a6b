"""The reference tokenizer against the original program's recorded tokens of hard lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.runtime.errors import InputError
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.vocab_files import write_vocab
from bert_jax.text.wordpiece import WordPieceTokenizer, _Table, basic_tokens

TINY = Vocab.from_tokens([*SPECIAL_TOKENS, 'un', '##aff', '##able', 'aff', 'a', '##a', 'want', '!'])


@pytest.mark.parametrize(('name', 'field', 'lowercase'), [
    ('uncased', 'uncased', True), ('cased', 'cased', False),
    ('multilingual-cased', 'multilingual_cased', False),
])
def test_equals_the_original(shared_data, tokenized, name, field, lowercase):
    vocab_file = shared_data / 'vocab' / f'bert-base-{name}-vocab.txt'
    tokenizer = WordPieceTokenizer.from_file(vocab_file, lowercase=lowercase)
    assert tokenizer.fingerprint == load_tokenizer(vocab_file, lowercase).fingerprint
    assert len(tokenized) == 1588
    for example in tokenized:
        assert tokenizer.tokenize(example['text']) == example[field], example['text']


@pytest.mark.parametrize(('text', 'uncased', 'cased'), [
    ('', [], []),
    (' \t\r\n\u3000\u2028', [], []),
    ('Hello, World!', ['hello', ',', 'world', '!'], ['Hello', ',', 'World', '!']),
    ('a\0b\ufffdc\u200bd\x0be\x85f\x1cg', ['abcdefg'], ['abcdefg']),
    ('a\u00a0b\u2029c', ['a', 'b', 'c'], ['a', 'b', 'c']),
    ('Éa e\u0301', ['ea', 'e'], ['Éa', 'e\u0301']),
    ('x中国y', ['x', '中', '国', 'y'], ['x', '中', '国', 'y']),
    ('カナ한', ['カナ\u1112\u1161\u11ab'], ['カナ한']),
    ('a$b+c^d`e', list('a$b+c^d`e'), list('a$b+c^d`e')),
    ('[MASK]', ['[', 'mask', ']'], ['[', 'MASK', ']']),
    ('ΟΔΟΣ ΟΔΟΣ中', ['οδος', 'οδος', '中'], ['ΟΔΟΣ', 'ΟΔΟΣ', '中']),
    ('İß ﬁ…', ['iß', 'ﬁ', '…'], ['İß', 'ﬁ', '…']),
])
def test_basic_tokens(text, uncased, cased):
    assert basic_tokens(text, lowercase=True) == uncased
    assert basic_tokens(text, lowercase=False) == cased


@pytest.mark.parametrize(('text', 'tokens'), [
    ('unaffable', ['un', '##aff', '##able']),
    ('Unaffable!', ['un', '##aff', '##able', '!']),
    ('unwanted', ['[UNK]']),  # one part is unknown, so the whole word is
    ('want unx a', ['want', '[UNK]', 'a']),
    ('a' * 200, ['a'] + ['##a'] * 199),
    ('a' * 201, ['[UNK]']),
])
def test_wordpiece(text, tokens):
    assert WordPieceTokenizer(TINY).tokenize(text) == tokens


@given(st.text(), st.text())
def test_words_are_independent_and_the_cache_changes_nothing(left, right):
    tokenizer = WordPieceTokenizer(TINY, cache_size=3)
    apart = tokenizer.encode(left) + tokenizer.encode(right)
    assert tokenizer.encode(f'{left} {right}') == apart
    assert WordPieceTokenizer(TINY).encode(f'{left}\u2028{right}') == apart


def test_fingerprint_tells_case_and_vocabulary_apart():
    vocabs = [Vocab.from_tokens([*SPECIAL_TOKENS, *words]) for words in ('ab', 'ba', ['ab'])]
    found = {WordPieceTokenizer(v, low).fingerprint for v in vocabs for low in (True, False)}
    assert len(found) == 6 and WordPieceTokenizer(vocabs[0]).fingerprint in found


def test_load_tokenizer_chooses_by_name(tmp_path):
    write_vocab(tmp_path / 'vocab.txt', TINY.tokens)
    assert load_tokenizer(tmp_path / 'vocab.txt', True).tokenize('Want') == ['want']
    with pytest.raises(InputError, match='SentencePiece model'):
        load_tokenizer(tmp_path / 'absent.model', True)
    (tmp_path / 'bad.model').write_bytes(b'no model')
    with pytest.raises(InputError, match='not a SentencePiece model'):
        load_tokenizer(tmp_path / 'bad.model', True)


def test_what_becomes_of_a_character_is_computed_once_and_rare_ones_fill_no_memory():
    computed = []
    table = _Table(lambda char: computed.append(char) or char.upper())
    for _ in range(2):
        assert 'äöä'.translate(table) == 'ÄÖÄ' and computed == ['ä', 'ö']
    every_char = ''.join(map(chr, range(100, 100_000)))
    assert every_char.translate(table) == ''.join(char.upper() for char in every_char)
    assert len(table) <= 65_536
