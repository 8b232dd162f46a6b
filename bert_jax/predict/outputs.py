"""The output of the commands: a line of JSON for each text, or arrays in an .npz file."""

import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.runtime.errors import InputError, counted, tell
from bert_jax.runtime.files import Path, as_path, in_bucket, open_whole

_PROGRESS_SECONDS = 10.0  # between two lines of progress
_NO_TEXT = 'it is no text'  # why a vector is NaN; a note has said more


class _Counts:
    """Counts texts and those without a result; prints the progress on standard error."""

    def __init__(self) -> None:
        self._started = self._printed = time.monotonic()
        self.num_texts = 0
        self.num_failed = 0
        self._first_error = ''

    def add(self, result: Mapping[str, Any]) -> None:
        """Counts a text by its result."""
        self.num_texts += 1
        if 'error' in result:
            self.num_failed += 1
            self._first_error = (
                self._first_error or f'text {self.num_texts}: {result["error"]}')
        now = time.monotonic()
        if now - self._printed > _PROGRESS_SECONDS:
            self._printed = now
            rate = self.num_texts / (now - self._started)
            tell(f"{counted(self.num_texts, 'text')}, {rate:.1f} a second")

    def error(self) -> str:
        """The first error, and how many texts have one."""
        if self.num_texts == 1:
            return self._first_error
        return f'{self._first_error} ({self.num_failed} of {self.num_texts} have no result)'


def print_results(results: Iterable[Mapping[str, Any]], *, is_exact: bool) -> int:
    """Prints an object per line (unless it is empty), the progress, and the first error.

    Args:
      results: one for each text; one that has 'corpus' is of no text.
      is_exact: whether all digits are printed, or only those that float32 holds.

    Returns:
      The number of texts without a result.

    Raises:
      InputError: no text has a result.
    """
    counts = _Counts()
    for result in results:
        if result:
            print(_line(result, is_exact), flush=True)  # its reader may wait for this one
        if 'corpus' not in result:
            counts.add(result)
    sys.stdout.flush()
    if counts.num_failed:
        if counts.num_failed == counts.num_texts:
            raise InputError(counts.error())
        tell(counts.error())
    return counts.num_failed


def _line(result: Mapping[str, Any], is_exact: bool) -> str:
    """A result as JSON."""
    text = json.dumps(result, ensure_ascii=False)
    if not is_exact:
        rounded = json.loads(text, parse_float=lambda digits: float(f'{float(digits):.7g}'))
        text = json.dumps(rounded, ensure_ascii=False)
    # JSON leaves these control characters of terminals as they are; they are only in strings.
    return re.sub('[\x7f-\x9f]', lambda found: f'\\u{ord(found[0]):04x}', text)


def feature_lines(
    results: Iterable[Mapping[str, Any]], layers: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Results of `Model.features` as extract_features.py of google-research/bert writes them."""
    for number, result in enumerate(results):
        if 'error' in result:
            yield {'linex_index': number, 'features': None, 'error': result['error']}
        else:
            features = _features(result['tokens'], result['values'], layers)
            yield {'linex_index': number, 'features': features}


def _features(
    tokens: Sequence[str], values: np.ndarray, layers: Sequence[int]
) -> list[dict[str, Any]]:
    """The hidden states [n, layers, H] of a text's n tokens, token by token."""
    features = []
    for token, states in zip(tokens, _six_decimals(values), strict=True):
        of_layers = []
        for layer, state in zip(layers, states, strict=True):
            of_layers.append({'index': layer, 'values': state})
        features.append({'token': token, 'layers': of_layers})
    return features


def vector_lines(vectors: Iterable[np.ndarray]) -> Iterator[dict[str, Any]]:
    """Vectors of texts as objects to print."""
    for number, vector in enumerate(vectors):
        if np.isnan(vector).any():
            yield {'linex_index': number, 'vector': None, 'error': _NO_TEXT}
        else:
            yield {'linex_index': number, 'vector': _six_decimals(vector)}


def _six_decimals(values: np.ndarray) -> list[Any]:
    return np.round(values.astype(np.float64), 6).tolist()


class _GrowingArray:
    """A float32 array [rows, ...] that grows in a temporary file and is never whole in memory."""

    def __init__(self, file: Any, row_shape: tuple[int, ...]):
        self._file = file
        self._row_shape = row_shape
        self._num_rows = 0

    def append(self, rows: np.ndarray) -> None:
        """Adds rows at the end."""
        self._file.write(np.ascontiguousarray(rows, '<f4').data)
        self._num_rows += len(rows)

    def whole(self) -> np.ndarray:
        """The array, mapped from the file."""
        self._file.flush()
        shape = (self._num_rows, *self._row_shape)
        if not self._num_rows:
            return np.zeros(shape, '<f4')
        return np.memmap(self._file, '<f4', 'r', shape=shape)


@contextlib.contextmanager
def _growing_array(path: Path, row_shape: tuple[int, ...]) -> Iterator[_GrowingArray]:
    """A growing array for the file at `path`, on the same disk unless that is a bucket."""
    folder = None if in_bucket(path) else path.parent
    with tempfile.TemporaryFile(dir=folder) as file:
        yield _GrowingArray(file, row_shape)


def write_features(
    output: str, results: Iterable[Mapping[str, Any]], layers: Sequence[int], hidden_size: int
) -> Iterator[dict[str, Any]]:
    """Writes hidden states, their tokens and the texts' offsets into an .npz atomically.

    Yields an object for each text: its error, or nothing to print.

    Args:
      output: the file.
      results: of `Model.features`.
      layers: those of the results.
      hidden_size: of the model.

    Raises:
      InputError: the file has another ending.
    """
    path = _npz_path(output)
    tokens: list[str] = []
    offsets = [0]
    with _growing_array(path, (len(layers), hidden_size)) as values:
        for number, result in enumerate(results):
            line = {}
            if 'error' in result:
                line = {'linex_index': number, 'error': result['error']}
            else:
                values.append(result['values'])
                tokens += result['tokens']
            offsets.append(len(tokens))
            yield line
        _write_npz(path, {
            'values': values.whole(),
            'tokens': np.array(tokens),
            'offsets': np.array(offsets),
            'layers': np.array(layers),
        })


def write_vectors(
    output: str, vectors: Iterable[np.ndarray], hidden_size: int
) -> Iterator[dict[str, Any]]:
    """Writes vectors into an .npz atomically; NaN for a text that could not be read.

    Yields an object for each text: its error, or nothing to print.

    Args:
      output: the file.
      vectors: of `Model.iter_vectors`.
      hidden_size: of the model.

    Raises:
      InputError: the file has another ending.
    """
    path = _npz_path(output)
    with _growing_array(path, (hidden_size,)) as whole:
        for number, vector in enumerate(vectors):
            whole.append(vector[None])
            if np.isnan(vector).any():
                yield {'linex_index': number, 'error': _NO_TEXT}
            else:
                yield {}
        _write_npz(path, {'vectors': whole.whole()})


def _npz_path(output: str) -> Path:
    path = as_path(output)
    if path.suffix != '.npz':
        raise InputError(f'--output={output} must end in .npz')
    return path


def _write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with open_whole(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
