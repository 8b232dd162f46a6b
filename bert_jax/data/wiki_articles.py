"""Wikitext -> the text passages of an article.

As BERT's own corpus, "only the text passages" (paper, section 3.1): no lists, tables or headings,
no templates, references, pictures, formulas. `wikidump.py` calls it in processes of their own.
"""

from __future__ import annotations

import contextlib
import gc
import html
import io
import re
import signal
from collections.abc import Iterable, Iterator
from typing import Any
from xml.etree.ElementTree import ParseError

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
    """What stays of a tag that holds no wikitext: of nowiki every character, as an entity."""
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
    """What a part of a dump (header, whole pages, end) holds.

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
