"""SQuAD 1.1 and 2.0 (paper sections 4.2 and 4.3), or any file in their layout.

The task reads questions (`squad_reader`), cuts windows of tokens (`squad_windows`), finds answers
in their logits (`squad_answers`) and scores these as the official scripts do (`squad_scores`).

The pieces of an answer are those at its characters, and the other way round. Only in SQuAD's own
files, and with BERT's WordPiece, answers are found in texts made of pieces, as in the original,
whose scores are to be reproduced; where white space or spaces between words are not English, that
goes wrong.

The threshold of SQuAD 2.0 is the one with the best F1 on the scored questions
(`squad_scores.v2_scores`). It is kept in the run, and later evaluations and predictions use it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from ml_collections import ConfigDict

from bert_jax.data.packing import Units
from bert_jax.inference.engine import Outputs
from bert_jax.runtime.files import as_path
from bert_jax.runtime.hosts import say
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledTask,
    Results,
    ScoredModel,
    Tokenization,
    open_tokenization,
)
from bert_jax.tasks.sources import own_files, split_file, tfds_records
from bert_jax.tasks.squad_answers import (
    PlacesByPieces,
    PlacesByWords,
    SpanPlaces,
    final_texts,
    predict_answers,
    prediction_files,
    span_loss,
)
from bert_jax.tasks.squad_reader import Question, layout_of, read_squad
from bert_jax.tasks.squad_scores import v1_scores, v2_scores
from bert_jax.tasks.squad_windows import SquadWindows, squad_windows
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer, wordpiece_of

_OFFICIAL_FILE = re.compile(r'(train|dev)-v(1\.1|2\.0)\.json(\.gz)?')
_NUMBERS = {'v1': '1.1', 'v2': '2.0'}
_HUB_FOLDERS = {'v1': 'plain_text', 'v2': 'squad_v2'}


def open_squad(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """SQuAD as a task: the units are windows, and an epoch is all of them.

    (google-research/bert computes its steps from the number of questions, which is 1 % smaller, so
    it stops a little before its last epoch ends.)
    """
    version = config.task.removeprefix('squad_')
    tokenization = open_tokenization(config)
    tokenizer = tokenization.tokenizer
    held_out = _held_out(config, version, scored)
    threshold = _threshold(version, scored)

    if held_out:
        dev = held_out.dev
    else:
        dev = _read(config, version, tokenizer, training=False)
    _say_questions(dev, version, 'score')
    windows = _windows(config, tokenization, dev, training=False)
    places: SpanPlaces = PlacesByPieces()
    of_original = _tokenizer_of_original(config, tokenizer, training=False)
    if of_original:
        places = PlacesByWords(of_original)
    scored_set = SquadSet(windows, places, version, threshold)

    train_units = None
    if scored is None:
        if held_out:
            train = held_out.train
        else:
            train = _read(config, version, tokenizer, training=True)
        _say_questions(train, version, 'train on')
        train_units = _training_units(_windows(config, tokenization, train, training=True))
    return LabelledTask(
        config, tokenization, train=train_units,
        evaluated=(EvalSet('', Units(windows.sequences), scored_set.results),),
        metric='f1', head='question_answering', inference=dict(config.squad),
        tuned_metrics=('null_threshold',))


@dataclasses.dataclass(frozen=True)
class SquadSet:
    """Questions that are scored, with the files of their predictions.

    Attributes:
      windows: of the questions.
      places: how the characters of an answer are found.
      version: 'v1' or 'v2'.
      threshold: of no answer, in SQuAD 2.0; None: the one that is best for F1.
    """

    windows: SquadWindows
    places: SpanPlaces
    version: str
    threshold: float | None

    def results(self, outputs: Outputs) -> Results:
        """Scores, and the content of files by name."""
        start_logits = outputs['start_logits']
        end_logits = outputs['end_logits']
        predictions = predict_answers(
            self.windows, start_logits, end_logits, places=self.places, version=self.version)
        texts = final_texts(predictions)
        answers: dict[str, list[str]] = {}
        for question in self.windows.questions:
            answers[question.id] = [text for text, _ in question.answers]
        if self.version == 'v1':
            scores = v1_scores(texts, answers)
        else:
            odds = {name: prediction.null_odds for name, prediction in predictions.items()}
            scores = v2_scores(texts, answers, odds, self.threshold)
        scores['loss'] = span_loss(self.windows, start_logits, end_logits)
        return scores, prediction_files(predictions, scores.get('null_threshold'))


def _threshold(version: str, scored: ScoredModel | None) -> float | None:
    """The threshold of no answer that a scored model brings. It is said which one is used."""
    if scored is None:
        return None
    threshold = scored.inference.get('null_threshold')
    if version == 'v2':
        which = 'is best for F1 on these very questions, as the model brings none'
        if threshold is not None:
            which = f'the model brings, {threshold:g}'
        say(f'scored with the threshold of no answer that {which}')
    return threshold


def _say_questions(questions: Sequence[Question], version: str, purpose: str) -> None:
    """Says how many questions there are to train on or to score."""
    num_paragraphs = len({question.context for question in questions})
    unanswered = ''
    if version == 'v2':
        num_unanswered = sum(not question.answers for question in questions)
        unanswered = f', {num_unanswered:,} without an answer'
    say(f'{len(questions):,} questions to {purpose}, on {num_paragraphs:,} paragraphs{unanswered}')


def _windows(
    config: ConfigDict, tokenization: Tokenization, questions: Sequence[Question], training: bool
) -> SquadWindows:
    """The windows of questions, whose answers are found by words only as in the original."""
    encode_with_places = None
    if not _tokenizer_of_original(config, tokenization.tokenizer, training):
        encode_with_places = tokenization.tokenizer.encode_with_places
    return squad_windows(
        questions, tokenization.encode, max_length=config.data.max_seq_length,
        doc_stride=config.squad.doc_stride, max_question_length=config.squad.max_query_length,
        encode_with_places=encode_with_places, frame=tokenization.tokenizer.vocab.frame)


def _tokenizer_of_original(
    config: ConfigDict, tokenizer: Tokenizer, training: bool
) -> WordPieceTokenizer | None:
    """The tokenizer, if labels and scores of the questions are those of the original."""
    if _is_own_file(config, training):
        return None
    return wordpiece_of(tokenizer)


def _training_units(windows: SquadWindows) -> Units:
    return Units(windows.sequences, positions={
        'start_positions': windows.start_positions, 'end_positions': windows.end_positions})


def _is_own_file(config: ConfigDict, training: bool) -> bool:
    """Whether the questions are not SQuAD's."""
    path = str(config.data.source)
    if config.data.eval_source and not training:
        path = str(config.data.eval_source)
    return as_path(path).is_file() and not _OFFICIAL_FILE.fullmatch(as_path(path).name)


