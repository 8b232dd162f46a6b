"""Buckets on loopback: gcp-storage-emulator, and what it lacks of real Cloud Storage.

It carries out one request at a time and keeps objects in memory. Clients in this process, and in
those that tests start, find it by `environment()`.
"""

import collections
import contextlib
import io
import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler, Router
from gcp_storage_emulator.storage import Storage

_OBJECT = re.compile(
    r'(?:/download|/upload)?/storage/v1/b/([^/]+)/o(?:/([^/]+))?(/moveTo/o/(.+)|/compose)?')


class BucketServer:
    """Buckets in memory behind a port of loopback.

    Attributes:
      requests: 'METHOD path?query range' of all that were answered. On a busy machine clients ask
        again for a few that are answered late, so tests count those that differ.
      faults: by pattern, how matching requests fail: with a status such as 403 or 503 (clients try
        again), with 0 by a cut connection, with -N by N seconds without an answer and then a cut.
        Patterns name the bucket, as threads of tests before may still ask for others.
      lost: patterns of requests that are carried out but answered by 503; each matches once.
      received: by bucket, the number of bytes in the bodies of all requests.
      delay: seconds that every request waits, beside others.
      most_waiting: how many have waited at the same time, at most.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.delay = 0.0
        self.most_waiting = 0
        self._num_waiting = 0
        self._counting = threading.Lock()
        self.faults: dict[str, int] = {}
        self.lost: list[str] = []
        self.received: dict[str, int] = collections.Counter()
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
            'STORAGE_EMULATOR_HOST': self._url,
            'TENSORSTORE_GCS_HTTP_URL': self._url,
            'FSSPEC_GCS_TOKEN': 'anon',
            'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'anonymous',
            'NO_GCE_CHECK': 'true',
            'GOOGLE_CLOUD_PROJECT': 'test',
        }

    def make_bucket(self, name: str) -> str:
        """Makes a bucket and returns its URL."""
        create_bucket(name, self.storage)
        self.storage.buckets[name]['softDeletePolicy'] = {'retentionDurationSeconds': 0}
        return f'gs://{name}'

    def take_requests(self, url: str) -> set[str]:
        """Those to a bucket, which begins a URL, since the last call; threads of others may ask."""
        name = url.removeprefix('gs://').partition('/')[0]
        found = {request for request in self.requests if f'/b/{name}/' in request}
        self.requests.clear()
        return found

    def names(self, prefix: str) -> list[str]:
        """URLs of the objects whose URL begins with `prefix`."""
        urls = []
        with self.lock:
            for bucket, objects in self.storage.objects.items():
                urls += [f'gs://{bucket}/{name}' for name in objects]
        return sorted(url for url in urls if url.startswith(prefix))

    def wait(self) -> None:
        """Lets a request wait."""
        with self._counting:
            self._num_waiting += 1
            self.most_waiting = max(self.most_waiting, self._num_waiting)
        time.sleep(self.delay)
        with self._counting:
            self._num_waiting -= 1

    def fault_of(self, request: str) -> int | None:
        """How a request fails, or None."""
        for pattern, status in list(self.faults.items()):
            if re.search(pattern, request):
                return status
        return None

    def take_lost(self, request: str) -> bool:
        """Whether the answer to a request is lost; its pattern has then matched."""
        for pattern in self.lost:
            if re.search(pattern, request):
                self.lost.remove(pattern)
                return True
        return False


def _bucket_in(path: str) -> str:
    """The name of the bucket that a request is about, or ''."""
    found = re.search('/b/([^/?]+)', path)
    return found[1] if found else ''


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
        if self._buckets.delay:
            self._buckets.wait()
        request = f'{self.command} {unquote(self.path)}'
        fault = self._buckets.fault_of(request)
        if fault is not None and fault <= 0:
            time.sleep(-fault)
            self.close_connection = True
            return
        with self._buckets.lock:
            asked = f"{self.command} {self.path} {self.headers.get('Range', '')}"
            self._buckets.requests.append(asked.rstrip())
            self._buckets.received[_bucket_in(self.path)] += length
            if self._buckets.take_lost(request):
                with self._silenced():
                    self._refuse_or_carry_out(fault, body)
                self._refuse(503, 'the answer was lost')
            else:
                self._refuse_or_carry_out(fault, body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    @contextlib.contextmanager
    def _silenced(self) -> Iterator[None]:
        """Sends nothing to the client."""
        connection = self.wfile
        self.wfile = io.BytesIO()
        try:
            yield
        finally:
            self.wfile = connection

    def _refuse_or_carry_out(self, fault: int | None, body: bytes) -> None:
        if fault:
            self._refuse(fault, 'refused by a test')
        else:
            self._carry_out(body)

    def _carry_out(self, body: bytes) -> None:
        """Has the emulator answer, except where it differs from Cloud Storage."""
        self._generation = 0
        url = urlparse(self.path)
        match = _OBJECT.fullmatch(url.path)
        if not match:
            Router(self).handle(self.command)
            return
        bucket, quoted_name, _, quoted_target = match.groups()
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        name = unquote(quoted_name or query.get('name', '')) or _name_in_multipart(body)
        found = self._buckets.storage.objects.get(bucket, {}).get(name, {})
        generation = found.get('generation', 0)
        expected_generation = query.get('ifGenerationMatch', str(generation))
        is_gone = query.get('generation', str(generation)) != str(generation)
        if name and expected_generation != str(generation):
            self._refuse(412, 'conditionNotMet')
        elif is_gone or (quoted_target and not found):
            self._refuse(404, 'notFound')
        elif quoted_target:
            self._move(bucket, name, found | {'name': unquote(quoted_target)})
        else:
            if self.command == 'GET':
                self._generation = generation
            Router(self).handle(self.command)

    def _move(self, bucket: str, name: str, moved: dict[str, Any]) -> None:
        """Gives an object the name and the metadata `moved`."""
        storage = self._buckets.storage
        storage.create_file(bucket, moved['name'], storage.get_file(bucket, name), moved)
        storage.delete_file(bucket, name)
        self._answer(200, moved)

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


def _name_in_multipart(body: bytes) -> str:
    """The name of the object in the body of a multipart upload; '' for other bodies."""
    metadata = re.search(rb'\n\n(\{.*?\})\n--', body)
    return json.loads(metadata[1]).get('name', '') if metadata else ''
