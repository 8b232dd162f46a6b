"""How token stores are built, share by share.

A source is divided into shares, of which each is read by one worker and gives one or more parts
(see `store_parts`), written straight to the store's folder, on a disk or in a bucket:

    part-SSSSS-PPP.blocks, part-SSSSS-PPP.npz    a part, finished once it has its .npz
    part-SSSSS.done                              share S has all of its parts
    part-SSSSS.bad                               files of it that are damaged (see `bad_files`)

When all shares are done, the last step (see `store_finishing`) makes them a store. A worker that is
killed loses the part that it was writing. Shares and parts follow from the source alone, so two
workers that make the same part write the same bytes, and the store is the same, byte for byte,
whoever built it. So nothing depends on who builds what: the processes of a pool take one share
after the other, hosts of a run and machines with a `Slice` have theirs by number, and one that does
a share again does no harm. Only to save time, who builds claims the store or its slice first, and a
share that another store in the same place has already is taken from there (see `earlier_shares`).

One process can read, check and hash about as much text as eight cores can tokenize. With more
cores, several processes of a machine are workers.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import IO, Any, NamedTuple

import numpy as np

from bert_jax.corpus import bad_files, earlier_shares, pool
from bert_jax.corpus.bad_files import readable
from bert_jax.corpus.build_progress import Progress, Read, UnitsRead
from bert_jax.corpus.digests import name_of
from bert_jax.corpus.earlier_shares import EarlierPart, EarlierShare
from bert_jax.corpus.source import Source, TokenBatch, Unit
from bert_jax.corpus.store_finishing import VOCABULARY, Origin, Summaries, finish_store
from bert_jax.corpus.store_parts import (
    NOTES_ENDING,
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
    BLOCKS_ENDING,
    FORMAT_VERSION,
    TokenStore,
    disk_faults,
    documents_in_words,
    is_finished,
)
from bert_jax.runtime import files, folder_lock
from bert_jax.runtime.errors import InputError, counted, tell
from bert_jax.text.kinds import find_vocabulary, keep_tokenizer, load_tokenizer

# Raise it when `split_sentences` changes: stores built by older rules are not reused.
_SPLITTER_VERSION = 2
_CORES_A_PROCESS = 8
_MIN_BYTES_A_PROCESS = 1 << 30  # a process takes seconds to start
# Of text in a share, at least. Before each, TensorFlow takes the time of about 10 MB.
_SHARE_BYTES = 512 << 20
_PART_BYTES = 256 << 20  # of text in a part, about
_LARGE_UNIT_BYTES = 4 << 30  # of text in a file; a process takes some ten minutes
DAY_SECONDS = 86_400  # without a change, after which nobody is at work on a store
_POLL_SECONDS = 1.0  # between two looks at what the processes of a pool have read
DONE_ENDING = '.done'
FAULTS = 'faults.json'  # what the last pipeline failed at (see `beam_shares`)
_CLAIM_ENDING = '.claim'  # of files by which older versions divided the work
# What a process is at work on, for messages.
_STORE = 'token store'
_PIECE = 'token store, {},'


def store_fingerprint(
    source: Source, tokenizer: Any, facts: Sequence[DocumentFilter] = (), by_content: bool = False
) -> str:
    """The name of a source's store; it changes with the content, the vocabulary and the rules.

    Args:
      source, tokenizer, facts: see `open_build`.
      by_content: whether the shares are other ones than those by size (see `shares_of`).
    """
    rules = [fact.fingerprint for fact in facts]
    if by_content:
        rules.append('shares by content')
    return name_of([
        FORMAT_VERSION, _SPLITTER_VERSION, source.fingerprint(), tokenizer.fingerprint, *rules])


@dataclasses.dataclass(frozen=True)
class Build:
    """A store that is being built.

    Attributes:
      folder: of the store.
      fingerprint: its name.
      source, tokenizer, facts: see `open_build`.
      shares: of the source.
      contents: of its units, as they were when the build was opened; nothing if they are unknown.
      by_content: whether these are other shares than those by size (see `shares_of`).
      vocab_file, max_bad_files: see `open_build`.
      progress: whether to report on standard error.
      started: of `time.monotonic`.
    """

    folder: files.Path
    fingerprint: str
    source: Source
    tokenizer: Any
    facts: tuple[DocumentFilter, ...]
    shares: tuple['Share', ...]
    contents: tuple[str, ...]
    by_content: bool
    vocab_file: str | os.PathLike[str]
    max_bad_files: int
    progress: bool
    started: float = dataclasses.field(default_factory=time.monotonic)

    def key_of(self, share: 'Share') -> str:
        """Changes with whatever the blocks of a share depend on; '' if that is unknown."""
        if not self.contents:
            return ''
        units = []
        for place in range(share.first, share.last):
            unit = self.source.units[place]
            units.append((self.contents[place], unit.begin, unit.end))
        return name_of([
            FORMAT_VERSION, _SPLITTER_VERSION, self.tokenizer.fingerprint, share.part_bytes, units])


@dataclasses.dataclass(frozen=True)
class Slice:
    """Which shares one of several machines builds: those with its number, modulo `count`."""

    number: int = 0
    count: int = 1

    def has(self, share: 'Share') -> bool:
        """Whether a share is among them."""
        return share.number % self.count == self.number


WHOLE = Slice()


def open_build(
    source: Source, tokenizer: Any, cache_dir: str | os.PathLike[str], progress: bool = True,
    vocab_file: str | os.PathLike[str] = '', facts: Sequence[DocumentFilter] = (),
    max_bad_files: int = 0, name: str = '',
) -> Build:
    """Makes the folder of a source's store, unless it is there, and says what is to be built.

    Args:
      source: where the text comes from.
      tokenizer: has `vocab` (with a length), `lowercase` and `fingerprint`.
      cache_dir: stores are in its folder `stores`; on a disk or in a bucket.
      progress: whether to report on standard error.
      vocab_file: of the tokenizer, of which the store keeps a copy; '': none.
      facts: by which documents are left out, besides exact duplicates.
      max_bad_files: of files that cannot be read, so many are set aside, and named in the manifest.
      name: of the store, if it was chosen (`choose_name`).

    Raises:
      InputError: there is no text, or its content cannot be told.
    """
    by_size = store_fingerprint(source, tokenizer, facts)
    fingerprint = name or choose_name(source, tokenizer, cache_dir, facts)
    by_content = fingerprint != by_size
    contents = tuple(source.contents())
    shares = shares_of(source.units, contents if by_content else ())
    folder = files.as_path(cache_dir) / 'stores' / fingerprint
    build = Build(
        folder=folder, fingerprint=fingerprint, source=source, tokenizer=tokenizer,
        facts=tuple(facts), shares=tuple(shares), contents=contents, by_content=by_content,
        vocab_file=vocab_file, max_bad_files=max_bad_files, progress=progress)
    with disk_faults(folder):
        _make_folder(build)
    return build


def choose_name(
    source: Source, tokenizer: Any, cache_dir: str | os.PathLike[str],
    facts: Sequence[DocumentFilter] = (),
) -> str:
    """The name of a source's store in a folder.

    Older versions divided a source by size alone. A store that they have finished or begun there
    stays, and so do the names of all whose shares are the same by content.

    Args:
      source, tokenizer, cache_dir, facts: see `open_build`.
    """
    by_size = store_fingerprint(source, tokenizer, facts)
    contents = source.contents()
    if list(shares_of(source.units, contents)) == list(shares_of(source.units)):
        return by_size
    if files.sizes(files.as_path(cache_dir) / 'stores' / by_size):
        return by_size
    return store_fingerprint(source, tokenizer, facts, by_content=True)


def build_store(
    source: Source, tokenizer: Any, cache_dir: str | os.PathLike[str], progress: bool = True,
    num_processes: int = 0, vocab_file: str | os.PathLike[str] = '',
    facts: Sequence[DocumentFilter] = (), max_bad_files: int = 0,
) -> TokenStore:
    """The token store of a source: opened if it is complete, else built, or its build resumed.

    A process that finds another one at work on it waits for that.

    Args:
      source, tokenizer, cache_dir, progress, vocab_file, facts, max_bad_files: see `open_build`.
      num_processes: see `make_shares`.

    Raises:
      InputError: unreadable text, no text at all, a damaged store.
      OSError: a full disk.
    """
    build = open_build(
        source, tokenizer, cache_dir, progress, vocab_file, facts, max_bad_files)
    if not is_finished(build.folder):
        with alone_at_work(build):
            make_shares(build, num_processes=num_processes)
            finish(build)
    return TokenStore.open(build.folder)


@contextlib.contextmanager
def alone_at_work(build: Build) -> Iterator[None]:
    """Keeps others from building the same store; waits for one that does.

    It says who builds another store in the same `cache_dir`.
    """
    _tell_of_others(build)
    with disk_faults(build.folder), _claimed(build, _STORE):
        pieces = folder_lock.pieces_in(build.folder)
        folder_lock.wait_for_holders(
            build.folder, {_PIECE.format(piece): piece for piece in pieces})
        yield


@contextlib.contextmanager
def at_work_on(build: Build, which: Slice) -> Iterator[None]:
    """Keeps others from making the same shares; waits for one that does, or that makes all.

    It says who builds another store in the same `cache_dir`.
    """
    _tell_of_others(build)
    piece = f'share-{which.number}-of-{which.count}'
    with disk_faults(build.folder):
        folder_lock.wait_for_holders(build.folder, {_STORE: ''})
        with _claimed(build, _PIECE.format(piece), piece):
            yield


@contextlib.contextmanager
def _claimed(build: Build, what: str, piece: str = '') -> Iterator[None]:
    """Holds a claim on a store's folder, and makes that again if it was removed meanwhile.

    Args:
      build: of the store.
      what, piece: see `folder_lock.claimed`; it waits.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder_lock.claimed(build.folder, what, waits=True, piece=piece))
        except FileNotFoundError:
            _make_folder(build)
            stack.enter_context(folder_lock.claimed(build.folder, what, waits=True, piece=piece))
        _make_folder(build)  # in a bucket, the vocabulary may be gone
        yield


