"""MediaWiki dumps (XML; plain, .gz or .bz2) -> documents, on all processors.

This process decompresses the dump and cuts it between pages; others parse the XML and (with
mwparserfromhell) the wikitext, and return the text of the articles: namespace 0, no redirects.
Documents come in the order of the dump.
"""

import collections
import contextlib
import gc
import html
import itertools
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any
from xml.etree import ElementTree

from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, first_line, tell
from bert_jax.runtime.pool import process_pool

# Part of the fingerprint: raise the number when the cleaning rules change.
FORMAT = 'wikidump 1'
_CPU_SECONDS = 60  # processor time that a page may take
_MAX_UNCLOSED = 300  # opening marks in a page that have no closing ones

# MediaWiki takes these tags out of the text before it parses anything else: nothing nests in them.
_EXTENSIONS = (
    'ref', 'references', 'gallery', 'imagemap', 'math', 'chem', 'ce', 'score', 'timeline', 'graph',
    'hiero', 'mapframe', 'maplink', 'syntaxhighlight', 'source', 'pre', 'templatedata',
    'templatestyles', 'section', 'inputbox', 'indicator', 'categorytree', 'includeonly',
)
_FIRST = re.compile(
    r'<!--.*?(?:-->|\Z)|<nowiki\s*/>|<nowiki\s*>(?P<literal>.*?)</nowiki\s*>'
    r'|<(?P<tag>{})(?:\s[^<>]*)?(?:/>|(?<!/)>.*?</(?P=tag)\s*>)'.format('|'.join(_EXTENSIONS)),
    re.DOTALL | re.IGNORECASE)
_TEMPLATE = re.compile(r'\{\{\{[^{}]*\}\}\}|\{\{[^{}]*\}\}')
_MAX_TEMPLATE_DEPTH = 40  # MediaWiki's own bound

_DROPPED_TAGS = {'table', 'ul', 'ol', 'dl', 'script', 'style'}
_BLOCK_TAGS = {'div', 'p', 'blockquote', 'center', 'poem', 'section', 'hr'} | _DROPPED_TAGS
# [[de:Berlin]] links to the article in another language and is not shown. The prefixes of sister
# projects ([[wikt:word]]) have one or four letters, except voy, wmf and doi.
_LANGUAGE = re.compile(r'(?!voy:|wmf:|doi:)(?:[a-z]{2,3}(?:-[a-z-]+)?|simple):')
# Remains of unclosed markup, and the marks of bold and italic, which the parser skips.
_STRAY = re.compile(
    r"'{2,}|\[\[+|\]\]+|\{\{+|\}\}+|\{\|[^\n]*|\|\}|</?[a-zA-Z][^<>\n]{0,300}>|__[A-Z]{3,}__")
# Replaces what is taken out. Without it, the colon of `<math>x</math>: y` would begin a list.
_GONE = '\x03'
_LIST = '\x02'  # replaces the mark of a list item
_STRAY_LINE = (_LIST, '|', '!')  # list items and rows of unclosed tables

# In this order: (; born 1950, ) -> (born 1950); then brackets that are empty go, also nested ones.
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
_REDIRECT = re.compile(r'\s*#redirect', re.IGNORECASE)
_HIDDEN = frozenset({'file', 'image', 'media', 'category'})


def clean(wikitext: str, hidden: frozenset[str]) -> str:
    """The paragraphs of an article, one per line.

    Args:
      wikitext: as in a dump, with XML entities decoded.
      hidden: lower-case prefixes of links that show no text.

    Raises:
      ValueError: so many marks are not closed that the parser would take hours.
    """
    import mwparserfromhell

    text = _FIRST.sub(_without, wikitext)
    # Templates go first: the parser makes objects of all it finds, and they are most of it.
    for _ in range(_MAX_TEMPLATE_DEPTH):
        text, count = _TEMPLATE.subn(_GONE, text)
        if not count:
            break
    for begin, end in (('{{', '}}'), ('{|', '|}'), ('[[', ']]'), ('<', '>')):
        if text.count(begin) - text.count(end) > _MAX_UNCLOSED:
            raise ValueError(f'more than {_MAX_UNCLOSED} {begin} are not closed')
    shown = ''.join(_shown(mwparserfromhell.parse(text, skip_style_tags=True), hidden))
    return '\n'.join(_paragraphs(shown))


