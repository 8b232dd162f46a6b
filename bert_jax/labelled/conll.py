"""Sentences with a tag for each word: CoNLL-2003 (Tjong Kim Sang and De Meulder, 2003), or others.

    W: words, n: sentences
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.metrics.conll import TAG, normal_tags, tag_types
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.tasks import table

# Of the original distribution, and as its IOB2 editions are called.
_FILES = {
    'train': ('eng.train', 'train.txt'),
    'dev': ('eng.testa', 'valid.txt', 'dev.txt', 'testa.txt'),
    'test': ('eng.testb', 'test.txt', 'testb.txt'),
}
# Of the labels in tensorflow-datasets' conll2003, whose own order this is.
_TFDS_TAGS = ('O', 'B-PER', 'I-PER', 'B-ORG', 'I-ORG', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC')
_DOCUMENT_START = '-DOCSTART-'
# Columns are separated by these; other white space of Unicode may be a word of the text.
_CELL = re.compile(r'[^ \t]+')


@dataclasses.dataclass(frozen=True)
class ConllExamples:
    """n sentences of W words, in the order of the file.

    Attributes:
      words: of all sentences, one after the other.
      tags: of each word, in IOB2 whichever scheme the file has.
      lines: [W] int64, where each word stands in the file.
      sentence_offsets: [n + 1] int64; sentence i is words[offsets[i] : offsets[i + 1]].
      documents: [n] int64, the document of each sentence, from 0; a file without -DOCSTART- lines
        is one document.
      num_skipped: malformed lines that were left out.
      source: the file, for messages.
    """

    words: list[str]
    tags: list[str]
    lines: np.ndarray
    sentence_offsets: np.ndarray
    documents: np.ndarray
    num_skipped: int
    source: str

    def __len__(self) -> int:
        return len(self.documents)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of a tagger: O, then B- and I- of each type that occurs, types sorted; or the
        tags that occur, sorted, where they are of no such scheme."""
        tags = set(self.tags)
        if all(TAG.fullmatch(tag) for tag in tags):
            return ('O', *(f'{kind}-{name}' for name in tag_types(self.tags) for kind in 'BI'))
        return tuple(sorted(tags, key=lambda tag: (tag != 'O', tag)))

    def sentences(self) -> list[str]:
        """[n] their words, by spaces."""
        o = self.sentence_offsets.tolist()
        return [' '.join(self.words[a:b]) for a, b in zip(o[:-1], o[1:], strict=True)]

    def take(self, sentences: np.ndarray) -> ConllExamples:
        """Some of the sentences, ascending."""
        words = np.flatnonzero(np.isin(
            np.repeat(np.arange(len(self)), np.diff(self.sentence_offsets)), sentences))
        lengths = np.diff(self.sentence_offsets)[sentences]
        return dataclasses.replace(
            self, words=[self.words[i] for i in words], tags=[self.tags[i] for i in words],
            lines=self.lines[words], sentence_offsets=np.append(0, np.cumsum(lengths)),
            documents=self.documents[sentences],
        )


def find_conll(source: str, split: str) -> str:
    """The file of a split; '' where the folder has none.

    Args:
      source: a folder with `eng.train`, `eng.testa` and `eng.testb`, or with `train.txt`,
        `valid.txt` and `test.txt`, plain or `.gz`.
      split: train | dev | test.

    Raises:
      InputError: an unknown split or no such folder.
    """
    if split not in _FILES:
        raise InputError(f"'{split}' is no split; they are {', '.join(_FILES)}")
    if not as_path(source).is_dir():
        raise InputError(f'no folder {source}: name one with {_FILES[split][0]} in it')
    for name in _FILES[split]:
        for path in (os.path.join(source, name), os.path.join(source, f'{name}.gz')):
            if as_path(path).is_file():
                return path
    return ''


def read_conll(source: str, split: str, *, max_malformed: float = 0.01) -> ConllExamples:
    """Sentences of a split.

    Args:
      source, split: as for `find_conll`.
      max_malformed: see `read_conll_file`.

    Raises:
      InputError: an unknown split, no such folder or file, or what `read_conll_file` finds.
    """
    path = find_conll(source, split)
    if not path:
        raise InputError(f"{source} has none of {', '.join(_FILES[split])}, plain or .gz")
    return read_conll_file(path, max_malformed=max_malformed)


def from_tfds(split: str, records: Iterable[Mapping[str, Any]]) -> ConllExamples:
    """Sentences out of the records of tensorflow-datasets' conll2003.

    They are shuffled, and nothing says which document they are from: each is one.

    Args:
      split: for messages.
      records: NumPy values by feature: `tokens` as bytes and `ner` as label ids.
    """
    sentences = [record for record in records if len(record['tokens'])]
    lengths = [len(record['tokens']) for record in sentences]
    return ConllExamples(
        words=[word.decode() for record in sentences for word in record['tokens']],
        tags=[_TFDS_TAGS[tag] for record in sentences for tag in record['ner']],
        lines=np.repeat(np.arange(len(sentences)) + 1, lengths),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        documents=np.arange(len(sentences)), num_skipped=0, source=f'tfds:conll2003:{split}',
    )


