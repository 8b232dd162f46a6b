"""The tokenizer of a Hugging Face folder: vocab.txt, tokenizer.json, tokenizer_config.json."""

import contextlib
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.config.bert_config import BertConfig
from bert_jax.config.choices import SEGMENTS, ZEROS
from bert_jax.foreign.vocabulary_copies import differing
from bert_jax.runtime.errors import InputError, tell, tell_once
from bert_jax.runtime.files import (
    Path,
    as_path,
    children,
    exists,
    read_bytes,
    read_json,
    write_whole,
)
from bert_jax.runtime.hashing import digest
from bert_jax.runtime.new_folder import write_json
from bert_jax.text import kmers, letters, vocab
from bert_jax.text.added import MOST_TOKENS, fields_of
from bert_jax.text.coinciding import ROLES, check_names
from bert_jax.text.huggingface import HuggingFaceTokenizer, roberta_tokenizer
from bert_jax.text.kinds import keep_tokenizer, kind_of, load_tokenizer
from bert_jax.text.kmers import KmerTokenizer
from bert_jax.text.letters import LetterTokenizer
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.settings import (
    BESIDE,
    SETTINGS_FILE,
    TOKENIZER_FILE,
    VOCABULARY_FILE,
    Settings,
    lowercase_of,
    read_settings,
    tell_not_applied,
)
from bert_jax.text.switches import settings_content, switches_of
from bert_jax.text.vocab import capitals_in
from bert_jax.text.vocab_files import read_lines, vocab_content
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer
from bert_jax.weights.inference_settings import INFERENCE, framing_of
from bert_jax.weights.parameters import Weights
from bert_jax.weights.vocabulary import check_vocabulary, write_vocabulary

_KEPT = '~/.cache/bert_jax/vocabularies'
_PIECES = 'vocab.json'
_MERGES = 'merges.txt'
_NAMES_OF_SPECIAL_TOKENS = {
    'pad_token': vocab.PAD,
    'unk_token': vocab.UNK,
    'cls_token': vocab.CLS,
    'sep_token': vocab.SEP,
    'mask_token': vocab.MASK,
}
# Classes of tokenizers that tokenize as BERT's does. The last two are generic: any tokenizer.json.
_CLASSES = ('BertTokenizer', 'DistilBertTokenizer', 'ElectraTokenizer', 'MobileBertTokenizer',
            'ConvBertTokenizer', 'LayoutLMTokenizer', 'FunnelTokenizer', 'LxmertTokenizer',
            'RetriBertTokenizer', 'SqueezeBertTokenizer', 'SplinterTokenizer',
            'RealmTokenizer', 'DPRQuestionEncoderTokenizer', 'DPRContextEncoderTokenizer',
            'DPRReaderTokenizer', 'PreTrainedTokenizer', 'TokenizersBackend')

# Tokenizer classes that give models token types; and the model types whose default class does.
_CLASSES_WITH_TOKEN_TYPES = (
    'BertTokenizer', 'ElectraTokenizer', 'MobileBertTokenizer', 'ConvBertTokenizer',
    'LayoutLMTokenizer', 'LxmertTokenizer', 'SqueezeBertTokenizer', 'DebertaTokenizer',
    'DebertaV2Tokenizer', 'DPRQuestionEncoderTokenizer', 'DPRContextEncoderTokenizer')
_TYPES_WITH_TOKEN_TYPES = ('bert', 'electra')
_WITH_TYPES = ['input_ids', 'token_type_ids', 'attention_mask']
_WITHOUT_TYPES = ['input_ids', 'attention_mask']


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """The contents of tokenizer_config.json; {} if there is none."""
    file = folder / SETTINGS_FILE
    if not exists(file):
        return {}
    settings: dict[str, Any] = read_json(file, 'it describes the tokenizer')
    return settings


