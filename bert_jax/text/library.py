"""The package `tokenizers` behind one boundary: whatever goes wrong in it is an InputError.

It raises the class Exception itself, and it panics: where a regular expression takes too many steps
in a text, for example. A panic is no Exception in Python, and is written on standard error as well.
"""

import contextlib
import functools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bert_jax.runtime.errors import InputError, first_line

_PANIC = 'PanicException'  # the class, which cannot be imported
_NONE = -1


class LibraryError(InputError):
    """The library cannot do what it is asked for; the message is its reason."""


class LibraryPanic(LibraryError):
    """The library panicked."""


class Unsplittable(InputError):
    """Some of several texts cannot be split.

    Attributes:
      places: theirs among the texts, ascending.
    """

    def __init__(self, message: str, places: Sequence[int]):
        super().__init__(message)
        self.places = tuple(places)


class _Messages:
    """Holds back standard error, which the library writes to without Python."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_holding = 0
        self._held = _NONE  # a file descriptor, as is the next
        self._real = _NONE

    def begin(self) -> None:
        """Holds it back from now on."""
        with self._lock:
            self._num_holding += 1
            if self._num_holding > 1:
                return
            with contextlib.suppress(OSError):  # there is no standard error, or the disk is full
                self._held, path = tempfile.mkstemp()
                os.unlink(path)
                self._real = os.dup(2)
                os.dup2(self._held, 2)

    def end(self) -> None:
        """Ends what `begin` began."""
        with self._lock:
            self._num_holding -= 1
            if not self._num_holding:
                self._restore()

    def drop(self) -> None:
        """Drops the lines of standard error that are held back."""
        with self._lock:
            if self._held != _NONE:
                os.truncate(self._held, 0)
                os.lseek(self._held, 0, os.SEEK_SET)

    def _restore(self) -> None:
        """Lets standard error go on, with the lines that were held back."""
        if self._real != _NONE:
            os.dup2(self._real, 2)
            os.close(self._real)
        if self._held != _NONE:
            os.lseek(self._held, 0, os.SEEK_SET)
            with contextlib.suppress(OSError), os.fdopen(self._held, 'rb') as held:
                os.write(2, held.read())
        self._held = _NONE
        self._real = _NONE


_MESSAGES = _Messages()


@contextlib.contextmanager
def panicking_silently() -> Iterator[None]:
    """Holds standard error back while the block works, and drops it where the library panics."""
    _MESSAGES.begin()
    try:
        yield
    finally:
        _MESSAGES.end()


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Turns what the library raises in the block, panics too, into a LibraryError."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # of the class Exception itself
        raise LibraryError(first_line(error)) from None
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        _MESSAGES.drop()
        raise LibraryPanic(first_line(error)) from None


class Library:
    """A tokenizer of the library, with the methods of that, all of them within `library_errors`.

    After the first panic it panics silently.
    """

    def __init__(self, content: str):
        """Reads the content of a tokenizer.json; LibraryError where that fails."""
        import tokenizers

        self._has_panicked = False
        with panicking_silently(), library_errors():
            self._tokenizer = tokenizers.Tokenizer.from_str(content)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith('_'):  # such as what pickle asks for before there is a tokenizer
            raise AttributeError(name)
        return functools.partial(self._call, getattr(self._tokenizer, name))

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of a method of the library's tokenizer."""
        if self._has_panicked:
            with panicking_silently(), library_errors():
                return method(*args, **kwargs)
        try:
            with library_errors():
                return method(*args, **kwargs)
        except LibraryPanic:
            self._has_panicked = True
            raise

    def normalize(self, text: str) -> str:
        """A text as the normalizer makes it."""
        with panicking_silently(), library_errors():
            normalizer = self._tokenizer.normalizer
            return text if normalizer is None else str(normalizer.normalize_str(text))

    def treat_special_tokens_as_text(self) -> None:
        """Makes special tokens in a text be split like any other text."""
        self._tokenizer.encode_special_tokens = True
