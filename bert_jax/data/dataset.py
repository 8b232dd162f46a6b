"""Pre-training data: vocabulary and token store, built once, copied to each host; examples."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from bert_jax.data.examples import (
    Examples,
    Mixture,
    RecordExamples,
    Rows,
    SyntheticExamples,
    eval_batch,
    plain_batches,
)
from bert_jax.data.pretrain import (
    PretrainExamples,
    Recipe,
    SpecialIds,
    frequency_loss,
    repeated_share,
)
from bert_jax.data.store import (
    MANIFEST,
    TokenStore,
    damaged,
    digests,
    disk_faults,
    in_threads,
    locked,
    new_digest,
    read_manifest,
)
from bert_jax.data.store_build import build_store, store_fingerprint
from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, open_folder
from bert_jax.runtime.process import loading_tensorflow
from bert_jax.text import check_known, load_tokenizer, read_switches, write_switches
from bert_jax.text.training import add_words
from bert_jax.text.wordpiece import ORIGINAL

_THREADS = 16
_BLOCK_BYTES = 8 << 20


def copy_store(source: files.Path, target: files.Path) -> tuple[int, float]:
    """Copies a finished store, several files at once, and checks each against the manifest.

    Args:
      source: its folder, on a disk or in a bucket.
      target: another folder; one of the two is on a disk. Its parent need not exist.

    Returns:
      (bytes copied, seconds).

    Raises:
      InputError: the store is damaged, or the target's disk is too small.
    """
    started = time.monotonic()
    entries = read_manifest(source)['files']
    target.mkdir(parents=True, exist_ok=True)
    if not files.in_bucket(target):
        for left in target.glob('.*.tmp'):  # of a killed copy
            left.unlink()
    missing = [name for name, entry in entries.items() if not _has(target / name, entry)]
    size = sum(entries[name]['bytes'] for name in missing)
    if not files.in_bucket(target) and (free := shutil.disk_usage(target).free) < size:
        raise InputError(
            f'{target} has room for {free / 1e9:.1f} GB, and the token store has {size / 1e9:.1f} '
            'GB more: free some space, or set --config.data.local_dir to a larger disk'
        )

    def copy(name: str, check: Callable[[], None]) -> None:
        check()
        if files.in_bucket(target):
            files.upload(source / name, target / name)
            if not _has(target / name, entries[name]):
                raise InputError(damaged(source, name))
            return
        with files.open_whole(target / name) as file:
            _read_checked(source, name, entries[name], check, file.write)

    in_threads(copy, missing, _THREADS)
    files.write_whole(target / MANIFEST, (source / MANIFEST).read_bytes())
    return size, time.monotonic() - started


def check_store(path: files.Path) -> tuple[int, float]:
    """Reads a published store back, as a lower bound for the time of a host's copy.

    Returns:
      (bytes read, seconds).

    Raises:
      InputError: a file does not match the manifest.
    """
    started = time.monotonic()
    entries = read_manifest(path)['files']

    def read(name: str, check: Callable[[], None]) -> None:
        _read_checked(path, name, entries[name], check, len)

    in_threads(read, list(entries), _THREADS)
    return sum(entry['bytes'] for entry in entries.values()), time.monotonic() - started


def _has(path: files.Path, entry: dict[str, Any]) -> bool:
    """Whether a file exists and is complete."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().length == entry['bytes'] and digests([path]) == [entry['md5']]
    return False


def _read_checked(
    folder: files.Path, name: str, entry: dict[str, Any], check: Callable[[], None],
    take: Callable[[bytes], Any],
) -> None:
    digest = new_digest()
    try:
        with (folder / name).open('rb') as file:
            while block := file.read(_BLOCK_BYTES):
                check()
                digest.update(block)
                take(block)
    except FileNotFoundError:
        raise InputError(damaged(folder, name)) from None
    if digest.hexdigest() != entry['md5']:
        raise InputError(damaged(folder, name))


_VOCABULARY_SAMPLE_BYTES = 200_000_000
_VOCABULARY_VERSION = 1
# Network disks may show a new file of another host late, if it was looked for before.
_PATIENCE_SECONDS = 70.0


