"""The families of models that Hugging Face folders can hold, a file each.

To add one, write its file and add it to `FAMILIES` (CONTRIBUTING.md).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.foreign.families.albert import ALBERT
from bert_jax.foreign.families.bert import BERT
from bert_jax.foreign.families.distilbert import DISTILBERT
from bert_jax.foreign.families.electra import ELECTRA
from bert_jax.foreign.families.eurobert import EUROBERT
from bert_jax.foreign.families.family import Architecture, Family, Misfit
from bert_jax.foreign.families.gte import GTE
from bert_jax.foreign.families.jina import JINA
from bert_jax.foreign.families.modernbert import MODERNBERT
from bert_jax.foreign.families.mpnet import MPNET
from bert_jax.foreign.families.nomic_bert import NOMIC_BERT
from bert_jax.foreign.families.roberta import ROBERTA
from bert_jax.foreign.families.ultrabert import ULTRABERT
from bert_jax.heads import HEADS, part_of
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.weights.parameters import Weights, tensors

# A model that several families can hold is written as the first of them.
FAMILIES: tuple[Family, ...] = (
    BERT, ROBERTA, DISTILBERT, ELECTRA, MODERNBERT, JINA, NOMIC_BERT, GTE, EUROBERT,
    ULTRABERT, MPNET, ALBERT)
# What names of the parameters between the encoder and a head's last layer begin with.
_BEFORE_LAST_LAYER = ('bert/pooler/', 'cls/predictions/transform/')


def family_of(config: Mapping[str, Any], where: Path) -> Family:
    """The family of a model, by the `model_type` in its config.json; without one, BERT.

    Args:
      config: the content of config.json.
      where: its path, for messages.

    Raises:
      InputError: the model is of none of `FAMILIES`.
    """
    model_type = config.get('model_type') or BERT.model_type
    if model_type == 'xlm-roberta' and config.get('position_embedding_type') == 'rotary':
        return JINA  # jina-embeddings-v3 as published, for its makers' own code
    for family in FAMILIES:
        if model_type in tuple(family.model_types):  # not the dict: a list, say, has no hash
            return family
    known = [name for family in FAMILIES for name in family.model_types]
    raise InputError(f'{where}: model_type={model_type!r} is not one that can be read: '
                     f"{', '.join(known)}")


def family_to_write(weights: Weights) -> Family:
    """The first family whose config.json can hold a model's options.

    Options that only affect training (`Option.effect` is 'trains') may be lost.

    Raises:
      InputError: there is none; the message names the families that lack the fewest options.
    """
    lost: dict[str, list[str]] = {}
    for family in FAMILIES:
        settings = []
        for option in family.lost_options(weights.model):
            if option.effect != 'trains':
                settings.append(f'{option.name}={weights.model[option.name]!r}')
        misfit = _misfit(weights, family)
        if misfit and not settings:
            settings.append(f'{misfit.setting} with {HEADS[weights.head].title()}')
        if not settings:
            return family
        lost[family.name] = settings
    least = min(len(settings) for settings in lost.values())
    nearest: dict[str, list[str]] = {}
    for family_name, settings in lost.items():
        if len(settings) == least:
            nearest.setdefault(', '.join(settings), []).append(family_name)
    said = '; '.join(f"{', '.join(names)}: {options}" for options, names in nearest.items())
    raise InputError(f'{weights.source} has options that the config.json of no family can hold '
                     f'({said}): use --to bert_jax')


def class_of(family: Family, head: str, names: Iterable[str]) -> Architecture | None:
    """The class of transformers that a model is written as.

    It is the family's first class with this head of which the model has all parts, or else its
    first class with this head.

    Args:
      family: of the model.
      head: one of `heads.HEADS`.
      names: our names of the model's parameters.

    Returns:
      The class; None if the family has none with this head.
    """
    present = {part_of(name) for name in names}
    classes = [each for each in family.architectures if head in each.heads]
    for architecture in classes:
        if present.issuperset(architecture.parts):
            return architecture
    return classes[0] if classes else None


def shared_layers(
    weights: Weights, shapes: Mapping[str, tuple[int, ...]], head: str
) -> dict[str, str]:
    """Which parameters before a head's last layer start as a parameter of another name.

    A warm start with another head does as transformers' `from_pretrained`, which takes what has
    the same name in both classes. There, a layer of two heads may have one name where it has two
    here: a classifier of ModernBERT starts with the dense layer of the masked LM.

    Args:
      weights: the source.
      shapes: shapes of the target's parameters, by our names.
      head: of the target.

    Returns:
      For a parameter of the target, the name of the source's parameter that it starts as; '' if it
      starts fresh, although the source has a parameter of its name. Parameters that start as the
      one of their own name are left out.
    """
    try:
        family = family_to_write(weights)
    except InputError:  # transformers has no such models, and so no other names
        return {}
    source_class = class_of(family, weights.head, weights.params)
    target_class = class_of(family, head, shapes)
    if source_class is None or target_class is None:
        return {}
    before_last = [
        tensor for tensor in tensors(weights.model) if tensor.name.startswith(_BEFORE_LAST_LAYER)]
    in_source: dict[str, str] = {}  # our names of the source's parameters, by transformers' names
    for tensor in before_last:
        form = family.form_of(tensor, source_class)
        if form and tensor.name in weights.params:
            in_source[form.names[0]] = tensor.name
    shared: dict[str, str] = {}
    for tensor in before_last:
        form = family.form_of(tensor, target_class)
        if form is None or tensor.name not in shapes:
            continue
        name = in_source.get(form.names[0], '')
        is_other_layer = family.form_of(tensor, source_class) is not None
        if name != tensor.name and (name or is_other_layer):
            shared[tensor.name] = name
    return shared


def _misfit(weights: Weights, family: Family) -> Misfit | None:
    """The field with which the class that would be written computes something else, if any."""
    architecture = class_of(family, weights.head, weights.params)
    if architecture is None:
        return None
    return architecture.misfit({**family.defaults, **family.config_of(weights.model)})
