"""Models by name, from a stand-in of the Hugging Face hub on loopback: of whole programs."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading

import pytest
from run_model import RECORDED, assert_same

from bert_jax.weights import load_weights
from tests.conftest import ROOT

pytest.importorskip('huggingface_hub', reason='the extra [hub] is not installed')

FOLDER = RECORDED / 'pretraining'
COMMIT = '0123456789abcdef0123456789abcdef01234567'


class Hub(http.server.BaseHTTPRequestHandler):
    """ORG/bert, public, and ORG/gated."""

    protocol_version = 'HTTP/1.1'

    def log_message(self, *_):
        pass

    def _answer(self, status, body=b'', **headers):
        self.send_response(status)
        for name, value in ({'Content-Length': str(len(body))} | headers).items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def do_GET(self):
        path, _, _ = self.path.partition('?')
        parts = path.strip('/').split('/')
        if parts[0] == 'api':
            name, what, revision = '/'.join(parts[2:4]), parts[4:5], (parts[5:6] or ['main'])[0]
        else:
            name, what, revision = '/'.join(parts[:2]), parts[2:3], parts[3]
        files = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}
        if name == 'ORG/gated':
            self._answer(403, X_Error_Code='GatedRepo')
        elif name != 'ORG/bert':
            self._answer(404, X_Error_Code='RepoNotFound')
        elif revision not in ('main', COMMIT):
            self._answer(404, X_Error_Code='RevisionNotFound')
        elif what == ['tree']:
            self._json([{'type': 'file', 'path': f, 'size': len(x), 'oid': etag(x)}
                        for f, x in files.items()])
        elif parts[0] == 'api':
            self._json({'id': name, 'sha': COMMIT, 'siblings': [{'rfilename': f} for f in files]})
        elif revision == 'main':  # a redirect, as the hub has them
            self._answer(307, Location=f'/{name}/resolve/{COMMIT}/{parts[-1]}')
        elif parts[-1] not in files:
            self._answer(404, X_Error_Code='EntryNotFound', X_Repo_Commit=COMMIT)
        else:
            body = files[parts[-1]]
            headers = {'ETag': f'"{etag(body)}"', 'X_Repo_Commit': COMMIT}
            self._answer(200, body, **headers)

    do_HEAD = do_GET

    def _json(self, content):
        self._answer(200, json.dumps(content).encode(), Content_Type='application/json')


def etag(data):
    return hashlib.sha1(data).hexdigest()


@pytest.fixture(scope='module')
def hub(tmp_path_factory):
    """What makes huggingface_hub come to the stand-in; it reads this when it is imported."""
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cache = tmp_path_factory.mktemp('cache')
    yield {'HF_ENDPOINT': f'http://127.0.0.1:{server.server_port}', 'HF_HOME': str(cache),
           'HF_HUB_DISABLE_XET': '1', 'HF_HUB_DISABLE_TELEMETRY': '1'}
    server.shutdown()


def convert(hub, source, target, **environment):
    return subprocess.run(
        [sys.executable, '-m', 'bert_jax.convert', source, str(target), '--to', 'bert_jax'],
        cwd=ROOT, env=os.environ | hub | environment, capture_output=True, text=True, timeout=120)


def test_a_model_by_name_is_the_folder_and_stays_in_the_cache(hub, tmp_path):
    for i, (source, environment) in enumerate([
            ('hf:ORG/bert', {}), (f'hf:ORG/bert@{COMMIT}', {}),
            ('hf:ORG/bert', {'HF_HUB_OFFLINE': '1'})]):
        process = convert(hub, source, tmp_path / str(i), **environment)
        assert process.returncode == 0, process.stderr
        assert_same(load_weights(tmp_path / str(i)), load_weights(FOLDER))


@pytest.mark.parametrize('source, environment, words', [
    ('hf:ORG/bret', {}, 'the hub has no such model'),
    ('hf:ORG/bert@v2', {}, "it has no revision 'v2'"),
    ('hf:ORG/gated', {}, 'accept its terms on its page there, and log in'),
    ('hf:ORG/other', {'HF_HUB_OFFLINE': '1'}, 'it is not in the cache, and the hub cannot be'),
    ('hf:a/b/c', {}, 'write hf:ORG/NAME'),
    ('bert-base-uncased', {}, 'of the Hugging Face hub: hf:ORG/bert-base-uncased'),
])
def test_what_is_wrong_is_one_line(hub, tmp_path, source, environment, words):
    process = convert(hub, source, tmp_path / 'new', **environment)
    assert process.returncode == 2 and process.stderr.count('\n') == 1, process.stderr
    assert words in process.stderr
