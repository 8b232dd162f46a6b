"""MediaWiki dumps (XML; plain, .gz or .bz2) -> documents, on all processors.

This process decompresses the dump and cuts it between pages; others parse the XML and (with
mwparserfromhell) the wikitext, and return the text of the articles: namespace 0, no redirects.
Documents come in the order of the dump.
"""

import collections
import contextlib
import gc
import itertools
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple
from xml.etree import ElementTree

from bert_jax.corpus.pool import process_pool
from bert_jax.corpus.wikitext import clean
from bert_jax.runtime import files
from bert_jax.runtime.errors import DamagedFile, first_line, tell

VERSION = 2  # part of the fingerprint: raise it when the cleaning rules change
_CPU_SECONDS = 60  # processor time that a page may take
_REDIRECT = re.compile(r'\s*#redirect', re.IGNORECASE)
_HIDDEN = frozenset({'file', 'image', 'media', 'category'})
_HIDDEN_NAMESPACES = ('-2', '6', '14')  # media, files, categories
_READ_BYTES = 1 << 18
_PART_BYTES = 1 << 19  # of pages that a worker parses at a time
_MAX_HEADER_BYTES = 4 << 20
_MAX_PAGE_BYTES = 64 << 20
_NAMED = 10  # pages left out that a message names, at most
_PAGE_BEGIN = b'<page>'
_PAGE_END = b'</page>'
_DUMP_END = b'</mediawiki>'


class Parsed(NamedTuple):
    """The content of a part of a dump, in its order.

    Attributes:
      articles: their texts.
      left_out: "'title' (reason)" of each page that cannot be read.
    """

    articles: list[str]
    left_out: list[str]


def parse(xml: bytes, path: str, line: int) -> Parsed:
    """Parses a part of a dump: the header in one line, whole pages, the closing tag.

    A page that takes more than `_CPU_SECONDS` ends the process (by SIGPROF).

    Raises:
      DamagedFile: it is not well-formed XML; names the line, given that pages begin at `line`.
    """
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise DamagedFile(
            f'{path}, line {line + error.position[0] - 1}: not the XML of a MediaWiki dump '
            f"({str(error).partition(':')[0]}); copy the file again") from None
    hidden = _hidden_prefixes(root)
    others = _other_namespaces(root)
    articles: list[str] = []
    left_out: list[str] = []
    gc.disable()  # reference counts free a page's objects; cycles are collected last
    for page in root.iterfind('{*}page'):
        wikitext = _wikitext_of(page, others)
        if wikitext is None:
            continue
        try:
            text = _clean_in_time(wikitext, hidden)
        except (ValueError, RecursionError, MemoryError) as error:
            left_out.append(f"'{page.findtext('{*}title', '?')}' ({first_line(error)})")
            continue
        if text:
            articles.append(text)
    gc.enable()
    gc.collect()
    return Parsed(articles, left_out)


def _hidden_prefixes(root: ElementTree.Element) -> frozenset[str]:
    """Lower-case prefixes of links that show no text, in English and in the dump's language."""
    prefixes = set(_HIDDEN)
    for namespace in root.iterfind('{*}siteinfo/{*}namespaces/{*}namespace'):
        if namespace.get('key') in _HIDDEN_NAMESPACES:
            prefixes.add((namespace.text or '').lower())
    return frozenset(prefixes)


def _other_namespaces(root: ElementTree.Element) -> frozenset[str]:
    """Lower-case names of the namespaces that are not that of articles."""
    found = set()
    for namespace in root.iterfind('{*}siteinfo/{*}namespaces/{*}namespace'):
        if namespace.get('key') != '0':
            found.add((namespace.text or '').lower())
    return frozenset(found)


def _newest_text(page: ElementTree.Element) -> str:
    """The wikitext of a page's newest revision: histories come with the oldest or newest first."""
    def order(place: int) -> tuple[str, str, int]:
        time = revisions[place].findtext('{*}timestamp', '')  # sorts as a text
        number = revisions[place].findtext('{*}id', '')  # tells two of one second apart
        return time, number.zfill(20), place  # a number of equal digits sorts as a text, too

    revisions = page.findall('{*}revision')
    if not revisions:
        return ''
    newest = revisions[max(range(len(revisions)), key=order)]
    return newest.findtext('{*}text', '')


def _wikitext_of(page: ElementTree.Element, others: frozenset[str]) -> str | None:
    """The wikitext of a page, in its newest revision; None if it is no article.

    Args:
      page: of the dump.
      others: `_other_namespaces`, for old dumps, whose pages do not tell theirs but in their title.
    """
    wikitext = _newest_text(page)
    namespace = page.findtext('{*}ns')
    if namespace is None:
        prefix, colon, _ = page.findtext('{*}title', '').partition(':')
        namespace = '1' if colon and prefix.strip().lower() in others else '0'
    if namespace != '0':
        return None
    if page.find('{*}redirect') is not None or _REDIRECT.match(wikitext):
        return None
    return wikitext


