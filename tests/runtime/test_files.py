"""Paths on a disk and in a bucket behave the same; a bucket's faults are reported in one line."""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
import time
import types
import zipfile
from unittest import mock

import pytest

from bert_jax.runtime import buckets, files
from bert_jax.runtime.errors import InputError, Unavailable
from tests.refusals import refused


def test_a_file_is_replaced_whole_or_stays_and_nothing_is_left_beside_it(folder):
    assert files.children(folder / 'none') == []
    files.write_whole(folder / 'a.txt', 'Größe\n')
    assert (folder / 'a.txt').read_text() == 'Größe\n'
    files.write_whole(folder / 'a.txt', b'before')
    with pytest.raises(RuntimeError), files.open_whole(folder / 'a.txt') as file:
        file.write(b'after')
        raise RuntimeError
    with pytest.raises(UnicodeEncodeError):
        files.write_whole(folder / 'a.txt', 'after \ud800')
    assert (folder / 'a.txt').read_bytes() == b'before'
    assert [path.name for path in files.children(folder)] == ['a.txt']


@pytest.mark.parametrize(('pattern', 'names'), [
    ('*.txt', ['a.txt', 'b[1].txt']),
    ('**/*.txt', ['a.txt', 'b[1].txt', 'c/d.txt']),
    ('b[1].txt', ['b[1].txt']),  # exists, so it is taken literally
    ('[ab]*.txt', ['a.txt', 'b[1].txt']),
    ('*', ['a.txt', 'b[1].txt']),
    ('c', []),
    ('none', []),
])
def test_find(folder, pattern, names):
    (folder / 'c').mkdir(parents=True, exist_ok=True)
    for name in ('a.txt', 'b[1].txt', 'c/d.txt'):
        files.write_whole(folder / name, name)
    found = files.find(f'{folder}/{pattern}')
    assert [file.path for file in found] == [f'{folder}/{name}' for name in names]
    assert [file.size for file in found] == [len(name) for name in names]


def test_local_copies_of_a_folder_lie_in_a_folder(folder):
    for name in ('a', 'b'):
        files.write_whole(folder / name, name)
    copies = [files.local_copy(folder / name) for name in ('a', 'b')]
    assert [pathlib.Path(copy).read_text() for copy in copies] == ['a', 'b']
    assert len({copy.parent for copy in copies}) == 1


def test_checksums_of_objects_follow_their_content(bucket):
    folder = files.as_path(bucket) / 'folder'
    for name, content in (('a', 'x'), ('b', 'x'), ('c', 'y')):
        files.write_whole(folder / name, content)
    a, b, c = (file.checksum for file in files.find(f'{folder}/*'))
    assert a == b != c


@pytest.fixture
def grown(bucket):
    """An object in a folder, with eight bytes."""
    path = files.as_path(bucket) / 'folder with space' / 'a+b.jsonl'
    files.write_whole(path, b'{"a": 1}')
    return path


def test_appending_sends_only_what_is_new(grown, bucket_name, bucket_server):
    files.write_whole(grown, bytes(1_000_000))
    before = bucket_server.received[bucket_name]
    assert files.append(grown, b'bcd', 1_000_000)
    assert bucket_server.received[bucket_name] - before < 1000
    assert grown.read_bytes() == bytes(1_000_000) + b'bcd'
    assert files.append(grown, b'e', 1_000_003)
    assert grown.read_bytes()[-4:] == b'bcde'
    assert [path.name for path in files.children(grown.parent)] == [grown.name]


@pytest.mark.parametrize('size', [0, 7, 9])
def test_an_object_of_another_size_is_not_appended_to(grown, size):
    assert not files.append(grown, b'bcd', size)
    assert not files.append(grown.parent / 'missing', b'bcd', size)
    assert grown.read_bytes() == b'{"a": 1}'


@pytest.mark.parametrize('pattern', [
    'POST /upload/.*/b/{}/', '/b/{}/.*/compose', 'DELETE .*/b/{}/'])
