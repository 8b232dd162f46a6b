"""Vectors of sentences: those of a pair move together, away from all others of the batch.

    python -m bert_jax.main --config=configs/sentence_vectors.py --config.init_checkpoint=DIR \\
        --config.data.source=pairs.csv --config.data.text=question --config.data.text_pair=answer \\
        --config.data.choices=wrong_answer --workdir=runs/vectors
    python -m bert_jax.main --config=configs/sentence_vectors.py:stsb --config.data.source=glue \\
        --config.init_checkpoint=DIR --workdir=runs/vectors
    python -m bert_jax.predict features --model runs/vectors --pool=mean --normalize "A man eats."
    python -m bert_jax.convert runs/vectors vectors_hf --to huggingface

A table has a text and its partner in each row, and perhaps hard negatives: texts that look like the
partner and are none, in one column or several (data.choices). A text is to find its partner among
all partners and all hard negatives of the batch (InfoNCE: van den Oord et al., 2018; Karpukhin et
al., 2020). The metric is how often it does among those held out. Texts recur, such as an answer to
several questions: a text that is equal to the partner, that is the partner of an equal text, or
that is equal to the text itself is no wrong answer. `:stsb` trains on the pairs of STS-B with a
score of 4 or more, after SimCSE (Gao et al., 2021), and its metric is Spearman's correlation of the
cosines with the scores.

A vector is the mean of the last hidden states. Its first half and its first quarter are trained
to work alone as well (Matryoshka: Kusupati et al., 2022): cut vectors, and scale them anew. The run
is an encoder without a head, from which `Model.vectors` makes such vectors; `convert` writes a
folder that sentence-transformers loads. `python -m bert_jax.evaluate DIR --config=...` scores any
encoder as it is. The file is a template to copy.

    R: rows, K: units a row, N: units of the global batch, T: texts a unit, H: columns, n: units,
    C: candidates a unit, which are its texts but the first, Q: units, M: candidates of all units
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.config import finetuning_config
from bert_jax.heads import base
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.rows.packing import Units
from bert_jax.rows.sequences import make_sequences
from bert_jax.tasks.glue import read_glue
from bert_jax.tasks.labelled import EvalSet, LabelledTask, open_tokenization, warn_of_cut
from bert_jax.tasks.metrics import METRICS
from bert_jax.tasks.opening import TASKS
from bert_jax.tasks.sources import own_files
from bert_jax.tasks.texts import TextColumns, read_texts

TEMPERATURE = 0.05
SHARES = (1, 2, 4)  # vectors are trained whole, and cut to these parts
SCORED_AT_ONCE = 256  # units, beside all candidates
LEAST_SCORE = 4  # of the pairs of STS-B that are trained on


class MeanVectors(nn.Module):
    """Mean token vectors [R, K, T, H] of the T texts of the K units of a row."""

    config: ModelConfig
    num_texts: int

    @nn.compact
    def __call__(self, batch: base.Batch, rows_Bx2: base.Keys = None) -> jax.Array:
        bert = Bert(self.config, pooled=False, name='bert')
        vectors = base.mean_vectors(base.encode(bert, None, batch, rows_Bx2), batch)
        return vectors.reshape(len(vectors), -1, self.num_texts, vectors.shape[-1])


@dataclasses.dataclass(frozen=True)
class Contrastive(base.Head):
    """The mean over `SHARES` of the loss of finding a first text's partner in the batch."""

    loss_spans_batch = True

    num_texts: int = 2

    @property
    def sequences(self):
        return self.num_texts

    @property
    def module(self):
        return MeanVectors(self.config, self.num_texts)

    def losses(self, outputs: base.Outputs, batch: base.Batch) -> base.Losses:
        vectors_NxTxH = outputs['logits']
        num_columns = vectors_NxTxH.shape[-1]
        parts = []
        for share in SHARES:
            losses, correct = found_partner(
                scaled(vectors_NxTxH[..., : num_columns // share]), batch)
            parts.append(losses)
            if share == 1:
                of_whole = correct
        return sum(parts) / len(parts), of_whole


def scaled(vectors):
    """Vectors [..., H] of length 1; those of empty places stay zero."""
    return vectors * jax.lax.rsqrt(jnp.sum(vectors * vectors, axis=-1, keepdims=True) + 1e-12)


def found_partner(vectors_NxTxH, batch):
    """The losses [N] of finding the partners, and whether they are found."""
    scores_NxCxN = jnp.einsum(
        'NH,MCH->NCM', vectors_NxTxH[:, 0], vectors_NxTxH[:, 1:]) / TEMPERATURE
    num_units = len(scores_NxCxN)
    is_own_NxCxN = jnp.zeros_like(scores_NxCxN, bool).at[:, 0].set(jnp.eye(num_units, dtype=bool))
    is_right_NxCxN, is_same_NxCxN = answers(batch['text_ids'], batch['text_ids'])
    is_left_out = ~is_own_NxCxN & (is_right_NxCxN | is_same_NxCxN)
    scores_NxCxN = jnp.where(is_left_out, base.ELSEWHERE, scores_NxCxN)
    scores = base.among_examples(scores_NxCxN, batch).reshape(num_units, -1)
    return base.cross_entropy(scores, jnp.arange(num_units))  # partners before negatives


def answers(ids_QxT, ids_NxT):
    """Which candidates are right answers to the first texts of Q units, and which equal them.

    A right answer is equal to the partner, or it is the partner of an equal first text.

    Args:
      ids_QxT: equal for equal texts.
      ids_NxT: of the candidates' units.

    Returns:
      Two arrays [Q, C, N] of bool, by first text, column and unit of the candidate.
    """
    first_Qx1x1 = ids_QxT[:, :1, None]
    partner_Qx1x1 = ids_QxT[:, 1:2, None]
    candidates_CxN = ids_NxT[:, 1:].T
    is_partner_Cx1 = np.arange(len(candidates_CxN))[:, None] == 0
    has_equal_first = is_partner_Cx1 & (first_Qx1x1 == ids_NxT[:, 0])
    return has_equal_first | (candidates_CxN == partner_Qx1x1), candidates_CxN == first_Qx1x1


def make_units(texts, tokenization, max_length):
    """Units of the texts of a row, one after the other, from columns of texts."""
    in_order = [text for row in zip(*texts, strict=True) for text in row]
    sequences = make_sequences(
        tokenization.encode(in_order), None, max_length=max_length,
        frame=tokenization.frame)
    return Units(
        sequences, choices=len(texts), labels={'text_ids': text_ids(sequences, len(texts))})


def text_ids(sequences, num_texts):
    """Numbers [n, T] of the texts, equal where all their tokens are: no model tells these apart."""
    numbers: dict[bytes, int] = {}
    ids = [numbers.setdefault(tokens, len(numbers)) for tokens in Units(sequences).contents()]
    return np.array(ids, np.int32).reshape(-1, num_texts)


def cut_and_scaled(vectors, share):
    """The first 1 / share of the columns of vectors [..., H], with length 1."""
    vectors = vectors[..., : vectors.shape[-1] // share]
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def named_by_length(name, compute, vectors_nxTxH):
    """A metric of the whole vectors, and of those that are cut, such as `spearman_64`."""
    metrics = {}
    for share in SHARES:
        part = cut_and_scaled(vectors_nxTxH, share)
        metrics[name if share == 1 else f'{name}_{part.shape[-1]}'] = compute(part)
    return metrics


def vectors_task(config, tokenization, *, train, dev, metric, compute, loss=None):
    """The task: pairs to train on and to score, the metric of vectors [n, T, H], and their loss."""
    warn_of_cut((train or dev).sequences, config.data.max_seq_length)

    def results(outputs):
        scores = named_by_length(metric, compute, outputs['logits'])
        if loss is not None:  # of evaluations with the same metric, that with the lowest is kept
            scores['loss'] = loss(cut_and_scaled(outputs['logits'], 1))
        return scores, {}

    return LabelledTask(
        config, tokenization, train=train, evaluated=(EvalSet('', dev, results),), metric=metric,
        head='', trained_as=Contrastive, arguments={'num_texts': dev.choices},
        inference={'pool': 'mean', 'normalize': True})


def open_stsb(config, scored=None):
    tokenization = open_tokenization(config)
    length = config.data.max_seq_length
    dev = read_glue('stsb', config.data.source, 'dev')
    train = None
    if not scored:
        pairs = read_glue('stsb', config.data.source, 'train')
        alike = pairs.take(np.flatnonzero(pairs.labels >= LEAST_SCORE))
        train = make_units(alike.texts, tokenization, length)

    def correlation(vectors_nx2xH):
        cosines = np.einsum('nH,nH->n', vectors_nx2xH[:, 0], vectors_nx2xH[:, 1])
        return METRICS['spearman'].compute(cosines, dev.labels)

    return vectors_task(
        config, tokenization, train=train, dev=make_units(dev.texts, tokenization, length),
        metric='spearman', compute=correlation)


def open_pairs(config, scored=None):
    tokenization = open_tokenization(config)
    data = config.data
    columns = [data.text or 'text', data.text_pair]
    if data.choices:
        columns += [name.strip() for name in data.choices.split(',')]

    def read(path):
        return read_texts(
            path, TextColumns(columns, label='', id=data.id, needs_ids=True), None,
            max_malformed=data.max_malformed, keep_empty=False)

    def units(examples):
        return make_units(examples.texts, tokenization, data.max_seq_length)

    train, dev = own_files(config, scored, read, lambda examples: examples.texts[0])
    dev_units = units(dev)
    ids = dev_units.labels['text_ids']
    return vectors_task(
        config, tokenization, train=None if train is None else units(train), dev=dev_units,
        metric='accuracy', compute=functools.partial(share_found, ids),
        loss=functools.partial(mean_loss, ids))


def scored_candidates(ids_nxT, vectors_nxTxH):
    """Yields, for some units at a time, the scores of all partners and hard negatives.

    Yields:
      (units [Q]; scores [Q, M]; whether a candidate is a right answer, and whether it is equal to
      the first text, [Q, M]).
    """
    num_units = len(vectors_nxTxH)
    candidates = vectors_nxTxH[:, 1:].swapaxes(0, 1).reshape(-1, vectors_nxTxH.shape[-1])
    for begin in range(0, num_units, SCORED_AT_ONCE):
        units = np.arange(begin, min(begin + SCORED_AT_ONCE, num_units))
        scores = vectors_nxTxH[units, 0] @ candidates.T
        is_right, is_same = (
            found.reshape(len(units), -1) for found in answers(ids_nxT[units], ids_nxT))
        yield units, scores, is_right, is_same


def share_found(ids_nxT, vectors_nxTxH):
    """How often the nearest of all partners and hard negatives is a right answer to a text.

    A candidate that is equal to the text is no answer, unless it is a right one.
    """
    num_found = 0
    for units, scores, is_right, is_same in scored_candidates(ids_nxT, vectors_nxTxH):
        nearest = np.where(is_same & ~is_right, -np.inf, scores).argmax(axis=1)
        num_found += int(is_right[np.arange(len(units)), nearest].sum())
    return num_found / len(vectors_nxTxH)


def mean_loss(ids_nxT, vectors_nxTxH):
    """The loss of finding the partners among all that are scored, of vectors of length 1."""
    losses = []
    for units, scores, is_right, is_same in scored_candidates(ids_nxT, vectors_nxTxH):
        rows = np.arange(len(units))
        scores = scores.astype(np.float64) / TEMPERATURE
        own = scores[rows, units]  # partners are before negatives
        scores[is_right | is_same] = -np.inf
        scores[rows, units] = own
        losses.append(np.logaddexp.reduce(scores, axis=1) - own)
    return float(np.concatenate(losses).mean())


def get_config(data: str = 'own'):
    if data not in ('own', 'stsb'):
        raise ValueError(f'configs/sentence_vectors.py:{data} is unknown: leave it out, or stsb')
    TASKS['sentence_vectors'] = open_pairs
    TASKS['sentence_vectors_stsb'] = open_stsb
    c = finetuning_config('sentence_vectors_stsb' if data == 'stsb' else 'sentence_vectors')
    c.data.source = 'pairs.csv'
    if data == 'stsb':
        c.data.source = 'hf:datasets/nyu-mll/glue'
    else:
        c.data.text_pair = 'text_pair'
    c.data.max_seq_length = 64
    c.train.batch_size = 64
    return c
