"""Letters and k-mers of DNA and proteins, against plain transcriptions and `tokenizers`."""

import json
import random
import re

import numpy as np
import pytest

from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.kmers import KmerTokenizer, kmer_tokens
from bert_jax.text.letters import ALL_LETTERS, LetterTokenizer, letter_tokens, sequence_vocab
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from tests.refusals import refused

SPECIALS = list(SPECIAL_TOKENS)


def letters_of(letters=ALL_LETTERS):
    return LetterTokenizer(sequence_vocab(letter_tokens(letters), 'letters'))


def kmers_of(size):
    return KmerTokenizer(sequence_vocab(kmer_tokens(size), 'k-mers'))


TOKENIZERS = {
    'letters': letters_of(), 'letters:ACGTN': letters_of('ACGTN'), 'kmer:6': kmers_of(6),
    'kmer:3': kmers_of(3), 'kmer:2': kmers_of(2)}


def random_texts(seed, num, alphabet):
    draw = random.Random(seed)
    return [''.join(draw.choices(alphabet, k=draw.randrange(40))) for _ in range(num)]


TEXTS = [
    '', ' ', 'N', 'acgtacgtacg', 'ACGTACNNNACGTAC', 'ACG TAC\nGTA', 'MKV*',
    'ACG7é\u3042\U0001f9ec-', '\ud800ACGTACG', 'A\x0b\x0cC\x85\xa0G', '[MASK]',
    *random_texts(0, 300, 'ACGTacgt'),
    *random_texts(1, 300, 'ACGTN'), *random_texts(2, 300, 'ACGTNRY ac\nx?é*')]


def letters_plainly(text, letters):
    """The tokens of a text by its characters, one after the other."""
    tokens = []
    for char in text:
        if char in ' \t\n\r\v\f':
            continue
        letter = char.upper() if char.isascii() else '?'
        tokens.append(letter if letter in letters else '[UNK]')
    return tokens


def kmers_plainly(text, size):
    """The tokens of a text, the next k bases at a time wherever there are as many."""
    tokens = []
    at = 0
    while at < len(text):
        match = re.compile(f'[ACGTacgt]{{{size}}}').match(text, at)
        if match:
            tokens.append(match[0].upper())
            at = match.end()
        else:
            tokens += letters_plainly(text[at], 'ACGTN')
            at += 1
    return tokens


def tokens_of(tokenizer, ids):
    return [tokenizer.vocab.tokens[i] for i in ids]


def test_the_vocabularies():
    assert letter_tokens('ACGTN') == [*SPECIALS, *'ACGTN']
    assert len(letter_tokens()) == 5 + 26
    assert kmer_tokens(2) == [*SPECIALS, *'ACGTN', 'AA', 'AC', 'AG', 'AT', 'CA', 'CC', 'CG', 'CT',
                              'GA', 'GC', 'GG', 'GT', 'TA', 'TC', 'TG', 'TT']
    assert len(kmer_tokens(6)) == 5 + 5 + 4096
    assert not TOKENIZERS['kmer:6'].vocab.is_continuation.any()


def test_tokens_equal_those_of_a_plain_transcription():
    for text in TEXTS:
        for name, letters in (('letters', ALL_LETTERS), ('letters:ACGTN', 'ACGTN')):
            tokenizer = TOKENIZERS[name]
            assert tokens_of(tokenizer, tokenizer.encode(text)) == letters_plainly(text, letters)
        for size in (2, 3, 6):
            tokenizer = TOKENIZERS[f'kmer:{size}']
            assert tokens_of(tokenizer, tokenizer.encode(text)) == kmers_plainly(text, size)


@pytest.mark.parametrize('name', TOKENIZERS)
def test_what_is_shown_is_the_text_and_places_are_those_of_its_letters(name):
    tokenizer = TOKENIZERS[name]
    for text in TEXTS:
        encoding = tokenizer.encode_with_places(text)
        assert encoding.ids == tokenizer.encode(text)
        assert len(encoding.places) == len(encoding.ids)
        covered = ''
        for piece_id, (begin, end) in zip(*encoding, strict=True):
            covered += text[begin:end]
            if piece_id != tokenizer.vocab.unk_id:
                assert tokenizer.shown(piece_id) == text[begin:end].upper()
        assert covered == re.sub('[ \t\n\r\v\f]', '', text)
    dna = ''.join(random_texts(3, 100, 'ACGTN'))
    assert ''.join(map(tokenizer.shown, tokenizer.encode(dna))) == dna


