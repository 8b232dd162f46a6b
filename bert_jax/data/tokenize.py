"""Sentence splitting and tokenization inside a tf.data graph, exact and fast.

TF-Text's `FastBertTokenizer` handles about 40 MB of text per second and core, but it is not BERT's
tokenizer: it folds compatibility characters (`…`, `µ`, ligatures, `ß`), turns control characters
into spaces, and has the Unicode tables of its own ICU. So lines on which the two could differ
go through the reference in `bert_jax.text`, and all others through TF-Text:

- A line is *safe* if it holds only code points that both treat alike (`safe_codepoints`, found by
  comparing them on every code point) and is valid UTF-8.
- Lines that hold a token added to the tokenizer are not safe either.
- Words of more than 200 characters are [UNK] in BERT. TF-Text is given a limit of 200 bytes, so
  only lines with both an [UNK] and a long run of letters are in doubt.

Shapes: n lines, N tokens in all lines together.
"""

import collections
import functools
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_jax.data.pairs import Encode, joined
from bert_jax.data.sentences import RARE_REPLACEMENT, Classes, sentence_patterns
from bert_jax.runtime.packages import without
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS, UNK, Vocab
from bert_jax.text.wordpiece import MAX_CHARS_PER_WORD, Switches, WordPieceTokenizer, basic_tokens

with without('tensorflow_text.python.keras', empty=True):  # layers, which need all of Keras
    import tensorflow_text as tf_text

# Lower-casing and NFD turn no code point into more than nine bytes of UTF-8 (a Hangul syllable), so
# a word of more than 200 bytes has at least 23 characters.
_MAX_BYTES_PER_CHAR = 9
_HAS_LONG_RUN = (
    rf'(?s).*[0-9A-Za-z\x80-\x{{4DFF}}\x{{A000}}-\x{{10FFFF}}]'
    rf'{{{MAX_CHARS_PER_WORD // _MAX_BYTES_PER_CHAR},}}.*')

_PATTERNS = sentence_patterns(Classes(
    upper=r'\p{Lu}', lower=r'\p{Ll}', caseless=r'\p{Lo}', modifier=r'\p{Lm}', mark=r'\p{M}',
    digit=r'\p{Nd}', space=r'\s'))


