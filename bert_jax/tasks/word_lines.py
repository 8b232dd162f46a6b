"""Lines of a word and its tag in columns: what separates them, and which lines hold no word."""

import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bert_jax.answers.entities import are_entities
from bert_jax.rows import table
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hosts import say

_COMMENT = '#'
DOCUMENT_START = '-DOCSTART-'  # in CoNLL-2003, in the place of a word
# What headers call the column of words, and that of tags, in lower case.
_WORDS = ('word', 'words', 'token', 'tokens', 'text', 'form')
_TAG_NAME = re.compile('tags?|labels?|ner|ner_tags?|ne|ne-.+|pos|upos|pos_tag|entity|bio|iob')
_COUNT = re.compile(r'(\d{1,9})([-.]\d+)?')  # in CoNLL-U also 1-2 and 1.1
_LANGUAGE = re.compile(r'[a-z-]{2,12}:')
_FEW = 3  # words; of fewer, the first column shows nothing
_ENOUGH = 10  # words of sentences that do not all repeat one word


class WordLine(NamedTuple):
    """A line: its number, from 1, and its cells; none of a line between sentences."""

    number: int
    cells: tuple[str, ...]


def read_word_lines(path: str) -> list[WordLine]:
    """The lines of a file, without its header and comments. Prints which lines it left out.

    Columns are separated by spaces and TABs; or by TABs alone, if more lines then have equally
    many.

    Raises:
      InputError: the file cannot be read, what its lines begin with is no word, or what they end
        with no tag.
    """
    lines = _split(table.lines_of_words(path))
    if table.format_of(path) == 'csv':
        _check_not_commas(path, lines)
    comments = set(_comments(lines))
    if comments:
        shown = f'line {min(comments)}, which begins with {_COMMENT}, is read as a comment'
        if len(comments) > 1:
            shown = (f'{len(comments):,} lines that begin with {_COMMENT}, such as line '
                     f'{min(comments)}, are read as comments')
        say(f'note: {path}: {shown}')
        # Empty, as no sentence goes on behind a comment.
        lines = [line._replace(cells=()) if line.number in comments else line for line in lines]
    first = next((i for i, line in enumerate(lines) if line.cells), len(lines))
    if _is_header(lines[first:]):
        header = lines.pop(first)
        shown = f"{path}, line {header.number}: {' '.join(header.cells)!r:.60}"
        if _TAG_NAME.fullmatch(header.cells[0].lower()) and header.cells[-1].lower() in _WORDS:
            raise InputError(f'{shown} is a header of tags and words, where each line begins with '
                             'a word and ends with its tag: write the words first')
        say(f'note: {shown} is read as a header')
    _check_words(path, lines)
    return lines


def _split(lines: Iterable[table.Line]) -> list[WordLine]:
    """The cells of each line."""
    texts = [text for _, text in lines]
    times = Counter(texts)  # lines recur: each is split once
    cells_of = {text: _between_spaces(text) for text in times}
    if any('\t' in text for text in times):
        between_tabs = {text: _between_tabs(text) for text in times}
        if _num_alike(between_tabs, times) > _num_alike(cells_of, times):
            cells_of = between_tabs
    for text, cells in cells_of.items():
        if text.isspace():  # such as a no-break space: a word would have its tag
            cells_of[text] = ()
        # Some write it in small letters, or a number or columns right behind it.
        elif text[:1] == '-' and text.upper().startswith(DOCUMENT_START):
            cells_of[text] = (DOCUMENT_START, *cells[1:])
    return [WordLine(number, cells_of[text]) for number, text in enumerate(texts, 1)]


def _between_spaces(text: str) -> tuple[str, ...]:
    """The cells between spaces and TABs; other Unicode white space may be a word of the text."""
    return _kept(cell for cell in text.replace('\t', ' ').split(' ') if cell)


