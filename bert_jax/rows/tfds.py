"""Records of data sets of tensorflow-datasets, for tasks and for sources of text."""

import contextlib
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from bert_jax.runtime.errors import InputError, first_line
from bert_jax.runtime.packages import loading_tensorflow

_RECORDS_AT_ONCE = 256


def tfds_records(name: str, split: str, data_dir: str = '') -> Iterator[dict[str, Any]]:
    """The records of a split of a tensorflow-datasets data set, as NumPy values by feature.

    Args:
      name: such as 'glue/mrpc'.
      split: such as 'validation'.
      data_dir: folder of prepared data; empty: the default one.

    Raises:
      InputError: the data set is not prepared and cannot be, or a package is not installed.
    """
    return records_of(prepared_builder(f'tfds:{name}', name, data_dir), split)


def records_of(builder: Any, split: str, **options: Any) -> Iterator[dict[str, Any]]:
    """The records of a split as NumPy values, read in batches where their shapes allow."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    data = builder.as_dataset(split=split, shuffle_files=False, **options)
    specs = tf.nest.flatten(data.element_spec)
    if not all(spec.shape.is_fully_defined() for spec in specs):
        yield from tfds.as_numpy(data)
        return
    for batch in tfds.as_numpy(data.batch(_RECORDS_AT_ONCE)):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def prepared_builder(spec: str, name: str, data_dir: str, try_gcs: bool = False) -> Any:
    """A tensorflow-datasets builder whose data is prepared, after a download if necessary.

    Args:
      spec: the user's name for it, for messages.
      name: of the data set.
      data_dir: see `tfds_records`.
      try_gcs: whether tensorflow-datasets' public copy will do.

    Raises:
      InputError: the data set is not prepared and cannot be, or a package is not installed.
    """
    with loading_tensorflow(spec):
        import tensorflow_datasets as tfds

    place = os.path.expanduser(data_dir) if data_dir else tfds.core.constants.DATA_DIR
    logging.disable(logging.CRITICAL)
    try:
        if try_gcs:
            _reach_google()
        builder = tfds.builder(name, data_dir=place, try_gcs=try_gcs)
        if not builder.is_prepared():
            _reach_google()
            builder.download_and_prepare()
    except Exception as error:  # tfds' back ends raise many types
        raise InputError(
            f"data source '{spec}': data set '{name}' is not in {place} and cannot be made there "
            f'({first_line(error)}); set --config.data.source to files of your own (a dump of '
            "Wikipedia is 'wikidump:FILE.xml.bz2'), or --config.data.tfds_dir to a directory where "
            'it is prepared') from error
    finally:
        logging.disable(logging.NOTSET)
    return builder


def _reach_google() -> None:
    """Fails within seconds without a network, where tensorflow-datasets would retry for minutes."""
    with contextlib.suppress(urllib.error.HTTPError):  # any answer will do
        urllib.request.urlopen('https://storage.googleapis.com', timeout=10).close()
