"""Preflight's reader of compiled programs, on one in the TPU compiler's form."""

import dataclasses
from types import SimpleNamespace

import pytest

from bert_jax.kernels.attention_tiles import named_with_grid
from bert_jax.runtime.chips import find_chip
from bert_jax.tools.preflight import measure
from bert_jax.tools.preflight.cycles import scheduled_cycles
from bert_jax.tools.preflight.hlo import CompiledText, scope_of
from bert_jax.tools.preflight.links import Network
from bert_jax.tools.preflight.messages import collectives, find_messages, waiting_seconds
from bert_jax.tools.preflight.schedules import Schedule, take_schedules
from tests.conftest import ROOT

# A step as the TPU compiler prints it, cut down to what is read.
TPU = (ROOT / 'tests' / 'fixtures' / 'tpu_step.hlo').read_text()


# Two chips, whose link carries 1,000 bytes/s.
LINE = Network(((0,), (1,)), (2,), (False,), bandwidth=1000.0, latency=0.0)


@pytest.fixture
def program():
    return CompiledText(TPU)


def instruction(program, name):
    (found,) = [entry for entry in program.instructions if entry.name == name]
    return found


@pytest.mark.parametrize('folder', ['', 'schedules'])
def test_of_a_train_step_alone_kernels_count_by_their_bytes_without_schedules(monkeypatch, folder):
    step = SimpleNamespace(as_text=lambda: TPU)
    phase = {'max_seq_length': 8, 'batch_size': 8}

    def time_record(phase, text, schedules, flops):
        assert text.instructions
        return {'cycles_per_sequence': 100 + sum(schedules.values()), 'hours': 1}

    measurer = SimpleNamespace(
        program=SimpleNamespace(phases=[phase], head=None), chip=find_chip('TPU v5 lite'),
        compile_step=lambda number, name: (step, None), time_record=time_record)
    monkeypatch.setattr(measure, 'open_task', lambda *arguments: None)
    monkeypatch.setattr(measure, '_measurer', lambda *arguments: measurer)
    monkeypatch.setattr(measure, 'step_flops', lambda *arguments: 1.0)
    monkeypatch.setattr(measure, 'take_schedules', lambda folder: {'kernel': 7})
    record = measure.measure_train_step(None, None, folder)
    with_schedules = {'cycles_per_sequence': 107, 'hours': 1} if folder else {}
    assert record == {'cycles_without_schedules_per_sequence': 100} | with_schedules


def test_everything_counts_as_often_as_it_runs(program):
    assert instruction(program, 'part.1').times == 5
    assert instruction(program, 'all-reduce.1').times == 5
    assert instruction(program, 'first').times == 1


def test_what_takes_time_has_an_estimate_or_none(program):
    assert {timed.name: cycles for timed, cycles in program.timed()} == {
        'part.1': 100, 'part.2': 100, 'first': 7, 'second': None,  # a sentinel
        'kernel': None, 'attention_forward_grid_1x3.1': None}


def test_an_array_that_a_kernel_names_several_times_moves_once(program):
    kernel = instruction(program, 'kernel')
    assert kernel.operands == ('part.1',) * 6  # despite the compiler's /*index=5*/
    assert program.bytes_moved(kernel) == 4 * (512 * 1024 + 1000 * 8)


def test_messages_are_counted_once_whatever_they_are_spread_over(program):
    messages = find_messages(program, LINE)
    found = {(entry['kind'], entry['scope']): entry for entry in collectives(messages)}
    assert found['all-reduce', 'several'] == {
        'kind': 'all-reduce', 'scope': 'several', 'count': 5, 'largest': 'f32[16,8]',
        'bytes': 5 * (16 * 8 * 4 + 2 * 4), 'seconds': pytest.approx(5 * 520 / 1000)}
    assert found['all-reduce', 'optimizer']['count'] == 5  # both on one channel
    gather = found['all-gather', 'optimizer']
    assert gather['bytes'] == gather['count'] * 8 * 8 * 2
    permute = found['collective-permute', 'optimizer']
    assert permute['count'] == 1
    assert permute['bytes'] == 512
    assert found['reduce-scatter', 'optimizer']['bytes'] == 16 * 8 * 4  # a fused all-reduce


