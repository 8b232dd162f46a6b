"""A small model learns from a large one (Hinton et al., 2015): its probabilities, or its vectors.

    python -m bert_jax.main --config=configs/distillation.py:runs/large --workdir=runs/small \\
        --config.model.name=tiny --config.data.vocab_file=vocab.txt --config.data.source=glue
    python -m bert_jax.main --config=configs/distillation.py:vectors:DIR --workdir=runs/small \\
        --config.model.name=mini --config.data.vocab_file=vocab.txt --config.data.source=texts.csv
    python -m bert_jax.main --config=configs/distillation.py:mlm:runs/large --workdir=runs/small \\
        --config.model.name=tiny --config.data.vocab_file=vocab.txt --config.data.source=text.txt

The teacher is a run or a Hugging Face folder. `:TEACHER` classifies SST-2; its vocabulary may
differ from the student's. As in Turc et al. (2019), the sentences' labels are not trained on:
`data.source` may hold many more sentences than the teacher was trained on. The result is an
ordinary run of SST-2.

`:vectors:TEACHER` learns the teacher's vectors of any texts, one a row of a table (Reimers and
Gurevych, 2020: in their squared error). A linear layer takes the student's means to the teacher's
size; only evaluation needs it, since cosines of the means themselves serve. The metric is the mean
cosine with the teacher's vectors on texts that are held out.

`:mlm:TEACHER` pre-trains on a teacher's probabilities for the masked tokens; teacher and student
share a vocabulary. The teacher computes them in every step, without dropout.

The file is a template to copy: it has other losses, extra features of the examples, and a head
with a parameter of its own.

    R: rows, K: texts a row, H: hidden_size, D: columns of the teacher's vectors, n: texts,
    L: labels, P: slots
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import bert_jax
from bert_jax.config import default_config, finetuning_config
from bert_jax.heads import base
from bert_jax.heads.classification import Classification
from bert_jax.heads.masked_lm_loss import masked_lm_logits
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import Dense, ModelConfig
from bert_jax.rows.packing import Units
from bert_jax.rows.sequences import make_sequences
from bert_jax.tasks.glue import open_glue, read_glue
from bert_jax.tasks.labelled import EvalSet, LabelledTask, open_tokenization
from bert_jax.tasks.opening import TASKS, add_pretraining
from bert_jax.tasks.sources import own_files
from bert_jax.tasks.texts import TextColumns, read_texts


@dataclasses.dataclass(frozen=True)
class Distilled(Classification):
    """Cross-entropy with the teacher's probabilities."""

    def losses(self, outputs: base.Outputs, batch: base.Batch) -> base.Losses:
        _, correct = super().losses(outputs, batch)
        log_p = jax.nn.log_softmax(outputs['logits'])
        return -jnp.sum(batch['teacher'] * log_p, axis=-1), correct


def open_sst2(teacher, config, scored=None):
    task = open_glue(config, scored)
    if scored:
        return task
    (sentences,) = read_glue(config.task, config.data.source, 'train').texts
    found = bert_jax.load(teacher).classify(sentences)
    p_nxL = np.array([[x['probabilities'][label] for label in task.labels] for x in found])
    labels = {**task.train.labels, 'teacher': p_nxL.astype(np.float32)}
    return dataclasses.replace(
        task, train=dataclasses.replace(task.train, labels=labels), trained_as=Distilled)


class ProjectedMeans(nn.Module):
    """A linear layer [R, K, D] on the mean token vectors of the texts of a row."""

    config: ModelConfig
    num_outputs: int

    def setup(self):
        self.bert = Bert(self.config, pooled=False)
        self.projection = Dense(
            self.config, (self.config.hidden_size,), (self.num_outputs,), ('embed',), (None,))

    def __call__(self, batch: base.Batch, dropout_keys_Bx2: base.Keys = None) -> jax.Array:
        x_RxSxH = base.encode(self.bert, None, batch, dropout_keys_Bx2)
        return self.projection.logits(base.mean_vectors(x_RxSxH, batch))


