"""Reranking: a cross-encoder's scores of the documents that a search has found for a query.

A table has a query, its document and hard negatives in each row (`data.text`, `data.text_pair`,
`data.choices`); or, with `data.label`, a query, a document and its gain. Rows of equal queries are
joined. The documents of a query are trained on in groups of `reranking.group_size`.

A model is scored by the ranking of the documents of the queries that are held out; or of those in
`reranking.candidates`, a ranking in trec_eval's format, of `reranking.corpus` for
`reranking.queries` by the judgements in `reranking.qrels`, as for retrieval.

    n: groups, or queries, C: places for the documents of a group, k: ranks
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from ml_collections import ConfigDict

from bert_jax.answers.engine import Outputs
from bert_jax.heads.reranking import LOSSES, Reranking
from bert_jax.rows import table
from bert_jax.rows.packing import Units
from bert_jax.rows.sequences import Sequences, make_sequences
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.runtime.hosts import say
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledTask,
    Results,
    Tokenization,
    open_tokenization,
    warn_of_cut,
)
from bert_jax.tasks.ranking import mean_metrics, ranked
from bert_jax.tasks.retrieval import (
    Judged,
    judged_tables,
    named_metrics,
    read_pairs,
    source_of_all,
    tables_of,
    trec_lines,
)
from bert_jax.tasks.sources import own_files


@dataclasses.dataclass(frozen=True)
class Queries:
    """Queries, and for each its documents with their gains.

    Attributes:
      texts: distinct.
      gains: of each query's documents, by their texts.
      source: file, for messages.
    """

    texts: Sequence[str]
    gains: Sequence[Mapping[str, float]]
    source: str

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: np.ndarray) -> Self:
        """Some of the queries."""
        return dataclasses.replace(
            self, texts=[self.texts[i] for i in rows], gains=[self.gains[i] for i in rows])


def open_reranking(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Scores of the user's own queries with documents."""
    named_metrics(config, 'reranking')  # refused now rather than after all rows are read
    read = functools.partial(_read_queries, config)
    judged = judged_tables(config, 'reranking')
    if judged is None:
        if config.reranking.candidates:
            raise InputError(
                f'config.reranking.candidates={config.reranking.candidates} ranks documents of '
                'config.reranking.corpus: name it, queries and qrels, too')
        train, dev = own_files(config, scored, read, lambda queries: queries.texts)
        return _reranking_task(config, train, *_judged_queries(dev), are_held_out=True)
    candidates = _read_candidates(config.reranking.candidates, judged)
    train = None if scored else read(source_of_all(config))
    return _reranking_task(config, train, judged, candidates, are_held_out=False)


def _read_queries(config: ConfigDict, path: str) -> Queries:
    """The queries of a table; the gain of a document that stands in several rows is the highest.

    Raises:
      InputError: there are neither negatives nor gains, or both, or a gain that the loss refuses.
    """
    if bool(config.data.label) == bool(config.data.choices):
        raise InputError(
            f'config.data.label={config.data.label or ""!r}, choices={config.data.choices!r}: name '
            'either the columns of hard negatives (choices; tools.mine finds some), or that of '
            'the gains of documents (label)')
    examples = read_pairs(config, path)
    num_negatives = len(examples.texts) - 2
    gains: dict[str, dict[str, float]] = {}
    for row, (query, *documents) in enumerate(zip(*examples.texts, strict=True)):
        of_row = [1.0] + [0.0] * num_negatives
        if examples.labels is not None:
            of_row = [float(examples.labels[row])]
        of_query = gains.setdefault(query, {})
        for document, gain in zip(documents, of_row, strict=True):
            of_query[document] = max(gain, of_query.get(document, gain))
    all_gains = [gain for of_query in gains.values() for gain in of_query.values()]
    lowest, highest = min(all_gains), max(all_gains)
    if config.reranking.loss == 'binary' and not 0 <= lowest <= highest <= 1:
        raise InputError(f"{path} has gains from {lowest:g} to {highest:g}: "
                         "config.reranking.loss='binary' takes those from 0 to 1; 'lambda' takes "
                         'any')
    return Queries(list(gains), list(gains.values()), path)


