"""SQuAD's files, every fault in one line, and windows against those of the original program."""

import copy
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.runtime.errors import InputError
from bert_jax.tasks.squad import _has_max_context
from bert_jax.tasks.squad_windows import SquadExamples, read_squad, squad_windows
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

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
    assert len(examples) == 4
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
    assert len(examples) == 75
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
    assert len(read_squad(path, version=version, training=True)) == questions
    if impossible:
        with pytest.raises(InputError, match='read the file as v2'):
            read_squad(path, version='v1', training=False)


VOCAB = Vocab.from_tokens([
    *SPECIAL_TOKENS, 'the', 'cat', '##s', 'sat', '18', '##95', 'japanese', '(', ')', '-', '.', ',',
    *'abc123', '##a', '##b', '##c',
])
TOKENIZER = WordPieceTokenizer(VOCAB)
# Made by run_squad.py of github.com/google-research/bert (commit eedf571) from the data in it.
ORIGINAL = json.loads((Path(__file__).parent / 'squad_original.json').read_text(encoding='utf-8'))


def encoder(tokenizer):
    def encode(texts):
        ids = [tokenizer.encode(text) for text in texts]
        return np.array(sum(ids, []), np.int32), np.array([len(i) for i in ids], np.int32)
    return encode


def make_examples(context, *questions):
    """Examples of one paragraph; a question is (text, answer or None, its first character)."""
    return SquadExamples(
        ids=tuple(map(str, range(len(questions)))), questions=tuple(q for q, _, _ in questions),
        contexts=(context,), context_index=np.zeros(len(questions), np.int32),
        answers=tuple(((text, start),) if text else () for _, text, start in questions),
    )


def windows_of(examples, training=True, encode=None, **lengths):
    return squad_windows(
        examples, encode or encoder(TOKENIZER), cls_id=VOCAB.cls_id, sep_id=VOCAB.sep_id,
        training=training, **lengths)


def rows(windows):
    """Pieces of each window."""
    ids, offsets = windows.sequences.ids, windows.sequences.offsets
    return [[VOCAB.tokens[i] for i in ids[a:b]] for a, b in zip(offsets, offsets[1:])]


def test_a_window_is_the_question_and_a_part_of_the_paragraph():
    examples = make_examples('The cats sat (the cat).', ('cats the', 'sat', 9), ('the', None, 0))
    windows = windows_of(examples, max_length=9, doc_stride=3)
    assert [' '.join(row) for row in rows(windows)] == [
        '[CLS] cat ##s the [SEP] the cat ##s [SEP]', '[CLS] cat ##s the [SEP] sat ( the [SEP]',
        '[CLS] cat ##s the [SEP] cat ) . [SEP]',
        '[CLS] the [SEP] the cat ##s sat ( [SEP]', '[CLS] the [SEP] sat ( the cat ) [SEP]',
        '[CLS] the [SEP] cat ) . [SEP]',
    ]
    assert windows.question_index.tolist() == [0, 0, 0, 1, 1, 1]
    assert windows.sequences.first_lengths.tolist() == [5, 5, 5, 3, 3, 3]
    assert windows.start_positions.tolist() == windows.end_positions.tolist() == [0, 5, 0, 0, 0, 0]
    for array in (windows.sequences.ids, windows.question_index, windows.start_positions,
                  windows.end_positions, windows.token_words):
        assert array.dtype == np.int32
    spans = list(zip(windows.word_starts, windows.word_ends))
    assert [examples.contexts[0][a:b] for a, b in spans] == ['The', 'cats', 'sat', '(the', 'cat).']
    assert windows.token_words.tolist() == [0, 1, 1, 2, 3, 3, 4, 4, 4]


def test_questions_are_cut_and_empty_paragraphs_have_a_window():
    examples = make_examples(' \n ', ('the cat sat the cat', None, 0), ('', None, 0))
    windows = windows_of(examples, max_length=6, max_question_length=2)
    assert [' '.join(row) for row in rows(windows)] == [
        '[CLS] the cat [SEP] [SEP]', '[CLS] [SEP] [SEP]']
    assert windows.document_lengths.tolist() == [0, 0]


