"""A task on labelled examples: packed batches, scores, predictions.

Every example is tokenized once at the start. A step holds exactly `batch_size` examples, packed
into as few rows as they need; the planner picks the row length and at most four row counts.
"""

import copy
import dataclasses
import functools
import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax.data import corpus, table
from bert_jax.data.packing import Plan, Units, packed_batch, plan_steps
from bert_jax.data.pairs import Encode
from bert_jax.data.sharing import Places, share_tokenizer
from bert_jax.data.stateless import hash64, permute
from bert_jax.heads import HEADS
from bert_jax.heads.base import Head
from bert_jax.inference.engine import Engine, Outputs
from bert_jax.model.flops import token_flops
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.checksum import not_finite
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, write_whole
from bert_jax.runtime.hosts import say
from bert_jax.runtime.hub import split_of
from bert_jax.runtime.packages import has_tensorflow, loading_tensorflow
from bert_jax.sharding import Layout, Mesh, batch_sharding, local_rows, to_global
from bert_jax.text import Tokenizer, check_known, load_tokenizer
from bert_jax.train.step import EvalStep
from bert_jax.train.task import Phase

Results = tuple[dict[str, float], dict[str, str]]  # metrics, contents of files, by name
# Row lengths to choose from. A row holds at least the longest unit.
_ROW_LENGTHS = (32, 48, 64, 96, 128, 192, 256, 384, 512)
_FEW = 20  # distinct texts: an accuracy on fewer is off by a tenth or more


class ScoredModel(NamedTuple):
    """The facts about a model that is scored and not trained.

    Attributes:
      labels: of its head, by id; empty if it has none, or if the task's own labels apply.
      inference: how its predictions are made (`Weights.inference`).
      trained: the fields of its run's config.json by dotted name; empty if it is no run of this
        project, or a run converted from elsewhere.
    """

    labels: tuple[str, ...] = ()
    inference: Mapping[str, Any] = {}
    trained: Mapping[str, Any] = {}


class Tokenization(NamedTuple):
    """The vocabulary file of a run, its tokenizer, and the function that tokenizes many texts."""

    path: Path
    tokenizer: Tokenizer
    encode: Encode


def open_tokenization(config: ConfigDict) -> Tokenization:
    """The tokenizer of a downstream run.

    Raises:
      InputError: the config names no vocabulary, or one that cannot be read.
    """
    d = config.data
    if not d.vocab_file:
        raise InputError(
            'config.data.vocab_file is empty, and there is no config.init_checkpoint that '
            'brings one: a downstream task starts from a vocabulary')
    path = share_tokenizer(as_path(d.vocab_file), d.add_tokens, d.lowercase,
                           Places.choose(d.dir, d.local_dir), d.strip_accents)
    tokenizer = load_tokenizer(path, d.lowercase)
    if has_tensorflow():
        with loading_tensorflow('fine-tuning'):
            from bert_jax.data.tokenize import make_encode
    else:
        from bert_jax.data.tokenize_plain import make_encode

    return Tokenization(path, tokenizer, make_encode(tokenizer))


