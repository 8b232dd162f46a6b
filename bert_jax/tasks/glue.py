"""GLUE (Wang et al., 2018; BERT paper section 4.1): its tasks, and their examples from its files.

Files lie in the folders of the official download (`CoLA/train.tsv`, ...), plain or gzipped, and are
read without quoting. JSON lines, the Hugging Face hub's data set nyu-mll/glue and the records of
tensorflow-datasets can be read too. All three have the field names of tensorflow-datasets, and
integer labels, in another order for MNLI.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.data import table
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.runtime.hub import DATASET
from bert_jax.tasks import labelled
from bert_jax.tasks.labelled import LabelledTask, ScoredModel
from bert_jax.tasks.texts import LabelParser, NumericLabels, TextExamples, read_texts, text_task

_PAIR = ('sentence1', 'sentence2')
_ENTAILMENT = ('entailment', 'not_entailment')


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
    tests: Mapping[str, str] = {}

    @property
    def submissions(self) -> Mapping[str, str]:
        """Test split -> name of its file for the GLUE site."""
        return self.tests or {'test': f'{self.folder}.tsv'}


_MNLI = GlueTask(
    'mnli', 'MNLI', labels=('contradiction', 'entailment', 'neutral'), label='gold_label',
    fields=('premise', 'hypothesis'), tfds_labels=('entailment', 'neutral', 'contradiction'),
    tests={'test_matched': 'MNLI-m.tsv', 'test_mismatched': 'MNLI-mm.tsv'})
GLUE_TASKS: Mapping[str, GlueTask] = {task.name: task for task in (
    GlueTask('cola', 'CoLA', ('sentence',), ('matthews',),
             headerless=('source', 'label', 'mark', 'sentence')),
    GlueTask('sst2', 'SST-2', ('sentence',)),
    GlueTask('mrpc', 'MRPC', ('#1 String', '#2 String'), ('f1', 'accuracy'), label='Quality',
             fields=_PAIR),
    GlueTask('stsb', 'STS-B', metrics=('spearman', 'pearson'), labels=(), label='score'),
    GlueTask('qqp', 'QQP', ('question1', 'question2'), ('f1', 'accuracy'), label='is_duplicate',
             id='id',
             headerless=('id', 'qid1', 'qid2', 'question1', 'question2', 'is_duplicate')),
    _MNLI,
    GlueTask('qnli', 'QNLI', ('question', 'sentence'), labels=_ENTAILMENT),
    GlueTask('rte', 'RTE', labels=_ENTAILMENT),
    GlueTask('wnli', 'WNLI'),
    # The diagnostic set: MNLI's labels, predicted by MNLI's model.
    _MNLI._replace(name='ax', folder='diagnostic', metrics=('matthews',), tests={'test': 'AX.tsv'}),
)}


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
    task, has_labels = GLUE_TASKS[name], not split.startswith('test')
    path, folder, stems = source, os.path.join(source, task.folder), [split]
    if name == 'ax':  # diagnostic/diagnostic.tsv in one edition of the download, else AX/AX.tsv
        stems = ['diagnostic', 'AX']
        folder = folder if as_path(folder).is_dir() else os.path.join(source, 'AX')
    if (on_hub := DATASET.fullmatch(source)) and not on_hub[3]:  # all of it, not a split
        path = f"{source}/{name}/{split.replace('dev', 'validation')}"
    elif not source.startswith('hf:') and not as_path(source).is_file():
        names = [f'{stem}.{ending}' for stem in stems for ending in ('tsv', 'jsonl')]
        path = table.find_file(folder, names, required=required)
    if not path:
        return None
    has_fields = table.format_of(path) in ('json', 'parquet')
    named = LabelParser(task.labels, only=True)
    named.numbered = task.tfds_labels or task.labels if has_fields else ()
    labels = named if task.labels else NumericLabels(0, 5)
    return read_texts(
        path, task.fields or task.texts if has_fields else task.texts,
        'label' if has_fields else task.label, labels if has_labels else None,
        id_column='idx' if has_fields else task.id, needs_ids=not (has_labels or has_fields),
        headerless=task.headerless, max_malformed=max_malformed)


def from_tfds(name: str, split: str, records: Iterable[Mapping[str, Any]]) -> TextExamples:
    """Examples from the records of tensorflow-datasets, in the order of their `idx`.

    Args:
      name: of the task.
      split: as for `read_glue`.
      records: NumPy values by feature, texts as bytes; the labels of test splits are -1.
    """
    task = GLUE_TASKS[name]
    rows = sorted(records, key=lambda record: int(record['idx']))
    labels = None
    if not split.startswith('test'):
        raw = np.array([record['label'] for record in rows])
        order = [task.labels.index(label) for label in task.tfds_labels or task.labels]
        labels = np.array(order, np.int32)[raw] if order else raw.astype(np.float32)
    return TextExamples(
        [[bytes(record[field]).decode() for record in rows] for field in task.fields or task.texts],
        labels, [str(int(record['idx'])) for record in rows], f'tfds:glue/{name}:{split}')


def open_glue(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on train, scored on dev, predicting test if the folder has it.

    MNLI is scored on both dev sets, and predicts the diagnostic set too. If `data.eval_source` is
    set, only that file is scored, and nothing else is predicted.
    """
    d, task = config.data, GLUE_TASKS[config.task]
    tests = list(task.submissions)
    dev = [split.replace('test', 'dev') for split in tests]  # dev, or dev_matched and so on

    def read(split: str, name: str = task.name) -> TextExamples | None:
        """A split of `data.source`; None if an optional split has no file."""
        if d.source == 'tfds:glue':
            return from_tfds(name, split, labelled.tfds_records(
                config, f'glue/{name}', split.replace('dev', 'validation')))
        folder = labelled.one_source(
            config, f'the folder of the benchmark, with {task.folder}/ in it')
        if on_hub := DATASET.fullmatch(folder):  # it may name this task, or a split of it
            folder = folder[: on_hub.start(3)].rstrip('/')
        if split != 'train' and as_path(folder).is_file():
            raise InputError('config.data.eval_source is empty: name the file to evaluate on')
        return read_glue(name, folder, split, required=split in ('train', dev[0]),
                         max_malformed=d.max_malformed)

    if d.eval_source:
        sets = {'dev': read_glue(
            task.name, str(as_path(d.eval_source)), 'dev', max_malformed=d.max_malformed)}
    else:
        sets = {split: read(split) for split in (*dev, *tests)}
    if task.name == 'mnli' and not d.eval_source:
        sets['ax'] = read('test', 'ax')
    return text_task(
        config, head='classification' if task.labels else 'regression', labels=task.labels,
        metrics=task.metrics, train=read('train') if scored is None else None, sets=sets)
