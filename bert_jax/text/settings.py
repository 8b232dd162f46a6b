"""The settings of a tokenizer that stand beside its vocabulary, as Hugging Face writes them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import Path, exists, read_json
from bert_jax.text.added import AddedToken, added_tokens_of
from bert_jax.text.vocab import CLS, CONTINUATION, MASK, PAD, SEP, UNK

SETTINGS_FILE = 'tokenizer_config.json'
TOKENIZER_FILE = 'tokenizer.json'
_ADDED_FILE = 'added_tokens.json'
_SPECIAL_FILE = 'special_tokens_map.json'
BESIDE = (SETTINGS_FILE, _SPECIAL_FILE, _ADDED_FILE)  # files that count beside a tokenizer.json
ANY = object()  # of a setting that is applied, or that changes nothing whatever it is
_EMPTY: tuple[Any, ...] = (None, False, '', [], {})  # values at which no setting changes anything

# Settings of tokenizer_config.json that are read here or elsewhere in the project.
_APPLIED = (
    'do_lower_case', 'strip_accents', 'tokenize_chinese_chars', 'do_basic_tokenize', 'never_split',
    'added_tokens_decoder', 'additional_special_tokens', 'extra_special_tokens', 'model_max_length',
)
# Those that change no ids.
_WITHOUT_EFFECT = (
    'tokenizer_class', 'bos_token', 'eos_token', 'name_or_path', 'special_tokens_map_file',
    'tokenizer_file', 'vocab_file', 'clean_up_tokenization_spaces', 'backend', 'is_local',
    'local_files_only', 'use_fast', 'transformers_version', 'processor_class', 'model_type',
    'cache_dir', 'revision', 'max_len', 'model_specific_special_tokens',
)
# Arguments of a call, which whoever calls decides.
_OF_A_CALL = (
    'max_length', 'padding', 'truncation', 'truncation_strategy', 'stride', 'pad_to_multiple_of',
    'pad_to_max_length', 'return_tensors', 'pad_token_type_id', 'add_special_tokens',
)
# By file or part of a file: the values at which its settings change nothing.
_KNOWN_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys((*_APPLIED, *_WITHOUT_EFFECT, *_OF_A_CALL), ANY),
    'pad_token': PAD,
    'unk_token': UNK,
    'cls_token': CLS,
    'sep_token': SEP,
    'mask_token': MASK,
    'padding_side': 'right',
    'truncation_side': 'right',
    'wordpieces_prefix': CONTINUATION,
    'model_input_names': ['input_ids', 'token_type_ids', 'attention_mask'],
}
_KNOWN_PARTS: Mapping[str, Any] = dict.fromkeys((
    'version', 'truncation', 'padding', 'added_tokens', 'normalizer', 'pre_tokenizer',
    'post_processor', 'decoder', 'model'), ANY)
_KNOWN_IN_PARTS: Mapping[str, Mapping[str, Any]] = {
    'pre_tokenizer': {'type': 'BertPreTokenizer'},
    'model': {
        'type': 'WordPiece',
        'vocab': ANY,
        'max_input_chars_per_word': ANY,  # 200 here, as in the original
        'unk_token': UNK,
        'continuing_subword_prefix': CONTINUATION,
    },
}
_BERTS_PARTS = {'normalizer': 'BertNormalizer', 'pre_tokenizer': 'BertPreTokenizer'}
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

    @property
    def is_berts(self) -> bool:
        """Whether tokenizer.json, if there is one, is BERT's WordPiece, which `wordpiece` has too.

        Parts that it leaves out count as BERT's. The class BertTokenizer makes its normalizer and
        pre-tokenizer itself.
        """
        tokenizer = self.tokenizer
        if tokenizer is None:
            return True
        if model_type(tokenizer) != 'WordPiece':
            return False
        if self.fields.get('tokenizer_class') in _FROM_FIELDS:
            return True
        types = [_type_of(tokenizer, part) for part in _BERTS_PARTS]
        return types == list(_BERTS_PARTS.values())


def _type_of(tokenizer: Mapping[str, Any], part: str) -> Any:
    """The type of a part of a tokenizer.json; BERT's where it has no such part."""
    if part not in tokenizer:
        return _BERTS_PARTS[part]
    found = tokenizer[part]
    return found.get('type') if isinstance(found, dict) else None


