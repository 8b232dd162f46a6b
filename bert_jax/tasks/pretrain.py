"""Pre-training as a task: its text or records, its phases and its gates."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax.config import flat_fields, model_fields
from bert_jax.config.phases import PHASE_ROWS, batches_of, prediction_slots
from bert_jax.config.phases import phases as phases_of
from bert_jax.data import examples as examples_lib
from bert_jax.data import sharing
from bert_jax.data.examples import Examples, Mixture, RecordExamples, Rows, SyntheticExamples
from bert_jax.data.masking import MaskingRates
from bert_jax.data.packed_examples import PackedExamples, packed_spec
from bert_jax.data.pretrain import PretrainExamples
from bert_jax.data.recipe import Recipe, row_warnings
from bert_jax.data.store import TokenStore
from bert_jax.data.store_statistics import frequency_loss, repeated_share
from bert_jax.heads.base import Head
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.flops import muon_flops
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path
from bert_jax.runtime.packages import has_tensorflow, loading_tensorflow
from bert_jax.sharding import Mesh, batch_sharding, local_rows, to_global
from bert_jax.tasks.labelled import ScoredModel
from bert_jax.text import check_known, load_tokenizer
from bert_jax.train.gates import Gates
from bert_jax.train.step import EvalStep, evaluate
from bert_jax.train.task import Phase

_ENOUGH_SLOTS = 0.95  # of the masked share: google-research/bert has 76 for 512, which is 0.99
_MAX_CHECKED_TOKENS = 1_000_000  # pieces of a text that are checked for [UNK]
_PHASE_SEED_STRIDE = 7919  # difference between the seeds of phases with a mixture of their own
# A fixed seed for evaluation rows, so that all runs are evaluated on the same rows.
_EVAL_SEED = 0x5EED


class SyntheticData:
    """Random rows, without files or TensorFlow. It has the methods of `TextData`."""

    vocab_path: Path | None = None
    masks_held_out = masks_by_rate = False

    def __init__(self, vocab_size: int, seed: int):
        self.vocab_size, self._seed = vocab_size, seed

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
      stores: the token store of each text, by source.
      masks_held_out: whether the evaluation rows are masked here; records come masked.
      masks_by_rate: whether there are training rows that are masked here.
    """

    def __init__(self, config: ConfigDict):
        """Opens, or builds, the vocabulary and the stores. All hosts call it.

        Raises:
          InputError: invalid sources or vocabulary.
        """
        self._config, d = config, config.data
        self._sources = weighted_sources(d.source)
        for i, phase in enumerate(config.phases):
            for spec, _ in weighted_sources(phase.get('source', d.source), f'phases[{i}].source'):
                if spec not in dict(self._sources):
                    raise InputError(f'config.phases[{i}].source has {spec}, which '
                                     'config.data.source does not list: add it there')
        specs = [spec for spec, _ in self._sources] + ([d.eval_source] if d.eval_source else [])
        records = [spec for spec in specs if spec.startswith('tfrecord:')
                   or spec.endswith(('.tfrecord', '.tfrecords'))]
        if records and d.add_tokens:
            raise InputError(
                f'config.data.add_tokens={d.add_tokens}, but the text in {records[0]} is cut into '
                'pieces already: give the text itself, or leave config.data.add_tokens empty')
        if not d.vocab_file and (made := config.init_checkpoint or ''.join(records[:1])):
            raise InputError(
                f'config.data.vocab_file is empty, and {made} brings no vocabulary: set '
                '--config.data.vocab_file to the vocab.txt that it was made with')
        if records or has_tensorflow():  # loaded before the first batch, which tf.data then makes
            with loading_tensorflow('pre-training from ready-made records'):
                from bert_jax.data.records import RecordFiles

        texts = sharing.open_texts(
            [spec for spec in specs if spec not in records], d.tfds_dir, d.text)
        self.places = sharing.Places.choose(d.dir, d.local_dir)
        path = as_path(d.vocab_file) if d.vocab_file else sharing.share_vocabulary(
            [texts[spec] for spec, _ in self._sources], d.vocab_size, d.lowercase, self.places,
            d.strip_accents)
        self.vocab_path = sharing.share_tokenizer(
            path, d.add_tokens, d.lowercase, self.places, d.strip_accents)
        self._tokenizer = load_tokenizer(self.vocab_path, d.lowercase)
        self.vocab_size = len(self._tokenizer.vocab)
        self._records = {
            spec: RecordFiles.open(spec.removeprefix('tfrecord:'), self.places.local)
            for spec in records}
        self.masks_held_out = d.eval_source not in self._records
        self.masks_by_rate = any(spec not in self._records for spec, _ in self._sources)
        self.stores: dict[str, TokenStore] = {}
        for spec, text in texts.items():
            store = self.stores[spec] = sharing.share_store(text, self._tokenizer, self.places)
            check_known(store.tokens[:_MAX_CHECKED_TOKENS], self._tokenizer, spec, self.vocab_path)
        for spec, examples in self._records.items():
            first = examples.read(np.arange(min(len(examples), 1000)))
            highest = first['input_ids'].max()
            if highest >= self.vocab_size:
                raise InputError(f'{spec} has the piece {highest}, {self.vocab_path} only '
                                 f'{self.vocab_size}: name the vocab.txt that it was made with')
            if maskless := (first['masked_lm_weights'].max(axis=1, initial=0) == 0).mean():
                hosts.say(f'warning: {maskless:.1%} of the first {len(first["input_ids"]):,} '
                          f'records of {spec} have no masked position, and teach no words')
        sizes = {spec: len(store.tokens) for spec, store in self.stores.items()} | {
            spec: len(x) * x.max_seq_length for spec, x in self._records.items()}
        self._by_size = {spec: size ** d.mix_power for spec, size in sizes.items()}
        self._sources = [(spec, weight * self._by_size[spec]) for spec, weight in self._sources]
        if d.mix_power:
            total = sum(weight for _, weight in self._sources)
            hosts.say('mixed: ' + ', '.join(
                f'{spec} {weight / total:.1%}' for spec, weight in self._sources))

    def identity(self) -> dict[str, str]:
        """Digests and counts by name, which must be equal on all hosts."""
        result = {'vocabulary': self._tokenizer.fingerprint}
        for spec, _ in self._sources:
            store = self.stores.get(spec)
            result[f'content of {spec}'] = (
                store.fingerprint if store else f'{len(self._records[spec])} records')
            if store and not self._config.data.eval_source:
                held_out = self._documents(store, held_out=True)
                result[f'held-out documents of {spec}'] = str(len(held_out))
        return result

    def frequency_loss(self) -> float | None:
        """Masked-LM loss of guessing by frequency, if known."""
        if not all(spec in self.stores for spec, _ in self._sources):
            return None
        return frequency_loss(
            [(self.stores[spec], weight) for spec, weight in self._sources], self.vocab_size)

    def repeated_share(self) -> float:
        """Share of sentences that are repeats, in the training text that has the largest share."""
        return max((repeated_share(self.stores[spec], self._documents(self.stores[spec]))
                    for spec, _ in self._sources if spec in self.stores), default=0.0)

    def training(
        self, max_seq_length: int, max_predictions_per_seq: int,
        source: Sequence[tuple[str, float]] = (), phase: int = 0, **masking: Any,
    ) -> Examples:
        """Rows of a phase's length and prediction slots, of all sources or as the phase mixes them.

        They are masked as the config says, except for fields of `MaskingRates` in `masking`.

        Args:
          max_seq_length, max_predictions_per_seq: of the phase.
          source: sources of the config with the phase's own weights; empty: all, as in the config.
          phase: number of a phase with its own `source`, to draw other rows than earlier phases.

        Raises:
          InputError: records that do not fit the phase, or too few documents.
        """
        lengths, parts = (max_seq_length, max_predictions_per_seq), list[Examples]()
        counted: list[tuple[str, PretrainExamples, Recipe]] = []
        first_seed, weights = self._config.seed + _PHASE_SEED_STRIDE * phase, list[float]()
        for seed, (spec, of_run) in enumerate(self._sources, first_seed):
            weight = dict(source).get(spec, 0) * self._by_size[spec] if source else of_run
            if not weight:
                continue
            weights.append(weight)
            if spec in self.stores:
                recipe = self._recipe(lengths, **masking)
                counted.append((spec, self._examples(spec, recipe, seed), recipe))
                parts.append(counted[-1][1])
                continue
            records = self._records[spec]
            if records.max_seq_length != max_seq_length:
                raise InputError(
                    f'{spec} has records of {records.max_seq_length} tokens, the phase has '
                    f'max_seq_length={max_seq_length}: set that to {records.max_seq_length}')
            parts.append(RecordExamples(records, seed, max_predictions_per_seq, name=spec))
        examples = _mixed(parts, weights, first_seed)
        hosts.say(f'training examples an epoch at length {max_seq_length}: '
                  f'{examples.num_examples:,}')
        if hosts.first():
            for spec, part, recipe in counted:
                self._say_counts(spec, part, recipe)
        return examples

    def _say_counts(self, spec: str, examples: PretrainExamples, recipe: Recipe) -> None:
        """Says what is in the rows of a source, and warns of what is lost."""
        counts, parts = examples.counts(), list[str]()
        if recipe.next_sentence:
            parts.append(f'{counts.random_next:.1%} of the pairs have a random next sentence')
        parts.append(f'{counts.used:.1%} of the tokens are in the rows of an epoch')
        if self._config.model.causal:  # no masks
            counts = counts._replace(masked=counts.wanted)
        else:
            parts.append(f'{counts.masked:.1%} of a row is masked')
        hosts.say(f'{spec}: {", ".join(parts)}')
        for line in row_warnings(counts, recipe, spec):
            hosts.say(f'warning: {line}')

    def held_out(
        self, max_seq_length: int, max_predictions_per_seq: int, **masking: Any
    ) -> Examples:
        """Rows to evaluate on: of `data.eval_source`, else of the held-out documents.

        They are masked as in training, except for fields of `MaskingRates` in `masking`.

        Raises:
          InputError: nothing to evaluate on, or records longer than the position table.
        """
        lengths, name = (max_seq_length, max_predictions_per_seq), self._config.data.eval_source
        if name in self._records:
            records, most = self._records[name], self._config.model.max_position_embeddings
            if records.max_seq_length > most:
                raise InputError(
                    f'config.data.eval_source={name} has records of {records.max_seq_length} '
                    'tokens, longer than the position table '
                    f'(config.model.max_position_embeddings={most})')
            return RecordExamples(records, _EVAL_SEED)
        specs = [name] if name else [spec for spec, _ in self._sources if spec in self.stores]
        recipe = self._recipe(lengths, **masking)
        parts = [self._examples(spec, recipe, _EVAL_SEED, True) for spec in specs]
        if not parts:
            raise InputError(
                'records have no documents to hold out: set config.data.eval_source to other '
                'records or text')
        return _mixed(parts, [1.0] * len(parts), _EVAL_SEED)

    def _documents(self, store: TokenStore, held_out: bool = False) -> np.ndarray:
        d = self._config.data
        if d.eval_source:  # then nothing is held out
            return store.documents
        if d.held_out == 0 and held_out:
            raise InputError(
                'config.data.held_out=0 leaves nothing to evaluate on: set it, or '
                'config.data.eval_source')
        return store.split_held_out(d.held_out, 2 if d.next_sentence else 1)[held_out]

    def _recipe(self, lengths: tuple[int, int], **masking: Any) -> Recipe:
        fields = {field.name: self._config.data[field.name] for field in dataclasses.fields(Recipe)}
        fields |= zip(('max_seq_length', 'max_predictions_per_seq'), lengths, strict=True)
        return Recipe(**fields | masking)

    def _examples(
        self, spec: str, recipe: Recipe, seed: int, held_out: bool = False
    ) -> PretrainExamples:
        store = self.stores[spec]
        name = f'the held-out part of {spec}' if (
            held_out and not self._config.data.eval_source) else spec
        return PretrainExamples(store, self._documents(store, held_out), recipe,
                                self._tokenizer.vocab, seed, name)