def _judged_queries(queries: Queries) -> tuple[Judged, list[np.ndarray]]:
    """Held-out queries, and for each the indices of its documents, all of which are ranked."""
    number_of: dict[str, int] = {}
    relevant: list[dict[int, float]] = []
    for of_query in queries.gains:
        relevant.append({
            number_of.setdefault(document, len(number_of)): gain
            for document, gain in of_query.items()})
    judged = Judged(
        queries.texts, list(number_of), [f'q{i}' for i in range(len(queries))],
        [f'd{i}' for i in range(len(number_of))], relevant)
    return judged, [np.array(list(of_query)) for of_query in relevant]


def _read_candidates(path: str, judged: Judged) -> list[np.ndarray]:
    """For each query the indices of the documents that a file ranks for it.

    Raises:
      InputError: the file cannot be read, ranks a document that is not there, or one twice, or
        ranks none for all queries.
    """
    if not path:
        raise InputError(
            "config.reranking.candidates='': name the ranking whose documents are scored, in the "
            "format of trec_eval, such as a retrieval run's dev_rankings.trec")
    path = str(as_path(path))
    number_of = {name: i for i, name in enumerate(judged.document_ids)}
    found: dict[str, dict[int, None]] = {name: {} for name in judged.query_ids}
    for line in table.lines_of_words(path):
        words = line.text.split()
        if not words:
            continue
        if len(words) < 4 or words[1] != 'Q0':
            raise InputError(f'{path}, line {line.number}: {line.text!r:.60} is no line of '
                             "trec_eval's format: QUERY Q0 DOCUMENT RANK SCORE NAME")
        query, _, document, *_ = words
        if query not in found:
            continue  # it has no judgement
        if document not in number_of:
            raise InputError(f'{path}, line {line.number}: the document {document!r} is not in '
                             'config.reranking.corpus: name the corpus that was ranked')
        if number_of[document] in found[query]:
            raise InputError(f'{path}, line {line.number}: {document!r} is ranked for {query!r} '
                             'already; remove one of the lines')
        found[query][number_of[document]] = None
    if not any(found.values()):
        raise InputError(f'{path} ranks no document for a query with a judgement: do its ids '
                         'belong to config.reranking.queries?')
    return [np.array(list(of_query), np.int64) for of_query in found.values()]


def _reranking_task(
    config: ConfigDict, train: Queries | None, judged: Judged, candidates: Sequence[np.ndarray], *,
    are_held_out: bool,
) -> LabelledTask:
    """The task.

    Args:
      config: of the run.
      train: queries to train on, or None.
      judged: what is scored.
      candidates: indices of the documents that are ranked for each query.
      are_held_out: whether `judged` is of the run's own table, so that it is written.
    """
    names = named_metrics(config, 'reranking', ('ndcg_at_10', 'mrr_at_10', 'accuracy_at_1'))
    tokenization = open_tokenization(config)
    max_length = config.data.max_seq_length
    loss = LOSSES[config.reranking.loss]
    units = None
    arguments = {}
    if train is not None:
        units = _train_units(train, loss, config.reranking.group_size, tokenization, max_length)
        arguments['num_documents'] = units.choices
    pairs = []
    for query, of_query in zip(judged.queries, candidates, strict=True):
        pairs += [(query, judged.documents[number]) for number in of_query]
    say(f'scored: {len(pairs):,} documents are ranked for {len(candidates):,} queries')
    scored_units = Units(_pair_sequences(pairs, tokenization, max_length))
    warn_of_cut((units or scored_units).sequences, max_length)
    results = functools.partial(_reranked, judged, candidates, names, are_held_out)
    return LabelledTask(
        config, tokenization, train=units, evaluated=(EvalSet('', scored_units, results),),
        metric=names[0], head='regression', trained_as=loss, arguments=arguments,
        inference={'num_texts': 2, 'activation': 'Identity'})


