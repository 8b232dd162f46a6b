"""Collects GLUE test predictions into the zip file that gluebenchmark.com takes.

    python -m bert_jax.tools.glue_submission submission.zip RUN [RUN ...]

A RUN is the directory of a fine-tuned run (configs/glue.py:TASK), which writes
`test_predictions.tsv` at its end if the task's folder has a test file; mnli writes three, because
it also predicts the diagnostic set (AX.tsv). Or a RUN is a folder of files named as in the
submission (CoLA.tsv, ...). All have the header `index<TAB>prediction` and label names as in the
task's files. The site refuses a zip that lacks any of the eleven files.

Exit status: 0 done, 2 something is missing or wrong (a line each on standard error).
"""

import io
import os
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax.config.command_line import Parser
from bert_jax.rows import table
from bert_jax.run.layout import DESCRIPTION
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.files import as_path, check_new_file, read_fields, write_whole
from bert_jax.runtime.process import error_boundary
from bert_jax.runtime.schema import TEXT
from bert_jax.tasks.glue import GLUE_TASKS, GlueTask
from bert_jax.tasks.labels import LabelParser, NumericLabels

# File -> rows of the official test set.
NUM_ROWS: Mapping[str, int] = {
    'CoLA.tsv': 1063, 'SST-2.tsv': 1821, 'MRPC.tsv': 1725, 'STS-B.tsv': 1379, 'QQP.tsv': 390965,
    'MNLI-m.tsv': 9796, 'MNLI-mm.tsv': 9847, 'QNLI.tsv': 5463, 'RTE.tsv': 3000, 'WNLI.tsv': 146,
    'AX.tsv': 1104,
}
# File -> its task.
TASKS: Mapping[str, GlueTask] = {
    file: task for task in GLUE_TASKS.values() for file in task.submissions.values()}


def find_predictions(folders: Sequence[str]) -> dict[str, str]:
    """Finds the files with predictions in folders: name in the submission -> path.

    They are named as in the submission or, in a run directory, as the run names them:
    `test_predictions.tsv`, for mnli `test_matched_predictions.tsv`,
    `test_mismatched_predictions.tsv` and `ax_predictions.tsv`.

    Raises:
      InputError: a folder does not exist or has no predictions, or a file is found twice.
    """
    result: dict[str, str] = {}
    for folder in folders:
        if not as_path(folder).is_dir():
            raise InputError(f'no folder {folder}: name directories of runs, or one with TSV files')
        names = _possible_names(folder)
        found = [name for name in names if (as_path(folder) / name).is_file()]
        if not found:
            raise InputError(f"{folder} has none of {', '.join(names)}")
        for name in found:
            path = os.path.join(folder, name)
            file = names[name]
            if file in result:
                raise InputError(
                    f'{result[file]} and {path} are both {file}: leave out one of them')
            result[file] = path
    return result


def _possible_names(folder: str) -> dict[str, str]:
    """How files with predictions may be called in a folder: name -> name in the submission."""
    names = {file: file for file in NUM_ROWS}
    config = as_path(folder) / DESCRIPTION
    if not config.is_file():
        return names
    task = read_fields(config, {'task': TEXT}, 'it does not describe a run').get('task')
    splits = dict(GLUE_TASKS[task].submissions) if task in GLUE_TASKS else {}
    if task == 'mnli':
        splits['ax'] = 'AX.tsv'
    for split, file in splits.items():
        names[f'{split}_predictions.tsv'] = file
    return names


