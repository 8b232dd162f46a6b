"""Scores a model, or the mean of several, on any labelled file.

    python -m bert_jax.evaluate runs/mine
    python -m bert_jax.evaluate runs/mine --config.data.eval_source=new.csv
    python -m bert_jax.evaluate runs/mine/checkpoints/300  # of this step, not of the best
    python -m bert_jax.evaluate DIR --config=configs/glue.py:mrpc --config.data.source=glue
    python -m bert_jax.evaluate RUN RUN RUN --workdir=runs/ensemble

A run is evaluated as it was trained: its columns, lengths and labels are those of its config.json,
and every field can be changed with --config.FIELD=VALUE. Without config.data.eval_source, the rows
that training held out are scored. For weights that are not a run of this project, --config must
name the task.

Several runs are an ensemble (paper, Table 2): the mean of their logits is scored. They must have
the same task, data, vocabulary and windows, and may differ in seed, learning rate or pre-trained
model. Logits are averaged, not probabilities: a softmax over each window of a SQuAD question would
make its windows incomparable.

Nothing is trained and no run is changed. The predictions are written into --workdir (default:
runs/evaluate-NAME); the last line on standard output is `result {json}`.

Exit status: 0 done, 2 bad input (one line on standard error), 1 anything else.
"""

import contextlib
import dataclasses
import functools
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from bert_jax.config import data_config_of
from bert_jax.config.command_line import parse_command
from bert_jax.config.fields import PRETRAINING, flat_fields, section_of
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, open_folder, read_json, write_whole
from bert_jax.runtime.process import error_boundary
from bert_jax.validation import complete

# Fields that decide which examples there are, how they are cut, and what is predicted for them; the
# fields of the task's own section do so, too.
_SAME_IN_AN_ENSEMBLE = (
    'task', 'data.source', 'data.eval_source', 'data.max_seq_length', 'data.lowercase',
    'data.text', 'data.text_pair', 'data.label', 'data.held_out', 'head', 'labels',
)


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
    import jax
    import optax

    from bert_jax.run_setup import open_mesh
    from bert_jax.tasks.labelled import ScoredModel
    from bert_jax.tasks.labels import as_known
    from bert_jax.tasks.opening import open_task
    from bert_jax.text import read_switches
    from bert_jax.train.program import model_config
    from bert_jax.train.step import make_init
    from bert_jax.train.workdirs import read_run_fields
    from bert_jax.weights import load_weights
    from bert_jax.weights.warm_start import warm_start

    if config.task in PRETRAINING:
        raise InputError(
            f'config.task={config.task!r}: bert_jax.main evaluates a pre-training run, in '
            'its directory; this scores downstream tasks')
    if (workdir / 'checkpoints').exists():
        raise InputError(f'{workdir} is a run, whose predictions would be lost: give another')
    open_folder(workdir, '--workdir', lambda folder: (folder / 'result.json').exists())
    if (workdir / 'result.json').exists():
        earlier = read_json(workdir / 'result.json', 'remove it')
        print(f"note: {workdir} holds an evaluation on {earlier.get('source')}, which is replaced: "
              'give --workdir=DIR to keep both', flush=True)
    read = read_run_fields if len(models) > 1 else _fields_of_run
    runs = [read(as_path(model)) for model in models]
    for model, fields in zip(models, runs):
        for name, value in runs[0].items() if len(models) > 1 else ():
            same = name in _SAME_IN_AN_ENSEMBLE or name.startswith(f'{section_of(config.task)}.')
            if same and fields.get(name) != value:
                raise InputError(
                    f'{models[0]} has {name}={value!r}, {model} has {fields.get(name)!r}: an '
                    'ensemble is of runs on the same examples')
    thresholds = [fields['inference.null_threshold'] for fields in runs
                  if 'inference.null_threshold' in fields]
    task: Any = None
    mesh: Any = None
    vocabulary = b''
    sums: Any = None
    # Equal models share an objective, by which compiled steps are cached.
    objective_of = functools.cache(lambda bert: task.make_head(bert))
    for model in models:
        published = load_weights(model, any_head=True)
        completed = complete(config, published)
        content = b'' if published.vocab_file is None else (
            published.vocab_file.read_bytes() + repr(read_switches(published.vocab_file)).encode())
        if task is None:
            with completed.unlocked(), completed.ignore_type():  # nothing is trained
                completed.train.steps, completed.train.batch_size = 1, jax.device_count()
                completed.train.accumulation_steps = 1
                section: Any = completed.get(config.task)
                if section is not None and 'windows' in section:
                    section.windows = section.windows or published.inference.get('windows', '')
            mesh, vocabulary = open_mesh(completed, jax.devices()), content
            inference = dict(published.inference)
            if thresholds:
                inference['null_threshold'] = sum(thresholds) / len(thresholds)
            task = open_task(completed, ScoredModel(
                () if labels_by_position else published.labels, inference,
                runs[0] if runs[0].get('task') else {}))
            _say_trained_on(task, config, runs[0], published)
        if task.head != published.head:
            raise InputError(
                f'{published.source} has the head {published.head!r}, and '
                f'config.task={config.task!r} is scored with {task.head!r}: name a model that was '
                'trained for it')
        if labels_by_position:
            if published.labels != tuple(f'LABEL_{i}' for i in range(len(task.labels))):
                raise InputError(
                    f'--labels_by_position: {published.source} has the labels '
                    f"{', '.join(published.labels[:5])}: LABEL_0 to LABEL_{len(task.labels) - 1} "
                    f"are needed, for {', '.join(task.labels[:5])}")
            published = dataclasses.replace(published, labels=tuple(task.labels))
        spelt = as_known(published.labels, task.labels)
        if task.labels and {spelt.get(x, x) for x in published.labels} == set(task.labels):
            published = dataclasses.replace(
                published, labels=tuple(spelt.get(x, x) for x in published.labels))
        if content != vocabulary:
            raise InputError(f'{published.vocab_file} is not the vocabulary of {models[0]}, or the '
                             'tokenizer_config.json beside it says something else')
        bert = model_config(completed, task.vocab_size, mesh)
        objective = objective_of(bert)
        fresh = make_init(objective, optax.identity(), mesh)(0).params
        params = warm_start(
            published, fresh, bert, head=task.head, labels=task.labels,
            vocab_file=task.vocab_path, whole=True)
        outputs = [predict(params) for predict in task.predictors(objective, mesh)]
        if len(models) > 1:
            line = '  '.join(f'{name} {x:.4f}' for name, x in task.results(outputs)[0].items())
            print(f'{model}: {line}', flush=True)
            shares = jax.tree.map(lambda x: x.astype(np.float64) / len(models), outputs)
            sums = outputs = shares if sums is None else jax.tree.map(np.add, sums, shares)
    metrics, files = task.results(outputs)
    scores = {f'eval/{name}': value for name, value in metrics.items()}
    least = task.majority_baseline.get(task.metric)
    if labels_by_position and least is not None and metrics[task.metric] < least:
        print(f'warning: {task.metric} {metrics[task.metric]:.4f} is below {least:.4f}, which '
              'guessing the most frequent label gives: the labels of the model are perhaps in '
              f"another order than the task's, {', '.join(task.labels[:5])}", flush=True)
    files['result.json'] = json.dumps({
        'task': config.task, 'models': [str(model) for model in models],
        'source': config.data.eval_source or str(config.data.source), **scores,
    }, indent=1) + '\n'
    for name, content in files.items():
        write_whole(workdir / name, content)
    return scores


