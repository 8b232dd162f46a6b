"""Compares runs on one HTML page that needs no other file.

    python -m bert_jax.tools.report RUN [RUN ...] --output=report.html
    python -m bert_jax.tools.report --board RUN [RUN ...] --output=board.md
    python -m bert_jax.tools.report RUN [RUN ...] --against=RECIPE
    python -m bert_jax.tools.report RUN RUN RUN --reference --output=RECIPE.json

The page first says how far the score of each run is from the first run's, and whether the
difference may be chance or why the two cannot be compared. Runs that differ only in their seed form
a group: one column, one curve. Then come settings that differ, warnings, results, curves over
steps, tokens and FLOPs, and, from the weights of each group's first run, masked words and attention
of a sentence. A run that is going on, was killed or has no checkpoint is shown as far as it got,
and the page lists what is missing.

With --board it writes a Markdown table with a row for each recipe of pre-training: its cost, and
the scores of the given runs that started from it. The table says how rows are made.

With --against it says whether the batches, learning rates, losses and gradient norms of each run
are those of a reference, or the step at which the run leaves it, and the settings that may be why.
RECIPE is a recipe whose reference is shipped, such as tiny_pretrain, or a file. --reference makes
such a file of runs that differ in their seed alone, finished or not.

Exit status: 0 done, 1 a run leaves its reference, 2 bad input.
"""

import os
import sys
from collections.abc import Sequence

from bert_jax.config.command_line import Parser
from bert_jax.run.layout import SWEEP_PRUNED, is_described
from bert_jax.runtime.errors import InputError, tell, visible
from bert_jax.runtime.files import Path, as_path, check_new_file, write_whole
from bert_jax.runtime.process import error_boundary
from bert_jax.text.vocab import MASK
from bert_jax.tools.report.against import against, reference_of
from bert_jax.tools.report.board import board
from bert_jax.tools.report.examples import WORD, make_examples
from bert_jax.tools.report.groups import grouped
from bert_jax.tools.report.page import page
from bert_jax.tools.report.runs import RunRecords
from bert_jax.watch.reference import read_reference

_TEXT = 'The old town lies on the river, and the king lived in the castle for many years.'
_MOST_WORDS = 30  # attention over more is illegible, and a large model would make a large page


def _parser() -> Parser:
    parser = Parser('python -m bert_jax.tools.report', __doc__)
    parser.add_argument('runs', metavar='RUN', nargs='+', help='run directories')
    parser.add_argument('--output', help='the page, a new file')
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument('--board', action='store_true',
                      help='a Markdown table of recipes instead of the page')
    kind.add_argument('--reference', action='store_true',
                      help='a reference, made of these runs, instead of the page')
    kind.add_argument('--against', metavar='RECIPE', default='',
                      help='compares each run with this reference, on standard output')
    parser.add_argument('--text', default=_TEXT, help='the sentence of the examples')
    return parser


def _check_text(text: str) -> None:
    if MASK in text:
        raise InputError(f'--text has {MASK}: write it without, each word is masked in turn')
    num_words = len(WORD.findall(text))
    if not 0 < num_words <= _MOST_WORDS:
        raise InputError(
            f'--text has {num_words} words: give one sentence, of at most {_MOST_WORDS}')


def _read_runs(folders: Sequence[str]) -> list[RunRecords]:
    """The runs in these directories, named by their paths below the folder that has them all.

    Those that a sweep pruned before they began are left out.

    Raises:
      InputError: a directory is named twice, is no run directory, or is damaged; or none has begun.
    """
    named: dict[str, str] = {}  # by absolute path
    for folder in folders:
        path = os.path.abspath(folder)
        if path in named:
            raise InputError(f'{folder} is named twice: name each run once')
        if _never_began(as_path(folder)):
            tell(f'{folder}: its sweep pruned it before it began; left out')
        else:
            named[path] = folder
    if not named:
        raise InputError(f'none of the runs has begun: name one beside {folders[0]}')
    above = os.path.commonpath(list(map(os.path.dirname, named)))
    return [RunRecords(as_path(folder), os.path.relpath(path, above))
            for path, folder in named.items()]


def _never_began(folder: Path) -> bool:
    """Whether a run is that of a seed whose point was pruned before its turn came."""
    return (folder / SWEEP_PRUNED).exists() and not is_described(folder)


def _page_of(runs: Sequence[RunRecords], text: str) -> str:
    groups = grouped(runs)
    examples = [make_examples(group.runs[0], text) for group in groups]
    return page(groups, examples, text)


def _compare(runs: Sequence[RunRecords], named: str) -> int:
    """Prints how the runs compare with a reference; returns the exit status."""
    reference = read_reference(named)
    status = 0
    for run in runs:
        comparison = against(run, reference)
        print('\n'.join(comparison.lines))
        if comparison.leaves:
            status = 1
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command (see the top of this file) and returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if bool(options.against) == bool(options.output):
        parser.error('give either --output or --against')
    with error_boundary(writing=options.output):
        if options.against:
            return _compare(_read_runs(options.runs), options.against)
        check_new_file(options.output, '--output')
        _check_text(options.text)
        runs = _read_runs(options.runs)
        if options.board:
            content = board(runs)
        elif options.reference:
            content = reference_of(runs)
        else:
            content = _page_of(runs, options.text)
        write_whole(options.output, content)
        for run in runs:
            print(visible('; '.join([f'{run.name}: {run.state}', *run.missing])))
        print(f'written: {options.output}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
