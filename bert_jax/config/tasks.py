"""What each task has of the config, as plain data: its section, and which shared fields it reads.

A task without a row has no section and reads no field of files of your own, as GLUE's. The tasks
themselves are in `bert_jax/tasks`, and all their names in `tasks/opening.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class TaskFields:
    """What a task has of the config.

    Attributes:
      section: name of its own section; empty: it has none.
      fields: defaults of the section.
      phased: whether the run may have several phases, of rows with masked positions.
      reads: which fields that say what is where in files of your own.
    """

    section: str = ''
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    phased: bool = False
    reads: tuple[str, ...] = ()


_TEXTS = {
    # Names between commas, the first picks the best evaluation; empty: the usual ones.
    'metrics': '',
    # What becomes of a text longer than data.max_seq_length where it is predicted: first, it is
    # cut, as in training | mean, max: it is read in windows, whose probabilities are combined.
    # Empty: first; of a model that is only evaluated, as it had it.
    'windows': '',
}
_CLASSIFICATION = {
    'multi_label': False,  # any number of labels an example
    'separator': ',',  # between them, where they stand in one cell
    **_TEXTS,
}
_TAGGING = {
    # Neighbouring sentences of the document fill the window.
    'document_context': False,
    # Empty: fine-tuned; else features of a frozen encoder for a BiLSTM (paper table 7): one of
    # model.bilstm.FEATURES.
    'features': '',
}
_SQUAD = TaskFields('squad', {
    'doc_stride': 128,  # pieces from one window of a long text to the next
    'max_query_length': 64,  # pieces of a question
})
_COLUMNS = ('data.text', 'data.text_pair', 'data.label', 'data.id', 'data.held_out')

TASK_FIELDS: Mapping[str, TaskFields] = {
    'pretrain': TaskFields(phased=True, reads=(
        'data.held_out', 'data.text', 'data.text_pair', 'data.label')),
    'synthetic': TaskFields(phased=True, reads=('data.held_out',)),
    'classification': TaskFields('classification', _CLASSIFICATION, reads=_COLUMNS),
    'regression': TaskFields('regression', _TEXTS, reads=_COLUMNS),
    'multiple_choice': TaskFields(
        reads=('data.text', 'data.choices', 'data.label', 'data.id', 'data.held_out')),
    'conll': TaskFields('conll', _TAGGING),
    'tagging': TaskFields(
        'tagging', _TAGGING, reads=('data.text', 'data.label', 'data.held_out')),
    'squad_v1': _SQUAD,
    'squad_v2': _SQUAD,
}


def task_fields(task: str) -> TaskFields:
    """What a task has of the config; of an unknown one nothing, which `validate` refuses."""
    return TASK_FIELDS.get(task, TaskFields())
