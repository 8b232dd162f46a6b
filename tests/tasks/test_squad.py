"""SQuAD: files and their faults; windows, answers and scores against the original programs'."""

import functools
import json
import re
from pathlib import Path

import numpy as np
import optax
import pytest

from bert_jax.answers.spans import (
    PlacesByPieces,
    PlacesByWords,
    aligned_place,
    max_context,
    predict_answers,
)
from bert_jax.rows.questions import Question, answer_fault
from bert_jax.rows.sequences import joined
from bert_jax.rows.squad_reader import read_squad
from bert_jax.rows.squad_windows import squad_windows
from bert_jax.rows.table import find_file
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.squad import are_squads, final_texts, prediction_files, span_loss
from bert_jax.tasks.squad_scores import v1_scores, v2_scores
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.vocab_files import read_vocab
from bert_jax.text.wordpiece import WordPieceTokenizer, basic_tokens
from tests.refusals import refused
from tests.tasks.files import put

CONTEXT = 'The leader was John Smith (1895-1943). He\u00a0was born in\u202fAntwerp.'
# Made by run_squad.py of github.com/google-research/bert (commit eedf571) from the data in it.
ORIGINAL = json.loads((Path(__file__).parent / 'squad_original.json').read_text(encoding='utf-8'))
ORIGINAL_TOKENIZER = WordPieceTokenizer(Vocab.from_tokens(ORIGINAL['vocab']))
LENGTHS = {name: ORIGINAL[name] for name in ('max_length', 'doc_stride', 'max_question_length')}
VOCAB = Vocab.from_tokens([
    *SPECIAL_TOKENS, 'the', 'cat', '##s', 'sat', '18', '##95', 'japanese', '(', ')', '-', '.', ',',
    *'abcdefgh123', '##a', '##b', '##c',
])
TOKENIZER = WordPieceTokenizer(VOCAB)


def question(name, text='Smith', start=20, **fields):
    answers = [{'text': text, 'answer_start': start}] if text is not None else []
    return {'id': name, 'question': f'Who is {name}?', 'answers': answers, **fields}


def squad(*paragraphs):
    """The JSON of one article; each argument holds the questions of a paragraph."""
    return {'version': 'any', 'data': [{'title': 'Any', 'paragraphs': [
        {'context': CONTEXT, 'qas': list(qas)} for qas in paragraphs]}]}


@pytest.fixture
def write(tmp_path):
    return lambda content, name='squad.json': put(tmp_path, name, content)


def read(path, version='v1', training=True, **options):
    return read_squad(path, version=version, training=training, **options)


def ids(questions):
    return [q.id for q in questions]


def test_a_file_is_read_in_order_plain_or_gzipped(write):
    content = squad([question('a', 'John', 15), question('b')], [], [question('c')])
    for file in (write(content), write(content, 'one.json.gz'),
                 write(b'\xef\xbb\xbf' + json.dumps(content).encode(), 'bom.json')):
        first, *others = read(file)
        assert first == Question('a', 'Who is a?', CONTEXT, (('John', 15),))
        assert others == [Question(x, f'Who is {x}?', CONTEXT, (('Smith', 20),)) for x in 'bc']


@pytest.mark.parametrize('name', ['rows.jsonl', 'rows.json', 'rows.parquet'])
@pytest.mark.parametrize('in_lists', [True, False])
def test_a_question_a_row_is_read_as_the_layout_is(write, tmp_path, name, in_lists):
    expected = read(write(squad([question('a', 'John', 15), question('b')])), training=False)
    records = [record_of(asked, in_lists) for asked in expected]
    if name == 'rows.jsonl':
        write(records, name)
    elif name == 'rows.json':
        write(json.dumps(records, indent=1), name)
    else:
        pyarrow = pytest.importorskip('pyarrow')
        table = pyarrow.Table.from_pylist(records)
        pytest.importorskip('pyarrow.parquet').write_table(table, tmp_path / name)
    assert read(str(tmp_path / name), training=False) == expected


@pytest.mark.parametrize(('name', 'expected'), [
    (7, '7'), (0, '0'), ('a', 'a'), ('', 'row 1'), (None, 'row 1')])
