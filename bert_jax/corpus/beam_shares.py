"""The shares of a store as a pipeline of Apache Beam: on Dataflow, Flink, Spark or Dask.

The engine says who makes which share and starts it again elsewhere; what a share gives follows from
the text alone, and so the store has the bytes that a single machine makes. Workers need this
package and what it reads the text with, and see the text and the store's folder by the same names.

    shares -> parts -> rows by key -> repeated documents by part -> summaries -> the store

A document repeats an earlier one only if both have a key in common, so the rows with the same
leading bits of their keys are compared by one worker, by the function that a single machine calls
for all of them, in as many passes. The order of the text, which says who is earlier, is that of the
numbers of parts: workers sort by these, since an engine brings parts in any order.

There is one sink, because a runner may build the graph of the last transform only. All keys are
made of integers, of which all processes have the same hash.
"""

import contextlib
import dataclasses
import functools
import json
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from bert_jax.corpus import bad_files
from bert_jax.corpus.store_building import FAULTS, Build, ShareMaker, finish
from bert_jax.corpus.store_finishing import PartSummary, Summaries, deciders_of, summarized
from bert_jax.corpus.store_parts import (
    KeyedRows,
    Notes,
    notes_path,
    num_documents_of,
    numbers_of,
    part_name,
)
from bert_jax.rows.store import is_finished
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, counted

_ATTEMPTS = 3  # at a share, by the same worker: runners differ in what they do themselves
_PAUSE_SECONDS = 10.0
_MOST_NAMED = 10
# Of text, whose documents are compared by one worker at a time, in some hundred MB of memory.
_COMPARED_BYTES = 2 << 30
_DASK_PARTITIONS = 256  # a thousand, grouped by key three times, are 220,000 tasks
_PASSED_ON = -1  # in place of the number of a comparison
_T = TypeVar('_T')
_Numbers = tuple[int, int]  # of a part: its share's, and its own there (see `numbers_of`)
_FAILED = -1  # in place of the second


def run(build: Build, options: Sequence[str]) -> None:
    """Makes a store by a pipeline.

    Args:
      build: of the store.
      options: of Beam's `PipelineOptions`, such as '--runner=DataflowRunner'.

    Raises:
      InputError: the options are none, the runner is not installed, the source is on this machine
        only, shares failed, each of which is named, or the pipeline did not end with the store.
    """
    if is_finished(build.folder):
        return
    if build.source.takes_all_cores:
        raise InputError(f"data source '{build.source.spec}' is read by all processors of one "
                         'machine: leave out what stands behind --')
    faults = build.folder / FAULTS
    faults.unlink(missing_ok=True)
    _run_pipeline(build, options)
    if files.exists(faults):
        failed = json.loads(files.read_bytes(faults))
        faults.unlink(missing_ok=True)
        raise InputError(_named(failed))
    if not is_finished(build.folder):
        raise InputError(
            f'{build.folder}: the pipeline ended without the store, or goes on behind this command '
            '(--no_wait_until_finish): see what the engine says; when its job has ended, the same '
            'command makes what is missing')


def _run_pipeline(build: Build, options: Sequence[str]) -> None:
    """Runs the pipeline of a store, as far as its options wait for it."""
    # Only this machine knows when its command began, so workers do not say how long it took.
    job = pickle.dumps(dataclasses.replace(build, progress=False))
    with pipeline_of(options, len(build.shares)) as pipeline:
        _ = (
            pipeline
            | beam.Create([share.number for share in build.shares])  # even if made: all compared
            | beam.Reshuffle()
            | 'make shares' >> beam.FlatMap(_make, job)
            | 'read keys' >> beam.FlatMap(_read, job)
            | 'by key' >> beam.GroupByKey()
            | 'compare' >> beam.FlatMap(_compare, job)
            | 'by part' >> beam.GroupByKey()
            | 'summarize' >> beam.FlatMap(_summarize, job)
            # Not CombineGlobally, whose key is None: processes may have different hashes of that.
            | 'join' >> beam.CombinePerKey(_JoinOutcomes())
            | 'finish' >> beam.Map(_finish, job))


