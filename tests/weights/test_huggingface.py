"""Hugging Face folders: outputs of transformers, spellings and shards, what is refused."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.runtime.errors import InputError
from bert_jax.weights import load_weights
from bert_jax.weights.huggingface import write_huggingface

RECORDED = Path(__file__).parents[1] / 'fixtures' / 'huggingface'
LAYER_1 = 'bert.encoder.layer.1.'


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


def shard(path):
    """Splits a folder's weights in two, with an index."""
    tensors = load_file(path / 'model.safetensors')
    names = sorted(tensors)
    weight_map = {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f'model-{i + 1:05}-of-00002.safetensors'
        save_file({name: tensors[name] for name in part}, path / file)
        weight_map |= dict.fromkeys(part, file)
    (path / 'model.safetensors').unlink()
    index = path / 'model.safetensors.index.json'
    index.write_text(json.dumps({'metadata': {}, 'weight_map': weight_map}))
    return path


def assert_same_params(a, b):
    assert a.params.keys() == b.params.keys()
    for name in a.params:
        np.testing.assert_array_equal(a.params[name], b.params[name], err_msg=name)


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
}


@pytest.mark.parametrize('name', OLD_NAMES)
def test_other_spellings_of_the_same(folder, name):
    path = folder(tensors=OLD_NAMES[name])
    weights = load_weights(path)
    assert_same_params(weights, load_weights(RECORDED / 'pretraining'))
    assert weights.unused == ()


def test_tensors_without_a_place_are_named(folder):
    more = {'sop.weight': np.ones((2, 8), np.float32)}
    assert load_weights(folder(tensors=lambda t: t | more)).unused == ('sop.weight',)


def test_shards(folder):
    path = shard(folder())
    assert_same_params(load_weights(path), load_weights(RECORDED / 'pretraining'))


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


def without(*names):
    return lambda tensors: {name: x for name, x in tensors.items() if name not in names}


def reshaped(name, *shape):
    return lambda tensors: tensors | {name: np.ones(shape, np.float32)}


def cut(path, size):
    file = path / 'model.safetensors'
    file.write_bytes(file.read_bytes()[:size])


def tensors(change, *words):
    return {'tensors': change}, words


def config(*words, name='pretraining', **change):
    return {'name': name, 'config': change}, words


# What is done to a good folder, and words that the one line must have.
BAD = {
    'a shape': tensors(
        reshaped(LAYER_1 + 'output.dense.weight', 12, 8),
        LAYER_1 + 'output.dense.weight', '[12, 8]', '[8, 12]', 'config.json'),
    'a tensor is missing': tensors(without(LAYER_1 + 'output.dense.bias'),
                                   'has no tensor ' + LAYER_1 + 'output.dense.bias'),
    'half a head': tensors(without('cls.predictions.transform.dense.bias'),
                           'has no tensor cls.predictions.transform.dense.bias'),
    'no pooler': tensors(
        without('bert.pooler.dense.weight', 'bert.pooler.dense.bias'), 'pooler'),
    'another output layer': tensors(
        lambda t: t | {'cls.predictions.decoder.weight':
                       t['bert.embeddings.word_embeddings.weight'] + 1},
        'cls.predictions.decoder.weight', 'not tied'),
    'a type': tensors(lambda t: t | {'cls.predictions.bias': np.zeros(40, np.float64)},
                      'cls.predictions.bias', 'F64', 'float32'),
    'layers missing': config('has 2 layers', 'there are 3', num_hidden_layers=3),
    'layers extra': config('has 2 layers', 'there are 1', num_hidden_layers=1),
    'hidden size': config('word_embeddings', '[40, 8]', '[40, 16]', hidden_size=16),
    'vocabulary size': config('word_embeddings', '[40, 8]', '[41, 8]', vocab_size=41),
    'positions': config('position_embeddings', '[12, 8]', max_position_embeddings=12),
    'heads': config('num_attention_heads=3', 'hidden_size=8', num_attention_heads=3),
    'no size': config('has no hidden_size', hidden_size='absent'),
    'not a size': config("hidden_size='8'", 'whole number', hidden_size='8'),
    'a true size': config('num_hidden_layers=True', 'whole number', num_hidden_layers=True),
    'no number': config("layer_norm_eps='small'", 'a number', layer_norm_eps='small'),
    'activation': config("hidden_act='relu'", 'gelu_new', hidden_act='relu'),
    'activations': config("hidden_act=['gelu']", hidden_act=['gelu']),
    'no list': config("architectures='BertModel'", architectures='BertModel'),
    'model': config("model_type='roberta'", model_type='roberta'),
    'relative positions': config('relative_key', position_embedding_type='relative_key'),
    'decoder': config('is_decoder=True', is_decoder=True),
    'cross attention': config('add_cross_attention=True', add_cross_attention=True),
    'another head': config('BertForQuestionAnswering', 'contradicts',
                           architectures=['BertForQuestionAnswering']),
    'too few labels': config('2 labels', 'has 3', name='classification',
                             id2label={'0': 'a', '1': 'b'}),
    'labels with a gap': config('0 to 2', name='classification',
                                id2label={'0': 'a', '1': 'b', '3': 'c'}),
    'a label twice': config("['a', 'b', 'a']", name='classification',
                            id2label={'0': 'a', '1': 'b', '2': 'a'}),
    'labels without ids': config('id2label', name='classification', id2label=['a', 'b', 'c']),
    'several values': config('3 outputs', name='classification', problem_type='regression'),
}


