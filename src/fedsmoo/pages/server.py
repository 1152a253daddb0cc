"""The report page, live: a small read-only server for one person's browser on the same machine.

It answers ``GET`` and ``HEAD`` for two addresses, the page and its data, and nothing else: no path ever reaches the
file system. A request whose ``Host`` is not the server's own is refused, so that no other site can read the page by
naming it (DNS rebinding), and no header lets another origin read it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError
from fedsmoo.pages.gather import gather_texts
from fedsmoo.pages.page import as_json, made, render
from fedsmoo.runs.storage.walk import find_runs

EVERY_MS = 2000
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


class Handler(BaseHTTPRequestHandler):
    """Answers ``GET`` and ``HEAD`` for the page and its data."""

    server_version = "fedsmoo"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: PageServer

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

    def __init__(self, paths: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> None:
        self.live = LiveData(paths)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as e:  # the latter is a port that no machine has
            reason = getattr(e, "strerror", None) or "ports are 0 to 65535"
            raise FedsmooError(f"cannot listen on {host}, port {port}: {reason}; choose another --port") from e
        self.hosts = names_of(host, self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that closed the connection in the middle of an answer; report anything else as usual."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

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
