"""Arrays of a checkpoint that no memory could hold are refused before they are allocated."""

import json

import pytest
import tensorstore as ts
from run_model import RECORDED

from bert_jax.weights import load_weights
from bert_jax.weights.run_directory import write_run
from tests.refusals import refused

ARRAY = b'params.bert.embeddings.LayerNorm.bias/.zarray'


@pytest.mark.parametrize('size', [2**45, 2**62])
def test_a_huge_shape_is_refused(tmp_path, size):
    write_run(tmp_path / 'run', load_weights(RECORDED / 'base'))
    step = tmp_path / 'run' / 'checkpoints' / '0'
    store = ts.KvStore.open({'driver': 'ocdbt', 'base': f'file://{step}/default/'}).result()
    described = json.loads(store.read(ARRAY).result().value)
    described['shape'] = [size]
    store.write(ARRAY, json.dumps(described).encode()).result()
    with refused(f'{step} cannot be read (its arrays would take', 'move it away'):
        load_weights(tmp_path / 'run')
