"""Text to ids: the tokenizer of a vocabulary file, and its switches."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, read_json, write_whole
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab, read_file
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer

Tokenizer = WordPieceTokenizer | SentencePieceTokenizer
SWITCHES_FILE = "tokenizer_config.json"


def load_tokenizer(path: str | os.PathLike[str], lowercase: bool) -> Tokenizer:
    """The tokenizer of a vocabulary file.

    Args:
        path: a SentencePiece model if it ends in `.model`, else a WordPiece vocabulary. If that is
            called vocab.txt, a tokenizer_config.json beside it sets switches (`read_switches`).
        lowercase: for WordPiece; a SentencePiece model has its own normalizer.

    Raises:
        InputError: the file cannot be read, lacks a special token or holds nothing else, or the
            tokenizer_config.json is invalid.
    """
    if os.fspath(path).endswith(".model"):
        model = read_file(path, "SentencePiece model", "data.vocab_file")
        return SentencePieceTokenizer(model, str(path))
    vocab = Vocab.from_file(path)
    if len(vocab) <= len(SPECIAL_TOKENS):
        raise InputError(f"{path}: it holds only special tokens: name a whole vocabulary")
    return WordPieceTokenizer(vocab, lowercase, read_switches(path))


def read_switches(vocab_file: str | os.PathLike[str]) -> Switches:
    """The switches in the tokenizer_config.json beside a vocab.txt; without one, the original's.

    So a vocabulary keeps its switches in a Hugging Face folder and in a run directory alike.

    Raises:
        InputError: the file is not a JSON object, or a switch has a wrong type.
    """
    path = as_path(vocab_file)
    config = path.parent / SWITCHES_FILE
    if path.name != "vocab.txt" or not config.exists():
        return ORIGINAL
    return switches_of(read_json(config, "put it back"), config)


def switches_of(fields: Mapping[str, Any], source: object) -> Switches:
    """The switches among the fields of a tokenizer_config.json; those it lacks are the original's.

    Raises:
        InputError: one has a wrong type; the message names the file as `source`.
    """
    values = {field.name: fields.get(field.name, field.default)
              for field in dataclasses.fields(Switches)}
    words = values["never_split"] or ()
    for name, value in values.items():
        good = isinstance(value, bool) or value is None and name == "strip_accents"
        if name == "never_split":
            good = isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
        if not good:
            raise InputError(f"{source}: {name}={value!r} is not a value that it can have")
    return Switches(**values | {"never_split": tuple(words)})


def write_switches(folder: Path, switches: Switches) -> None:
    """Writes the switches beside the vocab.txt of a folder; the original's need no file."""
    if switches == ORIGINAL:
        (folder / SWITCHES_FILE).unlink(missing_ok=True)
    else:
        write_whole(folder / SWITCHES_FILE, json.dumps(dataclasses.asdict(switches)) + "\n")


def check_known(
    ids: np.ndarray, vocab: Vocab, text: str, vocab_file: str | os.PathLike[str] | None
) -> None:
    """Refuses a text most of whose pieces are [UNK]: nothing could be learned from it.

    Args:
        ids: of the text, or of a part of it; with or without [CLS] and [SEP].
        vocab: that the ids belong to.
        text: name of the text, for the message.
        vocab_file: name of the vocabulary, for the message.

    Raises:
        InputError: there are no words, or more than half of the pieces are [UNK].
    """
    words = ids[(ids != vocab.cls_id) & (ids != vocab.sep_id) & (ids != vocab.pad_id)]
    if not len(words):
        raise InputError(f"{text} holds no text: all of it is empty")
    unknown = float(np.mean(words == vocab.unk_id))
    if unknown > 0.5:
        raise InputError(
            f"{text}: {100 * unknown:.1f} % of its pieces are [UNK] in {vocab_file}, so there is "
            "nothing to learn from: set config.data.vocab_file to a vocabulary of its language "
            "(and config.data.lowercase as it was made)")