def test_an_answer_that_is_lost_while_appending_doubles_nothing(
        grown, bucket_name, bucket_server, pattern):
    bucket_server.lost.append(pattern.format(bucket_name))
    assert files.append(grown, b'bcd', 8)
    assert not bucket_server.lost
    assert grown.read_bytes() == b'{"a": 1}bcd'


@pytest.mark.parametrize('status', [400, 403, 404, 412])
def test_a_bucket_that_cannot_join_objects_is_not_appended_to(
        grown, bucket_name, bucket_server, status):
    with mock.patch.object(bucket_server, 'faults', {f'/b/{bucket_name}/.*/compose': status}):
        assert not files.append(grown, b'bcd', 8)
    assert grown.read_bytes() == b'{"a": 1}'


@pytest.fixture
def console_folder(bucket, bucket_name, bucket_server):
    """(A folder in a bucket as the Cloud console makes it, with a file; all objects by name)."""
    folder = files.as_path(bucket) / 'folder'
    files.write_whole(folder / 'a', 'x')
    objects = bucket_server.storage.objects[bucket_name]
    objects['folder/'] = objects['folder/a'] | {'name': 'folder/'}
    return folder, objects


def test_a_listing_shows_what_another_process_wrote(console_folder):
    folder, objects = console_folder
    assert [path.name for path in files.children(folder)] == ['a']
    objects['folder/d'] = objects['folder/a'] | {'name': 'folder/d'}  # made without gcsfs
    assert [path.name for path in files.children(folder)] == ['a', 'd']
    assert (folder / 'd').exists()


def test_an_empty_folder_of_the_console_may_be_written(console_folder):
    folder, objects = console_folder
    del objects['folder/a']
    assert files.open_folder(folder, '--workdir', lambda _: False) == folder


@pytest.fixture
def quick(monkeypatch):
    """Waits of tenths of seconds, not minutes; libraries try again without a pause."""
    import gcsfs.retry

    async def at_once(seconds):
        pass

    monkeypatch.setattr(gcsfs.retry, 'asyncio', types.SimpleNamespace(sleep=at_once))
    monkeypatch.setattr(buckets, 'REFUSED_SECONDS', 0.1)
    monkeypatch.setattr(buckets, 'UNREACHABLE_SECONDS', 0.3)


@pytest.mark.parametrize('status', [401, 403, 429, 500, 503])
def test_a_transient_fault_of_a_bucket_is_waited_out(
    bucket, bucket_name, bucket_server, monkeypatch, quick, capsys, status
):
    monkeypatch.setattr(bucket_server, 'faults', {f'/b/{bucket_name}/o': status})
    # The module's own clock, not that of all threads.
    monkeypatch.setattr(buckets, 'time', types.SimpleNamespace(
        monotonic=lambda: 0.0, sleep=lambda seconds: bucket_server.faults.clear()))
    files.as_path(f'{bucket}/x')
    assert f'waiting for {bucket} (' in capsys.readouterr().err


def test_an_unreachable_bucket_is_no_bad_input(
        bucket, bucket_name, bucket_server, monkeypatch, quick):
    monkeypatch.setattr(bucket_server, 'faults', {f'/b/{bucket_name}': 503})
    for use in (files.as_path, files.check_deletion):
        with pytest.raises(Unavailable, match=f'^{bucket} cannot be reached'):
            use(f'{bucket}/x')
    monkeypatch.setenv('STORAGE_EMULATOR_HOST', 'http://127.0.0.1:1')
    with pytest.raises(Unavailable, match=r'^gs://away cannot be reached \(.*\): check the netw'):
        files.as_path('gs://away/x')


def test_an_unusable_bucket_is_refused_with_a_remedy(
        bucket, bucket_name, bucket_server, monkeypatch, quick):
    with pytest.raises(InputError, match='^gs://no-such: there is no such bucket: .* gcloud'):
        files.as_path('gs://no-such/x')
    monkeypatch.setattr(bucket_server, 'faults', {f'/b/{bucket_name}/o': 403})
    with pytest.raises(InputError, match=f'^{bucket}: no permission .* Storage Object Admin'):
        files.as_path(f'{bucket}/x')
    monkeypatch.setitem(sys.modules, 'gcsfs', None)
    with pytest.raises(InputError, match=r"^gs://other is a bucket, .* pip install '.*\[gcs\]'$"):
        files.as_path('gs://other/x')


