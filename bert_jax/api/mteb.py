"""A model as the benchmark MTEB takes it (Muennighoff et al., 2023; the package `mteb`)."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bert_jax.loading import load
from bert_jax.predict.model import Model
from bert_jax.runtime.errors import InputError, needing


def mteb_model(path: str | os.PathLike[str], name: str = '') -> 'MtebModel':
    """A model for `mteb.evaluate(mteb_model(path), mteb.get_tasks([...]))`.

    Texts get the model's prompts: that of the task (by its name or kind) if there is one, else
    `query` or `document` where the task tells these apart.

    Args:
      path: as for `load`.
      name: in MTEB's results, ORGANIZATION/NAME; '': bert_jax/ and the last part of the path.

    Raises:
      InputError: mteb is not installed, or there is no such model.
    """
    with needing('bert_jax.mteb_model', 'mteb'):
        import mteb  # noqa: F401
    if not name:
        name = f'bert_jax/{os.path.basename(os.path.normpath(os.fspath(path)))}'
    return MtebModel(load(path), name)


class MtebModel:
    """A loaded model as an encoder of MTEB (`mteb.models.EncoderProtocol`).

    Attributes:
      mteb_model_meta: the model's description, an `mteb.models.ModelMeta`.
    """

    def __init__(self, model: Model, name: str):
        """Takes a loaded model; see `mteb_model`."""
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        if model.sentences.similarity not in ('cosine', 'dot'):
            raise InputError(
                f'{model.weights.source}: similarity_fn_name={model.sentences.similarity!r} is not '
                'computed here: cosine and dot are')
        self._model = model
        prompts = model.sentences.prompts
        self.mteb_model_meta = ModelMeta(
            loader=None, name=name, revision='local', release_date=None, languages=None,
            n_parameters=sum(array.size for array in model.weights.params.values()),
            memory_usage_mb=None, max_tokens=model.max_length,
            embed_dim=model.vector_size, license=None, open_weights=None,
            public_training_code=None, public_training_data=None, framework=[],
            similarity_fn_name=ScoringFunction(model.sentences.similarity),
            use_instructions=any(prompts.values()), training_datasets=None)

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, task_metadata: Any, hf_split: str,
        hf_subset: str, prompt_type: Any = None, **options: Any,
    ) -> np.ndarray:
        """Vectors [n, H] float32 of the texts of all batches.

        Args:
          inputs: batches with a list `text` each.
          task_metadata: of the task, whose name and kind may name a prompt.
          hf_split, hf_subset: of its data; they change nothing.
          prompt_type: `query`, `document` or None.
          **options: such as `batch_size`; the model packs texts into rows by itself.

        Raises:
          InputError: a text cannot be read.
        """
        from mteb.models.abs_encoder import get_prompt_name

        prompts = dict(self._model.sentences.prompts)
        name = get_prompt_name(prompts, task_metadata, prompt_type)
        if name is None and prompt_type is not None:
            name = prompt_type.value  # empty where there is none, and not the default one
        texts = (text for batch in inputs for text in batch['text'])
        vectors = self._model.vectors(texts, prompt=name)
        if np.isnan(vectors).any():
            raise InputError(f'{task_metadata.name}: a text has no vector: it is no text')
        return vectors

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Cosines [n1, n2] of all vectors with all others, or dot products, as the model has it."""
        return self._compared(embeddings1) @ self._compared(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """The same [n] of vectors with those in the same places."""
        return np.sum(self._compared(embeddings1) * self._compared(embeddings2), axis=-1)

    def _compared(self, embeddings: Any) -> np.ndarray:
        """The vectors whose products are the similarity."""
        vectors = np.atleast_2d(np.asarray(embeddings, np.float32))
        if self._model.sentences.similarity == 'dot':
            return vectors
        return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
