"""Code points that a faster tokenizer and the reference in `bert_jax.text` treat alike in any text.

Both work code point by code point within a word: they map each to a string (empty where it is
removed), then split that at white space, punctuation and CJK. So if they agree on what every code
point maps to and how it splits, they agree on all text. Two steps of the reference depend on
neighbours, and the code points that they concern count as unsafe: the final form of capital sigma,
and NFD's sorting of combining marks (but not those in category Mn, which are stripped).
"""

import functools
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np

from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import Switches, WordPieceTokenizer, basic_tokens

# Each code point is compared between two letters, in `axb`. With this vocabulary, the ids tell
# whether x is removed, white space, split off or a letter.
PROBE_LETTERS = ('a', 'b')
PROBE_VOCAB = Vocab.from_tokens([*SPECIAL_TOKENS, 'a', 'b', '##b'])


def probes(chars: Sequence[str]) -> list[str]:
    """The text by which each of the code points is compared."""
    before, after = PROBE_LETTERS
    return [f'{before}{char}{after}' for char in chars]


def safe_codepoints_of(
    chars: Sequence[str], normalized: Sequence[str], ids: Sequence[list[int]], lowercase: bool,
    switches: Switches,
) -> np.ndarray:
    """[0x110000] bool_: the code points that are safe; those not compared are not.

    Args:
      chars: the code points to compare.
      normalized: their probes, normalized by the faster tokenizer.
      ids: their probes, tokenized by the faster tokenizer with `PROBE_VOCAB`.
      lowercase, switches: of the reference.
    """
    pieces = functools.cache(WordPieceTokenizer(PROBE_VOCAB, lowercase).pieces)
    safe = np.zeros(sys.maxunicode + 1, np.bool_)
    for char, probe, text, fast_ids in zip(chars, probes(chars), normalized, ids, strict=True):
        tokens = basic_tokens(probe, lowercase, switches)
        expected: list[int] = []
        for token in tokens:
            expected += pieces(token) if token.isascii() else [PROBE_VOCAB.stand_in_id]
        # Normalizers leave punctuation, CJK and some of the white space to the splitter, so spaces
        # do not count here.
        same_text = ''.join(tokens) == ''.join(text.split())
        safe[ord(char)] = same_text and fast_ids == expected
    if lowercase or switches.strip_accents:
        safe[ord('Σ')] = False
        for char in chars:
            if unicodedata.combining(char) and unicodedata.category(char) != 'Mn':
                safe[ord(char)] = False
    return safe


def runs(chosen: np.ndarray) -> list[tuple[int, int]]:
    """(first, last) of each run of code points that are chosen, from bool [0x110000]."""
    edges = np.flatnonzero(np.diff(chosen.astype(np.int8), prepend=0, append=0))
    firsts = edges[::2]
    lasts = edges[1::2] - 1
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
