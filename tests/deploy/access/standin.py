"""A stand-in for Flower's server behind a gate, nodes that sign their requests, and strangers that hold connections."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from patience import PATIENCE, ended, wait_for

from fedsmoo.deploy.access.gate import Gate, run_gate
from fedsmoo.deploy.access.keys import make_keys
from fedsmoo.deploy.access.limits import Limits
from fedsmoo.deploy.access.serve import certificate_files, contexts, listen

from ..processes import environment, free_ports


class Node:
    """A key, and the headers that it signs as Flower's nodes do."""

    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP384R1())
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        self.public = self.private.public_key().public_bytes(serialization.Encoding.PEM, form)

    def headers(self, time: datetime.datetime | None = None) -> dict[str, str]:
        stamp = (time or datetime.datetime.now(datetime.UTC)).isoformat()
        signature = self.private.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
        values = {"flwr-public-key": self.public, "flwr-signature": signature}
        return {"flwr-timestamp": stamp, **{k: b64encode(v).decode() for k, v in values.items()}}


class Handler(BaseHTTPRequestHandler):
    """Lets registered keys in and says how many bytes came."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        key = self.headers.get("flwr-public-key", "")
        known = key in {b64encode(k).decode() for k in self.server.registered}
        self.server.seen.append(self.path)
        reply = str(len(body)).encode() if known else b"who are you"
        self.send_response(200 if known else 401)
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *args: object) -> None: ...


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, certificates: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.registered: set[bytes] = set()
        self.seen: list[str] = []

    def handle_error(self, *args: object) -> None: ...


class Place:
    """A server, a gate before it as a process of its own, and what one needs to talk to it."""

    def __init__(self, folder: Path) -> None:
        make_keys(folder, ["127.0.0.1"], nodes=1)
        self.folder, self.server = folder, Server(folder / "certificates")
        self.port = free_ports(1)[0]
        self.context = ssl.create_default_context(cafile=folder / "certificates" / "ca.crt")

    def command(self) -> list[str]:
        to = f"127.0.0.1:{self.server.server_address[1]}"
        return [sys.executable, "-m", "fedsmoo", "deploy", "gate", "--port", str(self.port), "--to", to]

    @contextmanager
    def open(self) -> Iterator[subprocess.Popen[bytes]]:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        with (self.folder / "gate.log").open("wb") as log:
            command, env = self.command(), environment(self.folder / "home")
            gate = subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log)
        with ended(gate):
            wait_for(lambda: gate.poll() is not None or self.answers(), "the gate")
            assert gate.poll() is None, (self.folder / "gate.log").read_text()
            yield gate
        self.server.shutdown()
        self.server.server_close()

    @contextmanager
    def inside(self, limits: Limits) -> Iterator[None]:
        """A gate within this process, with other limits."""
        loop, to = asyncio.new_event_loop(), f"127.0.0.1:{self.server.server_address[1]}"
        make = partial(Gate, to, *contexts(certificate_files(self.folder / "certificates")), limits)
        with listen("127.0.0.1", self.port) as listening:
            task = loop.create_task(run_gate(listening, make))
            thread = threading.Thread(target=self.run, args=(loop, task), daemon=True)
            thread.start()
            try:
                yield
            finally:
                loop.call_soon_threadsafe(task.cancel)
                thread.join()

    @staticmethod
    def run(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        for left in asyncio.all_tasks(loop):
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(left)
        loop.close()

    def answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE):
            return True
        return False

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"https://127.0.0.1:{self.port}", verify=self.context, timeout=60)

    def post(self, node: Node, path: str = "/v1/fleet/pull-messages", body: bytes = b"x") -> httpx.Response:
        with self.client() as client:
            return client.post(path, content=body, headers=node.headers())


class Flood:
    """Connections that send a beginning and then nothing; whatever is closed is opened again, until it is over."""

    def __init__(self, place: Place, size: int, beginning: bytes, tls: bool = True) -> None:
        self.place, self.size, self.beginning, self.tls = place, size, beginning, tls
        self.held: list[socket.socket] = []
        self.opened, self.over = 0, threading.Event()

    def one(self) -> socket.socket | None:
        with suppress(OSError):
            plain = socket.create_connection(("127.0.0.1", self.place.port), timeout=PATIENCE)
            found = self.place.context.wrap_socket(plain, server_hostname="127.0.0.1") if self.tls else plain
            found.sendall(self.beginning)
            found.setblocking(False)
            return found
        return None

    def closed(self, found: socket.socket) -> bool:
        try:
            return found.recv(4096) == b""
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True

    def go_on(self) -> None:
        while not self.over.is_set():
            for s in [s for s in self.held if self.closed(s)]:
                self.held.remove(s)
                s.close()
            while len(self.held) < self.size and not self.over.is_set():
                if (new := self.one()) is not None:
                    self.held.append(new)
                self.opened += 1
            self.over.wait(0.05)
        for s in self.held:
            s.close()

    @contextmanager
    def going_on(self) -> Iterator[Flood]:
        """Within this all connections have been made, and are made again."""
        thread = threading.Thread(target=self.go_on, daemon=True)
        thread.start()
        try:
            wait_for(lambda: self.opened >= self.size, "the flood")
            yield self
        finally:
            self.over.set()
            thread.join()
