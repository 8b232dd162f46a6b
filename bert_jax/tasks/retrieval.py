"""Retrieval: queries with their documents, or pairs with scores, and rankings of a corpus.

A table has a query and its document in each row (`data.text`, `data.text_pair`), and perhaps hard
negatives (`data.choices`); or, with `data.label`, two texts and a score of how alike they are.

Queries and documents are scored by the ranking of a corpus: of `retrieval.corpus` for
`retrieval.queries` by the judgements in `retrieval.qrels`, which are tables with the columns of
BEIR (Thakur et al., 2021); or of the documents and hard negatives that are held out. Pairs with
scores are scored by the correlation of their cosines.

    n: queries, M: documents, H: columns, T: texts a row
"""

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.answers.engine import Outputs
from bert_jax.config import model_sizes
from bert_jax.heads.retrieval import Retrieval, ScoredPairs
from bert_jax.rows import table
from bert_jax.rows.packing import Units
from bert_jax.rows.sequences import Encode, Sequences, make_sequences
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.runtime.hosts import say
from bert_jax.tasks.glue import read_glue
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledTask,
    Results,
    open_tokenization,
    warn_of_cut,
)
from bert_jax.tasks.labels import NumericLabels
from bert_jax.tasks.metrics import METRICS
from bert_jax.tasks.ranking import Nearest, check_names, depth, mean_metrics, nearest
from bert_jax.tasks.sources import own_files
from bert_jax.tasks.texts import TextColumns, TextExamples, read_texts
from bert_jax.text.tokenizer import Tokens

QUERY, DOCUMENT = 'query', 'document'  # names of prompts, as sentence-transformers has them
# Names of columns that are read where nobody names one.
_USUAL_QUERIES = ('text', 'query', 'question', 'anchor', 'sentence1')
_USUAL_DOCUMENTS = (
    'text_pair', 'positive', 'answer', 'document', 'passage', 'sentence2')
_USUAL_IDS = ('_id', 'id')
_USUAL_QUERY_IDS = ('query-id', 'query_id', 'qid')
_USUAL_DOCUMENT_IDS = ('corpus-id', 'corpus_id', 'document_id', 'docid')


