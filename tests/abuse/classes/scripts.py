"""Flags of the launch scripts, which are only printed: what they print runs as it stands."""

import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from tests.abuse.classes.case import WORDS_OF_FLAGS, Case
from tests.abuse.commands import Answer
from tests.conftest import ROOT

_ODD = (
    *WORDS_OF_FLAGS, 'a\n  evil: true', '123', 'true', 'no', '0x10', 'a: b', '- a', '{a: b}', '"',
    "it's", '$(touch gone)', '`touch gone`', 'a;touch gone', 'a|b', 'a&', '>gone', 'A', 'a-', '-a',
    'a_b', 'é', 'v5e:4x4', 'v5e:0x0', 'v4:2x2x2', 'v5e:16x', 'tpu7x:1x1x1', 'v6e:4X4', 'gs://b',
    'gs://b/x y')
_OPTIONS = {
    'gke.sh': ('cluster', 'location', 'project', 'topology', 'slices', 'image', 'restarts',
               'service-account', 'tool', 'spot', 'shared-disk'),
    'tpu_vm.sh': ('zone', 'project', 'type', 'runtime', 'slices', 'valid-until', 'tool', 'spot',
                  'delete'),
    'instance_group.sh': ('zone', 'project', 'topology', 'flex-start', 'tool', 'spot',
                          'shared-disk', 'delete'),
    'slurm.sh': ('nodes', 'gpus', 'partition', 'tool', 'time'),
}
_GOOD = {'cluster': 'c', 'location': 'us-central1', 'topology': 'v5e:4x4', 'image': 'i',
         'zone': 'us-east5-a', 'project': 'p', 'type': 'v4-8', 'nodes': '2', 'gpus': '8'}
# How --help begins, of each script.
_USAGES = ('TPU slices', 'Cloud TPU slices', 'Nodes with GPUs')
_VERBS = ('create', 'run', 'run', 'run', 'delete', 'follow', 'status', 'stop', 'relaunch',
          'install', 'nope', '')


def _fault_of_dry_run(script: str, verb: str, flags: list[str], answer: Answer) -> str:
    """What a dry run printed that would not run as it stands, or ''."""
    if answer.status or answer.out.startswith(_USAGES):
        return ''
    text = answer.out
    if script == 'gke.sh' and verb == 'run':
        body = text.split("<<'EOF'\n", 1)[1].removesuffix('EOF\n')
        job = yaml.safe_load(body)
        if set(job) != {'apiVersion', 'kind', 'metadata', 'spec'}:
            return f'another YAML: {sorted(job)}'
        pod = job['spec']['replicatedJobs'][0]['template']['spec']['template']['spec']
        container = pod['containers'][0]
        for value in (job['metadata']['name'], container['image'], pod['serviceAccountName']):
            if not isinstance(value, str):
                return f'{value!r} is no text in YAML'
        if container['args'] != flags:
            return f'other flags: {container["args"]!r:.200}'
        return ''
    for line in text.splitlines():
        try:
            shlex.split(line)
        except ValueError:
            break  # a quoted word has several lines
    try:
        shlex.split(text)
    except ValueError as error:
        return f'{error}: {text[-200:]!r}'
    return ''


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A launch script with odd options, by --dry-run."""
    script = rng.choice(sorted(_OPTIONS))
    verbs = list(_VERBS)
    if script == 'slurm.sh':
        verbs.remove('install')  # which heeds no --dry-run, and would install into this .venv
    verb = rng.choice(verbs)
    options = {name: _GOOD[name] for name in _OPTIONS[script] if name in _GOOD}
    odd = [text for text in _ODD if '\0' not in text and '\udcff' not in text]
    name = 'b'
    if rng.random() < 0.3:
        name = rng.choice(odd)
    for option in rng.sample(_OPTIONS[script], rng.choice((0, 1, 1, 2))):
        options[option] = rng.choice(odd)
    words = [f'--{option}={value}' for option, value in options.items()]
    if rng.random() < 0.2:
        words.append(rng.choice(('--spot', '--nope', 'x', '--topology', '-h', '--tool')))
    flags = ['--config=c.py', '--workdir=' + rng.choice(('gs://b/r', 'gs://b/r', '/mnt/x',
                                                         'hf:a/b')),
             f'--config.data.source={rng.choice(odd)}']
    if verb not in ('run', 'relaunch') and rng.random() < 0.9:
        flags = []
    line = [f'{ROOT}/launch/{script}', verb, name, '--dry-run', *words]
    if flags:
        line += ['--', *flags]

    def run() -> None:
        ended = subprocess.run(
            ['bash', *line], stdin=subprocess.DEVNULL, capture_output=True, timeout=50)
        sys.stdout.write(ended.stdout.decode(errors='replace'))
        errors = ended.stderr.decode(errors='replace')
        # Its usage, and what the shell says; an error in one line is asked for.
        if 'launch/' in errors and 'error:' not in errors and ended.returncode == 2:
            errors = f'error: {verb} is no verb\n'
        if re.search(r'line \d+: ', errors):
            errors = f'Traceback of the shell: {errors}'
        sys.stderr.write(errors)
        sys.exit(ended.returncode)

    return Case(done=f'{line!r:.500}', act=run,
                check=lambda answer: _fault_of_dry_run(script, verb, flags, answer))
