"""Runs whose head a config file defines: the recipes of `configs/`, at a tiny size.

Each is trained, resumed, trained on other devices, and read back by the commands without its file.
"""

import contextlib
import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bert_jax import convert
from bert_jax.model.flops import muon_flops
from bert_jax.model.layers import ModelConfig
from bert_jax.predict import load
from bert_jax.runtime.checksum import digest
from bert_jax.runtime.errors import Stopped
from bert_jax.runtime.files import as_path
from bert_jax.tools.report.runs import RunRecords
from bert_jax.weights import load_weights
from tests.conftest import ROOT
from tests.in_process import recorded, run
from tests.tiny_runs import TINY, documents, one_device, saved, write_cola

pytestmark = pytest.mark.slow

# Those of TINY that the paper's pre-training and others share.
SMALL = (
    *TINY[1:], '--config.model.initializer_range=0.2', '--config.phases=()',
    '--config.train.steps=6', '--config.train.save_every=3', '--config.train.log_every=1')
ELECTRA = ROOT / 'configs' / 'electra_pretrain.py'


@dataclasses.dataclass
class ElectraRun:
    """An ELECTRA run that nothing interrupted, and the flags of another like it."""

    workdir: Path
    args: tuple[str, ...]
    result: dict[str, Any]
    said: str


@pytest.fixture(scope='module')
def electra(tmp_path_factory):
    folder = tmp_path_factory.mktemp('electra')
    (folder / 'text.txt').write_text(documents(60))
    args = (
        'electra_pretrain.py:tiny', *SMALL, f'--config.data.source={folder}/text.txt',
        f'--config.data.dir={folder}/cache', '--config.model.hidden_dropout=0.1')
    ended = run(*args, workdir=folder / 'run')
    return ElectraRun(folder / 'run', args, ended.result, ended.said)


def fields_of(workdir):
    return json.loads((workdir / 'config.json').read_text())


def test_a_run_keeps_the_file_that_defines_its_head(electra):
    content = ELECTRA.read_bytes()
    assert (electra.workdir / 'config_file.py').read_bytes() == content
    fields = fields_of(electra.workdir)
    assert fields['config_file'] == {'name': 'electra_pretrain.py', 'digest': digest(content)}
    assert (fields['task'], fields['head']) == ('pretrain_electra', 'replaced_tokens')
    assert fields['metric'] == 'replaced_f1'


def test_metrics_of_both_models_are_reported(electra):
    for name in ('replaced_loss', 'replaced_accuracy', 'replaced_f1', 'mlm_loss', 'mlm_accuracy'):
        assert np.isfinite(electra.result[f'eval/{name}'])
    # 15 % are masked, and a generator that knows nothing seldom draws the right word.
    assert 0.1 < electra.result['eval/replaced_share'] < 0.2
    losses = recorded(electra.workdir, 'train/loss')
    assert losses[0] > losses[-1]
    assert 'warning' not in electra.said.split('phase length')[0]


def params_of(workdir):
    step, tree = saved(workdir)
    return step, flatten_dict(tree['params'], sep='/')


def test_a_run_that_was_stopped_ends_as_one_that_was_not(electra, tmp_path):
    with pytest.raises(Stopped):
        run(*electra.args, workdir=tmp_path, stop_at=3)
    ended = run(*electra.args, workdir=tmp_path)
    assert 'resuming at step 3' in ended.said
    assert 'config_file' not in ended.said
    assert ended.result == electra.result
    for name, array in params_of(electra.workdir)[1].items():
        np.testing.assert_array_equal(params_of(tmp_path)[1][name], array, err_msg=name)


def test_eight_devices_train_as_one(electra, tmp_path):
    """The words that are drawn are the same, too: else the losses would differ by far more."""
    ended = run(*electra.args, workdir=tmp_path, devices=contextlib.nullcontext)
    losses = [recorded(workdir, 'train/loss') for workdir in (electra.workdir, tmp_path)]
    assert len(losses[0]) == 6
    np.testing.assert_allclose(*losses, rtol=1e-4)
    for name, value in electra.result.items():
        assert ended.result[name] == pytest.approx(value, rel=2e-3), name


