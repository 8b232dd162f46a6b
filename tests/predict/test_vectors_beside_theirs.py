"""Vectors of folders that sentence-transformers wrote are its own, or the folder is refused."""

import itertools
import json

import numpy as np
import pytest

from bert_jax.loading import load
from tests.predict import tiny
from tests.refusals import refused

pytestmark = pytest.mark.extras

TEXTS = ['a b', 'A b c d e f g h i j k l', 'q. a', 'n', '', ' ', 'n']
PROMPTS = {'query': 'q. ', 'document': 'd, '}
NUM_COLUMNS = 8


@pytest.fixture(scope='module')
def theirs():
    """The package."""
    return pytest.importorskip('sentence_transformers')


def modules_of(names):
    """Modules by name and arguments; each is 'NAME', or ('NAME', {argument: value})."""
    from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
    from sentence_transformers.sentence_transformer import modules

    makers = {
        'Transformer': lambda **kwargs: Transformer(str(tiny.RECORDED / 'base'), **kwargs),
        'Pooling': lambda *mode, **kwargs: modules.Pooling(NUM_COLUMNS, *mode, **kwargs),
        'Normalize': Normalize,
        'Dense': lambda: Dense(NUM_COLUMNS, 4),
        'Dropout': lambda: modules.Dropout(0.5),
        'LayerNorm': lambda: modules.LayerNorm(NUM_COLUMNS),
        'BoW': lambda: modules.BoW(['a', 'b']),
        'Router': lambda: Router({
            name: modules_of(['Transformer', 'Pooling']) for name in ('query', 'document')})}
    made = []
    for named in names:
        name, arguments = (named, {}) if isinstance(named, str) else named
        made.append(makers[name](**arguments))
    return made


def pooled(mode='mean', **kwargs):
    return ['Transformer', ('Pooling', {'pooling_mode': mode, **kwargs})]


MEAN = pooled()
NO_PROMPT = {'include_prompt': False}
# Modules, and arguments of the model.
EQUAL = {
    'mean': (MEAN, {}),
    'first token': (pooled('cls'), {}),
    'maximum': (pooled('max'), {}),
    'length 1': ([*MEAN, 'Normalize'], {}),
    'length 1 before pooling': (['Transformer', 'Normalize', *MEAN[1:]], {}),
    'dropout': ([*MEAN, 'Dropout'], {}),
    'short': ([('Transformer', {'max_seq_length': 6}), *MEAN[1:]], {}),
    'lower-cased': ([('Transformer', {'do_lower_case': True}), *MEAN[1:]], {}),
    'prompts': (MEAN, {'prompts': PROMPTS}),
    'default prompt': (MEAN, {'prompts': PROMPTS, 'default_prompt_name': 'query'}),
    'prompts by other names': (
        MEAN, {'prompts': {'passage': 'd, ', 'x': 'q. '}, 'default_prompt_name': 'x'}),
    'prompts that are not pooled': (pooled(**NO_PROMPT), {'prompts': PROMPTS}),
    'first token behind a prompt': (
        pooled('cls', **NO_PROMPT), {'prompts': PROMPTS, 'default_prompt_name': 'query'}),
    'maximum without a prompt': (pooled('max', **NO_PROMPT), {'prompts': PROMPTS}),
    'cut': (MEAN, {'truncate_dim': 3}),
    'cut after length 1': ([*MEAN, 'Normalize'], {'truncate_dim': 3}),
    'cut to more than there are': (MEAN, {'truncate_dim': 99}),
    'dot product': (MEAN, {'similarity_fn_name': 'dot'}),
}
# Modules, and words of the message.
REFUSED = {
    'last token': (pooled('lasttoken'), ['pools by lasttoken']),
    'weighted mean': (pooled('weightedmean'), ['pools by weightedmean']),
    'root of the length': (pooled('mean_sqrt_len_tokens'), ['pools by mean_sqrt_len']),
    'two ways': (pooled(('cls', 'mean')), ['pools by cls and mean']),
    'dense': ([*MEAN, 'Dense'], ['a module Dense']),
    'layer norm': ([*MEAN, 'LayerNorm'], ['a module LayerNorm']),
    'length 1 of tokens': (
        [*MEAN, ('Normalize', {'module_input_name': 'token_embeddings'})],
        ["module_input_name='token_embeddings'"]),
    'router': (['Router', 'Normalize'], ['first module is a Router', 'for queries']),
    'bag of words': (['BoW', 'Normalize'], ['first module is a BoW']),
}


@pytest.mark.parametrize('kind', EQUAL)
def test_vectors_are_theirs(theirs, tmp_path, kind):
    modules, arguments = EQUAL[kind]
    written = theirs.SentenceTransformer(modules=modules_of(modules), device='cpu', **arguments)
    written.save(str(tmp_path / 'model'))
    read = theirs.SentenceTransformer(str(tmp_path / 'model'), device='cpu')
    model = load(tmp_path / 'model')
    for normalize in (None, True):
        options = {'normalize_embeddings': bool(normalize)}
        for expected, prompt in (
                (read.encode(TEXTS, **options), None),
                (read.encode_query(TEXTS, **options), 'query'),
                (read.encode_document(TEXTS, **options), 'document')):
            found = model.vectors(TEXTS, prompt=prompt, normalize=normalize)
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=str(prompt))
    assert model.vectors([]).shape == (0, found.shape[1])
    assert model.sentences.similarity == read.similarity_fn_name


