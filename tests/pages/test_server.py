"""The live page: it follows runs, and answers nothing else and nobody else."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE, wait_for

from fedsmoo.core.errors import FedsmooError
from fedsmoo.pages import server as page_server
from fedsmoo.pages.server import PageServer, is_loopback, names_of

from .folders import record, run_folder


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[PageServer, Path]]:
    run_folder(tmp_path / "runs", "<b>one", "fedavg", rounds=10, finished=False)
    with PageServer([tmp_path / "runs"]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server, tmp_path / "runs"
        server.shutdown()
        thread.join()


def ask(server: PageServer, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    link = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=PATIENCE)
    link.request(method, path, headers=headers)
    answer = link.getresponse()
    out = answer.status, dict(answer.getheaders()), answer.read()
    link.close()
    return out


def test_page_and_data_are_served_and_nothing_else(served: tuple[PageServer, Path]) -> None:
    server, _ = served
    status, headers, body = ask(server, "GET", "/")
    assert status == 200
    assert b"connect-src 'self'" in body
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers
    status, headers, body = ask(server, "GET", "/data.json")
    assert [r["name"] for r in json.loads(body)["runs"]] == ["<b>one"]
    assert ask(server, "HEAD", "/data.json")[2] == b""
    for path in ("/..", "/../../etc/passwd", "//etc/passwd", "/%2e%2e/x", "/config.toml", "/data.json?x", "/static/"):
        assert ask(server, "GET", path)[0] == 404, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, method, "/")[0] == 501, method


def test_two_hundred_pages_at_once_all_arrive(
    served: tuple[PageServer, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    server, _ = served
    start, answers = threading.Barrier(200), list[tuple[int, bool]]()

    def visitor() -> None:
        start.wait(PATIENCE)
        status, _, body = ask(server, "GET", "/")
        answers.append((status, body == server.live.page))

    visitors = [threading.Thread(target=visitor) for _ in range(200)]
    for thread in visitors:
        thread.start()
    for thread in visitors:
        thread.join()
    assert answers == [(200, True)] * 200
    assert capfd.readouterr().err == ""


def connected(server: PageServer, sent: bytes) -> socket.socket:
    link = socket.create_connection(server.server_address[:2], timeout=PATIENCE)
    link.sendall(sent)
    return link


def idle(server: PageServer) -> bool:
    """Whether no connection is being served."""
    return server.free._value == page_server.AT_ONCE


GET = b"GET / HTTP/1.1\r\nHost: localhost:%d\r\n\r\n"


def test_who_goes_away_in_the_middle_of_a_page_is_not_spoken_of(
    served: tuple[PageServer, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    server, _ = served
    server.live.page = bytes(50_000_000)  # more than the buffers of a connection hold
    for _ in range(5):
        link = connected(server, GET % server.server_address[1])
        assert link.recv(100).startswith(b"HTTP/1.1 200 OK")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends by a reset
        link.close()
    wait_for(lambda: idle(server), "the connections to end")
    assert capfd.readouterr().err == ""


def test_slow_clients_are_left_in_the_end(served: tuple[PageServer, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = served
    monkeypatch.setattr(page_server, "SECONDS", 0.3)
    monkeypatch.setattr(page_server.Handler, "timeout", 0.3)
    writer = connected(server, b"GET / HTTP/1.1\r\nX: ")

    def byte_by_byte() -> bool:
        """Send one more byte, sooner than the time is over; whether the server has had enough."""
        try:
            writer.sendall(b"x")
        except ConnectionError:
            return True
        return idle(server)

    wait_for(lambda: not idle(server), "a connection")
    wait_for(byte_by_byte, "the server to have had enough")
    server.live.page = bytes(50_000_000)
    reader = connected(server, GET % server.server_address[1])  # asks, and never takes the answer
    wait_for(lambda: not idle(server), "a connection")
    wait_for(lambda: idle(server), "the connections to end")
    writer.close()
    reader.close()


def test_more_connections_than_are_served_wait_their_turn(served: tuple[PageServer, Path]) -> None:
    server, _ = served
    for _ in range(page_server.AT_ONCE - 1):
        server.free.acquire()
    first = connected(server, b"GET / HTTP/1.1\r\n")
    wait_for(lambda: server.free._value == 0, "all places to be taken")
    second = connected(server, GET % server.server_address[1])
    first.close()  # and its thread ends
    assert second.recv(100).startswith(b"HTTP/1.1 200 OK")
    second.close()
    server.free.release(page_server.AT_ONCE - 1)


def test_what_goes_wrong_is_one_line(
    served: tuple[PageServer, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server, _ = served

    def broken() -> tuple[bytes, str]:
        raise ValueError("no\x1b[2J data")

    monkeypatch.setattr(server.live, "data", broken)
    with pytest.raises(http.client.RemoteDisconnected):
        ask(server, "GET", "/data.json")
    wait_for(lambda: idle(server), "the connections to end")
    assert capfd.readouterr().err == "fedsmoo: a page was not served: ValueError: no\ufffd[2J data\n"


def test_other_names_are_refused(served: tuple[PageServer, Path]) -> None:
    server, _ = served
    port = server.server_address[1]
    assert ask(server, "GET", "/data.json", Host=f"localhost:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1:1", f"localhost.evil.example:{port}", ""):
        assert ask(server, "GET", "/data.json", Host=host)[0] == 421, host


def test_unchanged_data_is_not_sent_again(served: tuple[PageServer, Path]) -> None:
    server, runs = served
    tag = ask(server, "GET", "/data.json")[1]["ETag"]
    assert ask(server, "GET", "/data.json", **{"If-None-Match": tag})[0] == 304
    with (runs / "<b>one" / "metrics.jsonl").open("a") as f:
        f.write(json.dumps(record("fedavg", 0, 11, 60)) + "\n")
    status, headers, body = ask(server, "GET", "/data.json", **{"If-None-Match": tag})
    assert status == 200
    assert headers["ETag"] != tag
    assert json.loads(body)["runs"][0]["rounds"] == 11


def test_the_page_follows_a_run_in_a_browser(served: tuple[PageServer, Path], browser: Any) -> None:
    server, runs = served
    tab = browser.new_context().new_page()
    tab.set_default_timeout(1000 * PATIENCE)
    problems: list[str] = []
    outside: list[str] = []
    tab.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    tab.on("pageerror", lambda e: problems.append(str(e)))
    tab.on("request", lambda r: None if r.url.startswith((server.url, "data:")) else outside.append(r.url))
    tab.goto(server.url)
    tab.wait_for_selector("#plot-accuracy .main-svg")
    last = "Math.max(...document.getElementById('plot-accuracy').data.at(-1).x)"
    assert tab.evaluate(last) == 10
    with (runs / "<b>one" / "metrics.jsonl").open("a") as f:
        f.write(json.dumps(record("fedavg", 0, 11, 60)) + "\n")
    run_folder(runs, "two", "fedsmoo", rounds=30)
    wait_for(lambda: tab.evaluate(last) == 30, "the new run on the page")
    assert "2 runs, 1 finished" in tab.locator("#about").inner_text()
    assert (problems, outside) == ([], [])
    tab.context.close()


def test_loopback_is_known_and_a_taken_port_is_said(tmp_path: Path) -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.org")
    assert names_of("10.0.0.5", 80) == {"10.0.0.5:80", "10.0.0.5"}
    with PageServer([tmp_path]) as server, pytest.raises(FedsmooError, match="choose another --port"):
        PageServer([tmp_path], port=server.server_address[1])
