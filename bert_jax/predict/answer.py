"""Answers to questions: spans of a context, found as the evaluation on SQuAD finds them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax.predict.engine import Outputs
from bert_jax.predict.loaded import LoadedModel
from bert_jax.predict.texts import Note, Pair, check_many, parts_of, shown, stream, whole_number
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.packing import Units
from bert_jax.tasks.squad import Prediction, predict_answers
from bert_jax.tasks.squad_windows import SquadExamples, SquadWindows, squad_windows

# As google-research/bert's run_squad has them, where the model does not bring its own.
_DEFAULTS = {'max_seq_length': 384, 'doc_stride': 128, 'max_query_length': 64}


class _Asked(NamedTuple):
    question: str
    context: str


def answer(
    model: LoadedModel, questions: Iterable[Pair], max_answer_length: int = 30,
    null_threshold: float | None = None,
) -> Iterator[dict[str, Any]]:
    """The best span of each context; see `Model.answer`."""
    model.need('answer')
    check_many(questions)
    max_answer_length = whole_number('max_answer_length', max_answer_length)
    if null_threshold is not None and (
            isinstance(null_threshold, bool) or not isinstance(null_threshold, numbers.Real)
            or math.isnan(null_threshold)):
        raise InputError(f'null_threshold={null_threshold!r:.60} must be a number')
    own = _DEFAULTS | dict(model.inference)
    threshold = own.get('null_threshold') if null_threshold is None else null_threshold
    max_length = min(own['max_seq_length'], model.max_length)
    # As evaluation cuts it; where the model is too short for that, a token of the text is left.
    max_question = min(own['max_query_length'], max_length - 4)
    vocab, lowercase = model.vocab, model.weights.lowercase

    def read(pair: Any, number: int, note: Note) -> _Asked:
        if isinstance(pair, str) or len(parts := parts_of(pair)) != 2:
            raise InputError('a question must come with one context')
        asked = _Asked(*parts)
        for name, text in zip(asked._fields, asked, strict=True):
            if not (num_tokens := len(model.tokenizer.encode(text))):
                raise InputError(f'the {name} is empty: a word or more is needed')
            if name == 'question' and num_tokens > max_question:
                note(
                    f'question {number} has {num_tokens} tokens: its end is left out, after '
                    f'{max_question}'
                )
        return asked

    def make(asked: list[_Asked]) -> tuple[tuple[SquadExamples, SquadWindows], Units]:
        places = {context: i for i, context in enumerate(dict.fromkeys(x[1] for x in asked))}
        examples = SquadExamples(
            ids=tuple(map(str, range(len(asked)))),
            questions=tuple(pair.question for pair in asked), contexts=tuple(places),
            context_index=np.array([places[pair.context] for pair in asked], np.int32),
            answers=(None,) * len(asked),
        )
        windows = squad_windows(
            examples, model.encode_all, **model.vocab.ends, max_length=max_length,
            doc_stride=own['doc_stride'], max_question_length=max_question, training=False,
        )
        return (examples, windows), Units(windows.sequences)

    def results(
        made: tuple[SquadExamples, SquadWindows], outputs: Outputs
    ) -> Iterator[dict[str, Any]]:
        examples, windows = made
        predictions = predict_answers(
            examples, windows, outputs['start_logits'], outputs['end_logits'], vocab=vocab,
            lowercase=lowercase, switches=model.tokenizer.switches,
            version='v1' if threshold is None else 'v2',
            max_answer_length=max_answer_length,
        )
        for question, context, found in zip(
            examples.questions, examples.context_index, predictions, strict=True
        ):
            yield {'question': question} | _answer(examples.contexts[context], found, threshold)

    def refused(pair: Any, reason: str) -> dict[str, Any]:
        return {'question': shown(pair).get('first'), 'answer': '', 'error': reason}

    return stream(
        model, questions, read=read, make=make, results=results,
        function=model.objective.outputs, refused=refused,
    )


def _answer(context: str, found: Prediction, threshold: float | None) -> dict[str, Any]:
    """The chosen one of the best candidates."""
    is_empty = threshold is not None and found.null_odds > threshold
    text = '' if is_empty else found.text
    i = [candidate.text for candidate in found.n_best].index(text)
    chosen, (begin, end) = found.n_best[i], found.places[i]
    return {
        'answer': context[begin:end], 'start': begin, 'end': end,
        'score': chosen.start_logit + chosen.end_logit, 'probability': chosen.probability,
    }
