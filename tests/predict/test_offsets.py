"""Word pieces and the characters that they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.predict.offsets import pieces_of
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

LETTERS = 'abcdefghijklmnoprstuvwxyzσßçé'
VOCAB = Vocab.from_tokens([
    *SPECIAL_TOKENS, *LETTERS, *(f'##{c}' for c in LETTERS), 'cafe', '##ing', 'un', '##able',
    '.', ',', '(', ')', '中', '##ن', 'ᄒ', '##ᅡ', '##ᆫ', 'É', '##É', 'A',
])


def spans(text, lowercase=True):
    tokenizer = WordPieceTokenizer(VOCAB, lowercase)
    return [(VOCAB.tokens[p.id], text[p.begin : p.end]) for p in pieces_of(tokenizer, text)]


@pytest.mark.parametrize(('text', 'expected'), [
    ('', []),
    ('Unable', [('un', 'Un'), ('##able', 'able')]),
    ('  go,  going ', [('g', 'g'), ('##o', 'o'), (',', ','), ('g', 'g'), ('##o', 'o'),
                       ('##ing', 'ing')]),
    ('Café (cafe\u0301).', [('cafe', 'Café'), ('(', '('), ('cafe', 'cafe\u0301'), (')', ')'),
                            ('.', '.')]),
    ('中中a', [('中', '中'), ('中', '中'), ('a', 'a')]),
    ('quiz go', [('[UNK]', 'quiz'), ('g', 'g'), ('##o', 'o')]),
    ('a\u200bb\0c', [('a', 'a\u200b'), ('##b', 'b\0'), ('##c', 'c')]),
    ('한', [('ᄒ', '한'), ('##ᅡ', '한'), ('##ᆫ', '한')]),
    ('ΣΑΣ', [('[UNK]', 'ΣΑΣ')]),
    ('Σ', [('σ', 'Σ')]),
    ('İb', [('i', 'İ'), ('##b', 'b')]),
    ('x' * 201, [('[UNK]', 'x' * 201)]),
], ids=repr)
def test_pieces_in_the_text(text, expected):
    assert spans(text) == expected


def test_cased_text():
    assert spans('Éb A', lowercase=False) == [('É', 'É'), ('##b', 'b'), ('A', 'A')]


@given(st.text(st.one_of(
    st.sampled_from('aAbe .,()\t\n中éÉßΣσİ한\u0301\u200b\u00ad\u2028\ufffd\0'), st.characters(
        exclude_categories=['Cs']))), st.booleans())
def test_offsets_of_any_text(text, lowercase):
    tokenizer = WordPieceTokenizer(VOCAB, lowercase)
    pieces = pieces_of(tokenizer, text)
    assert [piece.id for piece in pieces] == tokenizer.encode(text)
    at = 0
    for piece in pieces:
        assert 0 <= piece.begin < piece.end <= len(text)
        assert not text[piece.begin].isspace()
        assert piece.begin >= at, 'pieces go backwards'
        at = piece.begin


def test_sentencepiece(tmp_path):
    import sentencepiece

    (tmp_path / 'text').write_text('the quick brown fox jumps over the lazy dog\ncafé\n' * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / 'text'), model_prefix=str(tmp_path / 'sp'), vocab_size=60, pad_id=0,
        unk_id=1, bos_id=-1, eos_id=-1, control_symbols='[CLS],[SEP],[MASK]',
        hard_vocab_limit=False, minloglevel=2,
    )
    tokenizer = SentencePieceTokenizer.from_file(tmp_path / 'sp.model')
    text = ' the  lazy café dog'
    pieces = pieces_of(tokenizer, text)
    assert [piece.id for piece in pieces] == tokenizer.encode(text)
    covered = [text[piece.begin : piece.end] for piece in pieces]
    assert ''.join(covered) == 'thelazycafédog'
    for word in ('the', 'lazy', 'café', 'dog'):
        begin = text.index(word)
        inside = [c for c, p in zip(covered, pieces, strict=True)
                  if begin <= p.begin < begin + len(word)]
        assert ''.join(inside) == word
