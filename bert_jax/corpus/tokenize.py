"""From texts to ids: the one door, whichever package does the work behind it.

TF-Text does where TensorFlow is installed, because it is the fastest; else the package
`tokenizers`, else the tokenizers of `bert_jax.text` themselves. Ids are always those of the latter:
both others ask them for every text on which they might differ. Nothing beyond this module knows
which of them ran.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.corpus.source import TextBatch, TokenBatch
from bert_jax.rows.sequences import Encode
from bert_jax.runtime.packages import has_tensorflow, loading_tensorflow
from bert_jax.text.tokenizer import Tokenizer, Tokens


def tokenize_batches(
    batches: Iterator[TextBatch], tokenizer: Tokenizer, num_threads: int, purpose: str
) -> Iterator[TokenBatch]:
    """Splits documents into lines and tokenizes them, in parallel and in order.

    Args:
      batches: of documents; they are read ahead.
      tokenizer: whose ids they get.
      num_threads: batches that are tokenized at a time.
      purpose: what it is for, if TensorFlow cannot be loaded.

    Raises:
      InputError: TensorFlow is installed without the TF-Text of its release.
    """
    return _installed(purpose).tokenize_batches(batches, tokenizer, num_threads)


def make_encode(tokenizer: Tokenizer, purpose: str) -> Encode:
    """A function that tokenizes many texts at once; packages are loaded for the first texts.

    Args:
      tokenizer: whose ids they get.
      purpose: what it is for, if TensorFlow cannot be loaded.
    """
    @functools.cache
    def loaded() -> Encode:
        return _installed(purpose).make_encode(tokenizer)

    def encode(texts: Sequence[str]) -> Tokens:
        return loaded()(texts)

    return encode


def _installed(purpose: str) -> Any:
    """The module that has `tokenize_batches` and `make_encode` for what is installed."""
    if not has_tensorflow():
        from bert_jax.corpus import tokenize_plain

        return tokenize_plain
    with loading_tensorflow(purpose):
        from bert_jax.corpus import tokenize_tensorflow
    return tokenize_tensorflow
