"""Scores several runs of one downstream task as one: the mean of their logits (paper, Table 2).

    python -m bert_jax.tools.ensemble RUN RUN [RUN ...] --workdir=runs/ensemble

The runs have the same task, data, vocabulary and windows, and differ in seed, learning rate or
pre-trained model. The best evaluation of each predicts every set again; the means are scored by the
official metrics and written as a run writes its predictions (predictions.json, *_predictions.tsv).
The last line on standard output is `result {json}`.

Logits are averaged, not probabilities: a softmax over each window of a SQuAD question would make
its windows incomparable.

Exit status: 0 done, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.faults import error_boundary
from bert_jax.runtime.files import Path, as_path, write_whole
from bert_jax.runtime.outputs import open_folder
from bert_jax.tasks import task_kind, task_kinds
from bert_jax.train.report import duration
from bert_jax.weights.reading import read_json

# What decides which examples there are, how they are cut, and what is predicted of them.
_ALIKE = (
    'task', 'data.source', 'data.eval_source', 'data.max_seq_length', 'data.lowercase',
    'data.text', 'data.text_pair', 'data.label', 'data.held_out',
)  # and the task's own section
_ALIKE_RESULTS = ('head', 'labels')  # what the runs say besides their fields


def vocabulary(run: Path) -> Path:
    """The vocabulary in a run directory.

    Raises:
      InputError: there is none.
    """
    path = next((p for p in (run / 'vocab.txt', run / 'vocab.model') if p.exists()), None)
    if path is None:
        raise InputError(f'{run} has neither vocab.txt nor vocab.model')
    return path


def _alike(config: dict[str, Any]) -> list[str]:
    section = task_kind(config['task']).section
    return [*_ALIKE, *(name for name in config if section and name.startswith(f'{section}.'))]


def check_alike(runs: Sequence[Path], configs: Sequence[dict[str, Any]]) -> None:
    """Raises:
      InputError: the logits of the runs do not belong together.
    """
    for run, config in zip(runs, configs, strict=True):
        for name in (*_alike(configs[0]), *_ALIKE_RESULTS):
            first, other = configs[0].get(name), config.get(name)
            if first != other:
                raise InputError(
                    f'{runs[0]} has {name}={first!r}, {run} has {other!r}: an ensemble is of runs '
                    'on the same examples'
                )
        if vocabulary(run).read_bytes() != vocabulary(runs[0]).read_bytes():
            raise InputError(f'{vocabulary(run)} is not the vocabulary of {runs[0]}')


def ensemble(runs: Sequence[Path], workdir: Path) -> dict[str, float]:
    """Predicts with all runs, writes the predictions of the mean and returns its scores.

    Args:
      runs: run directories.
      workdir: receives the prediction files.

    Raises:
      InputError: a run cannot be read, they are not alike, or `workdir` is a run.
    """
    import jax
    import optax

    from bert_jax.config import complete, data_config_of
    from bert_jax.train.experiment import open_task
    from bert_jax.train.program import model_config
    from bert_jax.train.run_directory import read_run_fields
    from bert_jax.train.sharding import make_mesh
    from bert_jax.train.state import init_state
    from bert_jax.train.warm_start import warm_start
    from bert_jax.weights.load import load_weights

    if (workdir / 'checkpoints').exists():
        raise InputError(f'{workdir} is a run, whose predictions would be lost: give another')
    open_folder(workdir, '--workdir', _is_ensemble)
    configs = [read_run_fields(run) for run in runs]
    name = configs[0].get('task')
    downstream = [kind.name for kind in task_kinds().values() if not kind.phased]
    if name not in downstream:
        raise InputError(
            f'{runs[0]} is a run of task {name!r}: choose runs of ' + ', '.join(downstream))
    check_alike(runs, configs)
    config = data_config_of(configs[0])
    config.data.vocab_file = str(vocabulary(runs[0]))
    config.data.add_tokens = ''  # they are in that vocabulary
    mesh = make_mesh(jax.device_count(), 1, 1)
    task: Any = None
    means: list[dict[str, np.ndarray]] = []
    started = time.monotonic()
    for number, run in enumerate(runs, 1):
        published = load_weights(run, any_head=True)
        completed = complete(config, published)
        task = task or open_task(completed)
        bert = model_config(completed, task.vocab_size, mesh)
        objective = task.objective(bert)
        fresh = init_state(objective, optax.identity(), mesh, 0).params
        params = warm_start(
            published, fresh, bert, head=task.head, labels=task.labels, vocab_file=task.vocab_path
        )
        outputs = [predict(params) for predict in task.predictors(objective, mesh)]
        means = means or [dict.fromkeys(found, np.zeros(())) for found in outputs]
        for mean, found in zip(means, outputs, strict=True):
            for name, x in found.items():
                mean[name] = mean[name] + x.astype(np.float64) / len(runs)
        left = (time.monotonic() - started) / number * (len(runs) - number)
        scores = '  '.join(f'{name} {x:.4f}' for name, x in task.score(outputs).items())
        print(f'{run}: {scores}  eta {duration(left)}', flush=True)
    # For tools.glue_submission, which asks a folder for its task.
    write_whole(workdir / 'config.json', json.dumps(
        {'task': config.task, 'ensemble': [str(run) for run in runs]}, indent=2) + '\n')
    task.write(means, workdir)
    return {f'eval/{name}': value for name, value in task.score(means).items()}


def _is_ensemble(folder: Path) -> bool:
    path = folder / 'config.json'
    return path.exists() and 'ensemble' in read_json(path, 'give another --workdir')


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m bert_jax.tools.ensemble', description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('runs', metavar='RUN', nargs='+', help='run directories')
    parser.add_argument('--workdir', required=True, help='receives the predictions')
    options = parser.parse_args(arguments)
    with error_boundary():
        result = ensemble([as_path(run) for run in options.runs], as_path(options.workdir))
    print('result ' + json.dumps(result))
    return 0


if __name__ == '__main__':
    sys.exit(main())
