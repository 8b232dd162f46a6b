"""SQuAD 1.1 and 2.0 (paper sections 4.2 and 4.3)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.data.packing import Units
from bert_jax.data.pairs import Encode
from bert_jax.data.squad import SquadExamples
from bert_jax.data.squad_answers import Prediction, final_texts, predict_answers
from bert_jax.data.squad_windows import SquadWindows, squad_windows
from bert_jax.data.squad_writer import write_predictions
from bert_jax.files import Path
from bert_jax.metrics.squad import squad_scores
from bert_jax.model.objectives import QuestionAnswering
from bert_jax.tasks.base import Downstream, EvalSet
from bert_jax.text.vocab import Vocab


def open_squad(
    version: str, read: Callable[[bool], SquadExamples], encode: Encode, *, vocab: Vocab,
    lowercase: bool, max_length: int, doc_stride: int, max_query_length: int,
) -> Downstream:
    """SQuAD or any file in its layout.

    The units are windows, and an epoch is all of them. (google-research/bert counts questions for
    its steps, 1 % fewer, so it ends a little before its last epoch does.)

    Args:
      version: 'v1' or 'v2'.
      read: reads the questions for training (True) or those that are scored.
      encode: texts to ids.
      vocab, lowercase: of the tokenizer.
      max_length: pieces of a window.
      doc_stride: pieces from one window to the next.
      max_query_length: pieces of a question.

    Raises:
      InputError: whatever is wrong with the files.
    """
    def windows(training: bool) -> tuple[SquadExamples, SquadWindows]:
        examples = read(training)
        return examples, squad_windows(
            examples, encode, cls_id=vocab.cls_id, sep_id=vocab.sep_id, max_length=max_length,
            doc_stride=doc_stride, max_question_length=max_query_length, training=training,
        )

    scorer = _Scorer(*windows(training=False), version, vocab, lowercase)
    scorer.examples.gold_texts()  # rather now than after an epoch
    _, train = windows(training=True)
    return Downstream(
        train=Units(train.sequences, positions={
            'start_positions': train.start_positions, 'end_positions': train.end_positions,
        }),
        evaluated=(EvalSet('', Units(scorer.windows.sequences), scorer.score, scorer.write),),
        predicted=(), metric='f1', head='question_answering', labels=(),
        make_task=QuestionAnswering,
    )


@dataclasses.dataclass(frozen=True)
class _Scorer:
    examples: SquadExamples
    windows: SquadWindows
    version: str
    vocab: Vocab
    lowercase: bool

    def _predict(self, outputs: dict[str, np.ndarray]) -> list[Prediction]:
        return predict_answers(
            self.examples, self.windows, outputs['start_logits'], outputs['end_logits'],
            vocab=self.vocab, lowercase=self.lowercase, version=self.version,
        )

    def _scores(self, predictions: list[Prediction]) -> dict[str, float]:
        """Official scores; those of v2 at the threshold that is best for F1 on these questions."""
        ids = self.examples.ids
        answers = self.examples.gold_texts()
        texts = final_texts(ids, predictions)
        if self.version == 'v1':
            return squad_scores(texts, answers, version='v1')
        odds = {name: found.null_odds for name, found in zip(ids, predictions, strict=True)}
        scored: Any = functools.partial(
            squad_scores, texts, answers, version='v2', null_odds=odds
        )
        scores = scored()
        threshold = scores['best_f1_thresh']
        found = scored(null_threshold=threshold)
        if found['f1'] < scores['best_f1']:
            # No answer to any question is best, for which the official script names a threshold of
            # 0: right for the probabilities it expects, not for odds that may be negative.
            threshold = min(odds.values()) - 1.0
            found = scored(null_threshold=threshold)
        return found | {'null_threshold': threshold}

    def score(self, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        return self._scores(self._predict(outputs))

    def write(self, outputs: dict[str, np.ndarray], workdir: Path) -> None:
        predictions = self._predict(outputs)
        threshold = None
        if self.version == 'v2':
            threshold = self._scores(predictions)['null_threshold']
        write_predictions(workdir, self.examples.ids, predictions, null_threshold=threshold)