def test_a_row_may_have_a_number_for_its_id(name, expected, write):
    path = write([{'id': name, 'question': 'Who?', 'context': CONTEXT,
                   'answers': {'text': ['Smith'], 'answer_start': [20.0]}}], 'rows.jsonl')
    assert [(q.id, q.answers) for q in read(path)] == [(expected, (('Smith', 20),))]


@pytest.mark.parametrize('answers', [
    None, 'Smith', ['Smith'], {'text': 'Smith', 'answer_start': 20}, {'text': ['Smith']},
    {'text': None, 'answer_start': None}, {'text': ['Smith'], 'answer_start': [None]},
    {'text': ['Smith'], 'answer_start': [20.5]}, {'text': ['Smith'], 'answer_start': []},
], ids=str)
def test_answers_of_another_form_are_refused(answers, write):
    path = write([{'question': 'Who?', 'context': CONTEXT, 'answers': answers}], 'rows.jsonl')
    with refused("rows.jsonl, row 1: 'answers' is not {text: a list of texts"):
        read(path)


@pytest.mark.parametrize('is_impossible', [False, True])
def test_a_row_may_be_marked_impossible(is_impossible, write):
    """As in SQuAD's own layout: then its answers are only plausible."""
    path = write([{'question': 'Who?', 'context': CONTEXT, 'is_impossible': is_impossible,
                   'answers': {'text': ['Smith'], 'answer_start': [20]}}], 'rows.jsonl')
    (asked,) = read(path, version='v2')
    assert asked.answers == (() if is_impossible else (('Smith', 20),))


@pytest.mark.parametrize('value', ['False', 2, []], ids=str)
def test_a_mark_of_another_kind_is_refused_with_its_row(value, write):
    rows = [{'question': 'Who?', 'context': CONTEXT, 'is_impossible': mark,
             'answers': {'text': ['Smith'], 'answer_start': [20]}} for mark in (False, value)]
    with refused(f"rows.jsonl, row 2: 'is_impossible' is {value!r}, not true or false"):
        read(write(rows, 'rows.jsonl'), version='v2')


def record_of(asked, in_lists):
    """A question in the hub's columns; its answers are a list of objects, or an object of lists."""
    answers = [{'text': text, 'answer_start': start} for text, start in asked.answers]
    if not in_lists:
        answers = {key: [answer[key] for answer in answers] for key in ('text', 'answer_start')}
    return {'id': asked.id, 'question': asked.text, 'context': asked.context, 'answers': answers}


def test_training_keeps_one_answer_and_trusts_is_impossible(write):
    several = question('a')
    several['answers'].append({'text': 'John Smith', 'answer_start': 15})
    path = write(squad([several, question('b', None, is_impossible=True), question('c', None),
                        question('d', is_impossible=True)]))
    smith = ('Smith', 20)
    assert [q.answers for q in read(path, version='v2')] == [(smith,), (), (), ()]
    # Evaluation goes by the answers, as the official script does.
    assert [q.answers for q in read(path, version='v2', training=False)] == [
        (smith, ('John Smith', 15)), (), (), (smith,)]


@pytest.mark.parametrize(('fields', 'reason'), [
    (dict(text='Smith', start=21), "answer_start 21 does not match its text 'Smith'"),
    (dict(text='Smith', start=-45), 'answer_start -45 does not match'),
    (dict(text='Smith', start=9999), "the paragraph has '' there"),
    (dict(text=' ', start=3), 'empty'),
    (dict(text='He\u00a0was', start=39), 'do not give its text'),
    (dict(text=None, start=0, is_impossible=False), 'not marked impossible'),
])
def test_questions_with_unusable_answers_are_listed_and_left_out(write, capsys, fields, reason):
    path = write(squad([question('a'), question('odd', **fields)], [question('b')]))
    assert ids(read(path, version='v2')) == ['a', 'b']
    (line,) = capsys.readouterr().err.splitlines()
    assert path in line and 'odd' in line and reason in line
    with pytest.raises(InputError, match=r'1 of 3 .*malformed.*odd'):
        read(path, version='v2', max_malformed=0)
    # Evaluation scores every question, wherever its answer is said to be.
    assert ids(read(path, version='v2', training=False)) == ['a', 'odd', 'b']