def check_tokenizer_class(folder: Path, config: Mapping[str, Any], config_file: Path) -> None:
    """Raises InputError for a class of tokenizers that does not tokenize as BERT's does.

    A folder with a tokenizer.json, or with vocab.json and merges.txt, is never refused: these files
    say themselves how to tokenize.

    Args:
      folder: with the tokenizer's files.
      config: the content of the model's config.json, which may name the class, too.
      config_file: the path of config.json, for messages.
    """
    if exists(folder / TOKENIZER_FILE) or exists(folder / _MERGES):
        return
    kind = tokenizer_settings(folder).get('tokenizer_class')
    where = folder / SETTINGS_FILE
    if kind is None:
        kind = config.get('tokenizer_class') or _class_by_type(folder, config)
        where = config_file
    if kind is not None and str(kind).removesuffix('Fast') not in _CLASSES:
        raise InputError(
            f'{where}: tokenizer_class={kind!r} is not one that can be read without its '
            'tokenizer.json: write that file there, by AutoTokenizer.from_pretrained(FOLDER)'
            '.save_pretrained(FOLDER) of transformers')


def _class_by_type(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Transformers' class for ALBERT models with a SentencePiece model; None for all others.

    It lower-cases text, which SentencePiece itself would not.
    """
    if config.get('model_type') != 'albert' or config.get(INFERENCE):
        return None
    names = [child.name for child in children(folder)]
    has_model = any(name.endswith('.model') for name in names)
    return 'AlbertTokenizer' if has_model and VOCABULARY_FILE not in names else None


def is_own_kind(vocab_file: Path) -> bool:
    """Whether a tokenizer's file is of a kind that only this project has: letters or k-mers."""
    return vocab_file.suffix in (letters.ENDING, kmers.ENDING)


def gives_types(fields: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a tokenizer of transformers returns `token_type_ids` for its model.

    It does if they are in `model_input_names`; a file without this field has the default of the
    tokenizer's class.

    Args:
      fields: the content of tokenizer_config.json.
      config: the content of the model's config.json.
    """
    names = fields.get('model_input_names')
    if isinstance(names, list):
        return 'token_type_ids' in names
    model_type = config.get('model_type')
    kind = fields.get('tokenizer_class') or config.get('tokenizer_class')
    if kind is None or model_type == 'modernbert':  # transformers ignores the class of the latter
        return model_type in _TYPES_WITH_TOKEN_TYPES
    return str(kind).removesuffix('Fast') in _CLASSES_WITH_TOKEN_TYPES


def read_tokenizer(folder: Path, vocab_size: int) -> tuple[Path | None, bool]:
    """(The tokenizer's file, or None; whether text is lower-cased before WordPiece).

    Args:
      folder: of the model.
      vocab_size: rows of the embedding.

    Raises:
      InputError: the vocabulary cannot be read, or has more tokens than the embedding has rows.
    """
    settings = read_settings(folder)
    path = _find_tokenizer(folder, settings)
    is_byte_level = settings.tokenizer is None and path is not None and path.suffix == '.json'
    if not is_byte_level:  # for byte-level BPE, the tokenizers library applies these settings
        tell_not_applied(settings, folder)
    if path is not None and kind_of(path).file_name == VOCABULARY_FILE:
        _check_special(settings.fields, folder / SETTINGS_FILE)
    if path is not None and settings.added_tokens:
        _tell_of_lost_tokens(path, settings)
    source = path
    if path is not None and path.parent != folder:  # a copy in the cache: name the original
        source = folder / (TOKENIZER_FILE if settings.tokenizer is not None else _PIECES)
    stated = lowercase_of(settings)
    path, lowercase = check_vocabulary(path, stated, vocab_size, source)
    if path is not None and stated is None and not lowercase:
        _tell_of_capitals(path, source)
    return path, lowercase


def _tell_of_capitals(vocab_file: Path, source: object) -> None:
    """Notes that text keeps its capitals only because a WordPiece vocabulary has some."""
    tokenizer = load_tokenizer(vocab_file, lowercase=False)
    if tokenizer.lowercase is not None:
        tell_once(f'note: {capitals_in(tokenizer.vocab, source)}, and no file says do_lower_case: '
                  'text keeps its capitals, which transformers lower-cases then; write '
                  f'"do_lower_case": true or false into the {SETTINGS_FILE} beside it')


def _check_special(fields: Mapping[str, Any], source: Path) -> None:
    """Raises InputError if a tokenizer_config.json gives two of BERT's roles to one token."""
    names = {}
    for role in ROLES:
        field = f'{role}_token'
        name = fields.get(field)
        if isinstance(name, Mapping):
            name = name.get('content')
        names[role] = name if isinstance(name, str) else _NAMES_OF_SPECIAL_TOKENS[field]
    check_names(names, source)


def _tell_of_lost_tokens(vocab_file: Path, settings: Settings) -> None:
    """Notes that added tokens are not applied, if the tokenizer is a SentencePiece model."""
    tokenizer = load_tokenizer(vocab_file, lowercase=True)
    if isinstance(tokenizer, SentencePieceTokenizer):
        added = ', '.join(token.content for token in settings.added_tokens[:5])
        tell_once(f'note: {vocab_file.parent}: the added tokens {added}, ... are not applied: '
                  f'{vocab_file.name} is a SentencePiece model, which splits them like other text')


def _find_tokenizer(folder: Path, settings: Settings) -> Path | None:
    """The file of a folder's tokenizer, or a file made of it in this project's cache; or None.

    A tokenizer.json counts before a vocab.txt, as in transformers. But if it is BERT's WordPiece,
    and a vocab.txt has the same tokens, the vocab.txt is returned.
    """
    tokenizer_file = folder / TOKENIZER_FILE
    for ending in (letters.ENDING, kmers.ENDING):
        own_file = folder / f'vocab{ending}'
        if exists(own_file):  # the tokenizer.json beside it was made of it
            return own_file
    contradicting: list[str] = []  # names of files
    if settings.tokenizer is not None:
        contradicting = differing(folder, settings.tokenizer)
        if not settings.is_berts:
            return tokenizer_file
    if exists(folder / VOCABULARY_FILE) and VOCABULARY_FILE not in contradicting:
        return folder / VOCABULARY_FILE
    if settings.tokenizer is not None:
        switches = switches_of(settings.fields, settings.source)
        switches = dataclasses.replace(switches, added_tokens=settings.added_tokens)
        return _kept_vocabulary(_tokens(settings.tokenizer, tokenizer_file), switches)
    if exists(folder / _MERGES) and exists(folder / _PIECES):
        return _kept_byte_level(folder)
    for child in children(folder):
        if child.suffix == '.model' and exists(child):
            return child
    return None


def _tokens(tokenizer: Mapping[str, Any], tokenizer_file: Path) -> list[str]:
    """The tokens of a tokenizer.json with BERT's WordPiece, by id; the special ones among them.

    Other added tokens are not among them, but in the tokenizer's `Switches`. An id without a token,
    as a converted vocab.txt with a repeated line has it, gets the name of an unused row.
    """
    by_id = _tokens_by_id(tokenizer, tokenizer_file)
    tokens = [by_id.get(i, vocab.unused_row(i)) for i in range(max(by_id) + 1)]
    num_missing = len(tokens) - len(by_id)
    if num_missing:
        tell_once(f'note: {tokenizer_file}: {num_missing} of the ids from 0 to '
                  f'{len(tokens) - 1} have no token: no text uses their rows of the embedding')
    return tokens


def _tokens_by_id(tokenizer: Mapping[str, Any], tokenizer_file: Path) -> dict[int, str]:
    """The word pieces and special tokens of a tokenizer.json, by id.

    Raises:
      InputError: the file has another form, or its ids are not distinct whole numbers from 0.
    """
    try:
        added = tokenizer.get('added_tokens') or ()
        special = {
            token['content']: token['id'] for token in added
            if token['content'] in vocab.SPECIAL_TOKENS}
        ids = tokenizer['model']['vocab'] | special
        by_id = {int(i): str(token) for token, i in ids.items()}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise InputError(f'{tokenizer_file} is no tokenizer file: download it again') from None
    if not by_id:
        raise InputError(f'{tokenizer_file} has an empty vocabulary: download it again')
    if len(by_id) < len(ids) or not 0 <= min(by_id) <= max(by_id) < MOST_TOKENS:
        raise InputError(f'{tokenizer_file}: ids of the vocabulary are not distinct whole numbers '
                         'from 0: download it again')
    return by_id


def _kept_vocabulary(tokens: Sequence[str], switches: Switches) -> Path:
    """Writes a vocabulary into this project's cache, under its digest's name; returns its path.

    This is for folders without a vocab.txt, which transformers 5 does not write. If the switches
    are not BERT's, the digest is the name of a folder with a vocab.txt and the file of the
    switches. A file that is in the cache already is replaced if somebody has changed it.
    """
    content = '\n'.join(tokens)
    if switches != ORIGINAL:
        content += settings_content(switches)
    name = digest(content.encode())
    tokens_file = vocab_content(tokens)
    if switches == ORIGINAL:
        path = as_path(_KEPT) / f'{name}.txt'
        _keep(path, tokens_file)
        return path
    folder = as_path(_KEPT) / name
    _keep_all(folder, {
        SETTINGS_FILE: settings_content(switches), VOCABULARY_FILE: tokens_file})
    return folder / VOCABULARY_FILE


def _keep_all(folder: Path, contents: Mapping[str, str]) -> None:
    """Writes a tokenizer's files into a folder of the cache, and removes others that it would read.

    Args:
      folder: of the cache.
      contents: of the files, by name.
    """
    for name in (*BESIDE, TOKENIZER_FILE, VOCABULARY_FILE):
        path = folder / name
        if name in contents:
            _keep(path, contents[name])
        elif path.exists():
            tell(f'note: {path} does not belong there: it is removed')
            path.unlink()


def _keep(path: Path, content: str) -> None:
    """Writes a file into the cache, unless a file with exactly this content is there already."""
    data = content.encode()
    if path.exists():
        with contextlib.suppress(InputError):  # it is a named pipe
            if read_bytes(path) == data:
                return
        tell(f'note: {path} was changed since it was made: it is made again')
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


def _kept_byte_level(folder: Path) -> Path:
    """Writes a tokenizer.json for a folder's vocab.json and merges.txt into the cache.

    Folders with byte-level BPE and no tokenizer.json are from RoBERTa's slow tokenizers.

    Returns:
      The path of the tokenizer.json.

    Raises:
      InputError: the files are no byte-level BPE of RoBERTa's.
    """
    pieces = read_json(folder / _PIECES, 'it is the vocabulary of byte-level BPE')
    merges = read_lines(folder / _MERGES, 'merges', 'the model')
    content = roberta_tokenizer(pieces, merges, str(folder))
    beside = {}
    for name in BESIDE:
        if exists(folder / name):
            beside[name] = read_bytes(folder / name).decode('utf-8')
    name = digest('\n'.join([content, *beside.values()]).encode())
    kept = as_path(_KEPT) / name
    _keep_all(kept, {TOKENIZER_FILE: content, **beside})
    return kept / TOKENIZER_FILE


def write_tokenizer(folder: Path, weights: Weights, config: Mapping[str, Any]) -> list[str]:
    """Writes the files that `AutoTokenizer` loads. Returns notes for the user.

    Args:
      folder: the folder to write to.
      weights: the model whose tokenizer is written.
      config: the content of the model's config.json.
    """
    if weights.vocab_file is None:
        return ['no tokenizer files: there is no vocabulary']
    tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)
    if isinstance(tokenizer, WordPieceTokenizer):
        return _write_wordpiece(folder, weights, tokenizer, config)
    keep_tokenizer(weights.vocab_file, folder)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        _finish_library_files(folder, weights, tokenizer, config)
        return _note_on_types(tokenizer, weights)
    if isinstance(tokenizer, LetterTokenizer | KmerTokenizer):
        write_json(folder / TOKENIZER_FILE, _sequence_tokenizer(tokenizer))
        settings = _with_input_names(_settings_of_sequences(weights), weights, config)
        write_json(folder / SETTINGS_FILE, settings)
        return []
    file_name = kind_of(weights.vocab_file).file_name
    return [f'no tokenizer files: transformers has no tokenizer of the kind {tokenizer.algorithm} '
            f'(its file is copied as {file_name})']


def _finish_library_files(
    folder: Path, weights: Weights, tokenizer: HuggingFaceTokenizer, config: Mapping[str, Any]
) -> None:
    """Makes the copied files of a tokenizer.json fit the model: limit, token types, settings.

    Args:
      folder: with the copies.
      weights: as for `write_tokenizer`.
      tokenizer: that of the weights.
      config: as for `write_tokenizer`.
    """
    if SETTINGS_FILE in tokenizer.beside:
        copied = tokenizer_settings(folder)
        settings = _with_input_names(_with_limit(copied, weights), weights, config)
        if settings != copied:
            write_json(folder / SETTINGS_FILE, settings)
        return
    settings = _with_input_names(_settings_of_library(tokenizer, weights), weights, config)
    write_json(folder / SETTINGS_FILE, settings)
    if not tokenizer.finds_special_tokens:
        write_whole(folder / TOKENIZER_FILE, tokenizer.with_special_tokens())


def _with_limit(settings: Mapping[str, Any], weights: Weights) -> dict[str, Any]:
    """The fields of a tokenizer_config.json, with the `model_max_length` of `weights`."""
    limit = settings.get('model_max_length')
    positions = BertConfig(**weights.model).max_length
    kept = min(limit, positions) if isinstance(limit, int) else positions
    if kept == weights.max_length:
        return dict(settings)
    return {**settings, 'model_max_length': weights.max_length}


def _with_input_names(
    settings: Mapping[str, Any], weights: Weights, config: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields, with `model_input_names` if the class's default is not what the model needs.

    A model needs token types if it has several, and `Weights.inference` does not say that all are
    0.
    """
    used = weights.model['type_vocab_size'] > 1
    used = used and framing_of(weights.inference)['token_types'] != ZEROS
    if gives_types(settings, config) == used:
        return dict(settings)
    return {**settings, 'model_input_names': _WITH_TYPES if used else _WITHOUT_TYPES}


def _note_on_types(tokenizer: HuggingFaceTokenizer, weights: Weights) -> list[str]:
    """A note, if the model was trained with other token types than the tokenizer.json gives."""
    if weights.model['type_vocab_size'] < 2:
        return []
    framing = framing_of(weights.inference)
    vocabulary = tokenizer.vocab
    is_same = vocabulary.frame.pair == vocabulary.segments.pair
    if framing['token_types'] != SEGMENTS or is_same:
        return []
    return ['the tokens of pairs have types 0 and 1 here, and those of the tokenizer.json in '
            'transformers']


def _settings_of_library(tokenizer: HuggingFaceTokenizer, weights: Weights) -> dict[str, Any]:
    """The contents of a tokenizer_config.json for a tokenizer.json that is copied as it is."""
    settings = {
        'tokenizer_class': 'PreTrainedTokenizerFast',
        'model_max_length': weights.max_length,
        'clean_up_tokenization_spaces': False,
        # Without this field, transformers 4 removes the space.
        'add_prefix_space': tokenizer.adds_prefix_space,
    }
    if not tokenizer.finds_special_tokens:
        settings['split_special_tokens'] = True
    return settings | tokenizer.names_of_special_tokens


def _settings_of_sequences(weights: Weights) -> dict[str, Any]:
    """The contents of a tokenizer_config.json for the tokenizer.json of letters or k-mers."""
    settings = {
        'tokenizer_class': 'PreTrainedTokenizerFast',
        'model_max_length': weights.max_length,
        'clean_up_tokenization_spaces': False,
    }
    return settings | _NAMES_OF_SPECIAL_TOKENS


def _sequence_tokenizer(tokenizer: LetterTokenizer | KmerTokenizer) -> dict[str, Any]:
    """The contents of a tokenizer.json of letters or k-mers."""
    return {
        'version': '1.0',
        'truncation': None,
        'padding': None,
        'added_tokens': _special_tokens(tokenizer.vocab),
        'post_processor': _post_processor(tokenizer.vocab),
        **tokenizer.tokenizer_json_parts(),
    }


def _write_wordpiece(
    folder: Path, weights: Weights, tokenizer: WordPieceTokenizer, config: Mapping[str, Any]
) -> list[str]:
    """`write_tokenizer` for BERT's WordPiece."""
    write_vocabulary(folder, weights, tokenizer)
    write_json(folder / TOKENIZER_FILE, fast_tokenizer(tokenizer))
    write_json(
        folder / SETTINGS_FILE,
        _with_input_names(_settings(tokenizer, weights), weights, config))
    switches = tokenizer.switches
    if switches.do_basic_tokenize and not switches.never_split:
        return []
    return ["the tokenizer has do_basic_tokenize=False or never_split, which transformers' slow "
            'tokenizer alone knows: load it with use_fast=False']


def _settings(tokenizer: WordPieceTokenizer, weights: Weights) -> dict[str, Any]:
    """The contents of a tokenizer_config.json for BERT's WordPiece, without input names."""
    switches = tokenizer.switches
    settings: dict[str, Any] = {
        'tokenizer_class': 'BertTokenizer',
        'do_lower_case': weights.lowercase,
        'model_max_length': weights.max_length,
        'strip_accents': switches.strip_accents,
        'tokenize_chinese_chars': switches.tokenize_chinese_chars,
    }
    if not switches.do_basic_tokenize:
        settings['do_basic_tokenize'] = False
    if switches.never_split:
        settings['never_split'] = list(switches.never_split)
    if switches.truncation_side != ORIGINAL.truncation_side:
        settings['truncation_side'] = switches.truncation_side
    if switches.split_special_tokens:
        settings['split_special_tokens'] = True
    settings |= fields_of(dataclasses.replace(token, id=i) for token, i in tokenizer.added)
    return settings | _NAMES_OF_SPECIAL_TOKENS


def fast_tokenizer(tokenizer: WordPieceTokenizer) -> dict[str, Any]:
    """The contents of a tokenizer.json, with which the `tokenizers` library tokenizes alike.

    Words of up to 200 characters are split into pieces, as in google-research/bert; the library's
    default is 100.
    """
    return {
        'version': '1.0',
        'truncation': None,
        'padding': None,
        'added_tokens': _added_tokens(tokenizer),
        'normalizer': {
            'type': 'BertNormalizer',
            'clean_text': True,
            'handle_chinese_chars': tokenizer.switches.tokenize_chinese_chars,
            'strip_accents': tokenizer.switches.strip_accents,
            'lowercase': tokenizer.lowercase,
        },
        'pre_tokenizer': {'type': 'BertPreTokenizer'},
        'post_processor': _post_processor(tokenizer.vocab),
        'decoder': {'type': 'WordPiece', 'prefix': vocab.CONTINUATION, 'cleanup': True},
        'model': {
            'type': 'WordPiece',
            'unk_token': vocab.UNK,
            'continuing_subword_prefix': vocab.CONTINUATION,
            'max_input_chars_per_word': 200,
            'vocab': _pieces(tokenizer),
        },
    }


def _pieces(tokenizer: WordPieceTokenizer) -> dict[str, int]:
    """The ids of the word pieces, without the rows of vocab.txt that stand for added tokens."""
    ids = tokenizer.vocab.index
    pieces = {token: i for token, i in tokenizer.word_pieces.index.items() if token in ids}
    added = [(token.content, i) for token, i in tokenizer.added if token.content not in pieces]
    # The library gives added tokens the ids behind the pieces. If they have others, they must be
    # pieces, too.
    numbered_on = range(len(pieces), len(pieces) + len(added))
    if [i for _, i in added] != list(numbered_on):
        pieces |= added
    return pieces


def _added_tokens(tokenizer: WordPieceTokenizer) -> list[dict[str, Any]]:
    """The `added_tokens` of a tokenizer.json: the special tokens and the added ones, by id."""
    tokens = _special_tokens(tokenizer.vocab)
    for token, i in tokenizer.added:
        tokens.append(dataclasses.asdict(token) | {'id': i})
    return sorted(tokens, key=operator.itemgetter('id'))


def _special_tokens(vocabulary: vocab.Vocab) -> list[dict[str, Any]]:
    """The special tokens, as a tokenizer.json has them."""
    tokens = []
    for content in vocab.SPECIAL_TOKENS:
        tokens.append({
            'id': vocabulary.index[content],
            'content': content,
            'single_word': False,
            'lstrip': False,
            'rstrip': False,
            'normalized': False,
            'special': True,
        })
    return tokens


def _post_processor(vocabulary: vocab.Vocab) -> dict[str, Any]:
    """The `post_processor` of a tokenizer.json: [CLS] A [SEP], and [CLS] A [SEP] B [SEP]."""
    def special(token: str, type_id: int) -> dict[str, Any]:
        return {'SpecialToken': {'id': token, 'type_id': type_id}}

    def sequence(name: str, type_id: int) -> dict[str, Any]:
        return {'Sequence': {'id': name, 'type_id': type_id}}

    single = [special(vocab.CLS, 0), sequence('A', 0), special(vocab.SEP, 0)]
    pair = [*single, sequence('B', 1), special(vocab.SEP, 1)]
    ids = vocabulary.index
    special_tokens = {
        token: {'id': token, 'ids': [ids[token]], 'tokens': [token]}
        for token in (vocab.CLS, vocab.SEP)}
    return {
        'type': 'TemplateProcessing',
        'single': single,
        'pair': pair,
        'special_tokens': special_tokens,
    }
