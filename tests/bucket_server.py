"""Buckets on loopback: gcp-storage-emulator, and what real Cloud Storage has beyond it.

It answers one request at a time and forgets what it holds when the process ends. Clients find it by
`environment()`, in this process and in those that tests start.
"""

from __future__ import annotations

import io
import json
import logging
import re
import threading
import time
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler, Router
from gcp_storage_emulator.storage import Storage

_OBJECT = re.compile(r'(?:/download|/upload)?/storage/v1/b/([^/]+)/o(?:/([^/]+))?(/moveTo/o/(.+))?')


class BucketServer:
    """Buckets in memory behind a port of loopback, which stays the same over stop and start.

    Attributes:
      requests: 'METHOD path?query' of all that were answered.
      faults: status by pattern, of requests that are refused: 403 or 503 (clients try again), 0
        (the connection is cut) or -N (nothing for N seconds, then it is cut).
      lost: patterns of requests that are carried out and answered by 503, each once.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.faults: dict[str, int] = {}
        self.lost: list[str] = []
        self.storage = Storage(use_memory_fs=True)
        self.storage._write_config_to_file = lambda: None  # a copy of everything a request
        self.lock = threading.Lock()
        logging.getLogger('gcp_storage_emulator').setLevel(logging.CRITICAL)  # tells every 404
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self._port}'

    def start(self) -> None:
        server = _Server(('127.0.0.1', self._port), partial(_Handler, self))
        self._port = server.server_address[1]
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Refuses connections until `start`; what is stored stays."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def environment(self) -> dict[str, str]:
        """What makes gcsfs, google-cloud-storage and tensorstore come here, without credentials."""
        return {
            'STORAGE_EMULATOR_HOST': self.url, 'TENSORSTORE_GCS_HTTP_URL': self.url,
            'FSSPEC_GCS_TOKEN': 'anon', 'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'anonymous',
            'NO_GCE_CHECK': 'true', 'GOOGLE_CLOUD_PROJECT': 'test',
        }

    def make_bucket(self, name: str) -> str:
        """Makes a bucket; its URL."""
        create_bucket(name, self.storage)
        self.storage.buckets[name]['softDeletePolicy'] = {'retentionDurationSeconds': 0}
        return f'gs://{name}'

    def names(self, prefix: str) -> list[str]:
        """URLs of the objects whose URL begins with `prefix`."""
        with self.lock:
            return sorted(url for bucket, objects in self.storage.objects.items()
                          for name in objects if (url := f'gs://{bucket}/{name}').startswith(prefix))

    def generation(self, bucket: str, name: str) -> str:
        """Of an object, as text; '0' where there is none."""
        return str(self.storage.objects.get(bucket, {}).get(name, {}).get('generation', 0))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # a save opens many connections at once
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that went away before its answer


class _Handler(RequestHandler):
    def __init__(self, buckets: BucketServer, *args: Any):
        self._buckets = buckets
        self._generation = '0'
        super().__init__(buckets.storage, *args)

    def _serve(self) -> None:
        length = int(self.headers.get('Content-Length') or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            return  # of a client that was killed: the emulator would store what has come
        if length:
            self.rfile = io.BytesIO(body)
        request = f'{self.command} {unquote(self.path)}'
        for pattern, status in list(self._buckets.faults.items()):
            if status <= 0 and re.search(pattern, request):
                time.sleep(-status)
                self.close_connection = True
                return
        with self._buckets.lock:
            self._buckets.requests.append(f'{self.command} {self.path}')
            pattern = next((p for p in self._buckets.lost if re.search(p, request)), None)
            answers = self.wfile
            if pattern is not None:
                self.wfile = io.BytesIO()
            if not self._answered(body):
                Router(self).handle(self.command)
            if pattern is not None:
                self._buckets.lost.remove(pattern)
                self.wfile = answers
                self._answer(503, {'error': {'code': 503, 'message': 'the answer was lost'}})

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _answered(self, body: bytes) -> bool:
        """Answers what the emulator would not, or otherwise than Cloud Storage does."""
        for pattern, status in list(self._buckets.faults.items()):
            if status > 0 and re.search(pattern, f'{self.command} {unquote(self.path)}'):
                self._answer(status, {'error': {'code': status, 'message': 'refused by a test'}})
                return True
        url = urlparse(self.path)
        match = _OBJECT.fullmatch(url.path)
        if match is None:
            return False
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        bucket, name = match[1], unquote(match[2] or query.get('name', ''))
        if not name and (said := re.search(rb'\n\n(\{.*?\})\n--', body)):  # of a small upload
            name = json.loads(said[1]).get('name', '')
        generation = self._buckets.generation(bucket, name)
        if name and query.get('ifGenerationMatch', generation) != generation:
            self._answer(412, {'error': {'code': 412, 'message': 'conditionNotMet'}})
        elif match[4]:
            self._move(bucket, name, unquote(match[4]))
        else:
            self._generation = generation if self.command == 'GET' else '0'
            return False
        return True

    def _move(self, bucket: str, name: str, target: str) -> None:
        storage = self._buckets.storage
        if name not in storage.objects.get(bucket, {}):
            self._answer(404, {'error': {'code': 404, 'message': 'notFound'}})
            return
        moved = storage.objects[bucket][name] | {'name': target}
        storage.create_file(bucket, target, storage.get_file(bucket, name), moved)
        storage.delete_file(bucket, name)
        self._answer(200, moved)

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def end_headers(self) -> None:
        if self._generation != '0':
            self.send_header('x-goog-generation', self._generation)
        super().end_headers()
