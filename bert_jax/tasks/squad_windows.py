"""Windows of tokens over questions and their paragraphs, as `run_squad.py` of BERT's authors cuts.

    Q: questions, P: paragraphs, N: words of all paragraphs, D: tokens of all paragraphs,
    W: windows of all questions
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.pairs import Encode, Sequences, make_sequences, ranges
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.squad_reader import WHITESPACE, WORD, Question, answer_fault
from bert_jax.text.offsets import PiecePlaces, Place
from bert_jax.text.vocab import Frame


class Paragraphs(NamedTuple):
    """Words and tokens of P paragraphs.

    Attributes:
      ids: [D] int32.
      offsets: [P + 1] int64, where each paragraph's tokens begin in `ids`.
      word_tokens: [N + 1] int64, where each word's tokens begin in `ids`.
      word_offsets: [P + 1] int64, where each paragraph's words begin.
      word_spans: [N, 2] int32, first and last (exclusive) character of a word in its paragraph.
    """

    ids: np.ndarray
    offsets: np.ndarray
    word_tokens: np.ndarray
    word_offsets: np.ndarray
    word_spans: np.ndarray

    def words_at(self, paragraph: int, first: int, last: int) -> tuple[int, int]:
        """The words that hold the first and the last character of a place, or precede them."""
        low, high = self.word_offsets[paragraph:paragraph + 2]
        begins = self.word_spans[low:high, 0]
        first_word, last_word = low - 1 + np.searchsorted(begins, [first, last], 'right')
        return first_word, last_word

    def tokens_of_words(self, first_word: int, last_word: int) -> tuple[int, int]:
        """First and last (exclusive) of the D tokens of some words."""
        first, end = self.word_tokens[[first_word, last_word + 1]].tolist()
        return first, end

    def places_in(self, context: str, word: int, places: PiecePlaces) -> list[Place]:
        """The characters of each piece of a word in its paragraph."""
        begin, end = self.word_spans[word].tolist()
        first, last = self.tokens_of_words(word, word)
        ids = tuple(self.ids[first:last].tolist())
        in_word = places(context[begin:end], ids)
        return [(begin + low, begin + high) for low, high in in_word]

    def touched(
        self, context: str, first_word: int, last_word: int, wanted: Place, places: PiecePlaces
    ) -> tuple[int, int] | None:
        """First and last of the D tokens, among those of some words, that touch characters."""
        wanted_begin, wanted_end = wanted
        token, _ = self.tokens_of_words(first_word, last_word)
        touched: list[int] = []
        for word in range(first_word, last_word + 1):
            for begin, end in self.places_in(context, word, places):
                if begin < wanted_end and wanted_begin < end:
                    touched.append(token)
                token += 1
        if not touched:
            return None
        return touched[0], touched[-1]


@dataclasses.dataclass(frozen=True)
class SquadWindows:
    """The windows of all questions, in order, with what maps their tokens to characters.

    A window is [CLS] question [SEP] part of the paragraph [SEP]. A paragraph that is too long is
    covered by overlapping windows, `doc_stride` tokens apart.

    Attributes:
      questions: the Q questions, in their order.
      sequences: the W windows; the part of the paragraph and its [SEP] are segment 1.
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
    doc_stride: int, max_question_length: int, places: PiecePlaces | None = None,
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
      places: of pieces; answers are then the pieces at their characters. None: as in the original,
        those of the words that they touch, or the first in these that are the answer's own.

    Raises:
      InputError: `max_length` leaves no room for the paragraph.
    """
    contexts, context_Q = _numbered([question.context for question in questions])
    paragraphs = _paragraphs(contexts, encode)
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
    answers_2xQ = _answer_tokens(questions, context_Q, paragraphs, encode, places)
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


def _paragraphs(contexts: Sequence[str], encode: Encode) -> Paragraphs:
    """Words and tokens of paragraphs.

    Every distinct word is tokenized once: BERT's tokens of a text are those of its words.
    """
    spans: list[np.ndarray] = []
    words: list[str] = []
    for context in contexts:
        matches = list(WORD.finditer(context))
        of_context = [match.span() for match in matches]
        spans.append(np.array(of_context, np.int32).reshape(-1, 2))
        words += [match.group() for match in matches]
    distinct, number_N = _numbered(['', *words])  # there may be no words
    ids, counts = encode(distinct)
    counts_N = counts[number_N[1:]]
    starts_N = (np.cumsum(counts) - counts)[number_N[1:]]
    word_tokens = np.concatenate([[0], np.cumsum(counts_N)])
    word_offsets = np.cumsum([0, *map(len, spans)])
    return Paragraphs(
        ids=ids[ranges(starts_N, counts_N)], offsets=word_tokens[word_offsets],
        word_tokens=word_tokens, word_offsets=word_offsets, word_spans=np.concatenate(spans))


def _numbered(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The distinct texts, and for each text its number among them, int64."""
    distinct = list(dict.fromkeys(texts))
    number_of = {text: i for i, text in enumerate(distinct)}
    numbers = [number_of[text] for text in texts]
    return distinct, np.array(numbers, np.int64)


def _answer_tokens(
    questions: Sequence[Question], context_Q: np.ndarray, paragraphs: Paragraphs, encode: Encode,
    places: PiecePlaces | None,
) -> np.ndarray:
    """First and last of the D tokens of each question's first answer, [2, Q] int64.

    -1 where there is none. They are the tokens of the words that the answer touches, or only the
    answer's own tokens if these occur there: 1895 in (1895-1943), but all of Japanese for Japan.
    With `places` they are the tokens whose characters the answer touches.
    """
    answers = [_usable_answer(question, places is None) for question in questions]
    ids, counts = encode([text for text, _ in answers])
    pieces = np.split(ids, np.cumsum(counts)[:-1])
    result = np.full((2, len(questions)), -1)
    for i, (text, start) in enumerate(answers):
        if not text:
            continue
        begin, end = _without_white_space(text, start)
        words = paragraphs.words_at(context_Q[i], begin, end - 1)
        if places is None:
            tokens = _tokens_in_words(paragraphs, words, pieces[i].tolist())
        else:
            tokens = paragraphs.touched(questions[i].context, *words, (begin, end), places)
        if tokens:
            result[:, i] = tokens
    return result


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


def _tokens_in_words(
    paragraphs: Paragraphs, words: tuple[int, int], answer: Sequence[int]
) -> tuple[int, int] | None:
    """First and last of the D tokens of an answer in the words that it touches.

    Args:
      paragraphs: whose words they are.
      words: the first and the last of them.
      answer: the answer's own tokens.
    """
    first, end = paragraphs.tokens_of_words(*words)
    if first == end:  # a word of control characters only
        return None
    tokens = paragraphs.ids[first:end].tolist()
    for i in range(len(tokens) - len(answer) + 1):
        if answer and tokens[i:i + len(answer)] == answer:
            return first + i, first + i + len(answer) - 1
    return first, end - 1
