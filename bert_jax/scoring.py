"""Scores a model, or the mean of several, on labelled data (`bert_jax.evaluate`)."""

import contextlib
import dataclasses
import functools
import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from bert_jax.completion import complete
from bert_jax.config import data_config_of
from bert_jax.config.fields import FIELDS, PRETRAINING, field_of, flat_fields, pretraining_kind
from bert_jax.corpus.preparing import prepare
from bert_jax.foreign import load_weights
from bert_jax.heads import HEADS
from bert_jax.run.description import differs_from_copy, own_file_of, read_run_fields
from bert_jax.run.layout import is_run, is_step
from bert_jax.run.result_folder import open_result_folder, write_result
from bert_jax.run_setup import open_mesh
from bert_jax.runtime.errors import InputError, show
from bert_jax.runtime.files import Path, as_path, near_folder
from bert_jax.step.step import abstract_state
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.labelled import LabelledTask
from bert_jax.tasks.labels import as_known
from bert_jax.tasks.opening import TASKS, open_task, own_file
from bert_jax.text.kinds import load_tokenizer
from bert_jax.train.program import model_config
from bert_jax.weights.parameters import Weights
from bert_jax.weights.warm_start import warm_start

RunFields = Mapping[str, Any]  # the fields of a run's config.json by dotted name; {}: it is no run


def evaluate(
    config: ConfigDict, models: Sequence[str], workdir: Path, *, labels_by_position: bool = False
) -> dict[str, float]:
    """Scores a model's predictions, or the mean of several models', and writes them.

    Args:
      config: names the task and the data.
      models: run directories, Hugging Face folders or TF1 checkpoints.
      workdir: receives the predictions and `result.json`.
      labels_by_position: whether LABEL_0, LABEL_1, ..., Hugging Face's default names, are the
        task's labels in the task's order.

    Returns:
      Scores by name, 'eval/...'.

    Raises:
      InputError: a model is of another task or lacks a parameter, the models do not belong
        together, the data are bad, or `workdir` is a run.
    """
    if pretraining_kind(config.task):
        raise InputError(
            f'config.task={config.task!r}: bert_jax.main evaluates a pre-training run, in '
            'its directory; this scores downstream tasks')
    open_result_folder(workdir)
    runs = _read_runs(models)
    _check_ensemble(models, runs, config.task)

    first = _load(config, models[0])
    scorer = _open_scorer(first, runs, labels_by_position)
    _note_other_code(scorer.task, models, runs)
    _warn_of_training_examples(scorer.task, config, runs[0], first.weights)
    outputs = scorer.outputs(first)
    if len(models) > 1:
        others = (scorer.outputs(_load(config, name)) for name in models[1:])
        outputs = _mean_outputs(scorer.task, models, itertools.chain([outputs], others))

    metrics, files = scorer.task.evaluation(outputs)
    if labels_by_position:
        _warn_of_another_order(scorer.task, metrics)
    scores = {f'eval/{name}': value for name, value in metrics.items()}
    write_result(workdir, identity(config, models) | scores, files)
    return scores


def identity(config: ConfigDict, models: Sequence[str]) -> dict[str, Any]:
    """The fields of `result.json` that say what is evaluated on what."""
    return {
        'task': config.task,
        'models': [str(model) for model in models],
        'source': config.data.eval_source or str(config.data.source),
    }


def _read_runs(models: Sequence[str]) -> list[RunFields]:
    """The fields of each model's run; a single model need not be a run."""
    if len(models) == 1:
        return [_fields_of_run(as_path(models[0]))]
    return [read_run_fields(as_path(model)) for model in models]


def _check_ensemble(models: Sequence[str], runs: Sequence[RunFields], task: str) -> None:
    """Raises InputError unless all runs predict the same for the same examples."""
    for model, fields in zip(models[1:], runs[1:], strict=True):
        for name, value in runs[0].items():
            if not _must_agree(name, task):
                continue
            other = fields.get(name)
            is_older = 'task' in fields and name not in fields
            if is_older and name in FIELDS:
                other = FIELDS[name].default_of(task)
            field = field_of(name)
            if field.as_now(other) != field.as_now(value):
                raise InputError(
                    f'{models[0]} has {name}={value!r}, {model} has {other!r}: an ensemble is of '
                    'runs on the same examples')


