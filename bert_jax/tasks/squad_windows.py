"""SQuAD files -> questions with their paragraphs and answers -> windows of tokens.

A window is [CLS] question [SEP] part of the paragraph [SEP]. A paragraph that is too long is
covered by overlapping windows, `doc_stride` tokens apart.

    Q: questions, P: paragraphs, N: words of all paragraphs, D: tokens of all paragraphs,
    W: windows of all questions, T: tokens of all windows
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.data.pairs import Encode, Sequences
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.packing import ranges
from bert_jax.tasks.table import lines

VERSIONS = {'v1': '1.1', 'v2': '2.0'}  # as the files are numbered
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
      source: the files, for messages.
    """

    ids: tuple[str, ...]
    questions: tuple[str, ...]
    contexts: tuple[str, ...]
    context_index: np.ndarray
    answers: tuple[tuple[tuple[str, int], ...] | None, ...]
    source: str = ''

    def __len__(self) -> int:
        return len(self.ids)

    def gold_texts(self) -> dict[str, list[str]]:
        """Question id -> texts of its answers, as the metrics want them.

        Raises:
          InputError: a question without the field 'answers', which a test set may leave out.
        """
        for name, result in zip(self.ids, self.answers):
            if result is None:
                raise InputError(
                    f"{self.source}: question {name} has no field 'answers', so predictions "
                    'cannot be scored: set config.data.eval_source to a file with answers'
                )
        return {i: [text for text, _ in result or ()] for i, result in zip(self.ids, self.answers)}


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
    source = f"tfds:squad/v{VERSIONS[version]}:{'train' if training else 'validation'}"
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
                result = _answers(qa, where_qa, version, training)
                if training:
                    result = result[:1] if result and not qa.get('is_impossible') else ()
                    if fault := _fault(qa, result, context):
                        skipped.append(f'{path}: question {name}: {fault}')
                        del ids[name]
                        continue
                questions.append(question)
                context_index.append(len(contexts) - 1)
                answers.append(result)
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
        source=source,
    )


def _answers(
    qa: dict[str, Any], where: str, version: str, training: bool
) -> tuple[tuple[str, int], ...] | None:
    """All answers of a question as they are in the file; None where the field is missing."""
    if 'answers' not in qa and not training:
        return None
    result = tuple(
        (_field(answer, 'text', str, place), _field(answer, 'answer_start', int, place))
        for place, answer in _items(qa, 'answers', where)
    )
    if version == 'v1' and (not result or qa.get('is_impossible')):
        raise InputError(
            f'{where} (id {qa["id"]}) has no answer, which SQuAD 1.1 does not have; read the file '
            'as v2 (configs/squad.py:v2)'
        )
    return result


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
    text = '\n'.join(line for _, line in lines(path))
    if not text.strip():
        raise InputError(f'{path} is empty; {_LAYOUT}')
    try:
        root = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f'{path} is not JSON ({error}); {_LAYOUT}') from None
    if not isinstance(root, dict):
        raise InputError(f'{path} is not a JSON object; {_LAYOUT}')
    return root


@dataclasses.dataclass(frozen=True)
class SquadWindows:
    """All windows, in the order of the questions, and what leads from a token to its characters.

    Attributes:
      sequences: the W windows; the part of the paragraph and its [SEP] are segment 1.
      question_index: [W] int32, not decreasing; every question has at least one window.
      start_positions, end_positions: [W] int32, first and last token of the answer within the
        window, [CLS] being 0; (0, 0) where the window does not hold the answer.
      document_starts: [W] int64, which of the D tokens is the first of the window's part.
      token_words: [D] int32, the word of each token.
      word_starts, word_ends: [N] int32, characters of a word within its paragraph, end exclusive.
    """

    sequences: Sequences
    question_index: np.ndarray
    start_positions: np.ndarray
    end_positions: np.ndarray
    document_starts: np.ndarray
    token_words: np.ndarray
    word_starts: np.ndarray
    word_ends: np.ndarray

    def __len__(self) -> int:
        return len(self.question_index)

    @property
    def document_lengths(self) -> np.ndarray:
        """[W] int64: tokens of the paragraph in each window."""
        return self.sequences.lengths - self.sequences.first_lengths - 1


