"""The settings of a tokenizer that stand beside its vocabulary, as Hugging Face writes them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import Path, exists, read_json
from bert_jax.text.added import AddedToken, added_tokens_of
from bert_jax.text.classes import changed_by_class, makes_others_parts
from bert_jax.text.vocab import CLS, CONTINUATION, MASK, PAD, SEP, UNK

VOCABULARY_FILE = 'vocab.txt'
SETTINGS_FILE = 'tokenizer_config.json'
TOKENIZER_FILE = 'tokenizer.json'
_ADDED_FILE = 'added_tokens.json'
_SPECIAL_FILE = 'special_tokens_map.json'
_CHAT_FILE = 'chat_template.jinja'
BESIDE = (SETTINGS_FILE, _SPECIAL_FILE, _ADDED_FILE)  # files that count beside a tokenizer.json
ANY = object()  # of a setting that is applied, or that changes nothing whatever it is
_EMPTY: tuple[Any, ...] = (None, False, '', [], {})  # values at which no setting changes anything

# Settings of tokenizer_config.json that are read here or elsewhere in the project.
_APPLIED = (
    'do_lower_case', 'strip_accents', 'tokenize_chinese_chars', 'do_basic_tokenize', 'never_split',
    'added_tokens_decoder', 'additional_special_tokens', 'extra_special_tokens', 'model_max_length',
    'max_len', 'truncation_side', 'split_special_tokens', 'model_input_names',
)
# Those that change no ids.
_WITHOUT_EFFECT = (
    'tokenizer_class', 'bos_token', 'eos_token', 'name_or_path', 'special_tokens_map_file',
    'tokenizer_file', 'vocab_file', 'clean_up_tokenization_spaces', 'backend', 'is_local',
    'local_files_only', 'use_fast', 'transformers_version', 'processor_class', 'model_type',
    'cache_dir', 'revision', 'model_specific_special_tokens',
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
    'wordpieces_prefix': CONTINUATION,
}
_ROLES = ('pad_token', 'unk_token', 'cls_token', 'sep_token', 'mask_token')
# Settings that are applied to no kind of tokenizer, with the values at which they change nothing.
_OF_NO_KIND: Mapping[str, Any] = {'padding_side': 'right'}
_KNOWN_PARTS: Mapping[str, Any] = dict.fromkeys((
    'version', 'truncation', 'padding', 'added_tokens', 'normalizer', 'pre_tokenizer',
    'post_processor', 'decoder', 'model'), ANY)
_KNOWN_IN_PARTS: Mapping[str, Mapping[str, Any]] = {
    'pre_tokenizer': {'type': 'BertPreTokenizer'},
    'model': {
        'type': 'WordPiece',
        'vocab': ANY,
        'max_input_chars_per_word': ANY,  # `_not_berts` has it
        'unk_token': UNK,
        'continuing_subword_prefix': CONTINUATION,
    },
}
_BERTS_SINGLE = f'{CLS}:0 A:0 {SEP}:0'
_BERTS_PAIR = f'{CLS}:0 A:0 {SEP}:0 B:1 {SEP}:1'
_BERTS_PARTS = {'normalizer': 'BertNormalizer', 'pre_tokenizer': 'BertPreTokenizer'}
# Classes that make all but the vocabulary from the fields of tokenizer_config.json.
_FROM_FIELDS = tuple(
    f'{name}Tokenizer{ending}'
    for name in ('Bert', 'DistilBert', 'Electra', 'MobileBert', 'LayoutLM', 'Lxmert', 'SqueezeBert')
    for ending in ('', 'Fast'))
# The classes that transformers takes of models where no file names one.
_CLASSES_OF_MODELS: Mapping[str, str] = {
    **dict.fromkeys(('bert', 'distilbert', 'electra', 'nomic_bert'), 'BertTokenizer'),
    'roberta': 'RobertaTokenizer',
    **dict.fromkeys(('xlm-roberta', 'jina_embeddings_v3', 'gte'), 'XLMRobertaTokenizer'),
    'camembert': 'CamembertTokenizer',
    'mpnet': 'MPNetTokenizer',
    'albert': 'AlbertTokenizer',
}
# The most characters of a word that is split: of the library, if nobody sets another, and of the
# original. Here it is 200 in both cases.
_USUAL_WORD_LENGTHS = (None, 100, 200)


class Settings(NamedTuple):
    """The settings of a tokenizer, from the files of its folder.

    Attributes:
      fields: those of tokenizer_config.json, and what the normalizer in tokenizer.json has in
        place of them.
      source: the file that says `do_lower_case` and its like, for messages.
      tokenizer: the content of tokenizer.json; None where there is none.
      added_tokens: tokens that were added to the vocabulary.
      lacks_class: whether no file names a class, and the model is one that has BertTokenizer then.
    """

    fields: Mapping[str, Any]
    source: Path
    tokenizer: Mapping[str, Any] | None
    added_tokens: tuple[AddedToken, ...] = ()
    lacks_class: bool = False

    @property
    def is_berts(self) -> bool:
        """Whether tokenizer.json, if there is one, is BERT's WordPiece, which `wordpiece` has too.

        Parts that it leaves out count as BERT's. The class BertTokenizer makes all but the
        vocabulary itself.
        """
        tokenizer = self.tokenizer
        if tokenizer is None:
            return True
        if model_type(tokenizer) != 'WordPiece':
            return False
        if self.fields.get('tokenizer_class') in _FROM_FIELDS:
            return True
        if makes_others_parts(self.fields):
            return False
        types = [_type_of(tokenizer, part) for part in _BERTS_PARTS]
        if types != list(_BERTS_PARTS.values()):
            return False
        return self.lacks_class or not _not_applied_parts(tokenizer)

    @property
    def makes_frame(self) -> bool:
        """Whether transformers' class puts special tokens around texts, whatever a file says."""
        return self.lacks_class or self.fields.get('tokenizer_class') in _FROM_FIELDS


