"""Windows of tokens over questions and their paragraphs, as `run_squad.py` of BERT's authors cuts.

    Q: questions, P: paragraphs, N: words of all paragraphs, D: tokens of all paragraphs,
    W: windows of all questions

The tokens of a paragraph are those of its words, and an answer is found among the tokens of the
words that it touches, as in the original. Or they are those of the whole paragraph, of which each
has its own characters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.rows.questions import WHITESPACE, WORD, Question, answer_fault
from bert_jax.rows.sequences import Encode, Sequences, make_sequences, ranges
from bert_jax.runtime.errors import InputError
from bert_jax.text.frames import Frame
from bert_jax.text.tokenizer import Encoding, Place

EncodeWithPlaces = Callable[[str], Encoding]


class Paragraphs(NamedTuple):
    """Tokens of P paragraphs, and the characters that they stand for.

    Attributes:
      ids: [D] int32.
      offsets: [P + 1] int64, where each paragraph's tokens begin in `ids`.
      places: [D, 2] int32, first and last (exclusive) character in the paragraph: of the token, or
        of the word that it belongs to.
    """

    ids: np.ndarray
    offsets: np.ndarray
    places: np.ndarray

    def touched(self, paragraph: int, wanted: Place) -> tuple[int, int] | None:
        """First and last of the D tokens whose places touch some characters of a paragraph."""
        first, end = self.offsets[paragraph:paragraph + 2].tolist()
        begins, ends = self.places[first:end].T
        wanted_begin, wanted_end = wanted
        touched = np.flatnonzero((begins < wanted_end) & (wanted_begin < ends))
        if not len(touched):
            return None
        return first + int(touched[0]), first + int(touched[-1])


@dataclasses.dataclass(frozen=True)
class SquadWindows:
    """The windows of all questions, in order, with what maps their tokens to characters.

    A window is [CLS] question [SEP] part of the paragraph [SEP]. A paragraph that is too long is
    covered by overlapping windows, `doc_stride` tokens apart.

    Attributes:
      questions: the Q questions, in their order.
      sequences: the W windows, each of a question and a part of the paragraph.
      question_index: [W] int64, not decreasing; every question has at least one window.
      start_positions, end_positions: [W] int32, first and last token of the answer within the
        window, [CLS] being 0; (0, 0) where the window does not hold the answer.
      part_starts, part_lengths: [W] int64, the window's part as a range of the D tokens.
      paragraphs: of all questions.
    """

    questions: Sequence[Question]
    sequences: Sequences
    question_index: np.ndarray
    start_positions: np.ndarray
    end_positions: np.ndarray
    part_starts: np.ndarray
    part_lengths: np.ndarray
    paragraphs: Paragraphs


def squad_windows(
    questions: Sequence[Question], encode: Encode, *, frame: Frame, max_length: int,
    doc_stride: int, max_question_length: int, encode_with_places: EncodeWithPlaces | None = None,
) -> SquadWindows:
    """Windows of Q questions.

    Positions are those of a question's first answer that is in its paragraph.

    Args:
      questions: from `read_squad`.
      encode: texts -> ids, without [CLS] and [SEP].
      frame: of the vocabulary.
      max_length: tokens of a window.
      doc_stride: tokens from one window to the next.
      max_question_length: tokens of a question; the rest is cut off.
      encode_with_places: the tokenizer's, for paragraphs; answers are then the tokens at their
        characters. None: as in the original, those of the words that they touch, or the first in
        these that are the answer's own.

    Raises:
      InputError: `max_length` leaves no room for the paragraph.
    """
    contexts, context_Q = _numbered([question.context for question in questions])
    by_words = encode_with_places is None
    if encode_with_places is None:
        paragraphs = _paragraphs_by_words(contexts, encode)
    else:
        paragraphs = _whole_paragraphs(contexts, encode_with_places)
    asked = _QuestionTokens.of(questions, encode, max_question_length)
    room_Q = max_length - frame.num_special(pair=True) - asked.lengths
    if (room_Q < 1).any():
        raise InputError(
            f'windows of {max_length} tokens leave no room for the paragraph beside a question of '
            f'{asked.lengths.max()}; raise config.data.max_seq_length')

    parts = _parts(paragraphs, context_Q, room_Q, doc_stride)
    part_ids = paragraphs.ids[ranges(parts.starts, parts.lengths)]
    sequences = make_sequences(
        asked.of_windows(parts.question), (part_ids, parts.lengths), max_length=max_length,
        frame=frame)
    answers = [_usable_answer(question, by_words) for question in questions]
    answers_2xQ = _answer_tokens(answers, context_Q, paragraphs)
    if by_words:
        _narrow_to_own_tokens(answers_2xQ, answers, paragraphs, encode)
    shift_W = sequences.first_lengths  # [CLS] question [SEP]
    start_positions, end_positions = _positions(answers_2xQ, parts, shift_W)
    return SquadWindows(
        questions, sequences, parts.question, start_positions, end_positions,
        part_starts=parts.starts, part_lengths=parts.lengths, paragraphs=paragraphs)


class _QuestionTokens(NamedTuple):
    """The tokens of Q questions.

    Attributes:
      ids: of all questions, whole.
      starts: [Q] int64, where each question begins in `ids`.
      lengths: [Q] int64, how many tokens of each question are kept.
    """

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(
        cls, questions: Sequence[Question], encode: Encode, max_length: int
    ) -> _QuestionTokens:
        """Tokenizes questions, of which no more than `max_length` tokens each are kept."""
        ids, counts = encode([question.text for question in questions])
        starts = np.cumsum(counts) - counts
        return cls(ids, starts, np.minimum(counts, max_length))

    def of_windows(self, question_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Ids, counts [W]) of the kept tokens, once for each window of a question."""
        counts_W = self.lengths[question_W]
        return self.ids[ranges(self.starts[question_W], counts_W)], counts_W


