"""Sentence splitting and tokenization inside a tf.data graph, exact and fast.

WordPiece and SentencePiece are computed by the graph, other kinds by their tokenizers, which the
graph calls; so are models of SentencePiece without the mark of a word before each text.

TF-Text's `FastBertTokenizer` handles about 40 MB of text per second and core, but it is not BERT's
tokenizer: it folds compatibility characters (`…`, `µ`, ligatures, `ß`), turns control characters
into spaces, and has the Unicode tables of its own ICU. So lines on which the two could differ
go through the reference in `bert_jax.text`, and all others through TF-Text:

- A line is *safe* if it holds only code points that both treat alike (`safe_codepoints`, found by
  comparing them on every code point, as `corpus.code_points` explains) and is valid UTF-8.
- Lines that hold a token added to the tokenizer are not safe either.
- Words of more than 200 characters are [UNK] in BERT. TF-Text is given a limit of 200 bytes, so
  only lines with both an [UNK] and a long run of letters are in doubt.

Shapes: n lines, N tokens in all lines together.
"""

import collections
import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_jax.corpus.code_points import (
    PROBE_LETTERS,
    PROBE_VOCAB,
    probes,
    runs,
    safe_codepoints_of,
)
from bert_jax.corpus.sentences import RARE_REPLACEMENT, Classes, sentence_patterns
from bert_jax.corpus.source import TextBatch, TokenBatch
from bert_jax.corpus.unsplittable import LeavingOut
from bert_jax.rows.sequences import Encode
from bert_jax.runtime.packages import without
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.tokenizer import Tokenizer, Tokens, joined
from bert_jax.text.vocab import CONTINUATION, UNK, Vocab, unused_row
from bert_jax.text.wordpiece import MAX_CHARS_PER_WORD, Switches, WordPieceTokenizer

with without('tensorflow_text.python.keras', empty=True):  # layers, which need all of Keras
    import tensorflow_text as tf_text

# Lower-casing and NFD turn no code point into more than nine bytes of UTF-8 (a Hangul syllable), so
# a word of more than 200 bytes has at least 23 characters.
_MAX_BYTES_PER_CHAR = 9
_LONG_RUN = MAX_CHARS_PER_WORD // _MAX_BYTES_PER_CHAR
_LETTER = r'[0-9A-Za-z\x80-\x{4DFF}\x{A000}-\x{10FFFF}]'
_HAS_LONG_RUN = rf'(?s).*{_LETTER}{{{_LONG_RUN},}}.*'
_VALID_UTF8 = r'[\x{0}-\x{10FFFF}]*'
_WHITE_SPACE = r'[\s\p{Z}]+'
_MAX_BYTES_AT_ONCE = 4 << 20
_GROUP_BYTES = 1 << 20  # of lines, where there are more than these

_PATTERNS = sentence_patterns(Classes(
    upper=r'\p{Lu}', lower=r'\p{Ll}', caseless=r'\p{Lo}', modifier=r'\p{Lm}', mark=r'\p{M}',
    digit=r'\p{Nd}', space=r'\s'))


def split_sentences(texts: tf.Tensor) -> tf.RaggedTensor:
    """Splits documents into sentences by the rules of `bert_jax.corpus.sentences`.

    A newline ends a sentence. So do the full stops of scripts that have their own, anywhere; and
    `.`, `!` or `?`, with closing quotes and brackets, before white space and what may begin a
    sentence: a capital letter, a letter without case, a digit (`"`, `'`, `(` or `[` may stand
    before it) or an opening quote. In a document without capitalised words any letter may. In Thai
    and Lao a space between letters ends one. Abbreviations split too: BERT's "sentence" is any
    span of text.

    Args:
      texts: [n] string, UTF-8 documents.

    Returns:
      [n, (sentences)] string, stripped, none of them empty.
    """
    ends = _PATTERNS
    marked = tf.strings.regex_replace(
        texts, f'{ends.spaced}|{ends.anywhere}', '\\1\\3\n\\2')
    marked = tf.strings.regex_replace(marked, ends.rare, RARE_REPLACEMENT)
    # `\C` is any byte: the search stops at the first capitalised word.
    without_capitals = ~tf.strings.regex_full_match(texts, rf'\C*{ends.capitalised}\C*')

    def marked_before_any_letter() -> tf.Tensor:
        at_letters = tf.strings.regex_replace(marked, ends.uncapitalised, '\\1\n\\2')
        return tf.where(without_capitals, at_letters, marked)

    marked = tf.cond(
        tf.reduce_any(without_capitals), marked_before_any_letter, lambda: marked)
    sentences = tf.strings.split(marked, '\n')
    sentences = sentences.with_flat_values(tf.strings.strip(sentences.flat_values))
    return tf.ragged.boolean_mask(sentences, sentences != '')


