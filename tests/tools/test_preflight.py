"""Preflight: report and verdict, on CPU devices and once with the TPU compiler; and its reader of
compiled programs, on one in the TPU compiler's form."""

import dataclasses
import importlib.util
import json
import re

import jax
import pytest

from bert_jax.config import default_config
from bert_jax.runtime.chips import find_chip
from bert_jax.text.vocab import SPECIAL_TOKENS, write_vocab
from bert_jax.tools import preflight
from bert_jax.tools.preflight_hlo import CompiledText, Schedule, read_schedules, scope_of
from bert_jax.train.memory import Memory, device_bytes
from tests.conftest import ROOT, run_python
from tests.tiny_runs import TINY

SMALL = [
    f"--config={ROOT / 'configs' / 'tiny_pretrain.py'}", *TINY[1:], '--config.model.num_layers=1',
    '--config.model.hidden_dropout=0', '--config.model.attention_dropout=0',  # compiles faster
]


def run(monkeypatch, path, memory_bytes, status, *flags):
    """Runs preflight on SMALL, which must exit with `status`; returns its record. Two devices of
    this machine stand in for the slice, as chips of `memory_bytes`."""
    chip = dataclasses.replace(
        find_chip('TPU v5 lite'), name='pretended', memory_bytes=memory_bytes)
    monkeypatch.setattr(preflight.hlo, 'open_topology', lambda name: jax.devices()[:2])
    monkeypatch.setattr(preflight, 'find_chip', lambda kind: chip)
    monkeypatch.setenv('LIBTPU_INIT_ARGS', '')  # preflight sets it; restored for later tests
    with pytest.raises(SystemExit, match=str(status)):
        preflight.main(['preflight', *SMALL, '--topology=v5e:1x2', *flags,
                        f'--json={path}/record.json'])
    return json.loads((path / 'record.json').read_text())


@pytest.mark.slow
def test_a_record_says_all_that_scripts_rely_on(monkeypatch, tmp_path, capsys):
    records = run(monkeypatch, tmp_path, 1 << 30, 0, '--price=v4=9,v5e=2', '--best')['slices']
    assert records == sorted(records, key=lambda record: record['hours'])
    assert {r['topology']: r['mesh'] for r in records} == {
        'v5e:1x2': {'data': 1, 'fsdp': 2, 'tensor': 1},
        'v5e:1x2, config.mesh.fsdp=1': {'data': 2, 'fsdp': 1, 'tensor': 1}}
    record = next(r for r in records if r['topology'] == 'v5e:1x2')
    assert record['chips'] == 2 and record['fits']
    (phase,) = record['phases']
    assert {'cycles_per_sequence', 'floor_cycles_per_sequence', 'bytes_per_chip', 'bytes_limit',
            'fits', 'collectives'} <= set(phase)
    assert phase['rows_per_chip'] == phase['rows_at_once'] == 8
    sizes = phase['bytes']
    assert sizes['optimizer'] == pytest.approx(2 * sizes['parameters'], rel=0.01)  # two moments
    assert sum(sizes.values()) == phase['bytes_per_chip']
    # Gradients are reduced once, and little else.
    assert phase['collective_bytes'] == pytest.approx(sizes['parameters'], rel=0.05)
    out = capsys.readouterr().out
    assert 'MB of messages' not in out
    assert re.search(r'^v5e:1x2: fits, .* chip-hours, \$', out, re.M)
    assert record['dollars'] == pytest.approx(2 * record['chip_hours'])


def test_advice_agrees_with_a_compiled_program():
    """BERT-Base on v5e 4x4 with 16 rows of 128 a chip. The program that was compiled for 64 rows on
    each of four chips has 63.8 % of the peak."""
    record = json.loads((ROOT / 'tests' / 'fixtures' / 'preflight_base.json').read_text())
    line, advice = preflight.verdict(record).splitlines()
    assert line.startswith("v5e:4x4: fits, 2.26 GB of a chip's 16.91; 3.4 to 4.2 hours, 67 chip-")
    rows, share, chips = map(int, re.search(
        r'(\d+) rows a chip fit, for about (\d+)% of the peak: (\d+) of', advice).groups())
    assert (rows, chips) == (64, 4) and share == pytest.approx(63.8, abs=4)
    record['phases'][0]['accumulation_steps'] = 4
    assert '--config.train.accumulation_steps=2' in preflight.verdict(record)


