"""The tensors of a Hugging Face folder: one safetensors file, or shards with an index."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401  (with it, numpy knows bfloat16)
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_jax.runtime.checksum import checksum
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, children, local_copy
from bert_jax.weights.folder import write_json
from bert_jax.weights.reading import read_json

_DTYPES = ('F32', 'F16', 'BF16')
_INDEX = 'model.safetensors.index.json'
_CHECKSUM = 'bert_jax.checksum '  # and the name of a tensor: of the metadata of what we wrote
SHARD_BYTES = 5_000_000_000  # as transformers' `save_pretrained` has had it for long


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in an open safetensors file; the numbers are read when asked for."""

    file: Any
    path: Path
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.file.get_slice(self.name).get_shape())

    def read(self) -> np.ndarray:
        """The array as stored.

        Raises:
          InputError: of a type that float32 cannot hold, or not what this program wrote.
        """
        dtype = self.file.get_slice(self.name).get_dtype()
        if dtype not in _DTYPES:
            raise InputError(f'{self.path}: {self.name} is of type {dtype}: save it as float32')
        x = self.file.get_tensor(self.name)
        said = (self.file.metadata() or {}).get(_CHECKSUM + self.name)
        if said is not None and said != str(checksum(x)):
            raise InputError(f'{self.path} is damaged ({self.name} is not what was written): copy '
                             'it again')
        return x


def open_tensors(
    folder: Path, stack: contextlib.ExitStack
) -> tuple[Path, dict[str, StoredTensor]]:
    """(the file or index, for messages; its tensors by name); files are closed with the stack.

    Raises:
      InputError: weights are missing, damaged or pickled.
    """
    index_file, whole = folder / _INDEX, folder / 'model.safetensors'
    if whole.exists():
        file = _open_one(whole, stack)
        return whole, {name: StoredTensor(file, whole, name) for name in file.keys()}  # noqa: SIM118
    if index_file.exists():
        weight_map = read_json(index_file, 'it says which shard holds which tensor').get(
            'weight_map')
        if not (isinstance(weight_map, dict) and weight_map
                and all(isinstance(shard, str) for shard in weight_map.values())):
            raise InputError(f'{index_file} has no weight_map of file names: download it again')
        opened = {}
        for shard in sorted(set(weight_map.values())):
            if not (folder / shard).exists():
                raise InputError(
                    f'{folder / shard} is missing, {index_file.name} names it: download it too'
                )
            opened[shard] = _open_one(folder / shard, stack)
        held = {shard: set(file.keys()) for shard, file in opened.items()}
        for name, shard in weight_map.items():
            if name not in held[shard]:
                raise InputError(
                    f'{folder / shard} has no tensor {name}, {index_file.name} says so: download '
                    'both again'
                )
        return index_file, {
            name: StoredTensor(opened[shard], folder / shard, name)
            for name, shard in weight_map.items()
        }
    if any(path.suffix == '.bin' for path in children(folder)):
        raise InputError(
            f'{folder} holds its weights as a pickle (.bin), which can run code when it is read: '
            'make a model.safetensors of it with transformers, '
            'AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)'
        )
    raise InputError(f'{whole} is missing: a Hugging Face folder holds it beside config.json')


def _open_one(path: Path, stack: contextlib.ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(local_copy(path), framework='numpy'))
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is no whole safetensors file ({' '.join(str(error).split())}): download or "
            'copy it again'
        ) from None


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """`model.safetensors`, or where that is over `SHARD_BYTES` shards of at most so much, and an
    index. No tensor is cut.

    Raises:
      OSError: they cannot be written.
    """
    shards: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name, x in tensors.items():
        if size and size + x.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = x
        size += x.nbytes
    if len(shards) == 1:
        _save(folder / 'model.safetensors', shards[0])
        return
    weight_map: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        file = f'model-{i:05}-of-{len(shards):05}.safetensors'
        _save(folder / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    total = sum(x.nbytes for x in tensors.values())
    write_json(folder / _INDEX, {'metadata': {'total_size': total}, 'weight_map': weight_map})


def _save(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """One file, the same bytes each time: the library writes metadata in any order."""
    header: dict[str, Any] = {'__metadata__': {'format': 'pt'} | {
        _CHECKSUM + name: str(checksum(x)) for name, x in tensors.items()}}
    end = 0
    for name, x in tensors.items():
        assert x.dtype == np.float32, name
        header[name] = {
            'dtype': 'F32', 'shape': x.shape, 'data_offsets': [end, end := end + x.nbytes]}
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    with path.open('wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for x in tensors.values():
            file.write(np.ascontiguousarray(x, '<f4').data)
