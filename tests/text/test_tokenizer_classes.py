"""What the class beside a tokenizer.json makes, and what it leaves as the file has it."""

import json

import pytest

from bert_jax.foreign.tokenizer_files import fast_tokenizer
from bert_jax.runtime.files import as_path
from bert_jax.text.classes import follow_class
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.settings import read_settings, tell_not_applied
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

BERTS = fast_tokenizer(WordPieceTokenizer(Vocab.from_tokens([*SPECIAL_TOKENS, 'a'])))
NAMES = {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'bos_token': '[CLS]', 'eos_token': '[SEP]'}


@pytest.mark.parametrize(('named', 'is_followed'), [
    ('RobertaTokenizer', False), ('XLMRobertaTokenizerFast', False), ('MPNetTokenizer', True)])
def test_a_class_of_another_algorithm_makes_no_frame(named, is_followed, tmp_path, capsys):
    path = tmp_path / 'tokenizer.json'
    path.write_text(json.dumps(BERTS))
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(NAMES | {'tokenizer_class': named}))
    vocab = load_tokenizer(path, lowercase=True).vocab
    assert (vocab.frame.pair == vocab.segments.pair) != is_followed
    assert vocab.num_separators == (2 if is_followed else 1)
    said = capsys.readouterr().err
    assert ('the tokenizer.json is followed' in said) != is_followed
    assert ('other special tokens or types' in said) == is_followed


SPACES = {'type': 'Replace', 'pattern': {'Regex': ' {2,}'}, 'content': ' '}
CHARACTERS = {'type': 'Precompiled', 'precompiled_charsmap': ''}
QUOTES = [
    {'type': 'Replace', 'pattern': {'String': marks}, 'content': '"'} for marks in ('``', "''")]
ALBERTS = [*QUOTES, {'type': 'NFKD'}, {'type': 'StripAccents'}, {'type': 'Lowercase'}, CHARACTERS]


@pytest.mark.parametrize(('named', 'algorithm', 'steps', 'is_said'), [
    ('AlbertTokenizer', 'Unigram', ALBERTS, False),
    ('AlbertTokenizer', 'Unigram', [*ALBERTS, SPACES], False),  # of transformers 4
    ('AlbertTokenizer', 'Unigram', ALBERTS[2:], True),
    ('XLMRobertaTokenizer', 'Unigram', [CHARACTERS, SPACES], False),
    ('RobertaTokenizer', 'BPE', [SPACES], True),  # its spaces are letters
])
def test_a_step_that_changes_no_words_is_not_noted(
    named, algorithm, steps, is_said, tmp_path, capsys
):
    parts = {'model': {'type': algorithm}, 'normalizer': {'type': 'Sequence', 'normalizers': steps}}
    follow_class(parts, {'tokenizer_class': named}, str(tmp_path))
    said = capsys.readouterr().err
    assert 'makes another' in said  # there is no pre_tokenizer
    assert ('normalizer' in said) == is_said


BYTES = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}


@pytest.mark.parametrize(('config', 'fields', 'normalizer', 'said'), [
    ({'model_type': 'roberta'}, {}, None, ''),
    ({'model_type': 'roberta'}, {}, {'type': 'NFC'}, 'takes RobertaTokenizer, which makes another '
     'normalizer than tokenizer.json'),
    ({'model_type': 'modernbert', 'tokenizer_class': 'RobertaTokenizerFast'}, {}, {'type': 'NFC'},
     'takes RobertaTokenizer'),
    ({'model_type': 'modernbert'}, {}, {'type': 'NFC'}, ''),
    ({'model_type': 'xlm-roberta'}, {}, {'type': 'NFC'}, ''),  # whose algorithm is another
    ({'model_type': 'roberta'}, {'tokenizer_class': 'TokenizersBackend'}, {'type': 'NFC'}, ''),
    ({'model_type': 'roberta'}, {'add_prefix_space': True}, None, ''),  # which is followed
    ({'model_type': 'roberta'}, {'add_prefix_space': True}, {'type': 'NFC'},
     'makes another normalizer than'),
])
def test_a_class_that_only_the_model_names_is_said(
    config, fields, normalizer, said, tmp_path, capsys
):
    parts = {'model': {'type': 'BPE'}, 'normalizer': normalizer, 'pre_tokenizer': BYTES}
    for name, content in (('tokenizer.json', parts), ('config.json', config),
                          ('tokenizer_config.json', fields)):
        (tmp_path / name).write_text(json.dumps(content))
    tell_not_applied(read_settings(as_path(tmp_path)), as_path(tmp_path))
    err = capsys.readouterr().err
    assert said in err and bool(err) == bool(said)


def test_a_step_without_add_prefix_space_contradicts_none(tmp_path, capsys):
    parts = {'model': {'type': 'BPE'}, 'pre_tokenizer': {'type': 'ByteLevel'}}
    assert not follow_class(parts, {'add_prefix_space': True}, str(tmp_path))
    assert capsys.readouterr().err == ''
