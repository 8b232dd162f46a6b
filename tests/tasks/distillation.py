"""Fine-tunes a small model on the probabilities of a large one (Hinton et al., 2015).

    python -m bert_jax.main --config=tests/tasks/distillation.py:runs/large --workdir=runs/small \\
        --config.model.name=tiny --config.data.vocab_file=vocab.txt --config.data.source=glue

The teacher is a run or a Hugging Face folder that classifies SST-2; its vocabulary may differ from
the student's. As in Turc et al. (2019), the sentences' labels are not trained on: `data.source` may
hold many more sentences than the teacher was trained on. The result is an ordinary run of SST-2.
The file is a template to copy: it has another loss and extra features of the examples.

`:mlm:runs/large` pre-trains on a teacher's probabilities for the masked tokens; teacher and student
share a vocabulary. The teacher computes them in every step, without dropout.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import default_config, finetuning_config
from bert_jax.heads.base import Batch, Losses, Outputs
from bert_jax.heads.classification import Classification
from bert_jax.heads.masked_lm_loss import masked_lm_logits
from bert_jax.heads.pretraining import Pretraining
from bert_jax.predict import load
from bert_jax.tasks.glue import open_glue, read_glue
from bert_jax.tasks.opening import OPENERS
from bert_jax.tasks.pretrain import PretrainTask


class Distilled(Classification):
    """Cross-entropy with the teacher's probabilities."""

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        _, correct = super().losses(outputs, batch)
        log_p = jax.nn.log_softmax(outputs['logits'])
        return -jnp.sum(batch['teacher'] * log_p, axis=-1), correct


def pretraining_by(teacher):
    large = functools.cache(lambda: load(teacher))  # not before the hosts have connected

    class DistilledPretraining(Pretraining):
        """Cross-entropy with the teacher's masked-LM probabilities; no next-sentence loss."""

        def loss(self, params, batch, totals, rows_Bx2):
            loss, sums = super().loss(params, batch, totals, rows_Bx2)
            if rows_Bx2 is None:  # evaluation
                return loss, sums
            of_teacher = Pretraining(dataclasses.replace(
                large().config, layout=self.config.layout, attention=self.config.attention))
            log_p, teacher_log_p = (
                jax.nn.log_softmax(masked_lm_logits(head.outputs(*arguments)['mlm_output']))
                for head, arguments in ((self, (params, batch, rows_Bx2)),
                                        (of_teacher, (large().params, batch))))
            losses_BxP = -jnp.sum(jnp.exp(teacher_log_p) * log_p, axis=-1)
            return jnp.sum(losses_BxP * batch['masked_lm_weights']) / totals['masked'], sums

    class DistilledPretrainTask(PretrainTask):
        def make_head(self, model_config):
            return DistilledPretraining(
                model_config, next_sentence=self._config.data.next_sentence)

    return DistilledPretrainTask


def get_config(teacher=''):
    if teacher.startswith('mlm:'):
        OPENERS['pretrain'] = pretraining_by(teacher.removeprefix('mlm:'))
        return default_config()

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
    c = finetuning_config('sst2', init_checkpoint='')
    c.data.source = 'glue'
    return c
