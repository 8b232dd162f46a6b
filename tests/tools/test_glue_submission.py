"""The submission for the GLUE site: collected, ordered, checked against the required format."""

import json
import zipfile

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.tools import glue_submission
from bert_jax.tools.glue_submission import (
    NUM_ROWS,
    TASKS,
    read_predictions,
    same_prediction,
    write_submission,
)

# The format, written down again: file -> (rows, example of a prediction, of a wrong one).
FORMAT = {
    'CoLA.tsv': (1063, '1', 'acceptable'),
    'SST-2.tsv': (1821, '0', 'positive'),
    'MRPC.tsv': (1725, '1', '2'),
    'STS-B.tsv': (1379, '3.250', '5.1'),
    'QQP.tsv': (390965, '0', ''),
    'MNLI-m.tsv': (9796, 'neutral', '2'),
    'MNLI-mm.tsv': (9847, 'contradiction', 'not_entailment'),
    'QNLI.tsv': (5463, 'not_entailment', '1'),
    'RTE.tsv': (3000, 'entailment', 'neutral'),
    'WNLI.tsv': (146, '1', 'entailment'),
    'AX.tsv': (1104, 'entailment', 'not_entailment'),
}


def content(file, num=None, value=None):
    num = FORMAT[file][0] if num is None else num
    value = FORMAT[file][1] if value is None else value
    return 'index\tprediction\n' + ''.join(f'{i}\t{value}\n' for i in range(num))


@pytest.fixture
def small_qqp(monkeypatch):
    """Fewer rows of the largest file, where their number does not matter."""
    monkeypatch.setitem(NUM_ROWS, 'QQP.tsv', 90)
    monkeypatch.setitem(FORMAT, 'QQP.tsv', (90, *FORMAT['QQP.tsv'][1:]))


def run_directory(folder, task, files):
    folder.mkdir()
    (folder / 'config.json').write_text(json.dumps({'task': task}))
    for name, text in files.items():
        (folder / name).write_text(text)
    return str(folder)


@pytest.fixture
def runs(tmp_path_factory):
    """Directories of all runs that a submission needs."""
    root = tmp_path_factory.mktemp('runs')
    folders = []
    for file, task in TASKS.items():
        if task.name not in ('mnli', 'ax'):
            folders.append(
                run_directory(root / task.name, task.name, {'test_predictions.tsv': content(file)})
            )
    folders.append(run_directory(root / 'mnli', 'mnli', {
        'test_matched_predictions.tsv': content('MNLI-m.tsv'),
        'test_mismatched_predictions.tsv': content('MNLI-mm.tsv'),
        'ax_predictions.tsv': content('AX.tsv'),
    }))
    return folders


def test_the_format_is_the_one_written_down_here():
    assert dict(NUM_ROWS) == {file: rows for file, (rows, _, _) in FORMAT.items()}


@pytest.mark.parametrize('file', FORMAT)
@pytest.mark.usefixtures('small_qqp')
def test_wrong_labels_are_refused(tmp_path, file):
    rows, _, bad = FORMAT[file]
    if file == 'STS-B.tsv':  # scores are clipped
        bad = 'nan'
    path = tmp_path / file
    path.write_text(content(file, rows - 1) + f'{rows - 1}\t{bad}\n')
    with pytest.raises(InputError, match=f'line {rows + 1}|malformed'):
        read_predictions(file, str(path))


def test_runs_to_submission(tmp_path, runs, capsys):
    path = tmp_path / 'submission.zip'
    glue_submission.main([str(path), *runs])
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == f'wrote {path}' and len(out) == 12
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == list(FORMAT)
        for file in FORMAT:
            assert archive.read(file).decode() == content(file)
    assert [p.name for p in tmp_path.iterdir()] == ['submission.zip']


def test_predictions_are_put_in_order(tmp_path):
    rows = content('STS-B.tsv').splitlines()[1:]
    rows[2:5] = ['2\t-0.5', '3\t5.25', '4\t1.23456']
    path = tmp_path / 'p.tsv'
    path.write_text('\n'.join(['index\tprediction', *reversed(rows)]) + '\n')
    predictions = read_predictions('STS-B.tsv', str(path))
    assert predictions[:6] == ['3.250', '3.250', '0.000', '5.000', '1.235', '3.250']
    assert len(predictions) == 1379


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


