"""Data sets of tensorflow-datasets: prepared where they can be, and their records."""

from __future__ import annotations

import contextlib
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.process import loading_tensorflow


def tfds_records(name: str, split: str, data_dir: str = '') -> Iterator[dict[str, Any]]:
    """The records of a split of a tensorflow-datasets data set, as NumPy values by feature.

    Args:
      name: such as 'glue/mrpc'.
      split: such as 'validation'.
      data_dir: prepared data; empty: their default place.

    Raises:
      InputError: it is not there and cannot be made.
    """
    data = prepared_builder(f'tfds:{name}', name, data_dir).as_dataset(
        split=split, shuffle_files=False
    )
    import tensorflow as tf
    import tensorflow_datasets as tfds

    if not all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(data.element_spec)):
        yield from tfds.as_numpy(data)
        return
    for batch in tfds.as_numpy(data.batch(256)):
        names = list(batch)
        for values in zip(*(batch[key] for key in names), strict=True):
            yield dict(zip(names, values, strict=True))


def prepared_builder(spec: str, name: str, data_dir: str) -> Any:
    """A builder whose data is on disk, downloaded and prepared now if need be and possible.

    Args:
      spec: what the user named, for messages.
      name: of the data set.
      data_dir: see `tfds_records`.

    Raises:
      InputError: it is not there and cannot be made.
    """
    with loading_tensorflow(spec):
        import tensorflow_datasets as tfds

    place = os.path.expanduser(data_dir) if data_dir else tfds.core.constants.DATA_DIR
    remedy = (
        'set --config.data.source to files of your own, or --config.data.tfds_dir to a directory '
        'where it is prepared'
    )
    if name.startswith('wikipedia'):  # made by Beam, which is not installed with this program
        remedy += (
            '; Wikipedia is read from its own dumps too: download one from dumps.wikimedia.org and '
            "set --config.data.source='wikidump:FILE.xml.bz2'"
        )
    try:
        with _quiet():
            builder = tfds.builder(name, data_dir=place, try_gcs=False)
            if not builder.is_prepared():
                _check_network()
                builder.download_and_prepare()
    except InputError:
        raise
    except Exception as error:  # tfds raises whatever its many back ends do
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(
            f"data source '{spec}': data set '{name}' is not in {place} and cannot be made there "
            f'({reason}); {remedy}'
        ) from error
    return builder


def _check_network() -> None:
    """Fails in seconds where there is no network: tfds would try again for minutes."""
    request = urllib.request.Request('https://storage.googleapis.com', method='HEAD')
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError:
        pass  # it answers, whatever it says
    except OSError as error:
        raise OSError(f'no network: {getattr(error, "reason", error)}') from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the chatter of tensorflow-datasets off standard error."""
    loggers = [logging.getLogger(), logging.getLogger('absl')]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
