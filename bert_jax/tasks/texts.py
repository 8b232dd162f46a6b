"""What tasks on texts or pairs with a label share: GLUE's, and those on anybody's own file."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from bert_jax.labelled.packing import Units
from bert_jax.labelled.text_windows import TextWindows, text_windows
from bert_jax.labelled.texts import TextExamples
from bert_jax.metrics.labels import METRICS
from bert_jax.runtime.files import Path, write_whole
from bert_jax.tasks.labelled import EvalSet, LabelledData, LabelledTask, Outputs, Tokenization


def text_task(
    config: ConfigDict, t: Tokenization, *, head: str, labels: Sequence[str],
    metrics: Sequence[str], train: TextExamples | None, evaluated: Mapping[str, TextExamples],
    predicted: Mapping[str, TextExamples], prefixes: Mapping[str, str] | None = None,
    windows: str = 'first', id_column: str = '',
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
      windows: one of `text_windows.WINDOWS`, of what is predicted; what is trained on is cut.
      id_column: that the user named; empty: predictions are numbered by row.
    """
    def units(examples: TextExamples, how: str, labelled: bool) -> tuple[TextWindows, Units]:
        b = None if examples.text_b is None else t.encode(examples.text_b)
        read = text_windows(
            t.encode(examples.text_a), b, how, max_length=t.max_length, **t.vocab.ends)
        if not labelled:
            return read, Units(read.sequences)
        known = examples.labelled()
        if known.ndim == 2:  # a label that the model does not have is scored, not computed
            known = known[:, : len(labels)]
        return read, Units(read.sequences, labels={'labels': known[read.text]})

    def eval_set(split: str, examples: TextExamples, labelled: bool) -> EvalSet:
        read, of_windows = units(examples, windows, labelled)
        predict = functools.partial(_predictions, head, read)
        return EvalSet(
            (prefixes or {}).get(split, ''), of_windows,
            functools.partial(_score, predict, metrics, examples.labelled()) if labelled else None,
            functools.partial(
                _write, predict, head, labels, id_column, examples.ids,
                f'{split}_predictions.tsv'),
        )

    return LabelledTask(config, t, LabelledData(
        train=None if train is None else units(train, 'first', True)[1],
        evaluated=tuple(eval_set(*item, True) for item in evaluated.items()),
        predicted=tuple(eval_set(*item, False) for item in predicted.items()),
        metric=metrics[0], head=head, labels=tuple(labels),
        objective={'num_outputs': len(labels) or 1},
        inference={} if windows == 'first' else {'windows': windows},
    ))


def _predictions(head: str, windows: TextWindows, outputs: Outputs) -> np.ndarray:
    """[n] ids or numbers, or [n, L] marks."""
    logits = windows.combined_logits(head, outputs['logits'])
    if head == 'regression':
        return logits[:, 0]
    if head == 'multi_label':
        return (logits > 0).astype(np.float32)
    return logits.argmax(axis=-1)


def _score(
    predict: Callable[[Outputs], np.ndarray], metrics: Sequence[str], labels: np.ndarray,
    outputs: Outputs,
) -> dict[str, float]:
    predictions = predict(outputs)
    if labels.ndim == 2:  # labels that the model does not have are never marked
        predictions = np.pad(predictions, [(0, 0), (0, labels.shape[1] - predictions.shape[1])])
    return {name: METRICS[name].compute(predictions, labels) for name in metrics}


def _write(
    predict: Callable[[Outputs], np.ndarray], head: str, labels: Sequence[str], id_column: str,
    ids: list[str], file: str, outputs: Outputs, folder: Path,
) -> None:
    predictions = predict(outputs)
    if head == 'regression':
        values = [f'{value:.6f}' for value in predictions]
    elif head == 'multi_label':
        # A list in JSON where a label holds the comma that would separate it.
        join = json.dumps if any(',' in label for label in labels) else ','.join
        values = [join([labels[int(i)] for i in np.flatnonzero(row)]) for row in predictions]
    else:
        values = [labels[int(i)] for i in predictions]
    write_predictions(folder / file, id_column, ids, values)


def write_predictions(
    path: Path, id_column: str, ids: Sequence[str], values: Iterable[str]
) -> None:
    """Writes a TSV file with `index` (or the user's id column) and `prediction` of each example.

    `index` is the row of the example in its file, from 0. A value that holds a TAB or a line end is
    quoted. `tools.glue_submission` reads such files.
    """
    content = io.StringIO()
    writer = csv.writer(content, delimiter='\t', lineterminator='\n')
    writer.writerow([id_column or 'index', 'prediction'])
    writer.writerows(zip(ids, values, strict=True))
    write_whole(path, content.getvalue())
