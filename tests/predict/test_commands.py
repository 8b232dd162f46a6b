"""What the Python interface gives: pre-training heads and features."""

import dataclasses
import math
import re

import jax
import numpy as np
import pytest
import tiny

from bert_jax.errors import InputError
from bert_jax.model.heads import BertForPreTraining, masked_lm_logits
from bert_jax.predict import load
from bert_jax.predict.api import Model

LIMIT = tiny.SIZES['max_position_embeddings'] - 2


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    return Model(tiny.pretraining_weights(tmp_path_factory.mktemp('tiny')))


@pytest.fixture(scope='module')
def direct(model):
    """(masked ids of one text, position, second text) -> masked-LM probabilities, NSP logits."""
    bert = BertForPreTraining(model.config)

    @jax.jit
    def apply(ids, mask, segments, positions):
        out = bert.apply({'params': model.params}, ids, mask, segments, positions)
        return jax.nn.softmax(masked_lm_logits(out['mlm_output'])[0, 0]), out['nsp_logits'][0]

    def compute(first, position=0, second=None):
        vocab = model.tokenizer.vocab
        ids = [vocab.cls_id, *first, vocab.sep_id]
        segments = [0] * len(ids)
        if second is not None:
            ids += [*second, vocab.sep_id]
            segments += [1] * (len(second) + 1)
        rest = tiny.SIZES['max_position_embeddings'] - len(ids)
        rows = [np.pad(np.array(x, np.int32), (0, rest))[None] for x in (
            ids, [1] * len(ids), segments)]
        return apply(*rows, np.array([[position + 1]], np.int32))

    return compute


def test_fill_mask(model, direct):
    texts = ['the [MASK] sees a dog.', 'a cat likes [MASK][MASK]', '[MASK]', 'Red birds [MASK] , ?']
    results = model.fill_mask(texts, top_k=4)
    assert [result['text'] for result in results] == texts
    by_mask = [results[0]['predictions'], *results[1]['predictions'], results[2]['predictions'],
               results[3]['predictions']]
    tokens = [['the', '[MASK]', 'sees', 'a', 'dog', '.'], ['a', 'cat', 'likes', '[MASK]', '[MASK]'],
              ['[MASK]'], ['red', 'bird', '##s', '[MASK]', ',', '?']]
    places = [(0, 1), (1, 3), (1, 4), (2, 0), (3, 3)]
    for predictions, (text, position) in zip(by_mask, places, strict=True):
        ids = [tiny.VOCAB.index(token) for token in tokens[text]]
        probabilities = np.asarray(direct(ids, position)[0])
        best = np.argsort(-probabilities)[:4]
        assert [p['id'] for p in predictions] == best.tolist()
        assert [p['token'] for p in predictions] == [tiny.VOCAB[i] for i in best]
        np.testing.assert_allclose(
            [p['probability'] for p in predictions], probabilities[best], rtol=1e-3)


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
    long = [*words[:70], '[MASK]', *words[70:80], '[MASK]']
    with pytest.warns(UserWarning, match=f'text 1 has 82 tokens, the model takes {LIMIT}'):
        (result,) = model.fill_mask([' '.join(long)], top_k=3)
    half = LIMIT // 2
    around_first = long[70 - half : 70 + half]
    around_last = long[-LIMIT:]
    alone = model.fill_mask([' '.join(around_first), ' '.join(around_last)], top_k=3)
    expected = [alone[0]['predictions'][0], alone[1]['predictions'][-1]]
    for ours, theirs in zip(result['predictions'], expected, strict=True):
        assert [p['token'] for p in ours] == [p['token'] for p in theirs]
        np.testing.assert_allclose(
            [p['probability'] for p in ours], [p['probability'] for p in theirs], rtol=1e-3)


def test_score_is_the_sum_over_tokens_masked_in_turn(model, direct):
    texts = tiny.random_texts(6, 8)
    for text, result in zip(texts, model.score(texts), strict=True):
        ids = model.tokenizer.encode(text)
        total = 0.0
        for i, target in enumerate(ids):
            masked = [*ids[:i], model.tokenizer.vocab.mask_id, *ids[i + 1 :]]
            total += math.log(direct(masked, i)[0][target])
        assert result['text'] == text
        assert result['num_tokens'] == len(ids)
        assert result['log_probability'] == pytest.approx(total, abs=1e-3)
        assert result['pseudo_perplexity'] == pytest.approx(math.exp(-total / len(ids)), rel=1e-3)


