"""Whether text is lower-cased: what decides, and what is said where the vocabulary disagrees."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest

from bert_jax.completion import complete
from bert_jax.config import default_config, finetuning_config
from bert_jax.foreign import load_weights
from bert_jax.text.coverage import check_known
from bert_jax.text.kinds import find_lowercase, load_tokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from tests import tokenizers_of_kinds
from tests.predict.tiny import RECORDED
from tests.refusals import refused

CASED = (*SPECIAL_TOKENS, 'US', 'us', 'Turkey', 'turkey', 'and', '##s')
UNCASED = (*SPECIAL_TOKENS, 'us', 'turkey', 'and', '##s')
CONFIG_FILE = 'tokenizer_config.json'
TOKENIZER_FILE = 'tokenizer.json'
CASED_NORMALIZER = {'normalizer': {'type': 'BertNormalizer', 'lowercase': False}}


def config_with(folder, tokens, files, **fields):
    """The config of a run with a vocabulary and the files (content by name) beside it."""
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    write_vocab(folder / 'vocab.txt', tokens)
    config = default_config()
    config.update(model={'name': 'tiny'})
    config.data.update(vocab_file=str(folder / 'vocab.txt'), **fields)
    return config


@pytest.mark.parametrize('tokens, files', [
    pytest.param(UNCASED, {}, id='no capitals'),
    pytest.param(CASED, {CONFIG_FILE: {'do_lower_case': True}}, id='the config says so'),
    pytest.param(
        UNCASED,
        {CONFIG_FILE: {'do_lower_case': True, 'tokenizer_class': 'BertTokenizer'},
         TOKENIZER_FILE: CASED_NORMALIZER},
        id='the config names the class that ignores the normalizer'),
    pytest.param((*SPECIAL_TOKENS, '中', '1'), {}, id='nothing says'),
])
def test_text_is_lower_cased_silently(tokens, files, tmp_path, capsys):
    config = config_with(tmp_path, tokens, files)
    assert complete(config).data.lowercase is True
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize('tokens, files, said', [
    pytest.param(CASED, {}, '2 of the 11 pieces of', id='capitals'),
    pytest.param(UNCASED, {CONFIG_FILE: {'do_lower_case': False}}, 'do_lower_case=False in ',
                 id='the config says so'),
    pytest.param(UNCASED, {TOKENIZER_FILE: CASED_NORMALIZER}, TOKENIZER_FILE,
                 id='the normalizer says so'),
    pytest.param(CASED, {CONFIG_FILE: {'strip_accents': False}}, 'have capitals',
                 id='the config does not say'),
])
def test_capitals_are_kept_and_what_decides_is_said(tokens, files, said, tmp_path, capsys):
    config = config_with(tmp_path, tokens, files)
    assert complete(config).data.lowercase is False
    assert said in capsys.readouterr().out


@pytest.mark.parametrize('stated', [True, False])
def test_what_the_user_states_counts_and_a_contradiction_is_said(stated, tmp_path, capsys):
    files = {CONFIG_FILE: {'do_lower_case': not stated}}
    config = config_with(tmp_path, CASED, files, lowercase=stated)
    assert complete(config).data.lowercase is stated
    out = capsys.readouterr().out
    assert f'warning: config.data.lowercase={stated}, but do_lower_case={not stated} in' in out


def test_a_setting_that_is_no_truth_value_is_refused(tmp_path):
    config_with(tmp_path, CASED, {CONFIG_FILE: {'do_lower_case': 'no'}})
    with refused(CONFIG_FILE, "do_lower_case='no'"):
        find_lowercase(tmp_path / 'vocab.txt')


@pytest.mark.parametrize(('make', 'lowercases'), [
    (tokenizers_of_kinds.accented_wordpiece, True), (tokenizers_of_kinds.roberta, False)])
def test_a_normalizer_that_lower_cases_is_enough_for_retrieval(make, lowercases, tmp_path):
    """Of a folder whose texts are lower-cased before its tokenizer."""
    weights = load_weights(RECORDED / 'base')
    weights = dataclasses.replace(
        weights, vocab_file=tokenizers_of_kinds.write(tmp_path, make()), lowercase=None,
        inference={'do_lower_case': True}, model=weights.model | {'vocab_size': 400})
    with contextlib.nullcontext() if lowercases else refused('lower-case those of the table'):
        complete(finetuning_config('retrieval'), weights)


WITH_CAPITALS = 'US and us. ' * 50


def check_text(folder, text, tokens, lowercase):
    write_vocab(folder / 'v.txt', [*tokens, '.'])
    tokenizer = load_tokenizer(folder / 'v.txt', lowercase)
    check_known(np.array(tokenizer.encode(text)), tokenizer, 'T', 'V')


@pytest.mark.parametrize('tokens, lowercase, text', [
    (CASED, False, WITH_CAPITALS),
    (UNCASED, True, WITH_CAPITALS),
    (UNCASED, False, WITH_CAPITALS.lower()),
])
def test_nothing_is_said_of_a_text_that_the_vocabulary_covers(
    tokens, lowercase, text, tmp_path, capsys
):
    check_text(tmp_path, text, tokens, lowercase)
    assert capsys.readouterr().out == ''


def test_capitals_of_the_vocabulary_that_are_never_used_are_said(tmp_path, capsys):
    check_text(tmp_path, WITH_CAPITALS, CASED, lowercase=True)
    assert capsys.readouterr().out.startswith(
        'warning: 2 of the 12 pieces of V have capitals, and none of these is')


def test_capitals_of_the_text_that_the_vocabulary_lacks_are_said(tmp_path, capsys):
    check_text(tmp_path, WITH_CAPITALS, UNCASED, lowercase=False)
    assert capsys.readouterr().out.startswith(
        'warning: T: 25.0 % of its pieces are [UNK] in V, whose pieces have no capitals, while '
        'config.data.lowercase=False')


def test_words_that_the_vocabulary_lacks_are_said(tmp_path, capsys):
    check_text(tmp_path, 'us and you ' * 9, UNCASED, lowercase=True)
    assert capsys.readouterr().out.startswith(
        'warning: T: 33.3 % of its pieces are [UNK] in V, and are lost: take a vocabulary or a '
        'model of its')


@pytest.mark.parametrize('length, is_unknown', [(201, True), (1000, True), (200, False)])
def test_characters_of_long_words_are_counted(length, is_unknown, tmp_path, capsys):
    """A word of more than 200 letters is one [UNK]: 1 piece of 31, and most of the characters."""
    write_vocab(tmp_path / 'v.txt', [*UNCASED, '.', 'x', '##x'])
    tokenizer = load_tokenizer(tmp_path / 'v.txt', lowercase=True)
    lines = ['us and ' * 15 + 'x' * length] * 4
    ids = np.concatenate([tokenizer.encode(line) for line in lines])
    check_known(ids, tokenizer, 'T', 'V', iter(lines))
    out = capsys.readouterr().out
    if not is_unknown:
        assert out == ''
    else:
        share = round(100 * length / (15 * len('usand') + length), 1)
        assert out.startswith(f'warning: T: {share} % of its characters are in words that are one '
                              f'[UNK] each in V, of up to {length:,} characters')


def test_a_text_of_unknown_pieces_is_refused(tmp_path):
    with refused('100.0 % of its pieces are [UNK]'):
        check_text(tmp_path, 'neither nor', UNCASED, lowercase=True)
