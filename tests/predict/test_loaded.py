"""What a loaded model keeps: files that change or move afterwards change nothing."""

import copy
import json
import pickle
import shutil

import numpy as np
import pytest

from bert_jax import from_config, from_pretrained, predict
from bert_jax.runtime import forks
from tests.conftest import ROOT
from tests.refusals import refused

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


def test_a_fork_refuses_to_compute_where_it_would_hang(other_of_equal_size, monkeypatch):
    path = other_of_equal_size / 'first' / 'm'
    model = predict.load(path)
    bert = from_pretrained(path, head='encoder')
    batch = bert.tokenizer(['a bad cab'])
    monkeypatch.setattr(forks, '_user_of_jax', lambda: 1)  # as it is in a fork of process 1
    for act in (lambda: model.vectors(['a bad cab']), lambda: predict.load(path),
                lambda: bert.module.apply({'params': bert.params}, **batch),
                lambda: from_pretrained(path), lambda: from_config('tiny', vocab_size=30)):
        with refused('is a fork', "'spawn'"):
            act()


def test_a_loaded_model_is_not_pickled_but_copied(other_of_equal_size):
    model = predict.load(other_of_equal_size / 'first' / 'm')
    with pytest.raises(TypeError, match='a loaded model cannot be pickled: give'):
        pickle.dumps(model)
    copied = copy.deepcopy({'model': model})['model']
    np.testing.assert_array_equal(copied.vectors(['a bad cab']), model.vectors(['a bad cab']))


def test_a_note_that_raises_costs_no_result(other_of_equal_size, capsys):
    model = predict.load(FIXTURES / 'classification')
    long_text = 'a bad cab ' * 9
    model.note = print
    expected = model.classify([long_text])

    def refuse(line):
        raise RuntimeError(line)

    model.note = refuse
    assert model.classify([long_text]) == expected
    assert 'note: text 1 has' in capsys.readouterr().err