@dataclasses.dataclass(frozen=True)
class DistilledVectors(base.Head):
    """Mean squared error to the teacher's vectors."""

    name = 'distilled_vectors'  # of no head of the package: its projection is known here alone
    shown = {'squared_error': 'error'}

    @property
    def module(self):
        return ProjectedMeans(self.config, self.num_outputs)

    def losses(self, outputs: base.Outputs, batch: base.Batch) -> base.Losses:
        return jnp.mean(jnp.square(outputs['logits'] - batch['teacher']), axis=-1), None

    def score(self, sums):
        return {'squared_error': sums['loss_sum'] / max(sums['units'], 1.0)}


def open_vectors(teacher, config, scored=None):
    tokenization = open_tokenization(config)
    model = bert_jax.load(teacher)
    data = config.data

    def read(path):
        return read_texts(
            path, TextColumns([data.text or 'text'], label='', id=data.id, needs_ids=True), None,
            max_malformed=data.max_malformed, keep_empty=False)

    def units(examples):
        (texts,) = examples.texts
        sequences = make_sequences(
            tokenization.encode(texts), None, max_length=data.max_seq_length,
            frame=tokenization.frame)
        return Units(sequences, labels={'teacher': model.vectors(texts)})

    train, dev = own_files(config, scored, read, lambda examples: examples.texts[0])
    scored_units = units(dev)

    def results(outputs):
        return {'cosine': mean_cosine(outputs['logits'], scored_units.labels['teacher'])}, {}

    return LabelledTask(
        config, tokenization, train=None if train is None else units(train),
        evaluated=(EvalSet('', scored_units, results),), metric='cosine',
        head=DistilledVectors.name, trained_as=DistilledVectors,
        arguments={'num_outputs': model.config.hidden_size},
        inference={'pool': 'mean', 'normalize': True})


def mean_cosine(a_nxD, b_nxD):
    lengths = np.linalg.norm(a_nxD, axis=1) * np.linalg.norm(b_nxD, axis=1)
    return float((np.einsum('nD,nD->n', a_nxD, b_nxD) / np.maximum(lengths, 1e-12)).mean())


def distilled_pretraining(teacher):
    """The head of `:mlm:TEACHER`."""
    large = functools.cache(lambda: bert_jax.load(teacher))  # not before the hosts have connected

    @dataclasses.dataclass(frozen=True)
    class DistilledPretraining(Pretraining):
        """Cross-entropy with the teacher's masked-LM probabilities; no next-sentence loss."""

        def loss(self, params, batch, totals, dropout_keys_Bx2):
            loss, sums = super().loss(params, batch, totals, dropout_keys_Bx2)
            if dropout_keys_Bx2 is None:  # evaluation
                return loss, sums
            of_teacher = Pretraining(dataclasses.replace(
                large().config, layout=self.config.layout, attention=self.config.attention))
            log_p = log_probabilities(self, params, batch, dropout_keys_Bx2)
            teacher_log_p = log_probabilities(of_teacher, large().params, batch)
            losses_BxP = -jnp.sum(jnp.exp(teacher_log_p) * log_p, axis=-1)
            return jnp.sum(losses_BxP * batch['masked_lm_weights']) / totals['masked'], sums

        def loss_of_chance(self):
            return None  # it depends on the teacher

    return DistilledPretraining


def log_probabilities(head, params, batch, dropout_keys_Bx2=None):
    """The masked LM's log-probabilities [B, P, V] of a head."""
    output = head.outputs(params, batch, dropout_keys_Bx2)['mlm_output']
    return jax.nn.log_softmax(masked_lm_logits(output))


def get_config(teacher: str = ''):
    kind, _, path = teacher.partition(':')
    if kind == 'mlm':
        add_pretraining('distilled', distilled_pretraining(path))
        return default_config('pretrain_distilled')
    if kind == 'vectors':
        TASKS['distilled_vectors'] = functools.partial(open_vectors, path)
        c = finetuning_config('distilled_vectors', init_checkpoint='')
        c.data.source = 'texts.csv'
        return c
    TASKS['sst2'] = functools.partial(open_sst2, teacher)
    c = finetuning_config('sst2', init_checkpoint='')
    c.data.source = 'glue'
    return c
