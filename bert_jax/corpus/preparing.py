"""From a config to its text, opened: the vocabulary, token stores, records."""

from collections.abc import Iterable, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config import options_of
from bert_jax.config.fields import FIELDS, pretraining_kind
from bert_jax.config.filtering import FilterOptions
from bert_jax.config.mixtures import WeightedSource, weighted_sources
from bert_jax.corpus import sharing
from bert_jax.corpus.bad_files import readable
from bert_jax.corpus.document_facts import document_facts
from bert_jax.corpus.sources import TextSpec, sample_texts
from bert_jax.corpus.store_building import Build, open_build
from bert_jax.corpus.store_parts import DocumentFilter
from bert_jax.corpus.tokenize import make_encode
from bert_jax.corpus.trainers import Wanted
from bert_jax.rows.prepared import Prepared
from bert_jax.rows.store import TokenStore
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path
from bert_jax.runtime.packages import has_tensorflow, loading_tensorflow
from bert_jax.text.coverage import check_known
from bert_jax.text.kinds import load_tokenizer

_CHECKED_TOKENS = 1_000_000  # of a store, for pieces that are unknown
_CHECKED_BYTES = 1 << 18  # of text, for characters of unknown words


def prepare(config: ConfigDict) -> Prepared | None:
    """Makes or finds the vocabulary and the token stores that a config names, and opens them.

    What is made is kept in `data.dir` under a name that follows from its content, so that it is
    made once. All hosts call it. The config stays as it is.

    Args:
      config: completed (`completion.complete`).

    Returns:
      None for a task that reads no text, and for a downstream task without a vocabulary.

    Raises:
      InputError: a source, the vocabulary or a folder cannot be used.
    """
    kind = pretraining_kind(config.task)
    if kind == 'pretrain':
        return _Pretraining(config).prepared()
    if kind or not config.data.vocab_file:
        return None
    data = config.data
    path = sharing.share_tokenizer(
        as_path(data.vocab_file), data.add_tokens, data.lowercase,
        sharing.Places.choose(data.dir, data.local_dir), data.strip_accents)
    tokenizer = load_tokenizer(path, data.lowercase)
    return Prepared(path, tokenizer, make_encode(tokenizer, 'fine-tuning'))


def open_builds(
    config: ConfigDict, count_runs: sharing.CountRuns | None = None
) -> list[Build]:
    """The builds of a pre-training config: each text's store, not begun, begun or finished.

    For those who divide the work themselves. The vocabulary is made or found first; when all stores
    are finished, `prepare` opens them.

    Args:
      config: completed (`completion.complete`).
      count_runs: who counts words for a vocabulary; None: this process.

    Raises:
      InputError: a source, the vocabulary or a folder cannot be used.
    """
    return _Pretraining(config, count_runs).builds()


