"""GLUE (Wang et al., 2018; BERT paper section 4.1): its tasks, and their examples from its files.

Files lie in the folders of the official download (`CoLA/train.tsv`, ...), plain or gzipped, and are
read without quoting. Also read are JSON lines and the records of tensorflow-datasets, both with
the field names of the latter; only they have integer labels, in another order for MNLI.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.tasks import table
from bert_jax.tasks.labelled import (
    LabelledTask,
    ScoredModel,
    one_source,
    open_tokenization,
    refuse_eval_source,
    tfds_records,
)
from bert_jax.tasks.texts import (
    Columns,
    TextExamples,
    known_names,
    numbers,
    read_texts,
    text_task,
)

_BINARY = ('0', '1')
_ENTAILMENT = ('entailment', 'not_entailment')
_NLI = ('contradiction', 'entailment', 'neutral')  # google-research/bert's order
_ENDINGS = ('tsv', 'jsonl')
_NLI_TFDS = ('entailment', 'neutral', 'contradiction')


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One task.

    Attributes:
      name: of the task in configs and in tensorflow-datasets.
      folder: of its files.
      columns: of its text or its two texts, by header.
      fields: the same in JSON lines and in tensorflow-datasets.
      labels: label id -> string, in google-research/bert's order; empty: a score from 0 to 5.
      metrics: the official ones; the first is that of Table 1 of the BERT paper, and picks the best
        evaluation.
      submissions: test split -> name of its file for the GLUE site.
      label_column, id_column: by header.
      headerless: columns of labelled files that have no header.
      tfds_labels: label id of tensorflow-datasets -> string.
    """

    name: str
    folder: str
    columns: tuple[str, ...]
    fields: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    submissions: Mapping[str, str]
    label_column: str = 'label'
    id_column: str = 'index'
    headerless: tuple[str, ...] = ()
    tfds_labels: tuple[str, ...] = ()

    @property
    def splits(self) -> tuple[str, ...]:
        if self.name == 'ax':
            return ('test',)
        dev = tuple(split.replace('test', 'dev') for split in self.submissions)
        return ('train', *dev, *self.submissions)


_SENTENCES = ('sentence1', 'sentence2')
_PREMISE = ('premise', 'hypothesis')
_QUESTIONS = ('question1', 'question2')
_ONE = ('sentence',)
_ACCURACY = ('accuracy',)

GLUE_TASKS: Mapping[str, GlueTask] = {task.name: task for task in (
    GlueTask(
        'cola', 'CoLA', _ONE, _ONE, _BINARY, ('matthews',), {'test': 'CoLA.tsv'},
        headerless=('source', 'label', 'mark', 'sentence'),
    ),
    GlueTask('sst2', 'SST-2', _ONE, _ONE, _BINARY, _ACCURACY, {'test': 'SST-2.tsv'}),
    GlueTask(
        'mrpc', 'MRPC', ('#1 String', '#2 String'), _SENTENCES, _BINARY, ('f1', 'accuracy'),
        {'test': 'MRPC.tsv'}, label_column='Quality',
    ),
    GlueTask(
        'stsb', 'STS-B', _SENTENCES, _SENTENCES, (), ('spearman', 'pearson'),
        {'test': 'STS-B.tsv'}, label_column='score',
    ),
    GlueTask(
        'qqp', 'QQP', _QUESTIONS, _QUESTIONS, _BINARY, ('f1', 'accuracy'), {'test': 'QQP.tsv'},
        label_column='is_duplicate', id_column='id',
        headerless=('id', 'qid1', 'qid2', 'question1', 'question2', 'is_duplicate'),
    ),
    GlueTask(
        'mnli', 'MNLI', _SENTENCES, _PREMISE, _NLI, _ACCURACY,
        {'test_matched': 'MNLI-m.tsv', 'test_mismatched': 'MNLI-mm.tsv'},
        label_column='gold_label', tfds_labels=_NLI_TFDS,
    ),
    GlueTask(
        'qnli', 'QNLI', ('question', 'sentence'), ('question', 'sentence'), _ENTAILMENT,
        _ACCURACY, {'test': 'QNLI.tsv'},
    ),
    GlueTask(
        'rte', 'RTE', _SENTENCES, _SENTENCES, _ENTAILMENT, _ACCURACY, {'test': 'RTE.tsv'}
    ),
    GlueTask('wnli', 'WNLI', _SENTENCES, _SENTENCES, _BINARY, _ACCURACY, {'test': 'WNLI.tsv'}),
    # The diagnostic set: MNLI's labels, predicted by MNLI's model.
    GlueTask(
        'ax', 'diagnostic', _SENTENCES, _PREMISE, _NLI, ('matthews',), {'test': 'AX.tsv'},
        tfds_labels=_NLI_TFDS,
    ),
)}


def glue_task(name: str) -> GlueTask:
    """The task of that name.

    Raises:
      InputError: there is none.
    """
    if name not in GLUE_TASKS:
        raise InputError(f"'{name}' is no task of GLUE; they are {', '.join(GLUE_TASKS)}")
    return GLUE_TASKS[name]


def read_glue(name: str, data_dir: str, split: str, *, max_malformed: float = 0.01) -> TextExamples:
    """Examples of a split, from the folder of the benchmark.

    Its file is called `SPLIT.tsv`, `SPLIT.jsonl`, `SPLIT.*.tsv` or `SPLIT.*.jsonl`, plain or `.gz`.

    Args:
      name: of the task.
      data_dir: holds `CoLA/`, `MRPC/` and so on.
      split: one of the task's `splits`: train, dev, test; of mnli dev_matched and so on.
      max_malformed: as for `read_glue_file`.

    Raises:
      InputError: an unknown name or split, no such folder or file, or what `read_glue_file` finds.
    """
    path = table.find_file(*_place(name, data_dir, split), _ENDINGS)
    return read_glue_file(
        name, path, labelled=not split.startswith('test'), max_malformed=max_malformed
    )


