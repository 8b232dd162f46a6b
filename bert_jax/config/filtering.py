"""Which documents of a training text are left out, beside exact duplicates."""

import dataclasses

from bert_jax.config.choices import LEAST_SIMILAR, MOST_SIMILAR
from bert_jax.config.fields import FIELDS
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import check_scheme


@dataclasses.dataclass(frozen=True)
class FilterOptions:
    """What the stores of a training text leave out, in fields named as those of `config.data`.

    Attributes:
      near_duplicates: documents that are so similar to an earlier one; 0.0: none.
      decontaminate: evaluation files, comma-separated, that are looked for in the text; '': none.
      remove_contaminated: whether documents that hold some of them are left out.
    """

    near_duplicates: float = FIELDS['data.near_duplicates'].default
    decontaminate: str = FIELDS['data.decontaminate'].default
    remove_contaminated: bool = FIELDS['data.remove_contaminated'].default

    def __post_init__(self) -> None:
        """Raises InputError: a value that cannot be, or one without effect."""
        if 0 < self.near_duplicates < LEAST_SIMILAR:
            raise InputError(
                f'config.data.near_duplicates={self.near_duplicates} must be 0, or from '
                f'{LEAST_SIMILAR} to {MOST_SIMILAR}: less similar documents are no duplicates')
        for name in self.decontaminate.split(','):
            check_scheme(name.strip(), 'config.data.decontaminate=')
        if self.remove_contaminated and not self.decontaminate:
            raise InputError(
                'config.data.remove_contaminated=True has no effect without evaluation files: name '
                'them with config.data.decontaminate')