@dataclasses.dataclass(frozen=True)
class _Questions:
    """Questions of a file, of which `own_files` takes some."""

    questions: Sequence[Question]

    def __len__(self) -> int:
        return len(self.questions)

    def take(self, rows: Iterable[int]) -> _Questions:
        return _Questions([self.questions[i] for i in rows])

    def contexts(self) -> list[str]:
        return [question.context for question in self.questions]


@dataclasses.dataclass(frozen=True)
class _HeldOut:
    """The questions of an own file: those to train on, and those that are held out."""

    train: Sequence[Question]
    dev: Sequence[Question]


def _held_out(config: ConfigDict, version: str, scored: ScoredModel | None) -> _HeldOut | None:
    """The two sides of an own file whose questions to score are held out; None for other files.

    The paragraph decides, so that none is on both sides.
    """
    if config.data.eval_source or not _is_own_file(config, training=True):
        return None

    def read(path: str, training: bool = False) -> _Questions:
        return _Questions(read_squad(
            path, version=version, training=training, max_malformed=config.data.max_malformed,
            by_words=False))

    _, dev = own_files(config, scored, read, _Questions.contexts, 'a file with questions')
    if scored:
        return _HeldOut([], dev.questions)
    out = set(dev.contexts())
    # Read again, because training checks answers and leaves some questions out.
    everything = read(str(as_path(config.data.source)), training=True)
    train: list[Question] = []
    for question in everything.questions:
        if question.context not in out:
            train.append(question)
    return _HeldOut(train, dev.questions)


def _read(
    config: ConfigDict, version: str, tokenizer: Tokenizer, training: bool
) -> list[Question]:
    """The questions to train on, or those to score, of a benchmark or of a file that is named."""
    by_words = _tokenizer_of_original(config, tokenizer, training) is not None
    max_malformed = config.data.max_malformed
    number = _NUMBERS[version]
    split = 'validation'
    file = f'dev-v{number}.json'
    if training:
        split = 'train'
        file = f'train-v{number}.json'
    if config.data.source == 'tfds:squad' and (training or not config.data.eval_source):
        name = f'squad/v{number}'
        records = sorted(tfds_records(config, name, split), key=lambda record: record['id'])
        return read_squad(
            f'tfds:{name}:{split}', layout_of(records), version=version, training=training,
            max_malformed=max_malformed, by_words=by_words)
    path = split_file(
        config, [file], f'{_HUB_FOLDERS[version]}/{split}',
        f'the folder with train-v{number}.json and dev-v{number}.json, a training file with '
        "config.data.eval_source, the hub's data set, or 'tfds:squad'", scored=not training)
    return read_squad(
        path, version=version, training=training, max_malformed=max_malformed, by_words=by_words)
