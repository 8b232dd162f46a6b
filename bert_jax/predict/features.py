"""Hidden states, vectors and attention probabilities of texts; hidden states as JSON or .npz.

    N: heads, H: hidden_size, n: tokens of the text
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.model.encoder import Bert
from bert_jax.predict import functions
from bert_jax.predict.commands import Made, Text, maker, parts_of, reader, stream
from bert_jax.predict.engine import Outputs
from bert_jax.predict.loaded import POOLS, LoadedModel
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, in_bucket, open_whole
from bert_jax.train.sharding import Layout


def token_features(
    model: LoadedModel, texts: Iterable[Text], layers: Sequence[int] = (-1,)
) -> Iterator[dict[str, Any]]:
    """Hidden states of every token; see `Model.features`."""
    vocab = model.vocab
    wanted = _checked(model, layers)

    def results(made: Made, outputs: Outputs) -> Iterator[dict[str, Any]]:
        texts, read = made
        bounds = read.sequences.offsets.tolist()
        for i in range(len(texts)):
            part = slice(bounds[i], bounds[i + 1])
            yield {
                'tokens': [vocab.tokens[j] for j in read.sequences.ids[part]],
                'values': outputs['values'][part],
            }

    return stream(
        model, texts, read=reader(model, 1, 2, empty=True), make=maker(model), results=results,
        function=functions.hidden_states(model.config, wanted),
        refused=lambda text, reason: {'error': reason},
        values_per_token=len(wanted) * model.config.hidden_size,
    )


def text_vectors(
    model: LoadedModel, texts: Iterable[Text], pool: str | None = None, layer: int = -1,
    normalize: bool | None = None, windows: str | None = None,
) -> Iterator[np.ndarray]:
    """A vector [H] float32 for each text, NaN if it cannot be read; see `Model.vectors`."""
    if pool is None or normalize is None:
        pool = model.pooling[0] if pool is None else pool
        normalize = model.pooling[1] if normalize is None else normalize
    if not isinstance(pool, str) or pool not in POOLS:
        raise InputError(f"pool={pool!r:.60} is unknown: {', '.join(POOLS)}")
    if not isinstance(normalize, (bool, np.bool_)):
        raise InputError(f'normalize={normalize!r:.60} must be True or False')

    how = model.windows(windows)

    def results(made: Made, outputs: Outputs) -> Iterable[np.ndarray]:
        result = made[1].combined(outputs['vectors']).astype(np.float32, copy=False)
        if normalize:
            result = result / np.maximum(np.linalg.norm(result, axis=1, keepdims=True), 1e-12)
        return (vector.copy() for vector in result)  # frees the array of the chunk

    def refused(text: Any, reason: str) -> np.ndarray:
        model.note(f'{text!r:.40} has no vector: {reason}')
        return np.full(model.config.hidden_size, np.nan, np.float32)

    (wanted,) = _checked(model, [layer])
    return stream(
        model, texts, read=reader(model, 1, 2, empty=True, how=how),
        make=maker(model, how), results=results,
        function=functions.vectors(model.config, wanted, pool), refused=refused,
    )


def _checked(model: LoadedModel, layers: Sequence[int]) -> tuple[int, ...]:
    lowest = -model.config.num_layers - 1
    if isinstance(layers, (str, Mapping)) or not isinstance(layers, (Sequence, np.ndarray)) or (
            not len(layers)):
        raise InputError(f'layers={layers!r:.60} must be layers, such as (-1, -2)')
    for layer in layers:
        is_number = isinstance(layer, (int, np.integer)) and not isinstance(layer, bool)
        if not is_number or not lowest <= layer <= -1:
            raise InputError(
                f'layer {layer!r:.60} is not there: -1 is the last, {lowest + 1} the first, '
                f'{lowest} the embeddings'
            )
    return tuple(map(int, layers))


def lines(
    model: LoadedModel, texts: Iterable[Text], layers: Sequence[int], pool: str | None,
    output: str | None, normalize: bool | None = None, windows: str | None = None,
) -> Iterator[dict[str, Any] | None]:
    """The objects that the command `features` prints; None if a file gets the features instead.

    They have the keys and six decimals of google-research/bert's extract_features.py.

    Args:
      model: computes the features.
      texts: texts or pairs.
      layers: as in `token_features`; a single one for pooling.
      pool: None: all tokens; else as in `text_vectors`.
      output: an .npz to write instead.
      normalize, windows: as in `text_vectors`.

    Raises:
      InputError: invalid layers or output.
    """
    if pool and len(layers) != 1:
        raise InputError(f'--pool takes one layer, --layers names {len(layers)}')
    if windows and not pool:
        raise InputError(f'--windows={windows} combines vectors: it needs --pool')
    results: Iterable[dict[str, Any]] = (
        {'vectors': vector[None]}
        for vector in text_vectors(model, texts, pool, layers[0], normalize, windows)
    ) if pool else token_features(model, texts, layers)
    if output is not None:
        yield from _write_npz(model, results, output, layers, 'vectors' if pool else 'values')
        return
    for number, result in enumerate(results):
        if 'vectors' in result:
            (vector,) = result['vectors']
            is_none = np.isnan(vector).any()
            result = {'error': 'it is no text'} if is_none else {'vector': _rounded(vector)}
        elif 'values' in result:
            result = {'features': [
                {
                    'token': token,
                    'layers': [{'index': layer, 'values': of_layer}
                               for layer, of_layer in zip(layers, of_token, strict=True)],
                }
                for token, of_token in zip(
                    result['tokens'], _rounded(result['values']), strict=True)
            ]}
        yield {'linex_index': number} | result


def _rounded(values: np.ndarray) -> list[Any]:
    rounded: list[Any] = np.round(values.astype(np.float64), 6).tolist()
    return rounded


def _write_npz(
    model: LoadedModel, results: Iterable[dict[str, Any]], output: str, layers: Sequence[int],
    name: str,
) -> Iterator[None]:
    """Writes `vectors`, or `values` with their tokens and offsets, into an .npz atomically.

    The large array grows in a temporary file, never whole in memory.
    """
    path = as_path(output)
    if path.suffix != '.npz':
        raise InputError(f'--output={output} must end in .npz')
    offsets, tokens, num_rows = [0], list[str](), 0
    with tempfile.TemporaryFile(dir=None if in_bucket(path) else path.parent) as file:
        for result in results:
            if 'error' in result:  # a text without tokens
                model.note(f"text {len(offsets)} has no features: {result['error']}")
            else:
                rows = result[name]
                file.write(np.ascontiguousarray(rows, '<f4').data)
                tokens += result.get('tokens', ())
                num_rows += len(rows)
            offsets.append(len(tokens))
            yield None
        file.flush()
        hidden = model.config.hidden_size
        shape = (num_rows, hidden) if name == 'vectors' else (num_rows, len(layers), hidden)
        large = np.memmap(file, '<f4', 'r', shape=shape) if num_rows else np.zeros(shape, '<f4')
        others = {} if name == 'vectors' else {
            'tokens': np.array(tokens), 'offsets': np.array(offsets), 'layers': np.array(layers)}
        with open_whole(path) as whole:
            np.savez(whole, **{name: large}, **others)  # type: ignore[arg-type]


def attention(model: LoadedModel, text: str) -> dict[str, Any]:
    """The probabilities of every layer and head.

    Args:
      model: with any head.
      text: truncated to the model's length.

    Returns:
      {'tokens': n strings with [CLS] and [SEP], 'probabilities': [layers, N, n (queries), n (keys)]
      float32}.

    Raises:
      InputError: the text cannot be read.
    """
    try:
        ids = model.encode(*parts_of(text, 1))[: model.max_length - 2]
    except InputError as error:
        raise InputError(f'{text!r:.60}: {error}') from None
    ids = [model.vocab.cls_id, *ids, model.vocab.sep_id]
    config = dataclasses.replace(model.config, attention='xla', layout=Layout())
    row, ones = np.array([ids], np.int32), np.ones((1, len(ids)), np.int32)
    _, kept = Bert(config, pooled=False).apply(
        {'params': model.params['bert']}, row, ones, 0 * ones, mutable=['intermediates'])
    layers = kept['intermediates']['encoder']
    return {
        'tokens': [model.vocab.tokens[i] for i in ids],
        'probabilities': np.stack([
            layers[f'layer_{i}']['attention']['self']['probabilities'][0][0]
            for i in range(config.num_layers)
        ]).astype(np.float32),
    }
