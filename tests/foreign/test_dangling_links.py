"""Links whose targets are gone, as of a copied snapshot of the hub: refused, not taken for none."""

import json
import shutil

import pytest

from bert_jax.foreign import load_weights
from bert_jax.loading import read_model
from bert_jax.run.model import write_run
from tests.foreign.run_model import RECORDED
from tests.refusals import refused


@pytest.fixture
def models(tmp_path):
    """A good folder of each kind."""
    shutil.copytree(RECORDED / 'pretraining', tmp_path / 'huggingface')
    write_run(tmp_path / 'run', load_weights(tmp_path / 'huggingface'))
    vectors = tmp_path / 'vectors'
    shutil.copytree(RECORDED / 'base', vectors)
    modules = [{'path': '', 'type': 'sentence_transformers.models.Transformer'},
               {'path': '1_Pooling', 'type': 'sentence_transformers.models.Pooling'}]
    (vectors / 'modules.json').write_text(json.dumps(modules))
    (vectors / '1_Pooling').mkdir()
    return tmp_path


@pytest.mark.parametrize('name', [
    'huggingface/vocab.txt', 'huggingface/tokenizer.json', 'huggingface/tokenizer_config.json',
    'huggingface/added_tokens.json', 'huggingface/special_tokens_map.json',
    'huggingface/vocab.model', 'huggingface/model.safetensors', 'huggingface/adapter_config.json',
    'run/vocab.txt', 'run/tokenizer_config.json',
    'vectors/modules.json', 'vectors/sentence_bert_config.json',
    'vectors/config_sentence_transformers.json',
])
def test_a_dangling_link_is_refused(models, name):
    file = models / name
    file.unlink(missing_ok=True)
    if name.endswith('.model'):
        (models / 'huggingface/vocab.txt').unlink()
    file.symlink_to('../blobs/gone')
    with refused(f'{file} is a link to ../blobs/gone, which is not there'):
        read_model(file.parent)