def test_parts_of_a_batch_train_as_the_whole(electra, tmp_path):
    run(*electra.args, '--config.train.accumulation_steps=2', '--config.train.steps=3',
        '--config.optimizer.decay_power=0', workdir=tmp_path / 'parts')
    run(*electra.args, '--config.train.steps=3', '--config.optimizer.decay_power=0',
        workdir=tmp_path / 'whole')
    losses = [recorded(tmp_path / name, 'train/loss') for name in ('parts', 'whole')]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_packed_rows_train_too(electra, tmp_path):
    (tmp_path / 'short.txt').write_text(documents(100, sentences=1))
    ended = run(
        *electra.args, f'--config.data.source={tmp_path}/short.txt',
        '--config.train.packed_rows=8', '--config.data.max_seq_length=64',
        '--config.train.steps=2', workdir=tmp_path / 'run')
    assert np.isfinite(ended.result['eval/replaced_loss'])


def test_the_encoder_is_read_without_the_file(electra, tmp_path):
    """Nothing of the copy is run: it may be anything."""
    workdir = shutil.copytree(electra.workdir, tmp_path / 'run')
    (workdir / 'config_file.py').write_text("raise SystemExit('code of a run directory is run')")
    weights = load_weights(workdir)
    assert weights.head == 'replaced_tokens'
    assert weights.unused == ('generator/...',)
    _, params = params_of(electra.workdir)
    assert weights.params.keys() == {name for name in params if not name.startswith('generator/')}
    with one_device():
        model = load(workdir)
        vectors = model.vectors(['some words'])
        values = model.features(['some words'])[0]['values'][:, 0]
    np.testing.assert_allclose(vectors[0], values.mean(0), rtol=1e-5, atol=1e-6)


def test_it_is_converted_without_its_generator(electra, tmp_path, capsys):
    convert.main([str(electra.workdir), str(tmp_path / 'converted'), '--to', 'bert_jax'])
    assert 'left out: generator/...' in capsys.readouterr().out
    here, there = (load_weights(path) for path in (electra.workdir, tmp_path / 'converted'))
    assert here.head == there.head
    for name, array in here.params.items():
        np.testing.assert_array_equal(there.params[name], array)


def test_the_discriminator_is_fine_tuned(electra, tmp_path):
    glue = write_cola(tmp_path / 'glue')
    ended = run(
        'glue.py:cola', f'--config.init_checkpoint={electra.workdir}',
        f'--config.data.source={glue}', '--config.data.max_seq_length=32',
        '--config.train.steps=2', workdir=tmp_path / 'run')
    assert 'starts fresh: bert/pooler/..., classifier/...' in ended.said
    (unused,) = re.findall('left unused: (.*)', ended.said)
    assert 'discriminator_predictions/...' in unused
    assert 'generator' in unused
    fields = fields_of(tmp_path / 'run')
    assert fields['init_step'] == 6
    assert 'config_file' not in fields


def test_another_run_with_the_same_head_starts_from_all_of_it(electra, tmp_path):
    num_params = len(params_of(electra.workdir)[1])
    ended = run(
        *electra.args, f'--config.init_checkpoint={electra.workdir}', '--config.train.steps=1',
        workdir=tmp_path)
    assert f'{num_params} of {num_params} parameters' in ended.said


def test_a_report_has_the_flops_and_the_size_of_both_models(electra):
    fields = fields_of(electra.workdir)
    records = RunRecords(as_path(electra.workdir), 'electra')
    (step_flops,) = fields['step_flops']
    model = ModelConfig(**load_weights(electra.workdir).model)
    of_optimizer = muon_flops(model)
    assert records.work_at(6)[1] == pytest.approx(6 * (step_flops + of_optimizer))
    _, params = params_of(electra.workdir)
    num_padding = model.padded_vocab_size - model.vocab_size
    sizes = [array.size for array in params.values()]
    # The rows of the word table, and the generator's bias.
    assert fields['parameters'] == sum(sizes) - num_padding * (32 + 1)


def test_a_resumed_run_says_that_its_file_has_changed(electra, tmp_path):
    changed = tmp_path / 'electra_pretrain.py'
    changed.write_text(ELECTRA.read_text() + '\n# Changed.\n')
    args = (f'{changed}:tiny', *electra.args[1:])
    workdir = shutil.copytree(electra.workdir, tmp_path / 'run')
    ended = run(*args, workdir=workdir)
    assert 'note: config_file.digest was' in ended.said
    assert (workdir / 'config_file.py').read_text().endswith('# Changed.\n')
