"""MediaWiki dumps (XML; plain, .gz or .bz2) -> documents, on all processors.

This process decompresses and cuts the text between pages; others (`wiki_articles.py`) read the XML
with mwxml, the wikitext with mwparserfromhell, and return the text of the articles: namespace 0, no
redirects. Results are taken in the order of the parts, so documents come as the dump has them.

A bz2 file of many streams (the `multistream` dumps) is decompressed on all processors too; one of a
single stream has to go through one.
"""

from __future__ import annotations

import bz2
import collections
import contextlib
import gc
import gzip
import html
import importlib.util
import io
import itertools
import os
import re
import signal
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar
from xml.etree.ElementTree import ParseError

from bert_jax.data.processes import process_pool
from bert_jax.data.text_files import Document
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError

VERSION = 1  # part of the fingerprint: raise it when the cleaning rules change
_CPU_SECONDS = 60  # that a page may take
_MAX_UNCLOSED = 300  # marks of a page that begin something and do not end it

# What MediaWiki itself takes out of the text before it reads anything else: nothing nests in it.
_EXTENSIONS = (
    'ref', 'references', 'gallery', 'imagemap', 'math', 'chem', 'ce', 'score', 'timeline', 'graph',
    'hiero', 'mapframe', 'maplink', 'syntaxhighlight', 'source', 'pre', 'templatedata',
    'templatestyles', 'section', 'inputbox', 'indicator', 'categorytree', 'includeonly',
)
_FIRST = re.compile(
    r'<!--.*?(?:-->|\Z)|<nowiki\s*/>|<nowiki\s*>(?P<literal>.*?)</nowiki\s*>'
    r'|<(?P<tag>{})(?:\s[^<>]*)?(?:/>|(?<!/)>.*?</(?P=tag)\s*>)'.format('|'.join(_EXTENSIONS)),
    re.DOTALL | re.IGNORECASE,
)
_TEMPLATE = re.compile(r'\{\{\{[^{}]*\}\}\}|\{\{[^{}]*\}\}')
_MAX_TEMPLATE_DEPTH = 40  # MediaWiki's own bound

_DROPPED_TAGS = frozenset({*_EXTENSIONS, 'table', 'ul', 'ol', 'dl', 'script', 'style'})
_BLOCK_TAGS = frozenset({'div', 'p', 'blockquote', 'center', 'poem', 'section', 'hr'})
# [[de:Berlin]] stands for the article in another language and is not shown. The sister projects'
# prefixes ([[wikt:word]]) have one or four letters, but for these.
_LANGUAGE = re.compile(r'(?!voy:|wmf:|doi:)(?:[a-z]{2,3}(?:-[a-z-]+)?|simple):')
# What is left of markup that was not closed, and styles, which the parser need not look at.
_STRAY = re.compile(
    r"'{2,}|\[\[+|\]\]+|\{\{+|\}\}+|\{\|[^\n]*|\|\}|</?[a-zA-Z][^<>\n]{0,300}>|__[A-Z]{3,}__"
)
_GONE = '\x03'  # stands where something was taken out: <math>x</math>: is not the list that : is
_LIST = '\x02'  # stands where the mark of a list's item stood
_STRAY_LINE = (_LIST, '|', '!')  # rows of a table that was not closed

# In this order: (; born 1950, ) -> (born 1950); what is empty then goes.
_TIDY = (
    (re.compile(r'[\s\x00-\x1f\u200e\u200f\ufeff]+'), ' '),
    (re.compile(r'([(\[]) ?(?:[,;:/] ?)+'), r'\1'),
    (re.compile(r'(?: ?[,;:/])* ?([)\]])'), r'\1'),
    (re.compile(r'([(\[]) '), r'\1'),
    (re.compile(r'\(\)|\[\]'), ''),
    (re.compile(r'\(\)|\[\]'), ''),
    (re.compile(r' {2,}'), ' '),
    (re.compile(r' +(?=[,.](?: |$))|^[ ,;:]+'), ''),
)
_WORD = re.compile(r'\w')