def _mixed(parts: Sequence[Examples], weights: Sequence[float], seed: int) -> Examples:
    return parts[0] if len(parts) == 1 else Mixture(parts, weights, seed)


def weighted_sources(source: Any, field: str = 'data.source') -> list[tuple[str, float]]:
    """`data.source`, or that of a phase, as (source, weight) pairs.

    Raises:
      InputError: it is neither a string nor a list of (source, weight).
    """
    try:
        pairs = [(spec, float(weight)) for spec, weight in (
            (item, 1.0) if isinstance(item, str) else item
            for item in ([source] if isinstance(source, str) else source))]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or not all(
            isinstance(spec, str) and spec and weight > 0 for spec, weight in pairs):
        raise InputError(
            f"config.{field}={source!r}: write a source, or a list of (source, weight) "
            "such as [('wiki.txt', 3), ('books.txt', 1)] with weights above 0")
    return pairs


class PretrainTask:
    """Pre-training: one of the kinds of `train.task.Task`."""

    head = 'pretraining'
    labels: tuple[str, ...] = ()
    frozen = ''
    keeps_best = False
    inference: Mapping[str, Any] = {}
    write_results = None  # the checkpoints are all there is

    def __init__(self, config: ConfigDict, scored: ScoredModel | None = None):
        del scored  # the data is opened in the same way for training and for evaluation
        if config.model.causal and config.data.next_sentence:
            raise InputError(
                'config.model.causal=True with config.data.next_sentence=True: [CLS] sees nothing '
                'of a row that is read from the left, set config.data.next_sentence=False')
        if config.model.causal and not all(phase.get('causal', True) for phase in config.phases):
            raise InputError('config.model.causal=True applies to all phases: leave it False, and '
                             "set 'causal': True in those that are read from the left")
        self._config = config
        self.data = TextData(config) if config.task == 'pretrain' else SyntheticData(
            config.model.vocab_size or config.data.vocab_size, config.seed)
        # Runs with another masking are also evaluated with BERT's: a harder masking has a higher
        # loss, however good the model is.
        standard = dataclasses.asdict(MaskingRates())
        alike = all(phase.get(name, config.data[name]) == value
                    for phase in config.phases or [{}] for name, value in standard.items())
        self._standard = {} if (
            alike or config.model.causal or not self.data.masks_held_out) else standard
        self.metric = 'lm_accuracy' if config.model.causal else (
            f"{'standard_' if self._standard else ''}mlm_accuracy")
        self.vocab_size: int = self.data.vocab_size
        self.vocab_path: Path | None = self.data.vocab_path
        self._examples = functools.cache(self.data.training)  # for `num_examples` and phases

    @property
    def num_examples(self) -> int | None:
        """Rows an epoch of the first phase; None if no duration is in epochs, to save planning."""
        c = self._config
        if 'epoch' not in str(flat_fields(c)):
            return None
        first = dict(c.phases[0]) if c.phases else {}
        length = first.get('max_seq_length', c.data.max_seq_length)
        slots = first.get('max_predictions_per_seq', c.data.max_predictions_per_seq)
        rate = first.get('masked_lm_prob', c.data.masked_lm_prob)
        return self._examples(
            length, slots or prediction_slots(length, rate), **_rows_of(first, 0)).num_examples

    def identity(self) -> dict[str, str]:
        return self.data.identity()

    @functools.cached_property
    def majority_baseline(self) -> dict[str, float]:
        """Metrics of guessing by word frequency; empty where the frequencies are not known."""
        loss, kind = self.data.frequency_loss(), 'lm' if self._config.model.causal else 'mlm'
        return {} if loss is None else {f'{kind}_loss': loss, f'{kind}_perplexity': math.exp(loss)}

    def make_head(self, model_config: ModelConfig) -> Pretraining:
        return Pretraining(model_config, next_sentence=self._config.data.next_sentence)

    def batch_shapes(
        self, model_config: ModelConfig, phase: dict[str, Any], mesh: Mesh
    ) -> dict[str, Any]:
        lengths = phase['max_seq_length'], phase['max_predictions_per_seq']
        plain, packed_rows = examples_lib.pretrain_spec(*lengths), phase['packed_rows']
        spec = packed_spec(*lengths) if packed_rows else plain
        shape: Any = functools.partial(jax.ShapeDtypeStruct, sharding=batch_sharding(mesh))
        return {
            name: {key: shape((rows, *feature.shape), feature.dtype)
                   for key, feature in spec.items()}
            for name, spec, rows in (
                ('train', _marked(spec, phase), packed_rows or phase['batch_size']),
                ('evaluation', plain, self._config.train.eval_batch_size))}

    def phase(
        self, head: Head, eval_step: EvalStep, phases: Sequence[dict[str, Any]], number: int,
        mesh: Mesh,
    ) -> Phase:
        train, phase = self._config.train, phases[number]
        batch_size, packed_rows = phase['batch_size'], phase['packed_rows']
        lengths = phase['max_seq_length'], phase['max_predictions_per_seq']
        num_rows, rows_of = packed_rows or batch_size, _rows_of(phase, number)

        # Made on first use, so that no epochs are planned for a phase that is over.
        @functools.cache
        def examples() -> Rows:
            unpacked = self._examples(*lengths, **rows_of)
            return PackedExamples(unpacked, batch_size, num_rows) if packed_rows else unpacked

        if self.data.masks_by_rate and not phase.get('causal', self._config.model.causal):
            rate = phase.get('masked_lm_prob', self._config.data.masked_lm_prob)
            if line := too_few_slots(*lengths, rate):
                where = f'config.phases[{number}]' if self._config.phases else 'config.data'
                hosts.say(f'warning: {where}.{line}')
        if packed_rows:
            examples()  # refuses too few rows before the run's first step
        masking = {name: x for name, x in rows_of.items() if name in ('masked_lm_prob', 'masking')}
        # A phase that masks less has fewer slots than BERT's masking needs.
        slots = max(lengths[1], prediction_slots(lengths[0], MaskingRates.masked_lm_prob))
        held_out = functools.cache(lambda: self.data.held_out(*lengths, **masking))
        standard_rows = functools.cache(
            lambda: self.data.held_out(lengths[0], slots, **self._standard))

        def batches(first_step: int) -> Iterator[Any]:
            local = local_rows(mesh, num_rows)
            for begin, num_steps in batches_of(phases, number, train.skip_steps, first_step):
                for batch in examples_lib.train_batches(
                        examples(), batch_size=num_rows, local=local, first_step=begin,
                        num_steps=num_steps):
                    yield to_global(mesh, _marked(batch, phase), num_rows, local)

        def scores(params: Any, rows: Examples) -> dict[str, float]:
            size = train.eval_batch_size
            local = local_rows(mesh, size)
            num = min(rows.num_frozen, train.max_eval_examples or rows.num_frozen)
            batches = examples_lib.eval_batches(
                rows, batch_size=size, local=local, num_examples=num)
            return evaluate(head, eval_step, params, (
                to_global(mesh, batch, size, local) for batch in batches))

        def evaluate_phase(params: Any) -> dict[str, float]:
            result = scores(params, held_out())
            if self._standard:
                standard = scores(params, standard_rows())
                result |= {f'standard_{name}': value for name, value in standard.items()
                           if name.startswith('mlm_')}
            return result

        start = sum(phase['steps'] for phase in phases[:number])
        return Phase(
            start=start, end=start + phase['steps'], batch_size=batch_size, batches=batches,
            evaluate=evaluate_phase,
            flops_per_sequence=step_flops(head.config, phase) / batch_size,
            name=f'length {lengths[0]}, batch {batch_size}'
            + (f' in {num_rows} rows' if packed_rows else '')
            + ''.join(f', {name} {phase[name]}' for name in PHASE_ROWS if name in phase))

    def make_gates(
        self, head: Head, phases: Sequence[dict[str, Any]], *, fresh: bool, settled: int
    ) -> Gates:
        guessing = math.log(head.config.vocab_size)
        if self._config.data.next_sentence and not phases[0].get('causal'):
            guessing += math.log(2)
        ends = list(itertools.accumulate(phase['steps'] for phase in phases))
        return Gates(
            chance=guessing if fresh else None,
            by_frequency=next(iter(self.majority_baseline.values()), None),
            settled=settled, phases=[end + 1 for end in ends],
            masked_from=max(end * phase.get('causal', False)
                            for end, phase in zip(ends, phases, strict=True)),
            repeated=self.data.repeated_share() if fresh else 0.0)

    def with_seed(self, seed: int) -> PretrainTask:
        if seed == self._config.seed:
            return self
        config = ConfigDict(self._config.copy_and_resolve_references())
        with config.unlocked():
            config.seed = seed
        return type(self)(config)  # other pairs and masks of the same token store