@pytest.mark.parametrize(('start', 'said'), [
    (7, ''), (8, 'it counts units of UTF-16: count characters, here 7'),
    (11, 'it counts bytes of UTF-8: count characters, here 7'), (9, "has 'ris' there")])
def test_how_an_answer_s_place_is_counted_is_said(start, said):
    fault = answer_fault('Paris', start, '\U0001f600 caf\u00e9 Paris', by_words=True)
    assert said in fault and bool(fault) == bool(said)
    assert ('counts' in fault) == ('counts' in said)


def test_answers_with_white_space_around_or_of_half_a_word_are_kept(write):
    texts = [' Smith ', 'mit', '(1895', 'in\u202fAntwerp', '\u00a0was']
    assert ids(read(write(squad([question(t, t, CONTEXT.index(t)) for t in texts])))) == texts


QA = ('data', 0, 'paragraphs', 0, 'qas', 0)
PLACE = r'squad\.json: data\[0\]\.paragraphs\[0\]\.'


@pytest.mark.parametrize(('keys', 'value', 'message'), [
    (('data',), ..., r'squad\.json: data is missing, not a list; SQuAD is data\[\]'),
    (('data',), [], 'holds no rows'),
    (QA[:4] + ('context',), ..., PLACE + 'context is missing'),
    ((*QA, 'id'), 7, PLACE + r"qas\[0\]\.id is '7', not a string"),
    ((*QA, 'id'), 'b', PLACE + r"qas\[1\]\.id 'b' is that of an earlier question"),
    ((*QA, 'answers'), ..., PLACE + r'qas\[0\]\.answers is missing'),
    ((*QA, 'answers', 0, 'answer_start'), True, "answer_start is 'True', not a whole number"),
    ((*QA, 'is_impossible'), True, r'qas\[0\]\.answers \(id a\) has no answer.*v2'),
    ((*QA, 'is_impossible'), 'False', r"qas\[0\]\.is_impossible is 'False', not true or false"),
    ((*QA, 'question'), 'half \ud83d', 'question: .* half of a surrogate'),
])
def test_a_wrong_layout_is_refused_in_one_line_with_the_place(write, keys, value, message):
    root = content = squad([question('a'), question('b')])
    *keys, last = keys
    for key in keys:
        content = content[key]
    content[last] = value
    if value is ...:
        del content[last]
    with refused(match=message):
        read(write(root), training=False)


def test_a_file_that_is_not_json_is_refused_in_one_line(write):
    with refused('squad.json is not JSON'):
        read(write(b'question\tanswer\n'))


@pytest.mark.parametrize(('name', 'version', 'questions', 'impossible'), [
    ('dev-v1.1.json', 'v1', 10570, 0),
    ('train-v1.1.json', 'v1', 11877, 0),  # train-v1.1.subset-11877.json.gz
    ('dev-v2.0.json', 'v2', 6078, 3168),
])
def test_real_files(shared_data, name, version, questions, impossible):
    for training in (False, True):
        path = find_file(str(shared_data / 'squad'), [name])
        found = read(path, version=version, training=training)
        assert len(found) == questions and sum(not q.answers for q in found) == impossible


def make_windows(
    questions, tokenizer=TOKENIZER, *, max_length=384, doc_stride=128, max_question_length=64,
    by_words=True,
):
    def encode(texts):
        return joined(list(map(tokenizer.encode, texts)))

    return squad_windows(
        questions, encode, frame=tokenizer.vocab.frame, max_length=max_length,
        doc_stride=doc_stride, max_question_length=max_question_length,
        encode_with_places=None if by_words else tokenizer.encode_with_places)


def make_questions(context, *questions):
    """Questions on one paragraph; each is (text, answer or None, the answer's start)."""
    return [Question(str(i), text, context, ((answer, start),) if answer else ())
            for i, (text, answer, start) in enumerate(questions)]


