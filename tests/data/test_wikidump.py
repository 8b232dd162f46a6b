"""MediaWiki dumps: 50 articles with everything that wikitext has become clean text, in order."""

import bz2
import gzip
import importlib.util
import itertools
import os
import re
import signal
from xml.sax.saxutils import escape

import pytest

from bert_jax.data import wikidump
from bert_jax.data.corpus import open_source
from bert_jax.runtime.errors import InputError

HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" \
version="0.11" xml:lang="de">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <dbname>testwiki</dbname>
    <namespaces>
      <namespace key="-2" case="first-letter">Medium</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Diskussion</namespace>
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="10" case="first-letter">Vorlage</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""

# Title, wikitext, the paragraphs that are wanted of it, written by hand.
ARTICLES = [
    ('Template', """{{Short description|A {{nested|{{deeply|x}}}} one}}
{{Infobox settlement
| name = [[Ghent]]
| map = {{Location map|Belgium|label={{lang|nl|Gent}}}}
| population = {{formatnum:{{{1|262219}}}}}<ref>{{cite web|url=http://x.org/|title=Ghent}}</ref>
}}
'''Ghent''' ({{lang-nl|Gent}} {{IPA|ɣɛnt}}; {{lang-fr|Gand}}) is a \
'''city''' in ''Flanders''{{citation needed|date=May 2020}}.
{{clear}}
It has {{convert|5|km}} of canals.
""", ['Ghent is a city in Flanders.', 'It has of canals.']),
    ('Table', """Before it.
{| class="wikitable sortable"
|+ Caption with [[link]]
! Year !! {{flag|France}}
|-
| 1990 || colspan=2 | 5
|
{| class="nested"
| inner '''cell'''
|}
|}
After it.

<table><tr><td>HTML cell</td></tr></table>
Last line,
which goes on.
""", ['Before it.', 'After it.', 'Last line, which goes on.']),
    ('Reference', """A fact.<ref>Smith, ''Book'' (1999), p. 5.</ref> Another<ref name="b" /> \
fact<ref name=c>
{{cite journal
 | title = Over [[lines]]
}}
</ref>, and a third<ref group="note" name="d">See <ref-like> text.</ref>.<REF>Big</REF>

== References ==
<references group="note">
<ref name="b">Jones.</ref>
</references>
{{reflist|30em}}

==External links==
* [http://example.org Site]
""", ['A fact. Another fact, and a third.']),
    ('Pictures', """[[File:Dog.jpg|thumb|left|A [[dog|hound]] in [[Berlin, [[Germany]]]]]]
[[Datei:Hund.jpg|mini|Ein [[Hund]]]][[Image:X.png]]Dogs bark.\
[[File:Y.ogg|thumb|{{Listen|a}} by [[A]], [[B]]]]
<gallery mode="packed">
File:A.jpg|Caption with [[link]]
</gallery>
They sleep too.
<imagemap>
Image:Foo.png|200px
circle 1 2 3 [[X]]
</imagemap>
""", ['Dogs bark.', 'They sleep too.']),
    ('Links', """[[Paris]] and [[Lyon|the city of Lyon]] and [[Train]]s by [[:Category:Rail|rail]],\
 [[:fr:Gare]].
See [https://example.org/a?b=c the site], [http://bare.example] \
or https://naked.example/x for ''it''.
[[Paris#History|Its ''history'']] is [[wikt:long|long]] \
[[de:Paris]][[zh-min-nan:Paris]][[simple:Paris]]
[[Category:Cities]][[Kategorie:Städte|Paris]]
""", ['Paris and the city of Lyon and Trains by rail, fr:Gare. See the site, or for it. '
      'Its history is long']),
    ('Lists', """The animals are:
* a [[dog]]
** a puppy
# one
; term : definition
: indented
*: mixed

----
They are ''animals''.
<ul><li>HTML item</li></ul>
End.
""", ['The animals are:', 'They are animals.', 'End.']),
    ('Headings', """Lead.
== Early ''life'' ==
Young.
=== Deeper ===
Deep.
==Notes==
""", ['Lead.', 'Young.', 'Deep.']),
    ('Nowiki', """Write <nowiki>[[link]]</nowiki> or <nowiki>''two'' {{marks}}</nowiki> \
& see<nowiki />.
<pre>[[code]] {{in}} a block</pre>
<syntaxhighlight lang="python">
if x: pass
</syntaxhighlight>
The <code>if</code> statement<!-- [[not]] {{this}} --> ends<!-- over
lines --> here.
""", ["Write [[link]] or ''two'' {{marks}} & see.", 'The if statement ends here.']),
    ('Formula', """Where <math>x^2 {{=}} \\frac{1}{2}</math> is (<math>y</math>) small, \
H<sub>2</sub>O and 10<sup>6</sup>
boil.
:<math>a < b</math>
<timeline>
ImageSize = width:5
</timeline>
<score>c d e</score>
So <span style="color:red" class='a'>it</span> is.<br />Yes<br>it {{!}} is.
In
<math>z</math>: this.
""", ['Where is small, H2O and 106 boil.', 'So it is. Yes it is. In : this.']),
    ('Entities', """Caf&eacute;&nbsp;&amp; bar &#8211; &#x20AC;5 &lt;b&gt; &quot;x&quot; \
3&thinsp;km &unknown; [[AT&amp;T]].
__NOTOC__ __NOEDITSECTION__
{{DEFAULTSORT:Entities}}
""", ['Café & bar – €5 <b> "x" 3 km &unknown; AT&T.']),
    ('Κόσμος', """'''Ο κόσμος''' ({{lang|grc|κόσμος}}) είναι [[Γη|η Γη]]. 世界は[[丸い]]。
Мир — ''большой''.

العالم [[كبير|كبير جدا]]. 𝔘𝔫𝔦 🎉
""", ['Ο κόσμος είναι η Γη. 世界は丸い。 Мир — большой.', 'العالم كبير جدا. 𝔘𝔫𝔦 🎉']),
    ('Parentheses', """'''A''' ({{IPA|x}}, {{lang|y}}) b ( ) c (; born {{date}}) d (see {{x}}, ) \
e [{{x}}] f (({{x}})) (g).
L''''amour'''' {{x}}, and so on {{y}}.
""", ['A b c (born) d (see) e f (g). Lamour, and so on.']),
    ('Blocks', """<div class="x">
In a block.

Second in it.
</div>
<blockquote>Quoted ''words''.</blockquote>
<center>Middle.</center>
<poem>
Line one
Line two
</poem>
<onlyinclude>Kept.</onlyinclude><includeonly>Not shown.</includeonly>
""", ['In a block.', 'Second in it.', 'Quoted words.', 'Middle.', 'Line one Line two', 'Kept.']),
    ('Broken', """Left {{open | and [[never closed
| a = b
! c
Text <ref>without end and ''style'''
{| class=x
| row
Still <div>text</span> ]] |}.
""", ['Left open | and never closed', 'Text without end and style', 'Still text.']),
]
FILLERS = [
    (f'Article {i}', f"{{{{Stub|{{{{n|{i}}}}}}}}}'''Article {i}''' is [[number]] {i}."
     f"<ref>{i}</ref>\n\n"
     f"* item {i}\n\n{{|\n| cell {i}\n|}}\nIt has {i + 1} predecessors.",
     [f'Article {i} is number {i}.', f'It has {i + 1} predecessors.'])
    for i in range(50 - len(ARTICLES))
]
EXPECTED = ['\n'.join(paragraphs) for *_, paragraphs in ARTICLES + FILLERS]
BROKEN_PAGE = ('Endless', '{{a|' * 2000 + ' and nothing closed')


