"""Pre-training as a task: its phases, their evaluation, its alarms and its FLOPs.

What is learned is the head's matter: `Pretraining`, or one of a config file's own
(`tasks.opening.add_pretraining`), which says its metric, its loss by chance and its FLOPs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax.config import flat_fields, model_fields
from bert_jax.config.fields import FIELDS, pretraining_kind
from bert_jax.config.mixtures import weighted_sources
from bert_jax.config.phases import PHASE_OPTIONS, ROW_OPTIONS, batches_of, prediction_slots
from bert_jax.config.phases import phases as phases_of
from bert_jax.heads.base import Head
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.rows.examples import (
    BatchSpec,
    Examples,
    Rows,
    eval_batches,
    pretrain_spec,
    train_batches,
)
from bert_jax.rows.masking import MaskingRates
from bert_jax.rows.packed_examples import PackedExamples, packed_spec
from bert_jax.rows.prepared import Prepared
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.sharding import Mesh, batch_sharding, local_rows, to_global
from bert_jax.step.optimizers import update_flops
from bert_jax.step.step import evaluate
from bert_jax.tasks.handles import ScoredModel, given, prepared_text
from bert_jax.tasks.pretrain_data import SyntheticData, TextData
from bert_jax.train.phase import PhaseSteps
from bert_jax.watch.alarms import Alarms

_ENOUGH_SLOTS = 0.95  # of the masked share: google-research/bert has 76 for 512, which is 0.99


class PretrainTask:
    """Pre-training: one of the kinds of `train.task.Task`."""

    labels: tuple[str, ...] = ()
    frozen = ''
    keeps_best = False
    inference: Mapping[str, Any] = {}
    write_results = None  # the checkpoints are all there is

    def __init__(
        self, config: ConfigDict, scored: ScoredModel | None = None, *,
        trained_as: type[Head] = Pretraining, arguments: Mapping[str, Any] | None = None,
    ):
        """Opens the data.

        Args:
          config: of the run.
          scored: unused: the data is opened in the same way for training and for evaluation.
          trained_as: the head with its loss.
          arguments: of the head, beside the encoder's config.

        Raises:
          InputError: bad data, or a left-to-right model with what it cannot do.
        """
        _check_causal(config, trained_as)
        self._config = config
        self._trained_as = trained_as
        self._arguments = dict(arguments or {})
        self.head: str = trained_as.name
        self.data: TextData | SyntheticData
        if pretraining_kind(config.task) == 'pretrain':
            self._prepared: Prepared | None = prepared_text(config)
            text_data = TextData(config, self._prepared)
            text_data.check_held_out()
            self.data = text_data
        else:
            self._prepared = None
            vocab_size = config.model.vocab_size or config.data.vocab_size
            self.data = SyntheticData(vocab_size, config.seed)
        # BERT's masking, if the run is also evaluated with that; else {}.
        self.standard_masking: dict[str, Any] = {}
        if self.data.masks_held_out and not config.model.causal:
            self.standard_masking = _standard_masking(config)
        self.metric = trained_as.metric
        if self.standard_masking and self.metric.startswith('mlm_'):
            self.metric = f'standard_{self.metric}'
        if config.model.causal:
            self.metric = 'lm_accuracy'
        self.vocab_size: int = self.data.vocab_size
        self.vocab_path: Path | None = self.data.vocab_path
        # For `num_examples` and phases in turn. Rows of a phase that is over are not kept.
        self.training_rows = functools.lru_cache(maxsize=1)(self.data.training)

    @property
    def num_examples(self) -> int | None:
        """Rows an epoch of the first phase; None if no duration is in epochs, to save planning."""
        values = flat_fields(self._config)
        durations = [values[name] for name, field in FIELDS.items() if field.allowed == 'duration']
        if 'epoch' not in str([*durations, values['phases']]):
            return None
        data = self._config.data
        first: dict[str, Any] = {}
        if self._config.phases:
            first = dict(self._config.phases[0])
        length = first.get('max_seq_length', data.max_seq_length)
        slots = first.get('max_predictions_per_seq', data.max_predictions_per_seq)
        if not slots:
            rate = first.get('masked_lm_prob', data.masked_lm_prob)
            slots = prediction_slots(length, rate)
        batch_size = first.get('batch_size', self._config.train.batch_size)
        rows = self.training_rows(length, slots, batch_size=batch_size, **_rows_of(first, 0))
        return rows.num_examples

    def identity(self) -> dict[str, str]:
        return self.data.identity()

    @functools.cached_property
    def _frequency_loss(self) -> float | None:
        """The loss of guessing by word frequency; None where the frequencies are not known."""
        return self.data.frequency_loss()

    @functools.cached_property
    def majority_baseline(self) -> dict[str, float]:
        """Metrics of guessing by word frequency; empty where the frequencies are not known."""
        loss = self._frequency_loss
        if loss is None:
            return {}
        kind = 'mlm'
        if self._config.model.causal:
            kind = 'lm'
        return {f'{kind}_loss': loss, f'{kind}_perplexity': math.exp(loss)}

    def make_head(self, model_config: ModelConfig) -> Head:
        head = self._trained_as.of_pretraining(
            model_config, next_sentence=self._config.data.next_sentence)
        return dataclasses.replace(head, **self._arguments)

    def batch_shapes(
        self, model_config: ModelConfig, phase: dict[str, Any], mesh: Mesh
    ) -> dict[str, Any]:
        lengths = (phase['max_seq_length'], phase['max_predictions_per_seq'])
        plain = pretrain_spec(*lengths)
        trained = plain
        num_rows = phase['batch_size']
        if phase['packed_rows']:
            trained = packed_spec(*lengths)
            num_rows = phase['packed_rows']
        return {
            'train': _shapes(_marked(trained, phase), num_rows, mesh),
            'evaluation': _shapes(plain, self._config.train.eval_batch_size, mesh)}

    def rows(
        self, head: Head, phases: Sequence[dict[str, Any]], number: int, mesh: Mesh
    ) -> PhaseRows:
        phase = phases[number]
        flops = step_flops(head, phase) / phase['batch_size']
        rows = PhaseRows(self, self._config, phases, number, mesh, flops)
        self._warn_of_slots(phase, number)
        if phase['packed_rows']:
            _ = rows.examples  # refuses too few rows before the run's first step
            if number:
                rows.release()  # until the phase begins
        return rows

    def _warn_of_slots(self, phase: Mapping[str, Any], number: int) -> None:
        """Warns if a phase has too few slots for its masked positions."""
        is_causal = phase.get('causal', self._config.model.causal)
        if is_causal or not self.data.masks_by_rate:
            return
        rate = phase.get('masked_lm_prob', self._config.data.masked_lm_prob)
        line = too_few_slots(phase['max_seq_length'], phase['max_predictions_per_seq'], rate)
        if line:
            where = 'config.data'
            if self._config.phases:
                where = f'config.phases[{number}]'
            hosts.say(f'warning: {where}.{line}')

    def make_alarms(
        self, head: Head, phases: Sequence[dict[str, Any]], *, fresh: bool, settled: int
    ) -> Alarms:
        first_steps: list[int] = []  # after each phase
        masked_from = 0
        end = 0
        for phase in phases:
            end += phase['steps']
            first_steps.append(end + 1)
            if phase.get('causal', False):
                masked_from = end
        chance = None
        repeated = 0.0
        if fresh:
            chance = _of_phase(head, phases[0]).loss_of_chance()
            repeated = self.data.repeated_share()
        return Alarms(
            chance=chance, by_frequency=self._frequency_loss,
            settled=settled, phases=first_steps, masked_from=masked_from, repeated=repeated)

    def run_flops(self) -> float:
        """FLOPs of the whole run, by the head's formula, and of the optimizer.

        `model.vocab_size` is set, and durations are in steps.
        """
        config = self._config
        head = self.make_head(ModelConfig(**model_fields(config, 0)))
        flops = 0.0
        for phase in phases_of(config):
            flops += phase['steps'] * step_flops(head, phase, config.optimizer.name)
        return flops

    def with_seed(self, seed: int) -> PretrainTask:
        if seed == self._config.seed:
            return self
        config = ConfigDict(self._config.copy_and_resolve_references())
        with config.unlocked():
            config.seed = seed
        # Other pairs and masks of the same token store.
        with given(self._prepared):
            return type(self)(config, trained_as=self._trained_as, arguments=self._arguments)


def _shapes(
    spec: BatchSpec, num_rows: int, mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of a batch, sharded over the mesh."""
    shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for name, feature in spec.items():
        shapes[name] = jax.ShapeDtypeStruct(
            (num_rows, *feature.shape), feature.dtype, sharding=batch_sharding(mesh))
    return shapes


