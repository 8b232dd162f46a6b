"""What a model says besides its fields goes through every format: its head, how it predicts."""

import dataclasses
import json
from pathlib import Path

import pytest

from bert_jax.runtime.checksum import check_digest
from bert_jax.runtime.errors import InputError
from bert_jax.weights.huggingface import write_huggingface
from bert_jax.weights.load import load_weights
from bert_jax.weights.run_directory import write_run

RECORDED = Path(__file__).parents[1] / 'fixtures' / 'huggingface'
INFERENCE = {'max_seq_length': 9, 'doc_stride': 4, 'null_threshold': -1.5}


def write_tf1(folder, weights):
    pytest.importorskip('tensorflow', reason='it writes TF1 checkpoints')
    from bert_jax.weights import tf1

    tf1.write_tf1(folder, weights)


FORMATS = {
    'bert_jax': (write_run, 'config.json', 'inference'),
    'huggingface': (write_huggingface, 'config.json', 'bert_jax_inference'),
    'tf1': (write_tf1, 'bert_config.json', 'bert_jax_inference'),
}


@pytest.mark.parametrize('form', FORMATS)
def test_heads_labels_and_how_predictions_are_made(form, tmp_path):
    write, name, key = FORMATS[form]
    weights = dataclasses.replace(
        load_weights(RECORDED / 'classification'), head='multi_label', inference=INFERENCE)
    write(tmp_path / 'out', weights)
    again = load_weights(tmp_path / 'out')
    assert (again.head, again.labels) == ('multi_label', weights.labels)
    assert again.inference == INFERENCE
    config_file = tmp_path / 'out' / name
    said = check_digest(json.loads(config_file.read_text()), config_file)
    config_file.write_text(json.dumps(said | {key: [9]}))
    with pytest.raises(InputError, match=rf'{name}: {key}=\[9\] is no JSON object'):
        load_weights(tmp_path / 'out')
    del said[key]
    config_file.write_text(json.dumps(said))
    assert load_weights(tmp_path / 'out').inference == {}
