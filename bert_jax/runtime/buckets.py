"""Access to buckets of Google Cloud Storage: the file system, reading, checks of permissions."""

import os

os.environ.setdefault('FSSPEC_GCS_USE_LISTINGS_CACHE', 'false')
os.environ.setdefault('GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT', 'false')

import contextlib
import errno
import functools
import io
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bert_jax.runtime.errors import InputError, Unavailable, needing, tell

# By default gcsfs and TensorStore wait for ever for a server that says nothing.
_SILENCE_SECONDS = 30.0  # after which a request is made again
for _name in ('CONNECT_TIMEOUT_SECONDS', 'LOW_SPEED_TIME_SECONDS'):
    os.environ.setdefault(f'TENSORSTORE_CURL_{_name}', f'{_SILENCE_SECONDS:.0f}')
os.environ.setdefault('TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES', '1')  # a second
# A new GKE pod has no credentials for some seconds; a bucket can be unavailable for minutes.
REFUSED_SECONDS = 60.0
UNREACHABLE_SECONDS = 300.0
_LONGEST_PAUSE_SECONDS = 15.0

_RANGE_BYTES = 8 << 20  # of an object, that a request reads
_RANGES_AHEAD = 4
_RANGES_KEPT = _RANGES_AHEAD + 2  # in memory: also the one in use and another
_BUFFER_BYTES = 1 << 18


def file_system() -> Any:
    """The file system of all buckets, of `gcsfs`."""
    import aiohttp
    import fsspec

    system = fsspec.filesystem('gcs', finalize_on_close=True)  # etils' arguments, so its instance
    system.requests_timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_SILENCE_SECONDS, sock_read=_SILENCE_SECONDS)
    return system


@functools.cache
def check_access(name: str) -> None:
    """Lists a bucket once, so that a missing permission shows at the start, in one line."""
    url = f'gs://{name}'
    with needing(f'{url} is a bucket, which', extra='gcs'):
        import gcsfs  # noqa: F401
    logging.getLogger('gcsfs').setLevel(logging.CRITICAL)  # it logs every retry
    _ask(url, lambda: file_system().call('GET', 'b/{}/o', name, maxResults=1),
         'no permission to list it: log in with gcloud auth application-default login, or give '
         "this machine's service account the role Storage Object Admin on it")


def open_object(url: str) -> io.BufferedReader:
    """An object to read, mostly from start to end: one of up to 8 MiB takes one request.

    A larger one is read in ranges, of which a few are read ahead while the caller works on another:
    no more than have been read in a row before, so that the start of an object costs little more
    than itself. All answers are of the version of the object that the first one was of.

    Args:
      url: gs://BUCKET/PATH.

    Raises:
      OSError: when it is read, if there is no such object, or it is replaced meanwhile.
    """
    return io.BufferedReader(_ObjectReader(url), _BUFFER_BYTES)


