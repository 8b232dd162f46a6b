"""The text that hosts share: vocabulary and token store, made once and copied to each host."""

import contextlib
import dataclasses
import hashlib
import json
import platform
import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

from bert_jax.data import corpus, store
from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.files import Path, open_folder
from bert_jax.text import read_switches, write_switches
from bert_jax.text.training import add_words, stripped_marks, train_wordpiece
from bert_jax.text.vocab import read_file
from bert_jax.text.wordpiece import Switches

_THREADS = 16
_BLOCK_BYTES = 8 << 20
_VOCABULARY_SAMPLE_BYTES = 200_000_000
_VOCABULARY_VERSION = 1
_SAMPLE_FOR_MARKS_BYTES = 8_000_000
_FEW_MARKS = 0.001  # of the characters
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
        mounts = (line.split()[1:3] for line in files.read_system('/proc/self/mounts').splitlines())
        _, kind = max(((len(where), kind) for where, kind in mounts
                       if f'{files.absolute(local)}/'.startswith(where.rstrip('/') + '/')),
                      default=(0, ''))  # the innermost mount that holds the folder
        if re.match('nfs|cifs|lustre|gpfs|beegfs|ceph|fuse|afs|9p', kind):
            hosts.say(f'note: config.data.local_dir={local} is on a network disk ({kind}), where '
                      'hosts wait for each other: name a folder on a disk of each host')
        return cls(place, files.as_path(local))


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


def share_store(source: store.Source, tokenizer: Any, places: Places) -> store.TokenStore:
    """The token store of a source on this host's disk, built if needed. All hosts call it.

    Args:
      source: read on the first host only.
      tokenizer: see `store.build_store`.
      places: the folders.

    Raises:
      InputError: building fails, the store is damaged, or `data.dir` is not shared.
    """
    name = hosts.share('token store', lambda: store.store_fingerprint(source, tokenizer))
    here, published = (place / 'stores' / name for place in (places.local, places.shared))

    def exists(folder: Path) -> bool:
        return (folder / store.MANIFEST).exists()

    def prepare() -> str:
        if here == published or exists(here) or not exists(published):
            store.build_store(source, tokenizer, places.local, hosts.first())
        if not exists(published):
            copy_store(here, published)
        return ''

    hosts.share('prepare the token store', prepare)
    if not exists(here):
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not exists(published):
            if time.monotonic() > deadline:
                raise InputError(
                    f'config.data.dir={places.shared} is not shared by all hosts: host '
                    f'{hosts.index()} does not see {published}, which host 0 wrote; set '
                    '--config.data.dir to a bucket (gs://...) or a folder that all hosts share')
            time.sleep(1.0)
        if here != published:
            copy_store(published, here)
    return store.TokenStore.open(here)


def copy_store(source: Path, target: Path) -> None:
    """Copies a finished store, several files at once, and checks each against the manifest.

    The processes of a machine copy it only once. An interrupted copy is resumed.

    Args:
      source: the store's folder, on disk or in a bucket.
      target: another folder; one of the two is on disk. Its parent need not exist.

    Raises:
      InputError: the store is damaged.
    """
    upload = files.in_bucket(target)
    with contextlib.ExitStack() as stack:
        stack.enter_context(store.disk_faults(target.parent))
        target.mkdir(parents=True, exist_ok=True)
        if not upload:
            stack.enter_context(store.locked(target.with_suffix('.lock')))
            for left in target.glob('.*.tmp'):  # left by a killed copy
                left.unlink()
        if (target / store.MANIFEST).exists():
            return
        entries = store.read_manifest(source)['files']

        def has(name: str) -> bool:
            path, entry = target / name, entries[name]
            with contextlib.suppress(FileNotFoundError):
                return (path.stat().length == entry['bytes']
                        and store.digests([path]) == [entry['md5']])
            return False

        def copy(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                if upload:
                    files.upload(source / name, target / name)
                else:
                    with (source / name).open('rb') as content, \
                            files.open_whole(target / name) as file:
                        shutil.copyfileobj(content, file, _BLOCK_BYTES)
            if not has(name):
                raise InputError(store.damaged(source, name))

        missing = [name for name in entries if not has(name)]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(copy, missing))
        files.write_whole(target / store.MANIFEST, (source / store.MANIFEST).read_bytes())
    if hosts.first():
        size = sum(entries[name]['bytes'] for name in missing)
        tell(f'token store: {size / 1e6:,.0f} MB copied to {target}')


