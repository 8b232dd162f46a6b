"""Hugging Face folders: `config.json`, `model.safetensors` or shards with an index, `vocab.txt`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (with it, numpy knows bfloat16)
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bert_jax.errors import InputError
from bert_jax.text.vocab import CLS, MASK, PAD, SEP, UNK, write_vocab
from bert_jax.weights.description import (
    LABELLED,
    Weights,
    check_labels,
    check_vocabulary,
    find_head,
    looks_lowercase,
    model_fields,
    read_json,
    read_vocabulary,
    take_params,
    whole_vocabulary,
)
from bert_jax.weights.folder import new_folder
from bert_jax.weights.names import tensors

_FIELDS = {
    'vocab_size': 'vocab_size', 'num_layers': 'num_hidden_layers', 'hidden_size': 'hidden_size',
    'num_heads': 'num_attention_heads', 'intermediate_size': 'intermediate_size',
    'max_position_embeddings': 'max_position_embeddings', 'type_vocab_size': 'type_vocab_size',
    'layer_norm_eps': 'layer_norm_eps', 'initializer_range': 'initializer_range',
    'hidden_dropout': 'hidden_dropout_prob', 'attention_dropout': 'attention_probs_dropout_prob',
    'classifier_dropout': 'classifier_dropout',
}
# Its names of activations; the tanh forms differ in how they are computed, not in what.
_ACTIVATIONS = {
    'gelu': 'gelu_erf', 'gelu_python': 'gelu_erf', 'gelu_new': 'gelu_tanh',
    'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_fast': 'gelu_tanh',
}
# Class -> (head, the parts it has beside embeddings and layers). Of two with one head, the first
# whose parts are all there is what a model is written as.
_CLASSES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    'BertModel': ('', ('bert/pooler/',)),
    'BertForPreTraining':
        ('pretraining', ('bert/pooler/', 'cls/predictions/', 'cls/seq_relationship/')),
    'BertForMaskedLM': ('pretraining', ('cls/predictions/',)),
    'BertForNextSentencePrediction': ('pretraining', ('bert/pooler/', 'cls/seq_relationship/')),
    'BertForSequenceClassification': ('classification', ('bert/pooler/', 'classifier/')),
    'BertForMultipleChoice': ('multiple_choice', ('bert/pooler/', 'classifier/')),
    'BertForTokenClassification': ('token_classification', ('classifier/',)),
    'BertForQuestionAnswering': ('question_answering', ('cls/squad/',)),
}
_DTYPES = ('F32', 'F16', 'BF16')
_INDEX = 'model.safetensors.index.json'


def read_huggingface(folder: str | Path) -> Weights:
    """A folder written by `save_pretrained` or downloaded: any BERT, base or with a head.

    Raises:
      InputError: something is missing, damaged, contradictory, or no BERT.
    """
    folder = Path(folder)
    config_file = folder / 'config.json'
    config = read_json(config_file, 'a Hugging Face folder holds config.json and model.safetensors')
    model = model_fields(config, _FIELDS, _activation(config, config_file), config_file)
    _refuse_variants(config, config_file)
    with contextlib.ExitStack() as stack:
        where, files = _open(folder, stack)
        names = _our_spelling(files)
        shapes = {name: tuple(file.get_slice(key).get_shape())
                  for name, (file, key) in names.items()}

        def read(name: str) -> np.ndarray:
            file, key = names[name]
            dtype = file.get_slice(key).get_dtype()
            if dtype not in _DTYPES:
                raise InputError(f'{where}: {key} is of type {dtype}: save it as float32')
            return file.get_tensor(key)

        params, unused = take_params('huggingface', shapes, read, model, where, config_file)
        unused = _drop_tied(unused, read, params, where)
    architecture = (config.get('architectures') or [''])[0]
    head = find_head(
        params, _CLASSES.get(architecture, ('',))[0],
        f'{config_file}: architectures says {architecture}'
    )
    if head == 'classification' and config.get('problem_type') == 'regression':
        raise InputError(
            f"{config_file}: problem_type is 'regression' with "
            f"{len(params['classifier/bias'])} outputs: one is what can be read"
        )
    if config.get('problem_type') == 'multi_label_classification':
        raise InputError(
            f"{config_file}: problem_type 'multi_label_classification' has no counterpart here: "
            'remove it to read the classifier as one of single labels'
        )
    labels: tuple[str, ...] = ()
    if head in LABELLED:
        labels = _labels(config, len(params['classifier/bias']), config_file)
    vocab_file, lowercase = _vocabulary(folder, model['vocab_size'])
    return Weights(
        params, model, head, labels, vocab_file, lowercase, unused,
        f'Hugging Face folder {folder}' + (f' ({architecture})' if architecture else ''),
    )


def _activation(config: Mapping[str, Any], where: Path) -> str:
    name = config.get('hidden_act', 'gelu')
    if name not in _ACTIVATIONS:
        raise InputError(
            f"{where}: hidden_act={name!r} is not one that can be read: "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _refuse_variants(config: Mapping[str, Any], where: Path) -> None:
    """Models that look like BERT and compute something else."""
    plain: Mapping[str, tuple[Any, ...]] = {
        'model_type': ('bert', None), 'position_embedding_type': ('absolute', None),
        'is_decoder': (False, None), 'add_cross_attention': (False, None),
    }
    for field, values in plain.items():
        if config.get(field) not in values:
            raise InputError(
                f'{where}: {field}={config[field]!r} is not the BERT of the paper, for which '
                f'{field}={values[0]!r}; only that can be read'
            )


def _open(folder: Path, stack: contextlib.ExitStack) -> tuple[str, dict[str, Any]]:
    """The file's name for messages, and an open file by tensor name; closed with the stack."""
    index_file, whole = folder / _INDEX, folder / 'model.safetensors'
    if whole.exists():
        file = _open_one(whole, stack)
        return str(whole), {name: file for name in file.keys()}  # noqa: SIM118 (no mapping)
    if index_file.exists():
        weight_map = read_json(index_file, 'it says which shard holds which tensor').get(
            'weight_map')
        if not isinstance(weight_map, dict) or not weight_map:
            raise InputError(f'{index_file} has no weight_map: download it again')
        opened = {}
        for shard in sorted(set(weight_map.values())):
            if not (folder / shard).exists():
                raise InputError(
                    f'{folder / shard} is missing, {index_file.name} names it: download it too'
                )
            opened[shard] = _open_one(folder / shard, stack)
        held = {shard: set(file.keys()) for shard, file in opened.items()}
        for name, shard in weight_map.items():
            if name not in held[shard]:
                raise InputError(
                    f'{folder / shard} has no tensor {name}, {index_file.name} says so: download '
                    'both again'
                )
        return str(index_file), {name: opened[shard] for name, shard in weight_map.items()}
    if any(folder.glob('*.bin')):
        raise InputError(
            f'{folder} holds its weights as a pickle (.bin), which can run code when it is read: '
            'make a model.safetensors of it with transformers, '
            'AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)'
        )
    raise InputError(f'{whole} is missing: a Hugging Face folder holds it beside config.json')


