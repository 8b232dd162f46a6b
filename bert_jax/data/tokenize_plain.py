"""Sentence splitting and tokenization where TensorFlow is not installed: the same ids, more slowly.

Lines that hold no added token and only code points on which Hugging Face's `tokenizers` and the
reference in `bert_jax.text` agree go through the former, all others (and all lines, where the
package is not installed) through the latter. Sentences are split by the rules of
`bert_jax.data.tokenize`.

Shapes: n lines, N tokens in all lines together.
"""

import collections
import functools
import importlib.util
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from bert_jax.data.pairs import Encode, Tokens, joined
from bert_jax.data.sentences import RARE_REPLACEMENT, Classes, Patterns, sentence_patterns
from bert_jax.text import Tokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS, UNK, Vocab
from bert_jax.text.wordpiece import (
    MAX_CHARS_PER_WORD,
    Switches,
    WordPieceTokenizer,
    basic_tokens,
)

# RE2's class, which is smaller than Python's.
_SPACE = '\t\n\f\r '
_STRIPPED = '\t\n\v\f\r '


@functools.cache
def _patterns() -> Patterns[re.Pattern[str]]:
    """The patterns with Unicode's categories spelt out."""
    categories = np.array([unicodedata.category(chr(i)) for i in range(sys.maxunicode + 1)])
    upper, lower, caseless, modifier, digit = (
        _class_of(categories == name) for name in ('Lu', 'Ll', 'Lo', 'Lm', 'Nd'))
    mark = _class_of(np.char.startswith(categories, 'M'))
    patterns = sentence_patterns(
        Classes(upper, lower, caseless, modifier, mark, digit, _SPACE))
    return Patterns(*map(re.compile, patterns))


def _class_of(wanted: np.ndarray) -> str:
    """The inside of a character class of the code points at which `wanted` is true."""
    edges = np.flatnonzero(np.diff(wanted.astype(np.int8), prepend=0, append=0)).tolist()
    return ''.join(f'\\U{low:08x}-\\U{end - 1:08x}'
                   for low, end in zip(edges[::2], edges[1::2], strict=True))


def split_sentences(text: str) -> list[str]:
    """Splits a document into sentences, as `bert_jax.data.tokenize.split_sentences` does."""
    ends = _patterns()
    marked = ends.anywhere.sub('\\1\n', text) if ends.anywhere_signs.search(text) else text
    marked = ends.spaced.sub('\\1\n\\2', marked)
    # `re` is slow where many alternatives may begin, so most lines are passed over.
    marked = '\n'.join(
        ends.rare.sub(RARE_REPLACEMENT, line)
        if ends.rare_signs.search(line) or ' .' in line else line
        for line in marked.split('\n'))
    if not ends.capitalised.search(text):
        marked = ends.uncapitalised.sub('\\1\n\\2', marked)
    stripped = (sentence.strip(_STRIPPED) for sentence in marked.split('\n'))
    return [sentence for sentence in stripped if sentence]


@functools.lru_cache(maxsize=4)
def safe_codepoints(
    lowercase: bool, strip_accents: bool | None = None, tokenize_chinese_chars: bool = True
) -> np.ndarray:
    """[0x110000] bool_: code points that `tokenizers` and the reference treat alike in any text.

    Found as in `bert_jax.data.tokenize.safe_codepoints`, which says why that suffices and which
    code points count as unsafe without being compared.
    """
    switches = Switches(strip_accents, tokenize_chinese_chars)
    chars = [chr(i) for i in range(0x10000)
             if unicodedata.category(chr(i)) not in ('Cs', 'Cn', 'Co')]
    vocab = Vocab.from_tokens([*SPECIAL_TOKENS, 'a', 'b', '##b'])
    fast = _huggingface_tokenizer(vocab, lowercase, switches)
    pieces, unknown = WordPieceTokenizer(vocab, lowercase).pieces, [vocab.unk_id]
    between = [f'a{char}b' for char in chars]
    encodings = fast.encode_batch(between, add_special_tokens=False)

    safe = np.zeros(sys.maxunicode + 1, np.bool_)
    for char, text, encoding in zip(chars, between, encodings, strict=True):
        tokens = basic_tokens(text, lowercase, switches)
        normalized = fast.normalizer.normalize_str(text)
        same_text = ''.join(tokens) == ''.join(normalized.split())
        ids = [i for token in tokens for i in (pieces(token) if token.isascii() else unknown)]
        safe[ord(char)] = same_text and ids == encoding.ids
    if lowercase or strip_accents:
        safe[ord('Σ')] = False  # its final form depends on what follows
        for char in chars:  # NFD sorts combining marks; those of category Mn are stripped
            if unicodedata.combining(char) and unicodedata.category(char) != 'Mn':
                safe[ord(char)] = False
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
    """A function that tokenizes many texts at once (see `data.pairs.Encode`)."""
    def encode_exactly(texts: Sequence[str]) -> Tokens:
        return joined([tokenizer.encode(text) for text in texts])

    if not isinstance(tokenizer, WordPieceTokenizer):
        return encode_exactly
    switches = tokenizer.switches
    if (not switches.do_basic_tokenize or switches.never_split
            or importlib.util.find_spec('tokenizers') is None):
        return encode_exactly
    fast = _huggingface_tokenizer(tokenizer.word_pieces, tokenizer.lowercase, switches)
    safe = re.compile('[' + _class_of(safe_codepoints(
        tokenizer.lowercase, switches.strip_accents, switches.tokenize_chinese_chars)) + ']*')

    def encode(texts: Sequence[str]) -> Tokens:
        is_safe = [safe.fullmatch(text) is not None and not tokenizer.may_have_added(text)
                   for text in texts]
        encodings = iter(fast.encode_batch_fast(
            [text for text, alike in zip(texts, is_safe, strict=True) if alike],
            add_special_tokens=False))
        return joined([next(encodings).ids if alike else tokenizer.encode(text)
                       for text, alike in zip(texts, is_safe, strict=True)])

    return encode


def tokenize_batches(
    batches: Iterator[tuple[list[bytes], bool, Any]], tokenizer: Tokenizer, num_threads: int,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, Any]]:
    """Splits documents into lines and tokenizes them, in parallel and in order.

    Arguments and results are those of `bert_jax.data.tokenize.tokenize_batches`.
    """
    encode = make_encode(tokenizer)

    def tokenize(
        texts: list[bytes], split: bool, note: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
        lines, num_lines = list[str](), list[int]()
        for document in texts:
            text = document.decode('utf-8', 'ignore')
            found = split_sentences(text) if split else text.split('\n')
            lines += found
            num_lines.append(len(found))
        ids, counts = encode(lines)
        return ids, counts.astype(np.int32), np.array(num_lines, np.int64), note

    with ThreadPoolExecutor(num_threads) as pool:
        pending = collections.deque[Future]()
        try:
            for batch in batches:
                pending.append(pool.submit(tokenize, *batch))
                if len(pending) > num_threads + 1:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for task in pending:
                task.cancel()