def _tell_of_others(build: Build) -> None:
    """Says who builds other stores in the same place."""
    for other in files.children(build.folder.parent):
        with contextlib.suppress(PermissionError):  # it is another user's
            if other.name != build.fingerprint and other.is_dir() and not is_finished(other):
                holder = who_builds(other)
                if holder:
                    tell(f'note: {holder} prepares another text, or this one with other settings, '
                         f'in {other}')


def who_builds(folder: files.Path) -> str:
    """The process that may be at work on an unfinished store, or ''; of several, one.

    Who holds a claim changes it every few seconds: a killed process is named for a day at most.
    """
    if idle_seconds(files.entries(folder)) > DAY_SECONDS:
        return ''
    for piece in ['', *folder_lock.pieces_in(folder)]:
        holder = folder_lock.holder(folder, piece)
        if holder:
            return holder
    return ''


def idle_seconds(entries: Iterable[files.Entry]) -> float:
    """Since one of the files of a store has changed."""
    return time.time() - max((entry.changed for entry in entries), default=0.0)


def _summary(manifest: Mapping[str, Any], seconds: float) -> str:
    """The content of a finished store, in a line."""
    return (
        f"token store: {counted(manifest['num_tokens'], 'token')}, "
        f"{counted(manifest['num_sentences'], 'sentence')}, {documents_in_words(manifest)} from "
        f"{manifest['text_bytes'] / 1e6:.1f} MB in "
        f'{seconds:.2f} s')


