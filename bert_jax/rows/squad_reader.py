"""Files of SQuAD 1.1 and 2.0, or in their layout, or with a question a row: their questions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bert_jax.rows import table
from bert_jax.rows.questions import Question, answer_fault, in_quotes
from bert_jax.runtime.errors import InputError

_LAYOUT = ('SQuAD is data[].paragraphs[].{context, qas[].{id, question, answers[].{text, '
           'answer_start}}}')
_COLUMNS = ('id', 'question', 'context', 'answers')  # of the hub, a question a row
_TYPES = {list: 'a list', str: 'a string', int: 'a whole number'}
_IS_IMPOSSIBLE = 'is_impossible'
_MARKS = (None, False, True)  # not such as 'False', which Python takes for true


class _Entry(NamedTuple):
    """A question as it stands in a file.

    Attributes:
      place: in the file, for messages.
      fields: of the question, not checked.
      context: the paragraph.
    """

    place: str
    fields: Any
    context: str


def read_squad(
    path: str, root: Any = None, *, version: str, training: bool, max_malformed: float = 0.01,
    by_words: bool = True,
) -> list[Question]:
    """Questions of a file in SQuAD's layout, in its order.

    For training, a question keeps only its first answer. It is left out, with a line on standard
    error, if that answer is not at its `answer_start`, is empty, or cannot be found in the
    paragraph's words (as in `run_squad.py` of google-research/bert). For evaluation all questions
    and answers stay as they are.

    Args:
      path: the file, plain or `.gz`; or, for messages, where `root` comes from.
      root: parsed content, in place of the file's.
      version: 'v1': every question has an answer; 'v2': some have none.
      training: whether answers are checked.
      max_malformed: share of the questions that may be left out; above 0, one always may.
      by_words: whether an answer has to be found in the paragraph's words, too; if not, its place
        is enough.

    Raises:
      InputError: not SQuAD's layout (the message names the place), an id that occurs twice, a
        question without an answer read as 'v1', more left out than allowed, no question at all.
    """
    if root is None:
        root = _root_of(path)
    questions: dict[str, Question] = {}
    faults: list[str] = []
    for entry in _entries(path, root):
        question = _question(entry)
        if question.id in questions:
            raise InputError(f'{entry.place}id {question.id!r} is that of an earlier question; ids '
                             'must be distinct: remove one of the two')
        is_impossible = _is_impossible(entry)
        if version == 'v1' and (not question.answers or is_impossible):
            raise InputError(
                f'{entry.place}answers (id {question.id}) has no answer, which SQuAD 1.1 does not '
                'have; read the file as v2 (configs/squad.py:v2)')
        if training:
            num_kept = 0 if is_impossible else 1
            question = question._replace(answers=question.answers[:num_kept])
            fault = _question_fault(question, is_impossible, by_words)
            if fault:
                faults.append(f'question {question.id}: {fault}')
                continue
        questions[question.id] = question
    table.check_malformed(path, len(questions), faults, max_malformed)
    return list(questions.values())


def _root_of(path: str) -> Any:
    """The content of a file in SQuAD's layout, or with a question a row."""
    if has_rows(path):
        return layout_of(_records(path))
    return _parsed(path)


def questions_of(path: str) -> list[Question]:
    """The questions of a file in SQuAD's layout, without their answers, which it may lack."""
    questions: list[Question] = []
    for place, fields, context in _entries(path, _parsed(path)):
        text = _field(fields, 'question', str, place)
        questions.append(Question(str(fields.get('id', '')), text, context))
    return questions


def _question(entry: _Entry) -> Question:
    """A question of a file with all of its answers, their types checked."""
    place, fields, context = entry
    name = _field(fields, 'id', str, place)
    text = _field(fields, 'question', str, place)
    answers: list[tuple[str, int]] = []
    for in_answer, answer in _items(fields, 'answers', place):
        answer_text = _field(answer, 'text', str, in_answer)
        start = _field(answer, 'answer_start', int, in_answer)
        answers.append((answer_text, start))
    return Question(name, text, context, tuple(answers))


def _is_impossible(entry: _Entry) -> bool | None:
    """Whether a question is marked as one without an answer; None: it has no such mark."""
    value = entry.fields.get(_IS_IMPOSSIBLE)
    if value not in _MARKS:
        raise InputError(f'{entry.place}{_IS_IMPOSSIBLE} is {value!r:.60}, not true or false')
    return None if value is None else bool(value)


def _question_fault(question: Question, is_impossible: bool | None, by_words: bool) -> str:
    """Why a question cannot be trained on; '' if it can."""
    if question.answers:
        text, start = question.answers[0]
        return answer_fault(text, start, question.context, by_words)
    if is_impossible is False:
        return 'it is not marked impossible and has no answer'
    return ''