def _between_tabs(text: str) -> tuple[str, ...]:
    """The cells between TABs, without spaces around them; none of a blank line."""
    text = text.rstrip(' \t')
    return _kept(cell.strip(' ') for cell in text.split('\t')) if text else ()


def _kept(cells: Iterable[str]) -> tuple[str, ...]:
    """The cells; words and tags recur, and each is kept once."""
    return tuple(map(sys.intern, cells))


def _num_alike(cells_of: Mapping[str, Sequence[str]], times: Mapping[str, int]) -> int:
    """How many lines have the most frequent number of cells, if this is two or more.

    Args:
      cells_of: the cells of each text.
      times: how many lines have it.
    """
    counts: Counter[int] = Counter()
    for text, cells in cells_of.items():
        counts[len(cells)] += times[text]
    return max((number for size, number in counts.items() if size > 1), default=0)


def _is_header(lines: Sequence[WordLine]) -> bool:
    """Whether the first of the lines names the columns of words and tags, and ends with no tag."""
    if not lines:
        return False
    names = {cell.lower() for cell in lines[0].cells}
    if names.isdisjoint(_WORDS) or not any(map(_TAG_NAME.fullmatch, names)):
        return False
    tag = lines[0].cells[-1]
    return not any(line.cells and line.cells[-1] == tag for line in lines[1:])


def _comments(lines: Sequence[WordLine]) -> Iterator[int]:
    """The numbers of the lines that are comments.

    A line that may be one is a comment if it has another number of columns than words have, or ends
    with what is no tag, such as `# id 1 domain=train`. A tag is what stands at the end of a word's
    line or of several of these lines, and # itself, which is one in the Penn Treebank.
    """
    candidates = list(_possible_comments(lines))
    if not candidates:
        return
    numbers = {line.number for line in candidates}
    words = [line.cells for line in lines if line.cells and line.number not in numbers]
    column_counts = set(map(len, words))
    tags = {cells[-1] for cells in words} | {_COMMENT}
    tags_have_equals_signs = any('=' in tag for tag in tags)
    ends = Counter(line.cells[-1] for line in candidates)

    def ends_without_tag(cells: Sequence[str]) -> bool:
        has_field = not tags_have_equals_signs and any('=' in cell for cell in cells[1:])
        may_be_word = cells[0] != _COMMENT or ends[cells[-1]] > 1
        return cells[-1] not in tags and (has_field or not may_be_word)

    last_word = -1
    for number, cells in candidates:
        follows_word = number - 1 == last_word  # comments stand before all words of a sentence
        has_other_columns = bool(words) and len(cells) not in column_counts
        if not follows_word and (ends_without_tag(cells) or has_other_columns):
            yield number
        else:
            last_word = number


def _possible_comments(lines: Sequence[WordLine]) -> Iterator[WordLine]:
    """The lines that begin with # before the first word of a sentence.

    In a file that begins with a # and has no empty lines, they separate the sentences.
    """
    separate = (bool(lines) and lines[0].cells[:1] == (_COMMENT,)
                and not any(after.cells and not line.cells
                            for line, after in itertools.pairwise(lines)))
    is_start = True
    for line in lines:
        if (is_start or separate) and _begins_like_comment(line):
            yield line
        else:
            is_start = not line.cells


def _begins_like_comment(line: WordLine) -> bool:
    return bool(line.cells) and line.cells[0].startswith(_COMMENT)


def _check_not_commas(path: str, lines: Iterable[WordLine]) -> None:
    """Raises InputError if commas separate the columns: spaces within cells would do so here."""
    texts = [' '.join(line.cells) for line in lines if line.cells]
    if texts and all(',' in text for text in texts):
        raise InputError(f'{path}: commas separate its columns, where a word and its tag are apart '
                         'by spaces or a TAB: write the columns of words and tags so, with an '
                         'empty line behind each sentence, or lists of them as JSON lines')


