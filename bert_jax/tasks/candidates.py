"""Questions with candidates, each right or wrong by itself: MultiRC and ReCoRD of SuperGLUE.

As in SuperGLUE's baseline (Wang et al., 2019, section 4), a sequence is a passage and a candidate:
MultiRC's question with an answer, or ReCoRD's query with an entity in the place of its gap. The
head tells true from false. Of MultiRC each candidate is predicted for itself; of ReCoRD the most
probable one is the answer.

Files are those of the official download, a passage with all its questions in a row; or those of
the hub's data set, which has a row for each answer of MultiRC and each query of ReCoRD.

    n: candidates of all questions, Q: questions
"""

import collections
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from ml_collections import ConfigDict

from bert_jax.answers.engine import Outputs
from bert_jax.heads.classification import Classification, softmax
from bert_jax.rows import table
from bert_jax.rows.packing import Units
from bert_jax.rows.sequences import Encode, make_sequences, ranges
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.labelled import EvalSet, LabelledTask, Results, open_tokenization, warn_of_cut
from bert_jax.tasks.labels import labels_by_number
from bert_jax.tasks.metrics import f1, most_frequent
from bert_jax.tasks.squad_scores import v1_scores
from bert_jax.tasks.texts import predictions_table
from bert_jax.text.tokenizer import Tokens

LABELS = ('false', 'true')
_TRUE = LABELS.index('true')
_MARKUP = re.compile(r'<b>Sent \d+: </b>|</?\w+>')  # of MultiRC's passages
_BULLET = '@highlight'  # before each sentence of the summaries that end ReCoRD's passages
_GAP = '@placeholder'

_Kind = TypeVar('_Kind')


class Candidate(NamedTuple):
    """A candidate of a question.

    Attributes:
      id: in the file of predictions.
      name: the candidate itself.
      text: what stands behind the passage.
      is_right: whether it is true.
    """

    id: str
    name: str
    text: str
    is_right: bool


class Question(NamedTuple):
    """A question with its candidates.

    Attributes:
      id: in the file of predictions.
      passage: the first text of all its sequences.
      candidates: one or more.
      answers: the accepted answers of ReCoRD.
      asked: the question itself, of MultiRC.
    """

    id: str
    passage: str
    candidates: list[Candidate]
    answers: Sequence[str] = ()
    asked: str = ''


# From questions, and the probabilities [n] that candidates are right, to metrics and predictions.
Score = Callable[[Sequence[Question], np.ndarray], tuple[dict[str, float], dict[str, str]]]


def read_multirc(path: str, *, max_malformed: float = 0.01) -> list[Question]:
    """The questions of a file of MultiRC.

    Args:
      path: of JSON lines or Parquet.
      max_malformed: as for `table.read_table`.

    Raises:
      InputError: a missing field, too many malformed rows, an idx that is there twice, no question,
        or no such file.
    """
    parse: Callable[[list[Any]], list[Question]] = _questions_of_passage
    columns = ['passage', 'idx']
    is_of_hub = 'paragraph' in table.column_names(path)
    if is_of_hub:
        parse = functools.partial(_question_of_answer, labels_by_number(path, LABELS))
        columns = ['paragraph', 'question', 'answer', 'label', 'idx']
    rows = table.read_table(path, columns, parse, max_malformed=max_malformed)
    questions = list(itertools.chain.from_iterable(rows.values))
    if is_of_hub:
        questions = _joined(questions)
    _check_questions(path, questions)
    _check_distinct(path, 'answers', [candidate.id for candidate in _candidates(questions)])
    return questions


def _joined(questions: Iterable[Question]) -> list[Question]:
    """Those that are equal but for their candidates as one, with the candidates of all."""
    joined: dict[tuple[str, str, str], Question] = {}
    for question in questions:
        first = joined.setdefault((question.id, question.passage, question.asked), question)
        if first is not question:
            first.candidates.extend(question.candidates)
    return list(joined.values())


def _check_questions(path: str, questions: Sequence[Question]) -> None:
    """Refuses a file without questions, or with two of the same idx."""
    if not questions:
        raise InputError(f'{path} holds no questions: copy it again')
    _check_distinct(path, 'questions', [question.id for question in questions])


def _check_distinct(path: str, what: str, ids: Iterable[str]) -> None:
    for name, num in collections.Counter(ids).items():
        if num > 1:
            raise InputError(f'{path} has {num} {what} with the idx {name}: give each its own')


def _questions_of_passage(cells: list[Any]) -> list[Question]:
    """The questions of a row of the official files; raises Malformed."""
    passage, number = cells
    text = _without_markup(_text(passage, 'text'))

    def parse(question: Any) -> Question:
        question_id = f"{number}-{_field(question, 'idx', int)}"
        asked = _text(question, 'question')
        candidates: list[Candidate] = []
        for answer in _field(question, 'answers', list):
            candidates.append(_answer(
                f"{question_id}-{_field(answer, 'idx', int)}", asked, _text(answer, 'text'),
                answer.get('label')))
        if not candidates:
            raise table.Malformed(f'the question {question_id} has no answers')
        return Question(question_id, text, candidates, asked=asked)

    return _parsed(_field(passage, 'questions', list), parse)


