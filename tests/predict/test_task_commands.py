"""What the Python interface gives with task heads: classify, answer, tag."""

import dataclasses

import numpy as np
import pytest
import tiny
from bert_jax.predict.rows import Tokens
from bert_jax.predict.runner import each_token

from bert_jax.data.squad import SquadExamples
from bert_jax.data.squad_answers import final_texts, predict_answers
from bert_jax.data.squad_windows import squad_windows
from bert_jax.errors import InputError
from bert_jax.predict import heads
from bert_jax.predict.api import Model

LETTERS = list('abcdefghijklmnopqrstuvwxyz')


def letters(num, longest, seed=0, joined=' '):
    rng = np.random.default_rng(seed)
    return [joined.join(rng.choice(LETTERS, int(n))) for n in rng.integers(1, longest + 1, num)]


def test_classification():
    model, _ = tiny.recorded('classification')
    texts = [*letters(8, 8), *zip(letters(4, 3), letters(4, 3, seed=1), strict=True)]
    results = model.classify(texts)
    for text, result in zip(texts, results, strict=True):
        assert list(result['probabilities']) == ['negative', 'neutral', 'positive']
        assert sum(result['probabilities'].values()) == pytest.approx(1)
        assert result['probabilities'][result['label']] == result['probability']
        assert result['probability'] == max(result['probabilities'].values())
        shown = (result['first'], result['second']) if 'first' in result else result['text']
        assert shown == text
    assert len({round(result['probability'], 4) for result in results}) > 6


def test_regression():
    model, _ = tiny.recorded('regression')
    (one,) = model.classify(['a b'])
    both = model.classify(['c', 'a b'])
    assert both[1]['value'] == pytest.approx(one['value'], abs=1e-5)
    assert set(one) == {'text', 'value'}


def test_multiple_choice():
    model, _ = tiny.recorded('multiple_choice')
    questions = [('a b', 'c', 'd e', 'f'), ('h', 'i j', 'k')]
    results = model.classify(questions)
    for question, result in zip(questions, results, strict=True):
        assert (result['text'], *result['choices']) == question
        assert len(result['probabilities']) == len(question) - 1
        assert sum(result['probabilities']) == pytest.approx(1)
        assert result['choice'] == int(np.argmax(result['probabilities']))
    # The order of the choices makes no difference to them.
    (turned,) = model.classify([('a b', 'f', 'd e', 'c')])
    np.testing.assert_allclose(
        turned['probabilities'], results[0]['probabilities'][::-1], rtol=1e-4)
    with pytest.raises(InputError, match='text 2 has no choices'):
        model.classify([questions[0], 'a b'])


def test_tags_of_words_longer_than_the_model():
    model, _ = tiny.recorded('token_classification')
    assert model.max_length == 10
    text = f'at bent  i xyz. q\u2028is {" ".join(LETTERS)} \u200b'
    (result,) = model.tag([text])
    words = [tag['word'] for tag in result['tags']]
    assert ' '.join(words) == ' '.join(text.replace('\u2028', ' ').split(' ')).replace('  ', ' ')
    assert {tag['label'] for tag in result['tags']} <= {'O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC'}
    # The first piece decides, and where the text fits there is one window.
    (short,) = model.tag(['at bent x'])
    ids = model.tokenizer.encode('at bent x')
    (logits,) = model.runner.run(
        [Tokens.of(model.tokenizer.vocab, ids)],
        each_token(lambda states: heads.token_logits(
            model.runner.params, states[0], config=model.config, path=('classifier',))))
    assert [model.tokenizer.vocab.tokens[i] for i in ids] == [
        'a', '##t', 'b', '##e', '##n', '##t', 'x']
    expected = logits[[1, 3, 7]].argmax(1)
    assert [tag['label'] for tag in short['tags']] == [
        model.weights.labels[i] for i in expected]


