"""The exported computation, run by what it is for, against what transformers recorded."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny
from jax import export

from bert_jax.predict.export import export_model, plain_gelu_erf
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path

pytestmark = pytest.mark.slow

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
    'multiple_choice': {'logits': 'logits'},
    'token_classification': {'logits': 'logits'},
    'question_answering': {'start_logits': 'start_logits', 'end_logits': 'end_logits'},
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
        expected, found = arrays[theirs], outputs[ours]
        if name == 'multiple_choice':
            expected = expected.reshape(-1, 1)
        assert found.shape == expected.shape and found.dtype == np.float32
        if found.shape[:2] == mask.shape:
            found, expected = found[mask], expected[mask]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5, err_msg=ours)


def run_stablehlo(path, rows):
    exported = export.deserialize(bytearray(path.read_bytes()))
    outputs = jax.jit(exported.call)(dict(np.load(path.with_suffix('.npz'))), *rows.values())
    return jax.device_get(outputs)


def run_saved_model(path, rows):
    import tensorflow as tf

    call = tf.saved_model.load(str(path)).signatures['serving_default']
    return {name: x.numpy() for name, x in call(**rows).items()}


def run_onnx(path, rows):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, rows), strict=True))


RUN = {'stablehlo': run_stablehlo, 'saved_model': run_saved_model, 'onnx': run_onnx}


@pytest.mark.parametrize(('to', 'name'), [
    *(('stablehlo', name) for name in ('base', 'masked_lm', 'classification')),
    *(('saved_model', name) for name in ('pretraining', 'token_classification')),
    *(('onnx', name) for name in ('pretraining', 'question_answering', 'multiple_choice')),
])
def test_what_was_written_is_the_model(to, name, tmp_path):
    """Called with the recorded rows, and with another number of rows, tokens and positions."""
    if to == 'saved_model':
        pytest.importorskip('tensorflow', reason='it writes and runs SavedModels')
    if to == 'onnx':
        pytest.importorskip('jax2onnx', reason='the extra [onnx] is not installed')
    model, arrays = tiny.recorded(name)
    path = as_path(tmp_path / 'bert.stablehlo')
    described = export_model(model, path, to)
    assert described['largest_difference'] < 1e-5
    recorded = [arrays[x] for x in ('input_ids', 'attention_mask', 'token_type_ids')]
    recorded = [x.reshape(-1, x.shape[-1]) for x in recorded]  # choices are rows
    if 'masked_lm_positions' in described['inputs']:
        recorded.append(np.tile(np.arange(7, dtype=np.int32), (3, 1)))
    rows = dict(zip(described['inputs'], recorded, strict=True))
    whole = RUN[to](path, rows)
    assert set(whole) == set(described['outputs'])
    mask = rows['input_mask'] > 0
    compare(name, whole, arrays, mask)
    if to == 'stablehlo' or name != 'pretraining':  # as below
        return
    num = int(mask[0].sum())  # without the padding, if there is some
    alone = {x: rows[x][:1, : 2 if x == 'masked_lm_positions' else num] for x in rows}
    for output, x in RUN[to](path, alone).items():
        expected = whole[output][:1]
        expected = expected[:, : x.shape[1]] if x.ndim > 1 else expected
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=2e-5, err_msg=output)


def test_a_file_that_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    model, _ = tiny.recorded('classification')
    load = np.load
    monkeypatch.setattr(np, 'load', lambda path: {name: x + 1 for name, x in load(path).items()})
    with pytest.raises(InputError, match='gives other .* than the model'):
        export_model(model, as_path(tmp_path / 'bert.stablehlo'))
    assert not list(tmp_path.iterdir())


def test_gelu_of_plain_operations_is_exact():
    x = np.linspace(-8, 8, 4001).astype(np.float32)
    expected = [float(v) * 0.5 * (1 + math.erf(float(v) / math.sqrt(2))) for v in x]
    np.testing.assert_allclose(plain_gelu_erf(jax.numpy.asarray(x)), expected, atol=1e-6)


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