def _not_berts(tokenizer: Mapping[str, Any]) -> list[str]:
    """The settings of a WordPiece tokenizer.json that BERT's tokenizer here does not have.

    They are its template, ids of special tokens that are not those of its vocabulary, and the most
    characters of a word.
    """
    found = []
    length = _part(tokenizer, 'model').get('max_input_chars_per_word')
    if length not in _USUAL_WORD_LENGTHS:
        found.append(f'model.max_input_chars_per_word={length!r:.60}')
    processor = _part(tokenizer, 'post_processor')
    kind = processor.get('type')
    if kind == 'BertProcessing':
        ends = [_first_of(processor.get(name)) for name in ('cls', 'sep')]
        if ends != [CLS, SEP]:
            found.append(f'post_processor={processor!r:.60}')
    elif kind == 'TemplateProcessing':
        for name, berts in (('single', _BERTS_SINGLE), ('pair', _BERTS_PAIR)):
            template = _template(processor.get(name))
            if template != berts.split():
                found.append(f"post_processor.{name}={' '.join(template)!r:.60}")
    elif kind is not None:
        found.append(f'post_processor.type={kind!r:.60}')
    id_of = _part(_part(tokenizer, 'model'), 'vocab')
    for token, stated in _ids_around_texts(processor).items():
        if token in id_of and stated != id_of[token]:
            found.append(f'post_processor: {token}={stated!r:.60}')
    return found


def _ids_around_texts(processor: Mapping[str, Any]) -> dict[str, Any]:
    """The ids that a post-processor gives [CLS] and [SEP], as far as it states them."""
    found: dict[str, Any] = {}
    for entry in (processor.get('cls'), processor.get('sep')):
        if isinstance(entry, list) and len(entry) == 2 and entry[0] in (CLS, SEP):
            found[entry[0]] = entry[1]
    for token in (CLS, SEP):
        ids = _part(_part(processor, 'special_tokens'), token).get('ids')
        if isinstance(ids, list):
            found[token] = ids[0] if len(ids) == 1 else ids
    return found


