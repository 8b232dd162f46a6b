"""Special tokens that are one and the same."""

import json

import pytest

from bert_jax.foreign.huggingface import _check_positions
from bert_jax.foreign.tokenizer_files import read_tokenizer
from bert_jax.runtime.errors import InputError
from bert_jax.text.huggingface import HuggingFaceTokenizer
from bert_jax.text.kinds import load_tokenizer
from tests import tokenizers_of_kinds as kinds
from tests.foreign.test_vocabulary_copies import SPECIAL, WORDS, berts, lines, put
from tests.refusals import refused

NAMES = {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'pad_token': '[PAD]', 'mask_token': '[MASK]',
         'unk_token': '[UNK]'}


def wordpiece(folder, **names):
    """A tokenizer.json that is not BERT's, with names beside it that count."""
    library = kinds.accented_wordpiece()
    library.post_processor = None
    return kinds.write(folder, library, **(NAMES | names))


@pytest.mark.parametrize(('names', 'said'), [
    ({'pad_token': '[SEP]'}, '[SEP] and [PAD]: no result changes'),
    ({'pad_token': '[CLS]'}, '[CLS] and [PAD]: no result changes'),
    ({'cls_token': '[SEP]'}, '[CLS] and [SEP]: a sequence begins as it ends'),
    ({'sep_token': '[UNK]'}, '[SEP] and [UNK]: a word that the vocabulary lacks is taken for it'),
    ({'cls_token': '[UNK]'}, '[CLS] and [UNK]: a word'),
    ({'pad_token': '[UNK]'}, '[PAD] and [UNK]: a word'),
    ({}, ''),
])
def test_a_token_with_two_roles_is_said(names, said, tmp_path, capsys):
    vocab = load_tokenizer(wordpiece(tmp_path, **names), lowercase=True).vocab
    err = capsys.readouterr().err
    assert said in err and err.count('one token') == bool(said)
    for name, token in names.items():
        assert vocab.tokens[getattr(vocab, name.replace('token', 'id'))] == token


@pytest.mark.parametrize('other', ['[UNK]', '[PAD]', '[CLS]', '[SEP]'])
def test_a_mask_that_is_another_token_is_refused(other, tmp_path):
    with refused(f'for [MASK] and {other}', "name another as 'mask_token'"):
        load_tokenizer(wordpiece(tmp_path, mask_token=other), lowercase=True)


def test_nothing_is_unknown_to_bytes(tmp_path, capsys):
    """GPT-2's one token for all."""
    path = kinds.write(tmp_path, kinds.modernbert(), unk_token='[SEP]')
    load_tokenizer(path, lowercase=True)
    assert 'one token' not in capsys.readouterr().err


@pytest.mark.parametrize('names', [
    {'mask_token': '[UNK]'}, {'mask_token': '[PAD]'}, {'cls_token': '[SEP]'},
    {'unk_token': '[PAD]'}, {'unk_token': {'content': '[SEP]'}},
])
@pytest.mark.parametrize('file', ['vocab.txt', 'tokenizer.json'])
def test_a_vocabulary_of_bert_has_two_tokens_for_two_roles(names, file, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    tokens = [*SPECIAL, *WORDS]
    contents = {'vocab.txt': lines(tokens), 'tokenizer.json': berts(tokens)}
    folder = put(tmp_path / 'folder', 'bert', tokenizer_config__json=names,
                 **{file.replace('.', '__'): contents[file]})
    with pytest.raises(InputError, match='names .* which are two tokens in a vocabulary of BERT'):
        read_tokenizer(folder, 100)
    name, = names
    (folder / 'tokenizer_config.json').write_text(json.dumps({name: '[new]'}))
    read_tokenizer(folder, 100)  # noted as not applied


def test_positions_are_counted_for_all_tokens_of_texts():
    """RoBERTa's are not for those with the id of padding."""
    vocab = HuggingFaceTokenizer(kinds.roberta().to_str()).vocab
    _check_positions(vocab, {'first_position': vocab.pad_id + 1}, 'FILE')
    for role, token_id in (('SEP', vocab.sep_id), ('UNK', vocab.unk_id)):
        with refused(f'FILE: pad_token_id={token_id} is the id of [{role}]'):
            _check_positions(vocab, {'first_position': token_id + 1}, 'FILE')
    word_id = len(vocab) - 2  # before <mask>
    with refused(f'pad_token_id={word_id} is the id of {vocab.tokens[word_id]!r}'):
        _check_positions(vocab, {'first_position': word_id + 1}, 'FILE')