class FastTokenizer:
    """The ids of `tokenizer`, computed inside the graph.

    For batches of lines of about 1 MB. It holds Python objects, so such a graph cannot be saved or
    run in another process.
    """

    def __init__(self, tokenizer: WordPieceTokenizer | SentencePieceTokenizer):
        self._reference = tokenizer
        if isinstance(tokenizer, SentencePieceTokenizer):
            self._fast = tf_text.SentencepieceTokenizer(tokenizer.model, out_type=tf.int32)
            self._doubtful = _is_invalid_utf8
        else:
            self._fast = _fast_bert_tokenizer(tokenizer.word_pieces, tokenizer.lowercase)
            self._doubtful = _Doubts(tokenizer)

    @functools.cached_property
    def traced(self) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        """`__call__` as a function of its own, which is traced once."""
        signature = [tf.TensorSpec([None], tf.string)]
        return tf.function(self, input_signature=signature, autograph=False)

    def __call__(self, lines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Tokenizes lines, those of a long document in groups.

        TF-Text needs 90 bytes a token while it works, and a document may have 16 MiB.

        Args:
          lines: [n] string, UTF-8 (invalid bytes are dropped, as BERT does).

        Returns:
          (ids, counts): [N] int32 ids of all lines one after the other, without [CLS] and [SEP],
          and [n] int32, the number of tokens in each line.
        """
        ends = tf.cumsum(tf.cast(tf.strings.length(lines), tf.int64))
        is_long = tf.reduce_max(ends) > _MAX_BYTES_AT_ONCE  # false without lines
        return tf.cond(
            is_long, lambda: self._by_groups(lines, ends), lambda: self._at_once(lines))

    def _by_groups(self, lines: tf.Tensor, ends: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """`__call__`, a group of lines of about 1 MB after the other.

        Args:
          lines: [n] string, n > 0.
          ends: [n] int64, number of bytes up to the end of each line.
        """
        group = tf.unique(ends // _GROUP_BYTES).idx  # [n], ascending: the number of each line's
        num_groups = group[-1] + 1
        bounds = tf.searchsorted(group, tf.range(num_groups + 1))

        def add(index: tf.Tensor, *arrays: tf.TensorArray) -> tuple[Any, ...]:
            made = self._at_once(lines[bounds[index] : bounds[index + 1]])
            written = [
                array.write(index, values) for array, values in zip(arrays, made, strict=True)]
            return (index + 1, *written)

        def array() -> tf.TensorArray:
            return tf.TensorArray(
                tf.int32, num_groups, infer_shape=False, element_shape=tf.TensorShape([None]))

        _, ids, counts = tf.while_loop(
            lambda index, *_: index < num_groups, add, [0, array(), array()],
            parallel_iterations=1)
        return ids.concat(), counts.concat()

    def _at_once(self, lines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """`__call__` of all lines together."""
        ids = self._fast.tokenize(lines)
        doubtful = self._doubtful(lines, ids)
        ids = tf.cond(
            tf.reduce_any(doubtful), lambda: self._replace_rows(ids, lines, doubtful), lambda: ids)
        return ids.flat_values, tf.cast(ids.row_lengths(), tf.int32)

    def _replace_rows(
        self, ids: tf.RaggedTensor, lines: tf.Tensor, rows: tf.Tensor
    ) -> tf.RaggedTensor:
        """`ids`, with those of the `rows` ([n] bool) from the reference instead."""
        flat, counts = tf.numpy_function(
            self._encode_exactly, [tf.boolean_mask(lines, rows)], (tf.int32, tf.int64),
            stateful=False)
        exact = tf.RaggedTensor.from_row_lengths(
            tf.ensure_shape(flat, [None]), tf.ensure_shape(counts, [None]), validate=False)
        n = tf.size(lines)
        rank = tf.cumsum(tf.cast(rows, tf.int32)) - 1
        return tf.gather(tf.concat([ids, exact], 0), tf.where(rows, n + rank, tf.range(n)))

    def _encode_exactly(self, lines: np.ndarray) -> Tokens:
        return joined([self._reference.encode(line.decode('utf-8', 'ignore')) for line in lines])


def _in_graph(tokenizer: Tokenizer) -> FastTokenizer | None:
    """The operation that computes a tokenizer's ids inside the graph; None if there is none."""
    if isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.before_word:
        return None  # it takes lines for texts, without spaces before them
    if isinstance(tokenizer, WordPieceTokenizer | SentencePieceTokenizer):
        return _fast_tokenizer(_Keyed(tokenizer.fingerprint, tokenizer))
    return None


@dataclasses.dataclass(frozen=True)
class _Keyed:
    """A tokenizer, equal to others that make the same ids of every text."""

    fingerprint: str
    tokenizer: WordPieceTokenizer | SentencePieceTokenizer = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=2)
