"""Workers that build a token store, in processes of their own; this one, tests can kill.

    python -m tests.corpus.store_worker TEXT FOLDER [SECONDS]

Parts are small, and each batch takes SECONDS, so that there are many moments at which to kill it.
"""

import sys
import time

from bert_jax.corpus import (
    build_progress,
    store_building,
    store_parts,
    text_batches,
    tokenize,
)
from bert_jax.corpus.sources import open_source
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

LETTERS = 'abcdefghijklmnopqrstuvwxyz'


def tokenizer():
    """Of single letters."""
    pieces = [*SPECIAL_TOKENS, *LETTERS, *('##' + c for c in LETTERS), '.']
    return WordPieceTokenizer(Vocab.from_tokens(pieces), True)


def build(text, folder, seconds=0.0, report_seconds=10.0):
    """The store of a text in small parts."""
    documents_of = store_building.documents_of

    def slowly(*arguments):
        time.sleep(seconds)
        return documents_of(*arguments)

    store_building.documents_of = slowly
    tokenize.has_tensorflow = lambda: False  # starts quicker
    text_batches._BATCH_DOCUMENTS = 5
    store_building._SHARE_BYTES = 4000
    store_building._PART_BYTES = 1000
    build_progress._REPORT_SECONDS = report_seconds
    store_parts.BLOCK_TOKENS = 200
    return store_building.build_store(open_source(text), tokenizer(), folder)


def work_without_tensorflow(number):
    """What a process of a pool does; the same ids, without the seconds of importing TensorFlow."""
    tokenize.has_tensorflow = lambda: False
    store_building._work(number)


if __name__ == '__main__':
    build(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:]))
