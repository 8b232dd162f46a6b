"""The submission for the GLUE site: collected, ordered, checked against the required format."""

import re
import zipfile

import pytest

from bert_jax.tools.glue_submission import NUM_ROWS, main, read_predictions
from tests.refusals import refused
from tests.tasks.files import put

# The required format, not from the code: file -> (rows, a valid prediction, an invalid one).
FORMAT = {
    'CoLA.tsv': (1063, '1', 'acceptable'),
    'SST-2.tsv': (1821, '0', 'positive'),
    'MRPC.tsv': (1725, '1', '2'),
    'STS-B.tsv': (1379, '3.250', 'nan'),  # numbers out of range are clipped
    'QQP.tsv': (390965, '0', ''),
    'MNLI-m.tsv': (9796, 'neutral', '2'),
    'MNLI-mm.tsv': (9847, 'contradiction', 'not_entailment'),
    'QNLI.tsv': (5463, 'not_entailment', '1'),
    'RTE.tsv': (3000, 'entailment', 'neutral'),
    'WNLI.tsv': (146, '1', 'entailment'),
    'AX.tsv': (1104, 'entailment', 'not_entailment'),
}
RUNS = {  # task -> its files
    **{file.lower().replace('-', ''): {'test': file}
       for file in ('CoLA', 'SST-2', 'MRPC', 'STS-B', 'QQP', 'QNLI', 'RTE', 'WNLI')},
    'mnli': {'test_matched': 'MNLI-m', 'test_mismatched': 'MNLI-mm', 'ax': 'AX'},
}
ROWS = dict(NUM_ROWS)


def test_the_format_is_the_one_written_down_here():
    assert {file: rows for file, (rows, _, _) in FORMAT.items()} == ROWS


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Fewer rows in large files, as the tests do not depend on their number."""
    for file, rows in ROWS.items():
        monkeypatch.setitem(NUM_ROWS, file, min(rows, 146))


def content(file, value=None):
    rows = (f'{i}\t{value or FORMAT[file][1]}\n' for i in range(NUM_ROWS[file]))
    return ''.join(['index\tprediction\n', *rows])


def contents(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == list(FORMAT)
        return {file: archive.read(file).decode() for file in FORMAT}


@pytest.fixture
def runs(tmp_path):
    """Directories of all runs that a submission needs, by task."""
    for task, splits in RUNS.items():
        put(tmp_path, f'runs/{task}/config.json', {'task': task})
        for split, file in splits.items():
            put(tmp_path, f'runs/{task}/{split}_predictions.tsv', content(f'{file}.tsv'))
    return {task: str(tmp_path / 'runs' / task) for task in RUNS}


def test_runs_and_files_give_the_same_submission(tmp_path, runs):
    of_runs, of_files = tmp_path / 'runs.zip', tmp_path / 'files.zip'
    main([str(of_runs), *runs.values()])
    assert contents(of_runs) == {file: content(file) for file in FORMAT}
    for file in FORMAT:
        put(tmp_path / 'files', file, content(file))
    main([str(of_files), str(tmp_path / 'files')])
    assert of_runs.read_bytes() == of_files.read_bytes()


def test_predictions_are_put_in_order(tmp_path):
    rows = content('STS-B.tsv').splitlines()[1:]
    rows[2:5] = ['2\t-0.5', '3\t5.25', '4\t1.23456']
    path = put(tmp_path, 'p.tsv', ['index\tprediction', *reversed(rows), ''])
    assert read_predictions('STS-B.tsv', path) == [
        '3.250', '3.250', '0.000', '5.000', '1.235', *['3.250'] * 141]


@pytest.mark.parametrize('file, old, new, message', [
    *((file, f'\n144\t{right}', f'\n144\t{wrong}', 'line 146|malformed')
      for file, (_, right, wrong) in FORMAT.items()),
    ('WNLI.tsv', '\n3\t1', '', '145 rows, where the test set of WNLI.tsv has 146'),
    ('WNLI.tsv', '\n0\t1', '\n0\tyes', "line 2: unknown label 'yes'; known are 0, 1"),
    ('WNLI.tsv', '\n3\t', '\n2\t', "line 5: id '2' stands in line 4 already"),
    ('WNLI.tsv', '\n3\t', '\n146\t', 'has no row with index 3'),
    ('WNLI.tsv', 'prediction', 'label', "has no column 'prediction'"),
    ('WNLI.tsv', '\n3\t', '\n3 ', '1 of 146 rows are malformed'),
])
def test_faulty_predictions(tmp_path, file, old, new, message):
    path = put(tmp_path, 'p.tsv', content(file).replace(old, new))
    with refused(match=f'^{path}.*({message})'):
        read_predictions(file, path)


def test_missing_files_are_named_or_filled_as_asked(tmp_path, runs, capsys):
    path = tmp_path / 'submission.zip'
    kept = [folder for task, folder in runs.items() if task not in ('rte', 'mnli')]
    with pytest.raises(SystemExit, match='2'):
        main([str(path), *kept])
    assert not path.exists()
    assert re.findall(r'error: (.*) is missing', capsys.readouterr().err) == [
        'MNLI-m.tsv', 'MNLI-mm.tsv', 'RTE.tsv', 'AX.tsv']
    main([str(path), *kept, '--fill-missing', '--wnli-majority'])
    assert capsys.readouterr().err.count('WARNING') == 4
    filled = {'RTE.tsv': 'entailment', 'WNLI.tsv': '0', 'MNLI-m.tsv': 'contradiction',
              'MNLI-mm.tsv': 'contradiction', 'AX.tsv': 'contradiction'}
    assert contents(path) == {file: content(file, filled.get(file)) for file in FORMAT}


def test_predictions_of_a_task_come_from_one_place(tmp_path, runs, capsys):
    put(tmp_path, 'one/WNLI.tsv', content('WNLI.tsv'))
    with pytest.raises(SystemExit, match='2'):
        main([str(tmp_path / 'a.zip'), str(tmp_path / 'one'), runs['wnli']])
    assert 'are both WNLI.tsv' in capsys.readouterr().err
