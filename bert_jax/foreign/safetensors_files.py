"""A model's tensors in safetensors: one file, or shards with an index."""

import contextlib
import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (with it, numpy knows bfloat16)
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_jax.runtime.checksum import checksum
from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import (
    GIT_LFS,
    Path,
    check_no_pointer,
    children,
    exists,
    local_copy,
    read_fields,
    read_range,
)
from bert_jax.runtime.new_folder import write_json
from bert_jax.runtime.schema import INSIDE, MapOf

SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
SHARD_BYTES = 5_000_000_000  # the long-standing default of transformers' `save_pretrained`
_CHECKSUM = 'bert_jax.checksum '  # and a tensor's name: a metadata key in files that we write


class _OtherWeights(NamedTuple):
    """A kind of weights file that is not read, as messages describe it.

    Attributes:
      title: what the file is; {} stands for its suffix.
      loading: what loads it in transformers.
    """

    title: str
    loading: str


_PICKLE = _OtherWeights('a pickle ({}), which can run code', 'transformers')
_ADAPTER = 'adapter_model.safetensors'  # of peft, which is no whole model by another name
_OTHER_WEIGHTS = {  # by the suffix of a file
    '.bin': _PICKLE,
    '.pt': _PICKLE,
    '.pth': _PICKLE,
    '.msgpack': _OtherWeights('a Flax model in parts ({})', 'transformers 4, from_flax=True'),
    '.h5': _OtherWeights('a TF2 model ({})', 'transformers 4, from_tf=True'),
}


class FileTensor(NamedTuple):
    """A tensor in an open safetensors file."""

    file: Any
    path: Path
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the file's header; nothing is read."""
        return tuple(self.file.get_slice(self.name).get_shape())

    def read(self) -> np.ndarray:
        """The array as stored, but for float64, which is rounded to float32 with a note.

        Raises:
          InputError: its type is not floating point, a number is beyond float32's range, or it does
            not match its checksum.
        """
        dtype = self.file.get_slice(self.name).get_dtype()
        if dtype not in ('F32', 'F16', 'BF16', 'F64'):
            raise InputError(f'{self.path}: {self.name} is of type {dtype}: save it as float32')
        array: np.ndarray = self.file.get_tensor(self.name)
        metadata = self.file.metadata() or {}
        if metadata.get(_CHECKSUM + self.name) not in (None, str(checksum(array))):
            raise InputError(
                f'{self.path} is damaged ({self.name} is not what was written): copy it again')
        if dtype == 'F64':
            tell_once(f'note: {self.path}: its float64 is rounded to float32')
            return self._rounded(array)
        return array

    def _rounded(self, array: np.ndarray) -> np.ndarray:
        """An array in float32; raises InputError where a number becomes infinite."""
        with np.errstate(over='ignore'):
            rounded = array.astype(np.float32)
        if (np.isinf(rounded) & np.isfinite(array)).any():
            raise InputError(f'{self.path}: {self.name} has numbers beyond those of float32')
        return rounded


def open_tensors(
    folder: Path, stack: contextlib.ExitStack
) -> tuple[Path, dict[str, FileTensor]]:
    """Opens `model.safetensors`, or the shards that `model.safetensors.index.json` lists.

    Args:
      folder: of the model.
      stack: closes the files.

    Returns:
      (The path of the file or index, for messages; its tensors by name.)

    Raises:
      InputError: weights are missing, damaged or pickled.
    """
    single = folder / SINGLE
    index = folder / INDEX
    if not exists(single) and exists(index):
        return index, _open_shards(index, stack)
    if not exists(single):
        _check_no_other_weights(folder)
        _check_no_other_names(folder)
    return single, open_file(single, stack)


