"""Programs: compiled ahead and sized; what does not fit is refused before the first step."""

import contextlib
import dataclasses
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.completion import complete
from bert_jax.config import default_config
from bert_jax.config.bert_config import BertConfig
from bert_jax.model import attention as attention_module
from bert_jax.model import attention_check
from bert_jax.model.layers import ModelConfig
from bert_jax.run_setup import open_mesh
from bert_jax.runtime.errors import InputError
from bert_jax.train import compiling
from bert_jax.train import program as program_lib
from tests.opening import open_task


def synthetic_config():
    """A small model, and phases of two lengths."""
    config = default_config()
    config.task = 'synthetic'
    config.update_from_flattened_dict({
        'model.num_layers': 1,
        'model.hidden_size': 32,
        'model.num_heads': 2,
        'model.vocab_size': 200,
        'train.eval_batch_size': 8,
    })
    config.phases = (
        dict(steps=3, max_seq_length=16, max_predictions_per_seq=2, batch_size=8),
        dict(steps=2, max_seq_length=64, max_predictions_per_seq=8, batch_size=16),
    )
    return config


def program_of(config):
    """The program on two devices."""
    config = complete(config)
    mesh = open_mesh(config, jax.devices()[:2])
    return program_lib.build_program(config, mesh, open_task(config))


@pytest.fixture(scope='module')
def program():
    return program_of(synthetic_config())


@pytest.fixture(scope='module')
def second_phase_steps(program):
    return program_lib.steps_with_shapes(program, 1)


def test_phases_whose_models_compute_the_same_share_their_steps(program):
    assert program.steps[0] is program.steps[1]
    assert program.steps[0].head is program.head


def test_a_phase_computes_with_its_own_rotary_base():
    config = synthetic_config()
    config.model.positions = 'rotary'
    for phase, base in zip(config.phases, (None, 9000.0)):
        phase['rotary_base'] = base
    config.phases += (dict(config.phases[0], rotary_base=10_000.0),)
    program = program_of(config)
    bases = [steps.head.config.rotary_base for steps in program.steps]
    assert bases == [10_000.0, 9000.0, 10_000.0]
    assert program.steps[2] is program.steps[0] is not program.steps[1]


def test_the_steps_of_a_phase_get_the_state_of_the_program(program, second_phase_steps):
    _, (state, _, _) = second_phase_steps['train']
    _, (params, _) = second_phase_steps['evaluation']
    assert state is program.state
    assert params is program.state.params


def test_the_steps_of_a_phase_get_batches_of_its_shape(second_phase_steps):
    _, (_, _, batch) = second_phase_steps['train']
    _, (_, held_out) = second_phase_steps['evaluation']
    assert batch['input_ids'].shape == (16, 64)
    assert batch['masked_lm_positions'].shape == (16, 8)
    assert held_out['input_ids'].shape == (8, 64)


def test_the_train_step_of_a_phase_is_called_with_what_training_will_pass(
    program, second_phase_steps
):
    _, (_, _, batch) = second_phase_steps['train']
    rows = program.task.rows(program.head, program.phases, 1, program.mesh)
    for name, x in next(rows.batches(0)).items():
        assert x.shape == batch[name].shape
        assert x.dtype == batch[name].dtype
        assert x.sharding.is_equivalent_to(batch[name].sharding, x.ndim)


@pytest.fixture
def device_of(monkeypatch):
    """A function that gives the devices a memory, which the program's steps need a share of.

    The state takes 20 bytes. The phase of length 16 needs 100 to train and 50 to evaluate, that of
    length 64 needs 180 and 170.
    """
    sizes = {16: {'train': 100, 'evaluation': 50}, 64: {'train': 180, 'evaluation': 170}}

    def steps_with_shapes(program, number):
        sizes_of_phase = sizes[program.phases[number]['max_seq_length']]
        return {name: (size, ()) for name, size in sizes_of_phase.items()}

    def compile_step(size):
        return None, compiling.Memory(size, 0, 0)

    def set_memory(num_bytes):
        monkeypatch.setattr(compiling, 'device_memory', lambda *_: num_bytes)

    monkeypatch.setattr(compiling, 'device_bytes', lambda tree: 20)
    monkeypatch.setattr(compiling, 'steps_with_shapes', steps_with_shapes)
    monkeypatch.setattr(compiling, 'compile_step', compile_step)
    return set_memory


def test_phases_that_fit_are_accepted(program, device_of):
    device_of(190)
    compiling.check_memory(program, range(2))