@pytest.mark.parametrize('null_threshold', [None, 0.0, 1.5])
def test_answers_are_those_of_the_evaluation(null_threshold):
    """The search that scores SQuAD, over the same logits, finds the same texts."""
    model, _ = tiny.recorded('question_answering')
    if null_threshold is not None:  # this model never finds [CLS] likely; turned round it does
        kernel = {'cls/squad/kernel': -model.weights.params['cls/squad/kernel']}
        model = Model(dataclasses.replace(
            model.weights, params=model.weights.params | kernel))
    vocab = model.tokenizer.vocab
    questions = letters(40, 3)
    contexts = [f'{text}.' for text in letters(40, 25, seed=1)]
    contexts[3] = 'A, b. Cats, éat'
    contexts[20:] = LETTERS[:20]  # short ones, where an empty answer may be likelier
    results = model.answer(
        zip(questions, contexts, strict=True), max_answer_length=4, null_threshold=null_threshold)

    def encode(texts):
        ids = [model.tokenizer.encode(text) for text in texts]
        return np.array([i for x in ids for i in x], np.int32), np.array([len(x) for x in ids])

    examples = SquadExamples(
        ids=tuple(map(str, range(40))), questions=tuple(questions), contexts=tuple(contexts),
        context_index=np.arange(40, dtype=np.int32), answers=(None,) * 40)
    windows = squad_windows(
        examples, encode, cls_id=vocab.cls_id, sep_id=vocab.sep_id, max_length=10, doc_stride=10,
        max_question_length=3, training=False)
    offsets = windows.sequences.offsets
    logits = np.concatenate(model.runner.run(
        [Tokens(windows.sequences.ids[a:b], int(n), np.zeros(0, int), np.zeros(0, int))
         for a, b, n in zip(offsets, offsets[1:], windows.sequences.first_lengths)],
        each_token(lambda states: heads.token_logits(
            model.runner.params, states[0], config=model.config, path=('cls', 'squad')))))
    predictions = predict_answers(
        examples, windows, logits[:, 0], logits[:, 1], vocab=vocab, lowercase=True,
        version='v1' if null_threshold is None else 'v2', max_answer_length=4)
    texts = final_texts(examples.ids, predictions, null_threshold)
    assert len(windows) > 60
    num_empty = 0
    for name, context, result, prediction in zip(
        examples.ids, contexts, results, predictions, strict=True
    ):
        assert result['answer'] == texts[name] == context[result['start'] : result['end']]
        num_empty += not result['answer']
        if null_threshold:  # the evaluation's scores do not know of it
            continue
        best = max(prediction.n_best, key=lambda c: c.start_logit + c.end_logit)
        assert result['answer'] == best.text
        assert result['score'] == pytest.approx(best.start_logit + best.end_logit, abs=1e-4)
        assert result['probability'] == pytest.approx(best.probability, abs=2e-3)
    assert 0 < num_empty < 40 if null_threshold is not None else not num_empty


def test_answers_keep_the_characters_of_the_context():
    model, _ = tiny.recorded('question_answering')
    context = 'Ça, (É) İs'
    (result,) = model.answer([('a', context)], max_answer_length=30)
    assert result['answer'] == context[result['start'] : result['end']] != ''
    assert result['question'] == 'a'
    with pytest.warns(UserWarning, match='question 2 has 5 tokens'):
        assert len(model.answer([('a', context), ('a b c d e', context)])) == 2


@pytest.mark.parametrize(('pairs', 'message'), [
    ([('a', 'b'), ('', 'b')], 'question 2 is empty'),
    ([('a', ' ')], 'context 1 is empty'),
    (['a question'], 'question 1 must come with one context'),
])
def test_bad_questions(pairs, message):
    model, _ = tiny.recorded('question_answering')
    with pytest.raises(InputError, match=message):
        model.answer(pairs)
    with pytest.raises(InputError, match='max_answer_length=0 must be 1 or more'):
        model.answer([('a', 'b')], max_answer_length=0)