def share_vocabulary(
    sources: Sequence[store.Source], vocab_size: int, lowercase: bool, places: Places,
    strip_accents: bool | None = None,
) -> Path:
    """A vocabulary trained on the sources, on this host's disk. All hosts call it.

    Args:
      sources: read on the first host only.
      vocab_size, lowercase: see `text.training.train_wordpiece`.
      places: the folders.
      strip_accents: of the tokenizer that it is for (see `Switches`). The file does not keep it:
        `share_tokenizer` does.

    Raises:
      InputError: a source cannot be read, or a stored vocabulary is damaged.
    """
    def make() -> str:
        settings = [*(source.fingerprint() for source in sources), vocab_size, lowercase,
                    _VOCABULARY_VERSION]
        if strip_accents is not None:
            settings.append(f'{strip_accents=}')
        name = store.name_of(settings)
        for path in files.children(places.shared / 'vocabularies'):
            if path.name.startswith(f'{name}-') and path.suffix == '.txt':
                lines = path.read_bytes().decode('utf-8', 'replace')
                if path.stem != _named(name, lines):
                    raise InputError(f'{path} is damaged (its content is not that of its name): '
                                     'delete it and it is trained again')
                return json.dumps([name, lines])
        hosts.say(f'training a vocabulary of {vocab_size:,} pieces on '
                  + ', '.join(source.spec for source in sources))
        if lowercase and strip_accents is None:
            _say_stripped(sources)
        share = _VOCABULARY_SAMPLE_BYTES // len(sources)
        lines = ''.join(f'{token}\n' for token in train_wordpiece(
            (text for source in sources for text in corpus.sample_texts(source, share)), vocab_size,
            lowercase, Switches(strip_accents)))
        _keep(places.shared, f'{_named(name, lines)}.txt', lines)
        return json.dumps([name, lines])

    name, lines = json.loads(hosts.share('vocabulary', make))
    path = _keep(places.local, f'{_named(name, lines)}.txt', lines)
    hosts.say(f'vocabulary: {path}')
    return path


def _say_stripped(sources: Sequence[store.Source]) -> None:
    """Says how many characters of the text an uncased vocabulary drops that are no accents."""
    share, marks = stripped_marks(
        text for source in sources
        for text in corpus.sample_texts(source, _SAMPLE_FOR_MARKS_BYTES // len(sources)))
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
      vocab_file: a vocabulary; for words to add, a WordPiece one.
      words_file: see `text.training.add_words`; read on the first host only. Empty: none.
      lowercase: whether the vocabulary is uncased.
      places: the folders.
      strip_accents: what the tokenizer_config.json beside the file will say; None: what the one
        beside `vocab_file` says.

    Returns:
      `vocab_file` itself where nothing changes.

    Raises:
      InputError: the words cannot be read or are invalid, or accents are named for a SentencePiece
        model.
    """
    if strip_accents is not None and vocab_file.suffix == '.model':
        raise InputError(
            f'config.data.strip_accents={strip_accents}: the vocabulary {vocab_file} is a '
            'SentencePiece model, which has rules of its own: leave it empty')
    switches = read_switches(vocab_file)
    if strip_accents not in (None, switches.strip_accents):
        switches = dataclasses.replace(switches, strip_accents=strip_accents)
    elif not words_file:
        return vocab_file

    def make() -> str:
        if not words_file:
            return read_file(vocab_file, 'vocabulary', 'data.vocab_file').decode('utf-8', 'replace')
        tokens, notes = add_words(vocab_file, words_file, lowercase, switches)
        for note in notes:
            hosts.say(note)
        return ''.join(f'{token}\n' for token in tokens)

    lines = hosts.share('vocabulary of the tokenizer', make)
    # In a folder of its own, because the file of the tokenizer's switches stands beside it.
    name = _named('added' if words_file else 'vocabulary', f'{lines}{switches}')
    path = _keep(places.local, f'{name}/vocab.txt', lines)
    write_switches(path.parent, switches)
    return path


def _named(name: str, lines: str) -> str:
    """The name of a stored vocabulary, from its text and settings (`name`) and its content."""
    return f'{name}-{hashlib.md5(lines.encode(), usedforsecurity=False).hexdigest()[:16]}'


def _keep(folder: Path, name: str, lines: str) -> Path:
    """The file of a vocabulary, written unless it exists."""
    path = folder / 'vocabularies' / name
    with store.disk_faults(path.parent):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(path, lines)
    return path
