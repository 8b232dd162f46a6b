"""What tasks on texts or pairs with a label share: GLUE's, and those on anybody's own file."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from bert_jax.files import Path, write_whole
from bert_jax.labelled.packing import Units
from bert_jax.labelled.texts import TextExamples, text_sequences
from bert_jax.metrics.labels import METRICS
from bert_jax.tasks.labelled import EvalSet, LabelledData, LabelledTask, Outputs, Tokenization


def text_task(
    config: ConfigDict, t: Tokenization, *, head: str, labels: Sequence[str],
    metrics: Sequence[str], train: TextExamples | None, evaluated: Mapping[str, TextExamples],
    predicted: Mapping[str, TextExamples], prefixes: Mapping[str, str] | None = None,
) -> LabelledTask:
    """A task on texts.

    Args:
      config: of the run.
      t: how texts become ids.
      head: 'classification', 'multi_label' or 'regression'.
      labels: names by id; none of a regression.
      metrics: names in `metrics.labels.METRICS`; the first picks the best evaluation.
      train: what is trained on, or None.
      evaluated, predicted: by the name of the split, which the file of predictions has.
      prefixes: of the metrics of some splits.
    """
    def units(examples: TextExamples, labelled: bool) -> Units:
        sequences = text_sequences(examples, t.encode, t.max_length, **t.vocab.ends)
        return Units(sequences, labels={'labels': examples.labelled()} if labelled else {})

    def eval_set(split: str, examples: TextExamples, labelled: bool) -> EvalSet:
        return EvalSet(
            (prefixes or {}).get(split, ''), units(examples, labelled),
            functools.partial(_score, head, metrics, examples.labelled()) if labelled else None,
            functools.partial(
                _write, head, labels, examples.ids, f'{split}_predictions.tsv'),
        )

    return LabelledTask(config, t, LabelledData(
        train=None if train is None else units(train, True),
        evaluated=tuple(eval_set(*item, True) for item in evaluated.items()),
        predicted=tuple(eval_set(*item, False) for item in predicted.items()),
        metric=metrics[0], head=head, labels=tuple(labels),
        objective={'num_outputs': len(labels) or 1},
    ))


def _predictions(head: str, outputs: Outputs) -> np.ndarray:
    """[n] ids or numbers, or [n, L] marks."""
    logits = outputs['logits']
    if head == 'regression':
        return logits[:, 0]
    if head == 'multi_label':
        return (logits > 0).astype(np.float32)
    return logits.argmax(axis=-1)


def _score(
    head: str, metrics: Sequence[str], labels: np.ndarray, outputs: Outputs
) -> dict[str, float]:
    predictions = _predictions(head, outputs)
    return {name: METRICS[name](predictions, labels) for name in metrics}


def _write(
    head: str, labels: Sequence[str], ids: list[str], file: str, outputs: Outputs, folder: Path
) -> None:
    """Writes `index` and `prediction` of each example, as `tools.glue_submission` takes them."""
    predictions = _predictions(head, outputs)
    if head == 'regression':
        values = [f'{value:.6f}' for value in predictions]
    elif head == 'multi_label':
        values = [','.join(labels[int(i)] for i in np.flatnonzero(row)) for row in predictions]
    else:
        values = [labels[int(i)] for i in predictions]
    lines = ['index\tprediction', *(f'{i}\t{v}' for i, v in zip(ids, values, strict=True))]
    write_whole(folder / file, '\n'.join(lines) + '\n')