def read_glue_file(
    name: str, path: str, *, labelled: bool = True, max_malformed: float = 0.01
) -> TextExamples:
    """Examples of one file.

    Args:
      name: of the task.
      path: TSV, or JSON lines if it is called `.jsonl`; plain or `.gz`.
      labelled: whether to read labels.
      max_malformed: share of the rows that may have another number of columns or an empty label;
        one always may, unless this is 0.

    Raises:
      InputError: a missing column, an unknown label, an id that occurs twice, too many malformed
        rows, a file that is empty or cannot be read.
    """
    task = glue_task(name)
    is_json = table.format_of(path) == 'json'
    return read_texts(
        path, Columns(task.fields, 'label', 'idx') if is_json else Columns(
            task.columns, task.label_column, task.id_column, task.headerless),
        (known_names(task.labels) if task.labels else numbers(0, 5)) if labelled else None,
        max_malformed=max_malformed, needs_ids=not (labelled or is_json),
    )


def tfds_split(name: str, split: str) -> tuple[str, str]:
    """Data set and split of tensorflow-datasets: ('mnli', 'dev_matched') -> ('glue/mnli',
    'validation_matched')."""
    return f'glue/{name}', split.replace('dev', 'validation')


def from_tfds(name: str, split: str, records: Iterable[Mapping[str, Any]]) -> TextExamples:
    """Examples out of the records of tensorflow-datasets, in the order of their `idx`.

    Args:
      name: of the task.
      split: as for `read_glue`.
      records: NumPy values by feature, texts as bytes; the labels of test splits are -1.
    """
    task = glue_task(name)
    rows = sorted(records, key=lambda record: int(record['idx']))
    texts = [[bytes(record[field]).decode() for record in rows] for field in task.fields]
    labels = None
    if not split.startswith('test'):
        raw = np.array([record['label'] for record in rows])
        if task.labels:
            order = [task.labels.index(label) for label in task.tfds_labels or task.labels]
            labels = np.array(order, np.int32)[raw]
        else:
            labels = raw.astype(np.float32)
    return TextExamples(
        texts[0], texts[1] if len(texts) == 2 else None, labels,
        [str(int(record['idx'])) for record in rows], f'tfds:glue/{name}:{split}',
    )


def _place(name: str, data_dir: str, split: str) -> tuple[str, list[str]]:
    """(folder, stems) of a split's file."""
    task = glue_task(name)
    if split not in task.splits:
        raise InputError(f"{name} has no split '{split}'; it has {', '.join(task.splits)}")
    if not as_path(data_dir).is_dir():
        raise InputError(f'no folder {data_dir}: name the one that holds {task.folder}/')
    folder = os.path.join(data_dir, task.folder)
    if name != 'ax':
        return folder, [split]
    # One file: diagnostic/diagnostic.tsv in one edition of the download, AX/AX.tsv in another.
    if not as_path(folder).is_dir():
        folder = os.path.join(data_dir, 'AX')
    return folder, ['diagnostic', 'AX']


def open_glue(
    name: str, config: ConfigDict, scored: ScoredModel | None = None
) -> LabelledTask:
    """Trains on train, scores on dev and predicts test where the folder has it.

    MNLI is scored on both dev sets, and predicts the diagnostic set too.
    """
    task = GLUE_TASKS[name]
    if scored is not None and config.data.eval_source:
        mine = read_glue_file(
            name, str(as_path(config.data.eval_source)), max_malformed=config.data.max_malformed)
        return _task(config, task, None, {'dev': mine}, {})
    refuse_eval_source(config, 'the dev files of the folder')
    dev, test = [s for s in task.splits if 'dev' in s], [s for s in task.splits if 'test' in s]
    train = _read(config, name, 'train') if scored is None else None
    evaluated = {s: read for s in dev if (read := _read(config, name, s)) is not None}
    untrained = scored is None and train is None
    if untrained or dev[0] not in evaluated:
        raise InputError(
            f"config.data.source has no {'train' if untrained else dev[0]} split of {name}: "
            f'training needs train and {dev[0]}'
        )
    sources = [(split, name, split) for split in test]
    if name == 'mnli':
        sources.append(('ax', 'ax', 'test'))
    return _task(config, task, train, evaluated, {
        s: read for s, *where in sources if (read := _read(config, *where)) is not None})


def _task(
    config: ConfigDict, task: GlueTask, train: TextExamples | None,
    evaluated: Mapping[str, TextExamples], predicted: Mapping[str, TextExamples],
) -> LabelledTask:
    return text_task(
        config, open_tokenization(config), head='classification' if task.labels else 'regression',
        labels=task.labels, metrics=task.metrics, train=train, evaluated=evaluated,
        predicted=predicted, prefixes={'dev_mismatched': 'mismatched_'},
    )


def _read(config: ConfigDict, name: str, split: str) -> TextExamples | None:
    """A split from the folder `data.source`; None where it has no such file."""
    if config.data.source == 'tfds:glue':
        return from_tfds(name, split, tfds_records(config, *tfds_split(name, split)))
    folder = one_source(
        config, f'the folder of the benchmark, with {glue_task(name).folder}/ in it')
    needed = name == config.task and split == 'train'  # is read in any case, or refused by name
    if not needed and not table.find_files(*_place(name, folder, split), _ENDINGS):
        return None
    return read_glue(name, folder, split, max_malformed=config.data.max_malformed)
