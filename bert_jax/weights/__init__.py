"""Models as they are on disk: Hugging Face folders, TF1 checkpoints, run directories."""

import os
import re

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, children, unpacked
from bert_jax.runtime.hub import model_folder
from bert_jax.weights.formats import Weights
from bert_jax.weights.huggingface import read_huggingface
from bert_jax.weights.run_directory import is_step, read_run
from bert_jax.weights.tf1 import read_tf1

_LOOKS = (
    'a run directory holds config.json and checkpoints/, a Hugging Face folder config.json and '
    'model.safetensors, a TF1 checkpoint bert_model.ckpt.index, bert_model.ckpt.data-* and '
    'bert_config.json (name the folder, or the prefix FOLDER/bert_model.ckpt)')


def load_weights(named: str | os.PathLike[str], *, any_head: bool = False) -> Weights:
    """The model at a path, local or in a bucket.

    Args:
      named: a run directory of this project, or one of its `checkpoints/STEP`; a Hugging Face
        folder or `hf:ORG/NAME[@REVISION]` of the hub; a TF1 checkpoint's prefix, or a folder that
        holds `bert_model.ckpt.index`; or a .zip of such a folder.
      any_head: whether to accept heads that no other run or format can have, for use of the model
        as it is (`formats.check_head`).

    Raises:
      InputError: there is no model at the path, or something is wrong with it.
    """
    path = as_path(model_folder(named))
    if path.suffix == '.zip' and path.exists():
        path = unpacked(path)
    names = [child.name for child in children(path)]
    if is_step(path) or 'checkpoints' in names:
        return read_run(path, any_head=any_head)
    has_tensors = any('.safetensors' in name for name in names)
    if 'bert_model.ckpt.index' in names and not has_tensors:
        path = path / 'bert_model.ckpt'
    elif has_tensors or any(n == 'config.json' or n.endswith('.bin') for n in names):
        return read_huggingface(path)
    elif others := [name for name in names if name.endswith('.index')]:
        raise InputError(f'{path} holds TF1 checkpoints, none of them bert_model.ckpt: name one by '
                         f"its prefix, such as {path / others[0].removesuffix('.index')}")
    if not path.is_dir():
        prefix = path.with_name(re.sub(r'\.(index|meta|data-[0-9]+-of-[0-9]+)$', '', path.name))
        parts = (f'{prefix.name}.index', f'{prefix.name}.data-')
        if any(child.name.startswith(parts) for child in children(prefix.parent)):
            return read_tf1(prefix)
    if path.exists():
        raise InputError(f'{path} holds no model: {_LOOKS}')
    hub = re.fullmatch(r'([\w.-]+/)?[\w.-]+', os.fspath(named))
    raise InputError(f'{path} does not exist: {_LOOKS}' + (
        f'; of the Hugging Face hub: hf:{"" if hub[1] else "ORG/"}{hub[0]}' if hub else ''))
