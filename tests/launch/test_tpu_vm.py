"""launch/tpu_vm.sh and on_host.sh against a stand-in gcloud, whose slice is a folder."""

import os
import re
import signal

import pytest

from tests.conftest import wait_until
from tests.launch.cloud import FLAGS, RUN, Cloud, commit, make_checkout


@pytest.fixture(scope='module')
def checkout(tmp_path_factory):
    return make_checkout(tmp_path_factory.mktemp('checkout'), 'gcloud')


@pytest.fixture
def cloud(tmp_path, checkout):
    cloud = Cloud(tmp_path, checkout, 'tpu_vm.sh')
    yield cloud
    if (tmp_path / 'home').exists():
        cloud.run('delete', 'bert')


SAVES = '--autocheckpoint-enabled'  # time to save before maintenance


@pytest.mark.parametrize('options, flags', [
    pytest.param(
        ['--type=v5litepod-256'],
        ['--accelerator-type=v5litepod-256', '--runtime-version=v2-alpha-tpuv5-lite',
         '--node-id=bert', SAVES],
        id='one slice'),
    pytest.param(
        ['--type=v5p-128', '--zone=z', '--project=p', '--valid-until=6h'],
        ['--accelerator-type=v5p-128', '--runtime-version=v2-alpha-tpuv5', '--node-id=bert',
         '--valid-until-duration=6h', '--zone=z', '--project=p'],
        id='at a place, for a time'),
    pytest.param(
        ['--type=v6e-16', '--spot', '--slices=2'],
        ['--accelerator-type=v6e-16', '--runtime-version=v2-alpha-tpuv6e', '--node-count=2',
         '--node-prefix=bert', '--spot'],
        id='two spot slices'),
    pytest.param(
        ['--type=v4-32', '--runtime=mine'],
        ['--accelerator-type=v4-32', '--runtime-version=mine', '--node-id=bert', SAVES],
        id='with a runtime'),
])
def test_create_asks_for_the_slice_and_waits_until_it_is_there(cloud, options, flags):
    process = cloud.run('create', 'bert', *options, HELP=SAVES)
    assert process.returncode == 0, process.stderr
    command = ['compute', 'tpus', 'queued-resources', 'create', 'bert']
    if SAVES in flags:
        command = ['alpha', *command]
    assert cloud.calls('create') == [[*command, *flags, '--quiet']]
    assert re.findall('bert is .*', process.stderr) == [
        'bert is WAITING_FOR_RESOURCES', 'bert is ACTIVE']


def test_create_does_not_ask_for_what_gcloud_does_not_know(cloud):
    cloud.run('create', 'bert', '--type=v5litepod-256', HELP='')
    assert SAVES not in cloud.calls('create')[-1]


def test_create_install_run_follow_stop_and_delete_one_by_one(cloud):
    cloud.run('create', 'bert', '--type=v5litepod-16')
    assert cloud.run('install', 'bert', TPU_SSH_FLAGS='--tunnel-through-iap').returncode == 0
    assert cloud.calls('scp')[0][-5:] == [
        'bert:bert_jax.tar.gz', '--node=all', '--worker=all', '--tunnel-through-iap', '--quiet']
    assert {'--node=all', '--worker=all', '--tunnel-through-iap'} < set(cloud.calls('ssh')[0])

    cloud.write('plan', ['wait', 'wait'])
    assert cloud.run('run', 'bert', *FLAGS).returncode == 0
    wait_until(lambda: cloud.lines('runs') == [RUN])
    cloud.run('run', 'bert', *FLAGS, '--config.seed=1')  # a new run stops the old one
    wait_until(lambda: len(cloud.lines('runs')) == 2)
    assert 'saved' in cloud.lines('home/.bert_jax/log')
    assert cloud.run('status', 'bert').stdout == 'ACTIVE\nrunning\n'
    pid = int(*cloud.lines('home/.bert_jax/pid'))
    assert os.getsid(pid) == pid  # a session of its own, so that it outlives the connection

    following = cloud.start('follow', 'bert')
    assert cloud.run('stop', 'bert').returncode == 0
    output, _ = following.communicate(timeout=120)  # it ends with the run
    assert 'hello from the run\n' in output and output.endswith('saved\n')
    assert cloud.run('status', 'bert').stdout == 'ACTIVE\nstopped\n'

    assert cloud.run('delete', 'bert').returncode == 0
    assert cloud.calls('delete') == [
        ['compute', 'tpus', 'queued-resources', 'delete', 'bert', '--force', '--quiet']]


