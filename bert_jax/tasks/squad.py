"""SQuAD 1.1 and 2.0 (paper sections 4.2 and 4.3), or any file in their layout.

From top to bottom: the task; the reader; windows of tokens as `run_squad.py` of
google-research/bert cuts them; answers from the logits of windows as that script finds them; the
files that the official scripts read.

In files other than SQuAD's own, the pieces of an answer are those at its characters, and the other
way round. In SQuAD's, answers are found in texts made of pieces, as in the original, whose scores
are to be reproduced; where white space or spaces between words are not English, that goes wrong.

A question of SQuAD 2.0 may have no answer. What is compared:

    score of an answer     start logit of its first token + end logit of its last token
    score of "no answer"   start logit + end logit of [CLS], the least over the question's windows
    null_odds              score of "no answer" - score of the best answer
    prediction             '' where null_odds > null_threshold, else the best answer

The threshold is the one with the best F1 on the scored questions (`squad_scores.v2_scores`). It is
kept in the run, and later evaluations and predictions use it.

    Q: questions, P: paragraphs, N: words of all paragraphs, D: tokens of all paragraphs,
    W: windows of all questions, T: tokens of all windows
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.data import table
from bert_jax.data.packing import Units, ranges
from bert_jax.data.pairs import Encode, Sequences, make_sequences
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.runtime.hosts import say
from bert_jax.tasks import labelled
from bert_jax.tasks.labelled import LabelledTask, ScoredModel
from bert_jax.tasks.sources import own_files, split_file, tfds_records
from bert_jax.tasks.squad_scores import v1_scores, v2_scores
from bert_jax.text.offsets import PiecePlaces, Place, piece_places
from bert_jax.text.vocab import CONTINUATION, Vocab
from bert_jax.text.wordpiece import ORIGINAL, Switches, basic_tokens


def open_squad(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """SQuAD as a task: the units are windows, and an epoch is all of them.

    (google-research/bert computes its steps from the number of questions, which is 1 % smaller, so
    it stops a little before its last epoch ends.)
    """
    version, section = config.task.removeprefix('squad_'), config.squad
    t = labelled.open_tokenization(config)
    own = {training: _is_own_file(config, training) for training in (True, False)}
    places = piece_places(t.tokenizer)

    held_out = _held_out(config, version, scored)

    def windows(training: bool) -> SquadWindows:
        questions = held_out[training] if held_out else _read(config, version, training)
        say(f'{len(questions):,} questions to {"train on" if training else "score"}, on '
            f'{len({q.context for q in questions}):,} paragraphs'
            + f', {sum(not q.answers for q in questions):,} without an answer' * (version == 'v2'))
        return squad_windows(
            questions, t.encode, max_length=config.data.max_seq_length,
            doc_stride=section.doc_stride, max_question_length=section.max_query_length,
            places=places if own[training] else None, cls_id=t.tokenizer.vocab.cls_id,
            sep_id=t.tokenizer.vocab.sep_id)

    threshold = scored.inference.get('null_threshold') if scored else None
    if scored and version == 'v2':
        say('scored with the threshold of no answer that '
            + (f'the model brings, {threshold:g}' if threshold is not None else
               'is best for F1 on these very questions, as the model brings none'))
    dev = windows(training=False)
    answers = {q.id: [text for text, _ in q.answers] for q in dev.questions}

    def results(outputs: labelled.Outputs) -> labelled.Results:
        predictions = predict_answers(
            dev, outputs['start_logits'], outputs['end_logits'], vocab=t.tokenizer.vocab,
            lowercase=config.data.lowercase, switches=t.tokenizer.switches, version=version,
            places=places if own[False] else None)
        texts = final_texts(predictions)
        scores = v1_scores(texts, answers) if version == 'v1' else v2_scores(
            texts, answers, {name: x.null_odds for name, x in predictions.items()}, threshold)
        scores['loss'] = span_loss(dev, outputs['start_logits'], outputs['end_logits'])
        return scores, prediction_files(predictions, scores.get('null_threshold'))

    train = None
    if scored is None:
        result = windows(training=True)
        train = Units(result.sequences, positions={
            'start_positions': result.start_positions, 'end_positions': result.end_positions})
    return LabelledTask(
        config, t, train=train,
        evaluated=(labelled.EvalSet('', Units(dev.sequences), results),),
        metric='f1', head='question_answering', inference=dict(section),
        tuned_metrics=('null_threshold',))


def _is_own_file(config: ConfigDict, training: bool) -> bool:
    """Whether the questions are not SQuAD's, whose labels and scores are those of the original."""
    named = str(config.data.eval_source) if not training and config.data.eval_source else (
        str(config.data.source))
    return as_path(named).is_file() and not re.fullmatch(
        r'(train|dev)-v(1\.1|2\.0)\.json(\.gz)?', as_path(named).name)


