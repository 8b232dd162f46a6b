"""The kinds of tokenizers: a table of their files, and whatever is one way for all of them."""

import dataclasses
import os
from collections.abc import Callable

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, exists, read_bytes, write_whole
from bert_jax.text import kmers, letters
from bert_jax.text.added import AddedToken
from bert_jax.text.huggingface import HuggingFaceTokenizer
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.settings import (
    BESIDE,
    SETTINGS_FILE,
    TOKENIZER_FILE,
    VOCABULARY_FILE,
    lowercase_of,
    read_settings,
)
from bert_jax.text.switches import read_switches, write_switches
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS, capitals_in
from bert_jax.text.vocab_files import read_file, read_text, read_vocab
from bert_jax.text.wordpiece import WordPieceTokenizer


def load_tokenizer(path: str | os.PathLike[str], lowercase: bool) -> Tokenizer:
    """The tokenizer of a vocabulary file.

    Args:
      path: of the kind that its ending says (`KINDS`), else a WordPiece vocabulary. The files
        beside a vocab.txt set switches (`read_switches`), those beside a tokenizer.json count as in
        transformers; beside a file of another name none do.
      lowercase: for WordPiece; the others have their own normalizers.

    Raises:
      InputError: the file cannot be read, lacks a special token or holds nothing else, or the
        files beside it are invalid.
    """
    return kind_of(path).read(path, lowercase)


def _read_sentencepiece(path: str | os.PathLike[str], lowercase: bool) -> Tokenizer:
    model = read_file(path, 'SentencePiece model', 'vocab_file')
    return SentencePieceTokenizer(model, str(path))


def _read_wordpiece(path: str | os.PathLike[str], lowercase: bool) -> Tokenizer:
    vocab = read_vocab(path)
    if len(vocab) <= len(SPECIAL_TOKENS):
        raise InputError(f'{path}: it holds only special tokens: name a whole vocabulary')
    return WordPieceTokenizer(vocab, lowercase, read_switches(path), vocab_name=os.fspath(path))


def _read_huggingface(path: str | os.PathLike[str], lowercase: bool) -> Tokenizer:
    content = read_text(path, 'tokenizer', 'vocab_file')
    beside = _beside(path)
    added: tuple[AddedToken, ...] = ()
    if beside:
        added = read_settings(as_path(path).parent).added_tokens
    return HuggingFaceTokenizer(content, beside, added, os.fspath(path))


def _read_letters(path: str | os.PathLike[str], lowercase: bool) -> Tokenizer:
    return letters.read_letters(path)


def _read_kmers(path: str | os.PathLike[str], lowercase: bool) -> Tokenizer:
    return kmers.read_kmers(path)


def _beside(vocab_file: str | os.PathLike[str]) -> dict[str, str]:
    """The files beside a tokenizer.json that count, by name; none beside a file of another name."""
    path = as_path(vocab_file)
    if path.name != TOKENIZER_FILE:
        return {}
    files = {}
    for name in BESIDE:
        if exists(path.parent / name):
            files[name] = read_text(path.parent / name, 'tokenizer', 'vocab_file')
    return files


def _keep_wordpiece(vocab_file: str | os.PathLike[str], folder: Path) -> None:
    write_switches(folder, read_switches(vocab_file))


def _keep_nothing(vocab_file: str | os.PathLike[str], folder: Path) -> None:
    """Nothing stands beside the file."""


def _keep_huggingface(vocab_file: str | os.PathLike[str], folder: Path) -> None:
    for name, content in _beside(vocab_file).items():
        write_whole(folder / name, content)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of tokenizer files.

    Attributes:
      ending: of the files' names; '': of any other file.
      file_name: what the file is called in a run directory.
      read: makes the tokenizer of a file, from its path and whether text is lower-cased if the
        kind leaves that open.
      keep_beside: writes what stands beside a file and belongs to the tokenizer into a folder.
    """

    ending: str
    file_name: str
    read: Callable[[str | os.PathLike[str], bool], Tokenizer]
    keep_beside: Callable[[str | os.PathLike[str], Path], None]


KINDS = (
    Kind('.model', 'vocab.model', _read_sentencepiece, _keep_nothing),
    Kind('.json', TOKENIZER_FILE, _read_huggingface, _keep_huggingface),
    Kind(letters.ENDING, f'vocab{letters.ENDING}', _read_letters, _keep_nothing),
    Kind(kmers.ENDING, f'vocab{kmers.ENDING}', _read_kmers, _keep_nothing),
    Kind('', VOCABULARY_FILE, _read_wordpiece, _keep_wordpiece),
)


# What `keep_tokenizer` may write.
TOKENIZER_FILES = frozenset((*(kind.file_name for kind in KINDS), SETTINGS_FILE, *BESIDE))


def kind_of(vocab_file: str | os.PathLike[str]) -> Kind:
    """The kind of a tokenizer's file, by its ending."""
    return next(kind for kind in KINDS if os.fspath(vocab_file).endswith(kind.ending))


def find_vocabulary(folder: Path) -> Path | None:
    """The tokenizer's file in a run directory, if there is one: vocab.txt before others."""
    for kind in reversed(KINDS):
        path = folder / kind.file_name
        if exists(path):
            return path
    return None


def keep_tokenizer(vocab_file: str | os.PathLike[str], folder: Path) -> bytes:
    """Writes a tokenizer's file, and what belongs to it, into a run directory.

    Returns:
      The content of the file.
    """
    kind = kind_of(vocab_file)
    content = read_bytes(as_path(vocab_file))
    write_whole(folder / kind.file_name, content)
    kind.keep_beside(vocab_file, folder)
    return content


def find_lowercase(
    vocab_file: str | os.PathLike[str], otherwise: bool | None = None
) -> tuple[bool, str]:
    """(Whether text is lower-cased before a vocabulary's WordPiece, what says so).

    A `do_lower_case` beside a vocab.txt decides, then `otherwise`, then whether the tokens have
    capitals. If none of these tells, text is lower-cased, as in the original.

    Args:
      vocab_file: a vocabulary, as for `load_tokenizer`.
      otherwise: the user's choice; None: none.

    Returns:
      The second is a phrase for messages; '' if it is the user's choice or nothing tells.

    Raises:
      InputError: a file cannot be read or is invalid.
    """
    path = as_path(vocab_file)
    if path.name == VOCABULARY_FILE:
        settings = read_settings(path.parent)
        says = lowercase_of(settings)
        if says is not None:
            return says, f'do_lower_case={says} in {settings.source}'
    if otherwise is not None:
        return otherwise, ''
    tokenizer = load_tokenizer(path, lowercase=True)
    vocab = tokenizer.vocab
    if tokenizer.lowercase is None or vocab.is_cased is None:
        return True, ''
    return not vocab.is_cased, capitals_in(vocab, vocab_file)
