"""MediaWiki dumps (XML; plain, .gz or .bz2) -> documents, on all processors.

This process decompresses and cuts the text between pages; worker processes (`wiki_articles.py`,
started as a script) read the XML with mwxml, the wikitext with mwparserfromhell, and answer with
the text of the articles: namespace 0, no redirects. Answers are taken in the order of the
questions, so documents come as the dump has them. Workers end when their pipe closes, however this
process ends.

A bz2 file of many streams (the `multistream` dumps) is decompressed on all processors too; one of a
single stream has to go through one.
"""

from __future__ import annotations

import bz2
import collections
import contextlib
import gzip
import importlib.util
import json
import os
import queue
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from bert_jax.data import wiki_articles
from bert_jax.data.text_files import Document
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError

FORMAT = f'wikidump {wiki_articles.VERSION}'
_READ_BYTES = 1 << 18
_PART_BYTES = 1 << 19  # of pages that a worker is asked for at a time
_FIRST_BYTES = 4 << 20  # in which a bz2 file of many streams begins its second
_MAX_PAGE_BYTES = 64 << 20
_NAMED = 10  # pages that are named in a message, of those left out
_PAGE_END = b'</page>'
# A stream's header and its first block's (the digits of pi): where one stream ends, another begins.
_STREAM = re.compile(rb'BZh[1-9]1AY&SY')

_Question = TypeVar('_Question')
_Answer = TypeVar('_Answer')