def _page(title, text, namespace=0, inside=''):
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{namespace}</ns>
    <id>1</id>{inside}
    <revision>
      <id>2</id>
      <timestamp>2020-01-01T00:00:00Z</timestamp>
      <contributor><username>A</username><id>3</id></contributor>
      <origin>2</origin>
      <model>wikitext</model>
      <format>text/x-wiki</format>
      <text bytes="{len(text)}" sha1="x" xml:space="preserve">{escape(text)}</text>
      <sha1>x</sha1>
    </revision>
  </page>
"""


def _pages(extra=()):
    """The articles' pages, in order, and between them what is no article."""
    others = itertools.cycle([
        _page('Alias', '#WEITERLEITUNG [[Ghent]]', inside='\n    <redirect title="Ghent" />'),
        _page('Old alias', '#REDIRECT [[Ghent]]'),
        _page('Diskussion:Ghent', 'I think so. ~~~~', 1),
        _page('Vorlage:Infobox', 'Text of a template', 10),
        _page('Kategorie:Städte', 'Text of a category', 14),
        _page('Nothing', '{{Only|a template}}'),
    ])
    pages = [_page(title, text) for title, text, _ in ARTICLES + FILLERS]
    for title, text in extra:
        pages.insert(5, _page(title, text))
    return [page + (next(others) if i % 3 == 0 else '') for i, page in enumerate(pages)]


def _dump(extra=()):
    return (HEADER + ''.join(_pages(extra)) + '</mediawiki>\n').encode()


def _multistream():
    """As the official dumps are: header, pages by the dozen and the end, each a stream."""
    pages = _pages()
    parts = [HEADER, *(''.join(pages[i:i + 12]) for i in range(0, len(pages), 12)), '</mediawiki>']
    return b''.join(bz2.compress(part.encode()) for part in parts)


def _texts(path, num_processes=2):
    documents = list(wikidump.read_documents(str(path), num_processes))
    assert all(document.split for document in documents)
    return [document.text.decode() for document in documents]


