"""Tokenizers of any kind go into run directories and Hugging Face folders, and come out."""

import dataclasses
import functools
import json

import pytest
import sentencepiece

from bert_jax.corpus.trainers import Wanted, find_trainer
from bert_jax.foreign import load_weights
from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.foreign.tokenizer_files import check_tokenizer_class
from bert_jax.run.model import write_run
from bert_jax.runtime.files import as_path
from bert_jax.text.kinds import load_tokenizer
from bert_jax.weights.inference_settings import INFERENCE
from bert_jax.weights.parameters import VOCABULARY_ROWS, with_rows
from tests import tokenizers_of_kinds as kinds
from tests.conftest import RECORDED
from tests.refusals import refused

TEXTS = [*kinds.TEXTS[:6], 'the <mask> and [MASK] of  it', '\u00a0e\u0301 ﬁ']
ROWS = 420  # of the embedding, more than any of the tokenizers has tokens


def model_with(vocab_file):
    """A model whose vocabulary is the tokenizer of a file."""
    weights = load_weights(RECORDED / 'base')
    params = dict(weights.params)
    for name in VOCABULARY_ROWS:
        if name in params:
            params[name] = with_rows(params[name], ROWS)
    model = weights.model | {'vocab_size': ROWS}
    return dataclasses.replace(weights, params=params, model=model, vocab_file=vocab_file)


def ids_of(vocab_file, lowercase=True):
    return load_tokenizer(vocab_file, lowercase).encode_batch(TEXTS)


@pytest.mark.parametrize('kind', kinds.KINDS)
def test_a_tokenizer_comes_back_from_runs_and_folders(kind, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    path = kinds.write(tmp_path / 'given', kinds.KINDS[kind](), model_max_length=99)
    expected = ids_of(path)
    weights = model_with(path)
    assert write_huggingface(tmp_path / 'folder', weights) == []
    assert (tmp_path / 'folder' / 'tokenizer.json').read_bytes() == path.read_bytes()
    settings = json.loads((tmp_path / 'folder' / 'tokenizer_config.json').read_text())
    assert settings == {'model_max_length': 99}
    folder = load_weights(tmp_path / 'folder')
    assert folder.vocab_file == tmp_path / 'folder' / 'tokenizer.json'
    assert ids_of(folder.vocab_file, folder.lowercase) == expected
    write_run(tmp_path / 'run', folder)
    run = load_weights(tmp_path / 'run')
    assert run.vocab_file == tmp_path / 'run' / 'tokenizer.json'
    assert ids_of(run.vocab_file, run.lowercase) == expected
    given = load_tokenizer(path, lowercase=True)
    assert load_tokenizer(run.vocab_file, lowercase=True).fingerprint == given.fingerprint
    changed = (tmp_path / 'run' / 'tokenizer.json').read_text() + ' '
    (tmp_path / 'run' / 'tokenizer.json').write_text(changed)
    with refused('is not the vocabulary that the run was trained with'):
        load_weights(tmp_path / 'run')


@pytest.mark.parametrize('settings', [{'model_max_length': 99}, {'padding_side': 'right'}])
def test_a_folder_cuts_texts_as_its_run_did(tmp_path, settings):
    weights = model_with(kinds.write(tmp_path / 'given', kinds.roberta(), **settings))
    weights = dataclasses.replace(weights, inference={'max_seq_length': 6})
    write_huggingface(tmp_path / 'folder', weights)
    written = json.loads((tmp_path / 'folder' / 'tokenizer_config.json').read_text())
    assert written == settings | {'model_max_length': 6}
    config = tmp_path / 'folder' / 'config.json'
    for version, length in ((None, 6), ('5.24.0', 4)):  # transformers saved it: another may count
        config.write_text(json.dumps(
            json.loads(config.read_text()) | {'transformers_version': version}))
        limits = {'model_max_length': 4}
        (tmp_path / 'folder' / 'tokenizer_config.json').write_text(json.dumps(written | limits))
        assert load_weights(tmp_path / 'folder').max_length == length


def test_special_tokens_in_texts_stay_special_where_no_settings_are_beside(tmp_path):
    path = kinds.write(tmp_path / 'given', kinds.roberta())
    path.with_name('tokenizer_config.json').unlink(missing_ok=True)
    write_huggingface(tmp_path / 'folder', model_with(path))
    settings = json.loads((tmp_path / 'folder' / 'tokenizer_config.json').read_text())
    assert settings['mask_token'] == '<mask>' and 'split_special_tokens' not in settings


@pytest.mark.parametrize('name', ['bpe', 'unigram'])
def test_a_trained_tokenizer_is_written_with_its_settings(name, tmp_path):
    path = tmp_path / 'trained.json'
    path.write_text(find_trainer(name).train(kinds.TEXTS, Wanted(name, 400, False)))
    weights = model_with(path)
    assert write_huggingface(tmp_path / 'folder', weights) == []
    settings = json.loads((tmp_path / 'folder' / 'tokenizer_config.json').read_text())
    assert settings['add_prefix_space'] is (name == 'bpe')
    assert settings['mask_token'] == '[MASK]' and settings['pad_token'] == '[PAD]'
    assert settings['tokenizer_class'] == 'PreTrainedTokenizerFast'
    assert settings['split_special_tokens'] is True  # [MASK] in a text is text
    again = load_weights(tmp_path / 'folder')
    assert ids_of(again.vocab_file) == ids_of(path)
    card = (tmp_path / 'folder' / 'README.md').read_text()
    assert f'| vocabulary | {name} |' in card


@pytest.mark.parametrize('ends', ['\n', '\r\n'], ids=['', 'Windows'])
def test_robertas_older_folder(ends, tmp_path, monkeypatch, capsys):
    """vocab.json and merges.txt, as its slow tokenizer wrote them."""
    monkeypatch.setenv('HOME', str(tmp_path))
    library = kinds.roberta()
    path = kinds.write(tmp_path / 'given', library)
    write_huggingface(tmp_path / 'folder', model_with(path))
    expected = ids_of(path)
    model = json.loads(library.to_str())['model']
    folder = tmp_path / 'folder'
    (folder / 'tokenizer.json').unlink()
    vocab = model['vocab'] | {'<mask>': library.token_to_id('<mask>')}
    (folder / 'vocab.json').write_text(json.dumps(vocab))
    merges = '\n'.join(map(' '.join, model['merges']))
    (folder / 'merges.txt').write_bytes(
        f'#version: 0.2\n{merges}\n'.replace('\n', ends).encode())
    (folder / 'tokenizer_config.json').write_text(json.dumps(
        {'tokenizer_class': 'RobertaTokenizer', 'model_max_length': 64, 'cls_token': '<s>'}))
    for _ in range(2):  # the second time it is in the cache
        weights = load_weights(folder)
        assert ids_of(weights.vocab_file) == expected
        assert load_tokenizer(weights.vocab_file, lowercase=True).vocab.num_separators == 2
    assert 'not applied' not in capsys.readouterr().err


def test_a_sentencepiece_model_with_an_order_of_its_own_is_refused(tmp_path):
    folder = tmp_path / 'folder'
    write_huggingface(folder, model_with(kinds.write(tmp_path / 'given', kinds.xlmr())))
    for name in ('tokenizer.json', 'tokenizer_config.json'):
        (folder / name).unlink()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(kinds.TEXTS), model_prefix=str(folder / 'sentencepiece.bpe'),
        vocab_size=150, hard_vocab_limit=False, minloglevel=2)
    with refused('sentencepiece.bpe.model has <s> in the place of [CLS]', 'tokenizer.json'):
        load_weights(folder)
    (folder / 'tokenizer_config.json').write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    with refused("tokenizer_class='XLMRobertaTokenizer'", 'write that file there'):
        load_weights(folder)


