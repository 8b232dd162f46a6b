"""From logits to answers and scores, against run_squad.py and the official scripts."""

import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.runtime.errors import InputError
from bert_jax.tasks import squad as squad_answers
from bert_jax.tasks.squad import (
    aligned_place,
    best_null_threshold,
    final_texts,
    normalize_answer,
    predict_answers,
    squad_scores,
    write_predictions,
)
from bert_jax.tasks.squad_windows import SquadExamples, read_squad, squad_windows
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

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


# Made by run_squad.py of github.com/google-research/bert (commit eedf571) from the data in it.
ORIGINAL = json.loads((Path(__file__).parent / 'squad_original.json').read_text(encoding='utf-8'))
VOCAB = Vocab.from_tokens([*SPECIAL_TOKENS, *'abcdefgh', '##b', '##c', '(', ')', '.', '-', ','])
TOKENIZER = WordPieceTokenizer(VOCAB)


def make_windows(examples, tokenizer=TOKENIZER, training=False, **lengths):
    def encode(texts):
        ids = [tokenizer.encode(text) for text in texts]
        return np.array([i for some in ids for i in some], np.int32), np.array(list(map(len, ids)))

    return squad_windows(
        examples, encode, cls_id=tokenizer.vocab.cls_id, sep_id=tokenizer.vocab.sep_id,
        training=training, **lengths)


def make_examples(*contexts):
    """One question about each paragraph."""
    return SquadExamples(
        ids=tuple(f'q{i}' for i in range(len(contexts))), questions=('a b',) * len(contexts),
        contexts=contexts, context_index=np.arange(len(contexts), dtype=np.int32),
        answers=(None,) * len(contexts),
    )


def predict(examples, windows, start, end, version='v1', **options):
    return predict_answers(
        examples, windows, np.array(start, np.float32), np.array(end, np.float32), vocab=VOCAB,
        lowercase=True, version=version, **options)


def recorded_run(version, tmp_path):
    """(recorded, examples, windows, start logits, end logits) of the original's run."""
    recorded = ORIGINAL['sets'][version]
    path = tmp_path / 'squad.json'
    path.write_text(json.dumps(recorded['squad']))
    examples = read_squad(str(path), version=version, training=True)
    windows = make_windows(
        examples, WordPieceTokenizer(Vocab.from_tokens(ORIGINAL['vocab'])),
        **{name: ORIGINAL[name] for name in ('max_length', 'doc_stride', 'max_question_length')})
    i = np.arange(len(windows.sequences.ids))
    start, end = (
        ((i * i * 31 + i * step) % 1009 / 97.0).astype(np.float32)
        for step in recorded['logit_steps'])
    if version == 'v2':
        start[windows.sequences.offsets[:-1][np.isin(windows.question_index, (1, 4))]] += 16
    return recorded, examples, windows, start, end


