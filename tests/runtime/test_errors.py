"""Lines for users: what becomes of them where a standard stream takes nothing."""

import io
import os
import subprocess
import sys

import pytest

from bert_jax.runtime import errors
from tests.conftest import ROOT

SHOWN = 'from bert_jax.runtime.errors import show, tell; '


@pytest.mark.parametrize('stdout, stderr', [('gone', 'pipe'), ('/dev/full', 'pipe'),
                                            ('gone', '/dev/full'), ('pipe', '/dev/full')])
def test_lines_that_a_stream_does_not_take_stop_nothing(tmp_path, stdout, stderr):
    """`gone`: the reader of a pipe has ended."""
    code = f'{SHOWN}[show(str(i)) or tell("note") for i in range(3)]; open("done", "w").close()'
    streams = {}
    for name, kind in (('stdout', stdout), ('stderr', stderr)):
        if kind == 'pipe':
            streams[name] = subprocess.PIPE
        elif kind == 'gone':
            reading, writing = os.pipe()
            os.close(reading)
            streams[name] = writing
        elif not os.path.exists(kind):
            pytest.skip(f'there is no {kind} here')
        else:
            streams[name] = os.open(kind, os.O_WRONLY)
    ended = subprocess.run(
        [sys.executable, '-c', code], cwd=tmp_path, env=os.environ | {'PYTHONPATH': str(ROOT)},
        timeout=600, text=True, **streams)
    assert ended.returncode == 0 or stderr == '/dev/full'  # Python's own flush of it at the end
    assert (tmp_path / 'done').exists()
    if stderr == 'pipe':
        assert ended.stderr.count('standard output takes nothing any more') == 1
    if stdout == 'pipe':
        assert ended.stdout == '0\n1\n2\n'


def test_control_characters_do_not_reach_a_terminal(capsys):
    shown = 'a label \x1b[31m\x07 of\x9b1m \x7fa model'
    written = r'a label \x1b[31m\x07 of\x9b1m \x7fa model'
    errors.tell(f'{shown}\n\tits second line')
    errors.show(shown)
    said = capsys.readouterr()
    assert said.err == f'{written}\n\tits second line\n'
    assert said.out == f'{written}\n'


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize('stream, environment, line, shown', [
    (Terminal, {}, 'error: no', '\x1b[31merror: no\x1b[0m\n'),
    (Terminal, {}, 'warning: \x1b[32m', '\x1b[33mwarning: \\x1b[32m\x1b[0m\n'),
    (Terminal, {}, 'note: as it is', 'note: as it is\n'),
    (Terminal, {'NO_COLOR': '1'}, 'error: no', 'error: no\n'),
    (Terminal, {'TERM': 'dumb'}, 'error: no', 'error: no\n'),
    (io.StringIO, {}, 'error: no', 'error: no\n'),
])
def test_only_terminals_get_colours(stream, environment, line, shown, monkeypatch):
    monkeypatch.delenv('NO_COLOR', raising=False)
    monkeypatch.setenv('TERM', 'xterm')
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name, say in (('stdout', errors.show), ('stderr', errors.tell)):
        output = stream()
        monkeypatch.setattr(sys, name, output)
        say(line)
        assert output.getvalue() == shown


@pytest.mark.parametrize(('word', 'said'), [
    ('maen', "did you mean 'mean'?"), ('max', "choose from '', mean, cls")])
def test_a_word_for_which_another_may_be_meant(word, said):
    assert errors.nearest(word, ('', 'mean', 'cls')) == said
