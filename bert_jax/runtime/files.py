"""Files and folders on a disk or in a bucket: paths, atomic writes, listings, output checks."""

import os

os.environ.setdefault('EPATH_USE_TF', 'false')

import atexit
import bz2
import contextlib
import difflib
import functools
import glob as globbing
import gzip
import json
import re
import secrets
import shutil
import stat
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import IO, Any, NamedTuple

from etils.epath import Path

from bert_jax.runtime import buckets
from bert_jax.runtime.errors import DamagedFile, InputError
from bert_jax.runtime.hashing import digest
from bert_jax.runtime.schema import ListOf, check_fields

_LEFTOVER_SECONDS = 86_400
_MOST_JSON_BYTES = 1 << 28
_FROM_SHELL = ('/proc/', '/dev/fd/', '/dev/pts/', '/dev/tty', '/dev/null')
LONGEST_LINE = 64 << 20  # bytes
# A URL's scheme. It also matches gs:/b/x, which would otherwise be a local folder named `gs:`.
_SCHEME = re.compile(r'([A-Za-z][A-Za-z0-9+.-]*):/')


def as_path(path: str | os.PathLike[str]) -> Path:
    """A user's path, local (with `~` expanded) or in a bucket, as an `epath.Path`.

    Raises:
      InputError: a scheme other than gs://, a bucket that cannot be accessed (tested with its first
        path), or a `~` of an unknown user.
      Unavailable: the bucket does not answer.
    """
    name = os.fspath(path)
    _check_name(name)
    check_scheme(name)
    if in_bucket(name):
        buckets.check_access(_bucket_of(name))
    elif name.startswith('~') and os.path.expanduser(name) == name:
        raise InputError(f"{name}: there is no user {name.split('/')[0]}")
    if not in_bucket(name):  # epath would take the beginning of /a/gs://b for a scheme
        name = re.sub('/{2,}', '/', name)
    return Path(name).expanduser()


def check_is_path(name: str, value: object) -> None:
    """Raises InputError for an argument, by its name, that is no text and no `pathlib.Path`."""
    if not isinstance(value, os.PathLike | str) or isinstance(os.fspath(value), bytes):
        raise InputError(f'{name}={value!r:.60} must be a path, as text or a pathlib.Path')


def _check_name(name: str) -> None:
    """Raises InputError for a name that no file can have."""
    if '\0' in name:
        raise InputError(f'{name!r} holds a NUL, which no name of a file can: correct the path')
    if re.search('[\ud800-\udfff]', name):  # of bytes that are not UTF-8
        raise InputError(f'{name!r} is no name in UTF-8, and libraries take no other: rename it')


def check_scheme(path: str | os.PathLike[str], field: str = '') -> None:
    """Refuses URLs other than gs://BUCKET/..., without accessing the bucket.

    Raises:
      InputError: it has another scheme, or names no bucket; the message begins with `field`.
    """
    if in_bucket(path) and not re.match('gs://[^/]', os.fspath(path)):
        raise InputError(f'{field}{os.fspath(path)}: name a local path, or one in a bucket as '
                         'gs://BUCKET/PATH')


def in_bucket(path: str | os.PathLike[str]) -> bool:
    """Whether a path is in a bucket rather than on a disk."""
    return _SCHEME.match(os.fspath(path)) is not None


def _bucket_of(path: str | os.PathLike[str]) -> str:
    """The name of the bucket that a gs:// path is in."""
    return os.fspath(path).split('/')[2]


def absolute(path: str | os.PathLike[str]) -> Path:
    """The absolute path (epath's `absolute` would take `gs:` for a local folder)."""
    return as_path(path) if in_bucket(path) else as_path(path).resolve()


def children(named: str | os.PathLike[str]) -> list[Path]:
    """The entries of a folder, sorted by name; none if there is no such folder."""
    folder = as_path(named)
    try:
        if in_bucket(folder):
            return _children_in_bucket(folder)
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _children_in_bucket(folder: Path) -> list[Path]:
    # etils would list the marker object of a folder made in the Cloud console as an entry.
    listed = buckets.file_system().ls(os.fspath(folder), detail=False)
    names = {name.rstrip('/') for name in listed}
    prefix = os.fspath(folder).removeprefix('gs://').rstrip('/') + '/'
    return sorted(folder / name[len(prefix):] for name in names if name.startswith(prefix))


