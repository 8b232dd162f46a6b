"""CoNLL-2003 named entities (Tjong Kim Sang and De Meulder, 2003): reading, and token windows.

    W: words, n: sentences, P: word pieces of all words, T: tokens of all windows
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

from bert_jax.data import tabular
from bert_jax.data.pairs import Encode, Sequences, make_sequences
from bert_jax.errors import InputError
from bert_jax.files import as_path
from bert_jax.metrics.conll import TAG, tag_types, to_iob2

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
        """O, then B- and I- of each type that occurs, types sorted: the labels of a tagger."""
        return ('O', *(f'{kind}-{name}' for name in tag_types(self.tags) for kind in 'BI'))


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


def read_conll_file(path: str, *, max_malformed: float = 0.01) -> ConllExamples:
    """All sentences of one file: a word first and its tag last in a line, empty lines between.

    Both IOB1 (the original `eng.*`) and IOB2 are read; see `metrics.conll` for the rule that
    covers the two.

    Args:
      path: the file, plain or `.gz`; as many columns as most of its lines have, at least two,
        separated by spaces or tabs.
      max_malformed: share of the lines with words that may have another number of columns; one
        always may, unless this is 0.

    Raises:
      InputError: an unreadable or empty file, one without tags, a tag that is not O, B-TYPE or
        I-TYPE, too many malformed lines.
    """
    # Cells are made twice rather than kept: a list for each line would keep the garbage
    # collector busy for longer than all the rest takes.
    texts = [text for _, text in tabular.lines(path)]
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
    rejects = tabular.Rejects(path, max_malformed)
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
            rejects.add(line, f'columns: {len(cells)}, where {width} are wanted')
        else:
            words.append(cells[0])
            tags.append(cells[-1])
            lines.append(line)
            sentences.append(sentence)
            documents.append(document)
    num_skipped = rejects.check(len(words))
    lines_W = np.array(lines, np.int64)
    _check_tags(path, lines_W, tags)
    starts = np.flatnonzero(np.diff(sentences, prepend=-1))
    offsets = np.append(starts, len(words))
    return ConllExamples(
        words=words,
        tags=to_iob2(tags, offsets),
        lines=lines_W,
        sentence_offsets=offsets,
        documents=np.unique(np.array(documents)[starts], return_inverse=True)[1],
        num_skipped=num_skipped,
        source=path,
    )


def _check_tags(path: str, lines_W: np.ndarray, tags: Sequence[str]) -> None:
    if wrong := {tag for tag in set(tags) if not TAG.fullmatch(tag)}:
        i = next(i for i, tag in enumerate(tags) if tag in wrong)
        raise InputError(
            f"{path}, line {lines_W[i]}: '{tags[i]}' is not a tag; expected O, B-TYPE or I-TYPE "
            '(IOB1 or IOB2) in the last column'
        )


@dataclasses.dataclass(frozen=True)
class ConllWindows:
    """Token sequences in which every word is scored exactly once.

    Attributes:
      sequences: [CLS] pieces [SEP], all segment 0.
      word_index: [T] int32; at the first piece of a word that is scored here, the place of the
        word in `ConllExamples.words`; -1 at all other tokens.
      labels: [T] int32, the label of that word; 0 at all other tokens.
    """

    sequences: Sequences
    word_index: np.ndarray
    labels: np.ndarray


def conll_windows(
    examples: ConllExamples, encode: Encode, labels: Sequence[str], *, max_length: int,
    document_context: bool, cls_id: int, sep_id: int, unk_id: int,
) -> ConllWindows:
    """Windows of sentences, or of whole documents.

    A *span*, which is a sentence, or with `document_context` all sentences of a document one after
    the other, is one window if it fits. A longer one is covered by windows of full length, evenly
    spaced and overlapping by at least half, and each word is scored in the one that gives it most
    context on its poorer side: about a quarter of a window or more on both, or up to the end of
    the span. So nothing is dropped, and a word sees its document ("maximal document context" of
    paper section 5.3; all of it where it fits) for at most about twice the tokens of the text. (A
    window for every sentence, filled up with its neighbours, would give half a window on both
    sides, for `max_length` tokens a sentence: 6.5 times the text of the training file at 128, 26
    times at 512.) A window may end inside a word, but begins with one.

    Words are tokenized one by one. One that yields no piece (BERT's tokenizer removes control
    characters) becomes [UNK], so that it is scored like any other.

    Args:
      examples: from `read_conll`.
      encode: tokenizer; entities want a cased vocabulary.
      labels: of the training file; a word's label is the place of its tag in them.
      max_length: tokens of a window, [CLS] and [SEP] included.
      document_context: whether neighbouring sentences of the document fill the window.
      cls_id, sep_id, unk_id: of the vocabulary.

    Raises:
      InputError: a tag that is not among `labels`, with its line.
    """
    label_W = tabular.label_ids(examples.source, examples.lines.tolist(), examples.tags, labels)
    ids_P, counts_W = _pieces(encode, examples.words, unk_id)
    # Where each word's pieces begin; spans in pieces.
    first_W = np.cumsum(counts_W) - counts_W
    span_words = examples.sentence_offsets
    if document_context:
        span_words = np.append(
            span_words[:-1][np.diff(examples.documents, prepend=-1) != 0], span_words[-1]
        )
    spans = np.append(first_W, len(ids_P))[span_words]
    starts, ends, cores = _tile(spans, max_length - 2)
    # The window that scores a word is the last whose core begins before or at its first piece.
    window_W = np.searchsorted(cores, first_W, side='right') - 1
    used, window_W = np.unique(window_W, return_inverse=True)  # only tails of huge words in others
    starts, ends = first_W[np.searchsorted(first_W, starts[used])], ends[used]

    counts = ends - starts
    before = np.cumsum(counts) - counts
    piece_T = np.arange(int(counts.sum())) - np.repeat(before - starts, counts)
    sequences = make_sequences(
        (ids_P[piece_T], counts), None, max_length=max_length, cls_id=cls_id, sep_id=sep_id
    )
    # Each word's one place among the tokens, behind the [CLS] of its window.
    at_W = sequences.offsets[window_W] + 1 + first_W - starts[window_W]
    word_index = np.full(len(sequences.ids), -1, np.int32)
    word_index[at_W] = np.arange(len(first_W))
    token_labels = np.zeros(len(sequences.ids), np.int32)
    token_labels[at_W] = label_W
    return ConllWindows(sequences, word_index, token_labels)


def _pieces(
    encode: Encode, words: Sequence[str], unk_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """(ids [P] int32, pieces of each word [W] int64, none of them 0)."""
    ids, counts = encode(words)
    counts = np.asarray(counts, np.int64)
    empty = np.flatnonzero(counts == 0)
    ids = np.insert(np.asarray(ids, np.int32), (np.cumsum(counts) - counts)[empty], unk_id)
    counts[empty] = 1
    return ids, counts


def _tile(spans: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows over spans: (first places, places after the last, places where scoring begins).

    Scoring in a window goes on to where it begins in the next.

    Args:
      spans: bounds of the spans, which follow each other.
      size: places that a window holds.
    """
    begins, lengths = spans[:-1], np.diff(spans)
    over = np.maximum(lengths - size, 0)
    num = 1 + -(-over // ((size + 1) // 2))
    span = np.repeat(np.arange(len(lengths)), num)
    i = np.arange(len(span)) - np.repeat(np.cumsum(num) - num, num)
    starts = begins[span] + i * over[span] // np.maximum(num[span] - 1, 1)
    ends = np.minimum(starts + size, spans[1:][span])
    # In the middle of the overlap with the window before.
    middles = (np.roll(ends, 1) + starts) // 2
    return starts, ends, np.where(i == 0, starts, middles)
