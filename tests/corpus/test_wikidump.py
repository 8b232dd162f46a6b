"""MediaWiki dumps: 50 articles, which use all kinds of wikitext, become clean text, in order."""

import bz2
import gzip
import itertools
import re
import signal
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

from bert_jax.corpus import wikidump, wikitext
from bert_jax.corpus.sources import open_source
from tests.corpus.killing_parser import lost_in_endless
from tests.refusals import refused

HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">
  <siteinfo>
    <namespaces>
      <namespace key="-2" case="first-letter">Medium</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""

NAMESPACE = '    <ns>0</ns>\n'


class Article(NamedTuple):
    """An article and its paragraphs, written by hand."""

    title: str
    wikitext: str
    paragraphs: list


def _read_articles(path):
    articles = []
    for block in path.read_text(encoding='utf-8').split('@@ article ')[1:]:
        title, _, rest = block.partition('\n')
        wikitext, _, paragraphs = rest.partition('@@ paragraphs\n')
        articles.append(Article(title, wikitext, paragraphs.splitlines()))
    return articles


def _filler(number):
    wikitext = (
        f"{{{{Stub|{{{{n|{number}}}}}}}}}'''Article {number}''' is [[number]] {number}."
        f'<ref>{number}</ref>\n\n'
        f'* item {number}\n\n{{|\n| cell {number}\n|}}\nIt has {number + 1} predecessors.')
    return Article(f'Article {number}', wikitext, [
        f'Article {number} is number {number}.', f'It has {number + 1} predecessors.'])


ARTICLES = _read_articles(Path(__file__).parent.parent / 'fixtures' / 'wikitext.txt')
FILLERS = [_filler(number) for number in range(50 - len(ARTICLES))]
EXPECTED = ['\n'.join(article.paragraphs) for article in ARTICLES + FILLERS]
BROKEN_PAGE = ('Endless', '{{a|' * 2000 + ' and nothing closed')


def _page(title, text, namespace=0, inside=''):
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{namespace}</ns>
    <id>1</id>{inside}
    <revision>
      <timestamp>2020-01-01T00:00:00Z</timestamp>
      <text bytes="{len(text)}" sha1="x" xml:space="preserve">{escape(text)}</text>
    </revision>
  </page>
"""


def _pages():
    """The articles' pages, in order, with pages that are no articles between them."""
    others = itertools.cycle([
        _page('Alias', '#WEITERLEITUNG [[Ghent]]', inside='\n    <redirect title="Ghent" />'),
        _page('Old alias', '#REDIRECT [[Ghent]]'),
        _page('Diskussion:Ghent', 'I think so. ~~~~', 1),
        _page('Vorlage:Infobox', 'Text of a template', 10),
        _page('Kategorie:Städte', 'Text of a category', 14),
        _page('Nothing', '{{Only|a template}}'),
        _page('Kategorie:Alt', 'Text of a category').replace(NAMESPACE, ''),
    ])
    articles = [_page(article.title, article.wikitext) for article in ARTICLES + FILLERS]
    articles[1::2] = [page.replace(NAMESPACE, '') for page in articles[1::2]]  # as in old dumps
    pages = []
    for number, article in enumerate(articles):
        other = next(others) if number % 3 == 0 else ''
        pages.append(article + other)
    return pages


def _dump():
    return (HEADER + ''.join(_pages()) + '</mediawiki>\n').encode()


def _multistream():
    """Like the official dumps: the header, each dozen of pages and the end are separate streams."""
    pages = _pages()
    parts = [HEADER]
    for begin in range(0, len(pages), 12):
        parts.append(''.join(pages[begin : begin + 12]))
    parts.append('</mediawiki>')
    return b''.join(bz2.compress(part.encode()) for part in parts)


@pytest.mark.parametrize('article', ARTICLES, ids=lambda article: article.title)
def test_an_article_becomes_its_paragraphs(article):
    hidden = frozenset({'file', 'image', 'category', 'datei', 'kategorie'})
    assert wikitext.clean(article.wikitext, hidden).split('\n') == article.paragraphs


@pytest.mark.parametrize(('name', 'content', 'num_processes'), [
    ('dump.xml.gz', gzip.compress(_dump()), 1),
    ('dump.xml.bz2', bz2.compress(_dump()), 3), ('multistream.xml.bz2', _multistream(), 3),
])
def test_fifty_articles_in_order(tmp_path, monkeypatch, name, content, num_processes):
    monkeypatch.setattr(wikidump, '_READ_BYTES', 700)
    monkeypatch.setattr(wikidump, '_PART_BYTES', 2000)  # some dozen parts
    (tmp_path / name).write_bytes(content)
    assert len(EXPECTED) == 50
    assert list(wikidump.read_articles(str(tmp_path / name), num_processes)) == EXPECTED