@pytest.mark.parametrize('num_bytes, message', [
    # The optimizer's state stays in memory during evaluation.
    (189, 'phase 2 .* evaluation needs .*eval_batch_size'),
    (170, r'phase 2 \(length 64, batch 16\): train .*accumulation_steps=2 .* batch of 8, '),
    (60, 'phase 1 .*=4 '),
    (40, 'phase 1 .*no config.train.accumulation_steps is enough'),
])
def test_a_phase_that_does_not_fit_is_refused_by_name(program, device_of, num_bytes, message):
    device_of(num_bytes)
    with pytest.raises(InputError, match=message):
        compiling.check_memory(program, range(2))


@pytest.mark.parametrize('evaluate_every, steps_done, sizes', [
    pytest.param(0, 0, [180, 170], id='at the end'),
    pytest.param(2, 0, [50, 180, 170], id='in both'),
    pytest.param(2, 2, [180, 170], id='only before the run resumes'),
])
def test_only_the_evaluations_that_come_are_compiled(
    program, device_of, monkeypatch, evaluate_every, steps_done, sizes
):
    device_of(200)
    compiled = []
    compile_step = compiling.compile_step
    with contextlib.closing(compiling.StepCompiler(program, steps_done)) as compiler:
        compiler.wait_for_first_phase()
        monkeypatch.setattr(
            compiling, 'compile_step', lambda size: (compiled.append(size), compile_step(size))[1])
        compiler.compile_other_phases(evaluate_every)
        compiler._others.result()
    assert compiled == sizes


@dataclasses.dataclass
class Chip:
    """A kind of chip, a fused attention of it, and how that computes on a CPU."""

    platform: str
    module: Any
    name: str
    adapt: Callable[[dict[str, Any]], dict[str, Any]]  # its keyword arguments

    def on_cpu(self):
        fused = getattr(self.module, self.name)

        def attend(*args, **kwargs):
            return fused(*args, **self.adapt(kwargs))

        return attend


# Every chip takes its layers.
MODEL = BertConfig(
    vocab_size=8, num_layers=1, hidden_size=128, num_heads=2, intermediate_size=8)


def interpreted(options):
    return options | {'settings': options['settings']._replace(interpret=True)}


def by_xla(options):
    return options | {'implementation': 'xla'}


KERNEL = Chip('gpu', attention_module, 'kernel_attention', interpreted)
CUDNN = Chip('gpu', jax.nn, 'dot_product_attention', by_xla)


@pytest.fixture(scope='module')
def computed_by_xla():
    """What XLA computes, to compare with; the same for all kernels."""
    compute = attention_check._context_and_gradients
    found = {}

    def once(config, inputs):
        if config.attention != 'xla':
            return compute(config, inputs)
        key = config, inputs.qkv.shape
        if key not in found:
            found[key] = compute(config, inputs)
        return found[key]

    return once


@pytest.fixture(params=[dataclasses.replace(KERNEL, platform='tpu'), KERNEL], ids=['tpu', 'gpu'])
def replace_attention(request, monkeypatch, computed_by_xla):
    """A function that has jax claim to run on a chip and replaces the chip's fused attention.

    It takes a function from a fused attention to the one to use instead.
    """
    chip = request.param
    for fused in (KERNEL, CUDNN):
        monkeypatch.setattr(fused.module, fused.name, fused.on_cpu())

    def replace_by(make):
        monkeypatch.setattr(chip.module, chip.name, make(getattr(chip.module, chip.name)))

    monkeypatch.setattr(jax, 'default_backend', lambda: chip.platform)
    monkeypatch.setattr(attention_check, '_context_and_gradients', computed_by_xla)
    attention_check._error_of.cache_clear()
    yield replace_by
    attention_check._error_of.cache_clear()


def scaled_by(factor):
    def make(fused):
        def attend(*args, **kwargs):
            return factor * fused(*args, **kwargs)
        return attend
    return make


def failing(fused):
    def attend(*args, **kwargs):
        raise RuntimeError('Mosaic failed\nand more')
    return attend


@pytest.mark.parametrize('platform', ['tpu', 'gpu'])
def test_fused_attention_is_checked_on_rows_of_two_sequences_and_padding(platform):
    for fused in attention_check._FUSED[platform]:
        for case in attention_check._cases(MODEL, fused):
            segments = attention_check._checked_inputs(case).segments
            assert [set(row) for row in segments.tolist()] == [{1, 2}, {0, 1}]


def test_fused_attention_is_used_where_a_chip_computes_it_right(replace_attention):
    replace_attention(scaled_by(1.0))
    assert attention_check.failing_attention('auto', MODEL) == ()


@pytest.mark.parametrize('make, reason', [
    pytest.param(scaled_by(1.1), 'differs from XLA by', id='wrong'),
    pytest.param(failing, '(Mosaic failed)', id='failing'),
])
def test_fused_attention_that_is_wrong_or_fails_is_not_used(
    replace_attention, make, reason, capsys
):
    replace_attention(make)
    assert attention_check.failing_attention('auto', MODEL) == ('kernel',)
    assert reason in capsys.readouterr().out


