"""The submission for the GLUE site: collected, ordered, checked against the required format."""

import json
import zipfile

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.tools.glue_submission import NUM_ROWS, main, read_predictions

# The format, written down again: file -> (rows, example of a prediction, of a wrong one).
FORMAT = {
    'CoLA.tsv': (1063, '1', 'acceptable'),
    'SST-2.tsv': (1821, '0', 'positive'),
    'MRPC.tsv': (1725, '1', '2'),
    'STS-B.tsv': (1379, '3.250', 'nan'),  # others are clipped
    'QQP.tsv': (390965, '0', ''),
    'MNLI-m.tsv': (9796, 'neutral', '2'),
    'MNLI-mm.tsv': (9847, 'contradiction', 'not_entailment'),
    'QNLI.tsv': (5463, 'not_entailment', '1'),
    'RTE.tsv': (3000, 'entailment', 'neutral'),
    'WNLI.tsv': (146, '1', 'entailment'),
    'AX.tsv': (1104, 'entailment', 'not_entailment'),
}
ROWS = {file: (NUM_ROWS[file], rows) for file, (rows, _, _) in FORMAT.items()}
RUNS = {'cola': 'CoLA', 'sst2': 'SST-2', 'mrpc': 'MRPC', 'stsb': 'STS-B', 'qqp': 'QQP',
        'qnli': 'QNLI', 'rte': 'RTE', 'wnli': 'WNLI'}


