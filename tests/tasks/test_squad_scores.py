"""SQuAD's exact match and F1 against what the official scripts print for the same cases."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.runtime.errors import InputError
from bert_jax.tasks.squad import best_null_threshold, normalize_answer, squad_scores
from bert_jax.tasks.squad_windows import read_squad

# id: (accepted answers, prediction, odds of no answer)
CASES = {
    'same': (['Denver Broncos'], 'Denver Broncos', -7.25),
    'normalised': (['the Denver Broncos'], 'DENVER, "Broncos".', -3.5),
    'best of three': (['in 1895', '1895', 'the year 1895'], 'year 1895', -1.0),
    'overlap': (['a gold statue of a lion'], 'lion statue, a statue', 0.5),
    'repeated words': (['New York New York'], 'New York', -2.0),
    'wrong': (['blue'], 'green', 3.0),
    'inner article': (['Theatre of the Absurd'], 'theatre absurd of', 1.25),
    'articles only': (['The The', 'A'], 'the', -0.5),
    'hyphen': (['twenty-two'], 'twenty two', 0.25),
    'accents': (['Caf\u00e9 Z\u00fcrich'], 'cafe Z\u00fcrich', 2.0),
    'white space': (['ice\u00a0cream\tcone'], ' ice  cream\u202fcone ', -4.0),
    'missed': (['forty'], '', 6.5),
    'unanswerable': ([], '', 5.0),
    'invented': ([], 'Paris', 0.5),
    'invented article': ([], 'the', -0.25),
    'sure invention': ([], 'Rome', -6.0),
}
ANSWERS = {name: answers for name, (answers, _, _) in CASES.items()}
ANSWERED = {name: answers for name, answers in ANSWERS.items() if answers}
PREDICTIONS = {name: prediction for name, (_, prediction, _) in CASES.items()}
ODDS = {name: odds for name, (_, _, odds) in CASES.items()}

# What evaluate-v1.1.py (allenai/bi-att-flow 498c802) and evaluate-v2.0.py (rajpurkar/SQuAD-explorer
# 09eac99) print for these cases as files.
V1 = {'exact_match': 41.666666666666664, 'f1': 56.15079365079365}
V1_WITHOUT_TWO = {'exact_match': 33.333333333333336, 'f1': 43.05555555555555}
V2 = {
    'exact': 43.75, 'f1': 60.863095238095234, 'total': 16, 'HasAns_exact': 41.666666666666664,
    'HasAns_f1': 64.48412698412699, 'HasAns_total': 12, 'NoAns_exact': 50.0, 'NoAns_f1': 50.0,
    'NoAns_total': 4,
}
V2_BEST = {
    'best_exact': 50.0, 'best_exact_thresh': -0.5, 'best_f1': 54.61309523809524,
    'best_f1_thresh': 2.0,
}
V2_AT_0 = {
    'exact': 50.0, 'f1': 54.166666666666664, 'total': 16, 'HasAns_exact': 41.666666666666664,
    'HasAns_f1': 47.22222222222222, 'HasAns_total': 12, 'NoAns_exact': 75.0, 'NoAns_f1': 75.0,
    'NoAns_total': 4, **V2_BEST,
}
V2_AT_1 = {
    'exact': 43.75, 'f1': 51.488095238095234, 'total': 16, 'HasAns_exact': 41.666666666666664,
    'HasAns_f1': 51.98412698412699, 'HasAns_total': 12, 'NoAns_exact': 50.0, 'NoAns_f1': 50.0,
    'NoAns_total': 4, **V2_BEST,
}
V2_ANSWERED = {
    'exact': 41.666666666666664, 'f1': 64.48412698412699, 'total': 12,
    'HasAns_exact': 41.666666666666664, 'HasAns_f1': 64.48412698412699, 'HasAns_total': 12,
}


def without(names):
    return {name: text for name, text in PREDICTIONS.items() if name not in names}


@pytest.mark.parametrize(('scores', 'official'), [
    (lambda: squad_scores(PREDICTIONS, ANSWERED, version='v1'), V1),
    (lambda: squad_scores(without({'same', 'overlap'}), ANSWERED, version='v1'), V1_WITHOUT_TWO),
    (lambda: squad_scores(PREDICTIONS, ANSWERS, version='v2'), V2),
    (lambda: squad_scores(PREDICTIONS, ANSWERED, version='v2'), V2_ANSWERED),
    (lambda: squad_scores(PREDICTIONS, ANSWERS, version='v2', null_odds=ODDS), V2_AT_0),
    (lambda: squad_scores(PREDICTIONS, ANSWERS, version='v2', null_odds=ODDS, null_threshold=1.0),
     V2_AT_1),
    (lambda: squad_scores(PREDICTIONS, ANSWERS, version='v2', null_odds={'another': -9.0, **ODDS}),
     V2_AT_0),
], ids=['v1', 'v1 incomplete', 'v2', 'v2 on answered', 'v2 at 0', 'v2 at 1', 'v2 more odds'])
def test_scores_are_the_official_ones_to_the_last_digit(scores, official):
    expected = dict(official)
    if 'exact' in expected:
        expected['exact_match'] = expected.pop('exact')
    assert scores() == expected


@pytest.mark.parametrize(('text', 'expected'), [
    ('The  Cat,  a dog & an ox!', 'cat dog ox'),
    ('theatre and anthem', 'theatre and anthem'),
    ('a-b a.b', 'ab ab'),
    ('\u00abOui\u00bb \u2014 non', '\u00aboui\u00bb \u2014 non'),  # ASCII punctuation alone goes
    ('A', ''),
    ('a\u00a0the\u202fb', 'b'),
])
def test_normalisation(text, expected):
    assert normalize_answer(text) == expected


WORDS = st.sampled_from(['red', 'green', 'the red', 'red green', ''])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS, st.floats(-9, 9)), min_size=1, max_size=12,
                unique_by=lambda case: case[2]))
def test_the_best_threshold_is_the_best_of_all(cases):
    answers = {str(i): [gold] if gold else [] for i, (gold, _, _) in enumerate(cases)}
    predictions = {str(i): text for i, (_, text, _) in enumerate(cases)}
    odds = {str(i): value for i, (_, _, value) in enumerate(cases)}
    best = squad_scores(predictions, answers, version='v2', null_odds=odds)
    at = [
        squad_scores(predictions, answers, version='v2', null_odds=odds, null_threshold=threshold)
        for threshold in (-10, *odds.values())
    ]
    for best_key, key in (('best_f1', 'f1'), ('best_exact', 'exact_match')):
        assert math.isclose(best[best_key], max(scores[key] for scores in at))
        if best[best_key] > at[0][key]:  # else the threshold stays 0
            threshold = best[best_key + '_thresh']
            scores = at[1 + list(odds.values()).index(threshold)]
            assert math.isclose(scores[key], best[best_key])
    # A threshold and the texts that it empties say the same.
    emptied = {name: text if odds[name] <= 1 else '' for name, text in predictions.items()}
    one = squad_scores(predictions, answers, version='v2', null_odds=odds, null_threshold=1)
    plain = squad_scores(emptied, answers, version='v2')
    assert {name: one[name] for name in plain} == plain


@pytest.mark.parametrize(('arguments', 'message'), [
    (dict(predictions={}, answers={}, version='v1'), 'no question'),
    (dict(predictions={'a': ''}, answers={'a': []}, version='v1'), 'question a has no answer'),
    (dict(predictions={'a': ''}, answers={'a': [], 'b': [], 'c': []}, version='v2'),
     '2 of 3 questions have no prediction, the first of them b'),
    (dict(predictions={'a': '', 'b': ''}, answers={'a': [], 'b': []}, version='v2',
          null_odds={'b': 1.0}), '1 of 2 questions have no null odds, the first of them a'),
])
def test_what_cannot_be_scored(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        squad_scores(**arguments)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('seed', range(8))
def test_the_threshold_of_thousands_of_questions_keeps_what_is_best(seed, shared_data):
    """Sums of thousands of F1s differ in their last digits with the order of adding."""
    examples = read_squad(
        str(shared_data / 'squad' / 'dev-v2.0.cs224n-6078.json.gz'), version='v2', training=False)
    answers = examples.gold_texts()
    rng = random.Random(seed)
    predictions, odds = {}, {}
    for name, texts in answers.items():
        words = rng.choice(texts or ['invention of some words']).split()
        predictions[name] = ' '.join(words[: rng.randint(1, len(words))])
        odds[name] = rng.gauss(-2.0 if texts else 2.0, 3.0)
    threshold = best_null_threshold(predictions, answers, odds)
    best = squad_scores(
        predictions, answers, version='v2', null_odds=odds, null_threshold=threshold)
    assert threshold == best['best_f1_thresh'], 'answers are kept, as the official script has it'
    assert math.isclose(best['f1'], best['best_f1'], rel_tol=1e-12)
    assert best['HasAns_f1'] > 50


def test_where_no_answer_to_anything_is_best_the_threshold_is_below_all_odds():
    answers, predictions = {'a': ['x'], 'b': []}, {'a': 'y', 'b': 'z'}
    odds = {'a': -3.0, 'b': -1.0}
    threshold = best_null_threshold(predictions, answers, odds)
    scores = squad_scores(
        predictions, answers, version='v2', null_odds=odds, null_threshold=threshold)
    assert threshold < -3 and scores['f1'] == scores['best_f1'] == 50
