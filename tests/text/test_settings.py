"""Whatever stands in the files of a tokenizer and is not applied is named."""

import json

import pytest

from bert_jax.text.settings import read_settings, tell_not_applied
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer
from bert_jax.weights.tokenizer_files import fast_tokenizer

PLAIN = fast_tokenizer(WordPieceTokenizer(Vocab.from_tokens([*SPECIAL_TOKENS, 'a'])))
CONFIG, FAST = 'tokenizer_config.json', 'tokenizer.json'


def changed(part, **fields):
    return PLAIN | {part: PLAIN[part] | fields}


@pytest.mark.parametrize(('file', 'content', 'said'), [
    (FAST, PLAIN, []),
    (CONFIG, {'do_lower_case': True, 'cls_token': {'content': '[CLS]', 'lstrip': True},
              'model_max_length': 512, 'padding_side': 'right', 'unknown': None}, []),
    (CONFIG, {'truncation_side': 'left', 'split_special_tokens': True, 'mask_token': '<mask>'},
     ["truncation_side='left'", 'split_special_tokens=True', "mask_token='<mask>'"]),
    (CONFIG, {'model_input_names': ['input_ids', 'attention_mask']}, ["model_input_names=['input"]),
    (CONFIG, {'word_tokenizer_type': 'mecab'}, ["word_tokenizer_type='mecab'"]),
    (FAST, changed('normalizer', clean_text=False), ['normalizer.clean_text=False']),
    (FAST, changed('model', unk_token='<unk>'), ["model.unk_token='<unk>'"]),
    (FAST, PLAIN | {'pre_tokenizer': {'type': 'Whitespace'}}, []),  # the library applies it
    (FAST, changed('post_processor', single=[{'Sequence': {'id': 'A', 'type_id': 0}}]),
     ["post_processor.single='A'"]),
])
def test_each_setting_that_is_not_applied_is_one_line(file, content, said, tmp_path, capsys):
    (tmp_path / file).write_text(json.dumps(content))
    tell_not_applied(read_settings(tmp_path), tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(said), lines
    for line, setting in zip(lines, said, strict=True):
        assert line.startswith(f'note: {tmp_path / file}: {setting}')
        assert line.endswith('is not applied')
