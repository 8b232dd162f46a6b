"""The text that hosts share: vocabulary and token store, made once for all of them."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

from bert_jax.corpus import store_building
from bert_jax.corpus.bad_files import readable
from bert_jax.corpus.digests import name_of
from bert_jax.corpus.extending import extend
from bert_jax.corpus.source import Document, Source
from bert_jax.corpus.sources import Sample, TextSpec, shares_of
from bert_jax.corpus.store_finishing import VOCABULARY
from bert_jax.corpus.store_parts import DocumentFilter
from bert_jax.corpus.trainers import Trainer, Wanted, find_trainer
from bert_jax.corpus.wordpiece_training import stripped_marks_warning
from bert_jax.rows import store
from bert_jax.rows.store import MANIFEST, TokenStore
from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.files import Path, open_folder
from bert_jax.runtime.shared_folders import host_without
from bert_jax.text.kinds import find_vocabulary, kind_of, load_tokenizer
from bert_jax.text.switches import read_switches, write_switches
from bert_jax.text.vocab_files import read_file

_THREADS = 16
_BLOCK_BYTES = 8 << 20
_VOCABULARY_SAMPLE_BYTES = 200_000_000
_VOCABULARY_VERSION = 1
_SAMPLE_FOR_MARKS_BYTES = 8_000_000
_NETWORK_DISKS = re.compile('nfs|cifs|lustre|gpfs|beegfs|ceph|fuse|afs|9p')
# A network disk may show another host's new file late, if this host looked for it before.
_PATIENCE_SECONDS = 70.0


class Mixing(NamedTuple):
    """How texts are mixed.

    Attributes:
      weights: of each.
      power: of a text's size, by which its weight is multiplied: `data.mix_power`.
    """

    weights: Sequence[float] = (1.0,)
    power: float = 0.0


_ALONE = Mixing()


class Head(NamedTuple):
    """Documents from the start of a unit.

    Attributes:
      source, unit: their numbers.
      num_documents: of the unit.
    """

    source: int
    unit: int
    num_documents: int


# Counts the runs of texts (see `wordpiece_training.counted_runs`) from the sources, `data.dir` and
# the places of the texts; None if it cannot.
CountRuns = Callable[[Sequence[Source], Path, Sequence[Head]], Mapping[str, int] | None]


class Places(NamedTuple):
    """The folders for stores and vocabularies.

    Attributes:
      shared: `data.dir`, the same for all hosts.
      local: a folder on this host's disk; `shared` itself if that is not in a bucket and all
        processes run on one machine.
    """

    shared: Path
    local: Path

    @classmethod
    def choose(cls, shared: str, local: str) -> Self:
        """The folders of this run. All hosts call it.

        Args:
          shared: config.data.dir.
          local: config.data.local_dir.

        Raises:
          InputError: `local` is in a bucket, or a folder cannot be written.
        """
        if files.in_bucket(local):
            raise InputError(f'config.data.local_dir={local} is in a bucket: name a folder on a '
                             'disk of each host, such as ~/.cache/bert_jax')
        place = open_folder(shared, 'config.data.dir', lambda _: True)
        machines = set(hosts.exchange('machine', _machine()))
        if files.in_bucket(shared):
            open_folder(local, 'config.data.local_dir', lambda _: True)
        elif len(machines) == 1:
            return cls(place, place)
        kind = _file_system_of(local)
        if _NETWORK_DISKS.match(kind):
            hosts.say(f'note: config.data.local_dir={local} is on a network disk ({kind}), where '
                      'hosts wait for each other: name a folder on a disk of each host')
        return cls(place, files.as_path(local))


def _file_system_of(folder: str) -> str:
    """The kind of file system that a folder is on, in the words of Linux; '' if unknown."""
    inside = f'{files.absolute(folder)}/'
    holding = [(0, '')]
    for line in files.read_system('/proc/self/mounts').splitlines():
        mounted_at, kind = line.split()[1:3]
        if inside.startswith(mounted_at.rstrip('/') + '/'):
            holding.append((len(mounted_at), kind))
    _, kind = max(holding)  # the innermost mount
    return kind


def open_texts(texts: Sequence[TextSpec]) -> None:
    """Opens texts on the first host, so that it says what is missing before anything is made.

    Raises:
      InputError: the first host lacks a text.
    """
    if hosts.first():
        for text in texts:
            _ = text.source


def share_store(
    text: TextSpec, tokenizer: Any, places: Places, vocab_file: str | os.PathLike[str] = '',
    facts: Sequence[DocumentFilter] = (), max_bad_files: int = 0,
) -> TokenStore:
    """The token store of a text in `data.dir`, built if needed. All hosts call it.

    Hosts that have the same text as the first one build it, one process of a machine: share i
    belongs to builder i modulo their number. Then the first host does the last step.

    Args:
      text: need be here on the first host only.
      tokenizer: see `store_building.open_build`.
      places: the folders.
      vocab_file: of the tokenizer; '': the store keeps no copy of it.
      facts: see `store_building.open_build`.
      max_bad_files: so many files of the text may be set aside because they cannot be read.

    Raises:
      InputError: building fails, the store is damaged, or lacks more of the text than may be,
        `data.dir` is not shared, or another host has a different text.
    """
    name = hosts.share(
        'token store',
        lambda: store_building.choose_name(text.source, tokenizer, places.shared, facts))
    folder = places.shared / 'stores' / name
    if hosts.first():
        for place in (folder, folder / VOCABULARY):
            files.remove_leftovers(place)  # of workers that were killed
    if not hosts.share('finished store', lambda: 'yes' if store.is_finished(folder) else ''):
        _check_shared(places)
        which = _place_among_builders(text, tokenizer, name, facts)
        build: store_building.Build | None = None
        if which is not None:
            build = store_building.open_build(
                text.source, tokenizer, places.shared, hosts.first(), vocab_file, facts,
                max_bad_files, name)
        _build(build, which or store_building.WHOLE)
    elif hosts.first() and not files.in_bucket(folder):
        with contextlib.suppress(OSError):  # of a folder that may only be read
            store_building.tidy(folder)
    if '' in hosts.exchange('seen store', 'seen' if store.is_finished(folder) else ''):
        _check_shared(places)
    if not hosts.first():
        _wait_for(folder / MANIFEST, places)
    made = TokenStore.open(folder)
    num_bad = len(made.manifest.get('bad_files', ()))
    if num_bad > max_bad_files:
        raise InputError(
            f'{folder} was made without what could not be read of {num_bad:,} files, such as '
            f"{next(iter(made.manifest['bad_files']))}: set config.data.max_bad_files={num_bad}, "
            'or repair them or leave them out')
    return made


def _check_shared(places: Places) -> None:
    """Raises InputError on all hosts if one does not see what the first writes into `data.dir`."""
    blind = host_without(places.shared)
    if blind is not None:
        raise InputError(
            f'config.data.dir={places.shared} is not shared by all hosts (host {blind} does not '
            'see what host 0 writes there): set --config.data.dir to a bucket (gs://...) or a '
            'folder that all hosts share')


def _build(build: store_building.Build | None, which: store_building.Slice) -> None:
    """Builds a store. All hosts call it; one without a build waits for the others.

    Args:
      build: of the store, if this host helps.
      which: the shares that it builds.
    """
    alone: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if build is not None and hosts.first():  # for all hosts of the run
        alone = store_building.alone_at_work(build)
    with alone:
        hosts.barrier('token store begun')
        if build is not None:
            store_building.make_shares(build, which)
        hosts.barrier('shares made')
        if build is not None and hosts.first():
            store_building.finish(build)
    hosts.barrier('token store built')


def _place_among_builders(
    text: TextSpec, tokenizer: Any, name: str, facts: Sequence[DocumentFilter]
) -> store_building.Slice | None:
    """Which shares this host builds: it has the text, and no other of its machine does.

    Args:
      text, tokenizer, facts: see `share_store`.
      name: of the first host's store.

    Raises:
      InputError: a host has a different text than the first one.
    """
    if hosts.count() == 1:
        return store_building.WHOLE
    source = text.source_if_here()
    theirs = hosts.share('outline of the text', lambda: text.source.outline)
    ours = theirs if source is None else source.outline
    hosts.agree('the text', {text.name: ours})
    is_same = source is not None and (
        hosts.first() or name in _names_if_here(source, tokenizer, facts))
    machines = hosts.exchange('builders', _machine() if is_same else '')
    builders = [
        host for host, machine in enumerate(machines)
        if machine and machines.index(machine) == host]
    if hosts.index() not in builders:
        return None
    return store_building.Slice(builders.index(hosts.index()), len(builders))


def _names_if_here(
    source: Source, tokenizer: Any, facts: Sequence[DocumentFilter]
) -> list[str]:
    """The names that a store may have; none if the text or a file of the facts cannot be read."""
    with contextlib.suppress(InputError, OSError):
        return [store_building.store_fingerprint(source, tokenizer, facts, by_content)
                for by_content in (False, True)]
    return []


def _machine() -> str:
    """Names this machine, unlike others, since it was started."""
    boot = files.read_system('/proc/sys/kernel/random/boot_id')
    return f'{platform.node()} {boot}'


def _wait_for(path: Path, places: Places) -> None:
    """Waits until this host sees a file that another has written.

    Raises:
      InputError: it does not appear, because `data.dir` is not shared.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not files.exists(path):
        if time.monotonic() > deadline:
            raise InputError(
                f'config.data.dir={places.shared} is not shared by all hosts: host '
                f'{hosts.index()} does not see {path}, which another host wrote; set '
                '--config.data.dir to a bucket (gs://...) or a folder that all hosts share')
        time.sleep(1.0)


