"""A stand-in for the Hugging Face hub on loopback."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator

COMMIT = '0123456789abcdef0123456789abcdef01234567'


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves `repositories`: by name (data sets' begin with `datasets/`), their files by path.

    ORG/gated is gated. Of a file called cut.parquet, only the first half is sent; of those in
    `cut_once`, the first half when they are first asked for. `asked` has the ranges of answers.
    """

    protocol_version = 'HTTP/1.1'
    repositories: dict[str, dict[str, bytes]] = {}
    cut_once: set[str] = set()
    asked: list[tuple[str, str | None]] = []

    def log_message(self, *_):
        pass

    def _answer(self, status, body=b'', **headers):
        self.send_response(status)
        for name, value in ({'Content-Length': str(len(body))} | headers).items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        if self.command != 'HEAD':
            cut = self.path.endswith('cut.parquet') or bool(
                once := {file for file in self.cut_once if self.path.endswith(file)})
            self.cut_once.difference_update(once if cut and 'resolve' in self.path else ())
            self.wfile.write(body[: len(body) // 2] if cut else body)
            self.close_connection = cut

    def do_GET(self):
        path = urllib.parse.unquote(self.path.partition('?')[0])
        match = re.fullmatch(
            r'/(?:api/models/|api/)?((?:datasets/)?[^/]+/[^/]+)(?:/(tree|resolve|revision)/'
            r'(refs/convert/parquet|[^/]+)/?(.*))?', path)
        name, what, revision, file = match.groups()
        files = self.repositories.get(name, {})
        if name == 'ORG/gated':
            self._answer(403, X_Error_Code='GatedRepo')
        elif not files:
            self._answer(404, X_Error_Code='RepoNotFound')
        elif revision not in (None, 'main', COMMIT, 'refs/convert/parquet'):
            self._answer(404, X_Error_Code='RevisionNotFound')
        elif what == 'tree':
            self._json([{'type': 'file', 'path': f, 'size': len(x), 'oid': etag(x)}
                        for f, x in files.items()])
        elif what != 'resolve':
            self._json({'id': name, 'sha': COMMIT, 'siblings': [
                {'rfilename': f, 'size': len(x), 'blobId': etag(x), 'lfs': {
                    'size': len(x), 'sha256': hashlib.sha256(x).hexdigest(), 'pointerSize': 9}}
                for f, x in files.items()]})
        elif revision != COMMIT:  # redirected to the commit, as by the hub
            self._answer(307, Location=f'/{name}/resolve/{COMMIT}/{file}')
        elif file not in files:
            self._answer(404, X_Error_Code='EntryNotFound', X_Repo_Commit=COMMIT)
        else:
            body, part = files[file], self.headers['Range']
            headers = {'ETag': f'"{etag(body)}"', 'X_Repo_Commit': COMMIT}
            if self.command == 'GET':
                self.asked.append((file, part))
            if part:
                start = int(part.removeprefix('bytes=').partition('-')[0])
                headers['Content_Range'] = f'bytes {start}-{len(body) - 1}/{len(body)}'
                self._answer(206, body[start:], **headers)
            else:
                self._answer(200, body, **headers)

    do_HEAD = do_GET

    def do_POST(self):
        """Makes a repository and adds files to it, if HF_TOKEN is `may write`."""
        body = self.rfile.read(int(self.headers['Content-Length'])).decode()
        name, what = re.match(
            '/api/(?:models/)?(.*?)(?:/(preupload|commit)/.*)?$', self.path).groups()
        if self.headers['Authorization'] != 'Bearer may write':
            self._answer(401)
        elif what == 'preupload':
            self._json({'files': [{'path': file['path'], 'uploadMode': 'regular',
                                   'shouldIgnore': False} for file in json.loads(body)['files']]})
        else:
            for line in map(json.loads, body.splitlines() if what == 'commit' else ()):
                if line['key'] == 'file':
                    content = base64.b64decode(line['value']['content'])
                    self.repositories.setdefault(name, {})[line['value']['path']] = content
            url = f'http://{self.headers["Host"]}/ORG/new'
            self._json({'url': url, 'name': 'ORG/new', 'commitUrl': f'{url}/commit/{COMMIT}',
                        'commitOid': COMMIT, 'errors': [], 'warnings': []})

    def _json(self, content):
        self._answer(200, json.dumps(content).encode(), Content_Type='application/json')


def etag(data):
    return hashlib.sha1(data).hexdigest()


@contextlib.contextmanager
def serving(cache: str) -> Iterator[dict[str, str]]:
    """The environment in which huggingface_hub uses the stand-in; it is read on import."""
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {'HF_ENDPOINT': f'http://127.0.0.1:{server.server_port}', 'HF_HOME': cache,
               'HF_HUB_OFFLINE': '0', 'HF_HUB_DISABLE_XET': '1', 'HF_HUB_DISABLE_TELEMETRY': '1'}
    finally:
        server.shutdown()