def split_sentences(texts: tf.Tensor) -> tf.RaggedTensor:
    """Split documents into sentences by the rules of `bert_jax.data.sentences`.

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
    marked = tf.cond(
        tf.reduce_any(without_capitals),
        lambda: tf.where(
            without_capitals,
            tf.strings.regex_replace(marked, ends.uncapitalised, '\\1\n\\2'), marked),
        lambda: marked)
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
            self._safe = r'[\x{0}-\x{10FFFF}]*'  # all valid UTF-8
            return
        self._fast = _fast_bert_tokenizer(tokenizer.word_pieces, tokenizer.lowercase)
        self._normalizer = tf_text.FastBertNormalizer(
            lower_case_nfd_strip_accents=tokenizer.lowercase)
        switches = tokenizer.switches
        self._safe = ''  # empty lines only: the reference tokenizes all others
        # Of the text as it stands, and of the text as TF-Text normalizes it, without white space.
        self._added = _holding(tokenizer.found_as_it_stands)
        normalized = [''.join(text.split()) for text in tokenizer.found_normalized]
        self._added_normalized = _holding(normalized)
        if switches.do_basic_tokenize and not switches.never_split and all(normalized):
            safe = safe_codepoints(
                tokenizer.lowercase, switches.strip_accents, switches.tokenize_chinese_chars)
            edges = np.flatnonzero(np.diff(safe.astype(np.int8), prepend=0, append=0)).tolist()
            ranges = ''.join(
                f'\\x{{{low:X}}}-\\x{{{end - 1:X}}}' for low, end in zip(edges[::2], edges[1::2]))
            self._safe = f'[{ranges}]*'

    def __call__(self, lines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Tokenize lines.

        Args:
            lines: [n] string, UTF-8 (invalid bytes are dropped, as BERT does).

        Returns:
            (ids, counts): [N] int32 ids of all lines one after the other, without [CLS] and
            [SEP], and [n] int32, the number of tokens in each line.
        """
        ids = self._fast.tokenize(lines)
        doubtful = self._doubtful(lines, ids)
        ids = tf.cond(
            tf.reduce_any(doubtful), lambda: self._replace_rows(ids, lines, doubtful), lambda: ids)
        return ids.flat_values, tf.cast(ids.row_lengths(), tf.int32)

    def _doubtful(self, lines: tf.Tensor, ids: tf.RaggedTensor) -> tf.Tensor:
        """[n] bool: lines whose ids may differ from the reference's."""
        doubtful = ~tf.strings.regex_full_match(lines, self._safe)
        if isinstance(self._reference, SentencePieceTokenizer):
            return doubtful
        if self._added:
            doubtful |= tf.strings.regex_full_match(lines, self._added)
        if self._added_normalized:
            # On safe lines TF-Text's normalizer differs from the reference's in white space only.
            text = tf.strings.regex_replace(self._normalizer.normalize(lines), r'[\s\p{Z}]+', '')
            doubtful |= tf.strings.regex_full_match(text, self._added_normalized)
        # [UNK]s are few, so the search for long words costs nothing. (A ragged `reduce_any` over
        # all tokens would cost more than the tokenization.)
        positions = tf.where(ids.flat_values == self._reference.vocab.unk_id)[:, 0]
        unknown = tf.unique(tf.searchsorted(ids.row_splits, positions, side='right') - 1).y
        long = tf.strings.regex_full_match(tf.gather(lines, unknown), _HAS_LONG_RUN)
        rows = tf.boolean_mask(unknown, long)[:, None]
        return tf.tensor_scatter_nd_update(doubtful, rows, tf.ones_like(rows[:, 0], tf.bool))

    def _replace_rows(
        self, ids: tf.RaggedTensor, lines: tf.Tensor, rows: tf.Tensor
    ) -> tf.RaggedTensor:
        """`ids`, with those of the `rows` ([n] bool) from the reference instead."""
        flat, counts = tf.numpy_function(
            lambda lines: joined([self._reference.encode(line.decode('utf-8', 'ignore'))
                                  for line in lines]),
            [tf.boolean_mask(lines, rows)], (tf.int32, tf.int64), stateful=False)
        exact = tf.RaggedTensor.from_row_lengths(
            tf.ensure_shape(flat, [None]), tf.ensure_shape(counts, [None]), validate=False)
        n = tf.size(lines)
        rank = tf.cumsum(tf.cast(rows, tf.int32)) - 1
        return tf.gather(tf.concat([ids, exact], 0), tf.where(rows, n + rank, tf.range(n)))


def _holding(texts: Sequence[str]) -> str:
    """A pattern of RE2 for strings that hold one of the texts; '' if there are none."""
    spelt = (''.join(f'\\x{{{ord(char):X}}}' for char in text) for text in texts)
    return f"(?s).*(?:{'|'.join(spelt)}).*" if texts else ''


def _fast_bert_tokenizer(vocab: Vocab, lowercase: bool) -> tf_text.FastBertTokenizer:
    return tf_text.FastBertTokenizer(
        vocab=vocab.distinct_tokens, token_out_type=tf.int32, max_bytes_per_word=MAX_CHARS_PER_WORD,
        unknown_token=UNK, lower_case_nfd_strip_accents=lowercase)