def _must_agree(name: str, task: str) -> bool:
    """Whether the runs of an ensemble must have the same value of a field.

    The vocabularies with their tokenizers' settings are compared where they are read. Ids only name
    rows, and rows that are left out as malformed are left out in all runs.
    """
    if name in ('data.strip_accents', 'data.id', 'data.max_malformed'):
        return False
    if name in ('task', 'head', 'labels'):
        return True
    field = FIELDS.get(name)
    if field is None or field.read_by == PRETRAINING:
        return False
    return field.role_of(task) == 'data' and not field.is_silent(task)


@dataclasses.dataclass(frozen=True)
class _Model:
    """A model to score.

    Attributes:
      name: as the user gave it.
      weights: as read.
      config: of the evaluation, completed from the weights.
    """

    name: str
    weights: Weights
    config: ConfigDict


def _load(config: ConfigDict, name: str) -> _Model:
    """Reads a model; raises InputError if the config contradicts it."""
    weights = load_weights(name, any_head=True, own_head=True)
    return _Model(name, weights, complete(config, weights))


@dataclasses.dataclass(frozen=True)
class _Scorer:
    """Computes the outputs of one model after the other on the examples of a task.

    Attributes:
      task: opened, with what is scored.
      mesh: of all devices.
      first_model: its name; the examples are tokenized with its vocabulary.
      vocabulary: fingerprint of this vocabulary's tokenizer.
      labels_by_position: as for `evaluate`.
      make_head: makes the head of an encoder. Equal encoders share one, by which compiled steps
        are cached.
    """

    task: LabelledTask
    mesh: Any
    first_model: str
    vocabulary: str
    labels_by_position: bool
    make_head: Callable[[Any], Any]

    def outputs(self, model: _Model) -> list[Any]:
        """Outputs of a model for each set of the task.

        Raises:
          InputError: the model has another head, other labels or another vocabulary, or lacks a
            parameter.
        """
        task = self.task
        weights = self._with_labels_of_task(model.weights)
        self._check_vocabulary(weights)
        encoder = model_config(model.config, task.vocab_size, self.mesh)
        head = self.make_head(encoder)
        shapes = abstract_state(head, optax.identity(), self.mesh).params
        params = warm_start(
            weights, shapes, encoder, head=task.head, labels=task.labels,
            vocab_file=task.vocab_path, whole=True)
        return task.outputs(task.sets, head, self.mesh, params)

    def _with_labels_of_task(self, weights: Weights) -> Weights:
        """The weights, their labels spelt as the task spells them.

        Raises:
          InputError: the head is of another task, or the labels have other names than those that
            `labels_by_position` is for.
        """
        task = self.task
        if task.head and task.head != weights.head:  # '': only the encoder is scored
            raise InputError(
                f'{weights.source} has the head {weights.head!r}, and '
                f'config.task={task.config.task!r} is scored with {task.head!r}: name a model that '
                'was trained for it')
        if self.labels_by_position:
            _check_labels_unnamed(weights, task.labels)
            weights = dataclasses.replace(weights, labels=tuple(task.labels))
        return _spelt_as(weights, task.labels)

    def _check_vocabulary(self, weights: Weights) -> None:
        """Raises InputError unless the model tokenizes as the first one does."""
        if _tokenizer_fingerprint(weights) != self.vocabulary:
            raise InputError(
                f'{weights.vocab_file} is not the vocabulary of {self.first_model}, or the '
                'tokenizer_config.json beside it says something else')


