"""Uses a model, from Python as below or from the command line with `python -m bert_jax.predict`.

    from bert_jax.predict import load
    model = load('runs/tiny_pretrain')
    for answer in model.fill_mask(['The list is [MASK] in place.']):
        print(answer['predictions'][0]['token'])
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bert_jax.runtime.errors import InputError

if TYPE_CHECKING:
    from bert_jax.predict.commands import Model

__all__ = ['InputError', 'load']


def load(
    path: str | os.PathLike[str], vocab_file: str | os.PathLike[str] | None = None,
    dtype: str | None = None,
) -> Model:
    """Loads a model for inference.

    Its programs are kept on the disk, so that the next process need not compile them again: in
    ~/.cache/bert_jax/compiled, unless jax's compilation cache has a folder already
    (JAX_COMPILATION_CACHE_DIR). Everything else that the process compiles for 0.1 seconds is kept
    there, too.

    Args:
      path: a run directory, a Hugging Face or sentence-transformers folder, hf:ORG/NAME for a model
        of the Hugging Face hub, or a TF1 checkpoint.
      vocab_file: the vocabulary, if it is not beside the weights.
      dtype: of the computation, 'float32' or 'bfloat16'; default: float32 on CPUs, else bfloat16.

    Raises:
      InputError: an argument is invalid, there is no model, or something is wrong with it.
    """
    from bert_jax.predict.commands import Model  # imported here: `--help` need not wait for JAX
    from bert_jax.predict.loaded import read_model

    weights, sentences = read_model(path, vocab_file)
    model = Model(weights, dtype, sentences=sentences)
    keep_programs(in_command=False)
    return model


def keep_programs(in_command: bool) -> None:
    """Keeps compiled programs on the disk, for the next process; see `load`.

    Args:
      in_command: as for `keep_compiled`.
    """
    from bert_jax.runtime.compilation_cache import keep_compiled

    folder = os.path.expanduser('~/.cache/bert_jax/compiled')
    if os.path.isabs(folder):  # else the user has no home
        keep_compiled(folder, least_seconds=0.1, in_command=in_command)