@dataclasses.dataclass(frozen=True)
class _Questions:
    """Questions of a file, of which `own_files` takes some."""

    questions: Sequence[Question]

    def __len__(self) -> int:
        return len(self.questions)

    def take(self, rows: Iterable[int]) -> _Questions:
        return _Questions([self.questions[i] for i in rows])


def _held_out(
    config: ConfigDict, version: str, scored: ScoredModel | None
) -> dict[bool, Sequence[Question]]:
    """Questions by whether they are trained on, if those to score are held out of an own file.

    The paragraph decides, so that none is on both sides. {} if there is a file to score.
    """
    if config.data.eval_source or not _is_own_file(config, training=True):
        return {}
    read = functools.partial(
        read_squad, version=version, max_malformed=config.data.max_malformed, by_words=False)
    _, dev = own_files(
        config, scored, lambda path: _Questions(read(path, training=False)),
        lambda x: [q.context for q in x.questions], 'a file with questions')
    out = {q.context for q in dev.questions}
    train = [] if scored else read(str(as_path(config.data.source)), training=True)
    return {False: dev.questions, True: [q for q in train if q.context not in out]}


def _read(config: ConfigDict, version: str, training: bool) -> list[Question]:
    """The questions to train on, or those to score."""
    d, number = config.data, {'v1': '1.1', 'v2': '2.0'}[version]
    read = functools.partial(
        read_squad, version=version, training=training, max_malformed=d.max_malformed,
        by_words=not _is_own_file(config, training))
    if d.source == 'tfds:squad' and (training or not d.eval_source):
        name, split = f'squad/v{number}', 'train' if training else 'validation'
        records = sorted(
            tfds_records(config, name, split), key=lambda record: record['id'])
        return read(f'tfds:{name}:{split}', _layout(records))
    folder = {'v1': 'plain_text', 'v2': 'squad_v2'}[version]
    path = split_file(
        config, [f"{'train' if training else 'dev'}-v{number}.json"],
        f"{folder}/{'train' if training else 'validation'}",
        f'the folder with train-v{number}.json and dev-v{number}.json, a training file with '
        "config.data.eval_source, the hub's data set, or 'tfds:squad'", scored=not training)
    return read(path)


