"""Reading SQuAD's JSON: order, answers kept and skipped, and one line for every fault."""

import copy
import gzip
import json

import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.tasks.squad_windows import read_squad

CONTEXT = 'The leader was John Smith (1895-1943). He\u00a0was born in\u202fAntwerp.'


def question(name, text='Smith', start=20, **fields):
    answers = [{'text': text, 'answer_start': start}] if text is not None else []
    return {'id': name, 'question': f'Who is {name}?', 'answers': answers, **fields}


def squad(*paragraphs):
    """One article; a paragraph is its questions."""
    return {'version': 'any', 'data': [{'title': 'Any', 'paragraphs': [
        {'context': CONTEXT, 'qas': list(qas)} for qas in paragraphs]}]}


@pytest.fixture
def write(tmp_path):
    def write(content, name='squad.json'):
        path = tmp_path / name
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(gzip.compress(data) if name.endswith('.gz') else data)
        return str(path)
    return write


def test_files_are_read_in_order_plain_or_gzipped(write):
    first = write(squad([question('a'), question('b')], [], [question('c')]), 'one.json.gz')
    second = write(squad([question('d', 'John', 15)]), 'two.json')
    examples = read_squad([second, first], version='v1', training=True)
    assert examples.ids == ('d', 'a', 'b', 'c')
    assert examples.questions[0] == 'Who is d?'
    assert len(examples.contexts) == 4
    assert examples.context_index.tolist() == [0, 1, 1, 3]
    assert examples.context_index.dtype == np.int32
    assert examples.answers == ((('John', 15),), *[(('Smith', 20),)] * 3)
    assert (examples.num_skipped, len(examples)) == (0, 4)
    assert examples.gold_texts() == {'d': ['John'], 'a': ['Smith'], 'b': ['Smith'], 'c': ['Smith']}
    assert read_squad(first, version='v1', training=True).ids == ('a', 'b', 'c')
    with_bom = write(b'\xef\xbb\xbf' + json.dumps(squad([question('a')])).encode(), 'bom.json')
    assert read_squad(with_bom, version='v1', training=True).ids == ('a',)


def test_training_keeps_one_answer_and_evaluation_all(write):
    several = question('a')
    several['answers'].append({'text': 'John Smith', 'answer_start': 15})
    path = write(squad([several, question('b', None, is_impossible=True)]))
    assert read_squad(path, version='v2', training=True).answers == ((('Smith', 20),), ())
    examples = read_squad(path, version='v2', training=False)
    assert examples.answers == ((('Smith', 20), ('John Smith', 15)), ())
    assert examples.gold_texts() == {'a': ['Smith', 'John Smith'], 'b': []}


def test_version_2_takes_files_of_version_1_and_believes_the_mark(write):
    path = write(squad([question('a'), question('b', None), question('c', is_impossible=True)]))
    assert read_squad(path, version='v2', training=True).answers == ((('Smith', 20),), (), ())
    # The official script goes by the answers.
    assert read_squad(path, version='v2', training=False).answers[2] == (('Smith', 20),)


FAULTY = [
    (dict(text='Smith', start=21), "answer_start 21 does not match its text 'Smith'"),
    (dict(text='Smith', start=-45), 'answer_start -45 does not match'),
    (dict(text='Smith', start=9999), "the paragraph has '' there"),
    (dict(text=' ', start=3), 'empty'),
    (dict(text='', start=3), 'empty'),
    (dict(text='He\u00a0was', start=39), 'do not give its text'),
    (dict(text=None, start=0, is_impossible=False), 'not marked impossible'),
]


@pytest.mark.parametrize(('fields', 'reason'), FAULTY)
def test_answers_that_are_not_there_are_listed_and_skipped(write, capsys, fields, reason):
    path = write(squad([question('a'), question('odd', **fields)], [question('b')]))
    examples = read_squad(path, version='v2', training=True)
    assert examples.ids == ('a', 'b')
    assert examples.context_index.tolist() == [0, 1]
    assert examples.num_skipped == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert path in line and 'odd' in line and reason in line
    with pytest.raises(InputError, match=r'1 of 3 questions.*\(0 may.*odd') as caught:
        read_squad(path, version='v2', training=True, max_skipped=0)
    assert '\n' not in str(caught.value)
    assert capsys.readouterr().err == ''
    # Evaluation scores every question, wherever its answer is said to be.
    assert read_squad(path, version='v2', training=False).ids == ('a', 'odd', 'b')


def test_the_limit_of_skipped_questions_is_a_share(write, capsys):
    wrong = [question(f'wrong {i}', start=0) for i in range(25)]
    right = [question(f'right {i}') for i in range(75)]
    path = write(squad(wrong, right))
    examples = read_squad(path, version='v1', training=True, max_skipped=0.25)
    assert (examples.num_skipped, len(examples)) == (25, 75)
    lines = capsys.readouterr().err.splitlines()
    assert [f'wrong {i}:' in line for i, line in enumerate(lines[:-1])] == [True] * 20
    assert lines[-1] == '25 of 100 questions left out'
    with pytest.raises(InputError, match=r'25 of 100 .*\(24 may be left out\).*wrong 0'):
        read_squad(path, version='v1', training=True, max_skipped=0.249)
    with pytest.raises(InputError, match=r'1 of 1 questions'):
        read_squad(write(squad(wrong[:1])), version='v1', training=True, max_skipped=1)


def test_answers_with_white_space_around_or_of_half_a_word_are_kept(write):
    texts = [' Smith ', 'mit', '(1895', 'in\u202fAntwerp', '\u00a0was']
    path = write(squad([question(t, t, CONTEXT.index(t)) for t in texts]))
    assert read_squad(path, version='v1', training=True).ids == tuple(texts)