@dataclasses.dataclass(frozen=True)
class Places:
    """The folders for stores and vocabularies.

    Attributes:
      shared: `data.dir`, the same for all hosts.
      local: a folder on this host's disk, or `shared` itself if it is one.
    """

    shared: files.Path
    local: files.Path

    @classmethod
    def choose(cls, shared: str, local: str) -> Places:
        """The folders of this run.

        Args:
          shared: config.data.dir.
          local: config.data.local_dir.

        Raises:
          InputError: `local` is in a bucket, or a folder cannot be written.
        """
        if files.in_bucket(local):
            raise InputError(
                f'config.data.local_dir={local} is in a bucket: name a folder on a disk of each '
                'host, such as ~/.cache/bert_jax'
            )
        for field, folder in (('data.dir', shared), ('data.local_dir', local)):
            if not files.in_bucket(folder) and (field == 'data.dir' or files.in_bucket(shared)):
                open_folder(folder, f'config.{field}', lambda _: True)
        place = files.as_path(shared)
        machines = set(hosts.exchange('machine', _machine()))
        if files.in_bucket(shared) or len(machines) > 1:
            if kind := _network_disk(files.absolute(local)):
                hosts.say(f'note: config.data.local_dir={local} is on a network disk ({kind}), '
                          'where hosts wait for each other: name a folder on a disk of each host')
            return cls(place, files.as_path(local))
        return cls(place, place)


def _network_disk(folder: files.Path) -> str:
    """The type of a folder's file system if it is a network's, else ''."""
    try:
        with open('/proc/self/mounts') as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return ''
    inside = [(len(place), kind) for place, kind in mounts
              if f'{folder}/'.startswith(place.rstrip('/') + '/')]
    kind = max(inside, default=(0, ''))[1]
    return kind if re.match('nfs|cifs|lustre|gpfs|beegfs|ceph|fuse|afs|9p', kind) else ''


def _machine() -> str:
    """A name that is common to the processes of a machine, and unique to it."""
    try:
        with open('/proc/sys/kernel/random/boot_id') as file:
            return f'{platform.node()} {file.read().strip()}'
    except OSError:
        return platform.node()


def share_store(source: Any, tokenizer: Any, places: Places, progress: bool) -> TokenStore:
    """The token store of a source on this host's disk, built if needed. All hosts call it.

    Args:
      source: from `corpus.open_source`; read on the first host only.
      tokenizer: see `store.build_store`.
      places: the folders.
      progress: whether to report on standard error.

    Raises:
      InputError: building fails, the store is damaged, or `data.dir` is not shared.
    """
    name = hosts.share('token store', lambda: store_fingerprint(source, tokenizer))
    here, published = (
        place / 'stores' / name / MANIFEST for place in (places.local, places.shared))

    def prepare() -> str:
        if here == published:
            build_store(source, tokenizer, places.local, progress)
            return ''
        if here.exists() or not published.exists():
            build_store(source, tokenizer, places.local, progress, field='data.local_dir')
        if not published.exists():
            _copy(places.local, places.shared, name, progress, 'data.dir')
        return ''

    hosts.share('prepare the token store', prepare)
    if not here.exists():
        _await(places.shared, published)
        if here != published:
            _copy(places.shared, places.local, name, progress, 'data.local_dir')
    return TokenStore.open(places.local / 'stores' / name)


def _copy(source: files.Path, target: files.Path, name: str, progress: bool, field: str) -> None:
    """Copies a store, once for all processes of this machine."""
    def copy() -> None:
        if (folder / MANIFEST).exists():
            return
        size, seconds = copy_store(source / 'stores' / name, folder)
        if progress:
            print(f'token store: {size / 1e6:,.0f} MB copied to {folder} in {seconds:.1f} s '
                  f'({size / 1e6 / max(seconds, 1e-3):,.0f} MB/s)', file=sys.stderr, flush=True)

    folder = target / 'stores' / name
    with disk_faults('the token store', target, field):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if files.in_bucket(target):
            copy()
            return
        with locked(folder.with_suffix('.lock'), f'that copies {name}' if progress else ''):
            copy()


