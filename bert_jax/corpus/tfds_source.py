"""Data sets of tensorflow-datasets as sources of text."""

import functools
from collections.abc import Iterator
from typing import Any

from bert_jax.corpus.digests import digests, name_of
from bert_jax.corpus.source import Document, Source, Unit
from bert_jax.corpus.text_formats import normalise
from bert_jax.rows.tfds import prepared_builder, records_of
from bert_jax.runtime.errors import InputError


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
    builder = prepared_builder(spec, name, data_dir, try_gcs)
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
    for record in records_of(builder, unit.name, decoders=only_text):
        yield Document(normalise(record[column]), split=True)
