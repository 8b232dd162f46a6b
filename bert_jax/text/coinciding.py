"""Special tokens of a tokenizer that are one and the same token, and what that does to results."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.runtime.errors import InputError, tell_once

ROLES = ('cls', 'sep', 'pad', 'mask', 'unk')
_BY_UNKNOWN = 'a word that the vocabulary lacks is taken for it'
# What it does where nothing is wrong with it.
_EFFECTS: Mapping[tuple[str, str], str] = {
    ('cls', 'sep'): 'a sequence begins as it ends',
    ('cls', 'pad'): 'no result changes, as padding is known by its place',
    ('sep', 'pad'): 'no result changes, as padding is known by its place',
    ('cls', 'unk'): _BY_UNKNOWN,
    ('sep', 'unk'): _BY_UNKNOWN,
    ('pad', 'unk'): _BY_UNKNOWN,
}


def coinciding(tokens: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pairs of roles that have one token.

    Args:
      tokens: the special tokens, or their ids, by role; roles may be missing.
    """
    present = [role for role in ROLES if role in tokens]
    pairs = itertools.combinations(present, 2)
    return [pair for pair in pairs if tokens[pair[0]] == tokens[pair[1]]]


def check_distinct(ids: Mapping[str, int], has_unknown: bool, source: str) -> None:
    """Notes roles that have one id, as the model may have been trained so.

    Args:
      ids: of the special tokens, by role.
      has_unknown: whether any text has an unknown piece.
      source: the tokenizer's file, for messages.

    Raises:
      InputError: [MASK] is one of the others: what is masked could not be told.
    """
    for pair in coinciding(ids):
        if 'mask' in pair:
            other = pair[0] if pair[1] == 'mask' else pair[1]
            raise InputError(
                f'{source} has one token, id {ids["mask"]}, for [MASK] and [{other.upper()}]: name '
                "another as 'mask_token' in a tokenizer_config.json beside it")
        if 'unk' not in pair or has_unknown:
            tell_once(f'note: {source} has one token, id {ids[pair[0]]}, for {_named(pair)}: '
                      f'{_EFFECTS[pair]}')


def check_names(names: Mapping[str, str], source: object) -> None:
    """Refuses names of a tokenizer_config.json that give one token two roles in a WordPiece model.

    There, BERT's tokens have their roles whatever the file says. That of padding changes nothing.

    Raises:
      InputError: two roles have one name.
    """
    for pair in coinciding(names):
        if 'pad' not in pair or 'unk' in pair or 'mask' in pair:
            raise InputError(
                f'{source} names {names[pair[0]]!r} for {_named(pair)}, which are two tokens in '
                'a vocabulary of BERT: take one of them out of the file')


def _named(pair: Sequence[str]) -> str:
    return ' and '.join(f'[{role.upper()}]' for role in pair)
