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
import io
import json
import os
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from typing import NoReturn

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, check_new_file, local_copy, write_whole
from bert_jax.runtime.process import error_boundary
from bert_jax.tasks import table
from bert_jax.tasks.glue import GLUE_TASKS, GlueTask
from bert_jax.tasks.texts import numbers

# File -> rows of the official test set.
NUM_ROWS: Mapping[str, int] = {
    'CoLA.tsv': 1063, 'SST-2.tsv': 1821, 'MRPC.tsv': 1725, 'STS-B.tsv': 1379, 'QQP.tsv': 390965,
    'MNLI-m.tsv': 9796, 'MNLI-mm.tsv': 9847, 'QNLI.tsv': 5463, 'RTE.tsv': 3000, 'WNLI.tsv': 146,
    'AX.tsv': 1104,
}
# File -> its task.
TASKS: Mapping[str, GlueTask] = {
    file: task for task in GLUE_TASKS.values() for file in task.submissions.values()
}
_HEADER = 'index\tprediction'


def find_predictions(folder: str) -> dict[str, str]:
    """Files with predictions in a folder: name in the submission -> path.

    They are called as in the submission; or, in a run directory, those that the run writes:
    `test_predictions.tsv`, of mnli `test_matched_predictions.tsv`,
    `test_mismatched_predictions.tsv` and `ax_predictions.tsv`. All have the columns `index` and
    `prediction`, in any order of rows.

    Raises:
      InputError: no such folder, nothing in it, or a config.json that is not of a run.
    """
    if not as_path(folder).is_dir():
        raise InputError(f'no folder {folder}: name directories of runs, or one with TSV files')
    names = {file: file for file in NUM_ROWS}
    config = as_path(folder) / 'config.json'
    if config.is_file():
        try:
            task = str(json.loads(config.read_text(encoding='utf-8'))['task'])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f'{config} does not describe a run ({error!r})') from None
        splits = dict(GLUE_TASKS[task].submissions) if task in GLUE_TASKS else {}
        if task == 'mnli':
            splits['ax'] = 'AX.tsv'
        names |= {f'{split}_predictions.tsv': file for split, file in splits.items()}
    result: dict[str, str] = {}
    for name, file in names.items():
        path = os.path.join(folder, name)
        if as_path(path).is_file():
            if file in result:
                raise InputError(f'{result[file]} and {path} are both {file}: remove one of them')
            result[file] = path
    if not result:
        raise InputError(f"{folder} has none of {', '.join(names)}")
    return result


def read_predictions(file: str, path: str) -> list[str]:
    """The predictions of a file in the order of their index, scores cut to 0..5 in 3 decimals.

    Args:
      file: name in the submission.
      path: TSV with the columns `index` and `prediction`.

    Raises:
      InputError: missing or surplus rows, or what is no label of the task.
    """
    rows = table.read_table(path, ['index', 'prediction'], list, max_malformed=0)
    ids, values = map(list, zip(*rows.values, strict=True))
    if TASKS[file].labels:
        table.label_ids(rows, values, TASKS[file].labels)
    else:
        values = [f'{min(5, max(0, score)):.3f}' for score in numbers()(rows, values)]
    by_id = dict(zip(table.row_ids(rows, ids), values, strict=True))
    wanted = [str(i) for i in range(NUM_ROWS[file])]
    if len(ids) != len(wanted):
        raise InputError(
            f'{path}: {len(ids)} rows, where the test set of {file} has {len(wanted)}')
    for i in wanted:
        if i not in by_id:
            raise InputError(f'{path} has no row with index {i}')
    return [by_id[i] for i in wanted]


def collect(folders: Sequence[str]) -> dict[str, list[str]]:
    """Predictions by name in the submission, of all folders (see `find_predictions`).

    Raises:
      InputError: two folders have the same file, or a file is faulty.
    """
    paths: dict[str, str] = {}
    for folder in folders:
        for file, path in find_predictions(folder).items():
            if file in paths:
                raise InputError(f'{paths[file]} and {path} are both {file}: name one of them')
            paths[file] = path
    for file in sorted(paths, key=list(NUM_ROWS).index):
        print(f'{file:<12}{NUM_ROWS[file]:>7} rows from {paths[file]}')
    return {file: read_predictions(file, path) for file, path in paths.items()}


def same_prediction(file: str) -> list[str]:
    """The first label for every row of a file (2.500 of STS-B): it stands in for a missing run.

    Of WNLI it is 0, the majority of the training set, which the BERT paper submitted.
    """
    return [(*TASKS[file].labels, '2.500')[0]] * NUM_ROWS[file]