def _make_folder(build: Build) -> None:
    """Makes the folder of a store, with the vocabulary, unless they are there or it is finished."""
    if is_finished(build.folder):
        return
    build.folder.mkdir(parents=True, exist_ok=True)
    if build.vocab_file:
        _keep_vocabulary(build.folder, build.vocab_file, build.tokenizer)


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
    """The part of a text that one worker reads at a time.

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
        """The name of the file that says that it is done, without an ending."""
        return f'part-{self.number:05}'


def shares_of(units: Sequence[Unit], contents: Sequence[str] = ()) -> Iterator[Share]:
    """Divides the units of a source into shares of some `_SHARE_BYTES` of text.

    By their contents: which units end a share depends on each alone, so that another file changes
    only the shares that it is in. By size, where the contents are unknown: a share has so many
    bytes or more.

    The parts of a share are of about equal size.

    Args:
      units: of the source.
      contents: of the units, see `Source`.
    """
    first = 0
    num_bytes = 0
    number = 0
    for last, unit in enumerate(units, 1):
        num_bytes += unit.num_bytes
        if contents:
            is_end = _ends_a_share(unit, contents[last - 1])
        else:
            is_end = num_bytes >= _SHARE_BYTES
        if is_end or last == len(units):
            num_parts = max(num_bytes // _PART_BYTES, 1)
            yield Share(number, first, last, num_bytes, max(num_bytes // num_parts, _PART_BYTES))
            first = last
            num_bytes = 0
            number += 1


def _ends_a_share(unit: Unit, content: str) -> bool:
    """Whether a unit ends a share by its content: as likely as its bytes are of `_SHARE_BYTES`."""
    digest = hashlib.blake2b(f'{content} {unit.begin}'.encode(), digest_size=8).digest()
    return int.from_bytes(digest, 'little') * _SHARE_BYTES < unit.num_bytes << 64


def make_shares(build: Build, which: Slice = WHOLE, num_processes: int = 0) -> None:
    """Makes the parts that shares lack.

    Args:
      build: of a store.
      which: the shares.
      num_processes: of this machine that tokenize; 0: as many as are useful.
    """
    if is_finished(build.folder):
        return
    with disk_faults(build.folder):
        shares = [share for share in undone(build) if which.has(share)]
        if not shares:
            return
        num_bytes = sum(share.num_bytes for share in shares)
        progress = Progress(len(shares), num_bytes, build.progress)
        if build.progress:
            _tell_of_large_units(build.source.units)
        try:
            _make(build, shares, progress, num_processes)
            progress.tell_taken()
        except FileNotFoundError:
            # While this process was suspended, others did its work and removed what it wrote.
            if not is_finished(build.folder):
                raise
        except (Exception, KeyboardInterrupt):
            _keep_done(build)
            raise


def _tell_of_large_units(units: Sequence[Unit]) -> None:
    """Says which file is too large for one process and cannot be read by several."""
    large = [unit for unit in units if unit.num_bytes > _LARGE_UNIT_BYTES and unit.end is None]
    if large:
        largest = max(large, key=lambda unit: unit.num_bytes)
        others = f' (and {counted(len(large) - 1, "other")})' if len(large) > 1 else ''
        size = f'{largest.num_bytes / 1e9:,.1f} GB'
        tell(f'note: {largest.name}{others}, of about {size} of text, is read by one process from '
             'start to end, while others may have nothing to do: cut it into files of some hundred '
             'MB, or decompress it if it is plain text, which is read in ranges')


def undone(build: Build) -> list[Share]:
    """The shares that are not done."""
    names = files.sizes(build.folder)
    return [share for share in build.shares if f'{share.name}{DONE_ENDING}' not in names]


def _make(
    build: Build, shares: Sequence[Share], progress: Progress, num_processes: int
) -> None:
    """Builds some shares, in so many processes; 0: as many as are useful."""
    cores = os.cpu_count() or 1
    if sys.platform == 'linux':
        cores = len(os.sched_getaffinity(0))
    if build.source.takes_all_cores:
        num_processes = 1
    elif not num_processes:
        num_processes = _useful_processes(shares, cores)
    num_threads = -(-cores // num_processes)
    if num_processes == 1:
        maker = ShareMaker(build, num_threads)
        for share in shares:
            maker.make(share, progress.add)
            progress.add_done()
        return
    # Pickled here, so that a failure to load it is raised by a task.
    job = pickle.dumps((build, num_threads))
    numbers = multiprocessing.get_context('spawn').Array('q', list(Read()))
    with pool.process_pool(num_processes, (job, numbers)) as processes:
        tasks = {processes.submit(_work, share.number) for share in shares}
        while tasks:
            done, tasks = futures.wait(
                tasks, _POLL_SECONDS, return_when=futures.FIRST_COMPLETED)
            for task in done:
                task.result()
                progress.add_done()
            progress.set(Read(*numbers[:]))


def _useful_processes(shares: Sequence[Share], cores: int) -> int:
    """How many processes can share the work of tokenizing."""
    num_bytes = sum(share.num_bytes for share in shares)
    most = min(cores // _CORES_A_PROCESS, num_bytes // _MIN_BYTES_A_PROCESS, len(shares))
    return max(1, most)


def _work(number: int) -> None:
    """Builds a share, in a process of the pool."""
    maker = _maker()
    _, numbers = pool.given()

    def note(read: Read) -> None:
        with numbers.get_lock():
            numbers[:] = Read(*numbers[:]).plus(read)

    maker.make(maker.build.shares[number], note)


@functools.cache
def _maker() -> 'ShareMaker':
    """The one of a process of the pool."""
    job, _ = pool.given()
    build, num_threads = pickle.loads(job)
    # Otherwise TensorFlow would start threads for all cores in every process.
    os.environ['CUDA_VISIBLE_DEVICES'] = ''
    os.environ['TF_NUM_INTRAOP_THREADS'] = str(num_threads)
    os.environ['TF_NUM_INTEROP_THREADS'] = str(num_threads + 2)
    return ShareMaker(build, num_threads)


class ShareMaker:
    """Makes the parts of shares, one share at a time.

    Attributes:
      build: of the store.
    """

    def __init__(self, build: Build, num_threads: int):
        self.build = build
        self._num_threads = num_threads
        self._token_dtype = smallest_token_dtype(len(build.tokenizer.vocab))
        self._limits = Limits.of(sum(share.num_bytes for share in build.shares))
        self._earlier: Mapping[str, Sequence[EarlierShare]] = {}
        if build.contents:
            self._earlier = earlier_shares.read_lists(build.folder)

    def make(
        self, share: Share, note: Callable[[Read], None] = lambda read: None
    ) -> list[str]:
        """Makes the parts that a share lacks, and notes that it is done.

        Files that cannot be read are noted.

        Args:
          share: of the build.
          note: gets what is read.

        Returns:
          The names of all parts of the share.
        """
        build = self.build
        if self._take(share):
            note(Read(shares_taken=1))
        number, start, is_whole = self._resumed(share)
        read = UnitsRead(build.source.units, share.first, start.unit, note)
        if not is_whole:
            bad = bad_files.BadFiles(build.folder / f'{share.name}{bad_files.ENDING}')
            texts = text_batches(
                readable(build.source, bad.note), range(start.unit, share.last), start.done)
            batches = _Batches(tokenize_batches(
                texts, build.tokenizer, self._num_threads, purpose=build.source.spec))
            while not is_whole:
                is_whole = self._make_part(share, number, batches, read)
                number += 1
            bad.keep()
        files.write_whole(build.folder / f'{share.name}{DONE_ENDING}', b'')
        read.end(share.last)
        return [part_name(share.number, made) for made in range(number)]

    def _take(self, share: Share) -> bool:
        """Takes the parts of a share from another store; False if none has them, sound."""
        for earlier in self._earlier.get(self.build.key_of(share), ()):
            try:
                self._take_from(earlier, share)
                return True
            except FileNotFoundError:
                continue  # the store is gone
            except InputError as error:
                tell(f'warning: {error}; here the text is read instead')
        return False

    def _take_from(self, earlier: EarlierShare, share: Share) -> None:
        """Takes the parts of an earlier share that this one lacks.

        Raises:
          InputError: the earlier one is damaged, or cannot be read.
          FileNotFoundError: it is gone.
        """
        folder = self.build.folder
        number = 0
        is_last = False
        with files.temporary_folder() as copies:
            while not is_last:
                part = earlier_shares.part_of(earlier, number, copies)
                is_last = part.is_last
                unit = part.following.unit - earlier.first_unit + share.first
                name = part_name(share.number, number)
                if not files.exists(notes_path(folder, name)):
                    self._take_part(part, name, Start(unit, part.following.done))
                number += 1

    def _take_part(self, earlier: EarlierPart, name: str, start: Start) -> None:
        """Makes a part of the blocks of an earlier one; `start` is where the next begins."""
        with files.open_whole(blocks_path(self.build.folder, name)) as file:
            part = self._begin_part(file)
            for block in earlier_shares.blocks_of(earlier):
                part.add_whole(block)
            part.text_bytes = earlier.text_bytes
            notes = part.finish(start, earlier.is_last)
        write_notes(notes_path(self.build.folder, name), notes)

    def _begin_part(self, file: IO[bytes]) -> PartBuilder:
        """A part whose blocks go to a file."""
        return PartBuilder(
            file, self._token_dtype.itemsize, len(self.build.tokenizer.vocab), self._limits,
            [fact.of_part() for fact in self.build.facts])

    def _resumed(self, share: Share) -> tuple[int, Start, bool]:
        """(Number of the first part that a share lacks, where it begins, whether it lacks none)."""
        folder = self.build.folder
        number = 0
        while files.exists(notes_path(folder, part_name(share.number, number))):
            number += 1
        if number == 0:
            return 0, Start(share.first, 0), False
        path = notes_path(folder, part_name(share.number, number - 1))
        start, is_last = Notes(files.local_copy(path), path).following()
        return number, start, is_last

    def _make_part(
        self, share: Share, number: int, batches: '_Batches', read: UnitsRead
    ) -> bool:
        """Makes a part; returns whether it is the last of its share.

        A part ends with the first batch that makes it large enough.
        """
        build = self.build
        name = part_name(share.number, number)
        start = Start(share.last, 0)
        with files.open_whole(blocks_path(build.folder, name)) as file:
            part = self._begin_part(file)
            is_full = False
            while batches.following is not None and not is_full:
                batch = batches.take()
                place = batch.note
                part.add(documents_of(batch, self._token_dtype), place.num_bytes)
                start = Start(place.unit, place.done)
                read.add(place.unit, place.num_bytes)
                is_full = (
                    part.text_bytes >= share.part_bytes or part.file_bytes >= PART_FILE_BYTES)
            is_last = batches.following is None
            if is_last:
                start = Start(share.last, 0)
            notes = part.finish(start, is_last)
        write_notes(notes_path(build.folder, name), notes)
        return is_last


def finish(build: Build, summaries: Summaries | None = None) -> None:
    """Makes the parts a store, when all shares are done.

    Args:
      build: of the store.
      summaries: of its parts, if others have made them.

    Raises:
      InputError: a share is not done, a part is damaged, more files cannot be read than may be,
        the text changed, or there is none.
    """
    if is_finished(build.folder):
        return
    with disk_faults(build.folder):
        try:
            _finish(build, summaries)
        except FileNotFoundError:  # as in `make_shares`
            if not is_finished(build.folder):
                raise
    if build.progress:
        manifest = TokenStore.open(build.folder).manifest
        tell(_summary(manifest, time.monotonic() - build.started))


def _finish(build: Build, summaries: Summaries | None) -> None:
    missing = undone(build)
    if missing and not is_finished(build.folder):
        shown = ', '.join(str(share.number) for share in missing[:10])
        more = ', ...' if len(missing) > 10 else ''
        raise InputError(
            f"{build.folder}: {len(missing):,} of {counted(len(build.shares), 'share')} are not "
            f'done (number {shown}{more}): start those --share=I/N again of which I is such a '
            'number modulo N, or the command without --share and --finish, which makes them here')
    source = build.source
    if not _is_unchanged(build):
        if is_finished(build.folder):  # by another process, while this one was suspended
            return
        # Which an earlier end of this build has written.
        earlier_shares.list_path(build.folder).unlink(missing_ok=True)
        endings = (NOTES_ENDING, BLOCKS_ENDING, DONE_ENDING, bad_files.ENDING)
        _remove(build.folder, lambda name: name.endswith(endings))
        changed = f"data source '{source.spec}'"
        if build.facts:
            changed += ', or a file of config.data.decontaminate,'
        raise InputError(
            f'{changed} changed while it was read: start again when its files are complete')
    of_shares = _bad_files(build)
    if is_finished(build.folder):  # by another process, which then has removed what names them
        return
    bad: dict[str, str] = {}
    for of_share in of_shares.values():
        bad |= of_share
    if len(bad) > build.max_bad_files:
        _keep_list(build, of_shares)
        if not _begin_anew(build, of_shares):
            return
        raise bad_files.refusal(source.spec, bad)
    origin = Origin(
        fingerprint=build.fingerprint,
        source=source.spec,
        source_fingerprint=source.fingerprint(),
        tokenizer_fingerprint=build.tokenizer.fingerprint,
        vocab_size=len(build.tokenizer.vocab),
        lowercase=build.tokenizer.lowercase)
    _keep_list(build, of_shares)  # before the manifest, after which nothing is done again
    try:
        finish_store(build.folder, origin, len(build.shares), build.facts, bad, summaries)
    except InputError:
        # So that the next start looks at the parts.
        _remove(build.folder, lambda name: name.endswith(DONE_ENDING))
        raise
    tidy(build.folder)


def _keep_done(build: Build) -> None:
    """Lists the shares that are done, where a build ends for a fault that a user may fix."""
    with contextlib.suppress(Exception):  # the fault itself is reported
        if not is_finished(build.folder) and _is_unchanged(build):
            _keep_list(build, {*undone(build), *_bad_files(build)})


def _is_unchanged(build: Build) -> bool:
    """Whether the text, and what else the store is named after, are as when it was opened."""
    build.source.look_again()
    now = store_fingerprint(build.source, build.tokenizer, build.facts, build.by_content)
    return now == build.fingerprint


def _keep_list(build: Build, without: Collection[Share]) -> None:
    """Lists the shares for later stores.

    Args:
      build: of a store, whose text has not changed.
      without: shares that are not there, or have damaged files, which a disk may have damaged.
    """
    if build.contents:
        earlier_shares.keep_list(build.folder, {
            build.key_of(share): (share.number, share.first)
            for share in build.shares if share not in without})


def _bad_files(build: Build) -> dict[Share, dict[str, str]]:
    """The faults of the damaged files, by their names, for each share that has some."""
    names = files.sizes(build.folder)
    found: dict[Share, dict[str, str]] = {}
    for share in build.shares:
        name = f'{share.name}{bad_files.ENDING}'
        if name in names:
            found[share] = bad_files.read_bad_files(build.folder / name)
    return found


def _begin_anew(build: Build, shares: Collection[Share]) -> bool:
    """Removes shares, unless another process has finished the store; whether it has not.

    First that they are done: a process that looks from then on does not finish it.
    """
    for share in shares:
        (build.folder / f'{share.name}{DONE_ENDING}').unlink(missing_ok=True)
    if is_finished(build.folder):
        return False
    beginnings = tuple(f'{share.name}{end}' for share in shares for end in '-.')
    for name in files.sizes(build.folder):
        if name.startswith(beginnings):
            (build.folder / name).unlink(missing_ok=True)
    return True


def tidy(folder: files.Path) -> None:
    """Removes what only building needs from a finished store; a killed worker may have left it."""
    endings = (_CLAIM_ENDING, DONE_ENDING, bad_files.ENDING, FAULTS, '.tmp')
    _remove(folder, lambda name: name.endswith(endings) or folder_lock.is_claim(name))


def _remove(folder: files.Path, is_removed: Callable[[str], bool]) -> None:
    """Removes files of a folder by their names. Other processes may do so too."""
    for path in files.children(folder):
        if is_removed(path.name):
            with contextlib.suppress(OSError):  # another may be quicker
                path.unlink(missing_ok=True)


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
