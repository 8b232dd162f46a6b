"""The shares of a store as a pipeline of Apache Beam: on Dataflow, Flink, Spark or Dask.

The engine says who makes which share and starts it again elsewhere; what a share gives follows from
the text alone, and so the store has the bytes that a single machine makes. Workers need this
package and what it reads the text with, and see the text and the store's folder by the same names.

There is one sink, because a runner may build the graph of the last transform only.
"""

import dataclasses
import json
import pickle
import time
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from bert_jax.corpus.build_progress import Read
from bert_jax.corpus.store_building import FAULTS, Build, ShareMaker, finish, undone
from bert_jax.rows.store import is_finished
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, counted

_ATTEMPTS = 3  # at a share, by the same worker: runners differ in what they do themselves
_PAUSE_SECONDS = 10.0
_MOST_NAMED = 10


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
    try:
        _run_pipeline(build, options)
    except ImportError as error:
        raise InputError(
            f"{' '.join(options)}: {error}: install what the runner needs, 'apache-beam[gcp]' for "
            "Dataflow, 'apache-beam[dask]' for Dask") from error
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
    numbers = [share.number for share in undone(build)]
    try:
        unbegun = beam.Pipeline(options=PipelineOptions(list(options)))
    except ValueError as error:
        raise InputError(f"{' '.join(options)}: {error}") from None
    with unbegun as pipeline:
        _ = (
            pipeline
            | beam.Create([*numbers, None])  # None: so that there is something where all are done
            | beam.Reshuffle()
            | beam.ParDo(_MakeShare(job))
            | beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | beam.Map(_finish, job))


class _MakeShare(beam.DoFn):
    """Makes shares; gives the number of each, and what it failed at."""

    def __init__(self, job: bytes):
        """`job` is a `Build`, pickled."""
        self._job = job

    def setup(self) -> None:
        """Opens the build, in a worker."""
        self._maker = ShareMaker(pickle.loads(self._job), num_threads=1)

    def process(self, number: int | None) -> Iterator[tuple[int, str]]:
        """Makes a share, if it is one."""
        if number is None:
            return
        share = self._maker.build.shares[number]
        fault = ''
        for attempt in range(_ATTEMPTS):
            try:
                self._maker.make(share, _count)
                yield number, ''
                return
            except Exception as error:  # of many libraries; it is named at the end
                fault = f'{type(error).__name__}: {error}'
            if attempt + 1 < _ATTEMPTS:
                time.sleep(_PAUSE_SECONDS)
        yield number, fault


def _count(read: Read) -> None:
    Metrics.counter('store', 'text_bytes').inc(read.text)


def _finish(made: Iterable[tuple[int, str]], job: bytes) -> None:
    """Does the last step, or leaves a file that says why it could not be done."""
    build: Build = pickle.loads(job)
    faults = {f'share {number}': fault for number, fault in made if fault}
    if not faults:
        try:
            finish(build)
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
