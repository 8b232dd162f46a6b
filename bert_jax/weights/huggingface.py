"""Hugging Face folders: `config.json`, safetensors in one file or shards, tokenizer, model card."""

import contextlib
import dataclasses
import json
import operator
import os
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (with it, numpy knows bfloat16)
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_jax import text
from bert_jax.config.bert_config import OPTIONS
from bert_jax.heads import HEADS, part_of
from bert_jax.runtime.checksum import checksum
from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import Path, as_path, children, digest, local_copy, read_json
from bert_jax.text import vocab
from bert_jax.text.added import MOST_TOKENS, fields_of
from bert_jax.text.settings import (
    SETTINGS_FILE,
    TOKENIZER_FILE,
    lowercase_of,
    model_type,
    read_settings,
    tell_not_applied,
)
from bert_jax.text.wordpiece import ORIGINAL, Switches, WordPieceTokenizer
from bert_jax.weights import formats
from bert_jax.weights.formats import Weights, write_json

# Config fields by which similar models compute something else, with the values that BERT has.
_PLAIN: Mapping[str, Any] = {
    'model_type': 'bert', 'position_embedding_type': 'absolute', 'is_decoder': False,
    'add_cross_attention': False}
# Tensors that are copies of parameters and must be equal to them.
_TIED = {
    'cls.predictions.decoder.weight': 'bert/embeddings/word_embeddings',
    'cls.predictions.decoder.bias': 'cls/predictions/output_bias'}
# Classes of WordPiece tokenizers that work as BERT's; the last two are as tokenizer.json has them.
_TOKENIZERS = ('BertTokenizer', 'DistilBertTokenizer', 'ElectraTokenizer', 'MobileBertTokenizer',
               'ConvBertTokenizer', 'LayoutLMTokenizer', 'FunnelTokenizer', 'LxmertTokenizer',
               'RetriBertTokenizer', 'SqueezeBertTokenizer', 'SplinterTokenizer',
               'RealmTokenizer', 'DPRQuestionEncoderTokenizer', 'DPRContextEncoderTokenizer',
               'DPRReaderTokenizer', 'PreTrainedTokenizer', 'TokenizersBackend')
# What training programs put around a model, and so before the names of its tensors.
_WRAPPED = re.compile(r'(?:(?:module|_orig_mod|model)\.)+')
_INDEX = 'model.safetensors.index.json'
_CHECKSUM = 'bert_jax.checksum '  # and a tensor's name: a metadata key in files that we write
# Other files of weights, by the end of their names, as messages call them.
_OTHER_WEIGHTS = {
    '.bin': 'a pickle (.bin), which can run code', '.pt': 'a pickle (.pt), which can run code',
    '.pth': 'a pickle (.pth), which can run code', '.h5': 'a TF2 model (.h5)',
    '.msgpack': 'a Flax model (.msgpack)'}
SHARD_BYTES = 5_000_000_000  # the long-standing default of transformers' `save_pretrained`


class StoredTensor(NamedTuple):
    """A tensor in an open safetensors file."""

    file: Any
    path: Path
    name: str