def _fast_tokenizer(keyed: _Keyed) -> FastTokenizer:
    """Kept for the next calls, because making one takes as long as tokenizing 5 MB of text."""
    return FastTokenizer(keyed.tokenizer)


class _DocumentTokenizer:
    """The ids of documents in lines, inside the graph or by the tokenizer itself."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._fast = _in_graph(tokenizer)
        self.leaving_out = LeavingOut(tokenizer)

    def __call__(self, documents: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Tokenizes documents.

        Args:
          documents: [n, (lines)] string, UTF-8.

        Returns:
          (ids, counts) of all lines, as of `FastTokenizer`.
        """
        lines = documents.flat_values
        if self._fast is not None:
            return self._fast(lines)
        ids, counts = tf.numpy_function(
            self._encode, [lines, documents.row_splits], (tf.int32, tf.int32), stateful=False)
        return tf.ensure_shape(ids, [None]), tf.ensure_shape(counts, [None])

    def _encode(self, lines: np.ndarray, splits: np.ndarray) -> Tokens:
        """(ids [N] int32, counts [lines] int32) of documents whose lines are split at `splits`."""
        texts = [line.decode('utf-8', 'ignore') for line in lines]
        parts: list[str] = []
        for begin, end in zip(splits[:-1], splits[1:], strict=True):
            parts += self._tokenizer.joinable(texts[begin:end])
        ids, counts = self.leaving_out.encode_joined(parts)
        return ids, counts.astype(np.int32)


def _is_invalid_utf8(lines: tf.Tensor, ids: tf.RaggedTensor) -> tf.Tensor:
    """[n] bool: lines that TF-Text's SentencePiece and the reference may tokenize differently."""
    return ~tf.strings.regex_full_match(lines, _VALID_UTF8)


