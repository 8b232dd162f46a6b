"""Runs a table of the paper: pre-trains, fine-tunes, picks on dev, shows ours beside the paper's.

    python -m bert_jax.tools.paper 5 --scale=tiny --data=DATA
    python -m bert_jax.tools.paper 1 --scale=paper --data=DATA \\
        --weights base=hf:google-bert/bert-base-uncased \\
        --weights 24/1024/16=hf:google-bert/bert-large-uncased
    python -m bert_jax.tools.paper 8 --scale=tiny --list
    python -m bert_jax.tools.paper mine --rows=mine.py:one,mine.py:two --data=DATA --seeds=3
    python -m bert_jax.tools.paper superglue --model DIR --model DIR --restarts=5

TABLE is 1 (GLUE), 2 and 3 (SQuAD 1.1 and 2.0), 4 (SWAG), 5 to 8, c1 (figure 5, appendix C.1); or,
not in the paper, efficient (recipes with half the FLOPs), loo (one of five ingredients left out)
or superglue (its eight tasks).
DATA is the folder that holds glue/, squad/, swag/ and conll2003/, laid out as the files in configs/
describe. Pre-training is configs/ablations.py:NAME. At the tiny scale, the model and the text are
small enough for two cores, as are efficient and loo at the larger scales between and mini.

--rows=FILE:NAME,FILE:NAME makes a table of your own: each row is a pre-training config, taken as it
is (ablations.py:base,tiny is one), and is compared with the first; TABLE then names its files.

--model DIR, once or more, makes models the rows of a table of fine-tuning, such as 1 (GLUE), 2, 3
or superglue: each is fine-tuned on every column's task over the grid, with --restarts seeds, and
compared with the first. The data come from the Hugging Face hub unless --data names a folder.

--pretrain FIELD=VALUE sets a field of every pre-training, --finetune [TASK:]FIELD=VALUE a field of
every fine-tuning, or only of one task's:

    ... --pretrain data.source='wiki/*.txt.gz' --pretrain data.vocab_file=vocab.txt \\
        --pretrain model.name=mini --pretrain train.steps=50000 \\
        --finetune sst2:train.steps='3 epochs' --finetune sst2:optimizer.learning_rate=3e-4,1e-4

Every part is a sweep (tools.sweep) in WORKDIR/parts, named after a digest of its config, so that
tables share parts, and more --seeds or another table only add to them. The same command resumes
where it stopped. Several machines may run it on one folder; a part that starts from another
machine's part waits for it. The table's .md and .json are rewritten after each part, its .png is
drawn at the end.

--chips=1 starts a process for every chip of this machine; each of them claims runs. A pre-training
runs in a single process here: for a slice of several hosts, pre-train with bert_jax.main and pass
--weights NAME=RUN. --list prints the config of each part; tools.preflight estimates what a
pre-training at the paper's scale costs.

Exit status: 0 the table is complete, 1 a part failed, 2 bad input, 143 stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

from bert_jax.config.command_line import Parser, at_least, config_file, load_config
from bert_jax.config.fields import pretraining_kind
from bert_jax.foreign import check_is_there
from bert_jax.runtime.errors import InputError, nearest, show
from bert_jax.runtime.files import as_path, open_folder
from bert_jax.runtime.process import error_boundary
from bert_jax.tasks.glue import GLUE_TASKS
from bert_jax.tools.paper.plan import SMALL_SCALE_RATES, Part, Plan, split_setting
from bert_jax.tools.paper.running import PartRunner
from bert_jax.tools.paper.tables import COLUMNS, TABLES, TASKS, Row, Table, own_table
from bert_jax.tools.paper.writing import table_path, write_table
from bert_jax.tools.workers import run_workers


def _parser() -> Parser:
    parser = Parser('python -m bert_jax.tools.paper', __doc__)
    parser.add_argument('table', metavar='TABLE', nargs='?', default='',
                        help=f"one of {', '.join(TABLES)}; with --rows a name for your own")
    parser.add_argument('--rows', default='', metavar='FILE:NAME,FILE:NAME',
                        help='configs of pre-training, the rows of your own table')
    parser.add_argument('--model', action='append', default=[], metavar='DIR',
                        help='weights to fine-tune, a row of the table; may be repeated')
    parser.add_argument('--scale', choices=(*SMALL_SCALE_RATES, 'paper'),
                        help='default: tiny; with --model paper')
    parser.add_argument('--data', help='folder of glue/, superglue/, squad/, swag/, conll2003/')
    parser.add_argument('--workdir', help='default: runs/paper-SCALE')
    parser.add_argument('--pretrain', action='append', default=[], metavar='FIELD=VALUE')
    parser.add_argument('--finetune', action='append', default=[], metavar='[TASK:]FIELD=VALUE')
    parser.add_argument('--weights', action='append', default=[], metavar='NAME=PATH',
                        help='weights that replace pre-training NAME')
    parser.add_argument('--seeds', type=at_least(1),
                        help='of pre-training (default 2; 1 at --scale=paper)')
    parser.add_argument('--restarts', type=at_least(0), default=0,
                        help="seeds of fine-tuning; default: 1, at the paper's scale its own")
    parser.add_argument('--columns', default='', help=f'some of {",".join(COLUMNS)}')
    parser.add_argument('--chips', type=at_least(0), default=0,
                        help='chips of a process, one for each such group (default: one has all)')
    parser.add_argument('--worker', type=int, help=argparse.SUPPRESS)  # number of a process
    parser.add_argument('--list', action='store_true', help='only print what would be run')
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    """The plan that the command line gives.

    Raises:
      InputError: a setting has another form, or a table, column, task or config is unknown.
    """
    _check_form('--pretrain', options.pretrain)
    _check_form('--finetune', options.finetune)
    _check_form('--weights', options.weights)
    table = _table(options.table, options.rows)
    scale = options.scale or 'tiny'
    weights = dict(text.split('=', 1) for text in options.weights)
    if options.model:
        table = _of_models(table, options.model)
        scale = options.scale or 'paper'
        weights |= {model: model for model in options.model}
    default_seeds = 1
    default_restarts = 0  # those of the table
    if scale != 'paper':
        default_seeds = 2
        default_restarts = 1
    data = ''  # that of each task's config
    if options.data or not options.model:
        data = str(as_path(options.data or '.'))
    plan = Plan(
        table=table,
        scale=scale,
        root=as_path(options.workdir or f'runs/paper-{scale}'),
        data=data,
        pretrain=options.pretrain,
        finetune=options.finetune,
        weights=weights,
        seeds=options.seeds or default_seeds,
        restarts=options.restarts or default_restarts,
        only=_columns(options.columns, table))
    _check_names(plan)
    return plan


def _columns(named: str, table: Table) -> list[str]:
    """The keys of --columns. SuperGLUE's are known without their prefix in its own table."""
    columns = []
    for name in filter(None, named.split(',')):
        prefixed = f'{table.name}_{name}'
        columns.append(prefixed if prefixed in COLUMNS else name)
    return columns