CHAIN = """%chain.{0} (p: f32[250]) -> f32[1000] {{
  %p.{0} = f32[250] parameter(0)
  ROOT %g.{0} = f32[1000] all-gather(%p.{0}), channel_id=1, replica_groups={{{{0,1}},{{2,3}}}}, \
frontend_attributes={{chain_id="1"}}
}}
"""
OVERLAPPED = ''.join(map(CHAIN.format, [3, 2, 1])) + """
ENTRY %main (a: f32[250]) -> f32[250] {
  %a = f32[250] parameter(0)
  %gather = (f32[250], f32[1000]) all-gather-start(%a), replica_groups={{0,1},{2,3}}
  %permute = (f32[250], f32[250]) collective-permute-start(%a), source_target_pairs={{0,1}}
  %across = (f32[250], f32[250]) collective-permute-start(%a), source_target_pairs={{0,2}}
  %work.1 = f32[250] fusion(%a), kind=kLoop, calls=%other
  %gathered = f32[1000] all-gather-done(%gather)
  %permuted = f32[250] collective-permute-done(%permute)
  %gone = f32[250] collective-permute-done(%across)
  %begin = f32[1000] fusion(%a), kind=kLoop, calls=%chain.1
  %work.2 = f32[250] fusion(%a), kind=kLoop, calls=%other
  %carrier = f32[250] fusion(%a), kind=kLoop, calls=%chain.2
  %end = f32[1000] fusion(%a), kind=kLoop, calls=%chain.3
  ROOT %sum = f32[250] all-reduce(%a), replica_groups={{0,2},{1,3}}, to_apply=%other
}
"""
# Both gathers take 2 s and the others 1 s: `across` and the sum on the links of another axis.
FOUR_CHIPS = Network(
    ((0, 0), (0, 1), (1, 0), (1, 1)), (2, 2), (False, False), bandwidth=1000.0, latency=0.0)


@pytest.mark.parametrize('taken, waiting', [
    pytest.param({}, 2 + 1 + 2 + 1, id='across moves on its axis while the gather is awaited'),
    pytest.param({'work.1': 1.5}, 0.5 + 1 + 2 + 1, id='permute waits for the links of gather'),
    pytest.param({'work.1': 9}, 2 + 1, id='all but the chain and the sum are hidden'),
    pytest.param({'work.2': 9}, 2 + 1 + 2 + 1, id='a chain does not move in what is between'),
    pytest.param({'carrier': 1.5}, 2 + 1 + 0.5 + 1, id='but in the instructions of its parts'),
    pytest.param({'work.1': 9, 'carrier': 9}, 1, id='a sum without a start is awaited'),
])
def test_messages_move_as_the_program_lets_them(taken, waiting):
    program = CompiledText(OVERLAPPED)
    messages = find_messages(program, FOUR_CHIPS)
    assert sorted(message.seconds for message in messages) == [1, 1, 1, 2, 2]
    assert waiting_seconds(program, messages, taken=taken) == pytest.approx(waiting)


EQUAL = """ENTRY %main (a: f32[250]) -> f32[250] {
  %a = f32[250] parameter(0)
  %one = (f32[250], f32[250]) collective-permute-start(%a), source_target_pairs={{0,1}}
  %two = (f32[250], f32[250]) collective-permute-start(%a), source_target_pairs={{0,1}}
  %second = f32[250] collective-permute-done(%two)
  %work = f32[250] fusion(%a), kind=kLoop, calls=%other
  ROOT %first = f32[250] collective-permute-done(%one)
}
"""


def test_equal_messages_that_end_in_another_order_are_not_taken_for_each_other():
    program = CompiledText(EQUAL)
    messages = find_messages(program, FOUR_CHIPS)
    assert waiting_seconds(program, messages, taken={'work': 0.75}) == pytest.approx(1 + 0.25)


