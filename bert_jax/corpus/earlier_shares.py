"""Shares that stores in the same folder have already, found by the content of their own files.

    shares/NAME.json    beside `stores`: of store NAME, a JSON object, by the key of a share [its
                        number, its first unit]

Where some files of a text have changed, its store has a new name, and takes the blocks of those
shares that none of these files is in from an older store. What is noted of the blocks is noted
anew, because it depends on the whole text and on the filters of documents. So the older store may
have had other filters, and the new one has the bytes that it would have without it.

A list is written when its store is finished, or its build ends for a fault that can be told: then
its text is known to be what its shares were made from. A list or store that is damaged or gone
costs time: the text is read instead.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bert_jax.corpus.store_parts import Notes, Start, blocks_path, notes_path, part_name
from bert_jax.rows.blocks import Block
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, tell

FOLDER = 'shares'
_STORES = 'stores'


class EarlierShare(NamedTuple):
    """A share that a store has.

    Attributes:
      folder: of the store.
      number: of the share.
      first_unit: of its source.
    """

    folder: files.Path
    number: int
    first_unit: int


def list_path(store: files.Path) -> files.Path:
    """The list of the shares that the store in a folder has."""
    return store.parent.parent / FOLDER / f'{store.name}.json'


def keep_list(store: files.Path, shares: Mapping[str, tuple[int, int]]) -> None:
    """Writes the list of a store: the number and the first unit of each share, by its key."""
    path = list_path(store)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(path, json.dumps(shares))


def read_lists(store: files.Path) -> dict[str, list[EarlierShare]]:
    """By key, the shares of other stores in the folder of a store. Says which lists are damaged."""
    found: dict[str, list[EarlierShare]] = {}
    own = list_path(store)
    for path in files.children(own.parent):
        if path.suffix != '.json' or path == own:
            continue
        try:
            for key, share in read_list(path).items():
                found.setdefault(key, []).append(share)
        except InputError as error:
            tell(f'warning: {error}')
    return found


def read_list(path: files.Path) -> dict[str, EarlierShare]:
    """The shares in a list, by key.

    Raises:
      InputError: it is damaged, or gone.
    """
    remedy = 'delete it, and the shares that it names are made again where they are needed'
    folder = path.parent.parent / _STORES / path.stem
    try:
        return {key: EarlierShare(folder, int(number), int(first_unit))
                for key, (number, first_unit) in files.read_json(path, remedy).items()}
    except (TypeError, ValueError) as error:
        raise InputError(f'{path} is damaged ({error}): {remedy}') from None


class EarlierPart(NamedTuple):
    """A part of an earlier share.

    Attributes:
      notes: of the part.
      blocks: the file of its blocks.
      following: where the next part begins.
      is_last: whether it is the last of its share.
      text_bytes: of its text.
    """

    notes: Notes
    blocks: files.Path
    following: Start
    is_last: bool
    text_bytes: int


def part_of(share: EarlierShare, number: int, copies: str) -> EarlierPart:
    """A part of a share; notes that are in a bucket are copied into the folder `copies`.

    Raises:
      FileNotFoundError: it is gone.
      InputError: it is damaged, or cannot be read.
    """
    name = part_name(share.number, number)
    path = notes_path(share.folder, name)
    with _reading(path):
        notes = Notes.open(path, copies)
        following, is_last = notes.following()
        _, text_bytes = notes.read('totals').tolist()
    return EarlierPart(notes, blocks_path(share.folder, name), following, is_last, text_bytes)


def blocks_of(part: EarlierPart) -> Iterator[Block]:
    """The blocks of a part.

    Raises:
      FileNotFoundError, InputError: see `part_of`.
    """
    with _reading(part.blocks), files.open_plain(part.blocks) as content:
        for entry in part.notes.read('index'):
            yield Block.from_bytes(content.read(int(entry['num_bytes'])), entry, part.blocks)


@contextlib.contextmanager
def _reading(path: files.Path) -> Iterator[None]:
    """Makes an InputError of what a disk, or the rights of another user, refuse."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f'{path} cannot be read ({error.strerror or error})') from None
