"""SuperGLUE's tasks, from files with the benchmark's fields and from numbered labels."""

import json
import random

import numpy as np
import pytest

from bert_jax.step import step
from bert_jax.tasks.candidates import Candidate, Question, score_multirc, score_record
from bert_jax.tasks.superglue import SUPERGLUE_TASKS, read_superglue
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from tests.in_process import evaluate, run
from tests.numpy_kernels import make_init_with_constants
from tests.refusals import refused
from tests.tasks.opened import parquet
from tests.tiny_runs import WORDS, sentence

# A row of each task, its texts here, and the id of its label.
ROWS = {
    'boolq': ({'question': 'is it', 'passage': 'It is.', 'label': True}, ['is it', 'It is.'], 1),
    'cb': ({'premise': 'a', 'hypothesis': 'b', 'label': 'neutral'}, ['a', 'b'], 2),
    'copa': ({'premise': 'He fell.', 'question': 'cause', 'choice1': 'Ice.', 'choice2': 'Tea.',
              'label': 0}, ['He fell. What was the cause of this?', 'Ice.', 'Tea.'], 0),
    'rte': ({'premise': 'a', 'hypothesis': 'b', 'label': 'not_entailment'}, ['a', 'b'], 1),
    'wsc': ({'text': 'Ann told Eve that she, alone, won.', 'span1_text': 'Ann', 'span1_index': 0,
             'span2_text': 'she', 'span2_index': 4, 'label': True},
            ['* Ann * told Eve that # she, # alone, won.'], 1),
    'wic': ({'word': 'bank', 'sentence1': 'A bank.', 'sentence2': 'Two banks.', 'start1': 2,
             'label': False}, ['bank: A bank.', 'Two banks.'], 0),
}


# Of the tasks with candidates: a row of the official files, the rows of the hub's data set for the
# same, the passage, and the texts behind it with their labels.
QUESTIONS = {
    'multirc': (
        {'idx': 3, 'version': 1.1, 'passage': {
            'text': '<b>Sent 1: </b>It is warm.<br><b>Sent 2: </b>He runs.<br>', 'questions': [
                {'question': 'Who?', 'sentences_used': [1], 'idx': 5, 'answers': [
                    {'text': 'He', 'idx': 8, 'label': 1}, {'text': 'It', 'idx': 9, 'label': 0}]}]}},
        [{'paragraph': 'It is warm. He runs.', 'question': 'Who?', 'answer': answer, 'label': label,
          'idx': {'paragraph': 3, 'question': 5, 'answer': number}}
         for answer, label, number in (('He', 1, 8), ('It', 0, 9))],
        'It is warm. He runs.', {'3-5-8': ('Who? He', True), '3-5-9': ('Who? It', False)}),
    'record': (
        {'source': 'Daily mail', 'idx': 2, 'passage': {
            'text': 'Ann met Bo. Ann left.\n@highlight\nBo stayed', 'entities': [
                {'start': 0, 'end': 2}, {'start': 8, 'end': 9}, {'start': 12, 'end': 14}]},
         'qas': [{'query': '@placeholder went', 'idx': 7, 'answers': [
             {'start': 0, 'end': 2, 'text': 'Ann'}]}]},
        [{'passage': 'Ann met Bo. Ann left.\n@highlight\nBo stayed', 'query': '@placeholder went',
          'entities': ['Ann', 'Bo'], 'answers': ['Ann'], 'idx': {'passage': 2, 'query': 7}}],
        'Ann met Bo. Ann left. Bo stayed', {'Ann': ('Ann went', True), 'Bo': ('Bo went', False)}),
}


def write_rows(path, rows):
    path.write_text('\n'.join(map(json.dumps, rows)))
    return str(path)


def test_every_task_has_a_row():
    assert {*ROWS, *QUESTIONS} == SUPERGLUE_TASKS.keys()


@pytest.mark.parametrize('name', QUESTIONS)
@pytest.mark.parametrize('is_on_hub', [False, True])
def test_questions_have_their_candidates(tmp_path, name, is_on_hub):
    official, of_hub, passage, expected = QUESTIONS[name]
    path = write_rows(tmp_path / 'train.jsonl', of_hub if is_on_hub else [official])
    (question,) = SUPERGLUE_TASKS[name].read(path)
    assert question.passage == passage
    key = 'id' if name == 'multirc' else 'name'
    assert {getattr(candidate, key): (candidate.text, candidate.is_right)
            for candidate in question.candidates} == expected


