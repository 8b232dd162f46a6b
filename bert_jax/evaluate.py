"""Scores a model on any labelled file, by the task that it was trained on.

    python -m bert_jax.evaluate runs/mine --config.data.eval_source=new.csv
    python -m bert_jax.evaluate runs/squad --config.data.eval_source=dev-v2.0.json --workdir=out
    python -m bert_jax.evaluate DIR --config=configs/glue.py:mrpc --config.data.source=glue

A run is read as it was trained: its columns, lengths and labels are those of its config.json, and
every field can be changed with --config.FIELD=VALUE. Of published weights, --config names the task.
Nothing is trained and the run is not touched. The predictions are written into --workdir (default:
runs/evaluate-NAME), the last line on standard output is `result {json}`.

Exit status: 0 done, 2 bad input (one line on standard error), 1 anything else.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # before anything loads TensorFlow

from absl import flags
from ml_collections import ConfigDict

from bert_jax.config import complete, data_config_of
from bert_jax.config.command_line import define_config, define_overrides, parse_flags
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.faults import error_boundary
from bert_jax.runtime.files import Path, as_path, write_whole
from bert_jax.runtime.outputs import open_folder

_USAGE = 'name a run or a model: python -m bert_jax.evaluate RUN --config.data.eval_source=FILE'


def evaluate(config: ConfigDict, model: str, workdir: Path) -> dict[str, float]:
    """The scores of a model's predictions, which are written too.

    Args:
      config: names the task and the data.
      model: a run directory, a Hugging Face folder or a TF1 checkpoint.
      workdir: receives the predictions and `result.json`.

    Raises:
      InputError: the model is of another task, bad data, or `workdir` is a run.
    """
    import jax
    import optax

    from bert_jax.tasks import task_kind
    from bert_jax.train.experiment import open_task
    from bert_jax.train.program import model_config, open_mesh
    from bert_jax.train.state import init_state
    from bert_jax.train.warm_start import warm_start
    from bert_jax.weights.load import load_weights

    if task_kind(config.task).phased:
        raise InputError(
            f'config.task={config.task!r}: a pre-training run is evaluated by its own command, '
            'bert_jax.main in its directory; this scores downstream tasks'
        )
    if (workdir / 'checkpoints').exists():
        raise InputError(f'{workdir} is a run, whose predictions would be lost: give another')
    if jax.process_index() == 0:
        open_folder(workdir, '--workdir', lambda folder: (folder / 'result.json').exists())
    published = load_weights(model, any_head=True)
    config = complete(config, published)
    with config.unlocked():  # of a training that is not to be
        config.train.steps, config.train.batch_size = 1, jax.device_count()
        config.train.accumulation_steps = 1
        own: Any = config.get(config.task)
        if own is not None and 'windows' in own:
            own.windows = own.windows or published.inference.get('windows', '')
    mesh = open_mesh(config, jax.devices())
    task: Any = open_task(config, published.labels)
    if task.head != published.head:
        raise InputError(
            f'{published.source} has the head {published.head!r}, and config.task={config.task!r} '
            f'is scored with {task.head!r}: name a model that was trained for it'
        )
    bert = model_config(config, task.vocab_size, mesh)
    objective = task.objective(bert)
    fresh = init_state(objective, optax.identity(), mesh, 0).params
    params = warm_start(
        published, fresh, bert, head=task.head, labels=task.labels, vocab_file=task.vocab_path)
    outputs = [predict(params) for predict in task.predictors(objective, mesh)]
    scores = {f'eval/{name}': value for name, value in task.score(outputs).items()}
    if jax.process_index() == 0:
        task.write(outputs, workdir)
        write_whole(workdir / 'result.json', json.dumps(
            {'model': str(model), 'source': config.data.eval_source or str(config.data.source),
             **scores}, indent=1) + '\n')
    return scores


def main(argv: list[str]) -> None:
    from bert_jax.train.run_directory import read_run_fields

    if '--help' in argv or '-h' in argv:
        print(__doc__)
        return
    values = flags.FlagValues()
    flags.DEFINE_string('workdir', None, 'Receives the predictions.', flag_values=values)
    models = [argument for argument in argv[1:] if not argument.startswith('-')]
    with error_boundary():
        if len(models) != 1:
            raise InputError(_USAGE)
        model = as_path(models[0])
        named = any(a.split('=')[0].lstrip('-') == 'config' for a in argv)
        if named:
            define_config(values, argv)
        elif (model / 'checkpoints').is_dir():
            config = data_config_of(read_run_fields(model))
            config.data.vocab_file, config.data.add_tokens = '', ''  # its own
            define_overrides(config, values, argv)
        else:
            raise InputError(
                f'{model} is no run, so --config has to name its task, such as '
                '--config=configs/glue.py:mrpc'
            )
        parse_flags(argv, values)
        workdir = values['workdir'].value or f'runs/evaluate-{model.name}'
        scores = evaluate(values['config'].value, models[0], as_path(workdir))
        print(f'predictions: {workdir}')
        print('result ' + json.dumps(scores))


if __name__ == '__main__':
    main(sys.argv)