def _question_of_answer(numbered: Sequence[str], cells: list[Any]) -> list[Question]:
    """The question of a row of the hub's data set, with one answer; raises Malformed.

    Args:
      numbered: what its labels 0 and 1 mean.
      cells: of the row.
    """
    *texts, label, idx = cells
    passage, question, answer = table.texts_of(texts)
    numbers = [str(_field(idx, name, int)) for name in ('paragraph', 'question', 'answer')]
    candidate = _answer('-'.join(numbers), question, answer, label, numbered)
    question_id = '-'.join(numbers[:2])
    return [Question(question_id, _without_markup(passage), [candidate], asked=question)]


def _parsed(questions: Sequence[Any], parse: Callable[[Any], Question]) -> list[Question]:
    """The results of `parse` for all questions of a passage; Malformed if one of them is."""
    try:
        return [parse(question) for question in questions]
    except table.Malformed as error:
        if len(questions) == 1:
            raise
        raise type(error)(
            f'{error} (all {len(questions)} questions of its passage go with it)') from None


def _answer(
    name: str, question: str, answer: str, label: Any, numbered: Sequence[str] = LABELS
) -> Candidate:
    """A candidate of MultiRC; raises Malformed if its label is missing, or neither 0 nor 1."""
    label = table.label_of(label)
    if label not in ('0', '1', 'false', 'true'):
        raise table.Malformed(f'label {label:.60} is neither 0 nor 1{table.hint_of_secret(label)}')
    if label in ('0', '1'):
        label = numbered[int(label)]
    return Candidate(name, answer, f'{question} {answer}', label == 'true')


def _without_markup(passage: str) -> str:
    return ' '.join(_MARKUP.sub(' ', passage).split())


def read_record(path: str, *, max_malformed: float = 0.01) -> list[Question]:
    """The questions of a file of ReCoRD; arguments and errors are those of `read_multirc`."""
    parse = _queries_of_passage
    columns = ['passage', 'qas']
    if 'entities' in table.column_names(path):
        parse = _query_of_row
        columns = ['passage', 'query', 'entities', 'answers', 'idx']
    rows = table.read_table(path, columns, parse, max_malformed=max_malformed)
    questions = list(itertools.chain.from_iterable(rows.values))
    _check_questions(path, questions)
    return questions


def _queries_of_passage(cells: list[Any]) -> list[Question]:
    """The queries of a row of the official files, whose entities are places in the passage.

    Raises:
      Malformed: one is not as in the benchmark.
    """
    passage, queries = cells
    text = _text(passage, 'text')
    entities: list[str] = []
    for place in _field(passage, 'entities', list):
        entities.append(text[_field(place, 'start', int) : _field(place, 'end', int) + 1])

    def parse(query: Any) -> Question:
        name, asked = str(_field(query, 'idx', int)), _text(query, 'query')
        if query.get('answers') is None:
            raise table.NoLabel('its label is empty')
        answers = [_text(answer, 'text') for answer in _field(query, 'answers', list)]
        return _query(name, text, asked, entities, answers)

    return _parsed(_field({'qas': queries}, 'qas', list), parse)


def _query_of_row(cells: list[Any]) -> list[Question]:
    """The query of a row of the hub's data set; raises Malformed."""
    *texts, entities, answers, idx = cells
    passage, query = table.texts_of(texts)
    return [_query(
        str(_field(idx, 'query', int)), passage, query, table.texts_of(entities),
        table.texts_of(answers))]


def _query(
    name: str, passage: str, query: str, entities: Iterable[str], answers: Sequence[str]
) -> Question:
    """A question of ReCoRD; raises Malformed if it cannot be answered."""
    if _GAP not in query:
        raise table.Malformed(f'its query has no {_GAP}')
    candidates: list[Candidate] = []
    for entity in dict.fromkeys(entities):  # mentioned in several places
        candidates.append(
            Candidate(name, entity, query.replace(_GAP, entity), entity in answers))
    if not candidates or not answers:
        raise table.Malformed('it has no entities, or no answers, which test splits do not have')
    return Question(name, ' '.join(passage.replace(_BULLET, ' ').split()), candidates, answers)


def _field(record: Any, name: str, kind: type[_Kind]) -> _Kind:
    """A field of an object in a cell; raises Malformed if it is not of the kind."""
    value = record.get(name) if isinstance(record, Mapping) else None
    if not isinstance(value, kind):
        raise table.Malformed(f'{name}={value!r:.60} is not as in the benchmark')
    return value


def _text(record: Any, name: str) -> str:
    (text,) = table.texts_of([_field(record, name, str)])
    return text