@functools.lru_cache(maxsize=4)
def safe_codepoints(
    lowercase: bool, strip_accents: bool | None = None, tokenize_chinese_chars: bool = True
) -> np.ndarray:
    """[0x110000] bool_: code points that TF-Text and the reference treat alike in any text.

    Both work code point by code point within a word: they map each to a string (empty where it is
    removed), then split that at white space, punctuation and CJK. So if they agree on what every
    code point maps to and how it splits, they agree on all text. Two steps of the reference depend
    on neighbours, and the code points that they concern count as unsafe: the final form of capital
    sigma, and NFD's sorting of combining marks (but not those in category Mn, which are stripped).

    Some code points are not compared and count as unsafe: unassigned and private ones outside the
    basic plane, and rare ones that would double the time that this takes, namely the (mostly
    ancient) scripts from U+10000 to U+1CFFF and the ideographs of planes 2 and up.
    """
    switches = Switches(strip_accents, tokenize_chinese_chars)
    chars = [char for char in map(chr, (*range(0x10000), *range(0x1D000, 0x20000)))
             if (category := unicodedata.category(char)) != 'Cs'
             and (char <= '\uffff' or category not in ('Cn', 'Co'))]
    # With this vocabulary, the ids of `axb` tell whether x is removed, white space, split off or a
    # letter.
    vocab = Vocab.from_tokens([*SPECIAL_TOKENS, 'a', 'b', '##b'])
    pieces, unknown = WordPieceTokenizer(vocab, lowercase).pieces, [vocab.unk_id]
    between = [f'a{char}b' for char in chars]
    splits = _fast_bert_tokenizer(vocab, lowercase).tokenize(between)
    flat, bounds = splits.flat_values.numpy().tolist(), splits.row_splits.numpy().tolist()
    normalizer = tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=lowercase)
    normalized = normalizer.normalize(between).numpy()

    safe = np.zeros(sys.maxunicode + 1, np.bool_)
    for i, char in enumerate(chars):
        tokens = basic_tokens(between[i], lowercase, switches)
        # The normalizer leaves punctuation, CJK and some of the white space to the splitter, so
        # spaces do not count here.
        same_text = ''.join(tokens) == ''.join(normalized[i].decode().split())
        ids = [j for token in tokens for j in (pieces(token) if token.isascii() else unknown)]
        same_split = ids == flat[bounds[i] : bounds[i + 1]]
        short = len(normalized[i]) <= len('ab') + _MAX_BYTES_PER_CHAR
        safe[ord(char)] = same_text and same_split and short
    if lowercase or strip_accents:
        safe[ord('Σ')] = False
        for char in chars:
            if unicodedata.combining(char) and unicodedata.category(char) != 'Mn':
                safe[ord(char)] = False
    safe.flags.writeable = False
    return safe


def tokenize_batches(
    batches: Iterator[tuple[list[bytes], bool, Any]],
    tokenizer: WordPieceTokenizer | SentencePieceTokenizer, num_threads: int,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, Any]]:
    """Splits documents into lines and tokenizes them, in parallel and in order.

    Args:
      batches: (UTF-8 documents, whether to split them into sentences instead of lines, a note)
        each; they are read ahead.
      tokenizer: gives the ids.
      num_threads: that tokenize.

    Yields:
      (ids [N] int32, number of tokens in each line [n] int32, number of lines in each document
      int64, the note) of each batch.
    """
    fast = FastTokenizer(tokenizer)
    notes: collections.deque[Any] = collections.deque()
    failures: list[Exception] = []
    # AutoGraph would take a second to rewrite these functions and change nothing.
    as_they_are = tf.autograph.experimental.do_not_convert

    def read() -> tuple[np.ndarray, bool]:
        texts, split = list[bytes](), True
        try:
            texts, split, note = next(batches, (texts, split, None))
            notes.append(note)
        except Exception as error:
            failures.append(error)
        return np.array(texts, object), split

    def tokenize(texts: tf.Tensor, split: tf.Tensor) -> tuple[tf.Tensor, ...]:
        texts, split = tf.ensure_shape(texts, [None]), tf.ensure_shape(split, [])
        lines = tf.cond(
            split, lambda: split_sentences(texts), lambda: tf.strings.split(texts, '\n'))
        ids, counts = fast(lines.flat_values)
        return ids, counts, lines.row_lengths()

    # Not `Dataset.from_generator`: with Python 3.11 it sets glibc's M_MMAP_THRESHOLD for the whole
    # process to 128 kB, so that every larger buffer, XLA's too, is mapped and faulted in anew.
    data = tf.data.Dataset.from_tensors(0).repeat().map(
        as_they_are(lambda _: tf.numpy_function(read, [], [tf.string, tf.bool])))
    data = data.take_while(as_they_are(lambda texts, _: tf.size(texts) > 0))
    # AUTOTUNE is slow to find out that it should use all cores.
    data = data.map(as_they_are(tokenize), num_parallel_calls=num_threads + 1, deterministic=True)
    for arrays in data.prefetch(2).as_numpy_iterator():
        yield *arrays, notes.popleft()
    if failures:
        raise failures[0]


def make_encode(tokenizer: WordPieceTokenizer | SentencePieceTokenizer) -> Encode:
    """A function that tokenizes many texts at once (see `data.pairs.Encode`)."""
    signature = [tf.TensorSpec([None], tf.string)]
    fast = tf.function(FastTokenizer(tokenizer), input_signature=signature, autograph=False)

    def encode(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, counts = fast(tf.constant(list(texts), tf.string))
        return ids.numpy().astype(np.int32), counts.numpy().astype(np.int64)

    return encode
