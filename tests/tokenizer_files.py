"""A tokenizer's file of every kind, each trained on the same few texts."""

import io
from pathlib import Path

import sentencepiece

from bert_jax.corpus.wordpiece_training import train_wordpiece
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.kmers import kmer_tokens
from bert_jax.text.letters import letter_tokens
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocab_files import write_vocab
from tests import tokenizers_of_kinds
from tests.tokenizers_of_kinds import TEXTS

# Of the kinds that are not of the library `tokenizers`, what their files are called.
_FILES = {
    'wordpiece': 'vocab.txt',
    'sentencepiece': 'vocab.model',
    'letters': 'vocab.letters',
    'kmers': 'vocab.kmers',
}
LIBRARY_KINDS = tuple(tokenizers_of_kinds.KINDS)
# The kinds for languages, in which texts have words.
KINDS = ('wordpiece', 'sentencepiece', *LIBRARY_KINDS)
ALL_KINDS = (*KINDS, 'letters', 'kmers')


def write_tokenizer(kind: str, folder: Path) -> Path:
    """Writes the file of one of `ALL_KINDS` into a folder, and returns its path."""
    if kind not in _FILES:
        return tokenizers_of_kinds.write(folder, tokenizers_of_kinds.KINDS[kind]())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _FILES[kind]
    if kind == 'wordpiece':
        write_vocab(path, train_wordpiece(TEXTS, 400, lowercase=False))
    elif kind == 'sentencepiece':
        path.write_bytes(_sentencepiece_model())
    elif kind == 'letters':
        write_vocab(path, letter_tokens())
    else:
        write_vocab(path, kmer_tokens(2))
    return path


def write_tokenizer_of(num_tokens: int, kind: str, folder: Path) -> Path:
    """Writes a tokenizer.json of one of `LIBRARY_KINDS` with so many tokens, and returns its path.

    Some of them no text has. Models with tokenizers of one size share what is compiled.
    """
    library = tokenizers_of_kinds.KINDS[kind]()
    library.add_tokens([f'unseen{n}' for n in range(num_tokens - library.get_vocab_size())])
    assert library.get_vocab_size() == num_tokens
    return tokenizers_of_kinds.write(folder, library)


def tokenizer_of(kind: str, folder: Path) -> Tokenizer:
    """A tokenizer of one of `ALL_KINDS`; its file is written into a folder."""
    return load_tokenizer(write_tokenizer(kind, folder), lowercase=False)


def _sentencepiece_model() -> bytes:
    """A model whose special tokens are not found in texts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=300, minloglevel=2,
        hard_vocab_limit=False, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols=['[CLS]', '[SEP]', '[MASK]'])
    return model.getvalue()
