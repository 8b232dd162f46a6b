"""The settings of a tokenizer that stand beside its vocabulary, as Hugging Face writes them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import Path, read_json

SETTINGS_FILE, TOKENIZER_FILE = "tokenizer_config.json", "tokenizer.json"
# Classes that make their normalizer only from the fields of tokenizer_config.json.
_FROM_FIELDS = ("BertTokenizer", "BertTokenizerFast")


class Settings(NamedTuple):
    """What the files of a folder say about its tokenizer.

    Attributes:
        fields: those of tokenizer_config.json, and what the normalizer in tokenizer.json has in
            place of them.
        source: the file that says `do_lower_case` and its like, for messages.
        tokenizer: the content of tokenizer.json; None where there is none.
    """

    fields: Mapping[str, Any]
    source: Path
    tokenizer: Mapping[str, Any] | None


def read_settings(folder: Path) -> Settings:
    """The settings in a folder; none where neither file is there.

    As in transformers, the normalizer in tokenizer.json counts unless tokenizer_config.json names
    the class BertTokenizer, which makes its normalizer only from the fields of the latter file.

    Raises:
        InputError: a file is not a JSON object.
    """
    source, tokenizer_file = folder / SETTINGS_FILE, folder / TOKENIZER_FILE
    fields: dict[str, Any] = {}
    if source.exists():
        fields = read_json(source, "it describes the tokenizer")
    if not tokenizer_file.exists():
        return Settings(fields, source, None)
    tokenizer = read_json(tokenizer_file, "it describes the tokenizer")
    if fields.get("tokenizer_class") in _FROM_FIELDS or model_type(tokenizer) != "WordPiece":
        return Settings(fields, source, tokenizer)
    normalizer = tokenizer.get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        tell_once(f"note: {tokenizer_file} has a normalizer that is not BertNormalizer, which "
                  "is read as one: compare some ids")
        return Settings(fields, source, tokenizer)
    return Settings(fields | {
        "do_lower_case": normalizer.get("lowercase"),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
    }, tokenizer_file, tokenizer)


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
