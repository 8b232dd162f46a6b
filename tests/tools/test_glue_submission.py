"""The submission for the GLUE site: collected, ordered, checked against the required format."""

import re
import zipfile
from typing import NamedTuple

import pytest

from bert_jax.tools.glue_submission import NUM_ROWS, main, read_predictions
from tests.refusals import refused
from tests.tasks.files import put


class Format(NamedTuple):
    """What the site requires of a file."""

    num_rows: int
    valid: str
    invalid: str


# The required format, not from the code.
FORMATS = {
    'CoLA.tsv': Format(1063, '1', 'acceptable'),
    'SST-2.tsv': Format(1821, '0', 'positive'),
    'MRPC.tsv': Format(1725, '1', '2'),
    'STS-B.tsv': Format(1379, '3.250', 'nan'),  # numbers out of range are clipped
    'QQP.tsv': Format(390965, '0', ''),
    'MNLI-m.tsv': Format(9796, 'neutral', '2'),
    'MNLI-mm.tsv': Format(9847, 'contradiction', 'not_entailment'),
    'QNLI.tsv': Format(5463, 'not_entailment', '1'),
    'RTE.tsv': Format(3000, 'entailment', 'neutral'),
    'WNLI.tsv': Format(146, '1', 'entailment'),
    'AX.tsv': Format(1104, 'entailment', 'not_entailment'),
}
RUNS = {  # task -> split -> file
    'cola': {'test': 'CoLA.tsv'},
    'sst2': {'test': 'SST-2.tsv'},
    'mrpc': {'test': 'MRPC.tsv'},
    'stsb': {'test': 'STS-B.tsv'},
    'qqp': {'test': 'QQP.tsv'},
    'qnli': {'test': 'QNLI.tsv'},
    'rte': {'test': 'RTE.tsv'},
    'wnli': {'test': 'WNLI.tsv'},
    'mnli': {'test_matched': 'MNLI-m.tsv', 'test_mismatched': 'MNLI-mm.tsv', 'ax': 'AX.tsv'},
}
ROWS = dict(NUM_ROWS)


def test_the_format_is_the_one_written_down_here():
    assert {file: required.num_rows for file, required in FORMATS.items()} == ROWS


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Fewer rows in large files, as the tests do not depend on their number."""
    for file, rows in ROWS.items():
        monkeypatch.setitem(NUM_ROWS, file, min(rows, 146))


def content(file, value=None):
    """A file in which all predictions are `value`, or the valid one."""
    lines = ['index\tprediction\n']
    for index in range(NUM_ROWS[file]):
        lines.append(f'{index}\t{value or FORMATS[file].valid}\n')
    return ''.join(lines)


def contents(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == list(FORMATS)
        return {file: archive.read(file).decode() for file in FORMATS}


@pytest.fixture
def runs(tmp_path):
    """Directories of all runs that a submission needs, by task."""
    for task, splits in RUNS.items():
        put(tmp_path, f'runs/{task}/config.json', {'task': task})
        for split, file in splits.items():
            put(tmp_path, f'runs/{task}/{split}_predictions.tsv', content(file))
    return {task: str(tmp_path / 'runs' / task) for task in RUNS}


def test_runs_and_files_give_the_same_submission(tmp_path, runs):
    of_runs = tmp_path / 'runs.zip'
    of_files = tmp_path / 'files.zip'
    main([str(of_runs), *runs.values()])
    assert contents(of_runs) == {file: content(file) for file in FORMATS}
    for file in FORMATS:
        put(tmp_path / 'files', file, content(file))
    main([str(of_files), str(tmp_path / 'files')])
    assert of_runs.read_bytes() == of_files.read_bytes()


def test_predictions_are_put_in_order(tmp_path):
    rows = content('STS-B.tsv').splitlines()[1:]
    rows[2:5] = ['2\t-0.5', '3\t5.25', '4\t1.23456']
    path = put(tmp_path, 'p.tsv', ['index\tprediction', *reversed(rows), ''])
    assert read_predictions('STS-B.tsv', path) == [
        '3.250', '3.250', '0.000', '5.000', '1.235', *['3.250'] * 141]


@pytest.mark.parametrize('file', FORMATS)
def test_a_value_that_is_no_label_of_the_task_is_refused(tmp_path, file):
    valid = f'\n144\t{FORMATS[file].valid}'
    invalid = f'\n144\t{FORMATS[file].invalid}'
    path = put(tmp_path, 'p.tsv', content(file).replace(valid, invalid))
    with refused(match=f'^{path}.*(line 146|malformed)'):
        read_predictions(file, path)


@pytest.mark.parametrize('old, new, message', [
    pytest.param(
        '\n3\t1', '', '145 rows, where the test set of WNLI.tsv has 146', id='a row is missing'),
    pytest.param(
        '\n0\t1', '\n0\tyes', "line 2: unknown label 'yes'; known are 0, 1", id='no label'),
    pytest.param(
        '\n3\t', '\n2\t', "line 5: id '2' stands in line 4 already", id='an index occurs twice'),
    pytest.param('\n3\t', '\n146\t', 'has no row with index 3', id='an index is too large'),
    pytest.param('prediction', 'label', "has no column 'prediction'", id='another column'),
    pytest.param('\n3\t', '\n3 ', '1 of 146 rows are malformed', id='no tab'),
])
def test_faulty_predictions(tmp_path, old, new, message):
    path = put(tmp_path, 'p.tsv', content('WNLI.tsv').replace(old, new))
    with refused(match=f'^{path}.*({message})'):
        read_predictions('WNLI.tsv', path)


@pytest.fixture
def runs_without_rte_and_mnli(runs):
    return [folder for task, folder in runs.items() if task not in ('rte', 'mnli')]


def test_missing_files_are_named(tmp_path, runs_without_rte_and_mnli, capsys):
    path = tmp_path / 'submission.zip'
    with pytest.raises(SystemExit, match='2'):
        main([str(path), *runs_without_rte_and_mnli])
    assert not path.exists()
    assert re.findall(r'error: (.*) is missing', capsys.readouterr().err) == [
        'MNLI-m.tsv', 'MNLI-mm.tsv', 'RTE.tsv', 'AX.tsv']


def test_missing_files_are_filled_as_asked(tmp_path, runs_without_rte_and_mnli, capsys):
    path = tmp_path / 'submission.zip'
    main([str(path), *runs_without_rte_and_mnli, '--fill-missing', '--wnli-majority'])
    assert capsys.readouterr().err.count('WARNING') == 4
    filled = {
        'RTE.tsv': 'entailment', 'WNLI.tsv': '0', 'MNLI-m.tsv': 'contradiction',
        'MNLI-mm.tsv': 'contradiction', 'AX.tsv': 'contradiction',
    }
    assert contents(path) == {file: content(file, filled.get(file)) for file in FORMATS}


def test_predictions_of_a_task_come_from_one_place(tmp_path, runs, capsys):
    put(tmp_path, 'one/WNLI.tsv', content('WNLI.tsv'))
    with pytest.raises(SystemExit, match='2'):
        main([str(tmp_path / 'a.zip'), str(tmp_path / 'one'), runs['wnli']])
    assert 'are both WNLI.tsv' in capsys.readouterr().err