class _Pretraining:
    """The sources of a config of pre-training."""

    def __init__(self, config: ConfigDict, count_runs: sharing.CountRuns | None = None):
        """Names the sources.

        Args:
          config: of the run.
          count_runs: see `open_builds`.

        Raises:
          InputError: they are invalid, or do not fit the vocabulary.
        """
        data = config.data
        self._config = config
        self._count_runs = count_runs
        self._sources = weighted_sources(data.source)
        _check_phases(config, self._sources)
        names = [source.name for source in self._sources]
        if data.eval_source:
            names.append(data.eval_source)
        self._specs: dict[str, TextSpec] = {}
        for name in names:
            self._specs[name] = TextSpec(name, data.tfds_dir, data.text or 'text')
        self._record_names = self._holding('records')
        _check_vocabulary(config, self._record_names)

    def _holding(self, what: str) -> list[str]:
        """Names of the sources that hold 'text', 'records' or a 'store'."""
        return [name for name, spec in self._specs.items() if spec.kind.holds == what]

    def prepared(self) -> Prepared:
        """All sources, opened.

        Raises:
          InputError: one cannot be used.
        """
        record_files: Any = None
        if self._record_names or has_tensorflow():
            record_files = _record_files()
        self._open_vocabulary()
        records: dict[str, Any] = {}
        for name in self._record_names:
            records[name] = record_files.open(self._specs[name].rest, self._places.local)
        stores: dict[str, TokenStore] = {}
        for name, facts in self._facts().items():
            stores[name] = self._store(self._specs[name], facts)
        encode = make_encode(self._tokenizer, 'fine-tuning')
        return Prepared(self._vocab_path, self._tokenizer, encode, stores, records)

    def builds(self) -> list[Build]:
        """The build of each text.

        Raises:
          InputError: one cannot be used.
        """
        self._open_vocabulary()
        facts = self._facts()
        found: list[Build] = []
        for name in self._holding('text'):
            found.append(open_build(
                self._specs[name].source, self._tokenizer, self._places.shared,
                vocab_file=self._vocab_path, facts=facts[name],
                max_bad_files=self._config.data.max_bad_files))
        return found

    def _open_vocabulary(self) -> None:
        """Opens the texts and the folders, and then the vocabulary."""
        data = self._config.data
        sharing.open_texts([self._specs[name] for name in self._holding('text')])
        self._places = sharing.Places.choose(data.dir, data.local_dir)
        self._vocab_path = self._vocabulary()
        self._tokenizer = load_tokenizer(self._vocab_path, data.lowercase)

    def _facts(self) -> dict[str, Sequence[DocumentFilter]]:
        """By which documents are left out, for each source that has or becomes a store."""
        options = options_of(FilterOptions, self._config.data)
        facts = document_facts(options, self._tokenizer)
        trained_on = {source.name for source in self._sources}
        return {name: facts if name in trained_on else ()
                for name, spec in self._specs.items() if spec.kind.holds != 'records'}

    def _vocabulary(self) -> Path:
        """The vocabulary that the config names, or one of the texts, with the added tokens."""
        data = self._config.data
        strip_accents = data.strip_accents
        specs = [self._specs[source.name] for source in self._sources]
        prepared = [spec for spec in specs if spec.kind.holds == 'store']
        if data.vocab_file:
            path = as_path(data.vocab_file)
            _check_kind(data)
        elif prepared:
            path = sharing.vocabulary_of(prepared[0].rest)
        else:
            wanted = Wanted(data.tokenizer, data.vocab_size, data.lowercase, strip_accents)
            mixing = sharing.Mixing([source.weight for source in self._sources], data.mix_power)
            path = sharing.share_vocabulary(
                specs, wanted, self._places, mixing, skips_bad_files=data.max_bad_files > 0,
                count_runs=self._count_runs)
            if load_tokenizer(path, data.lowercase).lowercase is None:
                strip_accents = None  # its own rules have it already
        return sharing.share_tokenizer(
            path, data.add_tokens, data.lowercase, self._places, strip_accents)

    def _store(self, spec: TextSpec, facts: Sequence[DocumentFilter]) -> TokenStore:
        """The store of a source, whose first tokens the vocabulary is checked to know.

        Args:
          spec: names it.
          facts: by which documents are left out; a prepared store has been made with its own.
        """
        data = self._config.data
        is_prepared = spec.kind.holds == 'store'
        if is_prepared:
            store = sharing.open_prepared(spec.rest, self._tokenizer)
        else:
            store = sharing.share_store(
                spec, self._tokenizer, self._places, self._vocab_path, facts,
                data.max_bad_files)
        if len(store.index) <= data.shuffle_blocks:
            store = sharing.local_store(store, self._places)
        sample: Iterable[str] = ()
        if not is_prepared and hosts.first():
            sample = sample_texts(readable(spec.source), _CHECKED_BYTES)
        check_known(
            store.first_tokens(_CHECKED_TOKENS), self._tokenizer, spec.name, self._vocab_path,
            sample)
        return store


def _record_files() -> Any:
    """The class of files of records, for which TensorFlow is loaded."""
    with loading_tensorflow('pre-training from ready-made records'):
        from bert_jax.corpus.records import RecordFiles

    return RecordFiles


def _check_phases(config: ConfigDict, sources: Sequence[WeightedSource]) -> None:
    """Refuses a phase with a source that the config does not list."""
    listed = {source.name for source in sources}
    for i, phase in enumerate(config.phases):
        of_phase = weighted_sources(
            phase.get('source', config.data.source), f'phases[{i}].source')
        for source in of_phase:
            if source.name not in listed:
                raise InputError(f'config.phases[{i}].source has {source.name}, which '
                                 'config.data.source does not list: add it there')


def _check_vocabulary(config: ConfigDict, records: Sequence[str]) -> None:
    """Refuses to add words to records, or to make a vocabulary for what was made with another."""
    data = config.data
    if records and data.add_tokens:
        raise InputError(
            f'config.data.add_tokens={data.add_tokens}, but the text in {records[0]} is cut into '
            'pieces already: give the text itself, or leave config.data.add_tokens empty')
    if data.vocab_file:
        return
    made_with_one = config.init_checkpoint
    if records and not made_with_one:
        made_with_one = records[0]
    if made_with_one:
        raise InputError(
            f'config.data.vocab_file is empty, and {made_with_one} brings no vocabulary: set '
            '--config.data.vocab_file to the vocab.txt that it was made with')


def _check_kind(data: ConfigDict) -> None:
    """Raises InputError if the section's `tokenizer` names another kind than `vocab_file` is."""
    if data.tokenizer == FIELDS['data.tokenizer'].default:
        return
    found = load_tokenizer(data.vocab_file, data.lowercase).algorithm
    if not data.tokenizer.startswith(found):
        raise InputError(
            f'config.data.tokenizer={data.tokenizer!r}, but {data.vocab_file} is of the kind '
            f'{found}: remove config.data.tokenizer, or config.data.vocab_file to train another')