def squad_windows(
    examples: SquadExamples,
    encode: Encode,
    *,
    cls_id: int,
    sep_id: int,
    max_length: int = 384,
    doc_stride: int = 128,
    max_question_length: int = 64,
    training: bool,
) -> SquadWindows:
    """Windows of all questions, as `run_squad.py` of google-research/bert cuts them.

    Every distinct word is tokenized once: BERT's tokens of a text are those of its words.

    Args:
      examples: Q questions.
      encode: texts -> ids, without [CLS] and [SEP].
      cls_id, sep_id: of the vocabulary.
      max_length: tokens of a window.
      doc_stride: tokens from one window to the next.
      max_question_length: tokens of a question; the rest is cut off.
      training: set the positions from the first answer of each question; else they are 0.

    Raises:
      InputError: a length that leaves no room for the paragraph, or a stride below 1.
    """
    if doc_stride < 1:
        raise InputError(f'doc_stride is {doc_stride}; windows must advance by at least 1 token')
    documents = _tokenize(examples.contexts, encode)
    question_ids, question_n = encode(examples.questions)
    question_n = question_n.astype(np.int64)
    kept = np.minimum(question_n, max_question_length)
    room = max_length - 3 - kept
    if (room < 1).any():
        raise InputError(
            f'windows of {max_length} tokens leave no room for the paragraph beside a question of '
            f'{kept.max()}; raise config.data.max_seq_length'
        )
    contexts = examples.context_index
    document_n = np.diff(documents.offsets)[contexts]
    stride = np.minimum(room, doc_stride)
    num_windows = 1 + np.maximum(0, -((room - document_n) // stride))

    question = np.repeat(np.arange(len(examples)), num_windows)
    starts = ranges(np.zeros_like(num_windows), num_windows) * stride[question]
    lengths = np.minimum(room[question], document_n[question] - starts)
    document_starts = documents.offsets[contexts][question] + starts

    first = kept[question] + 2
    offsets = np.concatenate([[0], np.cumsum(first + lengths + 1)])
    ids = np.full(offsets[-1], sep_id, np.int32)
    ids[offsets[:-1]] = cls_id
    question_starts = (np.cumsum(question_n) - question_n)[question]
    ids[ranges(offsets[:-1] + 1, kept[question])] = question_ids[
        ranges(question_starts, kept[question])]
    ids[ranges(offsets[:-1] + first, lengths)] = documents.ids[ranges(document_starts, lengths)]

    start_positions = end_positions = np.zeros(len(question), np.int32)
    if training:
        answer_first, answer_last = _answer_tokens(examples, documents, encode)
        start = answer_first[question] - document_starts
        end = answer_last[question] - document_starts
        inside = (start >= 0) & (end < lengths)
        start_positions = np.where(inside, start + first, 0).astype(np.int32)
        end_positions = np.where(inside, end + first, 0).astype(np.int32)
    return SquadWindows(
        sequences=Sequences(ids, offsets, first),
        question_index=question.astype(np.int32),
        start_positions=start_positions,
        end_positions=end_positions,
        document_starts=document_starts,
        token_words=documents.token_words,
        word_starts=documents.word_starts,
        word_ends=documents.word_ends,
    )


@dataclasses.dataclass(frozen=True)
class _Documents:
    """The tokens of all paragraphs.

    ids: [D] int32. token_words: [D] int32, word of each token. offsets: [P + 1] int64, tokens of
    the paragraphs. word_tokens: [N + 1] int64, tokens of the words. word_offsets: [P + 1] int64,
    words of the paragraphs. word_starts, word_ends: [N] int32, characters within the paragraph.
    """

    ids: np.ndarray
    token_words: np.ndarray
    offsets: np.ndarray
    word_tokens: np.ndarray
    word_offsets: np.ndarray
    word_starts: np.ndarray
    word_ends: np.ndarray


def _tokenize(contexts: Sequence[str], encode: Encode) -> _Documents:
    """Splits paragraphs into words and those into tokens."""
    text = '\n'.join(contexts)  # which splits words, so that all can be found at once
    lengths = np.array([len(context) for context in contexts], np.int64)
    text_starts = np.cumsum(lengths + 1) - (lengths + 1)
    chars = np.frombuffer(text.encode('utf-32-le'), np.uint32)
    in_word = ~np.isin(chars, [ord(c) for c in WHITESPACE])
    edges = np.flatnonzero(np.diff(in_word, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    word_offsets = np.append(np.searchsorted(starts, text_starts), len(starts))

    distinct = {'': 0}  # so that there is something to encode even where there are no words
    words = WORD.findall(text)
    kinds = np.fromiter(
        (distinct.setdefault(word, len(distinct)) for word in words), np.int64, len(words))
    assert len(words) == len(starts)
    kind_ids, kind_n = encode(list(distinct))
    kind_n = kind_n.astype(np.int64)
    word_n = kind_n[kinds]
    word_tokens = np.concatenate([[0], np.cumsum(word_n)])
    shifts = np.repeat(text_starts, np.diff(word_offsets))
    return _Documents(
        ids=kind_ids[ranges((np.cumsum(kind_n) - kind_n)[kinds], word_n)],
        token_words=np.repeat(np.arange(len(words), dtype=np.int32), word_n),
        offsets=word_tokens[word_offsets],
        word_tokens=word_tokens,
        word_offsets=word_offsets,
        word_starts=(starts - shifts).astype(np.int32),
        word_ends=(ends - shifts).astype(np.int32),
    )


def _answer_tokens(
    examples: SquadExamples, documents: _Documents, encode: Encode
) -> tuple[np.ndarray, np.ndarray]:
    """First and last of the D tokens of each question's first answer, [Q] int64 each.

    (-1, -1) where there is none. The answer's words, tightened to the tokens that are the answer's
    own where they occur among them: 1895 out of (1895-1943), but all of Japanese for Japan.
    """
    first = np.full(len(examples), -1)
    last = np.full(len(examples), -1)
    answered = [q for q, result in enumerate(examples.answers) if result]
    if not answered:
        return first, last
    texts = [result[0][0] for result in examples.answers if result]
    answer_ids, answer_n = encode(texts)
    answer_ends = np.cumsum(answer_n).tolist()
    all_ids = answer_ids.tolist()
    for q, text, n, answer_end in zip(answered, texts, answer_n.tolist(), answer_ends):
        begin = examples.answers[q][0][1]  # type: ignore[index]
        begin += len(text) - len(text.lstrip(WHITESPACE))
        context = examples.context_index[q]
        low, high = documents.word_offsets[context:context + 2]
        words = documents.word_starts[low:high]
        final = begin + len(text.strip(WHITESPACE)) - 1
        word, last_word = low - 1 + np.searchsorted(words, [begin, final], 'right')
        token, end = documents.word_tokens[word], documents.word_tokens[last_word + 1]
        if token == end:  # a word of control characters only
            continue
        span, answer = documents.ids[token:end].tolist(), all_ids[answer_end - n:answer_end]
        for i in range(len(span) - n + 1):
            if n and span[i:i + n] == answer:
                token, end = token + i, token + i + n
                break
        first[q], last[q] = token, end - 1
    return first, last