@pytest.mark.parametrize(('context', 'answer', 'pieces'), [
    ('the cat (1895-1).', '1895', '18 ##95'),
    ('the cat (1895-1).', '1895-1', '18 ##95 - 1'),
    ('the Japanese cat', 'Japan', 'japanese'),  # a part of a piece: the word
    ('the cats sat', 'cat', 'cat'),
    ('the (cats) sat', 'at', '( cat ##s )'),
    ('1895 the 1895', '1895', '18 ##95'),
    ('the\u202fcat\tsat', 'cat\tsat', 'cat sat'),
    ('the cat sat', ' cat ', 'cat'),
    ('the cat sat', 'the cat sat', 'the cat sat'),
    ('c\u00e1t, the', 'c\u00e1t', 'cat'),
    ('aaa a', 'aa', 'a ##a'),  # its own pieces, though not at its place
    ('the \u200b cat', '\u200b', ''),
    ('the a\u200bb cat', '\u200b', 'a ##b'),
])
@pytest.mark.parametrize('max_length', [40, 9])
def test_answers_are_tightened_to_their_pieces(context, answer, pieces, max_length):
    examples = make_examples(context, ('the', answer, context.index(answer)))
    windows = windows_of(examples, max_length=max_length, doc_stride=1)
    found = {
        ' '.join(row[start:end + 1])
        for row, start, end in zip(rows(windows), windows.start_positions, windows.end_positions)
        if start
    }
    assert found == ({pieces} if pieces else set())
    untrained = windows_of(examples, training=False, max_length=max_length, doc_stride=1)
    assert not untrained.start_positions.any() and not untrained.end_positions.any()
    assert np.array_equal(untrained.sequences.ids, windows.sequences.ids)


def check_max_context(parts, flags):
    """Each token is best seen in one window: most tokens on the poorer side, the longer window.

    Args:
      parts: the tokens that each window of a question holds.
      flags: whether these are best seen there.
    """
    for token in range(max((part[-1] + 1 for part in parts if len(part)), default=0)):
        scores = [
            min(token - part[0], part[-1] - token) + 0.01 * len(part) if token in part else -1
            for part in parts]
        assert [bool(token in part and flag[token - part[0]]) for part, flag in zip(parts, flags)] \
            == [i == int(np.argmax(scores)) for i in range(len(parts))]
    assert all(not flag[len(part):].any() for part, flag in zip(parts, flags))


def test_a_long_window_outweighs_a_short_one():
    """Where 0.01 for each token is worth more than one token on the poorer side."""
    examples = make_examples('a ' * 251, ('the', None, 0))
    windows = windows_of(examples, max_length=254, doc_stride=128)
    assert windows.document_lengths.tolist() == [250, 123]
    best = _has_max_context(windows, 0, 2)
    assert np.flatnonzero(best).tolist() == [*range(3, 253), 254 + 3 + 122]


WORDS = ['the', 'The', 'cats', '(1895-1).', 'abc', 'ab,c', 'Japanese', 'zzz', 'c\u00e1t', '\u200b',
         'a\u00a0b']
GAPS = [' ', '\n', '  ', '\t', '\u202f', ' \r\n']


@st.composite
def paragraphs(draw):
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=25))
    gaps = draw(st.lists(st.sampled_from(GAPS), min_size=len(words), max_size=len(words)))
    context = ''.join(gap + word for gap, word in zip(gaps, words))
    low = draw(st.integers(0, len(words) - 1))
    high = draw(st.integers(low, min(len(words) - 1, low + 4)))
    start = sum(len(gap + word) for gap, word in zip(gaps[:low], words[:low])) + len(gaps[low])
    end = sum(len(gap + word) for gap, word in zip(gaps[:high + 1], words[:high + 1]))
    return context, context[start:end], start


@settings(max_examples=150, deadline=None)
@given(st.lists(paragraphs(), min_size=1, max_size=3), st.integers(8, 40), st.integers(1, 40),
       st.integers(0, 4))