@pytest.mark.slow
@pytest.mark.parametrize('sizes, remedy', [
    ((2_000_000, 10), '--config.train.accumulation_steps=4'),
    ((990_000, 2_000_000), 'config.train.eval_batch_size'),
])
def test_what_does_not_fit_gets_a_change_to_try(sizes, remedy, monkeypatch, tmp_path, capsys):
    needed = iter(sizes)  # bytes of the train step and the evaluation step

    def compile_(step, *arguments):
        total, given = next(needed), device_bytes(arguments)
        return None, Memory(given, 0, total - given)

    monkeypatch.setattr(preflight, 'compile_step', compile_)
    (phase,) = run(monkeypatch, tmp_path, 1_000_000, 1)['phases']
    assert not phase['fits'] and phase['bytes_per_chip'] == sizes[0]
    if sizes[0] > 1_000_000:
        assert 3 <= phase['largest_rows_at_once'] <= 4  # of the eight, in half of the memory
    assert remedy in capsys.readouterr().out


@pytest.mark.extras
@pytest.mark.slow
def test_the_tpus_compiler_compiles_the_run_s_steps(tmp_path):
    if importlib.util.find_spec('libtpu') is None:
        pytest.skip('libtpu (the extra [tpu]) is not installed')
    path = tmp_path / 'record.json'
    process = run_python(
        '-m', 'bert_jax.tools.preflight', *SMALL, '--verbose', '--topology=v5e:2x2,v4:2x2x1',
        f'--json={path}', XLA_FLAGS='')
    assert process.returncode == 0, process.stderr[-2000:]
    assert 'MB of messages' in process.stdout and '\nv4:2x2x1: fits, ' in process.stdout
    record, other = json.loads(path.read_text())['slices']
    assert other['chip'] == 'v4' and other['fits']
    (phase,) = record['phases']
    assert record['chip'] == 'v5e' and phase['bytes_limit'] == int(15.75 * 2**30)
    assert phase['cycles_per_sequence'] > phase['floor_cycles_per_sequence'] > 0
    scopes = {entry['scope'] for entry in phase['scopes']}
    assert {'qkv', 'attention', 'intermediate', 'output', 'head', 'optimizer'} <= scopes
    for cycles in ('cycles_per_sequence', 'scheduled_cycles_per_sequence'):
        assert sum(e[cycles] for e in phase['scopes']) == pytest.approx(phase[cycles])
    assert {'memory', 'VALU'} & {entry['waits_for'] for entry in phase['scopes']}
    assert 0 < phase['scheduled_cycles_per_sequence'] < phase['cycles_per_sequence']
    assert 'all-reduce' in {c['kind'] for c in phase['collectives']}


def test_added_words_count_in_the_vocabulary(tmp_path):
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, '[unused0]', 'a', '##b'])
    (tmp_path / 'words.txt').write_text('ab\nabb\na\n')
    config = default_config()
    config.train.steps = 1
    config.data.vocab_file = str(tmp_path / 'vocab.txt')
    config.data.add_tokens = str(tmp_path / 'words.txt')
    assert preflight.without_data(config).model.vocab_size == 9


MODEL = 'jit(train_step)/jvp(BertForPreTraining)/bert/encoder/layer_3'
# A step as the TPU compiler prints it, cut down to what is read.
TPU = (ROOT / 'tests' / 'fixtures' / 'tpu_step.hlo').read_text()


def test_everything_counts_as_often_as_it_runs():
    text = CompiledText(TPU)
    times = {i.name: i.times for i in text.instructions}
    assert times['part.1'] == times['all-reduce.1'] == 5 and times['first'] == 1
    assert {i.name: c for i, c in text.timed()} == {
        'part.1': 100, 'part.2': 100, 'first': 7, 'second': None,  # a sentinel
        'kernel': None, 'attention_forward.1': None}
    kernel = next(i for i in text.instructions if i.name == 'kernel')
    assert kernel.operands == ('part.1',) * 6  # despite the compiler's /*index=5*/
    assert text.bytes_moved(kernel) == 4 * (512 * 1024 + 1000 * 8), 'one array, named six times'


def test_messages_are_counted_once_whatever_they_are_spread_over():
    found = {(c['kind'], c['scope']): c for c in CompiledText(TPU).collectives()}
    assert found['all-reduce', 'several'] == {
        'kind': 'all-reduce', 'scope': 'several', 'count': 5, 'largest': 'f32[16,8]',
        'bytes': 5 * (16 * 8 * 4 + 2 * 4)}
    assert found['all-reduce', 'optimizer']['count'] == 5  # both on one channel
    gather = found['all-gather', 'optimizer']
    assert gather['bytes'] == gather['count'] * 8 * 8 * 2
    permute = found['collective-permute', 'optimizer']
    assert (permute['count'], permute['bytes']) == (1, 512)
    assert found['reduce-scatter', 'optimizer']['bytes'] == 16 * 8 * 4  # a fused all-reduce