class Unreadable(Exception):
    """A page that is left out, with the reason."""


def clean(wikitext: str, hidden: frozenset[str] = frozenset({'file', 'image', 'category'})) -> str:
    """The paragraphs of an article, one a line.

    Args:
      wikitext: as in a dump, entities of XML decoded.
      hidden: lower-case prefixes of links that show no text.

    Raises:
      Unreadable: so many marks are not closed that the parser would take hours.
    """
    import mwparserfromhell

    text = _FIRST.sub(_without, wikitext)
    # The parser makes objects of all that it finds, and templates are most of it.
    for _ in range(_MAX_TEMPLATE_DEPTH):
        text, result = _TEMPLATE.subn(_GONE, text)
        if not result:
            break
    for begin, end in (('{{', '}}'), ('{|', '|}'), ('[[', ']]'), ('<', '>')):
        if text.count(begin) - text.count(end) > _MAX_UNCLOSED:
            raise Unreadable(f'more than {_MAX_UNCLOSED} {begin} are not closed')
    parts: list[str] = []
    _show(mwparserfromhell.parse(text, skip_style_tags=True).nodes, hidden, parts)
    return '\n'.join(_paragraphs(''.join(parts)))


def _without(match: re.Match[str]) -> str:
    """The replacement of a tag that holds no wikitext: of nowiki every character, as an entity."""
    if match[0].startswith('<!--'):
        return ''
    literal = match['literal'] or ''
    return _GONE + ''.join(c if c.isalnum() or c.isspace() else f'&#{ord(c)};' for c in literal)


def _show(nodes: Iterable[Any], hidden: frozenset[str], parts: list[str]) -> None:
    """Appends the text that nodes of the parser show; blank lines around blocks."""
    for node in nodes:
        kind = type(node).__name__
        if kind == 'Text':
            parts.append(_STRAY.sub('', node.value))
        elif kind == 'Wikilink':
            title = str(node.title).strip()
            prefix = title.partition(':')[0].strip().lower()
            if prefix not in hidden and not _LANGUAGE.match(title):
                if node.text is None:
                    parts.append(html.unescape(_STRAY.sub('', title.removeprefix(':'))))
                else:
                    _show(node.text.nodes, hidden, parts)
        elif kind == 'ExternalLink':
            if node.title is not None:
                _show(node.title.nodes, hidden, parts)
        elif kind == 'HTMLEntity':
            with contextlib.suppress(KeyError, ValueError, OverflowError):  # not a character
                parts.append(node.normalize())
        elif kind == 'Heading':
            parts.append('\n\n')
        elif kind == 'Tag':
            _show_tag(node, hidden, parts)


def _show_tag(node: Any, hidden: frozenset[str], parts: list[str]) -> None:
    name = str(node.tag).strip().lower()
    if node.wiki_markup and name in ('li', 'dt', 'dd'):
        parts.append(_LIST)
    elif name in _DROPPED_TAGS:
        parts.append('\n\n' if name not in _EXTENSIONS else '')
    elif name == 'br':
        parts.append(' ')
    else:
        around = '\n\n' if name in _BLOCK_TAGS else ''
        parts.append(around)
        if node.contents is not None:
            _show(node.contents.nodes, hidden, parts)
        parts.append(around)


def _paragraphs(text: str) -> Iterator[str]:
    """Lines up to a blank line or a list, joined and tidied; what holds no word is left out."""
    paragraph: list[str] = []
    for line in [*text.replace(_GONE, '').split('\n'), '']:
        line = line.strip()
        if line and not line.startswith(_STRAY_LINE):
            paragraph.append(line)
            continue
        tidy = ' '.join(paragraph).replace(_LIST, ' ')
        paragraph = []
        for pattern, replacement in _TIDY:
            tidy = pattern.sub(replacement, tidy)
        if _WORD.search(tidy):
            yield tidy.strip()