class _Doubts:
    """Which lines TF-Text's WordPiece and the reference may tokenize differently."""

    def __init__(self, tokenizer: WordPieceTokenizer):
        self._unk_id = tokenizer.vocab.unk_id
        self._normalizer = tf_text.FastBertNormalizer(
            lower_case_nfd_strip_accents=tokenizer.lowercase)
        # Of the text as it stands, and of the text as TF-Text normalizes it, without white space.
        self._added = _holding(tokenizer.found_as_it_stands)
        normalized = [''.join(text.split()) for text in tokenizer.found_normalized]
        self._added_normalized = _holding(normalized)
        self._safe = ''  # empty lines only: the reference tokenizes all others
        switches = tokenizer.switches
        if switches.do_basic_tokenize and not switches.never_split and all(normalized):
            self._safe = _safe_lines(
                tokenizer.lowercase, switches.strip_accents, switches.tokenize_chinese_chars)

    def __call__(self, lines: tf.Tensor, ids: tf.RaggedTensor) -> tf.Tensor:
        """[n] bool, from lines [n] and their ids by TF-Text."""
        doubtful = ~tf.strings.regex_full_match(lines, self._safe)
        if self._added:
            doubtful |= tf.strings.regex_full_match(lines, self._added)
        if self._added_normalized:
            # On safe lines TF-Text's normalizer differs from the reference's in white space only.
            text = tf.strings.regex_replace(self._normalizer.normalize(lines), _WHITE_SPACE, '')
            doubtful |= tf.strings.regex_full_match(text, self._added_normalized)
        # [UNK]s are few, so the search for long words costs nothing. (A ragged `reduce_any` over
        # all tokens would cost more than the tokenization.)
        positions = tf.where(ids.flat_values == self._unk_id)[:, 0]
        unknown = tf.unique(tf.searchsorted(ids.row_splits, positions, side='right') - 1).y
        long = tf.strings.regex_full_match(tf.gather(lines, unknown), _HAS_LONG_RUN)
        rows = tf.boolean_mask(unknown, long)[:, None]
        return tf.tensor_scatter_nd_update(doubtful, rows, tf.ones_like(rows[:, 0], tf.bool))


@functools.lru_cache(maxsize=4)
def _safe_lines(
    lowercase: bool, strip_accents: bool | None, tokenize_chinese_chars: bool
) -> str:
    """A pattern of RE2 for lines that hold only safe code points."""
    safe = safe_codepoints(lowercase, strip_accents, tokenize_chinese_chars)
    ranges = [f'\\x{{{first:X}}}-\\x{{{last:X}}}' for first, last in runs(safe)]
    return f"[{''.join(ranges)}]*"


def _holding(texts: Sequence[str]) -> str:
    """A pattern of RE2 for strings that hold one of the texts; '' if there are none."""
    if not texts:
        return ''
    return f"(?s).*(?:{'|'.join(map(_spelt, texts))}).*"


def _spelt(text: str) -> str:
    """A text as a pattern of RE2, each character by its code point."""
    return ''.join(f'\\x{{{ord(char):X}}}' for char in text)


def _fast_bert_tokenizer(vocab: Vocab, lowercase: bool) -> tf_text.FastBertTokenizer:
    """TF-Text's tokenizer; it refuses longer tokens than it could ever find in a word."""
    tokens = []
    for i, token in enumerate(vocab.distinct_tokens):
        is_too_long = len(token.removeprefix(CONTINUATION).encode()) > MAX_CHARS_PER_WORD
        tokens.append(unused_row(i) if is_too_long else token)
    return tf_text.FastBertTokenizer(
        vocab=tokens, token_out_type=tf.int32, max_bytes_per_word=MAX_CHARS_PER_WORD,
        unknown_token=UNK, lower_case_nfd_strip_accents=lowercase)