@pytest.mark.parametrize('work, waiting', [
    (0, 4 + 1 + 4 + 2),
    (3, 1 + 1 + 1 + 2),  # `work` hides 3 of 4 s of both gathers; permute has to wait for a gather
    (9, 2),  # only the all-reduce remains: it has no -start
])
def test_messages_move_while_the_instructions_between_their_ends_run(work, waiting):
    chain = """%chain.{0} (p: f32[250]) -> f32[1000] {{
  %p.{0} = f32[250] parameter(0)
  ROOT %g.{0} = f32[1000] all-gather(%p.{0}), channel_id=1, frontend_attributes={{chain_id="1"}}
}}
"""
    text = CompiledText(chain.format(2) + chain.format(1) + """
ENTRY %main (a: f32[250]) -> f32[250] {
  %a = f32[250] parameter(0)
  %gather = (f32[250], f32[1000]) all-gather-start(%a), channel_id=2
  %permute = (f32[250], f32[250]) collective-permute-start(%a), channel_id=3
  %work.1 = f32[250] fusion(%a), kind=kLoop, calls=%other
  %gathered = f32[1000] all-gather-done(%gather)
  %permuted = f32[250] collective-permute-done(%permute)
  %begin = f32[1000] fusion(%a), kind=kLoop, calls=%chain.1
  %work.2 = f32[250] fusion(%a), kind=kLoop, calls=%other
  %end = f32[1000] fusion(%a), kind=kLoop, calls=%chain.2
  ROOT %sum = f32[250] all-reduce(%a), channel_id=4, to_apply=%other
}
""")
    assert text.waiting({'work.1': work, 'work.2': work}, 1000.0) == pytest.approx(waiting)


@pytest.mark.parametrize('op_name, scope', [
    (f'{MODEL}/attention/self/qkv/dot_general', ('qkv', 'forward')),
    (f'{MODEL}/attention/self/BQND,BKND->BNQK/dot_general', ('attention', 'forward')),
    (f'{MODEL}/attention/output/dense/add', ('attention output', 'forward')),
    (f'{MODEL}/attention/output/LayerNorm/mul', ('layer norm', 'forward')),
    (MODEL.replace('jvp(BertForPreTraining)', 'transpose(jvp(BertForPreTraining))')
     + '/output/dense/dot_general', ('output', 'backward')),
    ('jit(train_step)/transpose(jvp(BertForPreTraining))/checkpoint/rematted_computation/'
     'intermediate/mul', ('intermediate', 'forward again')),
    ('jit(train_step)/jvp(...H,VH->...V)/dot_general', ('head', 'forward')),
    ('jit(train_step)/add', ('optimizer', 'update')),
    ('', ('optimizer', 'update')),
])
def test_scopes(op_name, scope):
    assert scope_of(op_name) == scope


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
    schedules = read_schedules(str(tmp_path))
    assert schedules == {'part.1': Schedule((3, 3, 0), 'MXU')}  # MXU is fullest: 3 of its 4 places
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('schedule, estimate, trips, cycles, unit', [
    # 2 MiB and 4 KiB over 819 GB/s at 1.5 GHz are 3,849 cycles.
    (Schedule((3, 5000, 0), 'VALU'), 9000, 1, 5003 + 3849, 'VALU'),
    (Schedule((3, 5000, 0), 'VALU'), 9000, 10, 50003 + 384.9, 'VALU'),
    (Schedule((3, 100, 0), 'MXU'), 9000, 10, 3849 + 100.3, 'memory'),
    (Schedule((3, 100, 7), 'MXU'), 9000, 10, 9000, '?'),  # a loop of unknown length
    (None, 9000, 10, 9000, '?'),
    (None, None, 10, 3849, 'memory'),
])
def test_cycles_by_a_schedule(schedule, estimate, trips, cycles, unit):
    text, chip = CompiledText(TPU), find_chip('TPU v5 lite')
    part = next(i for i in text.instructions if i.name == 'part.1')
    part = part._replace(attributes=f'{part.attributes} "iteration_bounds":["1","{trips}"]')
    assert preflight.scheduled_cycles(text, part, estimate, schedule, chip) == (
        pytest.approx(cycles, abs=1), unit)


def test_what_a_fusion_multiplies_moves_and_repeats():
    text = CompiledText(TPU)
    found = {i.name: i for i in text.instructions}
    product = found['multiplied']
    assert text.product(product) == 2 * 64 * 32 * 128 and text.product(found['first']) == 0
    assert text.bytes_moved(product) == 2 * 32 * 128, 'the other arrays are in on-chip memory'
    assert [text.trips(product, cores) for cores in (1, 2)] == [2 * 5, 2 * 3]
    # A core takes whole groups of rows: these 4 rows of 128 are one group, of three steps.
    assert text.trips(found['attention_forward.1'], 2) == 3


def test_equal_instructions_have_one_schedule():
    schedule = Schedule((3, 100, 0), 'MXU')
    assert CompiledText(TPU).schedules({'part.1': schedule}) == {
        'part.1': schedule, 'part.2': schedule}