def _part(tokenizer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a tokenizer.json; an empty one where it is none."""
    part = tokenizer.get(name)
    return part if isinstance(part, dict) else {}


def _first_of(entry: Any) -> Any:
    """The first item of a list; None if it is empty, or no list."""
    return entry[0] if isinstance(entry, list) and entry else None


def _template(items: Any) -> list[str]:
    """A template of a tokenizer.json, as `[CLS]:0`, `A:0`, ... ; empty where it is none."""
    found = []
    for item in items if isinstance(items, list) else ():
        for value in item.values() if isinstance(item, dict) else ():
            if isinstance(value, dict):
                found.append(f"{value.get('id')}:{value.get('type_id')}")
    return found


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
    side = _side_of(tokenizer or {})
    numbered = _read_if_there(folder / _ADDED_FILE) or {}
    special = _read_if_there(folder / _SPECIAL_FILE) or {}
    normalizer = _normalizer(fields, tokenizer)
    source = folder / (TOKENIZER_FILE if normalizer else SETTINGS_FILE)
    listed = (tokenizer or {}).get('added_tokens')
    if not isinstance(listed, list):
        listed = []
    added = added_tokens_of(special | fields, listed, numbered, folder)
    lacks_class = False
    if tokenizer is not None and not fields.get('tokenizer_class'):
        lacks_class = _class_of_model(folder) in _FROM_FIELDS
    return Settings(side | fields | normalizer, source, tokenizer, added, lacks_class)


def _side_of(tokenizer: Mapping[str, Any]) -> dict[str, str]:
    """The end at which texts are cut, as a tokenizer.json has it; empty where that is the usual."""
    direction = _part(tokenizer, 'truncation').get('direction')
    return {'truncation_side': 'left'} if direction == 'Left' else {}


def _class_of_model(folder: Path) -> str:
    """The class that transformers takes of a folder's model; '' for none that is known here."""
    try:
        config = _read_if_there(folder / 'config.json') or {}
    except InputError:  # whoever reads the model says so
        return ''
    kind = config.get('tokenizer_class') or _CLASSES_OF_MODELS.get(str(config.get('model_type')))
    return str(kind or '')


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
    if exists(folder / _CHAT_FILE):
        tell_once(f'note: {folder / _CHAT_FILE} is not applied: texts are no messages')
    if settings.lacks_class and not _is_made_of_fields(settings, folder):
        tell_once(f'note: {folder / SETTINGS_FILE} names no tokenizer_class, so transformers 5 '
                  f'takes BertTokenizer, with other words than {TOKENIZER_FILE}, which is followed '
                  'here: name BertTokenizer or TokenizersBackend there')
    if settings.tokenizer is not None and not settings.fields.get('tokenizer_class'):
        _tell_of_class(settings.tokenizer, settings.fields, folder)
    if not settings.is_berts:
        fields = {name: settings.fields.get(name) for name in _OF_NO_KIND}
        for setting in not_applied(fields, _OF_NO_KIND):
            tell_once(f'note: {folder / SETTINGS_FILE}: {setting} is not applied')
        return
    _tell_of_fields(settings.fields, folder)
    if settings.tokenizer is None:
        return
    for setting in _not_applied_parts(settings.tokenizer):
        tell_once(f'note: {folder / TOKENIZER_FILE}: {setting} is not applied')
    if not settings.makes_frame and settings.tokenizer.get('post_processor', '') is None:
        tell_once(f'note: {folder / TOKENIZER_FILE} puts no special tokens around texts: here they '
                  f'are framed as {CLS} A {SEP} B {SEP}')


def _tell_of_fields(named: Mapping[str, Any], folder: Path) -> None:
    """Notes the fields, and roles of special tokens, that BERT's tokenizer does not apply."""
    fields = {name: _content(value) for name, value in named.items()}
    for setting in not_applied(fields, _KNOWN_FIELDS):
        tell_once(f'note: {folder / SETTINGS_FILE}: {setting} is not applied')
    if 'added_tokens_decoder' in named:  # then transformers does not read the map
        return
    roles = _read_if_there(folder / _SPECIAL_FILE) or {}
    roles = {name: _content(roles.get(name)) for name in _ROLES}
    for setting in not_applied(roles, _KNOWN_FIELDS):
        tell_once(f'note: {folder / _SPECIAL_FILE}: {setting} is not applied')


def _tell_of_class(
    tokenizer: Mapping[str, Any], fields: Mapping[str, Any], folder: Path
) -> None:
    """Notes that transformers takes a class that no file of the tokenizer names."""
    kind = _class_of_model(folder).removesuffix('Fast')
    if not kind or kind in _FROM_FIELDS or not isinstance(tokenizer.get('model'), dict):
        return
    followed = {**tokenizer, **changed_by_class('', tokenizer, fields)}
    changed = changed_by_class(kind, followed, fields)
    if changed:
        tell_once(f'note: {folder / SETTINGS_FILE} names no tokenizer_class, so transformers 5 '
                  f"takes {kind}, which makes another {', '.join(changed)} than {TOKENIZER_FILE}, "
                  f'which is followed here: name {kind} or TokenizersBackend there')


def _is_made_of_fields(settings: Settings, folder: Path) -> bool:
    """Whether BertTokenizer makes what the tokenizer.json has, but for what is noted otherwise."""
    tokenizer = settings.tokenizer
    if tokenizer is None:
        return True
    fields = _read_if_there(folder / SETTINGS_FILE) or {}
    normalizer = _normalizer({}, tokenizer)
    made = {'do_lower_case': True, 'strip_accents': None, 'tokenize_chinese_chars': True}
    made |= {name: fields[name] for name in made if name in fields}
    return settings.is_berts and normalizer in ({}, made)


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
    return found + _not_berts(tokenizer)
