"""The rows of pre-training: from text through token stores, from ready-made records, or random."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.config import model_fields
from bert_jax.config.bert_config import BertConfig
from bert_jax.config.fields import FIELDS
from bert_jax.data import sharing
from bert_jax.data.document_facts import document_facts
from bert_jax.data.examples import Examples, Mixture, RecordExamples, SyntheticExamples
from bert_jax.data.pretrain import PretrainExamples
from bert_jax.data.recipe import Recipe, row_warnings
from bert_jax.data.store import PREPARED
from bert_jax.data.store_parts import DocumentFacts
from bert_jax.data.store_statistics import frequency_loss
from bert_jax.data.stored_text import Split, StoredText
from bert_jax.data.windows import Lanes, WindowedExamples, num_lanes
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path
from bert_jax.runtime.packages import has_tensorflow, loading_tensorflow
from bert_jax.text import check_known, load_tokenizer
from bert_jax.text.trainers import Wanted

_MAX_CHECKED_RECORDS = 1000
_PHASE_SEED_STRIDE = 7919  # difference between the seeds of phases with a mixture of their own
# A fixed seed for evaluation rows, so that all runs are evaluated on the same rows.
_EVAL_SEED = 0x5EED


class SyntheticData:
    """Random rows, without files or TensorFlow. It has the methods of `TextData`."""

    vocab_path: Path | None = None
    masks_held_out = False
    masks_by_rate = False

    def __init__(self, vocab_size: int, seed: int):
        self.vocab_size = vocab_size
        self._seed = seed

    def training(self, *lengths: int, **_: Any) -> Examples:
        return SyntheticExamples(self.vocab_size, *lengths, seed=self._seed)

    def held_out(self, *lengths: int, **_: Any) -> Examples:
        return SyntheticExamples(self.vocab_size, *lengths, num_examples=256, seed=self._seed + 1)

    def identity(self) -> dict[str, str]:
        return {}

    def frequency_loss(self) -> float | None:
        return None

    def repeated_share(self) -> float:
        return 0.0


class TextData:
    """Rows from text, through token stores, and from Google's records.

    Attributes:
      vocab_size, vocab_path: of the vocabulary.
      places: folders of vocabularies and stores.
      texts: by source, those that are no records.
      masks_held_out: whether the evaluation rows are masked here; records come masked.
      masks_by_rate: whether there are training rows that are masked here.
    """

    def __init__(self, config: ConfigDict):
        """Opens, or builds, the vocabulary and the stores. All hosts call it.

        Raises:
          InputError: invalid sources or vocabulary.
        """
        data = config.data
        self._config = config
        sources = weighted_sources(data.source)
        _check_phases(config, sources)
        names = [source.name for source in sources]
        if data.eval_source:
            names.append(data.eval_source)
        record_names = [name for name in names if _is_record_file(name)]
        _check_vocabulary(config, record_names)
        record_files: Any = None
        if record_names or has_tensorflow():
            record_files = _record_files()

        text_names = [name for name in names if name not in record_names]
        read_here = [name for name in text_names if not name.startswith(PREPARED)]
        texts = sharing.open_texts(read_here, data.tfds_dir, data.text)
        self.places = sharing.Places.choose(data.dir, data.local_dir)
        self.vocab_path = self._vocabulary(texts, sources)
        self._tokenizer = load_tokenizer(self.vocab_path, data.lowercase)
        self.vocab_size = len(self._tokenizer.vocab)

        self._records: dict[str, Any] = {}
        for name in record_names:
            self._records[name] = record_files.open(
                name.removeprefix('tfrecord:'), self.places.local)
        self.masks_held_out = data.eval_source not in self._records
        self.masks_by_rate = any(source.name not in self._records for source in sources)
        self.texts: dict[str, StoredText] = {}
        facts = document_facts(
            data.near_duplicates, data.decontaminate, data.remove_contaminated, self._tokenizer)
        trained_on = {source.name for source in sources}
        for name in text_names:
            facts_here = facts if name in trained_on else ()
            self.texts[name] = self._open_text(name, texts.get(name), facts_here)
        for name in self._records:
            self._check_records(name)
        self._weight_by_size = self._size_weights()
        self._sources: list[WeightedSource] = []
        for name, weight in sources:
            weight *= self._weight_by_size[name]
            self._sources.append(WeightedSource(name, weight))
        if data.mix_power:
            _say_mixture(self._sources)

    def _vocabulary(
        self, texts: Mapping[str, sharing.Text], sources: Sequence[WeightedSource]
    ) -> Path:
        """The vocabulary that the config names, or one of the texts, with the added tokens."""
        data = self._config.data
        strip_accents = data.strip_accents
        prepared = [source.name for source in sources if source.name.startswith(PREPARED)]
        if data.vocab_file:
            path = as_path(data.vocab_file)
            _check_kind(data)
        elif prepared:
            path = sharing.vocabulary_of(prepared[0].removeprefix(PREPARED))
        else:
            wanted = Wanted(data.tokenizer, data.vocab_size, data.lowercase, strip_accents)
            path = sharing.share_vocabulary(
                [texts[source.name] for source in sources], wanted, self.places)
            if load_tokenizer(path, data.lowercase).lowercase is None:
                strip_accents = None  # its own rules have it already
        return sharing.share_tokenizer(
            path, data.add_tokens, data.lowercase, self.places, strip_accents)

    def _open_text(
        self, name: str, text: sharing.Text | None, facts: Sequence[DocumentFacts]
    ) -> StoredText:
        """A text with its store, whose first tokens the vocabulary is checked to know.

        Args:
          name: of the source.
          text: None for a prepared store.
          facts: by which documents are left out; a prepared store has been made with its own.
        """
        data = self._config.data
        if text is None:
            store = sharing.open_prepared(name.removeprefix(PREPARED), self._tokenizer)
        else:
            store = sharing.share_store(
                text, self._tokenizer, self.places, self.vocab_path, facts)
        if len(store.index) <= data.shuffle_blocks:
            store = sharing.local_store(store, self.places)
        fraction = data.held_out
        if data.eval_source:  # then nothing is held out
            fraction = 0.0
        split = Split(fraction, min_documents=2 if data.next_sentence else 1)
        stored = StoredText(name, store, self._tokenizer.vocab, split, data.shuffle_blocks)
        if fraction > 0 and not stored.is_whole and stored.num_held_out < split.min_documents:
            raise InputError(
                f'config.data.held_out={fraction} holds out {stored.num_held_out} document(s) of '
                f'{name}, too few to evaluate on: raise it, or set config.data.eval_source')
        check_known(stored.first_tokens(), self._tokenizer, name, self.vocab_path)
        return stored

    def _check_records(self, name: str) -> None:
        """Warns of records without masked positions.

        Raises:
          InputError: the records have pieces that the vocabulary lacks.
        """
        records = self._records[name]
        first = records.read(np.arange(min(len(records), _MAX_CHECKED_RECORDS)))
        highest = first['input_ids'].max()
        if highest >= self.vocab_size:
            raise InputError(f'{name} has the piece {highest}, {self.vocab_path} only '
                             f'{self.vocab_size}: name the vocab.txt that it was made with')
        has_no_mask = first['masked_lm_weights'].max(axis=1, initial=0) == 0
        if has_no_mask.any():
            hosts.say(f'warning: {has_no_mask.mean():.1%} of the first {len(has_no_mask):,} '
                      f'records of {name} have no masked position, and teach no words')

    def _size_weights(self) -> dict[str, float]:
        """The factor of each source's weight that its number of tokens gives."""
        power = self._config.data.mix_power
        weights: dict[str, float] = {}
        for name, text in self.texts.items():
            weights[name] = text.store.num_tokens ** power
        for name, records in self._records.items():
            weights[name] = (len(records) * records.max_seq_length) ** power
        return weights

    def identity(self) -> dict[str, str]:
        """Digests and counts by name, which must be equal on all hosts."""
        result = {'vocabulary': self._tokenizer.fingerprint}
        for name, _ in self._sources:
            if name in self._records:
                result[f'content of {name}'] = f'{len(self._records[name])} records'
                continue
            text = self.texts[name]
            result[f'content of {name}'] = text.store.fingerprint
            if not self._config.data.eval_source:
                result[f'held-out documents of {name}'] = str(text.num_held_out)
        return result

    def frequency_loss(self) -> float | None:
        """Masked-LM loss of guessing by frequency, if known."""
        if not all(name in self.texts for name, _ in self._sources):
            return None
        stores = [(self.texts[name].store, weight) for name, weight in self._sources]
        return frequency_loss(stores, self.vocab_size)

    def repeated_share(self) -> float:
        """Share of sentences that are repeats, in the training text that has the largest share."""
        shares = [self.texts[name].store.repeated_share for name in self._text_names()]
        return max(shares, default=0.0)

    def _text_names(self) -> list[str]:
        """The sources to train on that are no records."""
        return [name for name, _ in self._sources if name in self.texts]

    def training(
        self, max_seq_length: int, max_predictions_per_seq: int,
        source: Sequence[tuple[str, float]] = (), phase: int = 0, batch_size: int = 1,
        **masking: Any,
    ) -> Examples:
        """Rows of a phase's length and prediction slots, of all sources or as the phase mixes them.

        They are masked as the config says, except for fields of `MaskingRates` in `masking`.

        Args:
          max_seq_length, max_predictions_per_seq: of the phase.
          source: sources of the config with the phase's own weights; empty: all, as in the config.
          phase: number of a phase with its own `source`, to draw other rows than earlier phases.
          batch_size: sequences of a step. It determines the lanes of texts in windows.
          **masking: fields of `MaskingRates`.

        Raises:
          InputError: records that do not fit the phase, or too few documents.
        """
        recipe = self._recipe(max_seq_length, max_predictions_per_seq, **masking)
        first_seed = self._config.seed + _PHASE_SEED_STRIDE * phase
        all_sources = self._sources_of_phase(source)
        lanes = self._num_lanes(all_sources, batch_size)
        parts: list[Examples] = []
        weights: list[float] = []
        texts: dict[str, PretrainExamples | WindowedExamples] = {}
        for seed, (name, weight) in enumerate(all_sources, first_seed):
            if not weight:
                continue
            weights.append(weight)
            if name in self._records:
                parts.append(self._record_examples(name, recipe, seed))
            else:
                texts[name] = self.texts[name].training(recipe, seed, lanes)
                parts.append(texts[name])
        mixed = _mixed(parts, weights, first_seed, lanes)
        hosts.say(
            f'training examples an epoch at length {max_seq_length}: {mixed.num_examples:,}')
        if hosts.first():
            for name, examples in texts.items():
                self._say_counts(name, examples, recipe)
        if lanes > 1:
            return Lanes(mixed, batch_size, lanes)
        return mixed

    def _num_lanes(self, sources: Sequence[WeightedSource], batch_size: int) -> int:
        """The lanes of a batch: one, unless a text with a weight is read in windows."""
        for name, weight in sources:
            if weight and name in self.texts and not self.texts[name].is_whole:
                return num_lanes(self._config.data.shuffle_blocks, batch_size)
        return 1

    def _sources_of_phase(self, own: Sequence[tuple[str, float]]) -> list[WeightedSource]:
        """All sources of the config, with the weights that a phase gives them, 0 for most.

        Args:
          own: sources with the phase's own weights; empty: the weights are those of the config.
        """
        if not own:
            return self._sources
        weight_of = dict(own)
        sources: list[WeightedSource] = []
        for name, _ in self._sources:
            weight = weight_of.get(name, 0) * self._weight_by_size[name]
            sources.append(WeightedSource(name, weight))
        return sources

    def _record_examples(self, name: str, recipe: Recipe, seed: int) -> RecordExamples:
        """The records of a source as training rows.

        Raises:
          InputError: they have another length than the phase.
        """
        records = self._records[name]
        if records.max_seq_length != recipe.max_seq_length:
            raise InputError(
                f'{name} has records of {records.max_seq_length} tokens, the phase has '
                f'max_seq_length={recipe.max_seq_length}: set that to {records.max_seq_length}')
        return RecordExamples(records, seed, recipe.max_predictions_per_seq, name=name)

    def _say_counts(
        self, name: str, examples: PretrainExamples | WindowedExamples, recipe: Recipe
    ) -> None:
        """Says what is in the rows of a source, and warns of what is lost."""
        counts = examples.counts()
        said: list[str] = []
        if isinstance(examples, WindowedExamples):
            said.append(examples.summary())
        if recipe.next_sentence:
            said.append(f'{counts.random_next:.1%} of the pairs have a random next sentence')
        said.append(f'{counts.used:.1%} of the tokens are in the rows of an epoch')
        if self._config.model.causal:  # no masks
            counts = counts._replace(masked=counts.wanted)
        else:
            said.append(f'{counts.masked:.1%} of a row is masked')
        hosts.say(f"{name}: {', '.join(said)}")
        for line in row_warnings(counts, recipe, name):
            hosts.say(f'warning: {line}')

    def held_out(
        self, max_seq_length: int, max_predictions_per_seq: int, **masking: Any
    ) -> Examples:
        """Rows to evaluate on: of `data.eval_source`, else of the held-out documents.

        They are masked as in training, except for fields of `MaskingRates` in `masking`.

        Raises:
          InputError: nothing to evaluate on, or records longer than the position table.
        """
        eval_source = self._config.data.eval_source
        if eval_source in self._records:
            return self._held_out_records(eval_source)
        names = self._text_names()
        if eval_source:
            names = [eval_source]
        if not names:
            raise InputError(
                'records have no documents to hold out: set config.data.eval_source to other '
                'records or text')
        if not eval_source and self._config.data.held_out == 0:
            raise InputError(
                'config.data.held_out=0 leaves nothing to evaluate on: set it, or '
                'config.data.eval_source')
        recipe = self._recipe(max_seq_length, max_predictions_per_seq, **masking)
        parts: list[Examples] = []
        for name in names:
            text = self.texts[name]
            if eval_source:
                parts.append(text.evaluated(recipe, _EVAL_SEED))
            else:
                parts.append(text.held_out(recipe, _EVAL_SEED))
        return _mixed(parts, [1.0] * len(parts), _EVAL_SEED)

    def _held_out_records(self, name: str) -> RecordExamples:
        records = self._records[name]
        model = BertConfig(**model_fields(self._config, vocab_size=1))
        if records.max_seq_length > model.max_length:
            raise InputError(
                f'config.data.eval_source={name} has records of {records.max_seq_length} tokens, '
                f"longer than the model's {model.max_length} positions "
                f'(config.model.max_position_embeddings={model.max_position_embeddings})')
        return RecordExamples(records, _EVAL_SEED)

    def _recipe(
        self, max_seq_length: int, max_predictions_per_seq: int, **masking: Any
    ) -> Recipe:
        """How rows are made: as the config says, except for what is given here."""
        data = self._config.data
        names = [field.name for field in dataclasses.fields(Recipe) if field.name in data]
        recipe = Recipe(**{name: data[name] for name in names})
        return dataclasses.replace(
            recipe, max_seq_length=max_seq_length,
            max_predictions_per_seq=max_predictions_per_seq, **masking)


