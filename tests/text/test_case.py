"""Whether text is lower-cased: what decides, and what is said where the vocabulary disagrees."""

import json

import numpy as np
import pytest

from bert_jax.config import default_config
from bert_jax.text import check_known, find_lowercase, load_tokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS, write_vocab
from bert_jax.validation import complete
from tests.refusals import refused

CASED = (*SPECIAL_TOKENS, 'US', 'us', 'Turkey', 'turkey', 'and', '##s')
UNCASED = (*SPECIAL_TOKENS, 'us', 'turkey', 'and', '##s')
FIELD, FAST = 'tokenizer_config.json', 'tokenizer.json'


def normalizer(lowercase):
    return {'normalizer': {'type': 'BertNormalizer', 'lowercase': lowercase}}


def config_with(folder, tokens, files=(), **fields):
    for name, content in dict(files).items():
        (folder / name).write_text(json.dumps(content))
    write_vocab(folder / 'vocab.txt', tokens)
    config = default_config()
    config.update(model={'name': 'tiny'})
    config.data.update(vocab_file=str(folder / 'vocab.txt'), **fields)
    return config


@pytest.mark.parametrize(('tokens', 'files', 'found', 'said'), [
    (CASED, {}, False, '2 of the 11 pieces of'),
    (UNCASED, {}, True, ''),
    (UNCASED, {FIELD: {'do_lower_case': False}}, False, 'do_lower_case=False in '),
    (CASED, {FIELD: {'do_lower_case': True}}, True, ''),
    (UNCASED, {FAST: normalizer(False)}, False, FAST),
    (UNCASED, {FIELD: {'do_lower_case': True, 'tokenizer_class': 'BertTokenizer'},
               FAST: normalizer(False)}, True, ''),
    (CASED, {FIELD: {'strip_accents': False}}, False, 'have capitals'),
    ((*SPECIAL_TOKENS, '中', '1'), {}, True, '')])
def test_the_files_decide_then_the_vocabulary(tokens, files, found, said, tmp_path, capsys):
    config = config_with(tmp_path, tokens, files)
    assert complete(config).data.lowercase is found
    out = capsys.readouterr().out
    assert said in out and bool(out) == bool(said)


@pytest.mark.parametrize('stated', [True, False])
def test_what_the_user_states_counts_and_a_contradiction_is_said(stated, tmp_path, capsys):
    config = config_with(tmp_path, CASED, {FIELD: {'do_lower_case': not stated}}, lowercase=stated)
    assert complete(config).data.lowercase is stated
    out = capsys.readouterr().out
    assert f'warning: config.data.lowercase={stated}, but do_lower_case={not stated} in' in out


def test_a_setting_that_is_no_truth_value_is_refused(tmp_path):
    config_with(tmp_path, CASED, {FIELD: {'do_lower_case': 'no'}})
    with refused(FIELD, "do_lower_case='no'"):
        find_lowercase(tmp_path / 'vocab.txt')


US = 'US and us. ' * 50


@pytest.mark.parametrize(('tokens', 'lowercase', 'text', 'said'), [
    (CASED, False, US, ''),
    (UNCASED, True, US, ''),
    (UNCASED, False, US.lower(), ''),
    (CASED, True, US, 'warning: 2 of the 12 pieces of V have capitals, and none of these is'),
    (UNCASED, False, US, 'warning: T: 25.0 % of its pieces are [UNK] in V, whose pieces have no '
                         'capitals, while config.data.lowercase=False'),
    (UNCASED, True, 'us and you ' * 9, 'warning: T: 33.3 % of its pieces are [UNK] in V, and are '
                                       'lost: take a vocabulary or a model of its'),
])
def test_a_text_that_the_vocabulary_does_not_cover_is_said(
    tokens, lowercase, text, said, tmp_path, capsys
):
    write_vocab(tmp_path / 'v.txt', [*tokens, '.'])
    tokenizer = load_tokenizer(tmp_path / 'v.txt', lowercase)
    check_known(np.array(tokenizer.encode(text)), tokenizer, 'T', 'V')
    out = capsys.readouterr().out
    assert out.startswith(said) and bool(out) == bool(said)


def test_a_text_of_unknown_pieces_is_refused(tmp_path):
    write_vocab(tmp_path / 'v.txt', UNCASED)
    tokenizer = load_tokenizer(tmp_path / 'v.txt', True)
    with refused('100.0 % of its pieces are [UNK]'):
        check_known(np.array(tokenizer.encode('neither nor')), tokenizer, 'T', 'V')
