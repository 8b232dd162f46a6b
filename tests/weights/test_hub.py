"""Models of the Hugging Face hub by name: from its cache, and what is wrong in one line."""

import shutil
from unittest import mock

import pytest
from run_model import RECORDED, assert_same

from bert_jax.runtime.errors import InputError
from bert_jax.weights import load_weights

pytest.importorskip('huggingface_hub', reason='the extra [hub] is not installed')

COMMIT = '0123456789abcdef0123456789abcdef01234567'


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The hub's cache with ORG/bert, and no network."""
    repo = tmp_path / 'models--ORG--bert'
    shutil.copytree(RECORDED / 'pretraining', repo / 'snapshots' / COMMIT)
    (repo / 'refs').mkdir()
    (repo / 'refs' / 'main').write_text(COMMIT)
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)


@pytest.mark.parametrize('name', ['hf:ORG/bert', f'hf:ORG/bert@{COMMIT}'])
def test_a_model_by_name_is_its_folder(cache, name):
    assert_same(load_weights(name), load_weights(RECORDED / 'pretraining'))


@pytest.mark.parametrize('name, words', [
    ('hf:ORG/other', 'it is not in the cache, and the hub cannot be'),
    ('hf:a/b/c', 'write hf:ORG/NAME'),
    ('bert-base-uncased', 'of the Hugging Face hub: hf:ORG/bert-base-uncased'),
])
def test_a_name_that_is_not_there(cache, name, words):
    with pytest.raises(InputError, match=words):
        load_weights(name)


@pytest.mark.parametrize('error, words', [
    ('RepositoryNotFoundError', 'the hub has no such model'),
    ('RevisionNotFoundError', "it has no revision 'v2'"),
    ('GatedRepoError', 'accept its terms on its page there, and log in'),
])
def test_what_the_hub_answers(monkeypatch, error, words):
    from huggingface_hub import errors

    answer = getattr(errors, error)('no', response=mock.Mock())
    monkeypatch.setattr('huggingface_hub.snapshot_download', mock.Mock(side_effect=answer))
    with pytest.raises(InputError, match=words):
        load_weights('hf:ORG/bert@v2')