def refusal(path):
    with pytest.raises(InputError) as error:
        load_weights(path)
    message = str(error.value)
    assert '\n' not in message
    return message


@pytest.mark.parametrize('name', BAD)
def test_bad_folders_are_one_line(folder, name):
    change, words = BAD[name]
    message = refusal(folder(**change))
    for word in words:
        assert word in message


def test_a_classifier_of_many_labels_at_once(folder):
    kind = {'problem_type': 'multi_label_classification'}
    weights = load_weights(folder('classification', config=kind))
    assert weights.head == 'multi_label'
    assert len(weights.labels) == weights.num_labels


@pytest.mark.parametrize('size', [0, 4, 100, 5000])
def test_truncated_weights(folder, size):
    path = folder()
    assert size < (path / 'model.safetensors').stat().st_size
    cut(path, size)
    message = refusal(path)
    assert 'model.safetensors' in message and 'download' in message


def test_corrupt_header(folder):
    path = folder()
    data = bytearray((path / 'model.safetensors').read_bytes())
    data[20:40] = b'\xff' * 20
    (path / 'model.safetensors').write_bytes(data)
    assert 'no whole safetensors file' in refusal(path)


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
    assert_same_params(load_weights(tmp_path / 'out'), weights)


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


def test_a_shard_is_missing(folder):
    path = shard(folder())
    (path / 'model-00002-of-00002.safetensors').unlink()
    message = refusal(path)
    assert 'model-00002-of-00002.safetensors is missing' in message


def test_an_index_of_other_shards(folder):
    path = shard(folder())
    index = path / 'model.safetensors.index.json'
    other = index.read_text().replace('cls.predictions.bias', 'cls.predictions.other')
    index.write_text(other)
    assert 'has no tensor cls.predictions.other' in refusal(path)
    for text in ('{}', '{"weight_map": {}}', '{"weight_map": {"cls.predictions.bias": 1}}'):
        index.write_text(text)
        assert 'weight_map' in refusal(path)


@pytest.mark.parametrize('change, words', [
    (lambda tokens: tokens[:-2], ['has 38 tokens', 'has 40 rows', 'add 2 lines']),
    (lambda tokens: [*tokens, 'more'], ['has 41 tokens', 'has 40 rows']),
    (lambda tokens: tokens[:-1] + [tokens[-2]], ['vocab.txt', 'line 40']),
    (lambda tokens: [t for t in tokens if t != '[MASK]'], ['[MASK]']),
])
def test_vocabularies_that_do_not_fit(folder, change, words):
    path = folder()
    file = path / 'vocab.txt'
    file.write_text('\n'.join(change(file.read_text().split())) + '\n')
    message = refusal(path)
    for word in words:
        assert word in message


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


@pytest.mark.parametrize('tokenizer, words', [
    ({'model': {'vocab': TOKENS | {',': 77}}}, 'not 0, 1, 2'),
    ({'model': {'vocab': list(TOKENS)}}, 'no tokenizer file'),
    ({}, 'no tokenizer file'),
    ({'model': {'vocab': TOKENS}, 'added_tokens': [{'content': 'more', 'id': 40}]},
     'has 41 tokens'),
])
def test_bad_tokenizer_files(folder, monkeypatch, tmp_path, tokenizer, words):
    monkeypatch.setenv('HOME', str(tmp_path))
    path = folder()
    (path / 'vocab.txt').unlink()
    (path / 'tokenizer.json').write_text(json.dumps(tokenizer))
    assert words in refusal(path)


def test_a_tokenizer_of_another_kind_is_left_alone(folder):
    path = folder()
    (path / 'vocab.txt').unlink()
    (path / 'tokenizer.json').write_text(json.dumps({'model': {'type': 'BPE', 'vocab': {}}}))
    assert load_weights(path).vocab_file is None


@pytest.mark.parametrize('text', ['{"hidden_size": 8', '[]', '', '\xff\xfe'])
def test_a_config_that_is_no_json(folder, text):
    path = folder()
    (path / 'config.json').write_bytes(text.encode('latin-1'))
    assert 'config.json' in refusal(path)


def test_files_that_are_missing(folder, tmp_path):
    path = folder()
    (path / 'config.json').unlink()
    assert 'config.json is missing' in refusal(path)
    path = folder('base')
    (path / 'model.safetensors').unlink()
    assert 'model.safetensors is missing' in refusal(path)
    (path / 'pytorch_model.bin').write_bytes(b'\x80\x02')
    message = refusal(path)
    assert 'pickle' in message and 'save_pretrained' in message


def test_paths_that_hold_no_model(tmp_path):
    for path in (tmp_path, tmp_path / 'nowhere', tmp_path / 'a file'):
        if path.name == 'a file':
            path.write_text('x')
        message = refusal(path)
        for word in ('run directory', 'Hugging Face', 'bert_model.ckpt.index', str(path)):
            assert word in message


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
