"""Hidden states of texts, a token or a text, as values, JSON lines or .npz."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import InputError
from bert_jax.files import as_path
from bert_jax.predict import heads
from bert_jax.predict.classify import sequence
from bert_jax.predict.loaded import LoadedModel, Text
from bert_jax.predict.npz import GrowingNpz
from bert_jax.predict.runner import each_position, each_sequence, each_token

POOLS = ('mean', 'cls')


def token_features(
    model: LoadedModel, texts: Iterable[Text], layers: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Hidden states of every token; see `Model.features`."""
    vocab = model.tokenizer.vocab
    wanted = _checked(model, layers)
    items = (
        (tokens.ids, [tokens])
        for tokens in (sequence(model, text, i, (1, 2)) for i, text in enumerate(texts))
    )
    width = len(wanted) * model.config.hidden_size
    for ids, (values,) in model.runner.stream(
        items, each_token(heads.token_vectors), wanted, values_per_token=width
    ):
        yield {'tokens': [vocab.tokens[i] for i in ids], 'values': values}


def text_vectors(
    model: LoadedModel, texts: Iterable[Text], pool: str, layer: int
) -> Iterator[np.ndarray]:
    """A vector [H] float32 for each text; see `Model.vectors`."""
    if pool not in POOLS:
        raise InputError(f'pool={pool!r} is unknown: {" or ".join(POOLS)}')
    read = each_sequence(heads.mean_vectors) if pool == 'mean' else each_position(
        lambda x, positions, targets: heads.vectors_at(x, positions))
    items = ((None, [sequence(model, text, i, (1, 2))]) for i, text in enumerate(texts))
    for _, (vectors,) in model.runner.stream(items, read, _checked(model, [layer])):
        yield vectors[0].copy()  # the array of the whole batch can go


def _checked(model: LoadedModel, layers: Sequence[int]) -> tuple[int, ...]:
    lowest = -model.config.num_layers - 1
    for layer in layers:
        if not lowest <= layer <= -1:
            raise InputError(
                f'layer {layer} is not there: -1 is the last, {lowest + 1} the first, {lowest} '
                'the embeddings'
            )
    return tuple(layers)


def as_json(number: int, features: dict[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    """A line of google-research/bert's extract_features.py: its keys, six decimals."""
    values = _rounded(features['values']).tolist()
    return {
        'linex_index': number,
        'features': [
            {
                'token': token,
                'layers': [
                    {'index': layer, 'values': of_layer}
                    for layer, of_layer in zip(layers, of_token, strict=True)
                ],
            }
            for token, of_token in zip(features['tokens'], values, strict=True)
        ],
    }


def lines(
    model: LoadedModel, texts: Iterable[Text], layers: Sequence[int], pool: str | None,
    output: str | None,
) -> Iterator[dict[str, Any] | None]:
    """What the command `features` prints, an object a text; None where a file takes it instead.

    Args:
      model: whose states they are.
      texts: texts or pairs.
      layers: as in `token_features`; one where texts are pooled.
      pool: None: all tokens; else as in `text_vectors`.
      output: an .npz to write instead.

    Raises:
      InputError: layers, output or a text are not as they must be.
    """
    if pool and len(layers) != 1:
        raise InputError(f'--pool takes one layer, --layers names {len(layers)}')
    if output is None:
        if pool:
            for number, vector in enumerate(text_vectors(model, texts, pool, layers[0])):
                yield {'linex_index': number, 'vector': _rounded(vector).tolist()}
        else:
            for number, features in enumerate(token_features(model, texts, layers)):
                yield as_json(number, features, layers)
        return
    with GrowingNpz(as_path(output), 'vectors' if pool else 'values') as file:
        offsets = [0]
        tokens: list[str] = []
        if pool:
            for vector in text_vectors(model, texts, pool, layers[0]):
                file.add(vector[None])
                yield None
            return
        for features in token_features(model, texts, layers):
            file.add(features['values'])
            tokens += features['tokens']
            offsets.append(len(tokens))
            yield None
        file.others = {
            'tokens': np.array(tokens), 'offsets': np.array(offsets), 'layers': np.array(layers),
        }


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.round(values.astype(np.float64), 6)
