"""TensorFlow 1 checkpoints of google-research/bert: `bert_model.ckpt.*` and `bert_config.json`.

TensorFlow reads and writes them. It is imported after the first checks, because that takes seconds.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.config.bert_config import OPTIONS
from bert_jax.foreign.tf1_index import check_shapes
from bert_jax.heads.tensors import Tensor
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import (
    Path,
    absolute,
    as_path,
    check_no_pointer,
    children,
    exists,
    local_copy,
    read_bytes,
    read_json,
)
from bert_jax.runtime.new_folder import new_folder, write_json
from bert_jax.runtime.packages import loading_tensorflow
from bert_jax.text.kinds import find_vocabulary, load_tokenizer
from bert_jax.text.switches import read_switches, write_switches
from bert_jax.text.wordpiece import ORIGINAL, WordPieceTokenizer
from bert_jax.weights import parameters
from bert_jax.weights.inference_settings import INFERENCE, read_inference
from bert_jax.weights.vocabulary import check_vocabulary, write_vocabulary

_NAME = 'bert_model.ckpt'
_SPELLINGS = {option.name: option.tf1 for option in OPTIONS if option.tf1 is not None}
_FLOATS = ('float32', 'float64', 'float16', 'bfloat16')
_OBJECT_GRAPH = b'_CHECKPOINTABLE_OBJECT_GRAPH'  # a variable that only TF2's checkpoints have


def read_tf1(named: str | os.PathLike[str]) -> parameters.Weights:
    """Reads the model of a checkpoint, without its optimizer's moments.

    `bert_config.json` and `vocab.txt` are looked for beside the checkpoint, then one folder up.
    The config's `gelu` is the tanh form, as in the original's code.

    Args:
      named: the checkpoint's prefix: the path of its files without `.index` and `.data-*`.

    Raises:
      InputError: something is missing, damaged or contradictory, or the model is no BERT.
    """
    prefix = as_path(named)
    _check_files(prefix)
    config_file = _find_config(prefix)
    config = read_json(config_file, 'it describes the model in the checkpoint; copy it '
                               'from the model that the checkpoint was trained from')
    if config.get('hidden_act') != 'gelu':
        raise InputError(f"{config_file}: hidden_act={config.get('hidden_act')!r} is not one that "
                         "can be read: 'gelu'")
    model = parameters.read_model(config, _SPELLINGS, config_file)
    params, unused = parameters.take_params(_open_checkpoint(prefix, config_file), model)
    hint = parameters.check_head(config.get('head', ''), config_file)
    head = parameters.find_head(params, model, hint, f'{config_file} says head {hint!r}')
    vocab_file, lowercase = check_vocabulary(
        find_vocabulary(config_file.parent), config.get('do_lower_case'), model['vocab_size'])
    return parameters.Weights(
        params=params,
        model=model,
        head=head,
        labels=parameters.read_labels(config.get('labels'), head, params, config_file),
        vocab_file=vocab_file,
        lowercase=lowercase,
        unused=unused,
        source=f'TF1 checkpoint {prefix}',
        inference=read_inference(
            config.get(INFERENCE), f'{config_file}: {INFERENCE}'))


def _check_files(prefix: Path) -> None:
    """Raises InputError if a checkpoint's files are incomplete or TF2's.

    TensorFlow notices that data files are missing only when it reads a tensor.
    """
    names = [path.name for path in children(prefix.parent)]
    index = f'{prefix.name}.index'
    if not any(name.startswith(index) for name in names):
        raise InputError(_missing(prefix, '.index'))
    if not any(name.startswith(f'{prefix.name}.data-') for name in names):
        raise InputError(_missing(prefix, '.data-00000-of-00001'))
    if _OBJECT_GRAPH in read_bytes(prefix.with_name(index)):
        raise InputError(f'{prefix} is a TF2 checkpoint, which holds Keras objects: of TensorFlow, '
                         'only the TF1 checkpoints of google-research/bert can be read; load it '
                         'with transformers or the program that wrote it, and save it with '
                         'save_pretrained(FOLDER)')


def _missing(prefix: Path, suffix: str) -> str:
    return (f'{prefix}{suffix} is missing, a part of a TF1 checkpoint: put it '
            'beside the other files')


def _find_config(prefix: Path) -> Path:
    """The path of bert_config.json: beside a checkpoint, or if it is only there, one folder up."""
    beside = prefix.parent / 'bert_config.json'
    above = absolute(prefix).parent.parent / 'bert_config.json'
    if not exists(beside) and exists(above):
        return above
    return beside


def _open_checkpoint(prefix: Path, config_file: Path) -> parameters.StoredTensors:
    """The variables of a checkpoint, without those of its optimizer."""
    with loading_tensorflow(f'{prefix} is a TF1 checkpoint: reading it'):
        import tensorflow as tf

    def call(method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:  # TensorFlow's calls raise many types
            why = ' '.join(str(error).split())[:200]
            raise InputError(
                f'{prefix} cannot be read ({why}): download or copy it again') from None

    for child in children(prefix.parent):
        if child.name.startswith(f'{prefix.name}.data-'):
            local_copy(child)
    index = local_copy(prefix.with_name(f'{prefix.name}.index'))
    content = index.read_bytes()
    check_no_pointer(index, content)
    call(check_shapes, content)
    reader = call(tf.train.load_checkpoint, str(index).removesuffix('.index'))
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in call(reader.get_variable_to_shape_map).items():
        if name != 'global_step' and not name.endswith(('/adam_m', '/adam_v')):
            shapes[name] = tuple(shape)

    def read(name: str) -> np.ndarray:
        array = np.asarray(call(reader.get_tensor, name))
        if array.dtype.name not in _FLOATS:
            raise InputError(f'{prefix}: {name} is of type {array.dtype.name}: save it as float32')
        return array

    return parameters.StoredTensors(
        form_of=Tensor.in_tf1,
        shapes=shapes,
        read=read,
        where=prefix,
        config_file=config_file)


def write_tf1(folder: str | os.PathLike[str], weights: parameters.Weights) -> list[str]:
    """Writes a folder that google-research/bert can start from: checkpoint, config, vocabulary.

    What its config has no key for (the erf form of gelu, another LayerNorm epsilon, labels, ...) is
    written under keys of this project, which its code ignores and `read_tf1` reads.

    Args:
      folder: the folder to write.
      weights: the model.

    Returns:
      Notes for the user, a line each.

    Raises:
      InputError: the folder cannot be written or is not empty, or the model has an option that a
        bert_config.json cannot hold.
    """
    config, notes = config_to_write(weights)
    if weights.head not in ('', 'pretraining'):
        config['head'] = weights.head
    if weights.labels:
        config['labels'] = list(weights.labels)
    if weights.inference:
        config[INFERENCE] = dict(weights.inference)
    with loading_tensorflow('writing a TF1 checkpoint'):
        import tensorflow as tf
    files = parameters.from_params(Tensor.in_tf1, weights.params, weights.model)
    with new_folder(as_path(folder)) as beside:
        with tf.device('/CPU:0'):
            tf.raw_ops.SaveV2(
                prefix=str(beside / _NAME), tensor_names=list(files),
                shape_and_slices=[''] * len(files), tensors=list(files.values()))
        write_json(beside / 'bert_config.json', config)
        notes += _write_vocabulary(beside, weights)
    return notes


def config_to_write(weights: parameters.Weights) -> tuple[dict[str, Any], list[str]]:
    """(The content of bert_config.json for a model, notes for the user).

    Raises:
      InputError: there is no key for an option, so the file would describe another model.
    """
    notes = []
    spellings = {}  # of the options that are written
    for option in OPTIONS:
        value = weights.model[option.name]
        spelling = _SPELLINGS.get(option.name)
        if value == option.default and (spelling is None or spelling.ours):
            continue
        if spelling is None or not parameters.is_expressible(spelling, value):
            raise InputError(f'{weights.source} has {option.name}={value!r}, which a '
                             f'bert_config.json cannot hold: it would be read as '
                             f'{option.default!r}; use --to bert_jax')
        if spelling.ours:
            notes.append(
                f"{option.name} is {value}: the original's code has {option.default} fixed")
        spellings[option.name] = spelling
    config = parameters.spelled(weights.model, spellings)
    config |= {'hidden_act': 'gelu', 'do_lower_case': weights.lowercase}
    return config, notes


def _write_vocabulary(folder: Path, weights: parameters.Weights) -> list[str]:
    """Writes vocab.txt and the tokenizer's settings beside it. Returns notes for the user."""
    if weights.vocab_file is None:
        return ['no vocab.txt: there is no vocabulary']
    tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)
    if not isinstance(tokenizer, WordPieceTokenizer):
        return [f'no vocab.txt: the tokenizer is a {tokenizer.algorithm} model, which the original '
                'cannot read']
    write_vocabulary(folder, weights, tokenizer)
    switches = read_switches(weights.vocab_file)
    write_switches(folder, switches)
    notes = []
    if dataclasses.replace(switches, added_tokens=()) != ORIGINAL:
        notes.append(f'the tokenizer has {switches}, which the original cannot have')
    if switches.added_tokens:
        added = ', '.join(token.content for token in switches.added_tokens)
        notes.append(f'the tokens {added} were added to the tokenizer: the '
                     'original splits them like other text')
    return notes
