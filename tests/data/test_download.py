"""Downloads from a server on this machine that drops the line, lies, is slow, or refuses."""

import dataclasses
import hashlib
import socket
import sys
import threading
import time
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from patience import PATIENCE

pooch = pytest.importorskip("pooch")
pytest.importorskip("requests")

from fedsmoo.core.errors import FedsmooError  # noqa: E402
from fedsmoo.data.catalog import SPECS, Remote  # noqa: E402
from fedsmoo.data.files.download import fetch_dataset, fetch_spec  # noqa: E402

BODY = np.random.default_rng(0).bytes(300_000)
NAME = "cifar-10-python.tar.gz"


class Server:
    """Serves BODY; ``plan`` says how the next requests go wrong, the rest go right.

    One that stalls says nothing more after a third of BODY, until it is asked again.
    """

    def __init__(self):
        self.plan, self.requests, self.body, self.ranges, self.etag = [], [], BODY, True, '"one"'
        self.stalls, self.asked = False, threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.answer(self)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/{NAME}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def answer(self, call):
        trouble = self.plan.pop(0) if self.plan else None
        wanted = call.headers.get("Range")
        with self.asked:
            self.requests.append(wanted)
            self.asked.notify_all()
            number = len(self.requests)
        if isinstance(trouble, int):
            call.send_error(trouble)
            return
        same = call.headers.get("If-Range", self.etag) == self.etag
        start = int(wanted[6:-1]) if wanted and self.ranges and same else 0
        if start >= len(self.body):
            call.send_error(416)
            return
        rest = self.body[start:]
        call.send_response(206 if start else 200)
        if start:
            call.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        call.send_header("Content-Length", str(len(rest)))
        call.send_header("ETag", self.etag)
        call.end_headers()
        if trouble == "drop":
            call.wfile.write(rest[:100_000])
            call.wfile.flush()
            call.connection.close()
        elif self.stalls and len(rest) > 100_000:
            call.wfile.write(rest[:100_000])
            call.wfile.flush()
            with self.asked:
                self.asked.wait_for(lambda: len(self.requests) > number, PATIENCE)
        elif trouble == "slow":
            for i in range(0, len(rest), 60_000):
                call.wfile.write(rest[i : i + 60_000])
                time.sleep(0.05)
        elif trouble == "wrong":
            call.wfile.write(bytes(len(rest)))
        else:
            call.wfile.write(rest)


@pytest.fixture
def server(monkeypatch):
    # pooch waits longer and longer between attempts; only the server's own naps are wanted here.
    monkeypatch.setattr(pooch.core, "time", types.SimpleNamespace(sleep=lambda seconds: None))
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()
    server.thread.join()


def spec(*urls):
    remote = Remote(NAME, f"sha256:{hashlib.sha256(BODY).hexdigest()}", urls)
    return dataclasses.replace(SPECS["cifar10"], remotes=(remote,))


def get(server, tmp_path, retries=4, timeout=(PATIENCE, PATIENCE), urls=None):
    return fetch_spec(spec(*(urls or [server.url])), tmp_path, progress=False, retries=retries, timeout=timeout)


def test_a_plain_download_and_none_the_second_time(server, tmp_path):
    folder = get(server, tmp_path)
    assert folder == tmp_path / "cifar10"
    assert (folder / NAME).read_bytes() == BODY
    get(server, tmp_path)
    assert len(server.requests) == 1
    assert [p.name for p in folder.iterdir()] == [NAME]


def test_a_broken_connection_is_resumed_where_it_broke(server, tmp_path):
    server.plan = ["drop", "drop"]
    assert (get(server, tmp_path) / NAME).read_bytes() == BODY
    starts = [0 if r is None else int(r[6:-1]) for r in server.requests]
    assert starts[0] == 0
    assert 0 < starts[1] < starts[2]


