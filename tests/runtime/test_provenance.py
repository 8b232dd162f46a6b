"""Which commit a program is of, and what is recorded of its command."""

import shutil
import subprocess
import sys

import pytest

from bert_jax.runtime import provenance
from tests.conftest import ROOT


def git(folder, *words):
    who = ['-c', 'user.name=a', '-c', 'user.email=b']
    process = subprocess.run(
        ['git', *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return process.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository of the files that say the commit."""
    (tmp_path / 'one' / 'bert_jax').mkdir(parents=True)
    for name in ('.gitattributes', 'bert_jax/commit.txt'):
        shutil.copy(ROOT / name, tmp_path / 'one' / name)
    git(tmp_path / 'one', 'init', '-q')
    git(tmp_path / 'one', 'add', '.')
    git(tmp_path / 'one', 'commit', '-qm', 'c')
    return tmp_path / 'one'


def test_a_repository_and_its_archive_name_one_commit(repository, tmp_path, monkeypatch):
    git(repository, 'archive', '--format=zip', '--output=../archive.zip', 'HEAD')
    shutil.unpack_archive(tmp_path / 'archive.zip', tmp_path / 'unpacked')
    expected = git(repository, 'rev-parse', '--short', 'HEAD')
    for folder in (repository, tmp_path / 'unpacked'):
        monkeypatch.setattr(provenance, '_PACKAGE', folder / 'bert_jax')
        assert provenance._commit() == expected


def test_a_copy_of_the_files_names_none(repository, tmp_path, monkeypatch):
    copy = shutil.copytree(repository / 'bert_jax', tmp_path / 'copy' / 'bert_jax')
    monkeypatch.setattr(provenance, '_PACKAGE', copy)
    assert provenance._commit() == ''
    (copy / 'commit.txt').unlink()
    assert provenance._commit() == ''


@pytest.mark.parametrize('words, recorded', [
    (['--storage=postgresql://me:se/cr:et@host/db', '--trials=3'],
     '--storage=postgresql://me:***@host/db --trials=3'),
    (['--storage', 'mysql+pymysql://me:secret@host:33/db'], 'mysql+pymysql://me:***@host:33/db'),
    (['--storage=postgresql://me@host/db'], '--storage=postgresql://me@host/db'),
    (['hf:a/b@main', 'http://host:80/x'], 'hf:a/b@main http://host:80/x'),
])
def test_the_recorded_command_has_no_password(words, recorded, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['sweep', *words])
    command = provenance.made_by()['command']
    assert recorded in command.replace("'", '')
    assert 'secret' not in command
