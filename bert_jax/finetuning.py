"""A downstream run's part of `experiment`: its data, its packed batches, its evaluation.

Every example is tokenized once at the start. A step holds exactly `batch_size` examples, packed
into as few rows as they need; the planner picks the row length and at most four numbers of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax.data.packing import Plan, Units, packed_batch, plan_steps
from bert_jax.data.pairs import Encode
from bert_jax.data.stateless import hash64, permute
from bert_jax.downstream import open_downstream
from bert_jax.errors import InputError
from bert_jax.files import Path, as_path
from bert_jax.model.flops import token_flops
from bert_jax.model.layers import BertConfig
from bert_jax.model.objectives import Objective
from bert_jax.predict.engine import Engine
from bert_jax.process import loading_tensorflow
from bert_jax.sharding import Layout, Mesh, local_rows, to_global
from bert_jax.tasks.base import EvalSet
from bert_jax.text.load import load_tokenizer
from bert_jax.train.loop import Phase

# Row lengths to choose from. A row holds at least the longest unit.
_ROW_LENGTHS = (32, 48, 64, 96, 128, 192, 256, 384, 512)


class FineTuningJob:
    """See `experiment.Job`."""

    keeps_best = True

    def __init__(self, config: ConfigDict):
        if config.phases:
            raise InputError(
                f'config.phases is for pre-training: config.task={config.task!r} has one phase'
            )
        if not config.data.vocab_file:
            raise InputError(
                'config.data.vocab_file is empty, and there is no config.init_checkpoint that '
                'brings one: a downstream task starts from a vocabulary'
            )
        self._config = config
        self.vocab_path: Path | None = as_path(config.data.vocab_file)
        tokenizer = load_tokenizer(self.vocab_path, config.data.lowercase)
        self.vocab_size = len(tokenizer.vocab)
        self._vocabulary = tokenizer.fingerprint
        self._downstream = d = open_downstream(config, tokenizer, _encoder(tokenizer))
        self.head, self.labels = d.head, d.labels
        self.metric, self.frozen = d.metric, d.frozen
        self.num_examples: int | None = len(d.train)
        self._best: tuple[dict[str, float], list[dict[str, np.ndarray]]] | None = None

    def identity(self) -> dict[str, str]:
        found = {
            'vocabulary': self._vocabulary,
            'training examples': self._downstream.train.digest(),
        }
        for i, eval_set in enumerate(self._sets):
            found[f'examples of set {i} {eval_set.name}'.rstrip()] = eval_set.units.digest()
        return found

    def task(self, bert: BertConfig) -> Objective:
        return self._downstream.make_task(bert)

    def phase(self, task: Any, phase: dict[str, Any], first: int, mesh: Mesh) -> Phase:
        config, d = self._config, self._downstream
        batch_size, steps = phase['batch_size'], phase['steps']
        plan = _train_plan(
            d.train, batch_size, steps, config.seed, task.config, config.data.packing,
            Layout(mesh).batch_shards * config.train.accumulation_steps,
        )
        if jax.process_index() == 0:
            print(
                f'{len(d.train):,} training examples; rows of {plan.row_length} in '
                f"{len(plan.shapes)} shapes ({', '.join(str(rows) for rows, _ in plan.shapes)} "
                f'rows); {100 * plan.padding:.1f} % padding', flush=True,
            )

        def batches(first_step: int) -> Iterator[dict[str, jax.Array]]:
            for step in range(first_step, steps):
                yield _device_batch(d.train, plan, step, mesh)

        self._predictors = self.predictors(task, mesh)

        def evaluate(params: Any) -> dict[str, float]:
            outputs = [predict(params) for predict in self._predictors[: len(d.evaluated)]]
            metrics = self.score(outputs)
            if self._best is None or metrics[self.metric] > self._best[0][self.metric]:
                self._best = metrics, outputs
            return metrics

        return Phase(
            start=first, steps=steps, batch_size=batch_size, batches=batches, evaluate=evaluate,
            flops_per_row=_train_flops(
                task.config, plan, cls_only=task.cls_only
            ) / (steps * batch_size),
            name=f'{config.task}, batch {batch_size}',
        )

    def finish(self, params: Any, metrics: dict[str, float], workdir: Path) -> None:
        """Writes the predictions of all sets."""
        # Those of the scored sets are at hand, unless the best evaluation was before a restart.
        found = self._best[1] if self._best is not None and self._best[0] == metrics else []
        outputs = [*found, *(predict(params) for predict in self._predictors[len(found) :])]
        if jax.process_index() == 0:
            self.write(outputs, workdir)

    @property
    def _sets(self) -> tuple[EvalSet, ...]:
        return (*self._downstream.evaluated, *self._downstream.predicted)

    def predictors(
        self, task: Objective, mesh: Mesh
    ) -> list[Callable[[Any], dict[str, np.ndarray]]]:
        """From parameters to the outputs of each set: first those that are scored."""
        engine = Engine(mesh, token_cost=functools.partial(token_flops, task.config))
        return [
            functools.partial(engine.outputs, task.outputs, units=eval_set.units)
            for eval_set in self._sets
        ]

    def score(self, outputs: Sequence[dict[str, np.ndarray]]) -> dict[str, float]:
        """Metrics by name, of all sets that are scored, from the outputs of each."""
        metrics: dict[str, float] = {}
        for eval_set, found in zip(self._downstream.evaluated, outputs, strict=False):
            assert eval_set.score is not None
            metrics |= {eval_set.name + name: x for name, x in eval_set.score(found).items()}
        return metrics

    def write(self, outputs: Sequence[dict[str, np.ndarray]], folder: Path) -> None:
        """Writes the predictions of all sets, from the outputs of each."""
        for eval_set, found in zip(self._sets, outputs, strict=True):
            eval_set.write(found, folder)


def _encoder(tokenizer: Any) -> Encode:
    """Tokenization of many texts at once, through TensorFlow Text, which is loaded here."""
    with loading_tensorflow('fine-tuning'):
        from bert_jax.data.pipeline import hide_accelerators
        from bert_jax.data.tokenize import make_encode

    hide_accelerators()
    return make_encode(tokenizer)


def _train_flops(config: BertConfig, plan: Plan, cls_only: bool) -> float:
    """Training FLOPs of all steps on real tokens; the heads are too small to count.

    Args:
      config: the encoder.
      plan: the steps.
      cls_only: the last layer is computed at [CLS] alone (`Bert`, `wanted_BxP`).
    """
    cost = token_flops(config, plan.row_length)
    if cls_only and not config.scan_layers:
        cost *= 1 - 1 / config.num_layers
        cost += 6 * config.hidden_size**2  # its queries, keys and values
    return 3.0 * plan.tokens * cost


def _train_plan(
    units: Units, batch_size: int, steps: int, seed: int, config: BertConfig, packing: bool,
    shards: int,
) -> Plan:
    """Epoch after epoch, each in an order of its own, `batch_size` units a step."""
    n = len(units)
    row_ids = np.arange(steps * batch_size, dtype=np.int64)
    order = np.empty_like(row_ids)
    for epoch in range(-(-len(row_ids) // n)):
        here = slice(epoch * n, min((epoch + 1) * n, len(row_ids)))
        order[here] = permute(row_ids[here] - epoch * n, n, int(hash64(seed, epoch)))
    if not packing:
        longest = int(units.lengths.max())
        rows = np.broadcast_to(np.arange(batch_size, dtype=np.int32), (steps, batch_size))
        return Plan(
            order.reshape(steps, batch_size), rows, longest, np.full(steps, batch_size), 1,
            int(units.lengths[order].sum()),
        )
    return plan_steps(
        units.lengths, order.reshape(steps, batch_size), row_lengths=_ROW_LENGTHS, shards=shards,
        token_cost=functools.partial(token_flops, config),
    )


def _device_batch(units: Units, plan: Plan, step: int, mesh: Mesh) -> dict[str, jax.Array]:
    num_rows = int(plan.num_rows[step])
    local = local_rows(mesh, num_rows)
    return to_global(mesh, packed_batch(units, plan, step, local), num_rows, local)