@functools.lru_cache(maxsize=4)
def safe_codepoints(
    lowercase: bool, strip_accents: bool | None = None, tokenize_chinese_chars: bool = True
) -> np.ndarray:
    """[0x110000] bool_: code points that TF-Text and the reference treat alike in any text.

    Some code points are not compared and count as unsafe: unassigned and private ones outside the
    basic plane, and rare ones that would double the time that this takes, namely the (mostly
    ancient) scripts from U+10000 to U+1CFFF and the ideographs of planes 2 and up.
    """
    code_points = [*range(0x10000), *range(0x1D000, 0x20000)]
    chars = [char for char in map(chr, code_points) if _is_compared(char)]
    texts = probes(chars)
    normalizer = tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=lowercase)
    normalized = normalizer.normalize(texts).numpy().tolist()
    found = _fast_bert_tokenizer(PROBE_VOCAB, lowercase).tokenize(texts)
    flat = found.flat_values.numpy().tolist()  # `found.to_list()` would take a half of the time
    bounds = itertools.pairwise(found.row_splits.numpy().tolist())
    ids = [flat[begin:end] for begin, end in bounds]
    safe = safe_codepoints_of(
        chars, [text.decode() for text in normalized], ids, lowercase,
        Switches(strip_accents, tokenize_chinese_chars))
    for char, text in zip(chars, normalized, strict=True):
        if len(text) > len(PROBE_LETTERS) + _MAX_BYTES_PER_CHAR:
            safe[ord(char)] = False
    safe.flags.writeable = False
    return safe


def _is_compared(char: str) -> bool:
    category = unicodedata.category(char)
    if char <= '\uffff':
        return category != 'Cs'
    return category not in ('Cs', 'Cn', 'Co')


def tokenize_batches(
    batches: Iterator[TextBatch], tokenizer: Tokenizer, num_threads: int
) -> Iterator[TokenBatch]:
    """Splits documents into lines and tokenizes them, in parallel and in order.

    Lines that the tokenizer cannot split have no tokens, and are counted at the end.

    Args:
      batches: documents; they are read ahead.
      tokenizer: gives the ids.
      num_threads: that tokenize.

    Yields:
      The tokens of each batch.
    """
    encode = _DocumentTokenizer(tokenizer)
    notes: collections.deque[object] = collections.deque()
    failures: list[Exception] = []
    # AutoGraph would take a second to rewrite these functions and change nothing.
    as_they_are = tf.autograph.experimental.do_not_convert

    def read() -> tuple[np.ndarray, bool]:
        """The texts of the next batch, none after the last, and whether to split sentences."""
        texts: list[bytes] = []
        split = True
        try:
            batch = next(batches, None)
            if batch is not None:
                texts, split, note = batch
                notes.append(note)
        except Exception as error:
            failures.append(error)
        return np.array(texts, object), split

    def tokenize(texts: tf.Tensor, split: tf.Tensor) -> tuple[tf.Tensor, ...]:
        texts = tf.ensure_shape(texts, [None])
        split = tf.ensure_shape(split, [])
        lines = tf.cond(
            split, lambda: split_sentences(texts), lambda: tf.strings.split(texts, '\n'))
        ids, counts = encode(lines)
        return ids, counts, lines.row_lengths()

    # Not `Dataset.from_generator`: with Python 3.11 it sets glibc's M_MMAP_THRESHOLD for the whole
    # process to 128 kB, so that every larger buffer, XLA's too, is mapped and faulted in anew.
    data = tf.data.Dataset.from_tensors(0).repeat().map(
        as_they_are(lambda _: tf.numpy_function(read, [], [tf.string, tf.bool])))
    data = data.take_while(as_they_are(lambda texts, _: tf.size(texts) > 0))
    # AUTOTUNE is slow to find out that it should use all cores.
    data = data.map(as_they_are(tokenize), num_parallel_calls=num_threads + 1, deterministic=True)
    for ids, counts, num_lines in data.prefetch(2).as_numpy_iterator():
        yield TokenBatch(ids, counts, num_lines, notes.popleft())
    encode.leaving_out.tell()
    if failures:
        raise failures[0]


def make_encode(tokenizer: Tokenizer) -> Encode:
    """A function that tokenizes many texts at once (see `rows.sequences.Encode`)."""
    in_graph = _in_graph(tokenizer)
    if in_graph is None:
        return tokenizer.encode_joined
    fast = in_graph.traced

    def encode(texts: Sequence[str]) -> Tokens:
        ids, counts = fast(tf.constant(list(texts), tf.string))
        return ids.numpy().astype(np.int32), counts.numpy().astype(np.int64)

    return encode