@pytest.mark.parametrize(('title', 'text', 'paragraphs'), ARTICLES, ids=[a[0] for a in ARTICLES])
def test_an_article_becomes_its_paragraphs(title, text, paragraphs):
    hidden = frozenset({'file', 'image', 'category', 'datei', 'kategorie'})
    assert wikidump.clean(text, hidden).split('\n') == paragraphs


@pytest.mark.parametrize(('name', 'content', 'num_processes'), [
    ('dump.xml.gz', gzip.compress(_dump()), 1),
    ('dump.xml.bz2', bz2.compress(_dump()), 3), ('multistream.xml.bz2', _multistream(), 3),
])
def test_fifty_articles_in_order(tmp_path, monkeypatch, name, content, num_processes):
    monkeypatch.setattr(wikidump, '_READ_BYTES', 700)
    monkeypatch.setattr(wikidump, '_PART_BYTES', 2000)  # some dozen parts
    (tmp_path / name).write_bytes(content)
    texts = _texts(tmp_path / name, num_processes)
    assert len(EXPECTED) == 50 and texts == EXPECTED
    markup = re.compile(r"\{\{|\}\}|\[\[|\]\]|''|\{\||\|\}|</?[a-z]|&[a-z]+;|__|\(\s*[,;]|\( ?\)")
    for (title, *_), text in zip(ARTICLES + FILLERS, texts, strict=True):
        if title not in ('Nowiki', 'Entities'):  # where what looks like markup was meant to be seen
            assert not markup.search(text), text


def test_the_source_has_a_file_a_unit(tmp_path):
    for part in ('p2', 'p1'):
        (tmp_path / f'articles-{part}.xml.bz2').write_bytes(bz2.compress(_dump()))
    source = open_source(f'wikidump:{tmp_path}/articles-p*.xml.bz2')
    units = source.units()
    assert [unit.name[-10:] for unit in units] == ['p1.xml.bz2', 'p2.xml.bz2']
    assert all(unit.num_bytes > 0 for unit in units)
    assert [document.text.decode() for document in source.read(units[1])] == EXPECTED
    assert source.fingerprint() != open_source(f'text:{tmp_path}/articles-p*.xml.bz2').fingerprint()


_articles = wikidump.articles


def _lost_in_endless(xml):
    if b'Endless' in xml:
        os.kill(os.getpid(), signal.SIGPROF)
    return _articles(xml)


@pytest.mark.parametrize(('kill', 'reason'), [
    (False, r"1 page\(s\) .* 'Endless' \(more than 300 \{\{ are not closed\)"),
    (True, r"1 page\(s\) .* 'Endless' \(it ended its reader\)"),
])
def test_a_broken_page_is_named_and_left_out(tmp_path, monkeypatch, capfd, kill, reason):
    path = tmp_path / 'dump.xml'
    path.write_bytes(_dump([BROKEN_PAGE]))
    if kill:  # the parser is lost in it: as its processor time ends, so does the process
        monkeypatch.setattr(wikidump, 'articles', _lost_in_endless)
    assert _texts(path) == EXPECTED
    assert re.search(reason, capfd.readouterr().err)


@pytest.mark.parametrize(('name', 'content', 'words'), [
    ('cut.xml', _dump()[:-200], ['cut short', 'line 1']),
    ('cut.xml.gz', gzip.compress(_dump())[:-200], ['cut short']),
    ('cut.xml.bz2', bz2.compress(_dump())[:-200], ['cut short']),
    ('cut_streams.xml.bz2', _multistream()[:-300], ['cut short']),
    ('lost_streams.xml.bz2', _multistream()[:-len(bz2.compress(b'</mediawiki>'))],
     ['cut short', '</mediawiki>']),
    ('rot.xml.bz2', b'BZh9' + bytes(500), ['cannot be read', 'Invalid data']),
    ('text.xml', b'Just text.\n' * 200, ['not a MediaWiki dump', "'Just text.'"]),
    ('short.xml', b'<html></html>', ['not a MediaWiki dump', '<html>']),
    ('bad.xml', _dump().replace(b'<ns>0</ns>', b'<ns>0</nx>', 1), ['line 16', 'mismatched tag']),
    ('other.xml', _dump().replace(b'<title>Table</title>', b'<heading/>'), ['line 1', 'heading']),
])
def test_what_is_not_a_dump_is_named(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        _texts(path, 1)
    message = str(error.value)
    assert message.startswith(str(path)) and '\n' not in message
    assert all(word in message for word in words), message


def test_missing_packages_are_named(tmp_path, monkeypatch):
    (tmp_path / 'dump.xml').write_bytes(_dump())
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(InputError, match='pip install mwxml mwparserfromhell'):
        open_source(f'wikidump:{tmp_path}/dump.xml')