def _check_form(flag: str, settings: Iterable[str]) -> None:
    for setting in settings:
        if '=' not in setting:
            raise InputError(f'{flag} {setting}: write NAME=VALUE')


def _table(name: str, rows: str) -> Table:
    """The table of TABLES, or of the user's own rows."""
    if rows:
        return own_table(name or 'own', rows)
    if name not in TABLES:
        known = ', '.join(f'{key} ({table.title})' for key, table in TABLES.items())
        raise InputError(f'TABLE {name!r} is unknown: choose from {known}; or give your own rows, '
                         '--rows=FILE:NAME,FILE:NAME')
    return TABLES[name]


def _of_models(table: Table, models: Sequence[str]) -> Table:
    """The table with a row for each of these weights.

    Raises:
      InputError: its rows are given, or a model is named twice.
    """
    if table.own:
        raise InputError('--rows names pre-trainings, and --model weights: give one of the two')
    if len(set(models)) < len(models):
        raise InputError('--model names a model twice')
    return dataclasses.replace(table, rows=[Row(model, model) for model in models], of_models=True)


def _check_names(plan: Plan) -> None:
    """Raises an InputError if a plan names a column, task, row or config that there is not."""
    tasks: list[str] = []
    for setting in plan.finetune:
        task, _ = split_setting(setting)
        if task:
            tasks.append(task)
    pretrainings = sorted({row.pretraining for row in plan.rows})
    weights = f'table {plan.table.name} at the scale {plan.scale}: --weights'
    _check_known('--columns', plan.only, COLUMNS)
    _check_known('--finetune', tasks, TASKS)
    _check_known(weights, plan.weights, pretrainings)
    if plan.table.of_models:
        for column in plan.columns:
            if not COLUMNS[column].task:
                raise InputError(f'the column {column} compares pre-trainings, and --model names '
                                 'weights: leave it out of --columns')
    if plan.table.own:
        for name in pretrainings:
            task = load_config(config_file(name)).task
            if pretraining_kind(task) != 'pretrain':
                raise InputError(
                    f'--rows={name} is a config of {task}: a row is a pre-training')