def open_prepared(path: str, tokenizer: Any) -> TokenStore:
    """A store that was built before, wherever it is, without its text.

    Args:
      path: of its folder, as `tools.prepare` names it.
      tokenizer: of the run.

    Raises:
      InputError: there is no finished store, or it was made with another tokenizer.
    """
    prepared = store.open_finished(path)
    if prepared.manifest['tokenizer_fingerprint'] != tokenizer.fingerprint:
        raise InputError(
            f'{path} was made with another vocabulary or by other rules: leave '
            'config.data.vocab_file, data.lowercase and the like as they were when it was '
            'prepared, or prepare it again')
    return prepared


def vocabulary_of(path: str) -> Path:
    """The file of the vocabulary that a prepared store keeps, on this host's disk.

    Args:
      path: of the store's folder.

    Raises:
      InputError: there is no finished store, or it keeps no vocabulary, or that is damaged.
    """
    prepared = store.open_finished(path)
    folder: Path | None = None
    for name in prepared.manifest['files']:
        if name.startswith(f'{VOCABULARY}/'):
            prepared.check_file(name)
            folder = files.local_copy(prepared.path / name).parent
    vocab_file = find_vocabulary(folder) if folder is not None else None
    if vocab_file is None:
        raise InputError(f'{path} keeps no vocabulary: set config.data.vocab_file to the one that '
                         'it was made with')
    return vocab_file