def _say_trained_on(task: Any, config: ConfigDict, run: Mapping[str, Any], published: Any) -> None:
    """Says how many of the scored examples the run was trained on.

    It says nothing if the rows that training held out are scored.

    Args:
      task: opened, with what is scored.
      config: of this evaluation.
      run: the fields of the run's config.json; if it is of another task, nothing is said.
      published: its weights.
    """
    from bert_jax.tasks.opening import open_task

    fields, names = flat_fields(config), ('source', 'eval_source', 'held_out')
    as_in_training = all(fields[f'data.{x}'] == run.get(f'data.{x}') for x in names)
    source = run.get('data.source')
    if run.get('task') != config.task or as_in_training or not isinstance(source, str) or (
            not as_path(source).exists()):
        return
    trained = data_config_of(run)
    trained.data.vocab_file, trained.data.add_tokens = '', ''
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # what training said when it began
            task_of_run: Any = open_task(complete(trained, published))
        known = set(task_of_run.train.contents())
    except InputError as error:
        print(f'note: which rows the run was trained on is not known: {error}')
        return
    contents = [x for scored in task.evaluated for x in scored.units.contents()]
    if found := sum(x in known for x in contents):
        print(f'warning: {found:,} of the {len(contents):,} scored examples were trained on (they '
              f'are in {source}, and not held out): these scores are no measure of new text',
              flush=True)


def _fields_of_run(path: Path) -> dict[str, Any]:
    """The fields of the run at a path, which may be its checkpoint; {} if there is no run."""
    from bert_jax.train.workdirs import read_run_fields
    from bert_jax.weights.run_directory import is_step

    is_run = is_step(path) or (path / 'checkpoints').is_dir()
    return read_run_fields(path) if is_run else {}


def default_workdir(model: Path) -> str:
    """The folder for the predictions of a model; that of a run's checkpoint has both names."""
    from bert_jax.weights.run_directory import is_step, run_of

    if is_step(model):
        return f'runs/evaluate-{run_of(model).name}-{model.name}'
    return f'runs/evaluate-{model.name}'


def main(argv: list[str]) -> None:
    """Runs the command (see the top of this file)."""
    f: Any = flags.FlagValues()
    flags.DEFINE_string('workdir', None, 'Receives the predictions.', flag_values=f)
    flags.DEFINE_boolean(
        'labels_by_position', False,
        "LABEL_0, LABEL_1, ... of the model are the task's labels in their order.", flag_values=f)
    models, options, arguments = list[str](), argv[:1], iter(argv[1:])
    for argument in arguments:
        (options if argument.startswith('-') else models).append(argument)
        if argument.lstrip('-') in ('config', 'workdir'):  # its value is the next argument
            options.append(next(arguments, ''))
    with error_boundary():
        if not models and not {'--help', '-h'} & set(options):
            raise InputError('name a run or a model: python -m bert_jax.evaluate RUN '
                             '--config.data.eval_source=FILE')
        config, first = None, as_path(models[0] if models else '')
        named = any(a.split('=')[0] in ('--config', '-config') for a in options)
        if models and not named:
            fields = _fields_of_run(first)
            if not fields.get('task'):
                raise InputError(
                    f'{first} does not say its task ('
                    + ('it was converted' if fields else 'there is no run of this project')
                    + '), so --config has to, such as --config=configs/glue.py:mrpc')
            config = data_config_of(fields)
            config.data.vocab_file, config.data.add_tokens = '', ''  # the vocabulary is the run's
        config, _ = parse_command(options, __doc__ or '', f, config)
        workdir = f.workdir or default_workdir(first)
        scores = evaluate(config, models, as_path(workdir), labels_by_position=f.labels_by_position)
        print(f'predictions: {workdir}')
        print('result ' + json.dumps(scores))


if __name__ == '__main__':
    main(sys.argv)
