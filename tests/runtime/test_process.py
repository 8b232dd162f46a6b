"""How commands end: one line and an exit status."""

import errno
import os
import signal

import pytest
from jax.errors import JaxRuntimeError

from bert_jax.runtime import files
from bert_jax.runtime.errors import (
    Diverged,
    FaultyChip,
    InputError,
    SaveFailed,
    Stopped,
    Unavailable,
)
from bert_jax.runtime.process import describe_error, error_boundary
from tests.conftest import run_python

GCSFS_ERROR = type('HttpError', (Exception,), {'__module__': 'gcsfs.retry'})


@pytest.mark.parametrize('error, status, words', [
    (OSError('Forbidden: b/x/o\nrefused'), 1, 'a bucket refuses or is away (Forbidden: b/x/o)'),
    (GCSFS_ERROR('later, 503'), 1, 'is away (later, 503)'),
    (ValueError('UNAVAILABLE: Error writing "x/manifest"'), 1, 'goes on from its last checkpoint'),
    (ValueError("PERMISSION_DENIED: Failed to open [os_error_code='13']"), 2, 'the rights to it'),
    (JaxRuntimeError('UNKNOWN: Gloo all-reduce failed: [x.cc:5] Connection closed by peer [::1]:8'),
     1, 'another host ended or cannot be reached (UNKNOWN: Gloo'),
    (type('XlaRuntimeError', (RuntimeError,), {})('UNKNOWN: [x.cc:5] Connection reset by peer'),
     1, 'another host ended or cannot be reached (UNKNOWN: [x'),
    (SaveFailed('the checkpoint of step 7 cannot be saved: why'), 1, 'of step 7 cannot be saved'),
    (Unavailable('gs://x cannot be reached'), 1, 'gs://x cannot be reached'),
    (ValueError('7 is no rate'), 1, 'this may be a fault of bert_jax'),
    (InputError('no such file'), 2, 'no such file'),
    (KeyboardInterrupt(), 130, 'stopped'),
    (Diverged('step 7: loss nan', 7), 3, 'step 7: loss nan'),
    (FaultyChip('TPU_5 of host 1 computes wrongly', 7), 1, 'TPU_5 of host 1'),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), '/x'), 1, 'the disk of /x is full'),
    (PermissionError(errno.EACCES, 'Permission denied', '/x'), 2, '/x: Permission denied: check'),
    (OSError(errno.EIO, 'Input/output error', '/x'), 1, 'the disk or network that it is on fails'),
    (OSError(errno.EFBIG, os.strerror(errno.EFBIG), '/x'), 1, 'ulimit -f unlimited'),
    (Stopped('stopped'), 143, 'stopped'),
    (MemoryError(), 1, 'out of memory (MemoryError)'),
    (RuntimeError('RESOURCE_EXHAUSTED: 9 GB\nof 8'), 1, 'out of memory (RESOURCE_EXHAUSTED: 9 GB)'),
    (RuntimeError("Unable to initialize backend 'tpu'"), 2, 'set JAX_PLATFORMS=cpu'),
    (UnicodeDecodeError('ascii', b'x', 0, 1, 'no'), 2, 'set PYTHONUTF8=1'),
])
def test_an_error_is_one_line_and_a_status(tmp_path, error, status, words):
    line, found = describe_error(error, log_folder=files.as_path(tmp_path))
    assert found == status and words in line and '\n' not in line


def test_a_full_disk_is_that_of_the_file_that_is_written(capsys):
    with pytest.raises(SystemExit), error_boundary(writing='vectors.npz'):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert 'the disk of vectors.npz is full' in capsys.readouterr().err


def test_a_device_that_does_not_start_is_bad_input_only_with_jax_platforms(monkeypatch):
    monkeypatch.delenv('JAX_PLATFORMS', raising=False)
    error = RuntimeError("Unable to initialize backend 'tpu': UNAVAILABLE: busy")
    line, status = describe_error(error)
    assert status == 1 and 'JAX_PLATFORMS' not in line


def test_a_platform_without_a_device_is_one_line(monkeypatch):
    """jax asserts that there is one, such as a GPU where JAX_PLATFORMS=cuda."""
    code = compile('assert False', '/lib/jax/_src/xla_bridge.py', 'exec')
    with pytest.raises(AssertionError) as found:
        exec(code)
    monkeypatch.setenv('JAX_PLATFORMS', 'cuda')
    line, status = describe_error(found.value)
    assert status == 2 and 'set JAX_PLATFORMS=cpu' in line
    _, status = describe_error(AssertionError())  # of another file
    assert status == 1


@pytest.mark.parametrize('command', ['main', 'tools.preflight'])
def test_a_command_says_which_required_package_is_missing(command):
    code = (f'import runpy, sys; sys.modules["ml_collections"] = None; '
            f'runpy.run_module("bert_jax.{command}", run_name="__main__")')
    ended = run_python('-c', code)
    assert ended.returncode == 1
    assert ended.stderr.startswith('error: ml_collections is not installed: python -m pip ')
    assert ended.stderr.count('\n') == 1


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_in_one_line(number, capsys):
    before = signal.signal(number, signal.SIG_DFL)  # tests under nohup ignore SIGHUP
    try:
        with pytest.raises(SystemExit) as ended, error_boundary():
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert ended.value.code == 143
    assert capsys.readouterr().err == 'error: stopped\n'


def test_a_command_under_nohup_goes_on():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with error_boundary():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sigterm_ends_a_command_that_does_not_come_back_to_python(tmp_path):
    ended = run_python('-c', f"""
import hashlib, os, signal, tempfile, threading
from bert_jax.runtime import files, process

tempfile.tempdir = '{tmp_path}'
folder = files.temporary_folder()
process._PATIENCE_SECONDS = 0.2
with process.error_boundary():
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
    hashlib.pbkdf2_hmac('sha256', b'', b'', 2**30)  # some minutes, as a compilation
""")
    assert (ended.returncode, ended.stderr) == (143, 'error: stopped\n')
    assert not list(tmp_path.iterdir())


def test_sigterm_of_a_fork_does_not_end_the_command():
    ended = run_python('-c', """
import os, signal, time
from bert_jax.runtime import process

process._PATIENCE_SECONDS = 0.2
with process.error_boundary():
    child = os.fork()
    if not child:
        time.sleep(60)
    time.sleep(0.3)
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    time.sleep(0.5)
    print('done')
""")
    assert (ended.returncode, ended.stdout) == (0, 'done\n')


def test_ctrl_c_is_one_line_also_while_a_command_imports():
    code = ("import sys; sys.orig_argv = ['python', '-m', 'bert_jax.predict']; import bert_jax; "
            'raise KeyboardInterrupt')
    ended = run_python('-c', code)
    assert ended.returncode in (-signal.SIGINT, 130)
    assert ended.stderr == 'error: stopped\n'
    ended = run_python('-c', 'import bert_jax; raise KeyboardInterrupt')
    assert 'Traceback' in ended.stderr  # somebody's own program is left alone
