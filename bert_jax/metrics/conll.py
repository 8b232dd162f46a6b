"""Entity-level precision, recall and F1, as the `conlleval` script of CoNLL-2003 counts them.

Tags are 'O', 'B-TYPE' and 'I-TYPE'. One rule reads both schemes, and whatever a tagger may
predict: an entity begins at every B-, and at an I- that does not follow a tag of the same type
in its sentence. In IOB1, where B- stands only between two neighbouring entities of one type, most
entities begin with such an I-; in IOB2 it is a fault, which `conlleval` and the default mode of
`seqeval` forgive in the same way.

    W: words of all sentences, n: sentences, E: entities
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import open_whole

TAG = re.compile(r'O|[BI]-\S+')
_ANY_SCHEME = re.compile(r'O|[BIES]-\S+')


def _parse(
    tags: Sequence[str], offsets: np.ndarray, types: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(whether an entity begins [W], index in `types` of each word's type or -1 outside [W])."""
    assert len(tags) == offsets[-1], (len(tags), offsets[-1])
    if unknown := sorted(tag for tag in set(tags) if not TAG.fullmatch(tag)):
        raise InputError(f"'{unknown[0]}' is not a tag: expected O, B-TYPE or I-TYPE")
    index = {name: i for i, name in enumerate(types)}
    # One array look-up a word: ids of the distinct tags first.
    names = {tag: i for i, tag in enumerate(dict.fromkeys(tags))}
    ids_W = np.fromiter(map(names.__getitem__, tags), np.int64, len(tags))
    type_W = np.array([index[tag[2:]] if tag != 'O' else -1 for tag in names], np.int64)[ids_W]
    is_b_W = np.array([tag[0] == 'B' for tag in names], np.bool_)[ids_W]
    previous_W = np.concatenate([[-1], type_W[:-1]])[: len(type_W)]
    starts = offsets[:-1]
    previous_W[starts[starts < len(type_W)]] = -1
    return (type_W >= 0) & (is_b_W | (type_W != previous_W)), type_W


def tag_types(*tags: Sequence[str]) -> list[str]:
    """The entity types of some tags, sorted."""
    return sorted({tag[2:] for some in tags for tag in set(some) if tag != 'O'})


def to_iob2(tags: Sequence[str], offsets: np.ndarray) -> list[str]:
    """Tags [W] of either scheme in IOB2: every entity begins with B-.

    Args:
      tags: of all sentences, one after the other.
      offsets: [n + 1]; sentence i is tags[offsets[i] : offsets[i + 1]].

    Raises:
      InputError: a tag is not O, B-TYPE or I-TYPE.
    """
    begins_W, _ = _parse(tags, offsets, tag_types(tags))
    return [f'B{tag[1:]}' if b else tag for tag, b in zip(tags, begins_W.tolist(), strict=True)]


def normal_tags(tags: Sequence[str], offsets: np.ndarray) -> list[str]:
    """Tags [W] of IOB1, IOB2 or IOBES in IOB2; those of no such scheme as they are."""
    if not are_entities(tags):
        return list(tags)
    plain = [{'S': 'B', 'E': 'I'}.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    return to_iob2(plain, offsets)


def are_entities(tags: Sequence[str]) -> bool:
    """Whether tags mark entities: each is O, B-TYPE, I-TYPE, or IOBES's E-TYPE or S-TYPE."""
    return all(_ANY_SCHEME.fullmatch(tag) for tag in set(tags)) and set(tags) != {'O'}


def _entities(begins_W: np.ndarray, type_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first words [E], words after the last [E]) of the entities, in order."""
    # A sentence begins with one of these as well: an I- has no tag to follow there.
    bounds = np.flatnonzero(begins_W | (type_W < 0))
    ends = np.append(bounds[1:], len(type_W))
    is_entity = begins_W[bounds]
    return bounds[is_entity], ends[is_entity]


def _scores(correct: float, predicted: float, gold: float) -> dict[str, float]:
    """Precision, recall and F1; 0 where undefined."""
    return {
        'precision': correct / max(predicted, 1.0),
        'recall': correct / max(gold, 1.0),
        'f1': 2.0 * correct / max(predicted + gold, 1.0),
    }


def conll_scores(
    predicted: Sequence[str], gold: Sequence[str], offsets: np.ndarray
) -> dict[str, float]:
    """Scores as fractions: an entity is right if its words and its type are exactly right.

    Args:
      predicted: tags [W] of all sentences.
      gold: the same of the reference.
      offsets: [n + 1]; sentence i is gold[offsets[i] : offsets[i + 1]].

    Returns:
      `precision`, `recall`, `f1` over all entities; `TYPE/precision`, `TYPE/recall`, `TYPE/f1` of
      each type that occurs; `accuracy`, the share of words with the right tag.

    Raises:
      InputError: a tag is not O, B-TYPE or I-TYPE.
    """
    assert len(predicted) == len(gold), (len(predicted), len(gold))
    types = tag_types(predicted, gold)
    found, wanted = _parse(predicted, offsets, types), _parse(gold, offsets, types)
    # The end [W] of the entity that begins at a word; -1: none does.
    ends = np.full((2, len(gold)), -1, np.int64)
    for row, parsed in zip(ends, (found, wanted), strict=True):
        starts_E, ends_E = _entities(*parsed)
        row[starts_E] = ends_E
    right_W = (ends[0] >= 0) & (ends[0] == ends[1]) & (found[1] == wanted[1])

    def count(where_W: np.ndarray, type_W: np.ndarray) -> np.ndarray:
        return np.bincount(type_W[where_W], minlength=len(types)).astype(np.float64)

    counts = np.stack([
        count(right_W, wanted[1]), count(found[0], found[1]), count(wanted[0], wanted[1])
    ])
    same = sum(a == b for a, b in zip(predicted, gold, strict=True))
    scores = _scores(*counts.sum(axis=1)) | {'accuracy': same / max(len(gold), 1)}
    for i, name in enumerate(types):
        scores |= {f'{name}/{key}': value for key, value in _scores(*counts[:, i]).items()}
    return {key: float(value) for key, value in scores.items()}


def write_conll(
    path: str | os.PathLike[str], words: Sequence[str], gold: Sequence[str],
    predicted: Sequence[str], offsets: np.ndarray,
) -> None:
    """Writes `word gold predicted` lines, an empty line after each sentence: conlleval's input.

    Args:
      path: the file, UTF-8.
      words, gold, predicted: [W], of all sentences.
      offsets: [n + 1] of the sentences.
    """
    lines = [f'{w} {g} {p}\n' for w, g, p in zip(words, gold, predicted, strict=True)]
    with open_whole(path) as file:
        for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            file.write((''.join(lines[start:end]) + '\n').encode())
