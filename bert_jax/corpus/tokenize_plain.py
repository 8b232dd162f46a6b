"""Sentence splitting and tokenization where TensorFlow is not installed: the same ids, more slowly.

Lines that hold no added token and only code points on which Hugging Face's `tokenizers` and the
reference in `bert_jax.text` agree go through the former, all others (and all lines, where the
package is not installed) through the latter. Sentences are split by the rules of
`bert_jax.corpus.tokenize_tensorflow`.

Shapes: n lines, N tokens in all lines together.
"""

import collections
import functools
import importlib.util
import re
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from bert_jax.corpus.code_points import PROBE_VOCAB, probes, runs, safe_codepoints_of
from bert_jax.corpus.sentences import RARE_REPLACEMENT, Classes, Patterns, sentence_patterns
from bert_jax.corpus.source import TextBatch, TokenBatch
from bert_jax.corpus.unsplittable import LeavingOut
from bert_jax.rows.sequences import Encode
from bert_jax.text.library import library_errors
from bert_jax.text.tokenizer import Tokenizer, Tokens, joined
from bert_jax.text.vocab import UNK, Vocab
from bert_jax.text.wordpiece import MAX_CHARS_PER_WORD, Switches, WordPieceTokenizer

# RE2's class, which is smaller than Python's.
_SPACE = '\t\n\f\r '
_STRIPPED = '\t\n\v\f\r '
_NOT_COMPARED = ('Cs', 'Cn', 'Co')  # categories: surrogates, unassigned and private code points
_BASIC_PLANE = range(0x10000)
# Most text in Latin letters has no others, and they are compared in a hundredth of the time.
COMMON = (*range(0x250), *range(0x2000, 0x2070))
_HAS_COMMON_ONLY = re.compile('[\\0-\u024f\u2000-\u206f]*')


@functools.cache
def _patterns() -> Patterns[re.Pattern[str]]:
    """The patterns with Unicode's categories spelt out."""
    chars = map(chr, range(sys.maxunicode + 1))
    categories = np.array([unicodedata.category(char) for char in chars])
    patterns = sentence_patterns(Classes(
        upper=_class_of(categories == 'Lu'),
        lower=_class_of(categories == 'Ll'),
        caseless=_class_of(categories == 'Lo'),
        modifier=_class_of(categories == 'Lm'),
        mark=_class_of(np.char.startswith(categories, 'M')),
        digit=_class_of(categories == 'Nd'),
        space=_SPACE))
    return Patterns(*map(re.compile, patterns))


def _class_of(chosen: np.ndarray) -> str:
    """The inside of a character class of the code points that are chosen."""
    return ''.join(f'\\U{first:08x}-\\U{last:08x}' for first, last in runs(chosen))


def split_sentences(text: str) -> list[str]:
    """Splits a document into sentences, as `tokenize_tensorflow.split_sentences` does."""
    ends = _patterns()
    marked = text
    if ends.anywhere_signs.search(text):
        marked = ends.anywhere.sub('\\1\n', marked)
    marked = ends.spaced.sub('\\1\n\\2', marked)
    marked = '\n'.join([_mark_rare_ends(line) for line in marked.split('\n')])
    if not ends.capitalised.search(text):
        marked = ends.uncapitalised.sub('\\1\n\\2', marked)
    stripped = [sentence.strip(_STRIPPED) for sentence in marked.split('\n')]
    return [sentence for sentence in stripped if sentence]


def _mark_rare_ends(line: str) -> str:
    """The line with a newline at each of the rare ends of sentences."""
    ends = _patterns()
    # `re` is slow where many alternatives may begin, so most lines are passed over.
    if ends.rare_signs.search(line) or ' .' in line:
        return ends.rare.sub(RARE_REPLACEMENT, line)
    return line


@functools.lru_cache(maxsize=16)
def safe_codepoints(
    lowercase: bool, strip_accents: bool | None = None, tokenize_chinese_chars: bool = True,
    code_points: Sequence[int] = _BASIC_PLANE,
) -> np.ndarray:
    """[0x110000] bool_: code points that `tokenizers` and the reference treat alike in any text.

    Only `code_points` are compared, without unassigned and private ones; all others count as
    unsafe.
    """
    switches = Switches(strip_accents, tokenize_chinese_chars)
    chars = [
        char for char in map(chr, code_points)
        if unicodedata.category(char) not in _NOT_COMPARED]
    fast = _huggingface_tokenizer(PROBE_VOCAB, lowercase, switches)
    texts = probes(chars)
    normalized = [fast.normalizer.normalize_str(text) for text in texts]
    encodings = fast.encode_batch(texts, add_special_tokens=False)
    ids = [encoding.ids for encoding in encodings]
    safe = safe_codepoints_of(chars, normalized, ids, lowercase, switches)
    safe.flags.writeable = False
    return safe


