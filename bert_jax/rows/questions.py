"""Questions about paragraphs, and what separates the words of these."""

import re
from typing import NamedTuple

# The separators of a paragraph's words, as in `run_squad.py`: fewer than the tokenizer's.
WHITESPACE = ' \t\r\n\u202f'
WORD = re.compile(f'[^{WHITESPACE}]+')
# Units that programs of other languages count in place of characters: encoding, bytes of a unit.
_UNITS = {'units of UTF-16': ('utf-16-le', 2), 'bytes of UTF-8': ('utf-8', 1)}


class Question(NamedTuple):
    """A question about a paragraph.

    Attributes:
      id: distinct among the questions read together.
      text: the question.
      context: the paragraph.
      answers: (text, index of its first character in the paragraph) of each accepted answer; () if
        the paragraph has none.
    """

    id: str
    text: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()


def answer_fault(text: str, start: int, context: str, by_words: bool) -> str:
    """Why an answer cannot be trained on; '' if it can.

    Args:
      text: the answer.
      start: the index of its first character in the paragraph.
      context: the paragraph.
      by_words: whether it has to be found in the paragraph's words, too; if not, its place is
        enough.
    """
    if not text.split():
        return 'its answer is empty'
    found = ''
    if start >= 0:
        found = context[start:start + len(text)]
    if found != text:
        return (f'answer_start {start} does not match its text {in_quotes(text)}: the paragraph '
                f'has {in_quotes(found)} there{_counted_otherwise(text, start, context)}')
    # Python also splits at characters that do not separate SQuAD's words, such as no-break spaces.
    if by_words and ' '.join(text.split()) not in ' '.join(WORD.findall(context)):
        return f'the words of the paragraph do not give its text {in_quotes(text)}'
    return ''


def _counted_otherwise(text: str, start: int, context: str) -> str:
    """A hint for a message, if the index is right as other programs count; else ''."""
    for unit, (encoding, size) in _UNITS.items():
        before = context.encode(encoding)[: max(start, 0) * size].decode(encoding, 'ignore')
        if len(before) < start and context.startswith(text, len(before)):
            return f' (it counts {unit}: count characters, here {len(before)})'
    return ''


def in_quotes(text: str) -> str:
    """A text between quotes, cut to 60 characters."""
    if len(text) > 60:
        text = text[:57] + '...'
    return repr(text)
