"""The Python interface with task heads: classify, answer, tag."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.answers.entities import entity_spans
from bert_jax.answers.spans import PlacesByWords, predict_answers
from bert_jax.predict.model import Model
from bert_jax.rows.packing import Units
from bert_jax.rows.questions import Question
from bert_jax.rows.squad_windows import squad_windows
from bert_jax.runtime.errors import Unreadable
from bert_jax.tasks.squad import final_texts
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


def with_settings(model, **changed):
    """The same model with other weights, head or inference settings."""
    return Model(dataclasses.replace(model.weights, **changed), devices=ONE)


# The classifier takes 8 tokens of text: fifteen letters make three windows, from 0, 3 and 7.
LONG_TEXT = ' '.join(LETTERS[:15])
WINDOWS_OF_LONG_TEXT = [' '.join(LETTERS[i : i + 8]) for i in (0, 3, 7)]


def probabilities_of_windows(model):
    """[3, labels]."""
    results = model.classify(WINDOWS_OF_LONG_TEXT)
    return np.array([list(result['probabilities'].values()) for result in results])


def combined_probabilities(model, windows):
    """[labels], of the windows of the long text."""
    each = probabilities_of_windows(model)
    if windows == 'mean':
        return each.mean(0)
    return each.max(0) / each.max(0).sum()


@pytest.mark.parametrize('windows', ['mean', 'max'])
def test_probabilities_of_the_windows_of_a_long_text_are_combined(windows):
    model, _ = tiny.recorded('classification')
    found, pair = model.classify([LONG_TEXT, ('b', LONG_TEXT)], windows)
    expected = combined_probabilities(model, windows)
    np.testing.assert_allclose(list(found['probabilities'].values()), expected, rtol=1e-4)
    assert pair['first'] == 'b'


def test_a_long_text_is_cut_with_a_warning_by_default():
    model, _ = tiny.recorded('classification')
    with pytest.warns(match='its end is left out'):
        (cut,) = model.classify([LONG_TEXT])
    expected = probabilities_of_windows(model)[0].max()
    assert cut['probability'] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize('windows', ['mean', 'max'])
def test_a_long_text_is_read_as_the_run_read_it(windows):
    model, _ = tiny.recorded('classification')
    (found,) = with_settings(model, inference={'windows': windows}).classify([LONG_TEXT])
    expected = combined_probabilities(model, windows).max()
    assert found['probability'] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize('windows', ['mean', 'max'])
def test_vectors_of_the_windows_of_a_long_text_are_combined(windows):
    model, _ = tiny.recorded('classification')
    each = model.vectors(WINDOWS_OF_LONG_TEXT)
    expected = each.mean(0) if windows == 'mean' else each.max(0)
    (found,) = model.vectors([LONG_TEXT], windows=windows)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_regression():
    model, _ = tiny.recorded('regression')
    (one,), both = model.classify(['a b']), model.classify(['c', 'a b'])
    assert set(one) == {'text', 'value'}
    assert both[1]['value'] == pytest.approx(one['value'], abs=1e-5)


KEYS = {
    'classification': {'label', 'probability', 'probabilities'},
    'multi_label': {'labels', 'probabilities'},
    'regression': {'value'},
}
PAIR = ('a', 'b')


def trained_on(num_texts, head):
    """A model with this head that was trained on single texts (1) or pairs (2)."""
    plain, _ = tiny.recorded('regression' if head == 'regression' else 'classification')
    return with_settings(plain, head=head, inference={'num_texts': num_texts})


def assert_no_result(result, texts, keys):
    """That a result has the names of its texts, `keys` without a value, and an error."""
    assert set(result) == {*texts, *keys, 'error'}
    assert all(result[key] is None for key in keys)


@pytest.mark.parametrize('head', KEYS)
def test_a_pair_is_refused_by_a_model_of_single_texts(head):
    lost = Unreadable('line 3: not UTF-8', num=1)
    good, refused, unreadable = trained_on(1, head).classify(['a b', PAIR, lost])
    assert set(good) == {'text', *KEYS[head]}
    assert 'it is a pair, and the model was trained on single texts' in refused['error']
    assert '--any-form' in refused['error']
    assert unreadable['error'] == 'line 3: not UTF-8'
    for result in (refused, unreadable):
        assert_no_result(result, ['text'], KEYS[head])


@pytest.mark.parametrize('head', KEYS)
def test_a_single_text_is_refused_by_a_model_of_pairs(head):
    lost = Unreadable('line 3: not UTF-8', num=2)
    good, refused, unreadable = trained_on(2, head).classify([PAIR, 'a b', lost])
    assert set(good) == {'first', 'second', *KEYS[head]}
    assert 'it is a single text, and the model was trained on pairs' in refused['error']
    assert '--any-form' in refused['error']
    assert unreadable['error'] == 'line 3: not UTF-8'
    for result in (refused, unreadable):
        assert_no_result(result, ['first', 'second'], KEYS[head])


@pytest.mark.parametrize('head', KEYS)
@pytest.mark.parametrize('num_texts', [1, 2])
def test_texts_of_another_form_than_in_training_are_classified_if_asked(num_texts, head):
    for result in trained_on(num_texts, head).classify(['a b', PAIR], any_form=True):
        assert all(result[key] is not None for key in KEYS[head])
        assert 'error' not in result


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
    model = with_settings(single, head='multi_label')
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
    assert words == ['at', 'bent', 'i', 'xyz', '.', 'q', 'is', *LETTERS]
    (given,) = model.tag([words])
    assert [tag['label'] for tag in given['tags']] == [tag['label'] for tag in result['tags']]
    assert {tag['label'] for tag in result['tags']} <= {'O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC'}


def test_words_and_texts_are_tagged_alike():
    model, _ = tiny.recorded('token_classification')
    text, words = model.tag(['at  bent x', ['at', 'bent', 'x']])
    assert [tag['label'] for tag in text['tags']] == [tag['label'] for tag in words['tags']]
    assert text['text'] == 'at  bent x'
    assert words['text'] == 'at bent x'
    for result in (text, words):
        for tag in result['tags']:
            assert result['text'][tag['start'] : tag['end']] == tag['word']


def test_entities_are_spans_of_tags():
    model, _ = tiny.recorded('token_classification')
    for result in model.tag(['at  bent x', ['at', 'bent', 'x']]):
        spans = entity_spans([tag['label'] for tag in result['tags']])
        assert spans
        for (label, begin, end), entity in zip(spans, result['entities'], strict=True):
            inside = result['tags'][begin:end]
            start, stop = inside[0]['start'], inside[-1]['end']
            assert entity == {
                'label': label, 'start': start, 'end': stop, 'text': result['text'][start:stop],
                'probability': min(tag['probability'] for tag in inside)}


def test_a_blank_text_has_no_tags_and_what_is_no_text_an_error():
    model, _ = tiny.recorded('token_classification')
    blank, wrong, _ = model.tag([' ', [1, 2], 'at bent x'])
    assert blank == {'text': ' ', 'tags': [], 'entities': []}
    assert wrong['tags'] == [] and 'is no text' in wrong['error']
    assert model.tag([' ']) == [blank]


def model_of_answers(*, may_be_empty):
    """A model of which some answers are '', if they may be."""
    model, _ = tiny.recorded('question_answering')
    if not may_be_empty:
        return model
    name = 'cls/squad/kernel'  # negated, it makes [CLS] likely
    params = {**model.weights.params, name: -model.weights.params[name]}
    return with_settings(model, params=params)


def questions_and_contexts():
    contexts = [f'{text}.' for text in letters(40, 25, seed=1)]
    contexts[3] = 'A, b. Cats, éat'
    contexts[20:] = LETTERS[:20]  # short, so that no answer may be likelier
    return list(zip(letters(40, 3), contexts, strict=True))


def predictions_of_evaluation(model, pairs, version):
    """Predictions by number of the question, as the evaluation of SQuAD makes them."""
    windows = squad_windows(
        [Question(str(i), question, context) for i, (question, context) in enumerate(pairs)],
        model.encode_all, frame=model.vocab.frame, max_length=10, doc_stride=10,
        max_question_length=3)
    assert len(windows.sequences) > 60
    outputs = model.engine.outputs(
        model.head.outputs, model.device_params, Units(windows.sequences))
    return predict_answers(
        windows, outputs['start_logits'], outputs['end_logits'],
        places=PlacesByWords(model.tokenizer), version=version, max_answer_length=4)


@pytest.mark.parametrize('null_threshold', [None, 0.0, 1.5])
def test_answers_are_those_of_the_evaluation(null_threshold):
    """`answer` finds the texts that the evaluation of SQuAD finds in the same logits."""
    may_be_empty = null_threshold is not None
    model = model_of_answers(may_be_empty=may_be_empty)
    pairs = questions_and_contexts()
    results = model.answer(pairs, max_answer_length=4, null_threshold=null_threshold)

    predictions = predictions_of_evaluation(model, pairs, 'v2' if may_be_empty else 'v1')
    texts = final_texts(predictions, null_threshold)
    for (name, prediction), (_, context), result in zip(
            predictions.items(), pairs, results, strict=True):
        assert result['answer'] == texts[name] == context[result['start'] : result['end']]
        (chosen,) = [found for found in prediction.n_best if found.text == result['answer']]
        assert result['score'] == pytest.approx(chosen.start_logit + chosen.end_logit, abs=1e-4)
        assert result['probability'] == pytest.approx(chosen.probability, abs=2e-3)
    num_empty = sum(not result['answer'] for result in results)
    if may_be_empty:
        assert 0 < num_empty < 40
    else:
        assert num_empty == 0


PAIR_WITH_LONG_CONTEXT = ('a', ' '.join(LETTERS))


@pytest.fixture(scope='module')
def model_of_run():
    """A model whose run on SQuAD 2.0 recorded its lengths and its threshold."""
    plain, _ = tiny.recorded('question_answering')
    return with_settings(plain, inference={
        'max_seq_length': 8, 'doc_stride': 2, 'max_query_length': 1, 'null_threshold': -1e9})


def test_the_threshold_of_answers_is_that_of_the_run(model_of_run):
    (found,) = model_of_run.answer([PAIR_WITH_LONG_CONTEXT])
    assert found['answer'] == ''  # whatever the scores
    (found,) = model_of_run.answer([PAIR_WITH_LONG_CONTEXT], null_threshold=1e9)
    assert found['answer'] != ''
    plain, _ = tiny.recorded('question_answering')
    (found,) = plain.answer([PAIR_WITH_LONG_CONTEXT])
    assert found['answer'] != ''


def test_the_lengths_of_questions_and_contexts_are_those_of_the_run(model_of_run):
    assert model_of_run.max_length == 8
    with pytest.warns(UserWarning, match='question 1 has 2 tokens: its end is left out, after 1'):
        model_of_run.answer([('a b', 'c')])
