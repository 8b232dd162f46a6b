"""SuperGLUE (Wang et al., 2019): BoolQ, CB, COPA, RTE and WiC, from its files or the hub.

Files lie in the folders of the official download (`CB/train.jsonl`, `CB/val.jsonl`, ...). The hub's
data set aps/super_glue has the same fields, with numbered labels. MultiRC, ReCoRD and WSC, which
need several answers or spans, are not here.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.rows import table
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.runtime.hub import split_of
from bert_jax.tasks.choices import choice_task
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.labelled import LabelledTask
from bert_jax.tasks.labels import LabelFormat, LabelParser
from bert_jax.tasks.sources import one_source, warn_of_trained_on
from bert_jax.tasks.texts import TextExamples, TextHead, text_task

_PREFIX = 'superglue_'
_TRUTH = ('false', 'true')
# What COPA asks of a premise.
_QUESTIONS = {'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}


class SuperGlueTask(NamedTuple):
    """One task.

    Attributes:
      folder: of its files.
      fields: those that its texts are made of.
      labels: label id -> string, in the hub's order; empty: the index of the right choice.
      metrics: the first picks the best evaluation.
      texts: from the fields of an example to its texts; None: they are the texts.
    """

    folder: str
    fields: tuple[str, ...]
    labels: tuple[str, ...] = _TRUTH
    metrics: tuple[str, ...] = ('accuracy',)
    texts: Callable[..., list[str]] | None = None


def _word_in_both(word: str, first: str, second: str) -> list[str]:
    """WiC: whether the word means the same in both sentences; it stands before the first."""
    return [f'{word}: {first}', second]


def _question_of(premise: str, question: str, *choices: str) -> list[str]:
    """COPA: a premise with its question, and the choices."""
    if question not in _QUESTIONS:
        raise table.Malformed(f"question '{question:.60}' is neither cause nor effect")
    return [f'{premise} {_QUESTIONS[question]}', *choices]


SUPERGLUE_TASKS: Mapping[str, SuperGlueTask] = {
    'boolq': SuperGlueTask('BoolQ', ('question', 'passage')),
    'cb': SuperGlueTask(
        'CB', ('premise', 'hypothesis'), ('entailment', 'contradiction', 'neutral'),
        ('accuracy', 'macro_f1')),
    'copa': SuperGlueTask(
        'COPA', ('premise', 'question', 'choice1', 'choice2'), (), texts=_question_of),
    'rte': SuperGlueTask('RTE', ('premise', 'hypothesis'), ('entailment', 'not_entailment')),
    'wic': SuperGlueTask('WiC', ('word', 'sentence1', 'sentence2'), texts=_word_in_both),
}
TASK_NAMES = tuple(_PREFIX + name for name in SUPERGLUE_TASKS)


def open_superglue(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on train, scored on val."""
    name = config.task.removeprefix(_PREFIX)
    dev = _read_split(config, name, 'dev')
    train = None
    if scored is None:
        train = _read_split(config, name, 'train')
        if config.data.eval_source:
            warn_of_trained_on(config, train.wholes(), dev.wholes())
    task = SUPERGLUE_TASKS[name]
    if not task.labels:
        return choice_task(config, train, dev)
    head = TextHead('classification', task.labels, task.metrics)
    return text_task(config, head=head, train=train, sets={'dev': dev})


def _read_split(config: ConfigDict, name: str, split: str) -> TextExamples:
    return read_superglue(
        name, _path_of_split(config, name, split), max_malformed=config.data.max_malformed)


def _path_of_split(config: ConfigDict, name: str, split: str) -> str:
    """The file of a split; raises InputError if there is none."""
    if split == 'dev' and config.data.eval_source:
        return str(as_path(config.data.eval_source))
    folder = SUPERGLUE_TASKS[name].folder
    source = one_source(config, f'the folder of the benchmark, with {folder}/ in it')
    on_hub = split_of(source, f"{name}/{split.replace('dev', 'validation')}")
    if on_hub:
        return on_hub
    if source.startswith('hf:') or as_path(source).is_file():
        if split == 'dev':
            raise InputError('config.data.eval_source is empty: name the file to evaluate on')
        return source
    stems = ['val', 'dev', 'validation'] if split == 'dev' else ['train']
    return table.find_file(os.path.join(source, folder), [f'{stem}.jsonl' for stem in stems])


def read_superglue(name: str, path: str, *, max_malformed: float = 0.01) -> TextExamples:
    """The examples of a file with labels.

    Args:
      name: of the task.
      path: of JSON lines, or Parquet with numbered labels.
      max_malformed: as for `read_texts`.

    Raises:
      InputError: a missing field, an unknown label, too many malformed rows, or no such file.
    """
    task = SUPERGLUE_TASKS[name]
    names = task.labels or ('0', '1')
    labels = LabelParser(names, only=True, format=LabelFormat(numbered=names))

    def parse(cells: list[Any]) -> tuple[list[str], Any]:
        texts = table.texts_of(cells[:-1])
        if task.texts is not None:
            texts = task.texts(*texts)
        return texts, labels.parse(cells[-1])

    rows = table.read_table(
        path, [*task.fields, 'label'], parse, id_column='idx', optional=['idx'],
        max_malformed=max_malformed)
    columns: Sequence[Sequence[str]] = list(zip(*(texts for texts, _ in rows.values), strict=True))
    return TextExamples(
        columns, np.asarray(labels.array([label for _, label in rows.values])), rows.ids, path)
