"""The folder of an evaluation: it is replaced as a whole, and keeps what is not its own."""

import json
import os
import subprocess
import sys

import pytest

from bert_jax.run.result_folder import (
    RESULT,
    free_folder,
    open_result_folder,
    write_result,
)
from bert_jax.runtime.files import as_path, children
from tests.conftest import ROOT
from tests.refusals import refused

OF_A = {'task': 'cls', 'models': ['a/cls'], 'source': 'dev.csv'}


def contents(folder):
    """The text of each file of a folder, by name."""
    return {path.name: path.read_text() for path in children(folder)}


def evaluate(folder, **files):
    open_result_folder(folder)
    write_result(folder, OF_A, {f'{name}.tsv': content for name, content in files.items()})


def test_an_evaluation_replaces_the_files_of_the_one_before(folder, capsys):
    out = folder / 'out'
    evaluate(out, dev='1', test='1')
    assert not capsys.readouterr().out
    evaluate(out, dev='2')
    assert 'which is replaced: give --workdir=DIR' in capsys.readouterr().out
    found = contents(out)
    result = json.loads(found.pop(RESULT))
    assert found == {'dev.tsv': '2'}
    assert result == OF_A | {'files': ['dev.tsv']}


def test_files_of_others_are_kept(tmp_path):
    out = as_path(tmp_path / 'out')
    evaluate(out, dev='1')
    (out / 'notes.md').write_text('mine')
    with open(out / 'log.txt', 'w') as log:  # as of a shell that writes the output there
        evaluate(out, dev='2')
        log.write('said')
    found = contents(out)
    assert (found['notes.md'], found['log.txt'], found['dev.tsv']) == ('mine', 'said', '2')
    assert not [path for path in children(out.parent) if path.name.endswith('.tmp')]


def test_folders_in_it_and_its_mode_are_kept(tmp_path):
    out = as_path(tmp_path / 'out')
    (out / '.ipynb_checkpoints').mkdir(parents=True)
    (out / '.ipynb_checkpoints' / 'a').write_text('mine')
    os.chmod(out, 0o700)
    evaluate(out, dev='1')
    assert (out / '.ipynb_checkpoints' / 'a').read_text() == 'mine'
    assert os.stat(out).st_mode & 0o777 == 0o700


def test_a_folder_whose_successor_cannot_take_its_place_comes_back(tmp_path, monkeypatch):
    out = as_path(tmp_path / 'out')
    evaluate(out, dev='1')
    rename = os.rename

    def fail_for_the_new_one(source, target):
        if os.fspath(target) == os.fspath(out) and not os.fspath(source).endswith('.before'):
            raise OSError('busy')
        rename(source, target)

    monkeypatch.setattr(os, 'rename', fail_for_the_new_one)
    with pytest.raises(OSError, match='busy'):
        evaluate(out, dev='2')
    assert contents(out)['dev.tsv'] == '1'


def test_a_replacement_that_was_killed_halfway_is_undone(tmp_path):
    out = as_path(tmp_path / 'out')
    evaluate(out, dev='1')
    os.rename(out, tmp_path / '.out.before')
    open_result_folder(out)
    assert contents(out)['dev.tsv'] == '1'


# Writes an evaluation in child after child, which is killed at its first, second, ... call that
# makes something lasting; prints how many of them were killed.
KILLED = f"""
import os, signal, sys
from bert_jax.runtime.files import as_path
from bert_jax.run.result_folder import write_result

def killing(function):
    def call(*args, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)
    return call

os.replace, os.rename, os.fsync = map(killing, (os.replace, os.rename, os.fsync))
for number in range(int(sys.argv[2])):
    left = number
    child = os.fork()
    if not child:
        write_result(as_path(sys.argv[1]), {OF_A}, {{'dev.tsv': '2', 'test.tsv': '2'}})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


def test_a_killed_evaluation_leaves_the_whole_of_the_one_before(tmp_path):
    out = as_path(tmp_path / 'out')
    evaluate(out, dev='1', test='1')
    before = contents(out)
    # Three files are flushed and renamed, then the old folder is renamed.
    subprocess.run(
        [sys.executable, '-c', KILLED, os.fspath(out), '7'], cwd=ROOT, timeout=600, check=True)
    assert contents(out) == before
    evaluate(out, dev='2')
    assert contents(out)['dev.tsv'] == '2'


def test_an_unfinished_evaluation_in_a_bucket_is_none(bucket, monkeypatch):
    out = as_path(bucket) / 'out'
    evaluate(out, dev='1', test='1')
    written = []

    def write_three(path, content):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        as_path(path).write_text(content)

    monkeypatch.setattr('bert_jax.run.result_folder.write_whole', write_three)
    with pytest.raises(KeyboardInterrupt):
        evaluate(out, dev='2', other='2')
    assert json.loads(contents(out)[RESULT])['unfinished']
    monkeypatch.undo()
    evaluate(out, last='3')
    assert sorted(contents(out)) == ['last.tsv', RESULT]


def test_a_folder_by_default_is_of_one_model_and_its_data(tmp_path):
    named = str(tmp_path / 'evaluate-cls')
    of_b = OF_A | {'models': ['b/cls']}
    assert free_folder(named, OF_A) == named
    evaluate(as_path(named), dev='1')
    assert free_folder(named, OF_A) == named
    assert free_folder(named, of_b) == f'{named}-2'
    os.mkdir(f'{named}-2')
    write_result(as_path(f'{named}-2'), of_b, {})
    assert free_folder(named, of_b) == f'{named}-2'
    assert free_folder(named, OF_A | {'source': 'other.csv'}) == f'{named}-3'


def test_what_is_no_evaluation_is_not_replaced(tmp_path, monkeypatch):
    for name in ('run/checkpoints', 'notes', 'scored/runs', 'here'):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / 'notes' / 'a.txt').write_text('mine')
    (tmp_path / 'scored' / RESULT).write_text(json.dumps(OF_A))
    with refused('run is a run'):
        open_result_folder(as_path(tmp_path / 'run'))
    with refused('notes holds something else (a.txt)'):
        open_result_folder(as_path(tmp_path / 'notes'))
    with refused('scored holds something else (runs/)'):
        open_result_folder(as_path(tmp_path / 'scored'))
    monkeypatch.chdir(tmp_path / 'here')
    with refused('is the current folder'):
        open_result_folder(as_path('.'))