class Entry(NamedTuple):
    """A file of a folder.

    Attributes:
      name: of the file.
      size: bytes.
      changed: when it was written, in seconds since 1970.
    """

    name: str
    size: int
    changed: float


def entries(named: str | os.PathLike[str]) -> list[Entry]:
    """The files of a folder, from one listing; none if there is no such folder.

    Temporary files, which vanish, are left out.
    """
    folder = as_path(named)
    found: list[Entry] = []
    try:
        if in_bucket(folder):
            for info in buckets.file_system().ls(os.fspath(folder), detail=True):
                if info['type'] == 'file':
                    name = info['name'].rpartition('/')[2]
                    changed = datetime.fromisoformat(info['updated']).timestamp()
                    found.append(Entry(name, info['size'], changed))
        else:
            with os.scandir(folder) as listed:
                for entry in listed:
                    if entry.is_file() and not entry.name.endswith('.tmp'):
                        status = entry.stat()
                        found.append(Entry(entry.name, status.st_size, status.st_mtime))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return found


def sizes(named: str | os.PathLike[str]) -> dict[str, int]:
    """Bytes of the files of a folder, by name; see `entries`."""
    return {entry.name: entry.size for entry in entries(named)}


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file atomically: on a disk by renaming a temporary file; uploads are atomic."""
    data = content.encode('utf-8') if isinstance(content, str) else content
    if in_bucket(path):
        buckets.file_system().pipe_file(os.fspath(as_path(path)), data)
        return
    with open_whole(path) as file:
        file.write(data)


def write_new(path: str | os.PathLike[str], content: str) -> bool:
    """Creates a small file exclusively; False if it exists. Of simultaneous calls, one succeeds."""
    data = content.encode('utf-8')
    try:
        if in_bucket(path):
            buckets.file_system().pipe_file(os.fspath(as_path(path)), data, mode='create')
        else:
            with open(as_path(path), 'xb') as file:
                file.write(data)
    except FileExistsError:
        return False
    return True


def temporary_name(target: Path) -> Path:
    """A name beside a file that no other process uses, in this or another container."""
    return target.with_name(f'.{target.name[:60]}.{secrets.token_hex(8)}.tmp')


def remove_leftovers(folder: Path, name: str = '') -> None:
    """Removes what killed processes have left under names of `temporary_name`.

    What has changed within a day is kept: another process, perhaps of another machine, may be
    writing it.

    Args:
      folder: on a disk; nothing is done in a bucket.
      name: of the file or folder that was to be written; '': of any.
    """
    if in_bucket(folder):
        return
    wanted = re.compile(rf'\.{re.escape(name[:60]) or ".+"}\.[0-9a-f]{{16}}\.tmp')
    # A folder that is not there or not to be read holds nothing of ours; what vanishes, or cannot
    # be removed, is another process's.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not wanted.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age < _LEFTOVER_SECONDS:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    as_path(entry.path).rmtree()
                else:
                    os.unlink(entry.path)


@functools.cache
def _remove_leftovers_once(folder: Path) -> None:
    """`remove_leftovers` of any name: to list a folder for each of its files takes too long."""
    remove_leftovers(folder)


@contextlib.contextmanager
def open_whole(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write, which appears at `path` when the block ends, unless the block raises.

    What killed processes have left in its folder is removed first, once in a process.
    """
    target = as_path(path)
    if in_bucket(path):
        place = as_path(_local_folder())
    else:
        place = target.parent
        _remove_leftovers_once(place)
    beside = temporary_name(place / target.name)
    try:
        with open(beside, 'xb') as file:  # follows no link that lies there
            yield file
            file.flush()
            os.fsync(file.fileno())
        if in_bucket(path):
            upload(beside, path)
        else:
            os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


class _ForeignFormat(NamedTuple):
    """A file format that nothing here reads.

    Attributes:
      start: a pattern of the bytes that its files begin with.
      what: what such a file is.
      remedy: what the user can do about it.
    """

    start: bytes
    what: str
    remedy: str


