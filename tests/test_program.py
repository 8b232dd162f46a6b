"""A run whose later phase does not fit is refused before its first step."""

import jax
import pytest

from bert_jax import program as program_lib
from bert_jax.config import complete, default_config
from bert_jax.errors import InputError
from bert_jax.experiment import open_job
from bert_jax.program import build_program, check_memory, open_mesh, phase_calls


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
    return build_program(config, open_mesh(config, jax.devices()), open_job(config))


@pytest.fixture(scope='module')
def program():
    return small()


def test_steps_of_a_phase_are_called_with_its_batches(program):
    calls = phase_calls(program, program.phases[1])
    (state, batch), (params, held_out) = calls['train'][1], calls['evaluation'][1]
    assert state is program.state and params is program.state.params
    assert batch['input_ids'].shape == (16, 64) and held_out['input_ids'].shape == (8, 64)
    assert batch['masked_lm_positions'].shape == (16, 8)
    rows = next(program.job.phase(program.task, program.phases[1], 3, program.mesh).batches(0))
    for name, x in rows.items():  # what training will pass
        assert (x.shape, x.dtype) == (batch[name].shape, batch[name].dtype)
        assert x.sharding.is_equivalent_to(batch[name].sharding, x.ndim)


def limits(monkeypatch, there):
    """Bytes that a device says it has."""
    monkeypatch.setattr(program_lib, 'device_memory', lambda device: there)


def test_nothing_is_compiled_where_memory_is_not_known(program, monkeypatch):
    limits(monkeypatch, there=None)
    monkeypatch.setattr(program_lib, 'phase_calls', lambda *_: pytest.fail('compiled'))
    assert check_memory(program, 0) == 0


def test_a_later_phase_that_does_not_fit_is_told_at_the_start(program, monkeypatch):
    sizes = {}
    for number in (0, 1):
        step, arguments = phase_calls(program, program.phases[number])['train']
        sizes[number] = step.compile(*arguments)[1].total
    assert sizes[1] > sizes[0]
    limits(monkeypatch, there=(sizes[0] + sizes[1]) // 2)
    with pytest.raises(InputError, match=r'phase 2 \(length 64, batch 16\).*accumulation_steps'):
        check_memory(program, 0)
    with pytest.raises(InputError, match='phase 2'):  # also when going on in the first phase
        check_memory(program, 2)
    limits(monkeypatch, there=sizes[1] * 2)
    assert check_memory(program, 0) >= sizes[1]
    limits(monkeypatch, there=1)
    assert check_memory(program, 5) == 0  # nothing is left to train


def test_the_optimizer_s_memory_is_there_during_evaluation(program, monkeypatch):
    calls = phase_calls(program, program.phases[1])
    step, arguments = calls['evaluation']
    alone = step.compile(*arguments)[1].total
    monkeypatch.setattr(program_lib, 'phase_calls', lambda *_: {'evaluation': calls['evaluation']})
    limits(monkeypatch, there=alone + 1000)
    with pytest.raises(InputError, match='evaluation needs .*eval_batch_size'):
        check_memory(program, 0)
