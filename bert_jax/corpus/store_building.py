"""How token stores are built, by any number of workers on any number of machines.

A source is divided into shares, of which each is read by one worker and gives one or more parts
(see `store_parts`), written straight to the store's folder, on a disk or in a bucket:

    part-SSSSS-PPP.blocks, part-SSSSS-PPP.npz    a part, finished once it has its .npz
    part-SSSSS.done                              share S has all of its parts
    part-SSSSS.claim, finish.claim               a worker is at it (see `corpus.claims`)

All workers do the same: take a share that nobody works on, until there is none, and then the last
step (see `store_finishing`). A worker that is killed loses the part that it was writing. Shares and
parts follow from the source alone, so two workers that make the same part write the same bytes,
and the store is the same, byte for byte, whoever built it.

One process can read, check and hash about as much text as eight cores can tokenize. With more
cores, several processes of a machine are workers.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

from bert_jax.corpus import claims
from bert_jax.corpus.claims import Claims
from bert_jax.corpus.digests import name_of
from bert_jax.corpus.pool import process_pool
from bert_jax.corpus.source import Source, TokenBatch, Unit
from bert_jax.corpus.store_finishing import VOCABULARY, Origin, finish_store
from bert_jax.corpus.store_parts import (
    PART_FILE_BYTES,
    DocumentFilter,
    Limits,
    Notes,
    PartBuilder,
    Start,
    blocks_path,
    notes_path,
    part_name,
    write_notes,
)
from bert_jax.corpus.text_batches import text_batches
from bert_jax.corpus.tokenize import tokenize_batches
from bert_jax.rows.blocks import Block, bounds_of, smallest_token_dtype
from bert_jax.rows.store import (
    FORMAT_VERSION,
    TokenStore,
    disk_faults,
    documents_in_words,
    is_finished,
)
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, counted, tell
from bert_jax.text.kinds import find_vocabulary, keep_tokenizer, load_tokenizer

# Raise it when `split_sentences` changes: stores built by older rules are not reused.
_SPLITTER_VERSION = 2
_CORES_A_PROCESS = 8
_MIN_BYTES_A_PROCESS = 1 << 30  # a process takes seconds to start
# Of text in a share, at least. Before each, TensorFlow takes the time of about 10 MB.
_SHARE_BYTES = 512 << 20
_PART_BYTES = 256 << 20  # of text in a part, about
_REPORT_SECONDS = 10.0
_LEAST_SECONDS_OF_A_RATE = 3.0
_LISTING_SECONDS = 60.0  # between two listings of what other workers have done
_LOOK_SECONDS = 1.0  # between two looks at shares that others work on
_MOST_LOOKED_AT = 8  # of these shares, so that waiting workers do not crowd a bucket
_DONE_ENDING = '.done'
_FINISH = 'finish'  # the name of the last step


def store_fingerprint(
    source: Source, tokenizer: Any, facts: Sequence[DocumentFilter] = ()
) -> str:
    """The name of a source's store; it changes with the content, the vocabulary and the rules."""
    rules = [fact.fingerprint for fact in facts]
    return name_of([
        FORMAT_VERSION, _SPLITTER_VERSION, source.fingerprint(), tokenizer.fingerprint, *rules])


def build_store(
    source: Source, tokenizer: Any, cache_dir: str | os.PathLike[str], progress: bool = True,
    num_processes: int = 0, vocab_file: str | os.PathLike[str] = '',
    facts: Sequence[DocumentFilter] = (),
) -> TokenStore:
    """The token store of a source: opened if it is complete, else built, or its build resumed.

    Any number of processes may call it at the same time, on any number of machines that share
    `cache_dir`: they divide the work, and each returns when the store is complete.

    Args:
      source: where the text comes from.
      tokenizer: has `vocab` (with a length), `lowercase` and `fingerprint`.
      cache_dir: stores are in its folder `stores`; on a disk or in a bucket.
      progress: whether to report on standard error.
      num_processes: of this machine that tokenize; 0: as many as are useful.
      vocab_file: of the tokenizer, of which the store keeps a copy; '': none.
      facts: by which documents are left out, besides exact duplicates.

    Raises:
      InputError: unreadable text, no text at all, a damaged store, a full disk.
    """
    fingerprint = store_fingerprint(source, tokenizer, facts)
    folder = files.as_path(cache_dir) / 'stores' / fingerprint
    if is_finished(folder):
        return TokenStore.open(folder)
    started = time.monotonic()
    with disk_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if vocab_file:
            _keep_vocabulary(folder, vocab_file, tokenizer)
        build = _Build(
            folder=folder, fingerprint=fingerprint, source=source, tokenizer=tokenizer,
            facts=tuple(facts), shares=tuple(shares_of(source.units)), num_threads=1,
            progress=progress)
        _run_workers(build, num_processes)
    store = TokenStore.open(folder)
    if progress:
        tell(_summary(store.manifest, time.monotonic() - started))
    return store