@pytest.mark.parametrize('revisions', [
    ['2019-12-31T23:59:59Z 8 old', '2020-01-01T00:00:00Z 9 new'],
    ['2020-01-01T00:00:00Z 9 new', '2019-12-31T23:59:59Z 10 old'],
    ['2020-01-01T00:00:00Z 10 new', '2020-01-01T00:00:00Z 9 old'],
    ['- - old', '- - new'],
    ['- ' + '9' * 5000 + ' new', '- 10 old'],
], ids=['oldest first', 'newest first', 'of one second', 'without times', 'a number too long'])
def test_of_a_history_the_newest_revision_is_read(revisions):
    page = ElementTree.Element('page')
    for said in revisions:
        revision = ElementTree.SubElement(page, 'revision')
        for field, value in zip(('timestamp', 'id', 'text'), said.split(), strict=True):
            if value != '-':
                ElementTree.SubElement(revision, field).text = value
    assert wikidump._wikitext_of(page, frozenset()) == 'new'


def test_each_file_of_a_source_is_a_unit(tmp_path):
    for part in ('p2', 'p1'):
        (tmp_path / f'articles-{part}.xml.bz2').write_bytes(bz2.compress(_dump()))
    source = open_source(f'wikidump:{tmp_path}/articles-p*.xml.bz2')
    units = source.units
    assert [unit.name[-10:] for unit in units] == ['p1.xml.bz2', 'p2.xml.bz2']
    assert [document.text.decode() for document in source.read(units[1])] == EXPECTED


@pytest.mark.parametrize(('kill', 'reason'), [
    pytest.param(
        False, r"1 page\(s\) .* 'Endless' \(more than 300 \{\{ are not closed\)",
        id='refused by the parser'),
    pytest.param(
        True, r"1 page\(s\) .* 'Endless' \(its parser crashed or took over a minute\)",
        id='kills its process'),
])
def test_a_broken_page_is_named_and_left_out(tmp_path, monkeypatch, capfd, kill, reason):
    """Of five pages: where it kills its process, each half of them takes another."""
    path = tmp_path / 'dump.xml'
    pages = [_page(article.title, article.wikitext) for article in FILLERS[:4]]
    pages.insert(2, _page(*BROKEN_PAGE))
    path.write_text(HEADER + ''.join(pages) + '</mediawiki>')
    # As libtpu does. It stays so: libtpu, where loaded, sends signals that would end this process.
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    if kill:
        monkeypatch.setattr(wikidump, 'parse', lost_in_endless)
    expected = ['\n'.join(article.paragraphs) for article in FILLERS[:4]]
    assert list(wikidump.read_articles(str(path), 2)) == expected
    assert re.search(reason, capfd.readouterr().err)


class FailsThere:
    """Can be pickled, but fails in the process that unpickles it."""

    def __reduce__(self):
        return open, ('/no such file',)


@pytest.mark.parametrize('name', ['clean', 'parse'])
def test_a_failure_of_the_workers_is_not_blamed_on_a_page(tmp_path, monkeypatch, capfd, name):
    path = tmp_path / 'dump.xml'
    path.write_text(HEADER + _page('A', 'Text of A.') + _page('B', 'Text of B.') + '</mediawiki>')
    monkeypatch.setattr(wikidump, name, FailsThere())
    with pytest.raises(BrokenProcessPool):
        list(wikidump.read_articles(str(path), 1))
    assert '/no such file' in capfd.readouterr().err


@pytest.mark.parametrize(('name', 'content', 'words'), [
    ('cut.xml', _dump()[:-200], ['cut short', 'after line']),
    ('cut.xml.gz', gzip.compress(_dump())[:-200], ['cut short']),
    ('lost_streams.xml.bz2', _multistream()[:-len(bz2.compress(b'</mediawiki>'))],
     ['cut short', '</mediawiki>']),
    ('rot.xml.bz2', b'BZh9' + bytes(500), ['cut short or damaged', 'Invalid data']),
    ('text.xml', b'Just text.\n' * 200, ['not a MediaWiki dump', "'Just text.'"]),
    ('empty.xml.gz', gzip.compress(b'', mtime=0), ['not a MediaWiki dump', "''"]),
    ('short.xml', b'<html></html>', ['not a MediaWiki dump', '<html>']),
    ('bad.xml', _dump().replace(b'<ns>0</ns>', b'<ns>0</nx>', 1), ['line 12', 'mismatched tag']),
])
def test_a_damaged_dump_or_another_file_is_refused_by_name(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with refused(path, *words):
        list(wikidump.read_articles(str(path), 1))


def test_missing_packages_are_named(tmp_path, monkeypatch):
    (tmp_path / 'dump.xml').write_bytes(_dump())
    monkeypatch.setitem(sys.modules, 'mwparserfromhell', None)
    with refused('pip install', '[wikidump]'):
        open_source(f'wikidump:{tmp_path}/dump.xml')
