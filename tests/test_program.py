"""A run whose later phase does not fit is refused before its first step."""

import functools

import jax
import pytest

from bert_jax.config import complete, default_config
from bert_jax.model import attention as attention_module
from bert_jax.model.attention_kernel import kernel_attention
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.opening import open_task
from bert_jax.train import program as program_lib
from bert_jax.train.program import (
    Memory,
    build_program,
    check_memory,
    device_bytes,
    open_mesh,
    phase_calls,
)


def small(**settings):
    config = default_config()
    config.task = 'synthetic'
    config.update_from_flattened_dict({
        'model.num_layers': 1, 'model.hidden_size': 32, 'model.num_heads': 2,
        'model.vocab_size': 200, 'train.eval_batch_size': 8, **settings,
    })
    config.phases = (
        dict(steps=3, max_seq_length=16, max_predictions_per_seq=2, batch_size=8),
        dict(steps=2, max_seq_length=64, max_predictions_per_seq=8, batch_size=16),
    )
    config = complete(config)
    return build_program(config, open_mesh(config, jax.devices()[:2]), open_task(config))


@pytest.fixture(scope='module')
def program():
    return small()


def test_steps_of_a_phase_are_called_with_its_batches(program):
    calls = phase_calls(program, program.phases[1])
    (state, batch), (params, held_out) = calls['train'][1], calls['evaluation'][1]
    assert state is program.state and params is program.state.params
    assert batch['input_ids'].shape == (16, 64) and held_out['input_ids'].shape == (8, 64)
    assert batch['masked_lm_positions'].shape == (16, 8)
    rows = next(program.task.phase(
        program.objective, program.eval_step, program.phases, 1, program.mesh).batches(0))
    for name, x in rows.items():  # what training will pass
        assert (x.shape, x.dtype) == (batch[name].shape, batch[name].dtype)
        assert x.sharding.is_equivalent_to(batch[name].sharding, x.ndim)


class Step:
    """A step that compiles to a program of so many bytes, and counts how often."""

    def __init__(self, size):
        self.memory, self.compiled = Memory(size, 0, 0), 0

    def compile(self, *arguments):
        self.compiled += 1
        return 'program', self.memory


@pytest.mark.parametrize('there, start, told', [
    (None, 0, None),  # nobody says how much memory there is: nothing is compiled
    (200, 0, None),
    (150, 0, r'phase 2 \(length 64, batch 16\): train needs .*accumulation_steps'),
    (150, 2, 'phase 2'),  # also when going on in the first phase
    (90, 0, 'phase 1'),
    (90, 3, 'phase 2'),
    (90, 5, None),  # nothing is left to train
])
def test_a_phase_that_does_not_fit_is_told_at_the_start(program, monkeypatch, there, start, told):
    steps = {16: Step(100), 64: Step(180)}

    def calls(program, phase):
        _, arguments = phase_calls(program, phase)['train']
        return {'train': (steps[phase['max_seq_length']], arguments)}

    monkeypatch.setattr(program_lib, 'device_memory', lambda device: there)
    monkeypatch.setattr(program_lib, 'phase_calls', calls)
    if told:
        with pytest.raises(InputError, match=told):
            check_memory(program, start)
        return
    largest = check_memory(program, start)
    assert largest == (180 if there == 200 else 0)
    assert [step.compiled for step in steps.values()] == ([1, 1] if there == 200 else [0, 0])


def test_a_step_that_a_cpu_may_have_no_room_for_is_compiled_ahead(program, monkeypatch):
    step = Step(100)
    calls = {'train': (step, phase_calls(program, program.phases[0])['train'][1])}
    monkeypatch.setattr(program_lib, 'phase_calls', lambda *_: calls)
    monkeypatch.setattr(program_lib, 'device_memory', lambda device: None)
    monkeypatch.setattr(program_lib, 'host_memory', lambda: 2 * 99)  # of two devices
    with pytest.raises(InputError, match='phase 1 .*train needs'):
        check_memory(program, 0)
    assert step.compiled == 1


def test_the_optimizer_s_memory_is_there_during_evaluation(program, monkeypatch):
    moments = device_bytes(program.state.opt_state)
    calls = {'evaluation': (Step(100), ())}
    monkeypatch.setattr(program_lib, 'phase_calls', lambda *_: calls)
    monkeypatch.setattr(program_lib, 'device_memory', lambda device: moments + 100)
    assert check_memory(program, 0) == moments + 100
    monkeypatch.setattr(program_lib, 'device_memory', lambda device: moments + 99)
    with pytest.raises(InputError, match='evaluation needs .*eval_batch_size'):
        check_memory(program, 0)


def test_a_batch_that_the_devices_cannot_split_is_refused():
    config = default_config()
    config.update_from_flattened_dict({'train.steps': 1, 'train.batch_size': 12})
    with pytest.raises(InputError, match='train.batch_size=12'):
        open_mesh(complete(config), jax.devices()[:8])


@pytest.fixture(params=['tpu', 'gpu'])
def chip(request, monkeypatch):
    """jax as on a chip, as far as it says so; a function that scales its fused attention."""
    fused = {
        'tpu': functools.partial(kernel_attention, interpret=True),
        'gpu': lambda *args, implementation, **kwargs: attention_on_gpu(
            *args, **kwargs, implementation='xla'),
    }[request.param]
    attention_on_gpu = jax.nn.dot_product_attention

    def put(scale):
        where = {'tpu': (attention_module, 'kernel_attention'),
                 'gpu': (jax.nn, 'dot_product_attention')}[request.param]
        monkeypatch.setattr(*where, lambda *args, **kwargs: scale * fused(*args, **kwargs))

    monkeypatch.setattr(jax, 'default_backend', lambda: request.param)
    attention_module.fault.cache_clear()
    yield put
    attention_module.fault.cache_clear()


@pytest.mark.parametrize('scale, attention', [(1.0, 'auto'), (1.1, 'xla')])
def test_fused_attention_that_a_chip_does_not_compute_right_is_not_used(
    scale, attention, chip, capsys
):
    chip(scale)
    assert attention_module.settled('auto') == attention
    said = capsys.readouterr().out
    assert ('differs from XLA by' in said) == (attention == 'xla')


def test_fused_attention_that_does_not_compile_is_not_used(chip, monkeypatch, capsys):
    def refuse(*_):
        raise RuntimeError('Mosaic failed\nand more')

    monkeypatch.setattr(attention_module, 'disagreement', refuse)
    assert attention_module.settled('auto') == 'xla'
    assert attention_module.settled('kernel') == 'kernel', 'what is asked for is not changed'
    assert '(Mosaic failed)' in capsys.readouterr().out
