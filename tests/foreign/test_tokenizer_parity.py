"""Ids of tokenizers of every kind against transformers' AutoTokenizer."""

import json
import unicodedata

import pytest

from bert_jax.corpus.trainers import Wanted, find_trainer
from bert_jax.foreign.tokenizer_files import read_tokenizer
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS
from tests import tokenizers_of_kinds as kinds
from tests.text.test_huggingface import random_lines

pytestmark = [pytest.mark.slow, pytest.mark.extras]

transformers = pytest.importorskip('transformers', reason='the extra [parity] is not installed')


def assert_same_ids(theirs, vocab_file, lines):
    ours = load_tokenizer(vocab_file, lowercase=True)
    expected = theirs(lines, add_special_tokens=False)['input_ids']
    for line, ids, expected_ids in zip(lines, ours.encode_batch(lines), expected, strict=True):
        assert ids == expected_ids, line
    vocab = ours.vocab
    a, b = ours.encode('the cat'), ours.encode('a dog')
    between = [vocab.sep_id] * vocab.num_separators
    assert theirs('the cat')['input_ids'] == [vocab.cls_id, *a, vocab.sep_id]
    assert theirs('the cat', 'a dog')['input_ids'] == [
        vocab.cls_id, *a, *between, *b, vocab.sep_id]
    assert (theirs.pad_token_id, theirs.mask_token_id, theirs.cls_token_id) == (
        vocab.pad_id, vocab.mask_id, vocab.cls_id)


@pytest.mark.parametrize(('kind', 'settings'), [
    ('roberta', {'tokenizer_class': 'RobertaTokenizer'}),
    ('roberta', {'tokenizer_class': 'RobertaTokenizer', 'add_prefix_space': True}),
    ('roberta', {
        'tokenizer_class': 'PreTrainedTokenizerFast', 'cls_token': '<s>', 'sep_token': '</s>',
        'pad_token': '<pad>', 'unk_token': '<unk>', 'mask_token': '<mask>'}),
    ('modernbert', {
        'tokenizer_class': 'PreTrainedTokenizerFast', 'cls_token': '[CLS]', 'sep_token': '[SEP]',
        'pad_token': '[PAD]', 'unk_token': '[UNK]', 'mask_token': '[MASK]'}),
    ('xlmr', {
        'tokenizer_class': 'PreTrainedTokenizerFast', 'cls_token': '<s>', 'sep_token': '</s>',
        'pad_token': '<pad>', 'unk_token': '<unk>', 'mask_token': '<mask>'}),
    ('accented_wordpiece', {
        'tokenizer_class': 'PreTrainedTokenizerFast', 'cls_token': '[CLS]', 'sep_token': '[SEP]',
        'pad_token': '[PAD]', 'unk_token': '[UNK]', 'mask_token': '[MASK]'}),
])
def test_folders(kind, settings, tokenized, tmp_path):
    kinds.write(tmp_path, kinds.KINDS[kind](), **settings)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    vocab_file, _ = read_tokenizer(tmp_path, 420)
    lines = [example['text'] for example in tokenized] + list(random_lines(4000))
    assert_same_ids(theirs, vocab_file, lines)


def test_robertas_older_folder(tokenized, tmp_path, monkeypatch):
    library = kinds.roberta()
    model = json.loads(library.to_str())['model']
    vocab = model['vocab'] | {'<mask>': library.token_to_id('<mask>')}
    (tmp_path / 'vocab.json').write_text(json.dumps(vocab))
    merges = '\n'.join(map(' '.join, model['merges']))
    (tmp_path / 'merges.txt').write_text(f'#version: 0.2\n{merges}\n')
    mask = {'content': '<mask>', 'lstrip': True, '__type': 'AddedToken'}  # as RoBERTa has it
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(
        {'tokenizer_class': 'RobertaTokenizer', 'mask_token': mask}))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    vocab_file, _ = read_tokenizer(tmp_path, 420)
    lines = [example['text'] for example in tokenized] + list(random_lines(4000))
    assert_same_ids(theirs, vocab_file, lines)


@pytest.mark.parametrize('name', ['bpe', 'unigram'])
def test_tokenizers_that_are_trained_here(name, tokenized, tmp_path):
    """Written as `tokenizer_files` writes them."""
    from bert_jax.foreign.huggingface import write_huggingface
    from tests.foreign.test_tokenizer_files import model_with

    path = tmp_path / 'trained.json'
    path.write_text(find_trainer(name).train(kinds.TEXTS, Wanted(name, 400, True)))
    write_huggingface(tmp_path / 'folder', model_with(path))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / 'folder'))
    lines = [example['text'] for example in tokenized] + list(random_lines(4000))
    assert_same_ids(theirs, path, lines)


@pytest.mark.parametrize(('name', 'number'), [('uncased', 9), ('cased', 8)])
def test_what_differs_for_berts_wordpiece(name, number, tokenized, shared_data, tmp_path):
    """The numbers that docs/predicting.md states, and why each line differs."""
    lowercase = name == 'uncased'
    vocab_file = tmp_path / 'vocab.txt'
    vocab_file.write_bytes((shared_data / 'vocab' / f'bert-base-{name}-vocab.txt').read_bytes())
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(
        {'tokenizer_class': 'BertTokenizer', 'do_lower_case': lowercase}))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    ours = load_tokenizer(vocab_file, lowercase)
    lines = [example['text'] for example in tokenized]
    differing = []
    expected = theirs(lines, add_special_tokens=False)['input_ids']
    for line, ids in zip(lines, expected, strict=True):
        if ours.encode(line) != ids:
            differing.append(line)
    assert len(lines) == 1588 and len(differing) == number
    for line in differing:
        has_long_word = max(map(len, line.split())) > 100
        has_special = any(token in line for token in SPECIAL_TOKENS)
        is_private = any(unicodedata.category(char) == 'Co' for char in line)
        assert has_long_word or has_special or is_private or (lowercase and 'Σ' in line), line
