"""Documents ranked for queries, and the metrics of rankings, as trec_eval computes them.

    n: queries, M: documents, H: columns, k: ranks
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.runtime.errors import InputError

_QUERIES_AT_ONCE = 256  # whose scores for all documents are in memory
_NAME = re.compile(r'([a-z]+)_at_([1-9][0-9]{0,5})')


class Nearest(NamedTuple):
    """The nearest documents of each query, the nearest first.

    Attributes:
      documents: [n, k] their indices; -1 where fewer are left.
      scores: [n, k] float32; -inf there.
    """

    documents: np.ndarray
    scores: np.ndarray


def nearest(
    queries_nxH: np.ndarray, documents_MxH: np.ndarray, num: int, *,
    last_first: np.ndarray | None = None,
    left_out: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Nearest:
    """The `num` documents with the highest products with each query.

    Args:
      queries_nxH, documents_MxH: vectors, float32.
      num: k; if there are fewer documents, as many as there are.
      last_first: [M] distinct numbers: of documents with equal scores, the one with the higher
        number comes first. None: the one with the lower index does.
      left_out: from indices of queries [Q] to [Q, M] bool, the documents that they are not to find.
    """
    num_documents = len(documents_MxH)
    num = min(num, num_documents)
    ties = np.arange(num_documents) if last_first is None else -last_first
    documents = np.full((len(queries_nxH), num), -1)
    scores = np.full((len(queries_nxH), num), -np.inf, np.float32)
    for begin in range(0, len(queries_nxH), _QUERIES_AT_ONCE):
        some = np.arange(begin, min(begin + _QUERIES_AT_ONCE, len(queries_nxH)))
        products_QxM = queries_nxH[some] @ documents_MxH.T
        if left_out is not None:
            products_QxM[left_out(some)] = -np.inf
        least_Q = np.partition(products_QxM, num_documents - num, axis=1)[:, num_documents - num]
        for query, products_M, least in zip(some, products_QxM, least_Q, strict=True):
            found = np.flatnonzero((products_M >= least) & (products_M > -np.inf))
            found = found[np.lexsort((ties[found], -products_M[found]))][:num]
            documents[query, : len(found)] = found
            scores[query, : len(found)] = products_M[found]
    return Nearest(documents, scores)


def ranked(
    candidates: Sequence[np.ndarray], scores: Sequence[np.ndarray], last_first: np.ndarray
) -> Nearest:
    """Documents that have been scored, for each query the highest score first.

    Args:
      candidates: for each query the indices of its documents.
      scores: of these.
      last_first: [M] as for `nearest`.
    """
    num = max(map(len, candidates))
    documents = np.full((len(candidates), num), -1)
    by_rank = np.full((len(candidates), num), -np.inf, np.float32)
    for query, (of_query, scores_of_query) in enumerate(zip(candidates, scores, strict=True)):
        order = np.lexsort((-last_first[of_query], -scores_of_query))
        documents[query, : len(order)] = of_query[order]
        by_rank[query, : len(order)] = scores_of_query[order]
    return Nearest(documents, by_rank)


class _Ranked(NamedTuple):
    """A ranking, by what its documents are worth.

    Attributes:
      gains: [n, k] of the documents at each rank; 0: not relevant.
      ideal: for each query the gains above 0 of all its documents, the largest first.
      num_ranks: that the metric looks at; k is smaller where there are fewer documents.
    """

    gains: np.ndarray
    ideal: Sequence[np.ndarray]
    num_ranks: int


def _ndcg(ranked: _Ranked) -> np.ndarray:
    """Discounted gains over those of the best ranking (Järvelin and Kekäläinen, 2002)."""
    discounts = 1 / np.log2(2 + np.arange(ranked.num_ranks))
    best = np.array([
        gains[: ranked.num_ranks] @ discounts[: len(gains)] for gains in ranked.ideal])
    found = ranked.gains @ discounts[: ranked.gains.shape[1]]
    return found / np.where(best > 0, best, 1)


def _mrr(ranked: _Ranked) -> np.ndarray:
    """1 / rank of the first relevant document."""
    is_relevant = ranked.gains > 0
    return is_relevant.any(axis=1) / (1 + is_relevant.argmax(axis=1))


def _recall(ranked: _Ranked) -> np.ndarray:
    """Share of the relevant documents that are found."""
    num_relevant = np.array([len(gains) for gains in ranked.ideal])
    return (ranked.gains > 0).sum(axis=1) / np.maximum(num_relevant, 1)


def _accuracy(ranked: _Ranked) -> np.ndarray:
    """Whether a relevant document is found (trec_eval's `success`)."""
    return (ranked.gains > 0).any(axis=1).astype(float)


_METRICS: Mapping[str, Callable[[_Ranked], np.ndarray]] = {
    'ndcg': _ndcg, 'mrr': _mrr, 'recall': _recall, 'accuracy': _accuracy}


def check_names(names: Sequence[str], field: str) -> None:
    """Raises InputError for a name that is no metric of rankings; `field` is of the config."""
    for name in names:
        parts = _NAME.fullmatch(name)
        if parts is None or parts[1] not in _METRICS:
            raise InputError(f'{field}={name!r} is unknown: write one of '
                             f"{', '.join(f'{known}_at_K' for known in _METRICS)}, with a number "
                             'for K, such as ndcg_at_10')


def depth(names: Sequence[str]) -> int:
    """The number of ranks that the metrics need."""
    return max(int(name.rpartition('_')[2]) for name in names)


def mean_metrics(
    names: Sequence[str], documents: np.ndarray, relevant: Sequence[Mapping[int, float]]
) -> dict[str, float]:
    """The means over queries of metrics such as `ndcg_at_10`, each between 0 and 1.

    Args:
      names: of the metrics.
      documents: [n, k] of `Nearest`.
      relevant: for each query its judged documents, each with its gain; 0 or less: not relevant.
    """
    gains = np.array([
        [max(of_query.get(document, 0), 0) for document in row]
        for row, of_query in zip(documents.tolist(), relevant, strict=True)], float)
    ideal = list(_ideal_gains(relevant))
    means = {}
    for name in names:
        metric, _, rank = name.partition('_at_')
        ranked = _Ranked(gains[:, : int(rank)], ideal, int(rank))
        means[name] = float(_METRICS[metric](ranked).mean())
    return means


def _ideal_gains(relevant: Sequence[Mapping[int, float]]) -> Iterator[np.ndarray]:
    for of_query in relevant:
        yield np.array(sorted((gain for gain in of_query.values() if gain > 0), reverse=True))