def _open_scorer(model: _Model, runs: Sequence[RunFields], labels_by_position: bool) -> _Scorer:
    """Opens the task of a completed config, to score a model on it and perhaps others.

    Args:
      model: the first model.
      runs: the fields of all models' runs.
      labels_by_position: as for `evaluate`.

    Raises:
      InputError: the config or the data are bad.
    """
    _set_unused_fields(model.config, jax.device_count())
    _take_windows(model.config, model.weights)
    mesh = open_mesh(model.config, jax.devices())
    scored = ScoredModel(model.weights.labels, _shared_inference(model.weights, runs))
    if labels_by_position:
        scored = scored._replace(labels=())  # the task's own labels apply
    if runs[0].get('task'):
        scored = scored._replace(trained=runs[0])
    task: Any = open_task(model.config, prepare(model.config), scored)
    return _Scorer(
        task=task,
        mesh=mesh,
        first_model=model.name,
        vocabulary=_tokenizer_fingerprint(model.weights),
        labels_by_position=labels_by_position,
        make_head=functools.cache(task.make_head))


def _note_other_code(
    task: LabelledTask, models: Sequence[str], runs: Sequence[RunFields]
) -> None:
    """Notes the runs that were trained with another content of the config file."""
    file = own_file(task.config.task, task.head_class)
    for model, fields in zip(models, runs, strict=True):
        if file is not None and own_file_of(fields) and differs_from_copy(fields, file):
            show(f'note: {model} was trained with another {own_file_of(fields)} than {file.path}: '
                 f'with that of which its directory has a copy, config_file.py')


def _set_unused_fields(config: ConfigDict, num_devices: int) -> None:
    """Sets fields that only training needs to values that validation accepts."""
    with config.unlocked(), config.ignore_type():
        config.train.steps = 1
        config.train.batch_size = num_devices
        config.train.accumulation_steps = 1


def _take_windows(config: ConfigDict, weights: Weights) -> None:
    """Lets long texts be read as the model's run read them, unless the config says how."""
    section = config.get(config.task)
    if section is not None and 'windows' in section and not section.windows:
        with config.unlocked(), config.ignore_type():
            section.windows = weights.inference.get('windows', '')


def _shared_inference(weights: Weights, runs: Sequence[RunFields]) -> dict[str, Any]:
    """How predictions are made: as by the first model, with the mean of the runs' thresholds."""
    inference = dict(weights.inference)
    name = 'inference.null_threshold'
    thresholds = [fields[name] for fields in runs if name in fields]
    if thresholds:
        inference['null_threshold'] = sum(thresholds) / len(thresholds)
    return inference


def _check_labels_unnamed(weights: Weights, labels: Sequence[str]) -> None:
    """Raises InputError unless a model's labels are LABEL_0, LABEL_1, ..., one a label."""
    unnamed = tuple(f'LABEL_{i}' for i in range(len(labels)))
    if weights.labels != unnamed:
        raise InputError(
            f'--labels_by_position: {weights.source} has the labels '
            f"{', '.join(weights.labels[:5])}: LABEL_0 to LABEL_{len(labels) - 1} "
            f"are needed, for {', '.join(labels[:5])}")


def _spelt_as(weights: Weights, labels: Sequence[str]) -> Weights:
    """The weights with the task's spelling of their labels, if they are the task's but for case."""
    spelling = as_known(weights.labels, labels)
    spelt = tuple(spelling.get(name, name) for name in weights.labels)
    if labels and set(spelt) == set(labels):
        return dataclasses.replace(weights, labels=spelt)
    return weights


def _tokenizer_fingerprint(weights: Weights) -> str:
    """The fingerprint of all that decides how text is tokenized: vocabulary and settings."""
    if weights.vocab_file is None:
        return ''
    return load_tokenizer(weights.vocab_file, weights.lowercase).fingerprint


def _mean_outputs(
    task: LabelledTask, models: Sequence[str], outputs: Iterable[list[Any]]
) -> list[Any]:
    """The mean of the models' outputs in float64; prints the scores of each as they come."""
    total: Any = None
    for model, of_model in zip(models, outputs, strict=True):
        metrics, _ = task.results(of_model)
        shown = [f'{name} {value:.4f}' for name, value in metrics.items()]
        show(f"{model}: {'  '.join(shown)}")
        shares = jax.tree.map(lambda x: x.astype(np.float64) / len(models), of_model)
        if total is None:
            total = shares
        else:
            total = jax.tree.map(np.add, total, shares)
    return total


