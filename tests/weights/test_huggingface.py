"""Hugging Face folders: outputs of transformers, spellings and shards, what is refused."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from run_model import RECORDED, assert_same_params
from safetensors.numpy import load_file, save_file

from bert_jax.runtime.errors import InputError
from bert_jax.weights import load_weights
from bert_jax.weights.huggingface import write_huggingface


@pytest.fixture
def folder(tmp_path):
    """Copies a recorded folder and changes it."""
    def copy(name='pretraining', tensors=None, config=None):
        target = tmp_path / f'{name} changed'
        shutil.copytree(RECORDED / name, target)
        if tensors is not None:
            changed = tensors(load_file(target / 'model.safetensors'))
            save_file(changed, target / 'model.safetensors', metadata={'format': 'pt'})
        if config is not None:
            old = json.loads((target / 'config.json').read_text())
            new = {name: x for name, x in (old | config).items() if x != 'absent'}
            (target / 'config.json').write_text(json.dumps(new))
        return target

    return copy


def rename(old, new):
    return lambda tensors: {name.replace(old, new): x for name, x in tensors.items()}


OLD_NAMES = {
    'gamma and beta': (lambda t: rename('LayerNorm.bias', 'LayerNorm.beta')(
        rename('LayerNorm.weight', 'LayerNorm.gamma')(t))),
    'tied copies': lambda t: t | {
        'cls.predictions.decoder.weight': t['bert.embeddings.word_embeddings.weight'],
        'cls.predictions.decoder.bias': t['cls.predictions.bias']},
    'bias of the decoder alone': rename('cls.predictions.bias', 'cls.predictions.decoder.bias'),
    'buffers': lambda t: t | {'bert.embeddings.position_ids': np.arange(10)[None]},
    'no place': lambda t: t | {'sop.weight': np.ones((2, 8), np.float32)},
}


@pytest.mark.parametrize('name', OLD_NAMES)
def test_other_spellings_of_the_same(folder, name):
    path = folder(tensors=OLD_NAMES[name])
    weights = load_weights(path)
    assert_same_params(weights.params, load_weights(RECORDED / 'pretraining').params)
    assert weights.unused == (('sop.weight',) if name == 'no place' else ())


@pytest.mark.parametrize('said, has_upper, expected', [
    (True, True, True), (False, False, False), (None, True, False), (None, False, True),
])
def test_lower_case(folder, said, has_upper, expected):
    """tokenizer_config.json says it; without it the vocabulary shows it."""
    path = folder()
    if said is not None:
        (path / 'tokenizer_config.json').write_text(json.dumps({'do_lower_case': said}))
    if has_upper:
        vocab = path / 'vocab.txt'
        vocab.write_text(vocab.read_text().replace('\nz\n', '\nZ\n'))
    assert load_weights(path).lowercase is expected


def test_lower_case_of_googles_vocabularies(shared_data, folder):
    from bert_jax.text import load_tokenizer
    from bert_jax.weights.formats import looks_lowercase

    for name, expected in (('uncased', True), ('cased', False), ('multilingual-cased', False)):
        path = shared_data / 'vocab' / f'bert-base-{name}-vocab.txt'
        assert looks_lowercase(load_tokenizer(path, True).vocab) is expected, name


def test_a_vocabulary_may_be_absent(folder):
    path = folder()
    (path / 'vocab.txt').unlink()
    weights = load_weights(path)
    assert weights.vocab_file is None
    assert weights.lowercase
    notes = write_huggingface(path / 'out', weights)
    assert notes == ['no tokenizer files: there is no vocabulary']


def test_a_classifier_of_many_labels_at_once(folder):
    kind = {'problem_type': 'multi_label_classification'}
    weights = load_weights(folder('classification', config=kind))
    assert weights.head == 'multi_label'
    assert len(weights.labels) == weights.num_labels


def test_a_large_model_is_written_in_shards(tmp_path, monkeypatch):
    weights = load_weights(RECORDED / 'pretraining')
    monkeypatch.setattr('bert_jax.weights.huggingface.SHARD_BYTES', 4000)
    write_huggingface(tmp_path / 'out', weights)
    files = sorted((tmp_path / 'out').glob('*.safetensors'))
    assert len(files) > 1 and files[0].name == f'model-00001-of-{len(files):05}.safetensors'
    held = [load_file(file) for file in files]
    assert all(sum(x.nbytes for x in part.values()) <= 4000 for part in held)
    index = json.loads((tmp_path / 'out' / 'model.safetensors.index.json').read_text())
    assert index['metadata']['total_size'] == sum(
        x.nbytes for part in held for x in part.values())
    assert {name: file for file, part in zip(files, held) for name in part} == {
        name: tmp_path / 'out' / file for name, file in index['weight_map'].items()}
    assert_same_params(load_weights(tmp_path / 'out').params, weights.params)


def test_the_model_card_says_what_is_known(tmp_path):
    weights = dataclasses.replace(
        load_weights(RECORDED / 'token_classification'), inference={'max_seq_length': 9})
    write_huggingface(tmp_path / 'out', weights)
    card = (tmp_path / 'out' / 'README.md').read_text()
    for words in (
        '# BERT with a token-classification head', '| num_layers | 2 |',
        '| hidden_act | gelu_erf |', '| labels | O, B-PER, I-PER, B-LOC, I-LOC |', weights.source,
        '| max_seq_length | 9 |',
        'BertForTokenClassification.from_pretrained', 'license',
    ):
        assert words in card
    assert card.startswith('---\nlibrary_name: transformers\n')


TOKENS = {token: i for i, token in enumerate((RECORDED / 'base' / 'vocab.txt').read_text().split())}


def test_a_vocabulary_in_tokenizer_json(folder, monkeypatch, tmp_path):
    """As transformers 5 writes it; added tokens are behind."""
    monkeypatch.setenv('HOME', str(tmp_path))
    path = folder()
    (path / 'vocab.txt').unlink()
    last = TOKENS[','] - 1
    tokenizer = {
        'model': {'type': 'WordPiece', 'vocab': {t: i for t, i in TOKENS.items() if i <= last}},
        'added_tokens': [{'content': ',', 'id': last + 1}, {'content': '[PAD]', 'id': 0}],
    }
    (path / 'tokenizer.json').write_text(json.dumps(tokenizer))
    weights = load_weights(path)
    assert weights.vocab_file.read_text().split() == list(TOKENS)
    assert load_weights(path).vocab_file == weights.vocab_file  # found again


def test_a_tokenizer_of_another_kind_is_left_alone(folder):
    path = folder()
    (path / 'vocab.txt').unlink()
    (path / 'tokenizer.json').write_text(json.dumps({'model': {'type': 'BPE', 'vocab': {}}}))
    assert load_weights(path).vocab_file is None


def test_nothing_is_written_over(tmp_path):
    weights = load_weights(RECORDED / 'base')
    (tmp_path / 'empty').mkdir()
    write_huggingface(tmp_path / 'empty', weights)
    before = (tmp_path / 'empty' / 'config.json').read_bytes()
    for target in (tmp_path / 'empty', tmp_path / 'empty' / 'config.json'):
        with pytest.raises(InputError, match='is there already'):
            write_huggingface(target, load_weights(RECORDED / 'pretraining'))
    assert (tmp_path / 'empty' / 'config.json').read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ['empty']


def test_a_failure_leaves_nothing(tmp_path):
    weights = load_weights(RECORDED / 'base')
    broken = dataclasses.replace(weights, vocab_file=tmp_path / 'gone' / 'vocab.txt')
    with pytest.raises(InputError, match='gone'):
        write_huggingface(tmp_path / 'out', broken)
    assert list(tmp_path.iterdir()) == []