# Of a folder that pools the mean: what is in its files, or None to leave a field out.
POOLING, TOKENIZER = '1_Pooling/config.json', 'tokenizer_config.json'
OLD = {'pooling_mode': None}
CHANGED = {
    'length limit of transformers 2': {TOKENIZER: {'model_max_length': None, 'max_len': 6}},
    'cut at the beginning': {TOKENIZER: {'model_max_length': 6, 'truncation_side': 'left'}},
    'first token, version 4': {POOLING: OLD | {
        'pooling_mode_cls_token': True, 'pooling_mode_mean_tokens': False}},
    'first token, as numbers': {POOLING: OLD | {
        'pooling_mode_cls_token': 1, 'pooling_mode_mean_tokens': 0}},
    'no way of pooling, version 4': {POOLING: OLD | {'pooling_mode_cls_token': False}},
    'a list of one way': {POOLING: {'pooling_mode': ['max']}},
}


def changed(folder, files):
    """The folder, with fields of its files set or left out."""
    for name, fields in files.items():
        path = folder / name
        content = json.loads(path.read_text()) | fields
        path.write_text(json.dumps({
            name: value for name, value in content.items() if value is not None}))
    return folder


@pytest.mark.parametrize('kind', CHANGED)
def test_vectors_of_old_folders_are_theirs(theirs, tmp_path, kind):
    theirs.SentenceTransformer(modules=modules_of(MEAN), device='cpu').save(str(tmp_path))
    read = theirs.SentenceTransformer(str(changed(tmp_path, CHANGED[kind])), device='cpu')
    np.testing.assert_allclose(load(tmp_path).vectors(TEXTS), read.encode(TEXTS), atol=1e-5)


def test_what_they_change_of_a_converted_folder_counts(theirs, tmp_path):
    """transformers keeps this project's settings in config.json, which say what was before."""
    from bert_jax import convert

    modules = modules_of([('Transformer', {'max_seq_length': 6}), *MEAN[1:], 'Normalize'])
    theirs.SentenceTransformer(
        modules=modules, device='cpu', prompts=PROMPTS, default_prompt_name='query',
    ).save(str(tmp_path / 'given'))
    convert.main([str(tmp_path / 'given'), str(tmp_path / 'ours'), '--to', 'huggingface'])
    model = theirs.SentenceTransformer(str(tmp_path / 'ours'), device='cpu')
    model.max_seq_length = 8
    model.prompts = {'query': 'b ', 'document': ''}
    model.default_prompt_name = None
    model.pop(2)  # Normalize
    model.save(str(tmp_path / 'changed'))
    convert.main([str(tmp_path / 'changed'), str(tmp_path / 'run'), '--to', 'bert_jax'])
    for ours in (load(tmp_path / 'changed'), load(tmp_path / 'run')):
        assert ours.max_length == 8
        np.testing.assert_allclose(ours.vectors(TEXTS), model.encode(TEXTS), atol=1e-5)
        np.testing.assert_allclose(
            ours.vectors(TEXTS, prompt='query'), model.encode_query(TEXTS), atol=1e-5)


def test_an_encoder_with_a_head_of_words_is_written_with_its_pooling(theirs, tmp_path):
    from transformers import BertForMaskedLM

    from bert_jax import convert

    given = theirs.SentenceTransformer(modules=modules_of([*MEAN, 'Normalize']), device='cpu')
    given.save(str(tmp_path / 'given'))
    BertForMaskedLM.from_pretrained(tmp_path / 'given').save_pretrained(tmp_path / 'given')
    convert.main([str(tmp_path / 'given'), str(tmp_path / 'ours'), '--to', 'huggingface'])
    read = theirs.SentenceTransformer(str(tmp_path / 'ours'), device='cpu')
    np.testing.assert_allclose(read.encode(TEXTS), given.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize('kind', REFUSED)
def test_what_cannot_be_computed_is_refused(theirs, tmp_path, kind):
    modules, words = REFUSED[kind]
    theirs.SentenceTransformer(modules=modules_of(modules), device='cpu').save(str(tmp_path))
    with refused(*words):
        load(tmp_path).vectors(['a'])


@pytest.mark.parametrize('kind', ['prompts that are not pooled', 'cut after length 1',
                                  'default prompt', 'dot product', 'lower-cased'])
def test_a_folder_that_is_converted_gives_the_same_vectors(theirs, tmp_path, kind):
    from bert_jax import convert

    modules, arguments = EQUAL[kind]
    written = theirs.SentenceTransformer(modules=modules_of(modules), device='cpu', **arguments)
    written.save(str(tmp_path / 'model'))
    convert.main([str(tmp_path / 'model'), str(tmp_path / 'again'), '--to', 'huggingface'])
    again = theirs.SentenceTransformer(str(tmp_path / 'again'), device='cpu')
    for name, prompt in itertools.product(['encode', 'encode_query'], [None, 'a']):
        expected = getattr(written, name)(TEXTS, prompt=prompt)
        np.testing.assert_allclose(getattr(again, name)(TEXTS, prompt=prompt), expected, atol=1e-5)
    assert again.similarity_fn_name == written.similarity_fn_name
