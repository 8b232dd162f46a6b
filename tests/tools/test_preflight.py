"""Preflight's report, verdict and refusals; on CPU devices, and once with the TPUs' compiler."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys

import jax
import pytest

from bert_jax.config import default_config
from bert_jax.runtime import process
from bert_jax.text.vocab import SPECIAL_TOKENS, write_vocab
from bert_jax.tools import preflight
from bert_jax.train.program import Memory, device_bytes
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

SMALL = [
    f"--config={ROOT / 'configs' / 'tiny_pretrain.py'}", '--config.model.num_layers=1',
    '--config.model.hidden_size=32', '--config.model.num_heads=2', '--config.data.vocab_size=200',
    '--config.data.max_seq_length=16', '--config.data.max_predictions_per_seq=2',
    '--config.train.batch_size=16', '--config.train.eval_batch_size=8',
    '--config.train.verify_every=1000',
    '--config.model.hidden_dropout=0', '--config.model.attention_dropout=0',  # compiles sooner
]


def pretend(monkeypatch, memory_bytes):
    """This machine's devices in place of a slice, of a chip with so many bytes."""
    chip = dataclasses.replace(
        process.find_chip('TPU v5 lite'), name='pretended', memory_bytes=memory_bytes)
    monkeypatch.setattr(preflight.hlo, 'open_topology', lambda name: jax.devices()[:2])
    monkeypatch.setattr(preflight, 'find_chip', lambda kind: chip)


def run(path, status):
    """The record of a preflight of SMALL that ends with this status."""
    with pytest.raises(SystemExit, match=str(status)):
        preflight.main(['preflight', *SMALL, '--topology=v5e:1x2', f'--json={path}/record.json'])
    return json.loads((path / 'record.json').read_text())


def test_a_record_says_all_that_scripts_rely_on(monkeypatch, tmp_path, capsys):
    pretend(monkeypatch, 1 << 30)
    record = run(tmp_path, 0)
    assert record['chips'] == 2 and record['fits'] and record['mesh'] == {
        'data': 1, 'fsdp': 2, 'tensor': 1}
    (phase,) = record['phases']
    assert {'cycles_per_sequence', 'floor_cycles_per_sequence', 'bytes_per_chip', 'bytes_limit',
            'fits', 'collectives'} <= set(phase)
    assert phase['rows_per_chip'] == phase['rows_at_once'] == 8
    sizes = phase['bytes']
    assert sizes['optimizer'] == pytest.approx(2 * sizes['parameters'], rel=0.01)  # two moments
    assert sum(sizes.values()) == phase['bytes_per_chip']
    assert phase['flops_ratio'] == pytest.approx(1, abs=0.1)
    # Gradients are reduced once, and little else.
    assert phase['collective_bytes'] == pytest.approx(sizes['parameters'], rel=0.05)
    out = capsys.readouterr().out
    assert 'fits; ' in out and 'chip-hours' in out
    assert record['verify_every'] == 1000 and 'every 1,000 steps takes 0.2 % more' in out


@pytest.mark.parametrize('sizes, remedy', [
    ((2_000_000, 10), '--config.train.accumulation_steps=4'),
    ((990_000, 2_000_000), 'config.train.eval_batch_size'),
])
def test_what_does_not_fit_gets_a_change_to_try(sizes, remedy, monkeypatch, tmp_path, capsys):
    pretend(monkeypatch, 1_000_000)
    needed = iter(sizes)  # of the train and evaluation steps

    def compile_(step, *arguments):
        total, given = next(needed), device_bytes(arguments)
        return None, Memory(given, 0, total - given)

    monkeypatch.setattr(preflight.programs, 'compile_step', compile_)
    (phase,) = run(tmp_path, 1)['phases']
    assert not phase['fits'] and phase['bytes_per_chip'] == sizes[0]
    if sizes[0] > 1_000_000:
        assert 3 <= phase['largest_rows_at_once'] <= 4  # of the eight, in half of the memory
    out = capsys.readouterr().out
    assert 'does not fit: it takes 0.00 GB' in out and remedy in out


def test_the_tpus_compiler_compiles_the_run_s_steps(tmp_path):
    if importlib.util.find_spec('libtpu') is None:
        pytest.skip('libtpu is not installed: pip install libtpu')
    path = tmp_path / 'record.json'
    process = subprocess.run(
        [sys.executable, '-m', 'bert_jax.tools.preflight', *SMALL, '--topology=v5e:2x2',
         f'--json={path}'],
        cwd=ROOT, env=os.environ | {'XLA_FLAGS': ''}, capture_output=True, text=True, timeout=300,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    record = json.loads(path.read_text())
    (phase,) = record['phases']
    assert record['chip'] == 'v5e' and phase['bytes_limit'] == int(15.75 * 2**30)
    assert phase['cycles_per_sequence'] > phase['floor_cycles_per_sequence'] > 0
    assert phase['flops_ratio'] == pytest.approx(1, abs=0.1)
    scopes = {entry['scope'] for entry in phase['scopes']}
    assert {'qkv', 'attention', 'intermediate', 'output', 'head', 'optimizer'} <= scopes
    assert sum(e['cycles_per_sequence'] for e in phase['scopes']) == pytest.approx(
        phase['cycles_per_sequence'])
    assert 'all-reduce' in {c['kind'] for c in phase['collectives']}


def test_added_words_count_in_the_vocabulary(tmp_path):
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, '[unused0]', 'a', '##b'])
    (tmp_path / 'words.txt').write_text('ab\nabb\na\n')
    config = default_config()
    config.train.steps = 1
    config.data.vocab_file = str(tmp_path / 'vocab.txt')
    config.data.add_tokens = str(tmp_path / 'words.txt')
    assert preflight.without_data(config).model.vocab_size == 9