def rows(windows):
    """Pieces of each window."""
    ids, offsets = windows.sequences.ids, windows.sequences.offsets
    return [[VOCAB.tokens[i] for i in ids[a:b]] for a, b in zip(offsets, offsets[1:])]


@pytest.mark.parametrize(('context', 'answer', 'pieces'), [
    ('the cat (1895-1).', '1895', '18 ##95'),
    ('the cat (1895-1).', '1895-1', '18 ##95 - 1'),
    ('the Japanese cat', 'Japan', 'japanese'),  # part of a piece: the whole piece
    ('the (cats) sat', 'at', '( cat ##s )'),
    ('the\u202fcat\tsat', 'cat\tsat', 'cat sat'),
    ('the cat sat', ' cat ', 'cat'),
    ('aaa a', 'aa', 'a ##a'),  # found by its pieces, not its characters
    ('the \u200b cat', '\u200b', ''),
    ('the a\u200bb cat', '\u200b', 'a ##b'),
])
def test_answers_are_tightened_to_their_pieces(context, answer, pieces):
    windows = make_windows(
        make_questions(context, ('the', answer, context.index(answer))), max_length=9, doc_stride=1)
    found = {
        ' '.join(row[start:end + 1])
        for row, start, end in zip(rows(windows), windows.start_positions, windows.end_positions)
        if start}
    assert found == ({pieces} if pieces else set())


CHINESE_VOCAB = Vocab.from_tokens([*SPECIAL_TOKENS, *'北京是中国的首都，。上海e', '##e', 'cafe'])
CHINESE = WordPieceTokenizer(CHINESE_VOCAB)


@pytest.mark.parametrize(('context', 'at', 'answer', 'found'), [
    ('北京是中国的首都。', 0, '北京', '北京'),
    ('北京是北京的首都。', 3, '北京', '北京'),  # not the first 北京 of the run
    ('北京是\u3000中国的首都。', 4, '中国', '中国'),
    ('北京\u00ad是中国的首都。', 4, '中国', '中国'),
    ('北\u00ad京是中国的首都。', 0, '北\u00ad京', '北\u00ad京'),
    ('北京是\u00a0中国的\u00a0首都。', 4, '中国的\u00a0首都', '中国的\u00a0首都'),
    ('北京是鱻国的首都。', 3, '鱻国', '鱻国'),  # [UNK] in the span
    ('鱻是中国的首都。', 2, '中国', '中国'),
    ('Cafe\u0301, 北京。', 0, 'Cafe\u0301', 'Cafe\u0301'),  # a mark belongs to its letter
    ('e\u0301e\u0301, 北京。', 2, 'e\u0301', 'e\u0301'),
    ('(caf\u00e9)', 1, 'caf\u00e9', 'caf\u00e9'),
])
def test_answers_of_own_files_are_the_pieces_at_their_characters(context, at, answer, found):
    (only,) = make_questions(context, ('是', answer, at))
    windows = make_windows([only], CHINESE, by_words=False)
    start, end = np.zeros((2, len(windows.sequences.ids)))
    start[windows.start_positions[0]] = 10
    end[windows.end_positions[0]] = 10
    prediction = predict_answers(windows, start, end, version='v1', places=PlacesByPieces())
    (best, *_) = prediction[only.id].n_best
    assert best.text == found and best.place == (at, at + len(found))


def test_an_answer_with_white_space_that_english_lacks_is_trained_on_in_own_files(write):
    gold = [{'text': 'He\u00a0was', 'answer_start': CONTEXT.index('He\u00a0was')}]
    path = write(squad([question('a', answers=gold)]))
    (only,) = read(path, by_words=False)
    assert only.answers == (('He\u00a0was', 39),)


