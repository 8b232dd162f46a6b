"""Tokens added to a tokenizer are found as Hugging Face's `tokenizers` finds them."""

import dataclasses
import itertools
import json
import random

import numpy as np
import pytest

from bert_jax.data import tokenize_plain
from bert_jax.text import load_tokenizer, read_switches, write_switches
from bert_jax.text.added import AddedToken
from bert_jax.text.training import add_words
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab, unused_row, write_vocab
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer
from bert_jax.weights.tokenizer_files import fast_tokenizer
from tests.refusals import refused

VOCAB = Vocab.from_tokens([*SPECIAL_TOKENS, 'new', 'york', '中', *(
    mark + char for char in 'abcdefgnortwkyABCEX19é' for mark in ('', '##')), *'[]/+-.,<>'])
CONTENTS = ('[E1]', '[/E1]', 'c++', 'covid-19', 'new york', 'New', 'né', 'x中', 'ab', 'abc',
            'york')  # the last is in the vocabulary
BITS = (' \t\u3000a ab abc c++ C++ [E1] [/E1] covid-19 new york New\u00a0York newyork né '
        'ne\u0301 nÉ x中y ')
PARTS = [*BITS, *BITS.split(), *CONTENTS, '[E1][/E1]', '_', '\u200d', '\x00', 'ⓐ']


def texts(num, seed):
    draw = random.Random(seed)
    return [''.join(draw.choices(PARTS, k=draw.randint(0, 12))) for _ in range(num)]


def tokenizer_with(lowercase, flags, switches=ORIGINAL):
    added = tuple(AddedToken(content, len(VOCAB) + i, *flags[i % len(flags)])
                  for i, content in enumerate(CONTENTS))
    return WordPieceTokenizer(
        VOCAB, lowercase, dataclasses.replace(switches, added_tokens=added))


ALL_FLAGS = list(itertools.product((False, True), repeat=5))
CHOICES = [ALL_FLAGS[i:i + 1] for i in range(32)] + [ALL_FLAGS[::3], ALL_FLAGS[::-5]]


@pytest.mark.parametrize('lowercase', [True, False])
@pytest.mark.parametrize('number', range(len(CHOICES)))
def test_ids_are_those_of_the_library(number, lowercase):
    tokenizers = pytest.importorskip('tokenizers')
    ours = tokenizer_with(lowercase, CHOICES[number])
    theirs = tokenizers.Tokenizer.from_str(json.dumps(fast_tokenizer(ours)))
    for text in texts(300, number):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, repr(text)


@pytest.mark.parametrize('switches', [
    ORIGINAL, Switches(strip_accents=False), Switches(tokenize_chinese_chars=False),
    Switches(do_basic_tokenize=False), Switches(never_split=('New',))])
@pytest.mark.parametrize('lowercase', [True, False])
def test_the_faster_paths_give_the_ids_of_the_reference(lowercase, switches):
    tokenizer, lines = tokenizer_with(lowercase, ALL_FLAGS[::5], switches), texts(400, 7)
    lines = [line.replace('\n', '') for line in lines]
    wanted = [tokenizer.encode(line) for line in lines]
    assert any(i >= len(VOCAB) for ids in wanted for i in ids)
    paths = [tokenize_plain]
    try:
        from bert_jax.data import tokenize
        paths.append(tokenize)
    except ModuleNotFoundError:
        pass  # TensorFlow is an extra
    for path in paths:
        ids, counts = path.make_encode(tokenizer)(lines)
        np.testing.assert_array_equal(counts, [len(x) for x in wanted])
        np.testing.assert_array_equal(ids, [i for x in wanted for i in x])


def entry(content, **flags):
    return {'content': content} | dict.fromkeys(
        ('single_word', 'lstrip', 'rstrip', 'normalized', 'special'), False) | flags


N = len(VOCAB)
FILES = {
    'tokenizer.json': {'tokenizer.json': {'model': {'vocab': {}}, 'added_tokens': [
        entry('[MASK]', id=4), entry('[E1]', id=N), entry('c++', id=N + 1, normalized=True)]}},
    'tokenizer_config.json': {'tokenizer_config.json': {'added_tokens_decoder': {
        '4': entry('[MASK]'), str(N + 1): entry('c++', normalized=True), str(N): entry('[E1]')}}},
    'added_tokens.json': {
        'added_tokens.json': {'c++': N + 1, '[E1]': N},
        'special_tokens_map.json': {'additional_special_tokens': ['[E1]']}},
}


@pytest.mark.parametrize('name', FILES)
def test_the_files_of_a_folder_name_them(name, tmp_path):
    write_vocab(tmp_path / 'vocab.txt', VOCAB.tokens)
    for file, content in FILES[name].items():
        (tmp_path / file).write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path / 'vocab.txt', lowercase=True)
    assert tokenizer.encode('a[E1]C++ [MASK] [e1]') == [
        VOCAB.index['a'], N, N + 1, *tokenizer.encode('[ mask ] [ e1 ]')]
    assert tokenizer.vocab.tokens == (*VOCAB.tokens, '[E1]', 'c++')


def test_a_special_token_may_have_its_place_in_the_vocabulary(tmp_path, capsys):
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, '[E1]', 'a'])
    (tmp_path / 'tokenizer_config.json').write_text(
        '{"additional_special_tokens": ["[E1]", {"content": "[E2]"}]}')
    assert load_tokenizer(tmp_path / 'vocab.txt', False).encode('a[E1]a') == [6, 5, 6]
    assert 'special tokens [E2] have no id' in capsys.readouterr().err


def test_they_are_kept_beside_a_vocabulary_and_words_come_behind_them(tmp_path):
    tokens = (AddedToken('[E1]', 7, normalized=False, special=True), AddedToken('a b', 8),
              AddedToken('[E2]', None, normalized=False, special=True))
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, '[E2]', 'a'])
    switches = Switches(strip_accents=False, added_tokens=tokens)
    write_switches(tmp_path, switches)
    assert read_switches(tmp_path / 'vocab.txt') == switches
    before = load_tokenizer(tmp_path / 'vocab.txt', False)
    assert before.encode('[E2]a b[E1]') == [5, 8, 7]
    (tmp_path / 'words').write_text('word\n')
    longer, _ = add_words(tmp_path / 'vocab.txt', tmp_path / 'words', False)
    assert longer[7:] == [unused_row(7), unused_row(8), 'word']
    write_vocab(tmp_path / 'vocab.txt', longer)
    after = load_tokenizer(tmp_path / 'vocab.txt', False)
    assert after.encode('[E2]a b[E1] word') == [5, 8, 7, 9]
    assert after.vocab.tokens[7:] == ('[E1]', 'a b', 'word')
    assert len({x.fingerprint for x in (before, after)}) == 2


@pytest.mark.parametrize(('fields', 'words'), [
    ({'added_tokens_decoder': {'6': {'content': '[E1]'}}}, ["'[E1]' has the id 6", "of 'b'"]),
    ({'added_tokens_decoder': ['[E1]']}, ['not listed by id']),
    ({'added_tokens_decoder': {'x': {'content': '[E1]'}}}, ['[E1]', 'not one that can be read']),
    ({'added_tokens_decoder': {'-1': {'content': '[E1]'}}}, ['[E1]']),
    ({'additional_special_tokens': [3]}, ['3']),
])
def test_entries_that_contradict_the_vocabulary_are_refused(fields, words, tmp_path):
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, 'a', 'b'])
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(fields))
    with refused(tmp_path, *words):
        load_tokenizer(tmp_path / 'vocab.txt', True)
