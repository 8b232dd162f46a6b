"""The Python interface: pre-training heads and features."""

import dataclasses
import json
import math
import re
import shutil
import types

import jax
import numpy as np
import pytest

from bert_jax.loading import load
from bert_jax.model.encoder import Bert
from bert_jax.predict import stream as stream_module
from bert_jax.predict.model import Model
from bert_jax.runtime.arriving import PAUSE, Arriving
from bert_jax.runtime.errors import InputError
from tests.predict import tiny

LIMIT = tiny.SIZES['max_position_embeddings'] - 2


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    weights = tiny.pretraining_weights(tmp_path_factory.mktemp('tiny'))
    return Model(weights, devices=jax.devices()[:1])


def test_predicted_words_in_their_places(model):
    (result,) = model.fill_mask(['the cat [MASK] a [MASK].'], top_k=len(tiny.VOCAB))
    for mask, before, after in ((0, 'the cat', ' a [MASK].'), (1, 'the cat [MASK] a', '.')):
        sequences = {p['token']: p['sequence'] for p in result['predictions'][mask]}
        assert len(sequences) == len(tiny.VOCAB)
        assert sequences['dog'] == f'{before} dog{after}'
        assert sequences['##s'] == f'{before}s{after}'
    assert sum(p['probability'] for p in result['predictions'][0]) == pytest.approx(1, abs=1e-5)


def test_long_prompts_are_windowed_around_each_mask(model):
    words = ['red', 'cat', 'dog', 'the', 'sees'] * 20
    long = [*words[:70], '[MASK]', *words[:40], '[MASK]']
    with pytest.warns(UserWarning, match=f'text 1 has 112 tokens, the model takes {LIMIT}'):
        (result,) = model.fill_mask([' '.join(long)], top_k=3)
    half = LIMIT // 2
    around_first = long[70 - half : 70 + half]
    around_last = long[-LIMIT:]
    alone = model.fill_mask([' '.join(around_first), ' '.join(around_last)], top_k=3)
    expected = [alone[0]['predictions'], alone[1]['predictions'][-1]]
    for ours, theirs in zip(result['predictions'], expected, strict=True):
        assert [p['token'] for p in ours] == [p['token'] for p in theirs]
        np.testing.assert_allclose(
            [p['probability'] for p in ours], [p['probability'] for p in theirs], rtol=1e-4)


