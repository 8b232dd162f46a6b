"""Questions and paragraphs -> windows [CLS] question [SEP] part of the paragraph [SEP], in numpy.

A paragraph that is too long is covered by overlapping windows, `doc_stride` tokens apart.

    Q: questions, P: paragraphs, N: words of all paragraphs, D: tokens of all paragraphs,
    W: windows of all questions, T: tokens of all windows
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.data.pairs import Encode, Sequences
from bert_jax.labelled.squad import WHITESPACE, WORD, SquadExamples
from bert_jax.runtime.errors import InputError


@dataclasses.dataclass(frozen=True)
class SquadWindows:
    """All windows, in the order of the questions, and what leads from a token to its characters.

    Attributes:
      sequences: the W windows; the part of the paragraph and its [SEP] are segment 1.
      question_index: [W] int32, not decreasing; every question has at least one window.
      start_positions, end_positions: [W] int32, first and last token of the answer within the
        window, [CLS] being 0; (0, 0) where the window does not hold the answer.
      document_starts: [W] int64, which of the D tokens is the first of the window's part.
      token_words: [D] int32, the word of each token.
      word_starts, word_ends: [N] int32, characters of a word within its paragraph, end exclusive.
    """

    sequences: Sequences
    question_index: np.ndarray
    start_positions: np.ndarray
    end_positions: np.ndarray
    document_starts: np.ndarray
    token_words: np.ndarray
    word_starts: np.ndarray
    word_ends: np.ndarray

    def __len__(self) -> int:
        return len(self.question_index)

    @property
    def document_lengths(self) -> np.ndarray:
        """[W] int64: tokens of the paragraph in each window."""
        return self.sequences.lengths - self.sequences.first_lengths - 1


def squad_windows(
    examples: SquadExamples,
    encode: Encode,
    *,
    cls_id: int,
    sep_id: int,
    max_length: int = 384,
    doc_stride: int = 128,
    max_question_length: int = 64,
    training: bool,
) -> SquadWindows:
    """Windows of all questions, as `run_squad.py` of google-research/bert cuts them.

    Every distinct word is tokenized once: BERT's tokens of a text are those of its words.

    Args:
      examples: Q questions.
      encode: texts -> ids, without [CLS] and [SEP].
      cls_id, sep_id: of the vocabulary.
      max_length: tokens of a window.
      doc_stride: tokens from one window to the next.
      max_question_length: tokens of a question; the rest is cut off.
      training: set the positions from the first answer of each question; else they are 0.

    Raises:
      InputError: a length that leaves no room for the paragraph, or a stride below 1.
    """
    if doc_stride < 1:
        raise InputError(f'doc_stride is {doc_stride}; windows must advance by at least 1 token')
    documents = _tokenize(examples.contexts, encode)
    question_ids, question_n = encode(examples.questions)
    question_n = question_n.astype(np.int64)
    kept = np.minimum(question_n, max_question_length)
    room = max_length - 3 - kept
    if (room < 1).any():
        raise InputError(
            f'windows of {max_length} tokens leave no room for the paragraph beside a question of '
            f'{kept.max()}; raise config.data.max_seq_length'
        )
    contexts = examples.context_index
    document_n = np.diff(documents.offsets)[contexts]
    stride = np.minimum(room, doc_stride)
    num_windows = 1 + np.maximum(0, -((room - document_n) // stride))

    question = np.repeat(np.arange(len(examples)), num_windows)
    starts = ranges(np.zeros_like(num_windows), num_windows) * stride[question]
    lengths = np.minimum(room[question], document_n[question] - starts)
    document_starts = documents.offsets[contexts][question] + starts

    first = kept[question] + 2
    offsets = np.concatenate([[0], np.cumsum(first + lengths + 1)])
    ids = np.full(offsets[-1], sep_id, np.int32)
    ids[offsets[:-1]] = cls_id
    question_starts = (np.cumsum(question_n) - question_n)[question]
    ids[ranges(offsets[:-1] + 1, kept[question])] = question_ids[
        ranges(question_starts, kept[question])]
    ids[ranges(offsets[:-1] + first, lengths)] = documents.ids[ranges(document_starts, lengths)]

    start_positions = end_positions = np.zeros(len(question), np.int32)
    if training:
        answer_first, answer_last = _answer_tokens(examples, documents, encode)
        start = answer_first[question] - document_starts
        end = answer_last[question] - document_starts
        inside = (start >= 0) & (end < lengths)
        start_positions = np.where(inside, start + first, 0).astype(np.int32)
        end_positions = np.where(inside, end + first, 0).astype(np.int32)
    return SquadWindows(
        sequences=Sequences(ids, offsets, first),
        question_index=question.astype(np.int32),
        start_positions=start_positions,
        end_positions=end_positions,
        document_starts=document_starts,
        token_words=documents.token_words,
        word_starts=documents.word_starts,
        word_ends=documents.word_ends,
    )


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[sum(counts)] int64: starts[i], starts[i] + 1, ... (counts[i] of them) for every i."""
    shifts = starts - (np.cumsum(counts) - counts)
    return np.arange(counts.sum()) + np.repeat(shifts, counts)


