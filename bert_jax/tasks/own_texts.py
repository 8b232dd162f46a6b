"""Your own labelled texts: `classification`, with one label each or several, and `regression`.

CSV, TSV or JSON lines, one text or two, columns by name (`data.text`, `data.text_pair`,
`data.label`).
"""

from __future__ import annotations

import numpy as np
from ml_collections import ConfigDict

from bert_jax.config import nearest
from bert_jax.labelled.text_windows import WINDOWS
from bert_jax.labelled.texts import Columns, Convert, LearntNames, TextExamples, numbers, read_texts
from bert_jax.metrics.labels import check_metrics
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hosts import say
from bert_jax.tasks.base import ScoredModel, TaskKind, register
from bert_jax.tasks.labelled import (
    LabelledTask,
    check_labels_known,
    open_tokenization,
    own_files,
)
from bert_jax.tasks.texts import text_task


def open_classification(
    config: ConfigDict, scored: ScoredModel | None = None
) -> LabelledTask:
    """Labels are learnt from the training file."""
    own = config.classification
    head = 'multi_label' if own.multi_label else 'classification'
    metrics = _metrics(config, head, 'micro_f1,macro_f1,accuracy' if own.multi_label
                       else 'accuracy,macro_f1')
    names = LearntNames(own.multi_label, own.separator, scored.labels if scored else ())
    train, dev = _read(config, names, scored)
    shown = dev if train is None else train
    if names.unseen:
        check_labels_known(dev.source, names.met, names.names)
    labels = shown.labelled()
    counts = labels.sum(axis=0).astype(int) if own.multi_label else np.bincount(
        labels[labels >= 0], minlength=len(names.names))
    say('labels: ' + ', '.join(
        f'{name} {n:,} ({n / len(shown):.0%})' for name, n in zip(names.names, counts)))
    if names.unseen:
        unseen = ', '.join(sorted(names.unseen)[:10])
        say(f'note: {unseen} occur in evaluation alone and count as errors')
    check_metrics(metrics, head, len(names.names), 'config.classification.metrics')
    return _task(config, head, names.names, metrics, train, dev)


def open_regression(
    config: ConfigDict, scored: ScoredModel | None = None
) -> LabelledTask:
    """The label is a number."""
    metrics = _metrics(config, 'regression', 'spearman,pearson')
    train, dev = _read(config, numbers(), scored)
    labels = (dev if train is None else train).labelled()
    say(f'numbers from {labels.min():g} to {labels.max():g}, mean {labels.mean():g}, deviation '
        f'{labels.std():g}')
    return _task(config, 'regression', (), metrics, train, dev)


def _metrics(config: ConfigDict, head: str, usual: str) -> tuple[str, ...]:
    """Names of the metrics; the first picks the best evaluation."""
    names = [name.strip() for name in (config[config.task].metrics or usual).split(',')]
    return check_metrics(names, head, field=f'config.{config.task}.metrics')


def _read(
    config: ConfigDict, convert: Convert, scored: ScoredModel | None
) -> tuple[TextExamples | None, TextExamples]:
    """What is trained on (None where a model is only scored), and what is scored."""
    d = config.data
    columns = Columns((d.text, *([d.text_pair] if d.text_pair else [])), d.label, d.id, own=True)

    def read(path: str) -> TextExamples:
        return read_texts(
            path, columns, convert, max_malformed=d.max_malformed, needs_ids=bool(d.id))

    def contents(examples: TextExamples) -> list[str]:
        return ['\n'.join(x) for x in zip(examples.text_a, examples.text_b or examples.text_a)]

    return own_files(
        config, read, contents, meaning='a .csv, .tsv or .jsonl file', what='examples',
        training=scored is None,
    )


def _task(
    config: ConfigDict, head: str, labels: tuple[str, ...], metrics: tuple[str, ...],
    train: TextExamples | None, dev: TextExamples,
) -> LabelledTask:
    windows = config[config.task].windows or 'first'
    if windows not in WINDOWS:
        raise InputError(
            f'config.{config.task}.windows={windows!r} is unknown: {nearest(windows, WINDOWS)}')
    task = text_task(
        config, open_tokenization(config), head=head, labels=labels, metrics=metrics, train=train,
        evaluated={'dev': dev}, predicted={}, windows=windows, id_column=config.data.id,
    )
    units = task.data.train or task.data.evaluated[0].units
    say(f'{len(dev if train is None else train):,} examples of {np.median(units.lengths):.0f} '
        f'tokens (half of them), at most {units.lengths.max()}; {units.sequences.num_cut:,} are '
        f'cut at config.data.max_seq_length={config.data.max_seq_length}')
    return task


_FIELDS = {
    # Names between commas, the first picks the best evaluation; empty: the usual ones.
    'metrics': '',
    # What becomes of a text longer than data.max_seq_length where it is predicted: first, it is
    # cut, as in training | mean, max: it is read in windows, whose probabilities are combined.
    # Empty: first; of a model that is only evaluated, as it had it.
    'windows': '',
}

_READS = ('data.text', 'data.text_pair', 'data.label', 'data.id', 'data.held_out')

register(
    TaskKind('classification', open_classification, 'classification', {
        'multi_label': False,  # any number of labels an example
        'separator': ',',  # between them, where they stand in one cell
        **_FIELDS,
    }, reads=_READS),
    TaskKind('regression', open_regression, 'regression', _FIELDS, reads=_READS),
)
