"""Programs: compiled ahead and sized; what does not fit is refused before the first step."""

import contextlib
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.config import default_config
from bert_jax.model import attention as attention_module
from bert_jax.run_setup import open_mesh
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.opening import open_task
from bert_jax.train import memory as memory_lib
from bert_jax.train import program as program_lib
from bert_jax.validation import complete


@pytest.fixture(scope='module')
def program():
    config = default_config()
    config.task = 'synthetic'
    config.update_from_flattened_dict({
        'model.num_layers': 1, 'model.hidden_size': 32, 'model.num_heads': 2,
        'model.vocab_size': 200, 'train.eval_batch_size': 8})
    config.phases = (
        dict(steps=3, max_seq_length=16, max_predictions_per_seq=2, batch_size=8),
        dict(steps=2, max_seq_length=64, max_predictions_per_seq=8, batch_size=16))
    config = complete(config)
    mesh = open_mesh(config, jax.devices()[:2])
    return program_lib.build_program(config, mesh, open_task(config))


def test_steps_of_a_phase_are_called_with_its_batches(program):
    calls = program_lib.phase_calls(program, program.phases[1])
    (state, _, batch), (params, held_out) = calls['train'][1], calls['evaluation'][1]
    assert state is program.state and params is program.state.params
    assert batch['input_ids'].shape == (16, 64) and held_out['input_ids'].shape == (8, 64)
    assert batch['masked_lm_positions'].shape == (16, 8)
    rows = next(program.task.phase(
        program.head, program.eval_step, program.phases, 1, program.mesh).batches(0))
    for name, x in rows.items():  # what training will pass
        assert (x.shape, x.dtype) == (batch[name].shape, batch[name].dtype)
        assert x.sharding.is_equivalent_to(batch[name].sharding, x.ndim)


@pytest.mark.parametrize('there, told', [
    (190, None), (189, 'phase 2 .* evaluation needs .*eval_batch_size'),
    (170, r'phase 2 \(length 64, batch 16\): train .*accumulation_steps=2 .* batch of 8, '),
    (60, 'phase 1 .*=4 '), (40, 'phase 1 .*no config.train.accumulation_steps is enough'),
])
def test_a_phase_that_does_not_fit_is_refused_by_name(program, monkeypatch, there, told):
    """The optimizer's state stays in memory during evaluation."""
    sizes = {16: {'train': 100, 'evaluation': 50}, 64: {'train': 180, 'evaluation': 170}}
    monkeypatch.setattr(memory_lib, 'device_memory', lambda *_: there)
    monkeypatch.setattr(memory_lib, 'device_bytes', lambda tree: 20)
    monkeypatch.setattr(memory_lib, 'phase_calls', lambda program, phase: {
        name: (size, ()) for name, size in sizes[phase['max_seq_length']].items()})
    monkeypatch.setattr(memory_lib, 'compile_step',
                        lambda size: (None, memory_lib.Memory(size, 0, 0)))
    with pytest.raises(InputError, match=told) if told else contextlib.nullcontext():
        memory_lib.check_memory(program, range(2))


@pytest.mark.parametrize('platform, module, name', [
    ('tpu', attention_module, 'kernel_attention'), ('gpu', jax.nn, 'dot_product_attention'),
])
@pytest.mark.parametrize('scale, attention, words', [
    (1.0, 'auto', ''), (1.1, 'xla', 'differs from XLA by'), (None, 'xla', '(Mosaic failed)'),
])
def test_fused_attention_is_used_where_a_chip_computes_it_right(
    platform, module, name, scale, attention, words, monkeypatch, capsys
):
    """jax claims to run on a chip, whose fused attention is scaled by a factor or fails."""
    fused = getattr(module, name)
    how = {'interpret': True} if platform == 'tpu' else {'implementation': 'xla'}

    def scaled(*args, **kwargs):
        if scale is None:
            raise RuntimeError('Mosaic failed\nand more')
        return scale * fused(*args, **kwargs | how)

    monkeypatch.setattr(module, name, scaled)
    monkeypatch.setattr(jax, 'default_backend', lambda: platform)
    attention_module.fused_attention_error.cache_clear()
    assert attention_module.resolve_backend('auto') == attention
    asked = attention_module.resolve_backend('kernel')
    assert asked == 'kernel', 'what is asked for is not changed'
    assert words in capsys.readouterr().out
    attention_module.fused_attention_error.cache_clear()