def test_real_answers_come_back_by_characters(shared_data):
    """All but eight, which are over 30 tokens long or part of a piece."""
    path = str(shared_data / 'squad' / 'dev-v2.0.cs224n-6078.json.gz')
    tokenizer = WordPieceTokenizer(
        read_vocab(shared_data / 'vocab' / 'bert-base-uncased-vocab.txt'))
    questions = [q for q in read(path, version='v2', by_words=False) if q.answers]
    windows = make_windows(questions, tokenizer, by_words=False)
    start, end = np.zeros((2, len(windows.sequences.ids)), np.float32)
    cls = windows.sequences.offsets[:-1]
    start[cls + windows.start_positions] = end[cls + windows.end_positions] = 10
    start[cls[windows.start_positions == 0]] = -10
    found = predict_answers(windows, start, end, version='v1', places=PlacesByPieces())
    wrong = [q for q in questions if found[q.id].text != q.answers[0][0]]
    assert len(questions) == 2910 and len(wrong) == 8


def test_the_loss_of_windows_is_that_of_their_answers(write):
    gold = [{'text': 'gone', 'answer_start': 0}, {'text': 'Antwerp', 'answer_start': 54}]
    content = squad([question('a', answers=gold), question('b', None)])
    windows = make_windows(read(write(content), 'v2', training=False), max_length=20, doc_stride=5)
    assert 0 < (windows.start_positions > 0).sum() < len(windows.sequences)
    logits = np.random.default_rng(0).normal(size=(2, len(windows.sequences.ids)))
    offsets = windows.sequences.offsets
    expected = [optax.softmax_cross_entropy_with_integer_labels(x[begin:end], position)
                for x, at in zip(logits, (windows.start_positions, windows.end_positions))
                for begin, end, position in zip(offsets, offsets[1:], at)]
    assert span_loss(windows, *logits) == pytest.approx(np.mean(expected), rel=1e-6)


def test_a_long_window_outweighs_a_short_one():
    """0.01 times the 127 further tokens exceeds the one token of context that is missing."""
    owners = max_context(np.array([0, 128]), np.array([250, 123]))
    assert np.flatnonzero(owners).tolist() == [250]


def test_a_question_has_to_leave_room_for_the_paragraph():
    with pytest.raises(InputError, match='windows of 6 tokens leave no room .* a question of 3'):
        make_windows(make_questions('the cat', ('cats the', 'cat', 4)), max_length=6)


@pytest.fixture(params=['v1', 'v2'])
def original(request, write):
    """(version, what run_squad.py made of the recorded data, our windows of that data)."""
    recorded = ORIGINAL['sets'][request.param]
    questions = read(write(recorded['squad']), version=request.param)
    return request.param, recorded, make_windows(questions, ORIGINAL_TOKENIZER, **LENGTHS)


def test_windows_are_those_of_the_original(original):
    _, recorded, windows = original
    sequences = windows.sequences
    assert len(sequences) == len(recorded['windows']) > 30
    for i, expected in enumerate(recorded['windows']):
        low, high = sequences.offsets[i:i + 2]
        assert sequences.ids[low:high].tolist() == expected['input_ids']
        assert high - low - sequences.first_lengths[i] == expected['segment_ids_sum']
        assert windows.question_index[i] == expected['question']
        assert [windows.start_positions[i], windows.end_positions[i]] == expected['positions']
        mine = np.flatnonzero(windows.question_index == windows.question_index[i])
        starts = windows.part_starts[mine] - windows.part_starts[mine[0]]
        owners = max_context(starts, windows.part_lengths[mine])
        owned = owners[starts[i - mine[0]]:][:windows.part_lengths[i]] == i - mine[0]
        assert (sequences.first_lengths[i] + np.flatnonzero(owned)).tolist() == expected[
            'max_context']


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
PREDICTIONS = {name: prediction for name, (_, prediction, _) in CASES.items()}
ODDS = {name: odds for name, (_, _, odds) in CASES.items()}
ANSWERED = [name for name, answers in ANSWERS.items() if answers]

# What evaluate-v1.1.py (allenai/bi-att-flow 498c802) and evaluate-v2.0.py (rajpurkar/SQuAD-explorer
# 09eac99) print for files of these cases.
V1 = {'exact_match': 41.666666666666664, 'f1': 56.15079365079365}
KEYS = ('exact_match', 'f1', 'total', 'HasAns_exact', 'HasAns_f1', 'HasAns_total',
        'NoAns_exact', 'NoAns_f1', 'NoAns_total')
