"""The same run on one host and on several: losses, scores and predictions are the same.

    python -m tests.e2e.test_hosts '[{"workdir": ..., "reverse": false, "fields": {...}}, ...]'

is one of the hosts: it makes the runs one after the other.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from bert_jax.config import default_config
from bert_jax.runtime import hosts
from bert_jax.runtime.files import as_path
from bert_jax.train import experiment
from tests.conftest import ROOT
from tests.tiny_runs import WORDS, write_cola

# (mesh, whether jax's order of devices is turned round)
MESHES = [
    ({'data': 8, 'fsdp': 1}, False), ({'data': 1, 'fsdp': 8}, False),
    ({'data': 2, 'fsdp': 4}, False), ({'data': 4, 'fsdp': 2}, False),
    ({'data': 4, 'fsdp': 1, 'tensor': 2}, True),
]
MODEL = {
    # Large enough that masters and moments are split.
    'model.name': '', 'model.num_layers': 1, 'model.hidden_size': 64, 'model.num_heads': 2,
    'model.intermediate_size': 256, 'train.log_every': 1, 'train.batch_size': 16,
}
PRETRAINING = MODEL | {
    'task': 'synthetic', 'data.vocab_size': 300, 'data.max_seq_length': 32,
    'data.max_predictions_per_seq': 5, 'train.steps': 3, 'train.eval_batch_size': 16,
    'train.accumulation_steps': 2, 'optimizer.learning_rate': 1e-2,
}
GLUE = MODEL | {
    'task': 'cola', 'data.max_seq_length': 32, 'train.steps': 3,
    'optimizer.learning_rate': 1e-2, 'data.lowercase': True,
}


def on_hosts(count, folder, runs):
    """Makes the runs on so many hosts, eight devices in all; their results and records."""
    runs = [run | {'workdir': f'{folder}/{i}'} for i, run in enumerate(runs)]
    command = [sys.executable, '-m', 'tests.e2e.test_hosts', json.dumps(runs)]
    if count > 1:
        command = [str(ROOT / 'launch' / 'local_hosts.sh'), str(count), *command]
    environment = os.environ | {
        'JAX_PLATFORMS': 'cpu',
        'XLA_FLAGS': f'--xla_force_host_platform_device_count={8 // count}',
    }
    process = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    results = [json.loads(line.removeprefix('result '))
               for line in process.stdout.splitlines() if line.startswith('result ')]
    records = [[json.loads(line) for line in lines(f"{run['workdir']}/metrics.jsonl")]
               for run in runs]
    return list(zip(results, records, strict=True))


def lines(path):
    return Path(path).read_text().splitlines()


def largest_difference(found, expected):
    """Largest relative difference of losses, gradient norms and scores."""
    differences = []
    for (result, records), (result_1, records_1) in zip(found, expected, strict=True):
        assert result.keys() == result_1.keys() and len(records) == len(records_1)
        pairs = [(result[name], result_1[name]) for name in result]
        pairs += [(a[name], b[name]) for a, b in zip(records, records_1, strict=True)
                  for name in ('step', 'train/loss', 'train/grad_norm') if name in b]
        differences += [abs(a - b) / max(abs(b), 1e-6) for a, b in pairs]
    return max(differences)


@pytest.fixture(scope='module')
def glue(tmp_path_factory):
    folder = tmp_path_factory.mktemp('glue')
    write_cola(folder / 'glue')
    letters = sorted({letter for word in WORDS for letter in word})
    pieces = [*letters, *(f'##{letter}' for letter in letters), *random.Random(0).sample(WORDS, 90)]
    (folder / 'vocab.txt').write_text('\n'.join(
        ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *pieces]) + '\n')
    return GLUE | {'data.source': f'{folder}/glue', 'data.vocab_file': f'{folder}/vocab.txt'}


@pytest.mark.skipif(not os.environ.get('ALL_MESHES'), reason='takes half an hour: set ALL_MESHES=1')
def test_every_mesh_and_a_downstream_task(tmp_path, glue):
    check(tmp_path, [(fields, mesh) for mesh in MESHES for fields in (PRETRAINING, glue)], (2, 4))


def check(folder, cases, counts):
    runs = [
        {'reverse': reverse, 'fields': fields | {f'mesh.{axis}': n for axis, n in mesh.items()}}
        for fields, (mesh, reverse) in cases
    ]
    one = on_hosts(1, folder / '1', runs)
    for count in counts:
        difference = largest_difference(on_hosts(count, folder / str(count), runs), one)
        print(f'{count} hosts: largest relative difference {difference:.1e}')
        assert difference < 2e-5
        for i, run in enumerate(runs):
            if run['fields']['task'] == 'cola':
                ours, theirs = (
                    lines(f'{folder}/{n}/{i}/dev_predictions.tsv') for n in (count, 1))
                assert ours == theirs


def host() -> None:
    hosts.connect()
    in_order = jax.devices()
    for run in json.loads(sys.argv[1]):
        devices = in_order[::-1] if run['reverse'] else in_order
        jax.devices = lambda devices=devices: devices
        config = default_config()
        with config.unlocked():
            config.update_from_flattened_dict(run['fields'])
        result = experiment.run(config, as_path(run['workdir']), lambda step: False)
        hosts.say('result ' + json.dumps(result))
    hosts.barrier('end')


if __name__ == '__main__':
    host()
