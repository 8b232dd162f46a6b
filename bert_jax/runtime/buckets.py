"""Access to buckets of Google Cloud Storage: the file system, and checks of permissions."""

import os

os.environ.setdefault('FSSPEC_GCS_USE_LISTINGS_CACHE', 'false')
os.environ.setdefault('GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT', 'false')

import functools
import logging
import re
import time
from collections.abc import Callable
from typing import Any

from bert_jax.runtime.errors import InputError, Unavailable, needing, tell

# A new GKE pod has no credentials for some seconds; a bucket can be unavailable for minutes.
REFUSED_SECONDS = 60.0
UNREACHABLE_SECONDS = 300.0
_LONGEST_PAUSE_SECONDS = 15.0


def file_system() -> Any:
    """The file system of all buckets, of `gcsfs`."""
    import fsspec

    return fsspec.filesystem('gcs', finalize_on_close=True)  # etils' arguments, so its instance


@functools.cache
def check_access(name: str) -> None:
    """Lists a bucket once, so that a missing permission shows at the start, in one line."""
    url = f'gs://{name}'
    with needing(f'{url} is a bucket, which', 'gcsfs'):
        import gcsfs  # noqa: F401
    logging.getLogger('gcsfs').setLevel(logging.CRITICAL)  # it logs every retry
    _ask(url, lambda: file_system().call('GET', 'b/{}/o', name, maxResults=1),
         'no permission to list it: log in with gcloud auth application-default login, or give '
         "this machine's service account the role Storage Object Admin on it")


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
