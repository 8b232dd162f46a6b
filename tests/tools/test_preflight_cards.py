"""Preflight of GPUs: topologies, kernels of a compiled program, and once the real compiler."""

import importlib.util
import json

import pytest

from bert_jax.runtime.chips import find_chip
from bert_jax.runtime.errors import InputError
from bert_jax.tools.preflight import cards, report
from bert_jax.tools.preflight.cards import Switch, memory_limit
from bert_jax.tools.preflight.hlo import CompiledText
from bert_jax.tools.preflight.kernels import find_kernels, step_time
from bert_jax.tools.preflight.messages import collectives, find_messages, waiting_seconds
from bert_jax.tools.preflight.topology import open_topology
from tests.conftest import ROOT, run_python

H100 = find_chip('NVIDIA H100 80GB HBM3')
# What XLA 0.11.2 writes of a layer with 2 heads of 64 dims on two cards, cut down to what is read.
STEP = ROOT / 'tests' / 'fixtures' / 'gpu_step.hlo'


@pytest.fixture
def step():
    return CompiledText(STEP.read_text())


def test_kernels_are_fusions_and_calls_of_libraries(step):
    found = {kernel.instruction.name: kernel.part for kernel in find_kernels(step)}
    assert found == {
        'dot_product_attention_fwd.12': ('attention', 'forward'),
        'custom-call.67': ('attention', 'backward'),
        'custom-call.72': ('FFN products', 'backward'),
        'loop_multiply_fusion': ('gelu', 'backward'),
        'input_reduce_fusion': ('optimizer', 'update'),
    }


def test_bytes_are_those_of_operands_and_results_without_workspaces(step):
    found = {kernel.instruction.name: kernel.bytes for kernel in find_kernels(step)}
    assert found['dot_product_attention_fwd.12'] == (
        4 * 2 * (4 * 64 * 2 * 64) + 2 * 4 * 64 * 64 + 4 * (4 * 2 * 64))
    assert found['custom-call.72'] == 2 * (256 * 128 + 128 * 512 + 256 * 512)
    assert found['loop_multiply_fusion'] == 3 * 2 * 256 * 512
    assert found['input_reduce_fusion'] == 4 * 513


def test_flops_are_those_of_products(step):
    found = {kernel.instruction.name: kernel.flops for kernel in find_kernels(step)}
    assert found.pop('custom-call.72') == pytest.approx(2 * 256 * 128 * 512)
    assert found.pop('custom-call.67') == pytest.approx(2 * 8 * 64 * 16 * 64)  # eight products
    assert set(found.values()) == {0}


def test_a_step_takes_what_its_kernels_take(step):
    time = step_time(step, H100, flops=0)
    assert set(time.seconds.values()) == {2e-6}  # they are tiny
    assert (time.products, time.others) == (pytest.approx(4e-6), pytest.approx(6e-6))
    assert sum(part.kernels for part in time.parts) == 5
    assert sum(part.seconds for part in time.parts) == pytest.approx(10e-6)


def test_flops_that_no_product_makes_up_are_of_the_attention_kernel(step):
    flops = 3e12
    time = step_time(step, H100, flops=flops)
    (longest, *_) = time.parts
    assert (longest.part, longest.pass_name) == ('attention', 'forward')
    assert longest.seconds == pytest.approx(flops / 3 / (0.2 * 989e12), rel=1e-3)


def test_what_is_computed_twice_takes_no_flops_from_attention(step):
    again = (
        '  %again = (bf16[256,512]{1,0}, s8[4]{0}) custom-call(%hidden, %kernel), '
        'custom_call_target="__cublas$lt$matmul", metadata={op_name="jit(train_step)/transpose('
        'jvp(Bert))/rematted_computation/layers/intermediate/dot_general"}\n')
    text = STEP.read_text()
    end = text.index('  ROOT %all-reduce-done')
    twice = CompiledText(text[:end] + again + text[end:])
    kernel, = [kernel for kernel in find_kernels(twice) if kernel.instruction.name == 'again']
    assert kernel.part == ('FFN products', 'forward again') and kernel.flops > 0
    attention = 'dot_product_attention_fwd.12'
    flops = 1e9
    assert step_time(twice, H100, flops).seconds[attention] == (
        step_time(step, H100, flops).seconds[attention])
    assert step_time(step, H100, flops).seconds[attention] > 1e-6


def test_messages_between_cards_are_counted_once(step):
    # A gather of two arrays has ((operands), (results)); an all-reduce ((operand), result).
    switch = Switch(2, bandwidth=1e9, latency=0.0)
    messages = find_messages(step, switch)
    gather, reduce = collectives(messages)
    assert (gather['kind'], gather['bytes']) == ('all-gather', 2 * 2 * 128 * 512)
    assert gather['seconds'] == pytest.approx(gather['bytes'] / 2 / 1e9)  # the other's half
    assert (reduce['kind'], reduce['bytes']) == ('all-reduce', 4)
    # Attention runs while the gather moves.
    taken = {'dot_product_attention_fwd.12': 1.0}
    assert waiting_seconds(step, messages, taken=taken) == pytest.approx(4e-9)


