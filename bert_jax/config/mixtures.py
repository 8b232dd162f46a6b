"""The field `data.source`, of a run or a phase: one source, or several with weights."""

from typing import Any, NamedTuple

from bert_jax.runtime.errors import InputError


class WeightedSource(NamedTuple):
    """A source of text or records, and the weight of its rows in a mixture."""

    name: str
    weight: float


def weighted_sources(source: Any, field: str = 'data.source') -> list[WeightedSource]:
    """The sources that `data.source` names, of a run or a phase, each with its weight.

    Args:
      source: one source, or a list of sources and (source, weight).
      field: of the config, for the message.

    Raises:
      InputError: it is neither a string nor a list of (source, weight).
    """
    items = source
    if isinstance(source, str):
        items = [source]
    try:
        sources = [_weighted(item) for item in items]
    except (TypeError, ValueError):
        sources = []
    if not sources or not all(_is_valid(item) for item in sources):
        raise InputError(
            f"config.{field}={source!r}: write a source, or a list of (source, weight) "
            "such as [('wiki.txt', 3), ('books.txt', 1)] with weights above 0")
    return sources


def _weighted(item: Any) -> WeightedSource:
    if isinstance(item, str):
        return WeightedSource(item, 1.0)
    name, weight = item
    return WeightedSource(name, float(weight))


def _is_valid(source: WeightedSource) -> bool:
    return isinstance(source.name, str) and source.name != '' and source.weight > 0
