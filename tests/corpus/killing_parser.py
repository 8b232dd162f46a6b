"""A parser of dumps that one page kills; its processes import no more than the parser's."""

from bert_jax.corpus import wikidump

_parse = wikidump.parse


def lost_in_endless(xml: bytes, *place: object) -> wikidump.Parsed:
    """Parses a part of a dump; a page called Endless takes longer than a page may."""
    if b'Endless' in xml:
        wikidump._CPU_SECONDS = 0.01
        wikidump.clean = _hung
    return _parse(xml, *place)


def _hung(*_):
    sum(range(10 ** 7))  # far beyond its limit, but the test ends where the limit fails
