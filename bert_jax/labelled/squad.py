"""SQuAD files -> questions, their paragraphs and their answers.

    Q: questions, P: paragraphs
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import open_stream

VERSIONS = ('v1', 'v2')
# What separates the words of a paragraph: `run_squad.py`'s choice, narrower than the tokenizer's.
WHITESPACE = ' \t\r\n\u202f'
WORD = re.compile(f'[^{WHITESPACE}]+')
_LAYOUT = 'SQuAD is data[].paragraphs[].{context, qas[].{id, question, answers[].{text, ' \
          'answer_start}}}'
_LISTED = 20  # skipped questions that are shown one by one
_KINDS = {dict: 'an object', list: 'a list', str: 'a string', int: 'a whole number'}


@dataclasses.dataclass(frozen=True)
class SquadExamples:
    """Questions in the order of the files.

    Attributes:
      ids: [Q] distinct question ids.
      questions: [Q] their texts.
      contexts: [P] paragraphs; several questions share one.
      context_index: [Q] int32, the paragraph of each question.
      answers: [Q] (text, first character in the paragraph) of each accepted answer; () where there
        is none in the paragraph, None where the file does not say.
      num_skipped: questions left out because their answer is not where it should be.
      source: the files, for messages.
    """

    ids: tuple[str, ...]
    questions: tuple[str, ...]
    contexts: tuple[str, ...]
    context_index: np.ndarray
    answers: tuple[tuple[tuple[str, int], ...] | None, ...]
    num_skipped: int = 0
    source: str = ''

    def __len__(self) -> int:
        return len(self.ids)

    def gold_texts(self) -> dict[str, list[str]]:
        """Question id -> texts of its answers, as the metrics want them.

        Raises:
          InputError: a question without the field 'answers', which a test set may leave out.
        """
        for name, found in zip(self.ids, self.answers):
            if found is None:
                raise InputError(
                    f"{self.source}: question {name} has no field 'answers', so predictions "
                    'cannot be scored: set config.data.eval_source to a file with answers'
                )
        return {i: [text for text, _ in found or ()] for i, found in zip(self.ids, self.answers)}


def read_squad(
    paths: str | Sequence[str], *, version: str, training: bool, max_skipped: float = 0.01
) -> SquadExamples:
    """Questions of one or more files in SQuAD's layout, in the order given.

    For training, a question keeps its first answer, and questions are skipped, with a line on
    standard error, whose answer is not at its `answer_start`, is empty, or does not come back from
    the words of the paragraph (as in `run_squad.py` of google-research/bert). For evaluation all
    questions and answers stay as they are.

    Args:
      paths: files, plain or `.gz`.
      version: 'v1': every question has an answer; 'v2': some have none.
      training: answers are needed, and checked.
      max_skipped: share of the questions that may be skipped; above 0, one always may.

    Raises:
      InputError: not such a file (the place in the JSON is named), an id that occurs twice, a
        question without an answer read as 'v1', more skipped than allowed, no question at all.
    """
    paths = [paths] if isinstance(paths, str) else paths
    roots = ((path, _load(path)) for path in paths)
    return _examples(roots, ', '.join(paths), version, training, max_skipped)


def tfds_split(version: str, training: bool) -> tuple[str, str]:
    """Data set and split of tensorflow-datasets: ('v1', True) -> ('squad/v1.1', 'train')."""
    return {'v1': 'squad/v1.1', 'v2': 'squad/v2.0'}[version], 'train' if training else 'validation'


def from_tfds(
    records: Iterable[Mapping[str, Any]], *, version: str, training: bool,
    max_skipped: float = 0.01,
) -> SquadExamples:
    """Questions out of the records of tensorflow-datasets, in the order of their ids.

    Args:
      records: NumPy values by feature, texts as bytes.
      version, training, max_skipped: as for `read_squad`.

    Raises:
      InputError: as `read_squad`.
    """
    paragraphs: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record['id']):
        answers = record['answers']
        qa = {
            'id': record['id'].decode(), 'question': record['question'].decode(),
            'answers': [
                {'text': text.decode(), 'answer_start': int(start)}
                for text, start in zip(answers['text'], answers['answer_start'], strict=True)
            ],
        }
        if 'is_impossible' in record:
            qa['is_impossible'] = bool(record['is_impossible'])
        paragraphs.setdefault(record['context'].decode(), []).append(qa)
    root = {'data': [{'paragraphs': [
        {'context': context, 'qas': qas} for context, qas in paragraphs.items()
    ]}]}
    source = 'tfds:{}:{}'.format(*tfds_split(version, training))
    return _examples([(source, root)], source, version, training, max_skipped)


def _examples(
    roots: Iterable[tuple[str, dict[str, Any]]], source: str, version: str, training: bool,
    max_skipped: float,
) -> SquadExamples:
    """See `read_squad`; from (name, content) of files."""
    assert version in VERSIONS
    ids: dict[str, str] = {}  # and the file each is from
    questions: list[str] = []
    contexts: list[str] = []
    context_index: list[int] = []
    answers: list[tuple[tuple[str, int], ...] | None] = []
    skipped: list[str] = []
    total = 0
    for path, root in roots:
        for where, paragraph in _paragraphs(path, root):
            context = _field(paragraph, 'context', str, where)
            contexts.append(context)
            for where_qa, qa in _items(paragraph, 'qas', where):
                total += 1
                name = _field(qa, 'id', str, where_qa)
                if name in ids:
                    raise InputError(
                        f'{where_qa} has the id {name} of an earlier question (in {ids[name]}); '
                        'ids must be distinct: remove one of the two'
                    )
                ids[name] = path
                question = _field(qa, 'question', str, where_qa)
                found = _answers(qa, where_qa, version, training)
                if training:
                    found = found[:1] if found and not qa.get('is_impossible') else ()
                    if fault := _fault(qa, found, context):
                        skipped.append(f'{path}: question {name}: {fault}')
                        del ids[name]
                        continue
                questions.append(question)
                context_index.append(len(contexts) - 1)
                answers.append(found)
    if not total:
        raise InputError(f'{source}: no question in it; {_LAYOUT}')
    allowed = max(1, int(max_skipped * total)) if max_skipped > 0 else 0
    if len(skipped) > allowed or not ids:
        raise InputError(
            f'{len(skipped)} of {total} questions cannot be used ({allowed} may be left out); the '
            f'first is in {skipped[0]}; mend the file, or raise config.data.max_malformed'
        )
    for line in skipped[:_LISTED]:
        print(f'{line}; left out', file=sys.stderr)
    if len(skipped) > _LISTED:
        print(f'{len(skipped)} of {total} questions left out', file=sys.stderr)
    return SquadExamples(
        ids=tuple(ids), questions=tuple(questions), contexts=tuple(contexts),
        context_index=np.array(context_index, np.int32), answers=tuple(answers),
        num_skipped=len(skipped), source=source,
    )


def _answers(
    qa: dict[str, Any], where: str, version: str, training: bool
) -> tuple[tuple[str, int], ...] | None:
    """All answers of a question as they are in the file; None where the field is missing."""
    if 'answers' not in qa and not training:
        return None
    found = tuple(
        (_field(answer, 'text', str, place), _field(answer, 'answer_start', int, place))
        for place, answer in _items(qa, 'answers', where)
    )
    if version == 'v1' and (not found or qa.get('is_impossible')):
        raise InputError(
            f'{where} (id {qa["id"]}) has no answer, which SQuAD 1.1 does not have; read the file '
            'as v2 (configs/squad.py:v2)'
        )
    return found


def _fault(qa: dict[str, Any], found: tuple[tuple[str, int], ...], context: str) -> str:
    """Why a question cannot be trained on; '' where it can."""
    if not found:
        no_answer = not qa['answers'] and qa.get('is_impossible') is False
        return 'it is not marked impossible and has no answer' if no_answer else ''
    text, start = found[0]
    if not text.split():
        return 'its answer is empty'
    there = context[start:start + len(text)] if start >= 0 else ''
    if there != text:
        return f'answer_start {start} does not match its text {_short(text)}: the paragraph has ' \
               f'{_short(there)} there'
    # Characters that Python splits at but SQuAD's words do not: a no-break space, for one.
    if ' '.join(text.split()) not in ' '.join(WORD.findall(text)):
        return f'the words of the paragraph do not give its text {_short(text)}'
    return ''


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + '...')


def _paragraphs(path: str, root: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, paragraph) of a file."""
    for where, article in _items(root, 'data', f'{path}: '):
        yield from _items(article, 'paragraphs', where)