def _summary(manifest: Mapping[str, Any], seconds: float) -> str:
    """What a finished store holds, in a line."""
    return (
        f"token store: {counted(manifest['num_tokens'], 'token')}, "
        f"{counted(manifest['num_sentences'], 'sentence')}, {documents_in_words(manifest)} from "
        f"{manifest['text_bytes'] / 1e6:.1f} MB in "
        f'{seconds:.2f} s')


def _keep_vocabulary(
    folder: files.Path, vocab_file: str | os.PathLike[str], tokenizer: Any
) -> None:
    """Copies a tokenizer's files into a store, unless they are there.

    Raises:
      InputError: `vocab_file` is not that of the tokenizer any more.
    """
    kept = folder / VOCABULARY
    if _keeps(kept, tokenizer):
        return
    kept.mkdir(parents=True, exist_ok=True)
    keep_tokenizer(vocab_file, kept)
    if not _keeps(kept, tokenizer):
        raise InputError(f'{vocab_file} changed while it was read: start again')


def _keeps(kept: files.Path, tokenizer: Any) -> bool:
    """Whether a folder has the files of a tokenizer."""
    with contextlib.suppress(InputError):
        vocab_file = find_vocabulary(kept)
        if vocab_file is not None:
            found = load_tokenizer(vocab_file, bool(tokenizer.lowercase))
            return found.fingerprint == tokenizer.fingerprint
    return False


class Share(NamedTuple):
    """What is read by one worker.

    Attributes:
      number: of the share.
      first, last: the units of the source from `first` to before `last`.
      num_bytes: of text in them, as far as it is known.
      part_bytes: of text, after which a part ends.
    """

    number: int
    first: int
    last: int
    num_bytes: int
    part_bytes: int

    @property
    def name(self) -> str:
        """The name of its claim, and of the file that says that it is done."""
        return f'part-{self.number:05}'