@pytest.mark.parametrize('plan, status, slices, runs', [
    pytest.param(['0'], 0, 1, 1, id='it is done at once'),
    pytest.param(['preempt', '143', '1', 'gone', 'killed', '0'], 0, 3, 6, id='whatever happens'),
    pytest.param(['143', '2'], 2, 1, 2, id='its input is bad'),
    pytest.param(['143', '3'], 3, 1, 2, id='it diverges'),
    pytest.param(['1'] * 9, 1, 1, 5, id='it fails five times'),
    pytest.param(['notice'] * 7 + ['0'], 0, 8, 8, id='maintenance: however often, as it saves'),
])
def test_relaunch_goes_on_until_the_run_is_done(cloud, plan, status, slices, runs):
    process = cloud.relaunch(*plan, options=['--spot'])
    assert process.returncode == status, process.stderr
    assert len(cloud.calls('create')) == slices
    assert len(cloud.calls('scp')) == slices  # a new slice has no code, a used one has
    assert len(cloud.calls('delete')) == slices - 1
    assert cloud.lines('runs') == [RUN] * runs
    assert 'still costs: tpu_vm.sh delete bert' in process.stderr


def test_relaunch_asks_again_while_the_service_is_away(cloud):
    away = 'ERROR: UNAVAILABLE: try again later'
    cloud.write('refusals', [away] * 7)
    process = cloud.relaunch('0')
    assert process.returncode == 0 and away in process.stderr, process.stderr
    assert len(cloud.calls('create')) == 8
    assert len(cloud.lines('runs')) == 1


def test_relaunch_gives_up_what_is_refused_five_times(cloud):
    not_ours = 'ERROR: PERMISSION_DENIED: not yours'
    cloud.write('refusals', [not_ours] * 9)
    process = cloud.relaunch('0')
    assert process.returncode == 1 and not_ours in process.stderr, process.stderr
    assert len(cloud.calls('create')) == 5
    assert not cloud.lines('runs')


def test_relaunch_gives_up_a_request_that_fails_five_times(cloud):
    process = cloud.relaunch('0', AFTER_CREATE='FAILED')
    assert process.returncode == 1, process.stderr
    assert 'the request for bert failed (5 of 5 times)' in process.stderr
    assert len(cloud.calls('create')) == 5
    assert not cloud.lines('runs')


def test_relaunch_starts_anew_on_all_hosts_if_one_fails_to_start(cloud):
    cloud.write('half', [])
    process = cloud.relaunch('wait', '0')
    assert process.returncode == 0, process.stderr
    assert 'installation or start failed (1 of 5' in process.stderr
    assert len(cloud.calls('create')) == 1
    assert len(cloud.lines('runs')) == 2


def test_relaunch_gives_up_hosts_that_cannot_be_reached(cloud):
    cloud.write('deaf', [])
    process = cloud.relaunch('0', UNREACHABLE_SECONDS='1', POLL_SECONDS='0.3')
    assert process.returncode == 1, process.stderr
    assert 'its first host cannot be reached by ssh (5 of 5 times)' in process.stderr
    assert len(cloud.calls('create')) == 5
    assert not cloud.lines('runs')


def test_relaunch_joins_a_run_that_is_going_on(cloud):
    cloud.write('plan', ['wait'])
    first = cloud.start('relaunch', 'bert', '--type=v4-8', *FLAGS)
    wait_until(lambda: cloud.lines('runs'))
    first.send_signal(signal.SIGTERM)  # whoever watched is gone
    first.communicate(timeout=120)
    other = cloud.run('relaunch', 'bert', '--type=v4-8', *FLAGS, '--config.seed=1')
    assert other.returncode == 2 and 'runs something else' in other.stderr
    second = cloud.start('relaunch', 'bert', '--type=v4-8', '--delete', *FLAGS)
    assert 'bert is ACTIVE' in second.stderr.readline()
    assert 'the run is going on' in second.stderr.readline()
    cloud.write('plan', ['0'])
    os.killpg(int(*cloud.lines('home/.bert_jax/pid')), signal.SIGTERM)
    second.communicate(timeout=120)
    assert second.returncode == 0 and len(cloud.lines('runs')) == 2
    assert len(cloud.calls('delete')) == 1 and not (cloud.folder / 'slice').exists()