@contextlib.contextmanager
def pipeline_of(options: Sequence[str], num_pieces: int) -> Iterator[beam.Pipeline]:
    """A pipeline, which runs when the block ends.

    Args:
      options: see `run`.
      num_pieces: into which its work is cut.

    Raises:
      InputError: the options are none, or the runner is not installed.
    """
    said = ' '.join(options)
    try:
        try:
            unbegun = beam.Pipeline(
                options=PipelineOptions([*_for_dask(said, num_pieces), *options]))
        except ValueError as error:
            raise InputError(f'{said}: {error}') from None
        with unbegun as pipeline:
            yield pipeline
    except ImportError as error:
        raise InputError(
            f"{said}: {error}: install what the runner needs, 'apache-beam[gcp]' for Dataflow, "
            "'apache-beam[dask]' for Dask") from error


def _for_dask(options: str, num_pieces: int) -> list[str]:
    """Options that Dask's runner chooses badly itself: one worker would get 128 shares at once."""
    if 'DaskRunner' in options and '--dask_npartitions' not in options:
        return [f'--dask_partition_size={-(-num_pieces // _DASK_PARTITIONS)}']
    return []


@functools.lru_cache(1)
def _opened(job: bytes) -> Build:
    """The build, in a worker."""
    build: Build = pickle.loads(job)
    return build


@functools.lru_cache(1)
def _maker(job: bytes) -> ShareMaker:
    """The maker of shares in a worker."""
    return ShareMaker(_opened(job), num_threads=1)


class _Fault(NamedTuple):
    """The fault at which a share failed; it goes to the last step in place of a part."""

    share: int
    fault: str


def _tried(share: int, work: Callable[[], _T]) -> _T | _Fault:
    """The result of the work on a share, which is tried three times: it may fail for a while."""
    fault = _Fault(share, '')
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        try:
            return work()
        except Exception as error:  # of many libraries; it is named at the end
            fault = _Fault(share, f'{type(error).__name__}: {error}')
    return fault


def _make(number: int, job: bytes) -> Iterator[Any]:
    """Makes a share; gives the `_Numbers` of its parts, or the `_Fault`."""
    build = _opened(job)
    share = build.shares[number]
    names = _tried(number, lambda: _maker(job).make(share))
    if isinstance(names, _Fault):
        yield names
        return
    _count('bad_files', len(bad_files.read_bad_files(
        build.folder / f'{share.name}{bad_files.ENDING}')))
    yield from map(numbers_of, names)


def _read(part: Any, job: bytes) -> Iterator[tuple[tuple[int, int], Any]]:
    """Gives rows to compare, by (number of the comparison, leading bits), and what is passed on."""
    if not isinstance(part, _Fault):
        build = _opened(job)
        rows = _tried(part[0], lambda: _with_notes(build, part, functools.partial(_rows, build)))
        if not isinstance(rows, _Fault):
            for key, chosen in rows:
                yield key, (part, chosen)
            yield (_PASSED_ON, part[0]), (part, None)
            return
        part = rows
    yield (_PASSED_ON, part.share), ((part.share, _FAILED), part)


def _with_notes(build: Build, part: _Numbers, use: Callable[[Notes], _T]) -> _T:
    """The result of `use` for the notes of a part."""
    with files.temporary_folder() as copies:
        return use(Notes.open(notes_path(build.folder, part_name(*part)), copies))