@pytest.mark.parametrize('path', [
    'gs://', 'gs:///x', 'gs:/b/x', 'GS://b/x', 's3://b/x', 's3:/b/x', 'hdfs://host/x',
    'https://storage.googleapis.com/b/x', 'file:///x',
])
@pytest.mark.parametrize('use', [files.as_path, files.find, files.check_scheme])
def test_any_other_scheme_is_refused_at_once(path, use):
    with pytest.raises(InputError, match=f'^{path}: .* gs://BUCKET/PATH$'):
        use(path)


def test_leftovers_of_killed_processes_are_removed_after_a_day(tmp_path):
    def leave(name, age):
        path = tmp_path / name
        path.write_text('x')
        os.utime(path, (time.time() - age, time.time() - age))

    day = 86_400
    old = files.temporary_name(files.as_path(tmp_path / 'a.json'))
    leave(old.name, 2 * day)
    leave('.a.json.0123456789abcdef.tmp', 60)  # perhaps still being written
    kept = ('a.json', '.a.json.tmp', '.a.json.1234.tmp', 'x.0123456789abcdef.tmp')
    for name in kept:
        leave(name, 2 * day)
    folder = tmp_path / '.model.0123456789abcdef.tmp'
    folder.mkdir()
    os.utime(folder, (0, 0))
    link = tmp_path / '.link.0123456789abcdef.tmp'
    link.symlink_to(tmp_path / 'a.json')
    os.utime(link, (0, 0), follow_symlinks=False)
    files.remove_leftovers(files.as_path(tmp_path), 'a.json')
    assert not old.exists()
    assert folder.exists()
    files.remove_leftovers(files.as_path(tmp_path))
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == sorted([*kept, '.a.json.0123456789abcdef.tmp'])


def test_temporary_folders_go_with_their_owner_or_before_a_process_ends_at_once():
    with files.temporary_folder() as gone:
        assert os.path.isdir(gone)
    assert not os.path.exists(gone)
    kept = files.temporary_folder()
    shared = files._local_folder()
    interrupted = tempfile.mkdtemp(prefix=files._temporary_prefix(os.getpid()))
    files.remove_temporary_folders()
    for name in (kept.name, shared, interrupted):
        assert not os.path.exists(name)
    assert os.path.isdir(files._local_folder())


def test_writing_a_file_again_removes_what_a_killed_process_left_of_it(tmp_path):
    mine = tmp_path / '.a.json.0123456789abcdef.tmp'
    other = tmp_path / '.b.json.0123456789abcdef.tmp'
    for path in (mine, other):
        path.write_text('half')
        os.utime(path, (0, 0))
    files.write_whole(tmp_path / 'a.json', '{}')
    assert [path.name for path in tmp_path.iterdir()] == ['a.json']
    mine.write_text('half')
    os.utime(mine, (0, 0))
    files.write_whole(tmp_path / 'a.json', '{}')  # once in a process: listing a folder takes time
    assert mine.exists()
    files.open_folder(tmp_path, '--workdir', lambda folder: True)
    assert [path.name for path in tmp_path.iterdir()] == ['a.json']


def test_no_link_is_followed_that_lies_at_a_temporary_name(tmp_path, monkeypatch):
    monkeypatch.setattr(files.secrets, 'token_hex', lambda num_bytes: '0' * 16)
    (tmp_path / 'mine').write_text('mine')
    (tmp_path / '.a.0000000000000000.tmp').symlink_to(tmp_path / 'mine')
    with pytest.raises(FileExistsError):
        files.write_whole(tmp_path / 'a', 'new')
    assert (tmp_path / 'mine').read_text() == 'mine'


# Files without an end, names that are none, archives that are not what they seem.

