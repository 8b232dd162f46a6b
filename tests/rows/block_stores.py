"""Finished token stores that are written directly, without text."""

import json

import numpy as np

from bert_jax.rows.blocks import INDEX_DTYPE, Block
from bert_jax.rows.store import (
    BLOCKS_ENDING,
    FORMAT_VERSION,
    HELD_OUT,
    INDEX,
    LEFT_OUT,
    MANIFEST,
    TOKEN_COUNTS,
    TokenStore,
    described_file,
)

_BLOCKS_A_PART = 256


def write_store(folder, blocks, vocab_size, held_out=None, left_out=()):
    """Writes a store of the blocks and opens it.

    Args:
      folder: to be made.
      blocks: an iterable, so that a store may be larger than the memory.
      vocab_size: of its tokens.
      held_out: the block of documents to evaluate on; None: the first block's.
      left_out: numbers of documents that are not to be used.
    """
    folder.mkdir(parents=True)
    entries = []
    parts = {}
    counts = {'num_tokens': 0, 'num_sentences': 0, 'num_documents': 0}
    for number, block in enumerate(blocks):
        if held_out is None:
            held_out = block
        part = number // _BLOCKS_A_PART
        name = f'part-{part:05}-000'
        offset = parts.get(name, 0)
        content = block.to_bytes()
        with open(folder / f'{name}{BLOCKS_ENDING}', 'ab') as file:
            file.write(content)
        entries.append(block.entry(part, offset, content))
        parts[name] = offset + len(content)
        counts['num_tokens'] += len(block.tokens)
        counts['num_sentences'] += len(block.sentence_lengths)
        counts['num_documents'] += len(block.document_lengths)
    is_left_out = np.zeros(counts['num_documents'], bool)
    is_left_out[list(left_out)] = True
    contents = {
        INDEX: np.concatenate(entries).astype(INDEX_DTYPE).tobytes(),
        LEFT_OUT: np.packbits(is_left_out, bitorder='little').tobytes(),
        HELD_OUT: held_out.to_bytes(),
        TOKEN_COUNTS: np.ones(vocab_size, '<i8').tobytes(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    manifest = {
        'format_version': FORMAT_VERSION,
        'fingerprint': folder.name,
        'source': 'written directly',
        'source_fingerprint': '',
        'tokenizer_fingerprint': '',
        'vocab_size': vocab_size,
        'num_blocks': len(entries),
        'num_duplicates': len(left_out),
        'text_bytes': 0,
        'repeated_share': 0.0,
        **counts,
        'parts': parts,
        'files': {name: described_file(content) for name, content in contents.items()},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return TokenStore.open(folder)


def random_block(
    rng, num_tokens, vocab_size=30_000, mean_sentence=22, mean_document=24, first_id=100
):
    """A block of random documents of at least so many tokens together."""
    num_sentences = num_tokens // mean_sentence + 1
    sentences = rng.geometric(1 / mean_sentence, num_sentences).astype(np.uint32)
    documents = []
    left = num_sentences
    while left:
        length = min(left, int(rng.geometric(1 / mean_document)))
        documents.append(length)
        left -= length
    tokens = rng.integers(first_id, vocab_size, sentences.sum(), np.uint16)
    return Block(
        tokens, sentences, np.array(documents, np.uint32),
        rng.integers(0, 2**64, len(documents), np.uint64))