def read_conll_file(
    path: str, *, max_malformed: float = 0.01, any_tags: bool = False
) -> ConllExamples:
    """All sentences of one file: a word first and its tag last in a line, empty lines between.

    Both IOB1 (the original `eng.*`) and IOB2 are read; see `metrics.conll` for the rule that
    covers the two.

    Args:
      path: the file, plain or `.gz`; as many columns as most of its lines have, at least two,
        separated by spaces or tabs.
      max_malformed: share of the lines with words that may have another number of columns; one
        always may, unless this is 0.
      any_tags: whether tags may be of any scheme: they stay as they are, but that entities of
        IOBES become IOB2's.

    Raises:
      InputError: an unreadable or empty file, one without tags, a tag that is not O, B-TYPE or
        I-TYPE (without `any_tags`), too many malformed lines.
    """
    # Cells are made twice rather than kept: a list for each line would keep the garbage
    # collector busy for longer than all the rest takes.
    texts = [text for _, text in table.lines(path)]
    widths = Counter(
        len(_CELL.findall(text)) for text in texts if not text.startswith(_DOCUMENT_START)
    )
    del widths[0]
    if not widths:
        raise InputError(f'{path} holds no words: copy it again')
    width = widths.most_common(1)[0][0]
    if width < 2:
        raise InputError(
            f'{path} has one column: there are no tags to learn or to score; expected a word and '
            'its tag in each line'
        )
    faults: list[tuple[int, str]] = []
    words, tags, lines, sentences, documents = [], [], [], [], []
    document = sentence = 0
    for line, text in enumerate(texts, 1):
        cells = _CELL.findall(text)
        if not cells:
            sentence += 1
        elif cells[0] == _DOCUMENT_START:
            document += 1
            sentence += 1
        elif len(cells) != width:
            faults.append((line, f'columns: {len(cells)}, where {width} are wanted'))
        else:
            words.append(cells[0])
            tags.append(cells[-1])
            lines.append(line)
            sentences.append(sentence)
            documents.append(document)
    table.check_malformed(path, len(words), faults, max_malformed)
    lines_W = np.array(lines, np.int64)
    if not any_tags:
        _check_tags(path, lines_W, tags)
    starts = np.flatnonzero(np.diff(sentences, prepend=-1))
    offsets = np.append(starts, len(words))
    return ConllExamples(
        words=words,
        tags=normal_tags(tags, offsets),
        lines=lines_W,
        sentence_offsets=offsets,
        documents=np.unique(np.array(documents)[starts], return_inverse=True)[1],
        num_skipped=len(faults),
        source=path,
    )


def read_tagged_file(
    path: str, *, words: str, tags: str, max_malformed: float = 0.01
) -> ConllExamples:
    """All sentences of one file with tags of any set.

    Args:
      path: `.jsonl`, an object a sentence with a list of words and one of tags, all of one
        document; or a word first and its tag last in a line, empty lines between sentences. Plain
        or `.gz`.
      words, tags: fields of the objects.
      max_malformed: share of the rows that may be malformed; one always may, unless this is 0.

    Raises:
      InputError: what is wrong with the file.
    """
    if table.format_of(path) != 'json':
        return read_conll_file(path, max_malformed=max_malformed, any_tags=True)

    def parse(cells: list[Any]) -> tuple[list[str], list[str]]:
        some, their = cells
        if not (isinstance(some, list) and isinstance(their, list) and len(some) == len(their)):
            raise table.Malformed(f"'{words}' and '{tags}' are not two lists of one length")
        if not all(isinstance(word, str) and word.strip() for word in some):
            raise table.Malformed('a word is no string, or an empty one')
        return table.texts_of(some), [table.label_text(tag) for tag in their]

    rows = table.read_table(path, [words, tags], parse, max_malformed=max_malformed)
    # Sentences without words are no rows that are malformed, and nothing to learn from.
    found = [sentence for sentence in rows.values if sentence[0]]
    lines = [line for line, sentence in zip(rows.lines, rows.values) if sentence[0]]
    if not found:
        raise InputError(f'{path} holds no words: copy it again')
    lengths = [len(some) for some, _ in found]
    offsets = np.append(0, np.cumsum(lengths))
    return ConllExamples(
        words=[word for some, _ in found for word in some],
        tags=normal_tags([tag for _, their in found for tag in their], offsets),
        lines=np.repeat(np.array(lines, np.int64), lengths),
        # As a file of words without -DOCSTART- lines: one document.
        sentence_offsets=offsets, documents=np.zeros(len(found), np.int64),
        num_skipped=rows.num_skipped, source=path,
    )


def _check_tags(path: str, lines_W: np.ndarray, tags: Sequence[str]) -> None:
    if wrong := {tag for tag in set(tags) if not TAG.fullmatch(tag)}:
        i = next(i for i, tag in enumerate(tags) if tag in wrong)
        raise InputError(
            f"{path}, line {lines_W[i]}: '{tags[i]}' is not a tag; expected O, B-TYPE or I-TYPE "
            '(IOB1 or IOB2) in the last column'
        )