@pytest.mark.parametrize(('config', 'file', 'is_refused'), [
    ({'model_type': 'albert'}, 'spiece.model', True),  # AlbertTokenizer would lower-case
    ({'model_type': 'albert', INFERENCE: {'truncation': 'google'}}, 'vocab.model', False),
    ({'model_type': 'albert'}, 'vocab.txt', False),
    ({'model_type': 'bert'}, 'spiece.model', False),
])
def test_a_model_whose_class_follows_from_its_type(config, file, is_refused, tmp_path):
    (tmp_path / file).write_bytes(b'x')
    check = functools.partial(
        check_tokenizer_class, as_path(tmp_path), config, tmp_path / 'config.json')
    if not is_refused:
        check()
        return
    with refused('AlbertTokenizer', 'write that file there'):
        check()


def test_a_tokenizer_json_counts_before_vocab_txt_unless_it_is_berts(tmp_path):
    folder = tmp_path / 'folder'
    write_huggingface(folder, load_weights(RECORDED / 'base'))
    assert load_weights(folder).vocab_file == folder / 'vocab.txt'
    parts = json.loads((folder / 'tokenizer.json').read_text())
    parts['pre_tokenizer'] = {'type': 'WhitespaceSplit'}
    (folder / 'tokenizer.json').write_text(json.dumps(parts))
    # The class BertTokenizer makes its rules itself.
    assert load_weights(folder).vocab_file == folder / 'vocab.txt'
    (folder / 'tokenizer_config.json').unlink()
    weights = load_weights(folder)
    assert weights.vocab_file == folder / 'tokenizer.json'
    tokenizer = load_tokenizer(weights.vocab_file, lowercase=True)
    assert tokenizer.encode('a,b') == [tokenizer.vocab.unk_id]
