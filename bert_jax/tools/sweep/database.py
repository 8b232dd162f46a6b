"""A database as the storage of a sweep's study, `--storage=URL`, instead of a journal."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlalchemy import exc, make_url

from bert_jax.runtime.errors import InputError, Unavailable, first_line

if TYPE_CHECKING:  # a wrong URL is refused without
    from optuna.storages import RDBStorage

_SQLITE_SECONDS = 60  # to wait for other processes that write


def check_url(url: str) -> None:
    """Refuses what is no URL of a database that several processes can open.

    Raises:
      InputError: it is none.
    """
    try:
        parts = make_url(url)
        parts.get_dialect()
    except (exc.ArgumentError, ValueError):
        kind = url.partition(':')[0]  # what follows may have a password
        raise InputError(f'--storage={kind!r:.60}... is not the URL of a database: write '
                         'sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME') from None
    in_memory = parts.database in (None, '', ':memory:')
    if parts.get_backend_name() == 'sqlite' and in_memory:
        raise InputError(f'--storage={url}: a database in memory is lost with its process, name '
                         'a file, sqlite:///FILE')


def open_database(url: str) -> 'RDBStorage':
    """The storage in a database, which gets Optuna's tables if it has none.

    Optuna's heartbeats need its own loop. A trial whose process is gone is known by the lock of its
    run folder here, as with every other storage.

    Raises:
      InputError: the database cannot be opened, or its driver is not installed.
      Unavailable: its server does not answer, or lets nobody in.
    """
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage

    check_url(url)
    shown = shown_url(url)
    engine = {}
    has_server = make_url(url).get_backend_name() != 'sqlite'
    if not has_server:
        engine = {'connect_args': {'timeout': _SQLITE_SECONDS}}
    try:
        return RDBStorage(url, engine_kwargs=engine)
    except ImportError:
        driver = make_url(url).get_driver_name()
        raise InputError(f'--storage={shown} needs {driver}, which is not installed: '
                         f'python -m pip install {driver}') from None
    except (exc.SQLAlchemyError, StorageInternalError, ValueError, KeyError, RuntimeError) as error:
        if has_server and isinstance(error, exc.OperationalError):
            raise _unavailable(shown, error) from None
        raise InputError(f'--storage={shown} cannot be opened: {first_line(error)}') from None


def shown_url(url: str) -> str:
    """A URL without its password."""
    return make_url(url).render_as_string(hide_password=True)


@contextlib.contextmanager
def needing_database(url: str) -> Iterator[None]:
    """Turns an error of the database in the block into one line; '': there is none.

    Raises:
      Unavailable: the database does not answer any more.
    """
    from optuna.exceptions import StorageInternalError

    try:
        yield
    except (exc.SQLAlchemyError, StorageInternalError) as error:
        raise _unavailable(shown_url(url), error) from error


def _unavailable(shown: str, error: Exception) -> Unavailable:
    return Unavailable(f'--storage={shown} does not answer: {first_line(error)}; the same command '
                       'goes on')
