"""A run resumes only with a config that fits it; other differences are reported."""

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest
from flax.traverse_util import unflatten_dict

from bert_jax.config.fields import flat_fields
from bert_jax.run.changes import Change, compare
from bert_jax.run.description import describe_run
from bert_jax.run.resume_checks import (
    check_resumable,
    locked_workdir,
    record_code,
    refuse_other_optimizer,
)
from bert_jax.runtime import buckets, files
from bert_jax.runtime.errors import InputError

FIELDS = {
    'task': 'rte', 'seed': 0, 'init_checkpoint': 'a', 'data': {'source': 'x'},
    'train': {'batch_size': 32, 'log_every': 1}, 'optimizer': {'learning_rate': 1e-5},
    'model': {'num_layers': 2, 'dtype': 'float32', 'remat': 'none'},
}


def fields(changes):
    """`FIELDS` with other values, by dotted name."""
    return unflatten_dict(flat_fields(FIELDS) | changes, sep='.')


@dataclasses.dataclass(frozen=True)
class Case:
    """A run with some fields, and a config with others.

    Attributes:
      name: of the case.
      task: 'pretrain', or a downstream task, whose runs are compared with others, so that less may
        change.
      before: fields of the run that are not as in `FIELDS`.
      now: those of the config.
      message: a regular expression for what is printed or raised; '' where nothing is.
    """

    name: str
    task: str
    before: Mapping[str, Any]
    now: Mapping[str, Any]
    message: str = ''


def cases(*of_test):
    return pytest.mark.parametrize('case', of_test, ids=lambda case: case.name.replace(' ', '-'))


@pytest.fixture(params=['checkpoints', 'best'])
def workdir(request, tmp_path):
    """The directory of a run with checkpoints of the steps 2 and 5, or with its best ones."""
    for step in ('2', '5'):
        (tmp_path / request.param / step).mkdir(parents=True)
    return tmp_path


def resume(workdir, case):
    """Checks the config of a case against a run; returns the description of the resumed run."""
    describe_run(workdir, fields({'task': case.task} | case.before), None)
    config = (workdir / 'config.json').read_text()
    resolved = fields({'task': case.task} | case.now)
    try:
        check_resumable(workdir, resolved, None, comparable=case.task != 'pretrain')
    finally:
        assert (workdir / 'config.json').read_text() == config, 'nothing is written'
    return resolved


@cases(
    Case('logging, and a field that is new', 'rte',
         before={}, now={'train.log_every': 2, 'squad.stride': 128}),
    Case('evaluations of pre-training', 'pretrain',
         before={'train.eval_every': 4}, now={'train.eval_every': 2}),
    Case('another mesh', 'rte', before={'mesh.fsdp': 8}, now={'mesh.fsdp': 4}),
    Case('another folder', 'rte', before={'data.dir': 'a'}, now={'data.dir': 'b'}),
    Case('a file whose content is compared', 'rte',
         before={'data.vocab_file': 'a'}, now={'data.vocab_file': 'b'}),
    Case('fields that do not exist any more', 'rte',
         before={'model.gone': '', 'data.old': 128}, now={}),
)
def test_changes_without_a_message(workdir, case, capsys):
    resume(workdir, case)
    assert not capsys.readouterr().out


