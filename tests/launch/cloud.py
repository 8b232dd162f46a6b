"""A slice behind a stand-in gcloud: a folder in which its hosts are home directories."""

import os
import shutil
import subprocess

from tests.conftest import ROOT

FLAGS = ['--', '--config=configs/tiny_pretrain.py', '--workdir=gs://bucket/a run']
RUN = ' '.join(FLAGS[1:])


class Cloud:
    """A slice behind the stand-in, and the script that asks for it.

    Attributes:
      folder: the stand-in's.
      checkout: from `make_checkout`.
      script: its name.
      options: that each call of it gets.
    """

    def __init__(self, folder, checkout, script, options=()):
        self.folder = folder
        self.checkout = checkout
        self.script = script
        self.options = options

    def start(self, verb, *arguments, **environment):
        environment = os.environ | {
            'PATH': f'{self.checkout}/bin:{os.environ["PATH"]}', 'CLOUD': str(self.folder),
            'POLL_SECONDS': '0.1', 'HELP': '', **environment,
        }
        name, *others = arguments
        command = [self.checkout / 'launch' / self.script, verb, name, *self.options, *others]
        return subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def relaunch(self, *plan, options=(), slice_option='--type=v4-8', **environment):
        self.write('plan', plan)
        return self.run('relaunch', 'bert', slice_option, *options, *FLAGS, **environment)

    def write(self, name, lines):
        (self.folder / name).write_text(''.join(f'{line}\n' for line in lines))

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def calls(self, verb):
        """The calls of gcloud with this subcommand, a list of words each."""
        calls = [call.split('\t') for call in self.lines('calls')]
        return [call for call in calls if verb in call[1:5] and '--help' not in call]


def commit(folder, *changed):
    """Commits files of a checkout."""
    git = ['git', '-c', 'user.name=a', '-c', 'user.email=b']
    subprocess.run([*git, 'add', *changed], cwd=folder, check=True)
    subprocess.run([*git, 'commit', '-qm', 'c', '--', *changed], cwd=folder, check=True)


def make_checkout(folder, gcloud):
    """The scripts in a checkout in `folder`; the stand-ins in its bin, with this gcloud."""
    shutil.copytree(ROOT / 'launch', folder / 'launch')
    (folder / 'launch' / 'venv.sh').write_text('echo made .venv\n')
    (folder / 'bin').mkdir()
    standins = ROOT / 'tests' / 'launch' / 'standins'
    shutil.copy(standins / 'python', folder / 'bin')
    shutil.copy(standins / gcloud, folder / 'bin' / 'gcloud')
    for command in ('init -q', 'add .', '-c user.name=a -c user.email=b commit -qm c'):
        subprocess.run(['git', *command.split()], cwd=folder, check=True)
    return folder