def write_submission(
    path: str | os.PathLike[str], predictions: Mapping[str, Sequence[str]]
) -> None:
    """Writes the zip file, the same bytes for the same predictions.

    Args:
      path: of the zip file.
      predictions: by name in the submission, all eleven, each in the order of the index.

    Raises:
      InputError: one is missing or has a fault, or the file cannot be written.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, 'w', zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(predictions, key=list(NUM_ROWS).index):
            rows = (f'{i}\t{value}\n' for i, value in enumerate(predictions[file]))
            info = zipfile.ZipInfo(file)  # its date is the first of 1980
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, ''.join([_HEADER, '\n', *rows]))
        faults = _faults(archive)
    if faults:
        more = f' (and {len(faults) - 1} more faults)' if len(faults) > 1 else ''
        raise InputError(f'{path} cannot be written: {faults[0]}{more}')
    try:
        write_whole(path, content.getvalue())
    except OSError as error:
        raise InputError(f'{path} cannot be written: {error.strerror or error}') from error


def check_submission(path: str | os.PathLike[str]) -> list[str]:
    """The faults of a zip file, a line each; empty: the GLUE site should take it."""
    try:
        with zipfile.ZipFile(local_copy(path)) as archive:
            return _faults(archive)
    except FileNotFoundError:
        return [f'{path} does not exist']
    except (OSError, zipfile.BadZipFile) as error:
        return [f'{path} is not a sound zip file ({error})']


def _faults(archive: zipfile.ZipFile) -> list[str]:
    names = archive.namelist()
    contents = {file: archive.read(file) for file in NUM_ROWS if file in names}
    faults = [f'{file} is missing' for file in NUM_ROWS if file not in contents]
    faults += [
        f'{name} does not belong there (files stand at the root)' for name in names
        if name not in NUM_ROWS
    ]
    faults += [f'{name} is in it twice' for name in set(names) if names.count(name) > 1]
    return faults + [f for file, data in contents.items() if (f := _fault(file, data))]


def _fault(file: str, data: bytes) -> str:
    """The first thing that is wrong with a file; '' if nothing is."""
    task, num_rows = TASKS[file], NUM_ROWS[file]
    try:
        lines = data.decode('ascii').split('\n')
    except UnicodeDecodeError:
        return f'{file} holds bytes that are not ASCII'
    if lines[-1]:
        return f'{file} does not end with a line end'
    header, rows = lines[0], lines[1:-1]
    if header != _HEADER:
        return f'{file} begins with {header!r}, not with {_HEADER!r}'
    if len(rows) != num_rows:
        return f'{file} has {len(rows)} rows, not {num_rows}'
    for i, row in enumerate(rows):
        index, _, value = row.partition('\t')
        if index != str(i):
            return f'{file}, line {i + 2}: index {index!r}, where {i} is wanted'
        if task.labels and value not in task.labels:
            return f"{file}, line {i + 2}: {value!r} is none of {', '.join(task.labels)}"
        if not task.labels and not re.fullmatch(r'[0-4](\.\d*)?|5(\.0*)?', value):
            return f'{file}, line {i + 2}: {value!r} is not a number from 0 to 5'
    return ''


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes a submission, or checks one."""
    with error_boundary():
        args = parser().parse_args(arguments)
        if args.check and (args.folders or args.wnli_majority or args.fill_missing):
            raise InputError('--check takes a zip file and nothing else')
        if not args.check and not args.folders and not args.fill_missing:
            raise InputError('name the directories of runs, or a folder with TSV files')
        if args.check:
            faults = check_submission(args.zip)
            done = f'{args.zip} has all {len(NUM_ROWS)} files in the right format'
        else:
            check_new_file(args.zip, 'ZIP')
            predictions = collect(args.folders)
            if args.wnli_majority:
                predictions['WNLI.tsv'] = same_prediction('WNLI.tsv')
                print('WNLI.tsv: all 0: the majority in training, not a model')
            faults = [] if args.fill_missing else _missing(predictions)
            for file in NUM_ROWS if args.fill_missing else ():
                if file not in predictions:
                    predictions[file] = same_prediction(file)
                    print(f'WARNING: no predictions for {file}: all {NUM_ROWS[file]} rows are '
                          f'{predictions[file][0]}, which is no result', file=sys.stderr)
            if not faults:
                write_submission(args.zip, predictions)
            done = f'wrote {args.zip}'
    for fault in faults:
        print(f'error: {fault}', file=sys.stderr)
    if faults:
        sys.exit(2)
    print(done)


def _missing(predictions: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        f'{file} is missing: name a run of configs/glue.py:'
        f"{'mnli' if file == 'AX.tsv' else task.name}, or --fill-missing"
        for file, task in TASKS.items() if file not in predictions
    ]


if __name__ == '__main__':
    main()
