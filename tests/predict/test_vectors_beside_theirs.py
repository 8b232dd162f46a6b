"""Vectors of folders that sentence-transformers wrote are its own, or the folder is refused."""

import itertools

import numpy as np
import pytest

from bert_jax.loading import load
from tests.predict import tiny
from tests.refusals import refused

pytestmark = pytest.mark.extras

TEXTS = ['a b', 'A b c d e f g h i j k l', 'q. a', 'n']
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