def _check_words(path: str, lines: Sequence[WordLine]) -> None:
    """Raises InputError if the first column holds something else than words.

    It skips marks of documents, and the first line, which may be a header of other names.
    """
    checked = [line for line in lines if line.cells and line.cells[0] != DOCUMENT_START][1:]
    if len(checked) < _FEW:
        return
    words = [line.cells[0] for line in checked]
    ((num_columns, _),) = Counter(len(line.cells) for line in checked).most_common(1)
    if num_columns > 2:  # else the words have no other place
        _check_first_of_several(path, list(_by_sentence(checked)))
        _check_last_of_several(path, [line.cells for line in checked if len(line.cells) > 2])
    if are_entities(words) and not are_entities(line.cells[-1] for line in checked):
        raise InputError(f'{path}: its lines begin with tags such as {words[0]}, where each line '
                         'begins with a word and ends with its tag: write the words first')
    language = _LANGUAGE.match(words[0])
    if language and all(word.startswith(language[0]) for word in words):
        raise InputError(f'{path}: all of its words begin with {language[0]!r}, which is no part '
                         f"of them: leave it out (sed 's/^{language[0]}//')")


def _by_sentence(lines: Iterable[WordLine]) -> Iterator[list[str]]:
    """The words of each sentence: of the lines that stand right behind each other."""
    words: list[str] = []
    following = 0
    for number, cells in lines:
        if words and number != following:
            yield words
            words = []
        words.append(cells[0])
        following = number + 1
    if words:
        yield words


def _check_first_of_several(path: str, sentences: Sequence[Sequence[str]]) -> None:
    """Raises InputError if the first column counts, or is the same throughout each sentence."""
    if _are_counted(sentences):
        shown = ', '.join(itertools.islice(itertools.chain.from_iterable(sentences), 3))
        raise InputError(
            f'{path}: its first column numbers words or sentences ({shown}), where each line '
            'begins with a word and ends with its tag: write these two columns; a treebank in '
            'CoNLL-U is called NAME.conllu')
    longer = [words for words in sentences if len(words) > 1]
    if sum(map(len, longer)) >= _ENOUGH and all(len(set(words)) == 1 for words in longer):
        raise InputError(
            f'{path}: its first column is the same in all lines of a sentence, such as '
            f'{longer[0][0]!r:.60}, where each line begins with a word and ends with its tag: '
            'write these two columns')


def _check_last_of_several(path: str, lines: Sequence[Sequence[str]]) -> None:
    """Looks at the last column, of three or more, where the tags are.

    Raises:
      InputError: it is the same in all lines, and no tag that all words may have.
    """
    tags = {cells[-1] for cells in lines}
    others = [{cells[place] for cells in lines} for place in range(1, min(map(len, lines)) - 1)]
    if len(tags) == 1 and len(lines) >= _ENOUGH and any(len(other) > 1 for other in others):
        (tag,) = tags
        if tag != 'O':
            raise InputError(
                f'{path}: its last column is {tag!r:.60} in all lines, where each line begins with '
                'a word and ends with its tag: write these two columns')
    if are_entities(tags):
        return
    for place, other in enumerate(others, 2):
        if are_entities(other):
            say(f'note: {path}: the tags are those of its last column, such as '
                f'{lines[0][-1]!r:.60}; column {place} has others, such as '
                f'{lines[0][place - 1]!r:.60}')


def _are_counted(sentences: Iterable[Sequence[str]]) -> bool:
    """Whether the cells of sentences are counters.

    All are numbers. Within a sentence, each is the number before it, one more, or 0 or 1, where
    counting begins anew; at least one is one more than the number before it.
    """
    rises = False
    for words in sentences:
        matches = [_COUNT.fullmatch(word) for word in words]
        numbers = [int(match[1]) for match in matches if match]
        if len(numbers) < len(words):
            return False
        for before, after in itertools.pairwise(numbers):
            if after not in (0, 1, before, before + 1):
                return False
            rises = rises or after == before + 1
    return rises
