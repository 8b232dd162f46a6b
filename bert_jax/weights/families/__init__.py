"""The families of models that Hugging Face folders can hold, a file each.

To add one, write its file and add it to `FAMILIES`.
"""

from collections.abc import Mapping
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.weights.families.bert import BERT
from bert_jax.weights.families.distilbert import DISTILBERT
from bert_jax.weights.families.electra import ELECTRA
from bert_jax.weights.families.family import Family
from bert_jax.weights.families.modernbert import MODERNBERT
from bert_jax.weights.families.roberta import ROBERTA
from bert_jax.weights.formats import Weights

# A model that several can hold is written as the first of them.
FAMILIES: tuple[Family, ...] = (BERT, ROBERTA, DISTILBERT, ELECTRA, MODERNBERT)


def family_of(config: Mapping[str, Any], where: Path) -> Family:
    """The family of a model, by the `model_type` in its config.json.

    Old files that lack it are of BERT.

    Raises:
      InputError: it is of no family here.
    """
    model_type = config.get('model_type') or BERT.model_type
    for family in FAMILIES:
        if model_type in tuple(family.model_types):  # of any type, also one without a hash
            return family
    known = [name for family in FAMILIES for name in family.model_types]
    raise InputError(f'{where}: model_type={model_type!r} is not one that can be read: '
                     f"{', '.join(known)}")


def family_to_write(weights: Weights) -> Family:
    """The first family whose config.json can hold a model's options.

    Those that only say how it is trained may be lost.

    Raises:
      InputError: there is none.
    """
    lost: dict[str, list[str]] = {}
    for family in FAMILIES:
        lost[family.name] = [
            option.name for option in family.lost_options(weights.model)
            if option.effect != 'trains']
        if not lost[family.name]:
            return family
    least = min(len(names) for names in lost.values())
    nearest: dict[str, list[str]] = {}
    for family_name, names in lost.items():
        if len(names) == least:
            options = ', '.join(f'{name}={weights.model[name]!r}' for name in names)
            nearest.setdefault(options, []).append(family_name)
    said = '; '.join(f"{', '.join(names)}: {options}" for options, names in nearest.items())
    raise InputError(f'{weights.source} has options that the config.json of no family can hold '
                     f'({said}): use --to bert_jax')