def score_multirc(
    questions: Sequence[Question], probabilities: np.ndarray
) -> tuple[dict[str, float], dict[str, str]]:
    """'f1' of all answers together (F1a), and the share of questions with all answers right.

    Args:
      questions: with n candidates.
      probabilities: [n], that each is right.
    """
    is_predicted = probabilities > 0.5
    is_right = _labels(questions) == _TRUE
    firsts = np.cumsum([0, *(len(question.candidates) for question in questions)])[:-1]
    all_right = np.logical_and.reduceat(is_predicted == is_right, firsts)
    scores = {'f1': f1(is_predicted, is_right), 'exact_match': float(np.mean(all_right))}
    predictions: dict[str, str] = {}
    for candidate, predicted in zip(_candidates(questions), is_predicted, strict=True):
        predictions[candidate.id] = LABELS[int(predicted)]
    return scores, predictions


def score_record(
    questions: Sequence[Question], probabilities: np.ndarray
) -> tuple[dict[str, float], dict[str, str]]:
    """'f1' and 'exact_match' of the most probable candidates, which are computed as SQuAD's are.

    Args:
      questions: with n candidates.
      probabilities: [n], that each is right.
    """
    bounds = np.cumsum([len(question.candidates) for question in questions])[:-1]
    predictions: dict[str, str] = {}
    for question, of_question in zip(questions, np.split(probabilities, bounds), strict=True):
        predictions[question.id] = question.candidates[int(of_question.argmax())].name
    percent = v1_scores(predictions, {question.id: question.answers for question in questions})
    return {name: percent[name] / 100 for name in ('f1', 'exact_match')}, predictions


def candidates_task(
    config: ConfigDict, train: Sequence[Question] | None, dev: Sequence[Question], score: Score
) -> LabelledTask:
    """A task on questions whose candidates are right or wrong by themselves.

    Args:
      config: of the run.
      train, dev: to train on, or None, and to score.
      score: of these questions.
    """
    tokenization = open_tokenization(config)

    def units(questions: Sequence[Question]) -> Units:
        sequences = make_sequences(
            _encode_passages(tokenization.encode, questions),
            tokenization.encode([candidate.text for candidate in _candidates(questions)]),
            max_length=config.data.max_seq_length, frame=tokenization.frame)
        return Units(sequences, labels={'labels': _labels(questions)})

    train_units = None
    majority_baseline: dict[str, float] = {}
    if train is not None:
        train_units = units(train)
        answer = most_frequent(_labels(train))
        majority_baseline, _ = score(dev, np.full(len(_labels(dev)), float(answer)))
    dev_units = units(dev)
    warn_of_cut((train_units or dev_units).sequences, config.data.max_seq_length)
    scored_set = CandidatesSet(dev, score)
    return LabelledTask(
        config, tokenization, train=train_units,
        evaluated=(EvalSet('', dev_units, scored_set.results),), metric='f1',
        head='classification', labels=LABELS, arguments={'num_outputs': len(LABELS)},
        majority_baseline=majority_baseline, inference={'num_texts': 2})


def _encode_passages(encode: Encode, questions: Sequence[Question]) -> Tokens:
    """The tokens of each candidate's passage, of which each text is tokenized once."""
    number_of: dict[str, int] = {}
    numbers: list[int] = []
    for question in questions:
        number = number_of.setdefault(question.passage, len(number_of))
        numbers += [number] * len(question.candidates)
    ids, counts = encode(list(number_of))
    starts = np.cumsum(counts) - counts
    return ids[ranges(starts[numbers], counts[numbers])], counts[numbers]


def wholes(questions: Iterable[Question]) -> list[str]:
    """Passage and candidate of each sequence, joined."""
    texts: list[str] = []
    for question in questions:
        texts += [f'{question.passage}\n{candidate.text}' for candidate in question.candidates]
    return texts


def _candidates(questions: Iterable[Question]) -> Iterator[Candidate]:
    return itertools.chain.from_iterable(question.candidates for question in questions)


def _labels(questions: Iterable[Question]) -> np.ndarray:
    """[n] int32 of LABELS."""
    return np.array([candidate.is_right for candidate in _candidates(questions)], np.int32)


@dataclasses.dataclass(frozen=True)
class CandidatesSet:
    """Questions that are scored, with the file of their predictions.

    Attributes:
      questions: with n candidates.
      score: of these questions.
    """

    questions: Sequence[Question]
    score: Score

    def results(self, outputs: Outputs) -> Results:
        """Scores, and the content of the file of predictions."""
        logits = outputs['logits']
        scores, predictions = self.score(self.questions, softmax(logits)[:, _TRUE])
        scores['loss'] = Classification.mean_loss(logits, _labels(self.questions))
        content = predictions_table('', list(predictions), predictions.values())
        return scores, {'dev_predictions.tsv': content}