def _open_one(path: Path, stack: contextlib.ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(path, framework='numpy'))
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is no whole safetensors file ({' '.join(str(error).split())}): download or "
            'copy it again'
        ) from None


def _our_spelling(files: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """(file, its key) by the table's names: base models have no `bert.`, old ones gamma and beta.

    Buffers that are no parameters (`position_ids`) are left out.
    """
    base = not any(key.startswith('bert.') for key in files)
    names = {}
    for key, file in files.items():
        if key.endswith('.position_ids'):
            continue
        name = re.sub(r'LayerNorm\.gamma$', 'LayerNorm.weight', key)
        name = re.sub(r'LayerNorm\.beta$', 'LayerNorm.bias', name)
        if base and name.startswith(('embeddings.', 'encoder.', 'pooler.')):
            name = 'bert.' + name
        names[name] = (file, key)
    if 'cls.predictions.decoder.bias' in names:
        names.setdefault('cls.predictions.bias', names['cls.predictions.decoder.bias'])
    return names


def _drop_tied(
    unused: tuple[str, ...], read: Any, params: Mapping[str, np.ndarray], where: str
) -> tuple[str, ...]:
    """`unused` without copies of what is tied, which must be copies."""
    tied = {
        'cls.predictions.decoder.weight': 'bert/embeddings/word_embeddings',
        'cls.predictions.decoder.bias': 'cls/predictions/output_bias',
    }
    for name in set(unused) & set(tied):
        if not np.array_equal(read(name), params[tied[name]]):
            raise InputError(
                f'{where}: {name} is not equal to {tied[name]}: a model whose output layer is '
                'not tied to its embeddings cannot be read'
            )
    return tuple(name for name in unused if name not in tied)


def _labels(config: Mapping[str, Any], num_labels: int, where: Path) -> tuple[str, ...]:
    named = config.get('id2label')
    if named is None:
        return tuple(f'LABEL_{i}' for i in range(num_labels))
    try:
        by_id = {int(i): str(label) for i, label in named.items()}
    except (AttributeError, ValueError):
        raise InputError(f'{where}: id2label is no mapping of ids to labels') from None
    if sorted(by_id) != list(range(num_labels)):
        raise InputError(
            f'{where}: id2label names {len(by_id)} labels ({sorted(by_id)[:4]} ...), the '
            f'classifier has {num_labels}: it must name 0 to {num_labels - 1}'
        )
    return check_labels(tuple(by_id[i] for i in range(num_labels)), num_labels, where)


def _vocabulary(folder: Path, vocab_size: int) -> tuple[Path | None, bool]:
    """(vocabulary file, whether it is of lower-cased text)."""
    said = None
    tokenizer_config = folder / 'tokenizer_config.json'
    if tokenizer_config.exists():
        said = read_json(tokenizer_config, 'it describes the tokenizer').get('do_lower_case')
    path = next((p for p in (folder / 'vocab.txt', *sorted(folder.glob('*.model')))
                 if p.exists()), None)
    tokenizer_file = folder / 'tokenizer.json'
    if path is None and tokenizer_file.exists():
        path = _kept_vocabulary(tokenizer_file)
    if path is None:
        return None, said is not False
    vocab = read_vocabulary(path, lowercase=True)
    check_vocabulary(vocab, path, vocab_size)
    return path, looks_lowercase(vocab) if said is None else bool(said)


def _kept_vocabulary(tokenizer_file: Path) -> Path | None:
    """The vocabulary of a `tokenizer.json` as a file of its own.

    transformers 5 writes no vocab.txt any more. The file is kept by its contents in the cache of
    this project. None where the tokenizer is no WordPiece.
    """
    tokenizer = read_json(tokenizer_file, 'it describes the tokenizer')
    model = tokenizer.get('model') or {}
    vocab = model.get('vocab')
    if model.get('type', 'WordPiece') != 'WordPiece' or not isinstance(vocab, dict):
        return None
    vocab = vocab | {token['content']: token['id'] for token in tokenizer.get('added_tokens', ())}
    tokens = sorted(vocab, key=vocab.__getitem__)
    if [vocab[token] for token in tokens] != list(range(len(tokens))):
        raise InputError(f'{tokenizer_file}: ids of the vocabulary are not 0, 1, 2, ...')
    text = ''.join(f'{token}\n' for token in tokens)
    name = hashlib.sha256(text.encode()).hexdigest()[:32]
    path = Path('~/.cache/bert_jax/vocabularies').expanduser() / f'{name}.txt'
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_vocab(path, tokens)
        except OSError as error:
            raise InputError(f'{path} cannot be written: {error.strerror}') from error
    return path


def write_huggingface(folder: str | Path, weights: Weights) -> list[str]:
    """A folder that `from_pretrained` of the class for the head loads, tokenizer included.

    Returns:
      What is to be known about it, a line each.

    Raises:
      InputError: it cannot be written, holds something already, or the weights lack a part of
        their head.
    """
    architecture, parts, notes = _class_of(weights)
    files: dict[str, np.ndarray] = {}
    left_out = set()
    for tensor in tensors(weights.model['num_layers']):
        if tensor.name not in weights.params:
            continue
        if tensor.optional and tensor.optional not in parts:
            left_out.add(tensor.optional.rstrip('/'))
            continue
        arrays = tensor.to_files('huggingface', weights.params[tensor.name])
        for name, x in zip(tensor.file_names('huggingface'), arrays, strict=True):
            # The encoder by itself goes without the prefix.
            files[name.removeprefix('bert.') if architecture == 'BertModel' else name] = x
    if left_out:
        notes.append(f"left out: {', '.join(sorted(left_out))} ({architecture} has none)")
    with new_folder(Path(folder)) as beside:
        save_file(files, beside / 'model.safetensors', metadata={'format': 'pt'})
        _write_json(beside / 'config.json', _config(weights, architecture))
        if weights.vocab_file is None:
            notes.append('no tokenizer files: there is no vocabulary')
        elif weights.vocab_file.suffix == '.model':
            shutil.copyfile(weights.vocab_file, beside / 'vocab.model')
            notes.append('no tokenizer files: BertTokenizer is WordPiece, and the vocabulary is a '
                         'SentencePiece model (copied as vocab.model)')
        else:
            write_vocab(beside / 'vocab.txt', whole_vocabulary(weights))
            _write_json(beside / 'tokenizer_config.json', {
                'tokenizer_class': 'BertTokenizer', 'do_lower_case': weights.lowercase,
                'model_max_length': weights.model['max_position_embeddings'],
                'strip_accents': None, 'tokenize_chinese_chars': True, 'pad_token': PAD,
                'unk_token': UNK, 'cls_token': CLS, 'sep_token': SEP, 'mask_token': MASK,
            })
    return notes


def _class_of(weights: Weights) -> tuple[str, tuple[str, ...], list[str]]:
    head = 'classification' if weights.head == 'regression' else weights.head
    classes = [(name, parts) for name, (h, parts) in _CLASSES.items() if h == head]
    for name, parts in classes:
        if all(weights.has(part) for part in parts):
            return name, parts, []
    name, parts = classes[0]
    if name == 'BertModel':
        return name, parts, ['there is no pooler: load it with add_pooling_layer=False']
    missing = next(part for part in parts if not weights.has(part))
    raise InputError(f'{weights.source} has no {missing.rstrip("/")}, which {name} needs')


def _config(weights: Weights, architecture: str) -> dict[str, Any]:
    forms = {'gelu_erf': 'gelu', 'gelu_tanh': 'gelu_pytorch_tanh'}
    config = {
        'architectures': [architecture], 'model_type': 'bert', 'dtype': 'float32',
        'hidden_act': forms[weights.model['hidden_act']], 'pad_token_id': 0,
    }
    config |= {key: weights.model[name] for name, key in _FIELDS.items()}
    if weights.head in LABELLED or weights.head == 'regression':
        labels = weights.labels or ('LABEL_0',)
        config['id2label'] = {str(i): label for i, label in enumerate(labels)}
        config['label2id'] = {label: i for i, label in enumerate(labels)}
    if weights.head == 'regression':
        config['problem_type'] = 'regression'
    elif weights.head == 'classification':
        config['problem_type'] = 'single_label_classification'
    return config


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')
