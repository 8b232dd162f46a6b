"""Finds hard negatives: documents that a model takes for the answer to a query, and that are none.

    python -m bert_jax.tools.mine --model runs/search --input pairs.csv --text question \\
        --text-pair answer --negatives 3 --output mined.jsonl
    python -m bert_jax.main --config=configs/retrieval.py --config.data.source=mined.jsonl \\
        --config.data.text=question --config.data.text_pair=answer \\
        --config.data.choices=negative_1,negative_2,negative_3 --workdir=runs/better

The candidates are the documents of all rows, and the texts (after their titles) of --corpus, a
table. Of the --top-k nearest to a query by the cosines of the model's vectors, with its prompts,
those are left out that are, as the model reads them (it cuts long texts), equal to a document of an
equal query, to the query itself, or to a nearer candidate; and those whose cosine is above that of
the row's own document minus the margin, since many of them are answers that nobody has marked. The
nearest of the others are the row's negatives. A row with too few is left out, and counted.

Exit status: 0 done, 2 bad input (one line on standard error), 1 anything else.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.config.command_line import Parser, at_least
from bert_jax.rows import table
from bert_jax.runtime.errors import InputError, show, tell
from bert_jax.runtime.files import as_path, check_new_file, open_whole
from bert_jax.runtime.pace import Pace
from bert_jax.runtime.process import error_boundary

if TYPE_CHECKING:
    from bert_jax.predict.model import Model

_ALL_TOKENS = 1 << 40  # more than a text has


def _parser() -> Parser:
    parser = Parser('python -m bert_jax.tools.mine', __doc__)
    parser.add_argument('--model', required=True, metavar='DIR', help='whose vectors are compared')
    parser.add_argument('--input', required=True, metavar='FILE', help='of queries and documents')
    parser.add_argument('--text', default='text', metavar='COLUMN', help='of the queries (text)')
    parser.add_argument(
        '--text-pair', default='text_pair', metavar='COLUMN', help='of the documents (text_pair)')
    parser.add_argument('--corpus', default='', metavar='FILE', help='of further candidates')
    parser.add_argument('--output', required=True, metavar='FILE.jsonl')
    parser.add_argument(
        '--negatives', type=at_least(1), default=1, metavar='N', help='of a row (1)')
    parser.add_argument(
        '--top-k', type=at_least(1), default=50, metavar='K',
        help='candidates that are looked at (50)')
    parser.add_argument(
        '--margin', type=float, default=0.05, metavar='X',
        help="by which a negative's cosine is below that of the row's document (0.05)")
    return parser


def main(argv: Sequence[str]) -> None:
    """Runs the command (see the top of this file)."""
    args = _parser().parse_args(argv)
    with error_boundary(writing=args.output):
        if not args.output.endswith('.jsonl'):
            raise InputError(f'--output={args.output} must end in .jsonl')
        check_new_file(args.output, '--output')
        pairs = _read_columns(args.input, [args.text, args.text_pair])
        further = _read_corpus(args.corpus) if args.corpus else []
        from bert_jax.loading import keep_programs, load  # here, as `--help` need not wait for JAX

        keep_programs(in_command=True)
        model = load(args.model)
        model.note = lambda line: tell(f'note: {line}')
        rows = mined(
            model, pairs, further, num=args.negatives, top_k=args.top_k, margin=args.margin)
        if not rows:
            raise InputError(
                f'{args.input}: no row has {args.negatives} negatives among the {args.top_k} '
                f'nearest candidates with --margin={args.margin:g}: raise --top-k, or lower either')
        names = [args.text, args.text_pair]
        names += [f'negative_{i}' for i in range(1, args.negatives + 1)]
        with open_whole(as_path(args.output)) as file:
            for row in rows:
                line = json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
                file.write(f'{line}\n'.encode())
        show(f'{len(rows):,} of {len(pairs):,} rows have {args.negatives} negatives each: '
             f'{args.output}')


def _read_columns(path: str, columns: Sequence[str]) -> list[list[str]]:
    """The texts in some columns of a table."""
    return table.read_table(str(as_path(path)), columns, table.texts_of).values


def _read_corpus(path: str) -> list[str]:
    """The texts of a table, each after its title if it has one."""
    from bert_jax.tasks.retrieval import titled

    return table.read_table(
        str(as_path(path)), ['text', 'title'], titled, optional=['title']).values


def mined(
    model: Model, pairs: Sequence[Sequence[str]], further: Sequence[str], *, num: int, top_k: int,
    margin: float,
) -> list[list[str]]:
    """Finds hard negatives: for each pair a row of its query, its document, and the negatives.

    The candidates are all documents and `further`. A candidate of which the model reads the same
    tokens as of the query, or of one of its documents, is no negative; of several candidates with
    the same tokens one is taken. Pairs with fewer than `num` negatives have no row.

    Args:
      model: makes the vectors.
      pairs: queries, each with a document.
      further: candidates besides the documents.
      num: negatives of a row.
      top_k: how many of the candidates nearest to a query are considered.
      margin: how much lower than the document's cosine that of a negative must be.
    """
    from bert_jax.tasks.ranking import nearest
    from bert_jax.tasks.retrieval import DOCUMENT, QUERY

    queries = list(dict.fromkeys(query for query, _ in pairs))
    candidates = list(dict.fromkeys(
        itertools.chain((document for _, document in pairs), further)))
    query_vectors = _vectors(model, queries, QUERY)
    candidate_vectors = _vectors(model, candidates, DOCUMENT)
    indices = _indices(pairs, queries, candidates)
    ids = _ids([
        *_tokens_read(model, queries, QUERY), *_tokens_read(model, candidates, DOCUMENT)])
    query_ids = ids[: len(queries)]
    candidate_ids = ids[len(queries) :]
    found = nearest(
        query_vectors, candidate_vectors, top_k,
        left_out=_left_out(query_ids, candidate_ids, indices))
    rows: list[list[str]] = []
    for (query, document), (query_index, document_index) in zip(pairs, indices, strict=True):
        cosine = query_vectors[query_index] @ candidate_vectors[document_index]
        is_far = found.scores[query_index] <= cosine - margin
        is_found = found.documents[query_index] >= 0
        negatives = found.documents[query_index][is_far & is_found]
        negatives = _without_repeats(negatives, candidate_ids)[:num]
        if len(negatives) == num:
            rows.append([query, document, *(candidates[i] for i in negatives)])
    return rows


def _indices(
    pairs: Sequence[Sequence[str]], queries: Sequence[str], candidates: Sequence[str]
) -> list[tuple[int, int]]:
    """For each pair, (the index of its query in `queries`, of its document in `candidates`)."""
    query_index = {query: i for i, query in enumerate(queries)}
    candidate_index = {text: i for i, text in enumerate(candidates)}
    return [(query_index[query], candidate_index[document]) for query, document in pairs]


def _ids(texts: Sequence[bytes]) -> np.ndarray:
    """A number for each text [n], the same for equal texts."""
    number_of: dict[bytes, int] = {}
    return np.array([number_of.setdefault(text, len(number_of)) for text in texts])


def _without_repeats(candidates: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Of candidates with the same id only the first, in their order.

    Args:
      candidates: indices of candidates.
      ids: of all candidates, equal for equal texts.
    """
    _, firsts = np.unique(ids[candidates], return_index=True)
    return candidates[np.sort(firsts)]