# What Git puts in the place of a large file, until it is downloaded.
GIT_LFS = b'version https://git-lfs'
_FOREIGN_FORMATS = (
    _ForeignFormat(GIT_LFS, 'a pointer of Git LFS in the place of the file',
                   'download the file (git lfs pull)'),
    _ForeignFormat(rb'\x1f\x8b', 'compressed by gzip', 'let its name end in .gz'),
    _ForeignFormat(rb'BZh[1-9]1AY&SY', 'compressed by bzip2', 'let its name end in .bz2'),
    _ForeignFormat(rb'\xfd7zXZ\x00', 'compressed by xz', 'decompress it (xz -d)'),
    _ForeignFormat(rb'\x28\xb5\x2f\xfd', 'compressed by zstd', 'decompress it (zstd -d)'),
    _ForeignFormat(rb'7z\xbc\xaf', 'a 7z archive', 'unpack it (7z x)'),
    _ForeignFormat(rb'PK\x03\x04', 'a .zip archive or an Excel or Word file',
                   'unpack it (unzip), or save its table as CSV'),
    _ForeignFormat(rb'\xd0\xcf\x11\xe0', 'an old Excel or Word file', 'save its table as CSV'),
    _ForeignFormat(rb'ARROW1', 'an Arrow file', 'write its table as Parquet'),
    _ForeignFormat(rb'%PDF-', 'a PDF', 'extract its text (pdftotext)'),
)


_DECOMPRESSORS: Mapping[str, Callable[[Any], Any]] = {'.gz': gzip.open, '.bz2': bz2.open}


def _check_readable(path: str | os.PathLike[str], file: Any) -> None:
    """Raises DamagedFile if an open file begins like one of a format that nothing here reads."""
    if hasattr(file, 'peek'):  # also where nothing can be read twice, such as a pipe
        head = file.peek(len(GIT_LFS))[: len(GIT_LFS)]
    else:
        head = file.read(len(GIT_LFS))
        file.seek(0)
    for foreign in _FOREIGN_FORMATS:
        if re.match(foreign.start, head):
            raise DamagedFile(f'{path} is {foreign.what}: {foreign.remedy}')


def _open(path: str | os.PathLike[str]) -> IO[bytes]:
    """A file to read, on a disk or in a bucket."""
    name = os.fspath(path)
    if in_bucket(name):
        return buckets.open_object(os.fspath(as_path(name)))
    if name.startswith('~'):
        name = os.fspath(as_path(name))
    check_ends(name)
    return open(name, 'rb')


def open_plain(path: Path) -> IO[bytes]:
    """A file to read as it is, on a disk or in a bucket.

    Raises:
      OSError: it is missing or cannot be read; one in a bucket only when it is read.
    """
    return _open(path)


def check_ends(name: str) -> None:
    """Refuses a named pipe, which may have no writer, and a device, which may have no end.

    What the shell passes on (`/dev/stdin`, `<(COMMAND)`) is read.

    Raises:
      InputError: it is one of them, or its name is no file's.
    """
    _check_name(name)
    if not os.path.exists(name) or os.path.realpath(name).startswith(_FROM_SHELL):
        return
    mode = os.stat(name).st_mode
    if stat.S_ISFIFO(mode):
        raise InputError(f'{name} is a named pipe: send it to standard input (< {name}), or write '
                         'it into a file')
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise InputError(f'{name} is a device: name a file')


def check_size(path: str | os.PathLike[str], most_mib: int) -> None:
    """Refuses a file on a disk that is larger than files of its kind ever are.

    Args:
      path: the file, which need not exist.
      most_mib: MiB that it may have.

    Raises:
      InputError: it has more.
    """
    if in_bucket(path) or not os.path.isfile(path):
        return
    if os.path.getsize(path) > most_mib << 20:
        raise InputError(f'{os.fspath(path)} has more than {most_mib} MiB: is it the right file?')