V2 = (43.75, 60.863095238095234, 16, 41.666666666666664, 64.48412698412699, 12, 50.0, 50.0, 4)
V2_ANSWERED = (41.666666666666664, 64.48412698412699, 12) * 2
V2_AT_0 = (50.0, 54.166666666666664, 16, 41.666666666666664, 47.22222222222222, 12, 75.0, 75.0, 4)
V2_AT_1 = (43.75, 51.488095238095234, 16, 41.666666666666664, 51.98412698412699, 12, 50.0, 50.0, 4)
V2_BEST = {
    'best_exact': 50.0, 'best_exact_thresh': -0.5, 'best_f1': 54.61309523809524,
    'best_f1_thresh': 2.0,
}


@pytest.mark.parametrize(('names', 'threshold', 'official', 'best'), [
    (list(CASES), 9.0, V2, V2_BEST), (ANSWERED, 9.0, V2_ANSWERED, None),
    (list(CASES), 0.0, V2_AT_0, V2_BEST), (list(CASES), 1.0, V2_AT_1, V2_BEST),
])
def test_scores_are_the_official_ones_to_the_last_digit(names, threshold, official, best):
    texts, odds = ({name: of[name] for name in names} for of in (PREDICTIONS, ODDS))
    scores = v2_scores(texts, ANSWERS, odds, threshold)
    assert scores.pop('null_threshold') == threshold
    found = {key: scores.pop(key) for key in V2_BEST}
    assert scores == dict(zip(KEYS, official)) and best in (None, found)


def test_scores_of_version_1_are_the_official_ones_to_the_last_digit():
    assert v1_scores({name: PREDICTIONS[name] for name in ANSWERED}, ANSWERS) == V1


def test_if_answering_nothing_scores_best_the_threshold_is_below_all_odds():
    scores = v2_scores({'a': 'y', 'b': 'z'}, {'a': ['x'], 'b': []}, {'a': -3.0, 'b': -1.0})
    assert scores['null_threshold'] < -3 and scores['f1'] == scores['best_f1'] == 50
    assert scores['best_f1_thresh'] == 0


def on_contexts(*contexts, **lengths):
    """Windows of one question about each paragraph."""
    return make_windows(
        [Question(f'q{i}', 'a b', context) for i, context in enumerate(contexts)], **lengths)


def predict(windows, start, end, version='v1', tokenizer=TOKENIZER, **options):
    return predict_answers(
        windows, np.array(start, np.float32), np.array(end, np.float32),
        places=PlacesByWords(tokenizer), version=version, **options)


def test_answers_are_those_of_the_original(original):
    version, recorded, windows = original
    predictions = predictions_for_recorded_logits(original)
    texts = final_texts(predictions, 0.0 if version == 'v2' else None)
    assert {name: single_spaced(text) for name, text in texts.items()} == recorded['predictions']
    assert sum(not text for text in texts.values()) == {'v1': 0, 'v2': 2}[version]
    for asked in windows.questions:
        found = predictions[asked.id].n_best
        expected = recorded['n_best'][asked.id]
        assert [single_spaced(candidate.text) for candidate in found] == [
            candidate['text'] for candidate in expected]
        for key in ('start_logit', 'end_logit', 'probability'):
            # To rounding: from Python 3.12 on, `sum` compensates; the original ran on an older one.
            assert [getattr(candidate, key) for candidate in found] == pytest.approx(
                [candidate[key] for candidate in expected], rel=1e-14)
        if version == 'v2':
            assert predictions[asked.id].null_odds == recorded['null_odds'][asked.id]


def test_answers_are_spelt_as_in_the_paragraph(original):
    _, _, windows = original
    predictions = predictions_for_recorded_logits(original)
    for asked in windows.questions:
        for candidate in predictions[asked.id].n_best:
            begin, end = candidate.place
            text = '' if candidate.text == 'empty' else candidate.text
            assert asked.context[begin:end] == text


