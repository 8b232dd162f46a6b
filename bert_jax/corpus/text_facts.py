"""The content of a text before anything is made of it: documents, sentences, words, scripts."""

import collections
import hashlib
import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bert_jax.corpus.source import Document
from bert_jax.corpus.tokenize_plain import split_sentences
from bert_jax.text.wordpiece import raw_words

_DIGEST_BYTES = 8
# First words of the names of letters that are of no script, or whose script comes second.
_NO_SCRIPTS = frozenset({'COMBINING', 'MODIFIER', 'FEMININE', 'MASCULINE', 'VARIATION'})
_WIDTHS = frozenset({'FULLWIDTH', 'HALFWIDTH'})


class TextFacts(NamedTuple):
    """Counts of a text.

    Attributes:
      num_documents, num_sentences: sentences are split as for a token store.
      num_words: runs of characters between white space.
      num_bytes: of UTF-8.
      num_duplicates: documents that repeat an earlier one, byte for byte.
      scripts: by name, the share of the letters, the largest first. A script is known by the first
        word of its letters' names in Unicode, and vowel signs count as letters.
      capitals: share of the letters.
    """

    num_documents: int
    num_sentences: int
    num_words: int
    num_bytes: int
    num_duplicates: int
    scripts: Mapping[str, float]
    capitals: float


def facts_of(documents: Iterable[Document]) -> TextFacts:
    """Counts what documents hold."""
    digests: set[bytes] = set()
    characters: collections.Counter[str] = collections.Counter()
    num_documents = 0
    num_sentences = 0
    num_words = 0
    num_bytes = 0
    for document in documents:
        text = document.text.decode()
        num_documents += 1
        num_bytes += len(document.text)
        num_words += len(raw_words(text))
        sentences = split_sentences(text) if document.split else text.split('\n')
        num_sentences += len(sentences)
        characters.update(text)
        digests.add(hashlib.blake2b(document.text, digest_size=_DIGEST_BYTES).digest())
    scripts, capitals = _letters(characters)
    return TextFacts(
        num_documents, num_sentences, num_words, num_bytes, num_documents - len(digests),
        scripts, capitals)


def _letters(characters: Mapping[str, int]) -> tuple[dict[str, float], float]:
    """(The share of each script, the share of capitals) in the letters of counted characters."""
    counts: collections.Counter[str] = collections.Counter()
    num_capitals = 0
    for character, count in characters.items():
        category = unicodedata.category(character)
        script = _script_of(character) if category[0] in 'LM' else ''
        if script:
            counts[script] += count
        if category == 'Lu':
            num_capitals += count
    total = max(counts.total(), 1)
    shares = {script: count / total for script, count in counts.most_common()}
    return shares, num_capitals / total


def _script_of(letter: str) -> str:
    """The script of a letter or mark, such as 'Devanagari'; '' if its name has none."""
    words = unicodedata.name(letter, '').replace('-', ' ').split()
    if words and words[0] in _WIDTHS:
        words = words[1:]
    if not words or words[0] in _NO_SCRIPTS:
        return ''
    return 'CJK' if words[0] == 'CJK' else words[0].capitalize()