def _check_causal(config: ConfigDict, trained_as: type[Head]) -> None:
    """Refuses a left-to-right model with what it cannot do."""
    is_any_causal = config.model.causal or any(phase.get('causal') for phase in config.phases)
    if is_any_causal and not trained_as.left_to_right:
        raise InputError(
            f'config.task={config.task!r} has no loss for rows that are read from the left: set '
            'config.model.causal=False, and no phase to causal')
    if not config.model.causal:
        return
    if config.data.next_sentence:
        raise InputError(
            'config.model.causal=True with config.data.next_sentence=True: [CLS] sees nothing '
            'of a row that is read from the left, set config.data.next_sentence=False')
    if not all(phase.get('causal', True) for phase in config.phases):
        raise InputError('config.model.causal=True applies to all phases: leave it False, and '
                         "set 'causal': True in those that are read from the left")


def _standard_masking(config: ConfigDict) -> dict[str, Any]:
    """BERT's masking; {} if all phases are masked so.

    Runs with another masking are also evaluated with BERT's: a harder masking has a higher loss,
    however good the model is.
    """
    standard = dataclasses.asdict(MaskingRates())
    for phase in config.phases or [{}]:
        of_phase = {name: phase.get(name, config.data[name]) for name in standard}
        if of_phase != standard:
            return standard
    return {}


