"""Exported models, run by jax.export and ONNX Runtime, against transformers' recorded outputs."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import export

from bert_jax.predict.export import export_model
from bert_jax.runtime.errors import InputError
from tests.predict import tiny

pytestmark = pytest.mark.slow

pytest.importorskip('flatbuffers', reason='jax.export writes files with it')

# What a user without this package runs; the last lines check that nothing imports it.
PROGRAM = """
import sys
import jax, numpy as np
from jax import export

folder = sys.argv[1]
with open(folder + "/bert.stablehlo", "rb") as file:
    bert = export.deserialize(bytearray(file.read()))
params = dict(np.load(folder + "/bert.npz"))
call = jax.jit(bert.call)
for name in ("all", "part"):
    inputs = dict(np.load(folder + f"/{name}.npz"))
    np.savez(folder + f"/{name}-out.npz", **call(params, *inputs.values()))
assert bert.platforms == ("cpu", "cuda", "tpu")
others = {"bert_jax", "flax", "orbax", "safetensors", "tensorflow"} & set(sys.modules)
assert not others, others
"""
OUTPUTS = {  # transformers' names of outputs, by ours
    'base': {'sequence_output': 'last_hidden_state', 'pooled_output': 'pooler_output'},
    'pretraining': {'masked_lm_logits': 'prediction_logits',
                    'next_sentence_logits': 'seq_relationship_logits'},
    'masked_lm': {'masked_lm_logits': 'logits'},
    'classification': {'logits': 'logits'},
    'question_answering': {'start_logits': 'start_logits', 'end_logits': 'end_logits'},
}


def recorded_rows(arrays, described):
    """The recorded inputs, by the names of the exported model's inputs."""
    rows = [arrays[x] for x in ('input_ids', 'attention_mask', 'token_type_ids')]
    if 'masked_lm_positions' in described['inputs']:
        rows.append(np.tile(np.arange(7, dtype=np.int32), (3, 1)))
    return dict(zip(described['inputs'], rows, strict=True))


def compare(name, outputs, arrays, mask):
    """Compares outputs with transformers'; those of padding are left out."""
    for ours, theirs in OUTPUTS[name].items():
        expected, found = arrays[theirs], outputs[ours]
        assert found.shape == expected.shape and found.dtype == np.float32
        if found.shape[:2] == mask.shape:
            found, expected = found[mask], expected[mask]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5, err_msg=ours)


def run_stablehlo(path, rows):
    exported = export.deserialize(bytearray(path.read_bytes()))
    outputs = jax.jit(exported.call)(dict(np.load(path.with_suffix('.npz'))), *rows.values())
    return jax.device_get(outputs)


def run_onnx(path, rows):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    assert {x.type for x in session.get_inputs()} == {'tensor(int64)'}
    rows = {name: x.astype(np.int64) for name, x in rows.items()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, rows), strict=True))


RUN = {'stablehlo': run_stablehlo, 'onnx': run_onnx}


@pytest.mark.parametrize(('to', 'name'), [
    *(('stablehlo', name) for name in ('base', 'masked_lm')),
    *(pytest.param('onnx', name, marks=pytest.mark.extras)
      for name in ('pretraining', 'question_answering', 'classification')),
])
def test_an_exported_file_computes_the_model(to, name, tmp_path):
    if to == 'onnx':
        pytest.importorskip('jax2onnx', reason='the extra [onnx] is not installed')
    model, arrays = tiny.recorded(name)
    path = tmp_path / 'bert.stablehlo'
    described = export_model(model, path, to, opset := 20 if name == 'pretraining' else 23)
    assert described['largest_difference'] < 1e-5 and described.get('opset', opset) == opset
    rows = recorded_rows(arrays, described)
    found = RUN[to](path, rows)
    assert set(found) == set(described['outputs'])
    compare(name, found, arrays, arrays['attention_mask'] > 0)
    assert to != 'onnx' or list(rows)[:3] == ['input_ids', 'attention_mask', 'token_type_ids']


def test_an_export_that_was_killed_between_its_files_is_made_again(tmp_path):
    model, _ = tiny.recorded('classification')
    path = tmp_path / 'bert.stablehlo'
    export_model(model, path)
    path.unlink()
    export_model(model, path)
    assert path.exists()
    path.unlink()
    np.savez(tmp_path / 'bert.npz', mine=np.zeros(3))
    with pytest.raises(InputError, match='bert.npz is there already'):
        export_model(model, path)


def test_a_file_that_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    model, _ = tiny.recorded('classification')
    load = np.load
    monkeypatch.setattr(np, 'load', lambda path: {name: x + 1 for name, x in load(path).items()})
    with pytest.raises(InputError, match='gives other .* than the model'):
        export_model(model, tmp_path / 'bert.stablehlo')
    assert not list(tmp_path.iterdir())


def test_an_export_runs_in_a_process_that_has_only_jax(tmp_path):
    model, arrays = tiny.recorded('pretraining')
    described = export_model(model, tmp_path / 'bert.stablehlo')
    assert described['inputs'] == {
        'input_ids': 'int32[b, s]', 'input_mask': 'int32[b, s]', 'segment_ids': 'int32[b, s]',
        'masked_lm_positions': 'int32[b, p]',
    }
    rows = recorded_rows(arrays, described)
    np.savez(tmp_path / 'all.npz', **rows)
    # Fewer rows, tokens and positions: the first row without its padding, two positions.
    num = int(rows['input_mask'][0].sum())
    np.savez(tmp_path / 'part.npz', **{
        name: x[:1, : 2 if name == 'masked_lm_positions' else num] for name, x in rows.items()})
    subprocess.run(
        [sys.executable, '-I', '-c', PROGRAM, str(tmp_path)], check=True, cwd=tmp_path, timeout=300,
        env={name: x for name, x in os.environ.items() if name != 'PYTHONPATH'} | {'XLA_FLAGS': ''})
    whole, part = (np.load(tmp_path / f'{name}-out.npz') for name in ('all', 'part'))
    compare('pretraining', whole, arrays, rows['input_mask'] > 0)
    for output, x in part.items():
        expected = whole[output][:1]
        expected = expected[:, : x.shape[1]] if x.ndim > 1 else expected
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=2e-5, err_msg=output)
