"""SQuAD 1.1 and 2.0 (paper sections 4.2 and 4.3), or any file in their layout.

The task reads questions (`rows.squad_reader`), cuts windows of tokens (`rows.squad_windows`), finds
answers in their logits (`answers.spans`) and scores these as the official scripts do
(`squad_scores`).

Answers map to tokens, and predicted tokens back to text, by character positions. Only in SQuAD's
own files and data sets (`are_squads`), and with BERT's WordPiece, answers are found in texts that
are put together from pieces, as in the original, to reproduce its scores. That goes wrong where
white space, or spaces between words, are not as in English.

The threshold of SQuAD 2.0 is the one with the best F1 on the scored questions
(`squad_scores.v2_scores`). It is kept in the run, and later evaluations and predictions use it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.answers.engine import Outputs
from bert_jax.answers.spans import (
    Candidate,
    PlacesByPieces,
    PlacesByWords,
    Prediction,
    SpanPlaces,
    predict_answers,
)
from bert_jax.rows.packing import Units
from bert_jax.rows.questions import Question
from bert_jax.rows.squad_reader import layout_of, read_squad
from bert_jax.rows.squad_windows import SquadWindows, squad_windows
from bert_jax.runtime.errors import counted
from bert_jax.runtime.files import as_path
from bert_jax.runtime.hosts import say
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledTask,
    Results,
    Tokenization,
    open_tokenization,
)
from bert_jax.tasks.sources import own_files, split_file, tfds_records, warn_of_trained_on
from bert_jax.tasks.squad_scores import v1_scores, v2_scores
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer, wordpiece_of

_OFFICIAL_FILE = re.compile(r'(train|dev)-v(1\.1|2\.0)\.json(\.gz)?')
_OFFICIAL_DATA_SET = re.compile(r'hf:datasets/(rajpurkar/)?squad(_v2)?([@/].*)?')
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
        if config.data.eval_source:
            warn_of_trained_on(config, _wholes(train), _wholes(dev))
        _say_questions(train, version, 'train on')
        trained = _windows(config, tokenization, train, training=True)
        train_units = Units(trained.sequences, positions={
            'start_positions': trained.start_positions, 'end_positions': trained.end_positions})
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


def span_loss(
    windows: SquadWindows, start_logits: np.ndarray, end_logits: np.ndarray
) -> float:
    """The mean loss of windows, as in training, from start logits [T] and end logits [T]."""
    return float(np.mean([
        _position_losses(windows, start_logits, windows.start_positions),
        _position_losses(windows, end_logits, windows.end_positions)]))


def _position_losses(
    windows: SquadWindows, logits_T: np.ndarray, positions_W: np.ndarray
) -> np.ndarray:
    """Cross-entropies [W] over the tokens of each window."""
    first_W = windows.sequences.offsets[:-1]
    normalizers_W = np.logaddexp.reduceat(logits_T, first_W, dtype=np.float64)
    return normalizers_W - logits_T[first_W + positions_W]


def final_texts(
    predictions: Mapping[str, Prediction], null_threshold: float | None = None
) -> dict[str, str]:
    """Question id -> answer; '' if its `null_odds` are above the threshold (None: never)."""
    return {
        name: prediction.answer(null_threshold) for name, prediction in predictions.items()}


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
    n_best: dict[str, list[dict[str, Any]]] = {}
    null_odds: dict[str, float] = {}
    for name, prediction in predictions.items():
        n_best[name] = list(map(_record, prediction.n_best))
        null_odds[name] = prediction.null_odds
    files = {
        'predictions.json': _json(final_texts(predictions, null_threshold)),
        'nbest_predictions.json': _json(n_best),
    }
    if null_threshold is not None:
        files['null_odds.json'] = _json(null_odds)
    return files


def _record(candidate: Candidate) -> dict[str, Any]:
    return {
        'text': candidate.text, 'probability': candidate.probability,
        'start_logit': candidate.start_logit, 'end_logit': candidate.end_logit,
    }


def _json(content: Any) -> str:
    return json.dumps(content, indent=1) + '\n'


def _threshold(version: str, scored: ScoredModel | None) -> float | None:
    """The threshold of no answer that a scored model brings. Prints which one is used."""
    if scored is None:
        return None
    threshold = scored.inference.get('null_threshold')
    if version == 'v2':
        which = 'is best for F1 on these very questions, as the model brings none'
        if threshold is not None:
            which = f'the model brings, {threshold:g}'
        say(f'scored with the threshold of no answer that {which}')
    return threshold


def _wholes(questions: Sequence[Question]) -> list[str]:
    """Paragraph and question of each."""
    return [f'{question.context}\n{question.text}' for question in questions]


def _say_questions(questions: Sequence[Question], version: str, purpose: str) -> None:
    """Says how many questions there are to train on or to score."""
    num_paragraphs = len({question.context for question in questions})
    unanswered = ''
    if version == 'v2':
        num_unanswered = sum(not question.answers for question in questions)
        unanswered = f', {num_unanswered:,} without an answer'
    say(f"{counted(len(questions), 'question')} to {purpose}, on "
        f"{counted(num_paragraphs, 'paragraph')}{unanswered}")


def _windows(
    config: ConfigDict, tokenization: Tokenization, questions: Sequence[Question], training: bool
) -> SquadWindows:
    """The windows of questions, whose answers are found by words only as in the original."""
    tokenization.encode.keep([question.context for question in questions])
    encode_with_places = None
    if not _tokenizer_of_original(config, tokenization.tokenizer, training):
        encode_with_places = tokenization.tokenizer.encode_with_places
    return squad_windows(
        questions, tokenization.encode, max_length=config.data.max_seq_length,
        doc_stride=config.squad.doc_stride, max_question_length=config.squad.max_query_length,
        encode_with_places=encode_with_places, frame=tokenization.frame)


def _tokenizer_of_original(
    config: ConfigDict, tokenizer: Tokenizer, training: bool
) -> WordPieceTokenizer | None:
    """The tokenizer, if labels and scores of the questions are those of the original."""
    source = str(config.data.source)
    if config.data.eval_source and not training:
        source = str(config.data.eval_source)
    return wordpiece_of(tokenizer) if are_squads(source) else None


def are_squads(source: str) -> bool:
    """Whether questions are SQuAD's own, by the name of their file, folder or data set."""
    if source.startswith('hf:'):
        return _OFFICIAL_DATA_SET.fullmatch(source) is not None
    return not _is_own_file(source)


def _is_own_file(path: str) -> bool:
    """Whether a source is a file that is none of SQuAD's."""
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
    if config.data.eval_source or not _is_own_file(str(config.data.source)):
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