def test_windows_of_any_paragraph(drawn, max_length, doc_stride, num_question_words):
    examples = SquadExamples(
        ids=tuple(map(str, range(len(drawn)))),
        questions=tuple('cat ' * (num_question_words + i) for i in range(len(drawn))),
        contexts=tuple(context for context, _, _ in drawn),
        context_index=np.arange(len(drawn), dtype=np.int32),
        answers=tuple(((text, start),) for _, text, start in drawn),
    )
    windows = windows_of(
        examples, max_length=max_length, doc_stride=doc_stride, max_question_length=3)
    pieces = rows(windows)
    assert all(len(row) <= max_length for row in pieces)
    best = _has_max_context(windows, 0, len(windows))
    starts = windows.document_starts
    for q, (context, answer, _) in enumerate(drawn):
        # BERT's tokens of the paragraph, whole.
        tokens = TOKENIZER.tokenize(context)
        question = TOKENIZER.tokenize(examples.questions[q])[:3]
        mine = np.flatnonzero(windows.question_index == q)
        room = max_length - 3 - len(question)
        step = min(doc_stride, room)
        parts = [np.arange(starts[w] - starts[mine[0]],
                           starts[w] - starts[mine[0]] + windows.document_lengths[w]) for w in mine]
        assert [part[0] for part in parts if len(part)] == [
            i * step for i in range(len(parts)) if tokens]
        assert sorted(set(np.concatenate(parts))) == list(range(len(tokens)))
        assert all(len(part) == room for part in parts[:-1])
        assert len(parts) == 1 or parts[-2][-1] < len(tokens) - 1  # none is superfluous
        for w, part in zip(mine, parts):
            assert pieces[w] == ['[CLS]', *question, '[SEP]', *(tokens[i] for i in part), '[SEP]']

        check_max_context(parts, [
            best[windows.sequences.offsets[w]:][:windows.sequences.lengths[w]][len(question) + 2:]
            for w in mine])

        # The answer is at one place, and found in every window that holds all of it.
        wanted = TOKENIZER.tokenize(answer)
        shift = starts[mine] - starts[mine[0]] - len(question) - 2
        places = {(windows.start_positions[w] + by, windows.end_positions[w] + by)
                  for w, by in zip(mine, shift) if windows.start_positions[w]}
        assert len(places) <= 1
        for first, last in places:
            assert tokens[first:last + 1] == wanted
            assert [bool(windows.start_positions[w]) for w in mine] == [
                first in part and last in part for part in parts]
        if wanted and len(parts) == 1:
            assert places
        assert not windows.end_positions[windows.start_positions == 0].any()


def test_every_word_is_tokenized_once():
    asked = []

    def encode(texts):
        asked.append(list(texts))
        return encoder(TOKENIZER)(texts)

    questions = [('the', 'cat', 4), ('cat', None, 0)] * 50
    windows_of(make_examples('The cat, the cat\nsat. ' * 100, *questions), encode=encode)
    words = asked[0]
    assert sorted(word for word in words if word) == ['The', 'cat', 'cat,', 'sat.', 'the']
    assert [len(texts) for texts in asked] == [len(words), 100, 50]


@pytest.mark.parametrize(('lengths', 'message'), [
    (dict(max_length=6), 'windows of 6 tokens leave no room .* a question of 3'),
    (dict(doc_stride=0), 'doc_stride is 0'),
])
def test_lengths_that_cannot_be(lengths, message):
    with pytest.raises(InputError, match=message):
        windows_of(make_examples('the cat', ('cats the', 'cat', 4)), **lengths)


@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_windows_are_those_of_the_original(version, tmp_path):
    recorded = ORIGINAL['sets'][version]
    path = tmp_path / 'squad.json'
    path.write_text(json.dumps(recorded['squad']))
    tokenizer = WordPieceTokenizer(Vocab.from_tokens(ORIGINAL['vocab']))
    windows = squad_windows(
        read_squad(str(path), version=version, training=True), encoder(tokenizer),
        cls_id=2, sep_id=3, training=True,
        **{name: ORIGINAL[name] for name in ('max_length', 'doc_stride', 'max_question_length')},
    )
    sequences, best = windows.sequences, _has_max_context(windows, 0, len(windows))
    assert len(windows) == len(recorded['windows']) > 30
    for i, expected in enumerate(recorded['windows']):
        low, high = sequences.offsets[i:i + 2]
        assert sequences.ids[low:high].tolist() == expected['input_ids']
        assert high - low - sequences.first_lengths[i] == expected['segment_ids_sum']
        assert windows.question_index[i] == expected['question']
        assert [windows.start_positions[i], windows.end_positions[i]] == expected['positions']
        assert np.flatnonzero(best[low:high]).tolist() == expected['max_context']
