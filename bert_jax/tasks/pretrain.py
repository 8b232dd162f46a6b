"""Pre-training as a task."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax.config import model_fields
from bert_jax.config.phases import batches_of, stretches
from bert_jax.config.phases import phases as phases_of
from bert_jax.data.dataset import Data, SyntheticData, TextData, TextOptions
from bert_jax.data.examples import BatchSpec, Rows, pretrain_spec
from bert_jax.data.masking import MaskingRates
from bert_jax.data.packing import PackedExamples, packed_spec
from bert_jax.data.pretrain import PretrainExamples, Recipe
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.flops import muon_flops
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path
from bert_jax.tasks.labelled import ScoredModel
from bert_jax.train.gates import Gates
from bert_jax.train.report import read_records
from bert_jax.train.sharding import Mesh, batch_sharding, local_rows, to_global
from bert_jax.train.step import Batch, EvalStep, Phase, evaluate

_NAMED = 8  # documents of a step


class PretrainTask:
    """See `labelled.Task`."""

    head = 'pretraining'
    labels: tuple[str, ...] = ()
    frozen = ''
    keeps_best = False
    inference: Mapping[str, Any] = {}

    def __init__(self, config: ConfigDict, scored: ScoredModel | None = None):
        del scored  # its data is opened alike for training and for evaluation
        if config.model.causal and config.data.next_sentence:
            raise InputError(
                'config.model.causal=True with config.data.next_sentence=True: [CLS] sees nothing '
                'of a row that is read from the left, set config.data.next_sentence=False'
            )
        self._config = config
        self.metric = 'lm_accuracy' if config.model.causal else 'mlm_accuracy'
        self.name: str = config.task
        self.data = open_data(config)
        self.vocab_size: int = self.data.vocab_size
        self.vocab_path: Path | None = self.data.vocab_path
        self._examples = functools.cache(self.data.training)  # by phases, for whoever asks first
        self._curve = read_curve(config.train.reference) if config.train.reference else []

    @property
    def num_examples(self) -> int | None:
        """Rows an epoch of the first phase, planned only where a duration asks for it."""
        c = self._config
        durations = [c.train.steps, c.train.eval_every, c.train.save_every, c.train.log_every,
                     c.optimizer.warmup, *(phase.get('steps', '') for phase in c.phases)]
        if not any('epoch' in str(value) for value in durations):
            return None
        first = dict(c.phases[0]) if c.phases else {}
        return self._examples(
            first.get('max_seq_length', c.data.max_seq_length),
            first.get('max_predictions_per_seq', c.data.max_predictions_per_seq),
        ).num_examples

    def identity(self) -> dict[str, str]:
        return self.data.identity()

    def objective(self, bert: ModelConfig) -> Pretraining:
        return Pretraining(bert, next_sentence=self._config.data.next_sentence)

    def batch_shapes(self, phase: dict[str, Any], mesh: Mesh) -> dict[str, Batch]:
        sharding = batch_sharding(mesh)
        lengths = phase['max_seq_length'], phase['max_predictions_per_seq']

        def shapes(spec: BatchSpec, rows: int) -> dict[str, Any]:
            return {
                name: jax.ShapeDtypeStruct((rows, *feature.shape), feature.dtype, sharding=sharding)
                for name, feature in spec.items()
            }

        plain = pretrain_spec(*lengths)
        return {
            'train': shapes(packed_spec(*lengths), phase['packed_rows'])
            if phase['packed_rows'] else shapes(plain, phase['batch_size']),
            'evaluation': shapes(plain, self._config.train.eval_batch_size),
        }

    def phase(
        self, objective: Any, eval_step: EvalStep, phases: Sequence[dict[str, Any]], number: int,
        mesh: Mesh,
    ) -> Phase:
        config, data, phase = self._config, self.data, phases[number]
        first = sum(phase['steps'] for phase in phases[:number])
        batch_size, length = phase['batch_size'], phase['max_seq_length']
        slots = phase['max_predictions_per_seq']
        num_rows = phase['packed_rows'] or batch_size

        # Made when first asked for: planning the epochs of a phase that is over would be wasted.
        @functools.cache
        def examples() -> Rows:
            unpacked = self._examples(length, slots)
            if not phase['packed_rows']:
                return unpacked
            return PackedExamples(unpacked, batch_size, num_rows)

        if phase['packed_rows']:
            examples()  # too few rows are refused before the first step of all
        held_out = functools.cache(lambda: data.held_out(length, slots))

        def batches(first_step: int) -> Iterator[Any]:
            local = local_rows(mesh, num_rows)
            for begin, num_steps in self._stretches(phases, number, first_step):
                for batch in data.train_batches(
                    examples(), batch_size=num_rows, local=local, first_step=begin,
                    num_steps=num_steps,
                ):
                    yield to_global(mesh, batch, num_rows, local)

        def evaluate_phase(params: Any) -> dict[str, float]:
            size = config.train.eval_batch_size
            local = local_rows(mesh, size)
            rows = held_out()
            num = rows.num_frozen
            if config.train.max_eval_examples:
                num = min(num, config.train.max_eval_examples)
            return evaluate(objective, eval_step, params, (
                to_global(mesh, batch, size, local)
                for batch in data.eval_batches(
                    rows, batch_size=size, local=local, num_examples=num)
            ))

        return Phase(
            start=first, steps=phase['steps'], batch_size=batch_size, batches=batches,
            evaluate=evaluate_phase, flops_per_row=step_flops(objective, phase) / batch_size,
            name=f'length {length}, batch {batch_size}'
            + (f' in {num_rows} rows' if phase['packed_rows'] else ''),
        )

    def _stretches(
        self, phases: Sequence[dict[str, Any]], number: int, first_step: int
    ) -> Iterator[tuple[int, int]]:
        """See `stretches`: the batches of a phase from one of its steps on."""
        return stretches(first_step, phases[number]['steps'],
                         *batches_of(phases, number, self._config.train.skip_steps))

    def gates(
        self, objective: Any, phases: Sequence[dict[str, Any]], *, fresh: bool, settled: int
    ) -> Gates:
        guessing = math.log(objective.config.vocab_size)
        if self._config.data.next_sentence:
            guessing += math.log(2)
        ends = itertools.accumulate(phase['steps'] for phase in phases)
        return Gates(
            chance=guessing if fresh else None, by_frequency=self.data.frequency_loss(),
            settled=settled, curve=self._curve,
            repeated=self.data.repeated_share() if fresh else 0.0,
            phases=[end + 1 for end in ends],
            rows_of=functools.partial(self._rows_of, phases),
        )

    def _rows_of(self, phases: Sequence[dict[str, Any]], step: int) -> str:
        """Names what a step was trained on."""
        ends = list(itertools.accumulate(phase['steps'] for phase in phases))
        number = bisect.bisect_left(ends, step)
        phase = phases[number]
        examples = self._examples(phase['max_seq_length'], phase['max_predictions_per_seq'])
        batch, _ = next(self._stretches(phases, number, step - 1 - (ends[number] - phase['steps'])))
        rows = np.arange(batch * phase['batch_size'], (batch + 1) * phase['batch_size'])
        epochs, places = rows // examples.num_examples, rows % examples.num_examples
        message = (f'row {places[0]:,} of epoch {epochs[0]} to row {places[-1]:,} of epoch '
                f'{epochs[-1]}')
        if isinstance(examples, PretrainExamples):
            result = np.unique(examples.documents(rows)).tolist()
            message += f", of documents {', '.join(map(str, result[:_NAMED]))}" + (
                ', ...' if len(result) > _NAMED else '')
        return message + '; '

    def with_seed(self, seed: int) -> PretrainTask:
        if seed == self._config.seed:
            return self
        config = ConfigDict(self._config.copy_and_resolve_references())
        with config.unlocked():
            config.seed = seed
        return PretrainTask(config)  # other pairs and masks of the same token store

    def finish(self, params: Any, metrics: dict[str, float], workdir: Path) -> dict[str, Any]:
        del params, metrics, workdir  # the checkpoints are all there is
        return {}


def read_curve(named: str) -> list[dict[str, Any]]:
    """The records of `train.reference`.

    Raises:
      InputError: there are none with an accuracy.
    """
    path = as_path(named)
    path = path / 'metrics.jsonl' if path.is_dir() else path
    records = read_records(path)
    if not any(name.endswith('accuracy') for record in records for name in record):
        raise InputError(f'config.train.reference={named}: {path} has no accuracies to compare '
                         'with: name a run directory, or the metrics.jsonl of one')
    return records


def step_flops(objective: Pretraining, phase: Mapping[str, Any]) -> float:
    """FLOPs of a training step of a phase, by the formula."""
    lengths = phase['max_seq_length'], phase['max_predictions_per_seq']
    if not phase['packed_rows']:
        return phase['batch_size'] * objective.flops(*lengths)
    (pairs_a_row,) = packed_spec(*lengths)['cls_positions'].shape
    return phase['packed_rows'] * objective.flops(*lengths, pairs_a_row)


def whole_step_flops(model: ModelConfig, phase: Mapping[str, Any], optimizer: str) -> float:
    """The same with those of the optimizer, where they are worth a mention: of Muon."""
    of_muon = muon_flops(model) if optimizer == 'muon' else 0.0
    return step_flops(Pretraining(model), phase) + of_muon


def run_flops(config: ConfigDict) -> float:
    """FLOPs of a whole pre-training, by the formula, and of Muon where it is.

    Args:
      config: completed, with `model.vocab_size` and steps in numbers.
    """
    model = ModelConfig(**model_fields(config, 0))
    return sum(phase['steps'] * whole_step_flops(model, phase, config.optimizer.name)
               for phase in phases_of(config))


def weighted_sources(source: Any) -> list[tuple[str, float]]:
    """`data.source` as (source, weight) pairs.

    Raises:
      InputError: it is neither a string nor a list of (source, weight).
    """
    if isinstance(source, str) and source:
        return [(source, 1.0)]
    pairs = []
    for item in source if isinstance(source, (list, tuple)) else [None]:
        if isinstance(item, str):
            item = (item, 1.0)
        if not (isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str)
                and isinstance(item[1], (int, float)) and item[1] > 0):
            raise InputError(
                f"config.data.source={source!r}: write a source, or a list of (source, weight) "
                "such as [('wiki.txt', 3), ('books.txt', 1)] with weights above 0"
            )
        pairs.append((item[0], float(item[1])))
    if not pairs:
        raise InputError('config.data.source is empty: name a source, such as a glob of text files')
    return pairs


def open_data(config: ConfigDict) -> Data:
    """The data of the config's task."""
    d = config.data
    if config.task == 'synthetic':
        return SyntheticData(config.model.vocab_size or d.vocab_size, config.seed)
    if config.init_checkpoint and not d.vocab_file:
        raise InputError(
            f'config.init_checkpoint={config.init_checkpoint} brings no vocabulary: set '
            '--config.data.vocab_file to the one that it was trained with'
        )
    return TextData(TextOptions(
        sources=tuple(weighted_sources(d.source)), eval_source=d.eval_source,
        held_out=d.held_out, vocab_file=d.vocab_file, add_tokens=d.add_tokens,
        vocab_size=d.vocab_size, lowercase=d.lowercase, shared_dir=d.dir,
        local_dir=d.local_dir, tfds_dir=d.tfds_dir,
        recipe=Recipe(
            short_seq_prob=d.short_seq_prob, random_next_prob=d.random_next_prob,
            next_sentence=d.next_sentence, min_sentences=d.min_sentences,
            num_maskings=d.num_maskings,
            masking=MaskingRates(
                d.masked_lm_prob, d.mask_rate, d.random_rate, d.masking
            ),
        ),
        max_positions=config.model.max_position_embeddings, seed=config.seed,
        progress=jax.process_index() == 0,
    ))