def _mixed(
    parts: Sequence[Examples], weights: Sequence[float], seed: int, lanes: int = 1
) -> Examples:
    """Rows of all parts in proportion to their weights; those of the only part as they are."""
    if len(parts) == 1:
        return parts[0]
    return Mixture(parts, weights, seed, lanes)


class WeightedSource(NamedTuple):
    """A source of text or records, and the weight of its rows in a mixture."""

    name: str
    weight: float


def weighted_sources(source: Any, field: str = 'data.source') -> list[WeightedSource]:
    """`data.source`, or that of a phase, with the weight of each source.

    Args:
      source: one source, or a list of sources and (source, weight).
      field: of the config, for the message.

    Raises:
      InputError: it is neither a string nor a list of (source, weight).
    """
    items = source
    if isinstance(source, str):
        items = [source]
    try:
        sources = [_weighted(item) for item in items]
    except (TypeError, ValueError):
        sources = []
    if not sources or not all(_is_valid(item) for item in sources):
        raise InputError(
            f"config.{field}={source!r}: write a source, or a list of (source, weight) "
            "such as [('wiki.txt', 3), ('books.txt', 1)] with weights above 0")
    return sources


def _weighted(item: Any) -> WeightedSource:
    if isinstance(item, str):
        return WeightedSource(item, 1.0)
    name, weight = item
    return WeightedSource(name, float(weight))


def _is_valid(source: WeightedSource) -> bool:
    return isinstance(source.name, str) and source.name != '' and source.weight > 0


def _is_record_file(name: str) -> bool:
    return name.startswith('tfrecord:') or name.endswith(('.tfrecord', '.tfrecords'))


def _record_files() -> Any:
    """The class of files of records.

    It loads TensorFlow, in time for the first batch, which tf.data then makes.
    """
    with loading_tensorflow('pre-training from ready-made records'):
        from bert_jax.data.records import RecordFiles

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


def _say_mixture(sources: Sequence[WeightedSource]) -> None:
    total = sum(source.weight for source in sources)
    shares: list[str] = []
    for name, weight in sources:
        share = weight / total
        shares.append(f'{name} {share:.1%}')
    hosts.say(f"mixed: {', '.join(shares)}")