def _records(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet or JSON file with the hub's columns of SQuAD, each a question."""
    columns = ('id', 'question', 'context', 'answers')
    for row in table.read_rows(path, columns, optional=('id',)):
        if row.fault:
            raise InputError(f'{path}, row {row.line}: {row.fault}')
        record = dict(zip(columns, row.cells, strict=True))
        record['id'] = record['id'] or f'row {row.line}'
        answers = record['answers']
        if isinstance(answers, list) and all(isinstance(x, dict) for x in answers):
            answers = record['answers'] = {
                name: [x.get(name) for x in answers] for name in ('text', 'answer_start')}
        if not (isinstance(answers, dict) and {'text', 'answer_start'} <= answers.keys()
                and len(answers['text']) == len(answers['answer_start'])):
            raise InputError(f"{path}, row {row.line}: 'answers' is not {{text: a list of texts, "
                             'answer_start: as many numbers}')
        yield record


# What separates the words of a paragraph: as in `run_squad.py`, fewer than the tokenizer's.
_WHITESPACE = ' \t\r\n\u202f'
_WORD = re.compile(f'[^{_WHITESPACE}]+')
_LAYOUT = 'SQuAD is data[].paragraphs[].{context, qas[].{id, question, answers[].{text, ' \
          'answer_start}}}'
_KINDS = {list: 'a list', str: 'a string', int: 'a whole number'}


class Question(NamedTuple):
    """A question about a paragraph.

    Attributes:
      id: distinct among the questions read together.
      text: the question.
      context: the paragraph.
      answers: (text, index of its first character in the paragraph) of each accepted answer; () if
        the paragraph has none.
    """

    id: str
    text: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()


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
        root = _layout(_records(path)) if has_rows(path) else _parsed(path)
    questions: dict[str, Question] = {}
    faults: list[str] = []
    for place, qa, context in _entries(path, root):
        name, text = _field(qa, 'id', str, place), _field(qa, 'question', str, place)
        answers = tuple(
            (_field(answer, 'text', str, where), _field(answer, 'answer_start', int, where))
            for where, answer in _items(qa, 'answers', place))
        impossible, fault = qa.get('is_impossible'), ''
        if name in questions:
            raise InputError(f'{place}id {name!r} is that of an earlier question; ids must be '
                             'distinct: remove one of the two')
        if version == 'v1' and (not answers or impossible):
            raise InputError(f'{place}answers (id {name}) has no answer, which SQuAD 1.1 does not '
                             'have; read the file as v2 (configs/squad.py:v2)')
        if training:
            answers = () if impossible else answers[:1]
            if answers:
                fault = _fault(*answers[0], context, by_words)
            elif impossible is False:
                fault = 'it is not marked impossible and has no answer'
        if fault:
            faults.append(f'question {name}: {fault}')
        else:
            questions[name] = Question(name, text, context, answers)
    table.check_malformed(path, len(questions), faults, max_malformed)
    return list(questions.values())


def has_rows(path: str) -> bool:
    """Whether a file has a question a row, as the hub and `datasets` write them, not the layout."""
    form = table.format_of(path)
    if form != 'json':
        return form == 'parquet'
    first = next((line.strip() for _, line in table.lines(path) if line.strip()), '')
    try:
        return isinstance(record := json.loads(first), list) or 'context' in record
    except (ValueError, TypeError, RecursionError):  # an object over several lines
        return first.startswith('[')


def _parsed(path: str) -> Any:
    try:
        return json.loads('\n'.join(line for _, line in table.lines(path)))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f'{path} is not JSON ({error}); {_LAYOUT}, or a question a line: '
                         '{id, question, context, answers: {text, answer_start}}') from None


def questions_of(path: str) -> list[Question]:
    """The questions of a file in SQuAD's layout, without their answers, which it may lack."""
    return [Question(str(qa.get('id', '')), _field(qa, 'question', str, place), context)
            for place, qa, context in _entries(path, _parsed(path))]