def read_settings(folder: Path) -> Settings:
    """The settings in a folder; none where none of the files is there.

    As in transformers, the normalizer in tokenizer.json counts unless tokenizer_config.json names
    the class BertTokenizer, which makes its normalizer only from the fields of the latter file.

    Raises:
      InputError: a file is not a JSON object, or lists added tokens that cannot be read.
    """
    fields = _read_if_there(folder / SETTINGS_FILE) or {}
    tokenizer = _read_if_there(folder / TOKENIZER_FILE)
    numbered = _read_if_there(folder / _ADDED_FILE) or {}
    special = _read_if_there(folder / _SPECIAL_FILE) or {}
    normalizer = _normalizer(fields, tokenizer)
    source = folder / (TOKENIZER_FILE if normalizer else SETTINGS_FILE)
    listed = (tokenizer or {}).get('added_tokens')
    if not isinstance(listed, list):
        listed = []
    added = added_tokens_of(special | fields, listed, numbered, folder)
    return Settings(fields | normalizer, source, tokenizer, added)


def _read_if_there(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is no such file."""
    if not exists(path):
        return None
    return read_json(path, 'it describes the tokenizer')


def _normalizer(
    fields: Mapping[str, Any], tokenizer: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The fields that the normalizer in a tokenizer.json has, if it counts."""
    if tokenizer is None or model_type(tokenizer) != 'WordPiece':
        return {}
    if fields.get('tokenizer_class') in _FROM_FIELDS:
        return {}
    normalizer = tokenizer.get('normalizer')
    if not isinstance(normalizer, dict) or normalizer.get('type') != 'BertNormalizer':
        return {}
    return {
        'do_lower_case': normalizer.get('lowercase'),
        'strip_accents': normalizer.get('strip_accents'),
        'tokenize_chinese_chars': normalizer.get('handle_chinese_chars', True)}


def model_type(tokenizer: Mapping[str, Any]) -> str:
    """The algorithm of a tokenizer.json: WordPiece, where it names none."""
    model = tokenizer.get('model')
    if not isinstance(model, dict):
        return 'WordPiece'
    return str(model.get('type', 'WordPiece'))


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
    found = []
    for name, value in fields.items():
        if value in _EMPTY:
            continue
        if name in known and (known[name] is ANY or value == known[name]):
            continue
        found.append(f'{name}={value!r:.60}')
    return found


def tell_not_applied(settings: Settings, folder: Path) -> None:
    """Notes the settings of a folder's tokenizer that are not applied, a line each.

    Of a tokenizer.json that is not BERT's, the library applies all.
    """
    if not settings.is_berts:
        return
    fields = {name: _content(value) for name, value in settings.fields.items()}
    for setting in not_applied(fields, _KNOWN_FIELDS):
        tell_once(f'note: {folder / SETTINGS_FILE}: {setting} is not applied')
    if settings.tokenizer is not None:
        for setting in _not_applied_parts(settings.tokenizer):
            tell_once(f'note: {folder / TOKENIZER_FILE}: {setting} is not applied')


def _content(value: Any) -> Any:
    """A token's text, where its flags stand with it; any other value as it is."""
    if isinstance(value, dict) and 'content' in value:
        return value['content']
    return value


def _not_applied_parts(tokenizer: Mapping[str, Any]) -> list[str]:
    """The settings of a tokenizer.json that are neither empty nor BERT's."""
    found = not_applied(tokenizer, _KNOWN_PARTS)
    for part, known in _KNOWN_IN_PARTS.items():
        fields = tokenizer.get(part)
        if isinstance(fields, dict):
            found += [f'{part}.{setting}' for setting in not_applied(fields, known)]
    normalizer = tokenizer.get('normalizer')
    if isinstance(normalizer, dict) and normalizer.get('clean_text') is False:
        found.append('normalizer.clean_text=False')
    template = _sequence_template(tokenizer)
    if template is not None and template != [CLS, 'A', SEP]:
        found.append(f"post_processor.single={' '.join(template)!r:.60}")
    return found


def _sequence_template(tokenizer: Mapping[str, Any]) -> list[str] | None:
    """What a tokenizer.json makes of one sequence, `A`; None where it does not say so."""
    processor = tokenizer.get('post_processor')
    if not isinstance(processor, dict) or not isinstance(processor.get('single'), list):
        return None
    ids = []
    for item in processor['single']:
        if isinstance(item, dict):
            values = [value for value in item.values() if isinstance(value, dict)]
            ids += [str(value.get('id')) for value in values]
    return ids