def _await(shared: files.Path, path: files.Path) -> None:
    """Waits for a file of the first host.

    Raises:
      InputError: it does not appear.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise InputError(
                f'config.data.dir={shared} is not the same folder on all hosts: {path} was '
                f'written by host 0, and host {hosts.index()} does not see it; set --config.data'
                '.dir to a bucket (gs://...) or a folder that all hosts share'
            )
        time.sleep(1.0)


def share_vocabulary(
    sources: Sequence[Any], vocab_size: int, lowercase: bool, places: Places,
    say: Callable[[str], None],
) -> files.Path:
    """A vocabulary trained on the sources, on this host's disk. All hosts call it.

    Args:
      sources: from `corpus.open_source`; read on the first host only.
      vocab_size, lowercase: see `text.training.train_wordpiece`.
      places: the folders.
      say: prints progress.

    Raises:
      InputError: a source cannot be read, or a kept vocabulary is damaged.
    """
    def make() -> str:
        identity = [source.fingerprint() for source in sources]
        name = hashlib.sha256(json.dumps(
            [*identity, vocab_size, lowercase, _VOCABULARY_VERSION]).encode()).hexdigest()[:16]
        content = _kept_vocabulary(places.shared, name)
        if content is None:
            say(f'training a vocabulary of {vocab_size:,} pieces on '
                + ', '.join(source.spec for source in sources))
            content = _train(sources, vocab_size, lowercase)
            _keep_vocabulary(places.shared, name, content, 'data.dir')
        return json.dumps([name, content.decode()])

    name, text = json.loads(hosts.share('vocabulary', make))
    content = text.encode()
    path = places.local / _vocabulary_name(name, content)
    if places.local != places.shared and not path.exists():
        _keep_vocabulary(places.local, name, content, 'data.local_dir')
    say(f'vocabulary: {path}')
    return path


def share_added_words(
    vocab_file: files.Path, words_file: str, lowercase: bool, places: Places
) -> files.Path:
    """A vocabulary with the words of a file added, on this host's disk. All hosts call it.

    Args:
      vocab_file: a WordPiece vocabulary.
      words_file: see `text.training.add_words`; read on the first host only. Empty: none.
      lowercase: whether the vocabulary is uncased.
      places: the folders.

    Raises:
      InputError: invalid words.
    """
    if not words_file:
        return vocab_file

    def make() -> str:
        tokens, notes = add_words(vocab_file, words_file, lowercase)
        for note in notes:
            hosts.say(note)
        return ''.join(f'{token}\n' for token in tokens)

    content = hosts.share('vocabulary with words added', make).encode()
    path = places.local / _vocabulary_name('added', content)
    if not path.exists():
        field = 'data.dir' if places.local == places.shared else 'data.local_dir'
        _keep_vocabulary(places.local, 'added', content, field)
    switches = read_switches(vocab_file)
    if switches == ORIGINAL:
        return path
    # In a separate folder, because the tokenizer's switches are in a file beside it.
    folder = path.with_suffix('')
    folder.mkdir(parents=True, exist_ok=True)
    files.write_whole(folder / 'vocab.txt', content)
    write_switches(folder, switches)
    return folder / 'vocab.txt'


def _train(sources: Sequence[Any], vocab_size: int, lowercase: bool) -> bytes:
    from bert_jax.data.corpus import sample_texts
    from bert_jax.text.training import train_wordpiece

    share = _VOCABULARY_SAMPLE_BYTES // len(sources)
    tokens = train_wordpiece(
        (text for source in sources for text in sample_texts(source, share)), vocab_size, lowercase
    )
    return ''.join(f'{token}\n' for token in tokens).encode()


def _vocabulary_name(name: str, content: bytes) -> str:
    """The name of a vocabulary's file, from its text and settings (`name`) and its content."""
    digest = new_digest()
    digest.update(content)
    return f'vocabularies/{name}-{digest.hexdigest()[:16]}.txt'


