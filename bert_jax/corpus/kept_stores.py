"""The stores that a folder keeps: the finished ones, and what is left of others.

A store that was begun and not finished is of use to the command that began it, which goes on, and
to those whose text has some of its files (see `earlier_shares`). Nothing removes it but a user.
"""

import contextlib
from typing import NamedTuple

from bert_jax.corpus import earlier_shares, store_building
from bert_jax.corpus.store_parts import NOTES_ENDING
from bert_jax.rows.store import is_finished, read_manifest
from bert_jax.runtime import files, folder_lock


class KeptStore(NamedTuple):
    """A store, or what there is of it.

    Attributes:
      path: of its folder.
      source: the text of a finished one; '' of others, which do not say it.
      num_bytes: of all of its files.
      num_done: shares that an unfinished one has.
      worker: the process that may be at work on an unfinished one; ''.
      idle_seconds: since one of its files has changed.
    """

    path: files.Path
    source: str
    num_bytes: int
    num_done: int
    worker: str
    idle_seconds: float

    @property
    def is_left(self) -> bool:
        """Whether it is unfinished, and nobody has been at work on it for a day."""
        is_idle = self.idle_seconds > store_building.DAY_SECONDS
        return is_idle and not self.source and not self.worker


def kept_stores(folder: files.Path) -> list[KeptStore]:
    """The stores in a `data.dir`, by name.

    Raises:
      InputError: the manifest of one is damaged.
    """
    found: list[KeptStore] = []
    for path in files.children(folder / 'stores'):
        if path.is_dir() and not path.name.startswith('.'):
            found.append(_look_at(path))
    return found


def _look_at(path: files.Path) -> KeptStore:
    entries = files.entries(path)
    source = worker = ''
    if is_finished(path):
        source = str(read_manifest(path)['source'])
    else:
        worker = store_building.who_builds(path)
    return KeptStore(
        path=path,
        source=source,
        num_bytes=sum(entry.size for entry in entries),
        num_done=sum(entry.name.endswith(store_building.DONE_ENDING) for entry in entries),
        worker=worker,
        idle_seconds=store_building.idle_seconds(entries))


def lists_of_nothing(folder: files.Path) -> list[files.Path]:
    """The lists of shares in a `data.dir` of which the store is gone."""
    found: list[files.Path] = []
    for path in files.children(folder / earlier_shares.FOLDER):
        if not files.sizes(folder / 'stores' / path.stem):
            found.append(path)
    return found


def remove(store: KeptStore) -> bool:
    """Removes a store that is left, unless a process begins to work on it; whether it is gone.

    A removal that is killed leaves a store that lacks some shares.

    Raises:
      TakenOver: this process was suspended, and another has begun to work on it.
    """
    _remove_old_claims(store.path)
    claim = folder_lock.Claim(store.path)
    if not claim.attempt():
        return False
    try:
        if is_finished(store.path) or _is_at_work_on_a_piece(store.path):
            return False
        # While this process has the claim: who comes next writes another list, and other files.
        earlier_shares.list_path(store.path).unlink(missing_ok=True)
        if files.in_bucket(store.path):
            _remove_in_order(store.path, claim)
        else:
            beside = files.temporary_name(store.path)
            claim.check_folder()
            store.path.rename(beside)  # so that nobody finds a part of it
            claim.release()  # whoever waits makes the folder again
            beside.rmtree()
    finally:
        claim.release()
    return True


def _remove_old_claims(folder: files.Path) -> None:
    """Removes claims of processes that have not been heard of for a day.

    Of those that ran elsewhere, or before this machine was started anew, nothing else says that
    they have ended.
    """
    for entry in files.entries(folder):
        path = folder / entry.name
        is_old = store_building.idle_seconds([entry]) > store_building.DAY_SECONDS
        if (is_old and folder_lock.is_claim(entry.name)
                and not folder_lock.is_at_work(folder_lock.read_claim(path))):
            path.unlink(missing_ok=True)


def _is_at_work_on_a_piece(folder: files.Path) -> bool:
    """Whether another process is at work on shares of a store that this one has claimed."""
    return any(folder_lock.holder(folder, piece) for piece in folder_lock.pieces_in(folder))


def _remove_in_order(folder: files.Path, claim: folder_lock.Claim) -> None:
    """Removes the files of a store: first what says that others are there.

    Its claim stays until it is released, and those of dead processes on pieces go last.

    Raises:
      TakenOver: another process has the store now.
    """
    order = (store_building.DONE_ENDING, NOTES_ENDING)

    def place(path: files.Path) -> int:
        if folder_lock.is_claim(path.name):
            return len(order) + 1
        return order.index(path.suffix) if path.suffix in order else len(order)

    for path in sorted(files.children(folder), key=place):
        if path == claim.path:
            continue
        claim.check_folder()
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                path.rmtree()
            else:
                path.unlink()
