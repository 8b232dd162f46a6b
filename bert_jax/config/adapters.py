"""Adapters: what is trained of a model in place of all its parameters, and where it stands."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from bert_jax.config.fields import FIELDS
from bert_jax.runtime.errors import InputError, nearest

# The matrices of a layer that adapters may stand beside, by the module that holds them.
TARGETS: Mapping[str, tuple[str, ...]] = {
    'attention/self/qkv': ('query', 'key', 'value'),
    'attention/self/query': ('query',),  # of a model with num_kv_heads, as the next
    'attention/self/key_value': ('key', 'value'),
    'attention/output/dense': ('attention_output',),
    'intermediate/dense': ('intermediate',),
    'output/dense': ('output',),
}
_EACH = tuple(dict.fromkeys(target for targets in TARGETS.values() for target in targets))
_GROUPS = {'attention': _EACH[:4], 'all': _EACH}
_NAMES = (*_EACH, *_GROUPS)


@dataclasses.dataclass(frozen=True)
class AdapterOptions:
    """What is trained besides the head, in fields named as those of `config.adapter`.

    By default there is no adapter, and all parameters are trained.

    Attributes:
      kind: 'lora': a product of two matrices is added to a matrix (Hu et al., 2021); 'rslora': the
        same, scaled otherwise (Kalajdzievski, 2023); 'dora': the lengths of the sum's columns are
        parameters, too (Liu et al., 2024); 'bitfit': the biases (Ben Zaken et al., 2021).
      rank: of the product; 0: there is none.
      alpha: the product is scaled by alpha / rank, of 'rslora' by alpha / sqrt(rank).
      dropout: rate, on what the first of the two is multiplied with.
      targets: which matrices of the layers have one, comma-separated.
    """

    kind: str = FIELDS['adapter.kind'].default
    rank: int = FIELDS['adapter.rank'].default
    alpha: float = FIELDS['adapter.alpha'].default
    dropout: float = FIELDS['adapter.dropout'].default
    targets: str = FIELDS['adapter.targets'].default

    def __post_init__(self) -> None:
        """Raises InputError: a target that there is not, or a value without effect."""
        for name in self._named():
            if name not in _NAMES:
                raise InputError(f'config.adapter.targets={self.targets!r} has {name!r}: '
                                 f'{nearest(name, _NAMES)}')
        if self.kind == 'bitfit' and self.rank:
            raise InputError(f'config.adapter.rank={self.rank} has no effect with '
                             "config.adapter.kind='bitfit', which trains biases: leave it 0")
        if self.is_low_rank:
            return
        unread: tuple[str, ...] = ('alpha', 'dropout', 'targets')
        if self.kind != 'bitfit':
            unread = ('kind', *unread)
        for name in unread:
            value = getattr(self, name)
            if value != FIELDS[f'adapter.{name}'].default:
                raise InputError(f'config.adapter.{name}={value!r} has no effect without '
                                 'config.adapter.rank: set it, to 8 for example')

    def _named(self) -> list[str]:
        """The names in `targets`."""
        return [name.strip() for name in self.targets.split(',')]

    @property
    def is_low_rank(self) -> bool:
        """Whether matrices have adapters beside them."""
        return self.rank > 0

    @property
    def is_on(self) -> bool:
        """Whether only some parameters are trained."""
        return self.is_low_rank or self.kind == 'bitfit'

    @property
    def scale(self) -> float:
        """The factor of the product of the two matrices."""
        return self.alpha / (math.sqrt(self.rank) if self.kind == 'rslora' else self.rank)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The single targets that `targets` names, in the order of `TARGETS`."""
        if not self.is_low_rank:
            return ()
        named = set(self._named())
        for group, members in _GROUPS.items():
            if group in named:
                named |= set(members)
        return tuple(target for target in _EACH if target in named)

    def has_parameters_of(self, other: 'AdapterOptions') -> bool:
        """Whether another adapter has the same parameters, and computes the same with them."""
        mine = (self.kind, self.rank, self.alpha, self.chosen)
        return mine == (other.kind, other.rank, other.alpha, other.chosen)

    def adapted(self, targets: Sequence[str]) -> tuple[int, ...]:
        """Which of the matrices of a module, by their targets, have an adapter."""
        chosen = self.chosen
        return tuple(i for i, target in enumerate(targets) if target in chosen)
