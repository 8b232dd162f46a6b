"""BoolQ (Clark et al., 2019) as SuperGLUE has it: does the passage answer the question with yes?"""

from __future__ import annotations

from ml_collections import ConfigDict

from bert_jax.tasks.labelled import LabelledTask, ScoredModel, one_source, other_file
from bert_jax.tasks.table import find_file, find_files
from bert_jax.tasks.texts import Names, TextExamples, read_texts, text_task

_LABELS = ('false', 'true')


def open_boolq(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on train.jsonl, scored on val.jsonl, predicting test.jsonl where it is there."""
    def read(path: str, labelled: bool = True) -> TextExamples:
        return read_texts(
            path, ('question', 'passage'), 'label',
            Names(_LABELS, only=True) if labelled else None, id_column='idx',
            max_malformed=config.data.max_malformed)

    train, test = None, dict[str, TextExamples]()
    if mine := other_file(config, scored, 'val.jsonl of the folder'):
        dev = read(mine)
    else:
        folder = one_source(config, 'the folder with train.jsonl and val.jsonl')
        train = read(find_file(folder, ['train'], ['jsonl'])) if scored is None else None
        dev = read(find_file(folder, ['val'], ['jsonl']))
        if find_files(folder, ['test'], ['jsonl']):
            test['test'] = read(find_file(folder, ['test'], ['jsonl']), labelled=False)
    return text_task(
        config, head='classification', labels=_LABELS, metrics=('accuracy',), train=train,
        evaluated={'dev': dev}, predicted=test)
