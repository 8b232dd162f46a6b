"""Preflight: report and verdict, on CPU devices and once with the TPU compiler."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from jax.experimental import topologies
from ml_collections import ConfigDict

from bert_jax.config import default_config
from bert_jax.run.model import write_run
from bert_jax.runtime.chips import find_chip
from bert_jax.runtime.errors import InputError
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from bert_jax.tools.preflight import __main__ as preflight
from bert_jax.tools.preflight import hours, measure, report
from bert_jax.tools.preflight.links import Network
from bert_jax.tools.preflight.topology import open_topology
from bert_jax.train.compiling import Memory, device_bytes
from tests.conftest import ROOT, run_python
from tests.predict.tiny import pretraining_weights
from tests.tiny_runs import TINY, WORDS, write_cola

SMALL = [
    f"--config={ROOT / 'configs' / 'tiny_pretrain.py'}", *TINY[1:],
    '--config.model.hidden_dropout=0', '--config.model.attention_dropout=0',  # compiles faster
]

# One link, which carries 45 GB/s.
TWO_CHIPS = Network(((0,), (1,)), (2,), (False,), bandwidth=45e9, latency=0.0)


def record_of(monkeypatch, path, *flags, memory_bytes, status, devices_per_chip=1, config=SMALL):
    """Runs preflight, on SMALL if nothing else is said, and returns the record that it writes.

    Two devices of this machine stand in for the slice, as chips of `memory_bytes`. The command must
    end with `status`.
    """
    chip = dataclasses.replace(
        find_chip('TPU v5 lite'), name='pretended', memory_bytes=memory_bytes,
        num_devices=devices_per_chip)
    monkeypatch.setattr(preflight, 'open_topology', lambda name: jax.devices()[:2])
    monkeypatch.setattr(measure, 'find_chip', lambda kind: chip)
    monkeypatch.setattr(measure, 'open_network', lambda chip, devices: TWO_CHIPS)
    monkeypatch.setenv('LIBTPU_INIT_ARGS', '')  # preflight sets it; restored for later tests
    arguments = ['preflight', *config, '--topology=v5e:1x2', *flags, f'--json={path}']
    with pytest.raises(SystemExit, match=str(status)):
        preflight.main(arguments)
    return json.loads(path.read_text())


@pytest.fixture
def preflight_record(monkeypatch, tmp_path):
    """`record_of`, undone after the test."""
    return functools.partial(record_of, monkeypatch, tmp_path / 'record.json')


PRICES = '--price=v4=9,v5e=2'


@dataclasses.dataclass
class BestOfSmall:
    """SMALL on all meshes of the slice: the record, what was printed, and the saved programs."""

    record: dict
    said: str
    programs: Path


@pytest.fixture(scope='module')
def best_of_small(tmp_path_factory):
    folder = tmp_path_factory.mktemp('preflight')
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        record = record_of(
            patch, folder / 'record.json', PRICES, '--best',
            f"--save_programs={folder / 'programs'}", memory_bytes=1 << 30, status=0)
    return BestOfSmall(record, said.getvalue(), folder / 'programs')


@pytest.mark.slow
def test_a_record_says_all_that_scripts_rely_on(best_of_small):
    records = best_of_small.record['slices']
    assert records == sorted(records, key=lambda record: record['hours'])
    by_topology = {record['topology']: record for record in records}
    assert {topology: record['mesh'] for topology, record in by_topology.items()} == {
        'v5e:1x2': {'data': 1, 'fsdp': 2, 'tensor': 1},
        'v5e:1x2, config.mesh.fsdp=1': {'data': 2, 'fsdp': 1, 'tensor': 1},
    }
    record = by_topology['v5e:1x2']
    assert record['chips'] == 2
    assert record['fits']
    (phase,) = record['phases']
    assert {
        'cycles_per_sequence', 'floor_cycles_per_sequence', 'bytes_per_chip', 'bytes_limit', 'fits',
        'collectives',
    } <= set(phase)
    assert phase['rows_per_chip'] == phase['rows_at_once'] == 8
    sizes = phase['bytes']
    assert sizes['optimizer'] == pytest.approx(2 * sizes['parameters'], rel=0.01)  # two moments
    assert sum(sizes.values()) == phase['bytes_per_chip']
    # Gradients are reduced once, and little else: a half is sent and a half received.
    assert phase['collective_bytes'] == pytest.approx(sizes['parameters'], rel=0.05)
    assert phase['seconds']['collectives'] == pytest.approx(phase['collective_bytes'] / 45e9)
    assert 'MB of messages' not in best_of_small.said
    assert re.search(r'^v5e:1x2: fits, .* chip-hours, \$', best_of_small.said, re.M)
    assert record['dollars'] == pytest.approx(2 * record['chip_hours'])


@pytest.mark.slow
def test_saved_programs_are_read_without_compiling(monkeypatch, preflight_record, best_of_small):
    monkeypatch.setattr(measure, 'compile_step', None)
    saved = f'--programs={best_of_small.programs}'
    again = preflight_record(PRICES, '--best', saved, memory_bytes=1 << 30, status=0)['slices']
    of_mesh = {record['topology']: dict(record) for record in best_of_small.record['slices']}
    assert len(of_mesh) == len(again) == 2
    for record in again:
        first = of_mesh[record['topology']]
        assert record.pop('arguments') != first.pop('arguments')
        assert record == first

    first = of_mesh['v5e:1x2']
    one_chip = preflight_record(saved, memory_bytes=1 << 30, status=0, devices_per_chip=2)
    assert (one_chip['chips'], one_chip['devices']) == (1, 2)
    assert one_chip['hours'] == first['hours']
    assert one_chip['chip_hours'] == first['chip_hours'] / 2
    assert one_chip['phases'][0]['mfu'] == first['phases'][0]['mfu']


@pytest.mark.slow
def test_a_fine_tuning_is_compiled_with_its_data_and_its_adapter(
    preflight_record, tmp_path, capsys
):
    write_run(tmp_path / 'start', pretraining_weights(
        tmp_path, (*SPECIAL_TOKENS, *WORDS), num_layers=1))
    write_cola(tmp_path / 'glue', train=30, dev=10, test=2)
    fine_tuning = [
        f"--config={ROOT / 'configs' / 'glue.py'}:cola",
        f"--config.data.source={tmp_path / 'glue'}",
        f"--config.init_checkpoint={tmp_path / 'start'}", '--config.train.batch_size=10',
        '--config.data.max_seq_length=32', '--config.data.packing=False']
    phases = []
    for flags in ((), ('--config.adapter.rank=2', '--config.adapter.targets=all')):
        record = preflight_record(
            *flags, memory_bytes=1 << 30, status=0, config=fine_tuning)
        assert re.search(
            r'^v5e:1x2: fits, .*\n.*Fine-tuning: every step counts as the largest',
            capsys.readouterr().out, re.M | re.S)
        phases += record['phases']
    whole, adapter = phases
    for phase in phases:
        assert phase['steps'] == 9  # three epochs
        assert phase['rows_per_chip'] == 5
        assert phase['evaluation_bytes_per_chip'] is None
        assert phase['bytes_per_chip'] == sum(phase['bytes'].values())
        assert phase['mfu'] > 0
    assert adapter['bytes']['parameters'] > whole['bytes']['parameters']
    assert adapter['bytes']['optimizer'] < whole['bytes']['optimizer'] / 2
    assert adapter['collective_bytes'] < whole['collective_bytes']


def test_advice_agrees_with_a_compiled_program():
    """BERT-Base on v5e 4x4 with 16 rows of 128 a chip. The program that was compiled for 64 rows on
    each of four chips has 63.8 % of the peak."""
    record = json.loads((ROOT / 'tests' / 'fixtures' / 'preflight_base.json').read_text())
    line, advice = report.verdict(record).splitlines()
    assert line == (
        "v5e:4x4: fits, 2.26 GB of a chip's 16.91; about 3.8 hours, 61 chip-hours: steps 3.4 at "
        '59% of the peak to 4.2 at 47%; published runs reach 28% to 65%')
    match = re.search(
        r'(?P<rows>\d+) rows a chip fit, for about (?P<share>\d+)% of the peak: (?P<chips>\d+) of',
        advice)
    assert int(match['rows']) == 64
    assert int(match['chips']) == 4
    assert int(match['share']) == pytest.approx(63.8, abs=4)


def test_the_hours_of_a_run_are_the_middle_of_its_steps_and_what_else_it_does():
    record = json.loads((ROOT / 'tests' / 'fixtures' / 'preflight_base.json').read_text())
    phases = record['phases']
    config = ConfigDict({'train': {
        'save_every': 1000, 'save_minutes': 0.0, 'eval_every': '10%', 'max_eval_examples': 8192}})
    num_steps = sum(phase['steps'] for phase in phases)
    program = SimpleNamespace(
        config=config, num_steps=num_steps, task=SimpleNamespace(num_examples=None))
    others = hours.other_hours(program, phases)
    last = phases[-1]
    forward = last['step_seconds'] / last['batch_size'] / 3
    assert others['evaluations'] == pytest.approx(11 * 8192 * forward / 3600)
    saves = num_steps // 1000 + 1
    state = phases[0]['bytes']['parameters'] + phases[0]['bytes']['optimizer']
    assert others['saves'] == pytest.approx(saves * (1 + state / 1e9) / 3600)
    ends = hours.step_hours(phases)
    assert ends.least < ends.most
    total = hours.total_hours(phases, others)
    assert total == pytest.approx((ends.least + ends.most) / 2 + sum(others.values()))
    line, _ = report.verdict(record | {'other_hours': others}).splitlines()
    assert f'{sum(others.values()):,.1f} for start, compiling, saves, evaluations; pub' in line


def test_a_run_of_less_than_an_hour_is_told_in_minutes():
    record = json.loads((ROOT / 'tests' / 'fixtures' / 'preflight_base.json').read_text())
    for phase in record['phases']:
        phase['hours'] /= 100
        phase['steps'] /= 100
    line, _ = report.verdict(record | {'dollars': 0.7321}).splitlines()
    assert 'about 2.3 minutes, 0.61 chip-hours, $0.73: steps 2.0 at 59% of the peak to 2.5' in line


def test_bytes_and_rows_are_a_device_s_where_a_chip_has_two():
    record = json.loads((ROOT / 'tests' / 'fixtures' / 'preflight_base.json').read_text())
    record['chips'] = record['devices'] // 2
    line, advice = report.verdict(record).splitlines()
    assert "GB of a device's 16.91; " in line
    assert '64 rows a device fit' in advice
    assert ': 2 of the chips take' in advice
    for phase in record['phases']:
        phase['collectives'] = []
    heading, *_ = report.tables(record).splitlines()
    assert heading.endswith(' on v5e:4x4: 8 v5e chips of 2 devices each, mesh data 4 x fsdp 4 x '
                            'tensor 1')


def test_fewer_parts_are_advised_where_they_fit():
    record = json.loads((ROOT / 'tests' / 'fixtures' / 'preflight_base.json').read_text())
    record['phases'][0]['accumulation_steps'] = 4
    assert '--config.train.accumulation_steps=2' in report.verdict(record)


def pretend_compiler(monkeypatch, *, train_bytes, evaluation_bytes):
    """Nothing is compiled; the train step and the evaluation step need this much memory."""
    totals = iter([train_bytes, evaluation_bytes])

    def compile_step(step, *arguments):
        given = device_bytes(arguments)
        return None, Memory(given, 0, next(totals) - given)

    monkeypatch.setattr(measure, 'compile_step', compile_step)


@pytest.mark.slow
def test_a_train_step_that_does_not_fit_gets_more_parts(monkeypatch, preflight_record, capsys):
    pretend_compiler(monkeypatch, train_bytes=2_000_000, evaluation_bytes=10)
    (phase,) = preflight_record(memory_bytes=1_000_000, status=1)['phases']
    assert not phase['fits']
    assert phase['bytes_per_chip'] == 2_000_000
    assert 3 <= phase['largest_rows_at_once'] <= 4  # of the eight, in half of the memory
    assert '--config.train.accumulation_steps=4' in capsys.readouterr().out


@pytest.mark.slow
def test_an_evaluation_that_does_not_fit_gets_fewer_rows(monkeypatch, preflight_record, capsys):
    pretend_compiler(monkeypatch, train_bytes=990_000, evaluation_bytes=2_000_000)
    (phase,) = preflight_record(memory_bytes=1_000_000, status=1)['phases']
    assert not phase['fits']
    assert phase['bytes_per_chip'] == 990_000
    assert 'config.train.eval_batch_size' in capsys.readouterr().out


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
    assert 'MB of messages' in process.stdout
    assert '\nv4:2x2x1: fits, ' in process.stdout
    record, other = json.loads(path.read_text())['slices']
    assert other['chip'] == 'v4'
    assert other['fits']
    (phase,) = record['phases']
    assert record['chip'] == 'v5e'
    assert phase['bytes_limit'] == int(15.75 * 2**30)
    assert phase['cycles_per_sequence'] > phase['floor_cycles_per_sequence'] > 0
    scopes = {entry['scope'] for entry in phase['scopes']}
    assert {'qkv', 'attention', 'intermediate', 'output', 'head', 'optimizer'} <= scopes
    for cycles in ('cycles_per_sequence', 'scheduled_cycles_per_sequence'):
        assert sum(entry[cycles] for entry in phase['scopes']) == pytest.approx(phase[cycles])
    assert {'memory', 'VALU'} & {entry['waits_for'] for entry in phase['scopes']}
    assert 0 < phase['scheduled_cycles_per_sequence'] < phase['cycles_per_sequence']
    assert 'all-reduce' in {entry['kind'] for entry in phase['collectives']}


@pytest.mark.parametrize('installed, wanted, is_refused', [
    ('0.0.17', 'libtpu==0.0.23; extra == "tpu"', True),
    ('0.0.9', 'libtpu==0.0.42.*; extra == "tpu"', True),
    ('0.0.42.1', 'libtpu==0.0.42.*; extra == "tpu"', False),
    ('0.0.43', 'libtpu==0.0.42.*; extra == "tpu"', False),
])
def test_a_libtpu_older_than_jax_s_is_refused(monkeypatch, installed, wanted, is_refused):
    """libtpu 0.0.17 with jax 0.7.2, as on Kaggle, ends the process by SIGSEGV."""
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
    versions = {'libtpu': installed, 'jax': '0.7.2', 'bert_jax': '0.2.0'}
    monkeypatch.setattr(importlib.metadata, 'version', versions.__getitem__)
    monkeypatch.setattr(importlib.metadata, 'requires', lambda name: ['numpy>=1', wanted])
    opened = SimpleNamespace(devices=['a device'])
    monkeypatch.setattr(topologies, 'get_topology_desc', lambda **options: opened)
    if is_refused:
        with pytest.raises(InputError, match=f'libtpu {installed} is too old .* jax 0.7.2: .*pip'):
            open_topology('v5e:2x4')
    else:
        assert open_topology('v5e:2x4') == ['a device']


def test_added_words_count_in_the_vocabulary(tmp_path):
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, '[unused0]', 'a', '##b'])
    (tmp_path / 'words.txt').write_text('ab\nabb\na\n')
    config = default_config()
    config.train.steps = 1
    config.data.vocab_file = str(tmp_path / 'vocab.txt')
    config.data.add_tokens = str(tmp_path / 'words.txt')
    assert measure.without_data(config).model.vocab_size == 9
