"""Buckets on loopback: gcp-storage-emulator, and what it lacks of real Cloud Storage.

It answers one request at a time and keeps objects in memory. Clients in this process, and in those
that tests start, find it by `environment()`.
"""

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
    """Buckets in memory behind a port of loopback.

    Attributes:
      requests: 'METHOD path?query' of all that were answered.
      faults: by pattern, how matching requests fail: with a status such as 403 or 503 (clients try
        again), with 0 by a cut connection, with -N by N seconds without an answer and then a cut.
      lost: patterns of requests that are carried out but answered by 503; each matches once.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.faults: dict[str, int] = {}
        self.lost: list[str] = []
        self.storage = Storage(use_memory_fs=True)
        self.storage._write_config_to_file = lambda: None  # it copies everything, at each request
        self.lock = threading.Lock()
        logging.getLogger('gcp_storage_emulator').setLevel(logging.CRITICAL)  # it logs every 404
        server = _Server(('127.0.0.1', 0), partial(_Handler, self))
        self._url = f'http://127.0.0.1:{server.server_address[1]}'
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def environment(self) -> dict[str, str]:
        """Variables by which gcsfs, google-cloud-storage and TensorStore come here anonymously."""
        return {
            'STORAGE_EMULATOR_HOST': self._url, 'TENSORSTORE_GCS_HTTP_URL': self._url,
            'FSSPEC_GCS_TOKEN': 'anon', 'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'anonymous',
            'NO_GCE_CHECK': 'true', 'GOOGLE_CLOUD_PROJECT': 'test',
        }

    def make_bucket(self, name: str) -> str:
        """Makes a bucket and returns its URL."""
        create_bucket(name, self.storage)
        self.storage.buckets[name]['softDeletePolicy'] = {'retentionDurationSeconds': 0}
        return f'gs://{name}'

    def names(self, prefix: str) -> list[str]:
        """URLs of the objects whose URL begins with `prefix`."""
        with self.lock:
            return sorted(url for bucket, objects in self.storage.objects.items()
                          for name in objects if (url := f'gs://{bucket}/{name}').startswith(prefix))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # a save opens many connections at once
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the client went away before the answer


class _Handler(RequestHandler):
    def __init__(self, buckets: BucketServer, *args: Any):
        self._buckets = buckets
        self._generation = 0
        super().__init__(buckets.storage, *args)

    def _serve(self) -> None:
        length = int(self.headers.get('Content-Length') or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            return  # a killed client; the emulator would store the part that came
        if length:
            self.rfile = io.BytesIO(body)
        request = f'{self.command} {unquote(self.path)}'
        fault = next((status for pattern, status in list(self._buckets.faults.items())
                      if re.search(pattern, request)), None)
        if fault is not None and fault <= 0:
            time.sleep(-fault)
            self.close_connection = True
            return
        with self._buckets.lock:
            self._buckets.requests.append(f'{self.command} {self.path}')
            lost = next((p for p in self._buckets.lost if re.search(p, request)), None)
            answers = self.wfile
            if lost is not None:
                self.wfile = io.BytesIO()
            if fault:
                self._refuse(fault, 'refused by a test')
            else:
                self._carry_out(body)
            if lost is not None:
                self._buckets.lost.remove(lost)
                self.wfile = answers
                self._refuse(503, 'the answer was lost')

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _carry_out(self, body: bytes) -> None:
        """Has the emulator answer, except where it differs from Cloud Storage."""
        url = urlparse(self.path)
        self._generation = 0
        if match := _OBJECT.fullmatch(url.path):
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            bucket, name = match[1], unquote(match[2] or query.get('name', ''))
            if not name and (said := re.search(rb'\n\n(\{.*?\})\n--', body)):  # multipart
                name = json.loads(said[1]).get('name', '')
            storage = self._buckets.storage
            found = storage.objects.get(bucket, {}).get(name, {})
            generation = found.get('generation', 0)
            if name and query.get('ifGenerationMatch', str(generation)) != str(generation):
                return self._refuse(412, 'conditionNotMet')
            if match[4]:
                if not found:
                    return self._refuse(404, 'notFound')
                moved = found | {'name': unquote(match[4])}
                storage.create_file(bucket, moved['name'], storage.get_file(bucket, name), moved)
                storage.delete_file(bucket, name)
                return self._answer(200, moved)
            if self.command == 'GET':
                self._generation = generation
        Router(self).handle(self.command)

    def _refuse(self, status: int, message: str) -> None:
        self._answer(status, {'error': {'code': status, 'message': message}})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def end_headers(self) -> None:
        if self._generation:
            self.send_header('x-goog-generation', str(self._generation))
        super().end_headers()