@contextlib.contextmanager
def open_stream(path: str | os.PathLike[str], begin: int = 0) -> Iterator[Any]:
    """A file to read from start to end; decompressed if its name ends in .gz or .bz2.

    Args:
      path: the file.
      begin: where to begin, in bytes of the content.

    Raises:
      DamagedFile: it is damaged or cut short, or compressed in another way.
      InputError: it cannot be read.
    """
    suffix = os.path.splitext(path)[1].lower()
    decompress = _DECOMPRESSORS.get(suffix, contextlib.nullcontext)
    try:
        with _open(path) as file, decompress(file) as content:
            if begin:
                content.seek(begin)
            else:
                _check_readable(path, content)
            yield content
    except (EOFError, zlib.error, OSError) as error:
        if is_damage(error):
            raise DamagedFile(f'{path} is cut short or damaged ({error}); copy it again') from error
        remedy = near_file(path) or 'check the path, or copy it again'
        raise InputError(
            f"{path} cannot be read ({getattr(error, 'strerror', '') or error}): {remedy}"
        ) from error


def is_damage(error: Exception) -> bool:
    """Whether an error is one of content, and not of the disk or the bucket that it comes from.

    bz2 and pyarrow raise an OSError for both; that of a system, or of `buckets`, has a number or is
    of a subclass.
    """
    if isinstance(error, EOFError | gzip.BadGzipFile | zlib.error):
        return True
    return type(error) is OSError and error.errno is None


def near_file(missing: str | os.PathLike[str]) -> str:
    """"did you mean 'DIR/NAME'?" for a file that is not there; '' if none has such a name."""
    return _near(missing, os.path.isfile)


def near_folder(missing: str | os.PathLike[str]) -> str:
    """As `near_file`, for a folder."""
    return _near(missing, os.path.isdir)


def _near(missing: str | os.PathLike[str], is_kind: Callable[[str], bool]) -> str:
    """As `near_file`, for what `is_kind` holds of."""
    path = os.fspath(missing)
    if in_bucket(path) or os.path.exists(path):
        return ''
    folder, name = os.path.split(path)
    if folder and not os.path.isdir(os.path.expanduser(folder)):
        outer, inner = os.path.split(folder)
        folder = os.path.join(outer, _near_name(outer, inner))
    else:
        name = _near_name(folder, name)
    near = os.path.join(folder, name)
    is_there = bool(name) and is_kind(os.path.expanduser(near))
    return f'did you mean {near!r}?' if is_there else ''


def _near_name(folder: str, name: str) -> str:
    """The most similar name in a folder; '' if there is none."""
    with contextlib.suppress(OSError):
        there = os.listdir(os.path.expanduser(folder) or '.')
        return next(iter(difflib.get_close_matches(name, there, n=1, cutoff=0.7)), '')
    return ''


def read_lines(file: IO[bytes], name: object, longest: int) -> Iterator[bytes]:
    """The lines of an open file, with their line ends.

    Args:
      file: the file.
      name: its name, with which the message begins.
      longest: bytes of a line that are not too many.

    Raises:
      DamagedFile: a line is longer.
    """
    number = 0
    while line := file.readline(longest + 1):
        number += 1
        if len(line) > longest:
            remedy = 'is this text? Break it up, or leave it out'
            if b'\r' in line:
                remedy = "if CR (0x0D) ends its lines, convert it (tr '\\r' '\\n')"
            raise DamagedFile(
                f'{name}, line {number} is longer than {longest >> 20:,} MiB: {remedy}')
        yield line


def lone_cr(path: str | os.PathLike[str], line: int, remedy: str = 'remove it') -> str:
    """The message for a line with a CR where none can be, such as a table whose lines CR ends."""
    return (f'{path}, line {line} holds a lone CR (0x0D), which ends no line here: {remedy}; if CR '
            "ends the lines, convert the file (tr '\\r' '\\n')")


def read_blocks(
    path: str | os.PathLike[str], num_bytes: int, begin: int = 0, end: int | None = None
) -> Iterator[bytes]:
    """A file's content in blocks, decompressed as by `open_stream`, which raises an InputError.

    Args:
      path: the file.
      num_bytes: of a block, at most.
      begin, end: which bytes of the content; None: to its end.
    """
    with open_stream(path, begin) as file:
        at = begin
        while end is None or at < end:
            size = num_bytes if end is None else min(num_bytes, end - at)
            block = file.read(size)
            if not block:
                break
            yield block
            at += len(block)


