import errno
import os

import pytest

from bert_jax.runtime.files import as_path
from bert_jax.runtime.new_folder import folder_beside, new_folder


def test_a_folder_that_a_thread_still_writes_to_goes_and_the_first_error_is_told(
        tmp_path, monkeypatch):
    """As orbax's threads do for a moment after one of them found the disk full."""
    remove = os.rmdir
    late = ['late file']

    def remove_after_a_write(path, **kwargs):
        if late and os.fspath(path) == os.fspath(beside):
            (beside / late.pop()).write_text('x')
        remove(path, **kwargs)

    monkeypatch.setattr(os, 'rmdir', remove_after_a_write)
    with (pytest.raises(OSError, match='No space left'),
          new_folder(as_path(tmp_path / 'x')) as beside):
        (beside / 'file').write_text('x')
        raise OSError(errno.ENOSPC, 'No space left on device')
    assert not late
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_removed_does_not_hide_the_error(tmp_path, monkeypatch):
    monkeypatch.setattr('bert_jax.runtime.new_folder._REMOVALS', 1)
    monkeypatch.setattr('shutil.rmtree', lambda *args, **kwargs: None)
    with pytest.raises(ValueError, match='the first'), folder_beside(as_path(tmp_path / 'x')):
        raise ValueError('the first')