def _pair_sequences(
    pairs: Sequence[tuple[str, str]], tokenization: Tokenization, max_length: int
) -> Sequences:
    """A sequence of each query with a document."""
    queries, documents = zip(*pairs, strict=True)
    return make_sequences(
        tokenization.encode(queries), tokenization.encode(documents), max_length=max_length,
        frame=tokenization.frame)


def _train_units(
    train: Queries, loss: type[Reranking], group_size: int, tokenization: Tokenization,
    max_length: int,
) -> Units:
    """The groups as units of as many places for documents; those that stay empty have no tokens.

    Raises:
      InputError: no group has documents of different gains.
    """
    groups = _groups_with_order(train, loss, group_size)
    num_places = max(len(group) for _, group in groups)
    pairs: list[tuple[str, str]] = []
    gains_nxC = np.zeros((len(groups), num_places), np.float32)
    is_document_nxC = np.zeros((len(groups), num_places), bool)
    for i, (query, group) in enumerate(groups):
        pairs += [(query, document) for document, _ in group]
        gains_nxC[i, : len(group)] = [gain for _, gain in group]
        is_document_nxC[i, : len(group)] = True
    tokenization.encode.keep([text for pair in pairs for text in pair])
    sequences = _with_empty(_pair_sequences(pairs, tokenization, max_length), is_document_nxC)
    return Units(sequences, choices=num_places, labels={
        'gains': gains_nxC, 'is_document': is_document_nxC,
        'num_terms': loss.count_terms(gains_nxC, is_document_nxC)})


def _groups_with_order(
    train: Queries, loss: type[Reranking], group_size: int
) -> list[tuple[str, Sequence[tuple[str, float]]]]:
    """Each group of documents with its query, without those that teach this loss nothing.

    Raises:
      InputError: no group is left.
    """
    groups: list[tuple[str, Sequence[tuple[str, float]]]] = []
    num_equal = 0
    for query, gains in zip(train.texts, train.gains, strict=True):
        for group in _groups(gains, group_size):
            if loss.orders and group[0][1] == group[-1][1]:
                num_equal += 1
            else:
                groups.append((query, group))
    if not groups:
        raise InputError(f'{train.source}: no query has documents of different gains, which '
                         'config.reranking.loss needs: give it some that are not relevant')
    if num_equal:
        say(f'{train.source}: {num_equal:,} of {num_equal + len(groups):,} groups of documents '
            'have equal gains, so that there is nothing to learn of their order; left out')
    return groups


def _groups(
    gains: Mapping[str, float], group_size: int
) -> list[Sequence[tuple[str, float]]]:
    """A query's documents with their gains, the best first, in groups of about the same size.

    They are dealt out in the order of their gains, so that each group has its share of the
    relevant ones.
    """
    by_gain = sorted(gains.items(), key=lambda item: -item[1])
    num_groups = -(-len(by_gain) // group_size)
    return [by_gain[i::num_groups] for i in range(num_groups)]


def _with_empty(sequences: Sequences, is_document_nxC: np.ndarray) -> Sequences:
    """The sequences with empty ones in the places without a document."""
    lengths = np.zeros(is_document_nxC.size, np.int64)
    first_lengths = np.zeros(is_document_nxC.size, np.int64)
    there = np.flatnonzero(is_document_nxC)
    lengths[there] = sequences.lengths
    first_lengths[there] = sequences.first_lengths
    return dataclasses.replace(
        sequences, offsets=np.concatenate([[0], np.cumsum(lengths)]), first_lengths=first_lengths)


def _reranked(
    judged: Judged, candidates: Sequence[np.ndarray], names: Sequence[str], are_held_out: bool,
    outputs: Outputs,
) -> Results:
    """The metrics, and the content of files with the ranking and, if it is held out, its texts."""
    scores = np.split(outputs['logits'][:, 0], np.cumsum(list(map(len, candidates)))[:-1])
    last_first = np.argsort(np.argsort(np.array(judged.document_ids)))  # as trec_eval breaks ties
    ranking = ranked(candidates, scores, last_first)
    files = {'dev_rankings.trec': trec_lines(judged, ranking)}
    if are_held_out:
        files |= tables_of(judged)
    return mean_metrics(names, ranking.documents, judged.relevant), files
