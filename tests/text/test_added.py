"""Tokens added to a tokenizer are found as Hugging Face's `tokenizers` finds them."""

import contextlib
import dataclasses
import itertools
import json
import random

import numpy as np
import pytest

from bert_jax.corpus import tokenize_plain
from bert_jax.corpus.extending import add_words
from bert_jax.foreign.tokenizer_files import fast_tokenizer
from bert_jax.text.added import AddedToken
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.switches import read_switches, write_switches
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab, unused_row
from bert_jax.text.vocab_files import write_vocab
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer
from tests.refusals import refused

CHARACTERS = 'abcdefgnortwkyABCEX19é'
VOCAB = Vocab.from_tokens([
    *SPECIAL_TOKENS, 'new', 'york', '中', *CHARACTERS, *(f'##{char}' for char in CHARACTERS),
    *'[]/+-.,<>'])
CONTENTS = ('[E1]', '[/E1]', 'c++', 'covid-19', 'new york', 'New', 'né', 'x中', 'ab', 'abc',
            'york')  # the last is in the vocabulary
BITS = (' \t\u3000a ab abc c++ C++ [E1] [/E1] covid-19 new york New\u00a0York newyork né '
        'ne\u0301 nÉ x中y ')
PARTS = [*BITS, *BITS.split(), *CONTENTS, '[E1][/E1]', '_', '\u200d', '\x00', 'ⓐ']


def texts(num, seed):
    draw = random.Random(seed)
    return [''.join(draw.choices(PARTS, k=draw.randint(0, 12))) for _ in range(num)]


def tokenizer_with(lowercase, flags, switches=ORIGINAL):
    """A tokenizer with CONTENTS added, which have these choices of flags in turn."""
    added = []
    for i, content in enumerate(CONTENTS):
        added.append(AddedToken(content, len(VOCAB) + i, *flags[i % len(flags)]))
    return WordPieceTokenizer(
        VOCAB, lowercase, dataclasses.replace(switches, added_tokens=tuple(added)))


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


@pytest.mark.slow
@pytest.mark.parametrize(('lowercase', 'switches'), [
    (True, ORIGINAL), (False, ORIGINAL), (True, Switches(strip_accents=False)),
    (False, Switches(tokenize_chinese_chars=False)), (True, Switches(do_basic_tokenize=False)),
    (False, Switches(never_split=('New',)))])
def test_the_faster_paths_give_the_ids_of_the_reference(lowercase, switches):
    tokenizer = tokenizer_with(lowercase, ALL_FLAGS[::5], switches)
    lines = [text.replace('\n', '') for text in texts(400, 7)]
    wanted = [tokenizer.encode(line) for line in lines]
    wanted_ids = np.concatenate(wanted)
    assert wanted_ids.max() >= len(VOCAB), 'some are added tokens'
    paths = [tokenize_plain]
    with contextlib.suppress(ModuleNotFoundError):  # TensorFlow is an extra
        from bert_jax.corpus import tokenize_tensorflow
        paths.append(tokenize_tensorflow)
    for path in paths:
        ids, counts = path.make_encode(tokenizer)(lines)
        np.testing.assert_array_equal(counts, [len(ids_of_line) for ids_of_line in wanted])
        np.testing.assert_array_equal(ids, wanted_ids)


def entry(content, **flags):
    """An added token as `tokenizers` writes it."""
    all_flags = ('single_word', 'lstrip', 'rstrip', 'normalized', 'special')
    return {'content': content, **dict.fromkeys(all_flags, False), **flags}


E1 = len(VOCAB)  # the id of [E1]
CPP = E1 + 1  # and of c++


@pytest.mark.parametrize('files', [
    pytest.param({
        'tokenizer.json': {'model': {'vocab': {}}, 'added_tokens': [
            entry('[MASK]', id=4), entry('[E1]', id=E1), entry('c++', id=CPP, normalized=True)]},
    }, id='tokenizer.json'),
    pytest.param({
        'tokenizer_config.json': {'added_tokens_decoder': {
            '4': entry('[MASK]'), str(CPP): entry('c++', normalized=True), str(E1): entry('[E1]')}},
    }, id='tokenizer_config.json'),
    pytest.param({
        'added_tokens.json': {'c++': CPP, '[E1]': E1},
        'special_tokens_map.json': {'additional_special_tokens': ['[E1]']},
    }, id='added_tokens.json'),
])
def test_the_files_of_a_folder_name_them(files, tmp_path):
    write_vocab(tmp_path / 'vocab.txt', VOCAB.tokens)
    for file, content in files.items():
        (tmp_path / file).write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path / 'vocab.txt', lowercase=True)
    assert tokenizer.encode('a[E1]C++ [MASK] [e1]') == [
        VOCAB.index['a'], E1, CPP, *tokenizer.encode('[ mask ] [ e1 ]')]
    assert tokenizer.vocab.tokens == (*VOCAB.tokens, '[E1]', 'c++')


@pytest.mark.parametrize('splits', [True, False, None])
def test_special_tokens_may_be_split(splits, tmp_path):
    write_vocab(tmp_path / 'vocab.txt', VOCAB.tokens)
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps({
        'split_special_tokens': splits,
        'added_tokens_decoder': {
            str(E1): entry('[E1]', special=True), str(CPP): entry('c++', normalized=True)}}))
    tokenizer = load_tokenizer(tmp_path / 'vocab.txt', lowercase=True)
    parts = [E1] if not splits else WordPieceTokenizer(VOCAB, lowercase=True).encode('[E1]')
    assert tokenizer.encode('a[E1]c++') == [VOCAB.index['a'], *parts, CPP]
    switches = read_switches(tmp_path / 'vocab.txt')
    write_switches(tmp_path, switches)
    assert read_switches(tmp_path / 'vocab.txt') == switches
    other = dataclasses.replace(switches, split_special_tokens=not splits)
    assert tokenizer.fingerprint != WordPieceTokenizer(VOCAB, True, other).fingerprint


def test_a_special_token_may_have_its_place_in_the_vocabulary(tmp_path, capsys):
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, '[E1]', 'a'])
    (tmp_path / 'tokenizer_config.json').write_text(
        '{"additional_special_tokens": ["[E1]", {"content": "[E2]"}]}')
    assert load_tokenizer(tmp_path / 'vocab.txt', False).encode('a[E1]a') == [6, 5, 6]
    assert 'special tokens [E2] have no id' in capsys.readouterr().err


@pytest.mark.parametrize(('content', 'number', 'said'), [
    ('[E1]', 7, ''), ('[E1]', 9, "'[E1]' has the id 9 in the files beside it, which is kept"),
    ('\u200b', 7, "token '\\u200b' is normalized to nothing, so no text has it")])
def test_a_gap_in_the_ids_and_a_token_of_nothing_are_said(content, number, said, tmp_path, capsys):
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, 'a', 'b'])
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(
        {'added_tokens_decoder': {str(number): {'content': content}}}))
    tokenizer = load_tokenizer(tmp_path / 'vocab.txt', True)
    found = [] if content == '\u200b' else [number]
    assert tokenizer.encode(f'a {content} b') == [5, *found, 6]
    err = capsys.readouterr().err
    assert said in err and bool(err) == bool(said)


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
