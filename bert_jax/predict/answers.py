"""The command answer: the span of a context that answers a question."""

import math
import numbers
from collections.abc import Iterator
from typing import Any

from bert_jax.answers.engine import Outputs
from bert_jax.answers.spans import PlacesByPieces, Prediction, predict_answers
from bert_jax.config.fields import FIELDS
from bert_jax.predict.loaded import LoadedModel, whole_number
from bert_jax.predict.stream import Result, TextJob, parts_of, shown
from bert_jax.rows.packing import Units
from bert_jax.rows.questions import Question
from bert_jax.rows.squad_windows import SquadWindows, squad_windows
from bert_jax.runtime.errors import InputError

# The defaults of google-research/bert's run_squad, for settings that the model lacks.
_DEFAULTS = {
    'max_seq_length': 384,
    'doc_stride': FIELDS['squad.doc_stride'].default,
    'max_query_length': FIELDS['squad.max_query_length'].default,
}


class Answer(TextJob[list[str], SquadWindows]):
    """Answers questions as the evaluation on SQuAD does; see `Model.answer`."""

    keys = ('answer', 'start', 'end', 'score', 'probability')

    def __init__(self, model: LoadedModel, max_answer_length: Any, null_threshold: Any):
        """See `Model.answer`."""
        model.require('answer')
        super().__init__(model, model.head.outputs)
        self._max_answer_length = whole_number('max_answer_length', max_answer_length)
        settings: dict[str, Any] = {**_DEFAULTS, **model.weights.inference}
        self._null_threshold = _threshold(null_threshold, settings.get('null_threshold'))
        self._doc_stride = settings['doc_stride']
        self._max_length = min(settings['max_seq_length'], model.max_length)
        # As evaluation cuts it, or shorter, so that at least one token of the context fits.
        most = self._max_length - model.frame.num_special(pair=True) - 1
        self._max_question_length = min(settings['max_query_length'], most)
        self.reading = (self._doc_stride, self._max_length, self._max_question_length)

    def read(self, text: Any, number: int) -> list[str]:
        """The question and the context, which `batch` tokenizes."""
        model = self.model
        parts = parts_of(text, 2)
        question_length, _ = (len(model.encode(part)) for part in parts)
        most = self._max_question_length
        if question_length > most:
            self.notes.add(
                f'question {number} has {question_length} tokens: its end is left out, after '
                f'{most}', 'questions are longer than that: their ends are left out')
        return parts

    def batch(self, texts: list[list[str]]) -> tuple[SquadWindows, Units]:
        """Windows of the contexts, each with its question."""
        questions = [
            Question(str(i), question, context) for i, (question, context) in enumerate(texts)]
        windows = squad_windows(
            questions, self.model.encode_all, frame=self.model.frame,
            max_length=self._max_length, doc_stride=self._doc_stride,
            max_question_length=self._max_question_length,
            encode_with_places=self.model.tokenizer.encode_with_places)
        return windows, Units(windows.sequences)

    def results(
        self, texts: list[list[str]], windows: SquadWindows, outputs: Outputs
    ) -> Iterator[Result]:
        """The best span of each context, or none."""
        predictions = predict_answers(
            windows, outputs['start_logits'], outputs['end_logits'], places=PlacesByPieces(),
            version='v1' if self._null_threshold is None else 'v2',
            max_answer_length=self._max_answer_length)
        for question, prediction in zip(windows.questions, predictions.values(), strict=True):
            yield self._result(question, prediction)

    def _result(self, question: Question, prediction: Prediction) -> Result:
        """The answer to one question."""
        text = prediction.answer(self._null_threshold)
        best = next(candidate for candidate in prediction.n_best if candidate.text == text)
        begin, end = best.place
        return {
            'question': question.text,
            'answer': question.context[begin:end],
            'start': begin,
            'end': end,
            'score': best.start_logit + best.end_logit,
            'probability': best.probability,
        }

    def without_result(self, text: Any, reason: str) -> Result:
        """The question and the reason; results do not have the context."""
        question = shown(text, 2).get('first')
        return {'question': question, **dict.fromkeys(self.keys), 'error': reason}


def _threshold(given: Any, of_model: Any) -> Any:
    """The score by which '' must exceed all other answers; None: it is never the answer.

    Raises:
      InputError: what is given is no number.
    """
    if given is None:
        return of_model
    if not isinstance(given, numbers.Real) or math.isnan(given):
        raise InputError(f'null_threshold={given!r:.60} must be a number')
    return given