def test_a_wrong_window_of_fused_attention_is_found(monkeypatch, replace_attention):
    """Local layers are programs of their own."""
    def without_windows(fused):
        def attend(*args, **kwargs):
            return fused(*args, **kwargs | {'settings': kwargs['settings']._replace(reach=0)})
        return attend

    if jax.default_backend() == 'gpu':
        pytest.skip('its kernel is found wrong in the same way')
    replace_attention(without_windows)
    local = dataclasses.replace(MODEL, num_layers=2, local_attention=64, global_every=2)
    assert attention_check.failing_attention('auto', MODEL) == ()
    assert attention_check.failing_attention('auto', local) == ('kernel',)


@pytest.mark.parametrize('platform', ['tpu', 'gpu'])
def test_that_no_fused_attention_adds_relative_positions_is_said(monkeypatch, capsys, platform):
    monkeypatch.setattr(jax, 'default_backend', lambda: platform)
    mpnet = dataclasses.replace(MODEL, relative_positions=True)
    assert attention_check.failing_attention('auto', mpnet) == ()
    assert "'kernel' adds no relative positions to scores" in capsys.readouterr().out


@pytest.mark.parametrize('kernel, cudnn, of_training, of_prediction', [
    (0.0, 0.0, 'kernel', 'cudnn'),
    (0.1, 0.0, 'xla', 'cudnn'),
    (0.0, 0.1, 'kernel', 'xla'),
    (0.1, 0.1, 'xla', 'xla'),
])
def test_training_and_prediction_on_a_gpu_do_not_lose_each_other_s_attention(
    monkeypatch, capsys, kernel, cudnn, of_training, of_prediction
):
    errors = {'kernel': kernel, 'cudnn': cudnn}
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    monkeypatch.setattr(attention_check, '_error_of', attention_check._error_of.__wrapped__)
    monkeypatch.setattr(attention_check, 'max_relative_error', lambda name, *_: errors[name])

    def chosen(drops, in_training):
        failing = attention_check.failing_attention('auto', MODEL, drops=in_training)
        config = ModelConfig(
            **dataclasses.asdict(MODEL), dtype='bfloat16', failing_attention=failing,
            layout=mock.Mock(platform='gpu', tensor_shards=1))
        return attention_module.choose(config, 128, drops)

    assert chosen(drops=False, in_training=False) == of_prediction
    assert 'with dropout' not in capsys.readouterr().out  # the kernel was not even tried
    assert chosen(drops=False, in_training=True) == of_prediction
    assert chosen(drops=True, in_training=True) == of_training
    said = 'attention with dropout is computed by XLA' in capsys.readouterr().out
    assert said == (of_training == 'xla')


def queries_of(fused):
    """Attention that is wrong but runs."""
    def attend(qkv, *args, **kwargs):
        return qkv[:, :, 0]
    return attend


def test_fused_attention_that_is_asked_for_is_used_even_if_it_is_wrong(replace_attention):
    replace_attention(queries_of)
    assert attention_check.failing_attention('kernel', MODEL) == ()


def test_fused_attention_that_is_asked_for_and_fails_is_refused(replace_attention):
    """For example, Triton takes no card before Ampere, and a later jax may not have it."""
    replace_attention(failing)
    with pytest.raises(InputError, match=r"attention='kernel' fails .*\(Mosaic failed\); choose"):
        attention_check.failing_attention('kernel', MODEL)


GIB = 1 << 30


@dataclasses.dataclass
class Shardings:
    """Over eight devices."""

    rows: NamedSharding
    replicated: NamedSharding


@pytest.fixture(scope='module')
def shardings():
    mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))
    return Shardings(
        NamedSharding(mesh, PartitionSpec('data')), NamedSharding(mesh, PartitionSpec()))


class CountedSum:
    """A step that adds the rows of a batch to a total, compiled ahead for 16 rows.

    Attributes:
      traced: shapes of the batches that the step was traced with.
      program, memory: the result of `compile_step`.
    """

    def __init__(self, shardings):
        self.shardings = shardings
        self.traced = []
        self.step = jax.jit(self._add, donate_argnums=0, out_shardings=shardings.replicated)
        total = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=shardings.replicated)
        rows = jax.ShapeDtypeStruct((16, 2), jnp.float32, sharding=shardings.rows)
        self.program, self.memory = compiling.compile_step(self.step, total, {'x': rows})

    def _add(self, total, batch):
        self.traced.append(batch['x'].shape)
        return total + batch['x'].sum()

    def zero(self):
        return jax.device_put(np.zeros(3, np.float32), self.shardings.replicated)

    def add_ones(self, total, num_rows):
        ones = jax.device_put(np.ones((num_rows, 2), np.float32), self.shardings.rows)
        return self.step(total, {'x': ones})