@pytest.mark.parametrize(('spans', 'text'), [
    (('Ann', 0, 'her', 4), '* Ann * told Eve that # her # son won'),
    (('Eve', 1, 'her', 5), 'Ann told * Eve * that # her # son won'),  # off by one
    (('her son', 4, 'her', 4), 'Ann told Eve that * # her # son * won'),
    (('Joe', 2, 'her', 4), 'Ann told * Eve * that # her # son won'),  # a name that is not there
    (('Tom', 4, 'he', 6), "He said that when * Tom * left, # he'd # be sad."),
    (('Tom', 4, 'he', 5), '# He # told her when * Tom * heard.'),  # "heard" is another word
])
def test_the_spans_of_wsc_are_marked(tmp_path, spans, text):
    fields = dict(zip(SUPERGLUE_TASKS['wsc'].fields[1:], spans, strict=True))
    unmarked = ' '.join(word for word in text.split() if word not in '*#')
    row = {'text': unmarked, 'idx': 0, 'label': False}
    for rows in ([{**row, **fields}], [{**row, 'target': fields}]):
        found = read_superglue('wsc', write_rows(tmp_path / 'train.jsonl', rows))
        assert found.texts == [(text,)]


# Candidates of three questions, as (right, probability); F1a and exact match by hand.
@pytest.mark.parametrize(('questions', 'f1', 'exact'), [
    ([[(1, 0.9), (0, 0.1)], [(1, 0.8), (1, 0.7)], [(0, 0.2)]], 1.0, 1.0),
    ([[(1, 0.9), (0, 0.6)], [(1, 0.4), (1, 0.7)], [(0, 0.2)]], 2 / 3, 1 / 3),  # 2 of 3, 2 of 3
    ([[(1, 0.1), (0, 0.1)], [(0, 0.2)], [(0, 0.3)]], 0.0, 2 / 3),
])
def test_multirc_is_scored_by_answers_and_by_questions(questions, f1, exact):
    made = []
    for number, candidates in enumerate(questions):
        made.append(Question(f'0-{number}', 'passage', [
            Candidate(f'0-{number}-{i}', '', '', bool(right))
            for i, (right, _) in enumerate(candidates)]))
    flat = [candidate for candidates in questions for candidate in candidates]
    probabilities = np.array([probability for _, probability in flat])
    scores, predictions = score_multirc(made, probabilities)
    assert scores == pytest.approx({'f1': f1, 'exact_match': exact})
    assert predictions['0-0-0'] == str(probabilities[0] > 0.5).lower()
    labels = [right for right, _ in flat]
    metrics = pytest.importorskip('sklearn.metrics')
    assert scores['f1'] == pytest.approx(metrics.f1_score(labels, probabilities > 0.5))


@pytest.mark.parametrize(('probabilities', 'predicted', 'f1', 'exact'), [
    ([0.1, 0.3, 0.2], 'The U.S. Army', 1.0, 1.0),  # articles, points and case do not count
    ([0.4, 0.3, 0.2], 'army of Mars', 0.4, 0.0),  # one word of two is one of three
    ([0.1, 0.3, 0.9], 'Moon', 0.0, 0.0),
])
def test_record_is_scored_by_its_most_probable_candidate(probabilities, predicted, f1, exact):
    names = ['army of Mars', 'The U.S. Army', 'Moon']
    question = Question(
        '7', 'passage', [Candidate('7', name, '', False) for name in names], ['us army', 'Base'])
    scores, predictions = score_record([question], np.array(probabilities))
    assert predictions == {'7': predicted}
    assert scores == pytest.approx({'f1': f1, 'exact_match': exact})


@pytest.mark.parametrize('name', ROWS)
@pytest.mark.parametrize('is_numbered', [False, True])
def test_rows_are_read(tmp_path, name, is_numbered):
    row, texts, label = ROWS[name]
    file = tmp_path / 'train.jsonl'
    file.write_text(json.dumps({**row, 'idx': 7, **({'label': label} if is_numbered else {})}))
    found = read_superglue(name, str(file))
    assert [column[0] for column in found.texts] == texts
    assert found.labels.tolist() == [label]
    assert found.ids == ['7']