def _clean_in_time(wikitext: str, hidden: frozenset[str]) -> str:
    """`clean`, which ends the process if it takes too long."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # inherited as ignored where libtpu is loaded
    signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
    try:
        return clean(wikitext, hidden)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class _Part(NamedTuple):
    """A part of a dump: the line of its first page, and XML as `parse` takes it."""

    line: int
    xml: bytes


def read_articles(path: str, num_processes: int = 0) -> Iterator[str]:
    """The articles of one dump, in its order, one paragraph per line.

    Pages that cannot be read are left out; at the end, a line on standard error counts them and
    names the first ones.

    Args:
      path: the dump.
      num_processes: that parse pages; 0: as many as there are processors.

    Raises:
      DamagedFile: it is not a dump, is cut short, or is not well-formed XML.
    """
    num_processes = num_processes or os.cpu_count() or 1
    left_out: list[str] = []
    parts = _parts(path)
    pending: collections.deque[tuple[_Part, Future[Parsed]]] = collections.deque()
    with contextlib.ExitStack() as stack:
        workers = _Workers(stack, num_processes)
        while True:
            for part in itertools.islice(parts, 2 * num_processes - len(pending)):
                pending.append((part, workers.submit(parse, part.xml, path, part.line)))
            if not pending:
                break
            parsed = _result(*pending.popleft(), path)
            yield from parsed.articles
            left_out += parsed.left_out
    if left_out:
        others = ', others' if len(left_out) > _NAMED else ''
        tell(f'{path}: {len(left_out)} page(s) that cannot be read are left out: '
             f"{', '.join(left_out[:_NAMED])}{others}")


class _Workers:
    """Processes that parse pages; new ones take the place of those that a page has killed."""

    def __init__(self, stack: contextlib.ExitStack, num_processes: int):
        """Starts them; fails here if processes do not start.

        Args:
          stack: ends them.
          num_processes: how many.
        """
        self._stack = stack
        self._num_processes = num_processes
        self._pool = stack.enter_context(process_pool(num_processes))
        self._pool.submit(clean, '', _HIDDEN).result()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Calls a function in one of the processes."""
        try:
            return self._pool.submit(function, *arguments)
        except BrokenProcessPool:
            self._pool = self._stack.enter_context(process_pool(self._num_processes))
            return self._pool.submit(function, *arguments)


def _result(part: _Part, future: Future[Parsed], path: str) -> Parsed:
    """The content of a part, without the pages that kill the process which parses them."""
    try:
        return future.result()
    except BrokenProcessPool:  # killed by this part or one read beside it
        parsed = _parse_by_halves(part, path)
        if len(parsed.left_out) == part.xml.count(_PAGE_END) > 1:
            raise  # every page failed: none is to blame
        return parsed


def _parse_by_halves(part: _Part, path: str) -> Parsed:
    """Parses a part in a process of its own, without the pages that kill such a process."""
    with process_pool(1) as pool, contextlib.suppress(BrokenProcessPool):
        return pool.submit(parse, part.xml, path, part.line).result()
    begin = part.xml.find(_PAGE_BEGIN)
    header = part.xml[:begin]
    pages = part.xml[begin:].split(_PAGE_END)[:-1]
    if len(pages) == 1:
        title = re.search('<title>(.*?)</title>', pages[0].decode(errors='replace'))
        shown = title[1] if title else '?'
        return Parsed([], [f"'{shown}' (its parser crashed or took over a minute)"])
    middle = len(pages) // 2
    first = _parse_by_halves(_part_of(header, pages[:middle], part.line), path)
    second = _parse_by_halves(_part_of(header, pages[middle:], part.line), path)
    return Parsed(first.articles + second.articles, first.left_out + second.left_out)


def _part_of(header: bytes, pages: Sequence[bytes], line: int) -> _Part:
    """A part of pages, given without their closing tags."""
    xml = b''.join(page.lstrip() + _PAGE_END for page in pages)
    return _Part(line, header + xml + _DUMP_END)


def _parts(path: str) -> Iterator[_Part]:
    """The dump in parts of whole pages, each within the dump's header and end."""
    blocks = files.read_blocks(path, _READ_BYTES)
    header, text = _read_header(path, blocks)
    line = 1 + header.count(b'\n')
    header = header.replace(b'\n', b' ')
    for block in itertools.chain([b''], blocks):
        text += block
        end = text.rfind(_PAGE_END) + len(_PAGE_END)
        if len(text) >= _PART_BYTES and end >= len(_PAGE_END):
            pages = text[:end]
            text = text[end:]
            yield _Part(line, header + pages + _DUMP_END)
            line += pages.count(b'\n')
        elif len(text) > _MAX_PAGE_BYTES:
            raise DamagedFile(f'{path}, line {line}: no </page> for {_MAX_PAGE_BYTES >> 20} MiB; '
                              'is this a MediaWiki dump?')
    if not text.rstrip().endswith(_DUMP_END):
        line += text.rstrip().count(b'\n')
        raise DamagedFile(f'{path} is cut short: no </mediawiki> after line {line}; copy it again')
    yield _Part(line, header + text)


def _read_header(path: str, blocks: Iterator[bytes]) -> tuple[bytes, bytes]:
    """(what stands before the first page, what else was read of the blocks)."""
    text = b''
    for block in blocks:
        text += block
        if _PAGE_BEGIN in text or len(text) > _MAX_HEADER_BYTES:
            break
    if b'<mediawiki' not in text:
        begins = text[:60].decode(errors='replace').partition('\n')[0]
        raise DamagedFile(f"{path} is not a MediaWiki dump: it begins with '{begins}', and "
                          '<mediawiki is wanted; name text files without wikidump:')
    begin = max(text.find(_PAGE_BEGIN), 0)
    return text[:begin], text[begin:]
