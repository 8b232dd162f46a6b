"""Where sentences end, in all scripts: rules for the two engines that split text.

A "sentence" of BERT is any span of text, so the rules look only at the marks and at the characters
beside them; no list of abbreviations is needed. `bert_jax.corpus.tokenize_tensorflow` applies them
with RE2, `bert_jax.corpus.tokenize_plain` with Python's `re`. After each step the found ends are
newlines.
"""

import re
from typing import Generic, NamedTuple, TypeVar

_Pattern = TypeVar('_Pattern', str, re.Pattern[str])

# Marks that end a sentence wherever they stand: those with Unicode's property Sentence_Terminal,
# without those that have other uses too (below) and the Burmese comma U+104A; and the shads of
# Tibetan, which lack the property, though its text has no other marks.
_ENDS_BY_SCRIPT = {
    'Armenian': '\u0589',
    'Arabic': '\u061d-\u061f\u06d4',
    'Syriac': '\u0700-\u0702',
    'NKo': '\u07f9',
    'Samaritan': '\u0837\u0839\u083d\u083e',
    'scripts of India': '\u0964\u0965',  # the danda and its double
    'Tibetan': '\u0f0d-\u0f12',
    'Burmese': '\u104b',
    'Ethiopic': '\u1362\u1367\u1368',
    'Canadian syllabics': '\u166e',
    'Philippine scripts': '\u1735\u1736',
    'Khmer': '\u17d4\u17d5',
    'Mongolian': '\u1803\u1809',
    'Limbu': '\u1944\u1945',
    'Tai Tham': '\u1aa8-\u1aab',
    'Balinese': '\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f',
    'Lepcha': '\u1c3b\u1c3c',
    'Ol Chiki': '\u1c7e\u1c7f',
    'Chinese and Japanese': '\u3002\ufe12\ufe15\ufe16\ufe56\ufe57\uff01\uff1f\uff61',
    'Lisu': '\ua4ff',
    'Vai': '\ua60e\ua60f',
    'Bamum': '\ua6f3\ua6f7',
    'Phags-pa': '\ua876\ua877',
    'Saurashtra': '\ua8ce\ua8cf',
    'Kayah Li': '\ua92f',
    'Javanese': '\ua9c8\ua9c9',
    'Cham': '\uaa5d-\uaa5f',
    'Meetei Mayek': '\uaaf0\uaaf1\uabeb',
}
_ENDS_BEYOND_BASIC_PLANE = (
    # Historical scripts of Asia, and Chakma.
    '\U00010a56\U00010a57\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047\U00011048'
    '\U000110be-\U000110c1\U00011141-\U00011143\U000111c5\U000111c6\U000111cd\U000111de'
    '\U000111df\U00011238\U00011239\U0001123b\U0001123c\U000112a9\U000113d4\U000113d5'
    '\U0001144b\U0001144c\U000115c2\U000115c3\U000115c9-\U000115d7\U00011641\U00011642'
    '\U0001173c-\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c'
    '\U00011c41\U00011c42\U00011ef7\U00011ef8\U00011f43\U00011f44'
    # Mro, Bassa Vah, Pahawh Hmong, Kirat Rai, Medefaidrin, shorthand, sign writing.
    '\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44\U00016d6e\U00016d6f'
    '\U00016e98\U0001bc9f\U0001da88')
_BASIC_ENDS = ''.join(_ENDS_BY_SCRIPT.values())
_ENDS = _BASIC_ENDS + _ENDS_BEYOND_BASIC_PLANE

# Marks that end a sentence if white space and the beginning of another one follow: they also stand
# in numbers, abbreviations and titles. The second line has the Coptic, medieval and other marks.
_SPACED_MARKS = (
    '.!?\u2026\u203c\u203d\u2047-\u2049'
    '\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54')
_WIDE_STOPS = '\uff0e\ufe52'  # as above, and between letters: Japanese puts no space after them
_CLOSERS = '"\'”’»›)\\]」』）】》〉〕｣'
# German and Danish close with these; French puts a space that does not break before the mark's ».
_SPACED_CLOSERS = _CLOSERS + '“‘«‹\u00a0\u202f'
_OPENERS = '“‘„‚«‹¿¡「『（【《〈〔｢'

# Thai and Lao end sentences, and clauses, with a space. Those around the repetition marks ๆ and ໆ,
# which may stand apart from their word, are none; nor are those beside digits.
_THAI_LAO = '\u0e01-\u0e3a\u0e40-\u0e45\u0e47-\u0e4e\u0e81-\u0ebd\u0ec0-\u0ec4\u0ec8-\u0ece'
_THAI_LAO_FIRST = '\u0e01-\u0e2e\u0e40-\u0e44\u0e81-\u0eae\u0ec0-\u0ec4'
_REPETITION = '\u0e46\u0ec6'
_ETHIOPIC_TYPED = '\u1361\u1361'  # two word spaces, as typed for the full stop
_WIDE_SPACE = '\u3000'
_BLANKS = f' \t{_WIDE_SPACE}'
_GEORGIAN = '\u10d0-\u10ff'  # has capitals since Unicode 11, but no sentence begins with one


