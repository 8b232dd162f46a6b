"""The text that hosts share: vocabulary and token store, made once and copied to each host."""

import contextlib
import dataclasses
import hashlib
import json
import platform
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

from bert_jax.data import corpus, store, store_building
from bert_jax.data.digests import digests, name_of
from bert_jax.data.source import Source
from bert_jax.data.store import MANIFEST, TokenStore
from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.files import Path, open_folder
from bert_jax.text import kind_of, load_tokenizer, read_switches, write_switches
from bert_jax.text.extending import extend
from bert_jax.text.trainers import Trainer, Wanted, find_trainer
from bert_jax.text.training import stripped_marks
from bert_jax.text.vocab import read_file

_THREADS = 16
_BLOCK_BYTES = 8 << 20
_VOCABULARY_SAMPLE_BYTES = 200_000_000
_VOCABULARY_VERSION = 1
_SAMPLE_FOR_MARKS_BYTES = 8_000_000
_FEW_MARKS = 0.001  # of the characters
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
        boot = files.read_system('/proc/sys/kernel/random/boot_id')
        machines = set(hosts.exchange('machine', f'{platform.node()} {boot}'))
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


def open_texts(specs: Sequence[str], tfds_dir: str, column: str) -> dict[str, Any]:
    """The text sources by spec; None where this host has none. All hosts call it.

    Only the first host's are read; other hosts compare those that they have. For `tfds_dir` and
    `column` see `corpus.open_source`.

    Raises:
      InputError: the first host lacks the text, or another host has a different one.
    """
    texts: dict[str, Any] = dict.fromkeys(specs)
    for spec in specs:
        if hosts.first():
            texts[spec] = corpus.open_source(spec, tfds_dir, column)
        elif not spec.startswith(('tfds:', 'hf:', 'wikipedia:')):  # which could be downloads
            with contextlib.suppress(InputError):
                texts[spec] = corpus.open_source(spec, tfds_dir, column)
    if hosts.count() > 1:
        ours = {spec: text.outline for spec, text in texts.items() if text}
        theirs = json.loads(hosts.share('outlines of the text', lambda: json.dumps(ours)))
        hosts.agree('the text', theirs | ours)
    return texts


def share_store(source: Source, tokenizer: Any, places: Places) -> TokenStore:
    """The token store of a source on this host's disk, built if needed. All hosts call it.

    Args:
      source: read on the first host only.
      tokenizer: see `store_building.build_store`.
      places: the folders.

    Raises:
      InputError: building fails, the store is damaged, or `data.dir` is not shared.
    """
    name = hosts.share(
        'token store', lambda: store_building.store_fingerprint(source, tokenizer))
    here = places.local / 'stores' / name
    published = places.shared / 'stores' / name

    def prepare() -> str:
        if here == published or _is_finished(here) or not _is_finished(published):
            store_building.build_store(source, tokenizer, places.local, hosts.first())
        if not _is_finished(published):
            copy_store(here, published)
        return ''

    hosts.share('prepare the token store', prepare)
    if not _is_finished(here):
        _wait_for(published, places)
        if here != published:
            copy_store(published, here)
    return TokenStore.open(here)


def _is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished store."""
    return (folder / MANIFEST).exists()


def _wait_for(published: Path, places: Places) -> None:
    """Waits until this host sees the store that the first one has published.

    Raises:
      InputError: it does not appear, because `data.dir` is not shared.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not _is_finished(published):
        if time.monotonic() > deadline:
            raise InputError(
                f'config.data.dir={places.shared} is not shared by all hosts: host '
                f'{hosts.index()} does not see {published}, which host 0 wrote; set '
                '--config.data.dir to a bucket (gs://...) or a folder that all hosts share')
        time.sleep(1.0)


def copy_store(source: Path, target: Path) -> None:
    """Copies a finished store, several files at once, and checks each against the manifest.

    The processes of a machine copy it only once. An interrupted copy is resumed.

    Args:
      source: the store's folder, on disk or in a bucket.
      target: another folder; one of the two is on disk. Its parent need not exist.

    Raises:
      InputError: the store is damaged.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(store.disk_faults(target.parent))
        target.mkdir(parents=True, exist_ok=True)
        if not files.in_bucket(target):
            stack.enter_context(store.locked(target.with_suffix('.lock')))
            for left in target.glob('.*.tmp'):  # left by a killed copy
                left.unlink()
        if _is_finished(target):
            return
        copy = _StoreCopy(source, target, store.read_manifest(source)['files'])
        missing = copy.missing()
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(copy.copy, missing))
        files.write_whole(target / MANIFEST, (source / MANIFEST).read_bytes())
    if hosts.first():
        size = sum(copy.entries[name]['bytes'] for name in missing)
        tell(f'token store: {size / 1e6:,.0f} MB copied to {target}')


@dataclasses.dataclass(frozen=True)
class _StoreCopy:
    """A store that is being copied.

    Attributes:
      source: its folder.
      target: where the copy grows.
      entries: size and digest of each file, from the manifest.
    """

    source: Path
    target: Path
    entries: Mapping[str, Mapping[str, Any]]

    def missing(self) -> list[str]:
        """The files that have not been copied."""
        return [name for name in self.entries if not self._has(name)]

    def _has(self, name: str) -> bool:
        path = self.target / name
        entry = self.entries[name]
        with contextlib.suppress(FileNotFoundError):
            return path.stat().length == entry['bytes'] and digests([path]) == [entry['md5']]
        return False

    def copy(self, name: str) -> None:
        """Copies a file; an InputError if what arrives is not what the manifest describes."""
        with contextlib.suppress(FileNotFoundError):
            self._transfer(self.source / name, self.target / name)
        if not self._has(name):
            raise InputError(store.damaged(self.source, name))

    def _transfer(self, source: Path, target: Path) -> None:
        if files.in_bucket(target):
            files.upload(source, target)
            return
        with source.open('rb') as content, files.open_whole(target) as file:
            shutil.copyfileobj(content, file, _BLOCK_BYTES)


def share_vocabulary(sources: Sequence[Source], wanted: Wanted, places: Places) -> Path:
    """A vocabulary trained on the sources, on this host's disk. All hosts call it.

    Args:
      sources: read on the first host only.
      wanted: which vocabulary. A WordPiece file does not keep `strip_accents`: `share_tokenizer`
        does.
      places: the folders.

    Raises:
      InputError: a source cannot be read, a stored vocabulary is damaged, or there is no such kind.
    """
    trainer = find_trainer(wanted.tokenizer)

    def make() -> str:
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
            content = path.read_bytes().decode('utf-8', 'replace')
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
    share, marks = stripped_marks(_sample_texts(sources, _SAMPLE_FOR_MARKS_BYTES))
    if share > _FEW_MARKS:
        shown = ' '.join(f'\u25cc{mark}' for mark in marks)
        hosts.say(f'warning: {100 * share:.1f} % of the characters of the text are vowels and '
                  f'other marks that an uncased vocabulary drops as accents ({shown}), as the '
                  'original does: set --config.data.strip_accents=False to keep them')


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