def _layout(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Records of tensorflow-datasets, or rows of Parquet, in the layout of a file."""
    def text_of(value: Any) -> Any:
        return value.decode() if isinstance(value, bytes) else value

    paragraphs: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        texts, starts = record['answers']['text'], record['answers']['answer_start']
        paragraphs.setdefault(text_of(record['context']), []).append({
            'id': text_of(record['id']), 'question': text_of(record['question']),
            'is_impossible': record.get('is_impossible'),
            'answers': [{'text': text_of(text), 'answer_start': int(start)}
                        for text, start in zip(texts, starts, strict=True)]})
    return {'data': [{'paragraphs': [
        {'context': context, 'qas': qas} for context, qas in paragraphs.items()]}]}


def _entries(path: str, root: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(place, question, paragraph) of a file."""
    for in_article, article in _items(root, 'data', f'{path}: '):
        for in_paragraph, paragraph in _items(article, 'paragraphs', in_article):
            context = _field(paragraph, 'context', str, in_paragraph)
            for place, qa in _items(paragraph, 'qas', in_paragraph):
                yield place, qa, context


def _items(parent: Any, name: str, place: str) -> Iterator[tuple[str, Any]]:
    for i, item in enumerate(_field(parent, name, list, place)):
        yield f'{place}{name}[{i}].', item


def _field(parent: Any, name: str, kind: type, place: str) -> Any:
    """A field, which must exist and be of this type."""
    value = parent.get(name) if isinstance(parent, dict) else None
    if type(value) is not kind:
        shown = 'missing' if value is None else _short(str(value))
        raise InputError(f'{place}{name} is {shown}, not {_KINDS[kind]}; {_LAYOUT}')
    if kind is str:
        try:
            table.texts_of([value])
        except table.Malformed as error:
            raise InputError(f'{place}{name}: {error}') from None
    return value


def _fault(text: str, start: int, context: str, by_words: bool = True) -> str:
    """Why an answer cannot be trained on; '' where it can."""
    if not text.split():
        return 'its answer is empty'
    there = context[start:start + len(text)] if start >= 0 else ''
    if there != text:
        return f'answer_start {start} does not match its text {_short(text)}: the paragraph has ' \
               f'{_short(there)} there'
    # Python also splits at characters that do not separate SQuAD's words, such as no-break spaces.
    if by_words and ' '.join(text.split()) not in ' '.join(_WORD.findall(text)):
        return f'the words of the paragraph do not give its text {_short(text)}'
    return ''


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + '...')


class Paragraphs(NamedTuple):
    """Words and tokens of P paragraphs.

    Attributes:
      ids: [D] int32.
      offsets: [P + 1] int64, where each paragraph's tokens begin in `ids`.
      word_tokens: [N + 1] int64, where each word's tokens begin in `ids`.
      word_offsets: [P + 1] int64, where each paragraph's words begin.
      word_spans: [N, 2] int32, first and last (exclusive) character of a word in its paragraph.
    """

    ids: np.ndarray
    offsets: np.ndarray
    word_tokens: np.ndarray
    word_offsets: np.ndarray
    word_spans: np.ndarray

    def places_in(self, context: str, word: int, places: PiecePlaces) -> list[Place]:
        """The characters of each piece of a word in its paragraph."""
        begin, end = self.word_spans[word].tolist()
        ids = self.ids[slice(*self.word_tokens[word:word + 2])].tolist()
        return [(begin + low, begin + high)
                for low, high in places(context[begin:end], tuple(ids))]

    def touched(
        self, context: str, first_word: int, last_word: int, wanted: Place, places: PiecePlaces
    ) -> tuple[int, int] | None:
        """First and last of the D tokens, among those of some words, that touch characters."""
        low = int(self.word_tokens[first_word])
        of_tokens = [place for word in range(first_word, last_word + 1)
                     for place in self.places_in(context, word, places)]
        inside = [low + i for i, (begin, end) in enumerate(of_tokens)
                  if begin < wanted[1] and wanted[0] < end]
        return (inside[0], inside[-1]) if inside else None


@dataclasses.dataclass(frozen=True)
class SquadWindows:
    """The windows of all questions, in order, with what maps their tokens to characters.

    A window is [CLS] question [SEP] part of the paragraph [SEP]. A paragraph that is too long is
    covered by overlapping windows, `doc_stride` tokens apart.

    Attributes:
      questions: the Q questions, in their order.
      sequences: the W windows; the part of the paragraph and its [SEP] are segment 1.
      question_index: [W] int64, not decreasing; every question has at least one window.
      start_positions, end_positions: [W] int32, first and last token of the answer within the
        window, [CLS] being 0; (0, 0) where the window does not hold the answer.
      part_starts, part_lengths: [W] int64, the window's part as a range of the D tokens.
      paragraphs: of all questions.
    """

    questions: Sequence[Question]
    sequences: Sequences
    question_index: np.ndarray
    start_positions: np.ndarray
    end_positions: np.ndarray
    part_starts: np.ndarray
    part_lengths: np.ndarray
    paragraphs: Paragraphs