def _vectors(model: Model, texts: Sequence[str], prompt: str) -> np.ndarray:
    """Vectors [n, H] of length 1; says how many are done."""
    pace = Pace(every=10)
    vectors: list[np.ndarray] = []
    for vector in model.iter_vectors(texts, normalize=True, prompt=prompt):
        if np.isnan(vector).any():
            raise InputError(f'{texts[len(vectors)]!r:.60} has no vector: leave it out')
        vectors.append(vector)
        if pace.is_due():
            left = pace.seconds_left(len(vectors), len(texts) - len(vectors))
            tell(f'{len(vectors):,} of {len(texts):,} {prompt} vectors, {left:.0f} s left')
    return np.stack(vectors)


def _tokens_read(model: Model, texts: Sequence[str], prompt: str) -> list[bytes]:
    """The tokens that the model reads of each text: as many as its prompt leaves room for."""
    from bert_jax.rows.packing import Units
    from bert_jax.rows.sequences import make_sequences

    sentences = model.sentences.with_prompt(prompt)
    max_length = model.max_length - len(model.tokenizer.encode(sentences.prompt))
    if model.windows() != 'first':
        max_length = _ALL_TOKENS
    plain = sentences._replace(prompt='')
    tokens = model.encode_all([plain.prepared([text])[0] for text in texts])
    return Units(make_sequences(tokens, None, max_length=max_length, frame=model.frame)).contents()


def _left_out(
    query_ids: np.ndarray, candidate_ids: np.ndarray, indices: Sequence[tuple[int, int]]
) -> Callable[[np.ndarray], np.ndarray]:
    """A function from indices of queries [Q] to which candidates cannot be their negatives [Q, M].

    Args:
      query_ids: of the texts of all queries, equal for equal texts.
      candidate_ids: of the texts of all candidates [M], likewise.
      indices: for each pair, those of its query and of its document (`_indices`).
    """
    no_negatives: dict[int, set[int]] = defaultdict(set)  # ids of texts, by a query's id
    for query_index, document_index in indices:
        query_id = int(query_ids[query_index])
        no_negatives[query_id] |= {query_id, int(candidate_ids[document_index])}

    def left_out(some: np.ndarray) -> np.ndarray:
        of_queries: list[Any] = []
        for query_id in query_ids[some].tolist():
            of_queries.append(np.isin(candidate_ids, list(no_negatives[query_id])))
        return np.stack(of_queries)

    return left_out


if __name__ == '__main__':
    main(sys.argv[1:])