class EvalSet(NamedTuple):
    """Examples that are predicted as a whole.

    Attributes:
      name: prefix of its metrics, empty for the main set.
      units: its examples.
      results: from outputs in the order of `units` ([n, ...] and [T, ...]) to metrics by name (none
        where the examples have no labels) and the content of files of predictions by name.
    """

    name: str
    units: Units
    results: Callable[[Outputs], Results]


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
      head: what kind of head the model has (`heads.HEADS`).
      labels: names of its outputs by id, if they have any.
      predicted: further sets, predicted at the end.
      arguments: of the head, beside the encoder's config.
      trained_as: a subclass of the head with another loss; None: the head as it is.
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
    make_gates = None  # a run is short and soon has scores, so no early warnings are needed

    def __post_init__(self) -> None:
        t = self.tokenization
        self.vocab_path: Path | None = t.path
        self.vocab_size = len(t.tokenizer.vocab)
        self.inference = {'max_seq_length': self.config.data.max_seq_length, **self.inference}
        self.num_examples = None if self.train is None else len(self.train)
        if self.train is not None:
            check_known(self.train.sequences.ids, t.tokenizer,
                        f'config.data.source={self.config.data.source}', t.path)
        self._seed = self.config.seed
        # Shared by all runs of a sweep (`with_seed`), so that it is compiled once.
        self._engine = functools.cache(self._make_engine)

    def _make_engine(self, mesh: Mesh, model_config: ModelConfig) -> Engine:
        return Engine(
            mesh, token_cost=functools.partial(token_flops, model_config),
            max_steps=1 if self.config.debug else None)

    def with_seed(self, seed: int) -> Self:
        """The task of a run that differs in its seed (and rate) only, on the same data."""
        task = copy.copy(self)
        task._seed = seed
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
        return result | {f'examples of set {i} {eval_set.name}'.rstrip(): eval_set.units.digest()
                         for i, eval_set in enumerate(self.sets)}

    def make_head(self, model_config: ModelConfig) -> Head:
        """The head that is trained on an encoder.

        Raises:
          InputError: there are pairs of texts, which the encoder cannot tell apart.
        """
        units = [*([self.train] if self.train is not None else []), *(x.units for x in self.sets)]
        if model_config.type_vocab_size < 2 and any(
                (x.sequences.first_lengths < x.sequences.lengths).any() for x in units):
            raise InputError(
                f'config.model.type_vocab_size={model_config.type_vocab_size}: the model has one '
                'segment type, and there are pairs of texts: take a model with two, or single '
                'texts')
        return (self.trained_as or HEADS[self.head])(model_config, **self.arguments)

    def batch_shapes(
        self, model_config: ModelConfig, phase: dict[str, Any], mesh: Mesh
    ) -> dict[str, Any]:
        """Shapes of the largest training batch; predictions have their own shapes (`Engine`)."""
        assert self.train is not None
        plan = self._plan(model_config, phase, mesh)
        return {'train': {
            name: jax.ShapeDtypeStruct(
                (int(plan.num_rows.max()), *x.shape[1:]), x.dtype, sharding=batch_sharding(mesh))
            for name, x in packed_batch(self.train, plan, 0, np.arange(1)).items()}}

    def phase(
        self, head: Head, eval_step: EvalStep, phases: Sequence[dict[str, Any]], number: int,
        mesh: Mesh,
    ) -> Phase:
        """The one phase of a run."""
        (phase,) = phases  # `eval_step` is unused: metrics need the predictions of a whole set
        train, batch_size, steps = self.train, phase['batch_size'], phase['steps']
        assert train is not None
        plan = self._plan(head.config, phase, mesh)
        say(f'{len(train):,} training examples; rows of {plan.row_length} in '
            f"{len(plan.shapes)} shapes ({', '.join(str(rows) for rows, _ in plan.shapes)} "
            f'rows); {100 * plan.padding:.1f} % padding')

        def batches(first_step: int) -> Iterator[Any]:
            for step in range(first_step, steps):
                num_rows = int(plan.num_rows[step])
                local = local_rows(mesh, num_rows)
                yield to_global(mesh, packed_batch(train, plan, step, local), num_rows, local)

        predictors = self.predictors(head, mesh)

        def evaluate(params: Any) -> dict[str, float]:
            outputs = [predict(params) for predict in predictors[: len(self.evaluated)]]
            for eval_set, result in zip(self.evaluated, outputs, strict=True):
                if name := not_finite(result):  # argmax would choose a label from NaN, too
                    return {f'{eval_set.name}{name}': math.nan}
            return self.results(outputs)[0]

        return Phase(
            start=0, end=steps, batch_size=batch_size, batches=batches, evaluate=evaluate,
            flops_per_sequence=(
                plan.tokens * head.token_flops(plan.row_length) / (steps * batch_size)),
            name=f'{self.config.task}, batch {batch_size}')

    def _plan(self, model_config: ModelConfig, phase: dict[str, Any], mesh: Mesh) -> Plan:
        """Plans all steps: epochs, each shuffled anew, in steps of `batch_size` units."""
        train, steps, batch_size = self.train, phase['steps'], phase['batch_size']
        assert train is not None
        n = len(train)
        order = np.concatenate([
            permute(np.arange(n), n, int(hash64(self._seed, epoch)))
            for epoch in range(-(-steps * batch_size // n))
        ])[: steps * batch_size].reshape(steps, batch_size)
        if self.config.data.packing:
            return plan_steps(
                train.lengths, order, row_lengths=_ROW_LENGTHS,
                shards=Layout(mesh).batch_shards * self.config.train.accumulation_steps,
                token_cost=functools.partial(token_flops, model_config))
        rows = np.broadcast_to(np.arange(batch_size, dtype=np.int32), order.shape)
        return Plan(order, rows, int(train.lengths.max()), np.full(steps, batch_size), 1,
                    int(train.lengths[order].sum()))

    def write_results(
        self, head: Head, mesh: Mesh, params: Any, metrics: Mapping[str, float], workdir: Path
    ) -> dict[str, Any]:
        """Writes the predictions of all sets; returns the metrics that go into `inference`."""
        _, files = self.results([predict(params) for predict in self.predictors(head, mesh)])
        if jax.process_index() == 0:
            for name, content in files.items():
                write_whole(workdir / name, content)
        return {name: metrics[name] for name in self.tuned_metrics if name in metrics}

    def predictors(self, head: Head, mesh: Mesh) -> list[Callable[[Any], Outputs]]:
        """For each of `sets`, a function from parameters to outputs."""
        engine = self._engine(mesh, head.config)
        return [functools.partial(engine.outputs, head.outputs, units=eval_set.units)
                for eval_set in self.sets]

    def results(self, outputs: Sequence[Outputs]) -> Results:
        """Metrics and files of the first of `sets`, from the outputs of each."""
        metrics, files = dict[str, float](), dict[str, str]()
        for eval_set, result in zip(self.sets, outputs):
            scores, written = eval_set.results(result)
            metrics |= {eval_set.name + name: value for name, value in scores.items()}
            files |= written
        return metrics, files


def one_source(config: ConfigDict, meaning: str) -> str:
    """`data.source`, which has to be one path; `meaning` says of what, for the message.

    Raises:
      InputError: it is something else, or pre-training's default.
    """
    source = config.data.source
    if not isinstance(source, str) or not source or source.startswith('docs:'):
        raise InputError(
            f'config.data.source={source!r}: config.task={config.task!r} needs {meaning}')
    by_name = source.startswith('hf:') or not re.search(r'[*?,\[]', source)
    if not by_name and not as_path(source).exists():
        raise InputError(
            f'config.data.source={source!r} does not exist: config.task={config.task!r} needs '
            f'{meaning}, one and by its name; put several files together, or name the one to score '
            'as config.data.eval_source')
    return str(as_path(source))


def split_file(
    config: ConfigDict, names: Sequence[str], on_hub: str, meaning: str, *, scored: bool = False,
    required: bool = True,
) -> str:
    """The file of a split of a benchmark, in the folder `data.source`; see `table.find_file`.

    `data.source` can also be the file to train on, with `data.eval_source` that to score; or a data
    set of the Hugging Face hub, or one of its splits to train on.

    Args:
      config: of the run.
      names: possible names of the file.
      on_hub: path of the split in the benchmark's data set on the hub.
      meaning: what `data.source` has to be, for messages.
      scored: whether this is the split to score, which `data.eval_source` overrides.
      required: whether the file has to exist; if not, '' is returned for a missing one.
    """
    if scored and config.data.eval_source:
        return str(as_path(config.data.eval_source))
    source = one_source(config, meaning)
    if split := split_of(source, on_hub):
        return split
    if not source.startswith('hf:') and not as_path(source).is_file():
        return table.find_file(source, names, required=required)
    if scored:
        raise InputError('config.data.eval_source is empty: name the file to evaluate on')
    return source


def own_files(
    config: ConfigDict, scored: ScoredModel | None, read: Callable[[str], Any],
    contents: Callable[[Any], Sequence[str]],
    meaning: str = 'a .csv, .tsv, .jsonl or .parquet file',
) -> tuple[Any, Any]:
    """Examples to train on (None if a model is only scored) and to score, from your own files.

    Without `data.eval_source`, the examples to score are those that a hash holds out of
    `data.source`: the same in training and in every later evaluation. What is scored is said, with
    a warning if it is little, or far from the share that was asked for.

    Args:
      config, scored: as for `open_task`.
      read: from a path to its examples, which have `take(rows)`.
      contents: from examples to the text of each, whose hash decides.
      meaning: what `data.source` has to be, for messages.

    Raises:
      InputError: a file cannot be read, or nothing would be held out.
    """
    d, source = config.data, one_source(config, meaning)
    if d.eval_source:
        return (None if scored else read(source)), read(str(as_path(d.eval_source)))
    whole = read(source)
    texts = contents(whole)
    out = held_out(texts, d.held_out, source)
    train, dev = (whole.take(np.flatnonzero(side)) for side in (~out, out))
    scored_texts = {text for text, is_out in zip(texts, out, strict=True) if is_out}
    say(f'scored: {len(dev):,} of {len(whole):,} examples of {source} ({len(scored_texts):,} of '
        f'{len(set(texts)):,} distinct texts), held out of training (config.data.held_out='
        f'{d.held_out}); for others, name a file as config.data.eval_source')
    if len(scored_texts) < _FEW:
        say(f'warning: {len(scored_texts)} distinct texts are few to score: name a file of more as '
            'config.data.eval_source, or raise config.data.held_out')
    if _misses(out.mean(), d.held_out):
        say(f'warning: {out.mean():.1%} of the examples are held out, where config.data.held_out='
            f'{d.held_out} asks for {d.held_out:.1%}: equal texts are on one side, and here some '
            'are frequent; name a file as config.data.eval_source')
    return (None if scored else train), dev


def label_names(config: ConfigDict, path: str, column: str = '') -> list[str]:
    """The names of labels that are numbers in a file: `data.label_names`, else the file's own.

    Args:
      config: of the run.
      path: the file.
      column: of the labels; empty: `data.label`.

    Raises:
      InputError: a name occurs twice.
    """
    named = config.data.label_names
    if not named:
        return table.class_names(path, column or config.data.label)
    file = as_path(named)
    lines = file.read_text(encoding='utf-8').splitlines() if file.exists() else named.split(',')
    names = [name.strip() for name in lines if name.strip()]
    if len(set(names)) < len(names):
        raise InputError(f'config.data.label_names={named} has a name twice')
    return names


def as_known(there: Collection[str], known: Collection[str]) -> dict[str, str]:
    """{a label: the known one that differs from it only in case}, which are one; it is said.

    A known label stays itself, and so does one that two known labels differ from only in case. If
    none is known yet, labels that differ only in case stay apart, with a warning.
    """
    folded: dict[str, list[str]] = {}
    for name in sorted(known or there):
        folded.setdefault(name.casefold(), []).append(name)
    if not known:
        if several := [names for names in folded.values() if len(names) > 1]:
            say(f"warning: the labels {' and '.join(several[0])} differ only in case, and are "
                'apart: spell them alike if they are one')
        return {}
    found = {name: same[0] for name in sorted(set(there) - set(known))
             if len(same := folded.get(name.casefold(), [])) == 1}
    if found:
        say('note: labels that differ only in case are one: '
            + ', '.join(f'{name} is {same}' for name, same in list(found.items())[:5]))
    return found


def check_labels_known(source: str, there: Collection[str], known: Collection[str]) -> None:
    """Refuses to score a model on a file that shares no label with it: every score would be 0.

    Args:
      source: the file, for the message.
      there: its labels.
      known: the model's.

    Raises:
      InputError: they share no label.
    """
    if not set(there) & set(known):
        raise InputError(
            f"{source} has the labels {', '.join(sorted(there)[:5])}, the model "
            f"{', '.join(sorted(known)[:5])}: none is the same; name the columns with "
            'config.data.text and config.data.label, or, if only the names differ, add '
            '--labels_by_position to bert_jax.evaluate')


def tfds_records(config: ConfigDict, name: str, split: str) -> Iterator[dict[str, Any]]:
    """Records of a split of tensorflow-datasets."""
    return corpus.tfds_records(name, split, config.data.tfds_dir)


def held_out(contents: Sequence[str], share: float, source: str) -> np.ndarray:
    """[n] bool: which examples are held out, about `share` of them.

    Equal examples are on the same side. A hash of the content decides, so that an example stays on
    its side when others are added or removed. Only where this misses the share by more than half of
    it, because there are few distinct contents or one is very frequent, does the side of some
    contents depend on the others.

    Raises:
      InputError: one of the sides would be empty.
    """
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in contents)
    hashes = np.array([int.from_bytes(digest, 'little') / 2**64 for digest in digests])
    out = hashes < share
    if 0 < share < 1 and _misses(out.mean(), share):
        out = _nearer_share(hashes, share)
    if out.all() or not out.any():
        distinct = len(set(contents))
        together = f' ({distinct} distinct texts: equal ones are on one side)'
        raise InputError(
            f'{source} has {len(out):,} examples, of which config.data.held_out={share} would '
            f'leave {int((~out).sum())} to train on and {int(out.sum())} to evaluate'
            f'{together if distinct < len(out) else ""}: name a file to evaluate on, '
            'config.data.eval_source, or another share')
    return out


def _misses(found: float, share: float) -> bool:
    """Whether a share is off by more than half of what was asked."""
    return abs(found - share) > share / 2


def _nearer_share(hashes: np.ndarray, share: float) -> np.ndarray:
    """[n] bool: the examples with hashes below `share`, after a move of whole contents.

    If too few are held out, contents follow in the order of their hashes, but never more than half
    of them: the others are needed for training. If too many are, those go back whose number of
    examples is nearest to what is too much.
    """
    contents, of_example, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    out = contents < share
    too_many = counts[out].sum() - share * len(hashes)
    for i in np.flatnonzero(~out)[: max(0, len(out) // 2 - out.sum())]:
        if counts[i] < -2 * too_many:  # else the number would be off by more than before
            out[i] = True
            too_many += counts[i]
    while too_many > 0:
        i = np.abs(too_many - np.where(out, counts, 0)).argmin()
        if not out[i] or counts[i] >= 2 * too_many:
            break
        out[i] = False
        too_many -= counts[i]
    return out[of_example]