def predictions_for_recorded_logits(original):
    """Our answers from the logits that run_squad.py was given."""
    version, recorded, windows = original
    i = np.arange(len(windows.sequences.ids))
    start_step, end_step = recorded['logit_steps']
    start = ((i * i * 31 + i * start_step) % 1009 / 97.0).astype(np.float32)
    end = ((i * i * 31 + i * end_step) % 1009 / 97.0).astype(np.float32)
    if version == 'v2':
        unanswered = np.isin(windows.question_index, (1, 4))
        start[windows.sequences.offsets[:-1][unanswered]] += 16
    return predict(
        windows, start, end, version, ORIGINAL_TOKENIZER, n_best=ORIGINAL['n_best'],
        max_answer_length=ORIGINAL['max_answer_length'])


def single_spaced(text):
    """As the original joins words, whatever stands between them."""
    return ' '.join(re.split('[ \t\r\n\u202f]+', text))


@pytest.mark.parametrize(('context', 'pieces', 'expected'), [
    ("Steve Smith's", 'steve smith', 'Steve Smith'),
    ('(1895-1943).', '1895', '1895'),
    ('(1895-1943).', '1895 - 1943', '1895-1943'),
    ('Z\u00fcrich,  Bern', 'zurich , bern', 'Z\u00fcrich,  Bern'),
    ('a\u202fb\nc.', 'b c', 'b\nc'),
    ('Zu\u0308rich.', 'zurich', 'Zu\u0308rich.'),  # the dropped accent prevents alignment
    ('Steve\u200b Smith.', 'smith', 'Steve\u200b Smith.'),  # so does a zero-width character
    ('a\u00a0b c', 'b', 'a\u00a0b c'),  # so does a no-break space
    ('Steve Smith.', '[UNK] smith', 'Steve Smith.'),
    ('Steve Smith.', '', 'Steve Smith.'),
    ('\u200b Smith.', 'smith', '\u200b Smith.'),
    ('\u6771\u4eac', '\u4eac', '\u4eac'),
    ('Tartar', 'tar', 'Tar'),  # the first occurrence
    ('(Smith)', 'Smith', 'Smith'), ('(smith)', 'Smith', '(smith)'),  # of a cased vocabulary
    ('(Z\u00fcrich)', 'Z\u00fcrich', 'Z\u00fcrich'),
])
def test_pieces_are_aligned_with_characters(context, pieces, expected):
    """`expected` is what the original's get_final_text gives, apart from white space."""
    text = f'before {context} behind'
    words = [m.span() for m in re.finditer('[^ \t\r\n\u202f]+', text)][1:-1]
    cased = pieces[:1].isupper()
    split = functools.partial(basic_tokens, lowercase=not cased)
    begin, end = aligned_place(text, words, pieces, split)
    assert text[begin:end] == expected


def test_the_same_text_counts_once_with_its_best_logits():
    windows = on_contexts('C d c')
    start, end = np.zeros((2, 8))
    start[[4, 6]] = end[[4, 6]] = [3, 4]
    texts = [c.text for c in predict(windows, start, end)['q0'].n_best]
    assert texts.count('c') == 1 and texts[:2] == ['c', 'C d c']
    start[4] = end[4] = 4  # equal scores: in the order of the windows, then of the starts
    texts = [c.text for c in predict(windows, start, end)['q0'].n_best]
    assert texts[:3] == ['C', 'C d c', 'c']


def test_no_answer_competes_in_version_2():
    windows = on_contexts('c d e f g h', max_length=9, doc_stride=2)
    start, end = np.zeros((2, 18))
    start[[0, 9]], end[[0, 9]] = [5, 2], [1, 2]  # [CLS] of the two windows
    start[4] = end[4] = 2  # c: with equal scores, a span precedes "no answer"
    found = predict(windows, start, end, 'v2')
    assert [c.text for c in found['q0'].n_best][:2] == ['c', ''] and found['q0'].null_odds == 0
    assert final_texts(found, 0.0) == {'q0': 'c'} and final_texts(found, -0.1) == {'q0': ''}
    start[4] = 20  # "no answer" is listed even if it is not among the n best
    found = predict(windows, start, end, 'v2', n_best=1)
    assert [c.text for c in found['q0'].n_best] == ['c', '']