def test_a_connection_that_says_nothing_more_is_given_up_and_resumed(server, tmp_path):
    server.stalls = True  # a third at a time; where a busy machine stalls, too, it costs a further try
    assert (get(server, tmp_path, retries=100, timeout=(PATIENCE, 0.4)) / NAME).read_bytes() == BODY
    starts = [0 if r is None else int(r[6:-1]) for r in server.requests]
    assert starts == sorted(starts)
    assert len(set(starts)) >= 3


def test_a_later_run_goes_on_where_the_last_one_stopped(server, tmp_path):
    server.plan = ["drop"]
    with pytest.raises(FedsmooError, match="Run again to go on"):
        get(server, tmp_path, retries=0)
    assert not (tmp_path / "cifar10" / NAME).exists()
    part = (tmp_path / "cifar10" / f"{NAME}.part").read_bytes()
    assert 0 < len(part) <= 100_000
    assert BODY.startswith(part)
    get(server, tmp_path)
    assert server.requests == [None, f"bytes={len(part)}-"]
    assert (tmp_path / "cifar10" / NAME).read_bytes() == BODY


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.plan, server.ranges = ["drop"], False
    assert (get(server, tmp_path) / NAME).read_bytes() == BODY


def test_a_file_that_changed_meanwhile_is_not_stitched_together(server, tmp_path):
    server.body, server.plan = bytes(300_000), ["drop"]
    with pytest.raises(FedsmooError):
        get(server, tmp_path, retries=0)
    server.body, server.etag = BODY, '"two"'
    assert (get(server, tmp_path, retries=0) / NAME).read_bytes() == BODY


def test_a_part_that_is_too_long_is_dropped(server, tmp_path):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / f"{NAME}.part").write_bytes(bytes(400_000))
    assert (get(server, tmp_path) / NAME).read_bytes() == BODY


def test_a_slow_server_is_waited_for(server, tmp_path):
    server.plan = ["slow"]
    assert (get(server, tmp_path, retries=0) / NAME).read_bytes() == BODY


def test_a_wrong_file_is_never_kept(server, tmp_path):
    server.plan = ["wrong"] * 3
    with pytest.raises(FedsmooError, match="serves another file"):
        get(server, tmp_path, retries=2)
    assert not (tmp_path / "cifar10" / NAME).exists()
    server.plan = ["wrong"]
    assert (get(server, tmp_path, retries=1) / NAME).read_bytes() == BODY


def test_a_damaged_file_on_disk_is_fetched_again(server, tmp_path):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / NAME).write_bytes(BODY[:-1])
    assert (get(server, tmp_path) / NAME).read_bytes() == BODY


def test_the_next_address_helps_and_a_refusal_is_not_repeated(server, tmp_path):
    server.plan = [404]
    assert (get(server, tmp_path, urls=[server.url, server.url]) / NAME).read_bytes() == BODY
    assert len(server.requests) == 2
    server.plan = [500, 503]
    (tmp_path / "cifar10" / NAME).unlink()
    assert (get(server, tmp_path) / NAME).read_bytes() == BODY
    server.plan = [403]
    (tmp_path / "cifar10" / NAME).unlink()
    with pytest.raises(FedsmooError, match="HTTP 403"):
        get(server, tmp_path)


def test_a_name_that_does_not_resolve_is_not_asked_for_again_and_again(tmp_path, monkeypatch):
    asked = []

    def resolve(host, *rest, **more):
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(FedsmooError, match="cannot be resolved"):
        fetch_spec(spec("http://nobody.invalid/x"), tmp_path, progress=False)
    assert len(asked) == 1


def test_nobody_there(tmp_path):
    with pytest.raises(FedsmooError, match="could not get") as caught:
        fetch_spec(spec("http://127.0.0.1:9/x"), tmp_path, progress=False, retries=0)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FedsmooError, match="cannot be created"):
        fetch_spec(spec("http://127.0.0.1:9/x"), tmp_path / "file", progress=False)
    with pytest.raises(FedsmooError, match="did you mean 'cifar10'"):
        fetch_dataset("cifar", tmp_path)


def test_without_pooch_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(FedsmooError, match="pip install"):
        fetch_spec(spec("http://127.0.0.1:9/x"), tmp_path, progress=False)
