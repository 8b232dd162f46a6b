"""Scores of pairs of a query and a document, learned from groups of documents of one query.

The model is a cross-encoder: it reads both texts at once, and its head has one output, that of a
regression. It is trained on groups, which are units of a row: pairs of one query with each of its
documents, whose gains say how relevant they are. The losses are named in `LOSSES`; those on pairs
of documents are means over all such pairs of the global batch, and the others over its groups or
documents.

    R: rows, K: groups a row, C: places for the documents of a group
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.heads import base
from bert_jax.heads.base import Batch, Losses, Outputs
from bert_jax.heads.classification import Classification, Regression

_STEPS_OF_RANKS = 10.0  # the weight of how far apart ranks are, in LambdaLoss (its mu)


@dataclasses.dataclass(frozen=True)
class Reranking(Regression):
    """The base of the losses: groups whose documents have gains.

    Batches have `gains` [R, K, C] float32, `is_document` [R, K, C] bool, False in places that are
    empty, and `num_terms` [R, K] float32 of `count_terms`, 0 for groups that are not there.

    Attributes:
      orders: whether the loss is of the order of a group alone, so that equal gains teach nothing.
      num_documents: C.
    """

    orders: ClassVar[bool] = True
    weights = 'num_terms'
    shown = {'accuracy': 'acc'}

    num_documents: int = 2

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        """The mean over a group's terms, and the share of them that are right: both [R, K]."""
        gains_RxKxC = batch['gains']
        scores_RxKxC = outputs['logits'].reshape(gains_RxKxC.shape)
        return self.of_groups(scores_RxKxC, gains_RxKxC, batch['is_document'])

    def of_groups(
        self, scores: jax.Array, gains: jax.Array, is_document: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """`losses` of groups, from arrays [R, K, C]."""
        raise NotImplementedError

    @staticmethod
    def count_terms(gains: np.ndarray, is_document: np.ndarray) -> np.ndarray:
        """How many terms of the loss groups have, [n], from arrays [n, C]: one each."""
        return np.ones(len(gains), np.float32)

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        return Classification.score(self, sums)


class Contrastive(Reranking):
    """Cross-entropy of the relevant documents in their group (Gao et al., 2021, "Rethink").

    The target of a document is its share of the group's gains: of one relevant document, 1.
    """

    def of_groups(
        self, scores: jax.Array, gains: jax.Array, is_document: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        gains = jnp.where(is_document, jnp.maximum(gains, 0.0), 0.0)
        sums = jnp.sum(gains, axis=-1, keepdims=True)
        return _cross_entropy(scores, gains / jnp.where(sums > 0, sums, 1.0), is_document)


class ListNet(Reranking):
    """Cross-entropy of the softmax of the scores with that of the gains (Cao et al., 2007)."""

    def of_groups(
        self, scores: jax.Array, gains: jax.Array, is_document: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        targets = jax.nn.softmax(jnp.where(is_document, gains, base.ELSEWHERE), axis=-1)
        return _cross_entropy(scores, targets, is_document)


def _cross_entropy(
    scores: jax.Array, targets: jax.Array, is_document: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Of distributions [R, K, C]; right is a group whose highest score has the highest target."""
    scores = jnp.where(is_document, scores, base.ELSEWHERE)
    losses = -jnp.sum(targets * jax.nn.log_softmax(scores, axis=-1), axis=-1)
    is_best = targets >= jnp.max(targets, axis=-1, keepdims=True)
    best_score = jnp.max(jnp.where(is_best & is_document, scores, base.ELSEWHERE), axis=-1)
    return losses, (best_score >= jnp.max(scores, axis=-1)).astype(jnp.float32)


class Binary(Reranking):
    """Binary cross-entropy of each document by itself; gains are from 0 to 1."""

    orders = False

    def of_groups(
        self, scores: jax.Array, gains: jax.Array, is_document: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        right = (scores > 0) == (gains > 0.5)
        losses = optax.sigmoid_binary_cross_entropy(scores, gains)
        return _mean(losses, is_document, (-1,)), _mean(right, is_document, (-1,))

    @staticmethod
    def count_terms(gains: np.ndarray, is_document: np.ndarray) -> np.ndarray:
        """The documents of each group."""
        return is_document.sum(axis=-1).astype(np.float32)


class RankNet(Reranking):
    """log(1 + exp(score - score)) of each pair in which the second is better (Burges, 2005)."""

    def of_groups(
        self, scores: jax.Array, gains: jax.Array, is_document: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        # [R, K, C, C], the better document first.
        ahead = scores[..., :, None] - scores[..., None, :]
        is_pair = _is_pair(gains, is_document)
        losses = jax.nn.softplus(-ahead) * self.pair_weights(scores, gains, is_document)
        return _mean(losses, is_pair, (-2, -1)), _mean(ahead > 0, is_pair, (-2, -1))

    def pair_weights(
        self, scores: jax.Array, gains: jax.Array, is_document: jax.Array
    ) -> jax.Array:
        """Factors of the losses of pairs, [R, K, C, C] or one for all."""
        return jnp.ones(())

    @staticmethod
    def count_terms(gains: np.ndarray, is_document: np.ndarray) -> np.ndarray:
        """The pairs of documents of each group whose gains differ."""
        return np.asarray(_is_pair(gains, is_document)).sum(axis=(-2, -1)).astype(np.float32)


class Lambda(RankNet):
    """RankNet with pairs weighted by what they change of the nDCG (Wang et al., 2018).

    It is LambdaLoss with the weights that its authors call NDCG-Loss2++, over whole groups.
    """

    def pair_weights(
        self, scores: jax.Array, gains: jax.Array, is_document: jax.Array
    ) -> jax.Array:
        scores = jax.lax.stop_gradient(jnp.where(is_document, scores, base.ELSEWHERE))
        # Here a document is worth 2^gain - 1, and not its gain, as in the metric of rankings.
        worth = jnp.where(is_document, jnp.exp2(jnp.maximum(gains, 0.0)) - 1.0, 0.0)
        of_ideal = jnp.sum(worth / _discount(_ranks(worth)), axis=-1)
        worth /= jnp.where(of_ideal > 0, of_ideal, 1.0)[..., None]
        ranks = _ranks(scores)
        distance = jnp.abs(_differences(ranks))
        # `where`: a document's distance from itself, 0, has no discount.
        steps = jnp.where(
            distance > 0,
            1.0 / _discount(jnp.maximum(distance, 1.0)) - 1.0 / _discount(distance + 1.0), 0.0)
        swaps = jnp.abs(_differences(1.0 / _discount(ranks)))
        return (_STEPS_OF_RANKS * steps + swaps) * jnp.abs(_differences(worth))


def _is_pair(gains: Any, is_document: Any) -> Any:
    """Whether the first of two documents is better, [..., C, C]."""
    both = is_document[..., :, None] & is_document[..., None, :]
    return both & (gains[..., :, None] > gains[..., None, :])


def _differences(x: jax.Array) -> jax.Array:
    """The first value minus the second, for all pairs: [..., C, C]."""
    return x[..., :, None] - x[..., None, :]


def _ranks(values: jax.Array) -> jax.Array:
    """Ranks from 1, the highest value first, of equal ones the first: float32 [..., C]."""
    order = jnp.argsort(-values, axis=-1, stable=True)
    return 1.0 + jnp.argsort(order, axis=-1).astype(jnp.float32)


def _discount(ranks: jax.Array) -> jax.Array:
    return jnp.log(1.0 + ranks) / math.log(2.0)


def _mean(values: jax.Array, counts: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """The means of those values that count; 0 where none does."""
    num = jnp.sum(counts, axis=axes)
    return jnp.sum(jnp.where(counts, values, 0.0), axis=axes) / jnp.maximum(num, 1)


LOSSES: Mapping[str, type[Reranking]] = {
    'contrastive': Contrastive,
    'listnet': ListNet,
    'ranknet': RankNet,
    'lambda': Lambda,
    'binary': Binary,
}