@pytest.mark.parametrize('at_once', [256, 2])
@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_answers_are_those_of_the_original(version, at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(squad_answers, '_QUESTIONS_AT_ONCE', at_once)
    recorded, examples, windows, start, end = recorded_run(version, tmp_path)
    predictions = predict_answers(
        examples, windows, start, end, vocab=Vocab.from_tokens(ORIGINAL['vocab']), lowercase=True,
        version=version, n_best=ORIGINAL['n_best'],
        max_answer_length=ORIGINAL['max_answer_length'])

    def words(text):  # the original joins words by one space, whatever stands between them
        return ' '.join(re.split('[ \t\r\n\u202f]+', text))

    texts = final_texts(examples.ids, predictions, 0.0 if version == 'v2' else None)
    assert {name: words(text) for name, text in texts.items()} == recorded['predictions']
    for name, found in zip(examples.ids, predictions):
        expected = recorded['n_best'][name]
        assert [words(c.text) for c in found.n_best] == [c['text'] for c in expected]
        for key in ('start_logit', 'end_logit', 'probability'):
            assert [getattr(c, key) for c in found.n_best] == [c[key] for c in expected]
        if version == 'v2':
            assert found.null_odds == recorded['null_odds'][name]
    if version == 'v2':
        assert sum(not text for text in texts.values()) == 2
    # What stands in the paragraph comes as it stands there.
    for found, context in zip(predictions, np.array(examples.contexts)[examples.context_index]):
        texts = [context[begin:end] for begin, end in found.places]
        assert texts == ['' if c.text == 'empty' else c.text for c in found.n_best]


@pytest.mark.parametrize(('context', 'pieces', 'expected'), [
    ("Steve Smith's", 'steve smith', 'Steve Smith'),
    ('(1895-1943).', '1895', '1895'),
    ('(1895-1943).', '1895 - 1943', '1895-1943'),
    ('Z\u00fcrich,  Bern', 'zurich , bern', 'Z\u00fcrich,  Bern'),
    ('a\u202fb\nc.', 'b c', 'b\nc'),
    ('Zu\u0308rich.', 'zurich', 'Zu\u0308rich.'),  # an accent apart leaves fewer characters
    ('Steve\u200b Smith.', 'smith', 'Steve\u200b Smith.'),  # so does a character without width
    ('a\u00a0b c', 'b', 'a\u00a0b c'),  # a space within a word leaves fewer, too
    ('Steve Smith.', '[UNK] smith', 'Steve Smith.'),
    ('Steve Smith.', '', 'Steve Smith.'),
    ('\u200b Smith.', 'smith', '\u200b Smith.'),
    ('\u6771\u4eac', '\u4eac', '\u4eac'),
    ('Tartar', 'tar', 'Tar'),  # the first that is spelt so
])
def test_pieces_are_aligned_with_characters(context, pieces, expected):
    """`expected` is what get_final_text of the original gives, but for white space."""
    text = f'before {context} behind'
    words = [m.span() for m in re.finditer('[^ \t\r\n\u202f]+', text)][1:-1]
    begin, end = aligned_place(text, words, pieces, lowercase=True)
    assert text[begin:end] == expected


def test_case_is_kept_for_a_cased_vocabulary():
    assert aligned_place('(Smith)', [(0, 7)], 'Smith', lowercase=False) == (1, 6)
    assert aligned_place('(Smith)', [(0, 7)], 'smith', lowercase=False) == (0, 7)
    assert aligned_place('(Z\u00fcrich)', [(0, 8)], 'Z\u00fcrich', lowercase=False) == (1, 7)


def test_spans_lie_in_the_paragraph_in_order_and_are_short():
    # [CLS] a b [SEP] c d e f g h [SEP]: 0 to 10
    examples = make_examples('c d e f g h')
    windows = make_windows(examples)
    start, end = np.zeros(11), np.zeros(11)
    start[[0, 1, 3, 6, 10]] = [9, 9, 9, 5, 9]
    end[[0, 2, 3, 5, 9, 10]] = [9, 9, 9, 4, 3, 9]
    (found,) = predict(examples, windows, start, end)
    assert found.text == 'e f g h'
    assert (found.n_best[0].start_logit, found.n_best[0].end_logit) == (5, 3)
    assert [c.text for c in found.n_best[1:4]] == ['e', 'e f', 'e f g']
    assert math.isclose(sum(c.probability for c in found.n_best), 1)
    assert math.isclose(found.n_best[0].probability / found.n_best[1].probability, math.exp(3))
    assert len(found.n_best) == 20
    # The six that keep the order c d e f g h, by their lengths.
    (short,) = predict(examples, windows, start, end, max_answer_length=3)
    assert short.text == 'e' and max(len(c.text.split()) for c in short.n_best) == 3
    # Only the best starts and ends of all tokens meet; others than the paragraph's take places.
    assert predict(examples, windows, start, end, n_best=6)[0].text == 'e f g h'
    (none,) = predict(examples, windows, start, end, n_best=4)
    assert none.text == 'empty'
    assert [(c.text, c.probability) for c in none.n_best] == [('empty', 1.0)]


def test_the_same_text_counts_once_with_its_best_logits():
    examples = make_examples('C d c')
    windows = make_windows(examples)
    start, end = np.zeros((2, 8))
    start[[4, 6]] = end[[4, 6]] = [3, 4]
    (found,) = predict(examples, windows, start, end)
    assert [c.text for c in found.n_best].count('c') == 1
    assert [c.text for c in found.n_best][:2] == ['c', 'C d c']
    start[4] = end[4] = 4
    (found,) = predict(examples, windows, start, end)
    # Equal scores: in the order of the windows, then of the starts, then of the ends.
    assert [c.text for c in found.n_best][:3] == ['C', 'C d c', 'c']


def test_windows_compete_and_starts_need_their_context():
    # Two windows of one question: [CLS] a b [SEP] c d e f [SEP] and ... e f g h [SEP].
    examples = make_examples('c d e f g h')
    windows = make_windows(examples, max_length=9, doc_stride=2)
    assert len(windows) == 2
    start, end = np.zeros((2, 18))
    start[[6, 9 + 4]] = [7, 5]  # e in both windows: the first has more around it
    end[[6, 9 + 5]] = [1, 6]
    (found,) = predict(examples, windows, start, end)
    assert (found.text, found.n_best[0].start_logit) == ('e', 7)
    start[7], start[9 + 5] = 9, 3  # f has its context in the second window
    (found,) = predict(examples, windows, start, end)
    assert [(c.text, c.start_logit) for c in found.n_best[:2]] == [('f', 3), ('e', 7)]
    assert 9 not in [c.start_logit for c in found.n_best]


def test_no_answer_competes_in_version_2():
    examples = make_examples('c d e f g h', 'c d')
    windows = make_windows(examples, max_length=9, doc_stride=2)
    assert windows.question_index.tolist() == [0, 0, 1]
    start, end = np.zeros((2, 25))
    start[[0, 9, 18]] = [5, 2, 1]  # [CLS]
    end[[0, 9, 18]] = [1, 2, 8]
    start[4], end[4] = 2, 1.5  # c
    first, second = predict(examples, windows, start, end, 'v2')
    # The least score of no answer over the windows.
    assert first.text == 'c' and first.null_odds == 4 - 3.5
    assert [c.text for c in first.n_best][:2] == ['', 'c']
    assert (first.n_best[0].start_logit, first.n_best[0].end_logit) == (2, 2)
    assert second.null_odds == 9
    assert final_texts(examples.ids, [first, second], 0.5) == {'q0': 'c', 'q1': ''}
    assert final_texts(examples.ids, [first, second], 0.4) == {'q0': '', 'q1': ''}
    assert final_texts(examples.ids, [first, second]) == {'q0': 'c', 'q1': second.text}
    # Of equal scores that of a span comes first.
    end[4] = 2
    (first, _) = predict(examples, windows, start, end, 'v2')
    assert [c.text for c in first.n_best][:2] == ['c', ''] and first.null_odds == 0
    # No answer is listed even where it is not among the best.
    start[4] = 20
    (first, _) = predict(examples, windows, start, end, 'v2', n_best=1)
    assert [c.text for c in first.n_best] == ['c', '']


def test_no_span_at_all_is_no_answer_in_version_2(tmp_path):
    """Where the original fails: a paragraph without tokens, or starts and ends that never meet."""
    examples = make_examples('\u200b', 'c d')
    windows = make_windows(examples)
    start, end = np.zeros((2, len(windows.sequences.ids)))
    end[windows.sequences.offsets[1]:] = np.arange(7, 0, -1)
    predictions = predict(examples, windows, start, end, 'v2', n_best=2)
    assert [found.text for found in predictions] == ['', '']
    assert [[c.text for c in found.n_best] for found in predictions] == [[''], ['']]
    assert all(found.n_best[0].probability == 1 for found in predictions)
    assert final_texts(examples.ids, predictions, 1e3) == {'q0': '', 'q1': ''}
    write_predictions(tmp_path, examples.ids, predictions, null_threshold=0.0)
    odds = json.loads((tmp_path / 'null_odds.json').read_text(), parse_constant=pytest.fail)
    assert min(odds.values()) > 1e3
    # In version 1.1, where there must be an answer, the original's word for it.
    assert [p.text for p in predict(examples, windows, start, end, n_best=2)] == ['empty', 'empty']


def test_files_hold_texts_candidates_and_odds(tmp_path):
    examples = make_examples('c \u00e9 e f g h', 'c d')
    windows = make_windows(examples)
    start, end = np.random.default_rng(0).normal(size=(2, len(windows.sequences.ids)))
    for version, threshold in (('v1', None), ('v2', -2.0)):
        folder = tmp_path / version
        folder.mkdir()
        predictions = predict(examples, windows, start, end, version)
        write_predictions(folder, examples.ids, predictions, null_threshold=threshold)
        read = {path.name: json.loads(path.read_text()) for path in folder.iterdir()}
        assert read['predictions.json'] == final_texts(examples.ids, predictions, threshold)
        assert list(read['nbest_predictions.json']) == ['q0', 'q1']
        candidate = read['nbest_predictions.json']['q0'][0]
        assert list(candidate) == ['text', 'probability', 'start_logit', 'end_logit']
        assert candidate['text'] == predictions[0].n_best[0].text
        if version == 'v1':
            assert set(read) == {'predictions.json', 'nbest_predictions.json'}
        else:
            assert read['null_odds.json'] == {'q0': predictions[0].null_odds,
                                              'q1': predictions[1].null_odds}


PIECES = ['a', 'Bc', '(d', 'e).', 'f-g', 'h,', 'abc', '\u00c1']


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from([' ', '\n', '  ', '\u202f'])),
                min_size=1, max_size=30),
       st.data(), st.integers(9, 30), st.integers(1, 10))
