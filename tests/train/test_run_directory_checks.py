"""A run directory takes no other run's continuation for its own."""

import pytest

from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError
from bert_jax.train.run_directory import check_run_directory, describe_run

FIELDS = {
    'task': 'rte', 'seed': 0, 'init_checkpoint': 'a', 'data': {'source': 'x'},
    'train': {'batch_size': 32, 'log_every': 1}, 'optimizer': {'learning_rate': 1e-5},
    'model': {'num_layers': 2, 'dtype': 'float32'},
}


def changed(name, value):
    section, _, key = name.rpartition('.')
    return FIELDS | ({section: FIELDS[section] | {key: value}} if section else {name: value})


@pytest.fixture(params=['checkpoints', 'best'])
def workdir(request, tmp_path):
    (tmp_path / request.param / '5').mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize('task, name, value, refused', [
    ('rte', 'seed', 1, True), ('rte', 'init_checkpoint', 'b', True), ('rte', 'task', 'mrpc', True),
    ('rte', 'train.batch_size', 16, True), ('rte', 'optimizer.learning_rate', 2e-5, True),
    ('rte', 'model.num_layers', 3, True), ('rte', 'model.dtype', 'bfloat16', False),
    ('rte', 'data.source', 'y', False), ('rte', 'train.log_every', 2, False),
    ('pretrain', 'task', 'rte', True), ('pretrain', 'optimizer.learning_rate', 2e-5, False),
    ('pretrain', 'model.num_layers', 3, True),
])
def test_what_makes_it_another_run_is_refused(workdir, task, name, value, refused, capsys):
    describe_run(workdir, FIELDS | {'task': task}, None)
    before = (workdir / 'config.json').read_text()
    other = changed(name, value) if name == 'task' else changed(name, value) | {'task': task}
    if refused:
        with pytest.raises(InputError, match=f'holds a run with {name}=.*give another --workdir'):
            check_run_directory(workdir, other, None, comparable=task != 'pretrain')
    else:
        check_run_directory(workdir, other, None, comparable=task != 'pretrain')
        assert ('note: ' in capsys.readouterr().out) == (name != 'train.log_every')
    assert (workdir / 'config.json').read_text() == before


def test_a_run_that_has_begun_keeps_the_name_of_what_it_started_from(workdir, capsys):
    describe_run(workdir, FIELDS | {'task': 'pretrain'}, None)
    resolved = FIELDS | {'task': 'pretrain', 'init_checkpoint': 'b'}
    check_run_directory(workdir, resolved, None, comparable=False)
    assert "init_checkpoint='a', which stays; 'b' is not used" in capsys.readouterr().out
    assert resolved['init_checkpoint'] == 'a'


def test_another_text_under_the_same_name_is_told(workdir, capsys):
    describe_run(workdir, FIELDS | {'identity': {'content of x': 'aa', 'vocabulary': 'v'}}, None)
    now = FIELDS | {'identity': {'content of x': 'bb', 'vocabulary': 'w'}}
    check_run_directory(workdir, now, None, comparable=False)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith('warning: ') and 'content of x was aa, now bb' in line
    with pytest.raises(InputError, match='other data.*content of x'):
        check_run_directory(workdir, now, None, comparable=True)


def test_a_run_goes_on_with_a_newer_version_of_this_project(workdir, capsys):
    """Fields that came and went since it began, at what they meant then."""
    model = FIELDS['model'] | {'gone': ''}
    describe_run(workdir, FIELDS | {'model': model, 'data': {'source': 'x', 'old': 128}}, None)
    now = FIELDS | {'squad': {'stride': 128}}
    check_run_directory(workdir, now, None, comparable=True)
    assert capsys.readouterr().out == ''
    describe_run(workdir, FIELDS | {'model': model | {'gone': 'last'}}, None)
    with pytest.raises(InputError, match="holds a run with model.gone='last'"):
        check_run_directory(workdir, now, None, comparable=True)


@pytest.mark.parametrize(('skip_steps', 'told'), [
    ((3,), ''),  # as before
    ((3, 6), 'note: train.skip_steps was [3] in this run so far'),
    ((3, 5, 6), 'warning: train.skip_steps: the newest checkpoint is past 5,'),
])
def test_steps_to_skip_that_the_run_has_behind_it_are_told(skip_steps, told, tmp_path, capsys):
    for step in ('2', '5'):
        (tmp_path / 'checkpoints' / step).mkdir(parents=True)
    describe_run(tmp_path, changed('train.skip_steps', [3]), None)
    now = changed('train.skip_steps', list(skip_steps))
    check_run_directory(tmp_path, now, None, comparable=False)
    assert capsys.readouterr().out.startswith(told) if told else not capsys.readouterr().out
    assert now['train']['skip_steps'] == [step for step in skip_steps if step != 5]


def test_a_directory_without_parameters_takes_any_run(tmp_path):
    describe_run(tmp_path, FIELDS, None)
    check_run_directory(tmp_path, changed('seed', 1), None, comparable=True)


def test_in_a_bucket_a_run_is_one_with_a_whole_checkpoint(bucket):
    workdir = files.as_path(bucket) / 'run'
    check_run_directory(workdir, FIELDS, None, comparable=True)
    describe_run(workdir, FIELDS, None)
    files.write_whole(workdir / 'checkpoints' / '5' / 'default' / 'manifest.ocdbt', b'begun')
    check_run_directory(workdir, changed('model.num_layers', 3), None, comparable=True)
    files.write_whole(workdir / 'checkpoints' / '5' / 'commit_success.txt', b'done')
    with pytest.raises(InputError, match='holds a run with model.num_layers=2'):
        check_run_directory(workdir, changed('model.num_layers', 3), None, comparable=True)


def test_a_bucket_whose_old_checkpoints_could_not_be_deleted(bucket, bucket_server, monkeypatch):
    workdir = files.as_path(bucket) / 'run'
    monkeypatch.setattr(files, 'REFUSED_SECONDS', 0.0)
    monkeypatch.setattr(bucket_server, 'faults', {f"/b/{bucket.removeprefix('gs://')}\\?": 403})
    with pytest.raises(InputError, match=f'^{bucket}: old checkpoints .* Legacy Bucket Reader'):
        check_run_directory(workdir, FIELDS, None, comparable=True)