def _huggingface_tokenizer(vocab: Vocab, lowercase: bool, switches: Switches) -> Any:
    """The tokenizer of the package `tokenizers` with BERT's rules and this vocabulary."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers

    fast = tokenizers.Tokenizer(models.WordPiece(
        vocab.index, unk_token=UNK, max_input_chars_per_word=MAX_CHARS_PER_WORD))
    fast.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=switches.tokenize_chinese_chars,
        strip_accents=switches.strip_accents, lowercase=lowercase)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return fast


def make_encode(tokenizer: Tokenizer) -> Encode:
    """A function that tokenizes many texts at once (see `rows.sequences.Encode`)."""
    if isinstance(tokenizer, WordPieceTokenizer) and _library_knows(tokenizer.switches):
        return _fast_encode(tokenizer)
    return tokenizer.encode_joined


def _library_knows(switches: Switches) -> bool:
    """Whether the package `tokenizers` is there and has such a WordPiece tokenizer."""
    if importlib.util.find_spec('tokenizers') is None:
        return False
    return switches.do_basic_tokenize and not switches.never_split


class _SafeTexts:
    """Which texts have only code points that `tokenizers` and the reference treat alike."""

    def __init__(self, tokenizer: WordPieceTokenizer):
        switches = tokenizer.switches
        self._options = (
            tokenizer.lowercase, switches.strip_accents, switches.tokenize_chinese_chars)
        self._of_common = self._pattern(COMMON)
        self._of_all: re.Pattern[str] | None = None
        self._lock = threading.Lock()  # all threads may meet such a text at once

    def __call__(self, text: str) -> bool:
        if self._of_common.fullmatch(text):
            return True
        if _HAS_COMMON_ONLY.fullmatch(text):
            return False
        with self._lock:
            if self._of_all is None:
                self._of_all = self._pattern(_BASIC_PLANE)
        return self._of_all.fullmatch(text) is not None

    def _pattern(self, code_points: Sequence[int]) -> re.Pattern[str]:
        return _safe_text(*self._options, code_points)


@functools.lru_cache(maxsize=16)
def _safe_text(
    lowercase: bool, strip_accents: bool | None, tokenize_chinese_chars: bool,
    code_points: Sequence[int],
) -> re.Pattern[str]:
    """Matches text of the safe ones of these code points. Every share of a store asks for it."""
    safe = _class_of(
        safe_codepoints(lowercase, strip_accents, tokenize_chinese_chars, code_points))
    return re.compile(f'[{safe}]*')


def _fast_encode(tokenizer: WordPieceTokenizer) -> Encode:
    """`make_encode` for a tokenizer whose rules the package `tokenizers` has too."""
    switches = tokenizer.switches
    fast = _huggingface_tokenizer(tokenizer.word_pieces, tokenizer.lowercase, switches)
    is_safe = _SafeTexts(tokenizer)

    def encode(texts: Sequence[str]) -> Tokens:
        ids: list[Sequence[int]] = []
        safe_texts = []
        safe_places = []
        for text in texts:
            if is_safe(text) and not tokenizer.may_have_added(text):
                safe_places.append(len(ids))
                safe_texts.append(text)
                ids.append(())
            else:
                ids.append(tokenizer.encode(text))
        with library_errors():
            encodings = fast.encode_batch_fast(safe_texts, add_special_tokens=False)
        for place, encoding in zip(safe_places, encodings, strict=True):
            ids[place] = encoding.ids
        return joined(ids)

    return encode


def tokenize_batches(
    batches: Iterator[TextBatch], tokenizer: Tokenizer, num_threads: int
) -> Iterator[TokenBatch]:
    """Splits documents into lines and tokenizes them, in parallel and in order.

    Arguments and results are those of `bert_jax.corpus.tokenize_tensorflow.tokenize_batches`.
    """
    leaving_out = LeavingOut(tokenizer)
    encode = make_encode(tokenizer)
    if encode == tokenizer.encode_joined:
        encode = leaving_out.encode_joined

    def tokenize(batch: TextBatch) -> TokenBatch:
        lines: list[str] = []
        num_lines: list[int] = []
        for document in batch.texts:
            text = document.decode('utf-8', 'ignore')
            found = split_sentences(text) if batch.split else text.split('\n')
            lines += tokenizer.joinable(found)
            num_lines.append(len(found))
        ids, counts = encode(lines)
        return TokenBatch(
            ids, counts.astype(np.int32), np.array(num_lines, np.int64), batch.note)

    with ThreadPoolExecutor(num_threads) as pool:
        pending = collections.deque[Future[TokenBatch]]()
        try:
            for batch in batches:
                pending.append(pool.submit(tokenize, batch))
                if len(pending) > num_threads + 1:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
            leaving_out.tell()
        finally:
            for task in pending:
                task.cancel()