def _kept_vocabulary(folder: files.Path, name: str) -> bytes | None:
    """The vocabulary of that name, or None if there is none.

    Raises:
      InputError: it has changed since it was written.
    """
    if not (folder / 'vocabularies').exists():
        return None
    for path in sorted((folder / 'vocabularies').glob(f'{name}-*.txt')):
        content = path.read_bytes()
        if folder / _vocabulary_name(name, content) != path:
            raise InputError(
                f'{path} is damaged (its content is not that of its name): delete it and it is '
                'trained again'
            )
        return content
    return None


def _keep_vocabulary(folder: files.Path, name: str, content: bytes, field: str) -> None:
    path = folder / _vocabulary_name(name, content)
    with disk_faults('the vocabulary', path.parent, field):
        path.parent.mkdir(parents=True, exist_ok=True)
        if files.in_bucket(folder):
            files.write_whole(path, content)
            return
        with locked(os.fspath(path.with_suffix('.lock'))):
            files.write_whole(path, content)


_LOOKED_AT = 1_000_000  # pieces of a text to check for [UNK]
# A fixed seed for evaluation rows, so that all runs are evaluated on the same rows.
_EVAL_SEED = 0x5EED


class Data(Protocol):
    """Rows for training and evaluation, by length and prediction slots of a phase."""

    vocab_size: int
    vocab_path: Path | None

    def identity(self) -> dict[str, str]:
        """Digests and counts by name, which must be equal on all hosts."""

    def frequency_loss(self) -> float | None:
        """Masked-LM loss of guessing by frequency, if known."""

    def repeated_share(self) -> float:
        """Share of the training text's sentences that are repeats."""

    def training(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples: ...

    def held_out(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples: ...

    def train_batches(
        self, examples: Rows, *, batch_size: int, local: np.ndarray, first_step: int,
        num_steps: int,
    ) -> Iterator[dict[str, np.ndarray]]: ...

    def eval_batches(
        self, examples: Examples, *, batch_size: int, local: np.ndarray, num_examples: int
    ) -> Iterator[dict[str, np.ndarray]]: ...


class SyntheticData:
    """Random rows; needs neither files nor TensorFlow."""

    vocab_path: Path | None = None

    def __init__(self, vocab_size: int, seed: int):
        self.vocab_size, self._seed = vocab_size, seed

    def identity(self) -> dict[str, str]:
        return {}

    def frequency_loss(self) -> float | None:
        return None

    def repeated_share(self) -> float:
        return 0.0

    def training(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        return SyntheticExamples(
            vocab_size=self.vocab_size, max_seq_length=max_seq_length,
            max_predictions_per_seq=max_predictions_per_seq, seed=self._seed,
        )

    def held_out(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        return SyntheticExamples(
            vocab_size=self.vocab_size, max_seq_length=max_seq_length,
            max_predictions_per_seq=max_predictions_per_seq, num_examples=256,
            seed=self._seed + 1,
        )

    def train_batches(
        self, examples: Rows, *, batch_size: int, local: np.ndarray, first_step: int,
        num_steps: int,
    ) -> Iterator[dict[str, np.ndarray]]:
        return plain_batches(examples, batch_size, local, range(first_step, first_step + num_steps))

    def eval_batches(
        self, examples: Examples, *, batch_size: int, local: np.ndarray, num_examples: int
    ) -> Iterator[dict[str, np.ndarray]]:
        for step in range(-(-num_examples // batch_size)):
            yield eval_batch(examples, step, batch_size, local, num_examples)


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Options of text sources; see `config.fields`.

    Each phase replaces the lengths of `recipe`.
    """

    sources: tuple[tuple[str, float], ...]
    eval_source: str
    held_out: float
    vocab_file: str
    add_tokens: str
    vocab_size: int
    lowercase: bool
    shared_dir: str
    local_dir: str
    tfds_dir: str
    recipe: Recipe
    max_positions: int
    seed: int
    progress: bool


class TextData:
    """Rows from text, by token stores, and from Google's records."""

    def __init__(self, options: TextOptions):
        """Opens, or builds, the vocabulary and the stores.

        Raises:
          InputError: invalid sources or vocabulary.
        """
        # Imported here and below, because only text needs TensorFlow.
        with loading_tensorflow('pre-training from text'):
            from bert_jax.data.pipeline import hide_accelerators
            from bert_jax.data.records import RecordFiles

        hide_accelerators()  # must precede any use of TensorFlow
        self._options = o = options
        specs = [spec for spec, _ in o.sources] + ([o.eval_source] if o.eval_source else [])
        texts = _open_texts([spec for spec in specs if not is_records(spec)], o.tfds_dir)
        self.places = places = Places.choose(o.shared_dir, o.local_dir)
        self.vocab_path = files.as_path(o.vocab_file) if o.vocab_file else None
        records = [spec for spec in specs if is_records(spec)]
        if records and o.add_tokens:
            raise InputError(
                f'config.data.add_tokens={o.add_tokens}, but the text in {records[0]} is cut into '
                'pieces already: give the text itself, or leave config.data.add_tokens empty'
            )
        if self.vocab_path is None:
            if records:
                raise InputError(
                    f'config.data.vocab_file is empty, but the ids in {records[0]} are of some '
                    'vocabulary: give the vocab.txt that the records were made with'
                )
            self.vocab_path = share_vocabulary(
                [texts[spec] for spec, _ in o.sources], o.vocab_size, o.lowercase, places,
                self._say,
            )
        self.vocab_path = share_added_words(
            self.vocab_path, o.add_tokens, o.lowercase, places
        )
        tokenizer = load_tokenizer(self.vocab_path, o.lowercase)
        vocab = tokenizer.vocab
        self.vocab_size = len(vocab)
        self._tokenizer_fingerprint = tokenizer.fingerprint
        self._special = SpecialIds(
            len(vocab), vocab.cls_id, vocab.sep_id, vocab.mask_id, vocab.is_continuation
        )

        def open_rows(spec: str) -> Any:
            if spec in texts:
                store = share_store(texts[spec], tokenizer, places, o.progress)
                check_known(store.tokens[:_LOOKED_AT], vocab, spec, self.vocab_path)
                return store
            return RecordFiles.open(spec.removeprefix('tfrecord:'), places.local)

        self._sources = [(spec, weight, open_rows(spec)) for spec, weight in o.sources]
        self._eval = open_rows(o.eval_source) if o.eval_source else None

    def _say(self, line: str) -> None:
        if self._options.progress:
            print(line, flush=True)

    def _documents(self, store: Any, held_out: bool) -> np.ndarray:
        o = self._options
        if self._eval is not None:  # with separate evaluation text, nothing is held out
            return store.documents
        if o.held_out == 0 and held_out:
            raise InputError(
                'config.data.held_out=0 leaves nothing to evaluate on: set it, or '
                'config.data.eval_source'
            )
        needed = 2 if o.recipe.next_sentence else 1
        return store.split_held_out(o.held_out, needed)[1 if held_out else 0]

    def _text_examples(
        self, store: Any, documents: np.ndarray, length: int, slots: int, seed: int, name: str
    ) -> PretrainExamples:
        recipe = dataclasses.replace(
            self._options.recipe, max_seq_length=length, max_predictions_per_seq=slots
        )
        return PretrainExamples(store, documents, recipe, self._special, seed, name)

    @property
    def stores(self) -> dict[str, TokenStore]:
        """The token store of each source of text."""
        rows = {spec: rows for spec, _, rows in self._sources}
        if self._eval is not None:
            rows[self._options.eval_source] = self._eval
        return {spec: store for spec, store in rows.items() if not is_records(spec)}

    def identity(self) -> dict[str, str]:
        result = {'vocabulary': self._tokenizer_fingerprint}
        for spec, _, rows in self._sources:
            result[f'content of {spec}'] = (
                f'{len(rows)} records' if is_records(spec) else rows.fingerprint
            )
            if self._eval is None and not is_records(spec):
                held_out = self._documents(rows, held_out=True)
                result[f'held-out documents of {spec}'] = str(len(held_out))
        return result

    def frequency_loss(self) -> float | None:
        if any(is_records(spec) for spec, _, _ in self._sources):
            return None
        return frequency_loss(
            [(store, weight) for _, weight, store in self._sources], self.vocab_size)

    def repeated_share(self) -> float:
        return max((repeated_share(store, self._documents(store, held_out=False))
                    for spec, _, store in self._sources if not is_records(spec)), default=0.0)

    def training(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        parts: list[Examples] = []
        for i, (spec, _, rows) in enumerate(self._sources):
            seed = self._options.seed + i
            if not is_records(spec):
                parts.append(self._text_examples(
                    rows, self._documents(rows, held_out=False), max_seq_length,
                    max_predictions_per_seq, seed, spec,
                ))
                continue
            if rows.max_seq_length != max_seq_length:
                raise InputError(
                    f'{spec} has records of {rows.max_seq_length} tokens, the phase has '
                    f'max_seq_length={max_seq_length}: set that to {rows.max_seq_length}'
                )
            parts.append(RecordExamples(rows, seed, max_predictions_per_seq, name=spec))
        examples = parts[0]
        if len(parts) > 1:
            weights = [weight for _, weight, _ in self._sources]
            examples = Mixture(parts, weights, self._options.seed)
        self._say(f'training examples an epoch at length {max_seq_length}: '
                  f'{examples.num_examples:,}')
        return examples

    def held_out(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        lengths = (max_seq_length, max_predictions_per_seq)
        if self._eval is not None:
            name = self._options.eval_source
            if is_records(name):
                if self._eval.max_seq_length > self._options.max_positions:
                    raise InputError(
                        f'config.data.eval_source={name} has records of '
                        f'{self._eval.max_seq_length} tokens, longer than the position table '
                        f'(config.model.max_position_embeddings={self._options.max_positions})'
                    )
                return RecordExamples(self._eval, _EVAL_SEED)
            return self._text_examples(
                self._eval, self._eval.documents, *lengths, _EVAL_SEED, name
            )
        texts = [(spec, store) for spec, _, store in self._sources if not is_records(spec)]
        if not texts:
            raise InputError(
                'records have no documents to hold out: set config.data.eval_source to other '
                'records or text'
            )
        parts = [
            self._text_examples(
                store, self._documents(store, held_out=True), *lengths, _EVAL_SEED,
                f'the held-out part of {spec}',
            )
            for spec, store in texts
        ]
        return parts[0] if len(parts) == 1 else Mixture(parts, [1.0] * len(parts), _EVAL_SEED)

    def train_batches(
        self, examples: Rows, *, batch_size: int, local: np.ndarray, first_step: int,
        num_steps: int,
    ) -> Iterator[dict[str, np.ndarray]]:
        from bert_jax.data import pipeline

        return pipeline.train_batches(
            examples, batch_size=batch_size, local=local, first_step=first_step,
            num_steps=num_steps,
        )

    def eval_batches(
        self, examples: Examples, *, batch_size: int, local: np.ndarray, num_examples: int
    ) -> Iterator[dict[str, np.ndarray]]:
        from bert_jax.data import pipeline

        return pipeline.eval_batches(
            examples, batch_size=batch_size, local=local, num_examples=num_examples
        )


def _open_texts(specs: list[str], tfds_dir: str) -> dict[str, Any]:
    """The text sources by name. The first host's are read; other hosts compare theirs, if any.

    Raises:
      InputError: the first host lacks the text, or another host has a different one.
    """
    from bert_jax.data.corpus import open_source

    texts: dict[str, Any] = dict.fromkeys(specs)
    for spec in specs:
        # Comparing could mean downloading a data set of tensorflow-datasets.
        if hosts.first() or not spec.startswith('tfds:'):
            try:
                texts[spec] = open_source(spec, tfds_dir)
            except InputError:
                if hosts.first():
                    raise
    if hosts.count() > 1:
        ours = {spec: text.outline() for spec, text in texts.items() if text is not None}
        theirs = json.loads(hosts.share('outlines of the text', lambda: json.dumps(ours)))
        hosts.agree('the text', theirs | ours)
    return texts


def is_records(spec: str) -> bool:
    """Whether a source is TFRecords of Google's create_pretraining_data.py."""
    return spec.startswith('tfrecord:') or spec.endswith(('.tfrecord', '.tfrecords'))
