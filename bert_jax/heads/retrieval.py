"""Vectors of texts: those of a query and its document move together, away from all others.

`Retrieval` is trained on queries with a document each, and perhaps hard negatives: a query is to
find its document among all documents and hard negatives of the global batch (InfoNCE: van den Oord
et al., 2018; Karpukhin et al., 2020). `ScoredPairs` is trained on pairs of texts with scores: the
cosines are to have the order of the scores. Both train cut vectors to work alone, too (Matryoshka:
Kusupati et al., 2022). What they train is an encoder without a head.

    R: rows, S: row length, K: units a row, N: units of the global batch, T: texts a unit, of which
    the first is the query and the second its document, H: columns, Q: some of the units,
    C: candidates a unit, which are its texts but the first
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.heads import base
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig, parameter

LOG_SCALE = 'log_scale'  # a parameter and an output
_QUERIES_AT_ONCE = 1024  # whose scores for all candidates are in memory


class TextVectors(nn.Module):
    """One vector of each text of a row, not scaled.

    Returns:
      `logits` [R, K * T, H] float32; with `learn_temperature` also `log_scale` [R, K * T], the same
      number for each text.
    """

    config: ModelConfig
    pool: str
    temperature: float
    learn_temperature: bool

    @nn.compact
    def __call__(
        self, batch: base.Batch, dropout_keys_Bx2: base.Keys = None
    ) -> dict[str, jax.Array]:
        bert = Bert(self.config, pooled=False, name='bert')
        if self.pool == 'cls':  # the last layer is computed at [CLS] alone
            inputs = base.inputs_of(batch, dropout_keys_Bx2)
            encoded = bert(*inputs, wanted_BxP=batch['cls_positions'])
            vectors = encoded['sequence_output'].astype(jnp.float32)
        else:
            vectors = base.mean_vectors(base.encode(bert, None, batch, dropout_keys_Bx2), batch)
        outputs = {'logits': vectors}
        if self.learn_temperature:
            initial = nn.initializers.constant(-math.log(self.temperature))
            log_scale: Any = self.param(LOG_SCALE, parameter(initial, decays=False), ())
            outputs[LOG_SCALE] = jnp.broadcast_to(log_scale, vectors.shape[:2])
        return outputs


@dataclasses.dataclass(frozen=True)
class Retrieval(base.Head):
    """Cross-entropy of finding a query's document in the batch, the mean over cut vectors.

    Texts recur, such as an answer to several questions: a candidate that is equal to the document
    of an equal query, or to the query, is no wrong answer.
    Batches say by `text_ids` [R, K, T] which texts are equal.

    Attributes:
      num_texts: a query, its document, and hard negatives.
      columns: how many columns of the vectors are trained to work alone; empty: all.
      temperature: cosines are divided by it.
      learn_temperature: whether it is only where a parameter starts, which is trained.
      symmetric: whether a document also has to find its query, with half of the loss.
      pool: 'mean' over all tokens, or 'cls'.
    """

    loss_spans_batch = True

    num_texts: int = 2
    columns: tuple[int, ...] = ()
    temperature: float = 0.05
    learn_temperature: bool = False
    symmetric: bool = False
    pool: str = 'mean'

    @property
    def sequences(self) -> int:  # type: ignore[override]
        return self.num_texts

    @property
    def module(self) -> TextVectors:
        return TextVectors(self.config, self.pool, self.temperature, self.learn_temperature)

    def named(self, logits: Any) -> dict[str, jax.Array]:
        return dict(logits)

    def losses(self, outputs: base.Outputs, batch: base.Batch) -> base.Losses:
        scale_N = self._scales(outputs)
        losses = []
        found = []
        for vectors_NxTxH in self._vectors(outputs):
            losses_N, found_N = _found_document(
                vectors_NxTxH, scale_N, batch['text_ids'], batch['unit_weights'])
            if self.symmetric:
                of_documents_N, _ = _found_document(
                    vectors_NxTxH[:, 1::-1], scale_N, batch['text_ids'][:, 1::-1],
                    batch['unit_weights'])
                losses_N = 0.5 * (losses_N + of_documents_N)
            losses.append(losses_N)
            found.append(found_N)
        return jnp.mean(jnp.stack(losses), axis=0), found[0]

    def _vectors(self, outputs: base.Outputs) -> list[jax.Array]:
        """The vectors [N, T, H] of length 1, cut to each of `columns`."""
        vectors = outputs['logits']
        vectors_NxTxH = vectors.reshape(-1, self.num_texts, vectors.shape[-1])
        return [scaled(vectors_NxTxH[..., :num]) for num in self.columns or (vectors.shape[-1],)]

    def _scales(self, outputs: base.Outputs) -> jax.Array:
        """The factors of the cosines of each unit, [N]."""
        num_units = outputs['logits'].size // (self.num_texts * outputs['logits'].shape[-1])
        if not self.learn_temperature:
            return jnp.full(num_units, 1.0 / self.temperature)
        return jnp.exp(outputs[LOG_SCALE].reshape(num_units, self.num_texts)[:, 0])


@dataclasses.dataclass(frozen=True)
class ScoredPairs(Retrieval):
    """The loss of pairs whose cosines do not have the order of their scores (CoSENT: Su, 2022).

    log(1 + sum of exp((cosine of i - cosine of j) / temperature) over all pairs i with a lower
    score than j in the global batch). `labels` [R, K] are the scores.
    """

    shown: ClassVar[Mapping[str, str]] = {}

    def losses(self, outputs: base.Outputs, batch: base.Batch) -> base.Losses:
        scale_N = self._scales(outputs)
        losses = []
        for vectors_NxTxH in self._vectors(outputs):
            cosines_N = scale_N * jnp.sum(vectors_NxTxH[:, 0] * vectors_NxTxH[:, 1], axis=-1)
            excess_N = _excess_over_higher(cosines_N, batch['labels'], batch['unit_weights'])
            losses.append(jax.nn.logsumexp(jnp.append(excess_N, 0.0)))
        # Its mean over the units of the batch is the loss.
        return jnp.full(scale_N.shape, jnp.mean(jnp.stack(losses))), None

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {}


def scaled(vectors: jax.Array) -> jax.Array:
    """Vectors [..., H] of length 1; those of empty places stay zero."""
    return vectors * jax.lax.rsqrt(jnp.sum(vectors * vectors, axis=-1, keepdims=True) + 1e-12)


def _found_document(
    vectors_NxTxH: jax.Array, scale_N: jax.Array, ids_NxT: jax.Array, weights_N: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The losses [N] of finding the documents, and whether they are found.

    Args:
      vectors_NxTxH: of length 1.
      scale_N: what the cosines of a query are multiplied by.
      ids_NxT: equal for equal texts.
      weights_N: 0 for empty places.
    """
    candidates_NxCxH = vectors_NxTxH[:, 1:]
    numbers_N = jnp.arange(len(vectors_NxTxH))
    answers = Answers.of_batch(ids_NxT, weights_N)

    def of_some(some: Any) -> tuple[jax.Array, jax.Array]:
        queries_QxH, scale_Q, ids_Q, number_Q = some
        scores_QxCxN = scale_Q[:, None, None] * jnp.einsum(
            'QH,NCH->QCN', queries_QxH, candidates_NxCxH, precision=jax.lax.Precision.HIGHEST)
        is_document_C = jnp.arange(scores_QxCxN.shape[1]) == 0
        is_own_QxCxN = is_document_C[:, None] & (number_Q[:, None, None] == numbers_N)
        is_left_out = answers.false_negatives(ids_Q) & ~is_own_QxCxN | (weights_N == 0)
        scores_QxCxN = jnp.where(is_left_out, base.ELSEWHERE, scores_QxCxN)
        # A unit's document has its number: documents are before hard negatives.
        return base.cross_entropy(scores_QxCxN.reshape(len(number_Q), -1), number_Q)

    return base.of_own_examples(
        functools.partial(_in_blocks, of_some),
        (vectors_NxTxH[:, 0], scale_N, ids_NxT[:, 0], numbers_N))