def read_predictions(file: str, path: str) -> list[str]:
    """The predictions of a file by index; scores are clipped to 0..5 and have three decimals.

    Args:
      file: name in the submission.
      path: TSV with the columns `index` and `prediction`, its rows in any order.

    Raises:
      InputError: missing or surplus rows, or a value that is no label of the task.
    """
    labels = TASKS[file].labels
    if labels:
        rows = _read_table(path, LabelParser(labels, only=True).parse)
        values = [name for (name,) in rows.values]
    else:
        numeric = NumericLabels()
        rows = _read_table(path, numeric.parse)
        values = [f'{min(5, max(0, score)):.3f}' for score in numeric.array(rows.values)]
    by_id = dict(zip(rows.ids, values, strict=True))
    num_rows = NUM_ROWS[file]
    if len(rows.ids) != num_rows:
        raise InputError(
            f'{path}: {len(rows.ids)} rows, where the test set of {file} has {num_rows}')
    result = []
    for index in range(num_rows):
        if str(index) not in by_id:
            raise InputError(f'{path} has no row with index {index}')
        result.append(by_id[str(index)])
    return result


def _read_table(path: str, parse: Callable[[str], Any]) -> table.Rows:
    """The rows of a file with predictions, in its order."""
    return table.read_table(
        path, ['prediction'], lambda cells: parse(cells[0]), id_column='index', max_malformed=0)


def collect_predictions(
    paths: Mapping[str, str], *, wnli_majority: bool, fill_missing: bool
) -> dict[str, list[str]]:
    """Reads the predictions of all files, and says where each comes from.

    Args:
      paths: from `find_predictions`.
      wnli_majority: predicts 0 for all of WNLI, whatever `paths` has.
      fill_missing: predicts a constant where `paths` has nothing.

    Returns:
      Predictions by file; files that are missing are left out and named on standard error.
    """
    result = {}
    for file, num_rows in NUM_ROWS.items():
        if file == 'WNLI.tsv' and wnli_majority:
            result[file] = [_constant(file)] * num_rows
            print('WNLI.tsv: all 0: the majority in training, not a model')
        elif file in paths:
            result[file] = read_predictions(file, paths[file])
            print(f'{file:<12}{num_rows:>7} rows from {paths[file]}')
        elif fill_missing:
            result[file] = [_constant(file)] * num_rows
            tell(f'WARNING: no predictions for {file}: all {num_rows} rows are {_constant(file)}, '
                 'which is no result')
        else:
            run = 'mnli' if file == 'AX.tsv' else TASKS[file].name
            tell(f'error: {file} is missing: name a run of configs/glue.py:{run}, or '
                 '--fill-missing')
    return result


def _constant(file: str) -> str:
    """A valid prediction.

    For WNLI it is 0, the majority class in training, which the BERT paper submitted.
    """
    labels = TASKS[file].labels
    return labels[0] if labels else '2.500'


def write_submission(path: str, predictions: Mapping[str, Sequence[str]]) -> None:
    """Writes the zip file; the same bytes for the same predictions."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, 'w') as archive:
        for file, values in predictions.items():
            lines = ['index\tprediction\n']
            for index, value in enumerate(values):
                lines.append(f'{index}\t{value}\n')
            info = zipfile.ZipInfo(file)  # dated 1980
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, ''.join(lines))
    write_whole(path, content.getvalue())


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes a submission."""
    parser = Parser('python -m bert_jax.tools.glue_submission', __doc__)
    parser.add_argument('zip', metavar='ZIP', help='the file to write')
    parser.add_argument('folders', metavar='RUN', nargs='*', help='folders with predictions')
    parser.add_argument(
        '--wnli-majority', action='store_true',
        help='predict 0 (the majority in training) for all of WNLI, as the BERT paper did, '
        'whatever the runs predict')
    parser.add_argument(
        '--fill-missing', action='store_true',
        help='write a constant label for tasks without predictions (their scores mean nothing)')
    with error_boundary():
        options = parser.parse_args(arguments)
        if not options.folders and not options.fill_missing:
            raise InputError('name the directories of runs, or a folder with TSV files')
        check_new_file(options.zip, 'ZIP')
        predictions = collect_predictions(
            find_predictions(options.folders), wnli_majority=options.wnli_majority,
            fill_missing=options.fill_missing)
        if len(predictions) < len(NUM_ROWS):
            sys.exit(2)
        write_submission(options.zip, predictions)
        print(f'wrote {options.zip}')


if __name__ == '__main__':
    main()
