"""Runs points of a grid or a search, each as a run, and picks the best on the dev set.

    python -m bert_jax.tools.sweep --config=configs/sweeps/glue.py:mrpc \\
        --config.init_checkpoint=DIR --config.data.source=glue
    python -m bert_jax.tools.sweep --config=configs/glue.py:rte --restarts=5 \\
        --grid optimizer.learning_rate=5e-5,3e-5,2e-5 --grid train.batch_size=16,32 ...

    python -m bert_jax.tools.sweep --config=configs/glue.py:rte --trials=20 \\
        --search optimizer.learning_rate=1e-5..1e-4:log --search train.batch_size=16,32 ...

The files in configs/sweeps name the paper's grids; --grid replaces their values of a field.
--search draws --trials points from ranges and values instead, with Optuna's sampler TPE,
--sampler=random or --sampler=qmc (Sobol's sequence). --restarts=N adds the seeds 0 to N-1, the
paper's remedy for small data sets. --prune=median, hyperband or wilcoxon ends runs early whose
evaluations are behind those of the other points. Every --config.FIELD=VALUE applies to all runs.
The same command resumes a sweep: finished runs are kept, an interrupted one resumes from its
checkpoint.

A process trains runs that differ only in seed and learning rate one after another; for these it
reads weights and data and compiles the step only once. --chips=1 starts a process for every chip of
this machine (--chips=2 for every two, ...). Any number of processes and machines may run the same
command on one folder, such as the hosts of a slice: each run is claimed by one process, and taken
over by another if that one dies. The points are those of an Optuna study, whose journal
(study.journal) is in the folder too, or with --storage=URL in a database; if it is lost, it is made
anew from the runs.

The directory receives table.md, results.json, Optuna's plots of the points (plots/), every run with
its log, and `winner`, a link to the best one (in a bucket, a file with its name). The checkpoints
of the other runs are deleted once they are beaten; --keep=K keeps those of the K best, for example
for an ensemble, --keep=all those of all runs.
"""

import argparse
import functools
import sys
from collections.abc import Sequence

from bert_jax.config.command_line import Parser, at_least, config_file, run_name
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, show
from bert_jax.runtime.process import error_boundary
from bert_jax.tools.sweep.folder import Sweep
from bert_jax.tools.sweep.members import (
    Member,
    grid_members,
    member_config,
    most_seeds,
    read_sweep,
)
from bert_jax.tools.sweep.pruning import PRUNERS, check_can_prune
from bert_jax.tools.sweep.report import add_plots, report
from bert_jax.tools.sweep.search import SAMPLERS, Search, read_search
from bert_jax.tools.sweep.training import work_until_done
from bert_jax.tools.workers import run_workers


def number_or_all(text: str) -> int:
    """A type of an argument: a number from 0, or `all`, which is more than any."""
    return sys.maxsize if text == 'all' else at_least(0)(text)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """(The command's own flags, those of the config)."""
    parser = Parser('python -m bert_jax.tools.sweep', __doc__)
    parser.add_argument('--config', required=True, help='config file, as FILE.py or FILE.py:ARG')
    parser.add_argument('--workdir', help='default: runs/sweep-NAME of the config')
    parser.add_argument('--grid', action='append', default=[], metavar='FIELD=VALUE,VALUE',
                        help='values of a field; repeated: all combinations')
    parser.add_argument('--search', action='append', default=[], metavar='FIELD=LOW..HIGH[:log]',
                        help='draw a field from a range, or from VALUE,VALUE; may be repeated')
    parser.add_argument('--sampler', choices=SAMPLERS, default='tpe',
                        help='of --search: what draws the points (tpe)')
    parser.add_argument('--trials', type=at_least(1), default=20,
                        help='of --search: number of points (20)')
    parser.add_argument('--prune', choices=PRUNERS, default='',
                        help='end runs early whose evaluations are behind (none)')
    parser.add_argument('--restarts', type=at_least(0), default=0,
                        help='runs all with seeds 0 to N-1')
    parser.add_argument('--chips', type=at_least(0), default=0,
                        help='chips of a process, one for each such group (default: one has all)')
    parser.add_argument('--keep', type=number_or_all, default=1, metavar='K|all',
                        help='keep the checkpoints of the K best runs (1)')
    parser.add_argument('--storage', default='', metavar='URL',
                        help='a database for the study, such as sqlite:///FILE (a journal in the '
                             'sweep directory)')
    parser.add_argument('--worker', type=int, help=argparse.SUPPRESS)  # number of a process
    return parser.parse_known_args(argv)