def local_store(shared: TokenStore, places: Places) -> TokenStore:
    """A copy of a store on this host's disk, for one that is small.

    The processes of a machine copy it only once, several files at the same time. An interrupted
    copy is resumed.

    Args:
      shared: in `data.dir` or elsewhere.
      places: the folders.

    Returns:
      `shared` itself if it is in `data.dir` and that is on this machine.

    Raises:
      InputError: a file of the store is missing or cut short.
    """
    if places.local == places.shared and not files.in_bucket(shared.path):
        return shared
    target = places.local / 'stores' / shared.fingerprint
    if target == shared.path:
        return shared
    with store.disk_faults(target.parent):
        target.mkdir(parents=True, exist_ok=True)
        with store.locked(target.with_suffix('.lock')):
            if not store.is_finished(target):
                _copy(shared, target)
    return TokenStore.open(target)


def _copy(shared: TokenStore, target: Path) -> None:
    """Copies the files of a store that a folder lacks, and last the manifest."""
    sizes = store.file_sizes(shared.manifest)
    for left in [*target.glob('.*.tmp'), *(target / VOCABULARY).glob('.*.tmp')]:
        left.unlink()  # a killed copy has left it
    missing = [name for name, size in sizes.items() if _size(target / name) != size]

    def copy(name: str) -> None:
        (target / name).parent.mkdir(exist_ok=True)
        source = shared.path / name
        try:
            with source.open('rb') as content, files.open_whole(target / name) as file:
                shutil.copyfileobj(content, file, _BLOCK_BYTES)
        except FileNotFoundError:
            pass  # the next line says so
        if _size(target / name) != sizes[name]:
            raise InputError(f'{source} is missing or cut short: {store.remedy(shared.path)}')

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(copy, missing))
    files.write_whole(target / MANIFEST, (shared.path / MANIFEST).read_bytes())
    if hosts.first():
        size = sum(sizes[name] for name in missing)
        tell(f'token store: {size / 1e6:,.0f} MB copied to {target}')