def read_bytes(path: Path) -> bytes:
    """The content of a file, by one request where it is in a bucket.

    Raises:
      OSError: the file is missing or cannot be read.
    """
    if in_bucket(path):
        return buckets.file_system().cat_file(os.fspath(path))
    check_ends(os.fspath(path))
    return path.read_bytes()


def check_no_pointer(path: Path, content: bytes) -> None:
    """Raises InputError if Git has a pointer to a large file in the place of the file."""
    if content.startswith(GIT_LFS):
        raise InputError(f'{path} is a pointer of Git LFS in the place of the file: download the '
                         'file (git lfs pull)')


def exists(path: Path) -> bool:
    """Whether there is a file, by one request where it is in a bucket.

    Raises:
      InputError: it is a link whose target is gone, so what it held is not what is meant by "none".
    """
    if not in_bucket(path):
        if path.exists():
            return True
        if os.path.islink(path):
            raise InputError(f'{path} is a link to {os.readlink(path)}, which is not there: copy '
                             'the files that links point to as well (cp -rL)')
        return False
    bucket, _, name = os.fspath(path).removeprefix('gs://').partition('/')
    try:
        buckets.file_system().call('GET', 'b/{}/o/{}', bucket, name)
    except FileNotFoundError:
        return False
    return True


def read_range(path: Path, offset: int, num_bytes: int) -> bytes:
    """Bytes of a file from an offset on, by one read or one request; fewer where it ends before.

    Raises:
      OSError: the file is missing or cannot be read.
      InputError: it is a named pipe or a device.
      Unavailable: a bucket does not answer.
    """
    if in_bucket(path):
        return buckets.read_range(os.fspath(path), offset, num_bytes)
    check_ends(os.fspath(path))
    with open(path, 'rb') as file:
        return os.pread(file.fileno(), num_bytes, offset)


def read_system(path: str) -> str:
    """The stripped text of a small system file, as in /proc; '' if it cannot be read."""
    with contextlib.suppress(OSError), open(path, encoding='utf-8', errors='replace') as file:
        return file.read().strip()
    return ''


def read_json(path: Path, wanted_for: str, kind: type = dict) -> Any:
    """The JSON object in a file, or the list if `kind` is `list`.

    Raises:
      InputError: the file is missing or holds something else; the message ends in `wanted_for`.
    """
    try:
        content = read_bytes(path)
        check_no_pointer(path, content)
        if len(content) > _MOST_JSON_BYTES:
            raise ValueError(f'{len(content):,} bytes')
        value = json.loads(content.decode('utf-8'))
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f'{path} is missing: {wanted_for}') from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f'{path} cannot be read as JSON ({error}): {wanted_for}') from None
    if not isinstance(value, kind):
        what = 'object' if kind is dict else 'list'
        raise InputError(f'{path} holds no JSON {what}: {wanted_for}')
    return value


def read_fields(path: Path, schema: Mapping[str, Any] | ListOf, remedy: str) -> Any:
    """The JSON object or list in a file, whose fields are of their kinds where they are not null.

    Args:
      path: the file.
      schema: of its content.
      remedy: what to do about a bad or missing one.

    Raises:
      InputError: the file is missing, is no JSON, or holds a value that is not allowed.
    """
    content = read_json(path, remedy, list if isinstance(schema, ListOf) else dict)
    check_fields(content, schema, path, remedy)
    return content


class Found(NamedTuple):
    """An entry of a listing."""

    path: str
    size: int  # bytes
    checksum: str  # of an object in a bucket; '' on a disk


def find(pattern: str) -> list[Found]:
    """The files that match a pattern (`**` matches any depth), sorted by name.

    An existing name is taken literally, even if it contains wildcard characters.

    Raises:
      FileNotFoundError: a match is a dangling link.
      InputError: `**` would go in circles.
    """
    if in_bucket(pattern):
        return _find_in_bucket(pattern)
    _check_name(pattern)
    if pattern.startswith('~'):
        pattern = os.fspath(as_path(pattern))
    if os.path.lexists(pattern):
        names = [pattern]
    else:
        if '**' in pattern:
            _check_no_circle(pattern)
        names = globbing.glob(pattern, recursive=True)
    found = []
    for name in names:
        is_dangling_link = not os.path.exists(name)
        if os.path.isfile(name) or is_dangling_link:  # for such a link, os.stat raises
            found.append(Found(name, os.stat(name).st_size, ''))
    return sorted(found)