class _ObjectReader(io.RawIOBase):
    """Reads an object in ranges of `_RANGE_BYTES`, which are numbered."""

    def __init__(self, url: str):
        self._ranges: dict[int, Future[bytes]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._url = url
        self._system = file_system()
        self._generation = ''  # known with the size, from the first answer
        self._size: int | None = None
        self._position = 0
        self._last = -1
        self._num_in_a_row = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to a place from which to read on; the place, counted from the start."""
        base = 0
        if whence == io.SEEK_CUR:
            base = self._position
        elif whence == io.SEEK_END:
            base = self._known_size()
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer with what follows, as far as one range has it; 0 at the end."""
        if self._size is not None and self._position >= self._size:
            return 0
        number, begin = divmod(self._position, _RANGE_BYTES)
        content = memoryview(self._range(number))[begin : begin + len(buffer)]
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def close(self) -> None:
        """Ends the requests that read ahead."""
        self._ranges.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _known_size(self) -> int:
        """The size of the object, which the first answer tells: some of it must have been read."""
        if self._size is None:
            self._range(0)
        return self._size or 0

    def _range(self, number: int) -> bytes:
        """The bytes of a range. Begins to read those that follow it."""
        if number not in self._ranges:
            self._ranges[number] = Future()
            try:
                self._ranges[number].set_result(self._get(number))
            except BaseException:
                del self._ranges[number]
                raise
        if number == self._last + 1:
            self._num_in_a_row += 1
        elif number != self._last:
            self._num_in_a_row = 1
        self._last = number
        self._read_ahead(number)
        self._forget(number)
        return self._ranges[number].result()  # of a request that failed, its error

    def _read_ahead(self, number: int) -> None:
        """Begins to read the ranges behind one: none behind the first, and then more and more."""
        size = self._known_size()
        for ahead in range(number + 1, number + 1 + min(self._num_in_a_row - 1, _RANGES_AHEAD)):
            if ahead not in self._ranges and ahead * _RANGE_BYTES < size:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(_RANGES_AHEAD, 'read-ahead')
                self._ranges[ahead] = self._pool.submit(self._get, ahead)

    def _forget(self, number: int) -> None:
        """Forgets the oldest ranges but this and those behind it, if there are too many."""
        others = []
        for other in self._ranges:
            if not number <= other <= number + _RANGES_AHEAD:
                others.append(other)
        for other in others[: max(len(self._ranges) - _RANGES_KEPT, 0)]:
            self._ranges.pop(other).cancel()

    def _get(self, number: int) -> bytes:
        """Requests a range. Threads call it at the same time once the first answer is there."""
        begin = number * _RANGE_BYTES
        end = begin + _RANGE_BYTES
        url = self._system.url(self._url)
        if self._generation:
            url += f'&generation={self._generation}'
        try:
            headers, content = self._system.call(
                'GET', url, headers={'Range': f'bytes={begin}-{end - 1}'})
        except FileNotFoundError:
            if self._size is None:
                raise
            raise _fault('it was replaced or deleted while it was read') from None
        except Exception as error:  # gcsfs' own
            if _http_status(error) == 416 and self._size is None:  # there is nothing behind `begin`
                if begin == 0:
                    self._size = 0
                return b''
            if isinstance(error, OSError) and error.errno is None:
                raise _fault(str(error) or type(error).__name__) from error
            raise
        if self._size is None:
            _, _, size = headers.get('Content-Range', '').rpartition('/')
            self._size = int(size) if size else begin + len(content)
            self._generation = headers.get('x-goog-generation', '')
        if len(content) != min(end, self._size) - begin:
            raise _fault(f'{len(content)} bytes came of those from byte {begin} on')
        return content


def _fault(what: str) -> OSError:
    """An error of a bucket, which its number tells from one of damaged content (`is_damage`)."""
    return OSError(errno.EIO, what)


def read_range(url: str, offset: int, num_bytes: int) -> bytes:
    """Bytes of an object from an offset on, by one request; fewer where the object ends before.

    A run that trains reads its data for days, so it waits for a bucket that does not answer.

    Raises:
      FileNotFoundError: there is no such object.
      Unavailable: no answer for `UNREACHABLE_SECONDS`.
    """
    begun = time.monotonic()
    pause = 1.0
    while True:
        try:
            return file_system().cat_file(url, start=offset, end=offset + num_bytes)
        except FileNotFoundError:
            raise
        except Exception as error:  # any of many libraries, which have tried again themselves
            reason = ' '.join(str(error).split())[:200] or type(error).__name__
        if time.monotonic() - begun >= UNREACHABLE_SECONDS:
            raise Unavailable(f'{url} cannot be read ({reason}): check the network')
        if pause == 1.0:
            tell(f'waiting for {url} ({reason})')
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def check_deletion(name: str) -> None:
    """Refuses a bucket in which orbax could not delete old checkpoints.

    To delete, orbax reads the bucket's metadata, which needs more permissions than its objects do;
    without them a run would fail hours later.

    Raises:
      InputError: the permission is missing, or there is no such bucket.
      Unavailable: the bucket does not answer.
    """
    from google.cloud import storage

    _ask(f'gs://{name}', lambda: storage.Client().get_bucket(name, retry=None),
         "old checkpoints could not be deleted there: give this machine's service account the role "
         'Storage Legacy Bucket Reader as well, and name the project in GOOGLE_CLOUD_PROJECT if it '
         'is not known')


def append(url: str, content: bytes, size: int) -> bool:
    """Appends to an object without sending again what it holds.

    The new bytes become an object beside it, and the bucket joins both in one request, which is
    carried out wholly or not at all. So whenever the process is killed, the object has all of the
    new bytes or none, and what may be left beside it is hidden, and replaced by the next call.

    Args:
      url: of an object.
      content: the new bytes.
      size: number of bytes that the object must have.

    Returns:
      Whether the object has the new bytes; False if it has another size, or cannot be joined.

    Raises:
      Exception: any of gcsfs; whether the object has the new bytes is then unknown.
    """
    before = _object(url)
    if before is None or int(before['size']) != size:
        return False
    folder, _, name = url.rpartition('/')
    beside = f'{folder}/.{name}.appended'
    system = file_system()
    system.pipe_file(beside, content)
    after = _join(url, beside, before['generation'])
    with contextlib.suppress(Exception):  # the next call replaces it
        system.rm_file(beside)
    return after is not None and int(after['size']) == size + len(content)


def _object(url: str) -> dict[str, Any] | None:
    """The bucket's record of an object; None if the object is missing."""
    bucket, name = _split(url)
    with contextlib.suppress(FileNotFoundError):
        return file_system().call('GET', 'b/{}/o/{}', bucket, name, json_out=True)
    return None


def _join(url: str, beside: str, generation: str) -> dict[str, Any] | None:
    """Appends an object to one of this generation; returns what the bucket then says of it."""
    bucket, name = _split(url)
    parts = [name, _split(beside)[1]]
    try:
        return file_system().call(
            'POST', 'b/{}/o/{}/compose', bucket, name, ifGenerationMatch=generation,
            headers={'Content-Type': 'application/json'}, json_out=True,
            json={
                'sourceObjects': [{'name': part} for part in parts],
                'destination': {'contentType': 'application/octet-stream'}})
    except Exception:
        # If only the answer was lost, gcsfs has repeated the request, and the bucket has refused it
        # because of the other generation. So only the object shows what was done.
        return _object(url)


def _split(url: str) -> tuple[str, str]:
    """The bucket of an object and its name there."""
    bucket, _, name = url.removeprefix('gs://').partition('/')
    return bucket, name


def _ask(url: str, request: Callable[[], object], refused: str) -> None:
    """Makes a request to a bucket, with retries while the error may be transient.

    Args:
      url: of the bucket.
      request: makes the request.
      refused: the message of a missing permission, with the remedy.

    Raises:
      InputError: no such bucket, or fresh credentials are refused for `REFUSED_SECONDS`.
      Unavailable: no answer for `UNREACHABLE_SECONDS`.
    """
    begun = time.monotonic()
    pause = 1.0
    while True:
        try:
            request()
            return
        except Exception as error:  # any of many libraries
            reason = ' '.join(str(error).split())[:200] or type(error).__name__
            status = _http_status(error)
        seconds = time.monotonic() - begun
        if status == 404:
            raise InputError(f'{url}: there is no such bucket: name another, or make it with '
                             f'gcloud storage buckets create {url}')
        if _is_refusal(status, reason) and seconds >= REFUSED_SECONDS:
            raise InputError(f'{url}: {refused} ({reason})')
        if seconds >= UNREACHABLE_SECONDS:
            raise Unavailable(f'{url} cannot be reached ({reason}): check the network')
        if pause == 1.0:
            tell(f'waiting for {url} ({reason})')
        time.sleep(min(pause, REFUSED_SECONDS))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        type(file_system()).clear_instance_cache()  # the next one reads the credentials again


def _http_status(error: Exception) -> Any:
    """The status that a bucket answered; None if the error is another."""
    if isinstance(error, FileNotFoundError):
        return 404
    return getattr(error, 'code', None)


def _is_refusal(status: Any, reason: str) -> bool:
    """Whether a bucket answered that the credentials are missing or do not suffice."""
    if status in (401, 403):
        return True
    return re.search('Forbidden|[Cc]redentials|Project', reason) is not None
