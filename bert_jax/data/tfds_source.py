"""Data sets of tensorflow-datasets: as sources of text, and as records of tasks."""

import contextlib
import functools
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from bert_jax.data.digests import digests, name_of
from bert_jax.data.source import Document, Source, Unit
from bert_jax.data.text_formats import normalise
from bert_jax.runtime.errors import InputError, first_line
from bert_jax.runtime.packages import loading_tensorflow

_RECORDS_AT_ONCE = 256


def tfds_source(
    spec: str, named: str, data_dir: str, column: str, try_gcs: bool = False
) -> Source:
    """A data set of tensorflow-datasets, one unit for each shard.

    Args:
      spec: the user's name for it.
      named: its name, with or without `:SPLIT`.
      data_dir: folder of prepared data; empty: the default one.
      column: the feature that holds the text.
      try_gcs: whether tensorflow-datasets' public copy will do.

    Raises:
      InputError: it is not prepared and cannot be, or lacks the split or the feature.
    """
    name, _, split_name = named.partition(':')
    split_name = split_name or 'train'
    builder = _prepared_builder(spec, name, data_dir, try_gcs)
    info = builder.info
    if column not in info.features or split_name not in info.splits:
        raise InputError(f"data source '{spec}': no feature '{column}' or no split '{split_name}', "
                         f"only {', '.join(info.features)} in {', '.join(info.splits)}")
    split = info.splits[split_name]
    units = []
    for shard in range(split.num_shards):
        name_of_shard = f'{split.name}[{shard}shard:{shard + 1}shard]'
        units.append(Unit(name_of_shard, split.num_bytes // split.num_shards))
    return Source(
        spec,
        units,
        read=functools.partial(_read_shard, builder, column),
        fingerprint=functools.partial(_digest_of_shards, split, column),
        outline=f'{info.full_name}, {split.num_bytes:,} bytes')


def _digest_of_shards(split: Any, column: str) -> str:
    identity = digests(split.filepaths)
    if column != 'text':
        identity.append(column)
    return name_of(identity)


def _read_shard(builder: Any, column: str, unit: Unit) -> Iterator[Document]:
    import tensorflow_datasets as tfds

    only_text = tfds.decode.PartialDecoding({column: True})
    for record in _records(builder, unit.name, decoders=only_text):
        yield Document(normalise(record[column]), split=True)


def tfds_records(name: str, split: str, data_dir: str = '') -> Iterator[dict[str, Any]]:
    """The records of a split of a tensorflow-datasets data set, as NumPy values by feature.

    Args:
      name: such as 'glue/mrpc'.
      split: such as 'validation'.
      data_dir: folder of prepared data; empty: the default one.

    Raises:
      InputError: the data set is not prepared and cannot be, or a package is not installed.
    """
    return _records(_prepared_builder(f'tfds:{name}', name, data_dir), split)


def _records(builder: Any, split: str, **options: Any) -> Iterator[dict[str, Any]]:
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


def _prepared_builder(spec: str, name: str, data_dir: str, try_gcs: bool = False) -> Any:
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
