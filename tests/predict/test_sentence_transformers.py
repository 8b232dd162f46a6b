"""Folders of sentence-transformers: each setting is applied to the vectors, or named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_jax import convert
from bert_jax.answers import engine
from bert_jax.foreign.safetensors_files import write_file
from bert_jax.loading import load
from bert_jax.predict.sentences import Sentences
from tests.predict import tiny
from tests.refusals import refused

ENCODER, MODEL = 'sentence_bert_config.json', 'config_sentence_transformers.json'
TOKENIZER = 'tokenizer_config.json'
PROMPTS = {'prompts': {'query': 'q. ', 'document': ''}, 'default_prompt_name': 'query'}


@pytest.fixture
def folder(tmp_path):
    """A function that makes a folder with some files; it pools the mean."""
    def make(modules=('Transformer', 'Pooling'), pooling=(), **files):
        path = tmp_path / 'model'
        shutil.copytree(tiny.RECORDED / 'base', path)
        (path / 'modules.json').write_text(json.dumps([
            {'path': f'{i}_{name}' if i else '', 'type': f'sentence_transformers.models.{name}'}
            for i, name in enumerate(modules)]))
        (path / '1_Pooling').mkdir()
        files['1_Pooling/config.json'] = {'pooling_mode_mean_tokens': True} | dict(pooling)
        for name, content in files.items():
            (path / name).write_text(json.dumps(content))
        return path
    return make


def mean_of(model, text, begin=0):
    return model.features([text])[0]['values'][begin:, 0].mean(0)


@pytest.mark.parametrize(('files', 'length'), [
    ({}, 10), ({'tokenizer_config.json': {'model_max_length': 6}}, 6),
    ({'tokenizer_config.json': {'model_max_length': 10 ** 30}}, 10),
    ({'tokenizer_config.json': {'max_len': 6}}, 6),  # of old versions
    ({'tokenizer_config.json': {'model_max_length': 6}, ENCODER: {'max_seq_length': 8}}, 8),
    ({'tokenizer_config.json': {'model_max_length': 6}, ENCODER: {'max_seq_length': None}}, 6),
    ({'sentence_roberta_config.json': {'max_seq_length': 5}}, 5),
])
def test_the_length_limit(folder, files, length):
    assert load(folder(**files)).max_length == length


@pytest.mark.parametrize(('files', 'pooling', 'text', 'begin'), [
    ({MODEL: PROMPTS}, {}, 'q. a b', 0),
    ({MODEL: PROMPTS | {'default_prompt_name': None}}, {}, 'a b', 0),
    ({MODEL: {'prompts': {'query': None}, 'default_prompt_name': 'query'}}, {}, 'a b', 0),
    ({MODEL: PROMPTS}, {'include_prompt': False}, 'q. a b', 3),  # without [CLS] q .
    ({}, {'include_prompt': False}, 'a b', 0),
])
def test_the_default_prompt_stands_before_each_text(folder, files, pooling, text, begin):
    model = load(folder(pooling=pooling, **files))
    (found,), expected = model.vectors(['a b']), mean_of(model, text, begin)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    (pair,) = model.vectors([('a', 'b')])
    expected = mean_of(model, (text.removesuffix(' b'), 'b'), begin)
    np.testing.assert_allclose(pair, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(('files', 'pooling'), [
    ({MODEL: PROMPTS}, {}),
    ({MODEL: PROMPTS}, {'include_prompt': False}),
    ({MODEL: PROMPTS | {'truncate_dim': 4, 'similarity_fn_name': 'dot'}}, {}),
    ({ENCODER: {'do_lower_case': True}, 'tokenizer_config.json': {'do_lower_case': False}}, {}),
])
def test_a_run_that_a_folder_was_converted_to_has_its_vectors(folder, tmp_path, files, pooling):
    path = folder(pooling=pooling, **files)
    convert.main([str(path), str(tmp_path / 'run'), '--to', 'bert_jax'])
    theirs, ours = load(path), load(tmp_path / 'run')
    for prompt in (None, 'query', 'document'):
        found, expected = (model.vectors(['A BAD cab'], prompt=prompt) for model in (ours, theirs))
        np.testing.assert_array_equal(found, expected)
    assert ours.sentences.similarity == theirs.sentences.similarity


def base_with_a_limit(tmp_path):
    """A folder with prompts of its own, which cuts texts at 7 tokens."""
    base = shutil.copytree(tiny.RECORDED / 'base', tmp_path / 'base')
    (base / TOKENIZER).write_text('{"model_max_length": 7}')
    (base / 'modules.json').write_text(
        '[{"path": "", "type": "sentence_transformers.models.Transformer"},'
        ' {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]')
    (base / '1_Pooling').mkdir()
    (base / '1_Pooling' / 'config.json').write_text('{"pooling_mode": "cls"}')
    (base / MODEL).write_text(
        '{"prompts": {"query": "a", "passage": "b"}, "default_prompt_name": "passage"}')
    return base


@pytest.mark.parametrize('encoder', ['', '0_Transformer'])
@pytest.mark.parametrize(('files', 'length'), [
    ({ENCODER: {'max_seq_length': 8}}, 8), ({TOKENIZER: {'model_max_length': 6}}, 6), ({}, 7),
    ({TOKENIZER: {'model_max_length': 10 ** 30}}, 10),
    ({TOKENIZER: {'model_max_length': 6}, ENCODER: {'max_seq_length': 8}}, 8),
])
def test_an_adapter_of_peft_has_the_settings_of_its_folder(
    folder, tmp_path, encoder, files, length
):
    path = folder(**{MODEL: PROMPTS})
    base_folder = base_with_a_limit(tmp_path)
    modules = json.loads((path / 'modules.json').read_text())
    modules[0]['path'] = encoder
    (path / 'modules.json').write_text(json.dumps(modules))
    for name in ('model.safetensors', 'config.json', 'vocab.txt'):
        (path / name).unlink()
    (path / encoder).mkdir(exist_ok=True)
    for name, content in files.items():
        (path / encoder / name).write_text(json.dumps(content))
    (path / encoder / 'adapter_config.json').write_text(json.dumps({
        'peft_type': 'LORA', 'task_type': 'FEATURE_EXTRACTION', 'r': 1, 'lora_alpha': 1,
        'base_model_name_or_path': str(base_folder)}))
    base = load(tiny.RECORDED / 'base')
    size = base.weights.model['hidden_size']
    module = 'base_model.model.encoder.layer.0.attention.self.query'
    write_file(path / encoder / 'adapter_model.safetensors', {
        f'{module}.lora_A.weight': np.eye(1, size, dtype=np.float32),
        f'{module}.lora_B.weight': np.ones((size, 1), np.float32)})
    model = load(path)
    assert model.max_length == length
    inference = model.weights.inference
    assert inference['prompts'] == PROMPTS['prompts'] and inference['default_prompt'] == 'query'
    assert inference['pool'] == 'mean'
    assert np.abs(model.vectors(['cab'], prompt='document') - base.vectors(['cab'])).max() > 1e-3


def test_a_prompt_is_named(folder, capsys):
    model = load(folder(**{MODEL: PROMPTS | {'default_prompt_name': None}}))
    expected = mean_of(model, 'q. a b')
    for name, text in (('query', 'a b'), ('document', 'q. a b')):
        (found,) = model.vectors([text], prompt=name)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert 'prompt' not in capsys.readouterr().err
    model.vectors(['a b'])
    assert "of its prompts query='q. ' is not applied" in capsys.readouterr().err
    with refused("prompt='passage'", 'query, document'):
        model.vectors(['a b'], prompt='passage')


def test_a_model_without_prompts_has_empty_ones(folder):
    model = load(folder())
    np.testing.assert_array_equal(model.vectors(['a'], prompt='query'), model.vectors(['a']))


def test_a_prompt_that_is_not_pooled_is_not_read_in_windows(folder):
    model = load(folder(pooling={'include_prompt': False}, **{MODEL: PROMPTS}))
    with refused("windows='mean'", "'q. '"):
        model.vectors(['a b'], windows='mean')


def test_a_prompt_that_is_not_pooled_leaves_something_to_pool(folder):
    prompts = {'prompts': {'query': 'a b c d e f g h i '}, 'default_prompt_name': None}
    model = load(folder(pooling={'include_prompt': False}, **{MODEL: prompts}))
    with refused("the prompt 'a b c d e f g h i ' fills the 10 tokens"):
        model.vectors(['a'], prompt='query')


def test_the_first_token_behind_a_prompt_is_of_the_same_text():
    """Of a text that is no longer than its prompt alone, as the two share a piece, it is [CLS]."""
    batch = {'position_ids': np.array([[0, 1, 2, 0, 1, 2, 3, 0, 1]]),
             'cls_positions': np.array([[0, 3, 7]])}
    assert engine.first_left(batch, 0).tolist() == [[0, 3, 7]]
    assert engine.first_left(batch, 3).tolist() == [[0, 6, 7]]


def test_letters_are_lower_cased_one_by_one():
    (found,) = Sentences(Path('.'), lowercase=True).prepared(['\u039f\u03a3 \u0130A'])
    assert found == '\u03bf\u03c3 i\u0307a'  # the sigma is not that of the end of a word


def test_texts_are_lower_cased_where_the_folder_says_so(folder):
    files = {'tokenizer_config.json': {'do_lower_case': False}}
    model = load(folder(**files, **{ENCODER: {'do_lower_case': True}}))
    np.testing.assert_allclose(model.vectors(['A B']), model.vectors(['a b']))
    assert model.features(['A'])[0]['tokens'][1] == '[UNK]'


@pytest.mark.parametrize(('name', 'content', 'said'), [
    (ENCODER, {'model_args': {'a': 1}, 'tokenizer_args': {}}, ["model_args={'a': 1}"]),
    (ENCODER, {'transformer_task': 'feature-extraction', 'module_output_name': 'token_embeddings',
               'modality_config': {
                   'text': {'method': 'forward', 'method_output_name': 'last_hidden_state'}}}, []),
    (ENCODER, {'transformer_task': 'fill-mask'}, ["transformer_task='fill-mask'"]),
    (MODEL, {'__version__': {'pytorch': '2'}, 'similarity_fn_name': 'dot', 'truncate_dim': 4,
             'model_type': 'SparseEncoder'}, ["model_type='SparseEncoder'"]),
    ('1_Pooling/config.json', {'pooling_mode': 'mean', 'embedding_dimension': 8, 'other': 3},
     ['other=3']),
])
def test_a_setting_that_is_not_applied_is_named(folder, capsys, name, content, said):
    path = folder()
    (path / name).write_text(json.dumps(content))
    load(path).sentences.pooling()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(said), lines
    for line, setting in zip(lines, said, strict=True):
        assert line.startswith(f'note: {path / name}: {setting}') and 'not applied' in line


def test_code_of_others_is_named(folder, capsys):
    path = folder()
    modules = (path / 'modules.json').read_text()
    (path / 'modules.json').write_text(
        modules.replace('sentence_transformers.models.Transformer', 'custom_st.Transformer'))
    load(path)
    assert 'the module custom_st.Transformer is of other code' in capsys.readouterr().err


@pytest.mark.parametrize(('name', 'content', 'words'), [
    (ENCODER, {'max_seq_length': '256'}, ["max_seq_length='256'"]),
    (ENCODER, {'do_lower_case': 'no'}, ["do_lower_case='no'"]),
    (MODEL, {'prompts': ['q: ']}, ["prompts=['q: '] is no JSON object"]),
    (MODEL, PROMPTS | {'default_prompt_name': 'passage'}, ["'passage'", 'query, document']),
])
def test_a_setting_that_cannot_be_is_refused(folder, name, content, words):
    with refused(name, *words):
        load(folder(**{name: content}))
