"""The campaign of kills has all commands."""

from tests.abuse.writers import WRITERS
from tests.conftest import ROOT


def test_every_command_of_the_package_is_killed():
    commands = set()
    for path in (ROOT / 'bert_jax').rglob('*.py'):
        is_command = "\nif __name__ == '__main__':" in path.read_text()
        if is_command:
            commands.add(path.parent.name if path.stem == '__main__' else path.stem)
    commands.remove('bert_jax')  # which starts the others
    assert {writer.line.split()[0] for writer in WRITERS.values()} == commands