def test_missing_files_are_named(small_qqp, tmp_path, runs, capsys):
    path = tmp_path / 'submission.zip'
    kept = [folder for folder in runs if not folder.endswith(('rte', 'mnli'))]
    with pytest.raises(SystemExit) as exit:
        glue_submission.main([str(path), *kept])
    assert exit.value.code == 2 and not path.exists()
    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == (
        'error: MNLI-m.tsv is missing: name a run of configs/glue.py:mnli, or --fill-missing')
    assert [error.split()[1] for error in errors] == [
        'MNLI-m.tsv', 'MNLI-mm.tsv', 'RTE.tsv', 'AX.tsv']
    assert 'configs/glue.py:mnli' in errors[3]

    glue_submission.main([str(path), *kept, '--fill-missing'])
    warnings = capsys.readouterr().err.splitlines()
    assert [line.split(':')[0] for line in warnings] == ['WARNING'] * 4
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == list(FORMAT)
        assert archive.read('RTE.tsv').decode() == content('RTE.tsv', value='entailment')
        assert archive.read('CoLA.tsv').decode() == content('CoLA.tsv')


@pytest.mark.usefixtures('small_qqp')
def test_wnli_majority_is_said_and_optional(tmp_path, capsys):
    folder = run_directory(
        tmp_path / 'wnli', 'wnli', {'test_predictions.tsv': content('WNLI.tsv')}
    )
    for flags, value in ([], '1'), (['--wnli-majority'], '0'):
        path = tmp_path / f'submission{value}.zip'
        glue_submission.main([str(path), folder, '--fill-missing', *flags])
        assert ('all 0: the majority' in capsys.readouterr().out) == (value == '0')
        with zipfile.ZipFile(path) as archive:
            assert archive.read('WNLI.tsv').decode() == content('WNLI.tsv', value=value)


@pytest.mark.usefixtures('small_qqp')
def test_a_folder_of_files_under_their_own_names(tmp_path, capsys):
    for file in FORMAT:
        (tmp_path / file).write_text(content(file))
    path = tmp_path / 'submission.zip'
    glue_submission.main([str(path), str(tmp_path)])
    with zipfile.ZipFile(path) as archive:
        assert {file: archive.read(file).decode() for file in FORMAT} == {
            file: content(file) for file in FORMAT}


@pytest.mark.usefixtures('small_qqp')
def test_same_predictions_same_bytes(tmp_path):
    predictions = {file: same_prediction(file) for file in FORMAT}
    for name in 'ab':
        write_submission(str(tmp_path / name), predictions)
    assert (tmp_path / 'a').read_bytes() == (tmp_path / 'b').read_bytes()


@pytest.mark.parametrize('arguments, message', [
    (['a.zip'], 'name the directories of runs'),
    ([], 'the following arguments are required: ZIP, RUN; see --help'),
    (['a.zip', '--checks'], 'unrecognized arguments: --checks'),
    (['a.zip', '{dir}/no'], 'no folder {dir}/no'),
    (['a.zip', '{dir}/empty'], '{dir}/empty has none of CoLA.tsv'),
    (['a.zip', '{dir}/one', '{dir}/two'],
     '{dir}/one/WNLI.tsv and {dir}/two/test_predictions.tsv are both WNLI.tsv'),
    (['a.zip', '{dir}/odd'], '{dir}/odd/config.json does not describe a run'),
])
def test_wrong_arguments(tmp_path, capsys, arguments, message):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'one').mkdir()
    (tmp_path / 'one' / 'WNLI.tsv').write_text(content('WNLI.tsv'))
    run_directory(tmp_path / 'two', 'wnli', {'test_predictions.tsv': content('WNLI.tsv')})
    run_directory(tmp_path / 'odd', 'wnli', {'config.json': '[1]'})
    with pytest.raises(SystemExit) as exit:
        glue_submission.main([a.format(dir=tmp_path) for a in arguments])
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ' + message.format(dir=tmp_path)) and error.count('\n') == 1