def _warn_of_another_order(task: LabelledTask, metrics: Mapping[str, float]) -> None:
    """Warns if labels that were taken by position score worse than guessing."""
    least = task.majority_baseline.get(task.metric)
    score = metrics.get(task.metric)
    if least is not None and score is not None and score < least:
        show(f'warning: {task.metric} {score:.4f} is below {least:.4f}, which '
             'guessing the most frequent label gives: the labels of the model are perhaps in '
             f"another order than the task's, {', '.join(task.labels[:5])}")


def _warn_of_training_examples(
    task: LabelledTask, config: ConfigDict, run: RunFields, weights: Weights
) -> None:
    """Warns if the run was trained on some of the scored examples.

    Args:
      task: opened, with what is scored.
      config: of this evaluation.
      run: the fields of the run's config.json; if it is of another task, there is no warning.
      weights: the run's.
    """
    if not _may_score_training_examples(config, run):
        return
    config_of_training = data_config_of(run)
    _take_vocabulary_of_run(config_of_training)
    try:
        trained_on = set(_training_contents(config_of_training, weights))
    except InputError as error:
        show(f'note: which rows the run was trained on is not known: {error}')
        return
    contents: list[bytes] = []
    for scored in task.evaluated:
        contents += scored.units.contents()
    num_known = sum(content in trained_on for content in contents)
    if num_known:
        source = run['data.source']
        show(f'warning: {num_known:,} of the {len(contents):,} scored examples were trained on '
             f'(they are in {source}, and not held out): these scores are no measure of new text')


def _may_score_training_examples(config: ConfigDict, run: RunFields) -> bool:
    """Whether other rows are scored than those that the run held out, and its data are there."""
    fields = flat_fields(config)
    names = ('data.source', 'data.eval_source', 'data.held_out')
    as_in_training = all(fields[name] == run.get(name) for name in names)
    source = run.get('data.source')
    if run.get('task') != config.task or as_in_training or not isinstance(source, str):
        return False
    return as_path(source).exists()


def _training_contents(config: ConfigDict, weights: Weights) -> list[bytes]:
    """The tokens of each example that the run with this config and weights was trained on.

    Raises:
      InputError: its data cannot be read any more.
    """
    with contextlib.redirect_stdout(io.StringIO()):  # what training said when it began
        completed = complete(config, weights)
        task: Any = open_task(completed, prepare(completed))
    return task.train.contents()


def _take_vocabulary_of_run(config: ConfigDict) -> None:
    """Empties the fields of the vocabulary, so that the one beside the run's weights is used."""
    config.data.vocab_file = ''
    config.data.add_tokens = ''


def _fields_of_run(path: Path) -> RunFields:
    """The fields of the run at a path, which may be its checkpoint; {} if there is no run."""
    if is_step(path) or is_run(path):
        return read_run_fields(path)
    return {}


def config_of_run(path: Path) -> ConfigDict:
    """A config with the task and data of the run at a path, which may be its checkpoint.

    Raises:
      InputError: there is no run, or it does not say its task.
    """
    fields = _fields_of_run(path)
    if not fields and (meant := near_folder(path)):
        raise InputError(f'{path} does not exist: {meant}')
    if not fields.get('task'):
        why = 'it was converted' if fields else 'there is no run of this project'
        raise InputError(
            f'{path} does not say its task ({why}), so --config has to, such as '
            '--config=configs/glue.py:mrpc')
    _check_task_known(path, fields)
    config = data_config_of(fields)
    _take_vocabulary_of_run(config)
    return config


def _check_task_known(path: Path, fields: RunFields) -> None:
    """Raises InputError if a run's task or head comes from a config file that is not named here."""
    file = own_file_of(fields)
    is_known = fields['task'] in TASKS and fields.get('head', '') in HEADS
    if file and not is_known:
        raise InputError(
            f'{path} was trained with {file}, which defines its task or its head (its directory '
            f'has a copy, config_file.py): name the file, --config={file}')