def test_a_named_pipe_or_a_device_is_refused(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    for path, says in ((tmp_path / 'pipe', 'is a named pipe'), ('/dev/zero', 'is a device')):
        with refused(path, says):
            files.read_bytes(files.as_path(path))
        with refused(path, says), files.open_stream(path):
            pass
        with refused(path, says):
            files.local_copy(path)


def test_what_the_shell_passes_on_is_read():
    reading, writing = os.pipe()
    os.write(writing, b'a text')
    os.close(writing)
    with files.open_stream(f'/dev/fd/{reading}') as file:
        assert file.read() == b'a text'
    os.close(reading)


@pytest.mark.parametrize('name', ['a\0b', '\udcff/x'], ids=['NUL', 'not UTF-8'])
def test_a_name_that_no_file_can_have_is_refused(name):
    with refused(repr(name)):
        files.as_path(name)
    with refused(repr(name)):
        files.find(name)


def test_links_that_lead_back_do_not_make_a_pattern_endless(tmp_path):
    (tmp_path / 'below').mkdir()
    (tmp_path / 'below' / 'a.txt').write_text('x')
    (tmp_path / '.hidden').mkdir()
    (tmp_path / '.hidden' / 'one').symlink_to('..')
    assert len(files.find(f'{tmp_path}/**/*.txt')) == 1
    (tmp_path / 'below' / 'one').symlink_to('.')
    (tmp_path / 'below' / 'two').symlink_to('..')
    with refused('is a link to a folder that it is in', 'remove the link'):
        files.find(f'{tmp_path}/**/*.txt')


def test_a_line_without_an_end_is_refused():
    lines = io.BytesIO(b'short\n' + b'x' * 100)
    with refused('a.csv, line 2 is longer than'):
        list(files.read_lines(lines, 'a.csv', 10))
    with refused('a.csv, line 1 is longer than', "CR (0x0D) ends its lines, convert it (tr '"):
        list(files.read_lines(io.BytesIO(b'one\rtwo\rthree\r'), 'a.csv', 10))


def test_json_that_is_far_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, '_MOST_JSON_BYTES', 10)
    (tmp_path / 'a.json').write_text('{"a": "far too long"}')
    with refused('a.json cannot be read as JSON (21 bytes): get another'):
        files.read_json(tmp_path / 'a.json', 'get another')


def _zip(path, *names):
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as content:
        for name in names:
            content.writestr(name, 'x')


def _patched(path, field, value):
    """Sets a byte of all headers in a .zip, at a place of those that stand before the files."""
    data = bytearray(path.read_bytes())
    for signature, shift in ((b'PK\x03\x04', 0), (b'PK\x01\x02', 2)):
        at = data.find(signature)
        while at >= 0:
            data[at + field + shift] = value
            at = data.find(signature, at + 4)
    path.write_bytes(data)


def test_an_archive_that_cannot_be_unpacked_is_refused(tmp_path):
    for name, field, value, says in (
            ('locked.zip', 6, 1, 'it is encrypted'), ('deflate64.zip', 8, 9, 'not supported')):
        _zip(tmp_path / name, 'model/config.json')
        _patched(tmp_path / name, field, value)
        with refused(name, says, 'unpack it'):
            files.unpacked(tmp_path / name)


def test_what_macos_adds_to_an_archive_is_left_out(tmp_path):
    _zip(tmp_path / 'a.zip', 'model/config.json', '__MACOSX/model/._config.json', '.DS_Store')
    folder = files.unpacked(tmp_path / 'a.zip')
    assert [path.name for path in files.children(folder)] == ['config.json']


def test_an_output_on_the_hub_is_refused():
    with refused('--workdir=hf:a/b', 'name a folder'):
        files.open_folder('hf:a/b', '--workdir', lambda _: True)
    with refused('--output=hf:a/b', 'name a folder'):
        files.check_new_file('hf:a/b', '--output')


@pytest.mark.parametrize(('content', 'is_earlier'), [
    ('{"topology": "v5e:2x2"}', True), ('{"loss": 1}', False), ('notes', False)])
def test_only_an_earlier_result_is_written_over(content, is_earlier, tmp_path):
    path = tmp_path / 'new.json'
    path.write_text(content)
    expected = contextlib.nullcontext() if is_earlier else refused('--json: ', 'is there already')
    with expected:
        files.check_new_file(path, '--json', unless='topology')
