"""Runs a table of the paper: pre-trains, fine-tunes, picks on dev, writes it beside the paper's.

    python -m bert_jax.tools.paper 5 --scale=tiny --data=DATA
    python -m bert_jax.tools.paper 1 --scale=paper --data=DATA --weights base=bert-base-uncased \\
        --weights 24/1024/16=bert-large-uncased
    python -m bert_jax.tools.paper 8 --scale=tiny --list

TABLE is 1 (GLUE), 2 and 3 (SQuAD 1.1 and 2.0), 4 (SWAG), 5 to 8, c1 (figure 5, appendix C.1), or
efficient, which is ours: other recipes of half the FLOPs. tools/paper_tables.py has their rows and
the paper's figures. DATA is the folder of glue/, squad/,
swag/ and conll2003/, laid out as configs/*.py say. Pre-training is configs/ablations.py:NAME; at
the tiny scale a model and text that two cores can do.

--pretrain FIELD=VALUE sets a field of all pre-training, --finetune [TASK:]FIELD=VALUE of all or one
task's fine-tuning:

    ... --pretrain data.source='wiki/*.txt.gz' --pretrain data.vocab_file=vocab.txt \\
        --pretrain model.name=mini --pretrain train.steps=50000 \\
        --finetune sst2:train.steps='3 epochs'

Every part is a sweep in DIRECTORY/parts (tools.sweep), named after the config that its runs resolve
to: tables share what they have in common, and more --seeds or another table add to what is there.
The same command goes on where it was stopped, and any number of machines may run it on one folder:
what one is at holds up only what needs it. After each part the table's .md and .json are written
anew, at the end its .png.

--chips=1 starts a process for every chip of this machine, each of which takes runs. A pre-training
here is one process; what runs on a slice of several hosts at once is started with bert_jax.main and
given with --weights NAME=RUN. tools.preflight tells what a pre-training at the
paper's scale costs; --list prints the config of each.

Exit status: 0 the table is whole, 1 a part failed, 2 bad input, 143 stopped.
"""

from __future__ import annotations

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # before anything loads TensorFlow

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from absl import logging

from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError, Stopped, nearest
from bert_jax.runtime.files import Path, as_path, is_by_the_way, open_folder
from bert_jax.runtime.process import error_boundary
from bert_jax.runtime.stopping import Guard
from bert_jax.tasks.glue import GLUE_TASKS
from bert_jax.tools.paper_tables import (
    COLUMNS,
    CONFIGS,
    TABLES,
    TASKS,
    Options,
    Part,
    parts_of,
    rows_of,
    stem_of,
)
from bert_jax.tools.sweep import Worker, as_worker, num_workers, supervise
from bert_jax.train.report import duration

_WAIT_SECONDS = 10.0  # between looks at what other machines are at


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m bert_jax.tools.paper', description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('table', choices=list(TABLES), metavar='TABLE')
    parser.add_argument('--scale', choices=('tiny', 'paper'), default='tiny')
    parser.add_argument('--data', default='.', help='folder of glue/, squad/, swag/, conll2003/')
    parser.add_argument('--workdir', help='default: runs/paper-SCALE')
    parser.add_argument('--pretrain', action='append', default=[], metavar='FIELD=VALUE')
    parser.add_argument('--finetune', action='append', default=[], metavar='[TASK:]FIELD=VALUE')
    parser.add_argument('--weights', action='append', default=[], metavar='NAME=PATH',
                        help='take these in the place of pre-training NAME')
    parser.add_argument('--seeds', type=int, help='of pre-training; default: 2 tiny, 1 paper')
    parser.add_argument('--restarts', type=int, default=0,
                        help='seeds of fine-tuning; default: 1 tiny, else as the paper')
    parser.add_argument('--columns', default='', help=f'some of {",".join(COLUMNS)}')
    parser.add_argument('--chips', type=int, default=0,
                        help='one process for every so many chips of this machine (all: one)')
    parser.add_argument('--worker', type=int, help=argparse.SUPPRESS)  # number of a process
    parser.add_argument('--list', action='store_true', help='only say what would be run')
    return parser.parse_args(argv)


