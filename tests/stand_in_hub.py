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
# (repository, what is asked for, revision, file).
GET_PATH = re.compile(
    r'/(?:api/models/|api/)?((?:datasets/)?[^/]+/[^/]+)(?:/(tree|resolve|revision)/'
    r'(refs/convert/parquet|[^/]+)/?(.*))?')
# (repository, what is to be done).
POST_PATH = re.compile('/api/(?:models/)?(.*?)(?:/(preupload|commit)/.*)?$')


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves `repositories`: by name (data sets' begin with `datasets/`), their files by path.

    ORG/gated is gated. Of a file called cut.parquet, only the first half is sent; of those in
    `cut_once`, the first half when they are first asked for. While it is `down`, it answers 503.
    `asked` has the ranges of answers.
    """

    protocol_version = 'HTTP/1.1'
    repositories: dict[str, dict[str, bytes]] = {}
    cut_once: set[str] = set()
    asked: list[tuple[str, str | None]] = []
    down = False

    def log_message(self, *_):
        pass

    def _answer(self, status, body=b'', **headers):
        """Answers; the names of headers have underscores for hyphens."""
        self.send_response(status)
        for name, value in ({'Content-Length': str(len(body))} | headers).items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        if self.command == 'HEAD':
            return
        if self._takes_cut():
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)
            self.close_connection = False

    def _takes_cut(self):
        """Whether only half of this answer is sent; a file of `cut_once` has then been cut."""
        if self.path.endswith('cut.parquet'):
            return True
        asked_for = {file for file in self.cut_once if self.path.endswith(file)}
        if 'resolve' in self.path:
            self.cut_once.difference_update(asked_for)
        return bool(asked_for)

    def do_GET(self):
        path = urllib.parse.unquote(self.path.partition('?')[0])
        name, what, revision, file = GET_PATH.fullmatch(path).groups()
        files = self.repositories.get(name, {})
        if Hub.down:
            self._answer(503)
        elif name == 'ORG/gated':
            self._answer(403, X_Error_Code='GatedRepo')
        elif not files:
            self._answer(404, X_Error_Code='RepoNotFound')
        elif revision not in (None, 'main', COMMIT, 'refs/convert/parquet'):
            self._answer(404, X_Error_Code='RevisionNotFound')
        elif what == 'tree':
            self._answer_json([described(path, content) for path, content in files.items()])
        elif what != 'resolve':
            siblings = [sibling(path, content) for path, content in files.items()]
            self._answer_json({'id': name, 'sha': COMMIT, 'siblings': siblings})
        elif revision != COMMIT:  # redirected to the commit, as by the hub
            self._answer(307, Location=f'/{name}/resolve/{COMMIT}/{file}')
        elif file not in files:
            self._answer(404, X_Error_Code='EntryNotFound', X_Repo_Commit=COMMIT)
        else:
            self._answer_file(file, files[file])

    do_HEAD = do_GET

    def _answer_file(self, file, content):
        """Answers with a file, or the part of it that is asked for."""
        asked_range = self.headers['Range']
        if self.command == 'GET':
            self.asked.append((file, asked_range))
        headers = {'ETag': f'"{etag(content)}"', 'X_Repo_Commit': COMMIT}
        if asked_range:
            start = int(asked_range.removeprefix('bytes=').partition('-')[0])
            headers['Content_Range'] = f'bytes {start}-{len(content) - 1}/{len(content)}'
            self._answer(206, content[start:], **headers)
        else:
            self._answer(200, content, **headers)

    def do_POST(self):
        """Makes a repository and adds files to it, if HF_TOKEN is `may write`."""
        body = self.rfile.read(int(self.headers['Content-Length'])).decode()
        name, what = POST_PATH.match(self.path).groups()
        if self.headers['Authorization'] != 'Bearer may write':
            self._answer(401)
        elif what == 'preupload':
            files = [regular_file(file['path']) for file in json.loads(body)['files']]
            self._answer_json({'files': files})
        else:
            if what == 'commit':
                self._commit(name, body)
            url = f'http://{self.headers["Host"]}/ORG/new'
            self._answer_json({
                'url': url,
                'name': 'ORG/new',
                'commitUrl': f'{url}/commit/{COMMIT}',
                'commitOid': COMMIT,
                'errors': [],
                'warnings': [],
            })

    def _commit(self, name, body):
        """Adds the files of a commit, which has a JSON object a line, to a repository."""
        for line in body.splitlines():
            operation = json.loads(line)
            if operation['key'] == 'file':
                file = operation['value']
                files = self.repositories.setdefault(name, {})
                files[file['path']] = base64.b64decode(file['content'])

    def _answer_json(self, content):
        self._answer(200, json.dumps(content).encode(), Content_Type='application/json')


def etag(data):
    return hashlib.sha1(data).hexdigest()


def described(path, content):
    """A file as the hub lists it in a folder."""
    return {'type': 'file', 'path': path, 'size': len(content), 'oid': etag(content)}


def sibling(path, content):
    """A file as the hub lists it among those of a repository."""
    sha256 = hashlib.sha256(content).hexdigest()
    return {
        'rfilename': path,
        'size': len(content),
        'blobId': etag(content),
        'lfs': {'size': len(content), 'sha256': sha256, 'pointerSize': 9},
    }


def regular_file(path):
    """The hub's word on how a file is to be uploaded: within the commit."""
    return {'path': path, 'uploadMode': 'regular', 'shouldIgnore': False}


@contextlib.contextmanager
def serving(cache: str) -> Iterator[dict[str, str]]:
    """The environment in which huggingface_hub uses the stand-in; it is read on import."""
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {
            'HF_ENDPOINT': f'http://127.0.0.1:{server.server_port}',
            'HF_HOME': cache,
            'HF_HUB_OFFLINE': '0',
            'HF_HUB_DISABLE_XET': '1',
            'HF_HUB_DISABLE_TELEMETRY': '1',
        }
    finally:
        server.shutdown()
