"""The Python interface with task heads: classify, answer, tag."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.data.packing import Units
from bert_jax.predict.commands import Model
from bert_jax.runtime.errors import Unreadable
from bert_jax.tasks.entities import entity_spans
from bert_jax.tasks.squad_answers import PlacesByWords, final_texts, predict_answers
from bert_jax.tasks.squad_reader import Question
from bert_jax.tasks.squad_windows import squad_windows
from tests.predict import tiny

ONE = jax.devices()[:1]
LETTERS = list('abcdefghijklmnopqrstuvwxyz')


def letters(num, longest, seed=0):
    rng = np.random.default_rng(seed)
    return [' '.join(rng.choice(LETTERS, int(n))) for n in rng.integers(1, longest + 1, num)]


def test_classification():
    model, _ = tiny.recorded('classification')
    texts = [*letters(8, 8), *zip(letters(4, 3), letters(4, 3, seed=1), strict=True)]
    results = model.classify(texts)
    for text, result in zip(texts, results, strict=True):
        assert list(result['probabilities']) == ['negative', 'neutral', 'positive']
        assert sum(result['probabilities'].values()) == pytest.approx(1)
        assert result['probabilities'][result['label']] == result['probability']
        assert result['probability'] == max(result['probabilities'].values())
        assert text in (result.get('text'), (result.get('first'), result.get('second')))


@pytest.mark.parametrize('windows', ['mean', 'max'])
def test_windows_of_a_long_text(windows):
    """The model takes 8 tokens of text: fifteen letters make three windows, from 0, 3 and 7."""
    model, _ = tiny.recorded('classification')
    text = ' '.join(LETTERS[:15])
    parts = [' '.join(LETTERS[i : i + 8]) for i in (0, 3, 7)]
    each = np.array([list(x['probabilities'].values()) for x in model.classify(parts)])
    expected = each.mean(0) if windows == 'mean' else each.max(0) / each.max(0).sum()
    found, pair = model.classify([text, ('b', text)], windows)
    np.testing.assert_allclose(list(found['probabilities'].values()), expected, rtol=1e-4)
    assert pair['first'] == 'b'
    with pytest.warns(match='its end is left out'):
        (cut,) = model.classify([text])
    assert cut['probability'] == pytest.approx(each[0].max(), rel=1e-4)
    carried = dataclasses.replace(model.weights, inference={'windows': windows})
    (again,) = Model(carried, devices=ONE).classify([text])
    assert again['probability'] == pytest.approx(found['probability'], rel=1e-4)

    each = model.vectors(parts)
    expected = each.mean(0) if windows == 'mean' else each.max(0)
    np.testing.assert_allclose(model.vectors([text], windows=windows)[0], expected, atol=1e-5)


def test_regression():
    model, _ = tiny.recorded('regression')
    (one,), both = model.classify(['a b']), model.classify(['c', 'a b'])
    assert set(one) == {'text', 'value'}
    assert both[1]['value'] == pytest.approx(one['value'], abs=1e-5)


@pytest.mark.parametrize(('head', 'keys'), [
    ('classification', ('label', 'probability', 'probabilities')),
    ('multi_label', ('labels', 'probabilities')), ('regression', ('value',))])
@pytest.mark.parametrize(('num', 'right', 'wrong', 'message'), [
    (1, 'a b', ('a', 'b'), 'it is a pair, and the model was trained on single texts'),
    (2, ('a', 'b'), 'a b', 'it is a single text, and the model was trained on pairs')])
def test_texts_of_another_form_than_in_training_are_refused_unless_asked(
    head, keys, num, right, wrong, message
):
    plain, _ = tiny.recorded('regression' if head == 'regression' else 'classification')
    model = Model(dataclasses.replace(plain.weights, head=head, inference={'num_texts': num}),
                  devices=ONE)
    unreadable = Unreadable('line 3: not UTF-8', num)
    good, refused, lost = model.classify([right, wrong, unreadable])
    assert set(good) == {'text', *keys} if num == 1 else {'first', 'second', *keys}
    assert message in refused['error'] and '--any-form' in refused['error']
    assert lost['error'] == 'line 3: not UTF-8'
    for result in (refused, lost):
        assert set(result) == {*good, 'error'} and all(result[key] is None for key in keys)
    for result in model.classify([right, wrong], any_form=True):
        assert all(result[key] is not None for key in keys) and 'error' not in result


def test_multiple_choice():
    model, _ = tiny.recorded('multiple_choice')
    questions = [('a b', 'c', 'd e', 'f'), ('h', 'i j', 'k'), ('a b', 'f', 'd e', 'c'), 'a b']
    *results, wrong = model.classify(questions)
    for question, result in zip(questions, results, strict=False):
        assert (result['text'], *result['choices']) == question
        assert sum(result['probabilities']) == pytest.approx(1)
        assert result['choice'] == int(np.argmax(result['probabilities']))
    # The order of the choices does not change their probabilities.
    np.testing.assert_allclose(
        results[2]['probabilities'], results[0]['probabilities'][::-1], rtol=1e-4)
    assert wrong['error'].startswith('it has no choices')
    assert set(wrong) == {*results[0], 'error'} and wrong['choice'] is None


def test_several_labels_a_text():
    single, _ = tiny.recorded('classification')
    model = Model(dataclasses.replace(single.weights, head='multi_label'), devices=ONE)
    texts = letters(30, 8)
    results = model.classify(texts)
    for text, result, alone in zip(texts, results, single.classify(texts), strict=True):
        p, q = result['probabilities'], alone['probabilities']
        assert result['text'] == text
        assert result['labels'] == [name for name in p if p[name] > 0.5]
        # From the same logits: the odds ratio by sigmoids is the ratio of probabilities by softmax.
        odds = {name: x / (1 - x) for name, x in p.items()}
        assert odds['negative'] / odds['neutral'] == pytest.approx(
            q['negative'] / q['neutral'], rel=1e-3)
    assert 0 < sum(len(result['labels']) for result in results) < 90


def test_all_words_of_a_text_longer_than_the_model_takes_are_tagged():
    model, _ = tiny.recorded('token_classification')
    assert model.max_length == 10
    text = f'at bent  i xyz. q\u2028is {" ".join(LETTERS)} \u200b'
    (result,) = model.tag([text])
    words = [tag['word'] for tag in result['tags']]
    assert ' '.join(words) == ' '.join(text.replace('\u2028', ' ').split(' ')).replace('  ', ' ')
    assert {tag['label'] for tag in result['tags']} <= {'O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC'}


def test_words_and_texts_are_tagged_alike():
    model, _ = tiny.recorded('token_classification')
    text, blank, wrong, words = model.tag(['at  bent x', ' ', [1, 2], ['at', 'bent', 'x']])
    assert [t['label'] for t in text['tags']] == [t['label'] for t in words['tags']]
    for result in (text, words):
        for tag in result['tags']:
            assert result['text'][tag['start'] : tag['end']] == tag['word']
        spans = entity_spans([tag['label'] for tag in result['tags']])
        for (label, begin, end), entity in zip(spans, result['entities'], strict=True):
            inside = result['tags'][begin:end]
            assert entity == {
                'label': label, 'start': inside[0]['start'], 'end': inside[-1]['end'],
                'text': result['text'][inside[0]['start'] : inside[-1]['end']],
                'probability': min(tag['probability'] for tag in inside)}
    assert text['entities']
    assert (text['text'], words['text']) == ('at  bent x', 'at bent x')
    assert blank == {'text': ' ', 'tags': [], 'entities': []}
    assert wrong['tags'] == [] and 'is no text' in wrong['error']
    assert model.tag([' ']) == [blank]


@pytest.mark.parametrize('null_threshold', [None, 0.0, 1.5])
def test_answers_are_those_of_the_evaluation(null_threshold):
    """`answer` finds the texts that the evaluation of SQuAD finds in the same logits."""
    model, _ = tiny.recorded('question_answering')
    if null_threshold is not None:  # negated, its kernel makes [CLS] likely
        kernel = {'cls/squad/kernel': -model.weights.params['cls/squad/kernel']}
        model = Model(dataclasses.replace(
            model.weights, params=model.weights.params | kernel), devices=ONE)
    questions = letters(40, 3)
    contexts = [f'{text}.' for text in letters(40, 25, seed=1)]
    contexts[3] = 'A, b. Cats, éat'
    contexts[20:] = LETTERS[:20]  # short, so that no answer may be likelier
    results = model.answer(
        zip(questions, contexts, strict=True), max_answer_length=4, null_threshold=null_threshold)

    windows = squad_windows(
        [Question(str(i), *pair) for i, pair in enumerate(zip(questions, contexts, strict=True))],
        model.encode_all, **model.vocab.ends, max_length=10, doc_stride=10, max_question_length=3)
    outputs = model.engine.outputs(
        model.head.outputs, model.device_params, Units(windows.sequences))
    predictions = predict_answers(
        windows, outputs['start_logits'], outputs['end_logits'],
        places=PlacesByWords(model.vocab, lowercase=True),
        version='v1' if null_threshold is None else 'v2', max_answer_length=4)
    texts = final_texts(predictions, null_threshold)
    assert len(windows.sequences) > 60
    for (name, prediction), context, result in zip(
            predictions.items(), contexts, results, strict=True):
        assert result['answer'] == texts[name] == context[result['start'] : result['end']]
        (chosen,) = [c for c in prediction.n_best if c.text == result['answer']]
        assert result['score'] == pytest.approx(chosen.start_logit + chosen.end_logit, abs=1e-4)
        assert result['probability'] == pytest.approx(chosen.probability, abs=2e-3)
    num_empty = sum(not result['answer'] for result in results)
    assert 0 < num_empty < 40 if null_threshold is not None else not num_empty


def test_lengths_and_threshold_of_answers_are_those_of_the_run():
    plain, _ = tiny.recorded('question_answering')
    inference = {'max_seq_length': 8, 'doc_stride': 2, 'max_query_length': 1,
                 'null_threshold': -1e9}
    model = Model(dataclasses.replace(plain.weights, inference=inference), devices=ONE)
    pair = ('a', ' '.join(LETTERS))
    assert model.answer([pair])[0]['answer'] == ''  # whatever the scores
    assert model.answer([pair], null_threshold=1e9)[0]['answer'] != ''
    assert plain.answer([pair])[0]['answer'] != ''
    with pytest.warns(UserWarning, match='question 1 has 2 tokens: its end is left out, after 1'):
        model.answer([('a b', 'c')])
    assert model.max_length == 8