def _check_no_circle(pattern: str) -> None:
    """Refuses a pattern with `**` where a link below leads back to a folder that it is in.

    `**` follows links, so two such links are more paths than can be tried.

    Raises:
      InputError: there is such a link.
    """
    top = re.split(r'[^/]*[*?[]', pattern, maxsplit=1)[0] or '.'
    waiting = [(top, frozenset([os.path.realpath(top)]))]
    while waiting:
        folder, above = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                # `**` does not look into hidden folders.
                if entry.name.startswith('.') or not entry.is_dir():
                    continue
                real = os.path.realpath(entry.path)
                if real in above:
                    raise InputError(f'{entry.path} is a link to a folder that it is in, so that '
                                     f'** in {pattern} never ends: remove the link, or name the '
                                     'files without **')
                waiting.append((entry.path, above | {real}))


def _find_in_bucket(pattern: str) -> list[Found]:
    as_path(pattern)  # checks the access to the bucket
    system = buckets.file_system()
    objects = []
    with contextlib.suppress(FileNotFoundError):
        objects = [system.info(pattern)]
    if globbing.has_magic(pattern) and (not objects or objects[0]['type'] != 'file'):
        objects = list(system.glob(pattern, detail=True).values())
    found = []
    for info in objects:
        if info['type'] == 'file':
            checksum = info.get('md5Hash') or info['crc32c']
            found.append(Found(f"gs://{info['name']}", info['size'], checksum))
    return sorted(found)


def local_copy(path: str | os.PathLike[str]) -> Path:
    """A file on this machine's disk, for libraries that need one: the file itself, or a copy.

    Copies from one folder of a bucket are in one folder. They are removed when the process ends.
    """
    if not in_bucket(path):
        check_ends(os.fspath(path))
        return as_path(path)
    copy = as_path(_local_folder()) / os.fspath(path).removeprefix('gs://')
    copy.parent.mkdir(parents=True, exist_ok=True)
    download(path, copy)
    return copy


def download(path: str | os.PathLike[str], local: str | os.PathLike[str]) -> None:
    """Copies an object of a bucket to a file of this machine."""
    buckets.file_system().get_file(os.fspath(as_path(path)), os.fspath(local))


def unpacked(path: str | os.PathLike[str]) -> Path:
    """The folder with the content of a .zip, or the only folder in it, on this machine's disk.

    It is removed when the process ends.

    Raises:
      InputError: the .zip is damaged, encrypted or compressed in a rare way.
    """
    folder = as_path(_local_folder()) / digest(os.fspath(path).encode())
    try:
        with zipfile.ZipFile(local_copy(path)) as content:
            # macOS adds a folder with its own notes on the files.
            names = [name for name in content.namelist() if not name.startswith('__MACOSX/')]
            if not names:
                raise zipfile.BadZipFile('it is empty')
            if any(content.getinfo(name).flag_bits & 1 for name in names):
                raise NotImplementedError('it is encrypted')
            content.extractall(folder, names)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f'{path} is not a sound .zip file ({error}); copy it again') from None
    except NotImplementedError as error:  # also for a method such as Deflate64
        raise InputError(f'{path} cannot be unpacked here ({error}): unpack it (unzip, 7z x), and '
                         'name the folder') from None
    entries = [path for path in children(folder) if not path.name.startswith('.')]
    return entries[0] if len(entries) == 1 else folder