def open_retrieval(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Vectors of the user's own texts."""
    _check_used(config)
    maker = _RetrievalTaskMaker(config)
    if config.data.label:
        train, dev = own_files(
            config, scored, maker.read_scored, TextExamples.wholes, wholes=TextExamples.wholes)
        return maker.of_scored_pairs(train, dev)
    judged = judged_tables(config, 'retrieval')
    if judged is not None:
        train = None if scored else maker.read(source_of_all(config))
        return maker.of_rankings(train, judged)
    train, dev = own_files(
        config, scored, maker.read, lambda examples: examples.texts[0], wholes=TextExamples.wholes)
    return maker.of_rankings(train, _judged_rows(dev, maker.text_ids(dev)))


def _check_used(config: ConfigDict) -> None:
    """Raises InputError for a field that would have no effect, or an unknown metric."""
    section = config.retrieval
    if not config.data.label:
        named_metrics(config, 'retrieval')  # refused now rather than after all rows are read
    if section.least_score and not config.data.label:
        raise InputError(f'config.retrieval.least_score={section.least_score}: there are no scores '
                         'without config.data.label: name their column, or leave it out')
    if section.symmetric and config.data.label and not section.least_score:
        raise InputError('config.retrieval.symmetric=True is for queries and documents: leave it '
                         'out with config.data.label, or set config.retrieval.least_score')
    if config.data.text_pair and config.data.text == config.data.text_pair:
        raise InputError(f'config.data.text and text_pair are both {config.data.text!r}: name the '
                         'column of the queries and that of their documents')


def open_stsb(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Vectors of the pairs of STS-B, from the files of GLUE."""
    data = config.data
    read = functools.partial(read_glue, 'stsb', max_malformed=data.max_malformed)
    train = None if scored else read(data.source, 'train')
    dev = read(str(as_path(data.eval_source)) if data.eval_source else data.source, 'dev')
    assert dev is not None
    return _RetrievalTaskMaker(config).of_scored_pairs(train, dev)


def read_pairs(config: ConfigDict, path: str) -> TextExamples:
    """The queries of a file, their documents, and hard negatives or, with `data.label`, scores."""
    data = config.data
    columns = [
        table.column_or_usual(path, data.text, _USUAL_QUERIES, 'config.data.text'),
        table.column_or_usual(
            path, data.text_pair or None, _USUAL_DOCUMENTS, 'config.data.text_pair')]
    columns += filter(None, map(str.strip, data.choices.split(',')))
    return read_texts(
        path, TextColumns(columns, label=data.label or '', id=data.id, needs_ids=True),
        NumericLabels() if data.label else None, max_malformed=data.max_malformed,
        keep_empty=False)


def source_of_all(config: ConfigDict) -> str:
    """`data.source`, to train on all of it, where a corpus is scored."""
    if config.data.eval_source:
        raise InputError(
            f'config.data.eval_source={config.data.eval_source} holds pairs to score, and '
            f'config.{config.task}.corpus, queries and qrels say what is scored: leave out either')
    return str(as_path(config.data.source))


def named_metrics(config: ConfigDict, section: str, usual: Sequence[str] = ()) -> list[str]:
    """The metrics of rankings that a section of the config names, or the usual ones.

    Raises:
      InputError: one is unknown.
    """
    names = [name.strip() for name in config[section].metrics.split(',') if name.strip()]
    check_names(names, f'config.{section}.metrics')
    return names or list(usual)


@dataclasses.dataclass(frozen=True)
class Judged:
    """Queries, the corpus that is ranked for them, and which documents are relevant.

    Attributes:
      queries, documents: their texts.
      query_ids, document_ids: their names.
      relevant: for each query the gains of judged documents, by the document's index; those that
        are not there have indices that no document has: they count, and are never found.
      left_out: for each query the document that is equal to it and not relevant, which it is not to
        find, or None. Empty: all are ranked.
    """

    queries: Sequence[str]
    documents: Sequence[str]
    query_ids: Sequence[str]
    document_ids: Sequence[str]
    relevant: Sequence[Mapping[int, float]]
    left_out: Sequence[int | None] = ()


class _RetrievalTaskMaker:
    """Reads the texts that a config names, and makes the task of them."""

    def __init__(self, config: ConfigDict):
        self._config = config
        self._section = config.retrieval
        self._tokenization = open_tokenization(config)
        self._prompts = {QUERY: self._section.query_prompt, DOCUMENT: self._section.document_prompt}

    def read(self, path: str) -> TextExamples:
        """The queries, documents and hard negatives of a file."""
        return read_pairs(self._config, path)

    def read_scored(self, path: str) -> TextExamples:
        """The pairs of a file, with their scores."""
        if self._config.data.choices:
            raise InputError(f'config.data.choices={self._config.data.choices!r} are for queries '
                             'without scores: leave it out, or config.data.label')
        return read_pairs(self._config, path)

    def of_rankings(self, train: TextExamples | None, judged: Judged) -> LabelledTask:
        """The task that is scored by rankings."""
        names = named_metrics(
            self._config, 'retrieval',
            ('ndcg_at_10', 'mrr_at_10', 'recall_at_100', 'accuracy_at_1'))
        say(f'scored: {len(judged.documents):,} documents are ranked for '
            f'{len(judged.queries):,} queries')
        queries = self._prompted(judged.queries, QUERY)
        documents = self._prompted(judged.documents, DOCUMENT)
        units = Units(self._sequences([*queries, *documents]))
        results = functools.partial(_ranking_results, judged, names, self._columns())
        return self._task(
            train, EvalSet('', units, results), names[0], Retrieval,
            num_texts=len(train.texts) if train else 2)

    def of_scored_pairs(self, train: TextExamples | None, dev: TextExamples) -> LabelledTask:
        """The task that is scored by correlations."""
        least = self._section.least_score
        trained_as: type[Retrieval] = ScoredPairs
        if least:
            trained_as = Retrieval
            if train is not None:
                train = train.take(np.flatnonzero(train.labels >= least))
                if not len(train):
                    raise InputError(f'config.retrieval.least_score={least}: no pair of '
                                     f'{train.source} has such a score')
        names = [name.strip() for name in self._section.metrics.split(',') if name.strip()]
        names = names or ['spearman', 'pearson']
        for name in names:
            if name not in ('spearman', 'pearson'):
                raise InputError(f'config.retrieval.metrics={name!r}: pairs with scores are scored '
                                 'by spearman and pearson')
        units = Units(self._sequences([
            *self._prompted(dev.texts[0], QUERY), *self._prompted(dev.texts[1], DOCUMENT)]))
        results = functools.partial(_correlations, dev.labels, names, self._columns())
        return self._task(train, EvalSet('', units, results), names[0], trained_as, num_texts=2)

    def _task(
        self, train: TextExamples | None, scored: EvalSet, metric: str,
        trained_as: type[Retrieval], num_texts: int,
    ) -> LabelledTask:
        section = self._section
        units = None if train is None else self._train_units(train)
        warn_of_cut((units or scored.units).sequences, self._config.data.max_seq_length)
        arguments = {
            'num_texts': num_texts, 'columns': self._columns(),
            'temperature': section.temperature, 'learn_temperature': section.learn_temperature,
            'symmetric': section.symmetric, 'pool': section.pool}
        inference: dict[str, Any] = {'pool': section.pool, 'normalize': True}
        if any(self._prompts.values()):
            inference['prompts'] = self._prompts
        return LabelledTask(
            self._config, self._tokenization, train=units, evaluated=(scored,), metric=metric,
            head='', trained_as=trained_as, arguments=arguments, inference=inference)

    def _prompted(self, texts: Sequence[str], name: str) -> list[str]:
        prompt = self._prompts[name]
        return [prompt + text for text in texts]

    def _sequences(self, texts: Sequence[str], without: str = '') -> Sequences:
        """Sequences of texts, with so much room as the prompt `without` leaves."""
        tokenization = self._tokenization
        max_length = self._config.data.max_seq_length
        if without:
            max_length -= int(tokenization.encode([without])[1].sum())
        return make_sequences(
            tokenization.encode(texts), None, max_length=max_length, frame=tokenization.frame)

    def text_ids(self, examples: TextExamples) -> np.ndarray:
        """Numbers [n, T] of texts, equal where the model reads the same tokens of them."""
        def encode(name: str, texts: Sequence[str]) -> Tokens:
            sequences = self._sequences(texts, self._prompts[name])
            return sequences.ids, sequences.lengths

        names = [QUERY] + [DOCUMENT] * (len(examples.texts) - 1)
        return text_ids(examples.texts, [functools.partial(encode, name) for name in names])

    def _train_units(self, examples: TextExamples) -> Units:
        """The texts of each row as a unit."""
        queries, *others = examples.texts
        columns = [self._prompted(queries, QUERY)]
        columns += [self._prompted(column, DOCUMENT) for column in others]
        sequences = self._sequences(list(itertools.chain.from_iterable(zip(*columns, strict=True))))
        labels = {'text_ids': self.text_ids(examples)}
        if examples.labels is not None:
            labels['labels'] = examples.labels
        return Units(sequences, choices=len(columns), labels=labels)

    def _columns(self) -> tuple[int, ...]:
        """How many columns of the vectors are trained and scored: all, then `retrieval.dims`.

        Raises:
          InputError: one is no number of columns that the model has.
        """
        size = model_sizes(self._config)['hidden_size']
        columns = [size]
        for text in filter(None, map(str.strip, self._section.dims.split(','))):
            columns.append(_num_columns(size, text))
        return tuple(dict.fromkeys(columns))


def _num_columns(size: int, text: str) -> int:
    """The columns that one of `retrieval.dims` takes of `size`: a number, or a share below 1."""
    num = 0
    try:
        num = int(text)
    except ValueError:
        with contextlib.suppress(ValueError):
            share = float(text)
            num = int(share * size) if 0 < share < 1 else 0
    if not 0 < num <= size:
        raise InputError(f'config.retrieval.dims={text!r}: a whole number of columns up to {size}, '
                         'or a share of them below 1, is needed')
    return num


def text_ids(columns: Sequence[Sequence[str]], encodes: Sequence[Encode]) -> np.ndarray:
    """Numbers [n, T] of texts, equal if all their tokens are: to a model, they are the same text.

    Args:
      columns: T columns of n texts, without prompts.
      encodes: for each column what tokenizes many texts, perhaps cuts them.
    """
    of_tokens: dict[bytes, int] = {}
    numbers: list[list[int]] = []
    for column, encode in zip(columns, encodes, strict=True):
        distinct = list(dict.fromkeys(column))
        ids, counts = encode(distinct)
        tokens = np.split(np.asarray(ids, np.int32), np.cumsum(counts)[:-1])
        of_text: dict[str, int] = {}
        for text, of_this in zip(distinct, tokens, strict=True):
            of_text[text] = of_tokens.setdefault(of_this.tobytes(), len(of_tokens))
        numbers.append([of_text[text] for text in column])
    return np.ascontiguousarray(np.array(numbers, np.int32).T)


def _judged_rows(examples: TextExamples, ids_nxT: np.ndarray) -> Judged:
    """Held-out rows: the documents of equal queries are relevant, all texts but queries ranked.

    Args:
      examples: the rows.
      ids_nxT: of `text_ids`.
    """
    queries: dict[int, str] = {}
    documents: dict[int, str] = {}
    for ids, texts in zip(ids_nxT.tolist(), zip(*examples.texts, strict=True), strict=True):
        queries.setdefault(ids[0], texts[0])
        for number, text in zip(ids[1:], texts[1:], strict=True):
            documents.setdefault(number, text)
    document_of = {number: i for i, number in enumerate(documents)}
    relevant: dict[int, dict[int, float]] = {number: {} for number in queries}
    for query, document in ids_nxT[:, :2].tolist():
        relevant[query][document_of[document]] = 1
    left_out: list[int | None] = []
    for query, of_query in relevant.items():
        equal = document_of.get(query)
        left_out.append(None if equal in of_query else equal)
    return Judged(
        list(queries.values()), list(documents.values()), [f'q{i}' for i in range(len(queries))],
        [f'd{i}' for i in range(len(documents))], list(relevant.values()), left_out)


def judged_tables(config: ConfigDict, section: str) -> Judged | None:
    """The corpus, queries and judgements that a section of the config names; None if it names none.

    Raises:
      InputError: it names some of the three, one cannot be read, or no query has a judgement.
    """
    paths = {name: config[section][name] for name in ('corpus', 'queries', 'qrels')}
    if not any(paths.values()):
        return None
    for name, path in paths.items():
        if not path:
            raise InputError(f"config.{section}.{name}='': corpus, queries and qrels belong "
                             'together: name all three, or none')
    max_malformed = config.data.max_malformed
    documents = _texts_by_id(str(as_path(paths['corpus'])), max_malformed)
    queries = _texts_by_id(str(as_path(paths['queries'])), max_malformed)
    qrels = str(as_path(paths['qrels']))
    gains = _known_gains(qrels, queries, documents, max_malformed)
    if not any(document in documents for of_query in gains.values() for document in of_query):
        raise InputError(f"{qrels} judges no query of {paths['queries']} with a document of "
                         f"{paths['corpus']}: do their ids belong together?")
    # Documents that are judged and not there have numbers, too: they count as not found.
    judged = [*documents, *(name for of_query in gains.values() for name in of_query)]
    number_of = {name: i for i, name in enumerate(dict.fromkeys(judged))}
    relevant = [{number_of[name]: gain for name, gain in of_query.items()}
                for of_query in gains.values()]
    return Judged(
        [queries[name] for name in gains], list(documents.values()), list(gains),
        list(documents), relevant)


def _known_gains(
    qrels: str, queries: Mapping[str, str], documents: Mapping[str, str], max_malformed: float
) -> dict[str, dict[str, float]]:
    """The gains of judged documents for each query that is there, by their ids.

    Says how many judgements are of queries or documents that are not there.
    """
    gains: dict[str, dict[str, float]] = {}
    unknown: list[str] = []  # judgements, as shown
    for line, (query, document), gain in _judgements(qrels, max_malformed):
        if query not in queries or document not in documents:
            unknown.append(f'line {line}: {query!r} with {document!r}')
        if query in queries:
            gains.setdefault(query, {})[document] = gain
    if unknown:
        say(f'warning: {qrels}: {len(unknown):,} judgements are of queries or documents that are '
            f'not there, the first in {unknown[0]}: such queries are left out, such documents '
            'count as not found, as in trec_eval')
    return gains


def _texts_by_id(path: str, max_malformed: float) -> dict[str, str]:
    """The texts of a table of BEIR, each after its title, by id."""
    id_column = table.column_or_usual(path, None, _USUAL_IDS, 'the ids')
    rows = table.read_table(
        path, ['text', 'title'], titled, id_column=id_column, max_malformed=max_malformed,
        optional=['title'])
    for line, name in zip(rows.lines, rows.ids, strict=True):
        if name.split() != [name]:
            raise InputError(f'{path}, line {line}: the id {name!r} is empty or has white space in '
                             'it, which ends it in files of trec_eval: give it another, in the '
                             'judgements, too')
    return dict(zip(rows.ids, rows.values, strict=True))


def titled(cells: list[Any]) -> str:
    """A text, after its title if it has one."""
    text, title = cells
    (text,) = table.texts_of([text])
    return f'{title} {text}'.strip() if isinstance(title, str) else text


def _judgements(
    path: str, max_malformed: float
) -> Iterator[tuple[int, tuple[str, str], float]]:
    """(Line, (query, document), gain) of each row of a table of judgements.

    Raises:
      InputError: two judge the same.
    """
    columns = [
        table.column_or_usual(path, None, _USUAL_QUERY_IDS, 'the ids of queries'),
        table.column_or_usual(path, None, _USUAL_DOCUMENT_IDS, 'the ids of documents'),
        'score']
    scores = NumericLabels()

    def parse(cells: list[Any]) -> tuple[tuple[str, str], float]:
        query, document, gain = cells
        return (table.label_of(query), table.label_of(document)), scores.parse(gain)

    rows = table.read_table(path, columns, parse, max_malformed=max_malformed)
    line_of: dict[tuple[str, str], int] = {}
    for line, (judged, gain) in zip(rows.lines, rows.values, strict=True):
        first = line_of.setdefault(judged, line)
        if first != line:
            raise InputError(f'{path}, line {line}: {judged[0]!r} with {judged[1]!r} stands in '
                             f'line {first} already; remove one of them')
        yield line, judged, gain


def cut_and_scaled(vectors: np.ndarray, num_columns: int) -> np.ndarray:
    """The first columns of vectors [..., H], with length 1."""
    vectors = vectors[..., :num_columns]
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _of_each_cut(
    columns: Sequence[int], outputs: Outputs, compute: Callable[[np.ndarray], Mapping[str, float]]
) -> dict[str, float]:
    """Metrics of the whole vectors, and of those that are cut, such as `spearman_64`."""
    metrics: dict[str, float] = {}
    for i, num_columns in enumerate(columns):
        ending = f'_{num_columns}' if i else ''
        for name, value in compute(cut_and_scaled(outputs['logits'], num_columns)).items():
            metrics[name + ending] = value
    return metrics


def _correlations(
    scores: np.ndarray, names: Sequence[str], columns: Sequence[int], outputs: Outputs
) -> Results:
    """Correlations of cosines with scores."""
    def compute(vectors: np.ndarray) -> dict[str, float]:
        first, second = np.split(vectors, 2)
        cosines = np.einsum('nH,nH->n', first, second)
        return {name: METRICS[name].compute(cosines, scores) for name in names}

    return _of_each_cut(columns, outputs, compute), {}


def _ranking_results(
    judged: Judged, names: Sequence[str], columns: Sequence[int], outputs: Outputs
) -> Results:
    """The metrics of rankings, and the content of a file with those of the whole vectors."""
    last_first = np.argsort(np.argsort(np.array(judged.document_ids)))  # as trec_eval breaks ties
    left_out = functools.partial(_is_left_out, judged) if judged.left_out else None
    rankings: list[Nearest] = []

    def compute(vectors: np.ndarray) -> dict[str, float]:
        queries, documents = np.split(vectors, [len(judged.queries)])
        ranking = nearest(
            queries, documents, depth(names), last_first=last_first, left_out=left_out)
        rankings.append(ranking)
        return mean_metrics(names, ranking.documents, judged.relevant)

    metrics = _of_each_cut(columns, outputs, compute)
    files = {'dev_rankings.trec': trec_lines(judged, rankings[0])}
    if judged.left_out:
        files |= tables_of(judged)
    return metrics, files


def tables_of(judged: Judged) -> dict[str, str]:
    """The contents of a corpus, of queries and judgements as BEIR has them, by name."""
    judgements = ['query-id\tcorpus-id\tscore\n']
    for query, of_query in zip(judged.query_ids, judged.relevant, strict=True):
        for document, gain in of_query.items():
            judgements.append(f'{query}\t{judged.document_ids[document]}\t{gain:g}\n')
    files = {'dev_qrels.tsv': ''.join(judgements)}
    for name, ids, texts in (
            ('dev_queries.jsonl', judged.query_ids, judged.queries),
            ('dev_corpus.jsonl', judged.document_ids, judged.documents)):
        rows = [json.dumps({'_id': row_id, 'text': text}, ensure_ascii=False)
                for row_id, text in zip(ids, texts, strict=True)]
        files[name] = '\n'.join(rows) + '\n'
    return files


def _is_left_out(judged: Judged, queries: np.ndarray) -> np.ndarray:
    """[Q, M]: whether a query of these [Q] is not to find a document."""
    is_left_out = np.zeros((len(queries), len(judged.documents)), bool)
    for row, query in enumerate(queries):
        document = judged.left_out[query]
        if document is not None:
            is_left_out[row, document] = True
    return is_left_out


def trec_lines(judged: Judged, ranking: Nearest) -> str:
    """The ranking as trec_eval reads it: query, Q0, document, rank, score, and a name."""
    lines = []
    for query, documents, scores in zip(
        judged.query_ids, ranking.documents.tolist(), ranking.scores.tolist(), strict=True):
        for rank, (document, score) in enumerate(zip(documents, scores, strict=True), 1):
            if document >= 0:
                name = judged.document_ids[document]
                lines.append(f'{query} Q0 {name} {rank} {score:.9g} bert_jax\n')
    return ''.join(lines)