def test_the_format_is_the_one_written_down_here():
    assert NUM_ROWS.keys() == FORMAT.keys() and all(ours == rows for ours, rows in ROWS.values())


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Fewer rows of large files, where their number does not matter."""
    for file, (rows, *examples) in FORMAT.items():
        monkeypatch.setitem(FORMAT, file, (min(rows, 146), *examples))
        monkeypatch.setitem(NUM_ROWS, file, min(rows, 146))


def content(file, num=None, value=None):
    rows, example, _ = FORMAT[file]
    return 'index\tprediction\n' + ''.join(
        f'{i}\t{value or example}\n' for i in range(rows if num is None else num))


def contents(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == list(FORMAT)
        return {file: archive.read(file).decode() for file in FORMAT}


def run_directory(folder, task, files):
    folder.mkdir()
    (folder / 'config.json').write_text(json.dumps({'task': task}))
    for name, text in files.items():
        (folder / name).write_text(text)
    return str(folder)


@pytest.fixture
def runs(tmp_path_factory):
    """Directories of all runs that a submission needs, by task."""
    root = tmp_path_factory.mktemp('runs')
    folders = {task: run_directory(root / task, task, {
        'test_predictions.tsv': content(f'{name}.tsv')}) for task, name in RUNS.items()}
    return folders | {'mnli': run_directory(root / 'mnli', 'mnli', {
        'test_matched_predictions.tsv': content('MNLI-m.tsv'),
        'test_mismatched_predictions.tsv': content('MNLI-mm.tsv'),
        'ax_predictions.tsv': content('AX.tsv'),
    })}


def test_runs_and_files_to_the_same_submission(tmp_path, runs, capsys):
    of_runs, of_files = tmp_path / 'runs.zip', tmp_path / 'files.zip'
    main([str(of_runs), *runs.values()])
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == f'wrote {of_runs}' and len(out) == 12
    assert contents(of_runs) == {file: content(file) for file in FORMAT}
    (tmp_path / 'files').mkdir()
    for file in FORMAT:
        (tmp_path / 'files' / file).write_text(content(file))
    main([str(of_files), str(tmp_path / 'files')])
    assert of_runs.read_bytes() == of_files.read_bytes()


def test_predictions_are_put_in_order(tmp_path):
    rows = content('STS-B.tsv').splitlines()[1:]
    rows[2:5] = ['2\t-0.5', '3\t5.25', '4\t1.23456']
    path = tmp_path / 'p.tsv'
    path.write_text('\n'.join(['index\tprediction', *reversed(rows)]) + '\n')
    assert read_predictions('STS-B.tsv', str(path)) == [
        '3.250', '3.250', '0.000', '5.000', '1.235', *['3.250'] * 141]


@pytest.mark.parametrize('file', FORMAT)
def test_wrong_labels_are_refused(tmp_path, file):
    rows, _, bad = FORMAT[file]
    path = tmp_path / file
    path.write_text(content(file, rows - 1) + f'{rows - 1}\t{bad}\n')
    with pytest.raises(InputError, match=f'line {rows + 1}|malformed'):
        read_predictions(file, str(path))


@pytest.mark.parametrize('text, message', [
    (content('WNLI.tsv', 145), '145 rows, where the test set of WNLI.tsv has 146'),
    (content('WNLI.tsv', 146, 'yes'), "line 2: unknown label 'yes'; known are 0, 1"),
    (content('WNLI.tsv').replace('\n3\t', '\n2\t'), "line 5: id '2' stands in line 4 already"),
    (content('WNLI.tsv').replace('\n3\t', '\n146\t'), 'has no row with index 3'),
    (content('WNLI.tsv').replace('prediction', 'label'), "has no column 'prediction'"),
    (content('WNLI.tsv').replace('\n3\t', '\n3 '), '1 of 146 rows are malformed'),
])
def test_faulty_predictions(tmp_path, text, message):
    path = tmp_path / 'p.tsv'
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        read_predictions('WNLI.tsv', str(path))
    assert str(error.value).startswith(str(path))


def test_missing_files_are_named_or_filled_as_asked(tmp_path, runs, capsys):
    path = tmp_path / 'submission.zip'
    kept = [folder for task, folder in runs.items() if task not in ('rte', 'mnli')]
    with pytest.raises(SystemExit, match='2'):
        main([str(path), *kept])
    assert not path.exists()
    assert capsys.readouterr().err.splitlines() == [
        f'error: {file}.tsv is missing: name a run of configs/glue.py:{task}, or --fill-missing'
        for file, task in (('MNLI-m', 'mnli'), ('MNLI-mm', 'mnli'), ('RTE', 'rte'), ('AX', 'mnli'))]
    main([str(path), *kept, '--fill-missing', '--wnli-majority'])
    ended = capsys.readouterr()
    assert [line.split(':')[0] for line in ended.err.splitlines()] == ['WARNING'] * 4
    assert 'WNLI.tsv: all 0: the majority' in ended.out
    filled = {'RTE.tsv': 'entailment', 'WNLI.tsv': '0', 'MNLI-m.tsv': 'contradiction',
              'MNLI-mm.tsv': 'contradiction', 'AX.tsv': 'contradiction'}
    assert contents(path) == {file: content(file, value=filled.get(file)) for file in FORMAT}


@pytest.mark.parametrize('arguments, message', [
    (['a.zip'], 'name the directories of runs'),
    ([], 'the following arguments are required: ZIP, RUN; see --help'),
    (['a.zip', '--checks'], 'unrecognized arguments: --checks'),
    (['a.zip', '{dir}/no'], 'no folder {dir}/no'),
    (['a.zip', '{dir}/empty'], '{dir}/empty has none of CoLA.tsv'),
    (['a.zip', '{dir}/one', '{dir}/two'],
     '{dir}/one/WNLI.tsv and {dir}/two/test_predictions.tsv are both WNLI.tsv'),
    (['a.zip', '{dir}/odd'], '{dir}/odd/config.json holds no JSON object'),
])
def test_wrong_arguments(tmp_path, capsys, arguments, message):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'one').mkdir()
    (tmp_path / 'one' / 'WNLI.tsv').write_text(content('WNLI.tsv'))
    run_directory(tmp_path / 'two', 'wnli', {'test_predictions.tsv': content('WNLI.tsv')})
    (tmp_path / 'odd').mkdir()
    (tmp_path / 'odd' / 'config.json').write_text('[1]')
    with pytest.raises(SystemExit, match='2'):
        main([a.format(dir=tmp_path) for a in arguments])
    error = capsys.readouterr().err
    assert error.startswith('error: ' + message.format(dir=tmp_path)) and error.count('\n') == 1