def _points(
    options: argparse.Namespace, entries: Sequence[str]
) -> tuple[Sequence[Member], Search | None]:
    """(The runs of a grid, None), or (none, what points are drawn from).

    Args:
      options: of the command line.
      entries: of --grid and --search, and of the sweep's file.
    """
    if not options.search:
        return grid_members(entries, options.restarts), None
    if options.grid:
        raise InputError('--grid beside --search: a search draws from values too, '
                         f'--search {options.grid[0]}')
    return (), read_search(entries, options.trials, options.sampler, options.restarts)


def _open(sweep: Sweep) -> None:
    """Opens the folder, and the database if the study is in one."""
    if not sweep.storage:
        show(f'sweep directory: {sweep.path}')
        sweep.open(str(sweep.config), sweep.overrides)
        return
    from bert_jax.tools.sweep.database import check_url, open_database, shown_url

    check_url(sweep.storage)
    show(f'sweep directory: {sweep.path}, study in {shown_url(sweep.storage)}')
    sweep.open(str(sweep.config), sweep.overrides)
    open_database(sweep.storage)  # its tables are there before several workers look for them


def _announce(sweep: Sweep) -> None:
    """Says how much is done already, and what will be deleted."""
    done = sweep.num_runs - len(sweep.unfinished())
    if sweep.search is not None:
        done = len(sweep.results())
    if done:
        show(f'{done} of {sweep.num_runs} runs are finished already')
    if sweep.keep < sweep.num_runs:
        kept = 'the best run' if sweep.keep == 1 else f'the {sweep.keep} best runs'
        show(f'{sweep.num_runs} runs: only the checkpoints of {kept} so far are kept, those of '
             'the others are deleted (--keep=K or --keep=all keeps more)')


def _add_plots(sweep: Sweep) -> None:
    """Adds the plots of its study to the report."""
    from bert_jax.tools.sweep.database import needing_database
    from bert_jax.tools.sweep.study import SweepStudy

    with needing_database(sweep.storage):
        add_plots(sweep, SweepStudy(sweep).optuna)


def main(argv: Sequence[str]) -> int:
    """Runs the command (see the top of this file) and returns its exit status."""
    options, overrides = _parse(argv)
    with error_boundary(writing=options.workdir or 'runs'):
        is_worker = options.worker is not None
        config, grid = read_sweep(config_file(options.config), [*options.grid, *options.search])
        members, search = _points(options, grid)
        # Reports one that cannot work before any is run.
        examples = members if search is None else search.examples()
        num_seeds = most_seeds(examples) if search is None else search.restarts
        for member in examples:
            flag = '--grid' if search is None else '--search'
            check_can_prune(
                options.prune, member_config(config, overrides, member, flag), num_seeds)
        workdir = options.workdir or f'runs/sweep-{run_name(config)}'
        sweep = Sweep(files.as_path(workdir), config, overrides, members, options.keep, search,
                      options.prune, options.storage)
        if not is_worker:
            _open(sweep)
            _announce(sweep)
        status = run_workers(
            'bert_jax.tools.sweep', argv, options.worker, options.chips,
            functools.partial(work_until_done, sweep))
        if status or is_worker:
            return status
        status = report(sweep)
        _add_plots(sweep)
        return status


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