G = 1 << 30


@pytest.fixture(scope='module')
def shardings():
    """(Sharding of rows over eight devices, replicated sharding)."""
    mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec('data')), NamedSharding(mesh, PartitionSpec())


def test_a_step_compiled_ahead_is_used_and_donates(shardings):
    rows, whole = shardings
    traced = []

    def add(total, batch):
        traced.append(batch['x'].shape)
        return total + batch['x'].sum()

    step = jax.jit(add, donate_argnums=0, out_shardings=whole)
    total = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=whole)
    program, memory = memory_lib.compile_step(
        step, total, {'x': jax.ShapeDtypeStruct((16, 2), jnp.float32, sharding=rows)})
    assert program is not None
    assert memory.arguments == 3 * 4 + 2 * 2 * 4  # the total, and an eighth of the rows
    assert sum(memory) >= memory.arguments

    first = jax.device_put(np.zeros(3, np.float32), whole)
    for size, shapes in ((16, 1), (16, 1), (8, 2)):  # another shape is compiled when it comes
        batch = {'x': jax.device_put(np.ones((size, 2), np.float32), rows)}
        before, first = first, step(first, batch)
        assert before.is_deleted() and len(traced) == shapes
    np.testing.assert_array_equal(first, [32 + 32 + 16] * 3)


def compile_refused(message, *batch):
    """The result of `compile_step` if the compiler fails with this message."""
    refuse = mock.Mock(side_effect=jax.errors.JaxRuntimeError(message))
    return memory_lib.compile_step(mock.Mock(lower=refuse), *batch)


@pytest.mark.parametrize('message, temporaries', [
    ('RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries '
     '(138.5G) exceeds available HBM (15.75G).', 138.5 * G),
    ('RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. '
     'Used 25.00G of 15.75G hbm. Exceeded hbm capacity by 9.25G.', 25 * G - 4096),
    ('RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3.5GiB.', 3.5 * G),
])
def test_the_compiler_s_refusal_says_how_much_is_needed(shardings, message, temporaries):
    batch = {'x': jax.ShapeDtypeStruct((1024,), jnp.float32, sharding=shardings[1])}
    assert compile_refused(message, batch) == (None, memory_lib.Memory(4096, 0, int(temporaries)))


def test_other_faults_of_the_compiler_are_raised():
    with pytest.raises(jax.errors.JaxRuntimeError, match='INTERNAL'):
        compile_refused('INTERNAL: oops', {})


def test_bytes_of_a_device_are_those_of_its_shards(shardings):
    rows, whole = shardings
    tree = [jax.ShapeDtypeStruct((16, 3), jnp.float32, sharding=rows),
            jax.ShapeDtypeStruct((5,), jnp.bfloat16, sharding=whole)]
    assert memory_lib.device_bytes(tree) == 2 * 3 * 4 + 5 * 2


@pytest.mark.parametrize('kind, stats, found', [
    ('TPU v5 lite', lambda: {'bytes_limit': 123}, 123),  # what the device reports counts first
    ('TPU v5 lite', lambda: None, int(15.75 * G)),
    # A device of a topology, known only to the compiler.
    ('TPU v4', mock.Mock(side_effect=jax.errors.JaxRuntimeError), int(30.75 * G)),
    *((kind, lambda: None, None) for kind in ('cpu', 'NVIDIA H100')),  # a share of the host's
])
def test_memory_of_a_device(kind, stats, found):
    device = types.SimpleNamespace(device_kind=kind, memory_stats=stats)
    whole, half = (memory_lib.device_memory(device, num_local) for num_local in (1, 2))
    assert (whole, half) == (found, found) if found else half == whole // 2 > 1 << 24
