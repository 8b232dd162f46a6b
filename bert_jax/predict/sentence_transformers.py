"""How a folder of sentence-transformers makes a text's vector: its `modules.json`."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path

_POOLS = {'mean_tokens': 'mean', 'cls_token': 'cls', 'max_tokens': 'max'}


class Pooling(NamedTuple):
    """From hidden states to a vector; without a `modules.json`, as it is by default.

    Attributes:
      pool: 'mean', 'cls' or 'max'.
      normalize: whether vectors are brought to length 1.
    """

    pool: str = 'mean'
    normalize: bool = False


def transformer_of(folder: Path) -> Path:
    """The folder of the encoder: its own, or the one that old `modules.json` name."""
    modules = _modules(folder)
    return folder / modules[0].get('path', '') if modules else folder


def inference_of(folder: Path) -> dict[str, Any]:
    """`Weights.inference` of an encoder's folder: how many tokens a text may have."""
    limit = (_read(folder / 'sentence_bert_config.json') or {}).get('max_seq_length')
    return {'max_seq_length': limit} if isinstance(limit, int) else {}


def read_pooling(folder: Path) -> Pooling:
    """What `modules.json` says, if there is one.

    Raises:
      InputError: it asks for something that is not done here.
    """
    pool, normalize = 'mean', False
    for module in _modules(folder):
        kind = str(module.get('type', '')).rpartition('.')[2]
        if kind == 'Pooling':
            pool = _pool(folder / module.get('path', '') / 'config.json')
        elif kind == 'Normalize':
            normalize = True
        elif kind != 'Transformer':
            raise InputError(
                f'{folder / "modules.json"} has a module {kind} behind the encoder, which this '
                'project does not have, so that its vectors would be others: name pool and '
                'normalize to have those of the encoder alone'
            )
    return Pooling(pool, normalize)


def _pool(config_file: Path) -> str:
    config = _read(config_file)
    if not isinstance(config, dict):
        raise InputError(f'{config_file} is missing or no JSON object, so nobody knows how vectors '
                         'are made: copy it again, or name pool, one of '
                         + ', '.join(_POOLS.values()))
    modes = [name.removeprefix('pooling_mode_') for name, on in config.items()
             if name.startswith('pooling_mode_') and on is True]
    named = config.get('pooling_mode')  # as newer versions write it
    found = [named] if isinstance(named, str) else [_POOLS.get(mode, mode) for mode in modes]
    if len(found) != 1 or found[0] not in _POOLS.values():
        raise InputError(
            f"{config_file} pools by {' and '.join(map(str, found)) or 'nothing'}, which cannot "
            f"be computed: name pool, one of {', '.join(_POOLS.values())}"
        )
    return found[0]


def _modules(folder: Path) -> list[dict[str, Any]]:
    return _read(folder / 'modules.json') or []


def _read(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise InputError(f'{path} cannot be read as JSON ({error})') from None