def _options(given: argparse.Namespace) -> Options:
    for flag in ('pretrain', 'finetune', 'weights'):
        for text in getattr(given, flag):
            if '=' not in text:
                raise InputError(f'--{flag} {text}: write NAME=VALUE')
    tiny = given.scale == 'tiny'
    seeds = given.seeds if given.seeds is not None else 2 if tiny else 1
    if seeds < 1 or given.restarts < 0:
        raise InputError(f'--seeds={seeds} --restarts={given.restarts}: at least 1 and 0')
    columns = tuple(name for name in given.columns.split(',') if name)
    for name in columns:
        if name not in COLUMNS:
            raise InputError(f'--columns={name} is unknown: choose from {", ".join(COLUMNS)}')
    for text in given.finetune:
        of, colon, _ = text.partition(':')
        if colon and '=' not in of and of not in TASKS:
            raise InputError(f'--finetune {text}: {of} is no task: {nearest(of, list(TASKS))}')
    weights = dict(text.split('=', 1) for text in given.weights)
    if not CONFIGS.is_dir():
        raise InputError(f'{CONFIGS} is not there: this command runs from a clone')
    options = Options(
        tiny=tiny, root=as_path(given.workdir or f'runs/paper-{given.scale}'),
        data=str(as_path(given.data)), pretrain=tuple(given.pretrain),
        finetune=tuple(given.finetune), weights=weights, seeds=seeds,
        restarts=given.restarts or int(tiny), columns=columns,
    )
    names = {row.pretraining for row in rows_of(TABLES[given.table], options)}
    for name in weights:
        if name not in names:
            raise InputError(f'--weights {name}=...: no row of table {given.table} at the scale '
                             f'{given.scale} has it: {nearest(name, sorted(names))}')
    return options


def _check_parts(parts: Sequence[Part], options: Options) -> None:
    """Refuses what would fail after hours of pre-training."""
    for part in parts:
        if part.kind in TASKS:
            folder = f'{options.data}/{TASKS[part.kind].folder}'
            needed = folder + (
                f'/{GLUE_TASKS[part.kind].folder}' if part.kind in GLUE_TASKS else '')
            if part.resolved.data.source == folder and part.folder.unfinished() and not (
                    as_path(needed).exists()):
                raise InputError(f'--data={options.data}: {needed} is not there')
        elif 'probe' in options.columns:
            results = [part.folder.result(member) for member in part.members]
            if not part.resolved.train.probe:
                raise InputError('--columns=probe: give --pretrain train.probe=FILE as well')
            if any(result and COLUMNS['probe'].metric not in result for result in results):
                raise InputError(f'--columns=probe: {part.path} was pre-trained without '
                                 'train.probe; give another --workdir')


def _left(parts: Sequence[Part]) -> str:
    """The time that the rest will take, by that of runs alike."""
    seconds: dict[str, list[float]] = {}
    for part in parts:
        seconds.setdefault(part.kind, []).extend(part.seconds())
    total, unknown = 0.0, 0
    for part in parts:
        runs, known = len(part.folder.unfinished()), seconds[part.kind]
        total += runs * sum(known) / len(known) if known else 0.0
        unknown += 0 if known else runs
    return f'eta {duration(total)}' + (f' and {unknown} runs not yet timed' if unknown else '')


def _why_not(part: Part, by_path: Mapping[Path, Part], failed: Mapping[str, str]) -> str | None:
    """Why a part can never be run, '' if it can be now; None: what it starts from is to come."""
    if part.before is None or part.start is None:
        return ''
    path, member = part.before
    before = by_path[path]
    if before.folder.result(member) is not None:
        return '' if part.start.exists() else f'{part.start} is not there'
    if before.title in failed or before.folder.failed(member):
        return f'{before.title} failed'
    return None


