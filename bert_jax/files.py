"""Files and folders wherever they lie: on a disk, or in a bucket as gs://BUCKET/PATH.

Every path that a user names goes through `as_path`: `pathlib` would turn gs://b/x into gs:/b/x.
"""

from __future__ import annotations

import os
from typing import Any

# etils would go through TensorFlow where that is installed: slow to load, and then buckets would
# behave one way with it and another way without.
os.environ.setdefault('EPATH_USE_TF', 'false')
# gcsfs would answer from listings it once made; other hosts write too.
os.environ.setdefault('FSSPEC_GCS_USE_LISTINGS_CACHE', 'false')
# It would ask what kind of bucket each is, by gRPC; plain requests serve every kind used here.
os.environ.setdefault('GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT', 'false')

from etils import epath

Path = epath.Path


def as_path(path: str | os.PathLike[str]) -> Any:
    """The path that a user named, local (`~` expanded) or in a bucket, as an `epath.Path`."""
    return epath.Path(path).expanduser()


def in_bucket(path: str | os.PathLike[str]) -> bool:
    """Whether a path is in a bucket rather than on a disk."""
    return '://' in os.fspath(path)


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a whole file or nothing: beside, then renamed; in a bucket an upload is that."""
    target = as_path(path)
    data = content.encode('utf-8') if isinstance(content, str) else content
    if in_bucket(path):
        target.write_bytes(data)
        return
    beside = target.with_name(target.name + '.tmp')
    with open(beside, 'wb') as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, target)
