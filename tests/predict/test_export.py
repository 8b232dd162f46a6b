"""The exported computation, in a process that has only JAX, against what transformers recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny

from bert_jax.predict.export import export_model

pytest.importorskip('flatbuffers', reason='jax.export writes files with it')

# What a user without this package runs; the last lines are the check that it is so.
PROGRAM = '''
import sys
import jax, numpy as np
from jax import export

folder = sys.argv[1]
with open(folder + "/bert.stablehlo", "rb") as file:
    bert = export.deserialize(bytearray(file.read()))
params = dict(np.load(folder + "/bert.npz"))
call = jax.jit(bert.call)
for name in sys.argv[2:]:
    inputs = dict(np.load(folder + f"/{name}.npz"))
    outputs = call(params, *(inputs[f"x{i}"] for i in range(len(inputs))))
    np.savez(folder + f"/{name}-out.npz", **outputs)
assert bert.platforms == ("cpu", "cuda", "tpu")
others = {"bert_jax", "flax", "orbax", "safetensors", "tensorflow"} & set(sys.modules)
assert not others, others
'''
OUTPUTS = {  # by the names here: those of transformers
    'base': {'sequence_output': 'last_hidden_state', 'pooled_output': 'pooler_output'},
    'pretraining': {'masked_lm_logits': 'prediction_logits',
                    'next_sentence_logits': 'seq_relationship_logits'},
    'masked_lm': {'masked_lm_logits': 'logits'},
    'classification': {'logits': 'logits'},
    'token_classification': {'logits': 'logits'},
    'question_answering': {'logits': ('start_logits', 'end_logits')},
}


def run_alone(folder: Path, *names: str) -> None:
    environment = {name: x for name, x in os.environ.items() if name != 'PYTHONPATH'}
    subprocess.run(
        [sys.executable, '-I', '-c', PROGRAM, str(folder), *names], check=True, cwd=folder,
        env=environment | {'XLA_FLAGS': ''}, timeout=300,
    )


def compare(name, outputs, arrays, mask):
    """Real tokens and rows that attend to real tokens alone, as transformers has them."""
    for ours, theirs in OUTPUTS[name].items():
        if isinstance(theirs, tuple):
            expected = np.stack([arrays[part] for part in theirs], -1)
        else:
            expected = arrays[theirs]
        found = outputs[ours]
        assert found.shape == expected.shape and found.dtype == np.float32
        if found.ndim == 3:
            found, expected = found[mask], expected[mask]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5, err_msg=ours)


@pytest.mark.parametrize('name', OUTPUTS)
def test_exported_function(name, tmp_path):
    """Called as it was exported; the file itself is read in the next test."""
    import jax
    from jax import export

    model, arrays = tiny.recorded(name)
    described = export_model(model, tmp_path / 'bert.stablehlo')
    file = bytearray((tmp_path / 'bert.stablehlo').read_bytes())
    inputs = [arrays[x] for x in ('input_ids', 'attention_mask', 'token_type_ids')]
    if 'masked_lm_positions' in described['inputs']:
        inputs.append(np.tile(np.arange(7, dtype=np.int32), (3, 1)))
    outputs = jax.jit(export.deserialize(file).call)(
        dict(np.load(tmp_path / 'bert.npz')), *inputs)
    assert set(outputs) == set(described['outputs'])
    compare(name, jax.device_get(outputs), arrays, arrays['attention_mask'] > 0)


def test_in_a_process_that_has_only_jax(tmp_path):
    model, arrays = tiny.recorded('pretraining')
    described = export_model(model, tmp_path / 'bert.stablehlo')
    assert json.loads(json.dumps(described))['inputs'] == {
        'input_ids': 'int32[b, s]', 'input_mask': 'int32[b, s]', 'segment_ids': 'int32[b, s]',
        'masked_lm_positions': 'int32[b, p]',
    }
    recorded = [arrays[x] for x in ('input_ids', 'attention_mask', 'token_type_ids')]
    positions = np.tile(np.arange(7, dtype=np.int32), (3, 1))
    np.savez(tmp_path / 'all.npz', **{f'x{i}': x for i, x in enumerate([*recorded, positions])})
    # Another number of rows, tokens and positions.
    part = [x[:1, :5] for x in recorded] + [positions[:1, 3:5]]
    np.savez(tmp_path / 'part.npz', **{f'x{i}': x for i, x in enumerate(part)})
    run_alone(tmp_path, 'all', 'part')
    compare('pretraining', np.load(tmp_path / 'all-out.npz'), arrays,
            arrays['attention_mask'] > 0)
    found = np.load(tmp_path / 'part-out.npz')
    assert found['sequence_output'].shape == (1, 5, 8)
    assert found['masked_lm_logits'].shape == (1, 2, 40)
    tokens = [model.tokenizer.vocab.tokens[i] for i in part[0][0]]
    assert len(tokens) == 5 and np.isfinite(found['masked_lm_logits']).all()