@pytest.mark.parametrize('name', TOKENIZERS)
def test_a_batch_has_the_tokens_of_each_text(name):
    tokenizer = TOKENIZERS[name]
    one_by_one = [tokenizer.encode(text) for text in TEXTS]
    assert tokenizer.encode_batch(TEXTS) == one_by_one
    assert tokenizer.encode_words(TEXTS) == one_by_one
    assert sum(one_by_one, []) == tokenizer.encode(' '.join(TEXTS))  # the words of a text
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode_batch(['', ' ']) == [[], []]
    ids, counts = tokenizer.encode_joined(TEXTS)
    assert ids.dtype == np.int32
    assert counts.tolist() == [len(tokens) for tokens in one_by_one]


@pytest.mark.parametrize('name', TOKENIZERS)
def test_files_are_read_back_and_tell_the_kind(tmp_path, name):
    tokenizer = TOKENIZERS[name]
    path = tmp_path / ('vocab.kmers' if name.startswith('kmer') else 'vocab.letters')
    write_vocab(path, tokenizer.vocab.tokens)
    read = load_tokenizer(path, lowercase=True)
    assert type(read) is type(tokenizer)
    assert read.fingerprint == tokenizer.fingerprint
    assert read.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)


def test_the_order_of_a_file_decides_the_ids(tmp_path):
    tokens = kmer_tokens(3)
    random.Random(0).shuffle(tokens)
    write_vocab(tmp_path / 'vocab.kmers', tokens)
    read = load_tokenizer(tmp_path / 'vocab.kmers', lowercase=True)
    for text in TEXTS:
        assert tokens_of(read, read.encode(text)) == kmers_plainly(text, 3)
    assert read.fingerprint != TOKENIZERS['kmer:3'].fingerprint


@pytest.mark.parametrize(('name', 'tokens', 'words'), [
    ('a.letters', [*SPECIALS, 'A', 'AC'], ['line 7', "'AC'", 'a letter a line']),
    ('a.letters', [*SPECIALS, 'a'], ['line 6', "'a'"]),
    ('a.letters', SPECIALS, ['holds no letter']),
    ('a.letters', ['A', 'C'], ['[PAD]', 'missing']),
    ('a.kmers', kmer_tokens(3)[:-1], ['TTT is missing among 73 tokens']),
    ('a.kmers', [*kmer_tokens(3), 'ACGT'], ['AAAA is missing']),
    ('a.kmers', [token for token in kmer_tokens(2) if token != 'N'], ['N is missing']),
    ('a.kmers', SPECIALS, ['is missing among 5 tokens']),
])
def test_a_wrong_file_is_refused(tmp_path, name, tokens, words):
    write_vocab(tmp_path / name, tokens)
    with refused(name, *words):
        load_tokenizer(tmp_path / name, lowercase=True)


def test_impossible_vocabularies_are_refused():
    with refused('kmer:1', 'letters'):
        kmer_tokens(1)
    with refused('kmer:9', 'from 2 to 8'):
        kmer_tokens(9)
    for letters in ('ACGTA', 'acgt', 'AC7'):
        with refused(f'letters:{letters}', 'letters:ACGTN'):
            letter_tokens(letters)


@pytest.mark.parametrize('name', TOKENIZERS)
def test_the_library_tokenizers_gives_the_same_ids(name):
    tokenizers = pytest.importorskip('tokenizers')
    tokenizer = TOKENIZERS[name]
    parts = {'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [],
             'post_processor': None, **tokenizer.tokenizer_json_parts()}
    library = tokenizers.Tokenizer.from_str(json.dumps(parts))
    for text in TEXTS:
        if '\ud800' in text:
            continue  # the library refuses lone surrogates
        encoding = library.encode(text)
        assert encoding.ids == tokenizer.encode(text), repr(text)
        assert encoding.offsets == tokenizer.encode_with_places(text).places
    dna = 'ACGTACGTACGNACG'
    assert library.decode(tokenizer.encode(dna)) == dna