@cases(
    Case('evaluations among which the best is chosen', 'rte',
         before={'train.eval_every': 4}, now={'train.eval_every': 2},
         message='note: train.eval_every was 4'),
    Case('a source of the same content', 'rte', before={}, now={'data.source': 'y'},
         message="note: data.source was 'x' in this run so far, now 'y'"),
    Case('rounding', 'rte', before={}, now={'model.dtype': 'bfloat16'},
         message='note: model.dtype'),
    Case('recomputation', 'rte', before={}, now={'model.remat': 'full'},
         message='note: model.remat'),
    Case('a phase is longer, and one is new', 'pretrain',
         before={'phases': [{'steps': 4}, {'steps': 5}]},
         now={'phases': [{'steps': 4}, {'steps': 7}, {'steps': 1}]},
         message='note: phases.2.steps was 5 .* 7$'),
    Case('a phase takes a field from the run', 'pretrain',
         before={'phases': [{'steps': 4, 'causal': True}]}, now={'phases': [{'steps': 4}]},
         message='note: phases.1.causal was True .* False$'),
    Case('another schedule', 'pretrain', before={'train.steps': 300}, now={'train.steps': 2500},
         message='note: .*the new schedule'),
    Case('another learning rate of pre-training', 'pretrain',
         before={}, now={'optimizer.learning_rate': 2e-5}, message='note: optimizer.learning_rate'),
    Case('skipped steps that are to come', 'pretrain',
         before={'train.skip_steps': [3]}, now={'train.skip_steps': [3, 6]},
         message=r'note: train.skip_steps was \[3\] in this run so far'),
)
def test_changes_with_a_note(workdir, case, capsys):
    resolved = resume(workdir, case)
    out = capsys.readouterr().out
    assert re.match(case.message, out)
    assert out.count('\n') == 1
    assert resolved == fields({'task': case.task} | case.now), 'the run goes on with the change'


@cases(
    Case('init_checkpoint was made anew', 'rte',
         before={'init_step': 9, 'init_saved': 1}, now={'init_step': 9, 'init_saved': 2},
         message='warning: init_checkpoint was made anew'),
    Case('init_checkpoint has trained on', 'rte',
         before={'init_step': 300, 'init_saved': 1}, now={'init_step': 2500, 'init_saved': 2},
         message='warning: .* step 300 .* at 2,500 now'),
    Case('another init_checkpoint', 'pretrain', before={}, now={'init_checkpoint': 'b'},
         message="warning: .*init_checkpoint='a', which stays; 'b' is not used"),
)
def test_a_run_has_started_from_what_it_started_from(workdir, case, capsys):
    resolved = resume(workdir, case)
    out = capsys.readouterr().out
    assert re.match(case.message, out)
    assert out.count('\n') == 1
    assert resolved == fields({'task': case.task} | case.before)


@cases(
    Case('the run there is deleted', 'rte', before={'init_step': 9, 'init_saved': 2}, now={}),
    Case('there was no run', 'rte', before={}, now={'init_step': 4, 'init_saved': 1}),
)
def test_what_is_at_init_checkpoint_later_is_not_recorded(workdir, case, capsys):
    resolved = resume(workdir, case)
    assert resolved == fields(case.before)
    assert not capsys.readouterr().out


def test_fewer_steps_than_are_done_are_refused(workdir):
    with pytest.raises(InputError, match='is at step 5: config.train.steps=3 ends before that; '
                                         'give another --workdir, or 9 for the result'):
        resume(workdir, Case('', 'rte', {'train.steps': 9}, {'train.steps': 3}))


def test_columns_that_nobody_named_are_the_same_in_older_runs(workdir, capsys):
    resume(workdir, Case('', 'rte', {'data.text': 'text', 'data.label': 'label'},
                         {'data.text': None, 'data.label': None}))
    assert not capsys.readouterr().out


def test_steps_that_are_done_cannot_be_skipped(workdir, capsys):
    resolved = resume(workdir, Case(
        '', 'pretrain', {'train.skip_steps': [3]}, {'train.skip_steps': [3, 5, 6]}))
    out = capsys.readouterr().out
    assert re.match('warning: train.skip_steps: the newest checkpoint is past 5,', out)
    assert out.count('\n') == 1
    assert resolved['train']['skip_steps'] == [3, 6]


def test_pretraining_may_go_on_with_more_text(workdir, capsys):
    resume(workdir, Case(
        '', 'pretrain', {'identity.content of x': 'aa', 'identity.vocabulary': 'v'},
        {'identity.content of x': 'bb', 'identity.vocabulary': 'w'}))
    out = capsys.readouterr().out
    assert re.match('warning: .*content of x was aa, now bb', out)
    assert out.count('\n') == 1