def upload(local: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Copies a file of this machine to a bucket."""
    buckets.file_system().put_file(os.fspath(local), os.fspath(as_path(path)))


def append(path: str | os.PathLike[str], content: bytes, size: int) -> bool:
    """Appends to a file of `size` bytes in a bucket; see `buckets.append`."""
    return buckets.append(os.fspath(as_path(path)), content, size)


def check_deletion(path: str | os.PathLike[str]) -> None:
    """Refuses a path in a bucket in which orbax could not delete old checkpoints.

    Raises:
      InputError: the permission is missing, or there is no such bucket.
      Unavailable: the bucket does not answer.
    """
    if in_bucket(path):
        buckets.check_deletion(_bucket_of(path))


def _local_folder() -> str:
    """A folder of this process, not of the one that it is a fork of."""
    return _local_folder_of(os.getpid())


@functools.cache
def _local_folder_of(process: int) -> str:
    atexit.register(remove_temporary_folders)
    return tempfile.mkdtemp(prefix=_temporary_prefix(process))


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A new folder on this machine's disk, for a `with` block or as long as it is referred to.

    It is also removed by `remove_temporary_folders`.
    """
    return tempfile.TemporaryDirectory(prefix=_temporary_prefix(os.getpid()))


@functools.cache
def _temporary_prefix(process: int) -> str:
    """How the names of a process's temporary folders begin, unlike those of its forks."""
    return f'bert_jax_{secrets.token_hex(8)}_'


def remove_temporary_folders() -> None:
    """Removes all of this process. Call it before `os._exit`, which leaves them, and on a signal.

    A signal may come when a folder has been made and nothing refers to it yet.
    """
    _local_folder_of.cache_clear()
    prefix = _temporary_prefix(os.getpid())
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                shutil.rmtree(entry.path, ignore_errors=True)  # another thread may write there


def check_new_file(path: str | os.PathLike[str], flag: str, unless: str = '') -> None:
    """Refuses an output file that exists already or cannot be written.

    Args:
      path: the file.
      flag: the option that names it.
      unless: a JSON field that marks an earlier result, which may be overwritten.

    Raises:
      InputError: it exists or cannot be written; the message names the flag.
    """
    target = _output_path(path, flag)
    if target.is_dir():
        raise InputError(f'{flag}={path} is a folder: name a file')
    if unless and _has_field(target, unless):
        return
    if target.exists() or os.path.islink(target):
        raise InputError(f'{flag}: {path} is there already: name another file, nothing is written '
                         'over')
    _check_writable(target.parent, f'{flag}={path}')


def _output_path(named: str | os.PathLike[str], flag: str) -> Path:
    """`as_path` of an output; refuses a name of the hub, which only `convert` publishes to."""
    if os.fspath(named).startswith('hf:'):
        raise InputError(f'{flag}={named} names the Hugging Face hub: name a folder, and publish '
                         'what is in it with python -m bert_jax.convert')
    return as_path(named)


def _has_field(path: Path, field: str) -> bool:
    """Whether a file holds a JSON object with a field."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return field in json.loads(path.read_bytes())
    return False


def open_folder(named: str | os.PathLike[str], flag: str, is_ours: Callable[[Path], bool]) -> Path:
    """Creates an output folder, or accepts one with earlier results, without leftovers in it.

    Args:
      named: the folder.
      flag: the option that names it.
      is_ours: whether a folder that is not empty holds earlier results of this command.

    Raises:
      InputError: it holds other files, or cannot be written.
    """
    folder = _output_path(named, flag)
    _check_writable(folder, f'{flag}={named}', make=True)
    others = [path.name for path in children(folder) if not is_incidental(path)]
    if others and not is_ours(folder):
        examples = ', '.join(others[:3])
        raise InputError(f'{named} holds something else ({examples}): give another {flag}, nothing '
                         'is written over')
    remove_leftovers(folder)
    return folder


def is_incidental(path: Path) -> bool:
    """Whether a file does not count as content of a folder: hidden files and logs."""
    is_hidden = path.name.startswith('.')
    is_log = path.suffix in ('.log', '.out', '.err') or path.name == 'log.txt'
    return is_hidden or is_log


def _check_writable(folder: Path, where: str, make: bool = False) -> None:
    """Refuses a folder on a disk that cannot be written or made; `where` begins the message."""
    if in_bucket(folder):
        return
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f'{where} cannot be written ({folder}: {error.strerror or error}): name '
                         'another place') from None
