"""SQuAD 1.1 and 2.0 (paper sections 4.2 and 4.3), or any file in their layout."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.labelled import squad
from bert_jax.labelled.packing import Units
from bert_jax.labelled.squad_answers import Prediction, final_texts, predict_answers
from bert_jax.labelled.squad_windows import SquadWindows, squad_windows
from bert_jax.labelled.squad_writer import write_predictions
from bert_jax.metrics.squad import best_null_threshold, squad_scores
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, in_bucket
from bert_jax.runtime.hosts import say
from bert_jax.tasks.base import ScoredModel, TaskKind, register
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledData,
    LabelledTask,
    Tokenization,
    open_tokenization,
    tfds_records,
)

_NUMBERS = {'v1': '1.1', 'v2': '2.0'}


def open_squad(
    version: str, config: ConfigDict, scored: ScoredModel | None = None
) -> LabelledTask:
    """The units are windows, and an epoch is all of them.

    (google-research/bert counts questions for its steps, 1 % fewer, so it ends a little before its
    last epoch does.)
    """
    own = {name: config.squad[name] for name in ('doc_stride', 'max_query_length')}
    t = open_tokenization(config)

    def windows(training: bool) -> tuple[squad.SquadExamples, SquadWindows]:
        examples = _read(config, version, training)
        return examples, squad_windows(
            examples, t.encode, max_length=t.max_length, doc_stride=own['doc_stride'],
            max_question_length=own['max_query_length'], training=training, **t.vocab.ends,
        )

    threshold = scored.inference.get('null_threshold') if scored and version == 'v2' else None
    if scored and version == 'v2':
        say('scored with the threshold of no answer that '
            + (f'the model brings, {threshold:g}' if threshold is not None else
               'is best for F1 on these very questions, as the model brings none'))
    scorer = _Scorer(*windows(training=False), version, t, threshold)
    scorer.examples.gold_texts()  # rather now than after an epoch
    train = None
    if scored is None:
        _, found = windows(training=True)
        train = Units(found.sequences, positions={
            'start_positions': found.start_positions, 'end_positions': found.end_positions,
        })
    return LabelledTask(config, t, LabelledData(
        train=train,
        evaluated=(EvalSet('', Units(scorer.windows.sequences), scorer.score, scorer.write),),
        metric='f1', head='question_answering', inference=own,
        settled=('null_threshold',),
    ))


@dataclasses.dataclass(frozen=True)
class _Scorer:
    """Scores and writes answers.

    Attributes:
      examples, windows: what is predicted.
      version: 'v1' or 'v2'.
      tokenization: of the windows.
      threshold: 'v2': odds of no answer above it empty an answer; None: it is tuned on `examples`.
    """

    examples: squad.SquadExamples
    windows: SquadWindows
    version: str
    tokenization: Tokenization
    threshold: float | None

    def _predict(self, outputs: dict[str, np.ndarray]) -> list[Prediction]:
        return predict_answers(
            self.examples, self.windows, outputs['start_logits'], outputs['end_logits'],
            vocab=self.tokenization.vocab, lowercase=self.tokenization.lowercase,
            switches=self.tokenization.tokenizer.switches,
            version=self.version,
        )

    def _scores(self, predictions: list[Prediction]) -> dict[str, float]:
        """Official scores; `best_f1` of v2 is at the threshold that is best for these questions."""
        ids = self.examples.ids
        answers = self.examples.gold_texts()
        texts = final_texts(ids, predictions)
        if self.version == 'v1':
            return squad_scores(texts, answers, version='v1')
        odds = {name: found.null_odds for name, found in zip(ids, predictions, strict=True)}
        threshold = self.threshold
        if threshold is None:
            threshold = best_null_threshold(texts, answers, odds)
        scores = squad_scores(
            texts, answers, version='v2', null_odds=odds, null_threshold=threshold
        )
        return scores | {'null_threshold': threshold}

    def score(self, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        return self._scores(self._predict(outputs))

    def write(self, outputs: dict[str, np.ndarray], workdir: Path) -> None:
        predictions = self._predict(outputs)
        threshold = None
        if self.version == 'v2':
            threshold = self._scores(predictions)['null_threshold']
        write_predictions(workdir, self.examples.ids, predictions, null_threshold=threshold)


def _read(config: ConfigDict, version: str, training: bool) -> squad.SquadExamples:
    """The questions to train on, or those to score."""
    kind: Any = {
        'version': version, 'training': training, 'max_skipped': config.data.max_malformed
    }
    if config.data.source == 'tfds:squad' and (training or not config.data.eval_source):
        records = tfds_records(config, *squad.tfds_split(version, training))
        return squad.from_tfds(records, **kind)
    return squad.read_squad(_files(config, version, training), **kind)


def _files(config: ConfigDict, version: str, training: bool) -> list[str]:
    """Training files or the file to score, from `data.source` and `data.eval_source`."""
    number = _NUMBERS[version]
    source, eval_source = config.data.source, config.data.eval_source
    sources = [source] if isinstance(source, str) else list(source)
    meaning = (
        f'the folder with train-v{number}.json and dev-v{number}.json, a training file (or a list '
        "of them) with config.data.eval_source, or 'tfds:squad'"
    )
    if not training and eval_source:
        return [str(as_path(eval_source))]
    if not sources or not all(
        isinstance(s, str) and s and (':' not in s or in_bucket(s)) for s in sources
    ):
        raise InputError(
            f'config.data.source={source!r}: config.task={config.task!r} needs {meaning}'
        )
    paths = [as_path(s) for s in sources]
    if len(paths) == 1 and paths[0].is_dir():
        stem = f"{'train' if training else 'dev'}-v{number}.json"
        for path in (paths[0] / stem, paths[0] / f'{stem}.gz'):
            if path.exists():
                return [str(path)]
        raise InputError(f'{paths[0]} has no {stem}, plain or .gz: name {meaning}')
    if not eval_source:
        raise InputError('config.data.eval_source is empty: name the file to evaluate on')
    return [str(path) for path in paths]


for _version in _NUMBERS:
    register(TaskKind(
        f'squad_{_version}', functools.partial(open_squad, _version), 'squad', {
            'doc_stride': 128,  # pieces from one window of a long text to the next
            'max_query_length': 64,  # pieces of a question
        },
    ))