def _change(*keys_and_value):
    """A change of a file with one question: a value (`...` removes) at a path of keys."""
    *keys, last, value = keys_and_value

    def change(content):
        for key in keys:
            content = content[key]
        if value is ...:
            del content[last]
        else:
            content[last] = value
    return change


PARAGRAPH = ('data', 0, 'paragraphs', 0)
QA = (*PARAGRAPH, 'qas', 0)
PLACE = r'squad\.json: data\[0\]\.paragraphs\[0\]'


@pytest.mark.parametrize(('change', 'message'), [
    (_change('data', ...), r"squad\.json has no field 'data'; SQuAD is data\[\]"),
    (_change('data', {}), r"squad\.json: 'data' is '\{\}', not a list"),
    (_change('data', []), 'no question'),
    (_change('data', 0, 'text'), r'data\[0\] is not an object'),
    (_change('data', 0, 'paragraphs', ...), r"data\[0\] has no field 'paragraphs'"),
    (_change(*PARAGRAPH, 'context', ...), PLACE + " has no field 'context'"),
    (_change(*PARAGRAPH, 'qas', ...), PLACE + " has no field 'qas'"),
    (_change(*PARAGRAPH, 'qas', []), 'no question'),
    (_change(*QA, 'id', ...), PLACE + r"\.qas\[0\] has no field 'id'"),
    (_change(*QA, 'id', 7), PLACE + r"\.qas\[0\]: 'id' is '7', not a string"),
    (_change(*QA, 'question', None), PLACE + r"\.qas\[0\]: 'question' is 'None'"),
    (_change(*QA, 'answers', ...), PLACE + r"\.qas\[0\] has no field 'answers'"),
    (_change(*QA, 'answers', 0, 'text', ...), r"qas\[0\]\.answers\[0\] has no field 'text'"),
    (_change(*QA, 'answers', 0, 'answer_start', '20'), r"'answer_start' is '20', not a whole num"),
    (_change(*QA, 'answers', 0, 'answer_start', True), "'answer_start' is 'True'"),
    (_change(*QA, 'answers', []), r'qas\[0\] \(id a\) has no answer.*v2'),
    (_change(*QA, 'is_impossible', True), r'qas\[0\] \(id a\) has no answer.*v2'),
    (_change(*QA, 'question', 'half \ud83d'), "character 5 of 'question' is half of a surrogate"),
])
def test_another_layout_is_one_line_with_the_place(write, change, message):
    content = squad([question('a')])
    change(content)
    with pytest.raises(InputError, match=message) as caught:
        read_squad(write(content), version='v1', training=True)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(('content', 'name', 'message'), [
    (b'', 'squad.json', 'is empty'),
    (b' \n', 'squad.json', 'is empty'),
    (b'question\tanswer\n', 'squad.json', 'is not JSON'),
    (b'[]', 'squad.json', 'not a JSON object'),
    (b'{"data": "\xe9"}', 'squad.json', 'byte 10 is 0xe9'),
    (None, 'missing.json', 'cannot be read: No such file'),
])
def test_what_is_not_such_a_file_is_one_line(write, tmp_path, content, name, message):
    path = str(tmp_path / name) if content is None else write(content, name)
    with pytest.raises(InputError, match=message) as caught:
        read_squad(path, version='v1', training=True)
    assert '\n' not in str(caught.value) and name in str(caught.value)


def test_damaged_gzip_files_are_one_line(write, tmp_path):
    whole = gzip.compress(json.dumps(squad([question('a')])).encode())
    for name, data in (('short.gz', whole[:-20]), ('plain.gz', b'{"data": []}')):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=f'{name} is not a sound gzip file'):
            read_squad(str(tmp_path / name), version='v1', training=True)


def test_an_id_occurs_once_in_all_files(write):
    twice = write(squad([question('a'), question('b')], [question('a')]))
    with pytest.raises(InputError, match=r'paragraphs\[1\]\.qas\[0\] has the id a of an earlier'):
        read_squad(twice, version='v1', training=True)
    one, other = (write(squad([question('a')]), name) for name in ('one.json', 'other.json'))
    with pytest.raises(InputError, match=r'other\.json.*one\.json'):
        read_squad([one, other], version='v1', training=False)


def test_a_file_without_answers_is_predicted_and_not_scored(write):
    content = squad([question('a'), question('b')])
    unlabelled = copy.deepcopy(content)
    del unlabelled['data'][0]['paragraphs'][0]['qas'][1]['answers']
    for version in ('v1', 'v2'):
        examples = read_squad(write(unlabelled), version=version, training=False)
        assert examples.answers == ((('Smith', 20),), None)
        with pytest.raises(InputError, match="question b has no field 'answers'"):
            examples.gold_texts()


@pytest.mark.parametrize(('name', 'version', 'paragraphs', 'questions', 'answers', 'impossible'), [
    ('dev-v1.1.json.gz', 'v1', 2067, 10570, 34726, 0),
    ('train-v1.1.subset-11877.json.gz', 'v1', 2430, 11877, 11877, 0),
    ('dev-v2.0.cs224n-6078.json.gz', 'v2', 646, 6078, None, 3168),
])
def test_real_files(shared_data, name, version, paragraphs, questions, answers, impossible):
    path = str(shared_data / 'squad' / name)
    examples = read_squad(path, version=version, training=False)
    assert (len(examples.contexts), len(examples)) == (paragraphs, questions)
    assert sum(not found for found in examples.answers) == impossible
    if answers:
        assert sum(len(found) for found in examples.answers) == answers
    assert read_squad(path, version=version, training=True).num_skipped == 0
    if impossible:
        with pytest.raises(InputError, match='read the file as v2'):
            read_squad(path, version='v1', training=False)
