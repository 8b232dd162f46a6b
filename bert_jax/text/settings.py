"""The settings of a tokenizer that stand beside its vocabulary, as Hugging Face writes them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import Path, read_json
from bert_jax.text.added import AddedToken, added_tokens_of
from bert_jax.text.vocab import CLS, CONTINUATION, MASK, PAD, SEP, UNK

SETTINGS_FILE, TOKENIZER_FILE = 'tokenizer_config.json', 'tokenizer.json'
_ADDED_FILE, _SPECIAL_FILE = 'added_tokens.json', 'special_tokens_map.json'
ANY = object()  # of a setting that is applied, or that changes nothing whatever it is
# Settings that are read here or elsewhere in the project, or change no ids at these values.
_FIELDS: Mapping[str, Any] = dict.fromkeys((
    'do_lower_case', 'strip_accents', 'tokenize_chinese_chars', 'do_basic_tokenize', 'never_split',
    'added_tokens_decoder', 'additional_special_tokens', 'extra_special_tokens', 'model_max_length',
    'tokenizer_class', 'bos_token', 'eos_token', 'name_or_path', 'special_tokens_map_file',
    'tokenizer_file', 'vocab_file', 'clean_up_tokenization_spaces', 'backend', 'is_local',
    'local_files_only', 'use_fast', 'transformers_version', 'processor_class', 'model_type',
    'cache_dir', 'revision', 'max_len', 'model_specific_special_tokens',
    # Arguments of a call, which whoever calls decides.
    'max_length', 'padding', 'truncation', 'truncation_strategy', 'stride', 'pad_to_multiple_of',
    'pad_to_max_length', 'return_tensors', 'pad_token_type_id', 'add_special_tokens',
), ANY) | {
    'pad_token': PAD, 'unk_token': UNK, 'cls_token': CLS, 'sep_token': SEP, 'mask_token': MASK,
    'padding_side': 'right', 'truncation_side': 'right', 'wordpieces_prefix': CONTINUATION,
    'model_input_names': ['input_ids', 'token_type_ids', 'attention_mask']}
_PARTS: Mapping[str, Any] = dict.fromkeys((
    'version', 'truncation', 'padding', 'added_tokens', 'normalizer', 'pre_tokenizer',
    'post_processor', 'decoder', 'model'), ANY)
# `max_input_chars_per_word` is 200 here, as in the original.
_PARTS_OF: Mapping[str, Mapping[str, Any]] = {
    'pre_tokenizer': {'type': 'BertPreTokenizer'},
    'model': {'type': 'WordPiece', 'vocab': ANY, 'max_input_chars_per_word': ANY,
              'unk_token': UNK, 'continuing_subword_prefix': CONTINUATION}}
# Classes that make their normalizer only from the fields of tokenizer_config.json.
_FROM_FIELDS = ('BertTokenizer', 'BertTokenizerFast')


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
        read_json(path, 'it describes the tokenizer') if (path := folder / name).exists() else None
        for name in (SETTINGS_FILE, TOKENIZER_FILE, _ADDED_FILE, _SPECIAL_FILE))
    fields = fields or {}
    normalizer = _normalizer(fields, tokenizer, folder / TOKENIZER_FILE)
    source = folder / (TOKENIZER_FILE if normalizer else SETTINGS_FILE)
    listed = tokenizer.get('added_tokens') if tokenizer else ()
    added = added_tokens_of(
        (special or {}) | fields, listed if isinstance(listed, list) else (), numbered or {},
        folder)
    return Settings(fields | normalizer, source, tokenizer, added)


def _normalizer(
    fields: Mapping[str, Any], tokenizer: Mapping[str, Any] | None, tokenizer_file: Path
) -> dict[str, Any]:
    """The fields that the normalizer in a tokenizer.json has, if it counts."""
    if tokenizer is None or fields.get('tokenizer_class') in _FROM_FIELDS or (
            model_type(tokenizer) != 'WordPiece'):
        return {}
    normalizer = tokenizer.get('normalizer')
    if not isinstance(normalizer, dict) or normalizer.get('type') != 'BertNormalizer':
        tell_once(f'note: {tokenizer_file} has a normalizer that is not BertNormalizer, which '
                  'is read as one: compare some ids')
        return {}
    return {
        'do_lower_case': normalizer.get('lowercase'),
        'strip_accents': normalizer.get('strip_accents'),
        'tokenize_chinese_chars': normalizer.get('handle_chinese_chars', True)}


def model_type(tokenizer: Mapping[str, Any]) -> str:
    """The algorithm of a tokenizer.json: WordPiece, where it names none."""
    model = tokenizer.get('model')
    return str(model.get('type', 'WordPiece')) if isinstance(model, dict) else 'WordPiece'


def lowercase_of(settings: Settings) -> bool | None:
    """`do_lower_case`; None where nothing says it.

    Raises:
        InputError: it is neither true nor false.
    """
    value = settings.fields.get('do_lower_case')
    if value is not None and not isinstance(value, bool):
        raise InputError(f'{settings.source}: do_lower_case={value!r} is neither true nor false')
    return value


def not_applied(fields: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """The settings of a file, as NAME=VALUE, that are neither empty nor known to change nothing.

    Args:
        fields: the file's content.
        known: for each setting that the file may have, the value at which it changes nothing, or
            `ANY`.
    """
    return [f'{name}={value!r:.60}' for name, value in fields.items()
            if value not in (None, False, '', [], {})
            and (name not in known or known[name] is not ANY and value != known[name])]


def tell_not_applied(settings: Settings, folder: Path) -> None:
    """Notes the settings of a folder's tokenizer that are not applied, a line each."""
    for name, found in (
            (SETTINGS_FILE, not_applied(
                {name: _content(value) for name, value in settings.fields.items()}, _FIELDS)),
            (TOKENIZER_FILE, _other_parts(settings.tokenizer or {}))):
        for setting in found:
            tell_once(f'note: {folder / name}: {setting} is not applied')


def _content(value: Any) -> Any:
    """A token's text, where its flags stand with it."""
    return value['content'] if isinstance(value, dict) and 'content' in value else value


def _other_parts(tokenizer: Mapping[str, Any]) -> list[str]:
    """The settings of a tokenizer.json that are neither empty nor BERT's."""
    if model_type(tokenizer) != 'WordPiece':
        return []
    found = not_applied(tokenizer, _PARTS)
    for part, known in _PARTS_OF.items():
        fields = tokenizer.get(part)
        if isinstance(fields, dict):
            found += [f'{part}.{setting}' for setting in not_applied(fields, known)]
    normalizer = tokenizer.get('normalizer')
    if isinstance(normalizer, dict) and normalizer.get('clean_text') is False:
        found.append('normalizer.clean_text=False')
    processor = tokenizer.get('post_processor')
    template = processor.get('single') if isinstance(processor, dict) else None
    if isinstance(template, list):
        ids = [str(value.get('id')) for item in template if isinstance(item, dict)
               for value in item.values() if isinstance(value, dict)]
        if ids != [CLS, 'A', SEP]:
            found.append(f"post_processor.single={' '.join(ids)!r:.60}")
    return found