@pytest.fixture
def counted_sum(shardings):
    return CountedSum(shardings)


def test_a_step_compiled_ahead_is_sized(counted_sum):
    assert counted_sum.program is not None
    bytes_of_total = 3 * 4
    bytes_of_an_eighth_of_the_rows = 2 * 2 * 4
    assert counted_sum.memory.arguments == bytes_of_total + bytes_of_an_eighth_of_the_rows
    assert sum(counted_sum.memory) >= counted_sum.memory.arguments


def test_a_step_compiled_ahead_is_used(counted_sum):
    total = counted_sum.zero()
    for _ in range(2):
        total = counted_sum.add_ones(total, num_rows=16)
        assert len(counted_sum.traced) == 1
    np.testing.assert_array_equal(total, [32 + 32] * 3)


def test_a_step_compiled_ahead_is_compiled_for_another_shape_when_it_comes(counted_sum):
    total = counted_sum.add_ones(counted_sum.zero(), num_rows=16)
    total = counted_sum.add_ones(total, num_rows=8)
    assert len(counted_sum.traced) == 2
    np.testing.assert_array_equal(total, [32 + 16] * 3)


@pytest.mark.parametrize('num_rows', [16, 8])
def test_a_step_compiled_ahead_donates(counted_sum, num_rows):
    total = counted_sum.zero()
    counted_sum.add_ones(total, num_rows)
    assert total.is_deleted()


def compile_refused(message, *batch):
    """The result of `compile_step` if the compiler fails with this message."""
    refuse = mock.Mock(side_effect=jax.errors.JaxRuntimeError(message))
    return compiling.compile_step(mock.Mock(lower=refuse), *batch)


@pytest.mark.parametrize('message, temporaries', [
    pytest.param(
        'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO '
        'temporaries (138.5G) exceeds available HBM (15.75G).',
        138.5 * GIB, id='temporaries'),
    pytest.param(
        'RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space '
        'hbm. Used 25.00G of 15.75G hbm. Exceeded hbm capacity by 9.25G.',
        25 * GIB - 4096, id='all that is used'),
    pytest.param(
        'RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3.5GiB.',
        3.5 * GIB, id='an allocation'),
])
def test_the_compiler_s_refusal_says_how_much_is_needed(shardings, message, temporaries):
    batch = {'x': jax.ShapeDtypeStruct((1024,), jnp.float32, sharding=shardings.replicated)}
    assert compile_refused(message, batch) == (None, compiling.Memory(4096, 0, int(temporaries)))


def test_other_faults_of_the_compiler_are_raised():
    with pytest.raises(jax.errors.JaxRuntimeError, match='INTERNAL'):
        compile_refused('INTERNAL: oops', {})


def test_bytes_of_a_device_are_those_of_its_shards(shardings):
    tree = [
        jax.ShapeDtypeStruct((16, 3), jnp.float32, sharding=shardings.rows),
        jax.ShapeDtypeStruct((5,), jnp.bfloat16, sharding=shardings.replicated),
    ]
    assert compiling.device_bytes(tree) == 2 * 3 * 4 + 5 * 2


def make_device(kind, memory_stats=None, fault=None):
    """A device that reports these statistics, or that fails to."""
    stats = mock.Mock(return_value=memory_stats, side_effect=fault)
    return types.SimpleNamespace(device_kind=kind, memory_stats=stats)


@pytest.mark.parametrize('device, num_bytes', [
    pytest.param(
        make_device('TPU v5 lite', {'bytes_limit': 123}), 123, id='reported'),
    pytest.param(
        make_device('TPU v5 lite'), int(15.75 * GIB), id='of its kind'),
    pytest.param(
        make_device('TPU v4', fault=jax.errors.JaxRuntimeError), int(30.75 * GIB),
        id='known only to the compiler'),
])
@pytest.mark.parametrize('num_local', [1, 2])
def test_memory_of_a_device_is_what_it_reports_or_that_of_its_kind(device, num_bytes, num_local):
    assert compiling.device_memory(device, num_local) == num_bytes


@pytest.mark.parametrize('kind', ['cpu', 'NVIDIA L4'])  # not in runtime/chips.py
def test_memory_of_a_device_that_reports_none_is_a_share_of_the_host_s(kind):
    device = make_device(kind)
    whole = compiling.device_memory(device, 1)
    half = compiling.device_memory(device, 2)
    assert half == whole // 2
    assert half > 1 << 24
