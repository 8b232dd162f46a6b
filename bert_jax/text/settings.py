"""The settings of a tokenizer that stand beside its vocabulary, as Hugging Face writes them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import Path, read_json
from bert_jax.text.added import AddedToken, added_tokens_of

SETTINGS_FILE, TOKENIZER_FILE = "tokenizer_config.json", "tokenizer.json"
_ADDED_FILE, _SPECIAL_FILE = "added_tokens.json", "special_tokens_map.json"
# Classes that make their normalizer only from the fields of tokenizer_config.json.
_FROM_FIELDS = ("BertTokenizer", "BertTokenizerFast")


class Settings(NamedTuple):
    """What the files of a folder say about its tokenizer.

    Attributes:
        fields: those of tokenizer_config.json, and what the normalizer in tokenizer.json has in
            place of them.
        source: the file that says `do_lower_case` and its like, for messages.
        tokenizer: the content of tokenizer.json; None where there is none.
        added_tokens: tokens that were added to the vocabulary.
    """

    fields: Mapping[str, Any]
    source: Path
    tokenizer: Mapping[str, Any] | None
    added_tokens: tuple[AddedToken, ...] = ()


def read_settings(folder: Path) -> Settings:
    """The settings in a folder; none where none of the files is there.

    As in transformers, the normalizer in tokenizer.json counts unless tokenizer_config.json names
    the class BertTokenizer, which makes its normalizer only from the fields of the latter file.

    Raises:
        InputError: a file is not a JSON object, or lists added tokens that cannot be read.
    """
    fields, tokenizer, numbered, special = (
        read_json(path, "it describes the tokenizer") if (path := folder / name).exists() else None
        for name in (SETTINGS_FILE, TOKENIZER_FILE, _ADDED_FILE, _SPECIAL_FILE))
    fields = fields or {}
    normalizer = _normalizer(fields, tokenizer, folder / TOKENIZER_FILE)
    source = folder / (TOKENIZER_FILE if normalizer else SETTINGS_FILE)
    listed = tokenizer.get("added_tokens") if tokenizer else ()
    added = added_tokens_of(
        (special or {}) | fields, listed if isinstance(listed, list) else (), numbered or {},
        folder)
    return Settings(fields | normalizer, source, tokenizer, added)


def _normalizer(
    fields: Mapping[str, Any], tokenizer: Mapping[str, Any] | None, tokenizer_file: Path
) -> dict[str, Any]:
    """The fields that the normalizer in a tokenizer.json has, if it counts."""
    if tokenizer is None or fields.get("tokenizer_class") in _FROM_FIELDS or (
            model_type(tokenizer) != "WordPiece"):
        return {}
    normalizer = tokenizer.get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        tell_once(f"note: {tokenizer_file} has a normalizer that is not BertNormalizer, which "
                  "is read as one: compare some ids")
        return {}
    return {
        "do_lower_case": normalizer.get("lowercase"),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True)}


def model_type(tokenizer: Mapping[str, Any]) -> str:
    """The algorithm of a tokenizer.json: WordPiece, where it names none."""
    model = tokenizer.get("model")
    return str(model.get("type", "WordPiece")) if isinstance(model, dict) else "WordPiece"


def lowercase_of(settings: Settings) -> bool | None:
    """`do_lower_case`; None where nothing says it.

    Raises:
        InputError: it is neither true nor false.
    """
    value = settings.fields.get("do_lower_case")
    if value is not None and not isinstance(value, bool):
        raise InputError(f"{settings.source}: do_lower_case={value!r} is neither true nor false")
    return value