STRATEGY = """ENTRY %main (a: f32[64]) -> f32[64] {{
  %a = f32[64] parameter(0)
  ROOT %sum = f32[64] {opcode}(%a), replica_groups={{}}, backend_config={{"x":{{{strategy}}}}}
}}
"""


@pytest.mark.parametrize('opcode, strategy, seconds', [
    pytest.param(
        'reduce-scatter', '"debug":"StrategyND{colors:2 phases:2 cores:{4 4},{4 4} num_dims:2 '
        'dim_sizes:4,4 dim_used:{0 1},{1 0}"', 240 / 2, id='both axes at once'),
    pytest.param(
        'reduce-scatter', '"debug":"StrategyND{colors:1 phases:2 cores:{4 4} num_dims:2 '
        'dim_used:{1 0}"', 192 + 48, id='one axis after the other'),
    pytest.param(
        'reduce-scatter', '"debug":"UniDirectionNDRingStrategy{colors:4 phases:2 cores:{4 4},{4 4},'
        '{4 4},{4 4} active_dims:101 dim_used:{2 0},{0 2},{0 0},{0 0}"', 240 / 2,
        id='dims by other numbers, and some that are left out'),
    pytest.param('all-gather', '"emitter":"1DAllGatherNonMajorDim"', 240 / 2, id='one ring'),
    pytest.param('all-gather', '"emitter":"2DAllGatherOnMajorDim"', 240 / 2, id='no order told'),
])
def test_the_strategy_is_read(opcode, strategy, seconds):
    places = tuple((x, y) for x in range(4) for y in range(4))
    program = CompiledText(STRATEGY.format(opcode=opcode, strategy=strategy))
    mesh = Network(places, (4, 4), (False, False), bandwidth=1.0, latency=0.0)
    (message,) = find_messages(program, mesh)
    assert message.seconds == pytest.approx(seconds)


MODEL = 'jit(train_step)/jvp(BertForPreTraining)/bert/encoder/layer_3'
BACKWARD = MODEL.replace('jvp(BertForPreTraining)', 'transpose(jvp(BertForPreTraining))')
AGAIN = 'jit(train_step)/transpose(jvp(BertForPreTraining))/checkpoint/rematted_computation'


@pytest.mark.parametrize('op_name, scope, in_pass', [
    (f'{MODEL}/attention/self/qkv/dot_general', 'qkv', 'forward'),
    (f'{MODEL}/attention/self/BQND,BKND->BNQK/dot_general', 'attention', 'forward'),
    (f'{MODEL}/attention/output/dense/add', 'attention output', 'forward'),
    (f'{MODEL}/attention/output/LayerNorm/mul', 'layer norm', 'forward'),
    (f'{BACKWARD}/output/dense/dot_general', 'output', 'backward'),
    (f'{AGAIN}/intermediate/mul', 'intermediate', 'forward again'),
    ('jit(train_step)/jvp(...H,VH->...V)/dot_general', 'head', 'forward'),
    ('jit(train_step)/add', 'optimizer', 'update'),
    ('', 'optimizer', 'update'),
])
def test_scopes(op_name, scope, in_pass):
    assert scope_of(op_name) == (scope, in_pass)


def test_bundles_of_a_schedule_are_counted_by_loop_depth(tmp_path):
    (tmp_path / '17-part.1-02-final_bundles.txt').write_text("""
     0   :  { %s1 = smov 0 }
   0x1   :  { %s2 = smov 1 ;; %s3 = smov 2 }
   0x2 LB: > { %s4 = sphi 0 }
   0x3   : > { %v5 = vadd.f32 %v1, %v2 }
   0x4 PF: > { %6 = sbr.rel (!%p1) target = $region2 }
   0x5   :  { %7 = vsyncpa 1 }
""")
    (tmp_path / '17-part.1-00-final_hlo-static-per-bundle-utilization.txt').write_text(
        '== CAPACTIY:\nMXU, VALU, VLOAD:FILL\n2 4 3\n== UTILIZATION:\n1 3 1\n2 0 0\n')
    schedules = take_schedules(str(tmp_path))
    assert schedules == {'part.1': Schedule((3, 3, 0), 'MXU')}  # MXU is fullest: 3 of its 4 places
    assert not any(tmp_path.iterdir())


