"""A downstream run's part of `experiment`: its data, its packed batches, its evaluation.

Every example is tokenized once at the start. A step holds exactly `batch_size` examples, packed
into as few rows as they need; the planner picks the row length and at most four numbers of rows.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from bert_jax.data.glue import (
    GLUE_TASKS,
    GlueExamples,
    from_tfds,
    glue_files,
    glue_task,
    read_glue,
    tfds_split,
)
from bert_jax.data.packing import Plan, Units, packed_batch, plan_once, plan_steps, unpack
from bert_jax.data.pairs import Encode
from bert_jax.data.stateless import hash64, permute
from bert_jax.errors import InputError
from bert_jax.model.layers import BertConfig
from bert_jax.process import quiet_stderr
from bert_jax.sharding import Layout, Mesh, local_rows, to_global
from bert_jax.tasks.base import Downstream, DownstreamTask, EvalSet
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.conll import open_conll
from bert_jax.tasks.glue import open_glue
from bert_jax.tasks.squad import open_squad
from bert_jax.tasks.swag import open_swag
from bert_jax.text.load import Tokenizer, load_tokenizer
from bert_jax.train.loop import Phase
from bert_jax.train.report import duration

GLUE = tuple(name for name in GLUE_TASKS if name != 'ax')  # that has no training set
DOWNSTREAM_TASKS = (*GLUE, 'squad_v1', 'squad_v2', 'swag', 'conll')
# Row lengths to choose from. A row holds at least the longest unit.
_ROW_LENGTHS = (32, 48, 64, 96, 128, 192, 256, 384, 512)
_EVAL_TOKENS = 1 << 13  # tokens of an evaluation batch, a device


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
        self.vocab_path: Path | None = Path(config.data.vocab_file).expanduser()
        tokenizer = load_tokenizer(self.vocab_path, config.data.lowercase)
        self.vocab_size = len(tokenizer.vocab)
        self._downstream = d = open_downstream(config, tokenizer, _encoder(tokenizer))
        self.head, self.labels = d.head, d.labels
        self.metric, self.frozen = d.metric, d.frozen
        self.num_examples: int | None = len(d.train)
        self._best: tuple[dict[str, float], list[dict[str, np.ndarray]]] | None = None

    def task(self, bert: BertConfig) -> DownstreamTask:
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
                task.config, plan, cls_only=isinstance(task, Classification)
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

    def predictors(self, task: DownstreamTask, mesh: Mesh) -> list[Predictor]:
        """From parameters to the outputs of each set: first those that are scored."""
        return [Predictor(task, eval_set.units, mesh) for eval_set in self._sets]

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


def open_downstream(config: ConfigDict, tokenizer: Tokenizer, encode: Encode) -> Downstream:
    """Reads and tokenizes the data of a downstream task.

    Raises:
      InputError: whatever is wrong with the data.
    """
    d = config.data
    special = {'cls_id': tokenizer.vocab.cls_id, 'sep_id': tokenizer.vocab.sep_id}
    if config.task in GLUE:
        return open_glue(
            config.task, functools.partial(_read_glue, config), encode,
            max_length=d.max_seq_length, **special,
        )
    if config.task == 'swag':
        return open_swag(
            _source(config, 'a folder of SWAG files, or one file in its style'), encode,
            max_length=d.max_seq_length, max_malformed=d.max_malformed, **special,
        )
    if config.task == 'conll':
        return open_conll(
            _source(config, 'the folder with eng.train and eng.testa'), encode,
            features=config.model.features, max_length=d.max_seq_length,
            document_context=d.document_context,
            unk_id=tokenizer.vocab.unk_id, max_malformed=d.max_malformed, **special,
        )
    version = config.task.removeprefix('squad_')
    train_files, eval_file = _squad_files(config, version)
    return open_squad(
        version, train_files, eval_file, encode, vocab=tokenizer.vocab, lowercase=d.lowercase,
        max_length=d.max_seq_length, doc_stride=d.doc_stride,
        max_query_length=d.max_query_length, max_malformed=d.max_malformed,
    )


def _squad_files(config: ConfigDict, version: str) -> tuple[list[str], str]:
    """Training files and the file to score, from `data.source` and `data.eval_source`."""
    number = {'v1': '1.1', 'v2': '2.0'}[version]
    source = config.data.source
    sources = [source] if isinstance(source, str) else list(source)
    meaning = (
        f'the folder with train-v{number}.json and dev-v{number}.json, or a training file (or a '
        'list of them) with config.data.eval_source'
    )
    if not sources or not all(isinstance(s, str) and s and ':' not in s for s in sources):
        raise InputError(
            f'config.data.source={source!r}: config.task={config.task!r} needs {meaning}'
        )
    paths = [Path(s).expanduser() for s in sources]
    eval_source = config.data.eval_source
    if len(paths) == 1 and paths[0].is_dir():
        folder = paths[0]

        def find(part: str) -> str:
            for name in (f'{part}-v{number}.json', f'{part}-v{number}.json.gz'):
                if (folder / name).exists():
                    return str(folder / name)
            raise InputError(f'{folder} has no {part}-v{number}.json, plain or .gz: name {meaning}')

        return [find('train')], eval_source or find('dev')
    if not eval_source:
        raise InputError('config.data.eval_source is empty: name the file to evaluate on')
    return [str(path) for path in paths], str(Path(eval_source).expanduser())


def _read_glue(config: ConfigDict, name: str, split: str) -> GlueExamples | None:
    """A split from the folder `data.source`; None where it has no such file."""
    if config.data.source == 'tfds:glue':
        with quiet_stderr():
            from bert_jax.data.corpus import tfds_records
        records = tfds_records(*tfds_split(name, split), config.data.tfds_dir)
        return from_tfds(name, split, records)
    folder = _source(config, f'the folder of the benchmark, with {glue_task(name).folder}/ in it')
    needed = name == config.task and split == 'train'  # is read in any case, or refused by name
    if not needed and not glue_files(name, folder, split):
        return None
    return read_glue(name, folder, split, max_malformed=config.data.max_malformed)


def _source(config: ConfigDict, meaning: str) -> str:
    """`data.source`, which has to be one path.

    Raises:
      InputError: it is something else, or pre-training's default.
    """
    source = config.data.source
    if not isinstance(source, str) or not source or source.startswith('docs:'):
        raise InputError(
            f'config.data.source={source!r}: config.task={config.task!r} needs {meaning}'
        )
    return str(Path(source).expanduser())


def _encoder(tokenizer: Any) -> Encode:
    """Tokenization of many texts at once, through TensorFlow Text, which is loaded here."""
    with quiet_stderr():
        from bert_jax.data.pipeline import hide_accelerators
        from bert_jax.data.tokenize import make_encode

    hide_accelerators()
    return make_encode(tokenizer)


def _token_cost(config: BertConfig, row_length: int) -> float:
    """Forward FLOPs of a token in a row of `row_length` (see `model.flops`)."""
    c = config
    per_layer = 8 * c.hidden_size**2 + 4 * c.hidden_size * c.intermediate_size
    return float(c.num_layers * (per_layer + 4 * row_length * c.hidden_size))


def _train_flops(config: BertConfig, plan: Plan, cls_only: bool) -> float:
    """Training FLOPs of all steps on real tokens; the heads are too small to count.

    Args:
      config: the encoder.
      plan: the steps.
      cls_only: the last layer is computed at [CLS] alone (`Bert`, `wanted_BxP`).
    """
    cost = _token_cost(config, plan.row_length)
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
        token_cost=functools.partial(_token_cost, config),
    )


def _device_batch(units: Units, plan: Plan, step: int, mesh: Mesh) -> dict[str, jax.Array]:
    num_rows = int(plan.num_rows[step])
    local = local_rows(mesh, num_rows)
    return to_global(mesh, packed_batch(units, plan, step, local), num_rows, local)


class Predictor:
    """A task's outputs for a whole set, in the order of its units."""

    def __init__(self, task: DownstreamTask, units: Units, mesh: Mesh):
        self._units, self._mesh = units, mesh
        shards = Layout(mesh).batch_shards
        longest = int(units.lengths.max())
        row_length = max(longest, min(256, 4 * longest))
        config: Any = task.config  # type: ignore[attr-defined]
        self._plan = plan_once(
            units.lengths, max_rows=max(1, _EVAL_TOKENS // row_length) * shards, shards=shards,
            row_lengths=(row_length,), token_cost=functools.partial(_token_cost, config),
        )
        self._outputs = jax.jit(task.outputs, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self, params: Any) -> dict[str, np.ndarray]:
        """Arrays [n, ...] a unit and [T, ...] a token, by name."""
        collected: dict[str, np.ndarray] = {}
        pending: tuple[int, Any] | None = None

        def collect(step: int, outputs: Any) -> None:
            unpack(self._units, self._plan, step, jax.device_get(outputs), collected)

        started = shown = time.monotonic()
        total = len(self._plan.units)
        for step in range(total):
            now = time.monotonic()
            if now - shown > 10 and jax.process_index() == 0:
                left = (now - started) / step * (total - step)
                print(f'predicting: {step / total:.0%}  eta {duration(left)}', flush=True)
                shown = now
            batch = _device_batch(self._units, self._plan, step, self._mesh)
            outputs = self._outputs(params, batch)
            if pending is not None:
                collect(*pending)  # one step late, so that the device always has work
            pending = step, outputs
        if pending is not None:
            collect(*pending)
        return collected