def test_an_answer_of_whole_words_comes_back_exactly(words, data, max_length, doc_stride):
    context = ''.join(word + gap for word, gap in words)
    low = data.draw(st.integers(0, len(words) - 1))
    high = data.draw(st.integers(low, min(low + 2, len(words) - 1)))
    start = len(''.join(word + gap for word, gap in words[:low]))
    answer = ''.join(word + gap for word, gap in words[low:high + 1])[:-len(words[high][1])]
    examples = SquadExamples(
        ids=('q',), questions=('a',), contexts=(context,), context_index=np.zeros(1, np.int32),
        answers=(((answer, start),),))
    windows = make_windows(examples, training=True, max_length=max_length, doc_stride=doc_stride)
    logits = np.zeros((2, len(windows.sequences.ids)))
    offsets = windows.sequences.offsets[:-1]
    for row, positions in zip(logits, (windows.start_positions, windows.end_positions)):
        row[(offsets + positions)[positions > 0]] = 9
    # The answer's first token may have its context in a window that ends before the answer does.
    (found,) = predict(examples, windows, *logits)
    if found.n_best[0].start_logit + found.n_best[0].end_logit == 18:
        # The same text may stand in several places, with other white space or punctuation around.
        assert found.text == answer
    else:
        assert len(windows) > 1