@dataclasses.dataclass(eq=False)
class PhaseRows:
    """The rows that are trained on and evaluated in one phase: a kind of `train.phase.Rows`.

    Rows are planned on first use, so that no epochs are planned for a phase that is over.

    Attributes:
      task: whose rows they are.
      config: of the run.
      phases, number, mesh: as for `train.task.Task.rows`.
      flops_per_sequence: of a step, divided by the phase's `batch_size`.
    """

    task: PretrainTask
    config: ConfigDict
    phases: Sequence[dict[str, Any]]
    number: int
    mesh: Mesh
    flops_per_sequence: float

    def __post_init__(self) -> None:
        self.phase = self.phases[self.number]
        self._length = self.phase['max_seq_length']
        self._slots = self.phase['max_predictions_per_seq']
        self._num_rows = self.phase['packed_rows'] or self.phase['batch_size']
        self._options = _rows_of(self.phase, self.number)

    @property
    def name(self) -> str:
        """For messages: the length, the batch, and what else the phase states."""
        parts = [f'length {self._length}', f"batch {self.phase['batch_size']}"]
        if self.phase['packed_rows']:
            parts[-1] += f' in {self._num_rows} rows'
        for name in PHASE_OPTIONS:
            if name in self.phase:
                parts.append(f'{name} {self.phase[name]}')
        return ', '.join(parts)

    @functools.cached_property
    def examples(self) -> Rows:
        """The training rows."""
        rows = self.task.training_rows(
            self._length, self._slots, batch_size=self.phase['batch_size'], **self._options)
        if self.phase['packed_rows']:
            packed = PackedExamples(rows, self.phase['batch_size'], self._num_rows)
            hosts.say(f'phase {self.number + 1}: {packed.summary()}')
            return packed
        return rows

    def release(self) -> None:
        """Forgets the training rows with their plans; they are planned again if they are used."""
        self.__dict__.pop('examples', None)
        self.task.training_rows.cache_clear()

    @functools.cached_property
    def _held_out(self) -> Examples:
        """Rows to evaluate on, masked as the phase's."""
        masking: dict[str, Any] = {}
        for name in ('masked_lm_prob', 'masking'):
            if name in self._options:
                masking[name] = self._options[name]
        rows = self.task.data.held_out(self._length, self._slots, **masking)
        scored = self._num_scored(rows)
        if scored < rows.num_frozen:
            hosts.say(f'evaluated on {scored:,} of {rows.num_frozen:,} held-out rows, always the '
                      'same ones; --config.train.max_eval_examples=0 takes all')
        return rows

    @functools.cached_property
    def _held_out_standard(self) -> Examples:
        """Rows to evaluate on, masked as BERT's."""
        standard = self.task.standard_masking
        # A phase that masks less has fewer slots than BERT's masking needs.
        needed = prediction_slots(self._length, standard['masked_lm_prob'])
        return self.task.data.held_out(self._length, max(self._slots, needed), **standard)

    def batches(self, first_step: int) -> Iterator[Any]:
        """Device batches from a step of the phase on."""
        local = local_rows(self.mesh, self._num_rows)
        skipped = self.config.train.skip_steps
        for begin, num_steps in batches_of(self.phases, self.number, skipped, first_step):
            batches = train_batches(
                self.examples, batch_size=self._num_rows, local=local, first_step=begin,
                num_steps=num_steps)
            for batch in batches:
                yield to_global(self.mesh, _marked(batch, self.phase), self._num_rows, local)
        self.release()

    def scores(self, steps: PhaseSteps, params: Any) -> dict[str, float]:
        """Metrics of held-out rows; those with BERT's masking begin with `standard_`."""
        result = self._scores_of(self._held_out, steps, params)
        if self.task.standard_masking:
            of_standard = self._scores_of(self._held_out_standard, steps, params)
            for name, value in of_standard.items():
                if name.startswith('mlm_'):
                    result[f'standard_{name}'] = value
        return result

    def _num_scored(self, rows: Examples) -> int:
        """How many of the held-out rows an evaluation takes."""
        most = self.config.train.max_eval_examples
        if not most:
            return rows.num_frozen
        return min(rows.num_frozen, most)

    def _scores_of(self, rows: Examples, steps: PhaseSteps, params: Any) -> dict[str, float]:
        train = self.config.train
        local = local_rows(self.mesh, train.eval_batch_size)
        batches = eval_batches(
            rows, batch_size=train.eval_batch_size, local=local,
            num_examples=self._num_scored(rows))
        on_devices = (
            to_global(self.mesh, batch, train.eval_batch_size, local) for batch in batches)
        return evaluate(steps.head, steps.evaluation, params, on_devices)


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
    stated: dict[str, Any] = {}
    for name in ROW_OPTIONS:
        if name in phase:
            stated[name] = phase[name]
    if 'source' in stated:
        stated['source'] = tuple(weighted_sources(stated['source']))
        stated['phase'] = number
    return stated


def _marked(batch: Mapping[str, Any], phase: Mapping[str, Any]) -> Mapping[str, Any]:
    """A batch, or its shapes, with the mark of a `causal` phase for `Pretraining.for_batch`."""
    if not phase.get('causal'):
        return batch
    return {**batch, 'causal_loss_mask': batch['example_weights']}


def _of_phase(head: Head, phase: Mapping[str, Any]) -> Head:
    """The head in a phase, which may read rows left to right."""
    causal = phase.get('causal', head.config.causal)
    return dataclasses.replace(head, config=dataclasses.replace(head.config, causal=causal))


def step_flops(head: Head, phase: Mapping[str, Any], optimizer: str = '') -> float:
    """FLOPs of a training step of a phase: the head's, and the optimizer's if that is named."""
    lengths = (phase['max_seq_length'], phase['max_predictions_per_seq'])
    pairs_a_row: tuple[int, ...] = ()
    if phase['packed_rows']:
        pairs_a_row = packed_spec(*lengths)['cls_positions'].shape
    flops_a_row = _of_phase(head, phase).flops(*lengths, *pairs_a_row)
    num_rows = phase['packed_rows'] or phase['batch_size']
    return num_rows * flops_a_row + update_flops(optimizer, head.config)
