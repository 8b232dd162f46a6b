"""Arrays of a checkpoint that no memory could hold are refused before they are allocated."""

import json

import pytest
import tensorstore as ts

from bert_jax.foreign import load_weights
from bert_jax.run.model import write_run
from tests.foreign.run_model import RECORDED
from tests.refusals import refused

ARRAY = b'params.bert.embeddings.LayerNorm.bias/.zarray'


def test_a_run_may_have_brackets_in_its_name(tmp_path):
    write_run(tmp_path / 'run', load_weights(RECORDED / 'base'))
    (tmp_path / 'run').rename(tmp_path / 'lr[1e-4]')
    assert load_weights(tmp_path / 'lr[1e-4]').params


def test_no_run_is_written_where_orbax_would_lose_arrays(tmp_path):
    with refused('lr[1e-5]', 'name the folder otherwise'):
        write_run(tmp_path / 'lr[1e-5]', load_weights(RECORDED / 'base'))


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