def squad_windows(
    questions: Sequence[Question], encode: Encode, *, cls_id: int, sep_id: int,
    max_length: int = 384, doc_stride: int = 128, max_question_length: int = 64,
    places: PiecePlaces | None = None,
) -> SquadWindows:
    """Windows of Q questions.

    Positions are those of a question's first answer that is in its paragraph.

    Args:
      questions: from `read_squad`.
      encode: texts -> ids, without [CLS] and [SEP].
      cls_id, sep_id: of the vocabulary.
      max_length: tokens of a window.
      doc_stride: tokens from one window to the next.
      max_question_length: tokens of a question; the rest is cut off.
      places: of pieces; answers are then the pieces at their characters. None: as in the original,
        those of the words that they touch, or the first in these that are the answer's own.

    Raises:
      InputError: `max_length` leaves no room for the paragraph.
    """
    numbers = {context: i for i, context in enumerate(dict.fromkeys(q.context for q in questions))}
    context_Q = np.array([numbers[q.context] for q in questions])
    paragraphs = _paragraphs(list(numbers), encode)
    question_ids, question_n = encode([q.text for q in questions])
    kept_Q = np.minimum(question_n, max_question_length)
    room_Q = max_length - 3 - kept_Q
    if (room_Q < 1).any():
        raise InputError(
            f'windows of {max_length} tokens leave no room for the paragraph beside a question of '
            f'{kept_Q.max()}; raise config.data.max_seq_length')
    tokens_Q = np.diff(paragraphs.offsets)[context_Q]
    stride_Q = np.minimum(room_Q, doc_stride)
    num_windows_Q = 1 + np.maximum(0, -((room_Q - tokens_Q) // stride_Q))

    question = np.repeat(np.arange(len(questions)), num_windows_Q)
    within = ranges(np.zeros_like(num_windows_Q), num_windows_Q) * stride_Q[question]
    lengths = np.minimum(room_Q[question], tokens_Q[question] - within)
    starts = paragraphs.offsets[context_Q][question] + within
    kept = kept_Q[question]
    sequences = make_sequences(
        (question_ids[ranges((np.cumsum(question_n) - question_n)[question], kept)], kept),
        (paragraphs.ids[ranges(starts, lengths)], lengths),
        max_length=max_length, cls_id=cls_id, sep_id=sep_id)

    positions = np.zeros((2, len(question)), np.int32)
    answer = _answer_tokens(questions, context_Q, paragraphs, encode, places)[:, question] - starts
    inside = (answer[0] >= 0) & (answer[1] < lengths)
    positions[:, inside] = (answer + kept + 2)[:, inside]
    return SquadWindows(
        questions, sequences, question, positions[0], positions[1], starts, lengths, paragraphs)


def _paragraphs(contexts: Sequence[str], encode: Encode) -> Paragraphs:
    """Words and tokens of paragraphs.

    Every distinct word is tokenized once: BERT's tokens of a text are those of its words.
    """
    spans = [
        np.array([match.span() for match in _WORD.finditer(context)], np.int32).reshape(-1, 2)
        for context in contexts]
    word_offsets = np.cumsum([0, *map(len, spans)])
    words = [word for context in contexts for word in _WORD.findall(context)]
    numbers = {word: i for i, word in enumerate(dict.fromkeys(['', *words]))}
    distinct = np.array([numbers[word] for word in words], np.int64)
    ids, counts = encode(list(numbers))
    word_counts = counts[distinct]
    word_tokens = np.concatenate([[0], np.cumsum(word_counts)])
    return Paragraphs(
        ids=ids[ranges((np.cumsum(counts) - counts)[distinct], word_counts)],
        offsets=word_tokens[word_offsets], word_tokens=word_tokens, word_offsets=word_offsets,
        word_spans=np.concatenate(spans))


def _answer_tokens(
    questions: Sequence[Question], context_Q: np.ndarray, paragraphs: Paragraphs, encode: Encode,
    places: PiecePlaces | None,
) -> np.ndarray:
    """First and last of the D tokens of each question's first answer, [2, Q] int64.

    -1 where there is none. They are the tokens of the words that the answer touches, or only the
    answer's own tokens if these occur there: 1895 in (1895-1943), but all of Japanese for Japan.
    With `places` they are the tokens whose characters the answer touches.
    """
    result = np.full((2, len(questions)), -1)
    answers = [next((answer for answer in q.answers
                     if not _fault(*answer, q.context, by_words=places is None)), ('', 0))
               for q in questions]
    texts = [text for text, _ in answers]
    answer_ids, counts = encode(texts)
    answer_ends = np.cumsum(counts)
    for i, text in enumerate(texts):
        if not text:
            continue
        start, stripped = answers[i][1], text.lstrip(_WHITESPACE)
        begin = start + len(text) - len(stripped)
        low, high = paragraphs.word_offsets[context_Q[i]:context_Q[i] + 2]
        first_word, last_word = low - 1 + np.searchsorted(
            paragraphs.word_spans[low:high, 0],
            [begin, begin + len(stripped.rstrip(_WHITESPACE)) - 1], 'right')
        token, end = paragraphs.word_tokens[[first_word, last_word + 1]]
        if token == end:  # a word of control characters only
            continue
        if places is not None:
            touched = paragraphs.touched(
                questions[i].context, first_word, last_word, (begin, begin + len(stripped)),
                places)
            result[:, i] = touched or (-1, -1)
            continue
        span = paragraphs.ids[token:end].tolist()
        answer = answer_ids[answer_ends[i] - counts[i]:answer_ends[i]].tolist()
        for k in range(len(span) - len(answer) + 1):
            if answer and span[k:k + len(answer)] == answer:
                token, end = token + k, token + k + len(answer)
                break
        result[:, i] = token, end - 1
    return result


def span_loss(windows: SquadWindows, *logits_T: np.ndarray) -> float:
    """The mean loss of windows, as in training, from start logits [T] and end logits [T]."""
    first = windows.sequences.offsets[:-1]
    positions = windows.start_positions, windows.end_positions
    return float(np.mean([
        np.logaddexp.reduceat(x_T, first, dtype=np.float64) - x_T[first + at]
        for x_T, at in zip(logits_T, positions, strict=True)]))


_CERTAIN = 1e6  # `null_odds` where there is no span: above any threshold, and valid in JSON
_NO_SPAN = 'empty'  # run_squad.py's text where SQuAD 1.1 wants an answer and there is no span
Scored = tuple[Place, float, float]  # a place, its start logit and its end logit


class Candidate(NamedTuple):
    """A possible answer; the text '' is "no answer", at the place (0, 0)."""

    text: str
    probability: float
    start_logit: float
    end_logit: float
    place: Place


class Prediction(NamedTuple):
    """The predicted answer to a question.

    Attributes:
      text: the best answer other than "no answer" ('' for SQuAD 2.0 where there is no span).
      n_best: candidates, best first, with a softmax over them; SQuAD 2.0: "no answer" among them.
      null_odds: SQuAD 2.0: the score of "no answer" minus that of `text`; else 0.
    """

    text: str
    n_best: tuple[Candidate, ...]
    null_odds: float = 0.0


def final_texts(
    predictions: Mapping[str, Prediction], null_threshold: float | None = None
) -> dict[str, str]:
    """Question id -> answer; '' if its `null_odds` are above the threshold (None: never)."""
    limit = math.inf if null_threshold is None else null_threshold
    return {name: '' if x.null_odds > limit else x.text for name, x in predictions.items()}


def predict_answers(
    windows: SquadWindows, start_logits: np.ndarray, end_logits: np.ndarray, *, vocab: Vocab,
    lowercase: bool, switches: Switches = ORIGINAL, version: str, n_best: int = 20,
    max_answer_length: int = 30, places: PiecePlaces | None = None,
) -> dict[str, Prediction]:
    """The best answers to each question, by its id.

    In each window the best starts are paired with the best ends. The spans of all windows of a
    question are ranked by the sum of their two logits, and the pieces of a span are aligned with
    the characters of the paragraph.

    Args:
      windows: W windows of Q questions.
      start_logits, end_logits: [T] float, for every token of `windows.sequences`.
      vocab, lowercase, switches: of the tokenizer that made the windows. (Without `places`, pieces
        are aligned with characters as WordPiece makes them; spans of SentencePiece pieces may come
        as whole words.)
      version: 'v1', or 'v2', where "no answer" is an answer.
      n_best: how many starts and ends per window, and answers per question, are kept.
      max_answer_length: in tokens.
      places: of pieces, which give an answer's characters; None: as in the original, see
        `aligned_place`.
    """
    surfaces = [
        token.removeprefix(CONTINUATION) if continues else f' {token}'
        for token, continues in zip(vocab.tokens, vocab.is_continuation.tolist())]
    offsets, p = windows.sequences.offsets, windows.paragraphs

    def place(context: str, window: int, start: int, end: int) -> Place:
        """The characters that the tokens [start, end] of a window stand for."""
        ids = windows.sequences.ids[offsets[window] + start:offsets[window] + end + 1].tolist()
        shift = windows.part_starts[window] - windows.sequences.first_lengths[window]
        low, last = np.searchsorted(p.word_tokens, [shift + start, shift + end], 'right') - 1
        if places is not None:
            first = p.places_in(context, low, places)[shift + start - p.word_tokens[low]]
            return first[0], p.places_in(context, last, places)[
                shift + end - p.word_tokens[last]][1]
        text = ' '.join(''.join([surfaces[i] for i in ids]).split())
        words = p.word_spans[low:last + 1].tolist()
        return aligned_place(context, words, text, lowercase, switches)

    predictions = {}
    bounds = np.searchsorted(windows.question_index, np.arange(len(windows.questions) + 1))
    for question, low, high in zip(windows.questions, bounds[:-1], bounds[1:], strict=True):
        no_answer = None
        if version == 'v2':
            cls = offsets[low:high]
            logits = zip(start_logits[cls].tolist(), end_logits[cls].tolist())
            no_answer = ((0, 0), *min(logits, key=sum))
        spans = ((place(question.context, *span), start, end) for *span, start, end in _best_spans(
            windows, low, high, start_logits, end_logits, n_best, max_answer_length))
        predictions[question.id] = _choose(question.context, spans, no_answer, n_best)
    return predictions


def _best_spans(
    windows: SquadWindows, low: int, high: int, start_logits: np.ndarray, end_logits: np.ndarray,
    n_best: int, max_answer_length: int,
) -> list[tuple[int, int, int, float, float]]:
    """(Window, start, end, start logit, end logit) of a question's spans, best first.

    They pair the `n_best` starts and the `n_best` ends of each window in [low, high). A start must
    have its maximal context in the window (ends need not), and both must be tokens of the
    paragraph; other tokens among the best still count towards `n_best`, as in the original. Equal
    scores keep the order of windows, starts and ends.
    """
    spans: list[tuple[int, int, int, float, float]] = []
    part_starts = windows.part_starts[low:high] - windows.part_starts[low]
    owners = max_context(part_starts, windows.part_lengths[low:high])
    for window in range(low, high):
        tokens = slice(*windows.sequences.offsets[window:window + 2])
        start_logit, end_logit = start_logits[tokens], end_logits[tokens]
        starts, ends = (np.argsort(-x, kind='stable')[:n_best] for x in (start_logit, end_logit))
        inside = np.zeros((2, len(start_logit)), np.bool_)
        part = slice(windows.sequences.first_lengths[window], -1)
        first = part_starts[window - low]
        inside[0, part] = owners[first:first + windows.part_lengths[window]] == window - low
        inside[1, part] = True
        distance = ends - starts[:, None]
        i, j = np.nonzero((distance >= 0) & (distance < max_answer_length)
                          & inside[0, starts][:, None] & inside[1, ends])
        start, end = starts[i], ends[j]
        spans += zip([window] * len(i), start.tolist(), end.tolist(),
                     start_logit[start].tolist(), end_logit[end].tolist())
    return sorted(spans, key=lambda span: -(span[3] + span[4]))


def max_context(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The index of the window that gives each token of a paragraph its maximal context, int64.

    A window's score is its number of tokens on the side of the token that has fewer, plus 0.01
    times the window's length. The highest score wins, and the earlier window among equals.

    Args:
      starts, lengths: of the parts of the paragraph in each window of a question; the first start
        is 0.
    """
    size = int((starts + lengths).max())
    best, owner = np.full(size, -1.0), np.zeros(size, np.int64)
    for window, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist())):
        left = np.arange(length)
        score = np.minimum(left, left[::-1]) + 0.01 * length
        part = slice(start, start + length)
        better = score > best[part]
        best[part][better], owner[part][better] = score[better], window
    return owner


def _choose(
    context: str, spans: Iterable[Scored], no_answer: Scored | None, n_best: int
) -> Prediction:
    """The prediction from spans, best first, and "no answer" (None in SQuAD 1.1).

    Taking a span aligns it with characters, so no more are taken than are kept.
    """
    kept: dict[str, Scored] = {}
    for place, start, end in spans:
        if no_answer and start + end < no_answer[1] + no_answer[2]:
            kept.setdefault('', no_answer)
        if len(kept) >= n_best:
            break
        kept.setdefault(context[slice(*place)], (place, start, end))
    if no_answer:
        kept.setdefault('', no_answer)
    if not kept:
        kept[_NO_SPAN] = ((0, 0), 0.0, 0.0)
    scores = [start + end for _, start, end in kept.values()]
    weights = [math.exp(score - max(scores)) for score in scores]
    total = sum(weights)
    best = next((text for text in kept if text), '')
    null_odds = 0.0
    if no_answer:
        null_odds = no_answer[1] + no_answer[2] - kept[best][1] - kept[best][2] \
            if best else _CERTAIN
    return Prediction(best, tuple(
        Candidate(text, weight / total, start, end, place)
        for (text, (place, start, end)), weight in zip(kept.items(), weights)), null_odds)


def aligned_place(
    context: str, words: Sequence[Sequence[int]], text: str, lowercase: bool,
    switches: Switches = ORIGINAL,
) -> Place:
    """The place of a tokenized text in the words that it came from.

    The words are tokenized without WordPiece and searched for `text`. If tokenizing keeps the
    number of characters, they correspond one to one. Otherwise, or if `text` is not found (it may
    hold an [UNK]), the result is all of the words. As in `get_final_text` of run_squad.py.

    Args:
      context: the paragraph.
      words: first and last (exclusive) character of successive words in it.
      text: the pieces joined to words; words and punctuation are separated by single spaces.
      lowercase, switches: of the tokenizer.
    """
    tokens = [_basic_text(context[begin:end], lowercase, switches) for begin, end in words]
    tokenized = ' '.join([token for token in tokens if token])
    characters = [i for begin, end in words for i in range(begin, end)]
    begin = tokenized.find(text)
    if not text or begin < 0 or len(tokenized) - tokenized.count(' ') != len(characters):
        return characters[0], characters[-1] + 1
    last = begin + len(text) - 1
    return (characters[begin - tokenized.count(' ', 0, begin)],
            characters[last - tokenized.count(' ', 0, last)] + 1)


@functools.lru_cache(maxsize=1 << 16)
def _basic_text(word: str, lowercase: bool, switches: Switches) -> str:
    return ' '.join(basic_tokens(word, lowercase, switches))


def prediction_files(
    predictions: Mapping[str, Prediction], null_threshold: float | None = None
) -> dict[str, str]:
    """JSON files by name, each by question id.

    `predictions.json`: texts, for the official script. `nbest_predictions.json`: candidates with
    text, probability and logits. For SQuAD 2.0 also `null_odds.json`.

    Args:
      predictions: by question id.
      null_threshold: SQuAD 2.0: the text is '' where `null_odds` are above it. None: SQuAD 1.1.
    """
    files: dict[str, dict[str, Any]] = {
        'predictions': final_texts(predictions, null_threshold),
        'nbest_predictions': {
            name: [{key: getattr(x, key) for key in Candidate._fields[:-1]} for x in found.n_best]
            for name, found in predictions.items()},
    }
    if null_threshold is not None:
        files['null_odds'] = {name: x.null_odds for name, x in predictions.items()}
    return {f'{name}.json': json.dumps(content, indent=1) + '\n' for name, content in files.items()}