def test_gold_spans_come_back_from_real_data(shared_data):
    """What is lost with the right spans: seven answers, over 30 tokens long or a part of a word."""
    path = str(shared_data / 'squad' / 'dev-v2.0.cs224n-6078.json.gz')
    tokenizer = WordPieceTokenizer.from_file(
        str(shared_data / 'vocab' / 'bert-base-uncased-vocab.txt'))
    examples = read_squad(path, version='v2', training=True)
    windows = make_windows(examples, tokenizer, training=True)
    assert len(windows) == 6372
    cls = windows.sequences.offsets[:-1]
    start, end = np.zeros((2, len(windows.sequences.ids)), np.float32)
    start[cls + windows.start_positions] = 10
    end[cls + windows.end_positions] = 10
    answered = np.array([bool(found) for found in examples.answers])[windows.question_index]
    start[cls[answered & (windows.start_positions == 0)]] = -10
    predictions = predict_answers(
        examples, windows, start, end, vocab=tokenizer.vocab, lowercase=True, version='v2')
    gold = read_squad(path, version='v2', training=False).gold_texts()
    scores = squad_scores(final_texts(examples.ids, predictions, 0.0), gold, version='v2')
    assert scores['NoAns_exact'] == 100
    assert round(scores['HasAns_exact'] / 100 * 2910) == 2910 - 7