def test_score_of_a_long_text_sees_windows(model):
    words = (['red', 'cat', 'likes', 'the', '?', 'bird', 'a'] * 9)[:60]
    prompts = []
    for i in range(60):
        begin = min(max(i - LIMIT // 2, 0), 60 - LIMIT)
        window = words[begin : begin + LIMIT]
        window[i - begin] = '[MASK]'
        prompts.append(' '.join(window))
    filled = model.fill_mask(prompts, top_k=len(tiny.VOCAB))
    total = sum(
        math.log(next(p['probability'] for p in result['predictions'] if p['token'] == word))
        for result, word in zip(filled, words, strict=True)
    )
    (result,) = model.score([' '.join(words)])
    assert result['num_tokens'] == 60
    assert result['log_probability'] == pytest.approx(total, abs=1e-3)


def test_next_sentence(model, direct):
    texts = tiny.random_texts(12, 12)
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    for pair, result in zip(pairs, model.next_sentence(pairs), strict=True):
        first, second = (model.tokenizer.encode(text) for text in pair)
        logits = direct(first, 0, second)[1]
        assert (result['first'], result['second']) == pair
        assert result['probability'] == pytest.approx(float(jax.nn.softmax(logits)[0]), abs=1e-4)


def test_features_of_many_texts_in_their_order(model):
    texts = tiny.random_texts(100)
    together = model.features(texts, layers=(-1, -2, -4))
    vectors = model.vectors(texts)
    cls = model.vectors(texts, pool='cls', layer=-2)
    for i in (0, 7, 99):
        (alone,) = model.features([texts[i]], layers=(-1, -2, -4))
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
    with pytest.warns(UserWarning, match='its end is left out'):
        (long,) = model.features(['red ' * 100])
    assert long['tokens'] == ['[CLS]', *['red'] * LIMIT, '[SEP]']
    with pytest.warns(UserWarning, match='text 2 has 102 tokens'):
        _, (second) = model.features(['red', ('red ' * 100, 'a dog')])
    assert second['tokens'] == ['[CLS]', *['red'] * (LIMIT - 3), '[SEP]', 'a', 'dog', '[SEP]']


@pytest.mark.parametrize(('call', 'message'), [
    (lambda m: m.fill_mask(['[MASK]', 'a dog']), r"text 2 has no \[MASK\]: .*'a dog'"),
    (lambda m: m.fill_mask(['a [MASK]', '']), 'text 2 is empty'),
    (lambda m: m.fill_mask(['[MASK]'], top_k=0), 'top_k=0 must be 1 or more'),
    (lambda m: m.score(['a', ' \t ']), 'text 2 is empty'),
    (lambda m: m.score(['\u200b\0']), 'text 1 is empty'),
    (lambda m: m.features([]) or m.features(['']), 'text 1 is empty'),
    (lambda m: m.features([('a', 'a', 'a')]), 'text 1 has 3 parts: one text or two texts expected'),
    (lambda m: m.features(['a'], layers=[0]), 'layer 0 is not there: -1 is the last, -3 the first'),
    (lambda m: m.features(['a'], layers=[-5]), 'layer -5 is not there'),
    (lambda m: m.vectors(['a'], pool='max'), "pool='max' is unknown: mean or cls"),
    (lambda m: m.next_sentence([('a', 'dog'), ('a', '')]), 'text 2 is empty'),
    (lambda m: m.next_sentence(['a dog']), 'text 1 has 1 parts: two texts expected'),
    (lambda m: m.classify(['a']), 'a tiny model has a masked-LM head and a next-sentence head, and '
     'classify needs a classification, regression or multiple-choice head: this model serves '
     'fill-mask, score, next-sentence, features, export'),
    (lambda m: m.tag(['a']), 'tag needs a token-classification head'),
    (lambda m: m.answer([('a', 'a')]), 'answer needs a question-answering head'),
], ids=lambda value: value if isinstance(value, str) else 'call')
def test_bad_input(model, call, message):
    with pytest.raises(InputError, match=message) as raised:
        call(model)
    assert '\n' not in str(raised.value)


def test_a_model_offers_what_its_parts_allow(model):
    weights = model.weights
    assert Model(tiny.without(weights, 'cls/seq_relationship', 'bert/pooler')).commands() == [
        'fill-mask', 'score', 'features', 'export']
    assert Model(tiny.without(weights, 'cls/predictions')).commands() == [
        'next-sentence', 'features', 'export']
    with pytest.raises(InputError, match='has a next-sentence head, and score needs a masked-LM'):
        Model(tiny.without(weights, 'cls/predictions')).score(['a'])


def test_an_embedding_with_more_rows_than_the_vocabulary_has_tokens(model, tmp_path):
    vocab_file = tmp_path / 'vocab.txt'
    vocab_file.write_text(''.join(f'{token}\n' for token in tiny.VOCAB[:-2]))
    short = Model(dataclasses.replace(model.weights, vocab_file=vocab_file))
    (ours,), (whole,) = (m.fill_mask(['a [MASK]'], top_k=99) for m in (short, model))
    assert len(ours['predictions']) == len(tiny.VOCAB)
    names = {p['id']: p['token'] for p in ours['predictions']}
    assert names[18] == '[unused row 18]' and names[17] == '.'
    assert [p['id'] for p in ours['predictions']] == [p['id'] for p in whole['predictions']]


def test_vocabulary_beside_or_named(tmp_path):
    (tmp_path / 'model').mkdir()
    source = tiny.RECORDED / 'masked_lm'
    for name in ('config.json', 'model.safetensors'):
        (tmp_path / 'model' / name).write_bytes((source / name).read_bytes())
    with pytest.raises(InputError, match='no vocabulary: put .* or name it with --vocab-file'):
        load(tmp_path / 'model').fill_mask(['[MASK]'])
    named = load(tmp_path / 'model', source / 'vocab.txt').fill_mask(['a [MASK] c'])
    assert named == load(source).fill_mask(['a [MASK] c'])
    (tmp_path / 'short.txt').write_text('\n'.join(tiny.VOCAB[:5]))
    with pytest.raises(InputError, match='has 5 tokens, the embedding has 40 rows'):
        load(tmp_path / 'model', tmp_path / 'short.txt')


def test_the_lines_of_the_readme(capsys):
    """As the package's docstring has them."""
    import bert_jax.predict

    code = re.findall(r'^ {4}(.*)$', bert_jax.predict.__doc__, re.MULTILINE)
    folder = tiny.RECORDED / 'pretraining'
    program = '\n'.join(code).replace("'runs/tiny_pretrain'", f'{str(folder)!r}').replace(
        'The list is [MASK] in place.', 'a [MASK] c')
    exec(program, {})
    printed = capsys.readouterr().out.split()
    assert len(code) == 4 and len(printed) == 1
    assert printed[0] in (folder / 'vocab.txt').read_text().split()