@pytest.fixture
def own_cloud(tmp_path):
    """A slice for a checkout with a file that changes."""
    checkout = make_checkout(tmp_path / 'checkout', 'gcloud')
    (checkout / 'code.py').write_text('first')
    commit(checkout, 'code.py')
    cloud = Cloud(tmp_path, checkout, 'tpu_vm.sh')
    yield cloud
    if (tmp_path / 'home').exists():
        cloud.run('delete', 'bert')


def test_a_relaunched_run_keeps_the_commit_that_it_began_with(own_cloud):
    cloud = own_cloud
    cloud.write('plan', ['wait'])
    first = cloud.start('relaunch', 'bert', '--type=v4-8', *FLAGS)
    wait_until(lambda: cloud.lines('runs'))
    first.send_signal(signal.SIGTERM)  # whoever watched is gone
    first.communicate(timeout=120)
    (cloud.checkout / 'code.py').write_text('second')
    commit(cloud.checkout, 'code.py')
    (cloud.checkout / 'code.py').write_text('not committed')

    second = cloud.start('relaunch', 'bert', '--type=v4-8', *FLAGS)
    assert 'the run began with commit' in second.stderr.readline()
    second.stderr.readline()
    assert 'the run is going on' in second.stderr.readline()
    cloud.write('plan', ['0'])
    cloud.write('gone', [])  # a preemption, after which the slice is made and installed anew
    second.communicate(timeout=120)
    assert second.returncode == 0 and len(cloud.lines('runs')) == 2
    assert cloud.lines('home/bert_jax/code.py') == ['first']
    # It is done: the next one has the last commit.
    assert cloud.relaunch('0', options=['--commit=HEAD']).returncode == 0
    cloud.run('delete', 'bert')
    assert cloud.relaunch('0', options=['--commit=HEAD']).returncode == 0
    assert cloud.lines('home/bert_jax/code.py') == ['second']


@pytest.mark.parametrize('name', ['code.py', 'new.py'])
def test_what_is_not_committed_is_not_left_out_silently(own_cloud, name):
    cloud = own_cloud
    cloud.run('create', 'bert', '--type=v4-8')
    (cloud.checkout / name).write_text('other')
    message = f'error: changes that are not committed would not be sent ({name}): commit them'
    for process in (cloud.run('install', 'bert'), cloud.relaunch('0')):
        assert process.returncode == 2 and message in process.stderr
    assert not cloud.calls('scp')
    assert cloud.run('install', 'bert', '--commit=HEAD').returncode == 0
    assert cloud.lines('home/bert_jax/code.py') == ['first']
    process = cloud.run('install', 'bert', '--commit=nothing')
    assert process.returncode == 2 and '--commit=nothing: there is no such' in process.stderr


def test_a_stop_beside_a_relaunch_ends_it(cloud):
    cloud.write('plan', ['wait'])
    relaunch = cloud.start('relaunch', 'bert', '--type=v4-8', *FLAGS)
    wait_until(lambda: cloud.lines('runs'))
    assert cloud.run('stop', 'bert').returncode == 0
    _, errors = relaunch.communicate(timeout=120)
    assert relaunch.returncode == 143 and 'the run was stopped by tpu_vm.sh stop' in errors
    assert len(cloud.lines('runs')) == 1
    assert cloud.relaunch('0').returncode == 0, 'asked for again, it is started again'


def test_a_tool_is_started_in_place_of_a_run(cloud):
    process = cloud.relaunch('0', options=['--tool=sweep'])
    assert process.returncode == 0, process.stderr
    assert cloud.lines('runs') == ['bert_jax.tools.sweep', RUN]


@pytest.mark.parametrize(('place', 'plan', 'status'), [
    ('0/4', '00', 0), ('3/4', '0', 0), ('0/4', '2', 2), ('0/4', '02', 2)])
def test_hosts_prepare_a_share_each_and_the_first_then_the_store(cloud, place, plan, status):
    process = cloud.relaunch(*plan, options=['--tool=prepare'], PLACE=place)
    assert process.returncode == status, process.stderr
    commands = [f'--share={place} {RUN}', RUN][:len(plan)]
    assert cloud.lines('runs') == [
        line for command in commands for line in ('bert_jax.tools.prepare', command)]