def _size(path: Path) -> int | None:
    """Bytes of a file; None if there is none."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().length
    return None


def share_vocabulary(
    texts: Sequence[TextSpec], wanted: Wanted, places: Places, mixing: Mixing = _ALONE,
    skips_bad_files: bool = False, count_runs: CountRuns | None = None,
) -> Path:
    """A vocabulary trained on the texts, on this host's disk. All hosts call it.

    Each text has the share in it that it has in the rows to train on.

    Several commands that need it at the same time each train it: training gives all the same.

    Args:
      texts: read on the first host only.
      wanted: which vocabulary. A WordPiece file does not keep `strip_accents`: `share_tokenizer`
        does.
      places: the folders.
      mixing: of the texts, if there are several.
      skips_bad_files: whether files that cannot be read are left out.
      count_runs: who counts the words of the sample; None: this process.

    Raises:
      InputError: a text cannot be read, a stored vocabulary is damaged, or there is no such kind.
    """
    trainer = find_trainer(wanted.tokenizer)

    def make() -> str:
        sources = [text.source for text in texts]
        name = name_of(_settings_of(sources, wanted, mixing))
        content = _stored_vocabulary(places.shared, name, trainer.ending)
        if content is None:
            count = None
            if count_runs is not None:
                count = functools.partial(count_runs, sources, places.shared)
            if skips_bad_files:
                sources = [readable(source) for source in sources]
            content = _trained_vocabulary(sources, wanted, trainer, mixing, count)
            _keep(places.shared, f'{_named(name, content)}{trainer.ending}', content)
        return json.dumps([name, content])

    name, content = json.loads(hosts.share('vocabulary', make))
    path = _keep(places.local, f'{_named(name, content)}{trainer.ending}', content)
    hosts.say(f'vocabulary: {path}')
    return path


def _settings_of(sources: Sequence[Source], wanted: Wanted, mixing: Mixing) -> list[Any]:
    """The settings that a trained vocabulary depends on; they are in the names of stored ones."""
    settings = [
        *(source.fingerprint() for source in sources), wanted.vocab_size, wanted.lowercase,
        _VOCABULARY_VERSION]
    if wanted.strip_accents is not None:
        settings.append(f'strip_accents={wanted.strip_accents}')
    if wanted.tokenizer != 'wordpiece':  # the only kind of older versions
        settings.append(f'tokenizer={wanted.tokenizer}')
    if wanted.tokenizer in ('bpe', 'unigram'):  # special tokens in a text were found once
        settings.append('special tokens are text')
    if len(sources) > 1:  # older versions took as much of each source
        settings.append(f'weights={list(mixing.weights)}, power={mixing.power}')
    return settings


def _stored_vocabulary(folder: Path, name: str, ending: str) -> str | None:
    """The vocabulary that was trained before on the same text with the same settings, if any.

    Raises:
      InputError: it is damaged.
    """
    for path in files.children(folder / 'vocabularies'):
        if path.name.startswith(f'{name}-') and path.suffix == ending:
            content = files.read_bytes(path).decode('utf-8', 'replace')
            if path.stem != _named(name, content):
                raise InputError(f'{path} is damaged (its content is not that of its name): '
                                 'delete it and it is trained again')
            return content
    return None


def _trained_vocabulary(
    sources: Sequence[Source], wanted: Wanted, trainer: Trainer, mixing: Mixing,
    count: Callable[[Sequence[Head]], Mapping[str, int] | None] | None,
) -> str:
    """The content of a vocabulary trained on the sources; see `share_vocabulary`."""
    if not trainer.reads_text:
        return trainer.train((), wanted)
    mixed = _MixedText.of(sources, mixing)
    hosts.say(f'training a vocabulary of {wanted.vocab_size:,} pieces on {mixed.in_words()}')
    if trainer.strips_accents and wanted.lowercase and wanted.strip_accents is None:
        warning = stripped_marks_warning(mixed.texts(_SAMPLE_FOR_MARKS_BYTES))
        if warning:
            hosts.say(warning)
    if count is not None and trainer.train_on_runs is not None:
        runs = count(mixed.heads(_VOCABULARY_SAMPLE_BYTES))
        if runs is not None:
            return trainer.train_on_runs(runs, wanted)
    return trainer.train(mixed.texts(_VOCABULARY_SAMPLE_BYTES), wanted)


@dataclasses.dataclass(frozen=True)
class _MixedText:
    """Text of some sources, each with its share, from which a vocabulary is made.

    Attributes:
      sources: of the text.
      sizes: bytes of each source, estimated for the large ones; nothing for a single source.
      shares: of each in the text, in bytes.
    """

    sources: Sequence[Source]
    sizes: Sequence[int] = ()
    shares: Sequence[float] = ()

    @classmethod
    def of(cls, sources: Sequence[Source], mixing: Mixing) -> Self:
        """The sources as they are mixed. Of several, a part is read to learn their sizes."""
        if len(sources) == 1:
            return cls(sources)
        sizes = [_size_of(source, _VOCABULARY_SAMPLE_BYTES // len(sources)) for source in sources]
        return cls(sources, sizes, shares_of(sizes, mixing.weights, mixing.power))

    def in_words(self) -> str:
        """The sources, with their shares if there are several."""
        if len(self.sources) == 1:
            return self.sources[0].spec
        shown: list[str] = []
        for source, share in zip(self.sources, self.shares, strict=True):
            shown.append(f'{source.spec} {share:.1%}')
        return ', '.join(shown)

    def texts(self, max_bytes: int) -> Iterator[str]:
        """So many bytes of text, or so many that no source has anything to add.

        A source that is smaller than its share is read again from its start, as in the rows of a
        mixture.
        """
        for _, document in self._documents(max_bytes):
            yield document.text.decode()

    def heads(self, max_bytes: int) -> list[Head]:
        """Where the same text stands, for others to read."""
        found: list[Head] = []
        by_place = itertools.groupby(self._documents(max_bytes), key=lambda found: found[0])
        for (source, _, unit), documents in by_place:
            found.append(Head(source, unit, sum(1 for _ in documents)))
        return found

    def _documents(self, max_bytes: int) -> Iterator[tuple[tuple[int, int, int], Document]]:
        """((Number of the source, how often it was begun again, its unit), document)."""
        num_bytes = [max_bytes]
        if len(self.sources) > 1:
            needed = [size / share for size, share in zip(self.sizes, self.shares, strict=True)]
            total = min(max_bytes, max(needed))
            num_bytes = [round(total * share) for share in self.shares]
        for number, (source, left) in enumerate(zip(self.sources, num_bytes, strict=True)):
            is_once = len(self.sources) == 1
            for begun, unit, document in _repeated(source, left, is_once):
                yield (number, begun, unit), document


def _size_of(source: Source, max_bytes: int) -> int:
    """Bytes of text in a source: counted up to so many, beyond them as its units say."""
    sample = Sample(source, max_bytes)
    return sample.whole_size(sum(len(document.text) for document in sample))


def _repeated(
    source: Source, num_bytes: int, is_once: bool
) -> Iterator[tuple[int, int, Document]]:
    """(How often it was begun again, unit, document) of a sample of so many bytes.

    A source that has fewer is begun again, unless it is to be read once.
    """
    left = num_bytes
    begun = 0
    while left > 0:
        before = left
        for unit, document in Sample(source, left).with_units():
            left -= len(document.text)
            yield begun, unit, document
        if is_once or left == before:  # it has no text at all
            return
        begun += 1


def share_tokenizer(
    vocab_file: Path, words_file: str, lowercase: bool, places: Places,
    strip_accents: bool | None = None,
) -> Path:
    """A vocabulary with words added and accents kept or not, on this host's disk.

    All hosts call it.

    Args:
      vocab_file: a vocabulary; for words to add, of a kind that takes them.
      words_file: see `corpus.extending.extend`; read on the first host only. Empty: none.
      lowercase: whether the vocabulary is uncased.
      places: the folders.
      strip_accents: what the tokenizer_config.json beside the file will say; None: what the one
        beside `vocab_file` says.

    Returns:
      `vocab_file` itself where nothing changes.

    Raises:
      InputError: the words cannot be read or are invalid, or accents are named for a tokenizer
        with rules of its own.
    """
    if strip_accents is None and not words_file:
        return vocab_file
    if strip_accents is not None and load_tokenizer(vocab_file, lowercase).lowercase is None:
        raise InputError(f'config.data.strip_accents={strip_accents}: the tokenizer {vocab_file} '
                         'has rules of its own: leave it empty')
    switches = read_switches(vocab_file)
    if strip_accents not in (None, switches.strip_accents):
        switches = dataclasses.replace(switches, strip_accents=strip_accents)
    elif not words_file:
        return vocab_file

    def make() -> str:
        if not words_file:
            return read_file(vocab_file, 'vocabulary', 'data.vocab_file').decode('utf-8', 'replace')
        extended = extend(vocab_file, words_file, lowercase, switches)
        for note in extended.notes:
            hosts.say(note)
        return extended.content

    content = hosts.share('vocabulary of the tokenizer', make)
    kind = kind_of(vocab_file)
    # In a folder of its own, because the files of the tokenizer's settings stand beside it.
    name = _named('added' if words_file else 'vocabulary', f'{content}{switches}')
    path = _keep(places.local, f'{name}/{kind.file_name}', content)
    kind.keep_beside(vocab_file, path.parent)
    if switches != read_switches(vocab_file):
        write_switches(path.parent, switches)
    return path


def _named(name: str, lines: str) -> str:
    """The name of a stored vocabulary, from its text and settings (`name`) and its content."""
    digest = hashlib.md5(lines.encode(), usedforsecurity=False).hexdigest()
    return f'{name}-{digest[:16]}'


def _keep(folder: Path, name: str, lines: str) -> Path:
    """The file of a vocabulary, written unless it exists."""
    path = folder / 'vocabularies' / name
    with store.disk_faults(path.parent):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(path, lines)
    return path
