"""The text that hosts share: vocabulary and token store, made once for all of them."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

from bert_jax.data import corpus, store, store_building
from bert_jax.data.digests import name_of
from bert_jax.data.source import Source
from bert_jax.data.store import MANIFEST, TokenStore
from bert_jax.data.store_finishing import VOCABULARY
from bert_jax.data.store_parts import DocumentFacts
from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.files import Path, open_folder
from bert_jax.text import find_vocabulary, kind_of, load_tokenizer, read_switches, write_switches
from bert_jax.text.extending import extend
from bert_jax.text.trainers import Trainer, Wanted, find_trainer
from bert_jax.text.training import stripped_marks_warning
from bert_jax.text.vocab import read_file

_THREADS = 16
_BLOCK_BYTES = 8 << 20
_BEGUN = 'begun'  # a file that the first host writes into the folder of a store, for all to see
_VOCABULARY_SAMPLE_BYTES = 200_000_000
_VOCABULARY_VERSION = 1
_SAMPLE_FOR_MARKS_BYTES = 8_000_000
_NETWORK_DISKS = re.compile('nfs|cifs|lustre|gpfs|beegfs|ceph|fuse|afs|9p')
# A network disk may show another host's new file late, if this host looked for it before.
_PATIENCE_SECONDS = 70.0


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


@dataclasses.dataclass(frozen=True)
class Text:
    """A text of the run, which a host opens only if it reads it.

    Attributes:
      spec: the user's name for it.
      tfds_dir, column: see `corpus.open_source`.
    """

    spec: str
    tfds_dir: str = ''
    column: str = 'text'

    @functools.cached_property
    def source(self) -> Source:
        """The opened text.

        Raises:
          InputError: there is no such text.
        """
        return corpus.open_source(self.spec, self.tfds_dir, self.column)

    def source_if_here(self) -> Source | None:
        """The opened text; None if this host lacks it, or could have it only by a download."""
        if not hosts.first() and self.spec.startswith(('tfds:', 'hf:', 'wikipedia:')):
            return None
        with contextlib.suppress(InputError, OSError):
            return self.source
        return None


def open_texts(specs: Sequence[str], tfds_dir: str, column: str) -> dict[str, Text]:
    """The texts of a run by spec; only the first host opens them here. All hosts call it.

    For `tfds_dir` and `column` see `corpus.open_source`.

    Raises:
      InputError: the first host lacks a text.
    """
    texts: dict[str, Text] = {}
    for spec in specs:
        texts[spec] = Text(spec, tfds_dir, column)
        if hosts.first():
            _ = texts[spec].source
    return texts


def share_store(
    text: Text, tokenizer: Any, places: Places, vocab_file: str | os.PathLike[str] = '',
    facts: Sequence[DocumentFacts] = (),
) -> TokenStore:
    """The token store of a text in `data.dir`, built if needed. All hosts call it.

    Every host that has the same text as the first one helps to build it, one process of a machine.

    Args:
      text: need be here on the first host only.
      tokenizer: see `store_building.build_store`.
      places: the folders.
      vocab_file: of the tokenizer; '': the store keeps no copy of it.
      facts: see `store_building.build_store`.

    Raises:
      InputError: building fails, the store is damaged, `data.dir` is not shared, or another host
        has a different text.
    """
    name = hosts.share(
        'token store', lambda: store_building.store_fingerprint(text.source, tokenizer, facts))
    folder = places.shared / 'stores' / name
    if hosts.first():
        for place in (folder, folder / VOCABULARY):
            files.remove_leftovers(place)  # of workers that were killed
    if not hosts.share('finished store', lambda: 'yes' if store.is_finished(folder) else ''):
        _share_folder(folder, places)
        if _may_build(text, tokenizer, name, facts):
            store_building.build_store(
                text.source, tokenizer, places.shared, hosts.first(), vocab_file=vocab_file,
                facts=facts)
        hosts.barrier('token store built')
        if hosts.first():
            (folder / _BEGUN).unlink(missing_ok=True)
    elif hosts.first() and not files.in_bucket(folder):
        with contextlib.suppress(OSError):  # of a folder that may only be read
            store_building.tidy(folder)
    if not hosts.first():
        _wait_for(folder / MANIFEST, places)
    return TokenStore.open(folder)


def _share_folder(folder: Path, places: Places) -> None:
    """Checks that all hosts see the folder in which they are to build a store.

    Raises:
      InputError: one does not.
    """
    if hosts.count() == 1:
        return
    mark = folder / _BEGUN

    def begin() -> str:
        with store.disk_faults(folder):
            folder.mkdir(parents=True, exist_ok=True)
            files.write_whole(mark, '')
        return ''

    hosts.share('begin the token store', begin)
    _wait_for(mark, places)


def _may_build(
    text: Text, tokenizer: Any, name: str, facts: Sequence[DocumentFacts]
) -> bool:
    """Whether this host helps to build a store: it has the text, and no other of its machine does.

    Args:
      text, tokenizer, facts: see `share_store`.
      name: of the first host's store.

    Raises:
      InputError: a host has a different text than the first one.
    """
    if hosts.count() == 1:
        return True
    source = text.source_if_here()
    theirs = hosts.share('outline of the text', lambda: text.source.outline)
    ours = theirs if source is None else source.outline
    hosts.agree('the text', {text.spec: ours})
    is_same = source is not None and (
        hosts.first() or _fingerprint_if_here(source, tokenizer, facts) == name)
    machines = hosts.exchange('builders', _machine() if is_same else '')
    if not is_same:
        return False
    return machines.index(_machine()) == hosts.index()


def _fingerprint_if_here(
    source: Source, tokenizer: Any, facts: Sequence[DocumentFacts]
) -> str:
    """The name of a store; '' if this host cannot read the text or a file of the facts."""
    with contextlib.suppress(InputError, OSError):
        return store_building.store_fingerprint(source, tokenizer, facts)
    return ''


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
    prepared = open_finished(path)
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
    prepared = open_finished(path)
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


def open_finished(path: str) -> TokenStore:
    """A store that was built before, whatever its vocabulary.

    Raises:
      InputError: there is no finished store, or it is damaged.
    """
    folder = files.absolute(path)
    if not store.is_finished(folder):
        raise InputError(f'{path} is no finished token store (it has no {MANIFEST}): name the '
                         'folder that bert_jax.tools.prepare names, or run that again')
    return TokenStore.open(folder)


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


def share_vocabulary(texts: Sequence[Text], wanted: Wanted, places: Places) -> Path:
    """A vocabulary trained on the texts, on this host's disk. All hosts call it.

    Several commands that need it at the same time each train it: training gives all the same.

    Args:
      texts: read on the first host only.
      wanted: which vocabulary. A WordPiece file does not keep `strip_accents`: `share_tokenizer`
        does.
      places: the folders.

    Raises:
      InputError: a text cannot be read, a stored vocabulary is damaged, or there is no such kind.
    """
    trainer = find_trainer(wanted.tokenizer)

    def make() -> str:
        sources = [text.source for text in texts]
        name = name_of(_settings_of(sources, wanted))
        content = _stored_vocabulary(places.shared, name, trainer.ending)
        if content is None:
            content = _trained_vocabulary(sources, wanted, trainer)
            _keep(places.shared, f'{_named(name, content)}{trainer.ending}', content)
        return json.dumps([name, content])

    name, content = json.loads(hosts.share('vocabulary', make))
    path = _keep(places.local, f'{_named(name, content)}{trainer.ending}', content)
    hosts.say(f'vocabulary: {path}')
    return path


def _settings_of(sources: Sequence[Source], wanted: Wanted) -> list[Any]:
    """What a trained vocabulary depends on; in the names of stored ones."""
    settings = [
        *(source.fingerprint() for source in sources), wanted.vocab_size, wanted.lowercase,
        _VOCABULARY_VERSION]
    if wanted.strip_accents is not None:
        settings.append(f'strip_accents={wanted.strip_accents}')
    if wanted.tokenizer != 'wordpiece':  # the only kind of older versions
        settings.append(f'tokenizer={wanted.tokenizer}')
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


def _trained_vocabulary(sources: Sequence[Source], wanted: Wanted, trainer: Trainer) -> str:
    """The content of a vocabulary trained on the sources; see `share_vocabulary`."""
    if not trainer.reads_text:
        return trainer.train((), wanted)
    specs = ', '.join(source.spec for source in sources)
    hosts.say(f'training a vocabulary of {wanted.vocab_size:,} pieces on {specs}')
    if trainer.strips_accents and wanted.lowercase and wanted.strip_accents is None:
        _say_stripped(sources)
    return trainer.train(_sample_texts(sources, _VOCABULARY_SAMPLE_BYTES), wanted)


def _sample_texts(sources: Sequence[Source], max_bytes: int) -> Iterator[str]:
    """Text from all sources, an equal share of each."""
    for source in sources:
        yield from corpus.sample_texts(source, max_bytes // len(sources))


def _say_stripped(sources: Sequence[Source]) -> None:
    """Says how many characters of the text an uncased vocabulary drops that are no accents."""
    warning = stripped_marks_warning(_sample_texts(sources, _SAMPLE_FOR_MARKS_BYTES))
    if warning:
        hosts.say(warning)


def share_tokenizer(
    vocab_file: Path, words_file: str, lowercase: bool, places: Places,
    strip_accents: bool | None = None,
) -> Path:
    """A vocabulary with words added and accents kept or not, on this host's disk.

    All hosts call it.

    Args:
      vocab_file: a vocabulary; for words to add, of a kind that takes them.
      words_file: see `text.extending.extend`; read on the first host only. Empty: none.
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
