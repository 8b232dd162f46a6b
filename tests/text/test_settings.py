"""Whatever stands in the files of a tokenizer and is not applied is named."""

import json

import pytest

from bert_jax.foreign.tokenizer_files import fast_tokenizer
from bert_jax.text.settings import read_settings, tell_not_applied
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

PLAIN = fast_tokenizer(WordPieceTokenizer(Vocab.from_tokens([*SPECIAL_TOKENS, 'a'])))
CONFIG, FAST = 'tokenizer_config.json', 'tokenizer.json'
SPECIAL = 'special_tokens_map.json'


A = {'Sequence': {'id': 'A', 'type_id': 0}}


def changed(part, **fields):
    return PLAIN | {part: PLAIN[part] | fields}


@pytest.mark.parametrize(('file', 'content', 'said'), [
    (FAST, PLAIN, []),
    (CONFIG, {'do_lower_case': True, 'cls_token': {'content': '[CLS]', 'lstrip': True},
              'model_max_length': 512, 'padding_side': 'right', 'unknown': None}, []),
    (CONFIG, {'padding_side': 'left', 'split_special_tokens': True, 'mask_token': '<mask>'},
     ["padding_side='left'", "mask_token='<mask>'"]),
    (SPECIAL, {'cls_token': {'content': '[CLS]', 'lstrip': True}, 'unk_token': '[UNK]',
               'bos_token': '<s>'}, []),
    (SPECIAL, {'cls_token': {'content': '<s>', 'lstrip': False}, 'mask_token': '<mask>'},
     ["cls_token='<s>'", "mask_token='<mask>'"]),
    # These are applied.
    (CONFIG, {'truncation_side': 'left', 'model_input_names': ['input_ids', 'attention_mask']}, []),
    (CONFIG, {'word_tokenizer_type': 'mecab'}, ["word_tokenizer_type='mecab'"]),
    # What BERT's tokenizer here does not have, the library applies; or other classes do.
    (CONFIG, {'tokenizer_class': 'MPNetTokenizer'}, []),
    (FAST, changed('normalizer', clean_text=False), []),
    (FAST, changed('model', unk_token='<unk>'), []),
    (FAST, PLAIN | {'pre_tokenizer': {'type': 'Whitespace'}}, []),
    (FAST, changed('post_processor', single=[A]), []),
    (FAST, changed('model', max_input_chars_per_word=20), []),
])
def test_each_setting_that_is_not_applied_is_one_line(file, content, said, tmp_path, capsys):
    (tmp_path / file).write_text(json.dumps(content))
    tell_not_applied(read_settings(tmp_path), tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(said), lines
    for line, setting in zip(lines, said, strict=True):
        assert line.startswith(f'note: {tmp_path / file}: {setting}')
        assert line.endswith('is not applied')


@pytest.mark.parametrize(('content', 'said'), [
    (changed('model', max_input_chars_per_word=100), ''),
    (changed('normalizer', clean_text=False), 'normalizer.clean_text=False'),
    (changed('model', max_input_chars_per_word=20), 'model.max_input_chars_per_word=20'),
    (changed('post_processor', single=[A]), "post_processor.single='A:0'"),
    (changed('post_processor', pair=[A]), "post_processor.pair='A:0'"),
    (changed('post_processor', special_tokens={'[SEP]': {'ids': [0]}}), 'post_processor: [SEP]=0'),
    (PLAIN | {'post_processor': {'type': 'RobertaProcessing'}}, "post_processor.type='Roberta"),
])
def test_the_class_bert_tokenizer_makes_its_own_parts(content, said, tmp_path, capsys):
    """So transformers does not read those of the tokenizer.json, and each is noted."""
    (tmp_path / CONFIG).write_text('{"tokenizer_class": "BertTokenizer"}')
    (tmp_path / FAST).write_text(json.dumps(content))
    settings = read_settings(tmp_path)
    assert settings.is_berts
    tell_not_applied(settings, tmp_path)
    assert f'note: {tmp_path / FAST}: {said}' in capsys.readouterr().err or not said


@pytest.mark.parametrize(('fields', 'is_said'), [
    ({'tokenizer_class': 'PreTrainedTokenizerFast'}, True), ({}, True),
    ({'tokenizer_class': 'BertTokenizerFast'}, False), ({'tokenizer_class': 'T5Tokenizer'}, None)])
def test_a_file_that_puts_nothing_around_texts(fields, is_said, tmp_path, capsys):
    """BERT's frame is put there; BertTokenizer does so itself. Other classes' are the library's."""
    (tmp_path / CONFIG).write_text(json.dumps(fields))
    (tmp_path / FAST).write_text(json.dumps(PLAIN | {'post_processor': None}))
    settings = read_settings(tmp_path)
    tell_not_applied(settings, tmp_path)
    assert settings.is_berts == (is_said is not None)
    said = 'tokenizer.json puts no special tokens around texts' in capsys.readouterr().err
    assert said == bool(is_said)
