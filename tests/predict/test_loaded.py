"""What a loaded model keeps: files that change or move afterwards change nothing."""

import json
import shutil

import numpy as np
import pytest

from bert_jax import predict
from tests.conftest import ROOT

FIXTURES = ROOT / 'tests' / 'fixtures' / 'huggingface'


@pytest.fixture
def other_of_equal_size(tmp_path):
    """Two folders, in each a model `m`: the second has another vocab.txt and another pooling."""
    modules = [{'path': '', 'type': 'sentence_transformers.models.Transformer'},
               {'path': '1_Pooling', 'type': 'sentence_transformers.models.Pooling'}]
    for name in ('first', 'second'):
        folder = tmp_path / name / 'm'
        shutil.copytree(FIXTURES / 'base', folder)
        (folder / '1_Pooling').mkdir()
        (folder / 'modules.json').write_text(json.dumps(modules))
        mode = 'pooling_mode_cls_token' if name == 'first' else 'pooling_mode_max_tokens'
        (folder / '1_Pooling' / 'config.json').write_text(json.dumps({mode: True}))
    lines = (tmp_path / 'second/m/vocab.txt').read_text().splitlines()
    lines[5:] = reversed(lines[5:])
    (tmp_path / 'second/m/vocab.txt').write_text('\n'.join(lines) + '\n')
    return tmp_path


def test_another_working_folder_changes_nothing(other_of_equal_size, monkeypatch):
    monkeypatch.chdir(other_of_equal_size / 'first')
    model = predict.load('m')
    expected = predict.load('m').vectors(['a bad cab'])
    monkeypatch.chdir(other_of_equal_size / 'second')
    np.testing.assert_array_equal(model.vectors(['a bad cab']), expected)
    assert not np.array_equal(predict.load('m').vectors(['a bad cab']), expected)


def test_an_edited_vocabulary_counts_from_the_next_load_on(other_of_equal_size):
    folder = other_of_equal_size / 'first' / 'm'
    model = predict.load(folder)
    before = model.vectors(['a bad cab'])
    shutil.copy(other_of_equal_size / 'second/m/vocab.txt', folder)
    np.testing.assert_array_equal(model.vectors(['a bad cab']), before)