def _items(parent: dict[str, Any], name: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of a list of objects."""
    dot = '' if where.endswith(' ') else '.'
    for i, item in enumerate(_field(parent, name, list, where)):
        place = f'{where}{dot}{name}[{i}]'
        if not isinstance(item, dict):
            raise InputError(f'{place} is not an object; {_LAYOUT}')
        yield place, item


def _field(parent: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """A field that must be there and of a kind."""
    if name not in parent:
        raise InputError(f"{where.rstrip(': ')} has no field '{name}'; {_LAYOUT}")
    value = parent[name]
    if type(value) is not kind:
        raise InputError(
            f"{where.rstrip(': ')}: '{name}' is {_short(str(value))}, not {_KINDS[kind]}; {_LAYOUT}"
        )
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{where}: character {error.start} of '{name}' is half of a surrogate pair; "
                'write it whole'
            ) from None
    return value


def _load(path: str) -> dict[str, Any]:
    """The JSON object of a file."""
    try:
        with open_stream(path) as file:
            data = file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f'{path} is not a sound gzip file ({error}); copy it again') from None
    except OSError as error:
        raise InputError(f'{path} cannot be read: {error.strerror or error}') from None
    if not data.strip():
        raise InputError(f'{path} is empty; {_LAYOUT}')
    try:
        root = json.loads(data.decode('utf-8-sig'))
    except UnicodeDecodeError as error:
        raise InputError(
            f'{path} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}; convert it'
        ) from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f'{path} is not JSON ({error}); {_LAYOUT}') from None
    if not isinstance(root, dict):
        raise InputError(f'{path} is not a JSON object; {_LAYOUT}')
    return root
