"""GLUE (Wang et al., 2018; BERT paper section 4.1): its tasks, and their examples from its files.

Files lie in the folders of the official download (`CoLA/train.tsv`, ...), plain or gzipped, and are
read without quoting. JSON lines, the Hugging Face hub's data set nyu-mll/glue and the records of
tensorflow-datasets can be read too. All three have the field names of tensorflow-datasets, and
integer labels, in another order for MNLI.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.rows import table
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.runtime.hub import DATASET
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.labelled import LabelledTask
from bert_jax.tasks.labels import (
    LabelFormat,
    LabelParser,
    NumericLabels,
    labels_by_number,
)
from bert_jax.tasks.sources import one_source, tfds_records, warn_of_trained_on
from bert_jax.tasks.texts import TextColumns, TextExamples, TextHead, read_texts, text_task

_PAIR = ('sentence1', 'sentence2')
_ENTAILMENT = ('entailment', 'not_entailment')
_SCORES = NumericLabels(0, 5)


class GlueTask(NamedTuple):
    """One task.

    Attributes:
      name: of the task in configs and in tensorflow-datasets.
      folder: of its files; also the name of its file for the GLUE site.
      texts: columns of its text or its two texts.
      metrics: the official ones; the first is that of Table 1 of the BERT paper, and picks the best
        evaluation.
      labels: label id -> string, in google-research/bert's order; empty: a score from 0 to 5.
      label: column of the label.
      id: column of the ids.
      fields: the texts in JSON lines and in tensorflow-datasets; empty: as `texts`.
      headerless: columns of labelled files that have no header.
      tfds_labels: label id of tensorflow-datasets -> string; empty: as `labels`.
      names: what the hub's data set calls these labels; empty: as they are.
      tests: test split -> name of its file for the GLUE site; empty: one split, and a file named
        after the folder.
    """

    name: str
    folder: str
    texts: tuple[str, ...] = _PAIR
    metrics: tuple[str, ...] = ('accuracy',)
    labels: tuple[str, ...] = ('0', '1')
    label: str = 'label'
    id: str = 'index'
    fields: tuple[str, ...] = ()
    headerless: tuple[str, ...] = ()
    tfds_labels: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    tests: Mapping[str, str] = {}

    @property
    def submissions(self) -> Mapping[str, str]:
        """Test split -> name of its file for the GLUE site."""
        return self.tests or {'test': f'{self.folder}.tsv'}


_MNLI = GlueTask(
    'mnli', 'MNLI', labels=('contradiction', 'entailment', 'neutral'), label='gold_label',
    fields=('premise', 'hypothesis'), tfds_labels=('entailment', 'neutral', 'contradiction'),
    tests={'test_matched': 'MNLI-m.tsv', 'test_mismatched': 'MNLI-mm.tsv'})
_TASKS = (
    GlueTask('cola', 'CoLA', ('sentence',), ('matthews',),
             headerless=('source', 'label', 'mark', 'sentence'),
             names=('unacceptable', 'acceptable')),
    GlueTask('sst2', 'SST-2', ('sentence',), names=('negative', 'positive')),
    GlueTask('mrpc', 'MRPC', ('#1 String', '#2 String'), ('f1', 'accuracy'), label='Quality',
             fields=_PAIR, names=('not_equivalent', 'equivalent')),
    GlueTask('stsb', 'STS-B', metrics=('spearman', 'pearson'), labels=(), label='score'),
    GlueTask('qqp', 'QQP', ('question1', 'question2'), ('f1', 'accuracy'), label='is_duplicate',
             id='id',
             headerless=('id', 'qid1', 'qid2', 'question1', 'question2', 'is_duplicate'),
             names=('not_duplicate', 'duplicate')),
    _MNLI,
    GlueTask('qnli', 'QNLI', ('question', 'sentence'), labels=_ENTAILMENT),
    GlueTask('rte', 'RTE', labels=_ENTAILMENT),
    GlueTask('wnli', 'WNLI', names=('not_entailment', 'entailment')),
    # The diagnostic set: MNLI's labels, predicted by MNLI's model.
    _MNLI._replace(name='ax', folder='diagnostic', metrics=('matthews',), tests={'test': 'AX.tsv'}),
)
GLUE_TASKS: Mapping[str, GlueTask] = {task.name: task for task in _TASKS}


def read_glue(
    name: str, source: str, split: str, *, required: bool = True, max_malformed: float = 0.01
) -> TextExamples | None:
    """Examples of a split, from the folder of the benchmark or another file like its files.

    The file of a split is called `SPLIT.tsv`, `SPLIT.jsonl`, `SPLIT.*.tsv` or `SPLIT.*.jsonl`,
    plain or `.gz`.

    Args:
      name: of the task.
      source: holds `CoLA/`, `MRPC/` and so on; or `hf:datasets/nyu-mll/glue`; or the file, such as
        `hf:datasets/nyu-mll/glue/mrpc/train`.
      split: train, dev, test; of mnli dev_matched and so on.
      required: whether its file has to exist; if not, None is returned for a missing one.
      max_malformed: as for `read_texts`.

    Raises:
      InputError: no such file, or a fault that `read_texts` finds.
    """
    path = _path_of_split(GLUE_TASKS[name], source, split, required)
    if not path:
        return None
    if table.format_of(path) in ('json', 'parquet'):
        return _read_fields(GLUE_TASKS[name], path, split, max_malformed)
    return _read_original(GLUE_TASKS[name], path, split, max_malformed)


def _path_of_split(task: GlueTask, source: str, split: str, required: bool) -> str:
    """The file of a split; '' if it is missing and not required."""
    on_hub = DATASET.fullmatch(source)
    if on_hub and not on_hub[3]:  # all of the data set, not a split
        return f"{source}/{task.name}/{split.replace('dev', 'validation')}"
    if source.startswith('hf:') or as_path(source).is_file():
        return source
    folder = os.path.join(source, task.folder)
    stems = [split]
    if task.name == 'ax':
        # diagnostic/diagnostic.tsv in one edition of the download, AX/AX.tsv in the other.
        stems = ['diagnostic', 'AX']
        if not as_path(folder).is_dir():
            folder = os.path.join(source, 'AX')
    names: list[str] = []
    for stem in stems:
        names += [f'{stem}.tsv', f'{stem}.jsonl']
    return table.find_file(folder, names, required=required)


def _has_labels(split: str) -> bool:
    return not split.startswith('test')


def _read_original(
    task: GlueTask, path: str, split: str, max_malformed: float
) -> TextExamples:
    """A file of the official download."""
    labels: NumericLabels | LabelParser | None = None
    if _has_labels(split):
        labels = _SCORES
        if task.labels:
            labels = LabelParser(task.labels, only=True)
    columns = TextColumns(
        task.texts, task.label, id=task.id, needs_ids=labels is None, headerless=task.headerless)
    return read_texts(path, columns, labels, max_malformed=max_malformed)


def _read_fields(task: GlueTask, path: str, split: str, max_malformed: float) -> TextExamples:
    """JSON lines or Parquet, with the field names and numbered labels of tensorflow-datasets."""
    labels: NumericLabels | LabelParser | None = None
    if _has_labels(split):
        labels = _SCORES
        if task.labels:
            numbered = labels_by_number(path, task.tfds_labels or task.labels, task.names)
            labels = LabelParser(task.labels, only=True, format=LabelFormat(numbered=numbered))
    columns = TextColumns(
        task.fields or task.texts, 'label', id='idx', headerless=task.headerless)
    return read_texts(path, columns, labels, max_malformed=max_malformed)


def from_tfds(name: str, split: str, records: Iterable[Mapping[str, Any]]) -> TextExamples:
    """Examples from the records of tensorflow-datasets, in the order of their `idx`.

    Args:
      name: of the task.
      split: as for `read_glue`.
      records: NumPy values by feature, texts as bytes; the labels of test splits are -1.
    """
    task = GLUE_TASKS[name]
    rows = sorted(records, key=lambda record: int(record['idx']))
    texts: list[list[str]] = []
    for field in task.fields or task.texts:
        texts.append([bytes(row[field]).decode() for row in rows])
    labels = None
    if _has_labels(split):
        labels = _labels_of_tfds(task, rows)
    ids = [str(int(row['idx'])) for row in rows]
    return TextExamples(texts, labels, ids, f'tfds:glue/{name}:{split}')


def _labels_of_tfds(task: GlueTask, rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Label ids in the task's order, int32, or scores, float32."""
    values = [row['label'] for row in rows]
    raw = np.array(values)
    if not task.labels:
        return raw.astype(np.float32)
    order = list(map(task.labels.index, task.tfds_labels or task.labels))
    return np.array(order, np.int32)[raw]