def _positions(
    answers_2xQ: np.ndarray, parts: _Parts, shift_W: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """First and last token of the answer within each window, [W] int32; 0 where it is not inside.

    Args:
      answers_2xQ: see `_answer_tokens`.
      parts: of the windows.
      shift_W: where the part begins in its window.
    """
    start_W, end_W = answers_2xQ[:, parts.question] - parts.starts
    inside_W = (start_W >= 0) & (end_W < parts.lengths)
    start_positions = np.where(inside_W, start_W + shift_W, 0)
    end_positions = np.where(inside_W, end_W + shift_W, 0)
    return start_positions.astype(np.int32), end_positions.astype(np.int32)


class _Parts(NamedTuple):
    """The parts of paragraphs in windows, [W] int64 each.

    Attributes:
      question: index of the question.
      starts: the first of the D tokens.
      lengths: number of tokens.
    """

    question: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


def _parts(
    paragraphs: Paragraphs, context_Q: np.ndarray, room_Q: np.ndarray, doc_stride: int
) -> _Parts:
    """Covers the paragraph of each question with parts of its room, `doc_stride` apart."""
    tokens_Q = np.diff(paragraphs.offsets)[context_Q]
    stride_Q = np.minimum(room_Q, doc_stride)
    num_windows_Q = 1 + np.maximum(0, -((room_Q - tokens_Q) // stride_Q))
    question = np.repeat(np.arange(len(context_Q)), num_windows_Q)
    number_in_question = ranges(np.zeros_like(num_windows_Q), num_windows_Q)
    in_paragraph = number_in_question * stride_Q[question]
    lengths = np.minimum(room_Q[question], tokens_Q[question] - in_paragraph)
    starts = paragraphs.offsets[context_Q][question] + in_paragraph
    return _Parts(question, starts, lengths)


def _paragraphs_by_words(contexts: Sequence[str], encode: Encode) -> Paragraphs:
    """Paragraphs whose tokens are those of their words, with the words' places.

    Every distinct word is tokenized once: BERT's tokens of a text are those of its words.
    """
    words: list[str] = []
    word_places: list[Place] = []
    word_counts: list[int] = []
    for context in contexts:
        matches = list(WORD.finditer(context))
        words += [match.group() for match in matches]
        word_places += [match.span() for match in matches]
        word_counts.append(len(matches))
    distinct, number_N = _numbered(['', *words])  # there may be no words
    ids, counts = encode(distinct)
    counts_N = counts[number_N[1:]]
    starts_N = (np.cumsum(counts) - counts)[number_N[1:]]
    word_tokens = np.concatenate([[0], np.cumsum(counts_N)])  # where each word's tokens begin
    word_offsets = np.concatenate([[0], np.cumsum(word_counts)])
    places_N = np.array(word_places, np.int32).reshape(-1, 2)
    return Paragraphs(
        ids=ids[ranges(starts_N, counts_N)], offsets=word_tokens[word_offsets],
        places=np.repeat(places_N, counts_N, axis=0))


def _whole_paragraphs(
    contexts: Sequence[str], encode_with_places: EncodeWithPlaces
) -> Paragraphs:
    """Paragraphs that are tokenized as a whole, with the tokens' own places."""
    ids: list[np.ndarray] = []
    places: list[np.ndarray] = []
    for context in contexts:
        encoding = encode_with_places(context)
        ids.append(np.array(encoding.ids, np.int32))
        places.append(np.array(encoding.places, np.int32).reshape(-1, 2))
    counts = [len(of_context) for of_context in ids]
    return Paragraphs(
        ids=np.concatenate(ids), offsets=np.concatenate([[0], np.cumsum(counts)]),
        places=np.concatenate(places))


def _numbered(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The distinct texts, and for each text its number among them, int64."""
    distinct = list(dict.fromkeys(texts))
    number_of = {text: i for i, text in enumerate(distinct)}
    numbers = [number_of[text] for text in texts]
    return distinct, np.array(numbers, np.int64)


def _answer_tokens(
    answers: Sequence[tuple[str, int]], context_Q: np.ndarray, paragraphs: Paragraphs
) -> np.ndarray:
    """First and last of the D tokens that each question's answer touches, [2, Q] int64.

    -1 where there is none.

    Args:
      answers: Q texts and where each begins; '' for no answer.
      context_Q: the paragraph of each.
      paragraphs: all of them.
    """
    result = np.full((2, len(answers)), -1)
    for i, (text, start) in enumerate(answers):
        if not text:
            continue
        tokens = paragraphs.touched(context_Q[i], _without_white_space(text, start))
        if tokens:
            result[:, i] = tokens
    return result


def _narrow_to_own_tokens(
    tokens_2xQ: np.ndarray, answers: Sequence[tuple[str, int]], paragraphs: Paragraphs,
    encode: Encode,
) -> None:
    """Narrows the tokens of words to the answer's own, where they occur there, in place.

    So the answer 1895 has its own tokens in (1895-1943), but Japan has all of the word Japanese.

    Args:
      tokens_2xQ: see `_answer_tokens`.
      answers: Q texts, each with its place.
      paragraphs: whose tokens they are.
      encode: texts -> ids.
    """
    ids, counts = encode([text for text, _ in answers])
    own_tokens = np.split(ids, np.cumsum(counts)[:-1])
    for i, own in enumerate(own_tokens):
        first, last = tokens_2xQ[:, i].tolist()
        if first < 0:
            continue
        found = _find(own.tolist(), paragraphs.ids[first:last + 1].tolist())
        if found is not None:
            tokens_2xQ[:, i] = first + found, first + found + len(own) - 1


def _find(wanted: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Where `wanted` first occurs in `tokens`; None: nowhere, or it is empty."""
    if not wanted:
        return None
    for i in range(len(tokens) - len(wanted) + 1):
        if tokens[i:i + len(wanted)] == wanted:
            return i
    return None


def _without_white_space(text: str, start: int) -> Place:
    """The place of a text that begins at `start`, without white space around it."""
    begin = start + len(text) - len(text.lstrip(WHITESPACE))
    return begin, begin + len(text.strip(WHITESPACE))


def _usable_answer(question: Question, by_words: bool) -> tuple[str, int]:
    """The first answer that can be trained on; ('', 0) if there is none."""
    for text, start in question.answers:
        if not answer_fault(text, start, question.context, by_words):
            return text, start
    return '', 0
