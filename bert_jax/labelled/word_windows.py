"""Token windows over tagged sentences or documents, in which every word is scored once.

    W: words, n: sentences, P: word pieces of all words, T: tokens of all windows
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.pairs import Encode, Sequences, make_sequences
from bert_jax.labelled.conll import ConllExamples


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
      labels: of the training file; a word's label is the place of its tag in them. Of other tags
        it is 0: they can be scored, by name, not trained on.
      max_length: tokens of a window, [CLS] and [SEP] included.
      document_context: whether neighbouring sentences of the document fill the window.
      cls_id, sep_id, unk_id: of the vocabulary.
    """
    ids = {label: i for i, label in enumerate(labels)}
    label_W = np.array([ids.get(tag, 0) for tag in examples.tags], np.int32)
    ids_P, counts_W = _pieces(encode, examples.words, unk_id)
    # Where each word's pieces begin; spans in pieces.
    first_W = np.cumsum(counts_W) - counts_W
    span_words = examples.sentence_offsets
    if document_context:
        span_words = np.append(
            span_words[:-1][np.diff(examples.documents, prepend=-1) != 0], span_words[-1]
        )
    spans = np.append(first_W, len(ids_P))[span_words]
    _, starts, ends, cores = tile(spans, max_length - 2)
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


class Tiles(NamedTuple):
    """Windows [W] over spans: of which, first places, places after the last, where scoring begins.

    Scoring in a window goes on to where it begins in the next.
    """

    span: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    cores: np.ndarray


def tile(spans: np.ndarray, size: int | np.ndarray) -> Tiles:
    """Windows over spans: one of the whole where it fits, else evenly spaced, overlapping by half.

    Args:
      spans: bounds of the spans, which follow each other.
      size: places that a window holds, of all or of each span.
    """
    begins, lengths = spans[:-1], np.diff(spans)
    size = np.broadcast_to(size, lengths.shape)
    over = np.maximum(lengths - size, 0)
    num = 1 + -(-over // ((size + 1) // 2))
    span = np.repeat(np.arange(len(lengths)), num)
    i = np.arange(len(span)) - np.repeat(np.cumsum(num) - num, num)
    starts = begins[span] + i * over[span] // np.maximum(num[span] - 1, 1)
    ends = np.minimum(starts + size[span], spans[1:][span])
    # In the middle of the overlap with the window before.
    middles = (np.roll(ends, 1) + starts) // 2
    return Tiles(span, starts, ends, np.where(i == 0, starts, middles))
