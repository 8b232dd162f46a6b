"""A task on labelled examples: packed batches, scores, predictions.

Every example is tokenized once at the start. A step holds exactly `batch_size` examples, packed
into as few rows as they need; the planner picks the row length and at most four row counts.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax.answers.engine import Engine, Outputs
from bert_jax.config.choices import GOOGLE, TEMPLATE
from bert_jax.heads import HEADS
from bert_jax.heads.base import Head
from bert_jax.model.flops import row_cost, token_flops
from bert_jax.model.layers import ModelConfig
from bert_jax.rows.packing import Plan, Planner, Units, packed_batch
from bert_jax.rows.sequences import Encode, Sequences
from bert_jax.rows.stateless import hash64, permute
from bert_jax.runtime import hosts
from bert_jax.runtime.checksum import not_finite
from bert_jax.runtime.files import Path, write_whole
from bert_jax.runtime.hosts import say
from bert_jax.sharding import Layout, Mesh, batch_sharding, local_rows, to_global
from bert_jax.tasks.handles import prepared_text
from bert_jax.text.coverage import check_known
from bert_jax.text.frames import Frame
from bert_jax.text.tokenizer import Tokenizer, Tokens
from bert_jax.train.phase import PhaseSteps
from bert_jax.weights.inference_settings import frame_of

Results = tuple[dict[str, float], dict[str, str]]  # metrics, contents of files, by name
_KEPT_TEXTS = 200  # about so many of a table, for a look at their words (`SampledEncode`)
_KEPT_CHARACTERS = 2000  # of each
# Row lengths to choose from. A row holds at least the longest unit.
_ROW_LENGTHS = (32, 48, 64, 96, 128, 192, 256, 384, 512)


class Tokenization(NamedTuple):
    """How a run makes sequences of texts.

    Attributes:
      path: of the vocabulary file.
      tokenizer: of this vocabulary.
      encode: tokenizes many texts.
      frame: what is put around and between texts, and how they are cut.
    """

    path: Path
    tokenizer: Tokenizer
    encode: SampledEncode
    frame: Frame


class SampledEncode:
    """Tokenizes many texts, and keeps a sample of those that it receives first.

    Attributes:
      texts: the sample, for a look at its words (`check_known`): texts at equal distances, each cut
        to its beginning.
    """

    def __init__(self, encode: Encode):
        """Takes the function that tokenizes."""
        self._encode = encode
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """As of `Encode`."""
        self.keep(texts)
        return self._encode(texts)

    def keep(self, texts: Sequence[str]) -> None:
        """Takes the sample from these texts, unless there is one already."""
        if not self.texts:
            step = 1 + len(texts) // _KEPT_TEXTS
            self.texts = [text[:_KEPT_CHARACTERS] for text in texts[::step]]


def warn_of_cut(sequences: Sequences, max_length: int) -> None:
    """Warns if most texts are cut, so that a model sees only a part of each."""
    num_texts = len(sequences)
    if sequences.num_cut > num_texts / 2:
        which = 'all' if sequences.num_cut == num_texts else f'{sequences.num_cut:,} of'
        say(f'warning: {which} {num_texts:,} texts are cut at config.data.max_seq_length='
            f'{max_length}: raise it, if the model has more positions')


def open_tokenization(config: ConfigDict) -> Tokenization:
    """The tokenizer of a downstream run.

    Raises:
      InputError: the config names no vocabulary, or one that cannot be read.
    """
    text = prepared_text(config)
    frame = frame_of(
        text.tokenizer.vocab, _framing(config), config.model.type_vocab_size or 0,
        config.init_checkpoint or 'the model')
    return Tokenization(text.vocab_path, text.tokenizer, SampledEncode(text.encode), frame)


def _framing(config: ConfigDict) -> dict[str, str]:
    """How texts become sequences, in the words of `Weights.inference`."""
    data = config.data
    return {
        'truncation': data.truncation or GOOGLE, 'token_types': data.token_types or TEMPLATE}



class EvalSet(NamedTuple):
    """Examples that are predicted as a whole.

    Attributes:
      name: prefix of its metrics, empty for the main set.
      units: its examples.
      results: from outputs in the order of `units` ([n, ...] and [T, ...]) to metrics by name (none
        where the examples have no labels; NaN: it is undefined) and the content of files of
        predictions by name.
      remarks: from outputs to lines that an evaluation says about them.
    """

    name: str
    units: Units
    results: Callable[[Outputs], Results]
    remarks: Callable[[Outputs], Sequence[str]] = lambda outputs: ()


@dataclasses.dataclass(eq=False)
class LabelledTask:
    """A task on labelled examples: its data, its loss, and a run's evaluation and files.

    It is one of the kinds of `train.task.Task`.

    Attributes:
      config: of the run.
      tokenization: its vocabulary and tokenizer.
      train: what is trained on; None where the model is only evaluated.
      evaluated: sets scored during training.
      metric: name of the metric that picks the best evaluation.
      head: what kind of head the model has: one of `heads.HEADS`, or the name of `trained_as`.
      labels: names of its outputs by id, if they have any.
      predicted: further sets, predicted at the end.
      arguments: of the head, beside the encoder's config.
      trained_as: a head with another loss, perhaps with parameters of its own; None: the head as
        it is.
      frozen: a pattern like `optimizer.frozen`, of further parameters that are never trained.
      inference: how predictions are made, for config.json.
      tuned_metrics: names of metrics that are also kept in `inference`, as SQuAD's threshold is.
      majority_baseline: metrics of the main set if every prediction is the most frequent training
        label, or, with any number of labels per example, none.
      keeps_best: whether the parameters of the best evaluation are kept.
      num_examples: examples an epoch; None where nothing is trained.
    """

    config: ConfigDict
    tokenization: Tokenization
    train: Units | None
    evaluated: tuple[EvalSet, ...]
    metric: str
    head: str
    labels: tuple[str, ...] = ()
    predicted: tuple[EvalSet, ...] = ()
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    trained_as: type[Head] | None = None
    frozen: str = ''
    inference: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tuned_metrics: tuple[str, ...] = ()
    majority_baseline: Mapping[str, float] = dataclasses.field(default_factory=dict)

    keeps_best = True
    make_alarms = None  # a run is short and soon has scores, so no early warnings are needed

    def __post_init__(self) -> None:
        tokenizer = self.tokenization.tokenizer
        self.vocab_path: Path | None = self.tokenization.path
        self.vocab_size = len(tokenizer.vocab)
        self.inference = {
            'max_seq_length': self.config.data.max_seq_length, **_framing(self.config),
            **self.inference}
        self.num_examples = None
        if self.train is not None:
            self.num_examples = len(self.train)
            check_known(
                self.train.sequences.ids, tokenizer,
                f'config.data.source={self.config.data.source}', self.tokenization.path,
                self.tokenization.encode.texts)
        self._seed = self.config.seed
        self._plans: dict[tuple[Any, ...], Plan] = {}  # see `_plan`
        # Shared by all runs of a sweep (`with_seed`), so that it is compiled once.
        self._engine = functools.cache(self._make_engine)

    def _make_engine(self, mesh: Mesh, model_config: ModelConfig) -> Engine:
        max_steps = 1 if self.config.debug else None
        token_cost = functools.partial(row_cost, model_config)
        return Engine(mesh, token_cost=token_cost, max_steps=max_steps)

    def with_seed(self, seed: int) -> Self:
        """The task of a run that differs in its seed (and rate) only, on the same data."""
        task = copy.copy(self)
        task._seed = seed
        task._plans = {}
        return task

    @property
    def sets(self) -> tuple[EvalSet, ...]:
        """All that is predicted; what is scored comes first."""
        return (*self.evaluated, *self.predicted)

    def identity(self) -> dict[str, str]:
        """Digests of content and counts by name, which must be equal on all hosts."""
        result = {'vocabulary': self.tokenization.tokenizer.fingerprint}
        if self.train is not None:
            result['training examples'] = self.train.digest()
        for i, eval_set in enumerate(self.sets):
            name = f'examples of set {i} {eval_set.name}'.rstrip()
            result[name] = eval_set.units.digest()
        return result

    def make_head(self, model_config: ModelConfig) -> Head:
        """The head that is trained on an encoder."""
        return self.head_class(model_config, **self.arguments)

    @property
    def head_class(self) -> type[Head]:
        """The class of the head that is trained, with its loss."""
        return self.trained_as or HEADS[self.head]

    def batch_shapes(
        self, model_config: ModelConfig, phase: dict[str, Any], mesh: Mesh
    ) -> dict[str, Any]:
        """Shapes of the largest training batch; predictions have their own shapes (`Engine`)."""
        assert self.train is not None
        plan = self._plan(model_config, phase, mesh)
        num_rows = int(plan.num_rows.max())
        one_row = packed_batch(self.train, plan, 0, np.arange(1))
        shapes: dict[str, jax.ShapeDtypeStruct] = {}
        for name, array in one_row.items():
            shapes[name] = jax.ShapeDtypeStruct(
                (num_rows, *array.shape[1:]), array.dtype, sharding=batch_sharding(mesh))
        return {'train': shapes}

    def rows(
        self, head: Head, phases: Sequence[dict[str, Any]], number: int, mesh: Mesh
    ) -> PlannedRows:
        """The rows that are trained on and evaluated in the one phase of a run."""
        (phase,) = phases
        assert self.train is not None
        plan = self._plan(head.config, phase, mesh)
        _say_plan(plan, len(self.train))
        flops = plan.tokens * head.token_flops(plan.row_length)
        return PlannedRows(
            self, mesh, self.train, plan,
            flops_per_sequence=flops / (phase['steps'] * phase['batch_size']))

    def _plan(self, model_config: ModelConfig, phase: dict[str, Any], mesh: Mesh) -> Plan:
        """The plan of all steps, which is made once: shapes and rows both need it."""
        steps = phase['steps']
        batch_size = phase['batch_size']
        shards = Layout(mesh).batch_shards * self.config.train.accumulation_steps
        key = (model_config, steps, batch_size, shards)
        if key not in self._plans:
            self._plans[key] = self._new_plan(model_config, steps, batch_size, shards)
        return self._plans[key]

    def _new_plan(
        self, model_config: ModelConfig, steps: int, batch_size: int, shards: int
    ) -> Plan:
        """Plans all steps: epochs, each shuffled anew, in steps of `batch_size` units."""
        assert self.train is not None
        lengths = self.train.lengths
        order = self._order(steps * batch_size).reshape(steps, batch_size)
        if not self.config.data.packing:
            return Plan.row_each(lengths, order)
        planner = Planner(
            shards=shards, token_cost=functools.partial(token_flops, model_config))
        return planner.steps(lengths, order, _ROW_LENGTHS)

    def _order(self, num: int) -> np.ndarray:
        """[num] int64: the training examples of a run, in the order of its steps."""
        assert self.train is not None
        num_examples = len(self.train)
        epochs: list[np.ndarray] = []
        for epoch in range(math.ceil(num / num_examples)):
            seed = int(hash64(self._seed, epoch))
            epochs.append(permute(np.arange(num_examples), num_examples, seed))
        return np.concatenate(epochs)[:num]

    def write_results(
        self, head: Head, mesh: Mesh, params: Any, metrics: Mapping[str, float], workdir: Path
    ) -> dict[str, Any]:
        """Writes the predictions of all sets; returns the metrics that go into `inference`."""
        outputs = self.outputs(self.sets, head, mesh, params)
        _, files = self.results(outputs)
        if hosts.first():
            for name, content in files.items():
                write_whole(workdir / name, content)
        return {name: metrics[name] for name in self.tuned_metrics if name in metrics}

    def outputs(
        self, sets: Sequence[EvalSet], head: Head, mesh: Mesh, params: Any
    ) -> list[Outputs]:
        """The outputs of the head for the examples of each of these sets."""
        engine = self._engine(mesh, head.config)
        return [engine.outputs(head.outputs, params, eval_set.units) for eval_set in sets]

    def evaluation(self, outputs: Sequence[Outputs]) -> Results:
        """The `results` without undefined metrics. Prints which are undefined, and the remarks."""
        metrics, files = self.results(outputs)
        for eval_set, result in zip(self.sets, outputs):
            for line in eval_set.remarks(result):
                say(line)
        defined = {name: value for name, value in metrics.items() if not math.isnan(value)}
        undefined = sorted(metrics.keys() - defined.keys())
        if undefined:
            say(f"note: {', '.join(undefined)}: undefined for these predictions and labels, as the "
                'correlation with a constant is; no value is recorded')
        return defined, files

    def results(self, outputs: Sequence[Outputs]) -> Results:
        """Metrics and files of the first of `sets`, from the outputs of each."""
        metrics: dict[str, float] = {}
        files: dict[str, str] = {}
        for eval_set, result in zip(self.sets, outputs):
            scores, written = eval_set.results(result)
            for name, value in scores.items():
                metrics[eval_set.name + name] = value
            files |= written
        return metrics, files


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedRows:
    """The rows that are trained on and evaluated in a run: a kind of `train.phase.Rows`.

    Attributes:
      task: of the run.
      mesh: the devices.
      units: what is trained on.
      plan: their place in the rows of each step.
      flops_per_sequence: training FLOPs of an example, on average.
    """

    task: LabelledTask
    mesh: Mesh
    units: Units
    plan: Plan
    flops_per_sequence: float

    @property
    def name(self) -> str:
        """For messages: the task and the batch."""
        return f'{self.task.config.task}, batch {self.task.config.train.batch_size}'

    def batches(self, first_step: int) -> Iterator[Any]:
        """The global batches of the plan, from a step to the last one."""
        for step in range(first_step, len(self.plan.num_rows)):
            num_rows = int(self.plan.num_rows[step])
            local = local_rows(self.mesh, num_rows)
            batch = packed_batch(self.units, self.plan, step, local)
            yield to_global(self.mesh, batch, num_rows, local)

    def scores(self, steps: PhaseSteps, params: Any) -> dict[str, float]:
        """Metrics of the sets that are scored in training; a NaN by name if an output has one.

        They need the outputs of whole sets, for which a sum over batches is not enough.
        """
        scored = self.task.evaluated
        outputs = self.task.outputs(scored, steps.head, self.mesh, params)
        for eval_set, result in zip(scored, outputs, strict=True):
            name = not_finite(result)
            if name:  # argmax would choose a label from NaN, too
                return {f'{eval_set.name}{name}': math.nan}
        metrics, _ = self.task.evaluation(outputs)
        return metrics


def _say_plan(plan: Plan, num_examples: int) -> None:
    counts = [str(shape.rows) for shape in plan.shapes]
    rows = ', '.join(counts)
    say(f'{num_examples:,} training examples; rows of {plan.row_length} in {len(plan.shapes)} '
        f'shapes ({rows} rows); {100 * plan.padding:.1f} % padding')
