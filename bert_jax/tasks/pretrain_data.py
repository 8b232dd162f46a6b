"""The rows of pre-training: from text through token stores, from ready-made records, or random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.config import model_fields, options_of
from bert_jax.config.bert_config import BertConfig
from bert_jax.config.mixtures import WeightedSource, weighted_sources
from bert_jax.rows.examples import Examples, Mixture, RecordExamples, SyntheticExamples
from bert_jax.rows.pairs import RowOptions, row_warnings
from bert_jax.rows.prepared import Prepared
from bert_jax.rows.store import TokenStore
from bert_jax.rows.store_statistics import frequency_loss
from bert_jax.rows.text_rows import Split, StoredText, WholeTextRows
from bert_jax.rows.windows import Lanes, WindowedExamples, num_lanes
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path

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
    """Rows from text, which is in token stores, and from Google's records.

    Attributes:
      vocab_size, vocab_path: of the vocabulary.
      texts: by source, those that are no records.
      masks_held_out: whether the evaluation rows are masked here; records come masked.
      masks_by_rate: whether there are training rows that are masked here.
    """

    def __init__(self, config: ConfigDict, prepared: Prepared):
        """Takes the open sources. All hosts call it.

        Args:
          config: of the run.
          prepared: from `corpus.prepare`.

        Raises:
          InputError: too few documents would be held out, or records do not fit the vocabulary.
        """
        data = config.data
        self._config = config
        sources = weighted_sources(data.source)
        self.vocab_path = prepared.vocab_path
        self._tokenizer = prepared.tokenizer
        self.vocab_size = len(prepared.tokenizer.vocab)
        self._records = prepared.records
        self.masks_held_out = data.eval_source not in self._records
        self.masks_by_rate = any(source.name not in self._records for source in sources)
        self.texts: dict[str, StoredText] = {}
        for name, store in prepared.stores.items():
            self.texts[name] = self._text(name, store)
        for name in self._records:
            self._check_records(name)
        self._weight_by_size = self._size_weights()
        self._sources: list[WeightedSource] = []
        for name, weight in sources:
            weight *= self._weight_by_size[name]
            self._sources.append(WeightedSource(name, weight))
        if data.mix_power:
            _say_mixture(self._sources)
        if hosts.first():
            self._warn_of_trained_on()

    def _text(self, name: str, store: TokenStore) -> StoredText:
        """The text of a store, of which enough is held out."""
        data = self._config.data
        fraction = data.held_out
        if data.eval_source:  # then nothing is held out
            fraction = 0.0
        split = Split(fraction, min_documents=2 if data.next_sentence else 1)
        text = StoredText(name, store, self._tokenizer.vocab, split, data.shuffle_blocks)
        if fraction > 0 and not text.is_whole and text.num_held_out < split.min_documents:
            raise InputError(
                f'config.data.held_out={fraction} holds out {text.num_held_out} document(s) of '
                f'{name}, too few to evaluate on: raise it, or set config.data.eval_source')
        return text

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

    def _warn_of_trained_on(self) -> None:
        """Warns if `data.eval_source` holds documents, or records, that are trained on."""
        eval_source = self._config.data.eval_source
        counted = 'documents'
        known: dict[str, np.ndarray] = {}  # [evaluated] bool, by source
        if eval_source in self.texts:
            hashes = self.texts[eval_source].evaluated_hashes()
            for name in self._text_names():
                known[name] = np.isin(hashes, self.texts[name].store.used_hashes())
        elif eval_source in self._records:
            counted = 'records'
            for name, _ in self._sources:
                if name in self._records:
                    known[name] = self._records[eval_source].which_are_in(self._records[name])
        known = {name: is_known for name, is_known in known.items() if is_known.any()}
        if not known:
            return
        in_any = np.any(list(known.values()), axis=0)
        where = ', '.join(f'{name} ({is_known.sum():,})' for name, is_known in known.items())
        hosts.say(
            f'warning: {in_any.sum():,} of the {len(in_any):,} {counted} of '
            f'config.data.eval_source={eval_source} are in {where} too, and are trained on: what '
            'is scored on them does not tell how the model does on others')

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
        options = self._options(max_seq_length, max_predictions_per_seq, **masking)
        first_seed = self._config.seed + _PHASE_SEED_STRIDE * phase
        all_sources = self._sources_of_phase(source)
        lanes = self._num_lanes(all_sources, batch_size)
        parts: list[Examples] = []
        weights: list[float] = []
        texts: dict[str, WholeTextRows | WindowedExamples] = {}
        for seed, (name, weight) in enumerate(all_sources, first_seed):
            if not weight:
                continue
            weights.append(weight)
            if name in self._records:
                parts.append(self._record_examples(name, options, seed))
            else:
                texts[name] = self.texts[name].training(options, seed, lanes)
                parts.append(texts[name])
        mixed = _mixed(parts, weights, first_seed, lanes)
        hosts.say(
            f'training examples an epoch at length {max_seq_length}: {mixed.num_examples:,}')
        if isinstance(mixed, Mixture):
            _say_repeats([name for name, weight in all_sources if weight], mixed)
        if hosts.first():
            for name, examples in texts.items():
                self._say_counts(name, examples, options)
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

    def _record_examples(self, name: str, options: RowOptions, seed: int) -> RecordExamples:
        """The records of a source as training rows.

        Raises:
          InputError: they have another length than the phase.
        """
        records = self._records[name]
        if records.max_seq_length != options.max_seq_length:
            raise InputError(
                f'{name} has records of {records.max_seq_length} tokens, the phase has '
                f'max_seq_length={options.max_seq_length}: set that to {records.max_seq_length}')
        return RecordExamples(records, seed, options.max_predictions_per_seq, name=name)

    def _say_counts(
        self, name: str, examples: WholeTextRows | WindowedExamples, options: RowOptions
    ) -> None:
        """Says what is in the rows of a source, and warns of what is lost."""
        counts = examples.counts()
        said: list[str] = []
        if isinstance(examples, WindowedExamples):
            said.append(examples.summary())
        if options.next_sentence:
            said.append(f'{counts.random_next:.1%} of the pairs have a random next sentence')
        said.append(f'{counts.used:.1%} of the tokens are in the rows of an epoch')
        if self._config.model.causal:  # no masks
            counts = counts._replace(masked=counts.wanted)
        else:
            said.append(f'{counts.masked:.1%} of a row is masked')
        hosts.say(f"{name}: {', '.join(said)}")
        for line in row_warnings(counts, options, name):
            hosts.say(f'warning: {line}')

    def check_held_out(self) -> None:
        """Raises InputError if there is nothing to evaluate on, as every run does at its end."""
        if self._config.data.eval_source:
            return
        if not self._text_names():
            raise InputError(
                'records have no documents to hold out: set config.data.eval_source to other '
                'records or text')
        if self._config.data.held_out == 0:
            raise InputError(
                'config.data.held_out=0 leaves nothing to evaluate on: set it, or '
                'config.data.eval_source')

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
        self.check_held_out()
        names = self._text_names()
        if eval_source:
            names = [eval_source]
        options = self._options(max_seq_length, max_predictions_per_seq, **masking)
        parts: list[Examples] = []
        for name in names:
            text = self.texts[name]
            if eval_source:
                parts.append(text.evaluated(options, _EVAL_SEED))
            else:
                parts.append(text.held_out(options, _EVAL_SEED))
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

    def _options(
        self, max_seq_length: int, max_predictions_per_seq: int, **masking: Any
    ) -> RowOptions:
        """How rows are made: as the config says, except for what is given here."""
        return options_of(
            RowOptions, self._config.data, max_seq_length=max_seq_length,
            max_predictions_per_seq=max_predictions_per_seq, **masking)


def _mixed(
    parts: Sequence[Examples], weights: Sequence[float], seed: int, lanes: int = 1
) -> Examples:
    """Rows of all parts in proportion to their weights; those of the only part as they are."""
    if len(parts) == 1:
        return parts[0]
    return Mixture(parts, weights, seed, lanes)


def _say_repeats(names: Sequence[str], mixture: Mixture) -> None:
    """Says how often an epoch of a mixture has the rows of each source."""
    shown: list[str] = []
    for name, times in zip(names, mixture.times_an_epoch(), strict=True):
        shown.append(f'{name} {times:.1f} times')
    hosts.say(f"such an epoch lasts until every source was seen: {', '.join(shown)}")


def _say_mixture(sources: Sequence[WeightedSource]) -> None:
    total = sum(source.weight for source in sources)
    shares: list[str] = []
    for name, weight in sources:
        share = weight / total
        shares.append(f'{name} {share:.1%}')
    hosts.say(f"mixed: {', '.join(shares)}")