def test_a_message_to_all_others_goes_through_one_link():
    switch = Switch(8, bandwidth=100.0, latency=1.0)
    assert switch.seconds('all-gather', 800, ()) == 1 + 7
    assert switch.seconds('all-reduce', 800, ()) == 1 + 14
    assert switch.seconds('all-reduce', 800, ((0, 1), (2, 3))) == 1 + 8
    assert switch.seconds('collective-permute', 800, ((0, 1),)) == 1 + 8


@pytest.mark.parametrize('name, remedy', [
    ('h100', 'h100:1 or h100:8'), ('h100:0', '1 to 8'), ('h100:16', '1 to 8'),
    ('a100:2x2', 'cards of one host'), ('p100:1', 'h100:8'),
])
def test_a_host_that_there_is_not_is_refused(name, remedy):
    with pytest.raises(InputError, match=remedy):
        open_topology(name)


def test_a_missing_plugin_is_named_with_the_command(monkeypatch):
    monkeypatch.setattr(cards, '_is_installed', lambda module: False)
    with pytest.raises(InputError, match=r"CUDA plugin.*: .*pip install '.*\[cuda\]'"):
        open_topology('h100:1')


def test_a_program_gets_the_part_of_the_memory_that_jax_takes(monkeypatch):
    for variable in cards.MEMORY_SHARE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert memory_limit(H100) == int(0.75 * 84_942_979_072)
    monkeypatch.setenv('XLA_PYTHON_CLIENT_MEM_FRACTION', '0.9')
    assert memory_limit(H100) == int(0.9 * 84_942_979_072)
    monkeypatch.setenv('XLA_PYTHON_CLIENT_MEM_FRACTION', 'most')
    with pytest.raises(InputError, match='XLA_PYTHON_CLIENT_MEM_FRACTION=most'):
        memory_limit(H100)


PHASE = {
    'name': 'phase 1 (length 512, batch 64)', 'steps': 36_000, 'fits': True,
    'bytes_per_chip': 33_000_000_000, 'evaluation_bytes_per_chip': 2_000_000_000,
    'bytes_limit': 63_707_234_304, 'card_bytes': 84_942_979_072, 'accumulation_steps': 1,
    'rows_at_once': 64, 'largest_rows_at_once': 125, 'mfu': 0.21, 'hours': 0.8, 'kernels': 1153,
    'bytes_moved': 195_700_000_000, 'step_seconds': 0.08, 'collective_bytes': 0,
    'seconds': {'compute': 0.08, 'waiting': 0.0, 'collectives': 0.0}, 'collectives': [],
    'scopes': [
        {'scope': 'gelu', 'pass': 'forward', 'seconds': 0.03},
        {'scope': 'attention', 'pass': 'forward', 'seconds': 0.02},
        {'scope': 'attention', 'pass': 'backward', 'seconds': 0.03}],
}
RECORD = {
    'topology': 'h100:1', 'chip': 'h100', 'chips': 1, 'devices': 1, 'phases': [PHASE],
    'fits': True, 'hours': 0.8, 'chip_hours': 0.8, 'dollars': 2.4}


def test_the_lines_of_a_card_say_where_the_time_goes():
    line, detail = report.verdict(RECORD).splitlines()
    assert line == (
        "h100:1: fits, 33.00 GB of a card's 63.71; about 48.0 minutes, 0.8 card-hours, $2.4: "
        'steps 48.0 at 21% of the peak')
    assert detail == (
        '  phase 1 (length 512, batch 64): 1,153 kernels and 195.7 GB a step, 80.0 ms: '
        'attention 50.0, gelu 30.0; at most about 125 rows at once fit')


def test_a_phase_that_needs_more_of_the_card_than_jax_takes_gets_it():
    phase = PHASE | {'bytes_per_chip': 70_000_000_000, 'fits': False}
    line = report.verdict(RECORD | {'phases': [phase], 'fits': False})
    assert line.endswith('XLA_PYTHON_CLIENT_MEM_FRACTION=0.92')
    phase['bytes_per_chip'] = 100_000_000_000
    line = report.verdict(RECORD | {'phases': [phase], 'fits': False})
    assert '--config.train.accumulation_steps=' in line


@pytest.mark.extras
@pytest.mark.slow
def test_the_cuda_plugin_compiles_the_run_s_steps(tmp_path):
    if importlib.util.find_spec('jax_plugins') is None:
        pytest.skip("jax's CUDA plugin (the extra [cuda]) is not installed")
    path = tmp_path / 'record.json'
    process = run_python(
        '-m', 'bert_jax.tools.preflight', '--config=configs/tiny_pretrain.py', '--verbose',
        '--topology=h100:2', '--config.model.num_layers=1', '--config.train.batch_size=16',
        '--config.train.eval_batch_size=16', f'--json={path}', XLA_FLAGS='')
    assert process.returncode == 0, process.stderr[-2000:]
    assert '\nh100:2: fits, ' in process.stdout
    record = json.loads(path.read_text())
    assert (record['chip'], record['devices']) == ('h100', 2)
    (phase,) = record['phases']
    assert phase['bytes_limit'] == memory_limit(H100)
    assert phase['kernels'] == sum(entry['kernels'] for entry in phase['scopes']) > 50
    assert {'attention', 'FFN products', 'gelu', 'head', 'optimizer'} <= {
        entry['scope'] for entry in phase['scopes']}
    assert {'all-gather', 'reduce-scatter'} <= {entry['kind'] for entry in phase['collectives']}