@pytest.mark.parametrize(('name', 'names', 'labels'), [
    ('cb', ['entailment', 'contradiction', 'neutral'], [0, 1]),
    ('cb', ['contradiction', 'entailment', 'neutral'], [1, 0]),
    ('boolq', ['False', 'True'], [0, 1]),
    ('copa', ['choice1', 'choice2'], [0, 1]),
    ('multirc', ['False', 'True'], [0, 1]),
    ('multirc', ['True', 'False'], [1, 0]),
])
def test_a_file_that_names_its_labels_tells_what_its_numbers_mean(
        name, names, labels, tmp_path, capsys):
    pytest.importorskip('pyarrow')
    rows = QUESTIONS[name][1] if name in QUESTIONS else [ROWS[name][0]] * 2
    columns = {field: [row[field] for row in rows] for field in rows[0] if field != 'label'}
    path = parquet(tmp_path / 'a.parquet', {'label': {'_type': 'ClassLabel', 'names': names}},
                   **columns, label=[0, 1])
    if name in QUESTIONS:
        (question,) = SUPERGLUE_TASKS[name].read(path)
        found = [int(candidate.is_right) for candidate in question.candidates]
    else:
        found = read_superglue(name, path).labels.tolist()
    assert found == labels
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize(('name', 'change', 'words'), [
    ('cb', {'label': 'maybe'}, ["unknown label 'maybe'", 'entailment']),
    ('wic', {'label': 2}, ['label 2']),
    ('copa', {'question': 'why'}, ["'why' is neither cause nor effect"]),
    ('wsc', {'span2_index': 9}, ['there is no word 9', "'she'"]),
    ('wsc', {'span1_text': None}, ['a text is not a string']),
])
def test_what_no_task_has_is_refused(tmp_path, name, change, words):
    file = tmp_path / 'train.jsonl'
    file.write_text(json.dumps({**ROWS[name][0], 'idx': 0, **change}))
    with refused(*words):
        read_superglue(name, str(file), max_malformed=0)


@pytest.mark.parametrize(('name', 'change', 'words'), [
    ('multirc', {'passage': {'text': 'a'}}, ['questions=None']),
    ('multirc', {'passage': 'a'}, ['text=None']),
    ('multirc', {'passage': {'text': 'a', 'questions': [
        {'question': 'Who?', 'idx': 0, 'answers': []}]}}, ['the question 3-0 has no answers']),
    ('multirc', {'passage': {'text': 'a', 'questions': [
        {'question': 'Who?', 'idx': 0, 'answers': [{'text': 'He', 'idx': 0}]}]}},
     ['its label is empty']),
    ('record', {'qas': None}, ['qas=None']),
    ('record', {'qas': [{'query': '@placeholder', 'idx': 0}]}, ['its label is empty']),
    ('record', {'qas': [{'query': 'who', 'idx': 0, 'answers': []}]}, ['no @placeholder']),
    ('record', {'qas': [{'query': '@placeholder', 'idx': 0, 'answers': []}]}, ['no answers']),
])
def test_questions_that_are_not_as_in_the_benchmark_are_refused(tmp_path, name, change, words):
    path = write_rows(tmp_path / 'train.jsonl', [{**QUESTIONS[name][0], **change}])
    with refused(path, 'line 1', *words):
        SUPERGLUE_TASKS[name].read(path, max_malformed=0)


def test_a_query_that_is_there_twice_is_refused(tmp_path):
    path = write_rows(tmp_path / 'train.jsonl', 2 * [QUESTIONS['record'][0]])
    with refused(path, '2 questions with the idx 7'):
        SUPERGLUE_TASKS['record'].read(path)


@pytest.mark.parametrize(('change', 'message'), [
    ({'question': 'Why?'}, '2 questions with the idx 3-5'),
    ({'paragraph': 'He runs.'}, '2 questions with the idx 3-5'),
    ({'idx': {'paragraph': 3, 'question': 5, 'answer': 8}}, '2 answers with the idx 3-5-8'),
])
def test_different_questions_of_one_number_are_refused(tmp_path, change, message):
    first, second = QUESTIONS['multirc'][1]
    path = write_rows(tmp_path / 'train.jsonl', [first, second | change])
    with refused(path, message):
        SUPERGLUE_TASKS['multirc'].read(path)


def test_passages_of_one_number_are_refused(tmp_path):
    path = write_rows(tmp_path / 'train.jsonl', 2 * [QUESTIONS['multirc'][0]])
    with refused(path, '2 questions with the idx 3-5'):
        SUPERGLUE_TASKS['multirc'].read(path)


@pytest.mark.parametrize(('name', 'change'), [
    ('multirc', {'passage': {'text': 'a', 'questions': []}}), ('record', {'qas': []})])