def shares_of(units: Sequence[Unit]) -> Iterator[Share]:
    """Divides the units of a source: each share has `_SHARE_BYTES` of text or more.

    The parts of a share are of about equal size.
    """
    first = 0
    num_bytes = 0
    number = 0
    for last, unit in enumerate(units, 1):
        num_bytes += unit.num_bytes
        if num_bytes >= _SHARE_BYTES or last == len(units):
            num_parts = max(num_bytes // _PART_BYTES, 1)
            yield Share(number, first, last, num_bytes, max(num_bytes // num_parts, _PART_BYTES))
            first = last
            num_bytes = 0
            number += 1


@dataclasses.dataclass(frozen=True)
class _Build:
    """What all workers of a store are told.

    Attributes:
      folder: of the store.
      fingerprint: its name.
      source, tokenizer, facts: see `build_store`.
      shares: of the source.
      num_threads: of each worker.
      progress: whether to report on standard error.
    """

    folder: files.Path
    fingerprint: str
    source: Source
    tokenizer: Any
    facts: tuple[DocumentFilter, ...]
    shares: tuple[Share, ...]
    num_threads: int
    progress: bool


def _run_workers(build: _Build, num_processes: int) -> None:
    """Works on a store in so many processes until it is finished; 0: as many as are useful."""
    cores = os.cpu_count() or 1
    if sys.platform == 'linux':
        cores = len(os.sched_getaffinity(0))
    if build.source.takes_all_cores:
        num_processes = 1
    elif not num_processes:
        num_processes = _useful_processes(build, cores)
    build = dataclasses.replace(build, num_threads=-(-cores // num_processes))
    if num_processes == 1:
        _Worker(build).run()
        return
    with process_pool(num_processes) as pool:
        tasks = []
        for number in range(num_processes):
            job = dataclasses.replace(build, progress=build.progress and number == 0)
            tasks.append(pool.submit(_work, pickle.dumps(job)))
        # One that fails is heard of while the others are still at work.
        done, _ = futures.wait(tasks, return_when=futures.FIRST_EXCEPTION)
        for task in done:
            task.result()


def _useful_processes(build: _Build, cores: int) -> int:
    """How many processes can share the work of tokenizing a source."""
    num_bytes = sum(share.num_bytes for share in build.shares)
    most = min(cores // _CORES_A_PROCESS, num_bytes // _MIN_BYTES_A_PROCESS, len(build.shares))
    return max(1, most)


def _work(job: bytes) -> None:
    """Is a worker, in a process of the pool.

    Args:
      job: a `_Build`, pickled, so that a failure to load it is raised by this function.
    """
    build: _Build = pickle.loads(job)
    # Otherwise TensorFlow would start threads for all cores in every process.
    os.environ['CUDA_VISIBLE_DEVICES'] = ''
    os.environ['TF_NUM_INTRAOP_THREADS'] = str(build.num_threads)
    os.environ['TF_NUM_INTEROP_THREADS'] = str(build.num_threads + 2)
    _Worker(build).run()


class _Worker:
    """One of the processes that build a store."""

    def __init__(self, build: _Build):
        self._build = build
        self._claims = Claims(build.folder)
        self._progress = _Progress(build)
        token_dtype = smallest_token_dtype(len(build.tokenizer.vocab))
        self._token_dtype = token_dtype
        self._limits = Limits.of(sum(share.num_bytes for share in build.shares))

    def run(self) -> None:
        """Works until the store is finished."""
        try:
            self._build_shares()
            self._see_it_finished()
        except FileNotFoundError:
            # While this process was suspended, others did its work and removed what it wrote.
            if not is_finished(self._build.folder):
                raise

    def _see_it_finished(self) -> None:
        """Finishes the store, or waits until another worker has."""
        while not is_finished(self._build.folder):
            with self._claims.held(_FINISH) as is_ours:
                if is_ours and not is_finished(self._build.folder):
                    self._finish()
                    return
            time.sleep(_LOOK_SECONDS)

    def _build_shares(self) -> None:
        """Works until all shares are done."""
        waiting = self._in_own_order(self._progress.undone())
        num_looked_at = len(waiting)
        while waiting:
            waiting = self._take_shares(waiting, num_looked_at)
            num_looked_at = _MOST_LOOKED_AT
            if waiting:
                self._progress.report()
                time.sleep(_LOOK_SECONDS)

    def _in_own_order(self, shares: Sequence[Share]) -> list[Share]:
        """Shares from a place on that follows from the worker's name, so that few workers meet."""
        begin = int(self._claims.worker, 16) % max(len(shares), 1)
        return [*shares[begin:], *shares[:begin]]

    def _take_shares(self, waiting: Sequence[Share], num_looked_at: int) -> list[Share]:
        """Builds those of some shares that are free; returns those that others work on.

        Args:
          waiting: the shares.
          num_looked_at: of them, at most so many that others work on are looked at.
        """
        others: list[Share] = []
        for place, share in enumerate(waiting):
            if len(others) == num_looked_at:
                return [*waiting[place:], *others]  # so that all are looked at in turn
            if self._is_done(share):
                self._progress.add_done(share)
                continue
            with self._claims.held(share.name) as is_ours:
                if not is_ours:
                    others.append(share)
                elif is_finished(self._build.folder):  # which removes what says that it is done
                    return []
                elif not self._is_done(share):
                    self._build_share(share)
                    files.write_whole(self._done_path(share), b'')
                    self._progress.add_done(share)
        return others

    def _done_path(self, share: Share) -> files.Path:
        return self._build.folder / f'{share.name}{_DONE_ENDING}'

    def _is_done(self, share: Share) -> bool:
        return files.exists(self._done_path(share))

    def _build_share(self, share: Share) -> None:
        """Makes the parts that a share lacks."""
        build = self._build
        number, start, is_whole = self._resumed(share)
        if is_whole:
            return
        texts = text_batches(build.source, range(start.unit, share.last), start.done)
        batches = _Batches(tokenize_batches(
            texts, build.tokenizer, build.num_threads, purpose=build.source.spec))
        while not is_whole:
            start, is_whole = self._build_part(share, number, batches)
            number += 1

    def _resumed(self, share: Share) -> tuple[int, Start, bool]:
        """(Number of the first part that a share lacks, where it begins, whether it lacks none)."""
        folder = self._build.folder
        number = 0
        while files.exists(notes_path(folder, part_name(share.number, number))):
            number += 1
        if number == 0:
            return 0, Start(share.first, 0), False
        path = notes_path(folder, part_name(share.number, number - 1))
        start, is_last = Notes(files.local_copy(path), path).following()
        return number, start, is_last

    def _build_part(
        self, share: Share, number: int, batches: '_Batches'
    ) -> tuple[Start, bool]:
        """Makes a part; returns where the next begins, and whether this is the last of its share.

        A part ends with the first batch that makes it large enough.
        """
        build = self._build
        name = part_name(share.number, number)
        start = Start(share.last, 0)
        with files.open_whole(blocks_path(build.folder, name)) as file:
            part = PartBuilder(
                file, self._token_dtype.itemsize, len(build.tokenizer.vocab), self._limits,
                [fact.of_part() for fact in build.facts])
            is_full = False
            while batches.following is not None and not is_full:
                batch = batches.take()
                place = batch.note
                part.add(documents_of(batch, self._token_dtype), place.num_bytes)
                start = Start(place.unit, place.done)
                self._progress.add_text(place.num_bytes)
                is_full = (
                    part.text_bytes >= share.part_bytes or part.file_bytes >= PART_FILE_BYTES)
            is_last = batches.following is None
            if is_last:
                start = Start(share.last, 0)
            notes = part.finish(start, is_last)
        write_notes(notes_path(build.folder, name), notes)
        return start, is_last

    def _finish(self) -> None:
        """Makes the parts a store."""
        build = self._build
        source = build.source
        if store_fingerprint(source, build.tokenizer, build.facts) != build.fingerprint:
            if is_finished(build.folder):  # by another worker, while this one was suspended
                return
            _remove(build.folder, ('.npz', '.blocks', _DONE_ENDING))
            changed = f"data source '{source.spec}'"
            if build.facts:
                changed += ', or a file of config.data.decontaminate,'
            raise InputError(
                f'{changed} changed while it was read: start again when its files are complete')
        origin = Origin(
            fingerprint=build.fingerprint,
            source=source.spec,
            source_fingerprint=source.fingerprint(),
            tokenizer_fingerprint=build.tokenizer.fingerprint,
            vocab_size=len(build.tokenizer.vocab),
            lowercase=build.tokenizer.lowercase)
        try:
            finish_store(build.folder, origin, len(build.shares), build.facts)
        except InputError:
            _remove(build.folder, (_DONE_ENDING,))  # so that the next start looks at the parts
            raise
        tidy(build.folder)


def tidy(folder: files.Path) -> None:
    """Removes what only building needs from a finished store; a killed worker may have left it."""
    _remove(folder, (claims.ENDING, _DONE_ENDING, '.tmp'))


def _remove(folder: files.Path, endings: tuple[str, ...]) -> None:
    """Removes the files of a folder with these endings. Other workers may do so too."""
    for path in files.children(folder):
        if path.name.endswith(endings):
            with contextlib.suppress(OSError):  # a claim may be that of a worker which ends too
                path.unlink(missing_ok=True)


class _Reading(NamedTuple):
    """How far a build was at some time.

    Attributes:
      time: of `time.monotonic`.
      own_bytes: of text that this worker had read.
      done_bytes: of text that all workers had done, as far as this one knows.
    """

    time: float
    own_bytes: int
    done_bytes: float


class _Progress:
    """What a worker knows of the whole build, and reports from time to time."""

    def __init__(self, build: _Build):
        self._build = build
        self._done_shares: set[int] = set()  # numbers of shares
        self._text_bytes = 0  # that this worker has read
        self._reported = self._listed = self._started = time.monotonic()
        self._bytes_at_start = 0.0
        # The first text comes after seconds of loading and compiling.
        self._first_text: _Reading | None = None

    def undone(self) -> list[Share]:
        """The shares that are not done, from a listing."""
        self._list()
        self._bytes_at_start = self._done_bytes()
        return [share for share in self._build.shares if share.number not in self._done_shares]

    def _list(self) -> None:
        names = files.sizes(self._build.folder)
        for share in self._build.shares:
            if f'{share.name}{_DONE_ENDING}' in names:
                self._done_shares.add(share.number)
        self._listed = time.monotonic()

    def _done_bytes(self) -> float:
        """Bytes of text of all shares that are done."""
        return sum(self._build.shares[number].num_bytes for number in self._done_shares)

    def add_done(self, share: Share) -> None:
        """Notes that a share is done."""
        self._done_shares.add(share.number)

    def add_text(self, num_bytes: int) -> None:
        """Notes that this worker has tokenized so many more bytes of text."""
        self._text_bytes += num_bytes
        if self._first_text is None:
            self._first_text = _Reading(time.monotonic(), self._text_bytes, self._done())
        self.report()

    def report(self) -> None:
        """Says how far the store is, if that was not said lately."""
        now = time.monotonic()
        if not self._build.progress or now - self._reported < _REPORT_SECONDS:
            return
        if now - self._listed > _LISTING_SECONDS:
            self._list()
        self._reported = now
        tell(self._line(now))

    def _done(self) -> float:
        """Bytes of text that all workers have done; of shares under way, only this worker's."""
        return max(self._done_bytes(), self._bytes_at_start + self._text_bytes)

    def _line(self, now: float) -> str:
        total = sum(share.num_bytes for share in self._build.shares)
        done = self._done()
        parts = [
            f'token store: {len(self._done_shares):,} of '
            f"{counted(len(self._build.shares), 'share')} done",
            f'{min(done / max(total, 1), 0.99):.0%}']
        first = self._first_text
        if first is not None and now - first.time > _LEAST_SECONDS_OF_A_RATE:
            seconds = now - first.time
            own_rate = (self._text_bytes - first.own_bytes) / seconds
            rate = max(done - first.done_bytes, 1.0) / seconds
            minutes = max(total - done, 0.0) / rate / 60
            parts += [f'{own_rate / 1e6:.1f} MB/s in this process', f'{minutes:.1f} min left']
        return ', '.join(parts)


class _Batches:
    """Batches of tokens, of which one can see whether there is another.

    Attributes:
      following: the next one; None after the last.
    """

    def __init__(self, batches: Iterator[TokenBatch]):
        self._batches = batches
        self.following = next(batches, None)

    def take(self) -> TokenBatch:
        """The next one, which must be there."""
        batch = self.following
        assert batch is not None
        self.following = next(self._batches, None)
        return batch


def documents_of(batch: TokenBatch, token_dtype: np.dtype) -> Block:
    """The documents of a batch, without empty lines (as sentences) and empty documents.

    Args:
      batch: documents, tokenized line by line.
      token_dtype: of a store's tokens.
    """
    has_tokens = batch.num_tokens > 0
    first_lines = bounds_of(batch.num_lines)
    token_bounds = bounds_of(batch.num_tokens)[first_lines]
    num_sentences = np.diff(bounds_of(has_tokens)[first_lines])
    tokens = batch.ids.astype(token_dtype)
    return Block(
        tokens=tokens,
        sentence_lengths=batch.num_tokens[has_tokens].astype(np.uint32),
        document_lengths=num_sentences[num_sentences > 0].astype(np.uint32),
        document_hashes=_document_hashes(tokens, token_bounds))


def _document_hashes(tokens: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Hashes, uint64, of the tokens of each document that has some, from their bounds."""
    hashes = []
    for start, end in itertools.pairwise(bounds.tolist()):
        if end > start:
            hashes.append(hashlib.blake2b(tokens[start:end].data, digest_size=8).digest())
    return np.frombuffer(b''.join(hashes), '<u8')
