"""The wikitext of MediaWiki articles -> paragraphs.

mwparserfromhell parses it. This module says which of its nodes show text, because the library's own
`strip_code` leaves the markup of pictures, tables and lists in the text, and takes templates out
before, because most of the parser's time is theirs (docs/log/large_corpora.md).
"""

import contextlib
import html
import re
from collections.abc import Iterator
from typing import Any

_MAX_UNCLOSED = 300  # opening marks in a page that have no closing ones
_MARKS = (('{{', '}}'), ('{|', '|}'), ('[[', ']]'), ('<', '>'))

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
    for begin, end in _MARKS:
        if text.count(begin) - text.count(end) > _MAX_UNCLOSED:
            raise ValueError(f'more than {_MAX_UNCLOSED} {begin} are not closed')
    code = mwparserfromhell.parse(text, skip_style_tags=True)
    return '\n'.join(_paragraphs(''.join(_shown(code, hidden))))


def _without(match: re.Match[str]) -> str:
    """'' for a comment; else `_GONE`, then what a nowiki tag holds, with its marks as entities."""
    if match[0].startswith('<!--'):
        return ''
    literal = match['literal'] or ''
    return _GONE + ''.join(map(_as_text, literal))


def _as_text(char: str) -> str:
    """A character that the parser takes for no mark."""
    if char.isalnum() or char.isspace():
        return char
    return f'&#{ord(char)};'


def _shown(code: Any, hidden: frozenset[str]) -> Iterator[str]:
    """The text that the parser's nodes show, in pieces; blank lines around blocks."""
    if code is not None:
        for node in code.nodes:
            yield from _shown_by(node, hidden)


def _shown_by(node: Any, hidden: frozenset[str]) -> Iterator[str]:
    kind = type(node).__name__
    if kind == 'Text':
        yield _STRAY.sub('', node.value)
    elif kind == 'Wikilink':
        yield from _shown_by_link(node, hidden)
    elif kind == 'ExternalLink':
        yield from _shown(node.title, hidden)
    elif kind == 'HTMLEntity':
        with contextlib.suppress(KeyError, ValueError, OverflowError):  # not a character
            yield node.normalize()
    elif kind == 'Heading':
        yield '\n\n'
    elif kind == 'Tag':
        yield from _shown_by_tag(node, hidden)


def _shown_by_link(link: Any, hidden: frozenset[str]) -> Iterator[str]:
    title = str(link.title).strip()
    prefix = title.partition(':')[0].strip().lower()
    if prefix in hidden or _LANGUAGE.match(title):
        return
    if link.text is None:
        yield html.unescape(_STRAY.sub('', title.removeprefix(':')))
    yield from _shown(link.text, hidden)


def _shown_by_tag(tag: Any, hidden: frozenset[str]) -> Iterator[str]:
    name = str(tag.tag).strip().lower()
    if tag.wiki_markup and name in ('li', 'dt', 'dd'):
        yield _LIST
    elif name == 'br':
        yield ' '
    elif name not in _EXTENSIONS:
        around = '\n\n' if name in _BLOCK_TAGS else ''
        yield around
        if name not in _DROPPED_TAGS:
            yield from _shown(tag.contents, hidden)
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