def test_a_downstream_run_has_one_training_set(workdir, capsys):
    case = Case('', 'rte', {'identity.content of x': 'aa', 'identity.vocabulary': 'v'},
                {'identity.content of x': 'bb', 'identity.vocabulary': 'w'})
    with pytest.raises(InputError, match='other data.*content of x'):
        resume(workdir, case)
    assert not capsys.readouterr().out


@cases(
    Case('debug', 'rte', before={}, now={'debug': True}, message='debug=False'),
    Case('seed', 'rte', before={}, now={'seed': 1}, message='seed=0'),
    Case('learning rate', 'rte', before={}, now={'optimizer.learning_rate': 2e-5},
         message='optimizer.learning_rate='),
    Case('init_checkpoint', 'rte', before={}, now={'init_checkpoint': 'b'},
         message="init_checkpoint='a'"),
    Case('batch size', 'rte', before={}, now={'train.batch_size': 16},
         message='train.batch_size=32'),
    Case('task', 'rte', before={}, now={'task': 'mrpc'}, message="task='rte'"),
    Case('task after pre-training', 'pretrain', before={}, now={'task': 'rte'},
         message="task='pretrain'"),
    Case('model', 'pretrain', before={}, now={'model.num_layers': 3}, message='model.num_layers=2'),
    Case('a field that shaped the model', 'rte', before={'model.gone': 'last'}, now={},
         message="model.gone='last'"),
)
def test_changes_that_are_refused(workdir, case, capsys):
    message = f'holds a run with {re.escape(case.message)}.*give another --workdir'
    with pytest.raises(InputError, match=message):
        resume(workdir, case)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(('before', 'now', 'message'), [
    ({'average': 0}, {'average': 5}, r'optimizer.average=0, the config says 5: give another'),
    ({'average': 5}, {'average': 0}, r'optimizer.average=5, the config says 0: '),
    ({'name': 'lamb', 'b1': 0.8}, {'name': 'adamw', 'b1': 0.9},
     "optimizer.b1=0.8, optimizer.name='lamb', the config says 0.9, 'adamw': "),
    ({'frozen': ''}, {'frozen': 'embeddings'}, "optimizer.frozen='', the config says 'embed"),
    ({'name': 'lamb'}, {'name': 'lamb'}, None),
])
def test_another_optimizer_is_refused_by_the_names_of_its_fields(workdir, before, now, message):
    describe_run(workdir, fields({f'optimizer.{name}': before[name] for name in before}), None)
    refuses = contextlib.nullcontext()
    if message:
        refuses = pytest.raises(InputError, match=f'holds a run with {message}')
    with refuses:
        refuse_other_optimizer(
            workdir, flat_fields(fields({f'optimizer.{name}': now[name] for name in now})))


def test_descriptions_differ_in_values_and_in_what_older_runs_lack():
    old = {'train.steps': 5, 'seed': 1, 'train.gone': 3, 'model.gone': 'x', 'data.text': 'text'}
    new = {'train.steps': 6, 'seed': 1, 'data.text': 'text', 'optimizer.eps': 1e-3,
           'mesh.message_dtype': 'auto'}
    assert compare(old, new) == [
        Change('mesh.message_dtype', before='float32', now='auto', is_recorded=True),
        Change('model.gone', before='x', now=None, is_recorded=True),
        Change('optimizer.eps', before=1e-6, now=1e-3, is_recorded=False),
        Change('train.steps', before=5, now=6, is_recorded=True),
    ]


def test_in_a_bucket_only_a_complete_checkpoint_makes_a_run(bucket):
    workdir = files.as_path(bucket) / 'run'
    deeper = fields({'model.num_layers': 3})
    check_resumable(workdir, FIELDS, None, comparable=True)
    describe_run(workdir, FIELDS, None)
    files.write_whole(workdir / 'checkpoints' / '5' / 'default' / 'manifest.ocdbt', b'begun')
    check_resumable(workdir, deeper, None, comparable=True)
    files.write_whole(workdir / 'checkpoints' / '5' / 'commit_success.txt', b'done')
    with pytest.raises(InputError, match='holds a run with model.num_layers=2'):
        check_resumable(workdir, deeper, None, comparable=True)