def _open_shards(index: Path, stack: contextlib.ExitStack) -> dict[str, FileTensor]:
    """The tensors in the files that an index names."""
    content = read_fields(index, {'weight_map': MapOf(INSIDE)}, 'download it again')
    weight_map = content.get('weight_map')
    if not weight_map or None in weight_map.values():
        raise InputError(f'{index} has no weight_map of file names: download it again')
    tensors: dict[str, FileTensor] = {}
    for shard in sorted(set(weight_map.values())):
        tensors |= open_file(index.parent / shard, stack)
    missing = sorted(weight_map.keys() - tensors.keys())
    if missing:  # perhaps of a part that was removed; if the model needs it, that is an error later
        tell_once(f'note: {index} names {len(missing):,} tensors that are in none of its files, '
                  f'such as {missing[0]} of {weight_map[missing[0]]}')
    return tensors


def _check_no_other_weights(folder: Path) -> None:
    """Raises InputError if a folder has weights in another kind of file."""
    for child in children(folder):
        for suffix, (title, loading) in _OTHER_WEIGHTS.items():
            if child.name.endswith(suffix):
                raise InputError(
                    f'{folder} holds its weights as {title.format(suffix)}: load it with the class '
                    f'that its config.json names in architectures ({loading}) and save it anew '
                    'with save_pretrained(FOLDER)')


def _check_no_other_names(folder: Path) -> None:
    """Raises InputError if a folder has safetensors of other names, which nothing lists."""
    names = sorted(child.name for child in children(folder))
    others = [name for name in names if name.endswith('.safetensors') and name != _ADAPTER]
    if others:
        raise InputError(f'{folder} has {others[0]}, but no {SINGLE} and no {INDEX}: download the '
                         f'latter, which lists files with parts of a model, or call a file that '
                         f'has all of it {SINGLE}')


def open_file(path: Path, stack: contextlib.ExitStack) -> dict[str, FileTensor]:
    """Opens a file and returns its tensors by name; closing the stack closes it.

    Raises:
      InputError: it is missing or damaged.
    """
    if not exists(path):
        raise InputError(f'{path} is missing, which holds weights: download it too')
    try:
        file = stack.enter_context(safe_open(local_copy(path), framework='numpy'))
    except (SafetensorError, OSError) as error:
        if isinstance(error, SafetensorError):
            check_no_pointer(path, read_range(path, 0, len(GIT_LFS)))
        why = ' '.join(str(error).split())
        raise InputError(f'{path} is not a complete safetensors file ({why}): download or copy '
                         'it again') from None
    return {name: FileTensor(file, path, name) for name in file.keys()}  # noqa: SIM118


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes `model.safetensors`; above `SHARD_BYTES`, shards of at most that size and an index."""
    shards = _shards(tensors)
    if len(shards) == 1:
        write_file(folder / SINGLE, shards[0])
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f'model-{number:05}-of-{len(shards):05}.safetensors'
        write_file(folder / name, shard)
        weight_map |= dict.fromkeys(shard, name)
    total_size = sum(array.nbytes for array in tensors.values())
    write_json(folder / INDEX, {
        'metadata': {'total_size': total_size},
        'weight_map': weight_map,
    })


def _shards(tensors: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Divides tensors into parts of at most `SHARD_BYTES`; a larger tensor is a part by itself."""
    shards: list[dict[str, np.ndarray]] = [{}]
    num_bytes = 0
    for name, array in tensors.items():
        if shards[-1] and num_bytes + array.nbytes > SHARD_BYTES:
            shards.append({})
            num_bytes = 0
        shards[-1][name] = array
        num_bytes += array.nbytes
    return shards


def write_file(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes float32 tensors to a safetensors file, with a checksum of each in its metadata.

    The library itself is not used, because its order of metadata varies: here the same tensors are
    always the same bytes.
    """
    metadata = {'format': 'pt'}
    header: dict[str, Any] = {'__metadata__': metadata}
    start = 0
    for name, array in tensors.items():
        assert array.dtype == np.float32, name
        metadata[_CHECKSUM + name] = str(checksum(array))
        end = start + array.nbytes
        header[name] = {'dtype': 'F32', 'shape': array.shape, 'data_offsets': [start, end]}
        start = end
    encoded = json.dumps(header, separators=(',', ':')).encode()
    encoded += b' ' * (-len(encoded) % 8)
    with path.open('wb') as file:
        file.write(struct.pack('<Q', len(encoded)) + encoded)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array, '<f4').data)
