"""GLUE (paper section 4.1): its tasks are the rows of `labelled.glue.GLUE_TASKS`."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from ml_collections import ConfigDict

from bert_jax.labelled import glue
from bert_jax.labelled.texts import TextExamples
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.tasks.base import ScoredModel, TaskKind, register
from bert_jax.tasks.labelled import (
    LabelledTask,
    one_source,
    open_tokenization,
    refuse_eval_source,
    tfds_records,
)
from bert_jax.tasks.texts import text_task


def open_glue(
    name: str, config: ConfigDict, scored: ScoredModel | None = None
) -> LabelledTask:
    """Trained on train, scored on dev, predicting test where it is there.

    MNLI is scored on both dev sets, and predicts the diagnostic set too.
    """
    task = glue.GLUE_TASKS[name]
    if scored is not None and config.data.eval_source:
        mine = glue.read_glue_file(
            name, str(as_path(config.data.eval_source)), max_malformed=config.data.max_malformed)
        return _task(config, task, None, {'dev': mine}, {})
    refuse_eval_source(config, 'the dev files of the folder')
    dev, test = [s for s in task.splits if 'dev' in s], [s for s in task.splits if 'test' in s]
    train = _read(config, name, 'train') if scored is None else None
    evaluated = {s: found for s in dev if (found := _read(config, name, s)) is not None}
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
        s: found for s, *where in sources if (found := _read(config, *where)) is not None})


def _task(
    config: ConfigDict, task: glue.GlueTask, train: TextExamples | None,
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
        records = tfds_records(config, *glue.tfds_split(name, split))
        return glue.from_tfds(name, split, records)
    folder = one_source(
        config, f'the folder of the benchmark, with {glue.glue_task(name).folder}/ in it'
    )
    needed = name == config.task and split == 'train'  # is read in any case, or refused by name
    if not needed and not glue.glue_files(name, folder, split):
        return None
    return glue.read_glue(name, folder, split, max_malformed=config.data.max_malformed)


register(*(
    TaskKind(name, functools.partial(open_glue, name))
    for name in glue.GLUE_TASKS if name != 'ax'  # that has no training set
))
