"""BoolQ (Clark et al., 2019) as SuperGLUE has it: does the passage answer the question with yes?"""

from __future__ import annotations

from ml_collections import ConfigDict

from bert_jax.tasks.labelled import LabelledTask, ScoredModel, split_file
from bert_jax.tasks.texts import Names, TextExamples, read_texts, text_task

_LABELS = ('false', 'true')


def open_boolq(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on train.jsonl, scored on val.jsonl, predicting test.jsonl where it is there."""
    def read(split: str) -> TextExamples | None:
        path = split_file(
            config, [f'{split}.jsonl'], 'the folder with train.jsonl and val.jsonl',
            scored=split == 'val', required=split != 'test')
        return read_texts(
            path, ('question', 'passage'), 'label',
            None if split == 'test' else Names(_LABELS, only=True), id_column='idx',
            max_malformed=config.data.max_malformed) if path else None

    sets = {'dev': read('val')} | ({} if config.data.eval_source else {'test': read('test')})
    return text_task(
        config, head='classification', labels=_LABELS, metrics=('accuracy',),
        train=read('train') if scored is None else None, sets=sets)