def open_glue(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on train, scored on dev, predicting test if the folder has it.

    MNLI is scored on both dev sets, and predicts the diagnostic set too. If `data.eval_source` is
    set, only that file is scored, and nothing else is predicted.
    """
    task = GLUE_TASKS[config.task]
    if config.data.eval_source:
        path = str(as_path(config.data.eval_source))
        sets = {'dev': read_glue(task.name, path, 'dev', max_malformed=config.data.max_malformed)}
    else:
        sets = _read_sets(config, task)
    train = None
    if scored is None:
        train = _read_split(config, task, 'train', required=True)
    dev = sets.get('dev')
    if train is not None and dev is not None and config.data.eval_source:
        warn_of_trained_on(config, train.wholes(), dev.wholes())
    head_name = 'classification'
    if not task.labels:
        head_name = 'regression'
    head = TextHead(head_name, task.labels, task.metrics)
    return text_task(config, head=head, train=train, sets=sets)


def _read_sets(config: ConfigDict, task: GlueTask) -> dict[str, TextExamples | None]:
    """The splits of `data.source` that are scored, then those that are predicted."""
    tests = list(task.submissions)
    devs = [split.replace('test', 'dev') for split in tests]  # dev, or dev_matched and so on
    sets: dict[str, TextExamples | None] = {}
    for split in devs + tests:
        sets[split] = _read_split(config, task, split, required=split == devs[0])
    if task.name == 'mnli':
        sets['ax'] = _read_split(config, GLUE_TASKS['ax'], 'test', required=False)
    return sets


def _read_split(
    config: ConfigDict, task: GlueTask, split: str, *, required: bool
) -> TextExamples | None:
    """A split of `data.source`; None if it has no file and is not required."""
    if config.data.source == 'tfds:glue':
        on_tfds = split.replace('dev', 'validation')
        return from_tfds(task.name, split, tfds_records(config, f'glue/{task.name}', on_tfds))
    source = one_source(config, f'the folder of the benchmark, with {task.folder}/ in it')
    on_hub = DATASET.fullmatch(source)
    if on_hub:  # it may name this task, or a split of it
        source = source[: on_hub.start(3)].rstrip('/')
    if split != 'train' and as_path(source).is_file():
        raise InputError('config.data.eval_source is empty: name the file to evaluate on')
    return read_glue(
        task.name, source, split, required=required, max_malformed=config.data.max_malformed)