@dataclasses.dataclass(frozen=True)
class _Documents:
    """The tokens of all paragraphs.

    ids: [D] int32. token_words: [D] int32, word of each token. offsets: [P + 1] int64, tokens of
    the paragraphs. word_tokens: [N + 1] int64, tokens of the words. word_offsets: [P + 1] int64,
    words of the paragraphs. word_starts, word_ends: [N] int32, characters within the paragraph.
    """

    ids: np.ndarray
    token_words: np.ndarray
    offsets: np.ndarray
    word_tokens: np.ndarray
    word_offsets: np.ndarray
    word_starts: np.ndarray
    word_ends: np.ndarray


def _tokenize(contexts: Sequence[str], encode: Encode) -> _Documents:
    """Splits paragraphs into words and those into tokens."""
    text = '\n'.join(contexts)  # which splits words, so that all can be found at once
    lengths = np.array([len(context) for context in contexts], np.int64)
    text_starts = np.cumsum(lengths + 1) - (lengths + 1)
    chars = np.frombuffer(text.encode('utf-32-le'), np.uint32)
    in_word = ~np.isin(chars, [ord(c) for c in WHITESPACE])
    edges = np.flatnonzero(np.diff(in_word, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    word_offsets = np.append(np.searchsorted(starts, text_starts), len(starts))

    distinct = {'': 0}  # so that there is something to encode even where there are no words
    words = WORD.findall(text)
    kinds = np.fromiter(
        (distinct.setdefault(word, len(distinct)) for word in words), np.int64, len(words))
    assert len(words) == len(starts)
    kind_ids, kind_n = encode(list(distinct))
    kind_n = kind_n.astype(np.int64)
    word_n = kind_n[kinds]
    word_tokens = np.concatenate([[0], np.cumsum(word_n)])
    shifts = np.repeat(text_starts, np.diff(word_offsets))
    return _Documents(
        ids=kind_ids[ranges((np.cumsum(kind_n) - kind_n)[kinds], word_n)],
        token_words=np.repeat(np.arange(len(words), dtype=np.int32), word_n),
        offsets=word_tokens[word_offsets],
        word_tokens=word_tokens,
        word_offsets=word_offsets,
        word_starts=(starts - shifts).astype(np.int32),
        word_ends=(ends - shifts).astype(np.int32),
    )


def _answer_tokens(
    examples: SquadExamples, documents: _Documents, encode: Encode
) -> tuple[np.ndarray, np.ndarray]:
    """First and last of the D tokens of each question's first answer, [Q] int64 each.

    (-1, -1) where there is none. The answer's words, tightened to the tokens that are the answer's
    own where they occur among them: 1895 out of (1895-1943), but all of Japanese for Japan.
    """
    first = np.full(len(examples), -1)
    last = np.full(len(examples), -1)
    answered = [q for q, found in enumerate(examples.answers) if found]
    if not answered:
        return first, last
    texts = [found[0][0] for found in examples.answers if found]
    answer_ids, answer_n = encode(texts)
    answer_ends = np.cumsum(answer_n).tolist()
    all_ids = answer_ids.tolist()
    for q, text, n, answer_end in zip(answered, texts, answer_n.tolist(), answer_ends):
        begin = examples.answers[q][0][1]  # type: ignore[index]
        begin += len(text) - len(text.lstrip(WHITESPACE))
        context = examples.context_index[q]
        low, high = documents.word_offsets[context:context + 2]
        words = documents.word_starts[low:high]
        final = begin + len(text.strip(WHITESPACE)) - 1
        word, last_word = low - 1 + np.searchsorted(words, [begin, final], 'right')
        token, end = documents.word_tokens[word], documents.word_tokens[last_word + 1]
        if token == end:  # a word of control characters alone
            continue
        span, answer = documents.ids[token:end].tolist(), all_ids[answer_end - n:answer_end]
        for i in range(len(span) - n + 1):
            if n and span[i:i + n] == answer:
                token, end = token + i, token + i + n
                break
        first[q], last[q] = token, end - 1
    return first, last