def read_huggingface(named: str | os.PathLike[str]) -> Weights:
    """Reads a folder written by `save_pretrained` or downloaded: any BERT, base or with a head.

    Raises:
      InputError: something is missing, damaged or contradictory, or the model is no BERT.
    """
    folder = as_path(named)
    config_file = folder / 'config.json'
    _check_no_adapter(folder)
    config = read_json(config_file, 'a Hugging Face folder holds config.json and model.safetensors')
    architecture = str((config.get('architectures') or [''])[0])
    _check_kind(folder, config, config_file)
    # The defaults of transformers that differ from ours.
    fields = {key: value for key, value in config.items() if value is not None}
    defaults = {'hidden_act': 'gelu', 'classifier_dropout': fields.get('hidden_dropout_prob')}
    model = formats.read_model(defaults | fields, 'huggingface', config_file)
    with contextlib.ExitStack() as stack:
        where, stored = _open_tensors(folder, stack)
        by_name = _our_spelling(stored)
        shapes = {name: tuple(tensor.file.get_slice(tensor.name).get_shape())
                  for name, tensor in by_name.items()}
        params, unused = formats.take_params(
            'huggingface', shapes, lambda name: _read(by_name[name]), model, where, config_file)
        for name in set(unused) & set(_TIED):
            if not np.array_equal(_read(by_name[name]), params[_TIED[name]]):
                raise InputError(f'{by_name[name].path}: {name} is not equal to {_TIED[name]}: an '
                                 'output layer that is not tied to the embeddings cannot be read')
    named_head = next((head.name for head in HEADS.values() if architecture in head.classes), '')
    head = formats.find_head(
        params, named_head, f"{config_file}: architectures says {architecture or 'nothing'}")
    num_labels = len(params.get('classifier/bias', ()))
    problem = config.get('problem_type')
    if head == 'classification' and problem == HEADS['regression'].problem_type:
        raise InputError(f"{config_file}: problem_type is 'regression' with {num_labels} outputs: "
                         'one is what can be read')
    if problem == HEADS['multi_label'].problem_type and num_labels:
        head = 'multi_label'
    by_id = config.get('id2label') or {} if HEADS[head].labelled else {}
    try:
        labels = [str(by_id[str(i)]) for i in range(len(by_id))]
    except (KeyError, TypeError):
        raise InputError(f'{config_file}: id2label does not map 0, 1, ... to labels') from None
    vocab_file, lowercase = read_tokenizer(folder, model['vocab_size'])
    return Weights(
        params, model, head, formats.read_labels(labels, head, params, config_file), vocab_file,
        lowercase, tuple(name for name in unused if name not in _TIED),
        f'Hugging Face folder {folder}' + (f' ({architecture})' if architecture else ''),
        _length_limit(folder, model) | (config.get(formats.INFERENCE) or {}))


def _length_limit(folder: Path, model: Mapping[str, Any]) -> dict[str, int]:
    """`max_seq_length`, if the tokenizer cuts texts before the model's positions end."""
    file = folder / SETTINGS_FILE
    limit = read_json(file, 'it describes the tokenizer').get('model_max_length') if (
        file.exists()) else None
    if isinstance(limit, int) and 2 < limit < model['max_position_embeddings']:
        return {'max_seq_length': limit}
    return {}


def _check_kind(folder: Path, config: Mapping[str, Any], config_file: Path) -> None:
    """Raises InputError for a model or a tokenizer of another kind than BERT's, by its name."""
    for field, plain in _PLAIN.items():
        if config.get(field) not in (plain, None):
            raise InputError(f'{config_file}: {field}={config[field]!r} is not the BERT of the '
                             f'paper, which has {plain!r}; only that can be read')
    settings = folder / SETTINGS_FILE
    said = read_json(settings, 'it describes the tokenizer') if settings.exists() else {}
    kind, where = said.get('tokenizer_class'), settings
    if kind is None:
        kind, where = config.get('tokenizer_class'), config_file
    if kind is not None and str(kind).removesuffix('Fast') not in _TOKENIZERS:
        raise InputError(f'{where}: tokenizer_class={kind!r} is not one that can be read, so '
                         "the model's ids would be others: take a model with BERT's WordPiece "
                         f"({', '.join(_TOKENIZERS[:2])}, ...)")


def _check_no_adapter(folder: Path) -> None:
    """Raises InputError for the weights of an adapter without those of its model.

    An adapter beside the weights of a model is noted, as it is not applied.
    """
    adapter = folder / 'adapter_config.json'
    if not adapter.exists():
        return
    if any((folder / name).exists() for name in ('model.safetensors', _INDEX)):
        tell_once(f'note: {adapter} is not applied: the weights are read without the adapter')
        return
    base = read_json(adapter, 'it describes the adapter').get('base_model_name_or_path')
    raise InputError(f'{folder} holds only an adapter of {base or "a model that it does not name"}'
                     ' (adapter_config.json): add it to its model with peft (merge_and_unload), '
                     'and save that with save_pretrained(FOLDER)')