def _run(
    given: argparse.Namespace, argv: Sequence[str], options: Options, parts: list[Part]
) -> int:
    from bert_jax.tools.paper_report import write_table

    table, workers = given.table, num_workers(given.chips)
    if given.worker is not None:
        as_worker(given.worker, workers)
    guard = Guard()
    guard.start()
    failed: dict[str, str] = {}  # by the part's title
    status = 0
    if given.worker is None and workers > 1:
        status = supervise('bert_jax.tools.paper', argv, workers, given.chips, guard.should_stop)
    else:
        hosts.check_accelerators()
        try:
            _run_parts(parts, guard.should_stop, failed,
                       lambda: write_table(table, options, failed, False))
        except Stopped:
            status = 143
    if given.worker is not None:
        return status
    if status == 143:
        print('stopped; the same command goes on from here', flush=True)
    if status:
        return status
    for part in parts:  # here or on another machine
        if any(map(part.folder.failed, part.members)):
            failed.setdefault(part.title, f'see log.txt in {part.path}/runs')
    text, whole = write_table(table, options, failed, draw=True)
    print(f'{text}\nwritten: {options.root}/{stem_of(table)}.md, .json and .png', flush=True)
    return 0 if whole and not failed else 1


def _run_parts(
    parts: list[Part], should_stop: Callable[[int], bool], failed: dict[str, str],
    write: Callable[[], object],
) -> None:
    """Runs what is to be run; into `failed` goes, by title, why a part cannot be.

    Raises:
      Stopped: it was asked to.
    """
    by_path = {part.path: part for part in parts}
    workers: dict[Path, Worker] = {}  # kept from pass to pass: a claim is dead after a while
    waiting = True
    while waiting:
        waiting = False  # for what other machines are at
        for number, part in enumerate(parts, 1):
            left = len(part.folder.unfinished())
            if not left or part.title in failed:
                continue
            if why := _why_not(part, by_path, failed):
                failed[part.title] = why
            waiting |= why is None
            if why != '':
                continue
            try:
                if part.path not in workers:
                    print(f'[{number}/{len(parts)}] {time.strftime("%H:%M")} {part.title}: {left} '
                          f'runs in {part.path}; {_left(parts)}', flush=True)
                    part.path.mkdir(parents=True, exist_ok=True)
                    part.folder.open(part.path.name, [])
                    workers[part.path] = Worker(
                        part.config, part.overrides, part.folder, should_stop)
                if not workers[part.path].work():
                    raise Stopped('')
            except InputError as error:  # of this part; the others may do
                failed[part.title] = str(error)
                print(f'error: {part.title}: {error}', file=sys.stderr, flush=True)
            waiting |= bool(part.folder.unfinished()) and part.title not in failed
            if len(part.folder.unfinished()) < left:
                write()
        if waiting:
            if should_stop(0):
                raise Stopped('')
            time.sleep(_WAIT_SECONDS)


def _is_ours(folder: os.PathLike[str]) -> bool:
    return 'parts' in {path.name for path in as_path(folder).iterdir() if not is_by_the_way(path)}


def main(argv: Sequence[str]) -> int:
    given = _parse(argv)
    logging.set_verbosity(logging.ERROR)  # libraries tell a great deal at the lower levels
    with error_boundary():
        options = _options(given)
        parts = parts_of(TABLES[given.table], options)
        if given.list:
            for part in parts:
                left = len(part.folder.unfinished())
                print(f'{part.title}: {left} of {len(part.members)} runs left, {part.path}\n'
                      f"    {shlex.join([f'--config={part.config}', *part.overrides])}")
            print(f'{sum(len(part.folder.unfinished()) for part in parts)} of '
                  f'{sum(len(part.members) for part in parts)} runs left in {len(parts)} parts')
            return 0
        _check_parts(parts, options)
        open_folder(options.root, '--workdir', _is_ours)
        (options.root / 'parts').mkdir(exist_ok=True)
        return _run(given, argv, options, parts)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