def test_no_span_at_all_is_no_answer_in_version_2():
    """Where the original fails: no tokens in the paragraph, or no span of a start and an end."""
    windows = on_contexts('\u200b', 'c d')
    start, end = np.zeros((2, len(windows.sequences.ids)))
    end[windows.sequences.offsets[1]:] = np.arange(7, 0, -1)
    predictions = predict(windows, start, end, 'v2', n_best=2)
    assert [[(c.text, c.probability) for c in x.n_best] for x in predictions.values()] == [
        [('', 1.0)]] * 2
    assert final_texts(predictions) == final_texts(predictions, 1e3) == {'q0': '', 'q1': ''}
    files = prediction_files(predictions, 0.0)
    odds = json.loads(files['null_odds.json'], parse_constant=pytest.fail)
    assert min(odds.values()) > 1e3
    # Version 1.1 requires an answer: the original's placeholder.
    assert final_texts(predict(windows, start, end, n_best=2)) == {'q0': 'empty', 'q1': 'empty'}


@pytest.mark.parametrize(('version', 'threshold'), [('v1', None), ('v2', -2.0)])
def test_files_hold_texts_candidates_and_odds(version, threshold):
    windows = on_contexts('c \u00e9 e f g h', 'c d')
    start, end = np.random.default_rng(0).normal(size=(2, len(windows.sequences.ids)))
    predictions = predict(windows, start, end, version)
    files = {name: json.loads(text) for name, text in prediction_files(
        predictions, threshold).items()}
    (n_best, *_), _ = files.pop('nbest_predictions.json').values()
    assert n_best == {key: getattr(predictions['q0'].n_best[0], key) for key in (
        'text', 'probability', 'start_logit', 'end_logit')}
    assert files == {'predictions.json': final_texts(predictions, threshold)} | (
        {} if version == 'v1' else {
            'null_odds.json': {name: x.null_odds for name, x in predictions.items()}})


@pytest.mark.slow
def test_gold_spans_come_back_from_real_data(shared_data):
    """All but seven answers, which are over 30 tokens long or part of a word."""
    path = str(shared_data / 'squad' / 'dev-v2.0.cs224n-6078.json.gz')
    tokenizer = WordPieceTokenizer(
        read_vocab(shared_data / 'vocab' / 'bert-base-uncased-vocab.txt'))
    windows = make_windows(read(path, version='v2'), tokenizer)
    assert len(windows.sequences) == 6372
    cls = windows.sequences.offsets[:-1]
    start, end = np.zeros((2, len(windows.sequences.ids)), np.float32)
    start[cls + windows.start_positions] = 10
    end[cls + windows.end_positions] = 10
    answered = np.array([bool(q.answers) for q in windows.questions])[windows.question_index]
    start[cls[answered & (windows.start_positions == 0)]] = -10
    predictions = predict(windows, start, end, 'v2', tokenizer)
    gold = {q.id: [text for text, _ in q.answers] for q in read(path, version='v2', training=False)}
    odds = {name: x.null_odds for name, x in predictions.items()}
    scores = v2_scores(final_texts(predictions), gold, odds, 0.0)
    assert scores['NoAns_exact'] == 100
    assert round(scores['HasAns_exact'] / 100 * 2910) == 2910 - 7


@pytest.mark.parametrize(('source', 'are_its_own'), [
    ('hf:datasets/rajpurkar/squad', True), ('hf:datasets/rajpurkar/squad_v2@main', True),
    ('hf:datasets/rajpurkar/squad/plain_text/train', True), ('tfds:squad', True),
    ('a folder', True), ('dev-v1.1.json', True),
    ('hf:datasets/google/xquad/xquad.zh/validation', False),
    ('hf:datasets/a/squad_v2_de', False), ('hf:datasets/a/squad', False), ('own.json', False),
])
def test_only_in_squad_itself_answers_are_found_as_in_the_original(
        source, are_its_own, tmp_path, monkeypatch):
    """Elsewhere by their characters, whatever stands between words there."""
    monkeypatch.chdir(tmp_path)
    if source.endswith('.json'):
        put(tmp_path, source, '{}')
    assert are_squads(source) == are_its_own
