"""Weights that transformers' Flax classes wrote: the same outputs, and damage is refused."""

import shutil

import flax.serialization
import numpy as np
import pytest

import bert_jax
from bert_jax.foreign import load_weights
from bert_jax.runtime.errors import InputError
from tests.api.recorded_models import INPUTS, assert_same_outputs, outputs
from tests.conftest import ROOT

RECORDED = ROOT / 'tests' / 'fixtures' / 'flax'
FILE = 'flax_model.msgpack'
MODELS = sorted(folder.name for folder in RECORDED.iterdir())


@pytest.mark.parametrize('name', MODELS)
def test_a_model_of_the_flax_classes_computes_what_it_did(name):
    expected = dict(np.load(RECORDED / name / 'recorded.npz'))
    batch = {key: expected.pop(key) for key in INPUTS}
    found = outputs(bert_jax.from_pretrained(RECORDED / name), batch)
    assert_same_outputs(found, expected, batch, atol=2e-6)


def test_safetensors_come_first(tmp_path):
    shutil.copytree(ROOT / 'tests' / 'fixtures' / 'huggingface' / 'pretraining', tmp_path / 'both')
    (tmp_path / 'both' / FILE).write_bytes(b'not read')
    assert load_weights(tmp_path / 'both').head == 'pretraining'


def test_an_array_in_chunks_is_put_together(tmp_path, monkeypatch):
    """Flax cuts arrays of more than a gigabyte."""
    folder = tmp_path / 'model'
    shutil.copytree(RECORDED / MODELS[0], folder)
    whole = load_weights(folder)
    tree = flax.serialization.msgpack_restore((folder / FILE).read_bytes())
    monkeypatch.setattr(flax.serialization, 'MAX_CHUNK_SIZE', 100)
    (folder / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))
    cut = load_weights(folder)
    for name, array in whole.params.items():
        np.testing.assert_array_equal(cut.params[name], array)


def damaged(**content):
    return flax.serialization.msgpack_serialize(content)


@pytest.mark.parametrize('content, message', [
    (b'', 'is not a complete Flax file'),
    (b'\x93' * 10_000, 'is not a complete Flax file'),
    ((RECORDED / MODELS[0] / FILE).read_bytes()[:5000], 'is not a complete Flax file'),
    (b'\x05', 'holds no parameters'),
    # Older versions of flax refuse such a name themselves.
    (b'\x81\x05\x06', 'the name 5, which is no text|is not a complete Flax file'),
    (damaged(bert={'kernel': 3}), 'bert/kernel is not an array'),
    (damaged(bert={'kernel': np.zeros(3, np.int32)}), 'bert/kernel is of type int32'),
    (damaged(a={'__msgpack_chunked_array__': True, 'shape': {}}), 'is not a complete Flax file'),
    (damaged(bert={'kernel': np.zeros(3, np.float32)}), 'has no tensor'),
    ((RECORDED / MODELS[0] / FILE).read_bytes().replace(b'float32', b'f4,((((', 1),
     'is not a complete Flax file'),
])
def test_damage_is_refused_in_one_line(content, message, tmp_path):
    shutil.copytree(RECORDED / MODELS[0], tmp_path / 'model')
    (tmp_path / 'model' / FILE).write_bytes(content)
    with pytest.raises(InputError, match=message) as refused:
        load_weights(tmp_path / 'model')
    assert '\n' not in str(refused.value)


def test_a_state_with_parameters_in_it_is_read(tmp_path):
    folder = tmp_path / 'model'
    shutil.copytree(RECORDED / MODELS[0], folder)
    whole = load_weights(folder)
    tree = flax.serialization.msgpack_restore((folder / FILE).read_bytes())
    (folder / FILE).write_bytes(flax.serialization.msgpack_serialize({'params': tree}))
    assert load_weights(folder).params.keys() == whole.params.keys()


def test_parts_of_a_flax_model_are_named_as_such(tmp_path):
    shutil.copytree(RECORDED / MODELS[0], tmp_path / 'model')
    (tmp_path / 'model' / FILE).rename(tmp_path / 'model' / 'flax_model-00001-of-00002.msgpack')
    with pytest.raises(InputError, match='a Flax model in parts'):
        load_weights(tmp_path / 'model')
