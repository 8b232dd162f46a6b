"""The families of models that Hugging Face folders can hold, a file each.

To add one, write its file and add it to `FAMILIES`.
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

# A model that several can hold is written as the first of them.
FAMILIES: tuple[Family, ...] = (
    BERT, ROBERTA, DISTILBERT, ELECTRA, MODERNBERT, JINA, NOMIC_BERT, GTE, EUROBERT,
    ULTRABERT, MPNET, ALBERT)
# Beginnings of the names of the layers between an encoder and a head's last layer.
_BEFORE_LAST_LAYER = ('bert/pooler/', 'cls/predictions/transform/')


def family_of(config: Mapping[str, Any], where: Path) -> Family:
    """The family of a model, by the `model_type` in its config.json.

    Old files that lack it are of BERT.

    Raises:
      InputError: it is of no family here.
    """
    model_type = config.get('model_type') or BERT.model_type
    if model_type == 'xlm-roberta' and config.get('position_embedding_type') == 'rotary':
        return JINA  # as the code of its makers has it
    for family in FAMILIES:
        if model_type in tuple(family.model_types):  # of any type, also one without a hash
            return family
    known = [name for family in FAMILIES for name in family.model_types]
    raise InputError(f'{where}: model_type={model_type!r} is not one that can be read: '
                     f"{', '.join(known)}")


def family_to_write(weights: Weights) -> Family:
    """The first family whose config.json can hold a model's options.

    Options that only say how it is trained may be lost.

    Raises:
      InputError: there is none.
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
    """The first class with a head whose parts are all there, or else its first class.

    Args:
      family: of the model.
      head: one of `heads.HEADS`.
      names: of the parameters, by ours.

    Returns:
      None if the family has no class with this head.
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
    """The parameters in front of a last layer, with what they are in the weights; '' for nothing.

    Only those are here that are not the parameter of the same name there: the classes of a family
    share what has one name in transformers, as its `from_pretrained` does.

    Args:
      weights: the source.
      shapes: of the target's parameters.
      head: of the target.
    """
    try:
        family = family_to_write(weights)
    except InputError:  # no family has such models: the names here are all that there are
        return {}
    there = class_of(family, weights.head, weights.params)
    here = class_of(family, head, shapes)
    if there is None or here is None:
        return {}
    in_front = [
        tensor for tensor in tensors(weights.model) if tensor.name.startswith(_BEFORE_LAST_LAYER)]
    by_file_name: dict[str, str] = {}
    for tensor in in_front:
        form = family.form_of(tensor, there)
        if form and tensor.name in weights.params:
            by_file_name[form.names[0]] = tensor.name
    shared: dict[str, str] = {}
    for tensor in in_front:
        form = family.form_of(tensor, here)
        if form is None or tensor.name not in shapes:
            continue
        name = by_file_name.get(form.names[0], '')
        is_elsewhere = family.form_of(tensor, there) is not None
        if name != tensor.name and (name or is_elsewhere):
            shared[tensor.name] = name
    return shared


def _misfit(weights: Weights, family: Family) -> Misfit | None:
    """What the class that would be written computes otherwise than the head."""
    architecture = class_of(family, weights.head, weights.params)
    if architecture is None:
        return None
    return architecture.misfit({**family.defaults, **family.config_of(weights.model)})