def _without(match: re.Match[str]) -> str:
    """'' for a comment; else `_GONE`, then what a nowiki tag holds, with its marks as entities."""
    if match[0].startswith('<!--'):
        return ''
    literal = match['literal'] or ''
    return _GONE + ''.join(c if c.isalnum() or c.isspace() else f'&#{ord(c)};' for c in literal)


def _shown(code: Any, hidden: frozenset[str]) -> Iterator[str]:
    """The text that the parser's nodes show, in pieces; blank lines around blocks."""
    for node in code.nodes if code is not None else ():
        kind = type(node).__name__
        if kind == 'Text':
            yield _STRAY.sub('', node.value)
        elif kind == 'Wikilink':
            title = str(node.title).strip()
            if title.partition(':')[0].strip().lower() in hidden or _LANGUAGE.match(title):
                continue
            if node.text is None:
                yield html.unescape(_STRAY.sub('', title.removeprefix(':')))
            yield from _shown(node.text, hidden)
        elif kind == 'ExternalLink':
            yield from _shown(node.title, hidden)
        elif kind == 'HTMLEntity':
            with contextlib.suppress(KeyError, ValueError, OverflowError):  # not a character
                yield node.normalize()
        elif kind == 'Heading':
            yield '\n\n'
        elif kind == 'Tag':
            name = str(node.tag).strip().lower()
            if node.wiki_markup and name in ('li', 'dt', 'dd'):
                yield _LIST
            elif name == 'br':
                yield ' '
            elif name not in _EXTENSIONS:
                around = '\n\n' if name in _BLOCK_TAGS else ''
                yield around
                if name not in _DROPPED_TAGS:
                    yield from _shown(node.contents, hidden)
                    yield around


def _paragraphs(text: str) -> Iterator[str]:
    """Joined and tidied lines up to a blank or stray one; those without a word are left out."""
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


# The text of articles, and "'title' (reason)" of pages that are left out; both in order.
Parsed = tuple[list[str], list[str]]


def parse(xml: bytes, path: str, line: int) -> Parsed:
    """Parses a part of a dump: the header in one line, whole pages, the closing tag.

    A page that takes more than `_CPU_SECONDS` ends the process (by SIGPROF).

    Raises:
      InputError: it is not well-formed XML; names the line, given that pages begin at `line`.
    """
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise InputError(
            f'{path}, line {line + error.position[0] - 1}: not the XML of a MediaWiki dump '
            f"({str(error).partition(':')[0]}); copy the file again") from None
    hidden = _HIDDEN | {(namespace.text or '').lower() for namespace in root.iterfind(
        '{*}siteinfo/{*}namespaces/{*}namespace') if namespace.get('key') in ('-2', '6', '14')}
    articles: list[str] = []
    unreadable: list[str] = []
    gc.disable()  # reference counts free a page's objects; cycles are collected last
    for page in root.iterfind('{*}page'):
        texts = page.findall('{*}revision/{*}text')
        wikitext = (texts[-1].text if texts else '') or ''
        redirects = page.find('{*}redirect') is not None or _REDIRECT.match(wikitext)
        if page.findtext('{*}ns') != '0' or redirects:
            continue
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # inherited as ignored where libtpu is loaded
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
        try:
            if text := clean(wikitext, hidden):
                articles.append(text)
        except (ValueError, RecursionError, MemoryError) as error:
            unreadable.append(f"'{page.findtext('{*}title', '?')}' ({first_line(error)})")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    gc.enable()
    gc.collect()
    return articles, unreadable


_READ_BYTES = 1 << 18
_PART_BYTES = 1 << 19  # of pages that a worker parses at a time
_MAX_HEADER_BYTES = 4 << 20
_MAX_PAGE_BYTES = 64 << 20
_NAMED = 10  # pages left out that a message names, at most
_PAGE_END = b'</page>'


