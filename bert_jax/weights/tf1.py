"""TensorFlow 1 checkpoints of google-research/bert: `bert_model.ckpt.*` and `bert_config.json`.

TensorFlow reads and writes them; it is imported only when files exist.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, absolute, as_path, children, local_copy
from bert_jax.runtime.process import loading_tensorflow
from bert_jax.text import read_switches, write_switches
from bert_jax.text.vocab import write_vocab
from bert_jax.text.wordpiece import ORIGINAL
from bert_jax.weights.formats import (
    INFERENCE,
    Weights,
    check_head,
    check_vocabulary,
    find_head,
    find_vocabulary,
    new_folder,
    read_inference,
    read_json,
    read_labels,
    read_model,
    take_params,
    tensors,
    whole_vocabulary,
    write_json,
    write_model,
)

_NAME = 'bert_model.ckpt'


def read_tf1(named: str | os.PathLike[str]) -> Weights:
    """The model of a checkpoint; its optimizer's moments are not read.

    `bert_config.json` and `vocab.txt` are looked for beside the checkpoint, then one folder up.
    The config's `gelu` is the tanh form, as in the original's code.

    Args:
      named: path of the checkpoint's files without `.index` and `.data-*`.

    Raises:
      InputError: something is missing, damaged, contradictory, or no BERT.
    """
    prefix = as_path(named)
    stored = _files(prefix)
    folders = (prefix.parent, absolute(prefix).parent.parent)
    paths = [folder / 'bert_config.json' for folder in folders]
    config_file = next((path for path in paths if path.exists()), paths[0])
    config = read_json(
        config_file, 'it describes the model in the checkpoint; copy it from the model that the '
        'checkpoint was trained from'
    )
    if config.get('hidden_act') != 'gelu':
        raise InputError(
            f"{config_file}: hidden_act={config.get('hidden_act')!r} is not one that can be read: "
            "'gelu'"
        )
    model = read_model(config, 'tf1', config_file)
    tf = _tensorflow(f'{prefix} is a TF1 checkpoint: reading it')

    def ask(method: Callable[..., Any], *args: str) -> Any:
        try:
            return method(*args)
        except Exception as error:  # TensorFlow's calls raise many types
            raise InputError(
                f"{prefix} cannot be read ({' '.join(str(error).split())[:200]}): download or "
                'copy it again'
            ) from None

    index, *_ = [local_copy(path) for path in stored]
    reader = ask(tf.train.load_checkpoint, str(index).removesuffix('.index'))
    shapes = {
        name: tuple(shape) for name, shape in ask(reader.get_variable_to_shape_map).items()
        if not name.endswith(('/adam_m', '/adam_v')) and name != 'global_step'
    }
    params, unused = take_params(
        'tf1', shapes, lambda name: ask(reader.get_tensor, name), model, str(prefix), config_file
    )
    hint = check_head(config.get('head', ''), config_file)
    head = find_head(params, hint, f'{config_file} says head {hint!r}')
    labels = read_labels(config.get('labels'), head, params, config_file)
    vocab_file, lowercase = check_vocabulary(
        find_vocabulary(config_file.parent), config.get('do_lower_case'), model['vocab_size'])
    return Weights(
        params, model, head, labels, vocab_file, lowercase, unused, f'TF1 checkpoint {prefix}',
        read_inference(config, INFERENCE, config_file),
    )


def _tensorflow(purpose: str) -> Any:
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    with loading_tensorflow(purpose):
        import tensorflow as tf

        with contextlib.suppress(RuntimeError):  # raised where TensorFlow has been in use already
            tf.config.set_visible_devices([], 'GPU')
    return tf


def _files(prefix: Path) -> list[Path]:
    """The index and the data; both are there: TensorFlow notices only when it reads a tensor."""
    names = [path.name for path in children(prefix.parent)]
    for suffix, holds in (('.index', 'the names'), ('.data-', 'the numbers')):
        if not any(name.startswith(prefix.name + suffix) for name in names):
            file = f'{prefix}{suffix}' + ('00000-of-00001' if suffix == '.data-' else '')
            raise InputError(f'{file} is missing, which holds {holds} of a TF1 checkpoint: put it '
                             'beside the other files')
    return [prefix.with_name(f'{prefix.name}.index')] + [
        prefix.with_name(name) for name in names if name.startswith(f'{prefix.name}.data-')]


def write_tf1(folder: str | os.PathLike[str], weights: Weights) -> list[str]:
    """A folder that google-research/bert can start from: checkpoint, config, vocabulary.

    What its config has no key for (the erf form of gelu, another LayerNorm epsilon, labels, ...) is
    written under keys of this project, which its code ignores and `read_tf1` reads.

    Returns:
      What is to be known about it, a line each.

    Raises:
      InputError: it cannot be written, or holds something already.
    """
    config, notes = write_model(weights.model, 'tf1', weights.source)
    config |= {'hidden_act': 'gelu', 'do_lower_case': weights.lowercase}
    if weights.head not in ('', 'pretraining'):
        config['head'] = weights.head
    if weights.labels:
        config['labels'] = list(weights.labels)
    if weights.inference:
        config[INFERENCE] = dict(weights.inference)
    tf = _tensorflow('writing a TF1 checkpoint')
    files: dict[str, np.ndarray] = {}
    for tensor in tensors(weights.model):
        if tensor.name in weights.params:
            arrays = tensor.to_files('tf1', weights.params[tensor.name])
            files |= dict(zip(tensor.file_names('tf1'), arrays, strict=True))
    with new_folder(as_path(folder)) as beside:
        with tf.device('/CPU:0'):
            tf.raw_ops.SaveV2(
                prefix=str(beside / _NAME), tensor_names=list(files),
                shape_and_slices=[''] * len(files), tensors=list(files.values()),
            )
        write_json(beside / 'bert_config.json', config)
        if weights.vocab_file is None:
            notes.append('no vocab.txt: there is no vocabulary')
        elif weights.vocab_file.suffix == '.model':
            (beside / 'vocab.model').write_bytes(weights.vocab_file.read_bytes())
            notes.append('the vocabulary is a SentencePiece model, which the original cannot read')
        else:
            write_vocab(beside / 'vocab.txt', whole_vocabulary(weights))
            switches = read_switches(weights.vocab_file)
            write_switches(beside, switches)
            if switches != ORIGINAL:
                notes.append(f'the tokenizer has {switches}, which the original cannot have')
    return notes