def _check_known(flag: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise InputError(f'{flag}={name} is unknown: {nearest(name, known)}')


def _print_parts(parts: Sequence[Part], num_left: Mapping[str, int]) -> None:
    """Prints the config of each part and how many of its runs are left."""
    total = 0
    for part in parts:
        sweep = part.sweep
        flags = shlex.join([f'--config={sweep.config}', *sweep.overrides])
        print(f'{part.title}: {num_left[part.title]} of {len(sweep.members)} runs left, '
              f'{sweep.path}')
        print(f'    {flags}')
        total += len(sweep.members)
    print(f'{sum(num_left.values())} of {total} runs left in {len(parts)} parts')


def _check_models(plan: Plan, parts: Iterable[Part], num_left: Mapping[str, int]) -> None:
    """Raises an InputError if one of `--model` is not there, before others are fine-tuned.

    They are not read: that would take this process the chips that its workers need.
    """
    if plan.table.of_models and any(num_left[part.title] for part in parts):
        for path in plan.weights.values():
            check_is_there(path)


def _check_data(plan: Plan, parts: Iterable[Part], num_left: Mapping[str, int]) -> None:
    """Raises an InputError if data is missing; else that would be noticed after hours."""
    for part in parts:
        task = part.resolved.task
        source = str(part.resolved.data.source)
        is_in_folder = bool(plan.data) and source.startswith(f'{plan.data}/')
        if pretraining_kind(task) or not is_in_folder or not num_left[part.title]:
            continue
        folder = as_path(source)
        if task in GLUE_TASKS:
            folder /= GLUE_TASKS[task].folder
        if not folder.exists():
            raise InputError(f'--data={plan.data}: {folder} does not exist')


def main(argv: Sequence[str]) -> int:
    """Runs the command (see the top of this file) and returns its exit status."""
    with error_boundary():
        options = _parser().parse_args(argv)
        plan = _plan(options)
        parts = plan.parts()
        # Of all parts first, so that results that cannot be read are refused before anything runs.
        num_left = {part.title: len(part.sweep.unfinished()) for part in parts}
        if options.list:
            _print_parts(parts, num_left)
            return 0
        if options.worker is None:
            _check_data(plan, parts, num_left)
            _check_models(plan, parts, num_left)
        open_folder(plan.root, '--workdir', lambda folder: (folder / 'parts').is_dir())
        (plan.root / 'parts').mkdir(exist_ok=True)
        runner = PartRunner(plan, parts)
        status = run_workers(
            'bert_jax.tools.paper', argv, options.worker, options.chips, runner.run)
        is_worker = options.worker is not None
        if status or is_worker:
            return status
        runner.add_failed_elsewhere()
        text, is_complete = write_table(plan, runner.failed, whole=True)
        show(f'{text}\nwritten: {table_path(plan)}.md, .json and .png')
        if runner.failed or not is_complete:
            return 1
        return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