@pytest.mark.parametrize('num', [1, 7, 60])
def test_score_is_the_sum_over_words_masked_in_turn(model, num):
    """In a text that is too long, a word is scored in the window around it."""
    words = (['red', 'cat', 'likes', 'the', '?', 'bird', 'a'] * 9)[:num]
    prompts = []
    for i in range(num):
        begin = max(min(max(i - LIMIT // 2, 0), num - LIMIT), 0)
        window = words[begin : begin + LIMIT]
        window[i - begin] = '[MASK]'
        prompts.append(' '.join(window))
    filled = model.fill_mask(prompts, top_k=len(tiny.VOCAB))
    total = sum(
        math.log(next(p['probability'] for p in result['predictions'] if p['token'] == word))
        for result, word in zip(filled, words, strict=True))
    (result,) = model.score([' '.join(words)])
    assert (result['text'], result['num_tokens']) == (' '.join(words), num)
    assert result['log_probability'] == pytest.approx(total, abs=1e-3)
    assert result['pseudo_perplexity'] == pytest.approx(math.exp(-total / num), rel=1e-3)


def test_features_of_many_texts_in_their_order(model):
    texts = tiny.random_texts(100)
    together = model.features(texts, layers=(-1, -2, -3))
    vectors = model.vectors(texts)
    cls = model.vectors(texts, pool='cls', layer=-2)
    for i in (0, 7, 99):
        (alone,) = model.features([texts[i]], layers=(-1, -2, -3))
        tokens = ['[CLS]', *model.tokenizer.tokenize(texts[i]), '[SEP]']
        assert together[i]['tokens'] == alone['tokens'] == tokens
        assert together[i]['values'].shape == (len(tokens), 3, tiny.SIZES['hidden_size'])
        np.testing.assert_allclose(together[i]['values'], alone['values'], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(vectors[i], alone['values'][:, 0].mean(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(cls[i], alone['values'][0, 1], rtol=1e-4, atol=1e-4)
    assert vectors.shape == (100, tiny.SIZES['hidden_size'])
    assert model.vectors([]).shape == (0, tiny.SIZES['hidden_size'])


def test_features_of_pairs_and_of_long_texts(model):
    (pair,) = model.features([('a cat', 'the dog .')])
    assert pair['tokens'] == ['[CLS]', 'a', 'cat', '[SEP]', 'the', 'dog', '.', '[SEP]']
    with pytest.warns(UserWarning, match='text 2 has 102 tokens'):
        _, second = model.features(['red', ('red ' * 100, 'a dog')])
    assert second['tokens'] == ['[CLS]', *['red'] * (LIMIT - 3), '[SEP]', 'a', 'dog', '[SEP]']


@dataclasses.dataclass(frozen=True)
class FaultyText:
    """A text that a command cannot read, and two that it can."""

    command: str
    text: object
    message: str  # a pattern
    good: tuple

    def __str__(self):
        return f'{self.command} {self.text}'


FAULTY_TEXTS = [
    FaultyText('fill_mask', 'a dog', r"it has no \[MASK\]: .*'a dog'", ('[MASK]', 'a [MASK]')),
    FaultyText('fill_mask', None, 'None is no text', ('[MASK]', 'a [MASK]')),
    FaultyText('score', '\u200b\0', 'it is empty: a word or more is needed', ('a dog', 'the cat')),
    FaultyText('score', ('a', 'b'), 'it has 2 parts: one text expected', ('a dog', 'the cat')),
    FaultyText('next_sentence', ('a', ''), 'it is empty', (('a', 'dog'), ('a', 'cat'))),
    FaultyText('next_sentence', 'a dog', 'it has 1 part: two texts expected',
               (('a', 'dog'), ('a', 'cat'))),
    FaultyText('answer', ('', 'b'), 'it is empty', (('a', 'b c'), ('a', 'b'))),
    FaultyText('answer', (1, 'b'), 'is no text', (('a', 'b c'), ('a', 'b'))),
]


@pytest.mark.parametrize('faulty', FAULTY_TEXTS, ids=str)
def test_a_faulty_text_has_an_error_and_the_others_have_results(model, faulty):
    if faulty.command == 'answer':
        model, _ = tiny.recorded('question_answering')
    run = getattr(model, faulty.command)
    before, after = faulty.good
    first, wrong, last = run([before, faulty.text, after])
    assert re.search(faulty.message, wrong['error'])
    assert set(wrong) == {*first, 'error'}
    for ours, alone in zip((first, last), run([before, after]), strict=True):
        assert set(ours) == set(alone) and 'error' not in ours
    (alone,) = run([faulty.text])
    assert alone.get('error') == wrong['error']


def test_an_exception_for_a_text_is_its_error_and_the_others_have_results(model, monkeypatch):
    """Whatever the tokenizer raises."""
    encode = model.tokenizer.encode

    def faulty(text):
        if 'dog' in text:
            raise RuntimeError('no dogs')
        return encode(text)

    monkeypatch.setattr(model.tokenizer, 'encode', faulty)
    first, wrong, last = model.score(['a cat', 'a dog', 'a cat'])
    assert wrong == {'text': 'a dog', 'error': 'RuntimeError: no dogs', **dict.fromkeys(
        ('num_tokens', 'log_probability', 'pseudo_perplexity'))}
    assert first == last and first['num_tokens'] == 2


def test_what_is_not_a_text_has_a_vector_of_nan(model):
    with pytest.warns(UserWarning, match='None has no vector: None is no text'):
        found = model.vectors(['a cat', None, ''])
    assert np.isnan(found).any(1).tolist() == [False, True, False]
    # A blank text has [CLS] and [SEP], as in sentence-transformers.
    assert model.features([''])[0]['tokens'] == ['[CLS]', '[SEP]']


def test_results_come_while_texts_are_still_being_read(model):
    """Of a source that may be a live one, no text is asked for before the first has its result."""
    taken = []

    def texts():
        for i in range(10**9):
            taken.append(i)
            yield 'a cat likes the [MASK] .'

    stream = model.iter_fill_mask(texts(), top_k=1)
    numbers = []
    for _ in range(20):
        next(stream)
        numbers.append(len(taken))
    stream.close()
    assert numbers[:2] == [1, 17] and numbers[-1] < 20 * 20


def test_a_slow_source_has_the_result_of_a_text_before_the_next_is_asked_for(model, monkeypatch):
    """Its clock is ours: each text takes a second to come."""
    now = [0.0]
    monkeypatch.setattr(stream_module, 'time', types.SimpleNamespace(monotonic=lambda: now[0]))
    taken = []

    def texts():
        for i in range(5):
            now[0] += 1
            taken.append(i)
            yield 'a cat likes the [MASK] .'

    stream = model.iter_fill_mask(texts(), top_k=1)
    assert [len(taken) for _ in stream] == [1, 2, 3, 4, 5]


def test_chunks_are_full_where_texts_are_plentiful():
    """Of a list, and of a pipe that does not pause; a pause or a long wait ends a chunk."""
    def chunks(items, wait, begins_small=False):
        found = stream_module._chunks(Arriving(items, wait), 100, lambda text: 10, begins_small)
        return ['pause' if item is PAUSE else len(item.texts) for item in found]

    assert chunks(['a'] * 25, math.inf) == [10, 10, 5]
    assert chunks([*'aa', PAUSE, PAUSE, *'a' * 12, PAUSE], 9.0) == [2, 'pause', 10, 2, 'pause']
    assert chunks(['a'] * 4, 0.0) == [1, 'pause'] * 4
    assert chunks(['a'] * 40, 9.0, begins_small=True) == [1, 'pause', 10, 10, 10, 9]


def test_notes_of_many_texts_are_counted(model, recwarn):
    """A million long texts leave one warning, and nothing that grows with them."""
    for _ in model.iter_features(['cat ' * 99] * 300):
        pass
    said = [str(warning.message) for warning in recwarn if warning.category is UserWarning]
    assert len(said) == 2
    assert said[0].startswith('text 1 has 99 tokens, the model takes ')
    assert said[1] == '299 more texts are longer than that: their ends are left out'


@pytest.fixture
def sentence_transformers(tmp_path):
    """A function that makes a folder with modules behind the encoder; texts have 6 tokens."""
    def make(modules, pooling):
        folder = tmp_path / 'model'
        shutil.copytree(tiny.RECORDED / 'base', folder)
        listed = [{'path': '', 'type': 'sentence_transformers.Transformer'}]
        for number, name in enumerate(modules, 1):
            listed.append({'path': f'{number}_{name}', 'type': f'sentence_transformers.{name}'})
        (folder / 'modules.json').write_text(json.dumps(listed))
        (folder / '1_Pooling').mkdir()
        (folder / '1_Pooling' / 'config.json').write_text(json.dumps(pooling))
        (folder / 'sentence_bert_config.json').write_text('{"max_seq_length": 6}')
        return load(folder)
    return make


@pytest.mark.parametrize(('pooling', 'pool'), [
    ({'pooling_mode_mean_tokens': True, 'pooling_mode_cls_token': False}, 'mean'),
    ({'pooling_mode_cls_token': True}, 'cls'),
    ({'pooling_mode': 'max'}, 'max'),
], ids=['mean', 'cls', 'max'])
@pytest.mark.parametrize('is_normalized', [False, True], ids=['as it is', 'normalized'])
def test_vectors_are_pooled_as_sentence_transformers_does(
    sentence_transformers, pooling, pool, is_normalized
):
    modules = ['Pooling', 'Normalize'] if is_normalized else ['Pooling']
    model = sentence_transformers(modules, pooling)
    states = model.features(['a b'])[0]['values'][:, 0]
    (found,) = model.vectors(['a b'])
    expected = {'mean': states.mean(0), 'cls': states[0], 'max': states.max(0)}[pool]
    if is_normalized:
        expected /= np.linalg.norm(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert model.max_length == 6


@pytest.mark.parametrize(('modules', 'pooling'), [
    (['Pooling'], {'pooling_mode_weightedmean_tokens': True}),
    (['Pooling', 'Dense'], {'pooling_mode': 'mean'}),
], ids=['pooling', 'module'])
def test_what_cannot_be_computed_behind_the_encoder_is_refused_unless_pool_is_named(
    sentence_transformers, modules, pooling
):
    model = sentence_transformers(modules, pooling)
    with pytest.raises(InputError, match='name pool'):
        model.vectors(['a b'])
    (found,) = model.vectors(['a b'], 'mean', normalize=False)
    expected = model.features(['a b'])[0]['values'][:, 0].mean(0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert model.max_length == 6


def test_a_model_offers_what_its_parts_allow(model):
    def without(*parts):
        params = {x: y for x, y in model.weights.params.items() if not x.startswith(parts)}
        return Model(dataclasses.replace(model.weights, params=params))

    some = without('cls/seq_relationship', 'bert/pooler')
    assert some.commands() == ['fill-mask', 'score', 'features', 'export']
    some = without('cls/predictions')
    assert some.commands() == ['next-sentence', 'features', 'export']
    with pytest.raises(InputError, match='score needs a masked-LM head: this model serves next-'):
        some.score(['a'])
    with pytest.raises(InputError, match=r'\(data.next_sentence=False trains none\): this model'):
        without('cls/seq_relationship').next_sentence([('a', 'b')])


def test_all_tokens_of_a_pair_have_the_one_segment_type_of_a_model():
    model, _ = tiny.recorded('token_classification')
    assert model.config.type_vocab_size == 1
    ids = np.array([[2, 5, 3, 6, 3]])
    bert = Bert(model.config, pooled=False)

    @jax.jit
    def encode(segments):
        params = {'params': model.params['bert']}
        return bert.apply(params, ids, ids > 0, segments)['sequence_output']

    outputs = [encode(segments) for segments in (0 * ids, np.array([[0, 0, 0, 1, 1]]))]
    np.testing.assert_array_equal(*outputs)
    (pair,) = model.features([('a', 'b')])
    assert len(pair['tokens']) == 5


@pytest.fixture
def cross_encoder(tmp_path):
    """A function that makes a model of regression with further fields in a file beside it."""
    def make(file, fields):
        folder = tmp_path / 'model'
        shutil.copytree(tiny.RECORDED / 'regression', folder)
        path = folder / file
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | fields))
        return load(folder)
    return make


def value_before_activation():
    (result,) = tiny.recorded('regression')[0].classify([('a b', 'c')])
    return result['value']


@pytest.mark.parametrize(('file', 'fields', 'activation'), [
    ('config.json', {}, lambda x: x),
    ('config.json', {'sbert_ce_default_activation_function': 'torch.nn.modules.linear.Identity'},
     lambda x: x),
    ('config.json',
     {'sbert_ce_default_activation_function': 'torch.nn.modules.activation.Sigmoid'},
     lambda x: 1 / (1 + np.exp(-x))),
    ('config.json',
     {'sentence_transformers': {'activation_fn': 'torch.nn.modules.activation.Sigmoid'}},
     lambda x: 1 / (1 + np.exp(-x))),
    ('config_sentence_transformers.json', {'activation_fn': 'torch.nn.modules.activation.Tanh'},
     np.tanh),
], ids=['none', 'Identity', 'Sigmoid', 'Sigmoid in a section', 'Tanh in the other file'])
def test_the_value_of_a_cross_encoder_goes_through_its_activation(
    cross_encoder, file, fields, activation, capsys
):
    (found,) = cross_encoder(file, fields).classify([('a b', 'c')])
    assert 'is unknown here' not in capsys.readouterr().err
    assert found['value'] == pytest.approx(activation(value_before_activation()), abs=1e-5)


def test_an_unknown_activation_is_named_and_not_applied(cross_encoder, capsys):
    fields = {'sentence_transformers': {'activation_fn': 'mine.Cube'}}
    (found,) = cross_encoder('config.json', fields).classify([('a b', 'c')])
    assert 'the activation mine.Cube is unknown here' in capsys.readouterr().err
    assert found['value'] == pytest.approx(value_before_activation(), abs=1e-5)


@pytest.mark.parametrize(('activation', 'said'), [
    ('torch.nn.modules.activation.Softmax', ''), ('torch.nn.modules.linear.Identity', ''),
    ('torch.nn.modules.activation.Sigmoid', 'activation.Sigmoid is not applied: several outputs'),
    ('mine.Cube', 'mine.Cube is not applied: several outputs are probabilities'),
])
def test_several_outputs_are_probabilities(tmp_path, activation, said, capsys):
    folder = shutil.copytree(tiny.RECORDED / 'classification', tmp_path / 'model')
    config = json.loads((folder / 'config.json').read_text())
    config['sbert_ce_default_activation_function'] = activation
    (folder / 'config.json').write_text(json.dumps(config))
    load(folder)
    err = capsys.readouterr().err
    assert said in err and ('activation' in err) == bool(said)


def test_an_embedding_with_more_rows_than_the_vocabulary_has_tokens(model, tmp_path):
    vocab_file = tmp_path / 'vocab.txt'
    vocab_file.write_text(''.join(f'{token}\n' for token in tiny.VOCAB[:-2]))
    short = Model(dataclasses.replace(model.weights, vocab_file=vocab_file))
    (ours,), (whole,) = (m.fill_mask(['a [MASK]'], top_k=99) for m in (short, model))
    assert len(ours['predictions']) == len(tiny.VOCAB)
    names = {p['id']: p['token'] for p in ours['predictions']}
    assert names[18] == '[unused row 18]' and names[17] == '.'
    assert [p['id'] for p in ours['predictions']] == [p['id'] for p in whole['predictions']]


MASKED_LM = tiny.RECORDED / 'masked_lm'


@pytest.fixture
def without_vocabulary(tmp_path):
    """A folder with weights alone."""
    folder = tmp_path / 'model'
    folder.mkdir()
    for name in ('config.json', 'model.safetensors'):
        shutil.copy(MASKED_LM / name, folder)
    return folder


def test_a_model_without_a_vocabulary_asks_for_it(without_vocabulary):
    with pytest.raises(InputError, match='no vocabulary: put .* or name it with --vocab-file'):
        load(without_vocabulary).fill_mask(['[MASK]'])


def test_the_vocabulary_can_be_named(without_vocabulary):
    named = load(without_vocabulary, MASKED_LM / 'vocab.txt').fill_mask(['a [MASK] c'])
    assert named == load(MASKED_LM).fill_mask(['a [MASK] c'])


def test_the_vocabulary_of_another_model_is_refused(tmp_path):
    other = tmp_path / 'other.txt'
    tokens = (MASKED_LM / 'vocab.txt').read_text().splitlines()

    other.write_text('\n'.join([*tokens, 'more']) + '\n')
    with pytest.raises(InputError, match='has 41 tokens, the embedding has 40 rows'):
        load(MASKED_LM, other)

    *first, last_but_one, last = tokens
    other.write_text('\n'.join([*first, last, last_but_one]) + '\n')
    with pytest.raises(
            InputError, match=f'other.txt: line 39 is {last!r}, and {last_but_one!r} in'):
        load(MASKED_LM, other)


@pytest.mark.parametrize(('name', 'argument', 'values'), [
    ('score', 'texts', [None, 5, 'one text', b'bytes', {'a': 1}, object()]),
    ('fill_mask', 'top_k', ['5', 0, -1, 2.5, None, [3]]),
    ('features', 'layers', [(), '-1', None, (0,), (-99,), ('a',), (1.5,), {'a': 1}, 3]),
    ('vectors', 'layer', ['1', 0, 7, None, (-1,)]), ('vectors', 'pool', ['sum', '', 5, ['mean']]),
    ('vectors', 'windows', ['last', '', 5, ('mean',)]),
    ('vectors', 'normalize', [0, 'no', np.zeros((2, 3))]),
    ('classify', 'any_form', [1, 'no', None, np.zeros(2)]),
    ('classify', 'windows', [np.array(['mean', 'max'])]),
    ('answer', 'max_answer_length', ['5', 0]), ('answer', 'null_threshold', [math.nan, '0', [0.0]]),
])
def test_invalid_arguments_are_refused_in_one_line(name, argument, values, model):
    of_name = {'answer': 'question_answering', 'classify': 'classification'}.get(name)
    model = tiny.recorded(of_name)[0] if of_name else model
    given = {'answer': {'questions': [('a', 'cat')]}}.get(name, {'texts': ['a']})
    for value in values:
        with pytest.raises(InputError) as error:
            getattr(model, name)(**given | {argument: value})
        assert '\n' not in str(error.value), value


@pytest.mark.parametrize('given', [
    {'path': None}, {'path': ''}, {'path': tiny.RECORDED / 'base', 'dtype': 'float16'},
    {'path': tiny.RECORDED / 'base', 'vocab_file': 5},
])
def test_a_model_that_cannot_be_loaded(given):
    with pytest.raises(InputError):
        load(**given)
