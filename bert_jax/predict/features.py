"""Hidden states, vectors and attention probabilities of texts; hidden states as JSON or .npz.

    R: rows, S: row length, N: heads, n: tokens of the text
"""

from __future__ import annotations

import functools
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.predict import functions
from bert_jax.predict.commands import Made, Text, maker, reader, stream
from bert_jax.predict.engine import Function, Outputs
from bert_jax.predict.functions import inputs
from bert_jax.predict.loaded import LoadedModel
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, in_bucket, open_whole


class GrowingNpz:
    """Writes an .npz with one float32 array that never is in memory as a whole.

    A context manager: the file appears at the end of the block, or not at all where the block is
    left by an exception.

    Attributes:
      others: further arrays that the file shall hold, by name.
    """

    def __init__(self, path: Path, name: str):
        """Begins the file at `path`; `name` is that of the growing array.

        Raises:
          InputError: the path does not end in .npz, or its folder cannot be written to.
        """
        if path.suffix != '.npz':
            raise InputError(f'--output={path} must end in .npz')
        self.others: Mapping[str, np.ndarray] = {}
        self._path, self._name = path, name
        self._shape: tuple[int, ...] = ()
        self._num_rows = 0
        try:
            place = None if in_bucket(path) else path.parent
            self._rows: IO[bytes] = tempfile.TemporaryFile(dir=place)  # noqa: SIM115
        except OSError as error:
            raise InputError(f'--output={path}: {path.parent}: {error.strerror}') from error

    def add(self, rows: np.ndarray) -> None:
        """Appends rows [n, ...]."""
        self._shape = rows.shape[1:]
        self._num_rows += len(rows)
        self._rows.write(np.ascontiguousarray(rows, '<f4').data)

    def __enter__(self) -> GrowingNpz:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del error, trace
        try:
            if kind is None:
                self._write()
        finally:
            self._rows.close()

    def _write(self) -> None:
        header = {'descr': '<f4', 'fortran_order': False, 'shape': (self._num_rows, *self._shape)}
        with open_whole(self._path) as whole, zipfile.ZipFile(whole, 'w') as archive:
            with archive.open(f'{self._name}.npy', 'w', force_zip64=True) as file:
                np.lib.format.write_array_header_2_0(file, header)
                self._rows.seek(0)
                while block := self._rows.read(1 << 20):
                    file.write(block)
            for name, array in self.others.items():
                with archive.open(f'{name}.npy', 'w', force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)


POOLS = ('mean', 'cls', 'max')


def token_features(
    model: LoadedModel, texts: Iterable[Text], layers: Sequence[int]
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
    model: LoadedModel, texts: Iterable[Text], pool: str | None, layer: int,
    normalize: bool | None, windows: str | None = None,
) -> Iterator[np.ndarray]:
    """A vector [H] float32 for each text, NaN for what is none; see `Model.vectors`."""
    if pool is None or normalize is None:
        pool = model.pooling.pool if pool is None else pool
        normalize = model.pooling.normalize if normalize is None else normalize
    if not isinstance(pool, str) or pool not in POOLS:
        raise InputError(f"pool={pool!r:.60} is unknown: {', '.join(POOLS)}")
    if not isinstance(normalize, (bool, np.bool_)):
        raise InputError(f'normalize={normalize!r:.60} must be True or False')

    how = model.windows(windows)

    def results(made: Made, outputs: Outputs) -> Iterable[np.ndarray]:
        result = made[1].combined(outputs['vectors']).astype(np.float32, copy=False)
        if normalize:
            result = result / np.maximum(np.linalg.norm(result, axis=1, keepdims=True), 1e-12)
        return (vector.copy() for vector in result)  # those of the whole chunk can go

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
        if isinstance(layer, bool) or not isinstance(layer, (int, np.integer)):
            raise InputError(f'layer {layer!r:.60} is not a whole number, such as -1')
        if not lowest <= layer <= -1:
            raise InputError(
                f'layer {layer} is not there: -1 is the last, {lowest + 1} the first, {lowest} '
                'the embeddings'
            )
    return tuple(map(int, layers))


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
    output: str | None, normalize: bool | None = None, windows: str | None = None,
) -> Iterator[dict[str, Any] | None]:
    """The objects that the command `features` prints; None where a file takes them instead.

    Args:
      model: whose states they are.
      texts: texts or pairs.
      layers: as in `token_features`; one where texts are pooled.
      pool: None: all tokens; else as in `text_vectors`.
      output: an .npz to write instead.
      normalize, windows: as in `text_vectors`.

    Raises:
      InputError: layers or output are not as they must be.
    """
    if pool and len(layers) != 1:
        raise InputError(f'--pool takes one layer, --layers names {len(layers)}')
    if windows and not pool:
        raise InputError(f'--windows={windows} combines vectors: it needs --pool')
    if output is None:
        if pool:
            vectors = text_vectors(model, texts, pool, layers[0], normalize, windows)
            for number, vector in enumerate(vectors):
                if np.isnan(vector).any():
                    yield {'linex_index': number, 'error': 'it is no text'}
                else:
                    yield {'linex_index': number, 'vector': _rounded(vector).tolist()}
        else:
            for number, features in enumerate(token_features(model, texts, layers)):
                if 'error' in features:
                    yield {'linex_index': number, 'error': features['error']}
                else:
                    yield as_json(number, features, layers)
        return
    with GrowingNpz(as_path(output), 'vectors' if pool else 'values') as file:
        offsets = [0]
        tokens: list[str] = []
        if pool:
            for vector in text_vectors(model, texts, pool, layers[0], normalize, windows):
                file.add(vector[None])
                yield None
            return
        for features in token_features(model, texts, layers):
            if 'error' in features:  # a text without tokens
                model.note(f"text {len(offsets)} has no features: {features['error']}")
            else:
                file.add(features['values'])
                tokens += features['tokens']
            offsets.append(len(tokens))
            yield None
        file.others = {
            'tokens': np.array(tokens), 'offsets': np.array(offsets), 'layers': np.array(layers),
        }


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.round(values.astype(np.float64), 6)


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
        result = outputs['probabilities'][..., : len(ids)]
        return [{
            'tokens': [model.vocab.tokens[i] for i in ids],
            'probabilities': np.moveaxis(result, 0, 2).astype(np.float32),
        }]

    def refused(text: Any, reason: str) -> Any:
        raise InputError(f'{text!r:.60}: {reason}')

    (answer,) = stream(
        model, [text], read=reader(model, 1), make=maker(model), results=results, refused=refused,
        function=_all_probabilities(model.config),
    )
    result: dict[str, Any] = answer
    return result


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
