"""The tasks of GLUE (Wang et al., 2018) and their examples, from the benchmark's own files.

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

from bert_jax.labelled import tabular
from bert_jax.labelled.texts import Columns, TextExamples, known_names, numbers, read_texts
from bert_jax.metrics.labels import GLUE_METRICS
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path

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
    submissions: Mapping[str, str]
    label_column: str = 'label'
    id_column: str = 'index'
    headerless: tuple[str, ...] = ()
    tfds_labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """'single' or 'pair': texts an example."""
        return 'pair' if len(self.columns) == 2 else 'single'

    @property
    def table_columns(self) -> Columns:
        return Columns(self.columns, self.label_column, self.id_column, self.headerless)

    @property
    def json_columns(self) -> Columns:
        return Columns(self.fields, 'label', 'idx')

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of its official metrics; the first one chooses the best epoch."""
        return GLUE_METRICS[self.name]

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

GLUE_TASKS: Mapping[str, GlueTask] = {task.name: task for task in (
    GlueTask(
        'cola', 'CoLA', _ONE, _ONE, _BINARY, {'test': 'CoLA.tsv'},
        headerless=('source', 'label', 'mark', 'sentence'),
    ),
    GlueTask('sst2', 'SST-2', _ONE, _ONE, _BINARY, {'test': 'SST-2.tsv'}),
    GlueTask(
        'mrpc', 'MRPC', ('#1 String', '#2 String'), _SENTENCES, _BINARY, {'test': 'MRPC.tsv'},
        label_column='Quality',
    ),
    GlueTask(
        'stsb', 'STS-B', _SENTENCES, _SENTENCES, (), {'test': 'STS-B.tsv'}, label_column='score'
    ),
    GlueTask(
        'qqp', 'QQP', _QUESTIONS, _QUESTIONS, _BINARY, {'test': 'QQP.tsv'},
        label_column='is_duplicate', id_column='id',
        headerless=('id', 'qid1', 'qid2', 'question1', 'question2', 'is_duplicate'),
    ),
    GlueTask(
        'mnli', 'MNLI', _SENTENCES, _PREMISE, _NLI,
        {'test_matched': 'MNLI-m.tsv', 'test_mismatched': 'MNLI-mm.tsv'},
        label_column='gold_label', tfds_labels=_NLI_TFDS,
    ),
    GlueTask(
        'qnli', 'QNLI', ('question', 'sentence'), ('question', 'sentence'), _ENTAILMENT,
        {'test': 'QNLI.tsv'},
    ),
    GlueTask('rte', 'RTE', _SENTENCES, _SENTENCES, _ENTAILMENT, {'test': 'RTE.tsv'}),
    GlueTask('wnli', 'WNLI', _SENTENCES, _SENTENCES, _BINARY, {'test': 'WNLI.tsv'}),
    # The diagnostic set: MNLI's labels, predicted by MNLI's model.
    GlueTask(
        'ax', 'diagnostic', _SENTENCES, _PREMISE, _NLI, {'test': 'AX.tsv'}, tfds_labels=_NLI_TFDS
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


def glue_files(name: str, data_dir: str, split: str) -> list[str]:
    """The files that may be a split's: none where the folder lacks it.

    They are called `SPLIT.tsv`, `SPLIT.jsonl`, `SPLIT.*.tsv` or `SPLIT.*.jsonl`, plain or `.gz`.

    Args:
      name: of the task.
      data_dir: holds `CoLA/`, `MRPC/` and so on.
      split: one of the task's `splits`: train, dev, test; of mnli dev_matched and so on.

    Raises:
      InputError: an unknown name or split, or no such folder.
    """
    return tabular.find_files(*_place(name, data_dir, split), _ENDINGS)


def read_glue(name: str, data_dir: str, split: str, *, max_malformed: float = 0.01) -> TextExamples:
    """Examples of a split, from the folder of the benchmark.

    Args:
      name, data_dir, split: as for `glue_files`.
      max_malformed: as for `read_glue_file`.

    Raises:
      InputError: an unknown name or split, no such folder or file, or what `read_glue_file` finds.
    """
    path = tabular.find_file(*_place(name, data_dir, split), _ENDINGS)
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
    json_lines = tabular.format_of(path) == 'json'
    return read_texts(
        path, task.json_columns if json_lines else task.table_columns,
        (known_names(task.labels) if task.labels else numbers(0, 5)) if labelled else None,
        max_malformed=max_malformed, needs_ids=not (labelled or json_lines),
    )


def tfds_split(name: str, split: str) -> tuple[str, str]:
    """Data set and split of tensorflow-datasets: ('mnli', 'dev_matched') -> ('glue/mnli',
    'validation_matched')."""
    _check_split(name, split)
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
        texts[0], texts[1] if task.kind == 'pair' else None, labels,
        [str(int(record['idx'])) for record in rows], 0, f'tfds:glue/{name}:{split}',
    )


def _check_split(name: str, split: str) -> GlueTask:
    task = glue_task(name)
    if split not in task.splits:
        raise InputError(f"{name} has no split '{split}'; it has {', '.join(task.splits)}")
    return task


def _place(name: str, data_dir: str, split: str) -> tuple[str, list[str]]:
    """(folder, stems) of a split's file."""
    task = _check_split(name, split)
    if not as_path(data_dir).is_dir():
        raise InputError(f'no folder {data_dir}: name the one that holds {task.folder}/')
    folder = os.path.join(data_dir, task.folder)
    if name != 'ax':
        return folder, [split]
    # One file, under its own name in one edition of the download, as AX/AX.tsv in another.
    if not as_path(folder).is_dir():
        folder = os.path.join(data_dir, 'AX')
    return folder, ['diagnostic', 'AX']
