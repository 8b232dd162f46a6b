"""Fine-tunes a small model on the probabilities of a large one (Hinton et al., 2015).

    python -m bert_jax.main --config=tests/tasks/distillation.py:runs/large --workdir=runs/small \\
        --config.model.name=tiny --config.data.vocab_file=vocab.txt --config.data.source=glue

The teacher is a run or a Hugging Face folder that classifies SST-2, with a vocabulary of its own.
As in Turc et al. (2019), the labels of the sentences are not used: `data.source` may hold many more
than the teacher was trained on. The run is one of SST-2 like any other. Another loss and further
features of the examples in one file, for copying.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import finetuning_config
from bert_jax.heads.base import Batch, Losses, Outputs
from bert_jax.heads.classification import Classification
from bert_jax.predict import load
from bert_jax.tasks.glue import open_glue, read_glue
from bert_jax.tasks.opening import OPENERS


class Distilled(Classification):
    """Cross-entropy with the teacher's probabilities."""

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        _, correct = super().losses(outputs, batch)
        log_p = jax.nn.log_softmax(outputs['logits'])
        return -jnp.sum(batch['teacher'] * log_p, axis=-1), correct


def get_config(teacher=''):
    def open_distilled(config, scored=None):
        task = open_glue(config, scored)
        if scored:
            return task
        (sentences,) = read_glue(config.task, config.data.source, 'train').texts
        found = load(teacher).classify(sentences)
        p_nxL = np.array([[x['probabilities'][label] for label in task.labels] for x in found])
        labels = {**task.train.labels, 'teacher': p_nxL.astype(np.float32)}
        return dataclasses.replace(
            task, train=dataclasses.replace(task.train, labels=labels), trained_as=Distilled)

    OPENERS['sst2'] = open_distilled
    c = finetuning_config('sst2')
    c.data.source = 'glue'
    return c