class Classes(NamedTuple):
    """The insides of character classes, as the engine at hand writes them."""

    upper: str  # \p{Lu}
    lower: str  # \p{Ll}
    caseless: str  # \p{Lo}
    modifier: str  # \p{Lm}, such as the mark of a long vowel in kana
    mark: str  # \p{M}, such as vowel signs
    digit: str  # \p{Nd}
    space: str  # of ASCII


class Patterns(NamedTuple, Generic[_Pattern]):
    """Regular expressions for the ends of sentences, to be applied in this order.

    Of each pair of groups, the first belongs to the sentence that ends, the second to the next one;
    what is matched between them is white space.

    Attributes:
      anywhere: marks that always end a sentence. One group.
      anywhere_signs: `anywhere` matches only in a text that has one of these. (Python's `re` is
        slow to search for a class with many ranges beyond the basic plane.)
      spaced: marks with white space and what may begin a sentence. One pair. It does not matter
        whether this and `anywhere` are applied one after the other or as alternatives.
      rare: other ends. Four pairs, to be replaced by `RARE_REPLACEMENT`.
      rare_signs: `rare` matches only in a line that has one of these characters, or ` .`.
      uncapitalised: for texts in which `capitalised` is not found: marks, white space and any
        letter. One pair.
      capitalised: the beginning of a capitalised word.
    """

    anywhere: _Pattern
    anywhere_signs: _Pattern
    spaced: _Pattern
    rare: _Pattern
    rare_signs: _Pattern
    uncapitalised: _Pattern
    capitalised: _Pattern


RARE_REPLACEMENT = '\\1\\3\\5\\7\n\\2\\4\\6\\8'


def sentence_patterns(classes: Classes) -> Patterns[str]:
    """The patterns in the notation of an engine, which is that of both but for the classes."""
    upper = classes.upper
    lower = classes.lower
    caseless = classes.caseless
    modifier = classes.modifier
    space = classes.space
    begins = f'{upper}{caseless}{classes.digit}{_GEORGIAN}{_OPENERS}'
    # These two are chosen so that RE2 can use its one-pass engine, which is twice as fast: the next
    # byte always decides what is matched. So an optional character outside ASCII must not stand
    # before others; hence all of _OPENERS begin a sentence whatever follows them.
    anywhere = f'([{_ENDS}][{_ENDS}.!?…{_CLOSERS}]*)'
    spaced = rf'([{_SPACED_MARKS}][{_SPACED_CLOSERS}]*)[{space}]+(["\'(\[]?[{begins}])'
    # `?`, `!` and wide stops between letters without case.
    between_letters = (
        rf'((?:[{caseless}{modifier}{classes.mark}][!?{_WIDE_STOPS}]|{_ETHIOPIC_TYPED})'
        rf'[!?…{_CLOSERS}]*) *([{caseless}])')
    thai_lao_space = rf'([{_THAI_LAO}][{_REPETITION}]?) +([{_THAI_LAO_FIRST}])'
    # The full stop of tokenised text; in an ellipsis, `. . .`, another one precedes it.
    detached_stop = rf'([^.{space}] \.) +([{lower}])'
    # What `spaced` leaves: wide stops and spaces, » in both of its roles.
    wide = (
        rf'([{_SPACED_MARKS}{_WIDE_STOPS}](?:[{_SPACED_CLOSERS}]*| +[»›]))'
        rf'[{_BLANKS}]+(["\'(\[»›]?[{begins}])')
    rare = '|'.join([between_letters, thai_lao_space, detached_stop, wide])
    uncapitalised = (
        rf'([{_SPACED_MARKS}][{_SPACED_CLOSERS}]*)[{_BLANKS}]+'
        rf'(["\'(\[»›]?[{lower}{modifier}])')
    rare_signs = f'[!?{_WIDE_STOPS}{_ETHIOPIC_TYPED[0]}{_THAI_LAO}»›{_WIDE_SPACE}]'
    return Patterns(
        anywhere=anywhere,
        anywhere_signs=f'[{_BASIC_ENDS}\U00010000-\U0010ffff]',
        spaced=spaced,
        rare=rare,
        rare_signs=rare_signs,
        uncapitalised=uncapitalised,
        capitalised=f'[{upper}][{lower}]')