def _excess_over_higher(
    cosines_N: jax.Array, scores_N: jax.Array, weights_N: jax.Array
) -> jax.Array:
    """[N]: log of the sum of exp(cosine - another's) over all pairs with a higher score."""
    def of_some(some: Any) -> jax.Array:
        cosines_Q, scores_Q, weights_Q = some
        is_higher_QxN = (scores_Q[:, None] < scores_N) & (weights_Q[:, None] * weights_N > 0)
        excess_QxN = jnp.where(is_higher_QxN, cosines_Q[:, None] - cosines_N, base.ELSEWHERE)
        return jax.nn.logsumexp(excess_QxN, axis=1)

    return base.of_own_examples(
        functools.partial(_in_blocks, of_some), (cosines_N, scores_N, weights_N))


def _in_blocks(function: Callable[[Any], Any], arrays: Any) -> Any:
    """`function` of arrays [N, ...], some entries at a time if there are many.

    What it computes for some is computed again for the gradient instead of kept, so that memory
    grows with N and not with its square.
    """
    num = len(arrays[0])
    if num <= _QUERIES_AT_ONCE:
        return function(arrays)
    num_blocks = -(-num // _QUERIES_AT_ONCE)

    def blocks(x: jax.Array) -> jax.Array:
        missing = num_blocks * _QUERIES_AT_ONCE - num
        x = jnp.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)])
        return x.reshape(num_blocks, _QUERIES_AT_ONCE, *x.shape[1:])

    results = jax.lax.map(jax.checkpoint(function), jax.tree.map(blocks, arrays))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:num], results)


class Answers(NamedTuple):
    """Which of the batch's texts answer which queries.

    Attributes:
      ids_NxT: equal for equal texts.
      weights_N: 0 for empty places.
      number_CxN: the first unit whose document is equal to a candidate.
      is_document_CxN: whether there is one.
    """

    ids_NxT: jax.Array
    weights_N: jax.Array
    number_CxN: jax.Array
    is_document_CxN: jax.Array

    @classmethod
    def of_batch(cls, ids_NxT: jax.Array, weights_N: jax.Array) -> Self:
        """The answers of a global batch."""
        is_equal_CxNxN = ids_NxT[:, 1:].T[..., None] == ids_NxT[:, 1]
        return cls(ids_NxT, weights_N, is_equal_CxNxN.argmax(-1), is_equal_CxNxN.any(-1))

    def false_negatives(self, queries_Q: jax.Array) -> jax.Array:
        """Which candidates must not count as wrong for a query, [Q, C, N] bool.

        They are equal to the document of a unit with an equal query, or to the query itself.

        Args:
          queries_Q: their ids.
        """
        has_equal_query_QxN = (queries_Q[:, None] == self.ids_NxT[:, 0]) & (self.weights_N > 0)
        # By the first unit with an equal document, so that [Q, C, N, N] need not be compared.
        answered_QxN = jnp.zeros(has_equal_query_QxN.shape, jnp.int32)
        answered_QxN = answered_QxN.at[:, self.number_CxN[0]].add(has_equal_query_QxN)
        is_right_QxCxN = (answered_QxN[:, self.number_CxN] > 0) & self.is_document_CxN
        return is_right_QxCxN | (queries_Q[:, None, None] == self.ids_NxT[:, 1:].T)
