"""BoolQ (Clark et al., 2019) as SuperGLUE has it: does the passage answer the question with yes?"""

from __future__ import annotations

from ml_collections import ConfigDict

from bert_jax.data import tabular
from bert_jax.data.texts import Columns, TextExamples, known_names, read_texts
from bert_jax.tasks.base import TaskKind, register
from bert_jax.tasks.labelled import (
    LabelledTask,
    one_source,
    open_tokenization,
    refuse_eval_source,
)
from bert_jax.tasks.texts import text_task

_COLUMNS = Columns(('question', 'passage'), 'label', 'idx')
_LABELS = ('false', 'true')


def open_boolq(config: ConfigDict) -> LabelledTask:
    """Trained on train.jsonl, scored on val.jsonl, predicting test.jsonl where it is there."""
    refuse_eval_source(config, 'val.jsonl of the folder')
    folder = one_source(config, 'the folder with train.jsonl and val.jsonl')

    def read(split: str, labelled: bool = True) -> TextExamples:
        return read_texts(
            tabular.find_file(folder, [split], ['jsonl']), _COLUMNS,
            known_names(_LABELS) if labelled else None, max_malformed=config.data.max_malformed,
        )

    predicted = {}
    if tabular.find_files(folder, ['test'], ['jsonl']):
        predicted['test'] = read('test', labelled=False)
    return text_task(
        config, open_tokenization(config), head='classification', labels=_LABELS,
        metrics=('accuracy',), train=read('train'), evaluated={'dev': read('val')},
        predicted=predicted,
    )


register(TaskKind('boolq', open_boolq))