def _rows(build: Build, notes: Notes) -> list[tuple[tuple[int, int], KeyedRows]]:
    """The rows of a part, by the number of the comparison and the leading bits of their keys."""
    num_bytes = sum(share.num_bytes for share in build.shares)
    num_bits = max(0, (num_bytes // _COMPARED_BYTES).bit_length())
    found: list[tuple[tuple[int, int], KeyedRows]] = []
    for number, decider in enumerate(deciders_of(build.facts)):
        if decider.comparison is not None:
            for leading, rows in decider.comparison.rows(notes).by_leading_bits(num_bits):
                found.append(((number, leading), rows))
    _, text_bytes = notes.read('totals').tolist()
    _count('text_bytes', text_bytes)
    _count('documents', num_documents_of(notes.read('index')))
    _count('tokens', int(notes.read('token_counts').sum()))
    return found


def _count(what: str, number: int) -> None:
    Metrics.counter('store', what).inc(number)


def _compare(
    keyed: tuple[tuple[int, int], Iterable[tuple[_Numbers, Any]]], job: bytes
) -> Iterator[tuple[_Numbers, Any]]:
    """Gives each part (number of the comparison, documents that repeat an earlier one)."""
    (number, _), values = keyed
    if number == _PASSED_ON:
        yield from values
        return
    rows_of_parts = dict(values)
    parts = sorted(rows_of_parts)  # in the order of the text
    rows = KeyedRows.joined([rows_of_parts[part] for part in parts])
    comparison = deciders_of(_opened(job).facts)[number].comparison
    assert comparison is not None
    repeats = np.sort(comparison.repeats_in(rows))
    ends = np.cumsum([len(rows_of_parts[part].keys) for part in parts])
    for part, chosen in zip(parts, np.split(repeats, np.searchsorted(repeats, ends[:-1])),
                            strict=True):
        if len(chosen):
            yield part, (number, rows.documents[chosen])


def _summarize(
    found: tuple[_Numbers, Iterable[Any]], job: bytes
) -> Iterator[tuple[int, tuple[_Numbers, Any]]]:
    """Gives the `PartSummary` of a part, or the `_Fault`; all by the same key."""
    part, values = found
    noted = [value for value in values if value is not None]
    if part[1] == _FAILED:
        yield 0, (part, noted[0])
        return
    deciders = deciders_of(_opened(job).facts)

    def summary(notes: Notes) -> PartSummary:
        num_documents = num_documents_of(notes.read('index'))
        repeats = [np.zeros(num_documents, bool) for _ in deciders]
        for number, documents in noted:
            repeats[number][documents] = True
        return summarized(notes, deciders, repeats)

    yield 0, (part, _tried(part[0], lambda: _with_notes(_opened(job), part, summary)))


class _Outcome(NamedTuple):
    """The outcome of all parts.

    Attributes:
      summaries: of the good ones.
      faults: by the numbers of shares.
    """

    summaries: Summaries
    faults: dict[int, str]


class _JoinOutcomes(beam.CombineFn):
    """Joins summaries and faults, some of them first on many workers."""

    def create_accumulator(self) -> _Outcome:
        """The outcome of no part."""
        return _Outcome(Summaries(), {})

    def add_input(self, outcome: _Outcome, found: tuple[_Numbers, Any]) -> _Outcome:
        """Adds one part."""
        part, summary = found
        if isinstance(summary, _Fault):
            outcome.faults[summary.share] = summary.fault
        else:
            outcome.summaries.add(part_name(*part), summary)
        return outcome

    def merge_accumulators(self, outcomes: Iterable[_Outcome]) -> _Outcome:
        """Adds the parts of others."""
        merged = self.create_accumulator()
        for outcome in outcomes:
            merged.summaries.join(outcome.summaries)
            merged.faults.update(outcome.faults)
        return merged

    def extract_output(self, outcome: _Outcome) -> _Outcome:
        """It is the result."""
        return outcome


def _finish(joined: tuple[int, _Outcome], job: bytes) -> None:
    """Does the last step, or leaves a file that says why it could not be done."""
    build = _opened(job)
    _, outcome = joined
    faults = {f'share {number}': outcome.faults[number] for number in sorted(outcome.faults)}
    if not faults:
        try:
            finish(build, outcome.summaries)
        except InputError as error:  # starting the sink again would not help
            faults[''] = str(error)
    if faults:
        files.write_whole(build.folder / FAULTS, json.dumps(faults))


def _named(faults: dict[str, str]) -> str:
    """A message for what a pipeline failed at."""
    if '' in faults:
        return faults['']
    named = [f'{share} ({fault})' for share, fault in list(faults.items())[:_MOST_NAMED]]
    more = ', ...' if len(faults) > _MOST_NAMED else ''
    return (f"{counted(len(faults), 'share')} failed {_ATTEMPTS} times: {', '.join(named)}{more}; "
            'the same command makes what is missing')
