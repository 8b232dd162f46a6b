"""All tasks by name, with the function that opens their data. Nothing else lists them.

A config file can add a task of its own or replace one (docs/tasks.md, "A task or a loss of your
own").
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config.fields import PRETRAINING
from bert_jax.heads.base import Head
from bert_jax.rows.prepared import Prepared
from bert_jax.run.description import OwnFile
from bert_jax.runtime.files import as_path
from bert_jax.tasks.choices import open_choices, open_swag
from bert_jax.tasks.glue import GLUE_TASKS, open_glue
from bert_jax.tasks.handles import ScoredModel, given
from bert_jax.tasks.own_texts import open_classification, open_regression
from bert_jax.tasks.pretrain import PretrainTask
from bert_jax.tasks.reranking import open_reranking
from bert_jax.tasks.retrieval import open_retrieval, open_stsb
from bert_jax.tasks.squad import open_squad
from bert_jax.tasks.superglue import TASK_NAMES, open_superglue
from bert_jax.tasks.tagging import open_conll, open_tagging
from bert_jax.train.task import Task

# The diagnostic set has no training set.
_TRAINED_GLUE_TASKS = [name for name in GLUE_TASKS if name != 'ax']
# Each reads the data of a completed config. For a model that is only scored, downstream tasks leave
# out the training data.
TASKS: dict[str, Callable[[ConfigDict, ScoredModel | None], Task]] = {
    'pretrain': PretrainTask,
    'synthetic': PretrainTask,
    'classification': open_classification,
    'regression': open_regression,
    'multiple_choice': open_choices,
    'tagging': open_tagging,
    'squad_v1': open_squad,
    'squad_v2': open_squad,
    'conll': open_conll,
    'swag': open_swag,
    'retrieval': open_retrieval,
    'retrieval_stsb': open_stsb,
    'reranking': open_reranking,
    **dict.fromkeys(_TRAINED_GLUE_TASKS, open_glue),
    **dict.fromkeys(TASK_NAMES, open_superglue),
}
OPENERS = TASKS  # its old name, by which config files of users add theirs
SHIPPED = frozenset(TASKS)  # before a config file adds its own


def own_file(task: str, head: type[Head]) -> OwnFile | None:
    """The file that defines a run's head or opens its task; None: both are the package's.

    Args:
      task: name.
      head: the class with its loss.
    """
    opener: Any = TASKS[task]
    for definition in (head, getattr(opener, 'func', opener)):
        module = sys.modules.get(definition.__module__)
        path = getattr(module, '__file__', None)
        if path and definition.__module__.partition('.')[0] != 'bert_jax':
            return OwnFile(as_path(path), as_path(path).read_bytes())
    return None


def add_pretraining(name: str, head: type[Head], **arguments: Any) -> None:
    """Adds the tasks pretrain_NAME, and synthetic_NAME on random tokens, which train this head.

    Data, phases, packing and evaluation are those of pre-training: a batch has the features of
    `rows.examples.pretrain_spec`, or, packed, of `rows.packed_examples.packed_spec`. Tools that
    need no text, such as preflight, take the second task.

    Args:
      name: of the tasks.
      head: with its loss, metric, `loss_of_chance` and `flops`.
      **arguments: fields of the head besides the encoder's config.
    """
    for kind in PRETRAINING:
        TASKS[f'{kind}_{name}'] = functools.partial(
            PretrainTask, trained_as=head, arguments=arguments)


def open_task(
    config: ConfigDict, prepared: Prepared | None, scored: ScoredModel | None = None
) -> Task:
    """The task of a completed config, with its data open.

    Args:
      config: of the run, valid.
      prepared: its text, from `corpus.preparing.prepare`.
      scored: the model, if it is only scored; None: it is trained.

    Raises:
      InputError: bad data.
    """
    with given(prepared):
        return TASKS[config.task](config, scored)
