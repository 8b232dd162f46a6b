"""Files of a text that cannot be read: what is noted of them while all others are read.

    part-SSSSS.bad    those of share S: a JSON object, what is wrong by the name of the file

What stands before the bad place of a file is used. So the parts of a share, and its bad files,
follow from the text alone: a disk, a network or an installation that fails ends the build instead.
"""

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator

from bert_jax.corpus.source import Document, Source, Unit
from bert_jax.runtime import files
from bert_jax.runtime.errors import DamagedFile, InputError, tell

ENDING = '.bad'


class BadFiles:
    """The bad files of one share."""

    def __init__(self, path: files.Path):
        """Takes over what an earlier start has noted in the file `path`."""
        self._path = path
        self._found = read_bad_files(path)
        self._lock = threading.Lock()  # units are read ahead by threads

    def note(self, name: str, fault: str) -> None:
        """Notes a file and what is wrong with it, and says it once."""
        with self._lock:
            if name not in self._found:
                tell(f'warning: {fault}')
            self._found[name] = fault
            self._write()

    def keep(self) -> None:
        """Writes them all again, which another process may have written over since."""
        with self._lock:
            if self._found:
                self._write()

    def _write(self) -> None:
        """Adds to what another process, which makes the same share, may have noted."""
        self._found |= read_bad_files(self._path)
        files.write_whole(self._path, json.dumps(self._found, sort_keys=True))


def readable(
    source: Source, note: Callable[[str, str], None] = lambda name, fault: None
) -> Source:
    """A source of which a unit ends where its file is damaged.

    Args:
      source: the text.
      note: gets the name of the file, and what is wrong with it.
    """
    def documents(unit: Unit) -> Iterator[Document]:
        try:
            yield from source.read(unit)
        except DamagedFile as error:
            note(unit.name, str(error))

    return dataclasses.replace(source, read=documents)


def read_bad_files(path: files.Path) -> dict[str, str]:
    """The faults of the bad files of a share, by their names."""
    try:
        found: dict[str, str] = json.loads(files.read_bytes(path))
    except FileNotFoundError:
        return {}
    return found


def refusal(source: str, bad: dict[str, str]) -> InputError:
    """The error for bad files that are more than `data.max_bad_files`; it names them all."""
    num = len(bad)
    faults = '; '.join(bad.values())
    what = faults if num == 1 else f'{num:,} files of {source} cannot be read: {faults}'
    return InputError(
        f'{what} (or set config.data.max_bad_files={num} to go on without what cannot be read)')
