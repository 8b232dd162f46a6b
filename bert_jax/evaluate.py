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

Nothing is trained and no run is changed. The predictions are written into --workdir, as a whole
and in place of an earlier evaluation there. Default: runs/evaluate-NAME, or runs/evaluate-NAME-2,
... where that is of another model or of other data. The last line on standard output is
`result {json}`.

Exit status: 0 done, 2 bad input (one line on standard error), 1 anything else.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from bert_jax.config.command_line import parse_command
from bert_jax.run.result_folder import free_folder
from bert_jax.runtime.errors import InputError, show
from bert_jax.runtime.files import Path, as_path, children
from bert_jax.runtime.process import error_boundary


def _default_workdir(model: Path) -> str:
    """runs/evaluate-NAME of a run or model; of a checkpoint, runs/evaluate-RUN-STEP."""
    if model.parent.name == 'checkpoints':
        return f'runs/evaluate-{model.parent.parent.name}-{model.name}'
    return f'runs/evaluate-{model.name}'


def _split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(The models that a command line names, the program and its options).

    Raises:
      InputError: the value of a field is an argument of its own, and could be a model, too.
    """
    models: list[str] = []
    options = list(argv[:1])
    arguments = iter(argv[1:])
    for argument in arguments:
        if argument.startswith('-'):
            options.append(argument)
        else:
            models.append(argument)
        name = argument.lstrip('-')
        if name in ('config', 'workdir'):  # its value is the next argument
            options.append(next(arguments, ''))
        elif name.startswith('config.') and '=' not in name:
            value = next(arguments, 'VALUE')
            raise InputError(f'{argument} {value}: write {argument}={value}')
    return models, options


def main(argv: list[str]) -> None:
    """Runs the command (see the top of this file)."""
    own_flags: Any = flags.FlagValues()
    flags.DEFINE_string(
        'workdir', None, 'Receives the predictions.', flag_values=own_flags)
    flags.DEFINE_boolean(
        'labels_by_position', False,
        "LABEL_0, LABEL_1, ... of the model are the task's labels in their order.",
        flag_values=own_flags)
    with error_boundary():
        models, options = _split_arguments(argv)
        if not models and '--help' not in options and '-h' not in options:
            raise InputError('name a run or a model: python -m bert_jax.evaluate RUN '
                             '--config.data.eval_source=FILE')
        config = None
        names_config = any(option.split('=')[0] in ('--config', '-config') for option in options)
        if models and not names_config:
            from bert_jax.scoring import config_of_run

            config = config_of_run(as_path(models[0]))
        config, _ = parse_command(options, __doc__ or '', own_flags, config)  # exits after --help
        from bert_jax.scoring import evaluate, identity

        workdir = own_flags.workdir or free_folder(
            _default_workdir(as_path(models[0])), identity(config, models))
        scores = evaluate(
            config, models, as_path(workdir), labels_by_position=own_flags.labels_by_position)
        show(f'predictions: {workdir}')
        if any(path.name.endswith('_examples.csv') for path in children(workdir)):
            show(f'what is wrong: python -m bert_jax.tools.look {shlex.quote(workdir)} --errors')
        show('result ' + json.dumps(scores))


if __name__ == '__main__':
    main(sys.argv)