def articles(xml: bytes) -> dict[str, Any]:
    """Reads a part of a dump (header, whole pages, end).

    A page that the parser is lost in ends the process, by its processor time.

    Returns:
      documents: the text of each article that has any, in order.
      unreadable: (title, reason) of those left out.
      fault: (line, reason) where it is not a dump's XML, or None.
    """
    import mwxml

    gc.disable()  # a page's objects go by their counts; cycles are looked for at the end
    documents: list[str] = []
    unreadable: list[tuple[str, str]] = []
    fault = None
    try:
        dump = mwxml.Dump.from_file(io.BytesIO(xml))
        hidden = frozenset({'file', 'image', 'media', 'category'} | {
            namespace.name.lower() for namespace in dump.site_info.namespaces or ()
            if namespace.id in (-2, 6, 14)
        })
        for page in dump.pages:
            texts = [revision.text for revision in page]
            if page.namespace != 0 or page.redirect is not None or not texts:
                continue
            wikitext = texts[-1] or ''
            if wikitext[:100].lstrip().lower().startswith('#redirect'):
                continue
            signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
            try:
                text = clean(wikitext, hidden)
            except (Unreadable, RecursionError, MemoryError, ValueError) as error:
                unreadable.append((page.title, str(error) or type(error).__name__))
            else:
                if text:
                    documents.append(text)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    except ParseError as error:
        fault = (error.position[0], str(error).partition(':')[0])
    except (AssertionError, mwxml.errors.MalformedXML, TypeError, ValueError) as error:
        fault = (0, (str(error) or 'no <mediawiki> with <siteinfo>').strip())
    finally:
        gc.enable()
        gc.collect()
    return {'documents': documents, 'unreadable': unreadable, 'fault': fault}


FORMAT = f'wikidump {VERSION}'
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
        contextlib.closing(_parts(path, num_processes)) as parts,
        contextlib.closing(_answers(parts, num_processes)) as answers,
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


def _answers(
    parts: Iterable[tuple[int, bytes]], num_processes: int
) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """(line, what `articles` returns) of each part, in order, few of them ahead."""
    pending: collections.deque[tuple[int, bytes, Future[dict[str, Any]]]] = collections.deque()
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(process_pool(num_processes))
        for line, part in itertools.chain(parts, [(0, b'')]):
            if part:
                pending.append((line, part, pool.submit(articles, part)))
            while pending and (not part or len(pending) > 2 * num_processes):
                begin, first, answer = pending.popleft()
                try:
                    yield begin, answer.result()
                except BrokenProcessPool:  # by this part, or by one that was read beside it
                    yield begin, _without_the_cause(first)
                    stack.close()
                    pool = stack.enter_context(process_pool(num_processes))
                    pending = collections.deque(
                        (begin, part, pool.submit(articles, part)) for begin, part, _ in pending)


def _without_the_cause(part: bytes) -> dict[str, Any]:
    """Reads a part in a process of its own, without the page that ends its reader, if one does."""
    with process_pool(1) as pool, contextlib.suppress(BrokenProcessPool):
        return pool.submit(articles, part).result()
    begin = part.find(b'<page>')
    pages = part[begin:].split(_PAGE_END)[:-1]
    if len(pages) == 1:
        title = re.search(rb'<title>(.*?)</title>', pages[0])
        name = title[1].decode(errors='replace') if title else '?'
        return {'documents': [], 'unreadable': [(name, 'it ended its reader')], 'fault': None}
    halves = [
        _without_the_cause(part[:begin] + b''.join(
            page.lstrip() + _PAGE_END for page in half) + b'</mediawiki>')
        for half in (pages[: len(pages) // 2], pages[len(pages) // 2 :])
    ]
    return {
        'documents': halves[0]['documents'] + halves[1]['documents'],
        'unreadable': halves[0]['unreadable'] + halves[1]['unreadable'],
        'fault': halves[0]['fault'] or halves[1]['fault'],
    }
