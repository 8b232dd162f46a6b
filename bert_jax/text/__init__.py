"""Text to ids: the tokenizer of a vocabulary file, and its switches."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, exists, read_bytes, write_whole
from bert_jax.text import kmers, letters
from bert_jax.text.added import AddedToken, fields_of
from bert_jax.text.huggingface import HuggingFaceTokenizer
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.settings import (
    BESIDE,
    SETTINGS_FILE,
    TOKENIZER_FILE,
    lowercase_of,
    read_settings,
)
from bert_jax.text.tokenizer import Tokenizer as Tokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab, read_file, read_text
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer

VOCABULARY_FILE = 'vocab.txt'
# Shares of [UNK] among the pieces of a text: more than the first is worth a warning where the
# vocabulary lacks the case of the text, more than the second in any text, and more than the third
# leaves nothing to learn.
_WARNED_IN_OTHER_CASE = 0.01
_WARNED = 0.05
_REFUSED = 0.5


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
    vocab = Vocab.from_file(path)
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


def read_switches(vocab_file: str | os.PathLike[str]) -> Switches:
    """The switches that stand beside a vocab.txt; where none do, the original's.

    So a vocabulary keeps its switches in a Hugging Face folder and in a run directory alike.

    Raises:
      InputError: a file is not a JSON object, or a switch has a wrong type.
    """
    path = as_path(vocab_file)
    if path.name != VOCABULARY_FILE:
        return ORIGINAL
    settings = read_settings(path.parent)
    return dataclasses.replace(
        switches_of(settings.fields, settings.source), added_tokens=settings.added_tokens)


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
    return not vocab.is_cased, _capitals(vocab, vocab_file)


def _capitals(vocab: Vocab, vocab_file: object) -> str:
    return f'{vocab.num_with_capitals:,} of the {len(vocab):,} pieces of {vocab_file} have capitals'


def switches_of(fields: Mapping[str, Any], source: object) -> Switches:
    """The switches among the fields of a tokenizer_config.json; those it lacks are the original's.

    Without added tokens, which other files name too.

    Raises:
      InputError: one has a wrong type; the message names the file as `source`.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Switches):
        if field.name != 'added_tokens':
            values[field.name] = fields.get(field.name, field.default)
    for name, value in values.items():
        if not _is_allowed(name, value):
            raise InputError(f'{source}: {name}={value!r} is not a value that it can have')
    values['never_split'] = tuple(values['never_split'] or ())
    return Switches(**values)


def _is_allowed(switch: str, value: Any) -> bool:
    """Whether a switch can have a value."""
    if switch == 'never_split':
        words = value or ()
        return isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
    if switch == 'strip_accents' and value is None:
        return True
    return isinstance(value, bool)


def write_switches(folder: Path, switches: Switches) -> None:
    """Writes the switches beside the vocab.txt of a folder; the original's need no file."""
    if switches == ORIGINAL:
        (folder / SETTINGS_FILE).unlink(missing_ok=True)
    else:
        write_whole(folder / SETTINGS_FILE, settings_content(switches))


def settings_content(switches: Switches) -> str:
    """The tokenizer_config.json that has these switches."""
    fields = dataclasses.asdict(dataclasses.replace(switches, added_tokens=()))
    del fields['added_tokens']
    return json.dumps(fields | fields_of(switches.added_tokens)) + '\n'


def check_known(
    ids: np.ndarray, tokenizer: Tokenizer, text: str, vocab_file: str | os.PathLike[str] | None
) -> None:
    """Warns of what a text or its vocabulary loses, and refuses a text that is mostly [UNK].

    Args:
      ids: of the text, or of a part of it; with or without [CLS] and [SEP].
      tokenizer: made the ids.
      text: name of the text, for the message.
      vocab_file: name of the vocabulary, for the message.

    Raises:
      InputError: there are no words, or more than half of the pieces are [UNK]: nothing could be
        learned from it.
    """
    vocab = tokenizer.vocab
    is_piece = (ids != vocab.cls_id) & (ids != vocab.sep_id) & (ids != vocab.pad_id)
    pieces = ids[is_piece]
    if not len(pieces):
        raise InputError(f'{text} holds no text: all of it is empty')
    unknown = 0.0
    if vocab.unk_id is not None:
        unknown = float(np.mean(pieces == vocab.unk_id))
    share = f'{text}: {100 * unknown:.1f} % of its pieces are [UNK] in {vocab_file}'
    if unknown > _REFUSED:
        raise InputError(
            f'{share}, so there is nothing to learn from: set config.data.vocab_file to a '
            'vocabulary of its language (and config.data.lowercase as it was made)')
    if tokenizer.lowercase is True and vocab.is_cased:
        hosts.say(f'warning: {_capitals(vocab, vocab_file)}, and none of these is ever used, as '
                  'config.data.lowercase=True: set it to False')
    elif (tokenizer.lowercase is False and vocab.is_cased is False
            and unknown > _WARNED_IN_OTHER_CASE):
        hosts.say(f'warning: {share}, whose pieces have no capitals, while '
                  'config.data.lowercase=False keeps those of the text: set it to True')
    elif unknown > _WARNED:
        hosts.say(f'warning: {share}, and are lost: take a vocabulary or a model of its language '
                  '(config.data.vocab_file, config.init_checkpoint)')