def has_rows(path: str) -> bool:
    """Whether a file has a question a row, as the hub and `datasets` write them, not the layout."""
    format = table.format_of(path)
    if format != 'json':
        return format == 'parquet'
    first = _first_line(path)
    try:
        record = json.loads(first)
        return isinstance(record, list) or 'context' in record
    except (ValueError, TypeError, RecursionError):  # an object over several lines
        return first.startswith('[')


def _first_line(path: str) -> str:
    """The first line that is not empty; '' if all are."""
    for _, line in table.lines(path):
        text = line.strip()
        if text:
            return text
    return ''


def _records(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet or JSON file with the hub's columns of SQuAD, each a question."""
    columns = (*_COLUMNS, _IS_IMPOSSIBLE)
    for row in table.read_rows(path, columns, optional=('id', _IS_IMPOSSIBLE)):
        if row.fault:
            raise InputError(f'{path}, row {row.line}: {row.fault}')
        record = dict(zip(columns, row.cells, strict=True))
        if record['id'] in (None, ''):
            record['id'] = f'row {row.line}'
        elif isinstance(record['id'], int):
            record['id'] = str(record['id'])
        record['answers'] = _answers_by_field(record['answers'])
        if not _are_answers(record['answers']):
            raise InputError(f"{path}, row {row.line}: 'answers' is not {{text: a list of texts, "
                             'answer_start: as many numbers}')
        mark = record[_IS_IMPOSSIBLE]
        if mark not in _MARKS:
            raise InputError(f"{path}, row {row.line}: '{_IS_IMPOSSIBLE}' is {mark!r:.60}, not "
                             'true or false')
        yield record


def _answers_by_field(answers: Any) -> Any:
    """{text: a list, answer_start: a list}, if answers are a list of objects; else unchanged."""
    if not isinstance(answers, list) or not all(isinstance(x, dict) for x in answers):
        return answers
    texts = [answer.get('text') for answer in answers]
    starts = [answer.get('answer_start') for answer in answers]
    return {'text': texts, 'answer_start': starts}


def _are_answers(answers: Any) -> bool:
    """Whether they are lists of texts and of as many whole numbers."""
    if not isinstance(answers, dict):
        return False
    texts = answers.get('text')
    starts = answers.get('answer_start')
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        return False
    return all(table.plain_number(str(start)).removeprefix('-').isdecimal() for start in starts)


def layout_of(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Records of tensorflow-datasets, or rows of Parquet, in the layout of a file."""
    paragraphs: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        texts = record['answers']['text']
        starts = record['answers']['answer_start']
        answers: list[dict[str, Any]] = []
        for text, start in zip(texts, starts, strict=True):
            answers.append({'text': _decoded(text), 'answer_start': int(float(start))})
        questions = paragraphs.setdefault(_decoded(record['context']), [])
        questions.append({
            'id': _decoded(record['id']), 'question': _decoded(record['question']),
            _IS_IMPOSSIBLE: record.get(_IS_IMPOSSIBLE), 'answers': answers})
    article = [{'context': context, 'qas': questions} for context, questions in paragraphs.items()]
    return {'data': [{'paragraphs': article}]}


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value


def _parsed(path: str) -> Any:
    """The content of a JSON file."""
    text = '\n'.join(line for _, line in table.lines(path))
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f'{path} is not JSON ({error}); {_LAYOUT}, or a question a line: '
                         '{id, question, context, answers: {text, answer_start}}') from None


def _entries(path: str, root: Any) -> Iterator[_Entry]:
    """The questions of a file, in its order."""
    for in_article, article in _items(root, 'data', f'{path}: '):
        for in_paragraph, paragraph in _items(article, 'paragraphs', in_article):
            context = _field(paragraph, 'context', str, in_paragraph)
            for place, fields in _items(paragraph, 'qas', in_paragraph):
                yield _Entry(place, fields, context)


def _items(parent: Any, name: str, place: str) -> Iterator[tuple[str, Any]]:
    """(Place, value) of each item of a list."""
    for i, item in enumerate(_field(parent, name, list, place)):
        yield f'{place}{name}[{i}].', item


def _field(parent: Any, name: str, kind: type, place: str) -> Any:
    """A field, which must exist and be of this type."""
    value = None
    if isinstance(parent, dict):
        value = parent.get(name)
    if type(value) is not kind:
        shown = 'missing'
        if value is not None:
            shown = in_quotes(str(value))
        raise InputError(f'{place}{name} is {shown}, not {_TYPES[kind]}; {_LAYOUT}')
    if kind is str:
        try:
            table.texts_of([value])
        except table.Malformed as error:
            raise InputError(f'{place}{name}: {error}') from None
    return value
