"""launch/instance_group.sh against a stand-in gcloud, whose machines are folders."""

import re

import pytest

from tests.conftest import wait_until
from tests.launch.cloud import FLAGS, RUN, Cloud, make_checkout

PLACE = ['--zone=us-west4-a', '--project=p']
ONE_HOST = '--topology=v6e:2x2'
TWO_HOSTS = '--topology=tpu7x:2x2x2'


@pytest.fixture(scope='module')
def checkout(tmp_path_factory):
    return make_checkout(tmp_path_factory.mktemp('checkout'), 'gcloud_groups')


@pytest.fixture
def cloud(tmp_path, checkout):
    cloud = Cloud(tmp_path, checkout, 'instance_group.sh', PLACE)
    yield cloud
    if (tmp_path / 'home').exists():
        cloud.run('delete', 'bert')


def flags_of(call):
    """The flags of a call of gcloud, by name."""
    words = [word.removeprefix('--').partition('=') for word in call if word.startswith('--')]
    return {name: value for name, _, value in words}


@pytest.mark.parametrize('options, machine, image, provisioning', [
    pytest.param(
        [ONE_HOST], 'ct6e-standard-4t', 'ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e', {},
        id='one host'),
    pytest.param(
        ['--topology=v5p:2x2x1', '--spot'], 'ct5p-hightpu-4t',
        'ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e',
        {'provisioning-model': 'SPOT', 'instance-termination-action': 'STOP'}, id='spot'),
    pytest.param(
        ['--topology=tpu7x:2x2x1', '--flex-start=12h'], 'tpu7x-standard-4t',
        'ubuntu-accel-2404-amd64-tpu-tpu7x',
        {'provisioning-model': 'FLEX_START', 'max-run-duration': '12h',
         'instance-termination-action': 'DELETE'}, id='for some hours'),
])
def test_create_makes_a_template_and_a_group(cloud, options, machine, image, provisioning):
    process = cloud.run('create', 'bert', *options)
    assert process.returncode == 0, process.stderr
    (template,) = cloud.calls('instance-templates')
    assert template[:4] == ['compute', 'instance-templates', 'create', 'bert']
    assert flags_of(template) == {
        'project': 'p', 'machine-type': machine, 'maintenance-policy': 'TERMINATE',
        'image-project': 'ubuntu-os-accelerator-images', 'image-family': image,
        'boot-disk-size': '200GB', 'scopes': 'cloud-platform', 'quiet': '', **provisioning}
    (group,) = cloud.calls('create')[1:]
    assert group == [
        'compute', 'instance-groups', 'managed', 'create', 'bert', *PLACE, '--template=bert',
        '--size=1', '--default-action-on-vm-failure=do-nothing', '--quiet']
    assert re.findall('bert is .*', process.stderr) == [
        'bert is WAITING_FOR_RESOURCES', 'bert is ACTIVE']


def test_a_workload_policy_connects_several_hosts(cloud):
    assert cloud.run('create', 'bert', TWO_HOSTS, HOSTS='2').returncode == 0
    policy, _, group = cloud.calls('create')
    assert policy == [
        'compute', 'resource-policies', 'create', 'workload-policy', 'bert',
        '--type=HIGH_THROUGHPUT', '--accelerator-topology=2x2x2', '--region=us-west4',
        '--project=p', '--quiet']
    flags = flags_of(group)
    assert flags['size'] == '2'
    assert flags['target-size-policy-mode'] == 'bulk'  # all at once
    assert flags['workload-policy'] == 'projects/p/regions/us-west4/resourcePolicies/bert'


def test_create_install_run_follow_stop_and_delete_on_two_hosts(cloud):
    cloud.run('create', 'bert', TWO_HOSTS, HOSTS='2')
    installed = cloud.run('install', 'bert', HOSTS='2', TPU_SSH_FLAGS='--tunnel-through-iap')
    assert installed.returncode == 0, installed.stderr
    copies = [call[3] for call in cloud.calls('scp') if '--tunnel-through-iap' in call]
    assert sorted(copies) == ['bert-0:bert_jax.tar.gz', 'bert-1:bert_jax.tar.gz']

    cloud.write('plan', ['wait', 'wait'])
    assert cloud.run('run', 'bert', *FLAGS, HOSTS='2').returncode == 0
    wait_until(lambda: cloud.lines('runs') == [RUN, RUN])
    status = cloud.run('status', 'bert', HOSTS='2').stdout
    assert status == 'bert-0\tRUNNING\nbert-1\tRUNNING\nrunning\nrunning\n'

    following = cloud.start('follow', 'bert', HOSTS='2')
    assert cloud.run('stop', 'bert', HOSTS='2').returncode == 0
    output, _ = following.communicate(timeout=120)  # it ends with the runs
    assert output.count('hello from the run\n') == output.count('saved\n') == 2

    assert cloud.run('delete', 'bert').returncode == 0
    assert [call[1] for call in cloud.calls('delete')] == [
        'instance-groups', 'instance-templates', 'resource-policies']
    assert not any((cloud.folder / part).exists() for part in ('slice', 'template', 'policy'))


def test_a_follow_that_is_ended_leaves_nothing_here(cloud):
    cloud.run('create', 'bert', ONE_HOST)
    cloud.run('install', 'bert')
    cloud.write('plan', ['wait'])
    cloud.run('run', 'bert', *FLAGS)
    wait_until(lambda: cloud.lines('runs'))
    following = cloud.start('follow', 'bert')
    assert following.stdout.readline()
    following.terminate()
    following.communicate(timeout=120)  # returns when all who could write have ended
    assert following.returncode == 143
    assert cloud.run('status', 'bert').stdout.endswith('running\n'), 'the run goes on'


@pytest.mark.parametrize('plan, status, slices', [
    pytest.param(['preempt', '143', '0'], 0, 2, id='preempted, and lost for a while'),
    pytest.param(['expire', '0'], 0, 2, id='its time is over'),
    pytest.param(['2'], 2, 1, id='its input is bad'),
    pytest.param(['notice', '0'], 0, 2, id='it saves before its machine stops'),
])
def test_relaunch_goes_on_until_the_run_is_done(cloud, plan, status, slices):
    process = cloud.relaunch(*plan, options=['--spot'], slice_option=ONE_HOST)
    assert process.returncode == status, process.stderr
    groups = [call for call in cloud.calls('managed') if call[3] == 'create']
    assert len(groups) == slices
    assert cloud.lines('runs') == [RUN] * len(plan)
    assert 'still costs: instance_group.sh delete bert' in process.stderr


def test_what_is_refused_leaves_no_part_and_is_asked_for_again(cloud):
    cloud.write('refusals', ['ERROR: ZONE_RESOURCE_POOL_EXHAUSTED: later'] * 6)
    process = cloud.relaunch('0', slice_option=TWO_HOSTS, HOSTS='1')
    assert process.returncode == 0, process.stderr
    assert len(cloud.calls('workload-policy')) == 7
    assert len(cloud.lines('runs')) == 1