def read_articles(path: str, num_processes: int = 0) -> Iterator[str]:
    """The articles of one dump, in its order, one paragraph per line.

    Pages that cannot be read are left out; at the end, a line on standard error counts them and
    names the first ones.

    Args:
      path: the dump.
      num_processes: that parse pages; 0: as many as there are processors.

    Raises:
      InputError: it is not a dump, is cut short, or is not well-formed XML.
    """
    num_processes = num_processes or os.cpu_count() or 1
    unreadable: list[str] = []
    parts = _parts(path)
    pending: collections.deque[tuple[bytes, int, Future[Parsed]]] = collections.deque()
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(process_pool(num_processes))
        pool.submit(clean, '', _HIDDEN).result()  # fails here if processes do not start
        while True:
            for line, part in itertools.islice(parts, 2 * num_processes - len(pending)):
                try:
                    future = pool.submit(parse, part, path, line)
                except BrokenProcessPool:
                    pool = stack.enter_context(process_pool(num_processes))
                    future = pool.submit(parse, part, path, line)
                pending.append((part, line, future))
            if not pending:
                break
            part, line, future = pending.popleft()
            try:
                articles, left_out = future.result()
            except BrokenProcessPool:  # killed by this part or one read beside it
                articles, left_out = _parse_by_halves(part, path, line)
                if len(left_out) == part.count(_PAGE_END) > 1:
                    raise  # every page failed: none is to blame
            yield from articles
            unreadable += left_out
    if unreadable:
        others = ', others' if len(unreadable) > _NAMED else ''
        tell(f'{path}: {len(unreadable)} page(s) that cannot be read are left out: '
             f"{', '.join(unreadable[:_NAMED])}{others}")


def _parse_by_halves(part: bytes, path: str, line: int) -> Parsed:
    """Parses a part in a process of its own, without the pages that kill such a process."""
    with process_pool(1) as pool, contextlib.suppress(BrokenProcessPool):
        return pool.submit(parse, part, path, line).result()
    begin = part.find(b'<page>')
    pages = part[begin:].split(_PAGE_END)[:-1]
    if len(pages) == 1:
        title = re.search('<title>(.*?)</title>', pages[0].decode(errors='replace'))
        return [], [f"'{title[1] if title else '?'}' (its parser crashed or took over a minute)"]
    middle = len(pages) // 2
    (first, left_out), (second, more) = (
        _parse_by_halves(part[:begin] + b''.join(
            page.lstrip() + _PAGE_END for page in half) + b'</mediawiki>', path, line)
        for half in (pages[:middle], pages[middle:]))
    return first + second, left_out + more


def _parts(path: str) -> Iterator[tuple[int, bytes]]:
    """(line of the first page, XML of whole pages within the dump's header and end)."""
    blocks, text = files.read_blocks(path, _READ_BYTES), b''
    for block in blocks:
        text += block
        if b'<page>' in text or len(text) > _MAX_HEADER_BYTES:
            break
    if b'<mediawiki' not in text:
        begins = text[:60].decode(errors='replace').partition('\n')[0]
        raise InputError(f"{path} is not a MediaWiki dump: it begins with '{begins}', and "
                         '<mediawiki is wanted; name text files without wikidump:')
    begin = max(text.find(b'<page>'), 0)
    header, text = text[:begin], text[begin:]
    line = 1 + header.count(b'\n')
    header = header.replace(b'\n', b' ')
    for block in itertools.chain([b''], blocks):
        text += block
        end = text.rfind(_PAGE_END) + len(_PAGE_END)
        if len(text) >= _PART_BYTES and end >= len(_PAGE_END):
            part, text = text[:end], text[end:]
            yield line, header + part + b'</mediawiki>'
            line += part.count(b'\n')
        elif len(text) > _MAX_PAGE_BYTES:
            raise InputError(f'{path}, line {line}: no </page> for {_MAX_PAGE_BYTES >> 20} MiB; is '
                             'this a MediaWiki dump?')
    if not text.rstrip().endswith(b'</mediawiki>'):
        line += text.rstrip().count(b'\n')
        raise InputError(f'{path} is cut short: no </mediawiki> after line {line}; copy it again')
    yield line, header + text
