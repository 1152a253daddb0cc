"""The report page, live: a small read-only server for one person's browser on the same machine.

It answers ``GET`` and ``HEAD`` for two addresses, the page and its data, and nothing else: no path ever reaches the
file system. A request whose ``Host`` is not the server's own is refused, so that no other site can read the page by
naming it (DNS rebinding), and no header lets another origin read it.
"""

from __future__ import annotations

import hashlib
import io
import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.untrusted import text
from fedsmoo.pages.gather import gather_texts
from fedsmoo.pages.page import as_json, made, render
from fedsmoo.runs.storage.walk import find_runs

EVERY_MS = 2000
SECONDS = 30  # that a request may take to arrive, and an answer to be taken
AT_ONCE = 256  # connections that are served; further ones wait until one ends
WAITING = 1024  # connections that may wait; the system may allow fewer
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class LiveData:
    """The data of the page, read again only where a run's files changed; one reader at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self.cache: dict[Path, Any] = {}
        self.lock = threading.Lock()
        empty = {"runs": [], "partitions": [], "paper": [], "live": True, "every": 1}
        self.page = b"".join(render(empty, "'self'"))
        self.state: tuple[tuple[Any, ...], bytes, str] = ((), b"", "")

    def data(self) -> tuple[bytes, str]:
        """Return the data as JSON, and its ETag."""
        with self.lock:
            folders = find_runs(self.paths, missing_ok=True)  # not there yet, or no more
            values = gather_texts(folders, self.cache)
            stamp = tuple((f, self.cache[f][0]) for f in folders)
            if stamp != self.state[0] or not self.state[1]:
                body = "".join(as_json({**values, "live": True, "every": EVERY_MS, "made": made()})).encode()
                self.state = (stamp, body, '"' + hashlib.sha256(repr(stamp).encode()).hexdigest()[:32] + '"')
            return self.state[1], self.state[2]


class Incoming(io.RawIOBase):
    """What a client sends: a request that arrives a byte at a time has to be there in time, too."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.end = connection, 0.0

    def expect(self, seconds: float) -> None:
        """Give the next request so much time from now on."""
        self.end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.connection.settimeout(max(self.end - time.monotonic(), 0.001))
        try:
            return self.connection.recv_into(buffer)
        finally:
            self.connection.settimeout(SECONDS)


class Handler(BaseHTTPRequestHandler):
    """Answers ``GET`` and ``HEAD`` for the page and its data."""

    server_version = "fedsmoo"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    server: PageServer

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.incoming = Incoming(self.connection)
        self.rfile = io.BufferedReader(self.incoming)

    def handle_one_request(self) -> None:
        self.incoming.expect(SECONDS)
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"This server does not go by that name.\n", "text/plain", body)
        elif self.path == "/":
            self._send(HTTPStatus.OK, self.server.live.page, "text/html; charset=utf-8", body)
        elif self.path == "/data.json":
            content, tag = self.server.live.data()
            if self.headers.get("If-None-Match") == tag:
                self._send(HTTPStatus.NOT_MODIFIED, b"", None, False, {"ETag": tag})
            else:
                self._send(HTTPStatus.OK, content, "application/json", body, {"ETag": tag})
        else:
            self._send(HTTPStatus.NOT_FOUND, b"There is only the page itself: /\n", "text/plain", body)

    def _send(
        self, status: HTTPStatus, content: bytes, kind: str | None, body: bool, extra: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **(extra or {})}.items():
            self.send_header(name, value)
        if kind is not None:
            self.send_header("Content-Type", kind)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests may hold hostile text, and a terminal obeys control characters."""


class PageServer(ThreadingHTTPServer):
    """Listens on one address; ``hosts`` are the names by which it may be called."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = WAITING

    def __init__(self, paths: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> None:
        self.live = LiveData(paths)
        self.free = threading.Semaphore(AT_ONCE)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as e:  # the latter is a port that no machine has
            reason = getattr(e, "strerror", None) or "ports are 0 to 65535"
            raise FedsmooError(f"cannot listen on {host}, port {port}: {reason}; choose another --port") from e
        self.hosts = names_of(host, self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, once there are few enough of them."""
        self.free.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was started
            self.free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that went away or is too slow; say in one line what else went wrong."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            sys.stderr.write(f"fedsmoo: a page was not served: {text(f'{type(error).__name__}: {error}', 200)}\n")

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}/"


def names_of(host: str, port: int) -> frozenset[str]:
    """Return the ``Host`` headers that are ours: the address itself and, on loopback, ``localhost``."""
    names = [f"[{host}]" if ":" in host else host]
    if is_loopback(host):
        names += ["localhost", "127.0.0.1", "[::1]"]
    return frozenset(f"{n.lower()}:{port}" for n in names) | frozenset(n.lower() for n in names if port == 80)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
