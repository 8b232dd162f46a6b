"""Trains sentence vectors: those of a pair move together, away from all others of the batch.

    python -m bert_jax.main --config=tests/tasks/contrastive.py --config.init_checkpoint=DIR \\
        --config.data.source=glue --workdir=runs/vectors
    python -m bert_jax.predict features --model runs/vectors --pool=mean "A man is eating."

It trains on the pairs of STS-B's training set with a score of 4 or more, after SimCSE (Gao et al.,
2021). The metric is Spearman's correlation of the cosines on the dev set; `python -m
bert_jax.evaluate DIR --config=tests/tasks/contrastive.py` computes it for any encoder as it is. The
file is a template to copy: it has a task and a head of its own.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.config import finetuning_config
from bert_jax.data.packing import Units
from bert_jax.data.pairs import make_sequences
from bert_jax.heads import base
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.tasks.glue import read_glue
from bert_jax.tasks.labelled import EvalSet, LabelledTask, open_tokenization
from bert_jax.tasks.metrics import METRICS
from bert_jax.tasks.opening import OPENERS


class Vectors(nn.Module):
    """Mean token vectors [R, K, 2, H], scaled to length 1, of the texts of the K pairs of a row."""

    config: ModelConfig

    @nn.compact
    def __call__(self, batch: base.Batch, rows_Bx2: base.Keys = None) -> jax.Array:
        bert = Bert(self.config, pooled=False, name='bert')
        x = base.mean_vectors(base.encode(bert, None, batch, rows_Bx2), batch)
        x *= jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-12)  # empty places are zeros
        return x.reshape(x.shape[0], -1, 2, x.shape[-1])


@dataclasses.dataclass(frozen=True)
class Contrastive(base.Head):
    """InfoNCE (van den Oord et al., 2018): finds a first text's partner among all second texts."""

    compares = True
    sequences = 2

    temperature: float = 0.05

    @property
    def module(self) -> nn.Module:
        return Vectors(self.config)

    def losses(self, outputs: base.Outputs, batch: base.Batch) -> base.Losses:
        first_NxH, second_NxH = outputs['logits'][:, 0], outputs['logits'][:, 1]
        scores_NxN = first_NxH @ second_NxH.T / self.temperature
        return base.cross_entropy(
            base.among_examples(scores_NxN, batch), jnp.arange(len(scores_NxN)))


def open_pairs(config, scored=None):
    tokenization = open_tokenization(config)

    def units(pairs):
        """The two texts of each pair, one after the other."""
        texts = [text for pair in zip(*pairs.texts, strict=True) for text in pair]
        return Units(make_sequences(
            tokenization.encode(texts), None, max_length=config.data.max_seq_length,
            frame=tokenization.tokenizer.vocab.frame), choices=2)

    def results(outputs):
        cosines = np.einsum('nH,nH->n', *outputs['logits'].swapaxes(0, 1))
        return {'spearman': METRICS['spearman'].compute(cosines, dev.labels)}, {}

    train, dev = (read_glue('stsb', config.data.source, split) for split in ('train', 'dev'))
    return LabelledTask(
        config, tokenization,
        train=None if scored else units(train.take(np.flatnonzero(train.labels >= 4))),
        evaluated=(EvalSet('', units(dev), results),), metric='spearman',
        head='', trained_as=Contrastive)  # it is saved as an encoder without a head


def get_config():
    OPENERS['sentence_pairs'] = open_pairs
    c = finetuning_config('sentence_pairs')
    c.data.source = 'glue'
    c.data.max_seq_length = 64
    c.train.batch_size = 64
    return c