def test_a_file_without_questions_is_refused(tmp_path, name, change):
    path = write_rows(tmp_path / 'train.jsonl', [{**QUESTIONS[name][0], **change}])
    with refused(path, 'no questions'):
        SUPERGLUE_TASKS[name].read(path)


def test_what_goes_with_a_malformed_question_is_said(tmp_path, capsys):
    row = QUESTIONS['record'][0]
    (query,) = row['qas']
    rows = [row, {**row, 'qas': [{**query, 'idx': 8}, {**query, 'idx': 9, 'query': 'who'}]}]
    assert len(SUPERGLUE_TASKS['record'].read(write_rows(tmp_path / 'train.jsonl', rows))) == 1
    assert '(all 2 questions of its passage go with it); left out' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'metrics'), [
    ('cb', {'eval/accuracy', 'eval/macro_f1'}), ('copa', {'eval/accuracy'})])
def test_a_run_is_trained_on_train_and_scored_on_val(tmp_path, name, metrics, monkeypatch):
    monkeypatch.setattr(step, 'make_init', make_init_with_constants)
    write_vocab(tmp_path / 'vocab.txt', (*SPECIAL_TOKENS, *WORDS))
    rng = random.Random(0)
    folder = tmp_path / SUPERGLUE_TASKS[name].folder
    folder.mkdir()
    for split, count in (('train', 24), ('val', 9)):
        lines = []
        for number in range(count):
            row = {field: sentence(rng) for field in SUPERGLUE_TASKS[name].fields}
            row |= {'question': 'effect', 'idx': number, 'label': number % 2}
            lines.append(json.dumps(row))
        (folder / f'{split}.jsonl').write_text('\n'.join(lines))
    ended = run(
        f'superglue.py:{name}', f'--config.data.source={tmp_path}', '--config.init_checkpoint=',
        f'--config.data.vocab_file={tmp_path}/vocab.txt', '--config.data.lowercase=True',
        '--config.model.name=L-1_H-32_A-2', '--config.data.max_seq_length=64',
        '--config.train.steps=2', workdir=tmp_path / 'run')
    assert metrics <= ended.result.keys()
    assert '24 training examples' in ended.said
    assert len((tmp_path / 'run' / 'dev_predictions.tsv').read_text().splitlines()) == 1 + 9


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'num_predictions'), [('multirc', 12), ('record', 6)])
def test_a_run_is_trained_on_the_candidates_of_questions(tmp_path, name, num_predictions):
    write_vocab(tmp_path / 'vocab.txt', (*SPECIAL_TOKENS, *WORDS))
    rng = random.Random(0)
    folder = tmp_path / SUPERGLUE_TASKS[name].folder
    folder.mkdir()
    for split, count in (('train', 9), ('val', 6)):
        rows = []
        for number in range(count):
            passage = sentence(rng)
            answers = [{'text': text, 'idx': i, 'label': i} for i, text in enumerate(WORDS[:2])]
            rows.append({'idx': number, 'passage': {'text': passage, 'questions': [
                {'question': 'a', 'idx': number, 'answers': answers}]}})
            if name == 'record':
                passage = f'{WORDS[0]} {WORDS[1]} {passage}'
                length = len(WORDS[0])
                places = [(0, length - 1), (length + 1, length + len(WORDS[1]))]
                rows[-1] = {'passage': {'text': passage, 'entities': [
                    {'start': start, 'end': end} for start, end in places]}, 'qas': [
                        {'query': 'a @placeholder', 'idx': number, 'answers': answers[1:]}]}
        write_rows(folder / f'{split}.jsonl', rows)
    ended = run(
        f'superglue.py:{name}', f'--config.data.source={tmp_path}', '--config.init_checkpoint=',
        f'--config.data.vocab_file={tmp_path}/vocab.txt', '--config.data.lowercase=True',
        '--config.model.name=L-1_H-32_A-2', '--config.data.max_seq_length=64',
        '--config.train.steps=30', '--config.train.eval_every=10', '--config.train.save_every=0',
        '--config.optimizer.learning_rate=1e-2', workdir=tmp_path / 'run')
    assert '18 training examples' in ended.said
    assert ended.result['eval/exact_match'] == ended.result['eval/f1'] == 1  # it is the second
    assert len((tmp_path / 'run' / 'dev_predictions.tsv').read_text().splitlines()) == (
        1 + num_predictions)
    again = evaluate(str(tmp_path / 'run'), workdir=tmp_path / 'again')
    assert again.result['eval/f1'] == 1