@dataclasses.dataclass(kw_only=True)
class CyclesCase:
    """An instruction that moves 2 MiB and 4 KiB: over 819 GB/s at 1.5 GHz these are 3,849 cycles.

    Attributes:
      schedule: the compiler's, or None.
      estimate: its estimated cycles, or None.
      trips: of the instruction's loop over tiles.
      cycles, waits_for: what is expected.
    """

    schedule: Schedule | None
    estimate: int | None
    trips: int
    cycles: float
    waits_for: str


@pytest.mark.parametrize('case', [
    pytest.param(CyclesCase(
        schedule=Schedule((3, 5000, 0), 'VALU'), estimate=9000, trips=1,
        cycles=5003 + 3849, waits_for='VALU'), id='one trip overlaps nothing'),
    pytest.param(CyclesCase(
        schedule=Schedule((3, 5000, 0), 'VALU'), estimate=9000, trips=10,
        cycles=50003 + 384.9, waits_for='VALU'), id='bundles take longest'),
    pytest.param(CyclesCase(
        schedule=Schedule((3, 100, 0), 'MXU'), estimate=9000, trips=10,
        cycles=3849 + 100.3, waits_for='memory'), id='bytes take longest'),
    pytest.param(CyclesCase(
        schedule=Schedule((3, 100, 7), 'MXU'), estimate=9000, trips=10,
        cycles=9000, waits_for='?'), id='a loop of unknown length'),
    pytest.param(CyclesCase(
        schedule=None, estimate=9000, trips=10, cycles=9000, waits_for='?'), id='no schedule'),
    pytest.param(CyclesCase(
        schedule=None, estimate=None, trips=10, cycles=3849, waits_for='memory'),
        id='neither schedule nor estimate'),
])
def test_cycles_by_a_schedule(program, case):
    part = instruction(program, 'part.1')
    part = part._replace(attributes=f'{part.attributes} "iteration_bounds":["1","{case.trips}"]')
    chip = find_chip('TPU v5 lite')
    found = scheduled_cycles(program, part, case.estimate, case.schedule, chip)
    assert found.cycles == pytest.approx(case.cycles, abs=1)
    assert found.waits_for == case.waits_for


def test_what_a_fusion_multiplies_and_moves(program):
    multiplied = instruction(program, 'multiplied')
    assert program.product(multiplied) == 2 * 64 * 32 * 128
    assert program.product(instruction(program, 'first')) == 0
    assert program.bytes_moved(multiplied) == 2 * 32 * 128, 'other arrays are in on-chip memory'


def test_the_cores_of_a_chip_share_a_loop(program):
    multiplied = instruction(program, 'multiplied')
    assert program.trips(multiplied, cores=1) == 2 * 5
    assert program.trips(multiplied, cores=2) == 2 * 3


def test_a_core_takes_whole_groups_of_rows_of_the_attention_kernel(program):
    """The grid is one group of rows in three steps."""
    assert program.trips(instruction(program, 'attention_forward_grid_1x3.1'), cores=2) == 3


def test_the_kernels_of_long_rows_have_their_grid_in_their_name(program):
    name = named_with_grid('attention_backward_blocks', (3, 6, 8, 8))
    kernel = instruction(program, 'attention_forward_grid_1x3.1')
    kernel = kernel._replace(name=f'transpose_{name}__.12')
    assert program.trips(kernel, cores=1) == 3 * 6 * 8 * 8
    assert program.trips(kernel, cores=2) == 2 * 6 * 8 * 8


def test_equal_instructions_have_one_schedule(program):
    schedule = Schedule((3, 100, 0), 'MXU')
    assert program.schedules({'part.1': schedule}) == {'part.1': schedule, 'part.2': schedule}
