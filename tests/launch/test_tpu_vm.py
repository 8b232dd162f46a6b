"""launch/tpu_vm.sh and on_host.sh against a stand-in gcloud, whose slice is a folder."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

LAUNCH = Path(__file__).resolve().parents[2] / 'launch'

# Keeps the slice's state in `slice`; a slice that is asked for waits for one look. The host is a
# home directory; what runs there dies with the slice.
GCLOUD = r'''#!/usr/bin/env bash
cd "$CLOUD"
for argument in "$@"; do printf '%s\n' "${argument//$'\n'/ }"; done | paste -sd '\t' >> calls
end_host() { [ ! -e home/.bert_jax/pid ] || kill -9 -- "-$(cat home/.bert_jax/pid)"; rm -rf home; }
case "$3 $4" in
  'queued-resources describe')
    [ -e slice ] || { echo 'ERROR: (gcloud) NOT_FOUND: no such resource' >&2; exit 1; }
    cat slice
    if [ "$(cat slice)" = WAITING_FOR_RESOURCES ]; then echo ACTIVE > slice; mkdir home; fi ;;
  'queued-resources create')
    case $* in *--help*) echo "$HELP"; exit ;; esac
    [ ! -e slice ] || exit 1
    if [ -s refusals ]; then head -n 1 refusals >&2; sed -i 1d refusals; exit 1; fi
    echo "${AFTER_CREATE:-WAITING_FOR_RESOURCES}" > slice ;;
  'queued-resources delete') end_host; rm -f slice gone dying ;;
  'queued-resources scp') cp "$5" "home/${6#*:}" ;;
  'queued-resources ssh')
    [ ! -e gone ] && [ ! -e deaf ] || exit 255
    case $* in *--worker=all*)
      [ ! -e dying ] || exit 255
      if [ -e half ] && [[ $* == *' start '* ]]; then rm half; half=1; fi ;;
    esac
    for argument in "$@"; do
      case $argument in
        --command=*)
          (cd home; HOME=$PWD exec bash -c "${argument#*=}"); exit $(($? + ${half:-0})) ;;
      esac
    done ;;
  'tpu-vm describe')
    if [ -e dying ]; then echo SUSPENDED > slice; fi
    if [ -e gone ] || [ -e dying ]; then echo PREEMPTED; else echo READY; fi ;;
esac
'''
# A run does what the next line of `plan` says: ends with that status, or waits, or its slice is
# taken away (preempt: as the queued resource says; gone: as only the node says; notice: it saves
# first, and no command is taken any more), or is killed.
PYTHON = r'''#!/usr/bin/env bash
module=$2
shift 2
[ "$module" = bert_jax.main ] || echo "$module" >> "$CLOUD/runs"
echo "$*" >> "$CLOUD/runs"
todo=$(head -n 1 "$CLOUD/plan")
sed -i 1d "$CLOUD/plan"
trap 'echo saved; exit 143' TERM
echo hello from the run
case $todo in
  [0-9]*) exit "$todo" ;;
  preempt) echo SUSPENDED > "$CLOUD/slice" ;;
  gone) touch "$CLOUD/gone" ;;
  notice) touch "$CLOUD/dying"; exit 143 ;;
  killed) kill -9 0 ;;
esac
while true; do sleep 0.05; done
'''
FLAGS = ['--', '--config=configs/tiny_pretrain.py', '--workdir=gs://bucket/a run']


class Cloud:
    """A slice behind the stand-in, and the script that asks for it."""

    def __init__(self, folder, checkout):
        self.folder, self.checkout = folder, checkout

    def start(self, *arguments, **environment):
        environment = os.environ | {
            'PATH': f'{self.checkout}/bin:{os.environ["PATH"]}', 'CLOUD': str(self.folder),
            'POLL_SECONDS': '0.1', 'HELP': '', **environment,
        }
        return subprocess.Popen(
            [self.checkout / 'launch' / 'tpu_vm.sh', *arguments], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )

    def run(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        output, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def plan(self, *todo):
        (self.folder / 'plan').write_text(''.join(f'{line}\n' for line in todo))

    @property
    def runs(self):
        path = self.folder / 'runs'
        return path.read_text().splitlines() if path.exists() else []

    def calls(self, verb):
        path = self.folder / 'calls'
        calls = path.read_text().splitlines() if path.exists() else []
        return [call.split('\t') for call in calls
                if call.split('\t')[3] == verb and '--help' not in call]


@pytest.fixture(scope='module')
def checkout(tmp_path_factory):
    """The scripts in a checkout; the stand-ins in its bin."""
    folder = tmp_path_factory.mktemp('checkout')
    shutil.copytree(LAUNCH, folder / 'launch')
    (folder / 'launch' / 'venv.sh').write_text('echo made .venv\n')
    (folder / 'bin').mkdir()
    for name, script in (('gcloud', GCLOUD), ('python', PYTHON)):
        (folder / 'bin' / name).write_text(script)
        (folder / 'bin' / name).chmod(0o755)
    for command in ('init -q', 'add .', '-c user.name=a -c user.email=b commit -qm c'):
        subprocess.run(['git', *command.split()], cwd=folder, check=True)
    return folder


@pytest.fixture
def cloud(tmp_path, checkout):
    cloud = Cloud(tmp_path, checkout)
    yield cloud
    if (tmp_path / 'home').exists():
        cloud.run('delete', 'bert')


def _wait(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, 'it did not happen'
        time.sleep(0.02)


@pytest.mark.parametrize(('options', 'flags'), [
    (['--type=v5litepod-256'], ['--accelerator-type=v5litepod-256',
                                '--runtime-version=v2-alpha-tpuv5-lite', '--node-id=bert']),
    (['--type=v5p-128', '--zone=z', '--project=p', '--valid-until=6h'],
     ['--accelerator-type=v5p-128', '--runtime-version=v2-alpha-tpuv5', '--node-id=bert',
      '--valid-until-duration=6h', '--zone=z', '--project=p']),
    (['--type=v6e-16', '--spot', '--slices=2'],
     ['--accelerator-type=v6e-16', '--runtime-version=v2-alpha-tpuv6e', '--node-count=2',
      '--node-prefix=bert', '--spot']),
    (['--type=v4-32', '--runtime=mine'],
     ['--accelerator-type=v4-32', '--runtime-version=mine', '--node-id=bert']),
    (['--type=v3-8'], ['--accelerator-type=v3-8', '--runtime-version=tpu-ubuntu2204-base',
                       '--node-id=bert']),
])
def test_create_asks_for_the_slice_and_waits_until_it_is_there(cloud, options, flags):
    process = cloud.run('create', 'bert', *options)
    assert process.returncode == 0, process.stderr
    command = ['compute', 'tpus', 'queued-resources', 'create', 'bert']
    assert cloud.calls('create') == [[*command, *flags, '--quiet']]
    assert re.findall('bert is .*', process.stderr) == [
        'bert is WAITING_FOR_RESOURCES', 'bert is ACTIVE']


def test_steps_one_by_one(cloud):
    cloud.run('create', 'bert', '--type=v5litepod-16')
    assert cloud.run('install', 'bert', TPU_SSH_FLAGS='--tunnel-through-iap').returncode == 0
    assert cloud.calls('scp')[0][-5:] == [
        'bert:bert_jax.tar.gz', '--node=all', '--worker=all', '--tunnel-through-iap', '--quiet']
    assert {'--node=all', '--worker=all', '--tunnel-through-iap'} < set(cloud.calls('ssh')[0])

    cloud.plan('wait', 'wait')
    assert cloud.run('run', 'bert', *FLAGS).returncode == 0
    _wait(lambda: cloud.runs)
    assert cloud.runs == [' '.join(FLAGS[1:])]
    cloud.run('run', 'bert', *FLAGS, '--config.seed=1')  # a new run stops the old one
    _wait(lambda: len(cloud.runs) == 2)
    assert 'saved' in (cloud.folder / 'home/.bert_jax/log').read_text()
    assert cloud.run('status', 'bert').stdout == 'ACTIVE\nrunning\n'
    pid = int((cloud.folder / 'home/.bert_jax/pid').read_text())
    assert os.getsid(pid) == pid  # a session of its own: the connection's end does not end it

    following = cloud.start('follow', 'bert')
    assert cloud.run('stop', 'bert').returncode == 0
    output, _ = following.communicate(timeout=20)  # it ends with the run
    assert 'hello from the run\n' in output and output.endswith('saved\n')
    assert cloud.run('status', 'bert').stdout == 'ACTIVE\nstopped\n'

    assert cloud.run('delete', 'bert').returncode == 0
    assert cloud.calls('delete') == [
        ['compute', 'tpus', 'queued-resources', 'delete', 'bert', '--force', '--quiet']]


@pytest.mark.parametrize(('plan', 'status', 'slices', 'runs'), [
    (['0'], 0, 1, 1),
    (['preempt', '143', '1', 'gone', 'killed', '0'], 0, 3, 6),
    (['143', '2'], 2, 1, 2),
    (['1'] * 9, 1, 1, 5),
    (['notice'] * 7 + ['0'], 0, 8, 8),  # however often: it saved each time
])
def test_relaunch_goes_on_until_the_run_is_done(cloud, plan, status, slices, runs):
    cloud.plan(*plan)
    process = cloud.run('relaunch', 'bert', '--type=v5litepod-16', '--spot', *FLAGS)
    assert process.returncode == status, process.stderr
    assert len(cloud.calls('create')) == slices
    assert len(cloud.calls('scp')) == slices  # a new slice has no code, a used one has
    assert len(cloud.calls('delete')) == slices - 1
    assert cloud.runs == [' '.join(FLAGS[1:])] * runs
    assert 'still costs: tpu_vm.sh delete bert' in process.stderr


def test_relaunch_joins_a_run_that_is_going_on(cloud):
    cloud.plan('wait')
    first = cloud.start('relaunch', 'bert', '--type=v4-8', *FLAGS)
    _wait(lambda: cloud.runs)
    first.send_signal(signal.SIGTERM)  # whoever watched is gone
    first.communicate(timeout=20)
    other = cloud.run('relaunch', 'bert', '--type=v4-8', *FLAGS, '--config.seed=1')
    assert other.returncode == 2 and 'runs something else' in other.stderr
    second = cloud.start('relaunch', 'bert', '--type=v4-8', '--delete', *FLAGS)
    assert 'bert is ACTIVE' in second.stderr.readline()
    assert 'the run is going on' in second.stderr.readline()
    cloud.plan('0')
    os.killpg(int((cloud.folder / 'home/.bert_jax/pid').read_text()), signal.SIGTERM)
    second.communicate(timeout=20)
    assert second.returncode == 0 and len(cloud.runs) == 2
    assert len(cloud.calls('delete')) == 1 and not (cloud.folder / 'slice').exists()


def test_a_stop_beside_a_relaunch_ends_it(cloud):
    cloud.plan('wait')
    relaunch = cloud.start('relaunch', 'bert', '--type=v4-8', *FLAGS)
    _wait(lambda: cloud.runs)
    assert cloud.run('stop', 'bert').returncode == 0
    _, errors = relaunch.communicate(timeout=20)
    assert relaunch.returncode == 143 and 'the run was stopped by tpu_vm.sh stop' in errors
    assert len(cloud.runs) == 1 and cloud.run('status', 'bert').stdout == 'ACTIVE\nstopped\n'
    cloud.plan('0')  # asked for again, it is started again
    assert cloud.run('relaunch', 'bert', '--type=v4-8', *FLAGS).returncode == 0


def test_a_slice_without_ssh_is_named_and_given_back(cloud):
    (cloud.folder / 'deaf').touch()
    process = cloud.run('relaunch', 'bert', '--type=v4-8', *FLAGS, UNREACHABLE_SECONDS='1')
    assert process.returncode == 1
    assert 'the first host of bert does not answer' in process.stderr
    assert process.stderr.count('first host cannot be reached by ssh') == 5
    assert len(cloud.calls('delete')) == 4  # the fifth is left to whoever looks into it


@pytest.mark.parametrize(('refusals', 'after', 'status', 'requests'), [
    (['ERROR: UNAVAILABLE: try again later'] * 7, '', 0, 8),
    (['ERROR: PERMISSION_DENIED: not yours'] * 9, '', 1, 5),
    ([], 'FAILED', 1, 5),
])
def test_requests_are_made_again_while_the_service_is_away(
        cloud, refusals, after, status, requests):
    (cloud.folder / 'refusals').write_text(''.join(f'{line}\n' for line in refusals))
    cloud.plan('0')
    process = cloud.run('relaunch', 'bert', '--type=v4-8', *FLAGS, AFTER_CREATE=after)
    assert process.returncode == status and len(cloud.calls('create')) == requests
    assert ''.join(refusals[:status]) in process.stderr


def test_hosts_that_started_by_half_are_started_anew(cloud):
    (cloud.folder / 'half').touch()  # one of them refuses the first start
    cloud.plan('wait', '0')
    process = cloud.run('relaunch', 'bert', '--type=v4-8', *FLAGS)
    assert process.returncode == 0, process.stderr
    assert 'installation or start failed (1 of 5' in process.stderr
    assert len(cloud.calls('scp')) == 2 and len(cloud.runs) == 2


def test_a_sweep_is_started_in_place_of_a_run(cloud):
    cloud.plan('0')
    process = cloud.run('relaunch', 'bert', '--type=v4-8', '--tool=sweep', *FLAGS)
    assert process.returncode == 0, process.stderr
    assert cloud.runs == ['bert_jax.tools.sweep', ' '.join(FLAGS[1:])]
    assert cloud.run('run', 'bert', '--tool=x', *FLAGS).returncode == 2


@pytest.mark.parametrize(('slice_type', 'knows', 'asked'), [
    ('v5litepod-16', '--autocheckpoint-enabled', True), ('v5litepod-16', '', False),
    ('v6e-16', '--autocheckpoint-enabled', False),
])
def test_time_to_save_before_maintenance_is_asked_for(cloud, slice_type, knows, asked):
    cloud.run('create', 'bert', f'--type={slice_type}', HELP=knows)
    assert ('--autocheckpoint-enabled' in cloud.calls('create')[-1]) == asked


@pytest.mark.parametrize('verb', ['create', 'install', 'run', 'follow', 'status', 'relaunch',
                                  'stop', 'delete'])
def test_dry_run_prints_commands_and_runs_none(cloud, verb):
    flags = FLAGS if verb in ('run', 'relaunch') else []
    if verb == 'run':  # a local --workdir is taken where the disk is shared
        shared = ['--shared-disk', '--dry-run', '--', '--config=x', '--workdir=/mnt/x']
        assert cloud.run('run', 'bert', *shared).returncode == 0
    process = cloud.run(verb, 'bert', '--type=v4-8', '--dry-run', *flags)
    assert process.returncode == 0, process.stderr
    assert not (cloud.folder / 'calls').exists()
    # What is printed is what runs: a shell makes the same calls of it.
    commands = [line for line in process.stdout.splitlines() if line.startswith('gcloud ')]
    (cloud.folder / 'slice').write_text('ACTIVE\n')
    (cloud.folder / 'home').mkdir()
    environment = os.environ | {'PATH': f'{cloud.checkout}/bin:/usr/bin:/bin',
                                'CLOUD': str(cloud.folder)}
    subprocess.run(['bash', '-c', '\n'.join(commands)], env=environment, capture_output=True,
                   timeout=20)
    calls = (cloud.folder / 'calls').read_text().splitlines()
    assert len(calls) == len(commands) > 0
    if verb == 'run':
        assert "'--workdir=gs://bucket/a run'" in calls[0]


@pytest.mark.parametrize(('arguments', 'message'), [
    (['create', 'bert'], '--type is missing'),
    (['create', 'bert', '--type=v9-8'], '--type=v9-8: no TPU software version'),
    (['create', 'bert', '--type=v4-8', '--slices=none'], '--slices=none'),
    (['create', '--type=v4-8'], 'name the slice'),
    (['create', 'bert', '--type=v4-8', '--config=x'], '--config=x is not an option'),
    (['install', 'bert', *FLAGS], 'install takes no flags'),
    (['run', 'bert'], '--workdir is missing'),
    (['run', 'bert', '--', '--config=x', '--workdir=runs/x'], '--workdir=runs/x: the hosts share'),
    (['run', 'bert', '--', '--config=x', '--workdir', '/tmp/x'], '--workdir=/tmp/x: the hosts sha'),
    (['relaunch', 'bert', *FLAGS], '--type is missing'),
])
def test_a_wrong_call_is_refused_in_one_line(cloud, arguments, message):
    process = cloud.run(*arguments)
    assert process.returncode == 2
    assert process.stderr.startswith('error: ') and process.stderr.count('\n') == 1
    assert message in process.stderr
    assert not (cloud.folder / 'calls').exists()
