"""Opens a task as a run does: its text is prepared first."""

from bert_jax.corpus.preparing import prepare
from bert_jax.tasks import opening
from bert_jax.tasks.pretrain_data import TextData


def open_task(config, scored=None):
    """The task of a completed config."""
    return opening.open_task(config, prepare(config), scored)


def text_data(config):
    """The rows of a completed config of pre-training."""
    return TextData(config, prepare(config))