def _our_spelling(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Tensors by the names in our table: base models lack `bert.`, old ones have gamma and beta.

    Buffers that are not parameters (`position_ids`) are left out, and so is what a program that
    trained the model put before the names.

    Raises:
      InputError: two tensors have the same name then.
    """
    plain: dict[str, StoredTensor] = {}
    for key, tensor in stored.items():
        prefix = _WRAPPED.match(key)
        name = key[prefix.end():] if prefix else key
        if name in plain:
            raise InputError(f'{tensor.path} has both {plain[name].name} and {key}: two models are '
                             'in it; save the one that is meant')
        plain[name] = tensor
    stored = plain
    base = not any(key.startswith('bert.') for key in stored)
    by_name = {}
    for key, tensor in stored.items():
        if key.endswith('.position_ids'):
            continue
        name = re.sub(r'LayerNorm\.gamma$', 'LayerNorm.weight', key)
        name = re.sub(r'LayerNorm\.beta$', 'LayerNorm.bias', name)
        if base and name.startswith(('embeddings.', 'encoder.', 'pooler.')):
            name = 'bert.' + name
        by_name[name] = tensor
    if 'cls.predictions.decoder.bias' in by_name:
        by_name.setdefault('cls.predictions.bias', by_name['cls.predictions.decoder.bias'])
    return by_name


def write_huggingface(folder: str | os.PathLike[str], weights: Weights) -> list[str]:
    """Writes a folder that `from_pretrained` of the head's class loads, tokenizer included.

    Returns:
      Notes for the user, a line each.

    Raises:
      InputError: it cannot be written, holds something already, or the weights lack a part of
        their head.
    """
    head = HEADS[weights.head]
    whole = (name for name, parts in head.classes.items()
             if all(weights.has(part.prefix) for part in parts))
    architecture = next(whole, next(iter(head.classes)))
    parts, notes = head.classes[architecture], []
    if missing := [part.prefix.rstrip('/') for part in parts if not weights.has(part.prefix)]:
        if architecture != 'BertModel':
            raise InputError(f'{weights.source} has no {missing[0]}, which {architecture} needs')
        notes.append('there is no pooler: load it with add_pooling_layer=False')
    model, _ = formats.write_model(weights.model, 'huggingface', weights.source)
    config = {'architectures': [architecture], 'model_type': 'bert', 'dtype': 'float32',
              'pad_token_id': 0, **model}
    if head.problem_type or head.labelled:
        labels = weights.labels or ('LABEL_0',)
        config['id2label'] = {str(i): label for i, label in enumerate(labels)}
        config['label2id'] = {label: i for i, label in enumerate(labels)}
    if head.problem_type:
        config['problem_type'] = head.problem_type
    if weights.inference:
        config[formats.INFERENCE] = dict(weights.inference)
    params = {name: x for name, x in weights.params.items() if part_of(name) in (None, *parts)}
    left_out = {part.prefix.rstrip('/') for name in weights.params.keys() - params.keys()
                if (part := part_of(name))}
    if left_out:
        notes.append(f"left out: {', '.join(sorted(left_out))} ({architecture} has none)")
    files = formats.from_params('huggingface', params, weights.model)
    if architecture == 'BertModel':  # its tensors have no prefix
        files = {name.removeprefix('bert.'): x for name, x in files.items()}
    with formats.new_folder(as_path(folder)) as beside:
        _write_tensors(beside, files)
        write_json(beside / 'config.json', config)
        (beside / 'README.md').write_text(_model_card(weights, architecture), encoding='utf-8')
        notes += _write_tokenizer(beside, weights)
    return notes


def _read(tensor: StoredTensor) -> np.ndarray:
    """The array as stored.

    Raises:
      InputError: it is not float32, float16 or bfloat16, or does not match its checksum.
    """
    file, path, name = tensor
    dtype = file.get_slice(name).get_dtype()
    if dtype not in ('F32', 'F16', 'BF16'):
        raise InputError(f'{path}: {name} is of type {dtype}: save it as float32')
    x: np.ndarray = file.get_tensor(name)
    if (file.metadata() or {}).get(_CHECKSUM + name) not in (None, str(checksum(x))):
        raise InputError(f'{path} is damaged ({name} is not what was written): copy it again')
    return x


def _open_tensors(
    folder: Path, stack: contextlib.ExitStack
) -> tuple[Path, dict[str, StoredTensor]]:
    """(the file or index, for messages; its tensors by name); files are closed with the stack.

    Raises:
      InputError: weights are missing, damaged or pickled.
    """
    where = folder / 'model.safetensors'
    weight_map: dict[str, str] = {}
    if not where.exists() and (folder / _INDEX).exists():
        where = folder / _INDEX
        weight_map = read_json(where, 'it lists the tensors of each shard').get('weight_map') or {}
        if not (isinstance(weight_map, dict) and weight_map
                and all(isinstance(shard, str) for shard in weight_map.values())):
            raise InputError(f'{where} has no weight_map of file names: download it again')
    elif not where.exists():
        names = [path.name for path in children(folder)]
        found = next((form for name in names for end, form in _OTHER_WEIGHTS.items()
                      if name.endswith(end)), None)
        if found:
            raise InputError(
                f'{folder} holds its weights as {found}: load it with transformers '
                '(AutoModelForPreTraining) and save it anew with save_pretrained(FOLDER)')
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())) or [where.name]:
        path = folder / shard
        if not path.exists():
            raise InputError(f'{path} is missing, which holds weights: download it too')
        try:
            file = stack.enter_context(safe_open(local_copy(path), framework='numpy'))
        except (SafetensorError, OSError) as error:
            why = ' '.join(str(error).split())
            raise InputError(f'{path} is not a complete safetensors file ({why}): download or copy '
                             'it again') from None
        tensors |= {name: StoredTensor(file, path, name) for name in file.keys()}  # noqa: SIM118
    for name, shard in weight_map.items():
        if name not in tensors:
            raise InputError(f'{folder / shard} has no tensor {name}, {where.name} names it: '
                             'download both again')
    return where, tensors


def _write_tensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes `model.safetensors`; above `SHARD_BYTES`, shards of at most that size and an index.

    A tensor is never split: a larger one is a shard by itself.
    """
    shards: list[dict[str, np.ndarray]] = [{}]
    for name, x in tensors.items():
        if shards[-1] and sum(y.nbytes for y in shards[-1].values()) + x.nbytes > SHARD_BYTES:
            shards.append({})
        shards[-1][name] = x
    weight_map: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        several = f'-{i:05}-of-{len(shards):05}' if len(shards) > 1 else ''
        _save(folder / f'model{several}.safetensors', shard)
        weight_map |= dict.fromkeys(shard, f'model{several}.safetensors')
    if len(shards) > 1:
        total = sum(x.nbytes for x in tensors.values())
        write_json(folder / _INDEX, {'metadata': {'total_size': total}, 'weight_map': weight_map})


def _save(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a file with the same bytes each time; the library writes metadata in any order."""
    header: dict[str, Any] = {'__metadata__': {'format': 'pt'} | {
        _CHECKSUM + name: str(checksum(x)) for name, x in tensors.items()}}
    end = 0
    for name, x in tensors.items():
        assert x.dtype == np.float32, name
        header[name] = {
            'dtype': 'F32', 'shape': x.shape, 'data_offsets': [end, end := end + x.nbytes]}
    head = json.dumps(header, separators=(',', ':')).encode()
    head += b' ' * (-len(head) % 8)
    with path.open('wb') as file:
        file.write(struct.pack('<Q', len(head)) + head)
        for x in tensors.values():
            file.write(np.ascontiguousarray(x, '<f4').data)



def _model_card(weights: Weights, architecture: str) -> str:
    """The model card in Markdown, with the front matter that model hubs read."""
    rows = {'parameters': f'{sum(x.size for x in weights.params.values()):,}'}
    rows |= {option.name: str(weights.model[option.name]) for option in OPTIONS}
    if weights.labels:
        rows['labels'] = ', '.join(weights.labels).replace('|', r'\|')
    if weights.vocab_file is not None:
        algorithm = 'SentencePiece' if weights.vocab_file.suffix == '.model' else 'WordPiece'
        rows['vocabulary'] = f"{algorithm}, {'lower-cased' if weights.lowercase else 'cased'} text"
    rows |= {name: str(value) for name, value in weights.inference.items()}
    table = '\n'.join(f'| {name} | {value} |' for name, value in rows.items())
    source = re.sub(r'\S*/(.*/)?', '', weights.source)  # without paths on this machine
    card = (as_path(__file__).parent / 'model_card.md').read_text(encoding='utf-8')
    return card.format(title=HEADS[weights.head].title(), source=source,
                       architecture=architecture, table=table)


def read_tokenizer(folder: Path, vocab_size: int) -> tuple[Path | None, bool]:
    """(Vocabulary file, whether text is lower-cased before WordPiece).

    Raises:
      InputError: the vocabulary cannot be read, or has more tokens than the embedding has rows.
    """
    settings = read_settings(folder)
    tell_not_applied(settings, folder)
    models = [child for child in children(folder) if child.suffix == '.model']
    path = next((p for p in (folder / 'vocab.txt', *models) if p.exists()), None)
    switches = dataclasses.replace(
        text.switches_of(settings.fields, settings.source), added_tokens=settings.added_tokens)
    if path is None and settings.tokenizer is not None:
        tokens = _tokens(settings.tokenizer, folder / TOKENIZER_FILE)
        path = None if tokens is None else _kept_vocabulary(tokens, switches)
    if path is not None and path.suffix == '.model' and settings.added_tokens:
        added = ', '.join(token.content for token in settings.added_tokens[:5])
        tell_once(f'note: {folder}: the added tokens {added}, ... are not applied: {path.name} is '
                  'a SentencePiece model, which splits them like other text')
    return formats.check_vocabulary(path, lowercase_of(settings), vocab_size)


def _tokens(tokenizer: Mapping[str, Any], tokenizer_file: Path) -> list[str] | None:
    """The vocabulary of a `tokenizer.json`, by id; None if it is not WordPiece.

    Added tokens but the special ones are switches of the tokenizer (`Switches`), not in it. Ids may
    be left out: a vocab.txt that repeats a token, made into this file, does so.
    """
    if model_type(tokenizer) != 'WordPiece':
        tell_once(f'note: {tokenizer_file} is a {model_type(tokenizer)} tokenizer, not WordPiece: '
                  'it is not read, so the model has no vocabulary')
        return None
    try:
        special = {token['content']: token['id'] for token in tokenizer.get('added_tokens') or ()
                   if token['content'] in vocab.SPECIAL_TOKENS}
        ids = tokenizer['model']['vocab'] | special
        by_id = {int(i): str(token) for token, i in ids.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(f'{tokenizer_file} is no tokenizer file: download it again') from None
    if len(by_id) < len(ids) or not 0 <= min(by_id) <= max(by_id) < MOST_TOKENS:
        raise InputError(f'{tokenizer_file}: ids of the vocabulary are not distinct whole numbers '
                         'from 0: download it again')
    tokens = [by_id.get(i, vocab.unused_row(i)) for i in range(max(by_id) + 1)]
    if len(tokens) > len(by_id):
        tell_once(f'note: {tokenizer_file}: {len(tokens) - len(by_id)} of the ids from 0 to '
                  f'{len(tokens) - 1} have no token: no text uses their rows of the embedding')
    return tokens


def _kept_vocabulary(tokens: Sequence[str], switches: Switches) -> Path:
    """Writes a vocabulary into this project's cache, named by a digest; returns its path.

    This is for folders without a vocab.txt, which transformers 5 does not write. If there are
    switches, the file is called vocab.txt and has them beside it.
    """
    said = '' if switches == ORIGINAL else f'{switches}{switches.added_tokens or ""}'
    content = '\n'.join(tokens) + said
    name = digest(content.encode())
    folder = as_path('~/.cache/bert_jax/vocabularies')
    path = folder / f'{name}.txt' if switches == ORIGINAL else folder / name / 'vocab.txt'
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        text.write_switches(path.parent, switches)
        vocab.write_vocab(path, tokens)
    return path


def _write_tokenizer(folder: Path, weights: Weights) -> list[str]:
    """Writes the files that `AutoTokenizer` loads. Returns notes for the user."""
    if weights.vocab_file is None:
        return ['no tokenizer files: there is no vocabulary']
    if (tokenizer := formats.write_vocabulary(folder, weights)) is None:
        return ['no tokenizer files: BertTokenizer is WordPiece, and the vocabulary is a '
                'SentencePiece model (copied as vocab.model)']
    switches = tokenizer.switches
    write_json(folder / TOKENIZER_FILE, fast_tokenizer(tokenizer))
    positions = weights.model['max_position_embeddings']
    more: dict[str, Any] = {'strip_accents': switches.strip_accents,
                            'tokenize_chinese_chars': switches.tokenize_chinese_chars}
    if not switches.do_basic_tokenize:
        more['do_basic_tokenize'] = False
    if switches.never_split:
        more['never_split'] = list(switches.never_split)
    more |= fields_of(dataclasses.replace(token, id=i) for token, i in tokenizer.added)
    write_json(folder / SETTINGS_FILE, {
        'tokenizer_class': 'BertTokenizer', 'do_lower_case': weights.lowercase,
        'model_max_length': min(weights.inference.get('max_seq_length') or positions, positions),
        **more,
        'pad_token': vocab.PAD, 'unk_token': vocab.UNK, 'cls_token': vocab.CLS,
        'sep_token': vocab.SEP, 'mask_token': vocab.MASK})
    if switches.do_basic_tokenize and not switches.never_split:
        return []
    return ["the tokenizer has do_basic_tokenize=False or never_split, which transformers' slow "
            'tokenizer alone knows: load it with use_fast=False']


def fast_tokenizer(tokenizer: WordPieceTokenizer) -> dict[str, Any]:
    """The contents of a tokenizer.json, for the `tokenizers` library.

    Words of up to 200 characters are split into pieces, as in the original and here; the library's
    default is 100.
    """
    lowercase, switches = tokenizer.lowercase, tokenizer.switches
    ids = tokenizer.vocab.index
    # Without the placeholders that a vocab.txt has for added tokens.
    pieces = {token: i for token, i in tokenizer.word_pieces.index.items() if token in ids}
    added = [(token, i) for token, i in tokenizer.added if token.content not in pieces]
    # The library numbers added tokens on from the pieces. Where that would give them other ids,
    # they have to be pieces too.
    if [i for _, i in added] != list(range(len(pieces), len(pieces) + len(added))):
        pieces |= {token.content: i for token, i in added}
    plain = dict.fromkeys(('single_word', 'lstrip', 'rstrip', 'normalized'), False)

    def frame(*parts: str) -> list[dict[str, Any]]:
        return [{'Sequence' if part in 'AB' else 'SpecialToken': {'id': part, 'type_id': number}}
                for number, part_text in enumerate(parts) for part in part_text.split()]

    cls_a_sep, b_sep = f'{vocab.CLS} A {vocab.SEP}', f'B {vocab.SEP}'
    return {
        'version': '1.0', 'truncation': None, 'padding': None,
        'added_tokens': sorted([
            *({'id': ids[token], 'content': token, **plain, 'special': True}
              for token in vocab.SPECIAL_TOKENS),
            *(dataclasses.asdict(token) | {'id': i} for token, i in tokenizer.added)],
            key=operator.itemgetter('id')),
        'normalizer': {
            'type': 'BertNormalizer', 'clean_text': True,
            'handle_chinese_chars': switches.tokenize_chinese_chars,
            'strip_accents': switches.strip_accents, 'lowercase': lowercase},
        'pre_tokenizer': {'type': 'BertPreTokenizer'},
        'post_processor': {
            'type': 'TemplateProcessing', 'single': frame(cls_a_sep),
            'pair': frame(cls_a_sep, b_sep),
            'special_tokens': {token: {'id': token, 'ids': [ids[token]], 'tokens': [token]}
                               for token in (vocab.CLS, vocab.SEP)}},
        'decoder': {'type': 'WordPiece', 'prefix': vocab.CONTINUATION, 'cleanup': True},
        'model': {
            'type': 'WordPiece', 'unk_token': vocab.UNK,
            'continuing_subword_prefix': vocab.CONTINUATION,
            'max_input_chars_per_word': 200, 'vocab': pieces}}