def too_few_slots(max_seq_length: int, max_predictions_per_seq: int, masked_lm_prob: float) -> str:
    """A line about slots that hold noticeably less than this share of a full row; else ''."""
    masked = max_predictions_per_seq / max_seq_length
    if masked >= _ENOUGH_SLOTS * masked_lm_prob:
        return ''
    return (
        f'max_predictions_per_seq={max_predictions_per_seq} masks {masked:.1%} of the tokens of a '
        f'full row of {max_seq_length}, not {masked_lm_prob:.1%}: leave it out, and there are '
        f'{prediction_slots(max_seq_length, masked_lm_prob)} slots')


def _rows_of(phase: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The options of its rows that a phase states, as arguments of `TextData.training`."""
    stated = {name: phase[name] for name in PHASE_ROWS if name in phase and name != 'causal'}
    if 'source' in stated:
        stated |= {'source': tuple(weighted_sources(stated['source'])), 'phase': number}
    return stated


def _marked(batch: Mapping[str, Any], phase: Mapping[str, Any]) -> Mapping[str, Any]:
    """A batch, or its shapes, with the mark of a `causal` phase for `Pretraining.for_batch`."""
    return dict(batch, causal_loss_mask=batch['example_weights']) if phase.get('causal') else batch


def step_flops(model: ModelConfig, phase: Mapping[str, Any], optimizer: str = '') -> float:
    """FLOPs of a training step of a phase, by the formula.

    Those of the optimizer are included if it is Muon; others' are negligible.
    """
    lengths = phase['max_seq_length'], phase['max_predictions_per_seq']
    pairs_a_row = packed_spec(*lengths)['cls_positions'].shape if phase['packed_rows'] else ()
    model = dataclasses.replace(model, causal=phase.get('causal', model.causal))
    a_row = Pretraining(model).flops(*lengths, *pairs_a_row)
    return (phase['packed_rows'] or phase['batch_size']) * a_row + (
        muon_flops(model) if optimizer == 'muon' else 0.0)


def run_flops(config: ConfigDict) -> float:
    """FLOPs of a whole pre-training, by the formula, and of the optimizer if that is Muon.

    Args:
      config: completed, with `model.vocab_size` set and durations in steps.
    """
    model = ModelConfig(**model_fields(config, 0))
    return sum(phase['steps'] * step_flops(model, phase, config.optimizer.name)
               for phase in phases_of(config))
