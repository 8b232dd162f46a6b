"""Who looks at whom: the attention probabilities of a text, for pictures of them.

    R: rows, S: row length, N: heads, D: head_dim, n: tokens of the text
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.predict.classify import Made, maker, reader
from bert_jax.predict.engine import Function, Outputs
from bert_jax.predict.functions import inputs
from bert_jax.predict.loaded import LoadedModel
from bert_jax.predict.texts import stream
from bert_jax.runtime.errors import InputError


def attention(model: LoadedModel, text: str) -> dict[str, Any]:
    """The probabilities of every layer and head.

    Args:
      model: of any head.
      text: one; of a longer one than the model takes, the end is left out.

    Returns:
      {'tokens': n strings, [CLS] and [SEP] among them, 'probabilities': [layers, N, n, n] float32,
      from a token (the last but one dim) to those that it sees}.

    Raises:
      InputError: the text cannot be read.
    """
    def results(made: Made, outputs: Outputs) -> list[dict[str, Any]]:
        ids = made[1].sequences.ids.tolist()  # the only text, so it begins where its row begins
        found = outputs['probabilities'][..., : len(ids)]
        return [{
            'tokens': [model.vocab.tokens[i] for i in ids],
            'probabilities': np.moveaxis(found, 0, 2).astype(np.float32),
        }]

    def refused(text: Any, reason: str) -> Any:
        raise InputError(f'{text!r:.60}: {reason}')

    (answer,) = stream(
        model, [text], read=reader(model, 1), make=maker(model), results=results, refused=refused,
        function=_all_probabilities(model.config),
    )
    found: dict[str, Any] = answer
    return found


@functools.cache
def _all_probabilities(config: ModelConfig) -> Function:
    """`probabilities` [R, S, layers, N, S], as the model's own attention computes them."""
    def function(params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        _, kept = Bert(config, pooled=False).apply(
            {'params': params['bert']}, *inputs(batch), mutable=['intermediates'])
        layers = kept['intermediates']['encoder']
        probabilities_RxLxNxSxS = jnp.stack([
            layers[f'layer_{i}']['attention']['self']['probabilities'][0]
            for i in range(config.num_layers)
        ], axis=1)
        return {'probabilities': jnp.moveaxis(probabilities_RxLxNxSxS, 3, 1)}

    return function