def check_packages(spec: str) -> None:
    """Raises InputError where what reads dumps is not installed."""
    missing = [
        name for name in ('mwxml', 'mwparserfromhell') if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise InputError(
            f"data source '{spec}' is read with {' and '.join(missing)}, not installed here: "
            f"pip install {' '.join(missing)}"
        )


def text_size(file: files.Found) -> int:
    """About how many bytes of articles' text are in a dump, for progress (as English has it)."""
    return file.size if file.path.endswith(('.bz2', '.gz')) else file.size // 4


def read_documents(path: str, num_processes: int = 0) -> Iterator[Document]:
    """The articles of one dump, in its order, each a document of paragraphs.

    A page that cannot be read is left out; at the end a line on standard error counts and names
    them.

    Args:
      path: the dump.
      num_processes: that read pages; 0: as many as there are processors.

    Raises:
      InputError: it is not a dump, is cut short, or not sound XML.
    """
    num_processes = num_processes or os.cpu_count() or 1
    unreadable: list[tuple[str, str]] = []
    with (
        contextlib.closing(_parts(path, num_processes)) as parts, _Workers() as workers,
        contextlib.closing(_in_order(workers.ask, parts, num_processes)) as answers,
    ):
        for first_line, answer in answers:
            unreadable += answer['unreadable']
            for text in answer['documents']:
                yield Document(text.encode('utf-8', 'ignore'), True)
            if answer['fault']:
                line, reason = answer['fault']
                raise InputError(
                    f'{path}, line {first_line + max(line - 1, 0)}: not the XML of a MediaWiki '
                    f'dump ({reason}); copy the file again'
                )
    if unreadable:
        names = [f"'{title}' ({reason})" for title, reason in unreadable[:_NAMED]]
        more = len(unreadable) - len(names)
        print(
            f'{path}: {len(unreadable)} page(s) that cannot be read are left out: '
            + ', '.join(names) + (f' and {more} more' if more else ''), file=sys.stderr, flush=True,
        )


def _in_order(
    ask: Callable[[_Question], _Answer], questions: Iterable[_Question], num_threads: int
) -> Generator[_Answer, None, None]:
    """The answers to questions, in their order, few of them ahead."""
    pending: collections.deque[Future[_Answer]] = collections.deque()
    pool = ThreadPoolExecutor(num_threads)
    try:
        for question in questions:
            pending.append(pool.submit(ask, question))
            if len(pending) > 2 * num_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _blocks(path: str, num_threads: int) -> Iterator[bytes]:
    """The file's content, decompressed; faults of compression are named."""
    file = files.as_path(path)
    try:
        with file.open('rb') as stream:
            content: Any = stream
            if path.endswith('.gz'):
                content = gzip.GzipFile(fileobj=stream)
            elif path.endswith('.bz2'):
                first = stream.read(_FIRST_BYTES)
                if _STREAM.search(first, 1):
                    yield from _in_order(bz2.decompress, _streams(first, stream), num_threads)
                    return
                stream.seek(0)
                content = bz2.BZ2File(stream)
            while block := content.read(_READ_BYTES):
                yield block
    except (EOFError, ValueError) as error:
        raise InputError(f'{path} is cut short ({error}); copy it again') from error
    except zlib.error as error:
        raise InputError(f'{path} is not a sound gzip file ({error}); copy it again') from error
    except OSError as error:
        raise InputError(
            f'{path} cannot be read ({error.strerror or error}); copy it again'
        ) from error


def _streams(first: bytes, stream: Any) -> Iterator[bytes]:
    """The streams of a bz2 file that begins with `first`, each still compressed."""
    buffer = first
    while True:
        starts = [match.start() for match in _STREAM.finditer(buffer)]
        for start, end in zip(starts, starts[1:]):
            yield buffer[start:end]
        buffer = buffer[starts[-1]:] if starts else buffer
        more = stream.read(_READ_BYTES)
        if not more:
            yield buffer
            return
        buffer += more


def _parts(path: str, num_threads: int) -> Generator[tuple[int, bytes], None, None]:
    """(line of the first page, XML of whole pages within the dump's header and end)."""
    header, text, line = b'', b'', 1
    for block in _blocks(path, num_threads):
        text += block
        if not header:
            begin = text.lstrip(b'\xef\xbb\xbf \t\r\n')
            if len(begin) > 1000 and b'<mediawiki' not in begin[:1000]:
                raise _not_a_dump(path, begin)
            end = text.find(b'<page>')
            if end < 0:
                if len(text) > _MAX_PAGE_BYTES:
                    raise _not_a_dump(path, begin)
                continue
            line += text.count(b'\n', 0, end)
            header, text = text[:end].replace(b'\n', b' '), text[end:]
        if len(text) < _PART_BYTES:
            continue
        end = text.rfind(_PAGE_END) + len(_PAGE_END)
        if end >= len(_PAGE_END):
            part, text = text[:end], text[end:]
            yield line, header + part + b'</mediawiki>'
            line += part.count(b'\n')
        elif len(text) > _MAX_PAGE_BYTES:
            raise InputError(
                f'{path}, line {line}: no {_PAGE_END.decode()} for {_MAX_PAGE_BYTES >> 20} MiB; '
                'is this a MediaWiki dump?'
            )
    if b'<mediawiki' not in (header or text):
        raise _not_a_dump(path, text)
    if not text.rstrip().endswith(b'</mediawiki>'):
        line += text.rstrip().count(b'\n')
        raise InputError(f'{path} is cut short: no </mediawiki> after line {line}; copy it again')
    if header:
        yield line, header + text


def _not_a_dump(path: str, begin: bytes) -> InputError:
    shown = begin[:60].decode(errors='replace').split('\n')[0]
    return InputError(
        f"{path} is not a MediaWiki dump: it begins with '{shown}', and <mediawiki is wanted; "
        'name text files without wikidump:'
    )


class _Workers:
    """Processes that read pages; each is started when all others are busy."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        for worker in list(self._all):
            self._end(worker)

    def _start(self) -> subprocess.Popen[bytes]:
        # -P keeps this folder, whose file names shadow other modules, off the worker's path.
        worker = subprocess.Popen(
            [sys.executable, '-P', wiki_articles.__file__], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._all.add(worker)
        assert worker.stdout is not None
        ready = wiki_articles.receive(worker.stdout)
        if self._closed:  # meanwhile
            self._end(worker)
        elif ready is None:
            raise RuntimeError(
                f'a process that reads wikitext ended with status {self._end(worker)} at its start'
            )
        return worker

    def _end(self, worker: subprocess.Popen[bytes]) -> int:
        self._all.discard(worker)
        worker.kill()
        status = worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        return status

    def ask(self, question: tuple[int, bytes]) -> tuple[int, dict[str, Any]]:
        """(line, what `wiki_articles.articles` says of a part) for (line, part)."""
        line, part = question
        try:
            worker = self._free.get_nowait()
        except queue.Empty:
            worker = self._start()
        assert worker.stdin is not None and worker.stdout is not None
        answer = None
        with contextlib.suppress(OSError, ValueError):  # it has ended: there is no answer
            wiki_articles.send(worker.stdin, part)
            answer = wiki_articles.receive(worker.stdout)
        if answer is not None:
            self._free.put(worker)
            return line, json.loads(answer)
        status = self._end(worker)
        if self._closed:
            return line, {'documents': [], 'unreadable': [], 'fault': None}
        return line, self._without_the_cause(part, status)

    def _without_the_cause(self, part: bytes, status: int) -> dict[str, Any]:
        """Asks for the pages of a part one by one, leaving out the one that ended its reader."""
        begin = part.find(b'<page>')
        pages = part[begin:].split(_PAGE_END)[:-1]
        if len(pages) == 1:
            title = re.search(rb'<title>(.*?)</title>', pages[0])
            name = title[1].decode(errors='replace') if title else '?'
            reason = f'its reader ended with status {status}'
            return {'documents': [], 'unreadable': [(name, reason)], 'fault': None}
        whole: dict[str, Any] = {'documents': [], 'unreadable': [], 'fault': None}
        for page in pages:
            one = part[:begin] + page.lstrip() + _PAGE_END + b'</mediawiki>'
            answer = self.ask((0, one))[1]
            whole['documents'] += answer['documents']
            whole['unreadable'] += answer['unreadable']
            whole['fault'] = whole['fault'] or answer['fault']
        return whole
