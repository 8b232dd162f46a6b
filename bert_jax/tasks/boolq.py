"""BoolQ (Clark et al., 2019) as SuperGLUE has it: does the passage answer the question with yes?"""

from __future__ import annotations

import functools

from ml_collections import ConfigDict

from bert_jax.runtime.files import as_path
from bert_jax.tasks.labelled import (
    LabelledTask,
    ScoredModel,
    one_source,
    open_tokenization,
    refuse_eval_source,
)
from bert_jax.tasks.table import find_file, find_files
from bert_jax.tasks.texts import Columns, TextExamples, known_names, read_texts, text_task

_COLUMNS = Columns(('question', 'passage'), 'label', 'idx')
_LABELS = ('false', 'true')


def open_boolq(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on train.jsonl, scored on val.jsonl, predicting test.jsonl where it is there."""
    def read(path: str, labelled: bool = True) -> TextExamples:
        return read_texts(
            path, _COLUMNS, known_names(_LABELS) if labelled else None,
            max_malformed=config.data.max_malformed,
        )

    task = functools.partial(
        text_task, config, open_tokenization(config), head='classification', labels=_LABELS,
        metrics=('accuracy',),
    )
    if scored is not None and config.data.eval_source:
        mine = read(str(as_path(config.data.eval_source)))
        return task(train=None, evaluated={'dev': mine}, predicted={})
    refuse_eval_source(config, 'val.jsonl of the folder')
    folder = one_source(config, 'the folder with train.jsonl and val.jsonl')
    files = {
        split: find_file(folder, [split], ['jsonl']) for split in ('train', 'val', 'test')
        if split != 'test' or find_files(folder, ['test'], ['jsonl'])
    }
    return task(
        train=read(files['train']) if scored is None else None,
        evaluated={'dev': read(files['val'])},
        predicted={'test': read(files['test'], labelled=False)} if 'test' in files else {},
    )