def test_a_bucket_that_forbids_deletion_is_refused(
        bucket, bucket_name, bucket_server, monkeypatch):
    monkeypatch.setattr(buckets, 'REFUSED_SECONDS', 0.0)
    monkeypatch.setattr(bucket_server, 'faults', {rf'/b/{bucket_name}\?': 403})
    with pytest.raises(InputError, match=f'^{bucket}: old checkpoints .* Legacy Bucket Reader'):
        check_resumable(files.as_path(bucket) / 'run', FIELDS, None, comparable=True)


@pytest.mark.parametrize('names, is_run', [
    (('checkpoints', 'vocab.txt', 'events.out.x'), True),
    (('checkpoints', 'tokenizer.json', 'tokenizer_config.json'), True),
    (('vocab.txt',), False),
    (('checkpoints', 'thesis.txt'), False),
])
def test_a_start_that_was_killed_before_its_config_is_gone_on_with(tmp_path, names, is_run):
    for name in names:
        (tmp_path / name).write_text('')
    workdir = files.as_path(tmp_path)
    if is_run:
        with locked_workdir(workdir):
            pass
    else:
        with pytest.raises(InputError, match='holds something else'), locked_workdir(workdir):
            pass


@pytest.mark.parametrize(('kept', 'remedy'), [
    ('the same', ''),
    ('another', 'give another --workdir, or --config.data.vocab_file={workdir}/vocab.txt'),
    ('', 'give another --workdir'),
])
def test_a_run_goes_on_with_its_own_vocabulary_alone(kept, remedy, workdir, tmp_path_factory):
    given = tmp_path_factory.mktemp('given') / 'vocab.txt'
    given.write_text('the same')
    if kept:
        (workdir / 'vocab.txt').write_text(kept)
    describe_run(workdir, FIELDS, None)
    refusal = f'another vocabulary than {given}: ' + remedy.format(workdir=workdir)
    expected = pytest.raises(InputError, match=f'{re.escape(refusal)}$')
    with expected if remedy else contextlib.nullcontext():
        check_resumable(workdir, FIELDS, given, comparable=True)


MADE = {'commit': 'c0ffee00', 'code': 'a' * 32, 'versions': {'jaxlib': '0.9.0'}}


@pytest.mark.parametrize('before, line', [
    pytest.param(MADE, '', id='the same'),
    pytest.param(None, '', id='of a version that recorded nothing'),
    pytest.param({**MADE, 'commit': '', 'code': 'b' * 32},
                 f"code {'b' * 12} so far, now commit c0ffee00 (code {'a' * 12})",
                 id='another digest'),
    pytest.param({'commit': 'deadbeef'},
                 f"commit deadbeef so far, now commit c0ffee00 (code {'a' * 12})",
                 id='another commit, of a version that recorded no digest'),
    pytest.param({**MADE, 'versions': {'jaxlib': '0.8.1', 'libtpu': '0.1'}},
                 'jaxlib 0.8.1 so far, now 0.9.0; libtpu 0.1 so far, now not installed',
                 id='other versions'),
])
def test_other_code_is_said_in_one_line_and_recorded(workdir, monkeypatch, capsys, before, line):
    monkeypatch.setattr('bert_jax.run.resume_checks.made_by', lambda: {**MADE, 'command': 'main'})
    describe_run(workdir, fields({'made': before} if before else {}), None)
    resolved = fields({})
    record_code(workdir, resolved)
    said = f'note: the run goes on with other code: {line}\n' if line else ''
    if (workdir / 'best').exists():  # it begins anew
        assert 'before' not in resolved['made']
        return
    assert capsys.readouterr().out == said
    assert resolved['made']['before'] == ([{'until_step': 5, **before}] if line else [])
    describe_run(workdir, resolved, None)
    again = fields({})
    record_code(workdir, again)
    assert again['made'] == resolved['made']
    assert capsys.readouterr().out == ''
