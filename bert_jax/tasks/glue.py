"""GLUE (paper section 4.1): reading, head, scores and predictions of its tasks."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from bert_jax.data.glue import GLUE_TASKS, GlueExamples, GlueTask, glue_sequences, labels_of
from bert_jax.data.packing import Units
from bert_jax.data.pairs import Encode
from bert_jax.errors import InputError
from bert_jax.files import Path, write_whole
from bert_jax.metrics.glue import score_glue
from bert_jax.model.objectives import OBJECTIVES
from bert_jax.tasks.base import Downstream, EvalSet

# From a split of a task to its examples; None where there is no such split.
Reader = Callable[[str, str], GlueExamples | None]


def open_glue(
    name: str, read: Reader, encode: Encode, *, max_length: int, cls_id: int, sep_id: int
) -> Downstream:
    """A GLUE task: trained on train, scored on dev, predicting test where it is there.

    MNLI is scored on both dev sets, and predicts the diagnostic set too.

    Args:
      name: one of `GLUE_TASKS`.
      read: reads a split.
      encode: texts to ids.
      max_length: pieces of a sequence.
      cls_id, sep_id: of the vocabulary.

    Raises:
      InputError: whatever is wrong with the files; the training or the dev set is missing.
    """
    task = GLUE_TASKS[name]
    dev, test = [s for s in task.splits if 'dev' in s], [s for s in task.splits if 'test' in s]

    def units(examples: GlueExamples, labelled: bool) -> Units:
        sequences = glue_sequences(examples, encode, max_length, cls_id, sep_id)
        return Units(sequences, labels={'labels': labels_of(examples)} if labelled else {})

    def eval_set(source: str, split: str, labelled: bool) -> EvalSet | None:
        examples = read(source, split)
        if examples is None:
            return None
        score = functools.partial(_score, name, labels_of(examples)) if labelled else None
        file = f"{'ax' if source == 'ax' else split}_predictions.tsv"
        return EvalSet(
            'mismatched_' if 'mismatched' in split else '', units(examples, labelled), score,
            functools.partial(_write, task, examples.ids, file),
        )

    train = read(name, 'train')
    evaluated = [s for split in dev if (s := eval_set(name, split, True)) is not None]
    if train is None or not evaluated or evaluated[0].name:
        raise InputError(
            f"config.data.source has no {'train' if train is None else dev[0]} split of {name}: "
            f'training needs train and {dev[0]}'
        )
    sources = [(name, split) for split in test] + ([('ax', 'test')] if name == 'mnli' else [])
    predicted = [s for pair in sources if (s := eval_set(*pair, False)) is not None]
    head = 'classification' if task.labels else 'regression'
    return Downstream(
        train=units(train, True), evaluated=tuple(evaluated), predicted=tuple(predicted),
        metric=task.main_metric, head=head, labels=task.labels,
        make_task=functools.partial(OBJECTIVES[head], num_outputs=len(task.labels) or 1),
    )


def _predictions(task: GlueTask, outputs: dict[str, np.ndarray]) -> np.ndarray:
    logits = outputs['logits']
    return logits.argmax(axis=-1) if task.labels else logits[:, 0]


def _score(name: str, labels: np.ndarray, outputs: dict[str, np.ndarray]) -> dict[str, float]:
    return score_glue(name, _predictions(GLUE_TASKS[name], outputs), labels)


def _write(
    task: GlueTask, ids: list[str], file: str, outputs: dict[str, np.ndarray], workdir: Path
) -> None:
    """Writes `index` and `prediction` of each example, as `tools.glue_submission` takes them."""
    predictions = _predictions(task, outputs)
    values = [task.labels[i] for i in predictions] if task.labels else [
        f'{value:.6f}' for value in predictions]
    lines = ['index\tprediction', *(f'{i}\t{v}' for i, v in zip(ids, values, strict=True))]
    write_whole(workdir / file, '\n'.join(lines) + '\n')
