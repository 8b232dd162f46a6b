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
from collections.abc import Mapping, Sequence

from bert_jax.config.command_line import Parser
from bert_jax.data import table
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.files import as_path, check_new_file, read_json, write_whole
from bert_jax.runtime.process import error_boundary
from bert_jax.tasks.glue import GLUE_TASKS, GlueTask
from bert_jax.tasks.texts import LabelParser, NumericLabels

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
        names = {file: file for file in NUM_ROWS}
        config = as_path(folder) / 'config.json'
        if config.is_file():
            task = str(read_json(config, 'it does not describe a run').get('task'))
            splits = dict(GLUE_TASKS[task].submissions) if task in GLUE_TASKS else {}
            if task == 'mnli':
                splits['ax'] = 'AX.tsv'
            names |= {f'{split}_predictions.tsv': file for split, file in splits.items()}
        paths = {os.path.join(folder, name): file for name, file in names.items()
                 if (as_path(folder) / name).is_file()}
        if not paths:
            raise InputError(f"{folder} has none of {', '.join(names)}")
        for path, file in paths.items():
            if file in result:
                raise InputError(
                    f'{result[file]} and {path} are both {file}: leave out one of them')
            result[file] = path
    return result


def read_predictions(file: str, path: str) -> list[str]:
    """The predictions of a file by index; scores are clipped to 0..5 and have three decimals.

    Args:
      file: name in the submission.
      path: TSV with the columns `index` and `prediction`, its rows in any order.

    Raises:
      InputError: missing or surplus rows, or a value that is no label of the task.
    """
    labels = LabelParser(TASKS[file].labels, only=True) if TASKS[file].labels else NumericLabels()
    rows = table.read_table(
        path, ['prediction'], lambda cells: labels.parse(cells[0]), id_column='index',
        max_malformed=0)
    values = [name for (name,) in rows.values] if TASKS[file].labels else [
        f'{min(5, max(0, score)):.3f}' for score in labels.array(rows.values)]
    by_id = dict(zip(rows.ids, values, strict=True))
    if len(rows.ids) != NUM_ROWS[file]:
        raise InputError(
            f'{path}: {len(rows.ids)} rows, where the test set of {file} has {NUM_ROWS[file]}')
    wanted = [str(i) for i in range(NUM_ROWS[file])]
    if missing := [i for i in wanted if i not in by_id]:
        raise InputError(f'{path} has no row with index {missing[0]}')
    return [by_id[i] for i in wanted]


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes a submission."""
    p = Parser('python -m bert_jax.tools.glue_submission', __doc__)
    p.add_argument('zip', metavar='ZIP', help='the file to write')
    p.add_argument('folders', metavar='RUN', nargs='*', help='folders with predictions')
    p.add_argument('--wnli-majority', action='store_true',
                   help='predict 0 (the majority in training) for all of WNLI, as the BERT paper '
                   'did, whatever the runs predict')
    p.add_argument('--fill-missing', action='store_true',
                   help='write a constant label for tasks without predictions (their scores mean '
                   'nothing)')
    with error_boundary():
        args = p.parse_args(arguments)
        if not args.folders and not args.fill_missing:
            raise InputError('name the directories of runs, or a folder with TSV files')
        check_new_file(args.zip, 'ZIP')
        paths = find_predictions(args.folders)
        predictions = {}
        for file, num_rows in NUM_ROWS.items():
            task = TASKS[file]
            # For WNLI this is 0, the majority class in training, which the BERT paper submitted.
            constant = (*task.labels, '2.500')[0]
            predictions[file] = [constant] * num_rows
            if file == 'WNLI.tsv' and args.wnli_majority:
                print('WNLI.tsv: all 0: the majority in training, not a model')
            elif file in paths:
                predictions[file] = read_predictions(file, paths[file])
                print(f'{file:<12}{num_rows:>7} rows from {paths[file]}')
            elif args.fill_missing:
                tell(f'WARNING: no predictions for {file}: all {num_rows} rows are {constant}, '
                     'which is no result')
            else:
                del predictions[file]
                run = 'mnli' if file == 'AX.tsv' else task.name
                tell(f'error: {file} is missing: name a run of configs/glue.py:{run}, or '
                     '--fill-missing')
        if len(predictions) < len(NUM_ROWS):
            sys.exit(2)
        content = io.BytesIO()  # the same bytes for the same predictions
        with zipfile.ZipFile(content, 'w') as archive:
            for file, values in predictions.items():
                rows = (f'{i}\t{value}\n' for i, value in enumerate(values))
                info = zipfile.ZipInfo(file)  # dated 1980
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, ''.join(['index\tprediction\n', *rows]))
        write_whole(args.zip, content.getvalue())
        print(f'wrote {args.zip}')


if __name__ == '__main__':
    main()
