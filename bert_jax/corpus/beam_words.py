"""The words of a vocabulary's sample, counted by a pipeline of Apache Beam.

Which documents are in the sample depends on the lengths of those before them, so one process looks
where each file's part of it ends (`sharing.Head`), and workers count the words of these parts.
"""

import collections
import itertools
import json
import pickle
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import apache_beam as beam

from bert_jax.corpus.beam_shares import pipeline_of
from bert_jax.corpus.sharing import Head
from bert_jax.corpus.source import Source
from bert_jax.corpus.wordpiece_training import MAX_COUNTED_WORDS
from bert_jax.runtime import files
from bert_jax.text import wordpiece

_GROUPS = 64  # of words; each is added up by one worker


def counted_runs(
    sources: Sequence[Source], folder: files.Path, heads: Sequence[Head], options: Sequence[str]
) -> Mapping[str, int] | None:
    """The counts of `wordpiece_training.counted_runs`, made by Beam's workers.

    Args:
      sources: of the sample.
      folder: where the workers may write.
      heads: the documents of the sample.
      options: of Beam's `PipelineOptions`.

    Returns:
      None if they are not the same: where there are more words than are kept, which of them are
      forgotten depends on the order of the text; or if a source can be read on this machine only.

    Raises:
      InputError: the options are none, or the runner is not installed.
    """
    if any(source.takes_all_cores for source in sources):
        return None
    path = folder / f'words-{uuid.uuid4().hex}.json'
    job = pickle.dumps(sources)
    with pipeline_of(options, len(heads)) as pipeline:
        _ = (
            pipeline
            | beam.Create([tuple(head) for head in heads])
            | beam.Reshuffle()
            | 'count' >> beam.FlatMap(_count, job)
            | 'by word' >> beam.CombinePerKey(_added)
            | 'in one place' >> beam.Map(lambda group: (0, group[1]))
            | 'join' >> beam.CombinePerKey(_added)
            | 'write' >> beam.Map(_write, str(path)))
    if not files.exists(path):  # as of a pipeline that was cancelled
        return None
    runs: dict[str, int] = json.loads(files.read_bytes(path))
    path.unlink(missing_ok=True)
    return runs if len(runs) <= MAX_COUNTED_WORDS else None


def _count(head: tuple[int, int, int], job: bytes) -> Iterator[tuple[int, dict[str, int]]]:
    """Counts the words of some documents; gives (group, words with their counts)."""
    number, unit, num_documents = head
    source: Source = pickle.loads(job)[number]
    counts: collections.Counter[str] = collections.Counter()
    for document in itertools.islice(source.read(source.units[unit]), num_documents):
        counts.update(wordpiece.raw_words(document.text.decode()))
    groups: list[dict[str, int]] = [{} for _ in range(_GROUPS)]
    for word, count in counts.items():
        groups[zlib.crc32(word.encode()) % _GROUPS][word] = count
    for group, words in enumerate(groups):
        if words:
            yield group, words


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of counts."""
    total: collections.Counter[str] = collections.Counter()
    for words in counts:
        total.update(words)
    return dict(total)


def _write(counted: tuple[int, Mapping[str, int]], path: str) -> None:
    _, runs = counted
    files.write_whole(files.as_path(path), json.dumps(runs))
