"""Collects test predictions of GLUE into the zip file that gluebenchmark.com takes, and checks it.

    python -m bert_jax.tools.glue_submission submission.zip RUN [RUN ...]
    python -m bert_jax.tools.glue_submission --check submission.zip

A RUN is the directory of a fine-tuned run (configs/glue.py:TASK), which wrote
`test_predictions.tsv` at its end if the folder of the task has a test file; mnli writes three, as
it predicts the diagnostic set (AX.tsv) too. Or it is a folder of files that are called as in the
submission (CoLA.tsv, ...). All have a header `index<TAB>prediction` and label names as the task's
files spell them. The zip holds all eleven files, or the site refuses it.

Exit status: 0 done, 2 something is missing or wrong (a line each on standard error).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from bert_jax.labelled.glue_submission import (
    NUM_ROWS,
    TASKS,
    check_submission,
    find_predictions,
    read_predictions,
    same_prediction,
    write_submission,
)
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.faults import error_boundary
from bert_jax.runtime.outputs import check_new_file


class _Parser(argparse.ArgumentParser):
    """Answers wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f'{message}; see --help')


def parser() -> argparse.ArgumentParser:
    p = _Parser(
        prog='python -m bert_jax.tools.glue_submission', description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument('zip', metavar='ZIP', help='the file to write, or to check')
    p.add_argument('folders', metavar='RUN', nargs='*', help='where predictions are')
    p.add_argument(
        '--check', action='store_true', help='write nothing: check ZIP against the format'
    )
    p.add_argument(
        '--wnli-majority', action='store_true',
        help='predict 0 (the majority in training) for all of WNLI, as the BERT paper did, '
        'whatever the runs say',
    )
    p.add_argument(
        '--fill-missing', action='store_true',
        help='write one constant label for tasks without predictions (their scores mean nothing)',
    )
    return p


def collect(folders: Sequence[str], constant: Sequence[str]) -> dict[str, list[str]]:
    """Predictions by name in the submission, of all folders.

    Args:
      folders: see `find_predictions`.
      constant: names whose predictions are not looked for.

    Raises:
      InputError: two folders have the same file, or a file is faulty.
    """
    paths: dict[str, str] = {}
    for folder in folders:
        for file, path in find_predictions(folder).items():
            if file in paths:
                raise InputError(f'{paths[file]} and {path} are both {file}: name one of them')
            paths[file] = path
    predictions = {}
    for file in NUM_ROWS:
        if file in paths and file not in constant:
            predictions[file] = read_predictions(file, paths[file])
            print(f'{file:<12}{NUM_ROWS[file]:>7} rows from {paths[file]}')
    return predictions


def write(zip_path: str, folders: Sequence[str], wnli_majority: bool, fill_missing: bool) -> bool:
    """Collects and writes; False if something is missing, which it then names line by line."""
    constant = ['WNLI.tsv'] if wnli_majority else []
    predictions = collect(folders, constant)
    for file in constant:
        predictions[file] = same_prediction(file)
        print(f'{file:<12}{NUM_ROWS[file]:>7} rows, all 0: the majority in training, not a model')
    missing = [file for file in NUM_ROWS if file not in predictions]
    for file in missing:
        if fill_missing:
            predictions[file] = same_prediction(file)
            print(
                f'WARNING: no predictions for {file}: all {NUM_ROWS[file]} rows are '
                f'{predictions[file][0]}, which is no result', file=sys.stderr,
            )
        else:
            task = 'mnli' if file == 'AX.tsv' else TASKS[file].name
            print(
                f'error: {file} is missing: name a run of configs/glue.py:{task}, or '
                '--fill-missing', file=sys.stderr,
            )
    if missing and not fill_missing:
        return False
    write_submission(zip_path, {file: predictions[file] for file in NUM_ROWS})
    print(f'wrote {zip_path}')
    return True


def check(path: str) -> bool:
    """Checks a zip file and says what is wrong with it."""
    faults = check_submission(path)
    for fault in faults:
        print(f'error: {fault}', file=sys.stderr)
    if not faults:
        print(f'{path} has all {len(NUM_ROWS)} files in the right format')
    return not faults


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the arguments and does what they say."""
    with error_boundary():
        args = parser().parse_args(arguments)
        if args.check and (args.folders or args.wnli_majority or args.fill_missing):
            raise InputError('--check takes a zip file and nothing else')
        if not args.check and not args.folders and not args.fill_missing:
            raise InputError('name the directories of runs, or a folder with TSV files')
        if args.check:
            good = check(args.zip)
        else:
            check_new_file(args.zip, 'ZIP')
            good = write(args.zip, args.folders, args.wnli_majority, args.fill_missing)
    if not good:
        sys.exit(2)


if __name__ == '__main__':
    main()
