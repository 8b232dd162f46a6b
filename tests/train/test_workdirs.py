"""A run resumes only with a config that fits it; other differences are reported."""

import re

import pytest
from flax.traverse_util import unflatten_dict

from bert_jax.config.fields import flat_fields
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError
from bert_jax.train.workdirs import check_resumable
from bert_jax.weights.run_directory import describe_run

FIELDS = {
    'task': 'rte', 'seed': 0, 'init_checkpoint': 'a', 'data': {'source': 'x'},
    'train': {'batch_size': 32, 'log_every': 1}, 'optimizer': {'learning_rate': 1e-5},
    'model': {'num_layers': 2, 'dtype': 'float32'},
}


def fields(changes):
    """`FIELDS` with other values, by dotted name."""
    return unflatten_dict(flat_fields(FIELDS) | changes, sep='.')


def refused(what):
    return f'InputError: .*holds a run with {re.escape(what)}.*give another --workdir'


# Downstream runs are compared with others, so less may change than in pre-training.
SEED, RATE, LAYERS = {'seed': 1}, {'optimizer.learning_rate': 2e-5}, {'model.num_layers': 3}
TEXT = {'identity.content of x': 'aa', 'identity.vocabulary': 'v'}
OTHER_TEXT = {'identity.content of x': 'bb', 'identity.vocabulary': 'w'}


@pytest.mark.parametrize('task, before, now, said', [
    ('rte', {}, {'train.log_every': 2, 'squad.stride': 128}, ''),  # and a new field
    ('rte', {'train.eval_every': 4}, {'train.eval_every': 2}, 'note: train.eval_every was 4'),
    ('pretrain', {'train.eval_every': 4}, {'train.eval_every': 2}, ''),
    ('rte', {}, {'data.source': 'y'}, "note: data.source was 'x' in this run so far, now 'y'"),
    ('rte', {}, {'model.dtype': 'bfloat16'}, 'note: model.dtype'),
    ('rte', {'init_step': 9, 'init_saved': 1}, {'init_step': 9, 'init_saved': 2},
     'warning: init_checkpoint was made anew'),
    ('rte', {'init_step': 300, 'init_saved': 1}, {'init_step': 2500, 'init_saved': 2},
     'warning: .* step 300 .* at 2,500 now'),
    ('pretrain', {'phases': [{'steps': 4}, {'steps': 5}]},
     {'phases': [{'steps': 4}, {'steps': 7}, {'steps': 1}]}, 'note: phases.2.steps was 5 .* 7$'),
    ('pretrain', {'phases': [{'steps': 4, 'causal': True}]}, {'phases': [{'steps': 4}]},
     'note: phases.1.causal was True .* False$'),
    ('pretrain', {'train.steps': 300}, {'train.steps': 2500}, 'note: .*the new schedule'),
    ('rte', {}, {'debug': True}, refused('debug=False')),
    ('rte', {}, SEED, refused('seed=0')), ('rte', {}, RATE, refused('optimizer.learning_rate=')),
    ('rte', {}, {'init_checkpoint': 'b'}, refused("init_checkpoint='a'")),
    ('rte', {}, {'task': 'mrpc'}, refused("task='rte'")),
    ('rte', TEXT, OTHER_TEXT, 'InputError: .*other data.*content of x'),
    ('pretrain', {}, {'task': 'rte'}, refused("task='pretrain'")),
    ('pretrain', {}, RATE, 'note: optimizer.learning_rate'),
    ('pretrain', {}, LAYERS, refused('model.num_layers=2')),
    ('pretrain', {}, {'init_checkpoint': 'b'},
     "warning: .*init_checkpoint='a', which stays; 'b' is not used"),
    ('pretrain', TEXT, OTHER_TEXT, 'warning: .*content of x was aa, now bb'),
    # Fields that no longer exist: only one that shaped the model is refused.
    ('rte', {'model.gone': '', 'data.old': 128}, {}, ''),
    ('rte', {'model.gone': 'last'}, {}, refused("model.gone='last'")),
    ('pretrain', {'train.skip_steps': [3]}, {'train.skip_steps': [3, 6]},
     r'note: train.skip_steps was \[3\] in this run so far'),
    ('pretrain', {'train.skip_steps': [3]}, {'train.skip_steps': [3, 5, 6]},
     'warning: train.skip_steps: the newest checkpoint is past 5,'),
])
@pytest.mark.parametrize('folder', ['checkpoints', 'best'])
def test_a_changed_field_is_accepted_reported_or_refused(
    tmp_path, folder, task, before, now, said, capsys
):
    for step in ('2', '5'):
        (tmp_path / folder / step).mkdir(parents=True)
    describe_run(tmp_path, fields({'task': task} | before), None)
    config = (tmp_path / 'config.json').read_text()
    resolved = fields({'task': task} | now)
    try:
        check_resumable(tmp_path, resolved, None, comparable=task != 'pretrain')
    except InputError as error:
        print(f'InputError: {error}')
    out = capsys.readouterr().out
    assert re.match(said, out) and out.count('\n') == bool(said), out
    assert (tmp_path / 'config.json').read_text() == config
    if said.startswith('warning: '):  # a change that comes too late is not recorded
        assert resolved['init_checkpoint'] == 'a'
        assert resolved['train'].get('skip_steps', [3, 6]) == [3, 6]


def test_in_a_bucket_only_a_complete_checkpoint_makes_a_run(bucket):
    workdir = files.as_path(bucket) / 'run'
    check_resumable(workdir, FIELDS, None, comparable=True)
    describe_run(workdir, FIELDS, None)
    files.write_whole(workdir / 'checkpoints' / '5' / 'default' / 'manifest.ocdbt', b'begun')
    check_resumable(workdir, fields(LAYERS), None, comparable=True)
    files.write_whole(workdir / 'checkpoints' / '5' / 'commit_success.txt', b'done')
    with pytest.raises(InputError, match='holds a run with model.num_layers=2'):
        check_resumable(workdir, fields(LAYERS), None, comparable=True)


def test_a_bucket_that_forbids_deletion_is_refused(bucket, bucket_server, monkeypatch):
    monkeypatch.setattr(files, 'REFUSED_SECONDS', 0.0)
    monkeypatch.setattr(bucket_server, 'faults', {f"/b/{bucket.removeprefix('gs://')}\\?": 403})
    with pytest.raises(InputError, match=f'^{bucket}: old checkpoints .* Legacy Bucket Reader'):
        check_resumable(files.as_path(bucket) / 'run', FIELDS, None, comparable=True)
